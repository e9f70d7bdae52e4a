//! [`Watched`]: an object of rpma behind one short lock, for which tasks wait.
//!
//! A task takes the lock, polls, and looks if the poll has found nothing. If the object is not so
//! far, the task leaves its waker and the condition for which it waits, before it gives the lock
//! back. A thread that changes the object, by a call, a look, or an event of the driver, takes the
//! wakers of the tasks that can go on now, and wakes them without the lock.

use std::fmt;
use std::future::Future;
use std::mem;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use rpma::Result;
use rpma::sync::{Mutex, MutexGuard};

use crate::clock;
use crate::conn::Held;
use crate::driver::{Due, Handle, Member, Patience, Timer};
use crate::pool::Frozen;
use crate::primitives::wake;
use crate::tasks::{Tasks, Ticket, Walk};
use crate::told::SILENCE;
use crate::turn::Turn;

/// An object of rpma, with its owner's part.
pub(crate) trait Object: Send + 'static {
    /// The condition for which a task waits.
    type Wanted: Copy + Send;
    /// If it is the same as before, no task can go on.
    type Mark: Copy + PartialEq + Send;
    /// The ends of connections. If they are the same as before, no task that waits for an end can go
    /// on.
    type Ends: Copy + PartialEq + Send;

    fn mark(&self) -> Self::Mark;

    fn ends(&self) -> Self::Ends;

    /// Whether the condition is an end. A program has a task that waits for each, so these tasks
    /// cost an operation nothing.
    fn is_end(wanted: Self::Wanted) -> bool;

    /// Whether the condition holds, so that its task goes on.
    fn is_there(&self, wanted: Self::Wanted) -> bool;

    /// Whether a task takes it away from the others. Then one task is woken, and when it goes on, it
    /// wakes the next.
    fn is_single(wanted: Self::Wanted) -> bool;

    /// Polls the completion queues. It makes no system call, unless a look is due.
    fn poll(&mut self) -> Result<()>;

    /// Takes all events and completions. After it the next one makes the descriptor readable.
    fn look(&mut self) -> Result<()>;

    /// Does the due steps of the keep-alives, and returns when the next one is due. `asks`: its
    /// tasks [ask](Self::asks) as well.
    fn keep_alive(&self, asks: bool) -> Option<Instant>;

    /// Whether these tasks look again after a silence, and [probe](Self::probe).
    fn asks(&self, tasks: &Tasks<Self::Wanted>) -> bool;

    /// Asks silent hosts whether they are there.
    fn probe(&mut self);

    /// A source that the device has released.
    #[inline]
    fn free(&mut self) -> Option<Frozen> {
        None
    }

    /// Whether the device has released more memory.
    #[inline]
    fn is_more_free(&self) -> bool {
        false
    }

    /// Any memory that the device has released.
    fn free_any(&mut self) -> Option<Held> {
        None
    }
}

/// The number of tasks that wait for an end: they come after all others.
const ENDS: u64 = 1;

/// A member of a reactor: an object, and the tasks that wait for it.
pub(crate) struct Watched<S: Object> {
    reactor: Arc<Handle>,
    key: u64,
    turn: Turn,
    state: Mutex<State<S>>,
}

struct State<S: Object> {
    object: S,
    tasks: Tasks<S::Wanted>,
    /// The mark and the ends when the tasks were looked through.
    mark: S::Mark,
    ends: S::Ends,
    /// Since when the mark is as it is, for the silence.
    silent: Option<(Instant, S::Mark)>,
    /// When the driver looks next. So no task has to.
    timer: Option<Timer>,
}

impl<S: Object> State<S> {
    /// Whether a task may go on after a change.
    #[inline]
    fn may_wake(&self) -> bool {
        match self.tasks.first() {
            None => false,
            Some(ENDS) => self.has_ended(),
            Some(_) => true,
        }
    }

    /// Apart, so that it costs nothing where no task waits.
    #[inline(never)]
    fn has_ended(&self) -> bool {
        self.object.ends() != self.ends
    }

    /// Keeps watch over the peers. Returns when the next look is due, if no event comes before.
    /// `begins`: so far no task has waited for an answer.
    fn next_look(&mut self, begins: bool) -> Option<Instant> {
        let Self { object, tasks, .. } = self;
        let asks = object.asks(tasks);
        let due = object.keep_alive(asks);
        if !asks {
            return due;
        }
        let mark = object.mark();
        let is_silent = |silent: &(Instant, S::Mark)| !begins && silent.1 == mark;
        let mut since = match self.silent.filter(is_silent) {
            Some((since, _)) => since,
            None => clock::now(),
        };
        if since + SILENCE <= clock::now() {
            object.probe();
            // After the probe: a slow one must not be due again at once, without a pause for
            // others.
            since = clock::now();
        }
        self.silent = Some((since, mark));
        let at = since + SILENCE;
        Some(due.map_or(at, |due| due.min(at)))
    }
}

impl<S: Object> Watched<S> {
    pub(crate) fn new(reactor: &Arc<Handle>, object: S) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let member: Weak<Self> = Weak::clone(this);
            Self {
                key: reactor.join(member),
                reactor: Arc::clone(reactor),
                turn: Turn::default(),
                state: Mutex::new(State {
                    mark: object.mark(),
                    ends: object.ends(),
                    silent: None,
                    object,
                    tasks: Tasks::default(),
                    timer: None,
                }),
            }
        })
    }

    /// Watches a descriptor, until it is closed.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.reactor.tell(self.key, fd)
    }

    pub(crate) fn watch_no_more(&self, fd: BorrowedFd<'_>) {
        self.reactor.tell_no_more(fd);
    }

    pub(crate) fn reactor(&self) -> &Arc<Handle> {
        &self.reactor
    }

    /// Takes the lock. It is held across verbs, and never while a task waits.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        // A drop needs no state that a panic of rpma can have broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.lock().object)
    }

    /// Posts something, after a look if there is no room: completions that no task has waited for
    /// give some.
    #[inline]
    pub(crate) fn post<T>(
        self: &Arc<Self>,
        has_room: impl FnOnce(&S) -> bool,
        post: impl FnOnce(&mut S) -> T,
    ) -> T {
        let mut state = self.lock();
        if !has_room(&state.object) {
            drop(state);
            return self.post_after_look(post);
        }
        let posted = post(&mut state.object);
        // A post that fails may end the connection. Where all tasks wait for ends, the event of the
        // end wakes them.
        if state.tasks.first().is_some_and(|first| first != ENDS) {
            self.go(state);
        }
        posted
    }

    /// The object may look as well, and take the event of an end.
    #[cold]
    #[inline(never)]
    fn post_after_look<T>(self: &Arc<Self>, post: impl FnOnce(&mut S) -> T) -> T {
        self.take_events();
        let mut state = self.lock();
        let posted = post(&mut state.object);
        self.go(state);
        posted
    }

    /// Calls `run` with the object. Afterwards, without the lock, blocks go back to their pools,
    /// and tasks that can go on are woken.
    #[inline]
    pub(crate) fn with<T>(&self, run: impl FnOnce(&mut S) -> T) -> T {
        let mut state = self.lock();
        let result = run(&mut state.object);
        self.go(state);
        result
    }

    pub(crate) fn take_events(self: &Arc<Self>) {
        let mut state = self.lock();
        self.look(&mut state);
        self.go(state);
    }

    /// Takes all events and completions, and sets the time of the next look if tasks wait.
    fn look(self: &Arc<Self>, state: &mut State<S>) {
        // An error is the end of the connection, and the waits return it.
        let looked = state.object.look();
        looked.unwrap_or_else(|error| log::debug!("{error}"));
        self.watch_time(state, false);
    }

    fn watch_time(self: &Arc<Self>, state: &mut State<S>, begins: bool) {
        if state.tasks.is_empty() {
            return;
        }
        let Some(at) = state.next_look(begins) else {
            return;
        };
        if state.timer.as_ref().is_some_and(|timer| timer.0 <= at) {
            return;
        }
        let this: Weak<Self> = Arc::downgrade(self);
        let timer = self.reactor.set_timer(at, Due::KeepAlive(this));
        if let Some(later) = state.timer.replace(timer) {
            self.reactor.take_timer(later);
        }
    }

    #[inline]
    fn go(&self, mut state: MutexGuard<'_, State<S>>) {
        // Most often one block is free, and no task waits.
        let freed = state.object.free();
        let goes = state.may_wake() || state.object.is_more_free();
        drop(state);
        drop(freed);
        if goes {
            self.go_on();
        }
    }

    #[inline(never)]
    fn go_on(&self) {
        loop {
            let freed = self.lock().object.free_any();
            if freed.is_none() {
                break;
            }
        }
        let walk = {
            let mut state = self.lock();
            let (mark, ends) = (state.object.mark(), state.object.ends());
            let before = (
                mem::replace(&mut state.mark, mark),
                mem::replace(&mut state.ends, ends),
            );
            if before == (mark, ends) {
                return;
            }
            state.tasks.walk()
        };
        self.wake_along(walk);
    }

    /// Wakes the tasks that can go on.
    fn wake_along(&self, mut walk: Walk) {
        let mut has_single = false;
        loop {
            let mut state = self.lock();
            let State { object, tasks, .. } = &mut *state;
            let next = tasks.take_next(&mut walk, |wanted| {
                let is_single = S::is_single(*wanted);
                let goes = !(is_single && has_single) && object.is_there(*wanted);
                has_single |= goes && is_single;
                goes
            });
            drop(state);
            match next {
                Some(waker) => wake(waker),
                None => return,
            }
        }
    }

    /// A task takes a single thing no more, or has left some of it: the next one goes on.
    fn hand_on(&self) {
        let mut state = self.lock();
        let State { object, tasks, .. } = &mut *state;
        let mut walk = tasks.walk();
        let is_next = |wanted: &S::Wanted| S::is_single(*wanted) && object.is_there(*wanted);
        let next = tasks.take_next(&mut walk, is_next);
        drop(state);
        next.into_iter().for_each(wake);
    }

    /// Waits until `judge` has a result for a task that waits for `wanted`. The error is also that
    /// of a driver that is gone or never ran.
    pub(crate) fn wait<T, F>(self: &Arc<Self>, wanted: S::Wanted, judge: F) -> Waiting<'_, S, F>
    where
        F: FnMut(&mut S) -> Option<Result<T>> + Unpin,
    {
        Waiting {
            watched: self,
            wait: Wait::new(wanted),
            judge,
        }
    }
}

impl<S: Object> Drop for Watched<S> {
    fn drop(&mut self) {
        // Before the object.
        self.reactor.leave(self.key);
        if let Some(timer) = self.lock().timer.take() {
            self.reactor.take_timer(timer);
        }
    }
}

impl<S: Object> Member for Watched<S> {
    fn event(self: Arc<Self>) {
        self.take_events();
    }

    fn look(self: Arc<Self>) {
        self.take_events();
        // A task that was woken for a single thing may be held up, and has not handed it on.
        self.hand_on();
    }

    /// The time has come. It may be that something is over by the time alone.
    fn keep_alive(self: Arc<Self>) {
        let mut state = self.lock();
        state.timer = None;
        Watched::look(&self, &mut state);
        let walk = state.tasks.walk();
        self.go(state);
        self.wake_along(walk);
    }

    fn wake_everybody(&self) {
        let mut walk = None;
        loop {
            let mut state = self.lock();
            let walk = walk.get_or_insert_with(|| state.tasks.walk());
            let next = state.tasks.take_next(walk, |_| true);
            drop(state);
            match next {
                Some(waker) => wake(waker),
                None => return,
            }
        }
    }
}

impl<S: Object + fmt::Debug> fmt::Debug for Watched<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().object.fmt(f)
    }
}

/// A wait of a task, which its owner polls, and [leaves](Self::leave) at the end.
#[derive(Debug)]
pub(crate) struct Wait<W> {
    wanted: W,
    ticket: Ticket,
    patience: Patience,
    has_slept: bool,
}

impl<W: Copy> Wait<W> {
    pub(crate) fn new(wanted: W) -> Self {
        Self {
            wanted,
            ticket: Ticket::default(),
            patience: Patience::default(),
            has_slept: false,
        }
    }

    pub(crate) fn poll<S: Object<Wanted = W>, T>(
        &mut self,
        watched: &Arc<Watched<S>>,
        cx: &Context<'_>,
        mut judge: impl FnMut(&mut S) -> Option<Result<T>>,
    ) -> Poll<Result<T>> {
        if !self.has_slept && watched.turn.ends_before(cx) {
            return Poll::Pending;
        }
        let mut state = watched.lock();
        // A task that was woken for something else: the driver looks for it.
        let is_parked = state.tasks.has(&self.ticket);
        let found = if is_parked {
            judge(&mut state.object)
        } else {
            find(&mut state.object, self.has_slept, judge)
        };
        if let Some(result) = found {
            let has_place = !self.ticket.is_none();
            let left = has_place.then(|| state.tasks.leave(&mut self.ticket));
            watched.go(state);
            drop(left);
            if has_place && S::is_single(self.wanted) {
                watched.hand_on();
            }
            return Poll::Ready(result);
        }
        let number = if S::is_end(self.wanted) { ENDS } else { 0 };
        let (wanted, waker) = ((number, self.wanted), cx.waker());
        let old = state.tasks.wait(&mut self.ticket, wanted, waker);
        if !is_parked {
            let begins = state.tasks.len() == 1;
            watched.watch_time(&mut state, begins);
        }
        watched.go(state);
        drop(old);
        self.sleep(watched, cx)
    }

    fn sleep<S: Object, T>(&mut self, watched: &Watched<S>, cx: &Context<'_>) -> Poll<Result<T>> {
        watched.reactor.check_driver()?;
        self.has_slept = true;
        watched.turn.rest();
        match self.patience.poll(&watched.reactor, cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    /// The wait is over, or is given up.
    #[inline]
    pub(crate) fn leave<S: Object<Wanted = W>>(&mut self, watched: &Watched<S>) {
        if self.ticket.is_none() {
            return;
        }
        let left = watched.lock().tasks.leave(&mut self.ticket);
        drop(left);
        if S::is_single(self.wanted) {
            watched.hand_on();
        }
    }
}

/// Polls, and looks if that has found nothing.
#[inline]
fn find<S: Object, T>(
    object: &mut S,
    was_woken: bool,
    mut judge: impl FnMut(&mut S) -> Option<Result<T>>,
) -> Option<Result<T>> {
    // A task that was woken seldom needs a poll.
    let polled = if was_woken { Ok(()) } else { object.poll() };
    if let Some(found) = judge(object) {
        return Some(found);
    }
    let looked = polled.and_then(|()| object.look());
    judge(object).or_else(|| looked.err().map(Err))
}

pub(crate) struct Waiting<'a, S: Object, F> {
    watched: &'a Arc<Watched<S>>,
    wait: Wait<S::Wanted>,
    judge: F,
}

/// Nothing in it is pinned.
impl<S: Object, F> Unpin for Waiting<'_, S, F> {}

impl<S: Object, T, F> Future for Waiting<'_, S, F>
where
    F: FnMut(&mut S) -> Option<Result<T>>,
{
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Self {
            watched,
            wait,
            judge,
        } = &mut *self;
        wait.poll(watched, cx, judge)
    }
}

impl<S: Object, F> Drop for Waiting<'_, S, F> {
    #[inline]
    fn drop(&mut self) {
        self.wait.leave(self.watched);
    }
}
