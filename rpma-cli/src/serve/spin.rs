//! A look at a word that the client writes: the order and the wholeness of what the processor sees.

use std::thread;
use std::time::{Duration, Instant};

use super::arena::Arena;
use crate::bytes::pattern;
use crate::interrupt::Interrupt;
use crate::wire::{Part, Spin, Spun};

/// The client writes for less.
const LIMIT: Duration = Duration::from_secs(8);
/// The looks between two looks at the clock.
const LOOKS: u32 = 256;

/// Looks until the last value is there, a value is wrong, or the limit has passed.
pub(super) fn spin(arena: &Arena, spin: &Spin, interrupt: &Interrupt) -> Result<Spun, String> {
    let (until, mut looks) = (Instant::now() + LIMIT, 0);
    let mut spun = Spun::default();
    loop {
        let value = arena.load(spin.word)?;
        if value != spun.last {
            take(arena, spin, value, &mut spun)?;
            let is_over = value == word(spin.last);
            if is_over || spun.torn.is_some() || spun.early.is_some() {
                return Ok(spun);
            }
        }
        looks += 1;
        if looks % LOOKS == 0 {
            if interrupt.is_set() || Instant::now() >= until {
                return Ok(spun);
            }
            thread::yield_now();
        }
    }
}

/// Checks a new value, and the bytes that it shows.
fn take(arena: &Arena, spin: &Spin, value: u64, spun: &mut Spun) -> Result<(), String> {
    let [n, ..] = value.to_ne_bytes();
    if value != word(n) {
        spun.torn = Some(value);
        return Ok(());
    }
    let [before, ..] = spun.last.to_ne_bytes();
    for shown in before.saturating_add(1)..=n {
        let part = Part {
            at: (spin.data).saturating_add(u64::from(spin.data_len) * u64::from(shown - 1)),
            len: spin.data_len.into(),
        };
        let seed = spin.seed.wrapping_add(shown.into());
        if arena.read(part)? != pattern(seed, spin.data_len as usize) {
            spun.early = Some(shown);
            break;
        }
    }
    spun.seen += 1;
    spun.last = value;
    Ok(())
}

/// The value `n` of a word.
fn word(n: u8) -> u64 {
    u64::from_ne_bytes([n; 8])
}
