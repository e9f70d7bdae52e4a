//! What has to wait: a clock with one thread for each fabric that has ever waited for something.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cm::Stage;
use crate::state::Shared;

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
    /// Requests that were delayed arrive.
    Arrival { qp: u32, delay: u64 },
}

/// What is put off, and until when.
pub(crate) struct Clock {
    shared: Weak<Shared>,
    timers: BTreeMap<(Instant, u64), Timer>,
    next: u64,
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread waits for.
#[derive(Default)]
struct Alarm {
    next: Mutex<Next>,
    changed: Condvar,
}

#[derive(Default)]
struct Next {
    at: Option<Instant>,
    ended: bool,
}

impl Clock {
    pub(crate) fn new(shared: Weak<Shared>) -> Self {
        Self {
            shared,
            timers: BTreeMap::new(),
            next: 0,
            alarm: Arc::default(),
            thread: None,
        }
    }

    /// Puts something off.
    pub(crate) fn after(&mut self, delay: Duration, timer: Timer) {
        let Some(at) = Instant::now().checked_add(delay) else {
            return;
        };
        self.next += 1;
        self.timers.insert((at, self.next), timer);
        self.set_alarm();
        if self.thread.is_none() {
            let (shared, alarm) = (Weak::clone(&self.shared), Arc::clone(&self.alarm));
            let thread = thread::Builder::new().name("rpma-sim".to_owned());
            let thread = thread.spawn(move || alarm.serve(&shared));
            self.thread = Some(thread.expect("the system has a thread for a fabric"));
        }
    }

    /// Takes back what was put off.
    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.timers.retain(|_, of| *of != timer);
    }

    /// Takes one thing that is due.
    fn due(&mut self) -> Option<Timer> {
        let first = self.timers.first_entry()?;
        let due = first.key().0 <= Instant::now();
        due.then(|| first.remove())
    }

    fn set_alarm(&self) {
        let first = self.timers.first_key_value().map(|((at, _), _)| *at);
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
            let mut state = shared.lock();
            while let Some(timer) = state.clock.due() {
                state.alarm(timer);
            }
            state.clock.set_alarm();
            drop(state);
            shared.changed.notify_all();
        }
    }

    /// Sleeps until something is due; `false` at the end.
    fn wait(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if next.ended {
                return false;
            }
            let now = Instant::now();
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
