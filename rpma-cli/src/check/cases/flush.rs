//! Flushes: by the device's own operation and by a read, to visibility and to persistence.

use rpma::FlushType::{Persistent, Visibility};
use rpma::commit::Method;
use rpma::commit::Method::{Native, Reading};
use rpma::{Durable, FlushType};

use super::super::bench::Bench;
use super::Group;
use crate::client::{InStep, Result, not_possible, plain};
use crate::wire::{FIRST, LONGEST};

pub(super) const GROUP: Group = Group {
    name: "flush",
    about: "after a flush, the server's processor sees the bytes of earlier writes",
    cases: &[
        ("native-visible", |bench| flush(bench, Native, Visibility)),
        ("reading-visible", |bench| flush(bench, Reading, Visibility)),
        ("native-durable", |bench| flush(bench, Native, Persistent)),
        ("reading-durable", |bench| flush(bench, Reading, Persistent)),
    ],
};

const LENGTHS: [usize; 15] = [
    1, 2, 7, 8, 9, 63, 64, 65, 255, 4095, 4096, 4097, 65_535, 65_537, LONGEST,
];
/// Also beginnings at the edges of a word and of a cache line.
const OFFSETS: [u64; 4] = [0, 1, 7, 63];
/// The writes before each flush.
const PIECES: usize = 3;

/// After each flush the server's processor sees the bytes of all writes before it.
fn flush(bench: &mut Bench, method: Method, flush_type: FlushType) -> Result<String> {
    needs_served(bench, method, flush_type)?;
    let line = bench.line(plain(0, method == Reading))?;
    let mut count = 0;
    for len in LENGTHS {
        for offset in OFFSETS {
            count += 1;
            let bytes = bench.put(0, count, len)?;
            let at = FIRST + offset;
            for piece in 0..PIECES {
                let (begin, end) = (len * piece / PIECES, len * (piece + 1) / PIECES);
                line.write(bench, begin, at + begin as u64, end - begin)?;
            }
            let range = bench.remote(at, len)?;
            line.flush(range, flush_type)
                .and_then(|()| bench.compare(at, &bytes))
                .step(|| format!("a flush of {len} bytes from alignment {offset}"))?;
        }
    }
    Ok(format!("{count} flushes after {PIECES} writes each"))
}

/// The end of a case whose method makes nothing durable, or visible, at the server.
pub(super) fn needs_served(bench: &Bench, method: Method, flush_type: FlushType) -> Result {
    if method == Native {
        bench.needs_native()?;
    }
    if bench.offer.serves(method, flush_type) {
        return Ok(());
    }
    let memory = bench.server.host.memory.as_ref();
    if let Some(reason) = memory.and_then(|memory| memory.not_persistent.clone()) {
        return not_possible(reason);
    }
    not_possible(match (method, bench.offer.platform().get_durable()) {
        (Method::Server, _) => "the server's processor makes nothing durable there".to_owned(),
        (_, Durable::Nothing) => "in the server's memory, no flush makes data durable".to_owned(),
        (_, durable) => format!("in the server's memory, only {durable} make data durable"),
    })
}
