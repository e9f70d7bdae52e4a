//! The operations beside the main road: several local buffers, no buffer, fences, short flushes,
//! fallbacks, batches of one, and shared receive queues.

use std::hint::black_box;

use rpma::Result;

use crate::common::prelude::*;
use crate::rpma::{
    ALWAYS, Parts, measured_atomic_write, measured_batch_atomic_write, measured_get_wc_1,
    measured_get_wc_16, settle, settled,
};
use crate::{DEPTH, LEN, ROUNDS, came, counted};

pub(crate) fn native(
    conn: &Conn,
    server: &Conn,
    parts: &Parts<'_>,
    local: &Mr<Vec<u8>>,
    remote: &MrRemote,
) -> Result<()> {
    let cq = conn.get_cq();
    measured_write_tuple(conn, local, remote)?;
    settled("write_tuple", cq)?;
    let halves = (0..ROUNDS).map(|n| {
        let (start, middle, end) = (n * LEN, n * LEN + LEN / 2, n * LEN + LEN);
        Ok([local.slice(start..middle)?, local.slice(middle..end)?])
    });
    let halves = halves.collect::<Result<Vec<_>>>()?;
    measured_write_gather(conn, parts, &halves)?;
    settled("write_gather", cq)?;
    let empty = (0..ROUNDS).map(|n| {
        let at = n * LEN;
        Ok((remote.slice(at as u64..at as u64)?, local.slice(at..at)?))
    });
    let empty = empty.collect::<Result<Vec<_>>>()?;
    measured_write_empty(conn, &empty)?;
    settled("write_empty", cq)?;
    measured_write_fence(conn, parts)?;
    settled("write_fence", cq)?;
    measured_flush_short(conn, &words(remote, 4)?)?;
    settled("flush_short", cq)?;
    measured_batch_1(conn, parts)?;
    settled("batch_1", cq)?;
    measured_batch_2(conn, parts)?;
    counted("batch_2", ROUNDS / 2);
    settle(cq, ROUNDS)?;
    commits(conn, local, remote, "")?;
    // In turn: each message completes a send and a receive of this side.
    for &(_, local) in parts.iter().take(ROUNDS / 2) {
        conn.recv(local, 1)?;
        server.recv(local, 2)?;
        conn.send(local, ALWAYS, 3)?;
        server.send(local, ALWAYS, 4)?;
    }
    came();
    let mut wcs = [Wc::default(); 16];
    measured_get_wc_16(cq, &mut wcs)?;
    counted("get_wc_mixed", ROUNDS / 16);
    settle(server.get_cq(), ROUNDS)
}

pub(crate) fn fallback(conn: &Conn, local: &Mr<Vec<u8>>, remote: &MrRemote) -> Result<()> {
    let cq = conn.get_cq();
    commits(conn, local, remote, "_fallback")?;
    measured_flush_short(conn, &words(remote, 4)?)?;
    settled("flush_short_fallback", cq)?;
    let atomic = words(remote, 8)?;
    measured_atomic_write(conn, &atomic)?;
    settled("atomic_write_fallback", cq)?;
    measured_batch_atomic_write(conn, &atomic)?;
    settled("batch_atomic_write_fallback", cq)
}

/// Commits of one part, of five and of nine, each with a pointer. Another place for each.
fn commits(conn: &Conn, local: &Mr<Vec<u8>>, remote: &MrRemote, suffix: &str) -> Result<()> {
    let part = |n: usize| {
        let (start, end) = (n * LEN, n * LEN + LEN - 8);
        let to = remote.slice(start as u64..end as u64)?;
        Ok((to, local.slice(start..end)?))
    };
    let pointers = words(remote, 8)?;
    for count in [1, 5, 9] {
        // As many as the queue has slots for, and one slot more.
        let commits = (DEPTH as usize - 1) / (count + 3);
        let mut all = Vec::new();
        for n in 0..commits {
            let parts: Vec<_> = (0..count).map(|m| part(n + m)).collect::<Result<_>>()?;
            all.push((parts, pointers[n + count]));
        }
        match count {
            1 => measured_commit_1(conn, &all)?,
            _ => measured_commit(conn, &all)?,
        }
        counted(&format!("commit_{count}{suffix}"), commits);
        settle(conn.get_cq(), commits)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_commit_1(
    conn: &Conn,
    commits: &[(Vec<(RemoteSlice, MrSlice<'_>)>, RemoteSlice)],
) -> Result<()> {
    for (n, (parts, pointer)) in commits.iter().enumerate() {
        let pointer = Some((*pointer, n.to_ne_bytes()));
        // Uses its ticket, which no other call uses.
        let posted = conn.commit(&parts[..1], pointer, FlushType::Visibility, n as u64)?;
        black_box(posted);
    }
    Ok(())
}

#[inline(never)]
fn measured_commit(
    conn: &Conn,
    commits: &[(Vec<(RemoteSlice, MrSlice<'_>)>, RemoteSlice)],
) -> Result<()> {
    for (n, (parts, pointer)) in commits.iter().enumerate() {
        let pointer = Some((*pointer, n.to_ne_bytes()));
        black_box(conn.commit(parts, pointer, FlushType::Visibility, n as u64)?);
    }
    Ok(())
}

/// Receives of `srq`. Their completions arrive in its own queue or in that of `server`.
pub(crate) fn shared_receives(
    client: &Conn,
    server: &Conn,
    srq: &Srq,
    parts: &Parts<'_>,
) -> Result<()> {
    let (cq, prefix) = match srq.get_rcq() {
        Some(own) => (own, "srq"),
        None => (server.get_cq(), "conn_srq"),
    };
    let mut wcs = [Wc::default(); 16];
    measured_srq_recv(srq, parts)?;
    counted("srq_recv", ROUNDS);
    send_all(client, parts)?;
    measured_get_wc_1(cq, &mut wcs[..1])?;
    counted(&format!("{prefix}_get_wc_1"), ROUNDS);
    measured_srq_recv_many(srq, parts)?;
    counted("srq_recv_many", ROUNDS);
    send_all(client, parts)?;
    measured_get_wc_16(cq, &mut wcs)?;
    counted(&format!("{prefix}_get_wc_16"), ROUNDS / 16);
    Ok(())
}

/// Sends a message for each receive, and waits until all have arrived.
fn send_all(client: &Conn, parts: &Parts<'_>) -> Result<()> {
    for &(_, local) in parts {
        client.send(local, ALWAYS, 0)?;
    }
    settle(client.get_cq(), ROUNDS)?;
    came();
    Ok(())
}

/// The beginning of each operation's part.
pub(crate) fn words(remote: &MrRemote, len: u64) -> Result<Vec<RemoteSlice>> {
    let starts = (0..ROUNDS as u64).map(|n| n * LEN as u64);
    let word = |start| remote.slice(start..start + len);
    starts.map(word).collect()
}

#[inline(never)]
fn measured_write_tuple(conn: &Conn, local: &Mr<Vec<u8>>, remote: &MrRemote) -> Result<()> {
    for n in 0..ROUNDS {
        let (start, end) = (n * LEN, n * LEN + LEN);
        let slices = (
            remote.slice(start as u64..end as u64),
            local.slice(start..end),
        );
        let (dst, src) = match slices {
            (Ok(dst), Ok(src)) => (dst, src),
            (Err(error), _) | (_, Err(error)) => return Err(error),
        };
        conn.write(dst, src, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_write_gather(conn: &Conn, parts: &Parts<'_>, src: &[[MrSlice<'_>; 2]]) -> Result<()> {
    for (n, (&(remote, _), src)) in parts.iter().zip(src).enumerate() {
        conn.write_gather(remote, src, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_write_empty(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        conn.write(remote, local, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_write_fence(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        conn.write(remote, local, ALWAYS | Flags::FENCE, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_flush_short(conn: &Conn, parts: &[RemoteSlice]) -> Result<()> {
    for (n, &remote) in parts.iter().enumerate() {
        conn.flush(remote, FlushType::Visibility, ALWAYS, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_1(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for (n, &(remote, local)) in parts.iter().enumerate() {
        let mut batch = conn.batch::<1>();
        batch.write(remote, local, ALWAYS, n as u64)?;
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_batch_2(conn: &Conn, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(2) {
        let mut batch = conn.batch::<2>();
        for (n, &(remote, local)) in parts.iter().enumerate() {
            batch.write(remote, local, ALWAYS, n as u64)?;
        }
        batch.post()?;
    }
    Ok(())
}

#[inline(never)]
fn measured_srq_recv(srq: &Srq, parts: &Parts<'_>) -> Result<()> {
    for (n, &(_, local)) in parts.iter().enumerate() {
        srq.recv(local, n as u64)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_srq_recv_many(srq: &Srq, parts: &Parts<'_>) -> Result<()> {
    for parts in parts.chunks_exact(16) {
        let receives: [_; 16] = std::array::from_fn(|n| (parts[n].1, n as u64));
        srq.recv_many(&receives)?;
    }
    Ok(())
}
