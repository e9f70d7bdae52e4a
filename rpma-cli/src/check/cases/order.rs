//! The order that the documentation of `Conn` guarantees to a program on the peer's host.

use rpma::{Flags, MrSlice};

use super::super::bench::{Bench, Line, receives};
use super::Group;
use crate::bytes::checksum;
use crate::client::{Result, failed};
use crate::wire::{Expect, FIRST, Part};

pub(super) const GROUP: Group = Group {
    name: "order",
    about: "a notice proves the writes before it",
    cases: &[
        ("message", |bench| notice(bench, false)),
        ("immediate", |bench| notice(bench, true)),
    ],
};

/// Notices, one after the other. The send queue has room for the writes before each.
const ROUNDS: u32 = 48;
/// The writes before a notice.
const WRITES: [usize; 8] = [1, 7, 8, 64, 65, 1000, 4096, 12_000];

/// The server sums the bytes at the moment at which its receive completes.
fn notice(bench: &mut Bench, by_immediate: bool) -> Result<String> {
    let len: usize = WRITES.iter().sum();
    let watch = Part::new(FIRST + 1, len + 8);
    bench.fill(watch.at, watch.len as usize, 0)?;
    let line = bench.line(Expect {
        watch: Some(watch),
        ..receives(ROUNDS as usize, 8)
    })?;
    for round in 0..ROUNDS {
        let expected = bench.put(0, u64::from(round) + 1, watch.len as usize)?;
        write_all(bench, &line, watch, by_immediate)?;
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

fn write_all(bench: &Bench, line: &Line, part: Part, by_immediate: bool) -> Result {
    let (mut begin, len) = (0, part.len as usize);
    for len in WRITES {
        line.write(bench, begin, part.at + begin as u64, len)?;
        begin += len;
    }
    let (at, len) = (part.at + begin as u64, len - begin);
    let flags = Flags::COMPLETION_ALWAYS;
    let posted = if by_immediate {
        let (dst, src) = (bench.remote(at, len)?, bench.own(begin, len)?);
        line.conn.write_with_imm(dst, src, flags, 0, 0)?
    } else {
        line.write(bench, begin, at, len)?;
        line.conn.send(MrSlice::EMPTY, flags, 0)?
    };
    line.wait(posted).map(drop)
}
