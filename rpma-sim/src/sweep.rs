//! A program under faults: each by itself, and several at once.

use std::env;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::cm::{BY_ITSELF, NOTICES};
use crate::fabric::Fabric;
use crate::failed::{Failed, FailedFault};
use crate::here;
use crate::links;
use crate::order::mix;
use crate::power::{self, quietly};
use crate::profile::Profile;
use crate::repeat::number;
use crate::shifted;
use crate::state::Shared;
use crate::steps::AtStep;

/// The variable that has the only faults of a sweep.
pub(crate) const ONLY: &str = "RPMA_SIM_FAULT";

/// The variable has this for a run without any fault.
const NONE: &str = "no fault";

/// The variable has this before faults, for a run with the choices of theirs and without them.
pub(crate) const ORDER: &str = "order of ";

/// At so many steps hosts fail; of more, at every second one or fewer.
const STEPS: u64 = 200;

/// The longest run, in its own time: one that waits longer has a wait without a limit.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// The fault in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunFault {
    /// This call fails with `EIO`, and has no effect.
    Call(String, u32),
    /// This happens to a request, of all connections.
    Request(OnWay, u32),
    /// This happens to a host of this name at a step.
    Host(OnHost, String, u64),
    /// The connection manager of a host of this name sends this event by itself, at a step.
    Event(u32, String, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnWay {
    /// It is lost for good.
    Request,
    /// Its acknowledgement is lost for good.
    Acknowledgement,
    /// It is sent again.
    Packet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnHost {
    Freeze,
    Kill,
    Cut,
}

const ON_WAY: [(OnWay, &str, links::LinkFault); 3] = [
    (OnWay::Request, "request", links::LinkFault::Request),
    (
        OnWay::Acknowledgement,
        "acknowledgement",
        links::LinkFault::Acknowledgement,
    ),
    (OnWay::Packet, "packet", links::LinkFault::Packet),
];

const ON_HOST: [(OnHost, &str); 3] = [
    (OnHost::Freeze, "freeze"),
    (OnHost::Kill, "kill"),
    (OnHost::Cut, "cut"),
];

impl OnWay {
    fn entry(self) -> (&'static str, links::LinkFault) {
        let found = ON_WAY.into_iter().find(|(of, _, _)| *of == self);
        let (_, name, fault) = found.expect("it has all");
        (name, fault)
    }
}

impl OnHost {
    fn name(self) -> &'static str {
        let found = ON_HOST.into_iter().find(|(of, _)| *of == self);
        found.expect("it has all").1
    }
}

impl OnHost {
    fn text(self) -> &'static str {
        match self {
            Self::Freeze => "the devices are frozen",
            Self::Kill => "the programs are killed",
            Self::Cut => "the power is cut",
        }
    }
}

impl fmt::Display for RunFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call, nth) => write!(f, "{call} {nth}"),
            Self::Request(what, nth) => write!(f, "{} {nth}", what.entry().0),
            Self::Host(what, host, step) => write!(f, "{} {host} {step}", what.name()),
            Self::Event(event, host, step) => write!(f, "event-{event} {host} {step}"),
        }
    }
}

impl FromStr for RunFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{ONLY} has {text:?}: a call, request, acknowledgement or packet, and its number; or freeze, kill, cut \
                 or event-14, a host, and a step; with \"{ORDER}\" before it, its order without the fault"
            )
        };
        let (what, at) = text.trim().rsplit_once(' ').ok_or_else(wrong)?;
        let at: u64 = at.parse().ok().filter(|at| *at > 0).ok_or_else(wrong)?;
        if let Some((kind, host)) = what.split_once(' ') {
            if let Some(event) = kind.strip_prefix("event-") {
                let event = event.parse().map_err(|_| wrong())?;
                return Ok(Self::Event(event, host.to_owned(), at));
            }
            let kind = ON_HOST.into_iter().find(|(_, name)| *name == kind);
            let (kind, _) = kind.ok_or_else(wrong)?;
            return Ok(Self::Host(kind, host.to_owned(), at));
        }
        let nth = u32::try_from(at).map_err(|_| wrong())?;
        let on_way = ON_WAY.into_iter().find(|(_, name, _)| *name == what);
        Ok(match on_way {
            Some((kind, _, _)) => Self::Request(kind, nth),
            None => Self::Call(what.to_owned(), nth),
        })
    }
}

impl RunFault {
    fn arm(&self, fabric: &Fabric) -> Option<AtStep> {
        match self {
            Self::Call(call, nth) => drop(fabric.fail(call).nth(*nth, Errno::IO)),
            Self::Request(what, nth) => {
                let mut state = fabric.shared().lock();
                state.links.arm(None, None, *nth, what.entry().1);
            }
            Self::Host(what, name, step) => {
                let what = *what;
                return Some(at_host(
                    fabric,
                    name,
                    *step,
                    what.text(),
                    move |shared, host| match what {
                        OnHost::Freeze => shared.lock().freeze(host),
                        OnHost::Kill => drop(power::kill(shared, host)),
                        OnHost::Cut => drop(power::cut(shared, host)),
                    },
                ));
            }
            Self::Event(event, name, step) => {
                let event = *event;
                let text = format!("the connection manager sends the event {event}");
                return Some(at_host(fabric, name, *step, &text, move |shared, host| {
                    shared.lock().cm_event(host, event);
                }));
            }
        }
        None
    }
}

/// Does something with a host of this name at a step, if there is one then, and keeps it for
/// reports.
fn at_host(
    fabric: &Fabric,
    name: &str,
    step: u64,
    what: &str,
    act: impl FnOnce(&Arc<Shared>, usize) + Send + 'static,
) -> AtStep {
    let (name, what) = (name.to_owned(), what.to_owned());
    let shared = Arc::downgrade(fabric.shared());
    fabric.at_step(step, move || {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let index = shared.lock().hosts.iter().position(|host| *host == name);
        if let Some(index) = index {
            shared.note(&what, step, index);
            act(&shared, index);
        }
    })
}

impl Shared {
    /// Keeps a fault of a host for reports, with the thread that made the call at the step.
    fn note(&self, what: &str, step: u64, host: usize) {
        let thread = here::thread_in(self).and_then(|it| self.order.text_of(it));
        let thread = thread.map_or(String::new(), |thread| format!(", in thread {thread}"));
        let text = format!("{what} at step {step}{thread}");
        self.lock().failures.note(text, Some(host));
    }
}

/// Several faults, as a variable has them.
fn text_of(faults: &[RunFault]) -> String {
    if faults.is_empty() {
        return NONE.to_owned();
    }
    let texts: Vec<String> = faults.iter().map(RunFault::to_string).collect();
    texts.join("; ")
}

/// The only run that the variable asks for.
struct Only {
    faults: Vec<RunFault>,
    /// Its order alone, without the faults.
    is_order: bool,
}

impl Only {
    fn find() -> Option<Self> {
        let text = env::var(ONLY).ok()?;
        let text = text.trim();
        let order = text.strip_prefix(ORDER);
        let faults: Result<_, String> = match text {
            NONE => Ok(Vec::new()),
            _ => order.unwrap_or(text).split(';').map(str::parse).collect(),
        };
        Some(Self {
            faults: faults.unwrap_or_else(|error| panic!("{error}")),
            is_order: order.is_some(),
        })
    }

    fn run(&self, profile: &Profile, program: &impl Fn(&Fabric)) -> Result<(), Failed> {
        power::be_able_to_be_quiet();
        if !self.is_order {
            return run(profile, &self.faults, program).map(drop);
        }
        let shifted = shifted::without_the_fault(profile, &|fabric, with_them| {
            try_run(fabric, if with_them { &self.faults } else { &[] }, program)
        });
        shifted.map_or(Ok(()), |shifted| {
            Err(Failed::by_order(shifted, &text_of(&self.faults)))
        })
    }
}

/// Runs a program with these faults.
fn run(
    profile: &Profile,
    faults: &[RunFault],
    program: &impl Fn(&Fabric),
) -> Result<Fabric, Failed> {
    let fabric = Fabric::seeded(profile.clone(), 1);
    if let Err(panic) = try_run(&fabric, faults, program) {
        let again = |fabric: &Fabric, with_them: bool| {
            try_run(fabric, if with_them { faults } else { &[] }, program)
        };
        let shifted = match faults {
            [] => None,
            _ => shifted::fails_alike(profile, &again, &*panic),
        };
        if let Some(shifted) = shifted {
            return Err(Failed::by_order(shifted, &text_of(faults)));
        }
        let text = text_of(faults);
        let with = match faults.len() {
            0 => "without a fault".to_owned(),
            1 => format!("with the fault \"{text}\""),
            _ => format!("with the faults \"{text}\""),
        };
        let state = fabric.shared().lock_quietly();
        let happened = state.failures.with_origins(&state.hosts);
        return Err(Failed::new((&with, text), &happened, panic));
    }
    Ok(fabric)
}

fn try_run(
    fabric: &Fabric,
    faults: &[RunFault],
    program: &impl Fn(&Fabric),
) -> std::thread::Result<()> {
    fabric.shared().order.end_after(LONGEST);
    fabric.shared().lock_quietly().failures.keeps_origins = true;
    let _armed: Vec<_> = faults.iter().map(|fault| fault.arm(fabric)).collect();
    catch_unwind(AssertUnwindSafe(|| program(fabric)))
}

/// Runs a program again and again, each time with one fault. Each of its calls of verbs fails
/// once. Each of its requests is lost once, its acknowledgement is lost once, and it is sent again
/// once. Each of its hosts is frozen, killed and cut from the power at each [step](Fabric::steps),
/// or at most at 200 steps of a longer run. At each third of these steps, each host gets a notice
/// of the connection manager, which ends no connection: that of a bond that fails over, or one with
/// an unknown number ([`Host::cm_event`](crate::Host::cm_event)). Returns the number of runs.
///
/// The program gets a new fabric for each run, makes its hosts there, and judges itself. It may
/// fail in any way that it documents. It panics if it breaks a promise, or if an object of it is
/// left (`Fabric::objects`). Its waits have limits, which pass at once: the fabric is a
/// [seeded](Fabric::seeded) one. A run that still waits after an hour of its time panics. The fault
/// can also come while the program judges itself: a host that it has restarted may be cut then.
///
/// To save time, a slow program may count its runs and return at once from most of them, for
/// example from six of seven. The first run has no fault. (The repeated run of
/// such a program is another one, so `sweep` prints the fault in any case.)
///
/// When the program panics, `sweep` prints the fault and an environment variable. With this
/// variable, the program runs with that fault only. The next line has the host, the call or the
/// operation, and the program's line, if the build has debug information:
///
/// ```text
/// with the fault "ibv_reg_mr 2": run it alone with RPMA_SIM_FAULT="ibv_reg_mr 2"
///     on client, ibv_reg_mr failed: Input/output error (os error 5), at src/log.rs:70
/// ```
///
/// A program that panics without a fault is run alone with `RPMA_SIM_FAULT="no fault"`.
///
/// A fault also shifts the order: which thread goes on, and which request overtakes another. So a
/// run that panics is repeated with the same choices and without its fault. If it panics with the
/// same message (numbers may differ), the order is the cause. Then `sweep` prints the order and not
/// the fault. The next line has the first choice that is another one than in the run without a
/// fault:
///
/// ```text
/// without a fault, in the order of the run with "packet 4": run it alone with RPMA_SIM_FAULT="order of packet 4"
///     at turn 57, thread 3 (two, last call: Mutex::lock) goes on, and without this order thread 2 (one, last call: ibv_poll_cq)
/// ```
///
/// # Panics
///
/// If the program panics, or if the value of the variable is not a fault.
pub fn sweep(profile: &Profile, program: impl Fn(&Fabric)) -> usize {
    let runs = run_each(Only::find(), profile, &program, single_faults);
    runs.unwrap_or_else(|failed| failed.print())
}

/// As [`sweep`], for a test that expects a failure. It prints nothing.
///
/// # Errors
///
/// The first run that fails.
///
/// # Panics
///
/// If the value of the variable is not a fault.
pub fn find_fault(profile: &Profile, program: impl Fn(&Fabric)) -> Result<usize, FailedFault> {
    let only = Only::find();
    Ok(quietly(|| {
        run_each(only, profile, &program, single_faults)
    })?)
}

fn single_faults(extent: &Extent) -> Vec<RunFault> {
    let mut faults = extent.faults().concat();
    faults.extend(extent.notices());
    faults
}

/// Runs a program as [`sweep`] does, with other faults: at each step, each host gets one of the
/// events that its connection manager may send by itself ([`Host::cm_event`]). Returns the number
/// of runs.
///
/// # Panics
///
/// As [`sweep`].
///
/// [`Host::cm_event`]: crate::Host::cm_event
pub fn sweep_events(profile: &Profile, program: impl Fn(&Fabric)) -> usize {
    let runs = run_each(Only::find(), profile, &program, |extent| {
        let each = |step| BY_ITSELF.map(|event| (step, event));
        extent.events(extent.every_step().flat_map(each))
    });
    runs.unwrap_or_else(|failed| failed.print())
}

/// Runs a program with each of the faults that are chosen after a run without any.
fn run_each(
    only: Option<Only>,
    profile: &Profile,
    program: &impl Fn(&Fabric),
    choose: impl FnOnce(&Extent) -> Vec<RunFault>,
) -> Result<usize, Failed> {
    if let Some(only) = only {
        return only.run(profile, program).map(|()| 1);
    }
    let faults = choose(&Extent::of(profile, program)?);
    for fault in &faults {
        run(profile, std::slice::from_ref(fault), program)?;
    }
    Ok(faults.len() + 1)
}

/// Runs a program as [`sweep`] does, `runs` times, with two to four faults at once. A seed draws
/// the faults. The runs have the seeds from `RPMA_SIM_SEED` on, or from 1 on.
///
/// When the program panics, it runs again with fewer and fewer of the faults. `storm` prints the
/// faults that are needed for the panic, and the environment variable that selects them:
///
/// ```text
/// with the faults "kill one 31; request 7": run it alone with RPMA_SIM_FAULT="kill one 31; request 7"
/// ```
///
/// If the program panics in the same way without any fault, in the order of that run, `storm`
/// prints the order, as [`sweep`] does.
///
/// # Panics
///
/// As [`sweep`].
pub fn storm(profile: &Profile, runs: u64, program: impl Fn(&Fabric)) {
    let ran = run_several(Only::find(), profile, runs, &program);
    ran.unwrap_or_else(|failed| failed.print());
}

/// As [`storm`], for a test that expects a failure. It prints nothing.
///
/// # Errors
///
/// As [`find_fault`].
///
/// # Panics
///
/// As [`find_fault`].
pub fn find_faults(
    profile: &Profile,
    runs: u64,
    program: impl Fn(&Fabric),
) -> Result<(), FailedFault> {
    let only = Only::find();
    Ok(quietly(|| run_several(only, profile, runs, &program))?)
}

fn run_several(
    only: Option<Only>,
    profile: &Profile,
    runs: u64,
    program: &impl Fn(&Fabric),
) -> Result<(), Failed> {
    if let Some(only) = only {
        return only.run(profile, program);
    }
    let all = Extent::of(profile, program)?.faults();
    let first = number("RPMA_SIM_SEED").unwrap_or(1);
    for seed in first..first.saturating_add(runs) {
        let mut faults = drawn(&all, seed);
        let fails = |faults: &[RunFault]| {
            let fabric = Fabric::seeded(profile.clone(), 1);
            try_run(&fabric, faults, program).is_err()
        };
        if fails(&faults) {
            // Without the panics that only answer a question.
            let mut at = 0;
            while at < faults.len() {
                let mut fewer = faults.clone();
                fewer.remove(at);
                if quietly(|| fails(&fewer)) {
                    faults = fewer
                } else {
                    at += 1
                }
            }
            run(profile, &faults, program).map_err(|failed| failed.of_seed(seed))?;
        }
    }
    Ok(())
}

/// Two to four faults. Each kind is as likely as the others.
fn drawn(all: &[Vec<RunFault>; 3], seed: u64) -> Vec<RunFault> {
    let mut random = mix(seed);
    let mut below = |limit: usize| {
        random = mix(random);
        (random % limit as u64) as usize
    };
    let kinds: Vec<_> = all.iter().filter(|kind| !kind.is_empty()).collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    let count = 2 + below(3);
    let one = |_| {
        let kind = kinds[below(kinds.len())];
        kind[below(kind.len())].clone()
    };
    (0..count).map(one).collect()
}

/// The points at which a program can fail.
struct Extent {
    calls: Vec<(&'static str, u64)>,
    requests: u32,
    hosts: Vec<String>,
    steps: u64,
}

impl Extent {
    /// By a run without any fault.
    fn of(profile: &Profile, program: &impl Fn(&Fabric)) -> Result<Self, Failed> {
        power::be_able_to_be_quiet();
        let fabric = run(profile, &[], program)?;
        let calls = fabric.calls().into_iter().collect();
        let steps = fabric.steps();
        let state = fabric.shared().lock_quietly();
        Ok(Self {
            calls,
            requests: state.links.requests(),
            hosts: state.hosts.clone(),
            steps,
        })
    }

    fn every_step(&self) -> impl Iterator<Item = u64> {
        let every = self.steps.div_ceil(STEPS).max(1) as usize;
        (1..=self.steps).step_by(every)
    }

    fn events(&self, events: impl Iterator<Item = (u64, u32)>) -> Vec<RunFault> {
        let each = events.flat_map(|(step, event)| {
            let of = move |host: &String| RunFault::Event(event, host.clone(), step);
            self.hosts.iter().map(of)
        });
        each.collect()
    }

    /// Notices of the connection manager. To save time, each third step has one, the one or the
    /// other. A storm has none: nothing fails by them.
    fn notices(&self) -> Vec<RunFault> {
        let steps = self.every_step().step_by(3);
        self.events(steps.zip(NOTICES.into_iter().cycle()))
    }

    /// By kind: of calls, requests and hosts.
    fn faults(&self) -> [Vec<RunFault>; 3] {
        let calls = self.calls.iter();
        let calls = calls.flat_map(|(call, count)| {
            (1..=*count as u32).map(|nth| RunFault::Call((*call).to_owned(), nth))
        });
        let requests = (1..=self.requests)
            .flat_map(|nth| ON_WAY.map(|(kind, _, _)| RunFault::Request(kind, nth)));
        let hosts = self.every_step().flat_map(|step| {
            self.hosts.iter().flat_map(move |host| {
                ON_HOST.map(|(kind, _)| RunFault::Host(kind, host.clone(), step))
            })
        });
        [calls.collect(), requests.collect(), hosts.collect()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault is written as it is read.
    #[test]
    fn a_fault_comes_back_from_its_text() {
        for text in [
            "ibv_reg_mr 2",
            "request 1",
            "acknowledgement 3",
            "packet 4",
            "freeze server 5",
            "kill the other one 6",
            "cut server 7",
            "event-14 server 8",
            "event-4711 the other one 9",
        ] {
            let fault: RunFault = text.parse().expect("a fault");
            assert_eq!(fault.to_string(), text);
        }
        for text in [
            "",
            "request",
            "request 0",
            "packet x",
            "melt server 1",
            "event-x server 1",
        ] {
            text.parse::<RunFault>().expect_err("no fault");
        }
    }
}
