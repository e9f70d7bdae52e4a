//! A log with writers that hand their records to one thread, which commits them in groups.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use rpma::sim::Trace;
use rpma::sync::{Condvar, Mutex, PoisonError, mpsc};
use rpma::thread;

use crate::common::prelude::*;
use crate::power::protocols::{check_log, place, record};
use crate::power::world::{self, Ran, Way, World};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// How many threads write.
    pub(crate) writers: u64,
    /// How many records each of them writes.
    pub(crate) each: u64,
    /// For how long the committer collects a group.
    pub(crate) collects: Duration,
}

const SIZE: Size = Size {
    writers: 3,
    each: 3,
    collects: Duration::from_secs(3600),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// After the flush has completed.
    InTime,
    /// After the flush was posted.
    TooEarly,
}

/// The log of a program that has no test in mind.
struct Log<'a> {
    world: &'a World,
    /// How many records are durable. There is none if a commit has failed.
    committed: Mutex<Option<u64>>,
    grown: Condvar,
    collects: Duration,
}

impl Log<'_> {
    /// Takes records until there is no writer, or until a commit fails.
    fn commit(&self, asked: &mpsc::Receiver<mpsc::Sender<u64>>, wakes: Wakes) -> Result<()> {
        let committed = self.commit_all(asked, wakes);
        if committed.is_err() {
            *self.committed.lock().expect("no panic") = None;
            self.grown.notify_all();
        }
        committed
    }

    fn commit_all(&self, asked: &mpsc::Receiver<mpsc::Sender<u64>>, wakes: Wakes) -> Result<()> {
        let mut next = 0;
        while let Ok(first) = asked.recv() {
            let mut group = vec![first];
            // Writers that are not done wait for this thread: the group is complete without a
            // limit only by luck.
            while let Ok(another) = asked.recv_timeout(self.collects) {
                group.push(another);
            }
            for answer in group {
                self.world.write(place(next), record(next))?;
                next += 1;
                // The writer need not be there.
                let _ = answer.send(next);
            }
            let len = place(next) - place(0);
            self.world
                .post_flush(place(0), len, FlushType::Persistent)?;
            self.world.atomic_write(0, &next.to_le_bytes())?;
            let flushed = self.world.begin_flush(0, 8)?;
            if wakes == Wakes::InTime {
                self.world.wait(flushed)?;
            }
            *self.committed.lock().expect("no panic") = Some(next);
            self.grown.notify_all();
            if wakes == Wakes::TooEarly {
                self.world.wait(flushed)?;
            }
        }
        Ok(())
    }

    /// Appends a record, and waits until it is durable.
    fn append(&self, asks: &mpsc::Sender<mpsc::Sender<u64>>) -> Result<u64> {
        let (answers, answered) = mpsc::channel();
        asks.send(answers)?;
        let own = answered.recv()?;
        let committed = self.committed.lock().expect("no panic");
        let committed = self
            .grown
            .wait_while(committed, |committed| committed.is_some_and(|it| it < own));
        committed.expect("no panic").context("no commit")?;
        Ok(own)
    }
}

fn run(profile: &Profile, way: Way, seed: u64, wakes: Wakes) -> (Result<(), Loss>, Trace) {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let (before, real) = (fabric.now(), Instant::now());
    let found = run_on(&fabric, way, wakes, SIZE);
    let found = found.map(|ran| ran.expect("committed"));
    assert_eq!(fabric.why_not_repeatable(), None);
    // At the least the last group is collected until the limit.
    assert!(fabric.now() - before >= SIZE.collects);
    assert!(real.elapsed() < SIZE.collects, "{:?}", real.elapsed());
    (found, fabric.trace())
}

pub(crate) fn run_on(fabric: &Fabric, way: Way, wakes: Wakes, size: Size) -> Ran {
    let world = World::new(fabric, way).expect("a connection");
    let log = Log {
        world: &world,
        committed: Mutex::new(Some(0)),
        grown: Condvar::new(),
        collects: size.collects,
    };
    // The records that a writer relies on.
    let told = Mutex::new(0);
    let check = |image: &[u8], _| {
        let told = *told.lock().unwrap_or_else(PoisonError::into_inner);
        check_log(image, told);
    };
    world.under_every_cut(check, |_| {
        let _entered = world.client.enter();
        thread::scope(|scope| {
            let (asks, asked) = mpsc::channel();
            let committing = scope.spawn(|| {
                let asked = asked;
                log.commit(&asked, wakes)
            });
            for _ in 0..size.writers {
                let asks = asks.clone();
                let (log, told) = (&log, &told);
                scope.spawn(move || {
                    for _ in 0..size.each {
                        let Ok(own) = log.append(&asks) else {
                            return;
                        };
                        let mut told = told.lock().expect("no panic");
                        *told = own.max(*told);
                    }
                });
            }
            drop(asks);
            committing.join().expect("no panic")
        })
    })
}

/// Each device and platform on which a client's flush is enough.
fn ways() -> impl Iterator<Item = (Profile, Way)> {
    let ways = world::ways().into_iter();
    ways.filter(|(_, way)| !way.by_reading)
}

#[test]
fn a_group_commit_survives_in_every_order() {
    for (profile, way) in ways() {
        let mut traces = BTreeSet::new();
        for seed in 0..10 {
            let (found, trace) = run(&profile, way, seed, Wakes::InTime);
            found.unwrap_or_else(|loss| panic!("{}, {way:?}, {seed}: {loss}", profile.name()));
            traces.insert(trace.hash);
        }
        assert!(traces.len() > 1, "the seeds make a difference");
        let again = [(); 2].map(|()| run(&profile, way, 3, Wakes::InTime).1);
        assert_eq!(again[0], again[1], "{}", profile.name());
    }
}

#[test]
fn a_group_commit_that_wakes_its_writers_too_early_is_found() -> Result<()> {
    for (profile, way) in ways() {
        let began = Instant::now();
        let find = |seed| run(&profile, way, seed, Wakes::TooEarly).0.err();
        let found = (0..10).find_map(|seed| Some((seed, find(seed)?)));
        // On each device and platform: the atomic write of the tail may not have happened at all.
        let (seed, loss) = found.unwrap_or_else(|| panic!("{}, {way:?}", profile.name()));
        let (name, took) = (profile.name(), began.elapsed());
        println!("{name}, {way:?}: seed {seed}, {took:?}");
        let report = loss.to_string();
        assert_says(&report, &["were acknowledged, and"]);
        let again = find(seed).context("it is found again")?;
        assert_eq!(again.to_string(), report);
    }
    Ok(())
}
