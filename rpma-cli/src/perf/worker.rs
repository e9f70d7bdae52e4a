//! The loop of a thread: it begins operations when they are due, and counts their completions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::job::{Begun, Job, Order, STALL, Turn, sleep_until};
use super::load::Load;
use super::meter::Meter;
use super::pace::Pace;
use crate::client::{Result, failed};

/// A connection of a thread, and its operations in flight.
#[derive(Debug)]
pub(super) struct Lane<L> {
    load: L,
    pace: Pace,
    free: Vec<u32>,
    begun: Vec<Begun>,
}

impl<L: Load> Lane<L> {
    /// `slots` is how many groups of operations can be in flight.
    pub(super) fn new(load: L, pace: Pace, slots: u32) -> Self {
        Self {
            load,
            pace,
            free: (0..slots).rev().collect(),
            begun: vec![Begun::default(); slots as usize],
        }
    }
}

/// Works until the end. A failure ends the other threads as well. The results until then stay.
pub(super) fn work<L: Load>(lanes: Vec<Lane<L>>, job: &Arc<Job>, thread: usize) -> (Meter, Result) {
    let mut meter = Meter::new();
    job.clock.wait_for_begin();
    let result = Worker::new(lanes, job, thread, &mut meter).run();
    if result.is_err() {
        job.stop();
    }
    meter.end();
    (meter, result)
}

struct Worker<'a, L> {
    lanes: Vec<(Lane<L>, Order)>,
    job: &'a Job,
    thread: usize,
    meter: &'a mut Meter,
    /// All operations, those of the warm-up too.
    completed: u64,
    /// When something completed, or nothing was in flight.
    moved: u64,
}

/// What a pass over the connections found.
struct Pass {
    has_moved: bool,
    in_flight: bool,
    is_over: bool,
    /// When the next operation is due.
    due: Option<u64>,
}

impl<'a, L: Load> Worker<'a, L> {
    fn new(lanes: Vec<Lane<L>>, job: &'a Job, thread: usize, meter: &'a mut Meter) -> Self {
        let ordered = lanes.into_iter().map(|lane| {
            let order = Order::new(job, lane.pace);
            (lane, order)
        });
        Self {
            lanes: ordered.collect(),
            job,
            thread,
            meter,
            completed: 0,
            moved: 0,
        }
    }

    fn run(mut self) -> Result {
        loop {
            let pass = self.pass()?;
            let now = self.job.clock.now();
            if now >= self.job.warm_up {
                self.meter.begin();
            }
            if pass.is_over && !pass.in_flight {
                self.count_not_begun(now);
                return Ok(());
            }
            if pass.has_moved || !pass.in_flight {
                self.moved = now;
            } else if now - self.moved > STALL {
                return failed(format!(
                    "no operation has completed for {} s",
                    STALL / 1_000_000_000
                ));
            }
            if !pass.has_moved && self.job.sleeps {
                self.sleep(pass.due, now)?;
            }
        }
    }

    fn pass(&mut self) -> Result<Pass> {
        let (job, stops) = (self.job, self.job.stops());
        let before = self.completed;
        let mut pass = Pass {
            has_moved: false,
            in_flight: false,
            is_over: true,
            due: None,
        };
        for (lane, order) in &mut self.lanes {
            let (meter, completed) = (&mut *self.meter, &mut self.completed);
            let (free, begun) = (&mut lane.free, &mut lane.begun);
            lane.load.poll(&mut |slot| {
                let now = job.clock.now();
                order.completed(begun[slot as usize], now, |latency, count| {
                    meter.completed(latency, count, now);
                });
                free.push(slot);
                *completed += job.batch;
            })?;
            while let Some(slot) = free.last().copied().filter(|_| !stops) {
                let now = job.clock.now();
                match order.turn(now) {
                    Turn::Over => break,
                    Turn::Later(due) => {
                        pass.is_over = false;
                        pass.due = Some(pass.due.map_or(due, |earlier| earlier.min(due)));
                        break;
                    }
                    Turn::Now => pass.is_over = false,
                }
                if !lane.load.post(slot)? {
                    break;
                }
                begun[slot as usize] = order.begin(now);
                free.pop();
                pass.has_moved = true;
            }
            pass.in_flight |= free.len() < begun.len();
        }
        pass.has_moved |= self.completed > before;
        if self.completed > before {
            job.completed[self.thread].store(self.completed, Ordering::Relaxed);
        }
        Ok(pass)
    }

    /// A thread that sleeps has one connection.
    fn sleep(&mut self, due: Option<u64>, now: u64) -> Result {
        let limit = sleep_until(due, now);
        match self.lanes.first_mut() {
            Some((lane, _)) if !limit.is_zero() => lane.load.sleep(limit),
            _ => Ok(()),
        }
    }

    fn count_not_begun(&mut self, now: u64) {
        for (_, order) in &self.lanes {
            for waited in order.not_begun(now) {
                self.meter.not_begun(waited);
            }
        }
    }
}
