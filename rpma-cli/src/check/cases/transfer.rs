//! Writes and reads: lengths and alignments at the edges, and no other byte changed.

use rpma::{Flags, MrSlice, RemoteSlice};

use super::super::bench::Bench;
use super::Case;
use crate::bytes::pattern;
use crate::client::{InStep, Result, plain};
use crate::wire::{FIRST, LONGEST, Part};

pub(super) const CASES: &[Case] = &[
    Case::new(
        "transfer-write",
        "writes of each length and alignment, no other byte changed",
        write,
    ),
    Case::new(
        "transfer-read",
        "reads of each length and alignment, no other byte changed",
        read,
    ),
    Case::new("transfer-zero", "writes and reads of 0 bytes", zero),
    Case::new("transfer-gather", "a write of several local parts", gather),
    Case::new(
        "transfer-inline",
        "inline writes, whose source changes at once",
        inline,
    ),
];

/// Each MTU of InfiniBand and RoCE is among them, with its neighbours.
const LENGTHS: [usize; 27] = [
    1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049,
    4095, 4096, 4097, 65_535, 65_536, 65_537, LONGEST,
];

const ALIGNMENTS: [usize; 4] = [0, 1, 7, 63];
/// Bytes before and after a transfer that must not change.
const GUARD: usize = 64;
/// Longer transfers have each alignment once.
const SHORT: usize = 4097;

/// The alignments of the source and of the destination.
fn alignments(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let pairs = ALIGNMENTS
        .into_iter()
        .flat_map(|from| ALIGNMENTS.map(|to| (from, to)));
    pairs.filter(move |(from, to)| len <= SHORT || from == to)
}

/// The bytes around all transfers of a length: those that may change, and those that may not.
fn area(len: usize) -> usize {
    GUARD + ALIGNMENTS[3] + len + GUARD
}

/// These bytes of the server's memory.
fn part(len: usize) -> Part {
    Part {
        at: FIRST,
        len: area(len) as u64,
    }
}

fn write(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    let mut count = 0;
    for len in LENGTHS {
        // Odd and even seeds take turns: each byte changes.
        count += count % 2;
        bench.fill(part(len), count + 1)?;
        let mut expected = pattern(count + 1, area(len));
        for (from, to) in alignments(len) {
            count += 1;
            let bytes = bench.put(from, count + 1, len)?;
            expected[GUARD + to..][..len].copy_from_slice(&bytes);
            let at = FIRST + (GUARD + to) as u64;
            line.write(bench, from, at, len)
                .and_then(|()| line.show(bench, at, len))
                .and_then(|()| bench.compare(FIRST, &expected))
                .step(|| in_words("write", (from, to), len))?;
        }
    }
    Ok(format!("{count} writes of {} lengths", LENGTHS.len()))
}

fn read(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    let mut count = 0;
    for len in LENGTHS {
        bench.fill(part(len), 1)?;
        let source = pattern(1, area(len));
        for (from, to) in alignments(len) {
            count += 1;
            let mut expected = bench.put(0, 2 * count, area(len))?;
            let (from_at, to_at) = (GUARD + from, GUARD + to);
            expected[to_at..][..len].copy_from_slice(&source[from_at..][..len]);
            let src = bench.remote(FIRST + from_at as u64, len)?;
            let dst = bench.own(to_at, len)?;
            let posted = line.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0);
            posted
                .map_err(Into::into)
                .and_then(|posted| line.wait(posted))
                .and_then(|_| bench.compare_local(0, &expected))
                .step(|| in_words("read", (from, to), len))?;
        }
    }
    Ok(format!("{count} reads of {} lengths", LENGTHS.len()))
}

fn in_words(operation: &str, (from, to): (usize, usize), len: usize) -> String {
    format!("a {operation} of {len} bytes from alignment {from} to {to}, with its neighbours")
}

fn zero(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    let part = Part {
        at: FIRST,
        len: 128,
    };
    bench.fill(part, 1)?;
    let flags = Flags::COMPLETION_ALWAYS;
    let inside = (bench.remote(FIRST + 64, 0)?, bench.local.slice(64..64)?);
    for (remote, local) in [(RemoteSlice::EMPTY, MrSlice::EMPTY), inside] {
        let written = line.conn.write(remote, local, flags, 0)?;
        line.wait(written)
            .step(|| "a write of 0 bytes".to_owned())?;
        let read = line.conn.read(local, remote, flags, 0)?;
        line.wait(read).step(|| "a read of 0 bytes".to_owned())?;
    }
    bench.compare(FIRST, &pattern(1, 128))?;
    Ok("2 writes and 2 reads of 0 bytes".to_owned())
}

fn gather(bench: &mut Bench) -> Result<String> {
    const PARTS: [(usize, usize); 4] = [(0, 1), (101, 63), (4096, 4096), (20_007, 130)];
    let line = bench.line(plain(0, false))?;
    let len: usize = PARTS.iter().map(|(_, len)| len).sum();
    let bytes = bench.put(0, 1, PARTS[3].0 + PARTS[3].1)?;
    let written = PARTS.map(|(at, len)| &bytes[at..at + len]).concat();
    let (dst, src) = (bench.remote(FIRST + 3, len)?, bench.gathered(&PARTS)?);
    line.conn
        .write_gather(dst, &src, Flags::COMPLETION_ON_ERROR, 0)?;
    line.show(bench, FIRST + 3, len)?;
    bench.compare(FIRST + 3, &written)?;
    Ok(format!("{} parts with {len} bytes", PARTS.len()))
}

fn inline(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    for len in 1..=8 {
        let bytes = bench.put(0, len as u64, len)?;
        let (dst, src) = (bench.remote(FIRST, len)?, bench.own(0, len)?);
        let flags = Flags::INLINE | Flags::COMPLETION_ON_ERROR;
        line.conn.write(dst, src, flags, 0)?;
        // Before the write has completed.
        bench.put(0, len as u64 + 1, len)?;
        line.show(bench, FIRST, len)?;
        bench
            .compare(FIRST, &bytes)
            .step(|| format!("an inline write of {len} bytes"))?;
    }
    Ok("8 inline writes of 1 to 8 bytes".to_owned())
}
