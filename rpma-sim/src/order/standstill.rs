//! A program that goes on while the time of its fabric stands still, or while no call has an
//! effect.
//!
//! A paused clock advances when all tasks wait. So a task that yields in a loop stops the time, and
//! no time-out, retry or reconnect comes. On a fabric with a seed, the clock jumps when all threads
//! wait. So it does not jump while a thread polls. Neither program sleeps, and a test of it may
//! pass without an event of those that it waits for. The thread of `stalls.rs` looks for both.
//!
//! The cause may also be a library that tries again at once, or hosts that answer each other without
//! end. So the line counts the calls, requests and events of that instant.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::stalls::{LOOKS, is_running};
use super::{Order, Standing, Thread};
use crate::qp::Send;

/// How many lines of the program are named.
const NAMED: usize = 4;

/// How many kinds of events are counted, and how many are named.
const COUNTED: usize = 100;
const FREQUENT: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// How many waits have ended, requests were executed, and threads have begun or ended.
    count: AtomicU64,
    /// The time may stand still, so that events and the lines of the program are noted.
    is_suspected: AtomicBool,
    lines: Mutex<BTreeSet<(&'static str, u32)>>,
    events: Mutex<BTreeMap<String, u64>>,
}

impl Effects {
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The program has posted these requests.
    pub(crate) fn posts<'s>(&self, sends: impl Iterator<Item = &'s Send>) {
        if !self.is_suspected.load(Ordering::Relaxed) {
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in sends.filter_map(|send| Some(send.caller?.line())) {
            if lines.len() < NAMED {
                lines.insert(line);
            }
        }
    }

    /// Counts an event, if the time may stand still.
    pub(crate) fn happens(&self, text: impl FnOnce() -> String) {
        if !self.is_suspected.load(Ordering::Relaxed) {
            return;
        }
        let text = text();
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < COUNTED || events.contains_key(&text) {
            *events.entry(text).or_default() += 1;
        }
    }

    fn suspect(&self, is_suspected: bool) {
        if self.is_suspected.swap(is_suspected, Ordering::Relaxed) && !is_suspected {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.clear();
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            events.clear();
        }
    }

    /// The most frequent events.
    fn events(&self) -> String {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = Vec::from_iter(events.iter());
        events.sort_by_key(|(_, count)| Reverse(**count));
        let others = events.len().saturating_sub(FREQUENT);
        events.truncate(FREQUENT);
        let text = |(text, count): (&String, &u64)| format!("{count} times {text}");
        let mut texts = Vec::from_iter(events.into_iter().map(text));
        if others > 0 {
            texts.push(format!("{others} other kinds"));
        }
        match texts.is_empty() {
            true => " At this instant there was no call, no request and no event, so a task goes on outside of \
                     rpma."
                .to_owned(),
            false => format!(" At this instant: {}.", texts.join(", ")),
        }
    }

    fn lines(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().map(|(file, line)| format!("{file}:{line}"));
        let lines: Vec<String> = lines.collect();
        match lines.is_empty() {
            true => String::new(),
            false => format!(" Operations were posted at {}.", lines.join(", ")),
        }
    }
}

/// The state of a fabric at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    /// The program's time, or the number of effects.
    progress: u64,
    /// How many calls there were, or how often the program's tasks had their turn.
    activity: u64,
}

/// For how long a program goes on without progress.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    last: Moment,
    looks: u32,
    is_printed: bool,
}

impl Standstill {
    /// Counts one look. Returns `true` once in each standstill, after 5 s in which the program has
    /// gone on at each look.
    fn is_over_limit(&mut self, now: Moment, is_running: bool) -> bool {
        if self.last.progress != now.progress {
            *self = Self::default();
        } else {
            self.looks += u32::from(is_running && self.last.activity != now.activity);
        }
        self.last = now;
        let is_first = self.looks >= LOOKS && !self.is_printed;
        self.is_printed |= is_first;
        is_first
    }

    /// Looks at a fabric. Returns the line about it once.
    pub(super) fn look(&mut self, order: &Order) -> Option<String> {
        // While a check runs, the program stands still rightly.
        if order.is_checking() {
            return None;
        }
        let now = order.moment()?;
        let threads = order.lock();
        let stats = threads.all.values().map(|thread| thread.stat.clone());
        let stats: Vec<_> = stats.collect();
        drop(threads);
        let is_running = stats.iter().any(|stat| is_running(stat.as_deref()));
        let is_same = self.last.progress == now.progress;
        let is_first = self.is_over_limit(now, is_running);
        order.effects.suspect(is_same && is_running);
        let text = is_first.then(|| order.text_of_standstill());
        if is_same && is_running {
            order.show_time();
        }
        text
    }
}

impl Order {
    fn moment(&self) -> Option<Moment> {
        let calls = self.calls_and_waits.load(Ordering::Relaxed);
        if self.time.follows() {
            let ticks = self.alarm.get().map_or(0, |alarm| alarm.polls());
            return Some(Moment {
                progress: self.time.seen(),
                activity: calls + ticks,
            });
        }
        self.seed.map(|_| Moment {
            progress: self.effects.count.load(Ordering::Relaxed),
            activity: calls + self.lock().trace.steps,
        })
    }

    /// Lets the future of `Fabric::tick` look at the program's time, and sleep on: tasks that only
    /// yield make no call.
    fn show_time(&self) {
        let alarm = self.alarm.get();
        let waker = alarm.and_then(|alarm| Some(alarm.lock().sleeper.as_ref()?.waker.clone()));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn text_of_standstill(&self) -> String {
        let threads = self.lock();
        let texts = |waits: bool| {
            let is_it = |thread: &&Thread| matches!(thread.standing, Standing::Waits(_)) == waits;
            let those = threads.all.values().filter(is_it).map(Thread::text);
            let those: Vec<String> = those.collect();
            match those.is_empty() {
                true => "none".to_owned(),
                false => those.join(", "),
            }
        };
        let (busy, waiting) = (texts(false), texts(true));
        let lines = self.effects.events() + &self.effects.lines();
        if self.time.follows() {
            return format!(
                "rpma-sim: the program's clock stands still for 5 s of real time, and tasks go on. A paused clock \
                 advances only when all tasks wait. Until then no time-out, retry or reconnect comes. Threads: \
                 {busy}.{lines} A call or an event that is repeated at one instant shows the loop: of the program, of a \
                 library, or of two hosts that answer each other. It goes on until something in it sleeps in the \
                 program's time, for example tokio::time::sleep(Duration::from_millis(1)). yield_now does not advance \
                 the clock.{}",
                self.choices.text_of_order()
            );
        }
        format!(
            "rpma-sim: the threads of a fabric with a seed go on for 5 s of real time, and no call has an effect. \
             Threads that poll: {busy}. Threads that wait: {waiting}.{lines} The fabric's clock jumps only when all \
             threads wait. A loop that polls must wait (Conn::wait_for, Conn::next, rpma::sync::Condvar) or sleep \
             (rpma::thread::sleep).{}",
            self.choices.text_of_order()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the line has the most frequent events of the instant, and those before it are
    /// forgotten.
    #[test]
    fn the_events_of_the_instant_are_counted() {
        let effects = Effects::default();
        let happens = |text: &str| effects.happens(|| text.to_owned());
        happens("before");
        effects.suspect(true);
        assert!(effects.events().contains("no event"));
        happens("once");
        (0..3).for_each(|_| happens("a poll"));
        assert_eq!(
            effects.events(),
            " At this instant: 3 times a poll, 1 times once."
        );
        (0..COUNTED).for_each(|number| happens(&number.to_string()));
        assert!(effects.events().ends_with("94 other kinds."));
        effects.suspect(false);
        effects.suspect(true);
        assert!(effects.events().contains("no event"));
    }

    /// A standstill is printed once, after 5 s in which the program went on; the next one is
    /// printed again. A program that sleeps or computes, or makes progress, is not meant.
    #[test]
    fn a_standstill_is_printed_once() {
        let mut standstill = Standstill::default();
        let mut activity = 0;
        let mut looks = |progress, count: u32, goes_on: bool, is_running: bool| {
            let looks = (0..count).filter(|_| {
                activity += u64::from(goes_on);
                standstill.is_over_limit(Moment { progress, activity }, is_running)
            });
            looks.count()
        };
        assert_eq!(
            looks(1, LOOKS, true, true),
            0,
            "the first look has seen progress"
        );
        assert_eq!(looks(1, 2 * LOOKS, false, true), 0, "it computes");
        assert_eq!(looks(1, 2 * LOOKS, true, false), 0, "it sleeps");
        assert_eq!(looks(1, 1, true, true), 1);
        assert_eq!(looks(1, 2 * LOOKS, true, true), 0, "it is printed already");
        assert_eq!(looks(2, LOOKS, true, true), 0);
        assert_eq!(looks(3, LOOKS, true, true), 0, "it has made progress");
        assert_eq!(looks(3, 1, true, true), 1);
    }
}
