//! The choices of one run: those by which it deviates, and a record of all that were made.
//!
//! A choice has options. Option 0 is that of the base order. In both base orders the thread that
//! runs goes on for as long as it can, nothing is lost, and devices keep the order of requests. In
//! the early one posted requests arrive at once, and in the late one they arrive late.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;

use super::order::{Deviation, ONLY, Order};
use super::past::{Meeting, Past, hash_of};
use super::steps::{Step, Uses, bit};
use crate::choices::{INTERRUPTED, Kind};
use crate::here;
use crate::order::mix;
use crate::origin::Origin;

/// So often a thread goes on although others could. Without an end, a loop that polls would wait
/// for a thread that never runs.
const LONGEST: u32 = 64;

#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) kind: Kind,
    pub(crate) options: u32,
    pub(crate) chosen: u32,
    /// The run until now, up to the order of independent steps.
    state: u64,
    /// If a thread is chosen, the threads by option.
    pub(crate) threads: Vec<u64>,
}

impl Made {
    /// The run goes on equally after an option wherever this is equal.
    pub(crate) fn key(&self, option: u32) -> (u64, Kind, u64) {
        let thread = self.threads.get(option as usize).copied();
        (self.state, self.kind, thread.unwrap_or(option.into()))
    }

    /// Identifies the question, without its answer.
    pub(crate) fn question(&self) -> u64 {
        mix(u64::from(self.options) << 8 | self.kind as u64)
    }
}

/// A deviation, for people.
#[derive(Debug)]
pub(crate) struct Text {
    what: String,
    /// The line at which a thread stops. An operation has its own.
    origin: Option<Origin>,
}

impl Text {
    pub(crate) fn line(&self) -> String {
        let line = self.origin.as_ref().and_then(Origin::line);
        let line = line.map_or(String::new(), |line| format!(", at {line}"));
        format!("{}{line}", self.what)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    order: Order,
    /// How many of its deviations were made.
    deviated: usize,
    pub(crate) made: Vec<Made>,
    /// The first choice since the test watches for losses of power.
    pub(crate) begun: Option<usize>,
    /// Deviations keep their texts, and each event is checked.
    is_explained: bool,
    pub(crate) texts: Vec<Text>,
    /// Why the order does not fit the run, if so.
    pub(crate) misfit: Option<String>,
    past: Past,
    pub(crate) steps: Vec<Step>,
    streak: u32,
    yields: bool,
    /// The devices as they are.
    pub(crate) devices: u64,
    /// The sequence of events, as a hash, and the images that checks were shown.
    pub(crate) events: u64,
    /// The events of all runs until now that were checked.
    pub(crate) checked: HashSet<u64>,
    pub(crate) images: HashSet<u64>,
}

impl Script {
    pub(crate) fn new(order: Order, is_explained: bool) -> Self {
        Self {
            order,
            is_explained,
            ..Self::default()
        }
    }

    /// The deviations that the run had no choice for.
    pub(crate) fn left(&self) -> &[Deviation] {
        &self.order.deviations[self.deviated..]
    }

    pub(crate) fn text_of_order(&self) -> String {
        format!(" The order of this run is {ONLY}=\"{}\".", self.order)
    }

    pub(crate) fn begin(&mut self) {
        self.begun.get_or_insert(self.made.len());
    }

    /// The thread with the turn lets others go on. It waits for a lock of the library, or yields.
    pub(crate) fn yields(&mut self) {
        self.yields = true;
        if let Some(step) = self.steps.last_mut() {
            step.waits = true;
        }
    }

    /// An event of the run, with a hash of the bytes that it leaves.
    pub(crate) fn event(&mut self, what: &str, bytes: u64) {
        self.uses(Uses {
            event: true,
            ..Uses::default()
        });
        self.events = mix(self.events ^ hash_of(what));
        self.past.event(hash_of(what) ^ bytes);
    }

    /// The seed of the images at the last event: equal sequences of events have equal images. `None`
    /// if the event was checked with an equal history.
    pub(crate) fn is_new(&mut self) -> Option<u64> {
        let is_new = self.checked.insert(self.past.events()) || self.is_explained;
        is_new.then_some(self.past.sequence())
    }

    pub(crate) fn uses(&mut self, uses: Uses) {
        if let Some(step) = self.steps.last_mut() {
            step.uses.add(uses);
        }
    }

    /// It uses the devices of a host. In the turn before, it may have taken a lock of the library
    /// for this call, and have waited for that lock in turns before.
    pub(crate) fn uses_device(&mut self, host: usize) {
        let Some(Step { thread, .. }) = self.steps.last().copied() else {
            return;
        };
        let turns = self.steps.iter_mut().rev();
        let turns = turns.filter(|step| step.thread == thread).enumerate();
        for (_, step) in turns.take_while(|(number, step)| *number < 2 || step.waits) {
            step.uses.devices |= bit(host);
        }
    }

    pub(crate) fn step(&mut self, step: impl Hash) {
        self.past.step(own_thread(), hash(step));
    }

    pub(crate) fn work(&mut self, step: impl Hash) {
        self.uses(Uses {
            promises: true,
            ..Uses::default()
        });
        self.past.work(own_thread(), hash(step));
    }

    pub(crate) fn meet(&mut self, object: Meeting, step: impl Hash) {
        self.past.meet(own_thread(), object, hash(step));
        self.uses(match object {
            Meeting::Host(host) => Uses {
                hosts: bit(host),
                ..Uses::default()
            },
            Meeting::Shared => Uses {
                shared: true,
                promises: true,
                ..Uses::default()
            },
        });
    }

    pub(crate) fn tell(&mut self, host: usize) {
        self.past.tell(own_thread(), host);
        self.uses(Uses {
            hosts: bit(host),
            ..Uses::default()
        });
    }

    pub(crate) fn look(&mut self) {
        self.past.look(own_thread());
        self.uses(Uses {
            looks: true,
            ..Uses::default()
        });
    }

    pub(crate) fn comes_to(&mut self, thread: u64, place: u64) {
        self.past.step(thread, place);
    }

    pub(crate) fn choose(&mut self, kind: Kind, below: u32, what: &dyn Fn() -> String) -> u32 {
        let values = self.values(kind, below);
        if values.len() < 2 {
            return values[0];
        }
        let thread = own_thread();
        let made = Made {
            kind,
            options: values.len() as u32,
            chosen: 0,
            state: mix(self.state() ^ mix(thread)),
            threads: Vec::new(),
        };
        let text = |option: u32| {
            let effect = effect(kind, values[option as usize]);
            format!("{} {effect}", what())
        };
        let option = self.answer(made, &text);
        values[option as usize]
    }

    /// The thread that goes on after `from` had the turn.
    pub(crate) fn next_thread(
        &mut self,
        ready: &[(u64, u64)],
        from: u64,
        what: &dyn Fn(u64) -> String,
    ) -> Option<u64> {
        let count = ready.len();
        let stays = !mem::take(&mut self.yields) && self.streak < LONGEST;
        // The others come in turn, and it comes last.
        let after = ready.partition_point(|(thread, _)| *thread <= from);
        let mut threads: Vec<u64> = (0..count).map(|at| ready[(after + at) % count].0).collect();
        if stays && threads.last() == Some(&from) {
            threads.rotate_right(1);
        }
        let first = *threads.first()?;
        if count == 1 {
            self.streak = 0;
            self.begin_step(first);
            return Some(first);
        }
        let who = ready.iter().fold(0, |hash, (thread, _)| mix(hash ^ thread));
        let made = Made {
            kind: Kind::Thread,
            options: count as u32,
            chosen: 0,
            state: mix(self.state() ^ who),
            threads: threads.clone(),
        };
        let option = self.answer(made, &|option| what(threads[option as usize]));
        let chosen = threads[option as usize];
        self.streak = if chosen == from { self.streak + 1 } else { 0 };
        self.begin_step(chosen);
        Some(chosen)
    }

    fn begin_step(&mut self, thread: u64) {
        self.steps.push(Step {
            thread,
            choices: self.made.len(),
            waits: false,
            uses: Uses {
                promises: self.past.may_promise(thread),
                ..Uses::default()
            },
        });
    }

    fn answer(&mut self, mut made: Made, text: &dyn Fn(u32) -> String) -> u32 {
        let at = self.made.len() as u32;
        let wanted = self.order.deviations.get(self.deviated).copied();
        if let Some(wanted) = wanted.filter(|wanted| wanted.at == at) {
            if wanted.kind == made.kind && wanted.option < made.options {
                made.chosen = wanted.option;
                self.deviated += 1;
                if self.is_explained {
                    self.texts.push(Text {
                        what: text(wanted.option),
                        origin: made.kind.is_of_threads().then(Origin::here),
                    });
                }
            } else {
                let is = format!("{} of {} options", made.kind.name(), made.options);
                let was = format!("{} {}", wanted.kind.name(), wanted.option);
                self.misfit
                    .get_or_insert(format!("choice {at} is a choice of {is}, and not `{was}`"));
            }
        }
        let chosen = made.chosen;
        self.made.push(made);
        chosen
    }

    /// The values that are tried, of those below a number: few of a large number, and the base
    /// order's first.
    fn values(&self, kind: Kind, below: u32) -> Vec<u32> {
        let is_late = self.order.is_late;
        match kind {
            Kind::Weight => vec![0],
            Kind::Arrival if is_late => vec![1, 3, 2],
            Kind::Arrival => vec![0, 1, 2, INTERRUPTED],
            Kind::Delay if is_late => vec![below - 1, 0],
            Kind::Delay => vec![0, below - 1],
            Kind::Bytes => vec![below / 2],
            Kind::Landing => vec![below - 1, 0, below / 2],
            // A loss is the number 0.
            Kind::Loss => [1, 0].into_iter().filter(|it| *it < below).collect(),
            Kind::Packets => {
                let mut values = vec![0, below / 2, below - 1];
                values.dedup();
                values
            }
            _ => (0..below).collect(),
        }
    }

    fn state(&self) -> u64 {
        mix(self.past.hash() ^ mix(self.devices))
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hash = DefaultHasher::new();
    of.hash(&mut hash);
    hash.finish()
}

fn own_thread() -> u64 {
    here::place().map_or(0, |(_, thread)| thread)
}

fn effect(kind: Kind, value: u32) -> String {
    let text = match (kind, value) {
        (Kind::Arrival | Kind::Delay, 0) => "arrives at once",
        (Kind::Arrival, 1) | (Kind::Delay, _) => "arrives late",
        (Kind::Arrival, 2) => "arrives later than the program's limits",
        (Kind::Arrival, INTERRUPTED) => {
            "arrives later than the program's limits: the network of its host is interrupted"
        }
        (Kind::Arrival, _) => "arrives at once, with all before it",
        (Kind::Poll, _) => "is not executed at this poll, but at the device's own time",
        (Kind::Answer, 1) => "completes late",
        (Kind::Answer, _) => "completes later than the program's limits",
        (Kind::Overtake, _) => "is executed before an earlier request that the device keeps back",
        (Kind::Fetch, 1) => "is kept back by the device",
        (Kind::Fetch, _) => "is kept back by the device, which has read a part of its data",
        (Kind::Visibility, _) => "is visible late",
        (Kind::Landing, 0) => "is visible a little late",
        (Kind::Landing, _) => "is visible earlier than other late writes",
        (Kind::Loss, _) => "loses a packet",
        (Kind::Packets, packets) => return format!("loses packet {}", packets + 1),
        (Kind::Stray, _) => "has not left the device when its connection ends",
        (Kind::Notify, thread) => return format!("wakes waiting thread {}", thread + 1),
        (Kind::Bytes | Kind::Weight | Kind::Thread, _) => "",
    };
    text.to_owned()
}
