//! Calls that fail, hosts that fail, and a server that comes back with its memory.

use std::collections::{BTreeMap, BTreeSet};

use rpma::reconnect::{Reconnect, ReconnectCfg, ToConn};
use rpma::sim::{Errno, JoinHandle, now, sleep, sweep};

use crate::common::failing_calls;
use crate::common::prelude::*;
use crate::reconnect::hosts::{Hosts, PORT, SECOND, SIZE, SLACK, block, serve_memory};
use crate::reconnect::support::{assert_another_would_fail, identified};

const LIMIT: Duration = Duration::from_secs(60);

/// Connects three times. Returns the calls that the client made meanwhile, and the objects left of
/// it.
fn run(
    seed: u64,
    fails: Option<(&'static str, u32, How)>,
) -> Result<(BTreeMap<&'static str, u64>, BTreeSet<&'static str>)> {
    let hosts = Hosts::on(&Rig::new().seed(seed).fabric());
    let (_serving, _entered) = hosts.accepting();
    let mut client = hosts.client();
    let before = hosts.fabric.calls();
    let failing = fails.map(|(call, nth, how)| {
        let failing = hosts.fabric.fail(call).on(&hosts.client).how(how);
        failing.nth(nth, Errno::IO)
    });
    for number in 1..=3 {
        let (conn, ended) = block(&mut client);
        assert!(conn.is_some(), "{fails:?}: {ended:?}");
        assert_eq!(ended.counts.1, number);
        drop(conn);
        // So it does not count as one that failed.
        sleep(6 * SECOND);
    }
    let tries = client.tries();
    let most = if fails.is_some() { 4 } else { 3 };
    assert!((3..=most).contains(&tries), "{fails:?}: {tries} tries");
    drop(client);
    let mut calls = hosts.fabric.calls();
    for (call, count) in before {
        *calls.get_mut(call).ok_or("it was made")? -= count;
    }
    let left = settled(|| hosts.client.objects(), &Objects::new());
    let left = left.into_keys().collect();
    if let Some(failing) = failing {
        // It may be one that only the server makes so often.
        failing.disarm();
    }
    Ok((calls, left))
}

/// Promise: a call that fails costs one try at most, and leaves only objects that could not be
/// destroyed.
#[test]
fn each_call_fails_once() -> Result {
    let (calls, left) = run(1, None)?;
    assert!(left.is_empty(), "{left:?}");
    let mut runs = 0;
    for (call, count) in calls {
        for nth in 1..=count as u32 {
            let (_, left) = run(1, Some((call, nth, How::Refused)))?;
            let allowed = failing_calls::leaves(call);
            assert!(left.is_subset(&allowed), "{call} {nth}: {left:?} are left");
            runs += 1;
        }
    }
    assert!(runs > 100, "{runs} runs");
    Ok(())
}

/// Connects twice, and writes with each connection.
fn program(fabric: &Fabric) -> Result {
    let hosts = Hosts::on(fabric);
    let (_serving, _entered) = hosts.accepting();
    let mut client = hosts.new_client()?;
    let source = Mr::reg(client.peer(), vec![7; 8], MrUsage::WRITE_SRC)?;
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(2)?;
    for _ in 0..2 {
        let began = now();
        let conn = client.connect(&cfg);
        let took = now() - began;
        assert!(took <= LIMIT + SLACK, "{took:?}");
        // A failed write is no error of the reconnect.
        let _ = write(&conn?, &source);
    }
    Ok(())
}

fn write(conn: &Conn, source: &Mr<Vec<u8>>) -> rpma::Result<()> {
    let to = offered(conn)?.slice(..8)?;
    conn.write(to, source.slice(..8)?, Flags::COMPLETION_ON_ERROR, 1)?;
    let flushed = conn.flush(to, FlushType::Visibility, ALWAYS, 2)?;
    conn.wait_for(flushed, SECOND, |_| {}).map(drop)
}

/// Promise: under each single fault of a call, a request, or a host, each reconnect ends within its
/// limit, and no thread panics.
#[test]
fn each_fault_keeps_the_limit() {
    let runs = sweep(&profile(), |fabric| drop(program(fabric)));
    assert!(runs > 500, "{runs}");
}

/// Appends a number after the numbers that are there, after it has written the tail again.
fn append(conn: &Conn, source: &Mr<Memory>, number: u64) -> rpma::Result<u64> {
    let offer = conn.offer()?;
    let log = offer.regions()[0];
    let read = conn.read(source.slice(..8)?, log.slice(..8)?, ALWAYS, 1)?;
    conn.wait_for(read, SECOND, |_| {})?;
    let tail = source.load_u64(0)?;
    for (at, value) in [(0, tail), (8 + 8 * tail, number), (0, tail + 1)] {
        source.write_at(8, &value.to_le_bytes())?;
        let to = log.slice(at..at + 8)?;
        conn.write(to, source.slice(8..16)?, Flags::COMPLETION_ON_ERROR, 2)?;
        let flushed = conn.flush(to, FlushType::Persistent, ALWAYS, 3)?;
        conn.wait_for(flushed, SECOND, |_| {})?;
    }
    Ok(tail)
}

/// Promise: if this host's own device is gone, which a new device does not change for this peer,
/// the client does not try until its limit.
#[test]
fn an_own_device_that_is_gone_ends_it() -> Result {
    let (_fabric, [client, server]) = Rig::new().seed(1).hosts(["client", "server"]);
    let _entered = client.enter();
    let (peer, addr) = (peer()?, server.addr().to_string());
    let mut again = Reconnect::new(&peer, &addr, PORT, identified(1), ToConn)?;
    client.power_cut();
    let gave_up = again.connect(&ConnCfg::new()).expect_err("no device");
    assert_another_would_fail(&gave_up);
    assert_says(&gave_up, &["No such device"]);
    assert_eq!(again.tries(), 1);
    Ok(())
}

/// Promise: a server that lost its power comes back with its memory, under other keys, and the
/// client finds it with the same peer and the same registered source.
#[test]
fn a_server_comes_back_after_a_power_cut() -> Result {
    for seed in 0..5 {
        let (fabric, [client, server]) = Rig::new().seed(seed).hosts(["client", "server"]);
        server.set_platform(Platform::Eadr);
        let (pmem, addr) = (server.pmem("log", SIZE), server.addr().to_string());
        let serve = {
            let pmem = pmem.clone();
            move |host: &Host| {
                let (host, pmem) = (host.clone(), pmem.clone());
                host.clone().spawn(move || {
                    let served = serve_memory(&host, &pmem, None, 10 * LIMIT);
                    served.expect_err("it loses its power")
                })
            }
        };
        let (mut serving, mut restarting) = (vec![serve(&server)], None::<JoinHandle<_>>);
        let entered = client.enter();
        let peer = peer()?;
        let source = region(&peer, 16, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
        let mut again = Reconnect::new(&peer, &addr, PORT, identified(1), ToConn)?;
        again.set_cfg(ReconnectCfg::new().set_limit(5 * LIMIT));
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(2)?;
        for number in 0..5 {
            let conn = again.connect(&cfg)?;
            if let Some(restarting) = restarting.take() {
                serving.push(restarting.join().expect("no panic"));
            }
            let tail = append(&conn, &source, 100 + number)?;
            assert_eq!(tail, number, "nothing that was durable is lost");
            server.power_cut();
            append(&conn, &source, 0).expect_err("nobody is there");
            drop(conn);
            if number == 4 {
                break;
            }
            // It comes back while the client tries.
            let (host, serve) = (server.clone(), serve.clone());
            restarting = Some(client.spawn(move || {
                sleep(7 * SECOND);
                host.restart();
                serve(&host)
            }));
        }
        drop((source, again, peer, entered));
        for serving in serving {
            serving.join().expect("no panic");
        }
        let bytes = pmem.bytes();
        let at = |place: usize| {
            let word = bytes[8 * place..].first_chunk().expect("8 bytes");
            u64::from_le_bytes(*word)
        };
        assert_eq!([0, 1, 2, 3, 4, 5].map(at), [5, 100, 101, 102, 103, 104]);
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    }
    Ok(())
}
