//! `rpma doctor`: does RDMA with persistent memory work on this host?

use crate::args::Doctor;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};

/// Looks at everything in turn, and prints each finding.
pub(crate) fn run(
    _args: &Doctor,
    _interrupt: &Interrupt,
    _out: &mut Output,
) -> Result<Outcome, Problem> {
    Err(Problem::new("`rpma doctor` is not written yet", ""))
}
