//! The recovery of a log that is on K of N replicas (docs/failures.md), with every pair of
//! writers that die on the way.
//!
//! Each replica has a tail of 8 bytes, with the writer's epoch and the number of records, and
//! records of 8 bytes. Two of three replicas make a record acknowledged.

use rpma::reconnect::{Reconnect, ToConn};

use crate::common::prelude::*;
use crate::reconnect::support::{LEN, Server, connect, identified};

const REPLICAS: usize = 3;
const K: usize = 2;
/// The replicas that a recovery reads: every record on K of N is on one of these.
const READ: usize = REPLICAS - K + 1;

/// A rule that a writer does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// It reads one replica.
    ReadsOne,
    /// It takes the longest log for the newest.
    IgnoresEpochs,
    /// It reports records to its readers before K replicas have the log under its own epoch.
    TellsEarly,
}

/// Some of the replicas.
type Set = u8;

fn all_sets() -> impl Iterator<Item = Set> {
    0..1 << REPLICAS
}

/// The sets that a recovery may read.
fn read_sets() -> impl Iterator<Item = Set> {
    all_sets().filter(|set| set.count_ones() as usize == READ)
}

fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..REPLICAS).filter(move |replica| set & 1 << replica != 0)
}

fn is_part(part: &Set, set: Set) -> bool {
    part & !set == 0
}

/// The replicas, each with the client's connection.
struct Log {
    servers: [Server; REPLICAS],
    links: Vec<(Conn, MrRemote)>,
    _far: Vec<Conn>,
    source: Mr<Memory>,
}

impl Log {
    fn new() -> Result<Self> {
        let servers = [(); REPLICAS].map(|()| Server::new().expect("a server"));
        let (mut links, mut far) = (Vec::new(), Vec::new());
        let peer = peer()?;
        for server in &servers {
            let at = [server.at_addr()?];
            let mut client = Reconnect::to_addrs(&peer, &at, identified(1), ToConn)?;
            let mut current = None;
            let conn = connect(&mut client, || server.accept(&mut current))?;
            let region = offered(&conn)?;
            links.push((conn, region));
            far.extend(current);
        }
        Ok(Self {
            servers,
            links,
            _far: far,
            source: region(&peer, 8, MrUsage::WRITE_SRC | MrUsage::READ_DST)?,
        })
    }

    fn clear(&self) -> Result {
        for server in &self.servers {
            server.memory.write_at(0, &[0; LEN])?;
        }
        Ok(())
    }

    fn read(&self, replica: usize, place: u64) -> Result<u64> {
        let (conn, region) = &self.links[replica];
        let from = region.slice(8 * place..8 * place + 8)?;
        let read = conn.read(self.source.slice(..)?, from, ALWAYS, 1);
        conn.wait_for(read?, LIMIT, |_| {})?;
        Ok(self.source.load_u64(0)?)
    }

    fn write(&self, replica: usize, place: u64, value: u64) -> Result {
        self.source.store_u64(0, value)?;
        let (conn, region) = &self.links[replica];
        let to = region.slice(8 * place..8 * place + 8)?;
        let write = conn.write(to, self.source.slice(..)?, ALWAYS, 2);
        conn.wait_for(write?, LIMIT, |_| {})?;
        Ok(())
    }

    /// The newest log of these replicas.
    fn newest(&self, read: Set, broken: Broken) -> Result<Vec<u64>> {
        let count = match broken {
            Broken::ReadsOne => 1,
            _ => REPLICAS,
        };
        let tails = members(read).take(count).map(|replica| {
            let tail = self.read(replica, 0).expect("inside");
            let (epoch, len) = (tail >> 32, tail & 0xFFFF_FFFF);
            match broken {
                Broken::IgnoresEpochs => ((0, len), replica),
                _ => ((epoch, len), replica),
            }
        });
        let ((_, len), replica) = tails.max().ok_or("one is read")?;
        (1..=len).map(|place| self.read(replica, place)).collect()
    }

    /// Writes a log to these replicas: first its records, then the tail.
    fn put(&self, to: Set, epoch: u64, log: &[u64]) -> Result {
        for replica in members(to) {
            for (place, record) in (1..).zip(log) {
                self.write(replica, place, *record)?;
            }
            self.write(replica, 0, epoch << 32 | log.len() as u64)?;
        }
        Ok(())
    }
}

/// Where one writer's writes come to before it dies.
#[derive(Clone, Copy, Debug)]
struct Life {
    reads: Set,
    /// These have the recovered log under its epoch.
    adopts: Set,
    /// These have its record as well.
    appends: Set,
}

fn lives() -> Vec<Life> {
    let mut lives = Vec::new();
    for reads in read_sets() {
        for adopts in all_sets().filter(|set| is_part(set, reads)) {
            let appends = all_sets().filter(|set| is_part(set, adopts));
            lives.extend(appends.map(|appends| Life {
                reads,
                adopts,
                appends,
            }));
        }
    }
    lives
}

fn is_quorum(set: Set) -> bool {
    set.count_ones() as usize >= K
}

/// A writer of this epoch recovers, and appends one record. The reported records go to `told`.
fn live(log: &Log, epoch: u64, life: Life, broken: Broken, told: &mut Vec<u64>) -> Result {
    let mut records = log.newest(life.reads, broken)?;
    let tell = |records: &[u64], told: &mut Vec<u64>| {
        if records.len() > told.len() {
            *told = records.to_vec();
        }
    };
    if broken == Broken::TellsEarly {
        tell(&records, told);
    }
    log.put(life.adopts, epoch, &records)?;
    if !is_quorum(life.adopts) {
        return Ok(());
    }
    tell(&records, told);
    records.push(epoch);
    log.put(life.appends, epoch, &records)?;
    if is_quorum(life.appends) {
        tell(&records, told);
    }
    Ok(())
}

/// In how many runs a reported record is lost.
fn losses(log: &Log, broken: Broken) -> Result<(u32, u32)> {
    let (mut runs, mut lost) = (0, 0);
    for first in all_sets() {
        for second in lives() {
            for third in lives() {
                log.clear()?;
                let mut told = Vec::new();
                log.put(first, 1, &[1])?;
                if is_quorum(first) {
                    told = vec![1];
                }
                live(log, 2, second, broken, &mut told)?;
                live(log, 3, third, broken, &mut told)?;
                let read = |set| log.newest(set, broken).expect("one is read");
                let is_kept = read_sets().all(|set| read(set).starts_with(&told));
                runs += 1;
                lost += u32::from(!is_kept);
            }
        }
    }
    Ok((runs, lost))
}

/// Promise: a recovery that keeps all rules of docs/failures.md loses no reported record,
/// however the writers before it have died. One that breaks a rule does.
#[test]
fn a_recovery_that_keeps_the_rules_loses_nothing() -> Result {
    let _test = device_test();
    let log = Log::new()?;
    for broken in [
        Broken::Nothing,
        Broken::ReadsOne,
        Broken::IgnoresEpochs,
        Broken::TellsEarly,
    ] {
        let (runs, lost) = losses(&log, broken)?;
        let losses = format!("{broken:?}: {lost} of {runs}");
        println!("{losses}");
        assert_eq!(lost == 0, broken == Broken::Nothing, "{losses}");
    }
    Ok(())
}
