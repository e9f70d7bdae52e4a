//! What a loss of power leaves of persistent memory: the rules, all of them.
//!
//! Memory is looked at in lines of 64 bytes, which caches and memory controllers move. Of each line it is known what
//! survives whatever happens, and which writes came since, oldest first. Such a write is in one of two places:
//!
//! * **in the device**, or between it and the caches: written by an RDMA operation, executed, and not pushed;
//! * **in a cache** of the processors.
//!
//! | what happens | what it does | source |
//! |---|---|---|
//! | the program stores | into a cache | |
//! | an adapter places a write | into the device | 1 |
//! | soft-RoCE places a write | into a cache, one word after the other: the kernel copies | 2 |
//! | a read, or a flush for visibility, of the same queue pair, executed later | its writes become visible (a flush: those in its range) | 1, 3 |
//! | a message arrives on the same queue pair | its earlier writes become visible | 4 |
//! | the queue pair that they came to is destroyed, or their region deregistered | its writes, or those to the region, become visible: the memory may be freed then | 6 |
//! | a native flush for persistence of the same queue pair | its writes in the range are durable | 3 |
//! | the same on soft-RoCE | every cached write to the lines of the range is durable: it writes them back | 2 |
//! | the program writes a range back (`clwb`, fence) | every cached write to its lines is durable | 5 |
//!
//! To become **visible** means: into a cache where the device's writes go through the caches ([`AdrDdioOn`]), and
//! durable where they bypass them ([`AdrDdioOff`]) or the caches are in the persistence domain ([`Eadr`]). With eADR
//! what comes into a cache is durable.
//!
//! When the power fails each line is for itself:
//!
//! * of a write that is in the device, any of its aligned 8-byte words may have arrived, whatever became of others (RDMA
//!   orders completions, not placement; 8 bytes are not torn);
//! * of the writes in a cache all up to one of them, and of the next one any words: lines are evicted at any time.
//!
//! What is not generated: values that two stores leave between two events of the fabric (nobody looks in between), and
//! memory that is torn within 8 aligned bytes.
//!
//! Sources: 1. Kashyap et al., "Correct, Fast Remote Persistence", arXiv 1909.02092: the persistence domains and what
//! a read pushes. 2. The kernel's `rxe_resp.c` (`process_flush`: `rxe_flush_pmem_iova`, which calls
//! `arch_wb_cache_pmem`) and `rxe_mr_copy`. 3. InfiniBand annex A19 (memory placement extensions), by `ibv_wr_flush(3)`.
//! 4. InfiniBand 9.2.? and 10.8.3: a receive's completion comes behind the data of what was sent before it. 5. Intel's
//! manual, `CLWB`, and the platform's promise of ADR. 6. `ibv_dereg_mr(3)`, `ibv_destroy_qp(3)`: programs free the
//! memory behind them, so that nothing may arrive there later.
//!
//! [`AdrDdioOn`]: Platform::AdrDdioOn
//! [`AdrDdioOff`]: Platform::AdrDdioOff
//! [`Eadr`]: Platform::Eadr

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::memory::Memory;
use super::platform::Platform;
use super::random::Random;

/// The bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// The bytes that are not torn.
const WORD: usize = 8;

pub(crate) type Line = [u8; LINE];

/// Where a write is that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    Cache,
}

/// Who has written something.
#[derive(Debug)]
pub(crate) enum Writer {
    Program,
    Device { qp: u32, what: String },
}

impl Writer {
    fn qp(&self) -> Option<u32> {
        match self {
            Self::Program => None,
            Self::Device { qp, .. } => Some(*qp),
        }
    }

    fn is(&self, number: u32) -> bool {
        self.qp() == Some(number)
    }
}

/// Words that were written to a line, and may be lost.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// A bit for each word.
    words: u8,
    bytes: Line,
    pub(crate) place: Place,
    pub(crate) writer: Arc<Writer>,
}

impl Write {
    /// The words, as bytes of the line.
    pub(crate) fn written(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        words_of(self.words)
    }
}

/// What is known of a memory.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(crate) platform: Platform,
    /// Whether the device copies through the caches, as soft-RoCE does.
    pub(crate) copies: bool,
    /// What survives whatever happens.
    durable: Vec<u8>,
    /// What was there when it was looked at last.
    seen: Vec<u8>,
    /// By the numbers of their lines, oldest first.
    writes: BTreeMap<usize, Vec<Write>>,
}

/// The words of a line that a range of bytes of the memory touches.
fn words_in(line: usize, range: &Range<usize>) -> u8 {
    let start = range.start.max(line * LINE);
    let end = range.end.min((line + 1) * LINE);
    if start >= end {
        return 0;
    }
    let (first, last) = (start % LINE / WORD, (end - 1) % LINE / WORD);
    ((1_u16 << (last + 1)) - (1 << first)) as u8
}

fn words_of(words: u8) -> impl Iterator<Item = Range<usize>> + use<> {
    let set = (0..LINE / WORD).filter(move |word| words >> word & 1 == 1);
    set.map(|word| word * WORD..(word + 1) * WORD)
}

fn put(to: &mut [u8], words: u8, from: &Line) {
    for word in words_of(words) {
        to[word.clone()].copy_from_slice(&from[word]);
    }
}

fn differing(one: &[u8], other: &[u8]) -> u8 {
    let differs = |word: &Range<usize>| one[word.clone()] != other[word.clone()];
    let words = words_of(u8::MAX).filter(differs);
    words.fold(0, |set, word| set | 1 << (word.start / WORD))
}

impl Lines {
    pub(crate) fn new(platform: Platform, copies: bool, bytes: Vec<u8>) -> Self {
        Self {
            platform,
            copies,
            seen: bytes.clone(),
            durable: bytes,
            writes: BTreeMap::new(),
        }
    }

    /// What survives whatever happens.
    pub(crate) fn durable(&self) -> &[u8] {
        &self.durable
    }

    /// What a program of the host sees.
    pub(crate) fn newest(&self) -> &[u8] {
        &self.seen
    }

    /// The lines of which something may be lost, and the writes to each.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (usize, &[Write])> {
        self.writes
            .iter()
            .map(|(line, writes)| (*line, &writes[..]))
    }

    pub(crate) fn writes_to(&self, line: usize) -> &[Write] {
        self.writes.get(&line).map_or(&[], Vec::as_slice)
    }

    fn line(&self, line: usize) -> Line {
        let line = &self.durable[line * LINE..(line + 1) * LINE];
        line.try_into().expect("memory consists of lines")
    }

    /// Finds what the program has stored since; whether there is something.
    pub(crate) fn look(&mut self, memory: &Memory) -> bool {
        let mut found = false;
        let mut writer = None;
        for line in 0..self.seen.len() / LINE {
            let now = memory.line(line);
            let seen = &mut self.seen[line * LINE..(line + 1) * LINE];
            if seen == now {
                continue;
            }
            let words = differing(seen, &now);
            seen.copy_from_slice(&now);
            let writer = writer.get_or_insert_with(|| Arc::new(Writer::Program));
            self.arrive(line, words, now, Place::Cache, writer);
            found = true;
        }
        found
    }

    /// A device places bytes: they are on their way.
    pub(crate) fn placed(&mut self, memory: &Memory, range: &Range<usize>, writer: Writer) {
        let writer = Arc::new(writer);
        let place = Place::Device;
        for line in lines_of(range) {
            let now = memory.line(line);
            self.seen[line * LINE..(line + 1) * LINE].copy_from_slice(&now);
            self.arrive(line, words_in(line, range), now, place, &writer);
        }
    }

    /// What a queue pair has placed in a range is in the caches, of a device that copies.
    pub(crate) fn landed(&mut self, qp: u32, range: &Range<usize>) {
        for line in self.lines_in(Some(range)) {
            self.make_visible(line, qp, u8::MAX, self.platform == Platform::Eadr);
        }
    }

    fn arrive(&mut self, line: usize, words: u8, bytes: Line, place: Place, writer: &Arc<Writer>) {
        let write = Write {
            words,
            bytes,
            place,
            writer: Arc::clone(writer),
        };
        self.writes.entry(line).or_default().push(write);
        if place == Place::Cache && self.platform == Platform::Eadr {
            self.settle(line, |write| match write.place {
                Place::Cache => write.words,
                Place::Device => 0,
            });
        }
    }

    /// Makes words of a line's writes durable.
    fn settle(&mut self, line: usize, which: impl Fn(&Write) -> u8) {
        let Some(writes) = self.writes.get_mut(&line) else {
            return;
        };
        let durable = &mut self.durable[line * LINE..(line + 1) * LINE];
        // From the newest on: a word that is durable cannot be overwritten by an older one any more.
        let mut over = 0;
        let mut newest: Line = [0; LINE];
        for write in writes.iter_mut().rev() {
            let words = which(write) & write.words;
            put(&mut newest, words & !over, &write.bytes);
            over |= words;
            write.words &= !over;
        }
        put(durable, over, &newest);
        writes.retain(|write| write.words != 0);
        if writes.is_empty() {
            self.writes.remove(&line);
        }
    }

    fn lines_in(&self, range: Option<&Range<usize>>) -> Vec<usize> {
        match range {
            None => self.writes.keys().copied().collect(),
            Some(range) => self
                .writes
                .range(lines_of(range))
                .map(|(line, _)| *line)
                .collect(),
        }
    }

    /// What a queue pair has written becomes visible: all of it, or that in a range.
    pub(crate) fn push(&mut self, qp: u32, range: Option<&Range<usize>>) {
        for line in self.lines_in(range) {
            let words = range.map_or(u8::MAX, |range| words_in(line, range));
            self.make_visible(line, qp, words, self.platform.keeps_what_is_visible());
        }
    }

    /// Words of a line that a queue pair has written leave the device: into a cache, or to where they are durable.
    fn make_visible(&mut self, line: usize, qp: u32, words: u8, durable: bool) {
        let own = |write: &Write| match write.place == Place::Device && write.writer.is(qp) {
            true => words,
            false => 0,
        };
        if durable {
            return self.settle(line, own);
        }
        let writes = self.writes.get_mut(&line).expect("it has some");
        for write in std::mem::take(writes) {
            let visible = own(&write) & write.words;
            let left = write.words & !visible;
            for (words, place) in [(left, write.place), (visible, Place::Cache)] {
                if words != 0 {
                    writes.push(Write {
                        words,
                        place,
                        ..write.clone()
                    });
                }
            }
        }
    }

    /// What any queue pair has written to a range becomes visible.
    pub(crate) fn push_all(&mut self, range: &Range<usize>) {
        let writers = |writes: &Vec<Write>| -> Vec<u32> {
            let writers = writes.iter().filter_map(|write| write.writer.qp());
            writers.collect()
        };
        let mut qps: Vec<u32> = self
            .writes
            .range(lines_of(range))
            .flat_map(|(_, writes)| writers(writes))
            .collect();
        qps.sort_unstable();
        qps.dedup();
        for qp in qps {
            self.push(qp, Some(range));
        }
    }

    /// A native flush for persistence.
    pub(crate) fn flush(&mut self, qp: u32, range: &Range<usize>) {
        if self.copies {
            return self.write_back(range);
        }
        for line in self.lines_in(Some(range)) {
            let words = words_in(line, range);
            self.settle(line, |write| if write.writer.is(qp) { words } else { 0 });
        }
    }

    /// Lines are written back from the caches.
    pub(crate) fn write_back(&mut self, range: &Range<usize>) {
        for line in self.lines_in(Some(range)) {
            self.settle(line, |write| match write.place {
                Place::Cache => write.words,
                Place::Device => 0,
            });
        }
    }

    /// What may be left of a line: all of it if there is little, or else what is likely to matter.
    pub(crate) fn outcomes(&self, line: usize, random: &mut Random) -> Vec<Line> {
        let (base, writes) = (self.line(line), self.writes_to(line));
        let words: u32 = writes.iter().map(|write| write.words.count_ones()).sum();
        let mut outcomes = Vec::new();
        let mut add = |chosen: &[u8]| {
            let outcome = outcome(base, writes, chosen);
            if is_possible(writes, chosen) && !outcomes.contains(&outcome) {
                outcomes.push(outcome);
            }
        };
        let all: Vec<u8> = writes.iter().map(|write| write.words).collect();
        if words <= 4 {
            for subset in 0..1_u32 << words {
                let mut left = subset;
                let chosen: Vec<u8> = all
                    .iter()
                    .map(|words| take_bits(*words, &mut left))
                    .collect();
                add(&chosen);
            }
            return outcomes;
        }
        let mut chosen = vec![0; all.len()];
        add(&chosen);
        for number in 0..all.len() {
            // It is torn, behind all that came before; all of it; and it alone.
            chosen[number] = random.some_of(all[number]);
            add(&chosen);
            chosen[number] = all[number];
            add(&chosen);
            let mut alone = vec![0; all.len()];
            alone[number] = all[number];
            add(&alone);
        }
        outcomes
    }

    /// One of all that may be left of a line.
    pub(crate) fn outcome(&self, line: usize, random: &mut Random) -> Line {
        let writes = self.writes_to(line);
        let cached = writes
            .iter()
            .filter(|write| write.place == Place::Cache)
            .count();
        let mut arrived = random.below(cached + 1);
        let mut is_torn = false;
        let chosen: Vec<u8> = writes
            .iter()
            .map(|write| match write.place {
                Place::Device => random.any_of(write.words),
                Place::Cache if arrived > 0 => {
                    arrived -= 1;
                    write.words
                }
                Place::Cache if !is_torn => {
                    is_torn = true;
                    random.any_of(write.words)
                }
                Place::Cache => 0,
            })
            .collect();
        outcome(self.line(line), writes, &chosen)
    }
}

fn lines_of(range: &Range<usize>) -> Range<usize> {
    match range.is_empty() {
        true => 0..0,
        false => range.start / LINE..(range.end - 1) / LINE + 1,
    }
}

/// A line to which these words of each write have come.
fn outcome(base: Line, writes: &[Write], chosen: &[u8]) -> Line {
    let mut line = base;
    for (write, words) in writes.iter().zip(chosen) {
        put(&mut line, *words, &write.bytes);
    }
    line
}

/// Of what is in a cache: all up to one write, and any words of the next.
fn is_possible(writes: &[Write], chosen: &[u8]) -> bool {
    let mut ends = false;
    for (write, words) in writes.iter().zip(chosen) {
        if write.place == Place::Cache {
            if ends && *words != 0 {
                return false;
            }
            ends |= *words != write.words;
        }
    }
    true
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
