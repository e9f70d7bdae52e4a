//! The checks of all points before the first measurement.

use rpma::Offer;

use super::Bench;
use super::load::MOST;
use super::places::{needed, stride};
use super::session::{RECEIVES, flush_type, method};
use crate::args::Measure;
use crate::problem::{Problem, Result};
use crate::settings::{Completions, Flush, Method, Op, Setting};
use crate::wire::{MOST_LINES, MOST_RECEIVES, RECEIVED};

/// The most operations in flight of a connection. The queues of most devices have fewer.
const DEEPEST: u32 = 16_384;
/// The most local memory of a connection, for its operations in flight.
const LOCAL: u64 = 1 << 30;

/// The points of the arguments, if all of them are possible.
pub(super) fn points(args: &Measure) -> Result<Vec<Setting>> {
    let mut first = args.setting;
    first.servers = args.servers.len() as u32;
    let mut points = args.sweep.points(first);
    for point in &mut points {
        if point.connections == 0 {
            point.connections = point.threads;
        }
        complete(point);
        check(point)?;
    }
    Ok(points)
}

/// Fills in the parts that an operation alone decides.
fn complete(point: &mut Setting) {
    if !matches!(point.op, Op::WriteFlush | Op::Commit) {
        (point.method, point.flush) = (None, None);
    }
    if point.op == Op::AtomicWrite {
        point.size = 8;
    }
    if point.op == Op::Commit && point.servers > 1 && point.copies.is_none() {
        point.copies = Some(point.servers);
    }
}

/// Refuses a point that no server can serve. Each fault has its remedy.
fn check(point: &Setting) -> Result {
    let (is_batch, is_commit) = (point.batch > 1, point.op == Op::Commit);
    let by_server = point.method == Some(Method::Server);
    let copies = point.copies.unwrap_or(0);
    let local = stride(point.size).saturating_mul(point.depth.into());
    let sleeps = point.completions == Completions::Wait;
    let fault = if point.depth > DEEPEST {
        "at most 16384 operations are in flight on a connection. Give a smaller --depth"
    } else if point.batch as usize > MOST {
        "a batch has at most 64 operations. Give a smaller --batch"
    } else if point.depth % point.batch != 0 {
        "the operations in flight are whole batches. Give a --depth that is a multiple of --batch"
    } else if is_batch && is_commit {
        "a commit is a batch by itself. Leave out --batch"
    } else if is_batch && point.op == Op::ReadWrite {
        "writes and reads in turn have no batches. Leave out --batch"
    } else if point.connections % point.threads != 0 {
        "each thread has as many connections as the others. Give --connections as a multiple of \
         --threads"
    } else if sleeps && point.connections != point.threads {
        "a thread that sleeps has one connection. Give as many --threads as --connections, or \
         --completions poll"
    } else if point.connections as usize > MOST_LINES {
        "a server has at most 32 connections for a client. Give fewer --connections"
    } else if local > LOCAL {
        "the operations in flight on a connection have at most 1073741824 bytes. Give a smaller \
         --size or --depth"
    } else if is_commit && copies > point.servers {
        "each copy needs a server of its own, so give as many servers, or fewer --copies"
    } else if !is_commit && copies > 0 {
        "only a commit has copies. Leave out --copies"
    } else if !is_commit && point.servers > 1 {
        "only a commit goes to several servers. Give one server"
    } else if !is_commit && by_server {
        "the server's processor only makes commits durable. Give --op commit, or another --method"
    } else {
        return Ok(());
    };
    Err(Problem::new(format!("{point}: {fault}"), ""))
}

/// Checks a point against the memory of the servers.
pub(super) fn fits(point: &Setting, bench: &Bench) -> Result {
    for (number, server) in (1..).zip(&bench.servers) {
        let (offered, needed) = (server.arena.get_size(), needed(point));
        if offered < needed {
            return Err(Problem::new(
                format!(
                    "{point}: server {number} offers {offered} bytes, and the operations need \
                     {needed}"
                ),
                format!("Start `rpma serve --size {needed}` there, or give a smaller --size"),
            ));
        }
    }
    let sends = point.op == Op::Send;
    let limits = bench.servers.iter().filter_map(|of| of.offer.limits());
    let credits = limits.map(|limits| limits.credits().into()).min();
    let credits = credits.unwrap_or(u32::MAX);
    let receives = u64::from(RECEIVES) * u64::from(point.depth);
    let fit = (RECEIVED / point.size.max(1)).min(MOST_RECEIVES.into());
    let fault = if point.method == Some(Method::Server) && point.depth > credits {
        format!("the server takes {credits} commits at a time. Give a smaller --depth")
    } else if sends && bench.peer.is_iwarp() {
        "on iWARP a message does not wait for a receive, and messages of this measurement would. \
         Give another --op"
            .into()
    } else if sends && receives > fit {
        format!(
            "the server posts at most {fit} receives of this size, two for each message in flight. \
             Give a smaller --depth or --size"
        )
    } else {
        return Ok(());
    };
    Err(Problem::new(format!("{point}: {fault}"), ""))
}

/// Fills in the method and the flush that were left open: the best ones that the server serves.
pub(super) fn completed(mut point: Setting, offer: &Offer, is_native: bool) -> Setting {
    if !matches!(point.op, Op::WriteFlush | Op::Commit) {
        return point;
    }
    let native = is_native.then_some(Method::Native);
    let server = (point.op == Op::Commit).then_some(Method::Server);
    let methods = [native, Some(Method::Reading), server];
    for flush in [Flush::Durable, Flush::Visible] {
        for method in methods.into_iter().flatten() {
            let mut candidate = point;
            candidate.method.get_or_insert(method);
            candidate.flush.get_or_insert(flush);
            if offer.serves(self::method(&candidate), flush_type(&candidate)) {
                return candidate;
            }
        }
    }
    point.method.get_or_insert(Method::Reading);
    point.flush.get_or_insert(Flush::Durable);
    point
}
