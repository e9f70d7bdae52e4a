//! Stalls: a thread that others wait for sleeps outside of the fabric, in a std lock for instance.
//! A thread of the process looks at the fabrics, and prints one line about each stall. Another
//! cause: a program has no future of `Fabric::tick`, without which the fabric that follows its
//! clock stands still.
//!
//! The waiting threads cannot print it: one may be blocked in the lock of the state.

use std::cell::OnceCell;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::standstill::Standstill;
use super::{Order, Standing, Thread};

/// The real time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// A stall has lasted for so many looks when it is printed. Looks are counted, as a process may be
/// stopped.
pub(super) const LOOKS: u32 = 10;

/// The fabrics with an order of threads, a check or the program's clock.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

struct Watched {
    order: Weak<Order>,
    since: Since,
    standstill: Standstill,
}

/// The last progress of a fabric.
#[derive(Debug, Default)]
struct Since {
    progress: u64,
    looks: u32,
    is_printed: bool,
}

impl Since {
    /// Counts one look. Returns `true` once in each stall, after 5 s.
    fn is_stalled(&mut self, progress: u64, sleeps: bool) -> bool {
        if self.progress != progress {
            *self = Self {
                progress,
                ..Self::default()
            };
            return false;
        }
        self.looks = if sleeps { self.looks + 1 } else { 0 };
        let is_first = self.looks >= LOOKS && !self.is_printed;
        self.is_printed |= is_first;
        is_first
    }
}

/// A check that a thread runs, with the lock of the state.
#[derive(Debug)]
pub(super) struct Check {
    thread: Option<u64>,
    stat: Option<PathBuf>,
}

/// A thread runs a check until this is dropped.
pub(crate) struct Checking(Arc<Order>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.set_check(None);
    }
}

/// The state of a fabric at one look.
struct Snapshot {
    progress: u64,
    /// The threads that others wait for.
    stats: Vec<Option<PathBuf>>,
    text: String,
}

impl Order {
    /// Looks at this fabric from now on.
    pub(crate) fn watch(self: &Arc<Self>) {
        static ONCE: Once = Once::new();
        // Miri has no files in which a thread's state could be read.
        if cfg!(miri) || self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        ONCE.call_once(|| {
            let thread = thread::Builder::new().name("rpma-sim stalls".to_owned());
            // Without a thread stalls are not printed, which is the only effect.
            let _ = thread.spawn(|| {
                loop {
                    thread::sleep(LOOK);
                    look_at_all();
                }
            });
        });
        let watched = Watched {
            order: Arc::downgrade(self),
            since: Since::default(),
            standstill: Standstill::default(),
        };
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(watched);
    }

    pub(crate) fn begin_check(self: &Arc<Self>, thread: Option<u64>) -> Checking {
        let stat = own_stat();
        self.set_check(Some(Check { thread, stat }));
        Checking(Arc::clone(self))
    }

    pub(super) fn is_checking(&self) -> bool {
        let check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        check.is_some()
    }

    fn set_check(&self, check: Option<Check>) {
        self.calls_and_waits.fetch_add(1, Ordering::Relaxed);
        *self.check.lock().unwrap_or_else(PoisonError::into_inner) = check;
    }

    /// Returns `None` if no thread waits for another one, and a future does the pending work.
    fn look(&self) -> Option<Snapshot> {
        let check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = self.lock();
        let progress = self.calls_and_waits.load(Ordering::Relaxed) + threads.trace.steps;
        let texts = |which: &dyn Fn(u64, &Thread) -> bool| {
            let which = threads.all.iter().filter(|(it, of)| which(**it, of));
            which.map(|(_, of)| of.text()).collect::<Vec<_>>()
        };
        if let Some(check) = &*check {
            let own = texts(&|it, _| check.thread == Some(it));
            let others = texts(&|it, _| check.thread != Some(it));
            return Some(Snapshot {
                progress,
                stats: vec![check.stat.clone()],
                text: text_of_check(own.first().map(String::as_str), &others),
            });
        }
        let alarm = self.alarm.get();
        let is_in_vain = alarm.is_some_and(|alarm| alarm.lock().is_in_vain());
        // A fabric without a thread is one that a test has left.
        if is_in_vain && !threads.all.is_empty() {
            let stats = threads.all.values().map(|of| of.stat.clone()).collect();
            let text = text_of_alarm(&texts(&|_, _| true));
            return Some(Snapshot {
                progress,
                stats,
                text,
            });
        }
        let is_away = |of: &Thread| matches!(of.standing, Standing::Away);
        let is_any_away = threads.is_any_away();
        let is_waited_for = |it: u64, of: &Thread| match self.seed {
            Some(_) if is_any_away => is_away(of),
            Some(_) => threads.turn == Some(it),
            None => matches!(of.standing, Standing::Busy),
        };
        let all = threads.all.iter();
        let (those, waiting): (Vec<_>, Vec<_>) = all.partition(|(it, of)| is_waited_for(**it, of));
        if those.is_empty() || waiting.is_empty() {
            return None;
        }
        let stats = those.iter().map(|(_, of)| of.stat.clone()).collect();
        let state = match (self.seed, is_any_away) {
            (Some(_), false) => "has the turn, and sleeps",
            (Some(_), true) => "has lost its turn, and sleeps",
            (None, _) => "keeps the clock from a jump, and sleeps",
        };
        let text = text_of_order(
            &texts(&is_waited_for),
            state,
            &texts(&|it, of| !is_waited_for(it, of)),
        );
        Some(Snapshot {
            progress,
            stats,
            text,
        })
    }
}

impl Order {
    /// Returns the name and the last call of a thread.
    pub(crate) fn text_of(&self, thread: u64) -> Option<String> {
        self.lock().all.get(&thread).map(Thread::text)
    }
}

impl Thread {
    pub(super) fn text(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        format!("{} (last call: {})", self.name, *last)
    }
}

fn text_of_check(own: Option<&str>, others: &[String]) -> String {
    let (own, others) = (own.unwrap_or("of the fabric's clock"), others.join(", "));
    format!(
        "rpma-sim: a check of on_every_event sleeps, and its fabric stands still, for 5 s of real time. Thread {own} \
         runs the check. Other threads: {others}. A check must not wait for a std lock that the program holds while it \
         calls rpma. Unlock it before the call, or use rpma::sync::Mutex, with which the check fails."
    )
}

fn text_of_alarm(threads: &[String]) -> String {
    let threads = threads.join(", ");
    format!(
        "rpma-sim: a fabric that follows the program's clock stands still for 5 s of real time. Something is to come, \
         and no future of Fabric::tick waits for it. Threads: {threads}. Spawn one in the runtime, beside the program. \
         It ends when it is dropped, or when it panics."
    )
}

fn text_of_order(those: &[String], state: &str, waiting: &[String]) -> String {
    let each = |it: &String| format!("Thread {it} {state} outside of the fabric.");
    let (those, waiting) = (those.iter().map(each), waiting.join(", "));
    let those: Vec<String> = those.collect();
    format!(
        "rpma-sim: no thread of a fabric goes on for 5 s of real time. {} Threads that wait: {waiting}. The fabric does \
         not see std's locks, channels, sleeps and joins. Use those of rpma::sync and rpma::thread.",
        those.join(" ")
    )
}

fn look_at_all() {
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain_mut(|watched| {
        let Some(order) = watched.order.upgrade() else {
            return false;
        };
        match order.look() {
            Some(look) => {
                let sleeps = !look.stats.iter().any(|stat| is_running(stat.as_deref()));
                if watched.since.is_stalled(look.progress, sleeps) {
                    // Not as a test's output, which is shown at the end of the test only.
                    let _ = writeln!(io::stderr(), "{}", look.text);
                }
            }
            None => watched.since = Since::default(),
        }
        if let Some(line) = watched.standstill.look(&order) {
            let _ = writeln!(io::stderr(), "{line}");
        }
        true
    });
}

pub(super) fn own_stat() -> Option<PathBuf> {
    thread_local! {
        static OWN: OnceCell<Option<PathBuf>> = const { OnceCell::new() };
    }
    // Miri isolates programs from files.
    if cfg!(miri) {
        return None;
    }
    let find = || {
        let own = fs::read_link("/proc/thread-self").ok()?;
        Some(Path::new("/proc").join(own).join("stat"))
    };
    let own = OWN.try_with(|own| own.get_or_init(find).clone());
    own.ok().flatten()
}

/// Whether a thread is not asleep, as far as can be known.
pub(super) fn is_running(stat: Option<&Path>) -> bool {
    let Some(stat) = stat else {
        // It has not begun yet.
        return true;
    };
    let stat = fs::read_to_string(stat).unwrap_or_default();
    // After the name, in parentheses.
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.starts_with(['R', 'D'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stall is printed once, after 5 s in which the thread slept at each look; the next one is
    /// printed again.
    #[test]
    fn a_stall_is_printed_once() {
        let mut since = Since::default();
        let mut looks = |progress, sleeps: &[bool]| {
            let stalled = sleeps.iter();
            let stalled = stalled.map(|sleeps| since.is_stalled(progress, *sleeps));
            stalled.filter(|is_stalled| *is_stalled).count()
        };
        let long = [true; LOOKS as usize];
        assert_eq!(looks(1, &long), 0, "the first look has seen progress");
        assert_eq!(looks(1, &[true]), 1);
        assert_eq!(looks(1, &long), 0, "it is printed already");
        assert_eq!(looks(2, &[true]), 0);
        assert_eq!(looks(2, &long[1..]), 0);
        assert_eq!(looks(2, &[false]), 0, "it has run");
        assert_eq!(looks(2, &long[1..]), 0);
        assert_eq!(looks(2, &[true]), 1);
    }
}
