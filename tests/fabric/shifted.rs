//! Faults that have only shifted the order of a program.
//!
//! Promise: if a program fails alike without the fault, in the order of the run with it, `sweep`
//! and `storm` report the order. Otherwise they report the fault.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::{storm, sweep};
use rpma::sync::Mutex;
use rpma::thread;

use crate::common::prelude::*;
use crate::common::program::command_alone;
use crate::power::protocols::{check_log, place, record};
use crate::power::world::{Way, World};

/// Has the variant of a wrong program in the process that runs it, or `all`.
const VARIANT: &str = "RPMA_TEST_SHIFTED";
const FAULT: &str = "RPMA_SIM_FAULT";

/// Two threads make so many calls, which may fail, and then add 1 to a number, without a lock
/// around both accesses. Returns the number, and whether a call has failed.
fn add(fabric: &Fabric, calls: u64) -> (u64, bool) {
    let host = fabric.host("host");
    let _on = host.enter();
    let addr = host.addr().to_string();
    let (number, failed) = (Mutex::new(0), AtomicBool::new(false));
    let locked = || number.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        for _ in 0..calls {
            if Peer::at(&addr).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        }
        let seen = *locked();
        *locked() = seen + 1;
    };
    thread::scope(|scope| {
        scope.spawn(run);
        scope.spawn(run);
    });
    let added = *locked();
    (added, failed.into_inner())
}

fn loses_an_update(fabric: &Fabric, calls: u64) {
    assert_eq!(add(fabric, calls).0, 2, "an update is lost");
}

/// As that, and it also fails by the fault.
fn loses_an_update_by_a_fault(fabric: &Fabric, calls: u64) {
    match add(fabric, calls) {
        (2, _) => {}
        (_, false) => panic!("an update is lost"),
        (_, true) => panic!("a call has failed"),
    }
}

/// A log with a plain write for its tail, after a flush that is not awaited. In some orders the tail
/// overtakes its record. Some writes come before.
fn overtakes(fabric: &Fabric, before: u64) {
    let made = catch_unwind(AssertUnwindSafe(|| {
        World::new(fabric, Way::on(Platform::Eadr))
    }));
    let Ok(Ok(world)) = made else {
        return;
    };
    let append = |number: u64| -> anyhow::Result<()> {
        world.write(place(number), record(number))?;
        world.post_flush(place(number), record(number).len(), FlushType::Persistent)?;
        world.write(0, &(number + 1).to_le_bytes())?;
        world.flush(0, 8)
    };
    let found = world.under_every_cut(check_log, |tell| {
        for number in 0..before as usize {
            // If it fails, the others go on.
            let _ = world.write(2048 + 8 * number, &[1; 8]);
        }
        for number in 0..9 {
            if append(number).is_err() {
                break;
            }
            tell(number + 1);
        }
    });
    found.unwrap_or_else(|loss| panic!("{loss}"));
}

type Program = fn(&Fabric, u64);

/// Runs `judge` with the first variant of a program that is right in the order of its seed and
/// found wrong.
fn run_variants(program: Program, judge: impl Fn(&dyn Fn(&Fabric))) {
    let of = |variant: u64| move |fabric: &Fabric| program(fabric, variant);
    let variant = env::var(VARIANT).expect("its variant");
    if let Ok(variant) = variant.parse() {
        judge(&of(variant));
        return;
    }
    for variant in 1..40 {
        let is_right = |()| program(&Rig::strict().seed(1).fabric(), variant);
        if catch_unwind(|| is_right(())).is_err() {
            continue;
        }
        eprintln!("== {variant}");
        judge(&of(variant));
    }
}

fn is_child() -> bool {
    env::var(VARIANT).is_ok()
}

/// Runs another test of this program, which fails; returns its errors from the last variant on.
fn run_wrong(test: &str, variant: &str, fault: Option<&str>) -> Result<String> {
    let mut command = command_alone(module_path!(), test);
    command.env(VARIANT, variant).env_remove(FAULT);
    command.envs(fault.map(|fault| (FAULT, fault)));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    let last = text.rsplit_once("== ").map(|(_, last)| last.to_owned());
    Ok(last.unwrap_or(text))
}

/// The order is reported by a variable that repeats it, and not the fault.
fn is_found_by_its_order(test: &str, differs: &str) -> Result {
    let printed = run_wrong(test, "all", None)?;
    assert!(!printed.contains("with the fault"), "{printed}");
    let variant = printed.lines().next().unwrap_or_default().to_owned();
    let begin = "without a fault, in the order of the run with \"";
    let report = |printed: &str| -> Result<_> {
        let (_, rest) = printed.split_once(begin).ok_or("the order")?;
        let lines: Vec<_> = rest.lines().take(2).map(str::to_owned).collect();
        Ok(lines)
    };
    let lines = report(&printed)?;
    let (fault, rest) = lines[0].split_once('"').ok_or("a fault")?;
    let order = format!("order of {fault}");
    assert_eq!(rest, format!(": run it alone with {FAULT}=\"{order}\""));
    assert_says(&lines[1], &[differs]);
    let again = run_wrong(test, &variant, Some(&order))?;
    assert_eq!(report(&again)?, lines);
    // With the fault it fails as well, and the order is reported again.
    let again = run_wrong(test, &variant, Some(fault))?;
    assert_eq!(report(&again)?, lines);
    Ok(())
}

#[test]
fn a_sweep_reports_an_order_of_threads() -> Result {
    if is_child() {
        run_variants(loses_an_update, |program| {
            sweep(&Profile::STRICT, program);
        });
        return Ok(());
    }
    is_found_by_its_order("a_sweep_reports_an_order_of_threads", " (host, last call: ")
}

#[test]
fn a_sweep_reports_an_order_of_a_device() -> Result {
    if is_child() {
        run_variants(overtakes, |program| {
            sweep(&Profile::STRICT, program);
        });
        return Ok(());
    }
    is_found_by_its_order(
        "a_sweep_reports_an_order_of_a_device",
        "a device chooses otherwise (choice ",
    )
}

#[test]
fn a_storm_reports_an_order() -> Result {
    if is_child() {
        run_variants(loses_an_update, |program| {
            storm(&Profile::STRICT, 200, program);
        });
        return Ok(());
    }
    is_found_by_its_order(
        "a_storm_reports_an_order",
        " goes on, and without this order ",
    )
}

/// A program that fails otherwise without the fault is reported with the fault.
#[test]
fn another_failure_is_not_the_order() -> Result {
    if is_child() {
        run_variants(loses_an_update_by_a_fault, |program| {
            sweep(&Profile::STRICT, program);
        });
        return Ok(());
    }
    let printed = run_wrong("another_failure_is_not_the_order", "all", None)?;
    assert_says(&printed, &["a call has failed", "with the fault \""]);
    Ok(())
}
