//! Calls with an unusual argument, and calls that come again.

use std::time::Duration;

use super::replaces::FAR;
use super::{Scene, replaces};
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Replaces, Truncates};
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
            promise: "A truncation or a change of the servers that is called again after it has failed returns when \
                      enough servers have it, and a truncation to an earlier position changes nothing.",
            needs: &[GoesOn, Truncates],
            play: forgets_again,
        },
    ]
}

/// The power of all servers fails, also of those that are cut off. Then some of them open the log.
async fn opens_after<S: Subject>(
    world: &World<S>,
    writer: Writer<S>,
    (cut_off, up): (&[usize], &[usize]),
) {
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    cut_off.iter().for_each(|n| world.link(*n).heal());
    world.only(up).await;
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
        opens_after(world, writer, (&[], &world.last())).await;
    });
}

fn forgets_again<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| forgets_less(world).await);
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        writer.append(SHORT).await;
        let to = writer.append(SHORT).await;
        world.settle().await;
        let cut_off = cut_off(world);
        for _ in 0..2 {
            let _any = writer.try_truncate(to).await;
        }
        opens_after(world, writer, (&cut_off, &world.last())).await;
    });
    if !stage.subject.shape().lacks(Replaces) {
        replaces_again(stage);
    }
}

/// A truncation to an earlier position changes nothing, and the records keep their places.
async fn forgets_less<S: Subject>(world: &World<S>) {
    let writer = world.begun().await;
    let before = writer.append(SHORT).await;
    let to = writer.append(SHORT).await;
    writer.truncate(to).await;
    let _any = writer.try_truncate(before).await;
    for len in [world.shape().longest, SHORT] {
        writer.append(len).await;
    }
    writer.check().await;
    opens_after(world, writer, (&[], &world.last())).await;
}

/// The others are cut off at some moment of the change.
fn replaces_again<S: Subject>(stage: &Stage<S>) {
    for (seed, time) in replaces::times(stage, 400, 8) {
        stage.play_one(seed, async |world| {
            let (writer, [old, new]) = replaces::begun(world).await;
            world.delay_all(FAR);
            let change = world.spawn(world.client(), {
                let writer = writer.clone();
                async move { writer.try_replace(old, new).await.is_ok() }
            });
            world.sleep(time).await;
            let cut_off = cut_off(world);
            let is_done = change.join().await || writer.try_replace(old, new).await.is_ok();
            world.delay_all(Duration::ZERO);
            let up = match is_done {
                true => world.last(),
                false => world.enough(0),
            };
            opens_after(world, writer, (&cut_off, &up)).await;
        });
    }
}

/// Too few servers for a record are left to the writer.
fn cut_off<S: Subject>(world: &World<S>) -> Vec<usize> {
    let cut_off = world.all()[world.few()..].to_vec();
    cut_off.iter().for_each(|n| world.link(*n).partition());
    cut_off
}
