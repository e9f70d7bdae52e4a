//! Records without a known outcome: their writer has died, or too few servers have them.

use std::time::Duration;

use super::Scene;
use super::power::fill;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::World;
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "dies-appending",
            promise: "If a writer dies in the middle of an append or of a truncation, the next one makes durable all \
                      that it has read.",
            needs: &[],
            play: dies_appending,
        },
        Scene {
            name: "reads-unknown",
            promise: "A record that its own writer has read is not lost, even if its outcome is unknown.",
            needs: &[GoesOn],
            play: reads_unknown,
        },
    ]
}

/// How long a request is on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(5);
/// More requests than the appends of most logs have to a server.
const REQUESTS: usize = 6;

/// A writer dies in the middle of an append to all servers, which go on. The next one appends a
/// record.
async fn dies<S: Subject>(world: &World<S>, nth: usize) {
    let writer = world.begun().await;
    let all = world.all();
    // Each server gets the requests before this one, or one server gets all of them.
    let lost = 1 + nth % REQUESTS;
    let spared = (nth / REQUESTS % 2 == 1).then(|| all[nth % all.len()]);
    for n in all.iter().filter(|n| Some(**n) != spared) {
        world.link(*n).lose_request(lost);
    }
    all.iter().for_each(|n| world.link(*n).delay(ON_ITS_WAY));
    let append = {
        let (writer, longest) = (writer.clone(), world.shape().longest);
        world.spawn(world.client(), async move {
            let _any = writer.try_append(longest).await;
        })
    };
    // It connects again, and it does not write again yet.
    let answers = 1 + nth / (2 * REQUESTS) % 2;
    world
        .sleep(ON_ITS_WAY * answers as u32 + ON_ITS_WAY / 2)
        .await;
    world.kill_writers(world.client());
    append.join().await;
    drop(writer);
    let read = world.enough(nth);
    for n in all {
        world.link(n).disarm();
        if !read.contains(&n) {
            world.link(n).delay(10 * ON_ITS_WAY);
        }
    }
    world.open().await.append(SHORT).await;
}

fn dies_appending<S: Subject>(stage: &Stage<S>) {
    for nth in 0..stage.extent(2, 40) as usize * REQUESTS {
        let prepare = async |world: &World<S>| dies(world, nth).await;
        // The power fails once: when the last append is durable.
        stage.cut((9 + nth as u64, 1), prepare, async |_, ()| {});
    }
    if stage.subject.shape().lacks(Truncates) {
        return;
    }
    for lost in 1..=REQUESTS {
        let prepare = async |world: &World<S>| dies_truncating(world, lost).await;
        stage.cut((lost as u64, 1), prepare, async |_, _| {});
    }
}

/// A writer dies in the middle of a truncation, and the next one uses the room of the forgotten
/// records again.
async fn dies_truncating<S: Subject>(world: &World<S>, lost: usize) -> Writer<S> {
    let writer = world.begun().await;
    let positions = fill(world, &writer).await;
    world.settle().await;
    let all = world.all();
    all.iter().for_each(|n| world.link(*n).lose_all_from(lost));
    let truncate = world.spawn(world.client(), {
        let (writer, to) = (writer.clone(), positions[positions.len() / 2]);
        async move {
            let _any = writer.try_truncate(to).await;
        }
    });
    world.settle().await;
    world.kill_writers(world.client());
    truncate.join().await;
    drop(writer);
    all.iter().for_each(|n| world.link(*n).disarm());
    let writer = world.open().await;
    fill(world, &writer).await;
    writer
}

fn reads_unknown<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        let cut_off = &world.all()[world.few()..];
        cut_off.iter().for_each(|n| world.link(*n).partition());
        let _any = writer.try_append(SHORT).await;
        writer.check().await;
        drop(writer);
        world.kill_writers(world.client());
        world.cut_all().await;
        cut_off.iter().for_each(|n| world.link(*n).heal());
        world.only(&world.last()).await;
        world.open().await.append(SHORT).await;
    });
}
