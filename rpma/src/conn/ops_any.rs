//! The slow path of an operation: everything is possible, and each error is named.
//!
//! [`super::ops`] calls these with operations that its one condition rejects. These take references
//! to copies, which their callers make only then.

use std::slice;

use super::Conn;
#[cfg(not(native_flush))]
use crate::error::Error;
use crate::error::Result;
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
#[cfg(native_flush)]
use crate::verbs::QueuePair;
use crate::verbs::{Gather, LocalBuffer, MAX_SGE, Opcode, RemoteAddress, Request, SendFlags};

impl Conn {
    #[inline(never)]
    pub(super) fn read_any(
        &self,
        dst: &MrSlice<'_>,
        src: &RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        self.check_read(dst, src, flags)?;
        let parts = slice::from_ref(dst);
        self.post_parts(Opcode::READ, src.address(), parts, flags, op_context)
    }

    #[inline(never)]
    pub(super) fn write_any(
        &self,
        opcode: Opcode,
        dst: &RemoteSlice,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        self.check_write(dst, src, flags)?;
        self.post_parts(opcode, dst.address(), src, flags, op_context)
    }

    #[inline(never)]
    pub(super) fn send_any(
        &self,
        opcode: Opcode,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        self.check_send(src, flags)?;
        self.post_parts(opcode, RemoteAddress::NONE, src, flags, op_context)
    }

    #[inline(never)]
    pub(super) fn atomic_write_any(
        &self,
        dst: &RemoteSlice,
        src: &[u8; 8],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let asked = flags;
        let flags = self.check_atomic_write(dst, flags)?;
        let remote = dst.address();
        #[cfg(native_atomic_write)]
        if self.queues.qp.native_ops().atomic_write {
            let posted = self.post_atomic_write(remote, src, flags, op_context);
            return self.posted(posted, asked);
        }
        let posted = self.post(&mut Request::inline(remote, src, flags), 8, op_context);
        self.posted(posted, asked)
    }

    #[inline(never)]
    pub(super) fn flush_any(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        self.check_flush(dst, flush_type, flags)?;
        let asked = flags;
        let flags = self.short.unsolicited(flags);
        let posted = self.flush_by_method(dst, flush_type, (flags, asked), op_context)?;
        self.fences.flushed(posted);
        Ok(posted)
    }

    fn flush_by_method(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        (flags, asked): (SendFlags, Flags),
        op_context: u64,
    ) -> Result<Posted> {
        match self.flush_method {
            FlushMethod::Native => {
                #[cfg(native_flush)]
                {
                    let (remote, len) = (dst.address(), dst.len());
                    let persistent = flush_type == FlushType::Persistent;
                    let flush = (len, persistent);
                    let posted = self.post_long_flush(remote, flush, flags, op_context);
                    match posted.result() {
                        Ok(_) => self.posted(posted, asked),
                        Err(refusal) => {
                            let requests = QueuePair::flush_slots(len);
                            Err(self.queues.send_refused(refusal, "operation", requests))
                        }
                    }
                }
                // Not reached: without the operation in rdma-core no queue pair has it.
                #[cfg(not(native_flush))]
                let _ = flush_type;
                #[cfg(not(native_flush))]
                Err(Error::not_supported(
                    "rdma-core was built without native flush",
                ))
            }
            FlushMethod::Read(_) => {
                let (remote, len) = (dst.address(), dst.len());
                let posted = self.post_reading_flush(remote, len, flags, op_context);
                self.posted(posted, asked)
            }
        }
    }

    /// Posts an operation of any number of local parts, without the parts of 0 bytes.
    fn post_parts(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        parts: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let mut buffers = [LocalBuffer::EMPTY; MAX_SGE];
        let with_bytes = parts
            .iter()
            .map(MrSlice::buffer)
            .filter(|part| part.len() > 0);
        let count = buffers
            .iter_mut()
            .zip(with_bytes)
            .map(|(place, part)| *place = part)
            .count();
        let mut gather = Gather::new(opcode, remote, self.short.flags(flags));
        // Each has some bytes, so that the sum is there.
        let len = gather.fill(&buffers[..count], |part| Some(*part));
        let posted = self.post_gather(&mut gather, len.unwrap_or(0), op_context);
        self.posted(posted, flags)
    }
}
