//! [`Conn`]: a connection (`struct rpma_conn`).
//!
//! It owns the queue pair with its id and event channel, and the completion queue. Torn down in this
//! order: the queue pair; the id, which tells the peer; the completion queue and its channel; the
//! share of the peer. Memory regions are not involved: see [`Mr`](crate::Mr).

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use crate::conn_req::ConnReq;
use crate::cq::Cq;
use crate::credits::{Credits, Reservation, State};
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice, require};
use crate::peer::{FLUSH_READ_LEN, Peer};
use crate::peer_cfg::PeerCfg;
use crate::verbs::{
    CmEvent, CmEventKind, ConnParam, Deadline, LocalBuffer, Opcode, QueuePair, RemoteAddress,
    Signal,
};

/// A connection to another program.
///
/// All methods take `&self`: threads may post, poll and wait for events at the same time. Dropping it
/// takes milliseconds and never waits for the peer, which gets [`ConnEvent::Closed`]; what was posted
/// and is not complete then is lost.
pub struct Conn {
    // The order in which a connection is torn down.
    qp: QueuePair,
    cq: Cq,
    credits: Arc<Credits>,
    private_data: OnceLock<Box<[u8]>>,
    flush_method: FlushMethod,
    /// Whether the peer serves reads at all.
    reads: AtomicBool,
    direct_write_to_pmem: AtomicBool,
    max_message: u32,
    peer: Peer,
}

impl Conn {
    pub(crate) fn connect(req: ConnReq, param: ConnParam<'_>) -> Result<Self> {
        let conn = Self::new(req, OnceLock::new())?;
        conn.qp.connect(param)?;
        Ok(conn)
    }

    pub(crate) fn accept(mut req: ConnReq, param: ConnParam<'_>) -> Result<Self> {
        let private_data = OnceLock::from(std::mem::take(&mut req.private_data));
        let conn = Self::new(req, private_data)?;
        conn.qp.accept(param)?;
        // The queue pair can send from here on.
        conn.open()?;
        Ok(conn)
    }

    fn new(req: ConnReq, private_data: OnceLock<Box<[u8]>>) -> Result<Self> {
        let flush_method = match req.qp.native_ops().flush {
            true => FlushMethod::Native,
            false => FlushMethod::Read(req.peer.flush_target()?),
        };
        Ok(Self {
            qp: req.qp,
            cq: req.cq,
            credits: req.credits,
            private_data,
            flush_method,
            reads: AtomicBool::new(true),
            direct_write_to_pmem: AtomicBool::new(false),
            max_message: req.max_message,
            peer: req.peer,
        })
    }

    /// The queue pair is connected: operations may be posted.
    fn open(&self) -> Result<()> {
        self.reads
            .store(self.qp.max_reads()? > 0, Ordering::Relaxed);
        self.credits.open();
        Ok(())
    }

    /// Waits for the next event of the connection, without a limit. On the side that connects, this is
    /// also what completes the handshake.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvent`] if the descriptor was made non-blocking and there is no event.
    /// [`Error::Provider`] if `rdma_get_cm_event` fails.
    #[doc(alias = "rpma_conn_next_event")]
    pub fn next_event(&self) -> Result<ConnEvent> {
        self.event_until(Deadline::Never)
    }

    /// As [`next_event`](Self::next_event), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`next_event`](Self::next_event), and [`Error::NoEvent`] when the limit has passed.
    pub fn next_event_timeout(&self, limit: Duration) -> Result<ConnEvent> {
        self.event_until(Deadline::after(limit))
    }

    fn event_until(&self, deadline: Deadline) -> Result<ConnEvent> {
        let event = self.qp.next_event(deadline)?.ok_or(Error::NoEvent)?;
        self.note(event)
    }

    /// What an event changes here.
    fn note(&self, mut event: CmEvent) -> Result<ConnEvent> {
        match event.kind {
            CmEventKind::Established => {
                // The accepting side has the client's data already, and gets none here.
                if !event.private_data.is_empty() {
                    let data = std::mem::take(&mut event.private_data);
                    self.private_data.get_or_init(|| data);
                }
                self.open()?;
            }
            CmEventKind::Other(_) => {}
            _ => self.credits.end(State::Closed),
        }
        let event = ConnEvent::from_cm(event);
        log::info!("{event}");
        Ok(event)
    }

    /// What the peer sent when it connected or accepted, padded with zeros (to 56 or 196 bytes on
    /// InfiniBand and RoCE, whatever it sent, also nothing). Empty before
    /// [`ConnEvent::Established`] on the side that connects.
    #[doc(alias = "rpma_conn_get_private_data")]
    #[must_use]
    pub fn get_private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], |data| data)
    }

    /// Applies what the peer declared about its platform. It decides whether
    /// [`FlushType::Persistent`] is possible.
    #[doc(alias = "rpma_conn_apply_remote_peer_cfg")]
    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        self.direct_write_to_pmem
            .store(cfg.get_direct_write_to_pmem(), Ordering::Relaxed);
    }

    /// The connection's completion queue.
    #[doc(alias = "rpma_conn_get_cq")]
    #[must_use]
    pub fn get_cq(&self) -> &Cq {
        &self.cq
    }

    /// The number of the queue pair, which its completions carry.
    #[doc(alias = "rpma_conn_get_qp_num")]
    #[must_use]
    pub fn get_qp_num(&self) -> u32 {
        self.qp.number()
    }

    /// The descriptor of the connection's event channel, as [`AsRawFd`] gives it.
    ///
    /// For `poll`, `epoll` and `fcntl` only: whoever reads from it steals an event. It is readable when
    /// [`next_event`](Self::next_event) will not block.
    #[doc(alias = "rpma_conn_get_event_fd")]
    #[must_use]
    pub fn get_event_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Whether [`flush`](Self::flush) uses the device's own flush operation. If not, it reads.
    #[must_use]
    pub fn has_native_flush(&self) -> bool {
        matches!(self.flush_method, FlushMethod::Native)
    }

    /// Reads `src` of the peer into `dst`. The lengths must be equal.
    ///
    /// # Errors
    ///
    /// Nothing is sent if it fails. [`Error::InvalidArgument`] if the lengths differ or are more than the
    /// port takes, if `dst` belongs to another peer, or if a region lacks its usage
    /// ([`MrUsage::READ_SRC`], [`MrUsage::READ_DST`]). [`Error::NotSupported`] if the peer serves no
    /// reads. [`Error::QueueFull`], [`Error::NotConnected`], or [`Error::Provider`] if `ibv_post_send`
    /// fails, after which the connection takes no more operations.
    #[doc(alias = "rpma_read")]
    pub fn read(
        &self,
        dst: MrSlice<'_>,
        src: RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let buffer = self.check_pair(dst, src)?;
        require(src.usage(), MrUsage::READ_SRC, "remote")?;
        require(dst.usage(), MrUsage::READ_DST, "local")?;
        self.check_reads()?;
        self.post(
            Opcode::Read,
            src.address(),
            buffer,
            flags.signal(),
            op_context,
        )
    }

    /// Writes `src` to `dst` of the peer. The lengths must be equal.
    ///
    /// Its completion says that the peer's device has the data, not that it is visible or persistent
    /// there: see [`flush`](Self::flush). Until then the bytes of `src` must not change, or the peer
    /// gets some of each.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), with [`MrUsage::WRITE_DST`] and [`MrUsage::WRITE_SRC`].
    #[doc(alias = "rpma_write")]
    pub fn write(
        &self,
        dst: RemoteSlice,
        src: MrSlice<'_>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let buffer = self.check_pair(src, dst)?;
        require(dst.usage(), MrUsage::WRITE_DST, "remote")?;
        require(src.usage(), MrUsage::WRITE_SRC, "local")?;
        self.post(
            Opcode::Write,
            dst.address(),
            buffer,
            flags.signal(),
            op_context,
        )
    }

    /// Flushes what was written to `dst` before, on this connection: [`FlushType`] says what its
    /// completion promises.
    ///
    /// With the device's flush operation ([`has_native_flush`](Self::has_native_flush)) its completion
    /// is a [`WcOpcode::FLUSH`](crate::WcOpcode::FLUSH), and it takes a send-queue slot for each GiB.
    /// Without, it reads up to 8 bytes of `dst`, and its completion is a
    /// [`WcOpcode::RDMA_READ`](crate::WcOpcode::RDMA_READ).
    ///
    /// A native flush of memory whose device has none is refused by that device and breaks the
    /// connection. `ConnCfg::set_force_fallback` is the remedy: the two sides cannot find out by
    /// themselves.
    ///
    /// # Errors
    ///
    /// Nothing is sent if it fails. [`Error::NotSupported`] for a persistent flush if the peer has not
    /// declared direct write to persistent memory, if the region does not support the flush type, or if a
    /// fallback flush meets a peer that serves no reads. [`Error::InvalidArgument`] if `dst` is empty.
    /// [`Error::QueueFull`], [`Error::NotConnected`] and [`Error::Provider`] (`ibv_post_send` or
    /// `ibv_wr_complete`) as for [`read`](Self::read).
    #[doc(alias = "rpma_flush")]
    pub fn flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.check_flush(dst, flush_type)?;
        match self.flush_method {
            FlushMethod::Native => self.post_flush(dst, flush_type, flags.signal(), op_context),
            FlushMethod::Read(target) => {
                self.check_reads()?;
                let len = u32::try_from(dst.len())
                    .unwrap_or(u32::MAX)
                    .min(FLUSH_READ_LEN);
                let target = LocalBuffer { len, ..target };
                self.post(
                    Opcode::Read,
                    dst.address(),
                    target,
                    flags.signal(),
                    op_context,
                )
            }
        }
    }

    #[cfg(native_flush)]
    fn post_flush(
        &self,
        dst: RemoteSlice,
        flush_type: FlushType,
        signal: Signal,
        op_context: u64,
    ) -> Result<()> {
        let slots = QueuePair::flush_slots(dst.len());
        let reservation = self.credits.reserve_send(slots, signal)?;
        let persistent = flush_type == FlushType::Persistent;
        self.qp
            .post_flush(dst.address(), dst.len(), persistent, signal, op_context)
            .map_err(|error| self.post_failed(error, reservation))
    }

    /// Not reached: without the operation in rdma-core no queue pair has it.
    #[cfg(not(native_flush))]
    fn post_flush(&self, _: RemoteSlice, _: FlushType, _: Signal, _: u64) -> Result<()> {
        Err(Error::not_supported(
            "rdma-core was built without native flush",
        ))
    }

    #[inline]
    fn post(
        &self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: LocalBuffer,
        signal: Signal,
        op_context: u64,
    ) -> Result<()> {
        let reservation = self.credits.reserve_send(1, signal)?;
        self.qp
            .post(opcode, remote, local, signal, op_context)
            .map_err(|error| self.post_failed(error, reservation))
    }

    #[cold]
    fn post_failed(&self, error: Error, reservation: Reservation) -> Error {
        if error.is_errno(Errno::NOMEM) {
            return self.credits.give_back(reservation);
        }
        // The request may be in the queue nevertheless (rxe writes it first), so its slot stays taken,
        // and nothing may be posted that would make the device look.
        self.credits.end(State::Failed);
        match error.is_errno(Errno::ACCESS) {
            true => error.with_hint(
                "The kernel refuses verbs in the child of a fork and after a change of credentials: \
                 do both before the device is opened",
            ),
            false => error,
        }
    }

    /// The work request's view of `local`, if it fits `remote` and belongs to this connection's peer.
    #[inline]
    fn check_pair(&self, local: MrSlice<'_>, remote: RemoteSlice) -> Result<LocalBuffer> {
        match u32::try_from(local.len()) {
            Ok(len)
                if local.len() == remote.len()
                    && len <= self.max_message
                    && local.peer() == self.peer.key() =>
            {
                Ok(local.buffer(len))
            }
            _ => Err(self.mismatch(local, remote)),
        }
    }

    #[cold]
    fn mismatch(&self, local: MrSlice<'_>, remote: RemoteSlice) -> Error {
        let (local_len, remote_len) = (local.len(), remote.len());
        Error::invalid(if local_len != remote_len {
            format!("the local part has {local_len} bytes and the remote part {remote_len}")
        } else if local_len > self.max_message.into() {
            format!(
                "{local_len} bytes are more than one message of this port can carry ({}): split them",
                self.max_message
            )
        } else {
            "the memory region was registered with another Peer than the connection's".to_owned()
        })
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

    /// Ends the connection: moves the queue pair to the error state and tells the peer. Operations that
    /// are not complete are lost, and complete with an error.
    ///
    /// It does not wait: [`ConnEvent::Closed`] comes when the peer has answered by disconnecting as well.
    /// On a connection that the peer has closed, this is the answer that the peer waits for.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `rdma_disconnect` fails.
    #[doc(alias = "rpma_conn_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        log::info!("disconnecting");
        self.credits.end(State::Closed);
        self.qp.disconnect()
    }

    /// Drops the connection and tells whether everything could be freed.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with the first verb that failed; the rest is freed all the same, and what
    /// could not be is leaked.
    #[doc(alias = "rpma_conn_delete")]
    pub fn delete(self) -> Result<()> {
        let queue_pair = self.qp.destroy();
        queue_pair.and(self.cq.destroy())
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.qp.as_fd()
    }
}

impl AsRawFd for Conn {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("qp", &self.qp)
            .field("cq", &self.cq)
            .field("credits", &self.credits)
            .field("flush_method", &self.flush_method)
            .finish_non_exhaustive()
    }
}
