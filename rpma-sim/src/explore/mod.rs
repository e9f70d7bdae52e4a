//! All orders of a small program that deviate little from a base order.
//!
//! A run is a function of its choices ([`crate::choices`]). Here a script answers them: option 0,
//! except for a few deviations. A run also records the choices that it was asked for, so each run
//! gives the orders with one more deviation. Two choices in equal states ([`past`]) are one.
//!
//! Only the number of deviations bounds an exploration, of devices and of threads. A bound on the
//! depth would leave out the end of a program, and without any bound there are too many orders.
//!
//! There are two base orders, because K of N needs N - K late replicas, which would be N - K
//! deviations from the early one. For the same reason an interrupted network is one deviation. It is
//! tried alone, so that it adds a run for each post, and no products.
//!
//! [`steps`] leaves out orders that exchange independent turns. It moves a block of turns of one
//! thread before the last turn that it conflicts with, and that run moves it further (DPOR, as in
//! loom, with blocks). A log of two records, with a thread for each of two replicas, has 815 runs
//! in place of 48,314, with the same events and images. The library's own locks are not seen, so a
//! turn before a call of a device counts as a part of that call. With a bound, the reduction may
//! miss an order in which blocks of three threads conflict in a row.

mod devices;
mod explored;
mod order;
mod past;
mod script;
mod steps;

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::env;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

pub use self::explored::{Explored, ExploredLevel, FailedOrder};
#[cfg(any(test, fuzzing))]
pub(crate) use self::order::Order as RunOrder;
use self::order::{Deviation, ONLY, Order};
pub(crate) use self::past::Meeting;
use self::script::Made;
pub(crate) use self::script::Script;
use self::steps::{Block, blocks};
use crate::choices::Kind;
use crate::fabric::Fabric;
use crate::order::mix;
use crate::power::{be_able_to_be_quiet, quietly};
use crate::profile::Profile;
use crate::sweep::LONGEST;

/// How far [`explore`] goes.
const DEVIATIONS: usize = 2;
const LIMIT: Duration = Duration::from_secs(20);

/// An exploration with bounds of its own: see [`explore`].
///
/// ```
/// # mod rpma { pub use rpma_sim as sim; }
/// use rpma::sim::{Explore, Fabric, Profile};
///
/// fn program(fabric: &Fabric) {
///     let _host = fabric.host("here");
/// }
///
/// let explored = Explore::new(&Profile::STRICT).deviations(3).runs(10_000).run(program);
/// println!("{explored}");
/// ```
#[derive(Clone, Debug)]
#[must_use = "`run` and `find` explore"]
pub struct Explore {
    profile: Profile,
    deviations: usize,
    runs: usize,
    limit: Duration,
    prunes: bool,
}

/// Runs a program in all orders that deviate by up to two choices from a base order, and returns how
/// far it came. It stops after 20 s of real time. [`Explore`] sets other bounds.
///
/// There are two base orders. In the early one each posted operation is executed as early as it
/// can be, and in the late one as late as it can be. In both, a thread goes on until it waits. A
/// *deviation* is one other choice:
///
/// * The requests of a post arrive late, or later than the limits of a program (60 s). In the late
///   base order they arrive at once, with all before them.
/// * The network of a host is interrupted for 60 s: its requests from one post on arrive at the end
///   of that time. This deviation is tried from the early base order, and without others.
/// * A device that keeps a request back executes it at its own time, and not at the next poll.
/// * A completion comes late, or later than the limits.
/// * A device lets a later write overtake, reads data early, or makes a write visible late, if its
///   profile does so.
/// * The requests of a connection that ends have left the device or not.
/// * Another thread goes on, or is woken. The executor orders the tasks of a program in the time of
///   its own clock ([`Fabric::follow`]).
///
/// The orders with fewer deviations come first, and deviations of devices before those of threads.
///
/// The program gets a new fabric for each run. It checks its own promise, and panics if the promise is
/// broken. As in a [`sweep`](crate::sweep), it may fail in any way that it documents: an operation
/// that takes 60 s times out. It must be the same program in each run, and not keep anything from one
/// run to the next. If a run does not repeat the choices of the run from which it deviates, the
/// printed line and [`Explored::diverged`] report that.
///
/// If the program calls [`Fabric::on_every_event`] or
/// [`find_loss_in_recovery`](Fabric::find_loss_in_recovery), only choices after the first such call
/// deviate. Each run then has all of its events, so orders, events and images multiply. An event is
/// checked once, and not again in another order with the same history until then. Where images are
/// sampled, each sequence of events has other ones.
///
/// Orders that only exchange independent steps have the same events and images, and are run once
/// ([`Explore::every_order`] runs all).
///
/// `explore` prints how far it came:
///
/// ```text
/// explored: all orders with up to 1 deviation; 613 of 1275 with 2, stopped after 20.0 s
///     742 runs, 277 sequences of events, 2311 images; choices: 4 answer, 16 arrival, 12 poll
/// ```
///
/// When the program panics, the order is reduced to the deviations that the failure needs.
/// `explore` prints an environment variable that runs this order alone, and each deviation with the
/// operation, the hosts and the program's line, if the build has debug information. The variable can
/// be combined with `RPMA_SIM_EVENT`:
///
/// ```text
/// in the order "early; 12 arrival 1": run it alone with RPMA_SIM_ORDER="early; 12 arrival 1"
///     a write of 64 bytes (op_context 0, src/log.rs:70) on connection 17 of client to two arrives late
/// ```
///
/// ```
/// # mod rpma { pub use rpma_sim as sim; }
/// use rpma::sim::{Profile, explore};
///
/// let explored = explore(&Profile::STRICT, |fabric| {
///     let host = fabric.host("here");
///     let threads = [1, 2].map(|number| host.spawn(move || number));
///     assert_eq!(threads.map(|thread| thread.join().expect("no panic")), [1, 2]);
/// });
/// assert!(explored.stopped.is_none());
/// ```
///
/// # Panics
///
/// If the program panics, or if the value of the variable is not an order.
pub fn explore(profile: &Profile, program: impl Fn(&Fabric)) -> Explored {
    Explore::new(profile).run(program)
}

struct Ran {
    failed: Option<Box<dyn Any + Send>>,
    script: Script,
    not_repeatable: Option<String>,
}

/// The last choice before a block of a thread at which that thread could have gone on, and before
/// which it would have met another step.
fn before(script: &Script, block: &Block, first: usize) -> Option<(usize, u32)> {
    let steps = script.steps[..block.first].iter().rev();
    let mut meets = false;
    for step in steps.take_while(|step| step.thread != block.thread) {
        let at = step.choices.checked_sub(1).filter(|at| *at >= first)?;
        let made = &script.made[at];
        meets |= step.uses.conflicts(block.uses);
        let option = made
            .threads
            .iter()
            .position(|thread| *thread == block.thread);
        let option = option.filter(|option| meets && *option as u32 != made.chosen);
        if let Some(option) = option {
            return Some((at, option as u32));
        }
    }
    None
}

/// The choices that were made, with the states in which they were.
type Seen = HashSet<(bool, (u64, Kind, u64))>;

type Failed = (Order, Box<dyn Any + Send>);

/// An order that is to be run, and the questions of its parent up to its last deviation.
struct Candidate {
    order: Order,
    questions: u64,
}

impl Candidate {
    /// An order that deviates from another one after its last deviation.
    fn new(order: &Order, script: &Script, at: usize, option: u32) -> Self {
        let mut order = order.clone();
        order.deviations.push(Deviation {
            at: at as u32,
            kind: script.made[at].kind,
            option,
        });
        let questions = questions(&script.made[..=at]);
        Self { order, questions }
    }
}

impl Explore {
    /// Explores with hosts of this profile, within the bounds of [`explore`].
    pub fn new(profile: &Profile) -> Self {
        Self {
            profile: profile.clone(),
            deviations: DEVIATIONS,
            runs: usize::MAX,
            limit: LIMIT,
            prunes: true,
        }
    }

    /// Sets the largest number of deviations. The default is 2.
    pub fn deviations(mut self, most: usize) -> Self {
        self.deviations = most;
        self
    }

    /// Sets the largest number of runs. There is no limit by default.
    pub fn runs(mut self, most: usize) -> Self {
        self.runs = most;
        self
    }

    /// Sets the real time after which no further run begins. The default is 20 s.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Also runs orders that only exchange independent steps of another order. The default leaves
    /// them out.
    pub fn every_order(mut self) -> Self {
        self.prunes = false;
        self
    }

    /// Runs the program in each order, prints how far it came, and returns it.
    ///
    /// # Panics
    ///
    /// As [`explore`].
    pub fn run(&self, program: impl Fn(&Fabric)) -> Explored {
        if let Some(order) = only() {
            return self.run_alone(&order, &program);
        }
        let (explored, failed) = self.search(&program);
        eprintln!("{explored}");
        let Some((order, _)) = failed else {
            return explored;
        };
        self.run_alone(&order, &program);
        panic!("{order} failed, and did not fail when it ran again")
    }

    /// As [`run`](Self::run), for a test that expects a failure. It prints nothing.
    ///
    /// # Errors
    ///
    /// The first order that fails.
    ///
    /// # Panics
    ///
    /// If the value of the variable is not an order.
    pub fn find(&self, program: impl Fn(&Fabric)) -> Result<Explored, Box<FailedOrder>> {
        let (explored, failed) = match only() {
            Some(order) => self.find_alone(order, &program),
            None => self.search(&program),
        };
        let Some((order, panic)) = failed else {
            return Ok(explored);
        };
        let again = quietly(|| self.try_run(&order, true, &program));
        let text = text_of(&*panic);
        Err(Box::new(FailedOrder::new(
            &order,
            &again.script,
            text,
            explored,
        )))
    }

    /// Runs one order, and prints it if it fails.
    fn run_alone(&self, order: &Order, program: &impl Fn(&Fabric)) -> Explored {
        let ran = self.try_run(order, true, program);
        if let Some(misfit) = ran.misfit() {
            eprintln!("\"{order}\" does not fit this program: {misfit}");
        }
        if let Some(panic) = ran.failed {
            eprintln!("in the order \"{order}\": run it alone with {ONLY}=\"{order}\"");
            ran.script
                .texts
                .iter()
                .for_each(|text| eprintln!("    {}", text.line()));
            resume_unwind(panic);
        }
        let mut explored = Explored::default();
        explored.add(0, &ran.script);
        explored
    }

    fn find_alone(&self, order: Order, program: &impl Fn(&Fabric)) -> (Explored, Option<Failed>) {
        be_able_to_be_quiet();
        let ran = quietly(|| self.try_run(&order, true, program));
        let mut explored = Explored::default();
        explored.begin(0, 1);
        explored.add(0, &ran.script);
        (explored, ran.failed.map(|panic| (order, panic)))
    }

    /// Runs each order until one fails. That is reduced to the deviations that it needs.
    fn search(&self, program: &impl Fn(&Fabric)) -> (Explored, Option<Failed>) {
        be_able_to_be_quiet();
        let began = Instant::now();
        let mut explored = Explored::default();
        let (mut seen, mut checked) = (HashSet::new(), HashSet::new());
        let bases = [false, true].map(|is_late| Order {
            is_late,
            ..Order::default()
        });
        let mut level = Vec::from(bases.map(|order| Candidate {
            order,
            questions: 0,
        }));
        for deviations in 0..=self.deviations {
            explored.begin(deviations, level.len());
            let is_last = deviations == self.deviations;
            // Devices before threads, which have most of the choices. The few that last come first:
            // each is like several others at once.
            level.sort_by_cached_key(|candidate| {
                (candidate.order.of_threads(), !candidate.order.lasts())
            });
            let mut next = Vec::new();
            let mut queue = VecDeque::from(level);
            while let Some(candidate) = queue.pop_front() {
                if explored.runs() >= self.runs || began.elapsed() >= self.limit {
                    explored.stopped = Some(began.elapsed());
                    return (explored, None);
                }
                let mut script = Script::new(candidate.order.clone(), false);
                script.checked = mem::take(&mut checked);
                let mut ran = quietly(|| self.run_with(script, program));
                checked = mem::take(&mut ran.script.checked);
                explored.add(deviations, &ran.script);
                if let Some(panic) = ran.failed {
                    let order = self.reduced(candidate.order, program);
                    return (explored, Some((order, panic)));
                }
                if let Some(why) = ran.why_not(&candidate) {
                    explored.note_diverged(&candidate.order, why);
                }
                if let Some(earlier) = self.earlier(&candidate.order, &ran.script, &mut seen) {
                    explored.also(deviations);
                    queue.push_back(earlier);
                }
                let more = self.deviate(&candidate.order, &ran.script, &mut seen);
                explored.more += more.len();
                if !is_last {
                    next.extend(more);
                }
            }
            level = next;
        }
        (explored, None)
    }

    /// The orders with one more deviation, after the last one of an order.
    fn deviate(&self, order: &Order, script: &Script, seen: &mut Seen) -> Vec<Candidate> {
        if order.lasts() {
            return Vec::new();
        }
        let last = order.deviations.last();
        let last = last.map_or(0, |last| last.at as usize + 1);
        let first = last.max(script.begun.unwrap_or(0));
        let mut more = Vec::new();
        for (at, made) in script.made.iter().enumerate().skip(first) {
            if self.prunes {
                seen.insert((order.is_late, made.key(made.chosen)));
            }
            if self.prunes && made.kind == Kind::Thread {
                continue;
            }
            let lasts = |option| {
                let kind = made.kind;
                let at = at as u32;
                Deviation { at, kind, option }.lasts()
            };
            let is_base = order.deviations.is_empty();
            let options = (1..made.options).filter(|option| is_base || !lasts(*option));
            let new = options.map(|option| (at, option));
            more.extend(new.filter(|new| self.is_new(order, script, *new, seen)));
        }
        if self.prunes {
            let from = script.steps.partition_point(|step| step.choices <= first);
            for block in blocks(&script.steps, from) {
                let earlier = before(script, &block, first);
                more.extend(earlier.filter(|new| self.is_new(order, script, *new, seen)));
            }
        }
        let deviate = |(at, option)| Candidate::new(order, script, at, option);
        more.into_iter().map(deviate).collect()
    }

    /// If the last deviation lets a thread go on earlier: the order in which it goes on before the
    /// next step, further back, that it does not exchange with.
    fn earlier(&self, order: &Order, script: &Script, seen: &mut Seen) -> Option<Candidate> {
        let (last, others) = order.deviations.split_last()?;
        if !self.prunes || last.kind != Kind::Thread {
            return None;
        }
        let from = script
            .steps
            .iter()
            .position(|step| step.choices == last.at as usize + 1)?;
        let block = blocks(&script.steps, from).into_iter().next()?;
        let first = others.last().map_or(0, |other| other.at as usize + 1);
        let first = first.max(script.begun.unwrap_or(0));
        let others = Order {
            deviations: others.to_vec(),
            ..*order
        };
        let (at, option) = before(script, &block, first)?;
        let is_new = self.is_new(&others, script, (at, option), seen);
        is_new.then(|| Candidate::new(&others, script, at, option))
    }

    fn is_new(
        &self,
        order: &Order,
        script: &Script,
        (at, option): (usize, u32),
        seen: &mut Seen,
    ) -> bool {
        !self.prunes || seen.insert((order.is_late, script.made[at].key(option)))
    }

    /// Without the deviations that a failure does not need.
    fn reduced(&self, mut order: Order, program: &impl Fn(&Fabric)) -> Order {
        let fails = |order: &Order| {
            let ran = quietly(|| self.try_run(order, true, program));
            ran.failed.is_some() && ran.misfit().is_none()
        };
        let mut at = 0;
        while at < order.deviations.len() {
            let mut fewer = order.clone();
            fewer.deviations.remove(at);
            if fails(&fewer) {
                order = fewer;
            } else {
                at += 1;
            }
        }
        order
    }

    fn try_run(&self, order: &Order, is_explained: bool, program: &impl Fn(&Fabric)) -> Ran {
        self.run_with(Script::new(order.clone(), is_explained), program)
    }

    fn run_with(&self, script: Script, program: &impl Fn(&Fabric)) -> Ran {
        let fabric = Fabric::scripted(self.profile.clone(), script);
        let shared = fabric.shared();
        shared.order.end_after(LONGEST);
        let failed = catch_unwind(AssertUnwindSafe(|| program(&fabric))).err();
        Ran {
            failed,
            script: shared
                .order
                .choices
                .with_script(mem::take)
                .unwrap_or_default(),
            not_repeatable: shared.order.why_not(),
        }
    }
}

impl Ran {
    /// Why the order does not fit the program.
    fn misfit(&self) -> Option<String> {
        let left = self.script.left().first();
        let left = left.map(|it| {
            let made = self.script.made.len();
            format!("it has {made} choices, and no choice {}", it.at)
        });
        self.script.misfit.clone().or(left)
    }

    /// Why a run is not the one that was meant.
    fn why_not(&self, candidate: &Candidate) -> Option<String> {
        let last = candidate.order.deviations.last();
        let made = &self.script.made;
        let until = last.map_or(0, |last| last.at as usize + 1);
        let differs = || {
            let is_other = questions(&made[..until.min(made.len())]) != candidate.questions;
            is_other.then(|| {
                format!("the choices before choice {until} differ from those of the run before")
            })
        };
        let why = self.misfit().or_else(differs)?;
        Some(match &self.not_repeatable {
            Some(reason) => format!("{why}: {reason}"),
            None => why,
        })
    }
}

/// The order that the variable has.
fn only() -> Option<Order> {
    let text = env::var(ONLY).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{error}")))
}

fn questions(made: &[Made]) -> u64 {
    made.iter()
        .fold(0, |hash, made| mix(hash ^ made.question()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the program has panicked").to_owned()
}
