//! A log in the volatile memory of three replicas, on simulated hosts: no RDMA and no root are
//! needed. A record is acknowledged when two replicas have it. So it survives the loss of one
//! replica, whichever that is, and not of any two.
//!
//! `log.rs` is the program, here is its test: one replica is slow, a record is acknowledged without
//! it, and then some of the replicas lose their power.

pub(crate) mod log;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use rpma::Peer;
use rpma::sim::{Fabric, Profile};

use self::log::{Log, RECORD, Server, recover};

/// How many records are appended at most.
const COUNT: usize = 4;
const REPLICAS: usize = 3;

fn record(number: usize) -> [u8; RECORD] {
    std::array::from_fn(|at| (number * 31 + at * 7 + 1) as u8)
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// How many records are acknowledged.
    count: usize,
    /// The replica that stands still while the last of them is appended.
    slow: usize,
    /// The replicas that lose their power then: a bit each.
    dead: u32,
}

/// How many acknowledged records are missing after that.
fn lost(profile: &Profile, case: Case) -> Result<usize> {
    let fabric = Fabric::seeded(profile.clone(), 1);
    let hosts: [_; REPLICAS] = ["a", "b", "c"].map(|name| fabric.host(name));
    let addrs = hosts.each_ref().map(|host| host.addr().to_string());
    let mut serving = Vec::new();
    for (host, addr) in hosts.iter().zip(&addrs) {
        let _entered = host.enter();
        let server = Server::listen(addr)?;
        serving.push(host.spawn(move || server.serve()));
    }
    let client = fabric.host("client");
    let entered = client.enter();
    let peer = Peer::toward(&addrs[0])?;
    let mut log = Log::connect(&peer, &addrs)?;
    for number in 0..case.count {
        if number + 1 == case.count {
            hosts[case.slow].freeze();
        }
        log.append(&record(number))?;
    }
    // The writer loses its power as well: it could still send the record to the slow replica.
    client.power_cut();
    drop((entered, log, peer));
    for (number, host) in hosts.iter().enumerate() {
        match case.dead >> number & 1 {
            1 => host.power_cut(),
            _ => host.thaw(),
        }
    }

    let heir = fabric.host("heir");
    let _entered = heir.enter();
    let found = recover(&addrs);
    for (number, found) in found.iter().enumerate() {
        ensure!(*found == record(number), "record {number} is damaged");
    }
    for host in hosts.iter().filter(|host| host.has_power()) {
        host.power_cut();
    }
    for serving in serving {
        // It has ended with the error of a host that is gone.
        let _ = serving.join();
    }
    Ok(case.count.saturating_sub(found.len()))
}

/// The findings after so many replicas lost their power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) runs: usize,
    /// Runs in which an acknowledged record was lost.
    pub(crate) lossy: usize,
}

/// Every number of records, every slow replica, and every set of so many that lose their power.
pub(crate) fn cut_each(profile: &Profile, losses: u32) -> Result<Found> {
    let mut found = Found::default();
    for count in 1..=COUNT {
        for slow in 0..REPLICAS {
            for dead in (0..1_u32 << REPLICAS).filter(|dead| dead.count_ones() == losses) {
                let case = Case { count, slow, dead };
                found.runs += 1;
                found.lossy += usize::from(lost(profile, case)? > 0);
            }
        }
    }
    Ok(found)
}

fn main() -> Result<ExitCode> {
    println!(
        "A record is acknowledged when {} of {REPLICAS} replicas have it in volatile memory.\n",
        log::COPIES
    );
    let mut as_promised = true;
    for profile in Profile::ALL {
        for losses in 1..REPLICAS as u32 {
            let Found { runs, lossy } = cut_each(&profile, losses)?;
            println!(
                "{:24} {losses} of {REPLICAS} lose their power: {lossy} of {runs} runs lose a record",
                profile.name(),
            );
            let is_safe = (losses as usize) < log::COPIES;
            as_promised &= (lossy == 0) == is_safe;
        }
    }
    Ok(if as_promised {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
