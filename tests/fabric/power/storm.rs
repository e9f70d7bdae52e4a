//! The example's log under faults of calls, of the network and of hosts, and a loss of power at
//! the end.

use anyhow::Result;
use rpma::sim::{storm, sweep};

use crate::common::prelude::*;
use crate::power::sim_log::Fault;
use crate::power::sim_log::log::{LOG, RECORD, Replica, Server, recover};

const COUNT: usize = 3;

fn record(number: usize) -> [u8; RECORD] {
    [number as u8 + 1; RECORD]
}

/// Appends to two replicas until something fails. Then their power is cut, and each has all that
/// was acknowledged.
fn append(fabric: &Fabric, platform: Platform) -> Result<()> {
    let client = fabric.host("client");
    let hosts = ["one", "two"].map(|name| fabric.host(name));
    let addrs = hosts.each_ref().map(|host| host.addr().to_string());
    let logs = hosts.each_ref().map(|host| {
        host.set_platform(platform);
        host.pmem("log", LOG)
    });
    let mut serving = Vec::new();
    let mut acknowledged = 0;
    let mut run = || -> Result<()> {
        for ((host, addr), log) in hosts.iter().zip(&addrs).zip(&logs) {
            let _entered = host.enter();
            let server = Server::listen(addr)?;
            let keeps = host.may_promise_direct_write(server.flushes_natively());
            let log = log.path().to_owned();
            serving.push(host.spawn(move || server.serve(&log, keeps)));
        }
        let _entered = client.enter();
        let peer = Peer::toward(&addrs[0])?;
        let one = Replica::connect(&peer, &addrs[0])?;
        let other = Replica::connect(&peer, &addrs[1])?;
        for number in 0..COUNT {
            one.append(number, &record(number), Fault::Nothing)?;
            other.append(number, &record(number), Fault::Nothing)?;
            acknowledged = number + 1;
        }
        Ok(())
    };
    let ran = run();
    for host in hosts.iter().filter(|host| host.has_power()) {
        host.power_cut();
    }
    for serving in serving {
        // A server may fail; it has to end.
        let _ = serving.join().expect("no panic");
    }
    for (host, log) in hosts.iter().zip(&logs) {
        host.restart();
        let _entered = host.enter();
        let records = recover(log.path())?;
        let count = records.len();
        assert!(
            count >= acknowledged,
            "{acknowledged} records are acknowledged, {count} are there"
        );
        for (number, found) in records.iter().enumerate() {
            assert!(*found == record(number), "record {number} is torn");
        }
    }
    ran
}

/// The example keeps its promise under each fault, and under several at once.
#[test]
fn the_example_survives_faults() {
    let ways = [
        (Profile::STRICT, Platform::AdrDdioOn),
        (Profile::RXE_6_1, Platform::Eadr),
    ];
    for (profile, platform) in share("ways", 2, ways) {
        let program = |fabric: &Fabric| drop(append(fabric, platform));
        let runs = sweep(&profile, program);
        assert!(runs > 500, "{runs}");
        storm(
            &profile,
            share_of_runs("runs with several faults", 50),
            program,
        );
    }
}
