//! `rpma check`: every operation of the library, against a server of another host.

use crate::args::Check;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

/// Runs the cases, and reports their results.
pub(crate) fn run(
    _args: &Check,
    _interrupt: &Interrupt,
    _out: &mut Output,
) -> Result<Outcome, Problem> {
    Err(Problem::new("`rpma check` is not written yet", ""))
}
