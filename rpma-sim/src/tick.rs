//! A fabric in the time of the program: [`Fabric::follow`] and [`Fabric::tick`].
//!
//! An async program has a clock of its own, its runtime's, which a test may have paused. Here the
//! fabric's time is that clock's, and a future that the runtime polls does the work that is due.
//! So the fabric's timers are timers of the runtime.
//!
//! A call that blocks jumps over its wait, because a panic in its place could be inside a drop.
//! The fabric's clock is then ahead of the program's (`Time::jump_to`).

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::fabric::Fabric;
use crate::here;
use crate::state::Shared;
use crate::timer::{Alarm, Sleeper};

const NOT_HERE: &str = "Fabric::tick: this thread is not on the fabric, so the limits of rpma are real time in it. \
                        Call Fabric::follow in the thread of the runtime, or Host::enter in each of its threads";

impl Fabric {
    /// Makes the fabric use the program's clock. It is for tests of async programs, on a runtime
    /// with a clock that a test can pause.
    ///
    /// `now` returns the program's time. The fabric calls it while it holds locks, so `now` must
    /// use neither the fabric nor `rpma`. Call `follow` before any connection, inside of the
    /// runtime, and spawn [`tick`](Self::tick) beside the program:
    ///
    /// ```
    /// # mod rpma { pub use rpma_sim as sim; }
    /// use rpma::sim::{Fabric, Profile};
    /// use tokio::time::{Instant, sleep_until};
    ///
    /// let mut runtime = tokio::runtime::Builder::new_current_thread();
    /// let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    /// runtime.block_on(async {
    ///     let fabric = Fabric::new(Profile::STRICT);
    ///     fabric.follow(|| Instant::now().into_std());
    ///     tokio::spawn(fabric.tick(|at| sleep_until(at.into())));
    ///     // The program runs.
    /// });
    /// ```
    ///
    /// From then on:
    ///
    /// * The fabric has no thread. Retries, time-outs, delayed requests and writes that become
    ///   visible later are timers of the runtime. tokio's clock has milliseconds, so each comes at
    ///   the end of its millisecond.
    /// * The calling thread is on the fabric, until the last clone of the fabric is dropped. So
    ///   [`now`](crate::now), and with it each limit and keep-alive of `rpma`, is the program's
    ///   time there. Any other thread that calls `rpma` must [enter](crate::Host::enter) a host.
    ///   `now` must return the program's time in that thread as well. With tokio's paused clock,
    ///   the thread must therefore also enter the runtime (`Handle::enter`).
    /// * A fabric with a [seed](Self::seeded) has no turns from then on, because the executor chooses
    ///   which task goes on. The seed still decides what devices and the network do, and the random
    ///   numbers of `rpma`. Without a seed these are the same in each run. So the program of
    ///   [`repeatable`](crate::repeatable), [`explore`](crate::explore), [`sweep`](crate::sweep) or
    ///   [`storm`](crate::storm) may call `follow`, on a runtime with one thread. A second thread is a
    ///   reason of [`why_not_repeatable`](Self::why_not_repeatable).
    ///
    /// A runtime with one thread and a paused clock then does the same at the same instants, in
    /// each run. A paused clock stands still while a task of the program goes on, for instance in a
    /// loop that yields and never sleeps. After 5 s of real time in which tasks go on and the clock
    /// stands still, the fabric prints a line to stderr, once.
    ///
    /// # Calls that block
    ///
    /// While a call blocks, the runtime runs no other task, and its clock does not see the time of
    /// the call. The fabric jumps over such a wait, as after
    /// [`jump_over_waits`](Self::jump_over_waits). So a wait for a peer that is another task of the
    /// same thread fails at the end of its limit, and takes no real time. The fabric's clock is
    /// then ahead of the program's clock, and stands still until the program's clock has caught up.
    /// If the wait has no limit and no event can come, the thread panics after 5 s of real time,
    /// and the message has its last call of verbs. A wait with a limit of zero returns at once.
    ///
    /// # Panics
    ///
    /// If the clock of the fabric [jumps](Self::jump_over_waits) already, or follows a clock already.
    /// If it already has delayed work, for instance a retry. If it has a seed, and another thread is
    /// on it already.
    pub fn follow(&self, now: impl Fn() -> Instant + Send + Sync + 'static) {
        let (shared, wrong) = (self.shared(), "Fabric::follow");
        let order = &shared.order;
        assert!(
            order.seed().is_none() || !order.has_others(),
            "{wrong}: this fabric has a seed, and another thread waits for its turn. Call follow before other threads \
             begin"
        );
        assert!(
            !order.time.follows(),
            "{wrong}: this fabric follows a clock already"
        );
        assert!(
            !order.jumps(),
            "{wrong}: the clock of this fabric jumps (Fabric::jump_over_waits). Call follow instead: waits are jumped \
             over then, too"
        );
        let state = shared.lock_quietly();
        assert!(
            !state.clock.has_begun(),
            "{wrong}: this fabric has already put something off by its own clock. Call follow before any connection"
        );
        order.time.follow(Box::new(now));
        order.is_ticked_by(state.clock.alarm());
        drop(state);
        self.be_here();
    }

    /// Does the work that is due on a fabric that [follows](Self::follow) the program's clock,
    /// until the fabric is gone: a future to spawn beside the program, or to poll with it.
    ///
    /// `sleep_until` returns a future that is ready at an instant of that clock. Dropping the
    /// future stops the fabric's clock. A later call of `tick` returns another future that
    /// continues. If the fabric has pending work and no such future waits for it, the fabric prints
    /// a line to stderr after 5 s of real time. The future is `Send` if `sleep_until` and its
    /// futures are.
    ///
    /// The fabric wakes the future in the middle of a call of `rpma`, under locks of both. So the
    /// waker must not poll the future in place.
    ///
    /// # Panics
    ///
    /// If the fabric does not follow a clock, or has such a future already, or if the calling
    /// thread is not on the fabric. In such a thread, the limits of `rpma` would be real time. The
    /// future panics if such a thread polls it.
    pub fn tick<F, S>(&self, mut sleep_until: F) -> impl Future<Output = ()> + use<F, S>
    where
        F: FnMut(Instant) -> S,
        S: Future<Output = ()>,
    {
        let ticking = Ticking::begin(self.shared());
        async move {
            while let Some(first) = ticking.run_due() {
                let mut sleep = pin!(first.map(&mut sleep_until));
                poll_fn(|cx| {
                    if ticking.is_over(first, cx) {
                        return Poll::Ready(());
                    }
                    match sleep.as_mut().as_pin_mut() {
                        Some(sleep) => sleep.poll(cx),
                        None => Poll::Pending,
                    }
                })
                .await;
            }
        }
    }
}

struct Ticking {
    shared: Weak<Shared>,
    alarm: Arc<Alarm>,
}

impl Ticking {
    fn begin(shared: &Arc<Shared>) -> Self {
        assert!(
            shared.order.time.follows(),
            "Fabric::tick: this fabric does not follow a clock. Call Fabric::follow first"
        );
        assert!(here::thread_in(shared).is_some(), "{NOT_HERE}");
        let alarm = Arc::clone(shared.lock_quietly().clock.alarm());
        let before = mem::replace(&mut alarm.lock().is_ticked, true);
        assert!(
            !before,
            "Fabric::tick: this fabric has such a future already. Abort and await the task of the first \
             future before you make the next one"
        );
        Self {
            shared: Arc::downgrade(shared),
            alarm,
        }
    }

    /// Does the work that is due, and returns when the next work is; `None` if the fabric is gone.
    fn run_due(&self) -> Option<Option<Instant>> {
        let shared = self.shared.upgrade()?;
        assert!(here::thread_in(&shared).is_some(), "{NOT_HERE}");
        shared.run_due();
        let state = shared.lock_quietly();
        // The next work may have been taken back.
        state.clock.set_alarm();
        Some(state.clock.first())
    }

    /// Whether the sleep until an instant is over, because something is due earlier or the fabric
    /// is gone. Otherwise the task is woken when it is.
    fn is_over(&self, until: Option<Instant>, cx: &Context<'_>) -> bool {
        self.alarm.polled();
        let waker = cx.waker();
        let mut next = self.alarm.lock();
        if next.ended || next.is_before(until) {
            return true;
        }
        let is_known = |sleeper: &Sleeper| sleeper.waker.will_wake(waker);
        if let Some(sleeper) = next.sleeper.as_mut().filter(|sleeper| is_known(sleeper)) {
            sleeper.until = until;
            return false;
        }
        let waker = waker.clone();
        // Dropped without the lock: it may have the last handle of a task.
        let _before = next.sleeper.replace(Sleeper { until, waker });
        drop(next);
        false
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        let mut next = self.alarm.lock();
        next.is_ticked = false;
        let sleeper = next.sleeper.take();
        drop(next);
        drop(sleeper);
    }
}
