//! Batches: several operations that are posted together.

use rpma::{Flags, FlushType};

use super::super::bench::{Bench, Wanted};
use super::{Case, by_way};
use crate::client::{InStep, Result};
use crate::wire::FIRST;

pub(super) const CASES: &[Case] = by_way!(
    batch,
    "batch",
    "batches of writes, flushes and atomic writes",
    [("native", true), ("reading", false)]
);

const ROUNDS: u64 = 32;
const RECORD: usize = 200;
const RECORDS: usize = 6;
/// The word is after the records.
const WORD: u64 = FIRST + 2048;

/// Records and their flush, and a word and its flush.
fn batch(bench: &mut Bench, native: bool) -> Result<String> {
    if native {
        bench.needs_native()?;
    }
    let line = bench.line(&Wanted::fallback(!native))?;
    let (plain, last) = (Flags::COMPLETION_ON_ERROR, Flags::COMPLETION_ALWAYS);
    let all = FIRST..FIRST + (RECORDS * RECORD) as u64;
    let all = bench.arena.slice(all)?;
    for round in 1..=ROUNDS {
        let bytes = bench.put(0, round, RECORDS * RECORD)?;
        let (word, value) = (bench.arena.slice(WORD..WORD + 8)?, round.to_le_bytes());
        let mut batch = line.conn.batch::<9>();
        for record in 0..RECORDS {
            let place = record * RECORD..(record + 1) * RECORD;
            let at = FIRST + place.start as u64;
            let dst = bench.arena.slice(at..at + RECORD as u64)?;
            batch.write(dst, bench.local.slice(place)?, plain, round)?;
        }
        batch.flush(all, FlushType::Visibility, plain, round)?;
        batch.atomic_write(word, &value, plain, round)?;
        batch.flush(word, FlushType::Visibility, last, round)?;
        let posted = batch.post()?;
        line.wait(posted)
            .and_then(|_| bench.compare(FIRST, &bytes))
            .and_then(|()| bench.compare(WORD, &value))
            .step(|| format!("batch {round}"))?;
    }
    Ok(format!("{ROUNDS} batches of {} operations", RECORDS + 3))
}
