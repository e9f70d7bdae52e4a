//! Batches: several operations that are posted together.

use rpma::{Flags, FlushType};

use super::super::bench::Bench;
use super::Group;
use crate::client::{InStep, Result};
use crate::wire::FIRST;

pub(super) const GROUP: Group = Group {
    name: "batch",
    about: "batches of writes, flushes and atomic writes",
    cases: &[
        ("native", |bench| batch(bench, true)),
        ("reading", |bench| batch(bench, false)),
    ],
};

const ROUNDS: u64 = 32;
const RECORD: usize = 200;
const RECORDS: usize = 6;
/// The word is after the records.
const WORD: u64 = FIRST + 2048;

/// Records and their flush, and a word and its flush.
fn batch(bench: &mut Bench, native: bool) -> Result<String> {
    let line = bench.line_by(native)?;
    let (plain, last) = (Flags::COMPLETION_ON_ERROR, Flags::COMPLETION_ALWAYS);
    let all = bench.remote(FIRST, RECORDS * RECORD)?;
    for round in 1..=ROUNDS {
        let bytes = bench.put(0, round, RECORDS * RECORD)?;
        let (word, value) = (bench.remote(WORD, 8)?, round.to_le_bytes());
        let mut batch = line.conn.batch::<9>();
        for record in 0..RECORDS {
            let place = record * RECORD;
            let dst = bench.remote(FIRST + place as u64, RECORD)?;
            batch.write(dst, bench.own(place, RECORD)?, plain, round)?;
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
