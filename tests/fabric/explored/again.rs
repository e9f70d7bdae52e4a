//! An order that fails runs again alone, and a program that is another one in each run is reported.

use std::cell::Cell;
use std::env;

use rpma::sim::Explore;

use crate::common::prelude::*;
use crate::common::program::command_alone;
use crate::explored::programs::times_out;
use crate::explored::replicas::{Tail, on_all, post_all, under_cuts, wait_all};

/// Set in the process of a planted fault.
const PLANTED: &str = "RPMA_TEST_PLANTED";
const ORDER: &str = "RPMA_SIM_ORDER";

fn explore() -> Explore {
    Explore::new(&Profile::RXE_6_12)
        .deviations(1)
        .limit(Duration::from_secs(600))
}

/// Only for the test below, in a process of its own.
#[test]
fn planted() {
    if env::var_os(PLANTED).is_some() {
        explore().run(|fabric| times_out(fabric, true));
    }
}

/// Only for the test below, in a process of its own.
#[test]
fn planted_and_found() {
    if env::var_os(PLANTED).is_some() {
        let found = explore().find(|fabric| times_out(fabric, true));
        let found = found.expect_err("the fault");
        println!("runs {}, {}", found.explored.runs(), found.order);
    }
}

/// Promise: the printed variable runs the order that fails alone, and the deviation is printed as
/// an operation with its hosts and its line.
#[test]
fn an_order_runs_again_alone() -> Result {
    let run_with = |variables: &[(&str, &str)]| -> Result<(bool, String)> {
        let mut command = command_alone(module_path!(), "planted");
        command.env(PLANTED, "").envs(variables.iter().copied());
        let output = command.output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), told))
    };
    let run = |order: Option<&str>| match order {
        Some(order) => run_with(&[(ORDER, order)]),
        None => run_with(&[]),
    };
    let (passes, told) = run(None)?;
    assert!(!passes && told.contains("explored: "), "{told}");
    let order = told
        .split("RPMA_SIM_ORDER=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let order = order.expect("an order").to_owned();
    let (passes, alone) = run(Some(&order))?;
    assert!(!passes && !alone.contains("explored: "), "{alone}");
    for told in [&told, &alone] {
        assert!(told.contains("a promised record is lost"), "{told}");
        assert!(
            told.contains(&format!("run it alone with {ORDER}=\"{order}\"")),
            "{told}"
        );
        assert!(order.contains(';'), "a deviation is needed: {told}");
        assert!(told.contains(" of client to one arrives "), "{told}");
        assert!(told.contains("world.rs:"), "{told}");
    }
    // The event alone, beside the order.
    let event = alone
        .split("fails at event ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    let event = event.expect("an event").to_owned();
    let (passes, told) = run_with(&[(ORDER, &order), ("RPMA_SIM_EVENT", &event)])?;
    assert!(
        !passes && told.contains("a promised record is lost"),
        "{told}"
    );
    assert!(!told.contains("Run it again with RPMA_SIM_EVENT"), "{told}");
    // Another order fails in its own way, or not at all; and nonsense is refused.
    let (passes, told) = run(Some("early; 4711 arrival 1"))?;
    assert!(
        told.contains("does not fit this program") || !passes,
        "{told}"
    );
    let (passes, told) = run(Some("soon"))?;
    assert!(
        !passes && told.contains("and not `early` or `late`"),
        "{told}"
    );
    Ok(())
}

/// Promise: the variable selects the order of `find` as well.
#[test]
fn an_order_is_found_again_alone() -> Result {
    let order = "early; 0 arrival 2";
    let mut command = command_alone(module_path!(), "planted_and_found");
    let output = command.env(PLANTED, "").env(ORDER, order).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains(&format!("runs 1, {order}")), "{printed}");
    Ok(())
}

/// Promise: a program that depends on something else than its choices is reported.
#[test]
fn a_replay_that_diverges_is_reported() {
    let runs = Cell::new(0);
    let explored = explore().run(|fabric| {
        runs.set(runs.get() + 1);
        let records = 1 + u64::from(runs.get() % 3 == 0);
        under_cuts(fabric, 1, &on_all, |replicas, promise| {
            for number in 0..records {
                // Another operation comes first.
                if records == 2 {
                    replicas[0].post_flush()?;
                }
                let posted = post_all(replicas, number, Tail::Atomic)?;
                wait_all(replicas, &posted)?;
                promise(number + 1);
            }
            Ok(())
        });
    });
    assert!(explored.diverged > 0, "{explored}");
    assert!(
        explored.to_string().contains("did not repeat"),
        "{explored}"
    );
}
