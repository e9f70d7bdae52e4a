//! Recoveries that write, and lose their power in the middle.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::Visited;

use crate::common::prelude::*;
use crate::power::large::LARGE;
use crate::power::world::{PLATFORMS, Ran, under_every_cut};

const SIZE: usize = 4096;
/// Where the folded part of the counter is, and the part that is not folded yet.
const BASE: usize = 0;
const COUNT: usize = 8;
const STEPS: u64 = 3;

/// How a recovery folds the count into the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folds {
    /// Both are halves of one word, which is written at once.
    InOneWord,
    /// The base, and then the count: twice, if the power fails in between.
    InTwoWords,
}

fn load(map: &PmemMap, at: usize) -> Result<u64> {
    let mut word = [0; 8];
    map.read_at(at, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

fn store(map: &PmemMap, at: usize, value: u64) -> Result {
    map.write_at(at, &value.to_le_bytes())?;
    Ok(map.persist(at..at + 8)?)
}

/// Counts one more.
fn count(map: &PmemMap, folds: Folds) -> Result {
    match folds {
        Folds::InOneWord => store(map, BASE, load(map, BASE)? + (1 << 32)),
        Folds::InTwoWords => store(map, COUNT, load(map, COUNT)? + 1),
    }
}

/// The counter, after it was folded.
fn recover(path: &Path, folds: Folds) -> Result<u64> {
    let map = PmemMap::open(path, SIZE)?;
    let word = load(&map, BASE)?;
    let folded = match folds {
        Folds::InOneWord => (word >> 32) + (word & 0xFFFF_FFFF),
        Folds::InTwoWords => word + load(&map, COUNT)?,
    };
    store(&map, BASE, folded)?;
    if folds == Folds::InTwoWords {
        store(&map, COUNT, 0)?;
    }
    Ok(folded)
}

fn run(profile: &Profile, platform: Platform, folds: Folds) -> Result<Visited, Loss> {
    run_in(SIZE, profile, platform, folds)
}

/// In a memory of this size.
fn run_in(
    size: usize,
    profile: &Profile,
    platform: Platform,
    folds: Folds,
) -> Result<Visited, Loss> {
    run_on(&Rig::of(profile).fabric(), size, platform, folds)
}

pub(crate) fn explored_on(fabric: &Fabric, folds: Folds) -> Ran {
    run_on(fabric, SIZE, Platform::AdrDdioOn, folds)?;
    Ok(Ok(()))
}

fn run_on(fabric: &Fabric, size: usize, platform: Platform, folds: Folds) -> Result<Visited, Loss> {
    let host = fabric.host("counter");
    host.set_platform(platform);
    let memory = host.pmem("counter", size);
    let (_entered, told) = (host.enter(), AtomicU64::new(0));
    fabric.find_loss_in_recovery(
        &memory,
        || told.load(Ordering::Relaxed),
        |path| recover(path, folds).expect("the memory"),
        |told, found| {
            assert!(
                (*told..=told + 1).contains(found),
                "{told} counted, {found} found"
            )
        },
        || {
            let map = PmemMap::open(memory.path(), SIZE).expect("the memory");
            for step in 1..=STEPS {
                count(&map, folds).expect("inside");
                told.store(step, Ordering::Relaxed);
            }
        },
    )
}

/// A recovery that can be cut anywhere and run again survives.
#[test]
fn an_idempotent_recovery_survives() {
    for profile in Profile::EVERY {
        for platform in PLATFORMS {
            let visited = run(&profile, platform, Folds::InOneWord);
            let visited = visited.unwrap_or_else(|loss| panic!("{platform}: {loss}"));
            assert!(visited.events > 10, "{visited:?}");
        }
    }
}

/// One that counts twice when it is cut in the middle is found, and the report has where it began.
#[test]
fn a_recovery_that_counts_twice_is_found() {
    for profile in Profile::EVERY {
        for platform in PLATFORMS {
            let loss = run(&profile, platform, Folds::InTwoWords).expect_err("it counts twice");
            assert_says(&loss, &["The recovery lost its power as well."]);
        }
    }
}

/// A memory that was used before is not empty, and its contents are durable.
#[test]
fn memory_may_hold_old_contents() -> Result {
    let here = Rig::strict().here();
    let memory = here.host.pmem_filled("log", &[7; 100]);
    let check = |image: &[u8], _| assert_eq!(image[..100], [7; 100]);
    under_every_cut(&here.fabric, &memory, check, |_| {
        let map = PmemMap::open(memory.path(), SIZE)?;
        assert_eq!(load(&map, 0)?, u64::from_le_bytes([7; 8]));
        assert_eq!(load(&map, 104)?, 0);
        Ok(map.persist(..)?)
    })?
}

/// Promise: the results do not depend on the size of the memory.
#[test]
fn a_recovery_in_a_large_memory_has_the_same_results() {
    for folds in [Folds::InOneWord, Folds::InTwoWords] {
        let run = |size| match run_in(size, &Profile::STRICT, Platform::AdrDdioOn, folds) {
            Ok(visited) => format!("{visited:?}"),
            Err(loss) => without_times(&loss.to_string()),
        };
        assert_eq!(run(SIZE), run(LARGE), "{folds:?}");
    }
}

/// The real times of the events differ from run to run.
fn without_times(report: &str) -> String {
    let lines = report.lines().map(|line| {
        let Some((number, rest)) = line.split_once(", after ") else {
            return line.to_owned();
        };
        let what = rest.split_once(": ").map_or(rest, |(_, what)| what);
        format!("{number}: {what}")
    });
    lines.collect::<Vec<_>>().join("\n")
}
