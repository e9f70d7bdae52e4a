//! The loop of a thread: it begins operations when they are due, and counts their completions.

use std::thread;
use std::time::{Duration, Instant};

use super::job::{Begun, Job, Order, Turn};
use super::load::Load;
use super::meter::Meter;
use crate::client::{Result, failed};

/// The longest sleep of a thread.
const LONGEST: Duration = Duration::from_millis(100);

/// A connection of a thread, and its operations in flight.
pub(super) struct Lane<L> {
    load: L,
    order: Order,
    free: Vec<u32>,
    begun: Vec<Begun>,
}

impl<L: Load> Lane<L> {
    /// `slots` is how many groups of operations can be in flight.
    pub(super) fn new(load: L, order: Order, slots: u32) -> Self {
        Self {
            load,
            order,
            free: (0..slots).rev().collect(),
            begun: vec![Begun::default(); slots as usize],
        }
    }
}

/// Works until the end. A failure ends the other threads as well. The results until then stay.
pub(super) fn work<L: Load>(lanes: Vec<Lane<L>>, job: &Job) -> (Meter, Result) {
    let mut worker = Worker {
        lanes,
        job,
        meter: Meter::new(),
        moved: 0,
    };
    thread::sleep(job.begin.saturating_duration_since(Instant::now()));
    let result = worker.run();
    if result.is_err() {
        job.stop();
    }
    // Before the connections are dropped.
    worker.meter.end();
    (worker.meter, result)
}

struct Worker<'a, L> {
    lanes: Vec<Lane<L>>,
    job: &'a Job,
    meter: Meter,
    /// When something completed, or nothing was in flight.
    moved: u64,
}

/// What a pass over the connections found.
#[derive(Default)]
struct Pass {
    has_moved: bool,
    in_flight: bool,
    /// Whether more operations will begin.
    goes_on: bool,
    /// When the next operation is due.
    due: Option<u64>,
}

impl<L: Load> Worker<'_, L> {
    fn run(&mut self) -> Result {
        loop {
            let pass = self.pass()?;
            let now = self.job.now();
            if now >= self.job.warm_up {
                self.meter.begin();
            }
            if !pass.goes_on && !pass.in_flight {
                let waited = self.lanes.iter().flat_map(|lane| lane.order.not_begun(now));
                waited.for_each(|waited| self.meter.not_begun(waited));
                return Ok(());
            }
            if pass.has_moved || !pass.in_flight {
                self.moved = now;
            } else if now - self.moved > self.job.stall {
                let seconds = self.job.stall as f64 / 1e9;
                return failed(format!(
                    "no operation has completed for {seconds} s: the server or the network stands \
                     still"
                ));
            }
            if !pass.has_moved && self.job.sleeps {
                self.sleep(pass.due, now)?;
            }
        }
    }

    fn pass(&mut self) -> Result<Pass> {
        let (job, stops) = (self.job, self.job.stops());
        let mut pass = Pass::default();
        for Lane {
            load,
            order,
            free,
            begun,
        } in &mut self.lanes
        {
            load.poll(&mut |slot| {
                let now = job.now();
                order.completed(begun[slot as usize], now, |latency, count| {
                    self.meter.completed(latency, count, now);
                });
                free.push(slot);
                pass.has_moved = true;
            })?;
            while let Some(slot) = free.last().copied().filter(|_| !stops) {
                let now = job.now();
                match order.turn(now) {
                    Turn::Over => break,
                    Turn::Later(due) => {
                        pass.goes_on = true;
                        pass.due = Some(pass.due.map_or(due, |earlier| earlier.min(due)));
                        break;
                    }
                    Turn::Now => pass.goes_on = true,
                }
                if !load.post(slot)? {
                    break;
                }
                begun[slot as usize] = order.begin(now);
                free.pop();
                pass.has_moved = true;
            }
            pass.in_flight |= free.len() < begun.len();
        }
        Ok(pass)
    }

    /// Sleeps until an operation is due, or until the flags are looked at.
    fn sleep(&mut self, due: Option<u64>, now: u64) -> Result {
        let until_due = due.map(|due| Duration::from_nanos(due.saturating_sub(now)));
        let limit = until_due.map_or(LONGEST, |sleep| sleep.min(LONGEST));
        // A thread that sleeps has one connection.
        match self.lanes.first_mut() {
            Some(lane) if !limit.is_zero() => lane.load.sleep(limit),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::job::End;
    use super::super::pace::Pace;
    use super::*;
    use crate::client::Stop;

    const MS: u64 = 1_000_000;

    fn job(end: End) -> Job {
        Job {
            begin: Instant::now(),
            batch: 1,
            warm_up: 0,
            end,
            sleeps: false,
            stall: 50 * MS,
            stop: AtomicBool::new(false),
        }
    }

    /// Operations that never complete.
    struct Stuck;

    impl Load for Stuck {
        fn post(&mut self, _: u32) -> Result<bool> {
            Ok(true)
        }

        fn poll(&mut self, _: &mut impl FnMut(u32)) -> Result {
            Ok(())
        }

        fn sleep(&mut self, limit: Duration) -> Result {
            thread::sleep(limit);
            Ok(())
        }
    }

    /// Promise: a server that stands still for ever ends the measurement, with the reason.
    #[test]
    fn operations_that_never_complete_end_the_measurement() {
        for end in [End::Time(u64::MAX), End::Count(1)] {
            let job = job(end);
            let (meter, ended) = work(
                vec![Lane::new(Stuck, Order::new(&job, Pace::Closed), 2)],
                &job,
            );
            let Err(Stop::Failed(text)) = ended else {
                panic!("{ended:?}");
            };
            assert!(
                text.contains("no operation has completed for 0.05 s"),
                "{text}"
            );
            assert_eq!(meter.operations, 0);
            assert!(job.stops(), "the other threads end as well");
        }
    }

    /// Operations that complete at once. One of them stands still before.
    struct Pauses(Vec<u32>, u32);

    impl Load for Pauses {
        fn post(&mut self, slot: u32) -> Result<bool> {
            self.1 += 1;
            if self.1 == 20 {
                thread::sleep(Duration::from_nanos(100 * MS));
            }
            self.0.push(slot);
            Ok(true)
        }

        fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
            self.0.drain(..).for_each(done);
            Ok(())
        }

        fn sleep(&mut self, limit: Duration) -> Result {
            thread::sleep(limit);
            Ok(())
        }
    }

    /// Promise: no coordinated omission. Each operation that was due in a pause has its share of it.
    #[test]
    fn a_pause_is_in_the_latency_of_each_operation_that_was_due() {
        let pace = Pace::new(Some(1000.0), 0, 1);
        let load = Pauses(Vec::new(), 0);
        let job = job(End::Time(300 * MS));
        let (meter, ended) = work(vec![Lane::new(load, Order::new(&job, pace), 1)], &job);
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!(meter.operations + meter.not_begun, 300);
        // Those that were due in its first 60 ms waited for 40 ms at least.
        let late = meter.latencies.count_between(40 * MS, u64::MAX);
        assert!(late >= 55, "{late}");
    }
}
