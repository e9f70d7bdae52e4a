//! [`Shared`]: a connection of a reactor, which its handles, its operations and the driver share.
//!
//! Torn down with the last handle and the last operation: the reactor forgets it; the queue pair
//! is destroyed, after which no device uses the memory of abandoned operations; this memory goes
//! back to its pools. If the queue pair cannot be destroyed, the memory is leaked.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Context;

use rpma::{
    ConnEvent, CqKind, Error, Failure, NotConnected, Posted, Result, Wc, WcFailure, WcStatus,
};

use super::memory::Held;
use super::queue::Queue;
use crate::clock::now;
use crate::driver::{Due, Handle, Member, Timer};
use crate::error::{once_more, reason, without_number};
use crate::inbox::Receives;
use crate::primitives::Mutex;
use crate::slots::{Abandoned, Look, PART, RECEIVE, Settled, Slots};
use crate::waiters::Waiters;

/// Results that one connection gives without a sleep, before its task lets others run.
const TURN: u32 = 64;

pub(crate) struct Shared {
    /// `None` when it is being dropped.
    conn: Option<rpma::Conn>,
    main: Queue,
    receive: Option<Queue>,
    slots: Slots<Held, WcFailure, Option<Posted>>,
    /// Slots of the send queue that operations in flight take.
    used: AtomicU32,
    depth: u32,
    /// Results since a task has slept.
    streak: AtomicU32,
    /// Tasks that wait for room, or until nothing is in flight.
    room: Waiters,
    /// Tasks that wait until it is established, or for its end.
    closed: Waiters,
    is_established: AtomicBool,
    /// Something has failed, and the connection is disconnected.
    has_failed: AtomicBool,
    /// An operation has failed.
    has_lost: AtomicBool,
    /// The device reports no more completions.
    given_up: OnceLock<Error>,
    receives: Option<Receives>,
    keep_alive: Mutex<Option<Timer>>,
    key: u64,
    reactor: Arc<Handle>,
}

impl Shared {
    /// Makes it of a connection that was asked for, or accepted, with the key of its queues. The
    /// reactor gives it events from now on.
    pub(crate) fn new(
        conn: rpma::Conn,
        reactor: &Arc<Handle>,
        key: u64,
        depth: u32,
        receives: Option<Receives>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            main: Queue::new(conn.get_cq().clone()),
            receive: conn.get_rcq().cloned().map(Queue::new),
            conn: Some(conn),
            // As many again for those that are complete and not awaited.
            slots: Slots::new(depth.saturating_mul(2)),
            used: AtomicU32::new(0),
            depth,
            streak: AtomicU32::new(0),
            room: Waiters::default(),
            closed: Waiters::default(),
            is_established: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            given_up: OnceLock::new(),
            receives,
            keep_alive: Mutex::default(),
            key,
            reactor: Arc::clone(reactor),
        });
        let member: Weak<Self> = Arc::downgrade(&shared);
        reactor.replace(key, member);
        shared
    }

    #[inline]
    pub(crate) fn conn(&self) -> &rpma::Conn {
        // Taken by the drop alone.
        self.conn.as_ref().expect("the connection is there")
    }

    pub(crate) fn reactor(&self) -> &Arc<Handle> {
        &self.reactor
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn room(&self) -> &Waiters {
        &self.room
    }

    pub(crate) fn closed(&self) -> &Waiters {
        &self.closed
    }

    pub(crate) fn receives(&self) -> Option<&Receives> {
        self.receives.as_ref()
    }

    pub(crate) fn queue(&self, kind: CqKind) -> &Queue {
        match (kind, &self.receive) {
            (CqKind::Receive, Some(queue)) => queue,
            _ => &self.main,
        }
    }

    /// The queue in which receives complete.
    pub(crate) fn receive_queue(&self) -> &Queue {
        self.queue(CqKind::Receive)
    }

    /// Slots of the send queue that are taken. An exchange: see [`Waiters::wait`].
    pub(crate) fn used(&self) -> u32 {
        self.used.fetch_add(0, Ordering::AcqRel)
    }

    /// A slot for an operation that takes `weight` slots of the send queue.
    #[inline]
    pub(crate) fn begin(&self, weight: u32) -> Option<u64> {
        let number = self.slots.begin(weight)?;
        self.used.fetch_add(weight, Ordering::AcqRel);
        Some(number)
    }

    #[inline]
    fn give_room(&self, weight: u32) {
        self.used.fetch_sub(weight, Ordering::AcqRel);
        if self.room.any() {
            self.room.wake_all();
        }
    }

    /// An operation was not posted. The device may have it after some errors: then its slot keeps
    /// the memory, which is returned otherwise.
    #[cold]
    pub(crate) fn refused(
        &self,
        number: u64,
        weight: u32,
        error: &Error,
        memory: impl FnOnce() -> Option<Held>,
    ) -> bool {
        if !matches!(error, Error::Provider { .. }) {
            self.slots.cancel(number);
            self.give_room(weight);
            return true;
        }
        // If the device does not have it, it never completes, so its room is free at once.
        self.main.arming().sleep();
        match self.slots.abandon_unsure(number, memory()) {
            Abandoned::GoesOn { .. } => self.give_room(weight),
            Abandoned::Complete(memory) => {
                self.main.arming().wake();
                drop(memory);
            }
        }
        self.failed();
        false
    }

    /// Settles a completion.
    #[inline]
    pub(super) fn settle(&self, wc: &Wc) {
        let number = wc.wr_id();
        if number & (RECEIVE | PART) != 0 {
            return self.settle_unusual(wc, number);
        }
        let settled = match wc.result() {
            Ok(_) => self.slots.settle(number, Ok(())),
            Err(failure) => self.settle_failed(number, failure, wc.posted()),
        };
        if let Some(settled) = settled {
            self.settled(settled);
        }
    }

    #[inline]
    fn settled(&self, settled: Settled) {
        if settled.slept {
            self.main.arming().wake();
        }
        self.give_room(settled.weight);
    }

    /// An owner calls it before the post: several requests will have the operation's number.
    pub(crate) fn has_parts(&self, number: u64) {
        self.slots.has_parts(number);
    }

    /// An owner calls it after the post: the last request with the operation's number.
    pub(crate) fn note_last(&self, number: u64, last: Posted) {
        if let Some(settled) = self.slots.note_last(number, Some(last)) {
            self.settled(settled);
        }
    }

    #[cold]
    fn settle_failed(
        &self,
        number: u64,
        failure: WcFailure,
        posted: Option<Posted>,
    ) -> Option<Settled> {
        self.has_lost.store(true, Ordering::SeqCst);
        let failure = failure.without_op_context();
        let settled = self.slots.settle_failed(number, failure, posted);
        self.failed();
        settled
    }

    #[cold]
    fn settle_unusual(&self, wc: &Wc, number: u64) {
        if number & RECEIVE != 0 {
            if let Some(receives) = &self.receives {
                receives.settle(wc, (number & !RECEIVE) as u32);
            }
            if wc.result().is_err() {
                self.failed();
            }
        } else if let Err(failure) = wc.result() {
            self.has_lost.store(true, Ordering::SeqCst);
            let failure = failure.without_op_context();
            self.slots.note_failure(number & !PART, failure);
            self.failed();
        }
    }

    /// A request, or a call that posts, has failed: the queue pair works no more, and the peer may
    /// be one that the connection manager still takes for alive. Or the peer has ended the
    /// connection. Ends it on this side.
    #[cold]
    pub(crate) fn failed(&self) {
        if self.has_failed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.conn().disconnect() {
            log::debug!("{error}");
        }
        self.room.wake_all();
        self.closed.wake_all();
        if let Some(receives) = &self.receives {
            receives.wake_all();
        }
    }

    /// Whether an operation has failed.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::SeqCst)
    }

    /// Why the connection failed: not that requests were flushed, which is what its end does.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.cause_that(|_| true)
    }

    /// As [`cause`](Self::cause), of a connection whose end no event tells soon. (A keep-alive's
    /// does.) Until the connection is disconnected, its operations tell.
    pub(crate) fn cause_without_event(&self) -> Option<Error> {
        if !self.has_failed.load(Ordering::SeqCst) {
            return None;
        }
        self.cause_that(|cause| !matches!(cause, Failure::Silent { .. } | Failure::Probe { .. }))
    }

    /// As [`rpma::Conn::failure`].
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.conn().failure().map(without_number)
    }

    fn cause_that(&self, is_it: impl FnOnce(&Failure) -> bool) -> Option<Error> {
        let cause = self.failure().filter(|failure| !failure.is_flushed())?;
        is_it(&cause).then(|| cause.into())
    }

    /// For an owner that has not slept: polls until its own completion comes, which has succeeded.
    /// `false` is everything else: [`sleep`](Self::sleep), which reports the error of a poll.
    #[inline]
    pub(crate) fn poll_own(&self, number: u64) -> bool {
        let streak = self.streak.load(Ordering::Relaxed);
        if streak >= TURN {
            return false;
        }
        self.streak.store(streak + 1, Ordering::Relaxed);
        let mut wc = Wc::default();
        self.main.poll_one(self, &mut wc).is_ok_and(|came| came)
            && (self.finish_own(number, &wc) || self.poll_past(number, &wc))
    }

    /// For an owner that has slept: whether its operation has succeeded. `false` is everything
    /// else.
    #[inline(never)]
    pub(crate) fn poll_woken(&self, number: u64) -> bool {
        self.slots.finish_woken(number)
    }

    /// As [`poll_own`](Self::poll_own), after the completion of another operation.
    #[cold]
    #[inline(never)]
    fn poll_past(&self, number: u64, other: &Wc) -> bool {
        let mut wc = *other;
        loop {
            self.settle(&wc);
            // Another thread may have polled it.
            let is_complete = self.slots.look(number) == Look::Complete;
            if is_complete || !self.main.poll_one(self, &mut wc).is_ok_and(|came| came) {
                return false;
            }
            if self.finish_own(number, &wc) {
                return true;
            }
        }
    }

    /// Finishes the operation with this number, if this is its completion and it has succeeded.
    #[inline(always)]
    fn finish_own(&self, number: u64, wc: &Wc) -> bool {
        let is_own = wc.wr_id() == number && wc.status() == WcStatus::SUCCESS;
        if is_own {
            self.give_room(self.slots.finish_own(number));
        }
        is_own
    }

    /// A result is there without a sleep: whether the task lets others run before it gets it.
    pub(crate) fn lets_others_run(&self, cx: &Context<'_>) -> bool {
        self.streak.fetch_add(1, Ordering::Relaxed);
        self.ends_turn(cx)
    }

    fn ends_turn(&self, cx: &Context<'_>) -> bool {
        if self.streak.load(Ordering::Relaxed) < TURN {
            return false;
        }
        self.streak.store(0, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        true
    }

    /// For an operation that is not finished yet: whether it sleeps now, or lets others run.
    /// `false`: it is complete. `parked` is the owner's: whether it has slept.
    pub(crate) fn sleep(
        &self,
        number: u64,
        parked: &mut bool,
        cx: &mut Context<'_>,
    ) -> Result<bool, Box<Error>> {
        if !*parked && self.ends_turn(cx) {
            return Ok(true);
        }
        if self.slots.look(number) == Look::Complete {
            return Ok(false);
        }
        let was_parked = std::mem::replace(parked, true);
        if !was_parked {
            self.main.arming().sleep();
        }
        if !self.slots.park(number, cx.waker()) {
            // If it was parked the settlement has counted it out.
            if !was_parked {
                self.main.arming().wake();
            }
            return Ok(false);
        }
        self.streak.store(0, Ordering::Relaxed);
        // A later completion wakes it.
        let armed = self.main.arm_and_drain(self);
        if self.slots.look(number) == Look::Complete {
            return Ok(false);
        }
        armed?;
        self.check()?;
        Ok(true)
    }

    /// After the caller has left its waker: whether anything can still wake it.
    pub(crate) fn check(&self) -> Result<()> {
        match self.given_up() {
            Some(error) => Err(error),
            None => self.reactor.check_driver(),
        }
    }

    /// For an operation that is complete.
    pub(crate) fn finish(&self, number: u64, parked: bool) -> Awaited {
        match self.slots.finish(number, parked) {
            Ok(()) => Awaited::Succeeded,
            Err(failure) => Awaited::Failed(reason(failure, self.conn())),
        }
    }

    /// An owner does not await its operation any more: the slot keeps the memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn abandon(&self, number: u64, memory: Option<Held>) {
        // So the queue stays armed for it.
        self.main.arming().sleep();
        let memory = match self.slots.abandon(number, memory) {
            Abandoned::GoesOn { slept: true } => {
                self.main.arming().wake();
                None
            }
            Abandoned::GoesOn { slept: false } => {
                if let Err(error) = self.main.arm_and_drain(self) {
                    log::error!("{error}; the memory of an operation is free with its connection");
                }
                None
            }
            Abandoned::Complete(memory) => {
                self.main.arming().wake();
                memory
            }
        };
        drop(memory);
    }

    /// Takes the events of the connection.
    pub(crate) fn take_events(self: &Arc<Self>) {
        loop {
            match self.conn().next_event() {
                Ok(ConnEvent::Established) => self.established(),
                Ok(event) if event.is_end() => self.ended(),
                Ok(_notice) => {}
                Err(Error::NoEvent) => return,
                Err(error) => {
                    log::error!("{error}");
                    return self.give_up(error);
                }
            }
        }
    }

    /// Its event of that name has been taken.
    pub(crate) fn established(self: &Arc<Self>) {
        self.is_established.store(true, Ordering::SeqCst);
        // From now on the driver calls it.
        Arc::clone(self).keep_alive();
        self.closed.wake_all();
    }

    fn ended(&self) {
        // Operations in flight are flushed, and complete.
        if let Err(error) = self.conn().disconnect() {
            log::debug!("{error}");
        }
        self.look_at_queues();
        self.wake_everybody();
    }

    /// As after an event of each.
    fn look_at_queues(&self) {
        self.main.event(self);
        if let Some(receive) = &self.receive {
            receive.event(self);
        }
    }

    pub(crate) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::SeqCst)
    }

    /// The event with which it ended.
    pub(crate) fn end(&self) -> Option<&ConnEvent> {
        self.conn().ended()
    }

    /// Whether something is in flight that never completes. On iWARP these are the operations and
    /// receives that were posted after the end, before this side knew it.
    fn is_stuck(&self) -> bool {
        let is_over = || self.conn().quiet_from().is_some_and(|quiet| now() >= quiet);
        let is_posted = |receives: &Receives| receives.is_one_posted();
        self.reactor.peer().is_iwarp()
            && is_over()
            && (self.used() > 0 || self.receives.as_ref().is_some_and(is_posted))
    }

    /// Whether the rest of the receives never completes, after the end.
    pub(crate) fn has_stuck_receives(&self) -> bool {
        matches!(self.given_up.get(), Some(Error::Ended(_)))
    }

    /// No operation completes any more: waits fail, and the slots keep the memory.
    pub(crate) fn give_up(&self, error: Error) {
        if self.given_up.set(error).is_ok() {
            self.wake_everybody();
        }
    }

    /// Why nothing completes any more.
    pub(crate) fn given_up(&self) -> Option<Error> {
        self.given_up.get().map(once_more)
    }
}

impl Member for Shared {
    fn event(self: Arc<Self>) {
        self.take_events();
    }

    fn completed(&self, of: CqKind) {
        self.queue(of).event(self);
    }

    fn channel_failed(&self, error: &Error) {
        self.give_up(once_more(error));
    }

    fn wake_everybody(&self) {
        self.slots.wake_all();
        self.room.wake_all();
        self.closed.wake_all();
        if let Some(receives) = &self.receives {
            receives.wake_all();
        }
    }

    /// Whether the device has given the queue pair up, too.
    fn look(self: Arc<Self>) {
        self.look_at_queues();
        if self.conn().failure() == Some(Failure::Device) {
            self.give_up(Error::NotConnected(NotConnected::GivenUp));
        } else if self.is_stuck() {
            let ended = || Error::NotConnected(NotConnected::GivenUp);
            let event = self.end().cloned().map(Box::new).map(Error::Ended);
            self.give_up(event.unwrap_or_else(ended));
        }
    }

    fn keep_alive(self: Arc<Self>) {
        self.look_at_queues();
        match self.conn().keep_alive() {
            Ok(None) => {}
            Ok(Some(at)) => {
                let this: Weak<Self> = Arc::downgrade(&self);
                let due = Due::KeepAlive(this);
                *self.keep_alive.lock() = Some(self.reactor.set_timer(at, due));
            }
            Err(_ended) => self.take_events(),
        }
    }
}

/// The result of an operation, without its memory.
#[derive(Debug)]
pub(crate) enum Awaited {
    Succeeded,
    /// It is complete.
    Failed(Error),
    /// It may go on, and its completion wakes no task.
    Unknown(Error),
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
        if let Some(timer) = self.keep_alive.lock().take() {
            self.reactor.take_timer(timer);
        }
        let Some(conn) = self.conn.take() else {
            return;
        };
        self.reactor.tell_no_more(conn.as_fd());
        if let Err(error) = conn.delete() {
            // The device may still use the memory.
            log::error!("{error}; the memory of its operations is leaked");
            self.slots.leak();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("conn", &self.conn)
            .finish_non_exhaustive()
    }
}
