//! The steps of a run, and the test's actions at them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::fabric::Fabric;
use crate::state::Shared;

type Action = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Steps {
    count: Arc<AtomicU64>,
    /// By step, and of one step in the order in which they were asked for.
    actions: Mutex<BTreeMap<(u64, u64), Action>>,
    next: AtomicU64,
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// This thread runs the action of a test at a step. The calls of that are no steps.
    static ACTING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn is_acting() -> bool {
    ACTING.get()
}

impl Steps {
    /// For the state, which counts the requests.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.count)
    }

    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Action>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> Option<Action> {
        let mut actions = self.lock();
        let first = actions.first_entry()?;
        let has_come = first.key().0 <= self.count.load(Ordering::Relaxed);
        has_come.then(|| first.remove())
    }

    /// Runs the actions that are due by now. No lock is held.
    pub(crate) fn act(&self) {
        struct Acting;
        impl Drop for Acting {
            fn drop(&mut self) {
                ACTING.set(false);
            }
        }
        while let Some(action) = self.due() {
            ACTING.set(true);
            let _acting = Acting;
            action();
        }
    }
}

/// Holds the action at a step: see [`Fabric::at_step`]. Dropping it takes the action back.
#[derive(Debug)]
#[must_use = "it is taken back when this is dropped"]
pub struct AtStep {
    shared: Weak<Shared>,
    key: (u64, u64),
}

impl AtStep {
    /// Whether it has not happened yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.steps.lock().contains_key(&self.key))
    }
}

impl Drop for AtStep {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            // It is dropped without the lock: it may have the last handle of something.
            let _action = shared.steps.lock().remove(&self.key);
        }
    }
}

impl Fabric {
    /// Returns the number of steps until now. A step is a call of verbs by a program, or a request
    /// that a device has executed.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared().steps.count.load(Ordering::Relaxed)
    }

    /// Runs `action` at a step, 1 being the first of the fabric. It can cut the power of a host,
    /// say, or interrupt the network, in the middle of a run and without a thread that races for
    /// the moment.
    ///
    /// It runs once, between two calls, in whichever thread is there, when the number of
    /// [steps](Self::steps) has been reached. If the step is a request in the middle of a call,
    /// the action runs after that call. If the step has passed already, the action runs at once.
    /// The same step of a [seeded](Self::seeded) run is the same moment.
    ///
    /// `action` uses only the fabric, its hosts and links, and not rpma. It does not panic.
    ///
    /// ```
    /// # mod rpma { pub use rpma_sim as sim; }
    /// use rpma::sim::{Fabric, Profile};
    ///
    /// let fabric = Fabric::seeded(Profile::STRICT, 1);
    /// let server = fabric.host("server");
    /// let _cut = fabric.at_step(40, move || server.power_cut());
    /// // The program runs.
    /// ```
    pub fn at_step(&self, step: u64, action: impl FnOnce() + Send + 'static) -> AtStep {
        let steps = &self.shared().steps;
        let key = (step, steps.next.fetch_add(1, Ordering::Relaxed));
        steps.lock().insert(key, Box::new(action));
        AtStep {
            shared: Arc::downgrade(self.shared()),
            key,
        }
    }
}
