//! What a connection does: reads, writes, sends, receives, atomic writes and flushes.
//!
//! Each operation is checked, takes a slot of its queue, and is posted. Nothing is sent if a check fails or
//! there is no slot.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::Conn;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice, require};
use crate::slots::Kind;
use crate::verbs::{LocalBuffer, MAX_SGE, Opcode, PostError, RemoteAddress, SendFlags};

/// # Operations
///
/// They are posted, and complete later: see [`Cq`](crate::Cq). `op_context` comes back as
/// [`Wc::wr_id`](crate::Wc::wr_id). The operation uses the memory until it has completed; what becomes of
/// the region before that is safe, see [`Mr`](crate::Mr).
///
/// If posting fails nothing is sent, with the exception of [`Error::Provider`]: then the device may have the
/// request, and execute it or not. The errors that all share:
///
/// * [`Error::InvalidArgument`] if lengths differ or are more than the port takes, if a region belongs to
///   another peer, or if a region lacks the usage that the operation needs;
/// * [`Error::QueueFull`] if no slot is free;
/// * [`Error::NoCompletionDue`] if too few are free, and polling would not free one;
/// * [`Error::NotConnected`] before the connection is established (on the side that accepts: before it has
///   accepted; but it should wait for [`ConnEvent::Established`](crate::ConnEvent::Established)), and after
///   it has failed or ended;
/// * [`Error::Provider`] if the verb fails (`ibv_post_send`, `ibv_post_recv` or `ibv_wr_complete`). After
///   a failed send, read, write or flush the connection takes no more of them.
impl Conn {
    /// Reads `src` of the peer into `dst`. The lengths must be equal.
    ///
    /// It needs [`MrUsage::READ_SRC`] and [`MrUsage::READ_DST`]. [`MrSlice::EMPTY`] and
    /// [`RemoteSlice::EMPTY`] make a read of 0 bytes, which tests the connection.
    ///
    /// # Errors
    ///
    /// As all operations, and [`Error::NotSupported`] if the peer serves no reads.
    #[doc(alias = "rpma_read")]
    pub fn read(
        &self,
        dst: MrSlice<'_>,
        src: RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let local = self.check_pair(dst, src)?;
        require(src.usage(), MrUsage::READ_SRC, "remote")?;
        require(dst.usage(), MrUsage::READ_DST, "local")?;
        self.check_reads()?;
        if flags.inline() {
            return Err(Error::invalid(
                "Flags::INLINE is for writes and sends, not for reads",
            ));
        }
        self.post(
            Opcode::Read,
            src.address(),
            &[local],
            flags.to_verbs(self.fence),
            op_context,
        )
    }

    /// Writes `src` to `dst` of the peer. The lengths must be equal.
    ///
    /// Its completion says that the peer's device has the data, not that it is visible or persistent
    /// there: see [`flush`](Self::flush). Until then the bytes of `src` must not change, or the peer
    /// gets some of each.
    ///
    /// It needs [`MrUsage::WRITE_SRC`] and [`MrUsage::WRITE_DST`]. [`MrSlice::EMPTY`] and
    /// [`RemoteSlice::EMPTY`] make a write of 0 bytes, which tests the connection.
    ///
    /// # Errors
    ///
    /// As all operations.
    #[doc(alias = "rpma_write")]
    #[inline]
    pub fn write(
        &self,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.write_as(Opcode::Write, dst, src, flags, op_context)
    }

    /// As [`write`](Self::write), and tells the peer: a receive completes there (with
    /// [`WcOpcode::RECV_RDMA_WITH_IMM`](crate::WcOpcode::RECV_RDMA_WITH_IMM) and `imm`) when the data has
    /// arrived. Without a receive there the operation waits for one.
    ///
    /// # Errors
    ///
    /// As all operations.
    #[doc(alias = "rpma_write_with_imm")]
    pub fn write_with_imm(
        &self,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<()> {
        self.write_as(Opcode::WriteWithImm(imm), dst, src, flags, op_context)
    }

    #[inline]
    fn write_as(
        &self,
        opcode: Opcode,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let local = self.check_pair(src, dst)?;
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        require(src.usage(), MrUsage::WRITE_SRC, "local")?;
        self.check_inline(flags, local.len())?;
        self.post(
            opcode,
            dst.address(),
            &[local],
            flags.to_verbs(self.fence),
            op_context,
        )
    }

    /// Writes several local parts, one after the other, to `dst` of the peer: up to as many as
    /// `ConnCfg::set_max_send_sge` says. Their lengths together must be that of `dst`.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`Error::InvalidArgument`] for too many parts.
    pub fn write_gather(
        &self,
        dst: RemoteSlice,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let mut parts = [LocalBuffer::EMPTY; MAX_SGE];
        let (parts, len) = self.gather(src, MrUsage::WRITE_SRC, &mut parts)?;
        if len != dst.len() {
            return Err(lengths_differ(len, dst.len()));
        }
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        self.check_inline(flags, len)?;
        self.post(
            Opcode::Write,
            dst.address(),
            parts,
            flags.to_verbs(self.fence),
            op_context,
        )
    }

    /// Sends `src` as a message, which lands in a receive of the peer. Without one there it waits, and
    /// so does what is posted after it; on soft-RoCE that must not be a native flush or atomic write, see
    /// [`flush`](Self::flush).
    ///
    /// It needs [`MrUsage::SEND`]. [`MrSlice::EMPTY`] makes a message of 0 bytes.
    ///
    /// # Errors
    ///
    /// As all operations.
    #[doc(alias = "rpma_send")]
    pub fn send(&self, src: MrSlice<'_>, flags: Flags, op_context: u64) -> Result<()> {
        self.send_as(Opcode::Send, &[src], flags, op_context)
    }

    /// As [`send`](Self::send), with 4 bytes beside the message that the peer finds in its completion.
    ///
    /// # Errors
    ///
    /// As all operations.
    #[doc(alias = "rpma_send_with_imm")]
    pub fn send_with_imm(
        &self,
        src: MrSlice<'_>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<()> {
        self.send_as(Opcode::SendWithImm(imm), &[src], flags, op_context)
    }

    /// Sends several local parts as one message: up to as many as `ConnCfg::set_max_send_sge` says.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::InvalidArgument`] for too many parts.
    pub fn send_gather(&self, src: &[MrSlice<'_>], flags: Flags, op_context: u64) -> Result<()> {
        self.send_as(Opcode::Send, src, flags, op_context)
    }

    fn send_as(
        &self,
        opcode: Opcode,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let mut parts = [LocalBuffer::EMPTY; MAX_SGE];
        let (parts, len) = self.gather(src, MrUsage::SEND, &mut parts)?;
        self.check_inline(flags, len)?;
        self.post(
            opcode,
            RemoteAddress::NONE,
            parts,
            flags.to_verbs(self.fence),
            op_context,
        )
    }

    /// Posts a receive for a message, or for the notice of a write with immediate data.
    ///
    /// It needs [`MrUsage::RECV`]. [`MrSlice::EMPTY`] takes messages of 0 bytes. The memory must be as long
    /// as the message, or the connection fails on both sides.
    ///
    /// # Errors
    ///
    /// As all operations, and [`Error::InvalidArgument`] if the connection receives from a shared receive
    /// queue. Receives may be posted before the connection is established.
    #[doc(alias = "rpma_recv")]
    pub fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        self.queues.recv(dst, op_context)
    }

    /// Writes 8 bytes to `dst` of the peer at once: a reader there sees the old ones or the new ones, and
    /// sees the new ones only when all flushes that were posted earlier on this connection are done.
    ///
    /// So a program may post the write of a record, its flush, the atomic write of a pointer to it, and
    /// the flush of the pointer, one after the other: the pointer never shows a record that is not there.
    /// With [`write`](Self::write) in the place of the atomic write it has to poll the first flush before
    /// (see [what is ordered](Conn#order)). The atomic write itself is not persistent before it is flushed.
    ///
    /// With the device's own atomic write its completion is a
    /// [`WcOpcode::ATOMIC_WRITE`](crate::WcOpcode::ATOMIC_WRITE). Without, it is an ordinary write
    /// ([`WcOpcode::RDMA_WRITE`](crate::WcOpcode::RDMA_WRITE)), and that the 8 bytes arrive at once is a
    /// property of the peer's hardware which verbs does not promise. It needs [`MrUsage::WRITE_DST`].
    ///
    /// Behind a fallback flush, which is a read, it carries a fence, but on soft-RoCE: that executes in
    /// order, and after a lost packet its fence waits for ever.
    ///
    /// On soft-RoCE a native atomic write must not be sent again, as happens behind a message that waits
    /// for a receive: see [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As all operations; [`Error::InvalidArgument`] unless `dst` has 8 bytes at an address that is a
    /// multiple of 8. [`Error::NotSupported`] on a device with a flush of its own and no atomic write of
    /// its own (none is known): no order between the two is promised there.
    #[doc(alias = "rpma_atomic_write")]
    pub fn atomic_write(
        &self,
        dst: RemoteSlice,
        src: &[u8; 8],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
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
        let behind_flushes = self
            .flush_method
            .fence_of_atomic_write(native, self.fence)?;
        let verbs_flags = flags.to_verbs(self.fence) & (SendFlags::SIGNALED | SendFlags::FENCE);
        let verbs_flags = verbs_flags | behind_flushes;
        if native {
            // The device counts it among the reads in flight.
            self.check_reads()?;
        }
        let qp = &self.queues.qp;
        self.post_as(1, verbs_flags, op_context, |number| {
            let wr_id = Kind::Send.wr_id(number);
            match native {
                true => self.post_native_atomic_write(remote, src, verbs_flags, wr_id),
                false => qp.post_inline_write(remote, src, verbs_flags, wr_id),
            }
        })
    }

    #[cfg(native_atomic_write)]
    fn post_native_atomic_write(
        &self,
        remote: RemoteAddress,
        src: &[u8; 8],
        flags: SendFlags,
        wr_id: u64,
    ) -> Result<(), PostError> {
        self.queues.qp.post_atomic_write(remote, src, flags, wr_id)
    }

    /// Not reached: without the operation in rdma-core no queue pair has it.
    #[cfg(not(native_atomic_write))]
    fn post_native_atomic_write(
        &self,
        _: RemoteAddress,
        _: &[u8; 8],
        _: SendFlags,
        _: u64,
    ) -> Result<(), PostError> {
        Err(PostError::Failed(Error::not_supported(
            "rdma-core was built without native atomic write",
        )))
    }

    /// Flushes what was written to `dst` before, on this connection: [`FlushType`] says what its
    /// completion promises.
    ///
    /// With the device's flush operation ([`has_native_flush`](Self::has_native_flush)) its completion
    /// is a [`WcOpcode::FLUSH`](crate::WcOpcode::FLUSH), and it takes a send-queue slot for each 2 GiB. (If it
    /// fails, each of these may give a failed completion, with the same `op_context`.)
    /// Without, it reads up to 8 bytes of `dst`, and its completion is a
    /// [`WcOpcode::RDMA_READ`](crate::WcOpcode::RDMA_READ).
    ///
    /// A native flush of memory whose device has none is refused by that device and breaks the
    /// connection. `ConnCfg::set_force_fallback` is the remedy: the two sides cannot find out by
    /// themselves. It is also the remedy on a network that loses packets: soft-RoCE (up to Linux 7.3 at
    /// least) sends a native flush or atomic write that is lost again with a wrong address, and the
    /// connection fails with a remote access error. The fallback survives that, and over soft-RoCE it is
    /// durable only where the caches are in the persistence domain (eADR). It needs a region that may be
    /// read: a C program whose device has native flush must register it with `RPMA_MR_USAGE_READ_SRC` as
    /// well.
    ///
    /// A [`write`](Self::write) that is posted behind a flush does not wait for it: poll the flush first,
    /// or use [`atomic_write`](Self::atomic_write). See [what is ordered](Conn#order).
    ///
    /// soft-RoCE does the same, without any loss, with a native flush or atomic write behind a message
    /// that waits for a receive: it sends all of them again. There, the peer must post its receives
    /// before the messages come ([`ConnReq::recv`](crate::ConnReq::recv) can do so before the connection
    /// exists), or this side must use the fallback.
    ///
    /// # Errors
    ///
    /// As all operations; [`Error::InvalidArgument`] if `dst` is empty. [`Error::NotSupported`] for a
    /// persistent flush if the peer has not declared direct write to persistent memory, if the region
    /// does not support the flush type, or if a fallback flush meets a peer that serves no reads.
    #[doc(alias = "rpma_flush")]
    pub fn flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.check_flush(dst, flush_type)?;
        let flags = flags.to_verbs(self.fence) & (SendFlags::SIGNALED | SendFlags::FENCE);
        match self.flush_method {
            FlushMethod::Native => self.post_native_flush(dst, flush_type, flags, op_context),
            FlushMethod::Read => {
                self.check_reads()?;
                let target = self.queues.peer.flush_target()?.first(dst.len());
                self.post(Opcode::Read, dst.address(), &[target], flags, op_context)
            }
        }
    }

    #[cfg(native_flush)]
    fn post_native_flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<()> {
        let slots = crate::verbs::QueuePair::flush_slots(dst.len());
        let persistent = flush_type == FlushType::Persistent;
        self.post_as(slots, flags, op_context, |first| {
            let wr_id = |number| Kind::Send.wr_id(first.wrapping_add(number));
            let qp = &self.queues.qp;
            qp.post_flush(dst.address(), dst.len(), persistent, flags, wr_id)
        })
    }

    /// Not reached: without the operation in rdma-core no queue pair has it.
    #[cfg(not(native_flush))]
    fn post_native_flush(&self, _: RemoteSlice, _: FlushType, _: SendFlags, _: u64) -> Result<()> {
        Err(Error::not_supported(
            "rdma-core was built without native flush",
        ))
    }

    #[inline]
    fn post(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: &[LocalBuffer<'_>],
        flags: SendFlags,
        op_context: u64,
    ) -> Result<()> {
        self.post_as(1, flags, op_context, |number| {
            let wr_id = Kind::Send.wr_id(number);
            let qp = &self.queues.qp;
            qp.post_send(opcode, remote, local, flags, wr_id)
        })
    }

    /// Takes slots for an operation of so many requests, and posts it with the number of the first.
    #[inline]
    fn post_as(
        &self,
        slots: u32,
        flags: SendFlags,
        op_context: u64,
        post: impl FnOnce(u32) -> Result<(), PostError>,
    ) -> Result<()> {
        let signaled = flags.contains(SendFlags::SIGNALED);
        let posted = self
            .queues
            .slots
            .post_send(slots, signaled, op_context, post);
        posted.map_err(hint)
    }

    /// The work request's view of `local`, if it fits `remote` and belongs to this connection's peer.
    #[inline]
    fn check_pair<'mr>(
        &self,
        local: MrSlice<'mr>,
        remote: RemoteSlice,
    ) -> Result<LocalBuffer<'mr>> {
        if local.len() == remote.len()
            && local.len() <= self.queues.limits.message.into()
            && local.peer().fits(self.queues.peer.key())
        {
            return Ok(local.buffer());
        }
        Err(if local.len() == remote.len() {
            self.unfit(local.len())
        } else {
            lengths_differ(local.len(), remote.len())
        })
    }

    /// The work request's view of several local parts, and their length together.
    fn gather<'a, 'mr>(
        &self,
        local: &[MrSlice<'mr>],
        usage: MrUsage,
        parts: &'a mut [LocalBuffer<'mr>; MAX_SGE],
    ) -> Result<(&'a [LocalBuffer<'mr>], u64)> {
        let limit = self.queues.limits.sge as usize;
        if local.len() > limit {
            return Err(Error::invalid(format!(
                "{} local parts, and the connection was made for {limit}: ask for more with \
                 ConnCfg::set_max_send_sge",
                local.len()
            )));
        }
        let mut len = 0u64;
        for (part, local) in parts.iter_mut().zip(local) {
            require(local.usage(), usage, "local")?;
            if !local.peer().fits(self.queues.peer.key()) {
                return Err(self.unfit(0));
            }
            *part = local.buffer();
            // Lengths of memory that exists: their sum fits.
            len = len.saturating_add(part.len());
        }
        match len <= self.queues.limits.message.into() {
            true => Ok((&parts[..local.len()], len)),
            false => Err(self.unfit(len)),
        }
    }

    #[cold]
    fn unfit(&self, len: u64) -> Error {
        let limit = self.queues.limits.message;
        Error::invalid(if len > limit.into() {
            format!(
                "{len} bytes are more than one message of this port can carry ({limit}): split them"
            )
        } else {
            "the memory region was registered with another Peer than the connection's".to_owned()
        })
    }

    #[inline]
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

    fn check_flush(&self, dst: RemoteSlice, flush_type: FlushType) -> Result<()> {
        if dst.is_empty() {
            return Err(Error::invalid("a flush of 0 bytes: flush what was written"));
        }
        if flush_type == FlushType::Persistent && !self.direct_write_to_pmem.load(Ordering::Relaxed)
        {
            return Err(Error::not_supported(
                "the peer has not declared that writes go directly to its persistent memory: apply its \
                 PeerCfg with Conn::apply_remote_peer_cfg, or flush with FlushType::Visibility and let \
                 the peer's program persist the data",
            ));
        }
        if !dst.usage().contains(flush_type.usage()) {
            return Err(Error::not_supported(format!(
                "the remote memory region was registered for {}, without {}",
                dst.usage(),
                flush_type.usage()
            )));
        }
        Ok(())
    }

    fn check_reads(&self) -> Result<()> {
        match self.reads.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::not_supported(
                "the connection was made with no reads in flight (initiator depth 0), so that a read \
                 would never complete: the peer must connect or accept with more",
            )),
        }
    }
}

/// Adds what is known of a failed verb.
#[cold]
fn hint(error: Error) -> Error {
    match error.is_errno(Errno::ACCESS) {
        true => error.with_hint(
            "The kernel refuses verbs in the child of a fork and after a change of credentials: do both \
             before the device is opened",
        ),
        false => error,
    }
}

#[cold]
fn lengths_differ(local: u64, remote: u64) -> Error {
    Error::invalid(format!(
        "the local part has {local} bytes and the remote part {remote}"
    ))
}
