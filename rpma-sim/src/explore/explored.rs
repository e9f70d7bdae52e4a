//! How far an exploration came, and the order that fails.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use super::order::{ONLY, Order};
use super::script::Script;

/// How far an exploration came. Its text is for people.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Explored {
    /// The orders by their number of deviations.
    pub levels: Vec<ExploredLevel>,
    /// How long it took until it stopped before its end, if it did.
    pub stopped: Option<Duration>,
    /// The kinds of choices of the run without a deviation, in the early base order: how many of a
    /// kind there are, and how many alternatives these have.
    pub choices: BTreeMap<&'static str, (usize, usize)>,
    /// How many runs did not repeat the choices of the run from which they deviate. These are
    /// reported once, with the reason.
    pub diverged: usize,
    why: Option<String>,
    /// The orders with one more deviation.
    pub(super) more: usize,
    sequences: HashSet<u64>,
    images: HashSet<u64>,
}

/// The orders with one number of deviations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExploredLevel {
    /// How many of them were run.
    pub runs: usize,
    /// How many there are.
    pub orders: usize,
}

impl Explored {
    /// The number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.levels.iter().map(|level| level.runs).sum()
    }

    /// The number of different sequences of events: of operations that devices have executed, and
    /// of the other moments at which [`Fabric::on_every_event`](crate::Fabric::on_every_event) would
    /// look.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// The number of different images that checks were shown. Images of several memories together
    /// count as one.
    #[must_use]
    pub fn images(&self) -> usize {
        self.images.len()
    }

    /// Whether both have the same sequences of events and the same images.
    #[must_use]
    pub fn saw_the_same(&self, other: &Self) -> bool {
        self.sequences == other.sequences && self.images == other.images
    }

    pub(super) fn begin(&mut self, deviations: usize, orders: usize) {
        debug_assert_eq!(deviations, self.levels.len());
        self.levels.push(ExploredLevel { runs: 0, orders });
        self.more = 0;
    }

    pub(super) fn also(&mut self, deviations: usize) {
        self.levels[deviations].orders += 1;
    }

    pub(super) fn add(&mut self, deviations: usize, script: &Script) {
        if let Some(level) = self.levels.get_mut(deviations) {
            level.runs += 1;
        }
        self.sequences.insert(script.events);
        self.images.extend(&script.images);
        if self.runs() == 1 {
            for made in &script.made[script.begun.unwrap_or(0).min(script.made.len())..] {
                let of = self.choices.entry(made.kind.name()).or_default();
                *of = (of.0 + 1, of.1 + made.options as usize - 1);
            }
        }
    }

    pub(super) fn note_diverged(&mut self, order: &Order, why: String) {
        self.diverged += 1;
        self.why
            .get_or_insert_with(|| format!("\"{order}\": {why}"));
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let complete = self
            .levels
            .iter()
            .take_while(|level| level.runs == level.orders)
            .count();
        match complete {
            0 => write!(f, "explored: not all orders without a deviation")?,
            1 => write!(f, "explored: all orders without a deviation")?,
            2 => write!(f, "explored: all orders with up to 1 deviation")?,
            _ => write!(
                f,
                "explored: all orders with up to {} deviations",
                complete - 1
            )?,
        }
        if let Some(level) = self.levels.get(complete) {
            write!(f, "; {} of {} with {complete}", level.runs, level.orders)?;
        }
        match self.stopped {
            Some(after) => write!(f, ", stopped after {:.1} s", after.as_secs_f64())?,
            None => write!(f, " ({} have one more)", self.more)?,
        }
        let (runs, sequences, images) = (self.runs(), self.sequences(), self.images());
        write!(
            f,
            "\n    {runs} runs, {sequences} sequences of events, {images} images; choices:"
        )?;
        for (number, (kind, (count, _))) in self.choices.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma} {count} {kind}")?;
        }
        if let Some(why) = &self.why {
            write!(f, "\n    {} runs did not repeat, as {why}", self.diverged)?;
        }
        Ok(())
    }
}

/// An order in which a program has failed, reduced to the deviations that the failure needs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedOrder {
    /// The value of `RPMA_SIM_ORDER` that runs it alone.
    pub order: String,
    /// Each deviation: the operation or the thread, and the program's line, if the build has debug
    /// information.
    pub deviations: Vec<String>,
    /// The text of the program's panic.
    pub text: String,
    /// The runs until then.
    pub explored: Explored,
}

impl FailedOrder {
    pub(super) fn new(order: &Order, script: &Script, text: String, explored: Explored) -> Self {
        Self {
            order: order.to_string(),
            deviations: script.texts.iter().map(super::script::Text::line).collect(),
            text,
            explored,
        }
    }
}

impl fmt::Display for FailedOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            order,
            text,
            explored,
            ..
        } = self;
        let runs = explored.runs();
        write!(
            f,
            "run {runs}, in the order \"{order}\": run it alone with {ONLY}=\"{order}\""
        )?;
        for deviation in &self.deviations {
            write!(f, "\n    {deviation}")?;
        }
        write!(f, "\n{text}")
    }
}

impl std::error::Error for FailedOrder {}
