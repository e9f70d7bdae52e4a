//! Atomic writes: 8 bytes that no reader ever sees in part, and the order that the documentation of
//! `Conn` guarantees for them.

use std::thread;
use std::time::Duration;

use rpma::{Flags, FlushType};

use super::super::bench::{Bench, Line};
use super::Group;
use crate::client::{InStep, Result, failed};
use crate::wire::{Answer, FIRST, Request, Spin, Spun};

pub(super) const GROUP: Group = Group {
    name: "atomic",
    about: "the server's processor never sees an atomic write in part",
    cases: &[
        ("native", |bench| values(bench, true, 0)),
        ("reading", |bench| values(bench, false, 0)),
    ],
};

pub(super) const ORDER: Group = Group {
    name: "order-atomic",
    about: "an atomic write proves what was flushed before it",
    cases: &[
        ("native", |bench| values(bench, true, SHOWN)),
        ("reading", |bench| values(bench, false, SHOWN)),
    ],
};

/// The last value of a word. Each value is 8 times one byte.
const LAST: u8 = 200;
/// With fewer values, a case has observed almost nothing.
const FEW: u32 = 20;
/// The bytes that each value of the word shows.
const SHOWN: u32 = 72;
/// So long the server looks at a value, while its flush is in flight.
const PAUSE: Duration = Duration::from_micros(50);

/// The server's processor looks at the word all the time.
fn values(bench: &mut Bench, native: bool, shown: u32) -> Result<String> {
    let line = bench.line_by(native)?;
    let spin = Spin {
        word: FIRST,
        last: LAST,
        data: FIRST + 64,
        data_len: shown,
        seed: 0x6f72_6465,
    };
    bench.fill(spin.data, shown as usize * usize::from(LAST), 0)?;
    bench.tell(&Request::Zero { word: FIRST })?;
    bench.ask(&Request::Spin(spin), |answer| {
        (answer == Answer::Spins).then_some(())
    })?;
    let mut values = 1..=LAST;
    let written =
        values.try_for_each(|n| put(bench, &line, &spin, n).step(|| format!("value {n}")));
    // Even after a failure: the answer comes.
    let Answer::Spun(spun) = bench.control().answer()? else {
        return Err(bench.control().over("a wrong answer to a spin"));
    };
    written?;
    judge(&spin, &spun)?;
    let after = if shown == 0 { "" } else { " after flushes" };
    Ok(format!("{LAST} atomic writes{after}, {}", seen(&spun)))
}

/// A reader that sees almost no value finds no torn one.
fn seen(spun: &Spun) -> String {
    let values = format!("{} values seen", spun.seen);
    match spun.seen {
        ..FEW => format!(
            "{values}: too few to rely on. The server's processor was busy: run this case again with --only"
        ),
        _ => values,
    }
}

/// Writes a value directly after the flush of the bytes that it shows, without a wait.
fn put(bench: &Bench, line: &Line, spin: &Spin, n: u8) -> Result {
    let (shown, flags) = (spin.data_len as usize, Flags::COMPLETION_ON_ERROR);
    if shown > 0 {
        let place = usize::from(n - 1) * shown;
        bench.put(place, spin.seed + u64::from(n), shown)?;
        let at = spin.data + place as u64;
        line.write(bench, place, at, shown)?;
        let bytes = bench.remote(at, shown)?;
        line.conn.flush(bytes, FlushType::Visibility, flags, 0)?;
    }
    let word = bench.remote(spin.word, 8)?;
    line.conn.atomic_write(word, &[n; 8], flags, 0)?;
    let always = Flags::COMPLETION_ALWAYS;
    let flushed = line.conn.flush(word, FlushType::Visibility, always, 0)?;
    thread::sleep(PAUSE);
    line.wait(flushed).map(drop)
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
