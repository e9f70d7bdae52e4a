//! [`Shared`]: a connection of a reactor, which its handles, its operations and the driver share.
//!
//! Torn down with the last handle and the last operation: the reactor forgets it; the queue pair
//! is destroyed, after which no device uses the memory of abandoned operations; this memory goes
//! back to its pools. If the queue pair cannot be destroyed, the memory is leaked.

use std::fmt;
use std::mem;
use std::os::fd::AsFd;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::task::{Context, Waker};

use rpma::sync::{Mutex as FabricMutex, MutexGuard};
use rpma::{
    ConnEvent, CqKind, Error, Failure, NotConnected, Posted, Result, Wc, WcFailure, WcStatus,
};

use super::memory::Held;
use super::queue::Queue;
use crate::clock::now;
use crate::driver::{Due, Handle, Member, Timer};
use crate::error::{once_more, reason, without_number};
use crate::inbox::Receives;
use crate::ops::{Done, Go, Ops};
use crate::primitives::{Mutex, wake};
use crate::tasks::Ticket;
use crate::turn::Turn;
use crate::waiters::Waiters;

type Locked<'a> = MutexGuard<'a, Ops<Option<Held>, WcFailure>>;

pub(crate) struct Shared {
    /// `None` when it is being dropped.
    conn: Option<rpma::Conn>,
    main: Queue,
    receive: Option<Queue>,
    /// Held across polls, for the order of completions, and never while a task waits.
    ops: FabricMutex<Ops<Option<Held>, WcFailure>>,
    done: Done,
    /// The number after that of the last operation.
    posted: AtomicU64,
    depth: u32,
    turn: Turn,
    /// Tasks that wait until it is established, or for its end.
    closed: Waiters,
    is_established: AtomicBool,
    /// Something has failed, and the connection is disconnected.
    has_failed: AtomicBool,
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
            ops: FabricMutex::new(Ops::new(depth)),
            done: Done::new(),
            posted: AtomicU64::new(0),
            depth,
            turn: Turn::default(),
            closed: Waiters::default(),
            is_established: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
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

    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
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

    pub(crate) fn receive_queue(&self) -> &Queue {
        self.queue(CqKind::Receive)
    }

    #[inline]
    fn ops(&self) -> Locked<'_> {
        // A panic under it, in the clone of a waker, leaves them whole.
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn posted(&self, posted: Posted) -> u64 {
        let number = posted.number();
        self.posted.fetch_max(number + 1, Ordering::AcqRel);
        number
    }

    /// An operation was not posted, but the device may have it: its memory is kept until no device
    /// can use it.
    #[cold]
    pub(crate) fn refused(&self, memory: Option<Held>) {
        self.ops().keep(memory);
        self.failed();
    }

    /// Whether all operations that were posted are complete.
    fn is_idle(&self, ops: &Ops<Option<Held>, WcFailure>) -> bool {
        ops.done() >= self.posted.load(Ordering::Acquire)
    }

    /// Whether a wait for room is over. If not, its task leaves its waker.
    pub(super) fn has_room(&self, wanted: Room, ticket: &mut Ticket, waker: &Waker) -> bool {
        let mut ops = self.ops();
        let old = match wanted {
            Room::Slots(slots) if self.conn().free_slots() >= slots => return true,
            Room::Slots(slots) => ops.park_for_room(ticket, slots, waker),
            Room::Idle if self.is_idle(&ops) => return true,
            Room::Idle => {
                let last = self.posted.load(Ordering::Acquire) - 1;
                ops.park(ticket, last, waker)
            }
        };
        drop(ops);
        drop(old);
        false
    }

    /// A wait for room is over, or given up. If there is room, the next one goes on.
    pub(super) fn leave_room(&self, wanted: Room, ticket: &mut Ticket) {
        let mut ops = self.ops();
        let left = match wanted {
            Room::Slots(_) => ops.unpark_for_room(ticket),
            Room::Idle => ops.unpark(ticket),
        };
        let next = ops.go_for_room(|| self.conn().free_slots());
        drop(ops);
        drop(left);
        next.into_iter().for_each(wake);
    }

    #[inline(always)]
    pub(super) fn poll(&self, queue: &Queue, wcs: &mut [Wc]) -> Result<Polled, Box<Error>> {
        let ops = self.ops();
        match queue.cq().get_wc(wcs) {
            Ok(0) => Ok(Polled {
                count: 0,
                is_waited: ops.is_waited(),
            }),
            Ok(count) => Ok(self.settle(ops, &wcs[..count])),
            Err(error) => {
                drop(ops);
                Err(self.poll_failed(error))
            }
        }
    }

    /// Settles completions that were polled under the lock, in their order.
    fn settle(&self, mut ops: Locked<'_>, wcs: &[Wc]) -> Polled {
        let mut is_usual = true;
        for wc in wcs {
            match wc.posted() {
                Some(posted) if wc.status() == WcStatus::SUCCESS => {
                    ops.note(posted.number(), Ok(()));
                }
                posted => {
                    is_usual = false;
                    if let (Some(posted), Err(failure)) = (posted, wc.result()) {
                        ops.note(posted.number(), Err(failure.without_op_context()));
                    }
                }
            }
        }
        self.done.publish(&ops);
        // Most often one task waits.
        let woken = ops.go_task();
        let (is_waited, goes) = (ops.is_waited(), ops.goes());
        drop(ops);
        if !is_usual {
            self.settle_unusual(wcs);
        }
        if let Some(waker) = woken {
            wake(waker);
        }
        if goes {
            self.go();
        }
        let count = wcs.len() as u32;
        Polled { count, is_waited }
    }

    /// A poll that failed may have lost a completion, and a task that waits for that would wait for
    /// ever.
    #[cold]
    fn poll_failed(&self, error: Error) -> Box<Error> {
        log::error!("{error}");
        self.give_up(once_more(&error));
        Box::new(error)
    }

    /// Settles receives, and ends the connection after a failure.
    #[cold]
    fn settle_unusual(&self, wcs: &[Wc]) {
        for wc in wcs {
            if let (None, Some(receives)) = (wc.posted(), &self.receives) {
                receives.settle(wc);
            }
            if wc.result().is_err() {
                self.failed();
            }
        }
    }

    /// Wakes the tasks that can go on, and frees the memory of operations that are complete.
    #[inline(never)]
    fn go(&self) {
        let room = self.ops().go_for_room(|| self.conn().free_slots());
        room.into_iter().for_each(wake);
        loop {
            let next = self.ops().go();
            match next {
                Some(Go::Wake(waker)) => wake(waker),
                // A task may wait for this memory.
                Some(Go::Free(memory)) => drop(memory),
                None => return,
            }
        }
    }

    /// Something else has changed.
    fn wake_operations(&self) {
        let mut walk = None;
        loop {
            let next = self.ops().go_all(&mut walk);
            match next {
                Some(waker) => wake(waker),
                None => return,
            }
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
        // Tasks that wait for room.
        self.wake_everybody();
    }

    /// Whether an operation has failed.
    pub(crate) fn has_lost(&self) -> bool {
        self.ops().has_failed()
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

    /// For an operation whose task has not slept: polls its own completion. `false` is everything
    /// else: [`look`](Self::look).
    #[inline]
    pub(super) fn poll_own(&self, op: &mut Awaiting, cx: &Context<'_>) -> bool {
        if !self.turn.goes_on() {
            return false;
        }
        let mut wc = Wc::default();
        let mut ops = self.ops();
        match self.main.cq().get_wc(slice::from_mut(&mut wc)) {
            Ok(1) if is_success(&wc, op.number) && !ops.is_waited() => {
                ops.note(op.number, Ok(()));
                self.done.publish(&ops);
                true
            }
            polled => self.poll_others(ops, (polled, &mut wc), (op, cx)),
        }
    }

    /// As [`poll_own`](Self::poll_own), after a poll with another result. If the queue is empty, the
    /// task has left its waker.
    #[inline(never)]
    fn poll_others<'a>(
        &'a self,
        mut ops: Locked<'a>,
        (mut polled, wc): (Result<usize>, &mut Wc),
        (op, cx): (&mut Awaiting, &Context<'_>),
    ) -> bool {
        loop {
            match polled {
                Ok(0) => {
                    // Another thread may have polled it.
                    if !self.done.has(op.number) {
                        ops.park(&mut op.ticket, op.number, cx.waker());
                        op.is_parked = true;
                    }
                    return false;
                }
                Ok(_) => drop(self.settle(ops, slice::from_ref(wc))),
                Err(error) => {
                    drop(ops);
                    // The look reports it again.
                    drop(self.poll_failed(error));
                    return false;
                }
            }
            if self.done.has(op.number) {
                return self.done.has_succeeded(op.number);
            }
            ops = self.ops();
            polled = self.main.cq().get_wc(slice::from_mut(wc));
        }
    }

    /// For an operation whose task has slept: whether it has succeeded. `false` is everything else.
    /// The thread that has noted the completion takes the waker.
    #[inline]
    pub(super) fn poll_woken(&self, op: &Awaiting) -> bool {
        self.done.has_succeeded(op.number)
    }

    /// For an operation that has not succeeded yet: whether it is complete. If it is not, its task
    /// sleeps now, or lets others run.
    pub(super) fn look(&self, op: &mut Awaiting, cx: &Context<'_>) -> Result<bool, Box<Error>> {
        if !mem::take(&mut op.is_parked) {
            if op.ticket.is_none() && self.turn.ends(cx) {
                return Ok(false);
            }
            let mut ops = self.ops();
            if self.done.has(op.number) {
                return Ok(true);
            }
            let old = ops.park(&mut op.ticket, op.number, cx.waker());
            drop(ops);
            drop(old);
        }
        self.turn.rest();
        // A later completion wakes it.
        let drained = self.main.arm_and_poll(self);
        if self.done.has(op.number) {
            return Ok(true);
        }
        drained?;
        self.check()?;
        Ok(false)
    }

    /// After the caller has left its waker: whether anything can still wake it.
    pub(crate) fn check(&self) -> Result<()> {
        match self.given_up() {
            Some(error) => Err(error),
            None => self.reactor.check_driver(),
        }
    }

    /// For an operation that is complete.
    pub(super) fn finish(&self, op: &mut Awaiting) -> Awaited {
        let mut ops = self.ops();
        let left = ops.unpark(&mut op.ticket);
        let outcome = ops.outcome(op.number);
        drop(ops);
        drop(left);
        match outcome {
            Some(Err(failure)) => Awaited::Failed(reason(failure, self.conn())),
            _ => Awaited::Succeeded,
        }
    }

    /// No task awaits the operation any more: its memory is kept until it is complete.
    #[cold]
    #[inline(never)]
    pub(super) fn abandon(&self, op: &mut Awaiting, memory: Option<Held>) {
        let mut ops = self.ops();
        let left = ops.unpark(&mut op.ticket);
        let free = ops.abandon(op.number, memory);
        drop(ops);
        drop(left);
        if free.is_some() {
            return;
        }
        // So the queue stays armed for it.
        if let Err(error) = self.main.arm_and_drain(self) {
            log::error!("{error}; the memory of an operation is free with its connection");
        }
    }

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
        self.queue_event(CqKind::Main);
        if self.receive.is_some() {
            self.queue_event(CqKind::Receive);
        }
    }

    /// The driver has taken an event of this queue.
    fn queue_event(&self, of: CqKind) {
        let queue = self.queue(of);
        let is_main = ptr::eq(queue, &self.main);
        let has_receives = !is_main || self.receive.is_none();
        queue.event(self, |polled| {
            let is_read = || self.receives.as_ref().is_some_and(Receives::is_waited);
            is_main && polled.is_waited || has_receives && is_read()
        });
    }

    pub(crate) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::SeqCst)
    }

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
            && (!self.is_idle(&self.ops()) || self.receives.as_ref().is_some_and(is_posted))
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

    pub(crate) fn given_up(&self) -> Option<Error> {
        self.given_up.get().map(once_more)
    }
}

impl Member for Shared {
    fn event(self: Arc<Self>) {
        self.take_events();
    }

    fn completed(&self, of: CqKind) {
        self.queue_event(of);
    }

    fn channel_failed(&self, error: &Error) {
        self.give_up(once_more(error));
    }

    fn wake_everybody(&self) {
        self.wake_operations();
        self.closed.wake_all();
        if let Some(receives) = &self.receives {
            receives.wake_all();
        }
    }

    /// Whether the device has given the queue pair up, too.
    fn look(self: Arc<Self>) {
        self.look_at_queues();
        // A task that was woken for room may be held up, and has not handed it on.
        let room = self.ops().go_for_room(|| self.conn().free_slots());
        room.into_iter().for_each(wake);
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

/// Whether it is the completion of this operation, which has succeeded.
#[inline]
fn is_success(wc: &Wc, number: u64) -> bool {
    let is_it = wc.posted().is_some_and(|posted| posted.number() == number);
    is_it && wc.status() == WcStatus::SUCCESS
}

#[derive(Debug)]
pub(super) struct Awaiting {
    pub(super) number: u64,
    /// The place of its task, once that has slept.
    ticket: Ticket,
    /// This poll has left the waker.
    is_parked: bool,
}

impl Awaiting {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            ticket: Ticket::default(),
            is_parked: false,
        }
    }

    pub(super) fn has_slept(&self) -> bool {
        !self.ticket.is_none()
    }
}

/// The room in the send queue for which a task waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Room {
    /// So many free slots.
    Slots(u32),
    /// No operation in flight.
    Idle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Polled {
    pub(super) count: u32,
    /// Whether a completion of an operation has to be noticed.
    is_waited: bool,
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
            self.ops().leak();
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
