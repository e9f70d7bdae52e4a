//! The checks of all points before the first measurement.

use rpma::Offer;

use super::Bench;
use super::load::MOST;
use super::places::{Places, stride};
use super::session::{RECEIVES, flush_type, method};
use crate::args::Measure;
use crate::problem::Problem;
use crate::settings::{Completions, Flush, Method, Op, Setting};
use crate::wire::{MOST_LINES, MOST_RECEIVES, RECEIVED};

/// The most operations in flight of a connection. The queues of most devices have fewer.
const DEEPEST: u32 = 16_384;
/// The most local memory of a connection, for its operations in flight.
const LOCAL: u64 = 1 << 30;
/// The pointer of a commit, on a cache line of its own.
pub(super) const POINTER: u64 = 64;

/// The points of the arguments, if all of them are possible.
pub(super) fn points(args: &Measure) -> Result<Vec<Setting>, Problem> {
    let servers = args.servers.len() as u32;
    let first = Setting {
        op: args.op,
        method: args.method,
        flush: args.flush,
        size: args.size,
        depth: args.depth,
        batch: args.batch,
        threads: args.threads,
        connections: args.connections.unwrap_or(args.threads),
        completions: args.completions,
        rate: args.rate,
        copies: args.copies,
        servers,
    };
    let has_connections = args.connections.is_some() || args.sweep.has_connections();
    let mut points = args.sweep.points(first);
    for point in &mut points {
        if !has_connections {
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

fn check(point: &Setting) -> Result<(), Problem> {
    let refused =
        |what: String, remedy: &str| Err(Problem::new(format!("{point}: {what}"), remedy));
    let Setting {
        op,
        depth,
        batch,
        threads,
        connections,
        ..
    } = *point;
    if depth > DEEPEST {
        return refused(
            format!("at most {DEEPEST} operations are in flight on a connection"),
            "Give a smaller --depth",
        );
    }
    if batch as usize > MOST {
        return refused(
            format!("a batch has at most {MOST} operations"),
            "Give a smaller --batch",
        );
    }
    if depth % batch != 0 {
        return refused(
            "the operations in flight are whole batches".into(),
            "Give a --depth that is a multiple of --batch",
        );
    }
    if op == Op::Commit && batch > 1 {
        return refused("a commit is a batch by itself".into(), "Leave out --batch");
    }
    if op == Op::ReadWrite && batch > 1 {
        return refused(
            "writes and reads in turn have no batches".into(),
            "Leave out --batch",
        );
    }
    if op == Op::Read && batch > 1 && point.completions == Completions::Async {
        return refused(
            "rpma-async has no reads in batches".into(),
            "Give --batch 1, or other --completions",
        );
    }
    if connections % threads != 0 {
        return refused(
            "each thread has as many connections as the others".into(),
            "Give --connections as a multiple of --threads",
        );
    }
    if point.completions == Completions::Wait && connections != threads {
        return refused(
            "a thread that sleeps has one connection".into(),
            "Give as many --threads as --connections, or --completions poll or async",
        );
    }
    let lines = connections as usize;
    if lines > MOST_LINES {
        return refused(
            format!("a server has at most {MOST_LINES} connections for a client"),
            "Give fewer --connections",
        );
    }
    if stride(point.size).saturating_mul(depth.into()) > LOCAL {
        return refused(
            format!("the operations in flight on a connection have at most {LOCAL} bytes"),
            "Give a smaller --size or --depth",
        );
    }
    match (op, point.copies) {
        (Op::Commit, Some(copies)) if copies > point.servers => refused(
            format!(
                "{copies} copies need as many servers, and {} are given",
                point.servers
            ),
            "Give fewer --copies, or more servers",
        ),
        (Op::Commit, _) => Ok(()),
        (_, Some(_)) => refused("only a commit has copies".into(), "Leave out --copies"),
        _ if point.servers > 1 => refused(
            "only a commit goes to several servers".into(),
            "Give one server",
        ),
        _ if op != Op::WriteFlush && point.method == Some(Method::Server) => Ok(()),
        _ if point.method == Some(Method::Server) => refused(
            "the server's processor only makes commits durable".into(),
            "Give --op commit, or another --method",
        ),
        _ => Ok(()),
    }
}

/// Checks a point against the memory of the servers.
pub(super) fn fits(point: &Setting, bench: &Bench) -> Result<(), Problem> {
    for (number, server) in bench.servers.iter().enumerate() {
        let of = (0, point.connections);
        let group = (point.size, point.batch);
        if let Err(needed) = Places::new(&server.memory, reserved(point), of, group) {
            return Err(Problem::new(
                format!(
                    "{point}: server {} offers {} bytes, and the operations need {needed}",
                    number + 1,
                    server.memory.get_size()
                ),
                format!("Start `rpma serve --size {needed}` there, or give a smaller --size"),
            ));
        }
    }
    let credits = bench.credits();
    if point.method == Some(Method::Server) && point.depth > credits {
        return Err(Problem::new(
            format!("{point}: the server takes {credits} commits at a time"),
            "Give a smaller --depth",
        ));
    }
    if point.op == Op::Send && bench.peer.is_iwarp() {
        return Err(Problem::new(
            format!(
                "{point}: on iWARP a message does not wait for a receive, and messages of this measurement would"
            ),
            "Give another --op",
        ));
    }
    let receives = u64::from(RECEIVES) * u64::from(point.depth);
    let fit = (RECEIVED / point.size.max(1)).min(MOST_RECEIVES.into());
    if point.op == Op::Send && receives > fit {
        return Err(Problem::new(
            format!(
                "{point}: the server posts at most {fit} receives of {} bytes, two for each message in flight",
                point.size
            ),
            "Give a smaller --depth or --size",
        ));
    }
    Ok(())
}

/// The bytes of all pointers.
pub(super) fn reserved(point: &Setting) -> u64 {
    match point.op {
        Op::Commit => POINTER * u64::from(point.connections),
        _ => 0,
    }
}

/// Fills in the method and the flush that were left open: the best ones that the server serves.
pub(super) fn completed(mut point: Setting, offer: &Offer, is_native: bool) -> Setting {
    if !matches!(point.op, Op::WriteFlush | Op::Commit) {
        return point;
    }
    let native = if is_native {
        &[Method::Native][..]
    } else {
        &[]
    };
    let server = if point.op == Op::Commit {
        &[Method::Server][..]
    } else {
        &[]
    };
    let methods = [native, &[Method::Reading], server].concat();
    for flush in [Flush::Durable, Flush::Visible] {
        for method in &methods {
            let mut candidate = point;
            candidate.method.get_or_insert(*method);
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
