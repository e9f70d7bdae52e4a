//! A writer fills a server with empty memory.

use std::collections::VecDeque;
use std::time::Duration;

use super::Scene;
use super::joins::{KEPT, at_steps, opens_and_dies};
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Refills, Returns, TakesOver, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::{RETURNS, World};
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "writer-dies-replacing",
            promise: "A writer that dies while it fills a server with empty memory leaves a log that opens with all \
                      records, or does not open. The next one fills that server, which counts then.",
            needs: &[GoesOn, Refills, TakesOver],
            play: writer_dies_replacing,
        },
        Scene {
            name: "dies-filling",
            promise: "A server with empty memory may lose its power at any moment while it is filled, and the log \
                      opens with all records, or does not open.",
            needs: &[GoesOn, Returns, Refills],
            play: dies_filling,
        },
    ]
}

const SLOW: Duration = Duration::from_millis(20);

/// The last server has empty memory, and others lack a record that it had. Returns all of them.
async fn has_lost<S: Subject>(world: &World<S>, writer: Writer<S>) -> Vec<usize> {
    let (all, last) = (world.all(), world.last_one());
    let away = &all[1..1 + world.spare()];
    let others: Vec<_> = all.iter().copied().filter(|n| !away.contains(n)).collect();
    world.only(&others).await;
    writer.append(world.shape().longest).await;
    drop(writer);
    world.kill_writers(world.client());
    world.refill(last).await;
    // The servers that have missed the record are slower than the empty one.
    away.iter().for_each(|n| world.link(*n).delay(SLOW));
    world.only(&all).await;
    [away, &[last]].concat()
}

async fn opens_or_not<S: Subject>(world: &World<S>, up: &[usize]) {
    world.only(up).await;
    // Without a server that has the record it may not open.
    let opened = world.try_open(&world.client().clone()).await;
    drop(opened);
    world.kill_writers(world.client());
    world.only(&world.all()).await;
    world.open().await.append(SHORT).await;
}

/// Appends and forgets records until those that are kept lie on both sides of the end of their room.
async fn wrap<S: Subject>(world: &World<S>, writer: &Writer<S>) {
    let Shape {
        longest, records, ..
    } = *world.shape();
    let (mut positions, mut before) = (VecDeque::new(), None);
    // A log may have room for more than its records.
    for _ in 0..10 * records {
        positions.push_back(writer.append(longest).await);
        if positions.len() > KEPT {
            writer.truncate(positions[1]).await;
            positions.pop_front();
        }
        let place = world.last_place();
        if place < before {
            break;
        }
        before = place;
    }
}

fn writer_dies_replacing<S: Subject>(stage: &Stage<S>) {
    at_steps(stage, stage.extent(12, 200), async |world, step| {
        let writer = world.begun().await;
        let up = has_lost(world, writer).await;
        let steps = opens_and_dies(world, step).await;
        opens_or_not(world, &up).await;
        steps
    });
    if !stage.subject.shape().lacks(Returns) {
        fills_again(stage);
    }
    if stage.subject.shape().lacks(Truncates) {
        return;
    }
    // The empty server gets the records in two parts, and it is slow.
    for nth in 0..stage.extent(24, 200) {
        stage.play_one(nth + 1, async |world| {
            let writer = world.begun().await;
            wrap(world, &writer).await;
            let up = has_lost(world, writer).await;
            world.link(world.last_one()).delay(SLOW);
            let dies = world.spawn(&world.fabric().host("scene"), {
                let (world, time) = (world.clone(), SLOW / 2 * nth as u32 + SLOW / 4);
                async move {
                    world.sleep(time).await;
                    world.kill_writers(world.client());
                }
            });
            let opened = world.try_open(&world.client().clone()).await;
            dies.join().await;
            drop(opened);
            world.settle().await;
            opens_or_not(world, &up).await;
        });
    }
}

/// More requests than most logs need to fill a server.
const FILLS: usize = 16;

/// Some bytes of the empty server are only visible there when the writer dies, and durable when it
/// counts for the next one.
fn fills_again<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>, lost: usize| {
        drop(world.begun().await);
        world.kill_writers(world.client());
        let last = world.last_one();
        world.refill(last).await;
        world.only(&world.all()).await;
        world.link(last).lose_all_from(lost);
        let opened = world.try_open(&world.client().clone()).await;
        world.settle().await;
        drop(opened);
        world.kill_writers(world.client());
        world.link(last).disarm();
        let writer = world.open().await;
        world.sleep(RETURNS).await;
        writer.append(SHORT).await;
        writer
    };
    for lost in 1..=FILLS {
        let prepare = async |world: &World<S>| prepare(world, lost).await;
        // The power fails once: when the last append is durable.
        stage.cut((lost as u64, 1), prepare, async |_, _| {});
    }
}

fn dies_filling<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| {
        let writer = world.begun().await;
        let (all, last) = (world.all(), world.last_one());
        let away = &all[1..1 + world.spare()];
        for n in away {
            world.kill(*n).await;
        }
        // So it gets more than one line.
        for len in [SHORT, world.shape().longest, SHORT] {
            writer.append(len).await;
        }
        world.refill(last).await;
        world.model().lack(&[away, &[last]].concat());
        (last, writer)
    };
    let program = async |world: &World<S>, (last, writer): (usize, Writer<S>)| {
        world.start(last).await;
        let memory = &world.pmems()[last];
        let is_filled = || world.model().is_whole_in(&memory.bytes());
        // Not longer: the writer looks for the others meanwhile, and the power fails each time.
        for _ in 0..RETURNS.as_secs() {
            if is_filled() {
                break;
            }
            world.sleep(Duration::from_secs(1)).await;
        }
        world.settle().await;
        writer.check().await;
    };
    for seed in stage.turns(2) {
        stage.cut((seed, stage.extent(16, 1)), prepare, program);
    }
}
