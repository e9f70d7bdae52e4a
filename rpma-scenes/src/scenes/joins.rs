//! A server comes back while the writer appends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::Scene;
use super::servers::{append_at_once, append_to_few};
use crate::exec::Handle;
use crate::stage::Stage;
use crate::subject::Ability::{GoesOn, Refills, Returns, TakesOver, Truncates};
use crate::subject::{Shape, Subject};
use crate::world::{RETURNS, World, fail, name};
use crate::writer::Writer;

const SHORT: usize = Shape::LEAST_LONGEST;

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![
        Scene {
            name: "returns",
            promise: "A server that comes back under load has all records when it counts as a copy again.",
            needs: &[GoesOn, Returns, Truncates],
            play: returns,
        },
        Scene {
            name: "dies-joining",
            promise: "A server that loses its power while it is brought up to date costs no record, and can come back.",
            needs: &[GoesOn, Returns, Truncates],
            play: dies_joining,
        },
        Scene {
            name: "returns-empty",
            promise: "A server that comes back under load with empty memory has all records when it counts as a copy \
                      again.",
            needs: &[GoesOn, Returns, Refills],
            play: returns_empty,
        },
        Scene {
            name: "laps-behind",
            promise: "A server that is a lap behind may lose its power at any moment while it is brought up to date, \
                      and the log opens with it.",
            needs: &[GoesOn, Returns, Truncates],
            play: laps_behind,
        },
        Scene {
            name: "other-records",
            promise: "A server that has records which the log lacks may lose its power at any moment while they are \
                      overwritten, and the log opens with it.",
            needs: &[GoesOn, Returns],
            play: other_records,
        },
        Scene {
            name: "writer-dies",
            promise: "A writer that dies while it brings servers up to date leaves a log that any servers open that \
                      are enough for a writer.",
            needs: &[GoesOn, TakesOver],
            play: writer_dies,
        },
        Scene {
            name: "restarts",
            promise: "A server that loses its power between any two steps, and starts again, makes no append fail.",
            needs: &[GoesOn, Returns],
            play: restarts,
        },
    ]
}

/// A task that appends and truncates until it is told to stop.
struct Load {
    stops: Arc<AtomicBool>,
    appended: Arc<AtomicUsize>,
    task: Handle<()>,
}

/// The load keeps so many of its records. So one that a server has skipped is not forgotten at once.
pub(super) const KEPT: usize = 6;
/// The load goes on so long at most.
const LONGEST_LOAD: Duration = Duration::from_secs(120);

impl Load {
    fn begin<S: Subject>(world: &World<S>, writer: &Writer<S>) -> Self {
        let (stops, appended) = (Arc::default(), Arc::default());
        let task = {
            let (world, writer) = (world.clone(), writer.clone());
            let (stops, appended) = (Arc::clone(&stops), Arc::clone(&appended));
            let host = world.client().clone();
            world.clone().spawn(&host, async move {
                let (mut time, mut pause) = (Duration::ZERO, Duration::from_millis(7));
                let mut positions = VecDeque::new();
                while !AtomicBool::load(&stops, Ordering::Relaxed) && time < LONGEST_LOAD {
                    let at = writer.append(SHORT).await;
                    AtomicUsize::fetch_add(&appended, 1, Ordering::Relaxed);
                    positions.push_back(at);
                    if positions.len() > KEPT {
                        writer.truncate(positions[1]).await;
                        positions.pop_front();
                    }
                    if time > Duration::from_secs(2) {
                        pause = Duration::from_millis(500);
                    }
                    // The clock of a runtime advances only while its tasks sleep.
                    world.sleep(pause).await;
                    time += pause;
                }
            })
        };
        Self {
            stops,
            appended,
            task,
        }
    }

    /// Goes on until a server has a connection, and for some records more.
    async fn until_connected<S: Subject>(&self, world: &World<S>, n: usize) {
        while !world.is_connected(n) {
            if self.task.is_finished() {
                fail(format!(
                    "{} has no connection after {LONGEST_LOAD:?} of load",
                    name(n)
                ));
            }
            world.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn more<S: Subject>(&self, world: &World<S>, records: usize) {
        let appended = || self.appended.load(Ordering::Relaxed);
        let enough = appended() + records;
        while appended() < enough && !self.task.is_finished() {
            world.sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.stops.store(true, Ordering::Relaxed);
        self.task.join().await;
    }
}

/// The last server was away, and counts as a copy again: without as many of the others as may be
/// away, records become durable. Any servers that are enough for a writer have all of them.
pub(super) async fn counts_again<S: Subject>(world: &World<S>, writer: Writer<S>) {
    world.sleep(RETURNS).await;
    let away = &world.all()[1..1 + world.spare()];
    away.iter().for_each(|n| world.link(*n).partition());
    writer.append(SHORT).await;
    writer.append(SHORT).await;
    writer.check().await;
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    away.iter().for_each(|n| world.link(*n).heal());
    world.only(&world.last()).await;
    world.open().await.append(SHORT).await;
}

/// The last server was away, and has missed records. Its network is slow.
pub(super) async fn was_away<S: Subject>(world: &World<S>) -> (usize, Writer<S>) {
    let writer = world.begun().await;
    let last = world.last_one();
    world.kill(last).await;
    for _ in 0..3 {
        writer.append(SHORT).await;
    }
    world.link(last).delay(Duration::from_millis(20));
    (last, writer)
}

/// Longer than a writer needs until it has lost its connections.
const LOSES: Duration = Duration::from_secs(15);

fn returns<S: Subject>(stage: &Stage<S>) {
    let (most, step) = (40, stage.extent(5, 1) as usize);
    for (seed, more) in (1..).zip((1..most).step_by(step)) {
        stage.play_one(seed, async |world| {
            let (last, writer) = was_away(world).await;
            let load = Load::begin(world, &writer);
            world.start(last).await;
            load.until_connected(world, last).await;
            load.more(world, more).await;
            load.end().await;
            world.link(last).delay(Duration::ZERO);
            counts_again(world, writer).await;
        });
    }
    stage.play(stage.extent(1, 20), async |world| {
        counts_at_once(world).await
    });
    stage.play(stage.extent(1, 20), async |world| {
        forgets_at_once(world).await
    });
}

/// A truncation waits for a server that comes back. When it is done, the others go.
async fn forgets_at_once<S: Subject>(world: &World<S>) {
    let writer = world.begun().await;
    let to = writer.append(SHORT).await;
    world.settle().await;
    let away = &world.all()[world.few()..];
    away.iter().for_each(|n| world.link(*n).partition());
    world.sleep(LOSES).await;
    let truncate = world.spawn(world.client(), {
        let writer = writer.clone();
        async move { writer.try_truncate(to).await }
    });
    world.sleep(Duration::from_secs(1)).await;
    world.link(world.last_one()).heal();
    let _any = truncate.join().await;
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    away.iter().for_each(|n| world.link(*n).heal());
    world.only(&world.last()).await;
    world.open().await.append(SHORT).await;
}

/// A record waits for a server that has missed others. When it is durable, the power of all servers
/// fails at once.
async fn counts_at_once<S: Subject>(world: &World<S>) {
    let (last, writer) = was_away(world).await;
    for _ in 0..world.shape().records / 2 {
        writer.append(world.shape().longest).await;
    }
    drop(writer);
    world.kill_writers(world.client());
    let writer = world.open().await;
    let away = &world.all()[1..1 + world.spare()];
    away.iter().for_each(|n| world.link(*n).partition());
    let append = world.spawn(world.client(), {
        let writer = writer.clone();
        async move { writer.try_append(SHORT).await }
    });
    world.start(last).await;
    append.join().await;
    world.cut_all().await;
    drop(writer);
    world.kill_writers(world.client());
    away.iter().for_each(|n| world.link(*n).heal());
    world.only(&world.last()).await;
    world.open().await.append(SHORT).await;
}

fn dies_joining<S: Subject>(stage: &Stage<S>) {
    for nth in 0..stage.extent(3, 40) {
        stage.play_one(nth + 1, async |world| {
            let (last, writer) = was_away(world).await;
            let load = Load::begin(world, &writer);
            world.start(last).await;
            load.until_connected(world, last).await;
            let dies = world.cut_at(world.fabric().steps() + 10 + 67 * nth, last);
            load.more(world, 40).await;
            drop(dies);
            world.cut(last).await;
            load.more(world, 3).await;
            world.link(last).delay(Duration::ZERO);
            world.start(last).await;
            load.more(world, 3).await;
            load.end().await;
            counts_again(world, writer).await;
        });
    }
}

fn returns_empty<S: Subject>(stage: &Stage<S>) {
    stage.play(stage.extent(3, 20), async |world| {
        let writer = world.begun().await;
        let last = world.last_one();
        world.refill(last).await;
        writer.append(SHORT).await;
        // No record is forgotten: the server has to get those that it had before as well.
        let load = world.spawn(world.client(), {
            let (world, writer) = (world.clone(), writer.clone());
            async move {
                for _ in 0..4 {
                    writer.append(SHORT).await;
                    world.sleep(Duration::from_millis(7)).await;
                }
            }
        });
        world.start(last).await;
        load.join().await;
        counts_again(world, writer).await;
    });
    // Neither an append nor the end of a connection shows an idle log that its server was away.
    stage.play(stage.extent(1, 10), async |world| {
        let writer = world.begun().await;
        let last = world.last_one();
        world.cut(last).await;
        world.refill(last).await;
        world.start(last).await;
        world.sleep(RETURNS).await;
        world.last_open_after(writer).await;
    });
    // One server after the other gets the records of the writer before as well.
    stage.play(stage.extent(1, 10), async |world| {
        drop(world.begun().await);
        world.kill_writers(world.client());
        let writer = world.open().await;
        writer.append(SHORT).await;
        for n in world.last() {
            world.refill(n).await;
            world.start(n).await;
            world.sleep(RETURNS).await;
        }
        world.last_open_after(writer).await;
    });
}

/// Appends until the room of the first records was used again. The log keeps as many records as it
/// has room for, so that they lie in that room.
async fn lap<S: Subject>(world: &World<S>, writer: &Writer<S>) {
    let Shape {
        longest, records, ..
    } = *world.shape();
    // A log may have room for a number of records, of any length.
    let mut before = writer.read().await.len();
    let mut positions = VecDeque::new();
    for _ in 0..records * 3 / 2 {
        positions.push_back(writer.append(longest).await);
        if before + positions.len() > records - 3 {
            if before == 0 {
                positions.pop_front();
            }
            before = 0;
            writer.truncate(positions[0]).await;
        }
    }
}

fn laps_behind<S: Subject>(stage: &Stage<S>) {
    let missed = async |world: &World<S>| {
        let (last, writer) = was_away(world).await;
        lap(world, &writer).await;
        (vec![last], writer)
    };
    let others = async |world: &World<S>| {
        append_to_few(world, &[world.shape().longest]).await;
        world.only(&world.last()).await;
        let writer = world.open().await;
        lap(world, &writer).await;
        let few = world.all()[..world.few()].to_vec();
        (few, writer)
    };
    let nth = stage.extent(4, 1);
    for seed in stage.turns(5) {
        stage.cut((seed, nth), missed, come_back);
        stage.cut((seed, nth), others, come_back);
    }
}

/// These servers come back, while nothing is appended.
async fn come_back<S: Subject>(world: &World<S>, (behind, writer): (Vec<usize>, Writer<S>)) {
    for n in behind {
        world.start(n).await;
    }
    world.sleep(RETURNS).await;
    writer.check().await;
}

/// The first servers are away, and have so many records that the log lacks.
async fn have_others<S: Subject>(world: &World<S>, count: usize) -> (Vec<usize>, Writer<S>) {
    append_to_few(world, &vec![SHORT; count]).await;
    world.only(&world.last()).await;
    let writer = world.open().await;
    writer.append(SHORT).await;
    (world.all()[..world.few()].to_vec(), writer)
}

fn other_records<S: Subject>(stage: &Stage<S>) {
    let prepare = async |world: &World<S>| have_others(world, 3).await;
    // Some lines of a newer record and some of an older one are left: each server has them in turn,
    // and with each any servers open the log that are enough.
    let servers = stage.subject.shape().servers as u64;
    for seed in 0..servers * servers {
        stage.cut((seed + 1, 1), prepare, come_back);
    }
    // The servers count again, and still have some of those records.
    stage.play(stage.extent(3, 20), async |world| {
        let (few, writer) = have_others(world, 6).await;
        few_open(world, few, writer).await;
    });
    if stage.subject.shape().lacks(Truncates) {
        return;
    }
    stage.play(stage.extent(3, 20), async |world| {
        let (few, writer) = have_forgotten(world).await;
        few_open(world, few, writer).await;
    });
    // The next writer goes on from them.
    let prepare = async |world: &World<S>| {
        few_forget(world, world.spare()).await;
        world.only(&world.first()).await;
    };
    let program = async |world: &World<S>, ()| drop(world.open().await);
    for seed in stage.turns(1) {
        stage.cut((seed, stage.extent(8, 1)), prepare, program);
    }
}

/// These servers come back. When they count again, they open the log with those that go then.
async fn few_open<S: Subject>(world: &World<S>, few: Vec<usize>, writer: Writer<S>) {
    come_back(world, (few.clone(), writer.clone())).await;
    let away = &world.all()[few.len()..][..world.spare()];
    away.iter().for_each(|n| world.link(*n).partition());
    writer.append(SHORT).await;
    drop(writer);
    world.kill_writers(world.client());
    world.cut_all().await;
    away.iter().for_each(|n| world.link(*n).heal());
    let few = &few[..world.shape().quorum() - away.len()];
    world.only(&[few, away].concat()).await;
    world.open().await.append(SHORT).await;
}

/// The first servers alone have forgotten records, and may have others in their room. Some of the last
/// ones have never had any. Returns some positions of the records before.
async fn few_forget<S: Subject>(world: &World<S>, without: usize) -> Vec<u64> {
    let Shape {
        longest, records, ..
    } = *world.shape();
    let (writer, all) = (world.begun().await, world.all());
    for n in &all[all.len() - without..] {
        world.kill(*n).await;
    }
    let mut positions = Vec::new();
    for _ in 0..records - 4 {
        positions.push(writer.append(longest).await);
    }
    world.settle().await;
    let cut_off = &all[world.few()..];
    cut_off.iter().for_each(|n| world.link(*n).partition());
    let to = positions[positions.len() / 2];
    let truncate = world.spawn(world.client(), {
        let writer = writer.clone();
        async move {
            let _any = writer.try_truncate(to).await;
        }
    });
    world.sleep(Duration::from_millis(1)).await;
    append_at_once(world, &writer, &vec![longest; records / 2]).await;
    truncate.join().await;
    drop(writer);
    world.kill_writers(world.client());
    cut_off.iter().for_each(|n| world.link(*n).heal());
    positions
}

/// The first servers are away. They have forgotten records that the log keeps.
async fn have_forgotten<S: Subject>(world: &World<S>) -> (Vec<usize>, Writer<S>) {
    let positions = few_forget(world, 0).await;
    world.only(&world.last()).await;
    let writer = world.open().await;
    // It may have read the records of a server that has not forgotten any.
    let _any = writer.try_truncate(positions[2]).await;
    writer.append(SHORT).await;
    (world.all()[..world.few()].to_vec(), writer)
}

/// The writer opens the log, and dies so many steps after it has begun to do so. Returns the steps
/// until it has brought all servers up to date.
pub(super) async fn opens_and_dies<S: Subject>(world: &World<S>, step: u64) -> u64 {
    let (begun, host) = (world.fabric().steps(), world.client().clone());
    let dies = world.kill_writer_at(begun.saturating_add(step));
    let opened = world.try_open(&host).await;
    world.settle().await;
    let steps = world.fabric().steps() - begun;
    drop((opened, dies));
    world.kill_writers(&host);
    steps
}

/// Plays a scene in which a writer dies, at some of its steps. The later ones come first.
pub(super) fn at_steps<S: Subject>(
    stage: &Stage<S>,
    count: u64,
    scene: impl AsyncFn(&World<S>, u64) -> u64,
) {
    let steps = AtomicUsize::new(0);
    stage.play_one(1, async |world| {
        let took = scene(world, u64::MAX).await;
        steps.store(took as usize, Ordering::Relaxed);
    });
    let steps = steps.into_inner() as u64;
    for nth in 1..=count {
        let step = steps - (steps - 1) * nth / count;
        stage.play_one(nth, async |world| {
            scene(world, step).await;
        });
    }
}

fn writer_dies<S: Subject>(stage: &Stage<S>) {
    at_steps(stage, stage.extent(12, 200), async |world, step| {
        // The first servers have a long record in the place of a shorter one that is durable.
        append_to_few(world, &[world.shape().longest]).await;
        world.only(&world.last()).await;
        let writer = world.open().await;
        writer.append(world.shape().longest * 3 / 4).await;
        drop(writer);
        world.kill_writers(world.client());
        world.only(&world.all()).await;
        let steps = opens_and_dies(world, step).await;
        world.only(&world.first()).await;
        world.open().await.append(SHORT).await;
        steps
    });
}

fn restarts<S: Subject>(stage: &Stage<S>) {
    let truncates = !stage.subject.shape().lacks(Truncates);
    at_steps(stage, stage.extent(6, 100), async |world, step| {
        let writer = world.begun().await;
        let n = step as usize % world.shape().servers;
        let begun = world.fabric().steps();
        let dies = world.cut_at(begun.saturating_add(step), n);
        for round in 0..4 {
            let at = writer.append(SHORT).await;
            if truncates && round % 2 == 1 {
                writer.truncate(at).await;
            }
            if !world.host(n).has_power() {
                world.cut(n).await;
                world.start(n).await;
            }
            world.sleep(Duration::from_millis(1)).await;
        }
        let steps = world.fabric().steps() - begun;
        drop(dies);
        world.cut(n).await;
        world.start(n).await;
        world.sleep(RETURNS).await;
        writer.check().await;
        world.last_open_after(writer).await;
        steps
    });
}
