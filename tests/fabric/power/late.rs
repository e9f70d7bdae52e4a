//! The log of docs/testing-your-program.md, its own code, with limits that are shorter than the
//! pauses of its replica.
//!
//! It acknowledged a record by the flush of the one before: the wait for a flush was satisfied by
//! any completion with an equal number.

#![allow(dead_code, reason = "the page's own test")]

include!(concat!(env!("OUT_DIR"), "/log-of-the-docs.rs"));

use rpma::sim::sleep;

use crate::common::prelude::*;

/// Longer than the limit of a wait, 300 ms, and shorter than the device's retries.
const PAUSE: Duration = Duration::from_millis(450);

/// As the page's `serve`, with a message to the client. Its receive has the number of its flushes.
fn serve_and_greet(ep: &Ep, peer: &Peer, path: &Path) -> Result<()> {
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let log = Mr::reg(peer, PmemMap::open(path, LOG)?, usage)?;
    let mut platform = PeerCfg::new();
    platform.set_direct_write_to_pmem(true);
    let offer = Offer::new(&platform)
        .add_region(&log)
        .encode(Offer::ACCEPT)?;
    let request = ep.next_conn_req_timeout(&ConnCfg::new(), PAUSE)?;
    let conn = request.connect(&offer)?.wait_established(PAUSE)?;
    conn.send(MrSlice::EMPTY, Flags::COMPLETION_ALWAYS, 0)?;
    // Until the client is done.
    conn.next_event()?;
    Ok(())
}

/// Every cut, while the replica stands still in the middle of appends. Returns how many appends
/// took too long.
fn every_cut_with_pauses(profile: &Profile, platform: Platform, seed: u64) -> Result<u32> {
    let rig = Rig::of(profile).seed(seed);
    let (fabric, [client, replica]) = rig.hosts(["client", "replica"]);
    replica.set_platform(platform);
    let log = replica.pmem("log", LOG);
    let on_replica = replica.enter();
    let addr = replica.addr().to_string();
    let peer = Peer::at(&addr)?;
    if !replica.may_promise_direct_write(peer.is_native_flush_capable()) {
        return Ok(0);
    }
    let ep = Ep::listen(&peer, &addr, 0)?;
    let (port, path) = (ep.get_port(), log.path().to_owned());
    let serving = replica.spawn(move || serve_and_greet(&ep, &peer, &path));
    drop(on_replica);
    let (acknowledged, mut late) = (AtomicU64::new(0), 0);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&log) {
            let (count, whole) = recover(image.path()).expect("a log");
            assert!(whole, "a record is torn");
            let acknowledged = acknowledged.load(Ordering::Relaxed);
            assert!(
                count >= acknowledged,
                "{acknowledged} acknowledged, {count} there"
            );
        }
    };
    fabric.on_every_event(check, || -> Result<()> {
        let _entered = client.enter();
        let peer = Peer::toward(&addr)?;
        let mut log = Replica::connect(&peer, &addr, port)?;
        log.conn.recv(MrSlice::EMPTY, 0)?;
        for number in 0..6 {
            let pause = (number % 2 == 1).then(|| {
                replica.freeze();
                let replica = replica.clone();
                client.spawn(move || {
                    sleep(PAUSE);
                    replica.thaw();
                })
            });
            match log.append(number) {
                Ok(()) => acknowledged.store(number + 1, Ordering::Relaxed),
                Err(Error::TimedOut(_)) => late += 1,
                Err(error) => return Err(error),
            }
            if let Some(pause) = pause.filter(|_| number > 3) {
                pause.join().expect("no panic");
            }
        }
        Ok(())
    })?;
    serving.join().expect("no panic")?;
    Ok(late)
}

/// Promise: the page's log acknowledges no record that a loss of power takes, although its waits
/// time out.
#[test]
fn the_log_of_the_docs_survives_pauses_that_are_longer_than_its_limit() -> Result<()> {
    let mut late = 0;
    for profile in Profile::EVERY {
        for platform in Platform::ALL {
            for seed in 0..3 {
                late += every_cut_with_pauses(&profile, platform, seed)?;
            }
        }
    }
    assert!(late > 0, "no append took too long");
    Ok(())
}
