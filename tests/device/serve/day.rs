//! A long day: clients one after the other, then a thousand at a time, for two hours. On a device,
//! because a leak of the kernel's objects or of the process's memory shows only there.

use std::collections::BTreeMap;
use std::{env, fmt, fs};

use rpma::serve::{Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{Site, identity, more_descriptors};

/// How long it takes, and how many connections there are one after the other.
const MINUTES: u64 = 120;
const CONNS: u64 = 100_000;
/// How many clients there are at a time, each with a key.
const CLIENTS: u64 = 1_000;
/// The bytes that a client writes.
const RECORD: usize = 64;
/// By how much the memory of the process may grow, in KiB.
const GROWTH: u64 = 1024;

/// Resources in use.
struct InUse {
    descriptors: usize,
    threads: usize,
    /// Of the process, in RAM, in KiB.
    memory: u64,
    /// That the kernel cannot free, in KiB. Other programs of the guest have a share of it.
    slabs: u64,
    objects: BTreeMap<String, u64>,
}

impl InUse {
    fn now() -> Result<Self> {
        let count = |dir: &str| -> Result<usize> { Ok(fs::read_dir(dir)?.count()) };
        Ok(Self {
            descriptors: count("/proc/self/fd")?,
            threads: count("/proc/self/task")?,
            memory: number("/proc/self/status", "VmRSS:")?,
            slabs: number("/proc/meminfo", "SUnreclaim:")?,
            objects: objects()?,
        })
    }

    /// Nothing is left that was not there earlier.
    fn is_as(&self, earlier: &Self) {
        assert_eq!(self.descriptors, earlier.descriptors, "descriptors");
        assert_eq!(self.threads, earlier.threads, "threads");
        let most = earlier.memory + GROWTH;
        assert!(self.memory <= most, "memory: {earlier}, then {self}");
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} descriptors, {} threads, {} KiB, {} KiB of slabs, {:?}",
            self.descriptors, self.threads, self.memory, self.slabs, self.objects
        )
    }
}

/// The number after `name` in a file of the kernel.
fn number(path: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path)?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    Ok(word.ok_or(name)?.parse()?)
}

/// A server, its clients, and the time.
struct Day {
    site: Site,
    /// What the clients write, and then what they read.
    own: Mr<Vec<u8>>,
    conns: u64,
    began: Instant,
    /// The minutes that were printed.
    printed: u64,
}

impl Day {
    fn new() -> Result<Self> {
        let mut cfg = ServerCfg::new();
        cfg.set_most_clients(CLIENTS as usize)?;
        let site = Site::with_slots(CLIENTS, &cfg, CLIENTS as u32)?;
        Ok(Self {
            own: Mr::reg(
                &site.far,
                vec![0; 2 * RECORD],
                MrUsage::WRITE_SRC | MrUsage::READ_DST,
            )?,
            site,
            conns: 0,
            began: Instant::now(),
            printed: 0,
        })
    }

    /// A client connects, or another writer of its key takes over. Its record is in the server's
    /// memory then.
    fn connects(&mut self, key: u64) -> Result<Conn> {
        self.conns += 1;
        let conn = self.site.ask(identity(key, self.conns, self.conns))?;
        loop {
            match self.site.next()? {
                Served::Asks(asked) => {
                    self.site.establish(&conn, asked)?;
                    break;
                }
                Served::Gone(gone) => assert_eq!(gone.identity.key, key),
                other => panic!("{other:?}"),
            }
        }
        let record = [self.conns.to_le_bytes(); RECORD / 8].concat();
        self.own.write_at(0, &record)?;
        let there = conn.offer()?.memory(RECORD as u64)?;
        let there = there.slice(..RECORD as u64)?;
        conn.post_write(there, self.own.slice(..RECORD)?)?;
        conn.post_read(self.own.slice(RECORD..)?, there)?;
        completion(&conn)?.result()?;
        let mut found = [0; 2 * RECORD];
        self.own.read_at(RECORD, &mut found[..RECORD])?;
        self.site.parts[&key].1.read_at(0, &mut found[RECORD..])?;
        assert_eq!(found[..RECORD], record, "read by {}", self.conns);
        assert_eq!(found[RECORD..], record, "there after {}", self.conns);
        self.print("")?;
        Ok(conn)
    }

    /// A client ends, and the server notices.
    fn ends(&mut self, conn: Conn) -> Result {
        drop(conn);
        self.site.gone().map(drop)
    }

    /// Once a minute.
    fn print(&mut self, end: &str) -> Result {
        let minute = self.began.elapsed().as_secs() / 60;
        if minute > self.printed || !end.is_empty() {
            self.printed = minute;
            let open = self.site.server.clients().count();
            let in_use = InUse::now()?;
            println!(
                "minute {minute}: {} connections, {open} open, {in_use}{end}",
                self.conns
            );
        }
        Ok(())
    }
}

/// Clients one after the other. Each key has two: the second one takes over from the first, which is
/// alive or has just ended, and ends before the next key's.
fn one_after_the_other(day: &mut Day, conns: u64) -> Result {
    let end = day.conns + conns;
    for pair in 0.. {
        if day.conns >= end {
            break;
        }
        let key = 1 + pair % CLIENTS;
        let mut first = Some(day.connects(key)?);
        if pair % 2 == 0 {
            first = None;
        }
        let second = day.connects(key)?;
        drop(first);
        day.ends(second)?;
    }
    day.site.nothing()
}

/// All clients connect, then all of them end.
fn together(day: &mut Day) -> Result {
    let conns = (1..=CLIENTS).map(|key| day.connects(key));
    let conns = conns.collect::<Result<Vec<_>>>()?;
    assert_eq!(day.site.server.clients().count(), conns.len());
    drop(conns);
    for _ in 0..CLIENTS {
        day.site.gone()?;
    }
    day.site.nothing()
}

/// Runs a part once, and then as a whole. Nothing may be left that was not there after the first.
fn flat(day: &mut Day, name: &str, part: &mut dyn FnMut(&mut Day, bool) -> Result) -> Result {
    let (mut before, began) = (None, Instant::now());
    for is_first in [true, false] {
        let conns = day.conns;
        leaving(&[], || part(day, is_first))?;
        day.print(&format!(" after {name}"))?;
        let after = InUse::now()?;
        match &before {
            None => before = Some(after),
            Some(before) => {
                after.is_as(before);
                let (conns, took) = (day.conns - conns, began.elapsed());
                println!("{name}: {conns} connections in {took:.0?}: {before}, then {after}");
            }
        }
    }
    Ok(())
}

/// Promise: two hours of clients leave no bytes, descriptors, threads or kernel objects: 100,000 one
/// after the other, then 1,000 at a time. `RPMA_TEST_MINUTES` sets another time, with as many clients
/// fewer.
#[test]
#[ignore = "long: two hours"]
fn a_long_day() -> Result {
    more_descriptors()?;
    let _test = device_test();
    let minutes = env::var("RPMA_TEST_MINUTES").map_or(Ok(MINUTES), |text| text.parse())?;
    let conns = CONNS * minutes / MINUTES;
    let mut day = Day::new()?;
    flat(&mut day, "one after the other", &mut |day, is_first| {
        let conns = if is_first {
            2 * CLIENTS.min(conns)
        } else {
            conns
        };
        one_after_the_other(day, conns)
    })?;
    let end = Duration::from_secs(60 * minutes);
    flat(&mut day, "a thousand at a time", &mut |day, is_first| {
        together(day)?;
        // The memory of the allocator settles with the second time.
        if is_first {
            return together(day);
        }
        while day.began.elapsed() < end {
            together(day)?;
        }
        Ok(())
    })
}
