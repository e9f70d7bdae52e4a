//! The outcomes of a line after a loss of power: those of its writes, all of them or those that are
//! likely to matter.

use super::lines::{Line, Lines, Reach, Write, put, tears, words_of};
use super::random::Random;

/// How many words of a line may be undecided for all its outcomes to be listed.
const FEW: u32 = 4;
/// How many words of a line may be torn for each way to be listed.
const FEW_TORN: u32 = 2;

impl Lines {
    /// The outcomes of a line, and whether these are all: they are if there are few. Otherwise they
    /// are those that are likely to matter.
    pub(crate) fn outcomes(&self, line: usize, random: &mut Random) -> (Vec<Line>, bool) {
        let (base, writes) = (self.line(line), self.writes_to(line));
        let words: u32 = writes.iter().map(|write| write.words.count_ones()).sum();
        let all = |write: &Write| write.mask;
        let mut outcomes = Vec::new();
        let mut add = |chosen: &[u64]| {
            let outcome = outcome(base, writes, chosen);
            if is_possible(writes, chosen) && !outcomes.contains(&outcome) {
                outcomes.push(outcome);
            }
        };
        if words <= FEW {
            for subset in 0..1_u32 << words {
                let mut left = subset;
                let chosen = writes
                    .iter()
                    .map(|write| write.bytes_in(take_bits(write.words, &mut left)));
                add(&chosen.collect::<Vec<_>>());
            }
        }
        let tearable = writes.iter().map(|write| write.tearable().count_ones());
        let tearable: u32 = tearable.sum();
        if tearable <= FEW_TORN {
            // Each way of tearing a word, with none of the others and with all of them.
            for (number, write) in writes.iter().enumerate() {
                for word in words_of(write.tearable()) {
                    for tear in tears(&word) {
                        let mut chosen = vec![0; writes.len()];
                        chosen[number] = tear & write.mask;
                        add(&chosen);
                        chosen = writes.iter().map(all).collect();
                        chosen[number] &= tear | !(0xFF << word.start);
                        add(&chosen);
                    }
                }
            }
        }
        if words <= FEW && tearable == 0 || words == 1 {
            return (outcomes, true);
        }
        let mut chosen = vec![0; writes.len()];
        add(&chosen);
        for number in 0..writes.len() {
            // It is torn, after all that came before; all of it; and it alone.
            chosen[number] = writes[number].some(random);
            add(&chosen);
            chosen[number] = all(&writes[number]);
            add(&chosen);
            let mut alone = vec![0; writes.len()];
            alone[number] = all(&writes[number]);
            add(&alone);
        }
        (outcomes, false)
    }

    /// One of all that may be left of a line.
    pub(crate) fn outcome(&self, line: usize, random: &mut Random) -> Line {
        let writes = self.writes_to(line);
        let cached = writes
            .iter()
            .filter(|write| write.reach == Reach::Cache)
            .count();
        let mut arrived = random.below(cached + 1);
        let mut chosen: Vec<u64> = writes
            .iter()
            .map(|write| match write.reach {
                Reach::Cache if arrived > 0 => {
                    arrived -= 1;
                    write.mask
                }
                _ => write.any(random),
            })
            .collect();
        // A write without the data that was there before it has not come.
        while let Some(lacking) = (0..writes.len()).find(|at| lacks(writes, &chosen, *at)) {
            chosen[lacking] = 0;
        }
        outcome(self.line(line), writes, &chosen)
    }
}

/// A line to which these bytes of each write have come.
fn outcome(base: Line, writes: &[Write], chosen: &[u64]) -> Line {
    let mut line = base;
    for (write, bytes) in writes.iter().zip(chosen) {
        put(&mut line, *bytes, &write.bytes);
    }
    line
}

/// Whether a write needs another one that is not complete: data in a cache is there only with all
/// data that was there before it came.
fn lacks(writes: &[Write], chosen: &[u64], number: usize) -> bool {
    let came = writes[number].came;
    let mut all = writes.iter().zip(chosen).enumerate();
    writes[number].reach == Reach::Cache
        && chosen[number] != 0
        && all.any(|(at, (other, bytes))| {
            let is_before = other.reach == Reach::Cache && came >= other.landed;
            at != number && is_before && *bytes != other.mask
        })
}

fn is_possible(writes: &[Write], chosen: &[u64]) -> bool {
    (0..writes.len()).all(|number| !lacks(writes, chosen, number))
}

/// Spreads bits over those of `words`.
fn take_bits(words: u8, from: &mut u32) -> u8 {
    let set = (0..8).filter(|bit| words >> bit & 1 == 1);
    set.fold(0, |taken, bit| {
        let one = (*from & 1) as u8;
        *from >>= 1;
        taken | one << bit
    })
}
