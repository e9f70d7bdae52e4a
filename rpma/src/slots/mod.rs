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
//! The library owns the `wr_id`: the kind of a request, and the number of its entry in a [`Ring`] or, of a
//! shared receive queue, a [`Pool`]. The entry has the program's `op_context`, which goes back into the
//! completion when it is polled. Nothing has to be guessed: a failed completion, of which only the `wr_id`
//! and the status are valid, says whether it was a send, a receive, or a marker of
//! [`Conn::close`](crate::Conn::close).
//!
//! Each queue has a lock for posting ([`Ring`], [`Pool`]), and each completion queue one for polling
//! ([`Cq`](crate::Cq)). Where several are taken their order is: the pollers', the sends', the receives'.

mod contexts;
mod lock;
mod pool;
mod ring;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU8;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

pub(crate) use self::lock::{Held, Lock};
pub(crate) use self::pool::Pool;
use self::ring::{Entries, NotPosted, NotTaken, Ring};
pub(crate) use self::ring::{NotTried, Wanted};
use self::sync::Ordering;
use crate::error::{Error, Queue, Result};
use crate::verbs::{CallFailed, PostError, Wc, WcFailure, WcStatus};

/// What lock.rs, ring.rs and pool.rs synchronise with: the package tests/loom has its own.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};

    use rustix::thread::futex::{Flags, wait, wake};

    pub(super) use crate::verbs::clock::lock;
    use crate::verbs::clock::pause;

    /// Sleeps if the word has this value, until somebody is woken; sometimes for no reason.
    pub(super) fn sleep_while(word: &AtomicU32, value: u32) {
        if pause() {
            return;
        }
        // It has another value, or there was a signal: whoever sleeps looks again in any case.
        let _ = wait(word, Flags::PRIVATE, value, None);
    }

    /// Wakes one of those who sleep because of the word.
    pub(super) fn wake_one(word: &AtomicU32) {
        let woken = wake(word, Flags::PRIVATE, 1);
        debug_assert!(woken.is_ok(), "{woken:?}");
    }
}

/// In the send queue, entries for [`Kind::AllSent`] and [`Kind::SendsFlushed`].
pub(crate) const SEND_MARKERS: u32 = 2;
/// In the receive queue, an entry for [`Kind::ReceivesFlushed`].
pub(crate) const RECEIVE_MARKERS: u32 = 1;

/// What a work request is: the upper half of its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Of the send queue.
    ///
    /// 0, so that the number of the entry is the whole `wr_id` already.
    Send = 0,
    /// Of the connection's own receive queue.
    Receive = 1,
    SharedReceive = 2,
    /// The marker behind everything that was posted.
    AllSent = 3,
    /// The marker behind the last send that is flushed.
    SendsFlushed = 4,
    /// The marker behind the last receive.
    ReceivesFlushed = 5,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Send,
        Self::Receive,
        Self::SharedReceive,
        Self::AllSent,
        Self::SendsFlushed,
        Self::ReceivesFlushed,
    ];

    /// The `wr_id` of the request with this entry.
    #[inline]
    pub(crate) fn wr_id(self, number: u32) -> u64 {
        u64::from(self as u32) << 32 | u64::from(number)
    }

    /// The kind and the entry of a request; `None` if it is not ours.
    #[inline]
    pub(crate) fn of(wr_id: u64) -> Option<(Self, u32)> {
        let kind = Self::ALL.get((wr_id >> 32) as usize)?;
        Some((*kind, wr_id as u32))
    }
}

/// The slots of one connection.
#[derive(Debug)]
pub(crate) struct ConnSlots {
    /// In a box, as what a ring consists of is then found from its own address alone, which takes one register.
    send: Box<Ring>,
    receive: Box<Ring>,
    state: AtomicU8,
    failure: Mutex<Option<WcFailure>>,
}

/// Whether a connection takes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not yet.
    Connecting,
    /// It does.
    Open,
    /// An operation has failed: the queue pair is in the error state.
    Failed,
    /// The device has reported an error of the queue pair.
    Broken,
    /// This side or the peer has closed the connection, or it was never made.
    Closed,
}

impl ConnSlots {
    /// Slots for `sends` operations, once the connection is [`open`](Self::open), and for `receives`.
    pub(crate) fn new(sends: u32, receives: u32) -> Self {
        Self {
            state: AtomicU8::new(State::Connecting as u8),
            failure: Mutex::new(None),
            send: Box::new(Ring::new(sends, SEND_MARKERS)),
            // Receives may be posted before the connection is there.
            receive: Box::new(Ring::new(receives, RECEIVE_MARKERS).started()),
        }
    }

    /// From now on operations may be posted, unless the connection has ended already.
    pub(crate) fn open(&self) {
        let (from, to) = (State::Connecting as u8, State::Open as u8);
        let _ = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Nothing may be posted any more. The first end counts. Returns what the state was.
    pub(crate) fn end(&self, state: State) -> State {
        let before = self.set_ended(state);
        // The short ways do not look at the state.
        self.send.end();
        self.receive.end();
        before
    }

    fn set_ended(&self, state: State) -> State {
        let ended = |now: u8| (now <= State::Open as u8).then_some(state as u8);
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, ended);
        State::from_u8(before.unwrap_or_else(|now| now))
    }

    /// Nothing may be posted any more, as an operation has failed.
    #[cold]
    pub(crate) fn fail(&self, failure: WcFailure) {
        self.end(State::Failed);
        let mut first = self.lock_failure();
        let flushed = |failure: &WcFailure| failure.status == WcStatus::WR_FLUSH_ERR;
        // What is flushed failed because of something else, which may be polled later, in another queue.
        if first.is_none() || first.as_ref().is_some_and(flushed) && !flushed(&failure) {
            *first = Some(failure);
        }
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<WcFailure> {
        *self.lock_failure()
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<WcFailure>> {
        // A panic cannot leave it half written.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts an operation of `count` requests, whose `wr_id`s are the kind's with the number given to
    /// `post` and those that follow it.
    pub(crate) fn post_send(
        &self,
        count: u32,
        signaled: bool,
        op_context: u64,
        post: impl FnOnce(u32) -> Result<(), PostError>,
    ) -> Posted {
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
    ) -> Posted {
        // Under the ring's lock: behind a post that has failed no other may make the device look.
        let posted = self.send.post(wanted, |entries| match self.state() {
            State::Open => post(entries).map_err(|error| self.not_taken(error)),
            _ => Err(NotTaken::Refused(NoCall::Ended)),
        });
        posted.map_err(Refusal::from)
    }

    /// As [`post_send`](Self::post_send) for one request, if that takes no time: see
    /// [`Ring::try_post`].
    #[inline(always)]
    pub(crate) fn try_post_send(
        &self,
        op_context: u64,
        post: impl FnOnce(u32) -> Result<u32, PostError>,
    ) -> Result<(), NotTried<'_, PostError>> {
        self.send.try_post(op_context, post)
    }

    /// Posts receives: all of them or none. `post` takes the entry of each.
    pub(crate) fn post_receives(
        &self,
        count: u32,
        post: impl FnOnce(Entries<'_>) -> Result<(), PostError>,
    ) -> Posted {
        let wanted = Wanted::one_operation(count, true);
        let posted = self.receive.post(wanted, |entries| match self.state() {
            State::Connecting | State::Open => Ok(post(entries)?),
            _ => Err(NotTaken::Refused(NoCall::Ended)),
        });
        posted.map_err(Refusal::from)
    }

    /// Posts a receive.
    pub(crate) fn post_receive(
        &self,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Posted {
        self.post_receives(1, |mut entries| {
            post(Kind::Receive.wr_id(entries.take(op_context)))
        })
    }

    /// The error of a receive.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_refused(&self, refusal: Refusal, count: u32) -> Error {
        let ended = !matches!(self.state(), State::Connecting | State::Open);
        match refusal.0.get() {
            _ if ended && refusal.call().is_none() => self.closed(),
            _ => refused_by_a_full_queue(refusal, Queue::Receive, self.receive.depth(), count),
        }
    }

    /// As [`post_receive`](Self::post_receive), if that takes no time.
    #[inline(always)]
    pub(crate) fn try_post_receive(
        &self,
        op_context: u64,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<(), NotTried<'_, PostError>> {
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
        posted.map_err(|error| refused_by_a_full_queue(error.into(), queue, depth, 1))
    }

    /// Settles what stands at the beginning of `wcs`, as long as it is of the same queue of the connection
    /// and has succeeded: gives its slots back, and puts the `op_context`s into it. Returns how many are
    /// left. For the holder of the completion queue's lock.
    #[inline(never)]
    pub(crate) fn settle(&self, wcs: &mut [Wc]) -> usize {
        let [wc] = wcs else {
            return self.settle_many(wcs);
        };
        let (wr_id, number) = (wc.wr_id(), wc.wr_id() as u32);
        match self.ring_of(wr_id >> 32) {
            Some(ring) if wc.status() == WcStatus::SUCCESS => {
                wc.set_wr_id(ring.complete(number));
                0
            }
            _ => 1,
        }
    }

    /// The ring of the program's requests of this kind; `None` for all other kinds.
    #[inline(always)]
    fn ring_of(&self, kind: u64) -> Option<&Ring> {
        if kind == Kind::Send as u64 {
            Some(&self.send)
        } else if kind == Kind::Receive as u64 {
            Some(&self.receive)
        } else {
            None
        }
    }

    #[inline(never)]
    fn settle_many(&self, wcs: &mut [Wc]) -> usize {
        let Some(first) = wcs.first() else { return 0 };
        let first = first.wr_id();
        let Some(ring) = self.ring_of(first >> 32) else {
            return wcs.len();
        };
        let (mut settled, mut last) = (0, None);
        // Four at a time, which share what is asked of each; then one at a time.
        for some in wcs.chunks_exact_mut(4) {
            let Some(done) = settle_alike(ring, first, some) else {
                break;
            };
            (settled, last) = (settled + 4, Some(done));
        }
        for one in wcs[settled..].chunks_exact_mut(1) {
            let Some(done) = settle_alike(ring, first, one) else {
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

    /// Notes that a request is done, and returns its `op_context`; `None` if it is of no queue of the
    /// connection. For the holder of the completion queue's lock.
    #[inline]
    pub(crate) fn complete(&self, kind: Kind, number: u32) -> Option<u64> {
        match kind {
            Kind::Send | Kind::AllSent | Kind::SendsFlushed => Some(self.send.complete(number)),
            Kind::Receive | Kind::ReceivesFlushed => Some(self.receive.complete(number)),
            Kind::SharedReceive => None,
        }
    }

    #[inline]
    fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::Acquire))
    }

    #[cold]
    fn not_taken(&self, error: PostError) -> NotTaken<NoCall> {
        if !matches!(error, PostError::Full) {
            // The device may have it all the same; or it refuses what was checked, and is not to be trusted.
            // With the lock of the sends, of which the ring stops the short way by itself.
            self.set_ended(State::Failed);
            self.receive.end();
        }
        error.into()
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn send_refused(&self, refusal: Refusal, what: &str, count: u32) -> Error {
        let depth = self.send.depth();
        if let Some(call) = refusal.call() {
            // After the short way the ring has, so that nobody was in between.
            self.end(State::Failed);
            return hint(call.into());
        }
        let ended = self.state() != State::Open;
        match refusal.0.get() {
            _ if ended => self.closed(),
            Refusal::TOO_LONG => Error::invalid(format!(
                "the {what} takes {count} slots of the send queue, which has {depth}{}: ask for more with \
                 ConnCfg::set_sq_size",
                match count == depth {
                    true =>
                        ", and without Flags::COMPLETION_ALWAYS it needs one more for an operation with it",
                    false => "",
                },
            )),
            Refusal::FULL => Error::QueueFull {
                queue: Queue::Send,
                depth,
            },
            Refusal::NO_COMPLETION_DUE => Error::NoCompletionDue { depth },
            _ => self.closed(),
        }
    }

    /// Whether it takes no operations yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.state() == State::Connecting
    }

    /// The error of a connection whose queue pair the device has given up, of which nothing more may be told.
    pub(crate) fn broken(&self) -> Option<Error> {
        (self.state() == State::Broken).then(|| self.closed())
    }

    /// Why it takes no operations.
    #[cold]
    pub(crate) fn closed(&self) -> Error {
        Error::NotConnected(match self.state() {
            State::Connecting => {
                "the connection is not established yet: wait for ConnEvent::Established with \
                 Conn::next_event"
            }
            State::Open | State::Failed => {
                "an operation on the connection has failed, which ended it (Conn::failure): poll the \
                 remaining completions, disconnect, and connect again"
            }
            State::Broken => {
                "the device has reported an error of the connection's queue pair (see the log), which ended it: \
                 completions may be missing; drop the connection, and connect again"
            }
            State::Closed => "the connection is closed",
        })
    }
}

/// What becomes of a request that [`ConnSlots::try_post_send`] has tried to post. The connection ends with
/// [`ConnSlots::send_refused`]: the device may have the request all the same; or it refuses what was checked, and is
/// not to be trusted.
#[cold]
#[inline(never)]
pub(crate) fn send_not_taken(ring: &Ring, held: Held<'_>, error: PostError) -> Refusal {
    let ends = !matches!(error, PostError::Full);
    ring.one_not_taken(held, error.into(), ends).into()
}

/// As [`send_not_taken`], of a receive and [`ConnSlots::try_post_receive`].
#[cold]
#[inline(never)]
pub(crate) fn receive_not_taken(ring: &Ring, held: Held<'_>, error: PostError) -> Refusal {
    ring.one_not_taken(held, error.into(), false).into()
}

/// Puts the `op_context`s into completions and returns the number of the last one, if all of them succeeded and
/// are of the queue that `first` is of. If not, nothing has happened.
#[inline(always)]
fn settle_alike(ring: &Ring, first: u64, wcs: &mut [Wc]) -> Option<u32> {
    let (mut kinds, mut statuses) = (0, 0);
    for wc in &*wcs {
        kinds |= wc.wr_id() ^ first;
        statuses |= wc.status().0;
    }
    if (kinds >> 32) as u32 | statuses != WcStatus::SUCCESS.0 {
        return None;
    }
    let mut last = None;
    for wc in wcs {
        let number = wc.wr_id() as u32;
        wc.set_wr_id(ring.op_contexts().of(number).load(Ordering::Relaxed));
        last = Some(number);
    }
    last
}

/// Adds what is known of a failed verb, if it does not say already what to know of it.
fn hint(error: Error) -> Error {
    let has_none = matches!(error, Error::Provider { hint: None, .. });
    match has_none && error.is_errno(Errno::ACCESS) {
        true => error.with_hint(
            "The kernel refuses verbs in the child of a fork and after a change of credentials: do both \
             before the device is opened",
        ),
        false => error,
    }
}

/// Why `count` requests were not posted to a queue of this depth in which every one gives a completion.
#[cold]
#[inline(never)]
pub(crate) fn refused_by_a_full_queue(
    refusal: Refusal,
    queue: Queue,
    depth: u32,
    count: u32,
) -> Error {
    if let Some(call) = refusal.call() {
        return hint(call.into());
    }
    let setter = queue.setter();
    match refusal.0.get() {
        Refusal::TOO_LONG if depth == 0 => Error::invalid(format!(
            "the {queue} was made with no slots: ask for some with {setter}"
        )),
        Refusal::TOO_LONG => Error::invalid(format!(
            "{count} receives at once, and the {queue} has {depth} slots: ask for more with {setter}"
        )),
        _ => Error::QueueFull { queue, depth },
    }
}

/// Whether a request was posted: a word, and 0 if it was.
pub(crate) type Posted = Result<(), Refusal>;

/// Why a request was not posted, until it becomes an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(NonZeroU32);

impl Refusal {
    const TOO_LONG: u32 = 1;
    const FULL: u32 = 2;
    const NO_COMPLETION_DUE: u32 = 3;
    const ENDED: u32 = 4;
    const CALL_FAILED: u32 = 5;
    /// The bits of these.
    const KINDS: u32 = 7;

    /// The failed call, if it was one.
    fn call(self) -> Option<CallFailed> {
        let failed = self.0.get() & Self::KINDS == Self::CALL_FAILED;
        failed.then(|| CallFailed::from_bits(self.0.get() >> 3))
    }
}

impl From<NotPosted<NoCall>> for Refusal {
    #[cold]
    #[inline(never)]
    fn from(error: NotPosted<NoCall>) -> Self {
        let bits = match error {
            NotPosted::Ended => Self::ENDED,
            NotPosted::TooLong => Self::TOO_LONG,
            NotPosted::Full => Self::FULL,
            NotPosted::NoCompletionDue => Self::NO_COMPLETION_DUE,
            NotPosted::Refused(NoCall::Ended) | NotPosted::Failed(NoCall::Ended) => Self::ENDED,
            NotPosted::Refused(NoCall::Failed(call)) | NotPosted::Failed(NoCall::Failed(call)) => {
                call.to_bits() << 3 | Self::CALL_FAILED
            }
        };
        // Not 0, by its lowest bits.
        Self(NonZeroU32::new(bits).unwrap_or(NonZeroU32::MIN))
    }
}

/// Why a request was not given to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoCall {
    /// The connection takes none.
    Ended,
    Failed(CallFailed),
}

impl From<PostError> for NotTaken<NoCall> {
    #[cold]
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NoRoom,
            PostError::Refused(call) => Self::Refused(NoCall::Failed(call)),
            PostError::Failed(call) => Self::Failed(NoCall::Failed(call)),
        }
    }
}

impl State {
    #[inline]
    fn from_u8(state: u8) -> Self {
        match state {
            0 => Self::Connecting,
            1 => Self::Open,
            2 => Self::Failed,
            3 => Self::Broken,
            _ => Self::Closed,
        }
    }
}
