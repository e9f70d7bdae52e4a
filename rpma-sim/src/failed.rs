//! [`FailedFault`]: a run under faults that has failed. A sweep prints it, or a test gets it.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;

use crate::power::text_of;
use crate::shifted::Shifted;
use crate::sweep::{ONLY, ORDER};

/// A run under faults in which a program has failed ([`find_fault`](crate::find_fault)).
///
/// Its text has the lines of a [`sweep`](fn@crate::sweep), and then that of the program's panic.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailedFault {
    /// The value of `RPMA_SIM_FAULT` that runs it alone.
    pub fault: String,
    /// The lines that a sweep prints.
    pub lines: Vec<String>,
    /// The text of the program's panic.
    pub text: String,
}

impl fmt::Display for FailedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        f.write_str(&self.text)
    }
}

impl std::error::Error for FailedFault {}

/// The same with its panic, which goes on after a sweep has printed the lines.
pub(crate) struct Failed {
    fault: String,
    lines: Vec<String>,
    panic: Box<dyn Any + Send>,
}

impl Failed {
    /// `with` is the fault or the order, and `happened` has more about it.
    pub(crate) fn new(
        (with, fault): (&str, String),
        happened: &[String],
        panic: Box<dyn Any + Send>,
    ) -> Self {
        let mut lines = vec![format!("{with}: run it alone with {ONLY}=\"{fault}\"")];
        lines.extend(happened.iter().map(|line| format!("    {line}")));
        Self {
            fault,
            lines,
            panic,
        }
    }

    /// It has failed in the order of these faults, and without them.
    pub(crate) fn by_order(shifted: Shifted, faults: &str) -> Self {
        let with = format!("without a fault, in the order of the run with \"{faults}\"");
        let order = (&*with, format!("{ORDER}{faults}"));
        Self::new(order, &[shifted.difference], shifted.panic)
    }

    /// With the seed that has drawn the faults.
    pub(crate) fn of_seed(mut self, seed: u64) -> Self {
        self.lines.insert(0, format!("seed {seed}:"));
        self
    }

    pub(crate) fn print(self) -> ! {
        self.lines.iter().for_each(|line| eprintln!("{line}"));
        resume_unwind(self.panic)
    }
}

impl From<Failed> for FailedFault {
    fn from(failed: Failed) -> Self {
        let Failed {
            fault,
            lines,
            panic,
        } = failed;
        let text = text_of(&*panic).unwrap_or("the program has panicked");
        let text = text.to_owned();
        Self { fault, lines, text }
    }
}
