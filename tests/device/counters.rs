//! The counters of a connection: each way of an operation counts the same, refused posts do not
//! count, and they can be read while threads post.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma::Counters;

use crate::common::prelude::*;

const VISIBLE: FlushType = FlushType::Visibility;
const LEN: usize = 1024;

/// Native and by reading, and with a peer that is declared to reorder: there some go the long way.
fn pairs(peer: &Peer) -> Result<Vec<Pair>> {
    let mut all = Vec::new();
    for mut cfg in both_ways() {
        cfg.set_sq_size(32).set_rq_size(32).set_cq_size(64);
        cfg.set_max_send_sge(2)?.set_max_inline_data(64);
        all.push(Pair::with(peer, &cfg, &cfg)?);
        if !cfg.get_force_fallback() {
            continue;
        }
        let reorders = Pair::with(peer, &cfg, &cfg)?;
        reorders
            .client
            .apply_remote_peer_cfg(PeerCfg::new().set_reorders(true));
        all.push(reorders);
    }
    Ok(all)
}

/// The memory of both sides.
struct Memories {
    local: Mr<Memory>,
    far: MrRemote,
    _target: Mr<Memory>,
}

impl Memories {
    fn new(peer: &Peer) -> Result<Self> {
        let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
        let target = region(peer, LEN, usage)?;
        Ok(Self {
            local: region(peer, LEN, usage)?,
            far: remote(&target),
            _target: target,
        })
    }

    /// The same bytes at the other side and at this one.
    fn part(&self, at: usize, len: usize) -> (RemoteSlice, MrSlice<'_>) {
        part_of(&self.far, &self.local, at, len)
    }
}

/// How much an action adds to the numbers of requests and of bytes.
fn added(conn: &Conn, action: impl FnOnce() -> Result<(), Error>) -> Result<(u64, u64)> {
    let before = conn.counters();
    action()?;
    let after = conn.counters();
    Ok((after.posted - before.posted, after.bytes - before.bytes))
}

/// Posts an operation with these flags.
type Single = fn(&Conn, &Memories, Flags) -> Result<(), Error>;
/// Adds the same one to a batch.
type InBatch = for<'a> fn(&mut Batch<'a, 8>, &'a Memories, Flags) -> Result<(), Error>;

/// An operation of some bytes, alone and in a batch.
#[derive(Clone, Copy)]
struct Operation {
    name: &'static str,
    bytes: u64,
    single: Single,
    in_batch: InBatch,
}

/// Both ways of an operation, which have the same arguments.
macro_rules! operation {
    ($name:literal, $bytes:literal, |$to:ident, $m:ident, $flags:ident| $do:expr) => {
        Operation {
            name: $name,
            bytes: $bytes,
            single: |$to, $m, $flags| $do.map(drop),
            in_batch: |$to, $m, $flags| $do.map(drop),
        }
    };
}

const OPERATIONS: [Operation; 8] = [
    operation!("write", 100, |to, m, flags| {
        to.write(m.far.slice(..100)?, m.local.slice(..100)?, flags, 1)
    }),
    operation!("inline", 40, |to, m, flags| {
        let flags = flags | Flags::INLINE;
        to.write(m.far.slice(..40)?, m.local.slice(..40)?, flags, 1)
    }),
    operation!("nothing", 0, |to, m, flags| {
        to.write(m.far.slice(..0)?, m.local.slice(..0)?, flags, 1)
    }),
    operation!("gather", 150, |to, m, flags| {
        let parts = [m.local.slice(..100)?, m.local.slice(200..250)?];
        to.write_gather(m.far.slice(..150)?, &parts, flags, 1)
    }),
    operation!("read", 70, |to, m, flags| {
        to.read(m.local.slice(..70)?, m.far.slice(..70)?, flags, 1)
    }),
    operation!("send", 30, |to, m, flags| to.send(
        m.local.slice(..30)?,
        flags,
        1
    )),
    operation!("atomic write", 8, |to, m, flags| {
        to.atomic_write(m.far.slice(8..16)?, &[1; 8], flags, 1)
    }),
    operation!("flush", 0, |to, m, flags| to.flush(
        m.far.slice(..100)?,
        VISIBLE,
        flags,
        1
    )),
];

impl Operation {
    /// Alone, with these flags. Whether the device has it.
    fn counts_alone(&self, pair: &Pair, m: &Memories, flags: Flags) -> Result<bool> {
        let Self { name, bytes, .. } = *self;
        let conn = &pair.client;
        if (self.single)(conn, m, flags).is_err() {
            // It needs a fence that this connection does not have.
            assert!(flags != ALWAYS || name == "atomic write", "{name}");
            return Ok(false);
        }
        completion(conn)?.result()?;
        let alone = added(conn, || (self.single)(conn, m, flags))?;
        completion(conn)?.result()?;
        assert_eq!(alone, (1, bytes), "{name}, {flags:?}");
        Ok(true)
    }

    /// In a batch of so many, and in the same batch once more.
    fn counts_in_a_batch(&self, pair: &Pair, m: &Memories, (flags, count): (Flags, u64)) -> Result {
        let Self { name, bytes, .. } = *self;
        let conn = &pair.client;
        let mut batch = conn.batch::<8>();
        for _ in 0..count {
            (self.in_batch)(&mut batch, m, flags)?;
        }
        let all = added(conn, || batch.post().map(drop))?;
        for wc in completions(conn, count as usize)? {
            wc.result()?;
        }
        assert_eq!(all, (count, count * bytes), "{count} {name}, {flags:?}");
        // A batch that is used again begins empty.
        (self.in_batch)(&mut batch, m, flags)?;
        batch.clear();
        (self.in_batch)(&mut batch, m, flags)?;
        let one = added(conn, || batch.post().map(drop))?;
        completion(conn)?.result()?;
        assert_eq!(one, (1, bytes), "{name}, {flags:?}");
        Ok(())
    }
}

/// An operation alone, in a batch of one and in a batch of two, with and without a fence, counts
/// as many requests and bytes.
#[test]
fn each_way_counts_the_same() -> Result {
    let (_test, peer) = peer_test()?;
    let m = Memories::new(&peer)?;
    for pair in pairs(&peer)? {
        for operation in OPERATIONS {
            // Messages need receives.
            let receives = if operation.name == "send" { 16 } else { 0 };
            for n in 0..receives {
                pair.server.recv(m.local.slice(512..)?, n)?;
            }
            for flags in [ALWAYS, ALWAYS | Flags::FENCE] {
                if operation.counts_alone(&pair, &m, flags)? {
                    operation.counts_in_a_batch(&pair, &m, (flags, 1))?;
                    operation.counts_in_a_batch(&pair, &m, (flags, 2))?;
                }
            }
        }
    }
    Ok(())
}

/// A commit counts the bytes of its parts, and 8 of its pointer, whichever way it goes.
#[test]
fn a_commit_counts_its_parts_and_its_pointer() -> Result {
    let (_test, peer) = peer_test()?;
    let (m, other) = (Memories::new(&peer)?, Memories::new(&peer)?);
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        let pointer = (m.far.slice(..8)?, [1; 8]);
        // One part, several, and parts of two regions, which go the long way.
        let parts = [m.part(8, 100), m.part(300, 20), m.part(108, 3)];
        let far = [parts[0], other.part(0, 50)];
        for (parts, flushes, bytes) in [(&parts[..1], 1, 100), (&parts, 1, 123), (&far, 2, 150)] {
            for (pointer, more) in [(None, (0, 0)), (Some(pointer), (2, 8))] {
                let Ok(_) = conn.commit(parts, pointer, VISIBLE, 1) else {
                    // The pointer needs a fence that this device does not have.
                    assert!(pointer.is_some());
                    continue;
                };
                completion(conn)?.result()?;
                let commit = || conn.commit(parts, pointer, VISIBLE, 1).map(drop);
                let counted = added(conn, commit)?;
                completion(conn)?.result()?;
                let requests = parts.len() as u64 + flushes + more.0;
                assert_eq!(counted, (requests, bytes + more.1), "{} parts", parts.len());
            }
        }
    }
    Ok(())
}

/// Each refused post counts once, at the full queue, and in no other counter.
#[test]
fn a_full_queue_is_counted_and_a_mistake_is_not() -> Result {
    let (_test, peer) = peer_test()?;
    let m = Memories::new(&peer)?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(4).set_rq_size(2).set_cq_size(16);
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let conn = &pair.client;
    let before = conn.counters();
    assert_eq!(before, Counters::default(), "nothing was posted");
    let (dst, src) = m.part(0, 16);
    let write = |flags| conn.write(dst, src, flags, 1);
    for _ in 0..4 {
        write(ALWAYS)?;
    }
    for _ in 0..3 {
        full(write(ALWAYS));
    }
    let mut batch = conn.batch::<2>();
    for _ in 0..2 {
        batch.write(dst, src, ALWAYS, 1)?;
    }
    full(batch.post());
    let receive = || -> Result<_> { Ok(conn.recv(m.local.slice(..16)?, 1)) };
    receive()??;
    receive()??;
    full(receive()?);
    // Not of these lengths.
    invalid(conn.write(dst, m.local.slice(..17)?, ALWAYS, 1));
    let now = conn.counters();
    assert_eq!((now.posted, now.bytes, now.receives), (4, 64, 2));
    assert_eq!((now.full_send_queue, now.full_receive_queue), (4, 1));
    assert_eq!(now.failures().count(), 0);
    completions(conn, 4)?;
    for _ in 0..3 {
        write(ON_ERROR)?;
    }
    let due = write(ON_ERROR);
    assert!(matches!(due, Err(Error::NoCompletionDue { .. })), "{due:?}");
    assert_eq!(conn.counters().full_send_queue, 5);
    Ok(())
}

/// Failed completions count by their status once they are polled. A post after the end counts
/// nowhere.
#[test]
fn failures_are_counted_by_status() -> Result {
    let (_test, peer) = peer_test()?;
    let m = Memories::new(&peer)?;
    let gone = remote(&region(&peer, 64, MrUsage::WRITE_DST)?);
    let pair = Pair::new(&peer)?;
    let conn = &pair.client;
    let src = m.local.slice(..16)?;
    for _ in 0..2 {
        conn.write(gone.slice(..16)?, src, ALWAYS, 1)?;
    }
    assert_eq!(conn.counters().failures().count(), 0, "none is polled");
    let failed = completions(conn, 2)?;
    let failed: Vec<_> = failed.iter().map(|wc| failure(wc).status).collect();
    let counters = conn.counters();
    for status in &failed {
        let expected = failed.iter().filter(|other| *other == status).count();
        assert_eq!(counters.failed(*status), expected as u64, "{status}");
    }
    let all: u64 = counters.failures().map(|(_, count)| count).sum();
    assert_eq!(all, 2);
    assert_eq!(counters.failed(WcStatus::SUCCESS), 0);
    assert_eq!((counters.posted, counters.bytes), (2, 32));
    assert_not_connected(conn.write(m.far.slice(..16)?, src, ALWAYS, 1));
    assert_eq!(conn.counters(), counters);
    Ok(())
}

/// A thread that reads beside two that post and poll sees numbers that only grow; no count is lost
/// in the end.
#[test]
fn counters_are_read_while_threads_post() -> Result {
    const ROUNDS: u64 = 300;
    let (_test, peer) = peer_test()?;
    let m = Memories::new(&peer)?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(8).set_rq_size(8).set_cq_size(16);
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let (conn, m, done) = (&pair.client, &m, &AtomicBool::new(false));
    thread::scope(|scope| {
        let posters = [(0, 16), (1, 24)].map(|(n, len)| {
            scope.spawn(move || {
                let (dst, src) = m.part(0, len);
                let mut posted = 0;
                while posted < ROUNDS {
                    match conn.write(dst, src, ALWAYS, n) {
                        Ok(_) => posted += 1,
                        Err(Error::QueueFull { .. }) => {
                            let mut wcs = [Wc::default(); 4];
                            conn.get_cq().get_wc(&mut wcs).expect("polls");
                            thread::yield_now();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        scope.spawn(move || {
            let mut before = conn.counters();
            while !done.load(Ordering::Acquire) {
                let now = conn.counters();
                assert!(now.posted >= before.posted && now.bytes >= before.bytes);
                assert!(now.full_send_queue >= before.full_send_queue);
                before = now;
                thread::yield_now();
            }
        });
        let ended = posters.map(|poster| poster.join());
        done.store(true, Ordering::Release);
        for ended in ended {
            ended.expect("no panic");
        }
    });
    let counters = conn.counters();
    assert_eq!(counters.posted, 2 * ROUNDS);
    assert_eq!(counters.bytes, ROUNDS * (16 + 24));
    Ok(())
}
