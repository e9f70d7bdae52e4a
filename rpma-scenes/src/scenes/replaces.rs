//! Another server takes the place of one, for good.

use std::time::Duration;

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Replaces, Returns, TakesOver};
use crate::subject::{Shape, Subject};
use crate::world::{RETURNS, World};
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "counts-no-more",
            promise: "Appends go on while a server is replaced by another one that has no place yet, and from then on the \
                      old one does not count.",
            needs: &[GoesOn, Replaces],
            play: counts_no_more,
        },
        Scene {
            name: "old-list",
            promise: "An old list of the servers, with the replaced one and others that were away, opens no log \
                      without the last records.",
            needs: &[GoesOn, Replaces],
            play: old_list,
        },
        Scene {
            name: "slow-change",
            promise: "A server that has missed the last steps of a change, and the replaced one, open no log without \
                      the last records.",
            needs: &[GoesOn, Replaces],
            play: slow_change,
        },
        Scene {
            name: "two-replaced",
            promise: "Two servers are replaced one after the other, and no earlier list opens a log without the last \
                      records.",
            needs: &[GoesOn, Replaces],
            play: two_replaced,
        },
        Scene {
            name: "back-in-change",
            promise: "A server that comes back while it is replaced does not count when the change is done.",
            needs: &[GoesOn, Returns, Replaces],
            play: back_in_change,
        },
        Scene {
            name: "writer-in-change",
            promise: "A writer that takes over during a change of the servers finishes it or undoes it, and the one \
                      before changes nothing.",
            needs: &[GoesOn, Replaces, TakesOver],
            play: writer_in_change,
        },
        Scene {
            name: "cut-change",
            promise: "The next writer finishes a change of the servers that was cut, or undoes it, and no later \
                      one opens a log that lacks a record.",
            needs: &[GoesOn, Replaces],
            play: cut_change,
        },
        Scene {
            name: "cuts-in-change",
            promise: "A durable record survives a loss of power of all servers at any moment of a change of them.",
            needs: &[GoesOn, Replaces],
            play: cuts_in_change,
        },
    ]
}

/// A log that all servers have, and another server that runs. Returns the last server, and the other
/// one.
pub(super) async fn begun<S: Subject>(world: &World<S>) -> (Writer<S>, [usize; 2]) {
    let writer = world.begun().await;
    let (last, new) = (world.last_one(), world.add_server());
    world.start(new).await;
    (writer, [last, new])
}

/// The writer ends, and so do these servers, by a loss of power.
async fn ends<S: Subject>(world: &World<S>, writer: Writer<S>, cut: &[usize]) {
    world.kill_writers(world.client());
    drop(writer);
    for n in cut {
        world.cut(*n).await;
    }
}

/// These servers run alone. They open the log with all records, or do not open it.
async fn opens_or_not<S: Subject>(world: &World<S>, up: &[usize], list: &[usize]) {
    world.only(up).await;
    drop(world.try_open_with(&world.client().clone(), list).await);
    world.kill_writers(world.client());
}

/// The replaced server runs, and so do too few of the others. Whatever becomes durable with them, the
/// servers of the log have it.
async fn does_not_count<S: Subject>(world: &World<S>, writer: Writer<S>) {
    let all = world.all();
    let away = &all[..all.len() - world.few()];
    away.iter().for_each(|n| world.link(*n).partition());
    let _any = writer.try_append(SHORT).await;
    ends(world, writer, &[]).await;
    world.cut_all().await;
    away.iter().for_each(|n| world.link(*n).heal());
    world.only(&world.first()).await;
    world.open().await.append(SHORT).await;
}

fn counts_no_more<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| {
        let (writer, [old, new]) = begun(world).await;
        let load = world.spawn(world.client(), {
            let (world, writer) = (world.clone(), writer.clone());
            async move {
                for _ in 0..6 {
                    writer.append(SHORT).await;
                    world.sleep(Duration::from_millis(2)).await;
                }
            }
        });
        writer.takes_no_member(old, world.all()[0]).await;
        writer.replace(old, new).await;
        load.join().await;
        does_not_count(world, writer).await;
    });
}

fn old_list<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| {
        let (writer, [old, new]) = begun(world).await;
        let (before, all) = (world.list(), world.all());
        let away = &all[1..1 + world.spare()];
        for n in away {
            world.kill(*n).await;
        }
        writer.append(SHORT).await;
        world.settle().await;
        // So the old server is told late, if it is.
        world.link(old).delay(Duration::from_millis(400));
        writer.replace(old, new).await;
        writer.append(SHORT).await;
        ends(world, writer, &[old]).await;
        world.link(old).delay(Duration::ZERO);
        opens_or_not(world, &[away, &[old]].concat(), &before).await;
        world.only(&[&before[..], &[new]].concat()).await;
        world.open().await.append(SHORT).await;
    });
}

/// Longer than the steps of a change towards other servers.
pub(super) const FAR: Duration = Duration::from_millis(100);

fn slow_change<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| {
        let (writer, [old, new]) = begun(world).await;
        let (before, first) = (world.list(), world.all()[0]);
        world.kill(old).await;
        world.link(first).delay(FAR);
        writer.replace(old, new).await;
        writer.append(SHORT).await;
        // The first server does not get what is on its way.
        ends(world, writer, &[first]).await;
        after_change(world, &before, [first, old, new]).await;
    });
}

/// The first server and the replaced one answer before the new one. Then all do.
async fn after_change<S: Subject>(
    world: &World<S>,
    before: &[usize],
    [first, old, new]: [usize; 3],
) {
    world.link(first).delay(Duration::ZERO);
    world.link(new).delay(3 * FAR);
    opens_or_not(world, &[first, old, new], before).await;
    world.link(new).delay(Duration::ZERO);
    world.only(&[before, &[new]].concat()).await;
    world.open().await.append(SHORT).await;
}

/// Times after the begin of a change, with seeds: more than it takes.
pub(super) fn times<S: Subject>(
    stage: &Stage<S>,
    most: u64,
    short: u64,
) -> impl Iterator<Item = (u64, Duration)> {
    let step = most as usize / stage.extent(short, 100) as usize;
    let times = (1..most).step_by(step).map(Duration::from_millis);
    (1..).zip(times)
}

fn cut_change<S: Subject>(stage: &Stage<S>) {
    // Half of the time in which servers that are near know of a step, and the first one does not.
    let twice = |(seed, time)| [(seed, time, false), (seed, time, true)];
    for (seed, time, is_cut_again) in times(stage, 400, 8).flat_map(twice) {
        stage.play_one(seed, async |world| {
            let (writer, [old, new]) = begun(world).await;
            let (before, first) = (world.list(), world.all()[0]);
            world.kill(old).await;
            world.link(first).delay(FAR);
            let change = world.spawn(world.client(), {
                let writer = writer.clone();
                async move { writer.try_replace(old, new).await }
            });
            let load = world.spawn(world.client(), {
                let writer = writer.clone();
                async move {
                    for _ in 0..6 {
                        let _any = writer.try_append(SHORT).await;
                    }
                }
            });
            world.sleep(time).await;
            ends(world, writer, &[first]).await;
            change.end().await;
            load.end().await;
            world.start(first).await;
            let dies = world.spawn(world.client(), {
                let world = world.clone();
                async move {
                    world.sleep(time).await;
                    if is_cut_again {
                        world.cut(first).await;
                    }
                }
            });
            if let Ok(next) = world.try_open(&world.client().clone()).await {
                let _any = next.try_append(SHORT).await;
                ends(world, next, &[first]).await;
            }
            dies.join().await;
            after_change(world, &before, [first, old, new]).await;
        });
    }
}

fn two_replaced<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 20), async |world| {
        let (writer, [old, new]) = begun(world).await;
        let (first, other) = (world.list(), world.add_server());
        let all = world.all();
        world.start(other).await;
        writer.replace(old, new).await;
        let second = world.list();
        writer.append(SHORT).await;
        writer.replace(all[1], other).await;
        writer.append(SHORT).await;
        ends(world, writer, &[]).await;
        for list in [first, second] {
            let mut up = list.clone();
            up.retain(|n| *n != all[0]);
            up.push(old);
            opens_or_not(world, &up, &list).await;
        }
        world.only(&world.last()).await;
        world.open().await.append(SHORT).await;
    });
}

fn back_in_change<S: Subject>(stage: &Stage<S>) {
    for (seed, time) in times(stage, 400, 4) {
        stage.play_one(seed, async |world| {
            let (writer, [old, new]) = begun(world).await;
            world.kill(old).await;
            writer.append(SHORT).await;
            world.link(new).delay(FAR / 5);
            let change = world.spawn(world.client(), {
                let writer = writer.clone();
                async move { writer.replace(old, new).await }
            });
            world.sleep(time).await;
            world.start(old).await;
            change.join().await;
            world.link(new).delay(Duration::ZERO);
            world.sleep(RETURNS).await;
            does_not_count(world, writer).await;
        });
    }
}

fn writer_in_change<S: Subject>(stage: &Stage<S>) {
    for (seed, time) in times(stage, 300, 5) {
        stage.play_one(seed, async |world| {
            let (first, [old, new]) = begun(world).await;
            world.link(new).delay(FAR / 5);
            let change = world.spawn(world.client(), async move {
                drop(first.try_replace(old, new).await);
                let _any = first.try_append(SHORT).await;
            });
            world.sleep(time).await;
            world.freeze_writer();
            let host = world.fabric().host("writer-2");
            let second = world.open_on(&host).await;
            second.append(SHORT).await;
            world.thaw_writer();
            world.sleep(RETURNS).await;
            change.join().await;
            second.append(SHORT).await;
            second.check().await;
            drop(second);
            world.kill_writers(&host);
            world.kill_writers(world.client());
            world.cut_all().await;
            world.only(&world.enough(1)).await;
            world.open().await.append(SHORT).await;
        });
    }
}

fn cuts_in_change<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| begun(world).await;
    let program = async |world: &World<S>, (writer, [old, new]): (Writer<S>, [usize; 2])| {
        let append = world.spawn(world.client(), {
            let writer = writer.clone();
            async move { writer.append(SHORT).await }
        });
        writer.replace(old, new).await;
        append.join().await;
        writer.append(SHORT).await;
    };
    for seed in stage.turns(7) {
        stage.cut((seed, stage.extent(16, 1)), prepare, program);
    }
}
