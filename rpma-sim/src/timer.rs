//! What has to wait: a clock with one thread for each fabric that has ever waited for something.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cm::Stage;
use crate::state::Shared;

/// A fabric's clock. It is that of the system, and what was jumped; or virtual altogether.
#[derive(Debug)]
pub(crate) struct Time {
    start: Instant,
    is_virtual: bool,
    /// In nanoseconds.
    ahead: AtomicU64,
}

impl Time {
    pub(crate) fn new(is_virtual: bool) -> Self {
        Self {
            start: Instant::now(),
            is_virtual,
            ahead: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        let ahead = Duration::from_nanos(self.ahead.load(Ordering::Relaxed));
        match self.is_virtual {
            true => self.start + ahead,
            false => Instant::now() + ahead,
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    pub(crate) fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn jump_to(&self, at: Instant) {
        self.advance(at.saturating_duration_since(self.now()));
    }
}

/// What is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A queue pair tries its first request again, unless something else has happened since.
    Try { qp: u32, attempt: u64 },
    /// Nobody has an address that is asked for.
    Unresolved { id: u32 },
    /// A connection is forgotten.
    Timewait { id: u32 },
    /// The other end has not answered an id in this stage.
    Unanswered { id: u32, stage: Stage },
    /// A failed queue pair gives back what an incomplete message has taken.
    LastReceive { qp: u32 },
    /// Requests that were delayed arrive.
    Arrival { qp: u32, delay: u64 },
    /// A write becomes visible that was executed before.
    Late { number: u64 },
}

/// What is put off, and until when.
pub(crate) struct Clock {
    shared: Weak<Shared>,
    time: Arc<Time>,
    timers: BTreeMap<(Instant, u64), Timer>,
    next: u64,
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread waits for.
struct Alarm {
    time: Arc<Time>,
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Default)]
struct Next {
    at: Option<Instant>,
    ended: bool,
}

impl Clock {
    pub(crate) fn new(shared: Weak<Shared>, time: Arc<Time>) -> Self {
        let alarm = Arc::new(Alarm {
            time: Arc::clone(&time),
            next: Mutex::default(),
            changed: Condvar::new(),
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
        // Virtual time is advanced by those who wait, and they do what is due.
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

    /// Whose clock it is.
    pub(crate) fn shared(&self) -> &Weak<Shared> {
        &self.shared
    }

    pub(crate) fn now(&self) -> Instant {
        self.time.now()
    }

    /// Takes back what was put off.
    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.timers.retain(|_, of| *of != timer);
    }

    /// Takes one thing that is due by then.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Timer> {
        let first = self.timers.first_entry()?;
        let due = first.key().0 <= now;
        due.then(|| first.remove())
    }

    /// When the next thing is due.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// After the timers have changed, or the clock has jumped.
    pub(crate) fn set_alarm(&self) {
        let first = self.first();
        let mut next = self
            .alarm
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        next.at = first;
        self.alarm.changed.notify_one();
    }
}

impl Alarm {
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
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.alarm
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .ended = true;
        self.alarm.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            if thread.thread().id() != thread::current().id() {
                // It has not panicked, or has said so.
                let _ = thread.join();
            }
        }
    }
}
