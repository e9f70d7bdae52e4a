//! The choices of a run, kept so that another run can make the same ones.
//!
//! The other run may have more steps or fewer: a sweep repeats a run without its fault. So choices
//! have places and no numbers. A thread goes on in the order that its step had, and a device
//! chooses as it did for the same kind of choice.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;

use crate::choices::Kind;

/// A line of this crate.
type Site = (&'static str, u32, u32);

fn site(at: &Location<'static>) -> Site {
    (at.file(), at.line(), at.column())
}

/// A step of a thread: its number, the line at which it gives the turn away, and how often it has
/// been there.
type Step = (u64, Site, u64);

/// A thread that got the turn, and its last call.
#[derive(Clone, Debug)]
struct Turn {
    step: Step,
    last: &'static str,
}

/// The first step of a thread.
fn beginning(thread: u64) -> Step {
    (thread, ("", 0, 0), 0)
}

/// The place of the last step of a thread that the other run has as well, and its steps since.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    place: usize,
    since: u32,
}

/// How many steps in a row that the other run has not got a thread has at once. More are a loop
/// that waits for the others.
const PATIENCE: u32 = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    made: Vec<Turn>,
    names: BTreeMap<u64, String>,
    /// The step that each thread is at.
    at: BTreeMap<u64, Step>,
    counts: BTreeMap<(u64, Site), u64>,
    /// The order of the steps of another run.
    wanted: BTreeMap<Step, usize>,
    /// How far each thread has come in that order.
    reached: BTreeMap<u64, Reached>,
}

impl Turns {
    /// In the order of another run.
    pub(crate) fn like(other: &Self) -> Self {
        let steps = other.made.iter().zip(0..);
        Self {
            wanted: steps.map(|(turn, place)| (turn.step, place)).collect(),
            ..Self::default()
        }
    }

    /// A thread gives the turn away.
    pub(super) fn comes_to(&mut self, thread: u64, at: &Location<'static>) {
        let site = site(at);
        let count = self.counts.entry((thread, site)).or_default();
        *count += 1;
        self.at.insert(thread, (thread, site, *count));
    }

    /// The thread that goes on, if there is another run: of those that can, the one that was the
    /// first there. A thread with a step that the other run has not got goes on at once, and not
    /// for ever.
    pub(super) fn choose(&self, ready: &[u64]) -> Option<u64> {
        if self.wanted.is_empty() {
            return None;
        }
        let places = ready.iter().filter_map(|thread| {
            let step = self.at.get(thread).copied().unwrap_or(beginning(*thread));
            let reached = self.reached.get(thread).copied().unwrap_or_default();
            let wanted = self.wanted.get(&step).copied();
            let place = wanted.or((reached.since < PATIENCE).then_some(reached.place));
            Some((place?, *thread))
        });
        places.min().map(|(_, thread)| thread)
    }

    pub(super) fn give(&mut self, thread: u64, name: &str, last: &'static str) {
        self.names.entry(thread).or_insert_with(|| name.to_owned());
        let step = self.at.get(&thread).copied().unwrap_or(beginning(thread));
        let reached = self.reached.entry(thread).or_default();
        match self.wanted.get(&step) {
            Some(&place) => *reached = Reached { place, since: 0 },
            None => reached.since += 1,
        }
        self.made.push(Turn { step, last });
    }

    /// The first turn that another run has given to another thread, for people.
    pub(crate) fn difference(&self, usual: &Self) -> Option<String> {
        let mut turns = self.made.iter().zip(&usual.made).zip(1..);
        let differs = |((one, other), _): &((&Turn, &Turn), i32)| one.step.0 != other.step.0;
        let ((own, other), number) = turns.find(differs)?;
        let text = |turn: &Turn| {
            let thread = turn.step.0;
            let name = self.names.get(&thread).or(usual.names.get(&thread));
            let name = name.map_or("without a name", String::as_str);
            format!("thread {thread} ({name}, last call: {})", turn.last)
        };
        Some(format!(
            "at turn {number}, {} goes on, and without this order {}",
            text(own),
            text(other)
        ))
    }
}

/// The other choices of a run, by their kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chances {
    made: BTreeMap<Kind, VecDeque<u32>>,
    wanted: BTreeMap<Kind, VecDeque<u32>>,
}

impl Chances {
    pub(crate) fn like(other: &Self) -> Self {
        Self {
            wanted: other.made.clone(),
            ..Self::default()
        }
    }

    /// The choice of another run, if it has one more of this kind; otherwise that of the seed.
    pub(crate) fn choose(&mut self, kind: Kind, below: u32, seeded: u32) -> u32 {
        let wanted = self.wanted.get_mut(&kind).and_then(VecDeque::pop_front);
        let chosen = wanted.filter(|wanted| *wanted < below).unwrap_or(seeded);
        self.made.entry(kind).or_default().push_back(chosen);
        chosen
    }

    /// The first kind of choice that another run has made otherwise, for people.
    pub(crate) fn difference(&self, usual: &Self) -> Option<String> {
        let mut made = self.made.iter();
        let (kind, number) = made.find_map(|(kind, own)| {
            let mut both = own.iter().zip(usual.made.get(kind)?);
            Some((kind, both.position(|(own, usual)| own != usual)? + 1))
        })?;
        let kind = match kind {
            Kind::Overtake => "whether a request overtakes an earlier one",
            Kind::Fetch | Kind::Bytes => "the part of a buffer that is read at the post",
            Kind::Visibility | Kind::Landing => "whether and when a write is visible later",
            Kind::Arrival
            | Kind::Poll
            | Kind::Answer
            | Kind::Delay
            | Kind::Loss
            | Kind::Packets => "a delay or a lost packet",
            Kind::Stray => "which requests of a connection arrive at its end",
            Kind::Notify | Kind::Weight | Kind::Thread => "which waiting thread is woken",
        };
        Some(format!(
            "a device chooses otherwise (choice {number} of this kind): {kind}"
        ))
    }
}
