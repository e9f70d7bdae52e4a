//! Records that wait for copies, while servers go and come back.

use std::time::Duration;

use super::Scene;
use super::joins::{counts_again, was_away};
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Returns, Shares, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::{RETURNS, World, fail, name};
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "minutes-away",
            promise: "A server that was away for minutes, or often, counts as a copy again.",
            needs: &[GoesOn, Returns],
            play: minutes_away,
        },
        Scene {
            name: "counts-once",
            promise: "A server that ends and comes back while a record waits for copies counts as one copy of it.",
            needs: &[GoesOn, Returns],
            play: counts_once,
        },
        Scene {
            name: "shows-again",
            promise: "A server that has connected again counts as a copy of a record when it is durable there, and not \
                      when it is visible.",
            needs: &[GoesOn],
            play: shows_again,
        },
        Scene {
            name: "more-waits",
            promise: "If more records wait for copies than the log has room for, no record that it keeps is lost, and \
                      the log goes on.",
            needs: &[GoesOn, Returns, Shares],
            play: more_waits,
        },
    ]
}

/// The writer ends, and all servers lose their power. Then the last ones have all durable records.
async fn last_have_all<S: Subject>(world: &World<S>, writer: Writer<S>) -> Writer<S> {
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    world.all().iter().for_each(|n| world.link(*n).heal());
    world.only(&world.last()).await;
    world.open().await
}

/// Longer than a log tries to connect before it reports an error.
const AWAY: Duration = Duration::from_secs(150);
/// So each run has another moment of the pauses between the log's attempts.
const LATER: Duration = Duration::from_secs(7);

fn minutes_away<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(12, 40), async |world| {
        let (last, writer) = was_away(world).await;
        let run = world.fabric().seed().unwrap_or(1);
        let away = AWAY + LATER * (run as u32 - 1);
        world.sleep(away).await;
        world.start(last).await;
        world.sleep(RETURNS).await;
        // An append that waits for it would give it more time.
        let has_all = world.model().is_whole_in(&world.pmems()[last].bytes());
        if !has_all && !world.is_connected(last) {
            fail(format!(
                "{} lacks records, and has no connection, {RETURNS:?} after it has come back",
                name(last)
            ));
        }
        counts_again(world, writer).await;
    });
    stage.play(stage.extent(1, 10), async |world| often_away(world).await);
}

/// More often than most logs try anything again.
const TIMES_AWAY: usize = 12;

async fn often_away<S: Subject>(world: &World<S>) {
    let (last, writer) = was_away(world).await;
    for _ in 0..TIMES_AWAY {
        world.start(last).await;
        world.settle().await;
        world.kill(last).await;
    }
    world.start(last).await;
    counts_again(world, writer).await;
}

fn counts_once<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(3, 20), async |world| {
        let writer = world.begun().await;
        let all = world.all();
        let (few, others) = all.split_at(world.few());
        others.iter().for_each(|n| world.link(*n).partition());
        let append = world.spawn(world.client(), {
            let writer = writer.clone();
            async move { writer.try_append(SHORT).await }
        });
        // With its memory as it was, and after a loss of power.
        for loses_power in [false, true] {
            world.sleep(Duration::from_secs(1)).await;
            for n in few {
                match loses_power {
                    false => world.kill(*n).await,
                    true => world.cut(*n).await,
                }
                world.start(*n).await;
            }
        }
        let _any = append.join().await;
        last_have_all(world, writer).await.append(SHORT).await;
    });
}

/// How long a request is on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(5);
/// More requests than the appends of most logs have to a server.
const REQUESTS: usize = 6;

fn shows_again<S: Subject>(stage: &Stage<S>) {
    let rounds = stage.extent(2, 20);
    for seed in 1..=rounds * stage.subject.shape().servers as u64 {
        for lost in 1..=REQUESTS {
            stage.play_one(seed, async |world| {
                let writer = world.begun().await;
                let all = world.all();
                let (up, away) = all.split_at(world.shape().copies);
                let breaks = up[up.len() - 1];
                for n in away {
                    world.kill(*n).await;
                }
                world.settle().await;
                world.link(breaks).delay(ON_ITS_WAY);
                world.link(breaks).lose_request(lost);
                let _any = writer.try_append(SHORT).await;
                // At once: a record that is only visible there is lost.
                world.cut(breaks).await;
                world.link(breaks).disarm();
                last_have_all(world, writer).await.append(SHORT).await;
            });
        }
    }
}

/// As many tasks as there is room for records append at once, and so many times more.
const TIMES: usize = 8;

fn more_waits<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 10), async |world| {
        let Shape {
            longest, records, ..
        } = *world.shape();
        let writer = world.begun().await;
        for _ in 0..records / 2 {
            writer.append(longest).await;
        }
        let cut_off = &world.all()[world.few()..];
        cut_off.iter().for_each(|n| world.link(*n).partition());
        let append = |_| {
            let writer = writer.clone();
            world.spawn(world.client(), async move {
                let _any = writer.try_append(longest).await;
            })
        };
        for append in Vec::from_iter((0..TIMES * records).map(append)) {
            append.join().await;
        }
        cut_off.iter().for_each(|n| world.link(*n).heal());
        world.sleep(RETURNS).await;
        writer.check().await;
        let writer = last_have_all(world, writer).await;
        // The others may have filled it.
        if !world.shape().lacks(Truncates) {
            let last = writer.read().await.pop();
            writer.truncate(last.map_or(0, |last| last.at)).await;
            writer.append(longest).await;
        }
    });
}
