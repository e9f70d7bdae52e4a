//! Writes, reads, flushes and atomic writes of the other side's memory.

use crate::interop::prelude::*;

#[test]
fn c_writes() -> Result {
    let (_test, peer) = begin()?;
    let target = filled(&peer, MrUsage::WRITE_DST)?;
    serve(&peer, &ConnCfg::new(), &target, false, &["write"])?;
    assert!(contents(&target)? == written());
    Ok(())
}

#[test]
fn c_reads() -> Result {
    let (_test, peer) = begin()?;
    let target = filled(&peer, MrUsage::READ_SRC)?;
    // The client compares.
    serve(&peer, &ConnCfg::new(), &target, false, &["read"]).map(drop)
}

/// Writes `PARTS` and calls `after` after each of them.
fn write_parts(
    peer: &Peer,
    conn: &Conn,
    remote: &MrRemote,
    after: impl Fn(RemoteSlice) -> Result,
) -> Result {
    let source = region(peer, SHARED, MrUsage::WRITE_SRC)?;
    for (i, (at, len)) in PARTS.into_iter().enumerate() {
        source.write_at(0, &pattern(len, i as u64 + 1))?;
        let (local, part) = (source.slice(..len)?, slice(remote, at, len)?);
        conn.write(part, local, Flags::COMPLETION_ALWAYS, i as u64)?;
        succeeded(completion(conn)?, i as u64, WcOpcode::RDMA_WRITE)?;
        after(part)?;
    }
    Ok(())
}

#[test]
fn rust_writes() -> Result {
    let (_test, peer) = begin()?;
    let cfg = ConnCfg::new();
    let (server, conn, remote) = exposed(&peer, &cfg, MrUsage::WRITE_DST, None)?;
    write_parts(&peer, &conn, &remote, |_| Ok(()))?;
    disconnect(conn);
    assert!(unhex(find(&server.done(), "memory")) == written());
    Ok(())
}

#[test]
fn rust_reads() -> Result {
    let (_test, peer) = begin()?;
    let cfg = ConnCfg::new();
    let (server, conn, remote) = exposed(&peer, &cfg, MrUsage::READ_SRC, None)?;
    let target = region(&peer, SHARED, MrUsage::READ_DST)?;
    for (i, (at, len)) in PARTS.into_iter().enumerate() {
        let local = target.slice(at..at + len)?;
        let part = slice(&remote, at, len)?;
        conn.read(local, part, Flags::COMPLETION_ALWAYS, i as u64)?;
        succeeded(completion(&conn)?, i as u64, WcOpcode::RDMA_READ)?;
        assert!(contents(&target)?[at..at + len] == pattern(SHARED, 5)[at..at + len]);
    }
    disconnect(conn);
    server.done();
    Ok(())
}

/// The C library flushes natively. A region that was registered for that serves it; one that was
/// not, because this library was built with an rdma-core that has no native flush, refuses it. How
/// this side's own operations are done makes no difference.
fn c_flushes<M: RegisterableMemory>(peer: &Peer, target: &Mr<M>, flush_type: &str) -> Result {
    for cfg in configurations() {
        target.write_at(0, &pattern(SHARED, 5))?;
        let lines = serve(peer, &cfg, target, true, &["flush", flush_type])?;
        let results = lines.iter().filter(|line| !line.starts_with("event"));
        let results: Vec<_> = results.collect();
        let mut there = vec![0; SHARED];
        target.read_at(0, &mut there)?;
        if cfg!(native_flush) {
            assert_eq!(results, [&format!("flushed {}", WcOpcode::FLUSH.0); 5]);
            assert!(there == written());
        } else {
            assert_eq!(results, [&format!("failed {}", WcStatus::REM_ACCESS_ERR.0)]);
            let (at, len) = PARTS[0];
            let is_done = there[at..at + len] == written()[at..at + len];
            assert!(is_done, "the write is done");
        }
    }
    Ok(())
}

#[test]
fn c_flushes_for_visibility() -> Result {
    let (_test, peer) = begin()?;
    let target = filled(&peer, MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY)?;
    c_flushes(&peer, &target, "1")
}

#[test]
fn c_flushes_for_persistence() -> Result {
    let (_test, peer) = begin()?;
    let map = PmemMap::open(devdax(), SHARED)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let target = Mr::reg(&peer, map, usage)?;
    c_flushes(&peer, &target, "0")
}

/// Flushes memory of a C server that was registered for `usage`.
///
/// The C library registers for its native flush without the right to read (W-10). So the fallback,
/// which reads, is refused, unless the C program adds `RPMA_MR_USAGE_READ_SRC`.
fn rust_flushes(usage: MrUsage, path: Option<&str>, flush_type: FlushType) -> Result {
    let peer = peer()?;
    for cfg in configurations() {
        let native = peer.is_native_flush_capable() && !cfg.get_force_fallback();
        let (server, conn, remote) = exposed(&peer, &cfg, usage, path)?;
        assert_eq!(conn.has_native_flush(), native);
        if native || usage.contains(MrUsage::READ_SRC) {
            let opcode = if native {
                WcOpcode::FLUSH
            } else {
                WcOpcode::RDMA_READ
            };
            write_parts(&peer, &conn, &remote, |part| {
                conn.flush(part, flush_type, Flags::COMPLETION_ALWAYS, 100)?;
                succeeded(completion(&conn)?, 100, opcode)
            })?;
            disconnect(conn);
            assert!(unhex(find(&server.done(), "memory")) == written());
        } else {
            let part = slice(&remote, 0, 8)?;
            conn.flush(part, flush_type, Flags::COMPLETION_ALWAYS, 100)?;
            let failure = completion(&conn)?.result().expect_err("no right to read");
            assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR, "{failure}");
            disconnect(conn);
            server.done();
        }
    }
    Ok(())
}

#[test]
fn rust_flushes_for_visibility() -> Result {
    let _test = device_test();
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    rust_flushes(usage | MrUsage::READ_SRC, None, FlushType::Visibility)
}

#[test]
fn rust_flushes_for_persistence() -> Result {
    let _test = device_test();
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    let usage = usage | MrUsage::READ_SRC;
    rust_flushes(usage, Some(&devdax()), FlushType::Persistent)
}

#[test]
fn a_fallback_flush_of_c_memory_needs_the_right_to_read() -> Result {
    let _test = device_test();
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    rust_flushes(usage, None, FlushType::Visibility)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
    rust_flushes(usage, Some(&devdax()), FlushType::Persistent)
}

/// The contents of the memory after the atomic writes.
fn atomically_written() -> Vec<u8> {
    let mut bytes = pattern(SHARED, 5);
    for at in [0, SHARED - 8] {
        bytes[at..at + 8].copy_from_slice(&pattern(8, at as u64 + 1));
    }
    bytes
}

#[test]
fn c_writes_atomically() -> Result {
    let (_test, peer) = begin()?;
    for cfg in configurations() {
        let target = filled(&peer, MrUsage::WRITE_DST)?;
        serve(&peer, &cfg, &target, false, &["atomic"])?;
        assert!(contents(&target)? == atomically_written());
    }
    Ok(())
}

#[test]
fn rust_writes_atomically() -> Result {
    let (_test, peer) = begin()?;
    for cfg in configurations() {
        let (server, conn, remote) = exposed(&peer, &cfg, MrUsage::WRITE_DST, None)?;
        let opcode = if peer.is_native_atomic_write_capable() && !cfg.get_force_fallback() {
            WcOpcode::ATOMIC_WRITE
        } else {
            WcOpcode::RDMA_WRITE
        };
        for at in [0, SHARED - 8] {
            let word = pattern(8, at as u64 + 1).try_into().expect("8 bytes");
            let part = slice(&remote, at, 8)?;
            conn.atomic_write(part, &word, Flags::COMPLETION_ALWAYS, 1)?;
            succeeded(completion(&conn)?, 1, opcode)?;
        }
        disconnect(conn);
        assert!(unhex(find(&server.done(), "memory")) == atomically_written());
    }
    Ok(())
}
