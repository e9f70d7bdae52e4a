//! What an operation may be, for a single one and for one of a batch.
//!
//! Twice: as a condition of one line, which is true of the usual case only (`…_simply`), and as a check that
//! knows every case and names what is wrong (`check_…`).

use std::sync::atomic::Ordering;

use super::Conn;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice, Tag, require};
use crate::verbs::{LocalBuffer, MAX_SGE, SendFlags};

/// The flags that a flush and an atomic write can have.
pub(super) const UNSOLICITED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

/// Local parts of an operation, without the empty ones.
pub(super) struct Parts<'mr> {
    buffers: [LocalBuffer<'mr>; MAX_SGE],
    count: usize,
}

impl<'mr> Parts<'mr> {
    pub(super) fn buffers(&self) -> &[LocalBuffer<'mr>] {
        &self.buffers[..self.count]
    }
}

/// Whether an operation is of the usual kind and right: one local part of 1 byte at least, and no fence.
impl Conn {
    #[inline(always)]
    pub(super) fn reads_simply(&self, dst: &MrSlice<'_>, src: &RemoteSlice, flags: Flags) -> bool {
        !flags.fence()
            && self.takes(
                dst,
                MrUsage::READ_DST,
                self.queues.tags.read_dst,
                self.queues.limits.message,
            )
            && u64::from(dst.buffer().len()) == src.len()
            && src.usage().contains(MrUsage::READ_SRC)
            && !flags.inline()
            && self.reads.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn writes_simply(&self, dst: &RemoteSlice, src: &MrSlice<'_>, flags: Flags) -> bool {
        !flags.fence()
            && self.takes(
                src,
                MrUsage::WRITE_SRC,
                self.queues.tags.write_src,
                self.limit(flags),
            )
            && u64::from(src.buffer().len()) == dst.len()
            && dst.usage().contains(MrUsage::WRITE_DST)
    }

    #[inline(always)]
    pub(super) fn sends_simply(&self, src: &MrSlice<'_>, flags: Flags) -> bool {
        !flags.fence() && self.takes(src, MrUsage::SEND, self.queues.tags.send, self.limit(flags))
    }

    /// Whether it is the device's own.
    #[cfg(native_atomic_write)]
    #[inline(always)]
    pub(super) fn writes_atomically_simply(&self, dst: &RemoteSlice, flags: Flags) -> bool {
        !flags.fence()
            && dst.len() == 8
            && dst.address().address % 8 == 0
            && dst.usage().contains(MrUsage::WRITE_DST)
            && self.plain_atomic_writes.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn flushes_simply(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
    ) -> bool {
        let possible = MrUsage::from_bits_retain(self.simple_flushes.load(Ordering::Relaxed));
        !flags.fence()
            && (dst.usage() & possible).contains(flush_type.usage())
            // For a fallback, and at most what one native flush takes.
            && (8..=1 << 31).contains(&dst.len())
            && self.reads.load(Ordering::Relaxed)
    }

    /// Whether this is a part that an operation may have without a closer look: of this connection's peer,
    /// for this usage, with 1 to `limit` bytes.
    #[inline(always)]
    fn takes(&self, local: &MrSlice<'_>, usage: MrUsage, tag: Tag, limit: u32) -> bool {
        local.tag().fits(tag, usage) && local.buffer().len().wrapping_sub(1) < limit
    }

    /// The longest operation with these flags.
    #[inline(always)]
    fn limit(&self, flags: Flags) -> u32 {
        match flags.inline() {
            true => self.queues.limits.inline,
            false => self.queues.limits.message,
        }
    }
}

/// Every case, with an error for each that is wrong.
impl Conn {
    pub(super) fn check_read<'mr>(
        &self,
        dst: &MrSlice<'mr>,
        src: &RemoteSlice,
        flags: Flags,
    ) -> Result<Parts<'mr>> {
        let (parts, len) = self.gather(&[*dst])?;
        self.check_lengths(len, src.len())?;
        self.check_peers(&[*dst])?;
        require(src.usage(), MrUsage::READ_SRC, "remote")?;
        require(dst.tag().usage(), MrUsage::READ_DST, "local")?;
        self.fences.check(flags)?;
        self.check_reads()?;
        if flags.inline() {
            return Err(Error::invalid(
                "Flags::INLINE is for writes and sends, not for reads",
            ));
        }
        Ok(parts)
    }

    pub(super) fn check_write<'mr>(
        &self,
        dst: &RemoteSlice,
        src: &[MrSlice<'mr>],
        flags: Flags,
    ) -> Result<Parts<'mr>> {
        let (parts, len) = self.gather(src)?;
        self.check_lengths(len, dst.len())?;
        self.check_peers(src)?;
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        for part in src {
            require(part.tag().usage(), MrUsage::WRITE_SRC, "local")?;
        }
        self.fences.check(flags)?;
        self.check_inline(flags, len)?;
        Ok(parts)
    }

    pub(super) fn check_send<'mr>(&self, src: &[MrSlice<'mr>], flags: Flags) -> Result<Parts<'mr>> {
        let (parts, len) = self.gather(src)?;
        self.check_lengths(len, len)?;
        self.check_peers(src)?;
        for part in src {
            require(part.tag().usage(), MrUsage::SEND, "local")?;
        }
        self.fences.check(flags)?;
        self.check_inline(flags, len)?;
        Ok(parts)
    }

    /// Returns its flags, with what keeps it behind the flushes before it.
    pub(super) fn check_atomic_write(&self, dst: &RemoteSlice, flags: Flags) -> Result<SendFlags> {
        let remote = dst.address();
        if dst.len() != 8 || remote.address % 8 != 0 {
            return Err(Error::invalid(format!(
                "an atomic write is of 8 bytes at a multiple of 8, not of {} at {:#x}",
                dst.len(),
                remote.address
            )));
        }
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        let native = self.queues.qp.native_ops().atomic_write;
        let fence = self.fences.possible() & SendFlags::FENCE;
        let behind_flushes = self.flush_method.fence_of_atomic_write(native, fence)?;
        self.fences.check(flags)?;
        if !self.flush_method.has_plain_atomic_writes(native) {
            let slots = &self.queues.slots;
            self.fences
                .check_atomic_write(|flush| slots.was_polled(flush))?;
        }
        if native {
            self.check_reads()?;
        }
        Ok(flags.to_verbs(self.fences.possible() & UNSOLICITED) | behind_flushes)
    }

    pub(super) fn check_flush(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
    ) -> Result<()> {
        self.fences.check(flags)?;
        if dst.is_empty() {
            return Err(Error::invalid("a flush of 0 bytes: flush what was written"));
        }
        let possible = MrUsage::from_bits_retain(self.flushes.load(Ordering::Relaxed));
        if !possible.contains(flush_type.usage()) {
            return Err(Error::not_supported(
                "the peer has not declared that writes go directly to its persistent memory, or has declared that \
                 they do not: apply its PeerCfg with Conn::apply_remote_peer_cfg, or flush with \
                 FlushType::Visibility and let the peer's program persist the data",
            ));
        }
        if !dst.usage().contains(flush_type.usage()) {
            return Err(Error::not_supported(format!(
                "the remote memory region was registered for {}, without {}",
                dst.usage(),
                flush_type.usage()
            )));
        }
        match self.flush_method {
            FlushMethod::Native => Ok(()),
            FlushMethod::Read(_) => self.check_reads(),
        }
    }

    /// The work request's view of local parts, and their length together.
    fn gather<'mr>(&self, local: &[MrSlice<'mr>]) -> Result<(Parts<'mr>, u64)> {
        let limit = self.queues.limits.sge as usize;
        if local.len() > limit {
            return Err(Error::invalid(format!(
                "{} local parts, and the connection was made for {limit}: ask for more with \
                 ConnCfg::set_max_send_sge",
                local.len()
            )));
        }
        let mut parts = Parts {
            buffers: [LocalBuffer::EMPTY; MAX_SGE],
            count: 0,
        };
        let mut len = 0u64;
        for local in local.iter().filter(|local| !local.is_empty()) {
            parts.buffers[parts.count] = local.buffer();
            parts.count += 1;
            // Lengths of memory that exists: their sum fits.
            len = len.saturating_add(local.len());
        }
        Ok((parts, len))
    }

    fn check_lengths(&self, local: u64, remote: u64) -> Result<()> {
        let limit = self.queues.limits.message;
        if local != remote {
            return Err(Error::invalid(format!(
                "the local part has {local} bytes and the remote part {remote}"
            )));
        }
        if local > limit.into() {
            return Err(Error::invalid(format!(
                "{local} bytes are more than one message of this port can carry ({limit}): split them"
            )));
        }
        Ok(())
    }

    fn check_peers(&self, local: &[MrSlice<'_>]) -> Result<()> {
        match local
            .iter()
            .all(|part| part.tag().is_of(self.queues.tags.none))
        {
            true => Ok(()),
            false => Err(Error::invalid(
                "the memory region was registered with another Peer than the connection's",
            )),
        }
    }

    fn check_inline(&self, flags: Flags, len: u64) -> Result<()> {
        let limit = self.queues.limits.inline;
        if !flags.inline() || len <= limit.into() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{len} bytes with Flags::INLINE, and the connection was made for {limit}: ask for more with \
             ConnCfg::set_max_inline_data"
        )))
    }

    fn check_reads(&self) -> Result<()> {
        // In this order: a connection that opens sets `reads` first.
        if self.queues.slots.is_connecting() {
            return Err(self.queues.slots.closed());
        }
        match self.reads.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::not_supported(
                "the connection was made with no reads in flight (initiator depth 0), so that a read \
                 would never complete: the peer must connect or accept with more",
            )),
        }
    }
}
