//! Turns: with a seed one thread runs, gives its turn away at each call, and waits until it comes
//! back.

use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::stalls::own_stat;
use super::waits::{earlier, panic_in_vain};
use super::{LOOK, PATIENCE, Standing, Thread, Threads};
use crate::here;
use crate::state::Shared;
use crate::steps::is_acting;
use crate::wait::is_undivided;

/// How long a call takes, where time is virtual.
const CALL: Duration = Duration::from_micros(1);

/// How often a waiting thread looks at the thread that has the turn. Slices are counted, and not
/// the time, because a process may be stopped.
const SLICE: Duration = Duration::from_millis(100);

/// How much less a slice counts in which the thread was not asleep: it computes, or waits for a
/// processor.
const RUNNING: u32 = 30;

impl Shared {
    /// Each call begins here, before it takes the lock of the state: with a seed, another thread
    /// may go on first.
    pub(crate) fn point(&self, at: &'static Location<'static>) {
        if is_acting() {
            return;
        }
        self.steps.add();
        self.let_others_go_on(at);
        self.steps.act();
    }

    /// If there is a seed, another thread may go on first.
    pub(crate) fn let_others_go_on(&self, at: &'static Location<'static>) {
        if is_acting() {
            return;
        }
        self.order.calls.fetch_add(1, Ordering::Relaxed);
        self.order.calls_and_waits.fetch_add(1, Ordering::Relaxed);
        if self.order.seed.is_none() {
            return;
        }
        match here::thread_in(self) {
            Some(thread) if !self.order.takes_turns() => {
                self.order.lock().trace.add(thread, at);
            }
            Some(thread) => {
                self.pass(thread, at, Standing::Busy);
            }
            None => {
                let mut threads = self.order.lock();
                if !threads.all.is_empty() {
                    threads.cannot_be_repeated(|| {
                        let thread = thread::current();
                        let name = thread.name().unwrap_or("without a name").to_owned();
                        format!("thread {name} called the fabric, and was on none of its hosts")
                    });
                }
            }
        }
    }

    /// A thread begins: it waits for its turn, if there are turns.
    pub(crate) fn begin(&self, thread: u64) {
        let stat = own_stat();
        let mut threads = self.order.lock();
        if let Some(thread) = threads.all.get_mut(&thread) {
            thread.stat = stat;
        }
        if !self.order.takes_turns() {
            return;
        }
        drop(self.await_turn(threads, thread));
    }

    /// Gives the turn away, and returns when it comes back; `false` if the thread has left the
    /// fabric.
    pub(crate) fn pass(
        &self,
        thread: u64,
        at: &'static Location<'static>,
        standing: Standing,
    ) -> bool {
        let mut threads = self.order.lock();
        if !threads.all.contains_key(&thread) {
            return false;
        }
        threads.set_inside(thread, true);
        if threads.turn != Some(thread) {
            // It was away. No thread has waited in vain meanwhile.
            threads.idle = None;
            threads.set(thread, Standing::Busy);
            threads = self.await_turn(threads, thread);
        }
        threads.trace.add(thread, at);
        if let Some(kept) = &mut threads.kept {
            kept.comes_to(thread, at);
        }
        let place = u64::from(at.line());
        let choices = &self.order.choices;
        choices.with_script(|script| script.comes_to(thread, place));
        let goes_on = matches!(standing, Standing::Busy) && is_undivided();
        threads.set(thread, standing);
        self.order.time.advance(CALL);
        drop(threads);
        if goes_on {
            self.run_due();
            self.order.lock().set_inside(thread, false);
            return true;
        }
        self.give_turn(thread);
        let mut threads = self.await_turn(self.order.lock(), thread);
        threads.set(thread, Standing::Busy);
        threads.set_inside(thread, false);
        true
    }

    /// Gives the turn to one of the threads that can go on. If no thread can go on, the clock jumps
    /// until one can.
    pub(super) fn give_turn(&self, from: u64) {
        let began = Instant::now();
        loop {
            self.run_due();
            let mut threads = self.order.lock();
            if threads.turn != Some(from) {
                return;
            }
            let ready = self.ready(&threads);
            let weighted: Vec<_> = ready
                .iter()
                .map(|it| (*it, threads.all[it].weight))
                .collect();
            let seeded = self.order.choices.next_thread(&weighted, from, |next| {
                format!(
                    "thread {} ({next}) goes on, and not {} ({from})",
                    threads.name(next),
                    threads.name(from)
                )
            });
            let chosen = seeded.map(|seeded| threads.as_kept(&ready).unwrap_or(seeded));
            if chosen.is_some() {
                threads.idle = None;
                threads.give(chosen);
                let given = chosen.and_then(|chosen| threads.sleeper(chosen));
                drop(threads);
                // After the lock is free, so that the thread does not wake only to wait for it.
                if let Some(given) = given {
                    given.notify_one();
                }
                return;
            }
            let mut next = None;
            if !threads.all.is_empty() && !threads.is_any_away() {
                let nearest = threads.nearest();
                drop(threads);
                let first = self.lock_quietly().clock.first();
                // Endless retries are no progress.
                let is_vain = nearest.is_none() && began.elapsed() > PATIENCE;
                next = earlier(nearest, first).filter(|_| !is_vain);
                threads = self.order.lock();
            }
            match next {
                Some(at) => self.order.time.jump_to(at),
                None => {
                    if threads.turn == Some(from) {
                        threads.give(None);
                    }
                    let now = Instant::now();
                    threads.idle = threads.idle.or(Some((now, now)));
                    for thread in threads.all.values().filter(|thread| thread.sleeps) {
                        thread.given.notify_one();
                    }
                    return;
                }
            }
        }
    }

    /// Waits for the turn. A waiting thread also notices when the thread with the turn does not
    /// come back, and when no thread has the turn.
    fn await_turn<'a>(
        &'a self,
        mut threads: MutexGuard<'a, Threads>,
        thread: u64,
    ) -> MutexGuard<'a, Threads> {
        let (mut away, mut turns) = (Duration::ZERO, threads.turns);
        while threads.turn != Some(thread) && threads.all.contains_key(&thread) {
            if turns != threads.turns {
                (away, turns) = (Duration::ZERO, threads.turns);
            }
            let Some(holder) = threads.turn else {
                threads = self.while_idle(threads, thread);
                continue;
            };
            if threads.is_inside(holder) {
                away = Duration::ZERO;
            }
            if away >= PATIENCE {
                threads.take_from(holder);
                continue;
            }
            let (again, waited) = self.sleep(threads, thread, SLICE);
            threads = again;
            if waited {
                let running = threads.all.get(&holder).is_some_and(Thread::is_running);
                away += if running { SLICE / RUNNING } else { SLICE };
            }
        }
        threads
    }

    /// Sleeps until the turn is given; `true` if it was not.
    fn sleep<'a>(
        &self,
        mut threads: MutexGuard<'a, Threads>,
        thread: u64,
        limit: Duration,
    ) -> (MutexGuard<'a, Threads>, bool) {
        let Some(own) = threads.all.get_mut(&thread) else {
            return (threads, false);
        };
        own.sleeps = true;
        let given = Arc::clone(&own.given);
        let woken = given.wait_timeout(threads, limit);
        let (mut threads, waited) = woken.unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = threads.all.get_mut(&thread) {
            own.sleeps = false;
        }
        #[cfg(test)]
        {
            threads.woken += u64::from(!waited.timed_out());
        }
        (threads, waited.timed_out())
    }

    /// No thread can go on before a thread that is away comes back, or its real time has gone by.
    fn while_idle<'a>(
        &'a self,
        mut threads: MutexGuard<'a, Threads>,
        thread: u64,
    ) -> MutexGuard<'a, Threads> {
        let now = Instant::now();
        let (since, looked) = threads.idle.unwrap_or((now, now));
        if threads.is_any_away() {
            self.order.time.advance(now - looked);
        } else if now - since > PATIENCE && threads.may_panic(thread) {
            // The others find the same, in their turn.
            threads.idle = None;
            threads.set(thread, Standing::Busy);
            // From here on it may sleep elsewhere.
            threads.set_inside(thread, false);
            let all = threads.describe();
            drop(threads);
            panic_in_vain(all);
        }
        threads.idle = Some((since, now));
        threads.give(Some(thread));
        drop(threads);
        self.give_turn(thread);
        let threads = self.order.lock();
        match threads.turn {
            None => self.sleep(threads, thread, LOOK).0,
            Some(_) => threads,
        }
    }

    pub(crate) fn run_due(&self) {
        let mut state = self.lock_quietly();
        if state.run_due() {
            self.changed.notify_all();
        }
        drop(state);
        self.steps.act();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Fabric, Profile};

    /// One wake-up for each turn, however many threads wait: a fabric that wakes them all spends
    /// its time in the kernel.
    #[test]
    fn a_turn_wakes_one_thread() {
        let fabric = Fabric::seeded(Profile::ADAPTER, 1);
        let host = fabric.host("here");
        let sleeps = || (0..100).for_each(|_| crate::wait::sleep(Duration::from_millis(1)));
        let threads: Vec<_> = (0..12).map(|_| host.spawn(sleeps)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let threads = fabric.shared().order.lock();
        let (turns, woken) = (threads.turns, threads.woken);
        assert!(turns > 1200 && woken <= turns, "{woken} in {turns} turns");
    }
}
