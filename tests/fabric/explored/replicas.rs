//! A log on some replicas, each with a connection of its own. All ends are in one thread.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use rpma::sim::{Image, sleep};

use crate::common::prelude::*;
use crate::power::world::{Hosts, LIMIT, Way, World};

/// The size of a record. The tail is at 0, and records begin at 64.
const RECORD: usize = 64;
const SIZE: usize = 4096;

pub(crate) fn record(number: u64) -> [u8; RECORD] {
    [number as u8 + 1; RECORD]
}

pub(crate) fn place(number: u64) -> usize {
    RECORD * (1 + number as usize)
}

/// The number of records of an image, all of which must be whole.
pub(crate) fn recover(image: &[u8]) -> u64 {
    let count = u64::from_le_bytes(image[..8].try_into().expect("8 bytes"));
    for number in 0..count {
        let bytes = &image[place(number)..][..RECORD];
        assert_eq!(bytes, record(number), "record {number} of {count} is torn");
    }
    count
}

/// How the tail comes after the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// By an atomic write, after the flush of the record.
    Atomic,
    /// By a plain write right after a flush that was not awaited.
    Plain,
}

/// A replica, as the writer has it.
pub(crate) struct Replica(World);

impl Replica {
    /// Posts a record and the tail that shows it. The result is the last operation.
    pub(crate) fn post(&self, number: u64, tail: Tail) -> Result<Posted> {
        let (at, count) = (place(number), (number + 1).to_le_bytes());
        self.0.write(at, &record(number))?;
        self.0.post_flush(at, RECORD, FlushType::Persistent)?;
        match tail {
            Tail::Atomic => self.0.atomic_write(0, &count)?,
            Tail::Plain => self.0.write(0, &count)?,
        }
        self.0.begin_flush(0, 8)
    }

    /// Posts a flush of the tail, which nothing waits for.
    pub(crate) fn post_flush(&self) -> Result<()> {
        self.0.post_flush(0, 8, FlushType::Persistent)
    }

    pub(crate) fn wait(&self, posted: Posted) -> rpma::Result<()> {
        self.0.conn.wait_for(posted, LIMIT, |_| {}).map(drop)
    }

    /// Whether an operation has succeeded until now.
    fn is_done(&self, posted: Posted) -> rpma::Result<bool> {
        match self.0.conn.wait_for(posted, Duration::ZERO, |_| {}) {
            Ok(_) => Ok(true),
            Err(Error::TimedOut(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Posts a record to each replica.
pub(crate) fn post_all(replicas: &[Replica], number: u64, tail: Tail) -> Result<Vec<Posted>> {
    let posted = replicas.iter().map(|replica| replica.post(number, tail));
    posted.collect()
}

/// Waits for one operation of each replica.
pub(crate) fn wait_all(replicas: &[Replica], posted: &[Posted]) -> Result<()> {
    let all = replicas.iter().zip(posted);
    all.into_iter()
        .try_for_each(|(replica, posted)| Ok(replica.wait(*posted)?))
}

/// Waits until so many replicas have done one operation each.
pub(crate) fn wait_for_some(replicas: &[Replica], posted: &[Posted], count: usize) -> Result<()> {
    let mut pause = Duration::from_micros(100);
    let mut done = vec![false; replicas.len()];
    while pause < LIMIT {
        for (at, replica) in replicas.iter().enumerate() {
            done[at] = done[at] || replica.is_done(posted[at])?;
        }
        if done.iter().filter(|done| **done).count() >= count {
            return Ok(());
        }
        sleep(pause);
        pause *= 2;
    }
    bail!("too few replicas answer")
}

/// The check of a program.
type Check<'a> = dyn Fn(&[&[u8]], u64) + Sync + 'a;

/// Each replica has the promised records.
pub(crate) fn on_all(images: &[&[u8]], promised: u64) {
    for image in images {
        assert!(recover(image) >= promised, "a promised record is lost");
    }
}

/// The recovery reads any two of three replicas.
pub(crate) fn on_two(images: &[&[u8]], promised: u64) {
    let copies = images
        .iter()
        .filter(|image| recover(image) >= promised)
        .count();
    assert!(copies >= 2, "a promised record has {copies} copies");
}

/// Runs a program with so many replicas, and loses the power of all of them at each event. The
/// program tells how many records it has promised; the check gets an image of each replica, and
/// that number.
pub(crate) fn under_cuts(
    fabric: &Fabric,
    count: usize,
    check: &Check<'_>,
    program: impl FnOnce(&[Replica], &dyn Fn(u64)) -> Result<()>,
) {
    let client = fabric.host("client");
    let replica = |name: &&str| {
        let hosts = [client.clone(), fabric.host(name)];
        let hosts = Hosts::new(fabric, hosts, Way::on(Platform::Eadr), SIZE);
        Replica(hosts.connect().expect("connected"))
    };
    let replicas: Vec<_> = ["one", "two", "three"][..count]
        .iter()
        .map(replica)
        .collect();
    let pmems: Vec<&Pmem> = replicas.iter().map(|replica| &replica.0.pmem).collect();
    let promised = AtomicU64::new(0);
    let look = |cut: &Cut<'_>| {
        let promised = promised.load(Ordering::Relaxed);
        for images in cut.joint_images(&pmems) {
            let bytes: Vec<&[u8]> = images.iter().map(Image::bytes).collect();
            check(&bytes, promised);
        }
    };
    // It may fail, where an operation takes too long.
    let _result = fabric.on_every_event(look, || {
        program(&replicas, &|number| {
            promised.store(number, Ordering::Relaxed)
        })
    });
}
