//! The rules of the contents of persistent memory after a loss of power, all of them. They stand in
//! `rules.md`, which the documentation of [`Platform`] shows as well.
#![doc = include_str!("rules.md")]

mod merge;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use self::merge::merge;
use super::memory::Memory;
use super::platform::Platform;
use super::random::Random;
use super::store::Store;
use crate::memory::{self, Part};

/// The bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// The bytes of a word: an aligned one that is written by itself is not torn.
pub(crate) const WORD: usize = 8;

/// How many writes to a line are kept separately, if no program flushes it. Of more the oldest are
/// taken together.
const MOST: usize = 32;

pub(crate) type Line = [u8; LINE];

/// How far a write has come that may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Device,
    Cache,
}

/// The requests of a queue pair that place bytes, by the host that they place them on. Writes and
/// reads are two flows, even if the queue pair connects a host with itself: reads come back while
/// writes are still on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flow {
    /// Everything that the queue pair of this number places in its peer's memory.
    Writes(u32),
    /// The reads of the queue pair of this number, which its own host gets.
    Reads(u32),
}

#[derive(Debug)]
pub(crate) enum Writer {
    Program,
    Device { flow: Flow, what: String },
}

impl Writer {
    fn flow(&self) -> Option<Flow> {
        match self {
            Self::Program => None,
            Self::Device { flow, .. } => Some(*flow),
        }
    }

    fn is(&self, flow: Flow) -> bool {
        self.flow() == Some(flow)
    }
}

/// Words that were written to a line, and may be lost.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// A bit for each word.
    pub(super) words: u8,
    /// A bit for each byte, of these words. For a device these are exactly the bytes that it has
    /// written, for a program whole words.
    pub(super) mask: u64,
    /// The words that are not torn, in the device either.
    whole: u8,
    pub(super) bytes: Line,
    pub(crate) reach: Reach,
    /// When it came, and when it was known to be in a cache.
    pub(super) came: u64,
    pub(super) landed: u64,
    /// Its number, while programs do not see it yet.
    late: Option<u64>,
    pub(crate) writer: Arc<Writer>,
}

impl Write {
    /// The words, as bytes of the line.
    pub(crate) fn written(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        words_of(self.words)
    }

    /// The words that may come in parts.
    pub(super) fn tearable(&self) -> u8 {
        match self.reach {
            Reach::Device => self.words & !self.whole,
            Reach::Cache => 0,
        }
    }

    pub(super) fn bytes_in(&self, words: u8) -> u64 {
        bytes_of(words) & self.mask
    }

    /// Some of its bytes, and not all, if they may come apart.
    pub(super) fn some(&self, random: &mut Random) -> u64 {
        let words = random.some_of(self.words);
        self.torn(words, random)
    }

    /// Bytes of it that may have come.
    pub(super) fn any(&self, random: &mut Random) -> u64 {
        match random.below(4) {
            0 => 0,
            1 => self.mask,
            _ => self.torn(random.any_of(self.words), random),
        }
    }

    /// These words, and at times only a part of another one.
    fn torn(&self, words: u8, random: &mut Random) -> u64 {
        let bytes = self.bytes_in(words);
        let tearable = self.tearable();
        if tearable == 0 || self.words.count_ones() > 1 && random.below(2) == 0 {
            return bytes;
        }
        let those: Vec<_> = words_of(tearable).collect();
        let word = &those[random.below(those.len())];
        let tears = tears(word);
        bytes & !(0xFF << word.start) | tears[random.below(tears.len())] & self.mask
    }
}

/// The parts of a word that come, or come first, if it is torn.
pub(super) fn tears(word: &Range<usize>) -> Vec<u64> {
    let cuts = 1..WORD as u32;
    let parts = cuts.flat_map(|cut| [0xFF >> cut, 0xFF << cut & 0xFF]);
    parts.map(|part: u64| part << word.start).collect()
}

/// The state of a memory.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(crate) platform: Platform,
    /// Whether the device copies through the caches, as soft-RoCE does.
    pub(crate) copies: bool,
    /// The bytes that always survive.
    durable: Store,
    /// The bytes that programs of the host saw at the last look.
    seen: Store,
    /// As that, with the late writes.
    newest: Store,
    /// By the numbers of their lines, oldest first.
    writes: BTreeMap<usize, Vec<Write>>,
    clock: u64,
}

pub(super) fn words_of(words: u8) -> impl Iterator<Item = Range<usize>> + use<> {
    let set = (0..LINE / WORD).filter(move |word| words >> word & 1 == 1);
    set.map(|word| word * WORD..(word + 1) * WORD)
}

pub(super) fn put(to: &mut [u8], mask: u64, from: &Line) {
    for (at, to) in to.iter_mut().enumerate() {
        if mask >> at & 1 == 1 {
            *to = from[at];
        }
    }
}

fn bytes_of(words: u8) -> u64 {
    words_of(words).fold(0, |mask, word| mask | 0xFF << word.start)
}

fn words_with(mask: u64) -> u8 {
    let words = words_of(u8::MAX).filter(|word| mask >> word.start & 0xFF != 0);
    words.fold(0, |set, word| set | 1 << (word.start / WORD))
}

fn bytes_in(line: usize, range: &Range<usize>) -> u64 {
    let bytes = line * LINE..(line + 1) * LINE;
    let inside = bytes.filter(|byte| range.contains(byte));
    inside.fold(0, |mask, byte| mask | 1 << (byte % LINE))
}

fn differing(one: &[u8], other: &[u8]) -> u8 {
    let differs = |word: &Range<usize>| one[word.clone()] != other[word.clone()];
    let words = words_of(u8::MAX).filter(differs);
    words.fold(0, |set, word| set | 1 << (word.start / WORD))
}

impl Lines {
    pub(crate) fn new(platform: Platform, copies: bool, bytes: Store) -> Self {
        Self {
            platform,
            copies,
            seen: bytes.clone(),
            newest: bytes.clone(),
            durable: bytes,
            writes: BTreeMap::new(),
            clock: 0,
        }
    }

    pub(crate) fn durable(&self) -> &Store {
        &self.durable
    }

    pub(crate) fn seen(&self) -> &Store {
        &self.seen
    }

    pub(crate) fn newest(&self) -> &Store {
        &self.newest
    }

    /// The lines that may lose bytes, and the writes to each.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (usize, &[Write])> {
        self.writes
            .iter()
            .map(|(line, writes)| (*line, &writes[..]))
    }

    pub(crate) fn writes_to(&self, line: usize) -> &[Write] {
        self.writes.get(&line).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_on_way(&self, flow: Flow) -> bool {
        let own = |write: &Write| write.reach == Reach::Device && write.writer.is(flow);
        self.writes.values().flatten().any(own)
    }

    pub(crate) fn is_on_way(&self, range: &Range<usize>) -> bool {
        let mut lines = self.writes.range(lines_of(range));
        lines.any(|(line, writes)| {
            let bytes = bytes_in(*line, range);
            let is = |write: &Write| {
                write.reach == Reach::Device && write.late.is_none() && write.mask & bytes != 0
            };
            writes.iter().any(is)
        })
    }

    pub(super) fn line(&self, line: usize) -> Line {
        *self.durable.line(line)
    }

    /// Finds the program's stores since the last look; returns whether there are any.
    pub(crate) fn look(&mut self, memory: &Memory) -> bool {
        let mut found = false;
        let mut writer = None;
        // A page that no program and no device has touched has the zeros that were seen.
        for range in memory.touched() {
            for line in lines_of(&range) {
                let now = line_of(memory, line);
                found |= self.look_at(line, now, &mut writer);
            }
        }
        found
    }

    /// Finds the stores of a program to a line, which has these bytes now.
    fn look_at(&mut self, line: usize, now: Line, writer: &mut Option<Arc<Writer>>) -> bool {
        let seen = *self.seen.line(line);
        if seen == now {
            return false;
        }
        let mask = self.changed(line, &seen, &now);
        self.seen.put(line, u64::MAX, &now);
        let writer = writer.get_or_insert_with(|| Arc::new(Writer::Program));
        self.arrive(line, (mask, u8::MAX), now, (Reach::Cache, None), writer);
        true
    }

    /// For eADR: a program is storing these bytes. They are durable after the next write-back of
    /// the range, as its earlier stores to these lines are now. Returns whether any are new.
    pub(crate) fn stored(&mut self, memory: &Memory, range: &Range<usize>) -> bool {
        let writer = Arc::new(Writer::Program);
        let mut found = false;
        for line in lines_of(range) {
            let now = line_of(memory, line);
            let seen = *self.seen.line(line);
            let mut earlier = now;
            put(&mut earlier, bytes_in(line, range), &seen);
            found |= self.look_at(line, earlier, &mut None);
            let mask = self.changed(line, &earlier, &now);
            if mask != 0 {
                found = true;
                self.seen.put(line, u64::MAX, &now);
                let reach = (Reach::Cache, None);
                self.add(line, (mask, u8::MAX), now, reach, &writer);
            }
        }
        found
    }

    /// The bytes of a line that the stores of a program have changed: whole words, if no device has
    /// others of their bytes on its way.
    fn changed(&self, line: usize, before: &Line, now: &Line) -> u64 {
        let same = (0..LINE).filter(|at| before[*at] == now[*at]);
        let same = same.fold(0_u64, |mask, at| mask | 1 << at);
        bytes_of(differing(before, now)) & !(same & self.beside(line))
    }

    /// The bytes of a line that devices have on their way to a part of a word: a program's store
    /// beside them does not bring them.
    fn beside(&self, line: usize) -> u64 {
        self.writes_to(line).iter().fold(0, |bytes, write| {
            let whole = words_of(u8::MAX).filter(|word| write.mask >> word.start & 0xFF == 0xFF);
            let whole = whole.fold(0_u64, |mask, word| mask | 0xFF << word.start);
            match write.reach {
                Reach::Device => (bytes | write.mask) & !whole,
                Reach::Cache => bytes & !write.mask,
            }
        })
    }

    /// A device places bytes: they are on their way.
    pub(crate) fn placed(&mut self, memory: &Memory, range: &Range<usize>, writer: Writer) {
        let writer = Arc::new(writer);
        for line in lines_of(range) {
            let now = line_of(memory, line);
            let mask = bytes_in(line, range);
            // Beside it a program may store at the same time.
            self.seen.put(line, mask, &now);
            self.arrive(
                line,
                (mask, whole(range)),
                now,
                (Reach::Device, None),
                &writer,
            );
        }
    }

    /// A device has taken bytes, which programs do not see yet: they are on their way.
    pub(crate) fn taken(&mut self, bytes: &[u8], range: &Range<usize>, late: u64, writer: Writer) {
        let writer = Arc::new(writer);
        for line in lines_of(range) {
            let mut now: Line = [0; LINE];
            for (at, to) in now.iter_mut().enumerate() {
                let byte = (line * LINE + at).checked_sub(range.start);
                *to = byte.and_then(|byte| bytes.get(byte)).copied().unwrap_or(0);
            }
            let mask = bytes_in(line, range);
            let reach = (Reach::Device, Some(late));
            self.arrive(line, (mask, whole(range)), now, reach, &writer);
        }
    }

    /// Programs see bytes that were taken before.
    pub(crate) fn shown(&mut self, memory: &Memory, range: &Range<usize>, late: u64) {
        for line in lines_of(range) {
            let now = line_of(memory, line);
            let mask = bytes_in(line, range);
            self.seen.put(line, mask, &now);
            let writes = self.writes.get_mut(&line).into_iter().flatten();
            let own = writes.filter(|write| write.late == Some(late));
            let mut writer = None;
            for write in own {
                write.late = None;
                writer = Some(Arc::clone(&write.writer));
            }
            // The program's stores there meanwhile are gone.
            let newest = self.newest.line(line);
            let over = (0..LINE).filter(|at| now[*at] != newest[*at]);
            let over = over.fold(0_u64, |over, at| over | 1 << at) & mask;
            if let (Some(writer), 1..) = (writer, over) {
                self.arrive(line, (over, 0), now, (Reach::Device, None), &writer);
            }
        }
    }

    /// For a device that copies: the bytes that a flow has placed in a range are in the
    /// caches.
    pub(crate) fn landed(&mut self, flow: Flow, range: &Range<usize>) {
        for line in self.lines_in(Some(range)) {
            self.make_visible(line, flow, u64::MAX, self.platform == Platform::Eadr);
        }
    }

    fn arrive(
        &mut self,
        line: usize,
        (mask, whole): (u64, u8),
        bytes: Line,
        (reach, late): (Reach, Option<u64>),
        writer: &Arc<Writer>,
    ) {
        self.add(line, (mask, whole), bytes, (reach, late), writer);
        if reach == Reach::Cache && self.platform == Platform::Eadr {
            self.settle(line, |write| match write.reach {
                Reach::Cache => write.words,
                Reach::Device => 0,
            });
        }
    }

    fn add(
        &mut self,
        line: usize,
        (mask, whole): (u64, u8),
        bytes: Line,
        (reach, late): (Reach, Option<u64>),
        writer: &Arc<Writer>,
    ) {
        self.newest.put(line, mask, &bytes);
        self.clock += 1;
        let write = Write {
            words: words_with(mask),
            mask,
            whole,
            came: self.clock,
            landed: self.clock,
            bytes,
            reach,
            late,
            writer: Arc::clone(writer),
        };
        let writes = self.writes.entry(line).or_default();
        writes.push(write);
        if writes.len() > MOST {
            merge(writes);
        }
    }

    /// Makes words of a line's writes durable.
    fn settle(&mut self, line: usize, which: impl Fn(&Write) -> u8) {
        let Some(writes) = self.writes.get_mut(&line) else {
            return;
        };
        // From the newest on: a word that is durable cannot be overwritten by an older one any
        // more.
        let mut over = 0;
        let mut newest: Line = [0; LINE];
        for write in writes.iter_mut().rev() {
            let mask = bytes_of(which(write)) & write.mask;
            put(&mut newest, mask & !over, &write.bytes);
            over |= mask;
            write.mask &= !over;
            write.words = words_with(write.mask);
        }
        self.durable.put(line, over, &newest);
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

    /// The writes of a flow become visible: all of them, or those in a range.
    pub(crate) fn push(&mut self, flow: Flow, range: Option<&Range<usize>>) {
        for line in self.lines_in(range) {
            let bytes = range.map_or(u64::MAX, |range| bytes_in(line, range));
            self.make_visible(line, flow, bytes, self.platform.keeps_what_is_visible());
        }
    }

    /// Bytes of a line that a flow has written leave the device, with the words that they
    /// are of: into a cache, or to where they are durable.
    fn make_visible(&mut self, line: usize, flow: Flow, bytes: u64, durable: bool) {
        let own = |write: &Write| {
            let is_own = write.reach == Reach::Device && write.writer.is(flow);
            if is_own && write.late.is_none() {
                words_with(write.mask & bytes)
            } else {
                0
            }
        };
        if durable {
            return self.settle(line, own);
        }
        self.clock += 1;
        let landed = self.clock;
        let writes = self.writes.get_mut(&line).expect("it has some");
        for write in std::mem::take(writes) {
            let visible = own(&write) & write.words;
            let left = write.words & !visible;
            for (words, reach, landed) in [
                (left, write.reach, write.landed),
                (visible, Reach::Cache, landed),
            ] {
                if words != 0 {
                    writes.push(Write {
                        words,
                        mask: write.mask & bytes_of(words),
                        reach,
                        landed,
                        ..write.clone()
                    });
                }
            }
        }
    }

    /// The writes of any flow to a range become visible, except for late ones.
    pub(crate) fn push_all(&mut self, range: &Range<usize>) {
        let writers = |writes: &Vec<Write>| -> Vec<Flow> {
            let there = writes.iter().filter(|write| write.late.is_none());
            there.filter_map(|write| write.writer.flow()).collect()
        };
        let mut flows: Vec<Flow> = self
            .writes
            .range(lines_of(range))
            .flat_map(|(_, writes)| writers(writes))
            .collect();
        flows.sort_unstable();
        flows.dedup();
        for flow in flows {
            self.push(flow, Some(range));
        }
    }

    pub(crate) fn flush(&mut self, flow: Flow, range: &Range<usize>) {
        if self.copies {
            return self.write_back(range);
        }
        for line in self.lines_in(Some(range)) {
            let bytes = bytes_in(line, range);
            self.settle(line, |write| {
                if write.writer.is(flow) {
                    words_with(write.mask & bytes)
                } else {
                    0
                }
            });
        }
    }

    pub(crate) fn write_back(&mut self, range: &Range<usize>) {
        for line in self.lines_in(Some(range)) {
            self.settle(line, |write| match write.reach {
                Reach::Cache => write.words,
                Reach::Device => 0,
            });
        }
    }
}

/// A line of a memory as it is now, even while it is written.
fn line_of(memory: &Memory, number: usize) -> Line {
    memory::line(Part {
        address: memory.as_ptr().wrapping_add(number * LINE),
        len: LINE,
    })
}

/// The words of a device's write that are not torn.
fn whole(range: &Range<usize>) -> u8 {
    if range.len() == WORD && range.start % WORD == 0 {
        u8::MAX
    } else {
        0
    }
}

fn lines_of(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() {
        0..0
    } else {
        range.start / LINE..(range.end - 1) / LINE + 1
    }
}
