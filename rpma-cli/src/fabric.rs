//! The commands of the simulated build: both sides run in this process, on a fabric of their own.

use rpma::sim::Fabric;

use crate::args::{Check, Doctor, Serve};
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Outcome, Output};
use crate::{check as checks, doctor};

/// `rpma doctor` on a simulated host.
pub(crate) fn diagnose(
    args: &Doctor,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<Outcome, Problem> {
    let fabric = Fabric::new(args.fabric.profile.clone());
    let host = fabric.host("host");
    let _entered = host.enter();
    doctor::run(args, interrupt, out)
}

/// No other process reaches a fabric.
pub(crate) fn serve(
    _args: &Serve,
    _interrupt: &Interrupt,
    _out: &mut Output,
) -> Result<Outcome, Problem> {
    Err(Problem::new(
        "the simulated fabric is inside one process, so no client can reach a server",
        "Run `rpma check`, which starts its own server",
    ))
}

/// `rpma check` against a server on another simulated host.
pub(crate) fn check(
    args: &Check,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<Outcome, Problem> {
    let fabric = Fabric::new(args.fabric.profile.clone());
    let (client, _server) = (fabric.host("client"), fabric.host("server"));
    let _entered = client.enter();
    checks::run(args, interrupt, out)
}
