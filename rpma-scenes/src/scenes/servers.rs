//! Servers that were away, that have other records, or that were replaced, when a writer opens the
//! log.

use std::time::Duration;

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Refills, Returns, Shares, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::{RETURNS, World, fail};
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "was-away",
            promise: "A record that became durable while a server was away is read after that server is back, \
                      whichever server answers first, and one that was forgotten meanwhile is not.",
            needs: &[GoesOn],
            play: was_away,
        },
        Scene {
            name: "partition",
            promise: "A record that too few servers have is not durable.",
            needs: &[GoesOn],
            play: partition,
        },
        Scene {
            name: "unknown-stays",
            promise: "If a writer has read a record whose outcome was unknown, each later writer reads it.",
            needs: &[GoesOn],
            play: unknown_stays,
        },
        Scene {
            name: "newer-writer",
            promise: "A record that became durable for a newer writer is not lost to a longer log of an older one, \
                      with epochs of any size.",
            needs: &[GoesOn],
            play: newer_writer,
        },
        Scene {
            name: "after-unknown",
            promise: "A record that became durable after one whose outcome is unknown is not lost to that one.",
            needs: &[GoesOn, Returns],
            play: after_unknown,
        },
        Scene {
            name: "replaced",
            promise: "A server with empty memory does not count as one that has shown its records.",
            needs: &[GoesOn, Refills],
            play: replaced,
        },
    ]
}

/// A writer appends records that too few servers get, and ends. Their outcomes are any. Only the
/// first servers have them.
pub(super) async fn append_to_few<S: Subject>(world: &World<S>, lens: &[usize]) {
    let writer = world.begun().await;
    let cut_off = &world.all()[world.few()..];
    cut_off.iter().for_each(|n| world.link(*n).partition());
    append_at_once(world, &writer, lens).await;
    drop(writer);
    world.kill_writers(world.client());
    cut_off.iter().for_each(|n| world.link(*n).heal());
}

/// Appends such records, with any outcomes. At once: a writer may take none after an unknown one.
pub(super) async fn append_at_once<S: Subject>(
    world: &World<S>,
    writer: &Writer<S>,
    lens: &[usize],
) {
    if world.shape().lacks(Shares) {
        for len in lens {
            let _any = writer.try_append(*len).await;
        }
        return;
    }
    let appends = lens.iter().map(|len| {
        let (writer, len) = (writer.clone(), *len);
        world.spawn(world.client(), async move {
            let _any = writer.try_append(len).await;
        })
    });
    for append in Vec::from_iter(appends) {
        append.join().await;
    }
}

fn partition<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        append_to_few(world, &[SHORT]).await;
        world.cut_all().await;
        world.only(&world.last()).await;
        world.open().await.append(SHORT).await;
    });
    // A writer that has noticed it may refuse a record, which no server has then.
    for noticed in [RETURNS / 3, RETURNS] {
        stage.play(stage.extent(1, 10), async |world| {
            let writer = world.begun().await;
            let cut_off = &world.all()[world.few()..];
            cut_off.iter().for_each(|n| world.link(*n).partition());
            world.sleep(noticed).await;
            let _any = writer.try_append(SHORT).await;
            world.sleep(Duration::from_secs(1)).await;
            drop(writer);
            world.kill_writers(world.client());
            cut_off.iter().for_each(|n| world.link(*n).heal());
            world.only(&world.first()).await;
            world.open().await.append(SHORT).await;
        });
    }
}

fn unknown_stays<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(3, 20), async |world| {
        append_to_few(world, &[SHORT]).await;
        world.only(&world.first()).await;
        let writer = world.open().await;
        // At once: the records that it has read are durable.
        world.cut_all().await;
        drop(writer);
        world.kill_writers(world.client());
        world.only(&world.last()).await;
        world.open().await.check().await;
    });
}

fn was_away<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(3, 20), async |world| {
        let writer = world.begun().await;
        world.only(&world.first()).await;
        writer.append(SHORT).await;
        writer.append(SHORT).await;
        drop(writer);
        world.kill_writers(world.client());
        // The others answer later.
        for n in world.first() {
            world.link(n).delay(Duration::from_millis(5));
        }
        world.only(&world.all()).await;
        world.open().await.check().await;
    });
    if stage.subject.shape().lacks(Truncates) {
        return;
    }
    // Others have missed a truncation, and nothing after it.
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        let to = writer.append(SHORT).await;
        world.settle().await;
        let (first, all) = (world.first(), world.all());
        world.only(&first).await;
        writer.truncate(to).await;
        drop(writer);
        world.kill_writers(world.client());
        let away = &all[first.len()..];
        let with = &first[..first.len() - away.len()];
        world.only(&[with, away].concat()).await;
        world.open().await.check().await;
    });
}

/// Epochs of writers, of which the first byte or the first two are 0.
const EPOCHS: [u64; 5] = [2, 256, 257, 1 << 16, (1 << 16) + 1];

fn newer_writer<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        // Several records: the opening of a newer writer may have a position as well.
        append_to_few(world, &[world.shape().longest; 3]).await;
        world.only(&world.last()).await;
        let writer = world.open().await;
        writer.append(SHORT).await;
        drop(writer);
        world.kill_writers(world.client());
        let (few, all) = (world.few(), world.all());
        let newer = &all[all.len() - (world.shape().quorum() - few)..];
        world.only(&[&all[..few], newer].concat()).await;
        world.open().await.append(SHORT).await;
    });
    // Each writer has other servers, and the list in another order.
    stage.play(stage.extent(1, 5), async |world| {
        drop(world.begun().await);
        world.kill_writers(world.client());
        for (nth, epoch) in EPOCHS.into_iter().enumerate() {
            world.skip_to_epoch(epoch);
            world.only(&world.enough(nth)).await;
            let mut list = world.list();
            list.rotate_left(nth % world.shape().servers);
            let opened = world.try_open_with(world.client(), &list).await;
            let writer = opened.unwrap_or_else(|why| fail(format!("the log does not open: {why}")));
            writer.append(SHORT).await;
            drop(writer);
            world.kill_writers(world.client());
        }
    });
}

fn after_unknown<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(3, 20), async |world| {
        let (few, all) = (world.few(), world.all());
        let (alone, others) = all.split_at(few);
        let writer = world.begun().await;
        others.iter().for_each(|n| world.link(*n).partition());
        let _any = writer.try_append(SHORT).await;
        alone.iter().for_each(|n| world.link(*n).partition());
        others.iter().for_each(|n| world.link(*n).heal());
        world.sleep(RETURNS).await;
        let _any = writer.try_append(SHORT).await;
        drop(writer);
        world.kill_writers(world.client());
        world.cut_all().await;
        alone.iter().for_each(|n| world.link(*n).heal());
        world.only(&all[..world.shape().quorum()]).await;
        world.open().await.append(SHORT).await;
    });
}

fn replaced<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        is_replaced(world, writer).await;
        world.only(&world.all()).await;
        world.open().await.append(SHORT).await;
    });
    // Some of those that were away have never had the log: no server that is asked has one.
    stage.play(stage.extent(2, 20), async |world| {
        let (all, others) = (world.all(), world.shape().quorum() - 1);
        let made = [&all[..1], &all[all.len() - others..]].concat();
        let writer = world.begun_on(&made).await;
        is_replaced(world, writer).await;
    });
}

/// The last server gets empty memory, and then only those run besides that have missed a record.
async fn is_replaced<S: Subject>(world: &World<S>, writer: Writer<S>) {
    let (all, last) = (world.all(), world.last_one());
    let away = &all[1..1 + world.spare()];
    let others: Vec<_> = all.iter().copied().filter(|n| !away.contains(n)).collect();
    world.only(&others).await;
    writer.append(SHORT).await;
    drop(writer);
    world.kill_writers(world.client());
    world.refill(last).await;
    world.only(&[away, &[last]].concat()).await;
    // It opens with all records, or not at all.
    let opened = world.try_open(&world.client().clone()).await;
    drop(opened);
    world.kill_writers(world.client());
}
