//! The rule of every wait that is a loop of looks and sleeps: its limit holds, also while a peer
//! sends without a pause.
//!
//! 1. The condition is judged. A wait whose condition holds takes nothing.
//! 2. A look takes at most as many completions as the queues have entries, and at most 64 events.
//!    So a look takes everything that came before it, and a peer that keeps sending cannot hold it.
//! 3. The condition is judged again, and then the limit. So a wait looks once more after its limit,
//!    and a program that stood still does not lose to its own limit.
//!
//! [`wait`] is that loop. In [`wait_polling`] a sleep is the look as well, because as two steps they
//! would cost a system call more: such a wait polls and sleeps, and looks once more at its limit.
//! `Conn::next`, [`Wait::next`](crate::wait::Wait::next) and the waits for one event of a channel
//! have loops of their own, for the same reason.

use std::hint;
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{Error, Result};
use crate::verbs::Deadline;

/// The longest sleep before a wait looks without an event: for completions that other threads have
/// left without one, for those of [`Cq::wait`](crate::Cq::wait) that give no event
/// ([`Notify::Solicited`](crate::Notify::Solicited)), and for an end that another thread has taken.
pub(crate) const BOUND: Duration = Duration::from_secs(1);

/// The most events of the connection manager that one look takes.
pub(crate) const EVENTS: usize = 64;

/// The part of a look that is left.
#[derive(Debug)]
pub(crate) struct Budget {
    completions: usize,
    events: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Took {
    Nothing,
    Completions(usize),
    Event,
}

impl Budget {
    /// The budget of a look at queues with this sum of entries.
    pub(crate) fn of(entries: usize) -> Self {
        Self {
            completions: entries,
            events: EVENTS,
        }
    }

    /// The look has taken something. Returns whether it goes on.
    pub(crate) fn goes_on(&mut self, took: Took) -> bool {
        match took {
            Took::Nothing => false,
            Took::Completions(count) => {
                self.completions = self.completions.saturating_sub(count);
                self.completions > 0
            }
            Took::Event => {
                self.events -= 1;
                self.events > 0
            }
        }
    }
}

/// When a look is due, for a wait that polls the completion queues before it does anything else.
///
/// A poll makes no system call. It does not see the end of a connection, nor the silence of a peer.
/// So a look comes after so many polls, or so long after the last one, also if no poll is in vain.
#[derive(Debug, Default)]
pub(crate) struct LookDue {
    polls: u32,
    /// `None`: there was no look.
    at: Option<Instant>,
}

impl LookDue {
    const POLLS: u32 = 64;
    const AFTER: Duration = Duration::from_millis(10);

    /// A poll has come, at this time. Returns whether a look is due as well.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.polls = self.polls.saturating_add(1);
        self.polls > Self::POLLS || self.at.is_none_or(|at| now >= at)
    }

    /// A look begins.
    pub(crate) fn looks(&mut self, now: Instant) {
        self.polls = 0;
        self.at = now.checked_add(Self::AFTER);
    }
}

/// Polls before a sleep, for `time` ([`ConnCfg::set_spin`](crate::ConnCfg::set_spin)), or until the
/// deadline. `poll` returns the result if something was there.
#[inline]
pub(crate) fn spin<T>(
    time: Duration,
    deadline: Deadline,
    poll: impl FnMut() -> Option<T>,
) -> Option<T> {
    if time.is_zero() || deadline.has_passed() {
        return None;
    }
    spin_until(deadline.earlier(Deadline::after(time)), poll)
}

#[inline(never)]
fn spin_until<T>(deadline: Deadline, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    /// Between two readings of the clock, which cost as much as several polls.
    const POLLS: u32 = 32;
    loop {
        for _ in 0..POLLS {
            if let Some(found) = poll() {
                return Some(found);
            }
            hint::spin_loop();
        }
        clock::spun();
        if deadline.has_passed() {
            return None;
        }
    }
}

/// The guard of a wait against looks that find events and no result: other threads may cause
/// events, and poll the completions, without a pause.
#[derive(Debug, Default)]
pub(crate) struct Vain(u32);

impl Vain {
    const MOST: u32 = 16;

    /// A look was in vain. Returns whether the wait may look again before it keeps to its limit.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.0 += 1;
        self.0 <= Self::MOST
    }
}

/// Waits by the rule, for at most `limit`. `judge` returns the result if the condition holds. `take`
/// is one look. `sleep` sleeps until something may be there, or until the deadline. Each may end the
/// wait with an error, if the condition does not hold after it. `None`: the limit has passed.
#[inline]
pub(crate) fn wait<S, T, E>(
    of: &mut S,
    limit: Duration,
    mut judge: impl FnMut(&mut S) -> Option<T>,
    mut take: impl FnMut(&mut S) -> Result<(), E>,
    mut sleep: impl FnMut(&mut S, Deadline) -> Result<(), E>,
) -> Result<Option<T>, E> {
    if let Some(found) = judge(of) {
        return Ok(Some(found));
    }
    let deadline = Deadline::after(limit);
    loop {
        let is_last = deadline.has_passed();
        let taken = take(of);
        if let Some(found) = judge(of) {
            return Ok(Some(found));
        }
        taken?;
        if is_last {
            return Ok(None);
        }
        let slept = sleep(of, deadline);
        // A sleep may take something.
        if let Some(found) = judge(of) {
            return Ok(Some(found));
        }
        slept?;
    }
}

/// As [`wait`], from this instant on, for a wait whose condition was judged and does not hold, and
/// whose sleep is a look at everything, and takes what it finds. So it only polls before a sleep,
/// and one more look comes when the limit has passed. An error ends the wait if the condition does
/// not hold after it.
#[inline]
pub(crate) fn wait_polling<S, T, E>(
    of: &mut S,
    (from, limit): (Instant, Duration),
    mut judge: impl FnMut(&mut S) -> Option<T>,
    mut poll: impl FnMut(&mut S) -> Result<(), E>,
    mut sleep: impl FnMut(&mut S, Deadline) -> Result<(), E>,
    mut look: impl FnMut(&mut S) -> Result<(), E>,
) -> Result<Option<T>, E> {
    loop {
        let polled = poll(of);
        if let Some(found) = judge(of) {
            return Ok(Some(found));
        }
        polled?;
        if !limit.is_zero() {
            let deadline = Deadline::at(from, limit);
            let slept = sleep(of, deadline);
            if let Some(found) = judge(of) {
                return Ok(Some(found));
            }
            slept?;
            if !deadline.has_passed() {
                continue;
            }
        }
        let looked = look(of);
        let found = judge(of);
        if found.is_none() {
            looked?;
        }
        return Ok(found);
    }
}

/// Waits with `next` for an event that `judge` has a result for, and skips the others. Skipped
/// events must not hold the caller beyond its limit, so after the deadline the result is
/// [`Error::NoEvent`], as that of `next` is.
pub(crate) fn skip<E, T>(
    deadline: Deadline,
    mut next: impl FnMut() -> Result<E>,
    mut judge: impl FnMut(E) -> Option<Result<T>>,
) -> Result<T> {
    loop {
        if let Some(found) = judge(next()?) {
            return found;
        }
        if deadline.has_passed() {
            return Err(Error::NoEvent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a look of a queue with three entries ends after three completions, or 64 events.
    #[test]
    fn a_look_is_bounded() {
        let mut budget = Budget::of(3);
        assert!(budget.goes_on(Took::Completions(2)) && budget.goes_on(Took::Event));
        assert!(!budget.goes_on(Took::Nothing));
        assert!(!budget.goes_on(Took::Completions(8)));
        let mut budget = Budget::of(3);
        let events = (0..1000).take_while(|_| budget.goes_on(Took::Event));
        assert_eq!(events.count(), EVENTS - 1);
    }

    /// Promise: a wait whose condition holds takes nothing; one whose limit has passed looks once,
    /// and judges before it gives up; an error does not hide the condition.
    #[test]
    fn the_order_is_the_rule() {
        let after = |looks: u32| move |taken: &mut u32| (*taken >= looks).then_some(());
        let (mut taken, no_sleep) = (0, |_: &mut u32, _| -> Result<(), ()> { panic!("no sleep") });
        let mut run = |looks, result: Result<(), ()>| {
            taken = 0;
            let take = |taken: &mut u32| {
                *taken += 1;
                result
            };
            let waited = wait(&mut taken, Duration::ZERO, after(looks), take, no_sleep);
            (waited, taken)
        };
        assert_eq!(run(0, Ok(())), (Ok(Some(())), 0));
        assert_eq!(run(1, Ok(())), (Ok(Some(())), 1));
        assert_eq!(run(2, Ok(())), (Ok(None), 1));
        assert_eq!(run(1, Err(())), (Ok(Some(())), 1));
        assert_eq!(run(2, Err(())), (Err(()), 1));
    }

    /// Promise: a wait that polls takes its steps in this order, each judged: a poll, a sleep, and a
    /// look when the limit has passed. Without time it does not sleep. An error does not hide the
    /// condition.
    #[test]
    fn a_wait_that_polls_looks_last() {
        let run = |until: &str, limit, error: bool| {
            let from = clock::now() - Duration::from_secs(1);
            let mut steps = String::new();
            let step = |name: char| {
                move |steps: &mut String| {
                    steps.push(name);
                    if error { Err(name) } else { Ok(()) }
                }
            };
            let sleep = |steps: &mut String, _: Deadline| {
                steps.push('s');
                Ok(())
            };
            let judge = |steps: &mut String| (steps == until).then_some(());
            let (poll, look) = (step('p'), step('l'));
            let waited = wait_polling(&mut steps, (from, limit), judge, poll, sleep, look);
            (waited, steps)
        };
        let (long, zero) = (Duration::MAX, Duration::ZERO);
        for until in ["p", "ps", "psp", "psps"] {
            assert_eq!(run(until, long, false), (Ok(Some(())), until.into()));
        }
        assert_eq!(run("", zero, false), (Ok(None), "pl".into()));
        assert_eq!(run("pl", zero, false), (Ok(Some(())), "pl".into()));
        assert_eq!(
            run("", Duration::from_nanos(1), false),
            (Ok(None), "psl".into())
        );
        assert_eq!(run("p", zero, true), (Ok(Some(())), "p".into()));
        assert_eq!(run("pl", zero, true), (Err('p'), "p".into()));
    }

    /// Promise: a wait polls for the time that was set, and at most until its limit, and reads the
    /// clock only between 32 polls.
    #[test]
    fn a_spin_ends_by_its_time_or_its_deadline() {
        let polls = |time, deadline| {
            let mut polls = 0;
            let found = spin(time, deadline, || {
                polls += 1;
                (polls == 1000).then_some(())
            });
            (found, polls)
        };
        let (zero, long) = (Duration::ZERO, Duration::from_secs(3600));
        assert_eq!(polls(zero, Deadline::Never), (None, 0));
        assert_eq!(polls(long, Deadline::after(zero)), (None, 0));
        assert_eq!(polls(long, Deadline::Never), (Some(()), 1000));
        let (found, polls) = polls(Duration::from_nanos(1), Deadline::Never);
        assert!(found.is_none() && polls > 0 && polls % 32 == 0, "{polls}");
    }

    /// Promise: a look is due at first, after 64 polls, and 10 ms after the last look.
    #[test]
    fn a_look_is_due_by_number_and_by_time() {
        let mut due = LookDue::default();
        let now = clock::now();
        assert!(due.is_due(now), "there was no look");
        for _ in 0..3 {
            due.looks(now);
            let polls = (0..1000).take_while(|_| !due.is_due(now));
            assert_eq!(polls.count(), 64);
        }
        due.looks(now);
        assert!(!due.is_due(now + LookDue::AFTER - Duration::from_nanos(1)));
        assert!(due.is_due(now + LookDue::AFTER));
    }

    /// Promise: events that a caller skips do not hold it beyond its limit, and the wanted one ends
    /// the wait, also after the limit.
    #[test]
    fn skipped_events_do_not_hold_a_wait() {
        let now = Deadline::after(Duration::ZERO);
        let taken = |deadline, wanted: u32| {
            let mut came = 0;
            let next = || {
                came += 1;
                Ok(came)
            };
            skip(deadline, next, |event| {
                (event == wanted).then_some(Ok(event))
            })
        };
        assert!(matches!(taken(now, 1), Ok(1)));
        assert!(matches!(taken(now, 2), Err(Error::NoEvent)));
        assert!(matches!(taken(Deadline::Never, 50), Ok(50)));
    }
}
