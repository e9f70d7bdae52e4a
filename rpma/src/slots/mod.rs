//! The slots of a connection's queues: a request takes one when it is posted, and a polled
//! completion gives it back.
//!
//! Adapters free a send-queue slot only when a completion is polled, and count that in their
//! providers: the completion of an operation frees its slot and those of all operations before it.
//! rxe frees slots by itself and drops completions for which the completion queue has no room. So
//! the counting is done here, in the providers' way, with the same answer on every device:
//! [`Error::QueueFull`](crate::Error::QueueFull). The completion queue is made large enough for
//! every slot. So it never overflows, and no completion is lost. That holds for a connection that
//! fails, too: then every operation in flight completes, even those without a completion
//! otherwise.
//!
//! The library owns the `wr_id`: the kind of a request in 3 bits ([`Kind`]), and in 61 its number
//! in a [`Ring`] or, for a shared receive queue, in a [`Pool`]. The entry of that number has the
//! program's `op_context`, which goes back into the completion when it is polled. In a failed
//! completion only the `wr_id` and the status are valid, and they identify a send, a receive, or a
//! marker of [`Conn::close`](crate::Conn::close).
//!
//! Each queue has a lock for posting ([`Ring`], [`Pool`]), and each completion queue one for
//! polling ([`Cq`](crate::Cq)). A thread that takes several takes them in this order: the
//! pollers', the sends', the receives'.
//!
//! Posting is in this file, polling in settle.rs. The other parts of [`ConnSlots`] are its life
//! (life.rs) and the errors of refused requests (refused.rs).

mod contexts;
mod counts;
mod kind;
mod life;
mod outcome;
mod pool;
mod probe;
mod refused;
mod ring;
mod settle;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use self::counts::Counts;
pub(crate) use self::kind::{Kind, RECEIVE_MARKERS, SEND_MARKERS};
pub(crate) use self::life::ConnState;
use self::life::Life;
pub(crate) use self::outcome::PostRefusal;
pub(crate) use self::pool::Pool;
pub(crate) use self::probe::Signs;
pub(crate) use self::refused::refused_by_a_full_queue;
pub(crate) use self::ring::NotPosted;
pub(crate) use self::ring::{Entries, Wanted};
use self::ring::{NotTaken, Ring};
use crate::error::{Queue, Result};
use crate::posted::{ConnId, Posted};
use crate::status::WcStatus;
use crate::verbs::{CallFailed, PostError};

/// The number of the last request of a post, or why none was posted; `None` if the post would have
/// to wait.
pub(crate) type PostResult = Option<Result<u64, NotPosted<CallFailed>>>;

#[derive(Debug)]
pub(crate) struct ConnSlots {
    id: ConnId,
    /// In a box: the parts of a ring are then found from its own address alone, which takes one
    /// register.
    send: Box<Ring>,
    receive: Box<Ring>,
    /// The entries of a shared receive queue with receives that complete in the connection's
    /// queues.
    shared: Option<Arc<Pool>>,
    life: Life,
    /// The markers that any thread has polled: two bits each, see [`Kind::marker_bits`].
    markers: AtomicU32,
    counts: Counts,
    /// A [`Kind::Probe`] is in flight.
    is_probing: AtomicBool,
    /// How many probes were answered. `None` where each completed operation is an answer.
    answers: Option<AtomicU64>,
}

impl ConnSlots {
    /// Slots for `sends` operations, once the connection is [`open`](Self::open), and for
    /// `receives`.
    pub(crate) fn new(sends: u32, receives: u32) -> Self {
        Self {
            id: ConnId::new(),
            life: Life::new(),
            markers: AtomicU32::new(0),
            counts: Counts::default(),
            is_probing: AtomicBool::new(false),
            answers: None,
            shared: None,
            send: Box::new(Ring::new(sends, SEND_MARKERS).ending()),
            // Receives may be posted before the connection is there.
            receive: Box::new(Ring::new(receives, RECEIVE_MARKERS)),
        }
    }

    /// Receives of a shared queue complete in the connection's queues. `shared` are their entries.
    pub(crate) fn sharing(self, shared: Option<Arc<Pool>>) -> Self {
        Self { shared, ..self }
    }

    /// Operations may complete without an answer of the peer: its signs of life are probes and
    /// receives.
    pub(crate) fn completing_here(self, is_so: bool) -> Self {
        Self {
            answers: is_so.then(AtomicU64::default),
            ..self
        }
    }

    pub(crate) fn id(&self) -> ConnId {
        self.id
    }

    /// The number of the operation, if it is of this connection.
    #[inline(always)]
    pub(crate) fn number_of(&self, posted: Posted) -> Option<u64> {
        (posted.conn() == self.id).then(|| posted.number())
    }

    #[inline(always)]
    pub(crate) fn name(&self, number: u64, completes: bool) -> Posted {
        Posted::new(self.id, number, completes)
    }

    /// How many operations can be posted without a poll, and how many receives.
    pub(crate) fn depths(&self) -> (u32, u32) {
        (self.send.depth(), self.receive.depth())
    }

    /// How many requests a program can post now.
    pub(crate) fn free_sends(&self) -> u32 {
        self.send.free()
    }

    /// Whether the completion of the operation with this number was polled, or that of a later one.
    #[inline(always)]
    pub(crate) fn was_polled(&self, number: u64) -> bool {
        self.send.is_done(number)
    }

    /// Whether a completion is to come: of a send that gives one when it succeeds, or of a receive.
    pub(crate) fn is_due(&self) -> bool {
        self.send.is_due() || self.receive.is_due()
    }

    /// Whether a request of the send queue that gives a completion when it succeeds is not done.
    pub(crate) fn is_send_due(&self) -> bool {
        self.send.is_due()
    }

    #[cold]
    pub(crate) fn marker_came(&self, marker: Kind, status: WcStatus) {
        let (came, succeeded) = marker.marker_bits();
        let bits = match status {
            WcStatus::SUCCESS => came | succeeded,
            _ => came,
        };
        self.markers.fetch_or(bits, Ordering::Release);
    }

    /// Whether a marker has completed, and then whether it succeeded.
    pub(crate) fn marker(&self, marker: Kind) -> Option<bool> {
        let (came, succeeded) = marker.marker_bits();
        let markers = self.markers.load(Ordering::Acquire);
        (markers & came != 0).then_some(markers & succeeded != 0)
    }

    /// Posts all operations, or no operation. `post` takes the entry of each.
    #[inline(always)]
    pub(crate) fn post_sends<const WAITS: bool>(
        &self,
        wanted: Wanted,
        bytes: u64,
        post: impl FnOnce(Entries<'_>) -> Result<u32, PostError>,
    ) -> PostResult {
        let is_open = || self.life.state() == ConnState::Open;
        // After a post that has failed no other may make the device look.
        let post = |entries: Entries<'_>| post(entries).map_err(NotTaken::from);
        self.send.post::<WAITS, _>(wanted, bytes, is_open, post)
    }

    /// Posts all receives, or no receive. `post` takes the entry of each.
    #[inline(always)]
    pub(crate) fn post_receives<const WAITS: bool>(
        &self,
        count: u32,
        post: impl FnOnce(Entries<'_>) -> Result<u32, PostError>,
    ) -> PostResult {
        let is_open = || matches!(self.life.state(), ConnState::Connecting | ConnState::Open);
        let wanted = Wanted::one_operation(count, true);
        let post = |entries: Entries<'_>| post(entries).map_err(NotTaken::from);
        self.receive.post::<WAITS, _>(wanted, 0, is_open, post)
    }

    /// Posts a marker, in any state.
    pub(crate) fn post_marker(
        &self,
        marker: Kind,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<()> {
        let ring = match marker {
            Kind::ReceivesFlushed => &self.receive,
            _ => &self.send,
        };
        let posted = ring.post_extra(|mut entries| {
            let number = entries.take(0);
            post(marker.wr_id(number)).map_err(NotTaken::from)
        });
        let (queue, depth) = (Queue::Send, ring.depth());
        let refused = |error: NotPosted<_>| refused_by_a_full_queue(error.into(), queue, depth, 1);
        posted.map(drop).map_err(refused)
    }
}

/// The outcome of a post that waits, if it has to.
pub(crate) fn waited(posted: PostResult) -> Result<u64, PostRefusal> {
    // One that waits has an outcome.
    Ok(posted.unwrap_or(Err(NotPosted::Ended))?)
}
