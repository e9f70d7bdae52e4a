//! Time and order: a clock that jumps over waits, and a seed that chooses which thread goes on.
//!
//! Usually this code has no effect. If the clock jumps, threads run as they like, and the clock
//! goes forward when all of them wait. That is so beside the program's clock as well, for the
//! calls that block. If there is a seed, one thread runs at a time. At each call of verbs
//! ([`Shared::point`]) and each wait it gives the turn to one of those that could go on, and the
//! seed alone chooses which.
//!
//! The data is here. Threads block in two files: until it is their turn in `turns`, and in their
//! own waits in `waits`. `stalls` prints a line about a fabric that stands still, and `standstill`
//! about a program that goes on without progress.
//!
//! Locks: the state's comes before the one here. The turn is waited for with neither.

mod replay;
mod stalls;
mod standstill;
mod turns;
mod waits;

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::replay::{Chances, Turns};
use self::stalls::{Check, is_running};
pub(crate) use self::standstill::Effects;
pub(crate) use self::waits::Event;
use self::waits::Wait;
use crate::choices::{Choices, Kind};
use crate::state::Shared;
use crate::timer::{Alarm, Time};

/// For how long a thread may sleep elsewhere before it loses its turn, in real time.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a waiting thread looks whether the clock can jump, or whether something has happened
/// to it.
const LOOK: Duration = Duration::from_millis(1);

/// Identifies the calls of a run, their threads and their order. Two equal runs have equal traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trace {
    /// How many calls and waits there were.
    pub steps: u64,
    /// A hash of the threads and of their calls. Programs that were built separately may have
    /// different ones.
    pub hash: u64,
}

impl Trace {
    fn add(&mut self, thread: u64, at: &Location<'_>) {
        self.steps += 1;
        let call = u64::from(at.line()) << 16 | u64::from(at.column());
        self.hash = mix(self.hash ^ (thread << 48 | call));
    }
}

/// Spreads bits (splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// The threads of a fabric, and the thread that has the turn.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) time: Arc<Time>,
    seed: Option<u64>,
    pub(crate) choices: Arc<Choices>,
    jumps: AtomicBool,
    /// Wakes the future of the program that does the pending work, if there is one.
    alarm: OnceLock<Arc<Alarm>>,
    /// When a thread that waits panics.
    end: OnceLock<Instant>,
    /// How many random numbers programs have had.
    drawn: AtomicU64,
    /// How many calls there were, of threads on no host as well.
    calls: AtomicU64,
    /// The same, with waits and checks.
    calls_and_waits: AtomicU64,
    pub(crate) effects: Arc<Effects>,
    check: Mutex<Option<Check>>,
    is_watched: AtomicBool,
    threads: Mutex<Threads>,
}

#[derive(Debug)]
struct Threads {
    /// Those on a host, and the one that has made a fabric with a seed.
    all: BTreeMap<u64, Thread>,
    next: u64,
    /// The thread that runs; `None` if no thread could.
    turn: Option<u64>,
    turns: u64,
    trace: Trace,
    /// If the run is kept, or is to be like another one.
    kept: Option<Box<Turns>>,
    why_not: Option<String>,
    /// Since when no thread has the turn, and when that was looked at.
    idle: Option<(Instant, Instant)>,
    /// How many threads were woken for a turn, or because no thread has it.
    #[cfg(test)]
    woken: u64,
}

#[derive(Debug)]
struct Thread {
    name: String,
    last: Arc<Mutex<&'static str>>,
    standing: Standing,
    /// Wakes the thread when it is given the turn, or when no thread has it. Each thread has its
    /// own, because a shared one would wake all of them for each turn.
    given: Arc<Condvar>,
    /// It sleeps until then.
    sleeps: bool,
    /// It is in the code here, and gives the turn away or waits for it: so it is not away, however
    /// long that takes.
    is_inside: bool,
    /// It waits in the system for threads that are at their ends here: they need no turn any more,
    /// only a processor.
    joins: bool,
    /// The file in which the kernel reports the thread's state.
    stat: Option<PathBuf>,
    /// How likely it goes on, compared with others.
    weight: u64,
    /// The [scope](crate::thread::scope) that waits for its end.
    scope: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Standing {
    /// It runs, or could.
    Busy,
    Waits(Wait),
    /// It had the turn, and did not come back.
    Away,
}

impl Threads {
    /// The first deadline of waiting threads.
    fn nearest(&self) -> Option<Instant> {
        let deadline = |thread: &Thread| match &thread.standing {
            Standing::Waits(wait) => wait.deadline,
            _ => None,
        };
        self.all.values().filter_map(deadline).min()
    }

    fn is_any_away(&self) -> bool {
        let mut all = self.all.values();
        all.any(|thread| matches!(thread.standing, Standing::Away))
    }

    fn name(&self, thread: u64) -> &str {
        self.all
            .get(&thread)
            .map_or("that has ended", |thread| &thread.name)
    }

    /// The condition variable of a thread that sleeps.
    fn sleeper(&self, thread: u64) -> Option<Arc<Condvar>> {
        let thread = self.all.get(&thread).filter(|thread| thread.sleeps)?;
        Some(Arc::clone(&thread.given))
    }

    fn give(&mut self, turn: Option<u64>) {
        if let (Some(kept), Some(thread)) = (&mut self.kept, turn) {
            if let Some(given) = self.all.get(&thread) {
                let last = given.last.lock().unwrap_or_else(PoisonError::into_inner);
                kept.give(thread, &given.name, *last);
            }
        }
        self.turn = turn;
        self.turns += 1;
    }

    /// The thread of the run that this one is to be like, if there is one.
    fn as_kept(&self, ready: &[u64]) -> Option<u64> {
        self.kept.as_ref()?.choose(ready)
    }

    fn set(&mut self, thread: u64, standing: Standing) {
        if let Some(thread) = self.all.get_mut(&thread) {
            thread.standing = standing;
        }
    }

    fn is_inside(&self, thread: u64) -> bool {
        self.all.get(&thread).is_some_and(|thread| thread.is_inside)
    }

    fn set_inside(&mut self, thread: u64, is_inside: bool) {
        if let Some(thread) = self.all.get_mut(&thread) {
            thread.is_inside = is_inside;
        }
    }

    fn cannot_be_repeated(&mut self, why: impl FnOnce() -> String) {
        self.why_not.get_or_insert_with(why);
    }

    /// The thread that has the turn does not come back.
    fn take_from(&mut self, holder: u64) {
        if let Some(thread) = self.all.get_mut(&holder) {
            thread.standing = Standing::Away;
            let thread = thread.describe();
            self.cannot_be_repeated(|| {
                format!(
                    "{thread}, and did not come back to the fabric for {PATIENCE:?} of real time or more: it was in a \
                     lock, a sleep, a join or a computation outside of the fabric. Take locks from rpma::sync, and \
                     threads from rpma::thread"
                )
            });
        }
        self.give(None);
    }

    /// Whether it may be the calling thread that panics when all wait in vain.
    fn may_panic(&self, thread: u64) -> bool {
        // The end of a scope would sleep elsewhere after a panic. The threads of the scope can
        // panic.
        // A thread that serves others waits rightly.
        let leaves_it = |event: &Event| matches!(event, Event::ScopeEnd(_) | Event::Serves);
        let leaves_it = self.all.get(&thread).is_some_and(
            |thread| matches!(&thread.standing, Standing::Waits(wait) if leaves_it(&wait.event)),
        );
        !leaves_it && !thread::panicking()
    }

    fn describe(&self) -> String {
        let all: Vec<_> = self.all.values().map(Thread::describe).collect();
        all.join("; ")
    }
}

impl Thread {
    /// Whether it computes, or waits for a processor.
    fn is_running(&self) -> bool {
        self.joins || is_running(self.stat.as_deref())
    }

    fn describe(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        format!("thread {} was last in {}", self.name, *last)
    }
}

impl Order {
    pub(crate) fn new(seed: Option<u64>, choices: Choices) -> Self {
        Self {
            time: Arc::new(Time::new(seed.is_some())),
            seed,
            choices: Arc::new(choices),
            jumps: AtomicBool::new(false),
            alarm: OnceLock::new(),
            end: OnceLock::new(),
            drawn: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            calls_and_waits: AtomicU64::new(0),
            effects: Arc::default(),
            check: Mutex::default(),
            is_watched: AtomicBool::new(false),
            threads: Mutex::new(Threads {
                all: BTreeMap::new(),
                next: 0,
                turn: None,
                turns: 0,
                trace: Trace::default(),
                kept: None,
                why_not: None,
                idle: None,
                #[cfg(test)]
                woken: 0,
            }),
        }
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Whether one thread runs at a time. In the program's time the executor chooses which task
    /// goes on, and there is one thread.
    pub(crate) fn takes_turns(&self) -> bool {
        self.seed.is_some() && !self.time.follows()
    }

    pub(crate) fn has_others(&self) -> bool {
        self.lock().all.len() > 1
    }

    /// Lets a run in virtual time go on for so long.
    pub(crate) fn end_after(&self, longest: Duration) {
        let _is_set = self.end.set(self.time.now() + longest);
    }

    fn is_over(&self) -> bool {
        let end = self.end.get();
        end.is_some_and(|end| *end < self.time.now()) && !thread::panicking()
    }

    pub(crate) fn jumps(&self) -> bool {
        self.jumps.load(Ordering::Relaxed)
    }

    /// A future of the program does the pending work.
    pub(crate) fn is_ticked_by(self: &Arc<Self>, alarm: &Arc<Alarm>) {
        self.alarm.get_or_init(|| Arc::clone(alarm));
        self.jump_over_waits();
    }

    pub(crate) fn jump_over_waits(self: &Arc<Self>) {
        self.jumps.store(true, Ordering::Relaxed);
        self.watch();
    }

    /// Keeps the turns from now on, which are like those of another run if that has any.
    pub(crate) fn keep(&self, turns: Turns) {
        self.lock().kept = Some(Box::new(turns));
    }

    pub(crate) fn kept(&self) -> Turns {
        let kept = self.lock().kept.take();
        kept.map(|kept| *kept).unwrap_or_default()
    }

    pub(crate) fn trace(&self) -> Trace {
        self.lock().trace
    }

    pub(crate) fn joins(&self, thread: u64, joins: bool) {
        if let Some(thread) = self.lock().all.get_mut(&thread) {
            thread.joins = joins;
        }
    }

    pub(crate) fn why_not(&self) -> Option<String> {
        self.lock().why_not.clone()
    }

    /// The calling thread has done something that the seed does not repeat.
    pub(crate) fn is_not_repeatable(&self, why: impl FnOnce(&str) -> String) {
        if self.seed.is_some() {
            let thread = thread::current();
            let name = thread.name().unwrap_or("without a name");
            self.lock().cannot_be_repeated(|| why(name));
        }
    }

    /// A random number for a program, by the seed. The later choices of the seed stay the same.
    pub(crate) fn draw(&self) -> Option<u64> {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        // A run in the program's time draws the same numbers each time.
        let seed = self.seed.or(self.time.follows().then_some(0x5EED));
        seed.map(|seed| mix(!mix(seed) ^ mix(number)))
    }

    pub(crate) fn has(&self, thread: u64) -> bool {
        self.lock().all.contains_key(&thread)
    }

    /// Whether waits are its own matter.
    pub(crate) fn is_on(&self) -> bool {
        self.seed.is_some() || self.jumps()
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        // It is consistent whenever something could panic.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread of a fabric, for as long as this is kept.
#[derive(Debug)]
pub(crate) struct ThreadEntry {
    pub(crate) shared: Weak<Shared>,
    pub(crate) number: u64,
    last: Arc<Mutex<&'static str>>,
    effects: Arc<Effects>,
}

impl ThreadEntry {
    /// The next thread of a fabric: the calling one, or one that it will start, perhaps in a scope.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        name: String,
        is_own: bool,
        scope: Option<usize>,
    ) -> Arc<Self> {
        let last = Arc::new(Mutex::new("no call"));
        let mut threads = shared.order.lock();
        threads.next += 1;
        let number = threads.next;
        let is_first = threads.all.is_empty();
        if !is_first && shared.order.seed.is_some() && shared.order.time.follows() {
            threads.cannot_be_repeated(|| {
                format!("thread {name} is on a fabric that follows the program's clock, beside another thread")
            });
        } else if is_own && !is_first && shared.order.takes_turns() {
            threads.cannot_be_repeated(|| {
                format!(
                    "thread {name} came to a host by itself, at any time: start it with Host::spawn"
                )
            });
        }
        // With each seed others are slow: if all were equal, the first one started would be through
        // first.
        let weight = 1 << (3 * shared.order.choices.choose(Kind::Weight, 3, String::new));
        let thread = Thread {
            name,
            last: Arc::clone(&last),
            standing: Standing::Busy,
            given: Arc::default(),
            sleeps: false,
            is_inside: false,
            joins: false,
            stat: None,
            weight,
            scope,
        };
        threads.all.insert(number, thread);
        if is_first && threads.turn.is_none() {
            threads.give(Some(number));
        }
        drop(threads);
        shared.order.effects.add();
        Arc::new(Self {
            shared: Arc::downgrade(shared),
            number,
            last,
            effects: Arc::clone(&shared.order.effects),
        })
    }

    pub(crate) fn calls(&self, call: &'static str) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = call;
        self.effects.happens(|| format!("the call {call}"));
    }
}

/// The last step of a thread.
const ENDS: u64 = u64::MAX;

impl Drop for ThreadEntry {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        shared.order.effects.add();
        let mut threads = shared.order.lock();
        // It may have been away until its end. Then the others have not waited in vain.
        threads.idle = None;
        threads.all.remove(&self.number);
        let choices = &shared.order.choices;
        choices.with_script(|script| script.comes_to(self.number, ENDS));
        let had_turn = threads.turn == Some(self.number);
        drop(threads);
        if had_turn {
            shared.give_turn(self.number);
        }
    }
}
