//! Writes and reads: lengths and alignments at the edges, and no other byte changed.

use rpma::{Flags, MrSlice, RemoteSlice};

use super::super::bench::{Bench, Line};
use super::Group;
use crate::bytes::pattern;
use crate::client::{InStep, Result, plain};
use crate::wire::{FIRST, LONGEST};

pub(super) const GROUP: Group = Group {
    name: "transfer",
    about: "writes and reads of each length and alignment, from several parts and inline; no other byte changes",
    cases: &[
        ("write", |bench| each(bench, false)),
        ("read", |bench| each(bench, true)),
        ("zero", zero),
        ("gather", gather),
        ("inline", inline),
    ],
};

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

/// Writes or reads of each length and alignment. The bytes around each of them stay.
fn each(bench: &mut Bench, is_read: bool) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    let operation = if is_read { "read" } else { "write" };
    let mut count = 0;
    for len in LENGTHS {
        let source = pattern(1, area(len));
        for (from, to) in alignments(len) {
            count += 1;
            // An even seed, so that each byte changes.
            let seed = 2 * count;
            let mut expected = pattern(seed, area(len));
            expected[GUARD + to..][..len].copy_from_slice(&source[GUARD + from..][..len]);
            let (there, here) = if is_read { (1, seed) } else { (seed, 1) };
            bench.fill(FIRST, area(len), there)?;
            bench.put(0, here, area(len))?;
            let places = (GUARD + from, GUARD + to, len);
            let done = match is_read {
                true => read(bench, &line, places).and_then(|()| bench.compare_local(0, &expected)),
                false => write(bench, &line, places).and_then(|()| bench.compare(FIRST, &expected)),
            };
            done.step(|| {
                format!("a {operation} of {len} bytes from alignment {from} to {to}, with its neighbours")
            })?;
        }
    }
    Ok(format!("{count} {operation}s of {} lengths", LENGTHS.len()))
}

/// The offsets of the source and of the destination, and the length.
type Places = (usize, usize, usize);

fn write(bench: &Bench, line: &Line, (from, to, len): Places) -> Result {
    let to = FIRST + to as u64;
    line.write(bench, from, to, len)?;
    line.show(bench, to, len)
}

fn read(bench: &Bench, line: &Line, (from, to, len): Places) -> Result {
    let (dst, src) = (bench.own(to, len)?, bench.remote(FIRST + from as u64, len)?);
    let posted = line.conn.read(dst, src, Flags::COMPLETION_ALWAYS, 0)?;
    line.wait(posted).map(drop)
}

fn zero(bench: &mut Bench) -> Result<String> {
    let line = bench.line(plain(0, false))?;
    bench.fill(FIRST, 128, 1)?;
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
