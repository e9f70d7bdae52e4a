//! One program of a writer under each fault: a call that fails, a request or an acknowledgement
//! that is lost, a host that is frozen, killed or cut from the power at each step.
//!
//! `RPMA_SIM_FAULT` runs one of them alone.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;

use rpma::sim::{now, sweep};

use crate::replicated_log::cuts::Told;
use crate::replicated_log::prelude::*;
use crate::replicated_log::world::REPLICAS;

/// A wait is over so long after its limit at the latest: the calls of its last look take a
/// microsecond each, those of the other programs in between as well.
const SLACK: Duration = Duration::from_millis(5);

/// What a call that destroys leaves behind when it fails: its object, and what that keeps.
const LEAVES: [&[&str]; 6] = [
    &["pd"],
    &["mr", "pd"],
    &["comp_channel"],
    &["cq", "comp_channel"],
    &["qp", "cq", "comp_channel", "pd"],
    &["cm_id"],
];

/// What the writer's program was told.
#[derive(Default)]
struct Ran {
    told: Told,
    /// Records without a known outcome. They may be there.
    unknown: BTreeMap<u64, Vec<u8>>,
    /// It opened the log.
    has_opened: bool,
    /// The log was truncated up to here.
    truncated: u64,
}

/// Lets a call end within its limit.
pub(crate) fn in_time<T>(what: &str, limit: Duration, call: impl FnOnce() -> T) -> T {
    let began = now();
    let result = call();
    let took = now() - began;
    assert!(took <= limit + SLACK, "{what} took {took:?} of {limit:?}");
    result
}

impl Ran {
    fn append(&mut self, log: &Log, record: &[u8]) -> Result<u64, LogError> {
        let appended = in_time("append", LIMIT, || log.append(record));
        match &appended {
            Ok(at) => drop(self.told.records.insert(*at, record.to_vec())),
            Err(LogError::Unknown { at, .. }) => {
                self.unknown.insert(*at, record.to_vec());
            }
            // It is not there.
            Err(_) => {}
        }
        appended
    }

    /// Opens, appends, truncates, appends and closes. It goes on after a call that failed.
    fn run(&mut self, world: &World) -> Result<(), LogError> {
        let log = in_time("open", LIMIT, || world.open(1))?;
        self.has_opened = true;
        let appended = [1_u8, 2, 3].map(|n| self.append(&log, &[n; 90]));
        let mut ended = appended.iter().try_for_each(|at| at.clone().map(drop));
        if let Ok(second) = appended[1] {
            self.told.head = second;
            let truncated = in_time("truncate", LIMIT, || log.truncate(second));
            if truncated.is_ok() {
                self.truncated = second;
            }
            ended = ended.and(truncated);
        }
        let last = self.append(&log, &[4; 300]);
        let closed = in_time("close", LIMIT, || log.close());
        ended.and(last.map(drop)).and(closed)
    }

    /// Another writer finds each record that was acknowledged, and no other one but those whose
    /// outcome is unknown.
    fn judge(&self, log: &Log) -> Result {
        let (head, end) = log.bounds();
        assert!(head >= self.truncated, "head {head} of {}", self.truncated);
        self.told.check_read(log, head.max(self.told.head));
        let mut appended: BTreeMap<_, _> = self.told.records.iter().chain(&self.unknown).collect();
        let mut at = head;
        while let Some(record) = log.read(at)? {
            let known = appended.iter().find(|(_, known)| ***known == record.bytes);
            let Some((&known, _)) = known else {
                panic!("nobody appended {record:?}");
            };
            appended = appended.split_off(known);
            appended.remove(known);
            at = record.next;
        }
        assert_eq!(at, end);
        Ok(())
    }
}

/// Ends what went wrong: each host has power and runs, and each replica's program serves.
fn mend(world: &mut World) {
    let hosts: Vec<_> = world.hosts.iter().chain([&world.client]).cloned().collect();
    for host in hosts {
        host.thaw();
        if !host.has_power() {
            host.restart();
        }
    }
    for n in 0..REPLICAS {
        if !world.is_serving(n) {
            world.stop(n);
            // It may fail under a fault.
            let _ = world.start(n);
        }
    }
}

/// Opens the log as the next writers do, after the fault. So many of them may fail under a fault.
fn recover(world: &mut World, ran: &Ran, faults: u64) -> Result {
    for attempt in 0..=faults {
        mend(world);
        let entered = world.client.enter();
        let log = in_time("open", LIMIT, || world.open(2 + attempt));
        match log {
            Ok(log) => {
                ran.judge(&log)?;
                let end = log.bounds().1;
                let appended = in_time("append", LIMIT, || log.append(b"after"));
                if attempt == faults {
                    let at = appended.as_ref()?;
                    assert!(*at >= end, "{at} is before {end}");
                }
                drop(log);
                return Ok(());
            }
            // It was not made, or by halves: no record is lost.
            Err(LogError::Nothing | LogError::TooFew(_)) if !ran.has_opened => {}
            Err(error) => assert!(attempt < faults, "the fault is over, and {error}"),
        }
        drop(entered);
    }
    // It can be made when the memory of each replica is cleared.
    assert!(!ran.has_opened);
    (0..REPLICAS).for_each(|n| world.replace(n));
    mend(world);
    let _entered = world.client.enter();
    let log = world.open(1)?;
    log.append(b"new")?;
    Ok(())
}

/// Runs the writer's program under so many faults at most, and judges it. Returns what is left.
pub(crate) fn program(fabric: &Fabric, faults: u64) -> BTreeMap<&'static str, usize> {
    let mut world = World::idle(fabric, READING, Fault::Nothing);
    mend(&mut world);
    let mut ran = Ran::default();
    let entered = world.client.enter();
    let ended = ran.run(&world);
    // No call failed.
    let is_clean = ended.is_ok();
    drop(entered);
    let is_up = |n: &usize| world.hosts[*n].has_power() && world.is_serving(*n);
    let is_one_down = !(0..REPLICAS).all(|n| is_up(&n));
    let may_fail = faults > 1 || !is_one_down;
    assert!(may_fail || is_clean, "one is down, and {ended:?}");
    // If no call failed, the faults may come now.
    let faults = faults - u64::from(!is_clean);
    recover(&mut world, &ran, faults).expect("appended");
    if ran.has_opened {
        mend(&mut world);
        world.cut_all();
        ran.told.check_memories(&world.pmems);
    }
    mend(&mut world);
    world.stop_all();
    drop(world);
    // A thread of the reactor may have the last handle of a connection.
    let _entered = fabric.host("judge").enter();
    for _ in 0..100 {
        if fabric.objects().is_empty() {
            break;
        }
        sleep(Duration::from_millis(1));
    }
    fabric.objects()
}

/// Runs every nth fault. The first one is without a fault.
fn every(nth: usize) {
    let (runs, calls) = (Cell::new(0), Cell::new(0));
    let alone = env::var("RPMA_SIM_FAULT").is_ok();
    let all = sweep(&profile(), |fabric| {
        let run = runs.replace(runs.get() + 1);
        if run % nth != 0 {
            return;
        }
        let left = program(fabric, 1);
        if run == 0 {
            calls.set(fabric.calls().values().sum());
        }
        // The calls that fail come first.
        let is_call = alone || (1..=calls.get()).contains(&(run as u64));
        let is_left = |leaves: &&[&str]| left.keys().all(|kind| leaves.contains(kind));
        let may_be_left = is_call && LEAVES.iter().any(is_left);
        assert!(left.is_empty() || may_be_left, "{left:?} are left");
    });
    println!("every {nth}th of {all} faults");
}

/// Promise: under each single fault no record that was acknowledged is lost on any two replicas,
/// each error says the truth, each call ends within its limit, and nothing leaks. When the fault is
/// over, another writer opens the log, with all records.
#[test]
fn each_fault_is_survived() {
    every(121);
}

/// The same with each fault, and not with a part of them.
#[test]
#[ignore = "long: 22 minutes"]
fn each_fault_is_survived_of_all() {
    every(1);
}
