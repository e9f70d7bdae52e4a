//! The checks of an operation, single or in a batch: every case, with an error for each that is
//! wrong. The usual cases are accepted before, by the conditions of [`super::short`].

use std::slice;
use std::sync::PoisonError;

use super::Conn;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice, require};
use crate::peer_cfg::Durable;
use crate::verbs::SendFlags;

impl Conn {
    pub(super) fn check_read(
        &self,
        dst: &MrSlice<'_>,
        src: &RemoteSlice,
        flags: Flags,
    ) -> Result<()> {
        let len = self.check_parts(slice::from_ref(dst))?;
        self.check_lengths(len, src.len())?;
        self.check_peers(slice::from_ref(dst))?;
        require(src.usage(), MrUsage::READ_SRC, "remote")?;
        require(dst.tag().usage(), MrUsage::READ_DST, "local")?;
        self.fences.check(flags)?;
        self.check_reads()?;
        if flags.inline() {
            return Err(Error::invalid(
                "Flags::INLINE is for writes and sends, not for reads",
            ));
        }
        Ok(())
    }

    pub(super) fn check_write(
        &self,
        dst: &RemoteSlice,
        src: &[MrSlice<'_>],
        flags: Flags,
    ) -> Result<()> {
        let len = self.check_parts(src)?;
        self.check_lengths(len, dst.len())?;
        self.check_peers(src)?;
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        for part in src {
            require(part.tag().usage(), MrUsage::WRITE_SRC, "local")?;
        }
        self.fences.check(flags)?;
        self.check_inline(flags, len)
    }

    pub(super) fn check_send(&self, src: &[MrSlice<'_>], flags: Flags) -> Result<()> {
        let len = self.check_parts(src)?;
        self.check_lengths(len, len)?;
        self.check_peers(src)?;
        for part in src {
            require(part.tag().usage(), MrUsage::SEND, "local")?;
        }
        self.fences.check(flags)?;
        self.check_inline(flags, len)
    }

    /// Returns its flags, and those that order it after the flushes before it.
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
        Ok(self.short.unsolicited(flags) | behind_flushes)
    }

    pub(super) fn check_flush(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
    ) -> Result<()> {
        self.fences.check(flags)?;
        if dst.is_empty() {
            return Err(Error::invalid(
                "a flush of 0 bytes: flush the range of the earlier writes",
            ));
        }
        if !self.short.promised().contains(flush_type.usage()) {
            return Err(self.not_durable());
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

    /// The error of a persistent flush that would not make data durable.
    #[cold]
    fn not_durable(&self) -> Error {
        let durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        Error::not_supported(match *durable {
            None => {
                "the peer has not declared which flushes make data durable in its memory: apply its PeerCfg with \
                 Conn::apply_remote_peer_cfg, or flush with FlushType::Visibility"
            }
            Some(Durable::NativeFlushes) => {
                "the peer has declared that only native flushes make data durable (Durable::NativeFlushes), and this \
                 connection flushes by reading: use a native flush (Conn::has_native_flush, without \
                 ConnCfg::set_force_fallback), or let the peer's program persist the data (Method::Server)"
            }
            Some(_) => {
                "the peer has declared that no flush makes data durable in its memory (Durable::Nothing): flush with \
                 FlushType::Visibility and let the peer's program persist the data (Method::Server)"
            }
        })
    }

    /// Refuses too many local parts, and returns their length together.
    fn check_parts(&self, local: &[MrSlice<'_>]) -> Result<u64> {
        let limit = self.queues.limits.sge as usize;
        if local.len() > limit {
            return Err(Error::invalid(format!(
                "{} local parts, and the connection was made for {limit}: ask for more with \
                 ConnCfg::set_max_send_sge",
                local.len()
            )));
        }
        // Lengths of memory that exists: their sum fits.
        let lens = local.iter().map(MrSlice::len);
        Ok(lens.fold(0, u64::saturating_add))
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
        match self.short.reads() {
            true => Ok(()),
            false => Err(Error::not_supported(
                "the connection was made with no reads in flight (initiator depth 0), so that a read \
                 would never complete: the peer must connect or accept with more",
            )),
        }
    }
}
