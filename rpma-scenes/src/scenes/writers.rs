//! Two writers at once.

use std::time::Duration;

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::{Refills, TakesOver};
use crate::subject::{Shape, Subject};
use crate::world::World;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "frozen-writer",
            promise: "A writer that was frozen, and goes on after another one has taken over, changes nothing.",
            needs: &[TakesOver],
            play: frozen_writer,
        },
        Scene {
            name: "two-writers",
            promise: "If a writer takes over from one that appends, the records that became durable for either of \
                      them are read.",
            needs: &[TakesOver],
            play: two_writers,
        },
    ]
}

fn two_writers<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(4, 50), async |world| {
        let first = world.begun().await;
        let old = world.spawn(world.client(), {
            let world = world.clone();
            async move {
                for _ in 0..4 {
                    let _any = first.try_append(SHORT).await;
                    world.sleep(Duration::from_millis(1)).await;
                }
            }
        });
        world.sleep(Duration::from_millis(2)).await;
        let host = world.fabric().host("writer-2");
        let second = world.open_on(&host).await;
        second.append(SHORT).await;
        second.append(SHORT).await;
        old.join().await;
        second.check().await;
        drop(second);
        world.kill_writers(&host);
        world.kill_writers(world.client());
        world.cut_all().await;
        world.only(&world.last()).await;
        world.open().await.check().await;
    });
}

/// Longer than a client needs until it has connected again.
const RECONNECTS: Duration = Duration::from_secs(15);

fn frozen_writer<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 30), async |world| {
        let first = world.begun().await;
        // So its writes are on their way.
        world.delay_all(Duration::from_millis(5));
        let old = world.spawn(world.client(), {
            let (first, world, longest) = (first.clone(), world.clone(), world.shape().longest);
            async move {
                let _any = first.try_append(longest).await;
                world.sleep(RECONNECTS).await;
                let _any = first.try_append(SHORT).await;
            }
        });
        world.sleep(Duration::from_millis(2)).await;
        world.freeze_writer();
        let host = world.fabric().host("writer-2");
        let second = world.open_on(&host).await;
        second.append(SHORT).await;
        second.append(SHORT).await;
        world.thaw_writer();
        world.sleep(RECONNECTS).await;
        second.append(SHORT).await;
        old.join().await;
        second.append(SHORT).await;
        second.check().await;
        drop((first, second));
        world.kill_writers(&host);
        world.kill_writers(world.client());
        world.cut_all().await;
        world.only(&world.first()).await;
        world.open().await.check().await;
    });
    // The servers have restarted when it goes on, and may have forgotten that it was fenced.
    stage.play(stage.extent(1, 10), async |world| {
        let first = world.begun().await;
        world.freeze_writer();
        let host = world.fabric().host("writer-2");
        let second = world.open_on(&host).await;
        second.append(SHORT).await;
        second.append(SHORT).await;
        drop(second);
        world.kill_writers(&host);
        world.cut_all().await;
        world.only(&world.all()).await;
        world.thaw_writer();
        world.sleep(RECONNECTS).await;
        let _any = first.try_append(SHORT).await;
        drop(first);
        world.kill_writers(world.client());
        world.cut_all().await;
        world.only(&world.first()).await;
        world.open().await.check().await;
    });
    if stage.subject.shape().lacks(Refills) {
        return;
    }
    // One server is new to it when it goes on, and another one has not heard of the next writer. It
    // reaches the others, or does not.
    for is_alone in [false, true] {
        stage.play(stage.extent(1, 10), async |world| {
            goes_on(world, is_alone).await
        });
    }
}

async fn goes_on<S: Subject>(world: &World<S>, is_alone: bool) {
    let first = world.begun().await;
    world.freeze_writer();
    let host = world.fabric().host("writer-2");
    let (all, last) = (world.all(), world.last_one());
    let unheard = world.fabric().between(&host, &world.host(last));
    unheard.partition();
    let second = world.open_on(&host).await;
    second.append(SHORT).await;
    drop(second);
    world.kill_writers(&host);
    unheard.heal();
    world.refill(all[0]).await;
    world.start(all[0]).await;
    let others = &all[1..all.len() - 1];
    if is_alone {
        others.iter().for_each(|n| world.link(*n).partition());
    }
    world.thaw_writer();
    world.sleep(RECONNECTS).await;
    let _any = first.try_append(SHORT).await;
    drop(first);
    world.kill_writers(world.client());
    others.iter().for_each(|n| world.link(*n).heal());
    // It opens with all records, or not at all.
    let without = &all[1..1 + world.shape().quorum().saturating_sub(1)];
    let up: Vec<_> = all
        .iter()
        .copied()
        .filter(|n| !without.contains(n))
        .collect();
    world.only(&up).await;
    drop(world.try_open(&world.client().clone()).await);
    world.kill_writers(world.client());
    world.only(&all).await;
    world.open().await.append(SHORT).await;
}
