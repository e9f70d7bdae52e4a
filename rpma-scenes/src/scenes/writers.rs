//! Two writers at once.

use std::time::Duration;

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::TakesOver;
use crate::subject::{Shape, Subject};

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
}
