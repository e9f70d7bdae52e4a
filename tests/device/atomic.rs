//! The atomic write: 8 bytes at once, after the flushes before it, with the device's operation and
//! with the fallback.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::prelude::*;

/// The opcode of an atomic write's completion: its own only if this program's headers and the
/// device have the operation and the configuration does not forbid it.
fn expected(peer: &Peer, cfg: &ConnCfg) -> WcOpcode {
    let native = peer.is_native_atomic_write_capable() && !cfg.get_force_fallback();
    if native && cfg!(native_atomic_write) {
        WcOpcode::ATOMIC_WRITE
    } else {
        WcOpcode::RDMA_WRITE
    }
}

fn target(peer: &Peer, len: usize) -> Result<Mr<Memory>> {
    region(peer, len, FLUSHED)
}

/// The offset of the first 8 aligned bytes: a `Vec` need not be aligned.
fn aligned(mr: &Mr<Memory>) -> usize {
    mr.get_ptr().align_offset(8)
}

fn eight(far: &MrRemote, offset: usize) -> Result<RemoteSlice> {
    Ok(far.slice(offset as u64..offset as u64 + 8)?)
}

/// 8 bytes arrive, in their order, and no other byte changes; the source may be gone at once.
#[test]
fn eight_bytes_arrive_and_nothing_else_changes() -> Result {
    let (_test, peer) = peer_test()?;
    for cfg in both_ways() {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let native = expected(&peer, &cfg) == WcOpcode::ATOMIC_WRITE;
        assert_eq!(pair.client.has_native_atomic_write(), native);
        let dst = target(&peer, 64)?;
        let at = aligned(&dst) + 16;
        for (from, flags) in [
            (&pair.client, ALWAYS),
            (&pair.server, ALWAYS),
            // Both have no meaning here, and do no harm.
            (&pair.client, ALWAYS | Flags::INLINE | Flags::SOLICITED),
        ] {
            dst.write_at(0, &[0xEE; 64])?;
            let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
            from.atomic_write(eight(&remote(&dst), at)?, &bytes, flags, 3)?;
            assert_eq!(done(from, 3)?, expected(&peer, &cfg));
            let there = contents(&dst)?;
            assert_eq!(there[at..at + 8], bytes);
            assert_eq!(dst.load_u64(at)?, u64::from_ne_bytes(bytes));
            let mut around = there[..at].iter().chain(&there[at + 8..]);
            assert!(around.all(|&byte| byte == 0xEE));
        }
    }
    Ok(())
}

/// The guest's kernel and rdma-core have the operation: if this fails, the tests did not test it.
#[test]
#[cfg(native_atomic_write)]
fn the_native_atomic_write_is_there_to_be_tested() -> Result {
    let (_test, peer) = peer_test()?;
    assert!(peer.is_native_atomic_write_capable());
    let [native, fallback] = both_ways();
    assert_eq!(expected(&peer, &native), WcOpcode::ATOMIC_WRITE);
    assert_eq!(expected(&peer, &fallback), WcOpcode::RDMA_WRITE);
    Ok(())
}

/// A reader sees the old 8 bytes or the new ones, never some of each.
#[test]
fn a_reader_never_sees_half_a_value() -> Result {
    const ROUNDS: u64 = 500;
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, both_ways()) {
        let dst = target(&peer, 64)?;
        let at = aligned(&dst);
        let far = eight(&remote(&dst), at)?;
        let done = AtomicBool::new(false);
        thread::scope(|scope| -> Result {
            let reader = scope.spawn(|| -> Result<_> {
                let (mut values, mut last) = (0, 0);
                loop {
                    let last_look = done.load(Ordering::Relaxed);
                    let value = dst.load_u64(at)?;
                    let bytes = value.to_ne_bytes();
                    assert_eq!(bytes, [bytes[0]; 8]);
                    values += u64::from(value != last);
                    last = value;
                    if last_look {
                        break Ok(values);
                    }
                }
            });
            for round in 0..ROUNDS {
                let bytes = [round as u8; 8];
                pair.client.atomic_write(far, &bytes, ALWAYS, round)?;
                completion(&pair.client)?.result()?;
            }
            done.store(true, Ordering::Relaxed);
            assert!(reader.join().expect("sees whole values")? > 0);
            Ok(())
        })?;
    }
    Ok(())
}

/// Write the data, flush it, write a pointer to it atomically: a reader that sees the pointer sees
/// the data, without a wait for any of the three.
#[test]
fn a_pointer_is_never_seen_before_its_data() -> Result {
    const LEN: usize = 32 << 10;
    const ROUNDS: usize = 30;
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, both_ways()) {
        let dst = target(&peer, 2 * LEN + 16)?;
        let src = region(&peer, 2 * LEN, MrUsage::WRITE_SRC)?;
        let at = aligned(&dst);
        let far = remote(&dst);
        for round in 1..=ROUNDS {
            // Each round uses the other half, so that a late write could not be overlooked.
            let half = (round % 2) * LEN;
            let bytes = pattern(LEN, round as u64);
            src.write_at(half, &bytes)?;
            let data = at + 8 + half;
            let part = far.slice(data as u64..(data + LEN) as u64)?;
            let local = src.slice(half..half + LEN)?;
            let conn = &pair.client;
            conn.write(part, local, ON_ERROR, 1)?;
            conn.flush(part, FlushType::Visibility, ON_ERROR, 2)?;
            let pointer = (round as u64).to_ne_bytes();
            conn.atomic_write(eight(&far, at)?, &pointer, ON_ERROR, 3)?;
            conn.flush(eight(&far, at)?, FlushType::Visibility, ALWAYS, 4)?;

            let start = Instant::now();
            while dst.load_u64(at)? != round as u64 {
                assert!(start.elapsed() < LIMIT, "no pointer of round {round}");
            }
            let mut there = vec![0; LEN];
            dst.read_at(data, &mut there)?;
            assert!(there == bytes, "round {round}: its pointer came before");
            assert_eq!(completion(conn)?.wr_id(), 4);
        }
    }
    Ok(())
}

/// Every mistake is refused with its reason before anything is sent.
#[test]
fn every_refusal_of_an_atomic_write() -> Result {
    let (_test, peer) = peer_test()?;
    for cfg in both_ways() {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        let dst = target(&peer, 64)?;
        let (far, at) = (remote(&dst), aligned(&dst));
        let write = |part| conn.atomic_write(part, &[1; 8], ALWAYS, 1);
        // The address counts, not the offset: the C library checks only that.
        for offset in 1..8 {
            assert_invalid(write(eight(&far, at + offset)?), &["multiple of 8"]);
        }
        for len in [0, 1, 7, 9, 16] {
            let part = far.slice(at as u64..(at + len) as u64)?;
            assert_invalid(write(part), &[&format!("not of {len} at")]);
        }
        assert!(invalid(write(RemoteSlice::EMPTY)).contains("not of 0"));
        let usage = MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let read_only = region(&peer, 64, usage)?;
        let part = eight(&remote(&read_only), aligned(&read_only))?;
        assert_invalid(write(part), &["needs WRITE_DST"]);
        no_completion(conn)?;
        assert_eq!(contents(&dst)?, [0; 64]);
        write(eight(&far, at)?)?;
        assert_eq!(done(conn, 1)?, expected(&peer, &cfg));
    }
    Ok(())
}

/// An atomic write takes a slot of the send queue like any other operation, with and without a
/// completion of its own.
#[test]
fn atomic_writes_fill_the_send_queue() -> Result {
    let (_test, peer) = peer_test()?;
    for mut cfg in both_ways() {
        cfg.set_sq_size(5);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let dst = target(&peer, 64)?;
        let far = eight(&remote(&dst), aligned(&dst))?;
        let write = |flags, wr_id| pair.client.atomic_write(far, &[9; 8], flags, wr_id);
        for round in 0..10 {
            for wr_id in 0..4 {
                write(ON_ERROR, wr_id)?;
            }
            write(ALWAYS, 4)?;
            let full = full(write(ALWAYS, 5));
            assert_eq!(full, (Queue::Send, 5), "round {round}");
            assert_eq!(done(&pair.client, 4)?, expected(&peer, &cfg));
        }
    }
    Ok(())
}

/// A region that is gone: the failure names the operation, and ends the connection.
#[test]
fn an_atomic_write_to_a_region_that_is_gone() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, both_ways()) {
        let dst = target(&peer, 64)?;
        let far = eight(&remote(&dst), aligned(&dst))?;
        drop(dst);
        // Without a completion on success, there is one on failure.
        let flags = if is_iwarp() { ALWAYS } else { ON_ERROR };
        pair.client.atomic_write(far, &[1; 8], flags, 8)?;
        assert_eq!(outcome(&pair.client, 8)?, refused());
        assert_not_connected(pair.client.atomic_write(far, &[1; 8], ALWAYS, 9));
    }
    Ok(())
}
