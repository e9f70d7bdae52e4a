//! Power cuts while both programs run in threads of their own, in an order that a seed repeats.

use std::collections::BTreeSet;
use std::sync::Arc;

use rpma::sim::Trace;

use crate::common::prelude::*;
use crate::power::world::{Ran, Way, World, word};

const COUNT: u64 = 4;

fn run(profile: &Profile, seed: u64, forgets: bool) -> Result<(Result<(), Loss>, Trace)> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let found = run_on(&fabric, COUNT, forgets);
    let found = found.map(|ran| ran.expect("nothing fails"));
    assert_eq!(fabric.why_not_repeatable(), None);
    Ok((found, fabric.trace()))
}

/// A client counts up in the server's memory, and asks the server's program to persist it; the
/// server does, or forgets it the last time but one.
pub(crate) fn run_on(fabric: &Fabric, count: u64, forgets: bool) -> Ran {
    let world = World::new(fabric, Way::on(Platform::AdrDdioOn));
    let world = Arc::new(world.expect("a connection"));
    let check = |image: &[u8], told| {
        let number = word(image);
        assert!(
            number >= told,
            "{told} was acknowledged, and {number} is there"
        );
    };
    world.under_every_cut(check, |tell| {
        let serving = world.server.spawn({
            let world = Arc::clone(&world);
            move || (1..=count).try_for_each(|number| world.answer(!forgets || number + 1 != count))
        });
        let _entered = world.client.enter();
        let counted = (1..=count).try_for_each(|number| {
            world.write(0, &number.to_le_bytes())?;
            world.ask(0, 8)?;
            world.wait_for_answer()?;
            tell(number);
            Ok(())
        });
        let served = serving.join().expect("no panic");
        counted.and(served)
    })
}

#[test]
fn a_server_with_a_thread_survives_in_every_order() -> Result {
    for profile in Profile::EVERY {
        let mut traces = BTreeSet::new();
        for seed in 0..10 {
            let (found, trace) = run(&profile, seed, false)?;
            found.unwrap_or_else(|loss| panic!("seed {seed}: {loss}"));
            traces.insert(trace.hash);
        }
        assert!(traces.len() > 1, "the seeds make a difference");
    }
    Ok(())
}

/// A loss that is found with a seed is found again with it, and the report is the same.
#[test]
fn a_loss_is_found_again_by_its_seed() -> Result {
    let (found, trace) = run(&Profile::STRICT, 7, true)?;
    let report = found.expect_err("it is forgotten").to_string();
    let begin = "3 was acknowledged, and 2 is there";
    assert!(report.starts_with(begin), "{report}");
    let (again, same) = run(&Profile::STRICT, 7, true)?;
    assert_eq!(again.expect_err("it is forgotten").to_string(), report);
    assert_eq!(same, trace);
    Ok(())
}
