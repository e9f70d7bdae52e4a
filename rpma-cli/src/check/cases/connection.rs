//! The life of connections: keep-alive, close, cut-off, and connecting again.

use std::time::{Duration, Instant};

use rpma::reconnect::{Reconnect, ReconnectCfg, ToConn};
use rpma::{ConnEvent, Error, Failure, Flags, Next, Posted, Wc};

use super::super::bench::{Bench, Line};
use super::Group;
use crate::client::{InStep, Result, Stop, failed, not_possible, plain};
use crate::time::now;
use crate::wire::{Expect, FIRST, Part, Request};

pub(super) const GROUP: Group = Group {
    name: "connection",
    about: "keep-alive, the end by the server, cut-off, and connecting again",
    cases: &[
        ("idle", idle),
        ("silent", silent),
        ("closed", closed),
        ("cut-off", cut_off),
        ("again", again),
    ],
};

/// Thirty time-outs of an acknowledgement.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(5);
/// After its time, a keep-alive may need this much more to be seen.
const LATE: Duration = Duration::from_secs(2);
const LEN: usize = 1000;

fn kept_alive() -> Expect {
    Expect {
        keep_alive_ms: Some(KEEP_ALIVE.as_millis() as u64),
        ..plain(0, false)
    }
}

/// Both sides have a keep-alive.
fn idle(bench: &mut Bench) -> Result<String> {
    let line = bench.line(kept_alive())?;
    if let Some(event) = end_within(bench, &line, IDLE)? {
        return failed(format!("{event}: this event came on an idle connection"));
    }
    write(bench, &line, 1).step(|| "a write after that".to_owned())?;
    Ok(format!(
        "idle for {} s, with a keep-alive of {} s",
        IDLE.as_secs(),
        KEEP_ALIVE.as_secs()
    ))
}

/// The end of a connection within a time. The keep-alive needs a program that takes completions.
fn end_within(bench: &Bench, line: &Line, time: Duration) -> Result<Option<ConnEvent>> {
    let (mut wcs, until) = ([Wc::default(); 4], now() + time);
    bench.clock.within(|limit| {
        let left = until.saturating_duration_since(now());
        match line.conn.next(&mut wcs, limit.min(left)) {
            Ok(Next::Event(event)) if event.is_end() => Ok(Some(event)),
            Ok(_) | Err(Error::TimedOut(_)) if left.is_zero() => Ok(None),
            Ok(_) => Err(Error::NoEvent),
            Err(error) => Err(error),
        }
    })
}

/// The server's queue pair fails, and no message tells this side.
fn silent(bench: &mut Bench) -> Result<String> {
    if bench.peer.is_iwarp() {
        return not_possible(
            "on iWARP a queue pair that fails ends its connection at both hosts. Only a host or a network that \
             is down is silent: unplug the cable to check this",
        );
    }
    let line = bench.line(kept_alive())?;
    write(bench, &line, 1)?;
    bench.tell(&Request::Vanish { line: line.number })?;
    let (started, time) = (Instant::now(), KEEP_ALIVE + LATE);
    match end_within(bench, &line, time)? {
        Some(ConnEvent::Lost { .. }) => {}
        Some(event) => return failed(format!("{event}: this event came")),
        None => return failed(format!("nothing ended the connection within {time:?}")),
    }
    let seconds = started.elapsed().as_secs_f32();
    match line.conn.failure() {
        Some(Failure::Silent { .. }) => Ok(format!("after {seconds:.1} s without an answer")),
        Some(Failure::Probe { status }) => {
            Ok(format!("after {seconds:.1} s, by a probe: {status}"))
        }
        failure => failed(format!("another reason than silence: {failure:?}")),
    }
}

fn closed(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    write(bench, &line, 1)?;
    bench.tell(&Request::Drop { line: line.number })?;
    match bench.clock.within(|limit| line.conn.wait_ended(limit))? {
        ConnEvent::Closed => Ok("the event came".to_owned()),
        // The server's host was busy, and took the end before the last message of the handshake.
        // Then its connection manager rejects (`cm_destroy_id`), although the connection was used.
        ConnEvent::Rejected { .. } => Ok("the event came, as a late rejection".to_owned()),
        event => failed(format!("{event}: this event came")),
    }
}

/// The server cuts the connection off while writes are in flight.
fn cut_off(bench: &mut Bench) -> Result<String> {
    const WRITES: usize = 30;
    let line = bench.line(plain(0, false))?;
    write(bench, &line, 1)?;
    bench.put(0, 2, LEN)?;
    let dst = bench.remote(FIRST, LEN)?;
    let post = |bench: &Bench| -> Result<Posted> {
        let src = bench.own(0, LEN)?;
        Ok(line.conn.write(dst, src, Flags::COMPLETION_ALWAYS, 0)?)
    };
    for _ in 0..WRITES {
        post(bench)?;
    }
    let after = cut(bench, &line)?;
    bench.put(0, 3, LEN)?;
    match post(bench).and_then(|posted| line.wait(posted)) {
        // Its completion is local there.
        Ok(_) if bench.peer.is_iwarp() => {
            if line.is_answered(bench)? {
                return failed("the server's device answered a read after the cut-off");
            }
        }
        Ok(_) => return failed("a write after the cut-off completed without an error"),
        Err(Stop::Failed(_)) => {}
        Err(stop) => return Err(stop),
    }
    if bench.sum(&Request::Sum(PART))? == after {
        Ok(format!("{WRITES} writes were in flight"))
    } else {
        failed("bytes of the server changed after the cut-off")
    }
}

/// Returns the checksum directly after it.
fn cut(bench: &mut Bench, line: &Line) -> Result<u64> {
    let request = Request::CutOff {
        line: line.number,
        part: PART,
    };
    bench.sum(&request)
}

fn again(bench: &mut Bench) -> Result<String> {
    const ROUNDS: u64 = 5;
    let number = bench.next_line();
    let mut cfg = bench.announce(number, plain(0, false))?;
    let mut limits = ReconnectCfg::new();
    limits
        .set_limit(Duration::from_secs(8))
        .set_waits(Duration::from_millis(1), Duration::from_millis(20))?;
    let (offer, addr) = (bench.own_offer(number), bench.addr);
    let mut server = Reconnect::to_addrs(&bench.peer, &[addr], offer, ToConn)?;
    server.set_cfg(&limits);
    for round in 1..=ROUNDS {
        let conn = server.connect(&cfg)?;
        let line = bench.line_of(conn, number)?;
        write(bench, &line, round).step(|| format!("connection {round}"))?;
        cut(bench, &line)?;
        drop(line);
        cfg = bench.announce(number, plain(0, false))?;
    }
    Ok(format!("{ROUNDS} connections of {} tries", server.tries()))
}

const PART: Part = Part::new(FIRST, LEN);

/// Writes, and compares the bytes.
fn write(bench: &mut Bench, line: &Line, seed: u64) -> Result {
    let bytes = bench.put(0, seed, LEN)?;
    line.write(bench, 0, FIRST, LEN)?;
    line.show(bench, FIRST, LEN)?;
    bench.compare(FIRST, &bytes)
}
