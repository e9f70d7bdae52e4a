//! Any fault, and several at once.

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::Truncates;
use crate::subject::{Appended, Shape, Subject};
use crate::world::{World, fail};

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "each-fault",
            promise: "Under any single fault no durable record is lost, and when the fault is over the log opens.",
            needs: &[],
            play: each_fault,
        },
        Scene {
            name: "several-faults",
            promise: "Under several faults at once no durable record is lost, and when they are over the log opens.",
            needs: &[],
            play: several_faults,
        },
    ]
}

fn each_fault<S: Subject>(stage: &Stage<S>) {
    stage.sweep(async |world| program(world, 1).await);
}

/// The most faults that a storm draws at once.
const STORM: usize = 4;

fn several_faults<S: Subject>(stage: &Stage<S>) {
    let seeds = stage.extent(6, 500);
    stage.storm(seeds, async |world| program(world, STORM).await);
}

/// Ends the faults: each host has power and goes on, and each server runs.
async fn mend<S: Subject>(world: &World<S>) {
    let hosts = world.all().into_iter().map(|n| world.host(n));
    for host in hosts.chain([world.client().clone()]) {
        host.thaw();
        if !host.has_power() {
            host.restart();
        }
    }
    world.only(&world.all()).await;
}

/// A writer under faults, and those after it. So many of them may fail.
async fn program<S: Subject>(world: &World<S>, faults: usize) {
    let truncates = !world.shape().lacks(Truncates);
    world.only(&world.all()).await;
    if let Ok(writer) = world.try_open(&world.client().clone()).await {
        for round in 0..3 {
            let appended = writer.try_append(SHORT + 20 * round).await;
            if let (Appended::Durable(at), 1, true) = (appended, round, truncates) {
                let _any = writer.try_truncate(at).await;
            }
        }
    }
    for attempt in 0..=faults {
        world.kill_writers(world.client());
        mend(world).await;
        match world.try_open(&world.client().clone()).await {
            Ok(writer) => {
                let _any = writer.try_append(SHORT).await;
                return;
            }
            // It was not made, or by halves.
            Err(_) if !world.model().is_opened() => return,
            Err(error) if attempt == faults => fail(format!(
                "each server runs, the fault is over, and the log does not open: {error}"
            )),
            Err(_) => {}
        }
    }
}
