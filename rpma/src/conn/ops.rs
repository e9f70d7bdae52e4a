//! The operations of a connection: reads, writes, sends, receives, atomic writes and flushes.
//!
//! Each operation is checked ([`super::check`]), takes a slot of its queue, and is posted
//! ([`super::sink`]). If a check fails or there is no slot, the operation is not sent. A batch
//! ([`super::Batch`]) checks and writes down its operations by the same functions.

use super::Conn;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::FlushType;
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
use crate::slots::PostRefusal;
use crate::verbs::{Gather, Opcode, Posting, RemoteAddress};

/// # Operations
///
/// An operation is posted, and completes later: see [`Cq`](crate::Cq). Each post returns the
/// operation's name ([`Posted`]). [`wait_for`](Self::wait_for) waits for the completion with that
/// name, and [`Wc::posted`](crate::Wc::posted) returns the name of a completion. `op_context` is a
/// number for programs that were written for librpma: it comes back as
/// [`Wc::wr_id`](crate::Wc::wr_id), and several operations may have the same one. The operation
/// uses the memory until it has completed. A region that is dropped earlier does no harm, see
/// [`Mr`](crate::Mr).
///
/// If a post fails, the operation is not sent. [`Error::Provider`] is the exception: the device
/// may have the request, and execute it or not. All operations have these errors:
///
/// * [`Error::InvalidArgument`] if lengths differ, or if they are more than one message of the
///   device can carry, if a local region belongs to another [`Peer`](crate::Peer) than the
///   connection, or if a region lacks the usage that the operation needs;
/// * [`Error::QueueFull`] if no slot is free;
/// * [`Error::NoCompletionDue`] if too few slots are free, and polling would not free one;
/// * [`Error::NotConnected`] before the connection is established, and after it has failed or
///   ended. The accepting side can post as soon as it has accepted, but it should wait for
///   [`ConnEvent::Established`](crate::ConnEvent::Established);
/// * [`Error::Provider`] if the verb fails (`ibv_post_send`, `ibv_post_recv` or
///   `ibv_wr_complete`). This ends the connection: the library moves the queue pair to the error
///   state, and [`failure`](Self::failure) returns the call. Earlier operations in flight complete
///   as flushed. A receive that the device refuses does not end the connection.
impl Conn {
    /// Reads `src` of the peer into `dst`. The lengths must be equal.
    ///
    /// It needs [`MrUsage::READ_SRC`](crate::MrUsage::READ_SRC) and
    /// [`MrUsage::READ_DST`](crate::MrUsage::READ_DST). [`MrSlice::EMPTY`] and
    /// [`RemoteSlice::EMPTY`] make a read of 0 bytes, which tests the connection.
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations), and [`Error::NotSupported`] if the peer serves no
    /// reads.
    #[doc(alias = "rpma_read")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn read(
        &self,
        dst: MrSlice<'_>,
        src: RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.read_to(self, (dst, src), flags, op_context)
            .map_err(|error| *error)
    }

    /// Writes `src` to `dst` of the peer. The lengths must be equal.
    ///
    /// Its completion means that the peer's device has the data ([not on
    /// iWARP](Self#which-completions-are-answers)), not that it is visible or persistent there: see
    /// [`flush`](Self::flush). Do not change the bytes of `src` before the
    /// completion, or the peer may get a mixture of old and new bytes.
    ///
    /// It needs [`MrUsage::WRITE_SRC`](crate::MrUsage::WRITE_SRC) and
    /// [`MrUsage::WRITE_DST`](crate::MrUsage::WRITE_DST). [`MrSlice::EMPTY`] and
    /// [`RemoteSlice::EMPTY`] make a write of 0 bytes, which tests the connection (on iWARP a
    /// [`read`](Self::read) of 0 bytes does).
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations).
    #[doc(alias = "rpma_write")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write(
        &self,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.write_to(self, Opcode::WRITE, (dst, src), flags, op_context)
            .map_err(|error| *error)
    }

    /// As [`write`](Self::write), and notifies the peer: a receive completes there (with
    /// [`WcOpcode::RECV_RDMA_WITH_IMM`](crate::WcOpcode::RECV_RDMA_WITH_IMM) and `imm`) when the
    /// data has arrived. Without a receive there the operation waits for one.
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations), and [`Error::NotSupported`] on iWARP.
    #[doc(alias = "rpma_write_with_imm")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write_with_imm(
        &self,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.check_immediate()?;
        let opcode = Opcode::write_with_imm(imm);
        self.write_to(self, opcode, (dst, src), flags, op_context)
            .map_err(|error| *error)
    }

    /// Writes several local parts, one after the other, to `dst` of the peer.
    /// [`ConnCfg::set_max_send_sge`](crate::ConnCfg::set_max_send_sge) sets their maximum number.
    /// The sum of their lengths must be the length of `dst`.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and [`Error::InvalidArgument`] for too many parts.
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write_gather(
        &self,
        dst: RemoteSlice,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        let verbs = self.short.flags(flags);
        let mut gather = Gather::new(Opcode::WRITE, dst.address(), verbs);
        let checked = self.check_write_of(&dst, src, flags, |buffer| gather.push(buffer));
        self.gather(&mut gather, checked, flags, op_context)
            .map_err(|error| *error)
    }

    /// Sends `src` as a message, which lands in a receive of the peer. If the peer has posted no
    /// receive, the message waits for one, and the operations posted after it wait as well. On
    /// soft-RoCE, do not post a native flush or atomic write after such a message: see
    /// [`flush`](Self::flush).
    ///
    /// It needs [`MrUsage::SEND`](crate::MrUsage::SEND). [`MrSlice::EMPTY`] makes a message of 0
    /// bytes.
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations).
    #[doc(alias = "rpma_send")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send(&self, src: MrSlice<'_>, flags: Flags, op_context: u64) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.send_to(self, Opcode::SEND, src, flags, op_context)
            .map_err(|error| *error)
    }

    /// As [`send`](Self::send), with 4 more bytes. The peer gets them in the completion of its
    /// receive, not in its memory.
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations), and [`Error::NotSupported`] on iWARP.
    #[doc(alias = "rpma_send_with_imm")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send_with_imm(
        &self,
        src: MrSlice<'_>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.check_immediate()?;
        self.send_to(self, Opcode::send_with_imm(imm), src, flags, op_context)
            .map_err(|error| *error)
    }

    /// Sends several local parts as one message.
    /// [`ConnCfg::set_max_send_sge`](crate::ConnCfg::set_max_send_sge) sets their maximum number.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), and [`Error::InvalidArgument`] for too many parts.
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send_gather(
        &self,
        src: &[MrSlice<'_>],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        let verbs = self.short.flags(flags);
        let mut gather = Gather::new(Opcode::SEND, RemoteAddress::NONE, verbs);
        let checked = self.check_send_of(src, flags, |buffer| gather.push(buffer));
        self.gather(&mut gather, checked, flags, op_context)
            .map_err(|error| *error)
    }

    /// Posts an operation of 0 bytes that the peer's device answers: see [`Queues::question`].
    ///
    /// [`Queues::question`]: crate::queues::Queues::question
    pub(crate) fn ask(&self) -> Result<Posted> {
        let (remote, local) = (RemoteSlice::EMPTY, MrSlice::EMPTY);
        if self.queues.peer.is_iwarp() {
            self.read(local, remote, Flags::COMPLETION_ALWAYS, 0)
        } else {
            self.write(remote, local, Flags::COMPLETION_ALWAYS, 0)
        }
    }

    /// Posts a receive for a message, or for the notice of a write with immediate data.
    ///
    /// It needs [`MrUsage::RECV`](crate::MrUsage::RECV). [`MrSlice::EMPTY`] takes messages of 0
    /// bytes. The memory must be at least as long as the message, or the connection fails on both
    /// sides. Receives may be posted before the connection is established.
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations), and [`Error::InvalidArgument`] if the connection
    /// receives from a shared receive queue.
    #[doc(alias = "rpma_recv")]
    #[inline]
    pub fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        self.queues.recv(dst, op_context)
    }

    /// Posts several receives at once, each with its `op_context`: all of them, or no receive.
    /// Each one is a receive as posted by [`recv`](Self::recv). One call of `ibv_post_recv` posts
    /// up to 16 of them.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv); [`Error::InvalidArgument`] also if the list is empty, or longer
    /// than the receive queue has slots. After [`Error::Provider`] some of them may be posted: the
    /// first ones.
    pub fn recv_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        self.queues.recv_many(receives)
    }

    /// Writes 8 bytes to `dst` of the peer as one unit. A reader there sees the old 8 bytes or the
    /// new ones. It sees the new ones only when all flushes that were posted earlier on this
    /// connection are done.
    ///
    /// So a program may post the write of a record, its flush, the atomic write of a pointer to
    /// it, and the flush of the pointer, one after the other: the pointer never shows a record
    /// that is not there ([a log](crate::guide::persistence#the-order-of-things-a-log)). The
    /// atomic write itself is not persistent before it is flushed.
    ///
    /// If the device has its own atomic write, the completion is a
    /// [`WcOpcode::ATOMIC_WRITE`](crate::WcOpcode::ATOMIC_WRITE). Otherwise it is an ordinary
    /// write ([`WcOpcode::RDMA_WRITE`](crate::WcOpcode::RDMA_WRITE)), whose 8 bytes arrive as one
    /// unit because the peer's hardware works in this way: verbs does not guarantee it. The
    /// operation needs [`MrUsage::WRITE_DST`](crate::MrUsage::WRITE_DST).
    ///
    /// On a connection with fallback flushes, which are reads, every atomic write carries a fence.
    /// On soft-RoCE it carries none: see [`Flags::FENCE`].
    ///
    /// On soft-RoCE a native atomic write fails if the device has to send it again, for example
    /// after a message that waited for a receive: see [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations); [`Error::InvalidArgument`] unless `dst` has 8 bytes at
    /// an address that is a multiple of 8. [`Error::NotSupported`] on a device with a flush of its
    /// own and no atomic write of its own (no such device is known): no source guarantees an order
    /// between the two. [`Error::NotSupported`] also on soft-RoCE if the peer's device reorders and
    /// the atomic write is a fallback ([`PeerCfg::set_reorders`](crate::PeerCfg::set_reorders)):
    /// wait for the flush, and then post a [`write`](Self::write) of the 8 bytes.
    #[doc(alias = "rpma_atomic_write")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn atomic_write(
        &self,
        dst: RemoteSlice,
        src: &[u8; 8],
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.atomic_write_to(self, (dst, src), flags, op_context)
            .map_err(|error| *error)
    }

    /// Flushes earlier writes of this connection to `dst`. [`FlushType`] defines the guarantee of
    /// its completion.
    ///
    /// If the device has its own flush ([`has_native_flush`](Self::has_native_flush)), the
    /// completion is a [`WcOpcode::FLUSH`](crate::WcOpcode::FLUSH). Such a flush takes one
    /// send-queue slot for each 2 GiB. If it fails, each slot may give a failed completion, with
    /// the same `op_context`. Otherwise it is a fallback flush: it reads up to 8 bytes of `dst`,
    /// and its completion is a [`WcOpcode::RDMA_READ`](crate::WcOpcode::RDMA_READ).
    ///
    /// A [`write`](Self::write) that is posted after a flush does not wait for it: poll the flush
    /// first, or use [`atomic_write`](Self::atomic_write). See [what is ordered](Conn#order).
    ///
    /// # When to force the fallback
    ///
    /// [`ConnCfg::set_force_fallback`](crate::ConnCfg::set_force_fallback) makes a connection
    /// flush by reading, although this side's device has its own flush. It is necessary in these
    /// cases:
    ///
    /// * The peer's device has no native flush. It refuses one, and the connection breaks. The two
    ///   sides cannot detect this by themselves.
    /// * soft-RoCE on a network that [loses
    ///   packets](crate::guide::failures#lost-packets-on-soft-roce). It sends a lost native flush
    ///   or atomic write again with a wrong address, and the connection fails.
    /// * soft-RoCE, if a message may have to wait for a receive. soft-RoCE then sends the
    ///   operations after the message again, with the same error. If the peer posts its receives
    ///   before the messages come, the native flush works. [`ConnReq::recv`](crate::ConnReq::recv)
    ///   posts them before the connection exists.
    ///
    /// The fallback needs a region that the peer has registered for reading, as rpma does with
    /// every region that has a flush type. A C program may have to add a right ([the two
    /// forms](crate::guide::persistence#the-two-forms-of-a-flush)). Over soft-RoCE the fallback
    /// makes data durable only if the peer's caches are in its persistence domain (eADR).
    ///
    /// # Errors
    ///
    /// As [all operations](Conn#operations); [`Error::InvalidArgument`] if `dst` is empty.
    /// [`Error::NotSupported`] for a persistent flush if the peer has not declared that flushes of
    /// this connection make data durable ([`apply_remote_peer_cfg`](Self::apply_remote_peer_cfg)).
    /// [`Error::NotSupported`] also if the region does not support the flush type, or if a fallback
    /// flush meets a peer that serves no reads.
    #[doc(alias = "rpma_flush")]
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<Posted> {
        let _posting = Posting::of(op_context);
        self.flush_to(self, dst, flush_type, flags, op_context)
            .map_err(|error| *error)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn refused(&self, refusal: PostRefusal) -> Box<Error> {
        Box::new(self.queues.send_refused(refusal, "operation", 1))
    }
}
