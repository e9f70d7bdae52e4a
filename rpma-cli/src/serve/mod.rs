//! `rpma serve`: the other side of `rpma check`.

use crate::args::Serve;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

/// Answers checks until the interrupt.
pub(crate) fn run(
    _args: &Serve,
    _interrupt: &Interrupt,
    _out: &mut Output,
) -> Result<Outcome, Problem> {
    Err(Problem::new("`rpma serve` is not written yet", ""))
}
