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
//! Posting changes one counter, and polling one other; nothing is locked. Threads that post to one
//! connection at the same time may reach its send queue in another order than they were counted in.
//! Then the slots of threads that are in the middle of posting may come back too early, which
//! [`CONCURRENT_POSTS`] entries more in each queue make room for: one for each thread (a flush of more
//! than 2 GiB counts as several).
//!
//! While no completion is outstanding, the last free slot is kept for an operation that gives one: if
//! every slot were taken by operations that give none, no slot would ever come back.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Queue, Result};

/// How many threads may be in the middle of posting to one connection before a completion could be
/// lost, if the connection fails at that moment with all its slots in use.
pub(crate) const CONCURRENT_POSTS: u32 = 64;

/// The slots of one connection.
#[derive(Debug)]
pub(crate) struct Credits {
    state: AtomicU8,
    send: SendSlots,
    receive: RecvSlots,
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
    /// This side or the peer has closed the connection, or it was never made.
    Closed,
}

impl Credits {
    /// Slots for `sends` operations, once the connection is [`open`](Self::open), and for `receives`.
    pub(crate) fn new(sends: u32, receives: u32) -> Self {
        Self {
            state: AtomicU8::new(State::Connecting as u8),
            send: SendSlots::new(sends),
            receive: RecvSlots::new(receives, Queue::Receive),
        }
    }

    /// From now on operations may be posted, unless the connection has ended already.
    ///
    /// `open` and `end` each write one of `state` and `limit` and look at the other one, so that all of
    /// it is in one order (`SeqCst`): whichever comes last sees the other.
    pub(crate) fn open(&self) {
        let (from, to) = (State::Connecting as u8, State::Open as u8);
        if self
            .state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
        {
            self.send.limit.store(self.send.depth, Ordering::SeqCst);
            // It may have ended in between.
            if self.state.load(Ordering::SeqCst) != to {
                self.send.limit.store(0, Ordering::SeqCst);
            }
        }
    }

    /// Nothing may be posted any more. The first end counts. Returns what the state was.
    pub(crate) fn end(&self, state: State) -> State {
        let ended = |now: u8| (now <= State::Open as u8).then_some(state as u8);
        let before = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended);
        self.send.limit.store(0, Ordering::SeqCst);
        self.receive.limit.store(0, Ordering::SeqCst);
        State::from_u8(before.unwrap_or_else(|now| now))
    }

    /// The slots of the connection's own receive queue.
    pub(crate) fn receive(&self) -> &RecvSlots {
        &self.receive
    }

    /// Takes a slot of the receive queue.
    #[inline]
    pub(crate) fn reserve_receive(&self) -> Result<()> {
        self.receive.reserve().map_err(|full| match self.state() {
            State::Connecting | State::Open => full,
            _ => self.refusal(0),
        })
    }

    /// Takes `count` slots of the send queue for one operation.
    #[inline]
    pub(crate) fn reserve_send(&self, count: u32, signaled: bool) -> Result<Reservation> {
        self.send
            .reserve(count, signaled)
            .ok_or_else(|| self.refusal(count))
    }

    /// Gives the slots of an operation back that the provider refused for want of room.
    #[cold]
    pub(crate) fn give_back(&self, reservation: Reservation) -> Error {
        if !self.send.give_back(reservation) {
            // Other threads posted in between, and the count of what is to complete is off by one.
            log::error!(
                "the provider's send queue is smaller than it said: the connection is given up"
            );
            self.end(State::Failed);
        }
        Error::QueueFull {
            queue: Queue::Send,
            depth: self.send.depth,
        }
    }

    /// Notes that the completions of `count` operations were polled.
    #[inline]
    pub(crate) fn polled_sends(&self, count: u32) {
        self.send.polled.fetch_add(count, Ordering::Release);
    }

    fn state(&self) -> State {
        State::from_u8(self.state.load(Ordering::Acquire))
    }

    #[cold]
    fn refusal(&self, count: u32) -> Error {
        match self.state() {
            State::Open if count > self.send.depth => Error::invalid(format!(
                "the operation takes {count} slots of the send queue, which has {}: split it, or ask \
                 for more with ConnCfg::set_sq_size",
                self.send.depth
            )),
            State::Open => Error::QueueFull {
                queue: Queue::Send,
                depth: self.send.depth,
            },
            State::Connecting => Error::NotConnected(
                "the connection is not established yet: wait for ConnEvent::Established with \
                 Conn::next_event",
            ),
            State::Failed => Error::NotConnected(
                "an operation on the connection has failed, which ended it: poll the remaining \
                 completions, disconnect, and connect again",
            ),
            State::Closed => Error::NotConnected("the connection is closed"),
        }
    }
}

impl State {
    fn from_u8(state: u8) -> Self {
        [Self::Connecting, Self::Open, Self::Failed]
            .into_iter()
            .find(|&known| known as u8 == state)
            .unwrap_or(Self::Closed)
    }
}

/// A receive queue: each receive that was posted completes, once.
#[derive(Debug)]
pub(crate) struct RecvSlots {
    queue: Queue,
    depth: u32,
    /// `depth` while receives may be posted, else 0.
    limit: AtomicU32,
    /// Posted and not polled.
    owed: AtomicU32,
}

impl RecvSlots {
    pub(crate) fn new(depth: u32, queue: Queue) -> Self {
        Self {
            queue,
            depth,
            limit: AtomicU32::new(depth),
            owed: AtomicU32::new(0),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Takes a slot.
    #[inline]
    pub(crate) fn reserve(&self) -> Result<()> {
        let limit = self.limit.load(Ordering::Acquire);
        let before = self.owed.fetch_add(1, Ordering::Relaxed);
        if before < limit {
            return Ok(());
        }
        self.owed.fetch_sub(1, Ordering::Relaxed);
        Err(self.full())
    }

    /// Notes that the completions of `count` receives were polled, or that the provider refused them.
    #[inline]
    pub(crate) fn give_back(&self, count: u32) {
        // More can be given back than is owed: see `Cq`, of failures that cannot be told apart.
        let owed = |owed: u32| Some(owed.saturating_sub(count));
        let _ = self
            .owed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, owed);
    }

    #[cold]
    pub(crate) fn full(&self) -> Error {
        Error::QueueFull {
            queue: self.queue,
            depth: self.depth,
        }
    }
}

/// The send queue, as a provider counts it.
///
/// `posted` counts all operations (low half) and those that will give a completion (high half). The
/// n-th of the latter notes in `marks[n]` how many operations there were up to it. As completions come
/// in the order of posting, `polled` of them say that everything up to `marks[polled − 1]` is done.
#[derive(Debug)]
struct SendSlots {
    depth: u32,
    /// `depth` while operations may be posted, else 0.
    limit: AtomicU32,
    posted: AtomicU64,
    polled: AtomicU32,
    /// A power of two of them, more than can be outstanding.
    marks: Box<[AtomicU32]>,
}

/// Slots that were taken, to give them back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    before: u64,
    after: u64,
}

impl SendSlots {
    fn new(depth: u32) -> Self {
        let marks = depth.saturating_add(CONCURRENT_POSTS).next_power_of_two();
        Self {
            depth,
            limit: AtomicU32::new(0),
            posted: AtomicU64::new(0),
            polled: AtomicU32::new(0),
            marks: (0..marks).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    #[inline]
    fn reserve(&self, count: u32, signaled: bool) -> Option<Reservation> {
        // `posted` is read first. If it is still the same in the exchange, nobody has posted since, and
        // so nobody has reused the mark that is read below.
        let mut before = self.posted.load(Ordering::Relaxed);
        loop {
            let (nth, total) = ((before >> 32) as u32, before as u32);
            let polled = self.polled.load(Ordering::Acquire);
            let used = total.wrapping_sub(self.done(polled));
            let keep_one = !signaled && nth == polled;
            let needed = count.saturating_add(u32::from(keep_one));
            if used > self.limit.load(Ordering::Acquire).checked_sub(needed)? {
                let now = self.posted.load(Ordering::Relaxed);
                if now == before {
                    return None;
                }
                before = now;
                continue;
            }
            let total = total.wrapping_add(count);
            let signaled_now = nth.wrapping_add(u32::from(signaled));
            let after = u64::from(signaled_now) << 32 | u64::from(total);
            let exchanged = self.posted.compare_exchange_weak(
                before,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => {
                    if signaled {
                        self.mark(nth).store(total, Ordering::Release);
                    }
                    return Some(Reservation { before, after });
                }
                Err(now) => before = now,
            }
        }
    }

    /// Up to where, in `posted`'s count, everything is done if `polled` completions were polled.
    #[inline]
    fn done(&self, polled: u32) -> u32 {
        self.mark(polled.wrapping_sub(1)).load(Ordering::Acquire)
    }

    /// The mark of the n-th operation with a completion.
    #[inline]
    fn mark(&self, n: u32) -> &AtomicU32 {
        // The length is a power of two, so that the index is right also when `n` wraps.
        &self.marks[n as usize & (self.marks.len() - 1)]
    }

    /// Whether that was still possible. Operations without a completion need no giving back: their
    /// slots come back with the next one that has.
    fn give_back(&self, Reservation { before, after }: Reservation) -> bool {
        let exchanged =
            self.posted
                .compare_exchange(after, before, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.is_ok() || before >> 32 == after >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn open(depth: u32) -> Credits {
        let credits = Credits::new(depth, 0);
        credits.open();
        credits
    }

    fn fill(credits: &Credits, signaled: bool) -> u32 {
        (0..)
            .take_while(|_| credits.reserve_send(1, signaled).is_ok())
            .count() as u32
    }

    #[test]
    fn a_queue_takes_as_many_as_it_has_slots() {
        for depth in [0, 1, 10, 63, 64, 1000] {
            assert_eq!(fill(&open(depth), true), depth);
            let credits = open(depth);
            let kept = depth.min(1);
            assert_eq!(fill(&credits, false), depth - kept);
            assert_eq!(fill(&credits, true), kept, "one is kept for a completion");
        }
    }

    #[test]
    fn a_polled_completion_frees_its_slot_and_all_before_it() {
        let credits = open(4);
        let reserve = |signaled| credits.reserve_send(1, signaled).map(drop);
        reserve(false).expect("slot 1");
        reserve(false).expect("slot 2");
        reserve(true).expect("slot 3");
        reserve(false).expect("slot 4");
        let error = reserve(true).expect_err("full");
        assert!(
            matches!(
                error,
                Error::QueueFull {
                    queue: Queue::Send,
                    depth: 4
                }
            ),
            "{error:?}"
        );
        credits.polled_sends(1);
        assert_eq!(fill(&credits, true), 3, "slot 4 is still taken");
    }

    #[test]
    fn operations_without_a_completion_are_not_freed_by_anything_else() {
        let credits = open(3);
        assert_eq!(fill(&credits, false), 2);
        credits.polled_sends(0);
        assert_eq!(fill(&credits, false), 0);
        assert_eq!(fill(&credits, true), 1);
        credits.polled_sends(1);
        assert_eq!(fill(&credits, false), 2, "they all came back");
    }

    #[test]
    fn an_operation_of_several_requests_takes_several_slots() {
        let credits = open(4);
        credits.reserve_send(3, true).expect("three slots");
        credits.reserve_send(2, true).expect_err("only one is left");
        let error = credits
            .reserve_send(5, true)
            .expect_err("more than there are");
        assert!(
            matches!(error, Error::InvalidArgument(_)),
            "polling does not help: {error:?}"
        );
        credits.polled_sends(1);
        credits.reserve_send(4, true).expect("all four");
    }

    #[test]
    fn counters_may_wrap() {
        let credits = open(5);
        let near_the_end = u32::MAX - 7;
        credits.send.posted.store(
            u64::from(near_the_end) << 32 | u64::from(near_the_end),
            Ordering::Relaxed,
        );
        credits.send.polled.store(near_the_end, Ordering::Relaxed);
        credits
            .send
            .mark(near_the_end - 1)
            .store(near_the_end, Ordering::Relaxed);
        for _ in 0..100 {
            assert_eq!(fill(&credits, true), 5);
            credits.polled_sends(5);
        }
    }

    #[test]
    fn what_the_provider_refused_comes_back() {
        let credits = open(2);
        let refused = credits.reserve_send(1, true).expect("a slot");
        assert!(matches!(
            credits.give_back(refused),
            Error::QueueFull { .. }
        ));
        assert_eq!(fill(&credits, true), 2);
    }

    #[test]
    fn nothing_is_posted_before_and_after_the_connection() {
        let text = |credits: &Credits| match credits.reserve_send(1, true) {
            Err(Error::NotConnected(text)) => text,
            other => panic!("{other:?}"),
        };
        let credits = Credits::new(10, 0);
        assert!(text(&credits).contains("not established"));
        credits.open();
        credits.reserve_send(1, true).expect("open");
        credits.end(State::Failed);
        credits.end(State::Closed);
        credits.open();
        assert!(text(&credits).contains("has failed"));
    }

    /// A connection that ends while it is being opened stays closed. The two threads meet at each one.
    #[test]
    fn opening_and_ending_at_the_same_time() {
        const ROUNDS: usize = 100_000;
        let all: Vec<_> = (0..ROUNDS)
            .map(|_| (Credits::new(1, 0), AtomicU8::new(0)))
            .collect();
        let meet = |arrived: &AtomicU8| {
            arrived.fetch_add(1, Ordering::SeqCst);
            for spins in 1u32.. {
                if arrived.load(Ordering::SeqCst) == 2 {
                    break;
                }
                match spins % 1000 {
                    0 => thread::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                all.iter().for_each(|(credits, arrived)| {
                    meet(arrived);
                    credits.open();
                })
            });
            scope.spawn(|| {
                all.iter().for_each(|(credits, arrived)| {
                    meet(arrived);
                    credits.end(State::Closed);
                })
            });
        });
        let open = all
            .iter()
            .filter(|(credits, _)| credits.reserve_send(1, true).is_ok())
            .count();
        assert_eq!(open, 0, "of {ROUNDS} connections");
    }

    #[test]
    fn a_receive_queue_takes_as_many_as_it_has_slots() {
        let credits = Credits::new(1, 3);
        for _ in 0..10 {
            for _ in 0..3 {
                credits
                    .reserve_receive()
                    .expect("also before the connection is there");
            }
            let error = credits.reserve_receive().expect_err("full");
            assert!(
                matches!(
                    error,
                    Error::QueueFull {
                        queue: Queue::Receive,
                        depth: 3
                    }
                ),
                "{error:?}"
            );
            credits.receive().give_back(3);
        }
        assert_eq!(credits.end(State::Closed), State::Connecting);
        assert!(matches!(
            credits.reserve_receive(),
            Err(Error::NotConnected(_))
        ));
    }

    /// The promise under contention: never more than the depth is outstanding, and nothing gets stuck.
    #[test]
    fn threads_share_the_slots() {
        const THREADS: u32 = 4;
        const ROUNDS: u32 = 20_000;
        const DEPTH: u32 = 2;
        let credits = open(DEPTH);
        let (barrier, in_flight) = (Barrier::new(THREADS as usize), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    let mut done = 0;
                    while done < ROUNDS {
                        if credits.reserve_send(1, true).is_err() {
                            thread::yield_now();
                            continue;
                        }
                        let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= DEPTH, "{now} in flight");
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        credits.polled_sends(1);
                        done += 1;
                    }
                });
            }
        });
        assert_eq!(fill(&credits, true), DEPTH, "all slots came back");
    }
}
