//! The slots of a connection's queues: what may be posted before something is polled.
//!
//! Adapters free a send-queue slot only when a completion is polled, and count that in their
//! providers: the completion of an operation frees its slot and those of all operations before it. rxe
//! frees slots by itself and drops completions for which the completion queue has no room. So the
//! counting is done here, in the providers' way, with the same answer on every device:
//! [`Error::QueueFull`]. Then the completion queue, which is made large enough for every slot, never
//! overflows, and no completion is lost; not even when a connection fails and every operation that is
//! in flight completes, also those that would not have.
//!
//! The library owns the `wr_id`: the kind of a request in 3 bits, and in 61 its number in a [`Ring`] or, of a
//! shared receive queue, in a [`Pool`]. The entry of that number has the program's `op_context`, which goes back into the
//! completion when it is polled. Nothing has to be guessed: a failed completion, of which only the `wr_id`
//! and the status are valid, says whether it was a send, a receive, or a marker of
//! [`Conn::close`](crate::Conn::close).
//!
//! Each queue has a lock for posting ([`Ring`], [`Pool`]), and each completion queue one for polling
//! ([`Cq`](crate::Cq)). Where several are taken their order is: the pollers', the sends', the receives'.

mod contexts;
mod kind;
mod life;
mod outcome;
mod pool;
mod refused;
mod ring;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use self::kind::{Kind, RECEIVE_MARKERS, SEND_MARKERS};
use self::life::Life;
pub(crate) use self::life::State;
use self::outcome::NoCall;
pub(crate) use self::outcome::{Outcome, Refusal};
pub(crate) use self::pool::Pool;
pub(crate) use self::refused::refused_by_a_full_queue;
use self::ring::{Entries, NotPosted, NotTaken, Ring};
pub(crate) use self::ring::{NotTried, Wanted};
use crate::error::{Queue, Result};
use crate::lock::Held;
use crate::posted::{ConnId, Posted};
use crate::verbs::{PostError, Wc, WcStatus};

/// The slots of one connection.
#[derive(Debug)]
pub(crate) struct ConnSlots {
    id: ConnId,
    /// In a box, as what a ring consists of is then found from its own address alone, which takes one register.
    send: Box<Ring>,
    receive: Box<Ring>,
    life: Life,
    /// The markers that have completed, whoever polled them: two bits each, see [`Kind::marker_bits`].
    markers: AtomicU32,
}

impl ConnSlots {
    /// Slots for `sends` operations, once the connection is [`open`](Self::open), and for `receives`.
    pub(crate) fn new(sends: u32, receives: u32) -> Self {
        Self {
            id: ConnId::new(),
            life: Life::new(),
            markers: AtomicU32::new(0),
            send: Box::new(Ring::new(sends, SEND_MARKERS)),
            // Receives may be posted before the connection is there.
            receive: Box::new(Ring::new(receives, RECEIVE_MARKERS).started()),
        }
    }

    /// The number of the operation, if it is of this connection.
    #[inline(always)]
    pub(crate) fn number_of(&self, posted: Posted) -> Option<u64> {
        (posted.conn() == self.id).then(|| posted.number())
    }

    /// The name of the operation with this number.
    #[inline(always)]
    pub(crate) fn name(&self, number: u64, completes: bool) -> Posted {
        Posted::new(self.id, number, completes)
    }

    /// The number that the next operation gets.
    pub(crate) fn posted_so_far(&self) -> u64 {
        self.send.next_number()
    }

    /// Whether the completion of the operation with this number was polled, or that of a later one.
    #[inline(always)]
    pub(crate) fn was_polled(&self, number: u64) -> bool {
        self.send.is_done(number)
    }

    /// Notes how a marker has completed.
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

    /// Posts an operation of `count` requests, whose `wr_id`s are the kind's with the number given to
    /// `post` and those that follow it.
    pub(crate) fn post_send(
        &self,
        count: u32,
        signaled: bool,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Outcome {
        let wanted = Wanted::one_operation(count, signaled);
        self.post_sends(wanted, |mut entries| {
            let first = entries.take(op_context);
            for _ in 1..count {
                entries.take(op_context);
            }
            post(first)
        })
    }

    /// Posts several operations: all of them or none. `post` takes the entry of each.
    pub(crate) fn post_sends(
        &self,
        wanted: Wanted,
        post: impl FnOnce(Entries<'_>) -> Result<(), PostError>,
    ) -> Outcome {
        // Under the ring's lock: behind a post that has failed no other may make the device look.
        let posted = self.send.post(wanted, |entries| match self.life.state() {
            State::Open => post(entries).map_err(|error| self.not_taken::<true>(error)),
            _ => Err(NotTaken::Refused(NoCall::Ended)),
        });
        Outcome::of(posted)
    }

    /// As [`post_send`](Self::post_send) for one request, if that takes no time: see
    /// [`Ring::try_post`].
    #[inline(always)]
    pub(crate) fn try_post_send(
        &self,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<u32, PostError>,
    ) -> Result<u64, NotTried<'_, PostError>> {
        self.send.try_post(op_context, post)
    }

    /// Posts receives: all of them or none. `post` takes the entry of each.
    pub(crate) fn post_receives(
        &self,
        count: u32,
        post: impl FnOnce(Entries<'_>) -> Result<(), PostError>,
    ) -> Outcome {
        let wanted = Wanted::one_operation(count, true);
        let posted = self
            .receive
            .post(wanted, |entries| match self.life.state() {
                State::Connecting | State::Open => {
                    post(entries).map_err(|error| self.not_taken::<false>(error))
                }
                _ => Err(NotTaken::Refused(NoCall::Ended)),
            });
        Outcome::of(posted)
    }

    /// Posts a receive.
    pub(crate) fn post_receive(
        &self,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Outcome {
        self.post_receives(1, |mut entries| {
            post(Kind::Receive.wr_id(entries.take(op_context)))
        })
    }

    /// As [`post_receive`](Self::post_receive), if that takes no time.
    #[inline(always)]
    pub(crate) fn try_post_receive(
        &self,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<u64, NotTried<'_, PostError>> {
        self.receive.try_post(op_context, |number| {
            post(Kind::Receive.wr_id(number))?;
            Ok(1)
        })
    }

    /// Posts a marker, whatever the state is.
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

    /// Settles the completions at the beginning of `wcs`, as long as they are of the same queue of the
    /// connection and have succeeded: gives their slots back, and labels them. Returns how many are
    /// left. For the holder of the completion queue's lock.
    #[inline(never)]
    pub(crate) fn settle(&self, wcs: &mut [Wc]) -> usize {
        let [wc] = wcs else {
            return self.settle_many(wcs);
        };
        if wc.status() != WcStatus::SUCCESS {
            return 1;
        }
        if wc.wr_id() >> Kind::NUMBER != Kind::Send as u64 {
            return self.settle_receive(wc);
        }
        self.send.done_with(self.label::<true>(&self.send, wc));
        0
    }

    /// As [`settle`](Self::settle), for the send with this number; `false` if it is another completion, or has failed.
    #[inline(always)]
    pub(crate) fn settle_expected(&self, number: u64, wc: &mut Wc) -> bool {
        let is_it = wc.status() == WcStatus::SUCCESS && wc.wr_id() == Kind::Send.wr_id(number);
        if is_it {
            self.send.done_with(self.label::<true>(&self.send, wc));
        }
        is_it
    }

    /// As [`settle`](Self::settle), for one that has succeeded and is no send.
    #[inline(never)]
    fn settle_receive(&self, wc: &mut Wc) -> usize {
        if wc.wr_id() >> Kind::NUMBER != Kind::Receive as u64 {
            return 1;
        }
        let number = self.label::<false>(&self.receive, wc);
        self.receive.done_with(number);
        0
    }

    #[inline(never)]
    fn settle_many(&self, wcs: &mut [Wc]) -> usize {
        match wcs.first().map_or(u64::MAX, Wc::wr_id) >> Kind::NUMBER {
            kind if kind == Kind::Send as u64 => self.settle_of::<true>(&self.send, wcs),
            kind if kind == Kind::Receive as u64 => self.settle_of::<false>(&self.receive, wcs),
            _ => wcs.len(),
        }
    }

    /// As [`settle`](Self::settle), where the first is of this ring: that of the sends or that of the receives.
    #[inline(always)]
    fn settle_of<const SENDS: bool>(&self, ring: &Ring, wcs: &mut [Wc]) -> usize {
        let (mut settled, mut last) = (0, None);
        // Four at a time, which share what is asked of each; then one at a time.
        for some in wcs.chunks_exact_mut(4) {
            let Some(done) = self.settle_alike::<SENDS>(ring, some) else {
                break;
            };
            (settled, last) = (settled + 4, Some(done));
        }
        for one in wcs[settled..].chunks_exact_mut(1) {
            let Some(done) = self.settle_alike::<SENDS>(ring, one) else {
                break;
            };
            (settled, last) = (settled + 1, Some(done));
        }
        // All entries are read now.
        if let Some(last) = last {
            ring.done_with(last);
        }
        wcs.len() - settled
    }

    /// Labels completions and returns the number of the last one, if all of them succeeded and are of this
    /// ring. If not, nothing has happened.
    #[inline(always)]
    fn settle_alike<const SENDS: bool>(&self, ring: &Ring, wcs: &mut [Wc]) -> Option<u64> {
        let first = first_of::<SENDS>();
        let (mut kinds, mut statuses) = (0, 0);
        for wc in &*wcs {
            kinds |= wc.wr_id() ^ first;
            statuses |= wc.status().0;
        }
        if (kinds >> Kind::NUMBER) as u32 | statuses != WcStatus::SUCCESS.0 {
            return None;
        }
        let mut last = None;
        for wc in wcs {
            last = Some(self.label::<SENDS>(ring, wc));
        }
        last
    }

    /// Puts the program's `op_context` into a completion, and the name of its operation if it is a send
    /// queue's. Returns its number.
    #[inline(always)]
    fn label<const SENDS: bool>(&self, ring: &Ring, wc: &mut Wc) -> u64 {
        let number = wc.wr_id() ^ first_of::<SENDS>();
        let op_context = ring.op_contexts().of(number).load(Ordering::Relaxed);
        match SENDS {
            true => wc.set_send(op_context, self.id, number),
            false => wc.set_receive(op_context),
        }
        number
    }

    /// Gives the slot of a request back and labels its completion, whether it has failed or not; `false` if
    /// it is of no queue of the connection. For the holder of the completion queue's lock.
    #[inline]
    pub(crate) fn complete(&self, wc: &mut Wc, kind: Kind, number: u64) -> bool {
        match kind {
            Kind::Send | Kind::AllSent | Kind::SendsFlushed => {
                wc.set_any_send(self.send.complete(number), self.id, number);
            }
            Kind::Receive | Kind::ReceivesFlushed => {
                wc.set_any_receive(self.receive.complete(number));
            }
            Kind::SharedReceive => return false,
        }
        true
    }

    #[cold]
    fn not_taken<const SENDS: bool>(&self, error: PostError) -> NotTaken<NoCall> {
        if ends_the_connection::<SENDS>(&error) {
            // With the ring's lock: `Queues` ends the other ring, without a lock.
            self.life.end(State::Failed);
        }
        error.into()
    }
}

/// Whether the connection ends because of this error: the device may have the request. A device that refuses a
/// checked send cannot be trusted, and ends it as well. A refused receive has changed nothing.
fn ends_the_connection<const SENDS: bool>(error: &PostError) -> bool {
    match error {
        PostError::Full => false,
        PostError::Refused(_) => SENDS,
        PostError::Failed(_) => true,
    }
}

/// What becomes of a request that [`ConnSlots::try_post_send`] or
/// [`try_post_receive`](ConnSlots::try_post_receive) has tried to post. The connection ends when the caller has let
/// go of the lock: see [`Refusal::of_send`] and [`Refusal::of_receive`].
#[cold]
#[inline(never)]
pub(crate) fn one_not_taken<const SENDS: bool>(
    ring: &Ring,
    held: Held<'_>,
    error: PostError,
) -> Outcome {
    let ends = ends_the_connection::<SENDS>(&error);
    Refusal::from(ring.one_not_taken(held, error.into(), ends)).into()
}

/// The `wr_id` of number 0 of the sends or the receives.
const fn first_of<const SENDS: bool>() -> u64 {
    match SENDS {
        true => (Kind::Send as u64) << Kind::NUMBER,
        false => (Kind::Receive as u64) << Kind::NUMBER,
    }
}
