//! Write, flush and read back: the main job, on DRAM and on persistent memory, with the device's
//! flush and with the fallback.

use std::ptr::NonNull;

use crate::common::prelude::*;

const SIZES: [usize; 10] = [1, 2, 7, 8, 9, 64, 1000, 4096, 65_536, 1 << 20];

/// Both ways to flush. rdma-core 44 has no native one: there it is the fallback twice.
fn configurations() -> [ConnCfg; 2] {
    let mut fallback = ConnCfg::new();
    fallback.set_force_fallback(true);
    [ConnCfg::new(), fallback]
}

fn direct_write() -> Result<PeerCfg> {
    let mut cfg = PeerCfg::new();
    cfg.set_direct_write_to_pmem(true);
    Ok(PeerCfg::from_descriptor(&cfg.get_descriptor())?)
}

fn succeeded(wc: Wc, wr_id: u64) -> Result<WcOpcode> {
    assert_eq!(wc.wr_id(), wr_id);
    Ok(wc.result()?.opcode())
}

/// Writes, flushes and reads back every size; returns the contents that the target must have in the
/// end.
fn write_flush_read<M: RegisterableMemory>(
    peer: &Peer,
    conn: &Conn,
    target: &Mr<M>,
    flush_type: FlushType,
) -> Result {
    let max = *SIZES.last().ok_or("sizes")?;
    let source = region(peer, max, MrUsage::WRITE_SRC)?;
    let back = region(peer, max, MrUsage::READ_DST)?;
    let remote = remote(target);
    for (round, len) in SIZES.into_iter().enumerate() {
        let bytes = pattern(len, round as u64 + 1);
        let offset = (target.get_size() - len).min(13 * round);
        let part = remote.slice(offset as u64..(offset + len) as u64)?;
        source.write_at(0, &bytes)?;

        let local = source.slice(..len)?;
        conn.write(part, local, Flags::COMPLETION_ON_ERROR, 1)?;
        conn.flush(part, flush_type, Flags::COMPLETION_ALWAYS, 2)?;
        let expected = match conn.has_native_flush() {
            true => WcOpcode::FLUSH,
            false => WcOpcode::RDMA_READ,
        };
        assert_eq!(succeeded(completion(conn)?, 2)?, expected, "{len} bytes");

        let mut there = vec![0; len];
        target.read_at(offset, &mut there)?;
        assert_eq!(
            there, bytes,
            "{len} bytes are there when the flush has completed"
        );

        let local = back.slice(..len)?;
        conn.read(local, part, Flags::COMPLETION_ALWAYS, 3)?;
        assert_eq!(succeeded(completion(conn)?, 3)?, WcOpcode::RDMA_READ);
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
    let _test = device_test();
    let peer = peer()?;
    for cfg in configurations() {
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
    let _test = device_test();
    let peer = peer()?;
    for cfg in configurations() {
        let map = PmemMap::open(devdax(), 2 << 20)?;
        assert!(map.is_pmem());
        let usage = TARGET | MrUsage::FLUSH_TYPE_PERSISTENT;
        let target = Mr::reg(&peer, map, usage)?;
        let pair = Pair::with(&peer, &cfg, &cfg)?;
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
    let _test = device_test();
    let peer = peer()?;
    assert!(peer.is_native_flush_capable());
    assert!(Pair::new(&peer)?.client.has_native_flush());
    Ok(())
}

/// W-11: the C library's fallback always reads 8 bytes, also past the end of the region.
#[test]
fn the_last_byte_of_a_region_can_be_flushed() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for cfg in configurations() {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let target = region(&peer, 100, TARGET)?;
        let last = remote(&target).slice(99..)?;
        pair.client
            .flush(last, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 5)?;
        succeeded(completion(&pair.client)?, 5)?;
    }
    Ok(())
}

/// W-10: a region that was registered with the native rights serves an initiator that reads.
#[test]
fn one_region_serves_both_kinds_of_flush() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let target = region(
        &peer,
        64,
        MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY,
    )?;
    // How the target would flush makes no difference.
    for client in &configurations() {
        for server in &configurations() {
            let pair = Pair::with(&peer, client, server)?;
            let part = remote(&target).slice(..)?;
            pair.client
                .flush(part, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 5)?;
            succeeded(completion(&pair.client)?, 5)?;
        }
    }
    Ok(())
}

#[test]
fn every_refusal_of_flush() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let part = |usage| -> Result<_> {
        let mr = region(&peer, 64, usage)?;
        Ok(remote(&mr).slice(..)?)
    };
    for cfg in configurations() {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let conn = &pair.client;
        let refused = |usage, flush_type| -> Result<_> {
            let error = conn
                .flush(part(usage)?, flush_type, Flags::COMPLETION_ALWAYS, 1)
                .expect_err("refused");
            assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
            Ok(error.to_string())
        };
        let both = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let text = refused(both, FlushType::Persistent)?;
        assert!(text.contains("has not declared"), "{text}");
        conn.apply_remote_peer_cfg(&direct_write()?);
        let text = refused(both, FlushType::Persistent)?;
        assert!(text.contains("without FLUSH_TYPE_PERSISTENT"), "{text}");
        let text = refused(
            MrUsage::WRITE_DST | MrUsage::READ_SRC,
            FlushType::Visibility,
        )?;
        assert!(text.contains("without FLUSH_TYPE_VISIBILITY"), "{text}");
        conn.apply_remote_peer_cfg(&PeerCfg::new());
        let text = refused(both, FlushType::Persistent)?;
        assert!(
            text.contains("Durable::Nothing"),
            "it can be taken back: {text}"
        );
        // Natively it is the region's right that is missing.
        let mut native = PeerCfg::new();
        native.set_durable(Durable::NativeFlushes);
        conn.apply_remote_peer_cfg(&native);
        let text = refused(both, FlushType::Persistent)?;
        let reason = match conn.has_native_flush() {
            true => "without FLUSH_TYPE_PERSISTENT",
            false => "this connection flushes by reading",
        };
        assert!(text.contains(reason), "{text}");

        let mr = region(&peer, 64, both)?;
        let empty = remote(&mr).slice(5..5)?;
        let error = conn
            .flush(empty, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 1)
            .expect_err("nothing to flush");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        no_completion(conn)?;
    }
    Ok(())
}

#[test]
fn a_region_without_the_usage_is_refused_before_anything_is_sent() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let pair = Pair::new(&peer)?;
    let all = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
    let mr = |usage| region(&peer, 64, usage);
    let flags = Flags::COMPLETION_ALWAYS;
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
            MrUsage::WRITE_DST | MrUsage::WRITE_SRC => pair.client.write(part, local, flags, 1),
            _ => pair.client.read(local, part, flags, 1),
        };
        let error = posted.expect_err("refused");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert!(
            error.to_string().contains(&format!("needs {missing}")),
            "{error}"
        );
    }
    no_completion(&pair.client)?;

    // The connection is as good as before.
    let (local, target) = (mr(MrUsage::WRITE_SRC)?, mr(MrUsage::WRITE_DST)?);
    let part = remote(&target).slice(..)?;
    pair.client.write(part, local.slice(..)?, flags, 2)?;
    succeeded(completion(&pair.client)?, 2)?;
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
    let flags = Flags::COMPLETION_ALWAYS;
    for (error, reason) in [
        (
            pair.client.write(part, short, flags, 1),
            "63 bytes and the remote part 64",
        ),
        (
            pair.client.read(short, part, flags, 1),
            "63 bytes and the remote part 64",
        ),
        (pair.client.write(part, foreign, flags, 1), "another Peer"),
        (pair.client.read(foreign, part, flags, 1), "another Peer"),
    ] {
        let error = error.expect_err(reason);
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    no_completion(&pair.client)?;
    Ok(())
}

/// Every accepted operation completes, every refused one is `QueueFull`, and polling makes room
/// again.
#[test]
fn a_thousand_writes_without_a_poll() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 8, MrUsage::WRITE_DST)?;
    let part = remote(&target).slice(..)?;
    for depth in [1, 10, 500] {
        let mut cfg = ConnCfg::new();
        cfg.set_sq_size(depth);
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        for round in 0..3 {
            let mut accepted = Vec::new();
            for wr_id in 0..1000 {
                let local = source.slice(..)?;
                match pair
                    .client
                    .write(part, local, Flags::COMPLETION_ALWAYS, wr_id)
                {
                    Ok(_) => accepted.push(wr_id),
                    Err(Error::QueueFull {
                        queue: Queue::Send,
                        depth: said,
                    }) => {
                        assert_eq!(said, depth);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert_eq!(accepted.len(), depth as usize, "round {round}");
            let wcs = completions(&pair.client, accepted.len())?;
            for (wc, wr_id) in wcs.into_iter().zip(accepted) {
                succeeded(wc, wr_id)?;
            }
            no_completion(&pair.client)?;
        }
    }
    Ok(())
}

/// Unsignaled operations take slots until a later completion is polled, on rxe as on an adapter.
#[test]
fn writes_without_completions_fill_the_queue_as_well() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let pair = Pair::new(&peer)?;
    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 8, MrUsage::WRITE_DST)?;
    let part = remote(&target).slice(..)?;
    let write = |flags, wr_id| -> Result<_> {
        Ok(pair.client.write(part, source.slice(..)?, flags, wr_id))
    };
    for _ in 0..50 {
        for wr_id in 0..9 {
            write(Flags::COMPLETION_ON_ERROR, wr_id)??;
        }
        write(Flags::COMPLETION_ALWAYS, 9)??;
        let error = write(Flags::COMPLETION_ALWAYS, 10)?.expect_err("full");
        assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
        succeeded(completion(&pair.client)?, 9)?;
    }
    Ok(())
}

/// A connection that fails flushes all operations in flight, even those without a completion on
/// success; rxe takes operations after that, too. No completion may be pushed out of the queue.
#[test]
fn a_failed_connection_loses_no_completion() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, 64, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 64, MrUsage::WRITE_DST)?;
    let good = remote(&target).slice(..)?;
    let gone = remote(&region(&peer, 64, MrUsage::WRITE_DST)?).slice(..)?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(200);
    for _ in 0..5 {
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let local = source.slice(..)?;
        let mut signaled = 0;
        for wr_id in 0..10_000 {
            let part = if wr_id == 3 { gone } else { good };
            let flags = match wr_id % 2 {
                0 => Flags::COMPLETION_ALWAYS,
                _ => Flags::COMPLETION_ON_ERROR,
            };
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
        let first = wcs
            .iter()
            .find_map(|wc| wc.result().err())
            .ok_or("a failure")?;
        assert_eq!(first.status, WcStatus::REM_ACCESS_ERR, "{first}");
        assert_eq!(first.wr_id, 3, "{first}");

        let error = pair.client.write(good, local, Flags::COMPLETION_ALWAYS, 1);
        let error = error.expect_err("the connection has failed");
        let failed = Error::NotConnected(NotConnected::Failed);
        assert_eq!(error.to_string(), failed.to_string());
    }
    Ok(())
}

#[test]
fn operations_before_and_after_the_connection_are_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let cfg = ConnCfg::new();
    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 8, MrUsage::WRITE_DST)?;
    let part = remote(&target).slice(..)?;
    let refused = |conn: &Conn, reason: &str| -> Result {
        let local = source.slice(..)?;
        let error = conn
            .write(part, local, Flags::COMPLETION_ALWAYS, 1)
            .expect_err(reason);
        assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
        Ok(())
    };
    let ep = listen(&peer)?;
    let client = ask(&peer, &ep, &cfg)?;
    refused(&client, "not established yet")?;
    let server = accept(&ep, &cfg)?;
    assert_eq!(event(&client)?, ConnEvent::Established);
    // A refused operation is not sent later.
    no_completion(&client)?;
    assert_eq!(contents(&target)?, [0; 8]);
    client.disconnect()?;
    refused(&client, "is closed")?;
    assert_eq!(event(&server)?, ConnEvent::Established);
    assert_eq!(event(&server)?, ConnEvent::Closed);
    refused(&server, "is closed")?;
    Ok(())
}

/// A waiter sleeps until the completion arms it, and an event may come without one.
#[test]
fn waiting_for_a_completion() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let pair = Pair::new(&peer)?;
    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let target = region(&peer, 8, MrUsage::WRITE_DST)?;
    let part = remote(&target).slice(..)?;
    for wr_id in 0..50 {
        let local = source.slice(..)?;
        pair.client
            .write(part, local, Flags::COMPLETION_ALWAYS, wr_id)?;
        loop {
            pair.client.get_cq().wait()?;
            let mut wcs = [Wc::default(); 4];
            let polled = pair.client.get_cq().get_wc(&mut wcs)?;
            if polled > 0 {
                assert_eq!(polled, 1);
                succeeded(wcs[0], wr_id)?;
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
    let _test = device_test();
    let peer = peer()?;
    let memory = Box::into_raw(pattern(64, 3).into_boxed_slice());
    let start = NonNull::new(memory.cast::<u8>()).ok_or("allocated")?;
    // SAFETY: `Box::from_raw` below frees the memory, after `again` was dropped, which is the
    // last owner of the registration. No other code accesses it.
    let source = unsafe { Mr::reg_raw(&peer, start, 64, MrUsage::READ_SRC) };
    let source = source?;
    let copy = region(&peer, 64, MrUsage::READ_DST)?;
    let pair = Pair::new(&peer)?;
    let part = remote(&source);
    let (to, from) = (copy.slice(..)?, part.slice(..)?);
    let read = pair.client.read(to, from, Flags::COMPLETION_ALWAYS, 1);
    read?;
    assert_eq!(
        succeeded(completion(&pair.client)?, 1)?,
        WcOpcode::RDMA_READ
    );
    assert_eq!(contents(&copy)?, pattern(64, 3));

    let text = invalid(source.write_at(0, &[0]));
    assert!(text.contains("read-only"), "{text}");
    let raw = source.dereg()?;
    let refused = Mr::reg(&peer, raw, MrUsage::WRITE_DST).expect_err("nobody promised that");
    assert!(refused.error.to_string().contains("read-only"), "{refused}");
    let again = Mr::reg(&peer, refused.memory, MrUsage::READ_SRC)?;
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
    let text = invalid(PmemMap::open_range(devdax(), MIB..4 * MIB));
    assert!(
        text.contains("its alignment is 2097152. 0..4194304 can"),
        "{text}"
    );
    let map = PmemMap::open_range(devdax(), 2 * MIB..4 * MIB)?;
    let peer = peer()?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
    const LEN: usize = 65_000;
    let parts: Vec<_> = (0..10)
        .map(|n| -> Result<_> {
            let part = map.part(n * LEN..(n + 1) * LEN)?;
            Ok(Mr::reg(&peer, part, usage)?)
        })
        .collect::<Result<_, _>>()?;
    let keys: std::collections::BTreeSet<_> = parts
        .iter()
        .map(|part| part.get_descriptor()[16..20].to_vec())
        .collect();
    assert_eq!(keys.len(), 10, "a key for each");

    let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let write = |conn: &Conn, to: &MrRemote| -> Result {
        let to = to.slice(..8)?;
        let from = source.slice(..)?;
        conn.write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
        conn.flush(to, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 2)?;
        Ok(())
    };
    for (n, part) in parts.iter().enumerate() {
        let pair = Pair::new(&peer)?;
        pair.client.apply_remote_peer_cfg(&direct_write()?);
        source.store_u64(0, 100 + n as u64)?;
        write(&pair.client, &remote(part))?;
        completion(&pair.client)?.result()?;
        let mut bytes = [0; 8];
        map.read_at(n * LEN, &mut bytes)?;
        assert_eq!(u64::from_ne_bytes(bytes), 100 + n as u64);
        part.persist(..8)?;
    }
    // The key of one with the address of its neighbour.
    let mut forged = parts[0].get_descriptor();
    forged[..8].copy_from_slice(&parts[1].get_descriptor()[..8]);
    let forged = MrRemote::from_descriptor(&forged)?;
    let pair = Pair::new(&peer)?;
    pair.client.apply_remote_peer_cfg(&direct_write()?);
    source.store_u64(0, 7)?;
    write(&pair.client, &forged)?;
    // The write fails, and its flush is flushed.
    let failed = completions(&pair.client, 2)?;
    assert_eq!(failed[0].status(), WcStatus::REM_ACCESS_ERR);
    let mut bytes = [0; 8];
    map.read_at(LEN, &mut bytes)?;
    assert_eq!(u64::from_ne_bytes(bytes), 101, "untouched");
    drop(map);
    parts[3].persist(..)?;
    Ok(())
}
