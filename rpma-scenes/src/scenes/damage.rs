//! A bit of a server's memory flips.

use std::time::Duration;

use super::Scene;
use crate::stage::{Left, Stage};
use crate::subject::Ability::{DetectsDamage, GoesOn};
use crate::subject::{Appended, Shape, Subject};
use crate::world::{RETURNS, name};

pub(super) fn scenes<S: Subject>() -> Vec<Scene<S>> {
    vec![Scene {
        name: "damage",
        promise: "If a bit flips in the cache lines of a record on one server, the log opens with all records, as they \
                  were appended, while all servers run, and that server counts only when it is mended.",
        needs: &[GoesOn, DetectsDamage],
        play: damage,
    }]
}

const LINE: usize = 64;
/// The bits of a byte that flip in a short run.
const FEW: [u32; 2] = [0, 5];

/// The bits of a memory that flip: of the bytes around a record, and of some of its own.
fn bits<S: Subject>(stage: &Stage<S>, memory: &[u8], record: &[u8]) -> Vec<(usize, u32)> {
    let at = memory
        .windows(record.len())
        .position(|bytes| bytes == record);
    let Some(at) = at else {
        return Vec::new();
    };
    let (record, nth) = (at..at + record.len(), stage.extent(16, 1) as usize);
    let lines = record.start / LINE * LINE..record.end.next_multiple_of(LINE);
    let chosen = lines.filter(|at| !record.contains(at) || at % nth == 0);
    let each = (0..8).filter(|bit| nth == 1 || FEW.contains(bit));
    let bits = chosen.flat_map(|at| each.clone().map(move |bit| (at, bit)));
    bits.collect()
}

fn flips(n: usize, (at, bit): (usize, u32)) -> String {
    format!("bit {bit} of byte {at} of the memory of {} flips", name(n))
}

fn damage<S: Subject>(stage: &Stage<S>) {
    let left = stage.left(async |world| {
        let writer = world.begun().await;
        // The last record is not the damaged one: a server may lack that.
        writer.append(Shape::LEAST_LONGEST).await;
        world.settle().await;
    });
    let record = left.model.kept().into_iter().next();
    let record = record.expect("it was begun with one");
    for (n, memory) in left.memories.iter().enumerate() {
        for (at, bit) in bits(stage, memory, &record) {
            let mut left = left.clone();
            left.memories[n][at] ^= 1 << bit;
            let flips = flips(n, (at, bit));
            stage.play_from(left, async |world| {
                world.acts().does(flips.clone());
                world.only(&world.all()).await;
                world.open().await.check().await;
            });
        }
    }
    damage_of_last(stage);
    damage_that_counts(stage, &left, &record);
}

/// Others go, long after the log was opened with the damaged server. If a record is durable without
/// them, that server counts.
fn damage_that_counts<S: Subject>(stage: &Stage<S>, left: &Left, record: &[u8]) {
    for (n, memory) in left.memories.iter().enumerate() {
        for (at, bit) in bits(stage, memory, record).into_iter().step_by(8) {
            let mut left = left.clone();
            left.memories[n][at] ^= 1 << bit;
            let flips = flips(n, (at, bit));
            stage.play_from(left, async |world| {
                world.acts().does(flips.clone());
                let (all, up) = (world.all(), world.enough(n));
                let away = &up[1..1 + world.spare()];
                world.only(&all).await;
                let writer = world.open().await;
                world.sleep(RETURNS).await;
                away.iter().for_each(|n| world.link(*n).partition());
                let appended = writer.try_append(Shape::LEAST_LONGEST).await;
                drop(writer);
                world.kill_writers(world.client());
                world.cut_all().await;
                away.iter().for_each(|n| world.link(*n).heal());
                let counts = matches!(appended, Appended::Durable(_));
                world.only(if counts { &up } else { &all }).await;
                world.open().await.check().await;
            });
        }
    }
}

/// The others that have the last record answer later than those that lack it.
const LATER: Duration = Duration::from_millis(20);

fn damage_of_last<S: Subject>(stage: &Stage<S>) {
    let left = stage.left(async |world| {
        let writer = world.begun().await;
        for n in &world.all()[..world.spare()] {
            world.kill(*n).await;
        }
        writer.append(Shape::LEAST_LONGEST).await;
        world.settle().await;
    });
    let record = left.model.kept().pop().expect("it was appended");
    let has = |memory: &Vec<u8>| memory.windows(record.len()).any(|bytes| bytes == record);
    let numbered = (0..).zip(&left.memories);
    let have: Vec<usize> = numbered
        .filter_map(|(n, memory)| has(memory).then_some(n))
        .collect();
    for n in &have {
        for (at, bit) in bits(stage, &left.memories[*n], &record)
            .into_iter()
            .step_by(4)
        {
            let mut left = left.clone();
            left.memories[*n][at] ^= 1 << bit;
            let flips = flips(*n, (at, bit));
            stage.play_from(left, async |world| {
                world.acts().does(flips.clone());
                for other in have.iter().filter(|other| *other != n) {
                    world.link(*other).delay(LATER);
                }
                world.only(&world.all()).await;
                world.open().await.check().await;
            });
        }
    }
}
