//! Write, flush and read back: the main job, on DRAM and on persistent memory, with the device's
//! flush and with the fallback.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use crate::common::prelude::*;

const SIZES: [usize; 10] = [1, 2, 7, 8, 9, 64, 1000, 4096, 65_536, 1 << 20];

fn direct_write() -> Result<PeerCfg> {
    let cfg = *PeerCfg::new().set_direct_write_to_pmem(true);
    Ok(PeerCfg::from_descriptor(&cfg.get_descriptor())?)
}

/// Writes, flushes and reads back every size; returns the contents that the target must have in the
/// end.
fn write_flush_read<M: RegisterableMemory>(
    peer: &Peer,
    conn: &Conn,
    target: &Mr<M>,
    flush_type: FlushType,
) -> Result {
    let source = region(peer, 1 << 20, MrUsage::WRITE_SRC)?;
    let back = region(peer, 1 << 20, MrUsage::READ_DST)?;
    let remote = remote(target);
    for (round, len) in SIZES.into_iter().enumerate() {
        let bytes = pattern(len, round as u64 + 1);
        let offset = (target.get_size() - len).min(13 * round);
        let part = remote.slice(offset as u64..(offset + len) as u64)?;
        source.write_at(0, &bytes)?;

        conn.write(part, source.slice(..len)?, ON_ERROR, 1)?;
        conn.flush(part, flush_type, ALWAYS, 2)?;
        assert_eq!(done(conn, 2)?, flush_opcode(conn), "{len} bytes");

        // They are there when the flush has completed.
        let mut there = vec![0; len];
        target.read_at(offset, &mut there)?;
        assert_eq!(there, bytes, "{len} bytes");

        conn.read(back.slice(..len)?, part, ALWAYS, 3)?;
        assert_eq!(done(conn, 3)?, WcOpcode::RDMA_READ);
        let mut here = vec![0; len];
        back.read_at(0, &mut here)?;
        assert_eq!(here, bytes, "{len} bytes come back");
    }
    Ok(())
}

const TARGET: MrUsage = MrUsage::WRITE_DST
    .union(MrUsage::READ_SRC)
    .union(MrUsage::FLUSH_TYPE_VISIBILITY);

#[test]
fn write_flush_and_read_back_on_dram() -> Result {
    let (_test, peer) = peer_test()?;
    for cfg in both_ways() {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let native = peer.is_native_flush_capable() && !cfg.get_force_fallback();
        assert_eq!(pair.client.has_native_flush(), native);
        let target = region(&peer, (1 << 20) + 4096, TARGET)?;
        write_flush_read(&peer, &pair.client, &target, FlushType::Visibility)?;
    }
    Ok(())
}

#[test]
fn write_flush_and_read_back_on_device_dax() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, both_ways()) {
        let map = PmemMap::open(devdax(), 2 << 20)?;
        assert!(map.is_pmem());
        let usage = TARGET | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, map, usage)?;
        pair.client.apply_remote_peer_cfg(&direct_write()?);
        write_flush_read(&peer, &pair.client, &target, FlushType::Persistent)?;
        write_flush_read(&peer, &pair.client, &target, FlushType::Visibility)?;
    }
    Ok(())
}

/// The guest's rdma-core 56 and kernel have the native operation: if this fails, the tests above
/// did not test it.
#[test]
#[cfg(native_flush)]
fn the_native_flush_is_there_to_be_tested() -> Result {
    let (_test, peer) = peer_test()?;
    assert!(peer.is_native_flush_capable());
    assert!(Pair::new(&peer)?.client.has_native_flush());
    Ok(())
}

/// W-11: the C library's fallback always reads 8 bytes, also past the end of the region.
#[test]
fn the_last_byte_of_a_region_can_be_flushed() -> Result {
    let (_test, peer) = peer_test()?;
    for pair in Pair::each(&peer, both_ways()) {
        let target = region(&peer, 100, TARGET)?;
        let last = remote(&target).slice(99..)?;
        pair.client.flush(last, FlushType::Visibility, ALWAYS, 5)?;
        done(&pair.client, 5)?;
    }
    Ok(())
}

/// W-10: a region that was registered with the native rights serves an initiator that reads.
#[test]
fn one_region_serves_both_kinds_of_flush() -> Result {
    let (_test, peer) = peer_test()?;
    let target = region(&peer, 64, FLUSHED)?;
    // How the target would flush makes no difference.
    for client in &both_ways() {
        for server in &both_ways() {
            let pair = Pair::with(&peer, client, server)?;
            let part = remote(&target).slice(..)?;
            pair.client.flush(part, FlushType::Visibility, ALWAYS, 5)?;
            done(&pair.client, 5)?;
        }
    }
    Ok(())
}

#[test]
fn every_refusal_of_flush() -> Result {
    let (_test, peer) = peer_test()?;
    let visible = region(&peer, 64, FLUSHED)?;
    let unflushed = region(&peer, 64, MrUsage::WRITE_DST | MrUsage::READ_SRC)?;
    for pair in Pair::each(&peer, both_ways()) {
        let conn = &pair.client;
        let refused = |mr, flush_type, reason| -> Result {
            let part = remote(mr).slice(..)?;
            let text = not_supported(conn.flush(part, flush_type, ALWAYS, 1));
            assert!(text.contains(reason), "{text}");
            Ok(())
        };
        refused(&visible, FlushType::Persistent, "has not declared")?;
        conn.apply_remote_peer_cfg(&direct_write()?);
        let no_right = "without FLUSH_TYPE_PERSISTENT";
        refused(&visible, FlushType::Persistent, no_right)?;
        let not_visible = "without FLUSH_TYPE_VISIBILITY";
        refused(&unflushed, FlushType::Visibility, not_visible)?;
        // It can be taken back.
        conn.apply_remote_peer_cfg(&PeerCfg::new());
        refused(&visible, FlushType::Persistent, "Durable::Nothing")?;
        // Natively it is the region's right that is missing.
        conn.apply_remote_peer_cfg(PeerCfg::new().set_durable(Durable::NativeFlushes));
        let reason = if conn.has_native_flush() {
            no_right
        } else {
            "this connection flushes by reading"
        };
        refused(&visible, FlushType::Persistent, reason)?;

        let empty = remote(&visible).slice(5..5)?;
        invalid(conn.flush(empty, FlushType::Visibility, ALWAYS, 1));
        no_completion(conn)?;
    }
    Ok(())
}

#[test]
fn a_region_without_the_usage_is_refused_before_anything_is_sent() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
    let mr = |usage| region(&peer, 64, usage);
    for missing in [
        MrUsage::WRITE_DST,
        MrUsage::WRITE_SRC,
        MrUsage::READ_DST,
        MrUsage::READ_SRC,
    ] {
        let (whole, without) = (mr(all)?, mr(all - missing)?);
        let (local, part) = match missing {
            MrUsage::WRITE_SRC | MrUsage::READ_DST => (&without, remote(&whole)),
            _ => (&whole, remote(&without)),
        };
        let (local, part) = (local.slice(..)?, part.slice(..)?);
        let posted = match missing {
            MrUsage::WRITE_DST | MrUsage::WRITE_SRC => pair.client.write(part, local, ALWAYS, 1),
            _ => pair.client.read(local, part, ALWAYS, 1),
        };
        assert_invalid(posted, &[&format!("needs {missing}")]);
    }
    no_completion(&pair.client)?;

    // The connection is as good as before.
    let (local, target) = (mr(MrUsage::WRITE_SRC)?, mr(MrUsage::WRITE_DST)?);
    let part = remote(&target).slice(..)?;
    pair.client.write(part, local.slice(..)?, ALWAYS, 2)?;
    done(&pair.client, 2)?;
    Ok(())
}

#[test]
fn lengths_must_match_and_regions_must_be_the_peers() -> Result {
    let _test = device_test();
    let (one, other) = (peer()?, peer()?);
    let pair = Pair::new(&one)?;
    let target = remote(&region(&one, 64, MrUsage::WRITE_DST | MrUsage::READ_SRC)?);
    let local = region(&one, 64, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
    let foreign = region(&other, 64, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
    let (part, short) = (target.slice(..)?, local.slice(..63)?);
    let foreign = foreign.slice(..)?;
    for (local, reason) in [
        (short, "63 bytes and the remote part 64"),
        (foreign, "another Peer"),
    ] {
        assert_invalid(pair.client.write(part, local, ALWAYS, 1), &[reason]);
        assert_invalid(pair.client.read(local, part, ALWAYS, 1), &[reason]);
    }
    no_completion(&pair.client)
}

/// Every accepted operation completes, every refused one is `QueueFull`, and polling makes room
/// again.
#[test]
fn a_thousand_writes_without_a_poll() -> Result {
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, 8)?;
    for depth in [1, 10, 500] {
        let cfg = ConnCfg::new().set_sq_size(depth).clone();
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        for round in 0..3 {
            let mut accepted = Vec::new();
            for wr_id in 0..1000 {
                match memories.write(&pair.client, wr_id) {
                    Ok(_) => accepted.push(wr_id),
                    refused => assert_eq!(full(refused), (Queue::Send, depth.into())),
                }
            }
            assert_eq!(accepted.len(), depth as usize, "round {round}");
            assert_done(&completions(&pair.client, accepted.len())?, accepted)?;
            no_completion(&pair.client)?;
        }
    }
    Ok(())
}

/// Unsignaled operations take slots until a later completion is polled, on rxe as on an adapter.
#[test]
fn writes_without_completions_fill_the_queue_as_well() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let memories = Memories::new(&peer, &peer, 8)?;
    let (to, from) = (memories.to()?, memories.source.slice(..)?);
    for _ in 0..50 {
        for wr_id in 0..9 {
            pair.client.write(to, from, ON_ERROR, wr_id)?;
        }
        memories.write(&pair.client, 9)?;
        full(memories.write(&pair.client, 10));
        done(&pair.client, 9)?;
    }
    Ok(())
}

/// A connection that fails flushes all operations in flight, even those without a completion on
/// success; rxe takes operations after that, too. No completion may be pushed out of the queue.
#[test]
fn a_failed_connection_loses_no_completion() -> Result {
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, 64)?;
    let (good, local) = (memories.to()?, memories.source.slice(..)?);
    let gone = remote(&region(&peer, 64, MrUsage::WRITE_DST)?).slice(..)?;
    let cfg = ConnCfg::new().set_sq_size(200).clone();
    for _ in 0..5 {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let mut signaled = 0;
        for wr_id in 0..10_000 {
            let part = if wr_id == 3 { gone } else { good };
            let flags = [ALWAYS, ON_ERROR][wr_id as usize % 2];
            match pair.client.write(part, local, flags, wr_id) {
                Ok(_) => signaled += usize::from(wr_id % 2 == 0),
                Err(Error::QueueFull { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        let (mut wcs, start) = (Vec::new(), Instant::now());
        while wcs.iter().filter(|wc: &&Wc| wc.wr_id() % 2 == 0).count() < signaled {
            let mut some = [Wc::default(); 16];
            let polled = pair.client.get_cq().get_wc(&mut some)?;
            wcs.extend_from_slice(&some[..polled]);
            assert!(start.elapsed() < LIMIT, "{} completions in time", wcs.len());
        }
        let mut failures = wcs.iter().filter_map(|wc| wc.result().err());
        let first = failures.next().ok_or("a failure")?;
        assert_eq!(first.status, WcStatus::REM_ACCESS_ERR, "{first}");
        assert_eq!(first.wr_id, 3, "{first}");

        let error = memories.write(&pair.client, 1).expect_err("failed");
        let failed = Error::NotConnected(NotConnected::Failed);
        assert_eq!(error.to_string(), failed.to_string());
    }
    Ok(())
}

#[test]
fn operations_before_and_after_the_connection_are_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let memories = Memories::new(&peer, &peer, 8)?;
    let refused = |conn: &Conn, reason| {
        let error = memories.write(conn, 1).expect_err(reason);
        assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
        assert_says(&error, &[reason]);
    };
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, &cfg)?;
    refused(&client, "not established yet");
    let server = accept(&ep, &cfg)?;
    assert_eq!(event(&client)?, ConnEvent::Established);
    // A refused operation is not sent later.
    no_completion(&client)?;
    assert_eq!(contents(&memories.target)?, [0; 8]);
    client.disconnect()?;
    refused(&client, "is closed");
    assert_eq!(event(&server)?, ConnEvent::Established);
    assert_eq!(event(&server)?, ConnEvent::Closed);
    refused(&server, "is closed");
    Ok(())
}

/// A waiter sleeps until the completion arms it, and an event may come without one.
#[test]
fn waiting_for_a_completion() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let memories = Memories::new(&peer, &peer, 8)?;
    for wr_id in 0..50 {
        memories.write(&pair.client, wr_id)?;
        loop {
            pair.client.get_cq().wait()?;
            let mut wcs = [Wc::default(); 4];
            let polled = pair.client.get_cq().get_wc(&mut wcs)?;
            if polled > 0 {
                assert_done(&wcs[..polled], [wr_id])?;
                break;
            }
        }
    }
    Ok(())
}

/// Memory of another owner is used like any other, and never more than its owner promised, also
/// when it is registered once more.
#[test]
fn foreign_memory_is_used_as_its_owner_promised() -> Result {
    let (_test, peer) = peer_test()?;
    let memory = Box::into_raw(pattern(64, 3).into_boxed_slice());
    let start = NonNull::new(memory.cast::<u8>()).ok_or("allocated")?;
    // SAFETY: `Box::from_raw` below frees the memory, after `again` was dropped, which is the
    // last owner of the registration. No other code accesses it.
    let source = unsafe { Mr::reg_raw(&peer, start, 64, MrUsage::READ_SRC) }?;
    let copy = region(&peer, 64, MrUsage::READ_DST)?;
    let pair = Pair::new(&peer)?;
    let (to, from) = (copy.slice(..)?, remote(&source).slice(..)?);
    pair.client.read(to, from, ALWAYS, 1)?;
    assert_eq!(done(&pair.client, 1)?, WcOpcode::RDMA_READ);
    assert_eq!(contents(&copy)?, pattern(64, 3));

    assert_invalid(source.write_at(0, &[0]), &["read-only"]);
    let raw = source.dereg()?;
    let refused = Mr::reg(&peer, raw, MrUsage::WRITE_DST).expect_err("nobody promised that");
    assert_says(&refused.error, &["read-only"]);
    let again = Mr::reg(&peer, refused.object, MrUsage::READ_SRC)?;
    assert_eq!(contents(&again)?, pattern(64, 3));
    drop(again);
    // SAFETY: `memory` is of `Box::into_raw`, and `again`, the last owner of a registration, is
    // dropped.
    drop(unsafe { Box::from_raw(memory) });
    Ok(())
}

/// Promise: regions over parts of one map have keys of their own. Each is good for its part only.
#[test]
fn parts_of_a_device_have_keys_of_their_own() -> Result {
    const MIB: u64 = 1 << 20;
    let _test = device_test();
    let unaligned = PmemMap::open_range(devdax(), MIB..4 * MIB);
    assert_invalid(unaligned, &["its alignment is 2097152. 0..4194304 can"]);
    let map = PmemMap::open_range(devdax(), 2 * MIB..4 * MIB)?;
    let peer = peer()?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
    const LEN: usize = 65_000;
    let part = |n| -> Result<_> {
        let part = map.part(n * LEN..(n + 1) * LEN)?;
        Ok(Mr::reg(&peer, part, usage)?)
    };
    let parts: Vec<_> = (0..10).map(part).collect::<Result<_, _>>()?;
    let keys = parts
        .iter()
        .map(|part| part.get_descriptor()[16..20].to_vec());
    assert_eq!(keys.collect::<BTreeSet<_>>().len(), 10, "a key for each");

    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    // Writes and flushes a value, on a connection of its own.
    let write = |value, to: &MrRemote| -> Result<_> {
        let pair = Pair::new(&peer)?;
        pair.client.apply_remote_peer_cfg(&direct_write()?);
        source.store_u64(0, value)?;
        let to = to.slice(..8)?;
        pair.client.write(to, source.slice(..)?, ON_ERROR, 1)?;
        pair.client.flush(to, FlushType::Persistent, ALWAYS, 2)?;
        Ok(pair)
    };
    let value = |n| -> Result<_> {
        let mut bytes = [0; 8];
        map.read_at(n * LEN, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    for (n, part) in parts.iter().enumerate() {
        let pair = write(100 + n as u64, &remote(part))?;
        done(&pair.client, 2)?;
        assert_eq!(value(n)?, 100 + n as u64);
        part.persist(..8)?;
    }
    // The key of one with the address of its neighbour.
    let neighbour = parts[1].get_descriptor();
    let forged = forged(&parts[0], |bytes| {
        bytes[..8].copy_from_slice(&neighbour[..8])
    });
    let pair = write(7, &forged)?;
    // The write fails, and its flush is flushed.
    if is_iwarp() {
        assert_eq!(event(&pair.client)?, ConnEvent::Closed);
    } else {
        let failed = completions(&pair.client, 2)?;
        assert_eq!(failed[0].status(), WcStatus::REM_ACCESS_ERR);
    }
    assert_eq!(value(1)?, 101, "untouched");
    drop(map);
    parts[3].persist(..)?;
    Ok(())
}
