//! The operations with this library, each in a function of its own, [`ROUNDS`] times.
//!
//! Both ends are in this process and this thread. All operations are posted first and polled later,
//! so that each function has only its own cost.

use rpma::Result;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::common::prelude::*;
use crate::{DEPTH, LEN, ROUNDS, TIMED, WARM, came, common, counted, unusual};

/// For completions that are there already.
const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
/// How many operations there are in batches of 16 writes and a flush.
const BATCHED: usize = ROUNDS / 16 * 17;

pub(crate) type Parts<'a> = [(RemoteSlice, MrSlice<'a>)];

pub(crate) fn run(addr: &str) -> Result<()> {
    let peer = Peer::at(addr)?;
    let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
    let local = Mr::reg(&peer, vec![1; ROUNDS * LEN], usage)?;
    let remote = Mr::reg(&peer, vec![0; ROUNDS * LEN], usage)?;
    let remote = common::remote(&remote);
    let parts = parts(&remote, &local)?;
    for fallback in [false, true] {
        let (conn, server) = pair(&peer, addr, &cfg(fallback))?;
        let mut peer_cfg = PeerCfg::new();
        peer_cfg.set_direct_write_to_pmem(true);
        conn.apply_remote_peer_cfg(&peer_cfg);
        if fallback {
            let cq = conn.get_cq();
            measured_flush_fallback(&conn, &parts)?;
            settled("flush_fallback", cq)?;
            measured_batch(&conn, &parts)?;
            counted("batch_fallback", BATCHED);
            settle(cq, ROUNDS / 16)?;
            measured_batch_flush(&conn, &parts)?;
            settled("batch_flush_fallback", cq)?;
            unusual::fallback(&conn, &local, &remote)?;
        } else {
            native(&conn, &server, &parts, &local, &remote)?;
            unusual::native(&conn, &server, &parts, &local, &remote)?;
        }
    }
    for own_queue in [DEPTH, 0] {
        let mut srq_cfg = SrqCfg::new();
        srq_cfg.set_rq_size(DEPTH).set_rcq_size(own_queue);
        let srq = Srq::new(&peer, &srq_cfg)?;
        let mut cfg = cfg(true);
        cfg.set_srq(Some(&srq));
        let (client, server) = pair(&peer, addr, &cfg)?;
        unusual::shared_receives(&client, &server, &srq, &parts)?;
    }
    Ok(())
}

/// Where each operation goes, and the bytes of each.
pub(crate) fn parts<'a>(
    remote: &MrRemote,
    local: &'a Mr<Vec<u8>>,
) -> Result<Vec<(RemoteSlice, MrSlice<'a>)>> {
    let part = |n| {
        let (start, end) = (n * LEN, (n + 1) * LEN);
        let to = remote.slice(start as u64..end as u64)?;
        Ok((to, local.slice(start..end)?))
    };
    (0..ROUNDS).map(part).collect()
}

/// As many open files as are possible.
pub(crate) fn many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("more open files");
}

/// Posts a write on each of `count` connections in turn, and polls each in turn: as [`run`] counts.
pub(crate) fn run_many(addr: &str, count: usize) -> Result<()> {
    // valgrind keeps some of those that are possible.
    many_files();
    let peer = Peer::at(addr)?;
    let local = Mr::reg(&peer, vec![1; LEN], MrUsage::WRITE_SRC)?;
    let remote = Mr::reg(&peer, vec![0; LEN], MrUsage::WRITE_DST)?;
    let remote = common::remote(&remote);
    let parts = [(remote.slice(..)?, local.slice(..)?)];
    let before = memory();
    let pairs = (0..count).map(|_| pair(&peer, addr, &cfg(false)));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let used = memory().saturating_sub(before) / 2 / count as u64;
    println!("memory {used}");
    let conns: Vec<_> = pairs.iter().map(|(client, _)| client).collect();
    let mut wcs = [Wc::default()];
    // Each connection has looked once how much room it has.
    for round in 0..2 {
        measured_write_each(&conns, &parts)?;
        counted(["ignored", "write"][round], count);
        for conn in &conns {
            settle(conn.get_cq(), 1)?;
        }
    }
    measured_write_each(&conns, &parts)?;
    counted("ignored", count);
    came();
    measured_get_wc_each(&conns, &mut wcs)?;
    counted("get_wc_1", count);
    // Thousands of connections end when the process does.
    std::process::exit(0);
}

/// Posts so many writes and their flush, and waits for it, over and over; prints the nanoseconds
/// of one write, and those of them that posting took. More than one are posted as a batch.
pub(crate) fn run_timed(addr: &str, depth: u64) -> Result<()> {
    let peer = Peer::at(addr)?;
    let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
    let local = Mr::reg(&peer, vec![1; LEN], MrUsage::WRITE_SRC)?;
    let remote = Mr::reg(&peer, vec![0; LEN], usage)?;
    let remote = common::remote(&remote);
    let (remote, local) = (remote.slice(..)?, local.slice(..)?);
    let (conn, _server) = pair(&peer, addr, &cfg(false))?;
    let (mut start, mut posting) = (Instant::now(), Duration::ZERO);
    for n in 0..(WARM + TIMED) / depth {
        if n == WARM / depth {
            (start, posting) = (Instant::now(), Duration::ZERO);
        }
        let begun = Instant::now();
        if depth == 1 {
            conn.write(remote, local, Flags::COMPLETION_ON_ERROR, n)?;
            conn.flush(remote, FlushType::Visibility, ALWAYS, n)?;
        } else {
            let mut batch = conn.batch::<17>();
            for _ in 0..depth {
                batch.write(remote, local, Flags::COMPLETION_ON_ERROR, n)?;
            }
            batch.flush(remote, FlushType::Visibility, ALWAYS, n)?;
            batch.post()?;
        }
        posting += begun.elapsed();
        settle(conn.get_cq(), 1)?;
    }
    let [all, posting] = [start.elapsed(), posting].map(|time| time.as_nanos() / u128::from(TIMED));
    println!("{all} {posting}");
    Ok(())
}

/// Writes so many bytes at a time, always 16 under way; prints the nanoseconds of one write.
pub(crate) fn run_large(addr: &str, len: usize, count: u64) -> Result<()> {
    let peer = Peer::at(addr)?;
    let local = Mr::reg(&peer, vec![1; len], MrUsage::WRITE_SRC)?;
    let remote = Mr::reg(&peer, vec![0; len], MrUsage::WRITE_DST)?;
    let remote = common::remote(&remote);
    let (remote, local) = (remote.slice(..)?, local.slice(..)?);
    let (conn, _server) = pair(&peer, addr, &cfg(false))?;
    let (mut posted, mut done) = (0, 0);
    let mut wcs = [Wc::default(); 16];
    let start = Instant::now();
    while done < count {
        while posted < count && posted - done < 16 {
            conn.write(remote, local, ALWAYS, posted)?;
            posted += 1;
        }
        let polled = conn.get_cq().get_wc(&mut wcs)?;
        for wc in &wcs[..polled] {
            wc.result()?;
        }
        done += polled as u64;
    }
    println!("{}", start.elapsed().as_nanos() / u128::from(count));
    Ok(())
}

#[inline(never)]
fn measured_write_each(conns: &[&Conn], parts: &Parts<'_>) -> Result<()> {
    let (remote, local) = parts[0];
    for (n, conn) in conns.iter().enumerate() {
        conn.write(remote, local, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_get_wc_each(conns: &[&Conn], wcs: &mut [Wc]) -> Result<()> {
    for conn in conns {
        assert_eq!(conn.get_cq().get_wc(wcs)?, 1, "it is there");
    }
    Ok(())
}

/// The bytes of this process's memory that are in RAM.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("about this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.expect("a size") * 1024
}

fn native(
    conn: &Conn,
    server: &Conn,
    parts: &Parts<'_>,
    local: &Mr<Vec<u8>>,
    remote: &MrRemote,
) -> Result<()> {
    let cq = conn.get_cq();
    measured_write(conn, parts)?;
    settled("write", cq)?;
    measured_write_slices(conn, local, remote)?;
    settled("write_slices", cq)?;
    measured_write_inline(conn, parts)?;
    settled("write_inline", cq)?;
    measured_flush(conn, parts)?;
    settled("flush", cq)?;
    measured_read(conn, parts)?;
    settled("read", cq)?;
    let atomic = unusual::words(remote, 8)?;
    measured_atomic_write(conn, &atomic)?;
    settled("atomic_write", cq)?;
    measured_recv(server, parts)?;
    counted("recv", ROUNDS);
    measured_send(conn, parts)?;
    settled("send", cq)?;
    settle(server.get_cq(), ROUNDS)?;

    measured_batch(conn, parts)?;
    counted("batch", BATCHED);
    settle(cq, ROUNDS / 16)?;
    measured_batch_write(conn, parts)?;
    settled("batch_write", cq)?;
    measured_batch_flush(conn, parts)?;
    settled("batch_flush", cq)?;
    measured_batch_read(conn, parts)?;
    settled("batch_read", cq)?;
    measured_batch_atomic_write(conn, &atomic)?;
    settled("batch_atomic_write", cq)?;
    measured_recv_many(server, parts)?;
    counted("recv_many", ROUNDS);
    measured_batch_send(conn, parts)?;
    settled("batch_send", cq)?;
    settle(server.get_cq(), ROUNDS)?;

    let mut wcs = [Wc::default(); 16];
    let posted = posted_writes(conn, parts)?;
    came();
    measured_wait_for(conn, &posted)?;
    counted("wait_for", ROUNDS);
    posted_writes(conn, parts)?;
    came();
    measured_next(conn, &mut wcs[..1])?;
    counted("next", ROUNDS);
    measured_get_wc_0(cq, &mut wcs[..1])?;
    counted("get_wc_0", ROUNDS);
    measured_write(conn, parts)?;
    counted("ignored", ROUNDS);
    came();
    measured_get_wc_1(cq, &mut wcs[..1])?;
    counted("get_wc_1", ROUNDS);
    measured_write(conn, parts)?;
    counted("ignored", ROUNDS);
    came();
    measured_get_wc_16(cq, &mut wcs)?;
    counted("get_wc_16", ROUNDS / 16);
    Ok(())
}

#[inline(never)]
fn measured_write(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        conn.write(remote, local, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_write_slices(conn: &Conn, local: &Mr<Vec<u8>>, remote: &MrRemote) -> Result<()> {
    for n in 0..ROUNDS {
        let (start, end) = (n * LEN, n * LEN + LEN);
        let dst = remote.slice(start as u64..end as u64)?;
        conn.write(dst, local.slice(start..end)?, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_write_inline(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        conn.write(remote, local, ALWAYS | Flags::INLINE, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_flush(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, _)) in parts.iter().enumerate() {
        conn.flush(remote, FlushType::Visibility, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_flush_fallback(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, _)) in parts.iter().enumerate() {
        conn.flush(remote, FlushType::Visibility, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_read(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        conn.read(local, remote, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn measured_atomic_write(conn: &Conn, parts: &[RemoteSlice]) -> Result<()> {
    for (n, &remote) in parts.iter().enumerate() {
        conn.atomic_write(remote, &n.to_ne_bytes(), ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_send(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(_, local)) in parts.iter().enumerate() {
        conn.send(local, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_recv(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(_, local)) in parts.iter().enumerate() {
        conn.recv(local, n as u64)?;
    }
    Ok(())
}

/// 16 records and their flush. Only the flush has a completion.
#[inline(never)]
fn measured_batch(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<17>();
        for (n, &(remote, local)) in parts.iter().enumerate() {
            batch.write(remote, local, Flags::COMPLETION_ON_ERROR, n as u64)?;
        }
        batch.flush(parts[0].0, FlushType::Visibility, ALWAYS, 16)?;
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_write(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<16>();
        for (n, &(remote, local)) in parts.iter().enumerate() {
            batch.write(remote, local, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_flush(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<16>();
        for (n, &(remote, _)) in parts.iter().enumerate() {
            batch.flush(remote, FlushType::Visibility, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_read(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<16>();
        for (n, &(remote, local)) in parts.iter().enumerate() {
            batch.read(local, remote, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn measured_batch_atomic_write(conn: &Conn, parts: &[RemoteSlice]) -> Result<()> {
    let word = 7u64.to_ne_bytes();
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<16>();
        for (n, &remote) in parts.iter().enumerate() {
            batch.atomic_write(remote, &word, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_send(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let mut batch = conn.batch::<16>();
        for (n, &(_, local)) in parts.iter().enumerate() {
            batch.send(local, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_recv_many(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let receives: [_; 16] = std::array::from_fn(|n| (parts[n].1, n as u64));
        conn.recv_many(&receives)?;
    }
    Ok(())
}

fn posted_writes(conn: &Conn, parts: &Parts<'_>) -> Result<Vec<Posted>> {
    let writes = parts.iter().take(ROUNDS);
    let post = |&(remote, local): &(_, _)| conn.write(remote, local, ALWAYS, 0);
    writes.map(post).collect()
}

#[inline(never)]
fn measured_wait_for(conn: &Conn, posted: &[Posted]) -> Result<()> {
    for &posted in posted {
        conn.wait_for(posted, LIMIT, |_| {})?;
    }
    Ok(())
}

#[inline(never)]
fn measured_next(conn: &Conn, wcs: &mut [Wc]) -> Result<()> {
    for _ in 0..ROUNDS {
        conn.next(wcs, LIMIT)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_get_wc_0(cq: &Cq, wcs: &mut [Wc]) -> Result<()> {
    for _ in 0..ROUNDS {
        assert_eq!(cq.get_wc(wcs)?, 0, "nothing is there");
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn measured_get_wc_1(cq: &Cq, wcs: &mut [Wc]) -> Result<()> {
    for _ in 0..ROUNDS {
        assert_eq!(cq.get_wc(wcs)?, 1, "all are there");
    }
    Ok(())
}

#[inline(never)]
pub(crate) fn measured_get_wc_16(cq: &Cq, wcs: &mut [Wc; 16]) -> Result<()> {
    for _ in 0..ROUNDS / 16 {
        assert_eq!(cq.get_wc(wcs)?, 16, "all are there");
    }
    Ok(())
}

/// The count is of this operation, and all of them succeed.
pub(crate) fn settled(name: &str, cq: &Cq) -> Result<()> {
    counted(name, ROUNDS);
    settle(cq, ROUNDS)
}

/// Polls until that many operations have succeeded.
pub(crate) fn settle(cq: &Cq, count: usize) -> Result<()> {
    let (mut left, mut wcs) = (count, [Wc::default(); 16]);
    while left > 0 {
        let polled = cq.get_wc(&mut wcs)?;
        for wc in &wcs[..polled] {
            wc.result()?;
        }
        left -= polled;
    }
    Ok(())
}

/// How connections are made.
pub(crate) fn cfg(fallback: bool) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(DEPTH)
        .set_rq_size(DEPTH)
        .set_cq_size(2 * DEPTH);
    cfg.set_max_inline_data(LEN as u32);
    cfg.set_max_send_sge(2).expect("two local buffers");
    cfg.set_force_fallback(fallback);
    cfg
}

/// Both ends of a connection.
pub(crate) fn pair(peer: &Peer, addr: &str, cfg: &ConnCfg) -> Result<(Conn, Conn)> {
    let ep = Ep::listen(peer, addr, 0)?;
    let client = ConnReq::new(peer, addr, ep.get_port(), cfg)?.connect(&[])?;
    let server = ep.next_conn_req(cfg)?.connect(&[])?;
    client.next_event()?;
    server.next_event()?;
    Ok((client, server))
}
