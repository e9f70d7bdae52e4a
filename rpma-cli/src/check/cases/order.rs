//! The order that the documentation of `Conn` guarantees to a program on the peer's host.

use std::thread;
use std::time::Duration;

use rpma::{Flags, FlushType, MrSlice};

use super::super::bench::{Bench, Line, Wanted};
use super::atomic::{LAST, seen, spin_while};
use super::{Case, by_way};
use crate::bytes::{checksum, pattern};
use crate::client::{InStep, Result, failed};
use crate::wire::{FIRST, Part, Spin};

pub(super) const CASES: &[Case] = by_way!(
    notice,
    "order",
    "a notice proves the writes before it",
    [
        ("message", Notice::Message),
        ("immediate", Notice::Immediate)
    ]
);

pub(super) const ATOMIC: &[Case] = by_way!(
    atomic,
    "order-atomic",
    "an atomic write proves what was flushed before it",
    [("native", true), ("reading", false)]
);

/// What tells the server that the bytes are there.
#[derive(Clone, Copy)]
enum Notice {
    Message,
    Immediate,
}

/// Notices, one after the other. The send queue has room for the writes before each.
const ROUNDS: u32 = 48;
/// The writes before a notice.
const WRITES: [usize; 8] = [1, 7, 8, 64, 65, 1000, 4096, 12_000];
/// So long the server looks at a value, while its flush is in flight.
const PAUSE: Duration = Duration::from_micros(50);
/// The bytes that each value of the word shows.
const SHOWN: usize = 72;

/// The server sums the bytes at the moment at which its receive completes.
fn notice(bench: &mut Bench, notice: Notice) -> Result<String> {
    let len: usize = WRITES.iter().sum();
    let watch = Part {
        at: FIRST + 1,
        len: len as u64 + 8,
    };
    bench.fill(watch, 0)?;
    let line = bench.line(&Wanted {
        watch: Some(watch),
        ..Wanted::receives(ROUNDS, 8)
    })?;
    for round in 0..ROUNDS {
        let expected = bench.put(0, u64::from(round) + 1, watch.len as usize)?;
        write_all(bench, &line, watch, notice)?;
        let watched = bench.arrival(&line, round)?.watched;
        if watched != Some(checksum(&expected)) {
            return failed(format!(
                "in round {round}, bytes of earlier writes were missing when the receive completed"
            ));
        }
    }
    Ok(format!(
        "{ROUNDS} notices after {} writes each",
        WRITES.len() + 1
    ))
}

fn write_all(bench: &Bench, line: &Line, part: Part, notice: Notice) -> Result {
    let flags = Flags::COMPLETION_ON_ERROR;
    let mut begin = 0;
    for len in WRITES {
        let at = part.at + begin as u64;
        let dst = bench.arena.slice(at..at + len as u64)?;
        line.conn
            .write(dst, bench.local.slice(begin..begin + len)?, flags, 0)?;
        begin += len;
    }
    let dst = bench
        .arena
        .slice(part.at + begin as u64..part.at + part.len)?;
    let src = bench.local.slice(begin..part.len as usize)?;
    let flags = Flags::COMPLETION_ALWAYS;
    let posted = match notice {
        Notice::Immediate => line.conn.write_with_imm(dst, src, flags, 0, 0)?,
        Notice::Message => {
            line.conn.write(dst, src, Flags::COMPLETION_ON_ERROR, 0)?;
            line.conn.send(MrSlice::EMPTY, flags, 0)?
        }
    };
    line.wait(posted).map(drop)
}

/// Each value is written directly after the flush of the bytes that it shows, without a wait.
fn atomic(bench: &mut Bench, native: bool) -> Result<String> {
    if native {
        bench.needs_native()?;
    }
    let spin = Spin {
        word: FIRST,
        last: LAST,
        data: FIRST + 64,
        data_len: SHOWN as u32,
        seed: 0x6f72_6465,
    };
    let part = Part {
        at: spin.data,
        len: (SHOWN * usize::from(LAST)) as u64,
    };
    bench.fill(part, 0)?;
    let line = bench.line(&Wanted::fallback(!native))?;
    let spun = spin_while(bench, &spin, |bench| {
        (1..=LAST).try_for_each(|n| show(bench, &line, &spin, n).step(|| format!("value {n}")))
    })?;
    Ok(format!(
        "{LAST} atomic writes after flushes, {}",
        seen(&spun)
    ))
}

fn show(bench: &Bench, line: &Line, spin: &Spin, n: u8) -> Result {
    let place = usize::from(n - 1) * SHOWN;
    let bytes = pattern(spin.seed + u64::from(n), SHOWN);
    bench.local.write_at(place, &bytes)?;
    let at = spin.data + place as u64;
    let dst = bench.arena.slice(at..at + SHOWN as u64)?;
    let src = bench.local.slice(place..place + SHOWN)?;
    let (flags, word) = (
        Flags::COMPLETION_ON_ERROR,
        bench.arena.slice(spin.word..spin.word + 8)?,
    );
    line.conn.write(dst, src, flags, 0)?;
    line.conn.flush(dst, FlushType::Visibility, flags, 0)?;
    line.conn.atomic_write(word, &[n; 8], flags, 0)?;
    let always = Flags::COMPLETION_ALWAYS;
    let flushed = line.conn.flush(word, FlushType::Visibility, always, 0)?;
    thread::sleep(PAUSE);
    line.wait(flushed).map(drop)
}
