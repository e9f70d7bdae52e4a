//! [`Stage`]: how a scene runs: with seeds, under losses of power, in many orders, under faults.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use rpma::sim::{Explore, Fabric, Platform, Pmem, Profile, find_fault, find_faults};

use crate::cuts::Cuts;
use crate::exec::Executor;
use crate::model::Model;
use crate::subject::Subject;
use crate::world::{World, fail};

/// A scene on hosts of one kind.
pub(crate) struct Stage<S: Subject> {
    pub(crate) subject: Arc<S>,
    pub(crate) profile: Profile,
    pub(crate) platform: Platform,
    pub(crate) setting: Setting,
    /// The run, for the report of its failure.
    pub(crate) part: RefCell<String>,
    pub(crate) tally: Cell<Tally>,
    /// The acts of the last run that has failed.
    pub(crate) acts: RefCell<String>,
}

/// How much of a scene is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Short,
    Long,
    /// As `Long`, and all single faults and all orders.
    All,
}

/// In a short run, one of so many faults is tried.
const NTH: usize = 97;
/// In a long run, so many faults are tried, and so many orders.
const FAULTS: usize = 500;
const ORDERS: u64 = 200;

/// Counts of a scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) runs: usize,
    pub(crate) appended: usize,
    pub(crate) durable: usize,
    pub(crate) images: u64,
    pub(crate) recoveries: usize,
}

/// The memories of all servers, and the model of their log.
#[derive(Clone)]
pub(crate) struct Left {
    pub(crate) memories: Vec<Vec<u8>>,
    pub(crate) model: Model,
    epoch: u64,
}

impl<S: Subject> Stage<S> {
    /// So many in a short run, or in a long one.
    pub(crate) fn extent(&self, short: u64, long: u64) -> u64 {
        match self.setting {
            Setting::Short => short,
            Setting::Long | Setting::All => long,
        }
    }

    /// So many orders in a short run.
    pub(crate) fn orders(&self, short: u64) -> u64 {
        match self.setting {
            Setting::Short => short,
            Setting::Long => ORDERS,
            Setting::All => 100_000,
        }
    }

    fn executor(&self, fabric: &Fabric) -> (Executor, World<S>) {
        let executor = Executor::new(S::BLOCKS, fabric);
        let world = World::new(&self.subject, fabric, self.platform, None);
        (executor, world)
    }

    fn count(&self, world: &World<S>) {
        let mut tally = self.tally.get();
        tally.runs += 1;
        tally.appended += world.model().appended();
        tally.durable += world.model().durable();
        self.tally.set(tally);
    }

    /// A fabric with a seed, by which the answers of servers come apart.
    fn fabric(&self, seed: u64) -> Fabric {
        self.part.replace(format!("seed {seed}"));
        let fabric = Fabric::seeded(self.profile.clone(), seed);
        fabric.apart();
        fabric
    }

    fn play_on(&self, fabric: &Fabric, scene: &impl AsyncFn(&World<S>)) {
        let (executor, world) = self.executor(fabric);
        self.run(&world, &executor, async {
            scene(&world).await;
            world.stop().await;
        });
        self.count(&world);
    }

    /// Runs a scene, and keeps its acts if it fails.
    fn run<T>(&self, world: &World<S>, executor: &Executor, scene: impl Future<Output = T>) -> T {
        let played = catch_unwind(AssertUnwindSafe(|| executor.run(scene)));
        world.judged(played).unwrap_or_else(|panic| {
            self.acts.replace(world.course_and_records());
            resume_unwind(panic)
        })
    }

    /// Plays a scene with seeds from 1 on: so many, or more for the parts of the servers.
    pub(crate) fn play(&self, seeds: u64, scene: impl AsyncFn(&World<S>)) {
        let turns = self.turns(1);
        for seed in 1..turns.end.max(seeds + 1) {
            self.play_one(seed, &scene);
        }
    }

    pub(crate) fn play_one(&self, seed: u64, scene: impl AsyncFn(&World<S>)) {
        self.play_on(&self.fabric(seed), &scene);
    }

    /// Seeds from this one on: with them each server has each part.
    pub(crate) fn turns(&self, first: u64) -> Range<u64> {
        first..first + self.subject.shape().servers as u64
    }

    /// Plays a scene, and ends its hosts. Returns the memories that are left.
    pub(crate) fn left(&self, scene: impl AsyncFn(&World<S>)) -> Left {
        let (executor, world) = self.executor(&self.fabric(1));
        self.run(&world, &executor, async {
            scene(&world).await;
            world.kill_writers(world.client());
            world.cut_all().await;
        });
        self.count(&world);
        Left {
            memories: world.pmems().iter().map(Pmem::bytes).collect(),
            model: world.model().clone(),
            epoch: world.last_epoch(),
        }
    }

    /// Plays a scene on hosts with these memories.
    pub(crate) fn play_from(&self, left: Left, scene: impl AsyncFn(&World<S>)) {
        let fabric = self.fabric(1);
        let executor = Executor::new(S::BLOCKS, &fabric);
        let world = World::new(&self.subject, &fabric, self.platform, Some(&left.memories));
        let world = world.with_model(left.model, left.epoch);
        self.run(&world, &executor, async {
            scene(&world).await;
            world.stop().await;
        });
    }

    /// Prepares a log, and cuts the power of all servers at each event of a program. The next
    /// writers recover from one of `nth` images.
    pub(crate) fn cut<T>(
        &self,
        (seed, nth): (u64, u64),
        prepare: impl AsyncFn(&World<S>) -> T,
        program: impl AsyncFn(&World<S>, T),
    ) {
        self.cut_on(&self.fabric(seed), nth, &prepare, &program);
    }

    fn cut_on<T>(
        &self,
        fabric: &Fabric,
        nth: u64,
        prepare: &impl AsyncFn(&World<S>) -> T,
        program: &impl AsyncFn(&World<S>, T),
    ) {
        let (executor, world) = self.executor(fabric);
        let ready = self.run(&world, &executor, prepare(&world));
        let mut cuts = Cuts::new(&world, &self.subject, &self.profile, nth);
        let found = cuts.find(fabric, || {
            self.run(&world, &executor, program(&world, ready))
        });
        let mut tally = self.tally.get();
        tally.recoveries += cuts.recoveries();
        tally.images += fabric.visited().images;
        self.tally.set(tally);
        if let (Err(_), Some(acts)) = (&found, cuts.failed_after()) {
            self.acts.replace(acts.to_owned());
        }
        drop(cuts);
        found.unwrap_or_else(|loss| fail(loss.to_string()));
        executor.run(world.stop());
        self.count(&world);
    }

    /// As [`cut`](Self::cut), in so many orders with up to one deviation.
    pub(crate) fn explore<T>(
        &self,
        (runs, nth): (u64, u64),
        prepare: impl AsyncFn(&World<S>) -> T,
        program: impl AsyncFn(&World<S>, T),
    ) {
        let explore = Explore::new(&self.profile).deviations(1);
        let explore = explore.runs(runs as usize).limit(Duration::from_secs(3600));
        let explored = explore.find(|fabric| self.cut_on(fabric, nth, &prepare, &program));
        match explored {
            Ok(explored) if explored.diverged > 0 => fail(explored.to_string()),
            Ok(_) => {}
            Err(failed) => {
                self.part.replace(format!("the order {:?}", failed.order));
                fail(failed.to_string())
            }
        }
    }

    /// Plays a scene under single faults: all of them, or some by the setting. They may come at any
    /// moment, also in the recovery.
    pub(crate) fn sweep(&self, scene: impl AsyncFn(&World<S>)) {
        self.part.replace("single faults".to_owned());
        match self.setting {
            Setting::Short => self.sweep_some(&scene, |run| run % NTH == 0),
            Setting::Long => {
                let all = self.sweep_some(&scene, |run| run == 0);
                let sample = sample(all - 1, FAULTS);
                self.sweep_some(&scene, |run| run == 0 || sample.contains(&(run - 1)))
            }
            Setting::All => self.sweep_some(&scene, |_| true),
        };
    }

    /// Returns the number of all runs. The first one has no fault.
    fn sweep_some(
        &self,
        scene: &impl AsyncFn(&World<S>),
        is_chosen: impl Fn(usize) -> bool,
    ) -> usize {
        let runs = Cell::new(0);
        let found = find_fault(&self.profile, |fabric| {
            if is_chosen(runs.replace(runs.get() + 1)) {
                self.play_on(fabric, scene);
            }
        });
        found.unwrap_or_else(|failed| fail(failed.to_string()))
    }

    /// Plays a scene under several faults at once, with so many seeds.
    pub(crate) fn storm(&self, seeds: u64, scene: impl AsyncFn(&World<S>)) {
        self.part.replace("several faults".to_owned());
        let found = find_faults(&self.profile, seeds, |fabric| self.play_on(fabric, &scene));
        found.unwrap_or_else(|failed| fail(failed.to_string()));
    }
}

/// So many of all numbers below `all`: one of each part of them, the same ones in each run.
fn sample(all: usize, count: usize) -> HashSet<usize> {
    let count = count.min(all);
    let one = |part: usize| {
        let (from, to) = (all * part / count, all * (part + 1) / count);
        let mut draw = DefaultHasher::new();
        part.hash(&mut draw);
        from + draw.finish() as usize % (to - from)
    };
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a sample has as many numbers as asked for, spread over all, or all of them.
    #[test]
    fn a_sample_has_its_number() {
        for (all, count) in [(4000, 500), (501, 500), (30, 500), (0, 500)] {
            let sample = sample(all, count);
            assert_eq!(sample.len(), count.min(all));
            assert!(sample.iter().all(|number| *number < all));
            let late = sample.iter().filter(|number| **number >= all / 2);
            assert!(late.count() >= sample.len() / 2);
        }
    }
}
