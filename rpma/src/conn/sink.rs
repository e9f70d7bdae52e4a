//! Each operation once: checked, written down as a request, and given to a [`Sink`]: to the device,
//! or to a batch.

use std::slice;

use super::Conn;
use super::check::{Boxed, Checked};
use super::short::AtomicWrites;
#[cfg(not(native_flush))]
use crate::error::Error;
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
#[cfg(native_flush)]
use crate::queues::Queues;
use crate::slots::{Kind, PostRefusal, PostResult, Wanted, waited};
use crate::verbs::{
    ANY_FORM, ATOMIC, CHAIN, FLUSH, Forms, GATHER, Gather, Opcode, RemoteAddress, Request, Written,
};
#[cfg(native_flush)]
use crate::verbs::{MAX_FLUSH, QueuePair, SendFlags};

/// Where a checked operation goes.
pub(super) trait Sink<'a> {
    type Added;

    /// `request` makes it where it stays: it is too long to be moved. `bytes` are the program's.
    fn add(
        self,
        request: impl FnOnce() -> Request<'a>,
        form: (Forms, bool),
        bytes: u64,
        op_context: u64,
    ) -> Boxed<Self::Added>;

    /// A native flush of more than [`MAX_FLUSH`] bytes.
    #[cfg(native_flush)]
    fn add_long_flush(
        self,
        range: (RemoteAddress, u64),
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Boxed<Self::Added>;
}

impl Conn {
    #[inline(always)]
    pub(super) fn read_to<'a, S: Sink<'a>>(
        &self,
        sink: S,
        (dst, src): (MrSlice<'a>, RemoteSlice),
        flags: Flags,
        op_context: u64,
    ) -> Boxed<S::Added> {
        match self.check_read(&dst, &src, flags) {
            Ok(bytes) => {
                let flags = self.short.flags(flags);
                let request = || Request::new(Opcode::READ, src.address(), dst.buffer(), flags);
                sink.add(request, (Forms::ANY, false), bytes, op_context)
            }
            Err(fault) => Err(self.wrong(fault)),
        }
    }

    #[inline(always)]
    pub(super) fn write_to<'a, S: Sink<'a>>(
        &self,
        sink: S,
        opcode: Opcode,
        (dst, src): (RemoteSlice, MrSlice<'a>),
        flags: Flags,
        op_context: u64,
    ) -> Boxed<S::Added> {
        match self.check_write(&dst, slice::from_ref(&src), flags) {
            Ok(bytes) => {
                let flags = self.short.flags(flags);
                let request = || Request::new(opcode, dst.address(), src.buffer(), flags);
                sink.add(request, (Forms::ANY, false), bytes, op_context)
            }
            Err(fault) => Err(self.wrong(fault)),
        }
    }

    #[inline(always)]
    pub(super) fn send_to<'a, S: Sink<'a>>(
        &self,
        sink: S,
        opcode: Opcode,
        src: MrSlice<'a>,
        flags: Flags,
        op_context: u64,
    ) -> Boxed<S::Added> {
        match self.check_send(slice::from_ref(&src), flags) {
            Ok(bytes) => {
                let flags = self.short.flags(flags);
                let request = || Request::new(opcode, RemoteAddress::NONE, src.buffer(), flags);
                sink.add(request, (Forms::ANY, false), bytes, op_context)
            }
            Err(fault) => Err(self.wrong(fault)),
        }
    }

    #[inline(always)]
    pub(super) fn atomic_write_to<'a, S: Sink<'a>>(
        &self,
        sink: S,
        (dst, src): (RemoteSlice, &'a [u8; 8]),
        flags: Flags,
        op_context: u64,
    ) -> Boxed<S::Added> {
        let kind = self.check_atomic_write(&dst, flags)?;
        let (remote, flags) = (dst.address(), self.short.unsolicited(flags));
        match kind {
            #[cfg(native_atomic_write)]
            AtomicWrites::Native => {
                let request = || Request::atomic_write(remote, src, flags);
                sink.add(request, (Forms::STREAM, false), 8, op_context)
            }
            _ => {
                let flags = flags | self.short.after_flushes;
                sink.add(
                    || Request::inline(remote, src, flags),
                    (Forms::ANY, false),
                    8,
                    op_context,
                )
            }
        }
    }

    #[inline(always)]
    pub(super) fn flush_to<'a, S: Sink<'a>>(
        &self,
        sink: S,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Boxed<S::Added> {
        if let Err(fault) = self.check_flush(&dst, flush_type, flags) {
            return Err(self.wrong(fault));
        }
        let (remote, len) = (dst.address(), dst.len());
        let flags = self.short.unsolicited(flags);
        match &self.flush_method {
            FlushMethod::Read(target) => {
                let request = || Request::read(remote, target.first(len), flags);
                sink.add(request, (Forms::ANY, true), 0, op_context)
            }
            #[cfg(native_flush)]
            FlushMethod::Native => {
                let persistent = flush_type == FlushType::Persistent;
                if len > MAX_FLUSH {
                    return sink.add_long_flush((remote, len), persistent, flags, op_context);
                }
                let request = || Request::flush(remote, len, persistent, flags);
                sink.add(request, (Forms::STREAM, true), 0, op_context)
            }
            // Not reached: without the operation in rdma-core no queue pair has it.
            #[cfg(not(native_flush))]
            FlushMethod::Native => {
                let text = "rdma-core was built without native flush";
                Err(Box::new(Error::not_supported(text)))
            }
        }
    }
}

impl<'a> Sink<'a> for &Conn {
    type Added = Posted;

    #[inline(always)]
    fn add(
        self,
        request: impl FnOnce() -> Request<'a>,
        (form, flushes): (Forms, bool),
        bytes: u64,
        op_context: u64,
    ) -> Boxed<Posted> {
        let mut request = request();
        let completes = request.completes();
        let posted = match form {
            Forms::ANY => self.post_one(&mut request, bytes, op_context),
            Forms::STREAM if flushes => self.post_one_flush(&mut request, bytes, op_context),
            _ => self.post_one_atomic(&mut request, bytes, op_context),
        };
        match posted {
            Ok(number) => Ok(self.queues.slots.name(number, completes)),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    #[cfg(native_flush)]
    #[cold]
    #[inline(never)]
    fn add_long_flush(
        self,
        (remote, len): (RemoteAddress, u64),
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Boxed<Posted> {
        let Queues { qp, slots, .. } = &self.queues;
        let requests = QueuePair::flush_slots(len);
        let signaled = flags.contains(SendFlags::SIGNALED);
        let wanted = Wanted::one_operation(requests, signaled);
        let posted = slots.post_sends::<true>(wanted, 0, |mut entries| {
            let first = entries.take(op_context);
            for _ in 1..requests {
                entries.take(op_context);
            }
            let wr_id = |number| Kind::Send.wr_id(first + u64::from(number));
            qp.post_long_flush(remote, len, persistent, flags, wr_id)?;
            Ok(wanted.signaled)
        });
        match waited(posted) {
            Ok(number) => Ok(self.queues.slots.name(number, signaled)),
            Err(refusal) => {
                let error = self.queues.send_refused(refusal, "operation", requests);
                Err(Box::new(error))
            }
        }
    }
}

impl Conn {
    /// Posts an operation of any number of local parts, if its check has found nothing.
    #[inline(always)]
    pub(super) fn gather(
        &self,
        gather: &mut Gather<'_>,
        checked: Checked<u64>,
        flags: Flags,
        op_context: u64,
    ) -> Boxed<Posted> {
        let bytes = match checked {
            Ok(bytes) => bytes,
            Err(fault) => return Err(self.wrong(fault)),
        };
        match self.post_gather(gather, bytes, op_context) {
            Ok(number) => Ok(self.queues.slots.name(number, flags.completes())),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    #[inline(never)]
    fn post_gather(
        &self,
        gather: &mut Gather<'_>,
        bytes: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        self.post_all::<GATHER>(Written::gather(gather, op_context), bytes)
    }

    /// Not inlined: its callers need no registers kept for it.
    #[inline(never)]
    fn post_one(
        &self,
        request: &mut Request<'_>,
        bytes: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        self.post_all::<CHAIN>(Written::one(request, Forms::ANY, op_context), bytes)
    }

    #[inline(never)]
    fn post_one_flush(
        &self,
        request: &mut Request<'_>,
        bytes: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        self.post_all::<FLUSH>(Written::one(request, Forms::STREAM, op_context), bytes)
    }

    #[inline(never)]
    fn post_one_atomic(
        &self,
        request: &mut Request<'_>,
        bytes: u64,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        self.post_all::<ATOMIC>(Written::one(request, Forms::STREAM, op_context), bytes)
    }

    /// Posts all of them, or none: one, or a batch.
    #[inline(always)]
    pub(super) fn post_all<const FORM: u8>(
        &self,
        requests: Written<'_>,
        bytes: u64,
    ) -> Result<u64, PostRefusal> {
        match self.try_post::<FORM, false>(&requests, bytes) {
            Some(posted) => Ok(posted?),
            None => self.post_waiting(requests, bytes),
        }
    }

    /// As [`post_all`](Self::post_all), where another thread posts or entries have to be looked
    /// for.
    #[cold]
    #[inline(never)]
    fn post_waiting(&self, requests: Written<'_>, bytes: u64) -> Result<u64, PostRefusal> {
        waited(self.try_post::<ANY_FORM, true>(&requests, bytes))
    }

    #[inline(always)]
    fn try_post<const FORM: u8, const WAITS: bool>(
        &self,
        requests: &Written<'_>,
        bytes: u64,
    ) -> PostResult {
        let (count, signaled) = requests.count();
        let wanted = Wanted { count, signaled };
        let (qp, slots) = (&self.queues.qp, &self.queues.slots);
        slots.post_sends::<WAITS>(wanted, bytes, |mut entries| {
            let number = |op_context| Kind::Send.wr_id(entries.take(op_context));
            qp.post_written::<FORM>(requests, number)?;
            Ok(requests.count().1)
        })
    }
}
