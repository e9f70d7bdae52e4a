//! Calls with an unusual argument, and calls that come again.

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::World;
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "lengths",
            promise: "Records of one byte up to the longest are durable, and an empty or longer one is read as it \
                      was appended, or refused without an effect.",
            needs: &[],
            play: lengths,
        },
        Scene {
            name: "forgets-again",
            promise: "A truncation that is called again after it has failed returns when enough servers have it.",
            needs: &[GoesOn, Truncates],
            play: forgets_again,
        },
    ]
}

/// The power of all servers fails, also of those that are cut off. The last ones open the log.
async fn opens_after<S: Subject>(world: &World<S>, writer: Writer<S>, cut_off: &[usize]) {
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    cut_off.iter().for_each(|n| world.link(*n).heal());
    world.only(&world.last()).await;
    world.open().await.append(SHORT).await;
}

fn lengths<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| {
        let writer = world.begun().await;
        let Shape {
            longest, memory, ..
        } = *world.shape();
        // Each comes once: the judge knows a record by its bytes.
        for len in [0, longest + 1, memory] {
            writer.append_or_not(len).await;
            writer.append(SHORT).await;
        }
        for len in [longest, 1, SHORT] {
            writer.append(len).await;
        }
        writer.check().await;
        opens_after(world, writer, &[]).await;
    });
}

fn forgets_again<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        writer.append(SHORT).await;
        let to = writer.append(SHORT).await;
        world.settle().await;
        let cut_off = &world.all()[world.few()..];
        cut_off.iter().for_each(|n| world.link(*n).partition());
        for _ in 0..2 {
            let _any = writer.try_truncate(to).await;
        }
        opens_after(world, writer, cut_off).await;
    });
}
