//! [`Conn`]: a connection (`struct rpma_conn`): its life, its events, and what belongs to it.
//!
//! It owns the queue pair with its id and event channel, and the completion queues. Torn down in
//! this order: the queue pair; the id, which notifies the peer; the completion queues and their
//! channels; the share of the peer. Memory regions are not involved: see [`Mr`](crate::Mr).

mod batch;
mod check;
mod close;
mod commit;
mod cut_off;
mod keep_alive;
mod next;
mod next_fd;
mod ops;
mod plain;
mod short;
mod sink;
mod wait_for;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use self::batch::Batch;
pub(crate) use self::commit::{Part, Pointer, check_parts};
use self::keep_alive::KeepAlive;
pub(crate) use self::next::EventsGone;
pub use self::next::Next;
pub(crate) use self::next::refuse_no_room;
use self::short::Short;
use self::wait_for::Events;
use crate::bell::Bell;
use crate::compl_channel;
use crate::counters::Counters;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::failure::{Failure, NotConnected};
use crate::flush::FlushMethod;
use crate::joined_fd::JoinedFd;
use crate::looking::{self, BOUND, Budget};
use crate::mr::MrUsage;
use crate::offer::Offer;
use crate::peer_cfg::{Durable, PeerCfg};
use crate::plan::check_keep_alive;
use crate::posted::ConnId;
use crate::queues::Queues;
use crate::slots::{ConnSlots, ConnState};
use crate::status::WcFailure;
use crate::verbs::{
    CmEvent, CmEventKind, CompChannel, ConnParam, CqKind, CqTag, Deadline, Freed, Notify,
    RDMA_CONNECT,
};

/// A connection to another program: writes to that program's memory, flushes the writes, and
/// reports when the data is durable.
///
/// # The life of a connection
///
/// 1. **Establish.** A client connects a [`ConnReq`](crate::ConnReq), and a server accepts the
///    request from its [`Ep`](crate::Ep). Both then [wait](Self::wait_established) for the
///    connection.
/// 2. **Write.** The owner of the memory sends its descriptor, for example as private data
///    ([`get_private_data`](Self::get_private_data)). The other side makes an
///    [`MrRemote`](crate::MrRemote) from it, and posts a [`write`](Self::write) to a part of it.
/// 3. **Flush.** A completed write need not be durable. A [`flush`](Self::flush) after the writes
///    makes them durable, or visible. A [`commit`](Self::commit) writes a record, flushes it, and
///    then shows it with a pointer.
/// 4. **Wait.** [`wait_for`](Self::wait_for) waits for the completion of one operation, such as
///    the flush. [`next`](Self::next) returns the completions of all operations, and the
///    connection's events.
/// 5. **Close.** [`close`](Self::close) waits until the peer has acknowledged all operations, and
///    then ends the connection. Dropping the connection ends it at once.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::{Conn, Flags, FlushType, Mr, MrRemote, Result};
///
/// /// Writes a record to the server's memory, and waits until programs there see it.
/// fn save(conn: Conn, record: &Mr<Vec<u8>>, memory: MrRemote) -> Result<()> {
///     let limit = Duration::from_secs(10);
///     let target = memory.slice(..record.get_size() as u64)?;
///     conn.write(target, record.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
///     let flushed = conn.flush(target, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 2)?;
///     conn.wait_for(flushed, limit, |_| {})?;
///     conn.close(limit)?;
///     Ok(())
/// }
/// ```
///
/// [`wait_established`](Self::wait_established) takes the connection and returns it.
/// [`close`](Self::close), [`cut_off`](Self::cut_off) and [`delete`](Self::delete) consume it. All
/// other methods take `&self`.
///
/// # Dropping
///
/// Dropping a connection takes milliseconds and never waits for the peer, which gets
/// [`ConnEvent::Closed`]. Operations that have not completed are lost. If the connection uses a
/// shared receive queue, a message may have arrived only in part. So the drop waits until the
/// device has returned the receive of that message, for at most 0.1 s.
///
/// On soft-RoCE the drop may take some seconds after the peer's host has lost its power, because
/// packets that wait for the host's hardware address hold the queue pair. The kernel gives up
/// after 3 s by default (`mcast_solicit` and `retrans_time_ms` of the neighbour table).
///
/// On iWARP a connection may be dropped, deleted or cut off before the peer has answered. Then a
/// thread frees its objects when the kernel permits it: at the latest after TCP has given up, which
/// takes two minutes by default. The queue pair is in the error state at once, so it never connects.
///
/// # Order
///
/// These rules hold within one connection. Operations of two connections have no order. rpma
/// relies on an order only if a public source guarantees it, with one exception. On soft-RoCE,
/// which has no usable fence, it relies on a soft-RoCE peer to execute one request after the other
/// ([`Flags::FENCE`](crate::Flags::FENCE)).
///
/// The table lists the order in which the peer's device executes operations. Bytes need not become
/// durable in that order: only a completed flush makes bytes durable.
///
/// | this operation | is executed after an earlier | guaranteed by |
/// |---|---|---|
/// | write, message | write, message | InfiniBand specification 10.8.3.3 |
/// | read, and so a [fallback flush](Self::flush) | write | the same |
/// | native flush, native atomic write | write | libfabric and the kernel |
/// | native atomic write | native flush | libfabric |
/// | native flush | native atomic write of the flushed range | libfabric |
/// | [`atomic_write`](Self::atomic_write) | any flush | this library: by the lines above, or by a fence |
/// | anything with [`Flags::FENCE`](crate::Flags::FENCE) | read, and so a fallback flush | InfiniBand specification 10.8.3.3 |
/// | write | read, fallback flush, native flush, native atomic write | **not guaranteed**: poll the completion first |
/// | native flush of another range | native atomic write | **not guaranteed**: poll the completion first |
///
/// Annex A19 of the InfiniBand specification defines the native flush and the native atomic write.
/// It is not public, so the table names libfabric and the kernel for them.
///
/// If you poll the completion of an operation and then post another one, the second is executed
/// after the first. If this side is on soft-RoCE and the peer is on an [adapter](crate#terms), see
/// [`PeerCfg::set_reorders`].
///
/// The guarantees for a program on the peer's host are weaker (InfiniBand specification 9.5):
///
/// | the peer's program has | it may rely on |
/// |---|---|
/// | the completion of a receive | the bytes of all writes before that message |
/// | the completion of a write's immediate data | the bytes of that write and of all before it |
/// | read the new value of a native atomic write | the bytes of all writes before it |
/// | read the new value of an [`atomic_write`](Self::atomic_write), native or not | the bytes that a flush before it covers |
/// | been notified of a completed flush, for example by a message | the bytes that the flush covers |
/// | read the bytes of a write | **nothing** else, not even other bytes of that write |
///
/// So "write the data, then write a flag that the peer's program polls" is wrong, although it
/// works on soft-RoCE and on many adapters. Send the notice, or write it with immediate data.
///
/// # Which completions are answers
///
/// A completion is an answer if it proves that the peer's device has the bytes. Whether it does
/// depends on the transport:
///
/// | operation | InfiniBand, RoCE | iWARP |
/// |---|---|---|
/// | write, message | an answer: the peer's device acknowledges it | **no answer**: this side's TCP has the bytes |
/// | read, fallback flush | an answer | an answer: the peer sends it after it has placed the writes before it |
/// | native flush, native atomic write | an answer | there are none |
///
/// Sources: InfiniBand specification, 9.7; RFC 5040, 5.5, and RFC 5041.
///
/// So on iWARP a write with a wrong key, or a message without a receive, completes without an
/// error, and the connection ends later. Its [`reason`](Self::reason) is then the end that the peer
/// sent, and no failed operation. [`close`](Self::close), the keep-alive
/// ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)) and
/// [`Writer::probe`](crate::commit::Writer::probe) ask the peer's device by a read of 0 bytes there.
/// If the peer must have a message, let it answer with one. [`Peer::is_iwarp`](crate::Peer::is_iwarp)
/// returns whether the transport is iWARP.
///
/// # Threads
///
/// Threads may post, poll and wait for events at the same time. They post to a queue one after the
/// other, under its lock. Events are taken under the lock of the event channel, so that each goes
/// to one thread.
pub struct Conn {
    queues: Queues,
    short: Short,
    flush_method: FlushMethod,
    /// The peer's declaration, once it was applied.
    durable: Mutex<Option<Durable>>,
    private_data: OnceLock<Box<[u8]>>,
    events: Mutex<Events>,
    /// Held by [`wait_for`](Self::wait_for).
    waits_for_one: AtomicBool,
    /// Whether both queues' channels are the library's.
    has_own_channels: bool,
    /// Which queue a wait returns that had no event, if both have solicited events only: each in
    /// turn.
    receives_next: AtomicBool,
    /// See [`get_next_fd`](Self::get_next_fd).
    next_fd: OnceLock<JoinedFd>,
    keep_alive: Option<Box<KeepAlive>>,
}

/// A request that was not accepted, or a connection that did not open after that.
#[derive(Debug)]
pub(crate) struct NotAccepted {
    pub(crate) error: Error,
    /// Otherwise the peer may use the queue pair.
    pub(crate) is_destroyed: bool,
}

impl NotAccepted {
    pub(crate) fn freed(error: Error) -> Self {
        Self {
            error,
            is_destroyed: true,
        }
    }
}

impl Conn {
    pub(crate) fn connect(queues: Queues, param: ConnParam<'_>) -> Result<Self> {
        let conn = Self::new(queues, OnceLock::new())?;
        conn.queues.qp.connect(param)?;
        Ok(conn)
    }

    pub(crate) fn accept(
        queues: Queues,
        private_data: Box<[u8]>,
        param: ConnParam<'_>,
    ) -> Result<Self, NotAccepted> {
        // Before the call that accepts, the peer does not have the queue pair's number.
        let conn = Self::new(queues, OnceLock::from(private_data)).map_err(NotAccepted::freed)?;
        let keep_alive = conn.queues.keep_alive;
        let check = |ack_timeout| check_keep_alive(keep_alive, ack_timeout);
        let accepted = conn.queues.qp.accept(param, check);
        // The queue pair can send from here on.
        match accepted.and_then(|()| conn.open()) {
            Ok(()) => Ok(conn),
            Err(error) => {
                let Freed { queue_pair, rest } = conn.queues.destroy();
                let is_destroyed = queue_pair.is_ok();
                if let Err(error) = queue_pair.and(rest) {
                    log::error!("{error}; the object is leaked");
                }
                Err(NotAccepted {
                    error,
                    is_destroyed,
                })
            }
        }
    }

    fn new(queues: Queues, private_data: OnceLock<Box<[u8]>>) -> Result<Self> {
        let native = queues.qp.native_ops();
        let flush_method = if native.flush {
            FlushMethod::Native
        } else {
            FlushMethod::Read(queues.peer.flush_target()?.into())
        };
        let keep_alive = queues
            .keep_alive
            .map(|limit| Box::new(KeepAlive::new(limit)));
        let mut conn = Self {
            short: Short::new(flush_method, native, queues.peer.attributes().soft_roce),
            queues,
            flush_method,
            durable: Mutex::default(),
            private_data,
            events: Mutex::default(),
            waits_for_one: AtomicBool::new(false),
            has_own_channels: false,
            receives_next: AtomicBool::new(true),
            next_fd: OnceLock::new(),
            keep_alive,
        };
        conn.has_own_channels = !conn.is_on_a_completion_channel();
        conn.short
            .set_flushes(MrUsage::FLUSH_TYPE_VISIBILITY, false);
        Ok(conn)
    }

    /// The queue pair is connected: operations may be posted.
    fn open(&self) -> Result<()> {
        let qp = &self.queues.qp;
        if let Some(code) = self.queues.min_rnr_timer {
            match qp.set_min_rnr_timer(code) {
                // An operation has failed already (of receives that were posted before, say): its
                // completion has the reason, and no more messages are received.
                Err(_) if qp.is_in_error()? => {}
                result => result?,
            }
        }
        let timing = qp.timing()?;
        check_keep_alive(self.queues.keep_alive, Some(timing.ack_timeout))?;
        self.short.open(timing.max_reads > 0);
        self.queues.slots.open();
        Ok(())
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.queues.slots.is_connecting()
    }

    /// Waits for the next event of the connection, without a limit. On the side that connects, this
    /// call also completes the handshake. The accepting side should wait for
    /// [`ConnEvent::Established`] before it posts, or its first operations may fail because the
    /// other side is not ready.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvent`] if the descriptor was made non-blocking and there is no event.
    /// [`Error::Provider`] if `rdma_get_cm_event` fails, or on iWARP if `rdma_connect` fails with
    /// an errno that is no event. It is the same if the call establishes the connection and cannot
    /// set up its queue pair (`ibv_modify_qp`, `ibv_query_qp`): then the connection takes no
    /// operations.
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

    /// Waits until the connection is established, for at most `limit`. If the limit passes or the
    /// connection fails, the connection is destroyed. So it cannot be established later without
    /// the program's knowledge. If the peer answers at that moment, the peer may see the
    /// connection established and then closed.
    ///
    /// The kernel's own limit for a peer that does not answer is more than a minute. On soft-iWARP
    /// it is 10 s for a server's program, and 131 s for its host
    /// ([`ConnEvent::Unreachable`]).
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]. [`Error::NotEstablished`] with the event that came instead (rejected,
    /// unreachable, …). [`Error::NoEvent`] at once if the descriptor was made non-blocking and
    /// there is no event. Otherwise as [`next_event`](Self::next_event). The connection is
    /// destroyed after each error.
    pub fn wait_established(self, limit: Duration) -> Result<Self> {
        let deadline = Deadline::after(limit);
        let next = || self.event_until(deadline);
        let established = looking::skip(deadline, next, |event| match event {
            ConnEvent::Established => Some(Ok(())),
            end if end.is_end() => Some(Err(Error::NotEstablished(Box::new(end)))),
            _notice => None,
        });
        match established {
            Err(Error::NoEvent) if deadline.has_passed() => Err(Error::TimedOut(
                "the peer did not answer: its host is down, a firewall drops the packets, or its \
                     program has not accepted",
            )),
            established => established.map(|()| self),
        }
    }

    /// Waits until the connection has [ended](ConnEvent::is_end), for at most `limit`
    /// (`Duration::MAX` is no limit), and returns the event with which it ended. Notices do not end
    /// it. If the connection has ended already, the call returns at once.
    ///
    /// A server that only lends its memory waits with this call: the peer may use the memory until
    /// then. The memory is this program's again after [`cut_off`](Self::cut_off), which stops the
    /// peer's last operations as well.
    ///
    /// The call takes no completions, and so it does not watch the peer for a keep-alive. An end
    /// that another thread takes meanwhile is noticed within a second.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the limit has passed. Otherwise as
    /// [`next_event`](Self::next_event).
    pub fn wait_ended(&self, limit: Duration) -> Result<ConnEvent> {
        // `ended` has the first end, which another thread may have taken.
        let ended = |_: &mut ()| self.ended().cloned();
        let event_until = |until: Deadline| match self.event_until(until) {
            Err(Error::NoEvent) if until.has_passed() => Ok(()),
            event => event.map(drop),
        };
        let look = |_: &mut ()| event_until(Deadline::after(Duration::ZERO));
        let sleep =
            |_: &mut (), deadline: Deadline| event_until(deadline.earlier(Deadline::after(BOUND)));
        looking::wait(&mut (), limit, ended, look, sleep)?
            .ok_or(Error::TimedOut("the connection has not ended"))
    }

    fn event_until(&self, deadline: Deadline) -> Result<ConnEvent> {
        loop {
            // The keep-alive rings it after its event is there. It may have rung before.
            let bell = self.queues.slots.bell();
            let bell = (self.has_keep_alive() && !bell.has_rung()).then_some(bell);
            let until = self.watch_the_end().map_or(Deadline::Never, Deadline::At);
            let _sleeper = match self.kept_event_or_sleep() {
                Ok(event) => return Ok(event),
                Err(sleeper) => sleeper,
            };
            let event = self.queues.qp.next_event(bell, deadline.earlier(until));
            if let Some(event) = event.map_err(|error| self.cannot_take(error))? {
                let Some(event) = self.note(event)? else {
                    continue;
                };
                self.log(&event);
                return Ok(event);
            }
            let is_due = until.has_passed() || bell.is_some_and(Bell::has_rung);
            if !is_due || deadline.has_passed() {
                return Err(Error::NoEvent);
            }
        }
    }

    /// An event cannot be taken. On iWARP it may be the call that asked for the connection, which
    /// is over then.
    #[cold]
    fn cannot_take(&self, error: Error) -> Error {
        let is_of_call = matches!(&error, Error::Provider { call, .. } if *call == RDMA_CONNECT);
        if is_of_call {
            self.queues.slots.call_failed(&error);
        }
        error
    }

    /// For a caller that holds no lock: the program's logger may call anything.
    fn log(&self, event: &ConnEvent) {
        log::info!("{}: {event}", self.queues.ends);
    }

    /// Applies the effects of an event here. `None`: it only follows from the keep-alive's end,
    /// whose own event is the one that is reported.
    fn note(&self, mut event: CmEvent) -> Result<Option<ConnEvent>> {
        if event.kind == CmEventKind::Established {
            // The accepting side has the client's data already, and gets no data here.
            if !event.private_data.is_empty() {
                let data = std::mem::take(&mut event.private_data);
                self.private_data.get_or_init(|| data);
            }
            self.open().inspect_err(|_| {
                // Settings that differ from the requested ones are no connection.
                self.queues.slots.end(ConnState::Closed);
            })?;
            if let Some(keep_alive) = &self.keep_alive {
                keep_alive.established();
            }
        }
        let event = ConnEvent::from(event);
        if event.is_end() {
            if self.keep_alive_ends_it() {
                return Ok(None);
            }
            self.queues.slots.ended_with(&event);
        }
        Ok(Some(event))
    }

    pub(crate) fn budget(&self) -> Budget {
        let Queues { cq, rcq, .. } = &self.queues;
        let entries = |cq: &Cq| cq.queue().entries();
        Budget::of(entries(cq) + rcq.as_ref().map_or(0, entries))
    }

    /// Returns the private data of the peer's request or answer. It is padded with zeros to 56 or
    /// 196 bytes on InfiniBand and RoCE, even if the peer sent no data. On the side that connects
    /// it is empty before [`ConnEvent::Established`].
    #[doc(alias = "rpma_conn_get_private_data")]
    #[must_use]
    pub fn get_private_data(&self) -> &[u8] {
        self.private_data.get().map_or(&[], |data| data)
    }

    /// Decodes the peer's [`Offer`] from its private data, and applies the platform that it
    /// declares ([`apply_remote_peer_cfg`](Self::apply_remote_peer_cfg)).
    ///
    /// # Errors
    ///
    /// As [`Offer::decode`]: [`Error::InvalidArgument`] if the peer sent no offer, and on the side
    /// that connects before [`ConnEvent::Established`].
    pub fn offer(&self) -> Result<Offer> {
        let offer = Offer::decode(self.get_private_data())?;
        self.apply_remote_peer_cfg(offer.platform());
        Ok(offer)
    }

    /// Applies the peer's declaration about its platform. [`offer`](Self::offer) calls it for a
    /// peer that sent an [`Offer`]. The declaration decides two things:
    ///
    /// * Whether [`FlushType::Persistent`](crate::FlushType::Persistent) is possible: always with
    ///   [`Durable::DirectWrites`]; with [`Durable::NativeFlushes`] if this connection
    ///   [flushes natively](Self::has_native_flush); otherwise never.
    /// * On soft-RoCE, whether this side relies on the order of the peer's device
    ///   ([`PeerCfg::set_reorders`]).
    ///
    /// Call it before you post operations, and before you add any to a [`Batch`], which checks
    /// them when they are added.
    #[doc(alias = "rpma_conn_apply_remote_peer_cfg")]
    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        let durable = cfg.get_durable();
        *self.durable.lock().unwrap_or_else(PoisonError::into_inner) = Some(durable);
        let persists = match durable {
            Durable::Nothing => false,
            Durable::NativeFlushes => self.has_native_flush(),
            Durable::DirectWrites => true,
        };
        let mut flushes = MrUsage::FLUSH_TYPE_VISIBILITY;
        flushes.set(MrUsage::FLUSH_TYPE_PERSISTENT, persists);
        self.short.set_flushes(flushes, cfg.get_reorders());
    }

    /// Returns the connection's completion queue.
    #[doc(alias = "rpma_conn_get_cq")]
    #[must_use]
    pub fn get_cq(&self) -> &Cq {
        &self.queues.cq
    }

    /// Returns the connection's own completion queue for receives, if it has one. The completion
    /// queue of a shared receive queue is [`Srq::get_rcq`](crate::Srq::get_rcq).
    #[doc(alias = "rpma_conn_get_rcq")]
    #[must_use]
    pub fn get_rcq(&self) -> Option<&Cq> {
        self.queues.rcq.as_ref()
    }

    /// Returns the descriptor of the completion channel that the connection's two queues share.
    ///
    /// For `poll`, `epoll` and `fcntl` only: a read from it steals an event. It is readable when
    /// [`wait`](Self::wait) will not block. [`AsFd`] of either queue lends the same descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::NotSharedChannel`] unless the connection was made with
    /// [`ComplChannel::Shared`](crate::ComplChannel::Shared).
    #[doc(alias = "rpma_conn_get_compl_fd")]
    pub fn get_compl_fd(&self) -> Result<RawFd> {
        Ok(self.shared_channel()?.as_fd().as_raw_fd())
    }

    /// Waits for a completion event of either completion queue, without a limit, and returns the
    /// queue. The queue is armed again before this returns: poll it until it is empty.
    ///
    /// If a queue gives events for solicited completions only
    /// ([`Notify::Solicited`](crate::Notify)), the wait returns that queue within a second, as if
    /// there had been an event. If both queues do, it returns each in turn.
    ///
    /// # Errors
    ///
    /// [`Error::NotSharedChannel`] unless the connection was made with
    /// [`ComplChannel::Shared`](crate::ComplChannel::Shared). [`Error::NoCompletion`] if the
    /// descriptor was made non-blocking and there is no event. [`Error::NotConnected`] if the
    /// device has reported an error of the queue pair and no event is left. [`Error::Provider`] if
    /// `ibv_get_cq_event` or `ibv_req_notify_cq` fails.
    #[doc(alias = "rpma_conn_wait")]
    pub fn wait(&self) -> Result<(&Cq, CqKind)> {
        self.wait_until(Deadline::Never)
    }

    /// As [`wait`](Self::wait), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`Error::NoCompletion`] when the limit has passed.
    pub fn wait_timeout(&self, limit: Duration) -> Result<(&Cq, CqKind)> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<(&Cq, CqKind)> {
        let channel = self.shared_channel()?;
        let Queues { cq, rcq, .. } = &self.queues;
        let of_receives = rcq.as_ref().map_or(Notify::Any, Cq::notify);
        let notify = match (cq.notify(), of_receives) {
            (Notify::Any, Notify::Any) => Notify::Any,
            _ => Notify::Solicited,
        };
        let kind = match self.completion_event(channel, notify, deadline)? {
            Some(tag) => tag.kind,
            // An event may have been lost: one of a queue with solicited events.
            None => match (cq.notify(), of_receives) {
                (Notify::Any, _) => CqKind::Receive,
                (_, Notify::Any) => CqKind::Main,
                _ if self.receives_next.fetch_not(Ordering::Relaxed) => CqKind::Receive,
                _ => CqKind::Main,
            },
        };
        match (kind, rcq) {
            (CqKind::Receive, Some(rcq)) => Ok((rcq, kind)),
            _ => Ok((cq, CqKind::Main)),
        }
    }

    /// Waits for a completion event, and keeps watch over the peer meanwhile. `None`: the queues
    /// are to be looked at.
    fn completion_event(
        &self,
        channel: &CompChannel,
        notify: Notify,
        deadline: Deadline,
    ) -> Result<Option<CqTag>> {
        let slots = Some(&*self.queues.slots);
        let wait = |until| compl_channel::wait(channel, slots, notify, until);
        if self.keep_alive.is_none() {
            return wait(deadline);
        }
        // An event that is there comes first.
        let (mut until, mut has_slept) = (Deadline::after(Duration::ZERO), false);
        loop {
            match wait(deadline.earlier(until)) {
                Err(Error::NoCompletion) if until.has_passed() && !deadline.has_passed() => {}
                event => return event,
            }
            if has_slept && notify == Notify::Solicited {
                // As after a second, which each part of the wait begins anew.
                return Ok(None);
            }
            // The program has polled the queues, and no event has come since: they are empty.
            until = self.watch_peer().map_or(Deadline::Never, Deadline::At);
            has_slept = true;
        }
    }

    fn shared_channel(&self) -> Result<&CompChannel> {
        self.queues
            .channel
            .as_deref()
            .ok_or(Error::NotSharedChannel)
    }

    /// Returns the address of the other side, from the connection manager. The address of a client
    /// has the port that the kernel chose.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] if the manager has no address, which does not happen with
    /// connections over IP.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.queues.ends.peer()
    }

    /// Returns the address of this side.
    ///
    /// # Errors
    ///
    /// As [`peer_addr`](Self::peer_addr).
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.queues.ends.local()
    }

    /// Makes the descriptor of the connection's events ([`get_event_fd`](Self::get_event_fd))
    /// non-blocking, or blocking again. In non-blocking mode [`next_event`](Self::next_event)
    /// returns [`Error::NoEvent`] at once if there is no event. Other threads may wait meanwhile.
    /// For the descriptor of completions, see [`Cq::set_nonblocking`].
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `fcntl` fails.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.queues.qp.set_nonblocking(on)
    }

    pub(crate) fn id(&self) -> ConnId {
        self.queues.slots.id()
    }

    /// Returns the number of slots of the send queue that are free: each request takes one, until
    /// a poll has taken its completion or that of a later request. Another thread may post
    /// meanwhile. While no completion is due, an operation without one leaves the last slot free
    /// ([`Error::QueueFull`]).
    #[must_use]
    pub fn free_slots(&self) -> u32 {
        self.queues.slots.free_sends()
    }

    pub(crate) fn send_slots(&self) -> u32 {
        self.queues.slots.depths().0
    }

    /// Returns the number of the queue pair, which its completions carry.
    #[doc(alias = "rpma_conn_get_qp_num")]
    #[must_use]
    pub fn get_qp_num(&self) -> u32 {
        self.queues.qp.number()
    }

    /// Returns the descriptor of the connection's event channel, as [`AsRawFd`] does.
    ///
    /// For `poll`, `epoll` and `fcntl` only: a read from it steals an event. It is readable when
    /// [`next_event`](Self::next_event) will not block. If you change `O_NONBLOCK` with `fcntl`,
    /// do it before other threads wait. A wait sets the flag for a moment, and then restores the
    /// earlier value.
    #[doc(alias = "rpma_conn_get_event_fd")]
    #[must_use]
    pub fn get_event_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Returns whether [`flush`](Self::flush) uses the device's own flush operation. If not, it
    /// reads.
    #[must_use]
    pub fn has_native_flush(&self) -> bool {
        matches!(self.flush_method, FlushMethod::Native)
    }

    /// Returns whether [`atomic_write`](Self::atomic_write) uses the device's own atomic write. If
    /// not, it is an ordinary write after a fence.
    #[must_use]
    pub fn has_native_atomic_write(&self) -> bool {
        self.queues.qp.native_ops().atomic_write
    }

    /// Returns the first failure of the connection, or `None` if there was none. Four things are
    /// failures: a failed completion that was polled from either queue; a call that failed to
    /// post; an error of the queue pair that the device reported; an end by the keep-alive
    /// ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)).
    ///
    /// An operation with the status `WR_FLUSH_ERR` failed because of an earlier failure. This
    /// method returns that status only if the connection has no other failure. That happens after
    /// a disconnect by either side, and on soft-RoCE sometimes at the first error.
    ///
    /// Completions in a shared receive queue's own queue do not count.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.queues.slots.failure()
    }

    pub(crate) fn closed(&self) -> Error {
        self.queues.slots.closed()
    }

    /// Returns the numbers of posted requests, of their bytes, of full queues and of failures since
    /// the connection was made.
    ///
    /// It takes no lock and makes no system call. The numbers are exact, but read one after the
    /// other, not at one moment.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.queues.slots.counters()
    }

    /// The counts, which stay when the connection is gone.
    pub(crate) fn slots(&self) -> Arc<ConnSlots> {
        Arc::clone(&self.queues.slots)
    }

    /// Returns the event with which the connection ended, after any thread has taken it:
    /// [`next_event`](Self::next_event), [`next`](Self::next), [`wait_for`](Self::wait_for) or
    /// [`Wait::next`](crate::wait::Wait::next). If there were several, it is the first one. If the
    /// keep-alive ended the connection, the event is returned even before a thread has taken it.
    #[must_use]
    pub fn ended(&self) -> Option<&ConnEvent> {
        self.queues.slots.event()
    }

    /// Returns why the connection is over, as the error of a wait. `None`: it is not established
    /// yet, or takes operations.
    ///
    /// The reason is the first of these that there is:
    ///
    /// 1. The [`failure`](Self::failure), unless it is a [flushed](Failure::is_flushed) operation.
    /// 2. The error for which the library disconnected. A [`Writer`](crate::commit::Writer) does so
    ///    if it cannot poll or wait ([`Error::Provider`]), and if the peer sends a wrong answer
    ///    ([`Error::InvalidArgument`]). So do [`Replicas`](crate::commit::Replicas) with a replica
    ///    that cannot take a commit.
    /// 3. [`Error::Ended`], with the [event](Self::ended).
    /// 4. [`Error::Operation`], of the flushed operation.
    /// 5. [`Error::NotConnected`]: this side has disconnected.
    #[must_use]
    pub fn reason(&self) -> Option<Error> {
        self.queues.slots.reason()
    }

    /// Returns why an operation failed: `failure`, which its completion has, or the
    /// [`reason`](Self::reason) of the connection if the operation was only flushed.
    #[must_use]
    pub fn reason_of(&self, failure: WcFailure) -> Error {
        self.queues.slots.reason_of(failure)
    }

    /// Returns the time from which no completion is to be expected any more: a second after the
    /// failure, the failed call or the event of the end, whichever came first. Before that time an
    /// acknowledgement can still come, because it and the peer's disconnect reach this host by
    /// different ways. `None`: neither has come.
    #[must_use]
    pub fn quiet_from(&self) -> Option<Instant> {
        self.queues.slots.quiet_from().and_then(Deadline::instant)
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.queues.slots.has_ended()
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.queues.slots.is_quiet()
    }

    /// Ends the connection after a call that failed while completions or events were taken: some
    /// may be lost.
    #[cold]
    pub(crate) fn end_after(&self, error: &Error) {
        log::debug!("{}: {error}; the connection ends", self.queues.ends);
        self.queues.slots.call_failed(error);
        if let Err(error) = self.disconnect() {
            log::debug!("{}: {error}", self.queues.ends);
        }
    }

    /// Disconnects a connection that has ended or failed, unless this side has done so: the device
    /// flushes the operations in flight, and the peer learns of a failure. Otherwise the device
    /// would repeat requests until its retries end, and they would hold source memory until then.
    #[cold]
    pub(crate) fn answer_end(&self) {
        if self.queues.slots.has_disconnected() {
            return;
        }
        if let Err(error) = self.disconnect() {
            log::debug!("{}: {error}", self.queues.ends);
        }
    }

    /// The connection counts as over from now on. The caller disconnects.
    pub(crate) fn leave(&self) {
        let closed = Error::NotConnected(NotConnected::Closed);
        self.queues.slots.call_failed(&closed);
    }

    /// Ends the connection: moves the queue pair to the error state and notifies the peer.
    /// Operations that are not complete are lost, and complete with an error.
    ///
    /// After `Ok` no later request of the peer is executed on this connection. The device may still
    /// place the packet that it works on: before another writer gets the memory, call
    /// [`cut_off`](Self::cut_off).
    ///
    /// It does not wait: [`ConnEvent::Closed`] comes when the peer has answered by disconnecting
    /// as well. If the peer has closed the connection, this call is the answer that the peer waits
    /// for.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `rdma_disconnect` fails. On iWARP it is `EBUSY` while the kernel asks
    /// for the connection: drop the connection, which ends that.
    #[doc(alias = "rpma_conn_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        log::info!("{}: disconnecting", self.queues.ends);
        self.queues.slots.disconnects();
        self.queues.slots.end(ConnState::Closed);
        self.queues.qp.disconnect()
    }

    /// Drops the connection, and returns an error if an object could not be freed. If you only
    /// need to know whether the peer can still write, use [`cut_off`](Self::cut_off). If there are
    /// other handles of a queue, the queue is freed with the last of them. If the queue pair
    /// cannot be destroyed, it is moved to the error state, if possible. Otherwise the peer may
    /// still write. A drop does the same.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with the first verb that failed. The rest is still freed. Objects that
    /// cannot be freed are leaked.
    #[doc(alias = "rpma_conn_delete")]
    pub fn delete(self) -> Result<()> {
        self.queues.destroy().all()
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.qp.as_fd()
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
            .field("qp", &self.queues.qp)
            .field("flush_method", &self.flush_method)
            .field("failure", &self.failure())
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}
