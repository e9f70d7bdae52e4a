//! Answers that come late, a slow server, and appends at the same time.

use std::collections::VecDeque;
use std::time::Duration;

use super::Scene;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Returns, Shares, Truncates};
use crate::subject::{Appended, Shape, Subject};
use crate::world::{RETURNS, World};

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "together",
            promise: "If several tasks append at the same time, and nothing disturbs them, each record is durable.",
            needs: &[Shares],
            play: together,
        },
        Scene {
            name: "late-answer",
            promise: "A record whose acknowledgement comes after the limit is read once or never, and the log goes on.",
            needs: &[GoesOn, Returns],
            play: late_answer,
        },
        Scene {
            name: "laps",
            promise: "The room of forgotten records is used again for many laps, while a server is slow or the log is \
                      full, and none of them is read again.",
            needs: &[Truncates, GoesOn],
            play: laps,
        },
    ]
}

fn together<S: Subject>(stage: &Stage<S>) {
    for seed in 1..=stage.extent(4, 50) {
        stage.play_one(seed, async |world| {
            let writer = world.begun().await;
            // So the others append while a record is on its way: at once, or one after the other.
            world.delay_all(Duration::from_millis(5));
            let gap = Duration::from_millis((seed - 1) % 4);
            let appends = (0..3).map(|nth| {
                world.spawn(world.client(), {
                    let (world, writer) = (world.clone(), writer.clone());
                    async move {
                        for _ in 0..3 {
                            world.sleep(gap * nth).await;
                            writer.append(SHORT).await;
                        }
                    }
                })
            });
            for append in Vec::from_iter(appends) {
                append.join().await;
            }
            writer.check().await;
            drop(writer);
            // At once, so that no server gets more than it has.
            world.kill_writers(world.client());
            world.delay_all(Duration::ZERO);
            world.only(&world.last()).await;
            world.open().await.check().await;
        });
    }
}

fn late_answer<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(2, 20), async |world| {
        let writer = world.begun().await;
        let blocked = &world.all()[world.few()..];
        blocked.iter().for_each(|n| world.link_back(*n).block());
        let late = writer.try_append(SHORT).await;
        blocked.iter().for_each(|n| world.link_back(*n).heal());
        world.sleep(RETURNS).await;
        let is_unknown = matches!(late, Appended::Unknown(_));
        let writer = match writer.try_append(SHORT).await {
            // It does not append behind a record of which it does not know.
            Appended::Refused(_) if is_unknown => {
                drop(writer);
                world.kill_writers(world.client());
                world.open().await
            }
            _ => writer,
        };
        writer.append(SHORT).await;
        writer.check().await;
        drop(writer);
        world.kill_writers(world.client());
        world.cut_all().await;
        world.only(&world.last()).await;
        world.open().await.append(SHORT).await;
    });
}

/// So many rounds are some laps, as each appends about one record.
const ROUNDS: usize = 60;

/// A full log forgets one record at a time, and the next ones may fit or not.
async fn full_laps<S: Subject>(world: &World<S>) {
    let writer = world.begun().await;
    let seed = world.fabric().seed().unwrap_or(0) as usize;
    let (mut kept, mut n) = (VecDeque::new(), seed);
    for _ in 0..ROUNDS {
        loop {
            n += 1;
            let lens = world.shape().longest - SHORT + 1;
            match writer.try_append(SHORT + n * 37 % lens).await {
                Appended::Durable(at) => kept.push_back(at),
                Appended::Refused(_) | Appended::Unknown(_) => break,
            }
        }
        writer.check().await;
        kept.pop_front();
        match kept.front() {
            Some(to) => writer.truncate(*to).await,
            None => break,
        }
    }
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    world.only(&world.last()).await;
    world.open().await.check().await;
}

fn laps<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(1, 10), async |world| {
        drop(world.begun().await);
        let Shape {
            longest, records, ..
        } = *world.shape();
        world
            .link(world.last_one())
            .delay(Duration::from_millis(20));
        // Records of other lengths lie at other places. Short ones begin at most places.
        let [half, most] = [longest / 2, longest * 3 / 4].map(|len| len.max(SHORT));
        for lens in [
            &[SHORT][..],
            &[longest, half, most],
            &[SHORT],
            &[most, longest],
        ] {
            world.kill_writers(world.client());
            let writer = world.open().await;
            let (mut before, mut n, mut bytes) = (None, 0, 0);
            while bytes < 2 * records * longest {
                let len = lens[n % lens.len()];
                (n, bytes) = (n + 1, bytes + len);
                let at = writer.append(len).await;
                if n % 3 == 2 {
                    let to = before.unwrap_or(at);
                    writer.truncate(to).await;
                    writer.check().await;
                }
                before = Some(at);
            }
        }
        world.kill_writers(world.client());
        world.cut_all().await;
        world.only(&world.last()).await;
        world.open().await.check().await;
    });
    stage.play(stage.extent(1, 10), async |world| full_laps(world).await);
}
