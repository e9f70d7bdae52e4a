//! Losses of power at each event of a program, and in many orders.

use std::time::Duration;

use super::Scene;
use super::servers::{append_at_once, append_to_few};
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Shares, Truncates};
use crate::subject::{Appended, Shape, Subject};
use crate::world::World;
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "cuts",
            promise: "A durable record survives a loss of power of all servers at any moment, and any of them that \
                      are enough for a writer have it.",
            needs: &[],
            play: cuts,
        },
        Scene {
            name: "joint-cuts",
            promise: "Records of tasks that append at the same time survive a loss of power of all servers at any \
                      moment.",
            needs: &[Shares],
            play: joint_cuts,
        },
        Scene {
            name: "cuts-in-recovery",
            promise: "A writer that opens the log may lose the power of all servers at any moment, and each later \
                      one reads the same records.",
            needs: &[GoesOn],
            play: cuts_in_recovery,
        },
        Scene {
            name: "room",
            promise: "The room of forgotten records is used again when no server can lose the truncation, whenever \
                      the power of all servers fails.",
            needs: &[Shares, Truncates],
            play: room,
        },
        Scene {
            name: "orders",
            promise: "A durable record survives a loss of power of all servers at any moment, in each order of the \
                      answers.",
            needs: &[],
            play: orders,
        },
        Scene {
            name: "orders-of-recovery",
            promise: "A writer that opens the log may lose the power of all servers at any moment, in each order of \
                      the answers.",
            needs: &[GoesOn],
            play: orders_of_recovery,
        },
    ]
}

fn cuts<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| world.only(&world.all()).await;
    stage.cut((1, stage.extent(8, 1)), prepare, async |world, ()| {
        let writer = world.open().await;
        // The last servers may get the log later than the first ones.
        world.settle().await;
        for len in [SHORT, world.shape().longest, SHORT] {
            writer.append(len).await;
        }
        writer.check().await;
    });
}

fn joint_cuts<S: Subject>(stage: &Stage<S>) {
    // At once, or in the middle of the commit of the first one.
    for (gap, nth) in [(Duration::ZERO, 8), (Duration::from_millis(2), 2)] {
        let prepare = async |world: &World<S>| {
            let writer = world.begun().await;
            if gap > Duration::ZERO {
                // A log may try its connections after a pause, and its commits wait for that.
                writer.append(SHORT).await;
                world.sleep(Duration::from_millis(100)).await;
                world.delay_all(gap * 5 / 2);
            }
            writer
        };
        stage.cut((2, stage.extent(nth, 1)), prepare, async |world, writer| {
            let append = |(nth, len)| {
                world.spawn(world.client(), {
                    let (world, writer) = (world.clone(), writer.clone());
                    async move {
                        world.sleep(gap * nth).await;
                        writer.append(len).await;
                    }
                })
            };
            let lens = [SHORT, SHORT + 30, world.shape().longest];
            for append in Vec::from_iter((0..).zip(lens).map(append)) {
                append.join().await;
            }
        });
    }
}

fn cuts_in_recovery<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| {
        append_to_few(world, &[SHORT]).await;
        world.only(&world.all()).await;
    };
    // The first servers have a record in the place of a durable one.
    let replaced = async |world: &World<S>| {
        append_to_few(world, &[world.shape().longest]).await;
        world.only(&world.last()).await;
        world.open().await.append(SHORT).await;
        world.kill_writers(world.client());
        world.only(&world.all()).await;
    };
    let program = async |world: &World<S>, ()| {
        world.open().await.append(SHORT).await;
    };
    for seed in stage.turns(3) {
        stage.cut((seed, stage.extent(8, 1)), prepare, program);
        stage.cut((seed, stage.extent(8, 1)), replaced, program);
    }
}

/// Appends until the log is full. Returns the positions of the records.
pub(super) async fn fill<S: Subject>(world: &World<S>, writer: &Writer<S>) -> Vec<u64> {
    let (mut positions, longest) = (Vec::new(), world.shape().longest);
    while positions.len() < 10 * world.shape().records {
        match writer.try_append(longest).await {
            Appended::Durable(at) => positions.push(at),
            Appended::Refused(_) | Appended::Unknown(_) => break,
        }
    }
    positions
}

/// A log that is full at the end of a lap, or in the middle of the next one, and a position to which
/// it may be truncated.
async fn full<S: Subject>(world: &World<S>, is_second: bool) -> (Writer<S>, u64) {
    let writer = world.begun().await;
    let first = fill(world, &writer).await;
    let (half, more) = (first[first.len() / 2], first[first.len() / 2 + 2]);
    if is_second {
        writer.truncate(half).await;
        world.settle().await;
        fill(world, &writer).await;
    }
    world.settle().await;
    (writer, if is_second { more } else { half })
}

fn room<S: Subject>(stage: &Stage<S>) {
    for seed in 1..=stage.extent(2, 20) {
        let prepare = async |world: &World<S>| full(world, seed % 2 == 0).await;
        let program = async |world: &World<S>, (writer, to): (Writer<S>, u64)| {
            let append = {
                let (writer, longest) = (writer.clone(), world.shape().longest);
                world.spawn(world.client(), async move {
                    let _any = writer.try_append(longest).await;
                })
            };
            world.sleep(Duration::from_millis(1)).await;
            writer.truncate(to).await;
            append.join().await;
        };
        stage.cut((seed, stage.extent(2, 1)), prepare, program);
        // A log that refuses a record when it is full gets it after the truncation has begun.
        let program = async |world: &World<S>, (writer, to): (Writer<S>, u64)| {
            let truncate = world.spawn(world.client(), {
                let writer = writer.clone();
                async move { writer.truncate(to).await }
            });
            append_at_once(world, &writer, &[world.shape().longest; 2]).await;
            truncate.join().await;
        };
        stage.cut((seed, stage.extent(4, 1)), prepare, program);
    }
    if !stage.subject.shape().lacks(GoesOn) {
        room_of_slow(stage);
    }
}

/// Longer than the others need for a truncation and some records.
const SLOW: Duration = Duration::from_millis(500);

/// A truncation and the records in the room of the forgotten ones wait for a slow server together.
fn room_of_slow<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| {
        let Shape {
            longest, records, ..
        } = *world.shape();
        let (writer, mut positions) = (world.begun().await, Vec::new());
        for _ in 0..records - 3 {
            positions.push(writer.append(longest).await);
        }
        world.settle().await;
        (writer, positions[positions.len() / 2])
    };
    let program = async |world: &World<S>, (writer, to): (Writer<S>, u64)| {
        let slow = world.link(world.last_one());
        slow.delay(SLOW);
        writer.append(SHORT).await;
        writer.truncate(to).await;
        for _ in 0..5 {
            let _any = writer.try_append(world.shape().longest).await;
        }
        slow.delay(Duration::ZERO);
        world.settle().await;
    };
    for seed in 1..=stage.extent(1, 10) {
        stage.cut((seed, stage.extent(8, 1)), prepare, program);
    }
}

fn orders<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| world.begun().await;
    let extent = (stage.orders(6), stage.extent(16, 8));
    stage.explore(extent, prepare, async |_, writer| {
        for _ in 0..2 {
            let _any = writer.try_append(SHORT).await;
        }
    });
}

fn orders_of_recovery<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| {
        append_to_few(world, &[SHORT]).await;
        world.only(&world.all()).await;
    };
    let extent = (stage.orders(6), stage.extent(16, 8));
    stage.explore(extent, prepare, async |world, ()| {
        if let Ok(writer) = world.try_open(&world.client().clone()).await {
            let _any = writer.try_append(SHORT).await;
        }
    });
}
