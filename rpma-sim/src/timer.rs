//! Work that has to wait: a clock with one thread for each fabric that has ever had such work.
//!
//! A fabric that follows the program's clock has no such thread: see `tick.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cm::Stage;
use crate::state::Shared;

/// A fabric's clock. It is that of the system, with the jumps; or virtual altogether; or the
/// program's.
#[derive(Debug)]
pub(crate) struct Time {
    start: Instant,
    is_virtual: bool,
    program: OnceLock<Program>,
    /// In nanoseconds. Beside the program's clock, the time since `Program::start` that this clock
    /// has reached at least.
    ahead: AtomicU64,
}

/// The program's clock.
struct Program {
    now: Box<dyn Fn() -> Instant + Send + Sync>,
    start: Instant,
    /// The time since `start` that was returned last, in nanoseconds.
    seen: AtomicU64,
}

impl Program {
    fn now(&self) -> Instant {
        let now = (self.now)();
        let since = now.saturating_duration_since(self.start);
        self.seen.store(nanoseconds(since), Ordering::Relaxed);
        now
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

impl Time {
    pub(crate) fn new(is_virtual: bool) -> Self {
        Self {
            start: Instant::now(),
            is_virtual,
            program: OnceLock::new(),
            ahead: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        let ahead = Duration::from_nanos(self.ahead.load(Ordering::Relaxed));
        match (self.program.get(), self.is_virtual) {
            (Some(program), _) => program.now().max(program.start + ahead),
            (None, true) => self.start + ahead,
            (None, false) => Instant::now() + ahead,
        }
    }

    /// It is the program's clock from now on; `false` if it is one already.
    pub(crate) fn follow(&self, now: Box<dyn Fn() -> Instant + Send + Sync>) -> bool {
        let (start, seen) = (now(), AtomicU64::new(0));
        self.program.set(Program { now, start, seen }).is_ok()
    }

    pub(crate) fn seen(&self) -> u64 {
        let program = self.program.get();
        program.map_or(0, |program| program.seen.load(Ordering::Relaxed))
    }

    pub(crate) fn follows(&self) -> bool {
        self.program.get().is_some()
    }

    /// Whether it is independent of real time.
    pub(crate) fn is_virtual(&self) -> bool {
        self.is_virtual || self.follows()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(nanoseconds(by), Ordering::Relaxed);
    }

    /// The program's clock catches up by itself: this one stands still for so long.
    pub(crate) fn jump_to(&self, at: Instant) {
        match self.program.get() {
            Some(program) => {
                let ahead = nanoseconds(at.saturating_duration_since(program.start));
                self.ahead.fetch_max(ahead, Ordering::Relaxed);
            }
            None => self.advance(at.saturating_duration_since(self.now())),
        }
    }
}

fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// The work that is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A queue pair tries its first request again, unless something else has happened since.
    Try { qp: u32, attempt: u64 },
    /// No host has an address that is asked for.
    Unresolved { id: u32 },
    /// A connection is forgotten.
    Timewait { id: u32 },
    /// The other end has not answered an id in this stage.
    Unanswered { id: u32, stage: Stage },
    /// A failed queue pair gives back the receive that an incomplete message has taken.
    LastReceive { qp: u32 },
    /// Requests that were delayed arrive.
    Arrival { qp: u32, delay: u64 },
    /// A write becomes visible that was executed before.
    Late { number: u64 },
    /// A call looks whether its wait is over.
    Wake,
}

impl Timer {
    /// Its name for a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Try { .. } => "a request that is tried again",
            Self::Unresolved { .. } => "an address",
            Self::Timewait { .. } => "a connection's TIMEWAIT",
            Self::Unanswered { .. } => "an unanswered connection request",
            Self::LastReceive { .. } => "an incomplete message",
            Self::Arrival { .. } => "delayed requests",
            Self::Late { .. } => "a write that becomes visible",
            Self::Wake => "a wait",
        }
    }
}

/// The work that is put off, and until when.
pub(crate) struct Clock {
    shared: Weak<Shared>,
    time: Arc<Time>,
    timers: BTreeMap<(Instant, u64), Timer>,
    next: u64,
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// The alarm that the thread, or the future of `Fabric::tick`, waits for.
pub(crate) struct Alarm {
    time: Arc<Time>,
    next: Mutex<Next>,
    changed: Condvar,
    /// How often the future was polled.
    polls: AtomicU64,
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct Next {
    pub(crate) at: Option<Instant>,
    pub(crate) ended: bool,
    /// There is a future of `Fabric::tick`.
    pub(crate) is_ticked: bool,
    pub(crate) sleeper: Option<Sleeper>,
}

/// A future that does the work that is due. It sleeps until an instant, or while no work can come.
pub(crate) struct Sleeper {
    pub(crate) until: Option<Instant>,
    pub(crate) waker: Waker,
}

impl Next {
    /// Whether something is to come, and no future waits for it.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.at.is_some() && self.sleeper.is_none()
    }

    /// Whether something is due before an instant that was the first. `None` is never.
    pub(crate) fn is_before(&self, until: Option<Instant>) -> bool {
        self.at
            .is_some_and(|at| until.is_none_or(|until| at < until))
    }
}

impl Clock {
    pub(crate) fn new(shared: Weak<Shared>, time: Arc<Time>) -> Self {
        let alarm = Arc::new(Alarm {
            time: Arc::clone(&time),
            next: Mutex::default(),
            changed: Condvar::new(),
            polls: AtomicU64::new(0),
        });
        Self {
            shared,
            time,
            timers: BTreeMap::new(),
            next: 0,
            alarm,
            thread: None,
        }
    }

    /// Puts something off.
    pub(crate) fn after(&mut self, delay: Duration, timer: Timer) {
        let Some(at) = self.time.now().checked_add(delay) else {
            return;
        };
        self.next += 1;
        self.timers.insert((at, self.next), timer);
        self.set_alarm();
        // Virtual time is advanced by waiting threads, and they do the work that is due. If it is
        // the program's, `Fabric::tick` does.
        if self.thread.is_none() && !self.time.is_virtual() {
            let (shared, alarm) = (Weak::clone(&self.shared), Arc::clone(&self.alarm));
            let thread = thread::Builder::new().name("rpma-sim".to_owned());
            let thread = thread.spawn(move || alarm.serve(&shared));
            self.thread = Some(thread.expect("the system has a thread for a fabric"));
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.time.is_virtual()
    }

    pub(crate) fn shared(&self) -> &Weak<Shared> {
        &self.shared
    }

    pub(crate) fn now(&self) -> Instant {
        self.time.now()
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.timers.retain(|_, of| *of != timer);
    }

    /// Takes one thing that is due by then.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Timer> {
        let first = self.timers.first_entry()?;
        let due = first.key().0 <= now;
        due.then(|| first.remove())
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.next > 0
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// When the next thing is due.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// The work that is put off, with the time that is left, in the order in which it is due.
    pub(crate) fn timers(&self) -> impl Iterator<Item = (Duration, &Timer)> {
        let now = self.now();
        let timers = self.timers.iter();
        timers.map(move |((at, _), timer)| (at.saturating_duration_since(now), timer))
    }

    /// After the timers have changed, or the clock has jumped.
    pub(crate) fn set_alarm(&self) {
        let first = self.first();
        let mut next = self.alarm.lock();
        next.at = first;
        if self.thread.is_some() {
            self.alarm.changed.notify_one();
        }
        let sleeper = next.sleeper.as_ref();
        let woken = sleeper.filter(|sleeper| next.is_before(sleeper.until));
        // One of the two is left in its place. So no object of the program is dropped here, under
        // the lock of the state.
        let woken = woken.map(|sleeper| sleeper.waker.clone());
        drop(next);
        if let Some(waker) = woken {
            waker.wake();
        }
    }
}

impl Alarm {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The future of `Fabric::tick` was polled, at this time of the program.
    pub(crate) fn polled(&self) {
        self.time.now();
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    fn serve(&self, shared: &Weak<Shared>) {
        while self.wait() {
            // It may go away here: in this thread, which then ends.
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut state = shared.lock_quietly();
            state.run_due();
            // Others may have done it.
            state.clock.set_alarm();
            // Before the clock can jump.
            shared.changed.notify_all();
            drop(state);
            // Who waits for the lock gets it, also where something is due at once again.
            thread::yield_now();
        }
    }

    /// Sleeps until something is due; `false` at the end.
    fn wait(&self) -> bool {
        let mut next = self.lock();
        loop {
            if next.ended {
                return false;
            }
            let now = self.time.now();
            next = match next.at {
                Some(at) if at <= now => return true,
                Some(at) => {
                    let woken = self.changed.wait_timeout(next, at - now);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(next);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("timers", &self.timers)
            .finish_non_exhaustive()
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let mut next = self.alarm.lock();
        next.ended = true;
        let sleeper = next.sleeper.take();
        drop(next);
        self.alarm.changed.notify_one();
        if let Some(sleeper) = sleeper {
            sleeper.waker.wake();
        }
        if let Some(thread) = self.thread.take() {
            if thread.thread().id() != thread::current().id() {
                // It has not panicked, or has said so.
                let _ = thread.join();
            }
        }
    }
}
