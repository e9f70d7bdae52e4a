//! An operation reaches the device alone, as a gather, in a batch of one, in a longer batch, or
//! after a wait for the lock of its queue. Each operation below goes all these ways. They must give
//! the same answer, and have the same effect: no way may accept an operation that another one
//! refuses, or name another error.

use std::fmt::Debug;

use crate::common::prelude::*;

const LEN: usize = 256;
const INLINE: u32 = 64;

/// Native and by reading, and with a peer that is declared to reorder: there soft-RoCE misses a
/// fence.
fn pairs(peer: &Peer) -> Result<Vec<Pair>> {
    let mut all = Vec::new();
    for mut cfg in both_ways() {
        cfg.set_sq_size(20).set_rq_size(20).set_cq_size(40);
        cfg.set_max_send_sge(2)?.set_max_inline_data(INLINE);
        all.push(Pair::with(peer, &cfg, &cfg)?);
        let reorders = Pair::with(peer, &cfg, &cfg)?;
        reorders
            .client
            .apply_remote_peer_cfg(PeerCfg::new().set_reorders(true));
        all.push(reorders);
    }
    Ok(all)
}

fn flags() -> [Flags; 4] {
    [
        ALWAYS,
        ALWAYS | Flags::FENCE,
        ALWAYS | Flags::INLINE,
        ALWAYS | Flags::SOLICITED,
    ]
}

/// Local parts that an operation can have, and others: of the wrong usage, of another peer, without
/// bytes, too long.
fn local_parts<'a>(
    right: &'a Mr<Memory>,
    wrong: &'a Mr<Memory>,
    others: &'a Mr<Memory>,
    at: usize,
) -> Result<Vec<MrSlice<'a>>> {
    let mut parts = vec![MrSlice::EMPTY, right.slice(100..LEN)?];
    for mr in [right, wrong, others] {
        parts.push(mr.slice(at..at + 32)?);
        parts.push(mr.slice(8..8)?);
    }
    Ok(parts)
}

/// Remote parts of the right usage and of a wrong one, with the lengths of the local ones and
/// without.
fn remote_parts(right: &Mr<Memory>, wrong: &Mr<Memory>) -> Result<Vec<RemoteSlice>> {
    let (right, wrong) = (remote(right), remote(wrong));
    let mut parts = vec![RemoteSlice::EMPTY, right.slice(100..LEN as u64)?];
    for mr in [right, wrong] {
        for end in [0, 31, 32] {
            parts.push(mr.slice(0..end)?);
        }
    }
    Ok(parts)
}

/// Posts it as a batch of one, or after so many operations of 0 bytes.
fn batched<'a>(
    conn: &'a Conn,
    before: usize,
    add: impl FnOnce(&mut Batch<'a, 8>) -> Result<(), Error>,
) -> Result<Posted, Error> {
    let mut batch = conn.batch();
    for _ in 0..before {
        batch.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ON_ERROR, 0)?;
    }
    add(&mut batch)?;
    batch.post()
}

/// Waits for the posted operation, and describes the outcome.
fn outcome(conn: &Conn, posted: Result<Posted, Error>) -> Result<String> {
    match posted {
        Ok(posted) => {
            let wc = completion(conn)?;
            assert_eq!(wc.posted(), Some(posted), "of this operation");
            wc.result()?;
            Ok("executed".to_owned())
        }
        Err(error) => Ok(error.to_string()),
    }
}

/// A way of an operation to the device.
type Way<'a> = &'a dyn Fn() -> Result<Posted, Error>;

/// Goes all ways. The answers are the same; returns whether they are that it was executed.
fn same(
    what: impl Debug,
    ways: &[Way<'_>],
    go: impl Fn(Way<'_>) -> Result<String>,
) -> Result<bool> {
    let answers = ways.iter().map(|way| go(way));
    let answers: Vec<_> = answers.collect::<Result<_, _>>()?;
    for answer in &answers {
        assert_eq!(answer, &answers[0], "{what:?}: {answers:#?}");
    }
    Ok(answers[0] == "executed")
}

#[test]
fn every_way_of_a_write() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let right = region(&peer, LEN, MrUsage::WRITE_SRC)?;
    right.write_at(0, &pattern(LEN, 1))?;
    let wrong = region(&peer, LEN, MrUsage::RECV)?;
    let others = region(&other, LEN, MrUsage::WRITE_SRC)?;
    let target = region(&peer, LEN, MrUsage::WRITE_DST)?;
    let unwritable = region(&peer, LEN, MrUsage::READ_SRC)?;
    let mut executed = 0;
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        let go = |way: Way<'_>| outcome(conn, way());
        for src in local_parts(&right, &wrong, &others, 0)? {
            for dst in remote_parts(&target, &unwritable)? {
                for flags in flags() {
                    let ways: [Way<'_>; 6] = [
                        &|| conn.write(dst, src, flags, 1),
                        &|| conn.write_gather(dst, &[src], flags, 1),
                        // One of no peer takes the long way.
                        &|| conn.write_gather(dst, &[src, MrSlice::EMPTY], flags, 1),
                        &|| batched(conn, 0, |b| b.write(dst, src, flags, 1)),
                        &|| batched(conn, 1, |b| b.write(dst, src, flags, 1)),
                        &|| batched(conn, 1, |b| b.write_gather(dst, &[src], flags, 1)),
                    ];
                    executed += usize::from(same((src, dst, flags), &ways, go)?);
                }
            }
        }
        let written = contents(&target)?;
        assert_eq!(written[..32], pattern(LEN, 1)[..32]);
        assert_eq!(written[100..], pattern(LEN, 1)[100..]);
    }
    assert!(executed > 40, "{executed}");
    Ok(())
}

#[test]
fn every_way_of_a_message() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let right = region(&peer, LEN, MrUsage::SEND)?;
    right.write_at(0, &pattern(LEN, 1))?;
    let wrong = region(&peer, LEN, MrUsage::RECV)?;
    let others = region(&other, LEN, MrUsage::SEND)?;
    let target = region(&peer, LEN, MrUsage::RECV)?;
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        // All end with the region, so that the bytes show which part it was.
        for src in local_parts(&right, &wrong, &others, LEN - 32)? {
            // Each message finds one receive, and takes it.
            let go = |way: Way<'_>| {
                pair.server.recv(target.slice(..)?, 2)?;
                let answer = outcome(conn, way())?;
                if answer != "executed" {
                    outcome(conn, conn.send(MrSlice::EMPTY, ALWAYS, 3))?;
                    assert_eq!(arrived(&pair.server)?, 0, "{answer}");
                    return Ok(answer);
                }
                let len = src.len() as usize;
                assert_eq!(arrived(&pair.server)? as usize, len);
                assert_eq!(contents(&target)?[..len], contents(&right)?[LEN - len..]);
                Ok(answer)
            };
            for flags in flags() {
                let ways: [Way<'_>; 6] = [
                    &|| conn.send(src, flags, 1),
                    &|| conn.send_gather(&[src], flags, 1),
                    &|| conn.send_gather(&[src, MrSlice::EMPTY], flags, 1),
                    &|| batched(conn, 0, |b| b.send(src, flags, 1)),
                    &|| batched(conn, 1, |b| b.send(src, flags, 1)),
                    &|| batched(conn, 1, |b| b.send_gather(&[src], flags, 1)),
                ];
                same((src, flags), &ways, go)?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_way_of_a_read() -> Result {
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let right = region(&peer, LEN, MrUsage::READ_DST)?;
    let wrong = region(&peer, LEN, MrUsage::SEND)?;
    let others = region(&other, LEN, MrUsage::READ_DST)?;
    let source = region(&peer, LEN, MrUsage::READ_SRC)?;
    source.write_at(0, &pattern(LEN, 1))?;
    let unreadable = region(&peer, LEN, MrUsage::WRITE_DST)?;
    let mut executed = 0;
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        let go = |way: Way<'_>| outcome(conn, way());
        for dst in local_parts(&right, &wrong, &others, 0)? {
            for src in remote_parts(&source, &unreadable)? {
                for flags in flags() {
                    let ways: [Way<'_>; 3] = [
                        &|| conn.read(dst, src, flags, 1),
                        &|| batched(conn, 0, |b| b.read(dst, src, flags, 1)),
                        &|| batched(conn, 1, |b| b.read(dst, src, flags, 1)),
                    ];
                    executed += usize::from(same((dst, src, flags), &ways, go)?);
                }
            }
        }
        let read = contents(&right)?;
        assert_eq!(read[..32], pattern(LEN, 1)[..32]);
        assert_eq!(read[100..], pattern(LEN, 1)[100..]);
    }
    assert!(executed > 40, "{executed}");
    Ok(())
}

#[test]
fn every_way_of_a_flush_and_of_an_atomic_write() -> Result {
    let (_test, peer) = peer_test()?;
    let target = region(&peer, LEN, FLUSHED)?;
    let wrong = region(&peer, LEN, MrUsage::RECV)?;
    let far = [remote(&target), remote(&wrong)];
    let word = 0x0102_0304_0506_0708u64.to_ne_bytes();
    let mut executed = 0;
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        let mut parts = vec![RemoteSlice::EMPTY];
        for mr in &far {
            for range in [0..0, 0..1, 0..7, 0..8, 4..12, 8..LEN as u64] {
                parts.push(mr.slice(range)?);
            }
        }
        let go = |way: Way<'_>| outcome(conn, way());
        let mut has_written = false;
        for dst in parts {
            for flags in flags() {
                for kind in [FlushType::Visibility, FlushType::Persistent] {
                    let ways: [Way<'_>; 3] = [
                        &|| conn.flush(dst, kind, flags, 1),
                        &|| batched(conn, 0, |b| b.flush(dst, kind, flags, 1)),
                        &|| batched(conn, 1, |b| b.flush(dst, kind, flags, 1)),
                    ];
                    executed += usize::from(same((dst, kind, flags), &ways, go)?);
                }
                let ways: [Way<'_>; 3] = [
                    &|| conn.atomic_write(dst, &word, flags, 1),
                    &|| batched(conn, 0, |b| b.atomic_write(dst, &word, flags, 1)),
                    &|| batched(conn, 1, |b| b.atomic_write(dst, &word, flags, 1)),
                ];
                let is_executed = same((dst, flags), &ways, go)?;
                (executed, has_written) = (
                    executed + usize::from(is_executed),
                    has_written || is_executed,
                );
            }
        }
        // Without a fence there may be no atomic writes.
        let written = if has_written {
            u64::from_ne_bytes(word)
        } else {
            0
        };
        assert_eq!(target.load_u64(0)?, written);
        target.store_u64(0, 0)?;
    }
    assert!(executed > 40, "{executed}");
    Ok(())
}

/// Parts that are too long together, and too many of them.
#[test]
fn parts_together_are_too_long() -> Result {
    let (_test, peer) = peer_test()?;
    let target = region(&peer, LEN, MrUsage::WRITE_DST | MrUsage::RECV)?;
    let source = region(&peer, LEN, MrUsage::WRITE_SRC | MrUsage::SEND)?;
    let (far, part) = (remote(&target), source.slice(..40)?);
    for pair in pairs(&peer)? {
        let conn = &pair.client;
        for count in [1, 2, 3, 16, 17, 100] {
            // One fits into a request, two do not, and three are more than the connection has.
            let parts = vec![part; count];
            let to = far.slice(..40 * count.min(6) as u64)?;
            let flags = ALWAYS | Flags::INLINE;
            pair.server.recv(target.slice(..)?, 1)?;
            let sent = conn.send_gather(&parts, flags, 1);
            assert_eq!(sent.is_ok(), count == 1, "{sent:?}");
            let message = sent.or_else(|_| conn.send(MrSlice::EMPTY, ALWAYS, 1));
            assert_eq!(outcome(conn, message)?, "executed");
            assert_eq!(arrived(&pair.server)?, if count == 1 { 40 } else { 0 });
            let written = conn.write_gather(to, &parts, flags, 1);
            assert_eq!(written.is_ok(), count == 1, "{written:?}");
            if written.is_ok() {
                outcome(conn, written)?;
            }
        }
    }
    Ok(())
}

/// A native flush of more than 2 GiB is several requests, whichever way it goes.
#[test]
fn a_long_flush_takes_more_slots() -> Result {
    let (_test, peer) = peer_test()?;
    let target = region(&peer, LEN, FLUSHED)?;
    // Made up: no operation is posted.
    let len = (5u64 << 30).to_le_bytes();
    let far = forged(&target, |bytes| bytes[8..16].copy_from_slice(&len));
    let cfg = ConnCfg::new().set_sq_size(2).clone();
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    if !pair.client.has_native_flush() {
        return Ok(());
    }
    for (len, slots) in [((4u64 << 30) + 1, 3), (5 << 30, 3)] {
        let to = far.slice(..len)?;
        let posted = pair.client.flush(to, FlushType::Visibility, ALWAYS, 1);
        let error = posted.expect_err("it has two slots");
        assert_says(&error, &[&format!("takes {slots} slots")]);
    }
    Ok(())
}

/// The bytes of the next message.
fn arrived(conn: &Conn) -> Result<u32> {
    let wc = next_completion(conn.get_cq())?;
    Ok(wc.result()?.byte_len().ok_or("a message")?)
}
