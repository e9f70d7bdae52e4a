//! The bounds of an exploration, and its report: of the orders, of one that fails, and of runs that
//! do not repeat.

use std::cell::Cell;

use rpma::sim::{Explore, Explored};

use crate::common::prelude::*;
use crate::explored::programs::shows;
use crate::explored::replicas::Tail;
use crate::power::rules::writes_behind_a_large_write;
use crate::power::world::{Way, World};

fn run(explore: &Explore) -> Explored {
    explore.run(|fabric| shows(fabric, Tail::Atomic))
}

fn explore() -> Explore {
    Explore::new(&Profile::STRICT).deviations(1)
}

/// The runs and the orders by their number of deviations.
fn levels(explored: &Explored) -> Vec<(usize, usize)> {
    let levels = explored.levels.iter();
    levels.map(|level| (level.runs, level.orders)).collect()
}

/// Promise: each order is run once, and counted with its number of deviations.
#[test]
fn each_order_is_counted_once() {
    let began = Cell::new(0);
    let explored = explore().every_order().run(|fabric| {
        began.set(began.get() + 1);
        shows(fabric, Tail::Atomic);
    });
    let [(2, 2), (runs, orders)] = levels(&explored)[..] else {
        panic!("{explored}");
    };
    assert_eq!((runs, runs + 2), (orders, began.get()), "{explored}");
    // Those of the early base order, and as many of the late one, up to a few.
    let early: usize = explored.choices.values().map(|of| of.1).sum();
    assert!(
        (early + early / 2..=3 * early).contains(&runs),
        "{explored}"
    );
    let text = explored.to_string();
    assert!(
        text.starts_with("explored: all orders with up to 1 deviation ("),
        "{text}"
    );
}

/// Promise: a number of runs is a bound, and the report has the orders that are left.
#[test]
fn it_stops_after_a_number_of_runs() {
    let all = levels(&run(&explore()))[1].1;
    for (runs, expected, begin) in [
        (
            1,
            vec![(1, 2)],
            "not all orders without a deviation; 1 of 2 with 0",
        ),
        (
            7,
            vec![(2, 2), (5, all)],
            "all orders without a deviation; 5 of ",
        ),
    ] {
        let explored = run(&explore().runs(runs));
        assert_eq!(levels(&explored), expected, "{explored}");
        let text = explored.to_string();
        assert!(
            explored.stopped.is_some() && text.contains(", stopped after "),
            "{text}"
        );
        assert!(text.starts_with(&format!("explored: {begin}")), "{text}");
    }
}

/// Promise: no run begins after the limit of time.
#[test]
fn it_stops_at_its_limit() {
    let explored = run(&explore().limit(Duration::ZERO));
    assert_eq!(levels(&explored), [(0, 2)], "{explored}");
    assert!(explored.stopped.is_some(), "{explored}");
    // One run takes longer.
    let limit = Duration::from_millis(1);
    let explored = explore().limit(limit).run(|_| std::thread::sleep(limit));
    assert_eq!(levels(&explored), [(1, 2)], "{explored}");
    assert!(explored.stopped >= Some(limit), "{explored}");
}

/// Promise: a run is compared with the one from which it deviates, also if its order fits.
#[test]
fn other_choices_before_a_deviation_are_reported() {
    let runs = Cell::new(0);
    let explored = explore().every_order().run(|fabric| {
        runs.set(runs.get() + 1);
        let host = fabric.host("here");
        // Three threads in the base orders, and then one more.
        let threads = (0..if runs.get() > 2 { 4 } else { 3 }).map(|_| host.spawn(|| ()));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(join);
    });
    assert!(explored.diverged > 0, "{explored}");
    let text = explored.to_string();
    assert!(
        text.contains("differ from those of the run before"),
        "{text}"
    );
}

/// Promise: an order that fails has the fewest deviations. This program fails in each order from
/// its fifth run on.
#[test]
fn an_order_is_reduced() {
    let runs = Cell::new(0);
    let found = explore().find(|fabric| {
        runs.set(runs.get() + 1);
        shows(fabric, Tail::Atomic);
        assert!(runs.get() < 5, "the fifth run");
    });
    let found = found.expect_err("it fails");
    assert_eq!((found.explored.runs(), &*found.order), (5, "early"));
    assert!(found.deviations.is_empty(), "{found}");
}

/// Promise: each sequence of events has images of its own, where they are sampled.
#[test]
fn each_sequence_has_other_images() {
    let run = |fabric: &Fabric| {
        let way = Way::on(Platform::AdrDdioOff).promising();
        let world = World::new(fabric, way).expect("a connection");
        let found = writes_behind_a_large_write(&world, true);
        assert!(found.is_ok(), "{found:?}");
    };
    let base = explore().deviations(0).run(run);
    let explored = explore().run(run);
    println!("{base}; {explored}");
    assert!(3 * explored.images() > 5 * base.images(), "{explored}");
}
