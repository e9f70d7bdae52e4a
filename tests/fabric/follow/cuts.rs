//! A log in a server's persistent memory, appended to by a task, under every power cut.

use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::Visited;

use crate::follow::prelude::*;

/// A record, and the number of records at the begin of the log.
const RECORD: usize = 64;
const RECORDS: u64 = 3;
const SIZE: usize = RECORD * (1 + RECORDS as usize);

/// The step that the program leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The flush between a record and the number of records.
    Flush,
}

/// The bytes of a record. No byte is 0.
fn record(number: u64) -> [u8; RECORD] {
    [number as u8 + 1; RECORD]
}

/// Whether an image has the promised records, and only whole ones.
fn check(image: &[u8], promised: u64) {
    let count = u64::from_le_bytes(image[..8].try_into().expect("8 bytes"));
    let is_right = (promised..=RECORDS).contains(&count);
    assert!(is_right, "{count} of {promised}");
    for number in 0..count {
        let begin = RECORD * (1 + number as usize);
        let bytes = &image[begin..begin + RECORD];
        assert_eq!(bytes, record(number), "record {number} of {count}");
    }
}

/// The server's memory, registered.
fn serve(host: &Host, pmem: &Pmem, peer: &Peer) -> Result<Mr<PmemMap>> {
    let _entered = host.enter();
    let map = PmemMap::open(pmem.path(), SIZE)?;
    let usage = MrUsage::WRITE_DST
        | MrUsage::READ_SRC
        | MrUsage::FLUSH_TYPE_VISIBILITY
        | MrUsage::FLUSH_TYPE_PERSISTENT;
    Ok(Mr::reg(peer, map, usage)?)
}

struct Log {
    conn: Conn,
    remote: MrRemote,
    source: Mr<Memory>,
    fault: Fault,
}

impl Log {
    async fn flush(&self) -> Result {
        let all = self.remote.slice(..)?;
        self.conn.flush(all, FlushType::Persistent, ALWAYS, 0)?;
        assert!(completion(&self.conn).await.result().is_ok());
        Ok(())
    }

    async fn append(&self, number: u64) -> Result {
        self.source.write_at(0, &record(number))?;
        let begin = RECORD as u64 * (1 + number);
        let to = self.remote.slice(begin..begin + RECORD as u64)?;
        assert!(write(&self.conn, &self.source, to).await.result().is_ok());
        if self.fault != Fault::Flush {
            self.flush().await?;
        }
        let count = self.remote.slice(..8)?;
        let value = (number + 1).to_le_bytes();
        self.conn.atomic_write(count, &value, ALWAYS, 0)?;
        assert!(completion(&self.conn).await.result().is_ok());
        self.flush().await
    }
}

/// Runs the program with a power cut at each event. Both of its sides are tasks of this thread.
fn cut_everywhere(profile: &Profile, platform: Platform, fault: Fault) -> Result<Visited, Loss> {
    let (runtime, fabric) = paused::both(&Rig::of(profile));
    let world = World::on(&fabric);
    let host = &world.hosts[1];
    host.set_platform(platform);
    let pmem = host.pmem("log", SIZE);
    let promised = AtomicU64::new(0);
    let look = |cut: &Cut<'_>| {
        let promised = promised.load(Ordering::Relaxed);
        for image in cut.images(&pmem) {
            check(image.bytes(), promised);
        }
    };
    let run = || {
        runtime.block_on(async {
            paused::tick(&fabric);
            let target = serve(host, &pmem, &world.peers[1]).expect("registers");
            let cfg = ConnCfg::new();
            let (conn, _end) = connect(&world, &cfg, &cfg).await.expect("asks").ends();
            let mut cfg = PeerCfg::new();
            cfg.set_direct_write_to_pmem(host.may_promise_direct_write(conn.has_native_flush()));
            conn.apply_remote_peer_cfg(&cfg);
            let log = Log {
                conn,
                remote: remote(&target),
                source: region(&world.peers[0], RECORD, MrUsage::WRITE_SRC).expect("registers"),
                fault,
            };
            for number in 0..RECORDS {
                log.append(number).await.expect("posted");
                promised.store(number + 1, Ordering::Relaxed);
            }
        });
    };
    fabric.find_loss(look, run)?;
    assert_eq!(promised.load(Ordering::Relaxed), RECORDS, "it ran");
    Ok(fabric.visited())
}

/// Promise: an async log loses no record under any cut, if its platform keeps flushed data. Each
/// run has the same events.
#[test]
fn an_async_log_survives_every_cut() -> Result {
    for (profile, platform) in [
        (Profile::STRICT, Platform::Eadr),
        (Profile::STRICT, Platform::AdrDdioOff),
        (Profile::ADAPTER, Platform::Eadr),
        (Profile::ADAPTER, Platform::AdrDdioOff),
        (Profile::RXE_6_12, Platform::AdrDdioOn),
        (Profile::RXE_6_12, Platform::Eadr),
        (Profile::RXE_6_1, Platform::Eadr),
    ] {
        let run = || cut_everywhere(&profile, platform, Fault::Nothing);
        let visited = run().unwrap_or_else(|loss| panic!("{profile:?}, {platform}: {loss}"));
        assert!(visited.events > 20 && visited.images > 50, "{visited:?}");
        assert_eq!(run()?, visited);
        println!("{platform}: {visited:?}");
    }
    Ok(())
}

/// Promise: without the flush of its record it loses one, and the report names the program's line.
#[test]
fn an_async_log_without_its_flush_does_not() {
    for (profile, platform) in [
        (Profile::STRICT, Platform::Eadr),
        (Profile::RXE_6_12, Platform::AdrDdioOn),
    ] {
        let found = cut_everywhere(&profile, platform, Fault::Flush);
        let report = found.expect_err("it loses a record").to_string();
        assert!(report.contains("world.rs:"), "{report}");
    }
}
