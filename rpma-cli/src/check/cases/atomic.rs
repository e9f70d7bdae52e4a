//! Atomic writes: 8 bytes that no reader ever sees in part.

use super::super::bench::{Bench, Line, Wanted};
use super::{Case, by_way};
use crate::client::{Result, failed};
use crate::wire::{Answer, FIRST, Request, Spin, Spun};
use rpma::{Flags, FlushType};

pub(super) const CASES: &[Case] = by_way!(
    whole,
    "atomic",
    "the server's processor never sees an atomic write in part",
    [("native", true), ("reading", false)]
);

/// The last value of a word. Each value is 8 times one byte.
pub(super) const LAST: u8 = 200;
/// With fewer values, a case has observed almost nothing.
const FEW: u32 = 20;

/// The server's processor looks at the word all the time.
fn whole(bench: &mut Bench, native: bool) -> Result<String> {
    if native {
        bench.needs_native()?;
    }
    let line = bench.line(&Wanted::fallback(!native))?;
    let spin = Spin {
        word: FIRST,
        last: LAST,
        data: FIRST,
        data_len: 0,
        seed: 0,
    };
    let spun = spin_while(bench, &spin, |bench| {
        (1..=LAST).try_for_each(|n| put_word(bench, &line, spin.word, n))
    })?;
    Ok(format!("{LAST} atomic writes, {}", seen(&spun)))
}

/// A reader that sees almost no value finds no torn one.
pub(super) fn seen(spun: &Spun) -> String {
    let values = format!("{} values seen", spun.seen);
    match spun.seen {
        ..FEW => format!(
            "{values}: too few to rely on. The server's processor was busy: run this case again with --only"
        ),
        _ => values,
    }
}

/// Writes a value, and waits for the flush after it.
fn put_word(bench: &Bench, line: &Line, word: u64, n: u8) -> Result {
    let dst = bench.arena.slice(word..word + 8)?;
    let flags = Flags::COMPLETION_ON_ERROR;
    line.conn.atomic_write(dst, &[n; 8], flags, 0)?;
    line.flush(dst, FlushType::Visibility)
}

/// Lets the server look at a word while `write` writes to it, and judges what it saw.
pub(super) fn spin_while(
    bench: &mut Bench,
    spin: &Spin,
    write: impl FnOnce(&Bench) -> Result,
) -> Result<Spun> {
    bench.fill_zero(spin.word)?;
    let request = Request::Spin(*spin);
    let begun = bench.control().request(&request)?;
    if begun != Answer::Spins {
        return Err(bench
            .control()
            .over(&format!("a wrong answer to {request:?}")));
    }
    let written = write(bench);
    // Even after a failure: the answer comes.
    let Answer::Spun(spun) = bench.control().answer()? else {
        return Err(bench
            .control()
            .over(&format!("a wrong answer to {request:?}")));
    };
    written?;
    judge(spin, &spun)?;
    Ok(spun)
}

fn judge(spin: &Spin, spun: &Spun) -> Result {
    if let Some(torn) = spun.torn {
        return failed(format!(
            "the server's processor saw {torn:#018x}, and each value is 8 times the same byte"
        ));
    }
    if let Some(n) = spun.early {
        return failed(format!(
            "the server's processor saw the value {n} before the bytes that it shows"
        ));
    }
    let last = u64::from_ne_bytes([spin.last; 8]);
    if spun.last == last {
        Ok(())
    } else {
        failed(format!(
            "the last value that the server's processor saw is {:#018x}, and {last:#018x} was written",
            spun.last
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_marked() {
        let with = |seen| Spun {
            seen,
            ..Spun::default()
        };
        assert!(seen(&with(FEW - 1)).contains("too few to rely on"));
        assert_eq!(seen(&with(FEW)), "20 values seen");
    }
}
