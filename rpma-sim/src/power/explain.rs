//! Why a check has failed: the bytes that matter, their writers, and the calls that would have
//! saved them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use super::cut::Cut;
use super::image::{Bytes, Share};
use super::lines::{Flow, LINE, Lines, Reach, WORD, Write, Writer};
use super::platform::Platform;
use super::store::Store;
use crate::panics;
use crate::profile::Profile;
use crate::state::State;

thread_local! {
    /// Panics of this thread are not shown.
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// Where the last one was that was not shown.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Lets panics be hidden that only answer a question.
pub(crate) fn be_able_to_be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            panics::note(info);
            if QUIET.get() {
                PLACE.set(info.location().map(ToString::to_string))
            } else {
                before(info)
            }
        }));
    });
}

pub(crate) struct Failed {
    text: String,
    place: Option<String>,
}

/// Calls a check, and shows no panic of it.
pub(crate) fn call(check: impl FnOnce()) -> Result<(), Failed> {
    let called = quietly(|| panic::catch_unwind(AssertUnwindSafe(check)));
    called.map_err(|panic| Failed {
        text: text_of(&*panic)
            .unwrap_or("the check has failed")
            .to_owned(),
        place: PLACE.take(),
    })
}

/// Whether two runs have failed in the same way: with the same words, and other numbers.
pub(crate) fn is_alike(one: &(dyn Any + Send), other: &(dyn Any + Send)) -> bool {
    let words = |panic| {
        let text: &str = text_of(panic)?;
        // A report follows after an empty line.
        let text = text.split("\n\n").next()?;
        Some(text.replace(|digit: char| digit.is_ascii_digit(), ""))
    };
    words(one) == words(other)
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
}

pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    let before = QUIET.replace(true);
    let result = run();
    QUIET.set(before);
    result
}

/// The check, called again to find the bytes that matter.
pub(crate) type Again<'a> = &'a mut dyn FnMut(&Bytes) -> Result<(), Failed>;

pub(crate) fn report(
    cut: &Cut<'_>,
    state: &State,
    failed: &Failed,
    images: Bytes,
    again: Again<'_>,
) -> String {
    let mut report = failed.text.clone();
    if let Some(place) = &failed.place {
        let _ = write!(report, "\n(the check, at {place})");
    }
    let (event, what, seed) = (cut.event(), cut.what(), cut.seed());
    let _ = writeln!(
        report,
        "\n\nThe power fails at event {event}, {what}. Seed {seed}."
    );
    for (indices, share) in cut.shares() {
        let names: Vec<String> = indices.iter().map(|index| cut.name(*index)).collect();
        let _ = writeln!(report, "{}", share.text(&names.join(" and ")));
    }
    if images.is_empty() {
        report += "The check has failed before it asked for an image.\n";
        return report;
    }
    // A lock that the first panic has poisoned fails each time.
    let mut is_poisoned = false;
    let mut fails = |images: &Bytes| match again(images) {
        Ok(()) => false,
        Err(failed) => {
            is_poisoned |= failed.text.contains("PoisonError");
            true
        }
    };
    let fails_again = fails(&images);
    let lost = reduced(cut, &images, &mut fails, Lines::newest);
    let early = reduced(cut, &lost, &mut fails, Lines::durable);
    let (lost, early) = if is_poisoned {
        (images.clone(), images)
    } else {
        (lost, early)
    };
    if is_poisoned {
        report += "The panic of the check has poisoned a lock of its own, so that it fails with each image. \
                   PoisonError::into_inner goes on. These are all lost bytes, also those that do not matter:\n";
    } else if !fails_again {
        report +=
            "The check does not fail with the same images again: it depends on something else.\n";
        return report;
    }
    let mut has_cause = false;
    for (index, image) in &lost {
        let pieces = explain(cut, state, *index, image, &early[index]);
        has_cause |= !pieces.is_empty();
        report += &pieces;
    }
    let names: Vec<String> = lost.keys().map(|index| cut.name(*index)).collect();
    let names = names.join(" and ");
    report += &if has_cause {
        "(A record that the program has not promised may be lost. Then recovery must not take it for whole.)\n".into()
    } else {
        format!(
            "The check fails with all bytes that were written to {names}: nothing of it is lost. The program has made \
             a promise about an operation that not all devices have executed yet, or the cause is not the power.\n{}",
            state.text_of_executed()
        )
    };
    report
}

impl Share {
    pub(crate) fn is_all(&self) -> bool {
        self.all_are_known && self.shown >= self.possible
    }

    fn text(&self, name: &str) -> String {
        const MANY: usize = 1_000_000;
        let (number, offered, possible) = (self.shown, self.offered, self.possible);
        let failed = format!("The check has failed with image {number} of");
        let many = match (possible > MANY, self.all_are_known) {
            (true, _) => "more than a million".to_owned(),
            (_, true) => possible.to_string(),
            (_, false) => format!("at least {possible}"),
        };
        match (possible > offered, self.all_are_known) {
            (true, _) => {
                format!("{failed} a sample of {offered}, of {many} that may be left of {name}.")
            }
            (_, true) => format!("{failed} all {possible} that may be left of {name}."),
            (_, false) => format!(
                "{failed} a sample of {offered}, the {possible} likely ones and others by chance, of {name}."
            ),
        }
    }
}

/// Lists the last events of a run, and the faults that have happened or are armed.
pub(crate) fn history(state: &State, events: &VecDeque<String>) -> String {
    let without_power = state.power.dead.iter();
    let without_power = without_power.map(|host| format!("{} has no power", state.hosts[*host]));
    let faults = state.failures.texts(&state.hosts).into_iter();
    let faults = faults.chain(state.network_faults()).chain(without_power);
    let mut text = "The last events:\n".to_owned();
    events
        .iter()
        .for_each(|event| text += &format!("    {event}\n"));
    for (number, fault) in faults.enumerate() {
        text += if number == 0 { "Faults:\n" } else { "" };
        text += &format!("    {fault}\n");
    }
    text
}

/// The lost bytes of a memory that matter, and the bytes that are there too early.
fn explain(cut: &Cut<'_>, state: &State, index: usize, image: &Store, early: &Store) -> String {
    let (lines, name) = (&cut.pmems[index].lines, cut.name(index));
    let profile = &state.profiles[cut.pmems[index].host];
    if lines.platform == Platform::Volatile {
        return format!("{name} is volatile memory: nothing of it survives.\n");
    }
    let mut text = String::new();
    let is_lost = |line: &usize| !same(image, lines.newest(), *line);
    for Piece { bytes, write } in pieces(lines, image, lines.newest(), is_lost) {
        let values = values(&bytes, image, lines.newest());
        let torn = torn_word(&bytes, image, lines);
        let (bytes, who) = (ranges(&bytes), writer_of(&write));
        let reach = match is_durable_at_once(&write, lines.platform) {
            true => "not stored yet",
            false => reach_of(&write),
        };
        let saves = what_saves(&write, (lines.platform, profile), state);
        let _ = writeln!(
            text,
            "Lost: {bytes} of {name}, {reach}, by {who}.\n    {values}\n    {saves}"
        );
        if let Some(word) = torn {
            let _ = writeln!(
                text,
                "    The word at byte {word} is torn. Only an aligned write of exactly 8 bytes is whole."
            );
        }
    }
    let is_early = |line: &usize| !is_lost(line) && !same(early, lines.durable(), *line);
    for Piece { bytes, write } in pieces(lines, early, lines.durable(), is_early) {
        let values = values(&bytes, early, lines.durable());
        let (bytes, who) = (ranges(&bytes), writer_of(&write));
        let (reach, why) = match is_durable_at_once(&write, lines.platform) {
            true => (
                "stored",
                "On eADR a store is durable at once, and a long one in parts. Store them only after all bytes that \
                 must be there before them.",
            ),
            false => (
                reach_of(&write),
                "No flush has made them durable, and yet they may be. Write them only after a completed flush of all \
                 bytes that must be there before them.",
            ),
        };
        let _ = writeln!(
            text,
            "There already: {bytes} of {name}, {reach}, by {who}.\n    {values}\n    {why}"
        );
    }
    text
}

fn same(one: &Store, other: &Store, line: usize) -> bool {
    one.line(line) == other.line(line)
}

fn word_of(store: &Store, word: &Range<usize>) -> [u8; WORD] {
    let start = word.start % LINE;
    let bytes = &store.line(word.start / LINE)[start..start + WORD];
    bytes.try_into().unwrap_or_else(|_| unreachable!())
}

/// The images, with every line that does not matter as `towards` has it.
fn reduced(
    cut: &Cut<'_>,
    images: &Bytes,
    mut fails: impl FnMut(&Bytes) -> bool,
    towards: fn(&Lines) -> &Store,
) -> Bytes {
    let mut images = images.clone();
    let indices: Vec<usize> = images.keys().copied().collect();
    for index in indices {
        let lines = &cut.pmems[index].lines;
        // All at once, then in halves.
        let mut parts = vec![lines.pending().map(|(line, _)| line).collect::<Vec<_>>()];
        while let Some(part) = parts.pop() {
            let mut changed = images[&index].clone();
            for line in &part {
                changed.put(*line, u64::MAX, towards(lines).line(*line));
            }
            if changed == images[&index] {
                continue;
            }
            let mut tried = images.clone();
            tried.insert(index, changed);
            if fails(&tried) {
                images = tried;
            } else if part.len() > 1 {
                let (one, other) = part.split_at(part.len() / 2);
                parts.push(one.to_vec());
                parts.push(other.to_vec());
            }
        }
    }
    images
}

/// Bytes that one write has changed.
struct Piece {
    bytes: Vec<Range<usize>>,
    write: Write,
}

/// Where an image differs from `other` in some lines, by the writes that make the difference.
fn pieces(
    lines: &Lines,
    image: &Store,
    other: &Store,
    which: impl Fn(&usize) -> bool,
) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (line, writes) in lines.pending().filter(|(line, _)| which(line)) {
        let mut told = Vec::new();
        for write in writes.iter().rev() {
            for word in write.written() {
                let word = line * LINE + word.start..line * LINE + word.end;
                if word_of(image, &word) == word_of(other, &word) || told.contains(&word.start) {
                    continue;
                }
                told.push(word.start);
                let own = pieces.iter_mut().find(|piece| {
                    Arc::ptr_eq(&piece.write.writer, &write.writer)
                        && piece.write.reach == write.reach
                });
                match own {
                    Some(piece) => piece.add(word),
                    None => pieces.push(Piece {
                        bytes: vec![word],
                        write: write.clone(),
                    }),
                }
            }
        }
    }
    pieces
}

impl Piece {
    fn add(&mut self, word: Range<usize>) {
        match self.bytes.last_mut() {
            Some(last) if last.end == word.start => last.end = word.end,
            _ => self.bytes.push(word),
        }
    }
}

/// The first word of a piece that is partly new and partly old in the image.
fn torn_word(ranges: &[Range<usize>], image: &Store, lines: &Lines) -> Option<usize> {
    let is_torn = |at: &usize| {
        let word = *at..at + WORD;
        let others = [lines.newest(), lines.durable()];
        let is_other = |other: &Store| word_of(other, &word) == word_of(image, &word);
        !others.into_iter().any(is_other)
    };
    let mut words = ranges.iter().flat_map(|range| range.clone().step_by(WORD));
    words.find(is_torn)
}

/// The first bytes of a piece: in the image, and in its place.
fn values(ranges: &[Range<usize>], image: &Store, other: &Store) -> String {
    const SHOWN: usize = 8;
    let first = ranges.first().cloned().unwrap_or_default();
    let more = if first.len() > SHOWN || ranges.len() > 1 {
        " …"
    } else {
        ""
    };
    // A piece consists of words, and the first of them is shown.
    let hex = |from: &Store| {
        let bytes = word_of(from, &first);
        bytes[..first.len().min(SHOWN)]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    format!(
        "In the image: {}{more}; otherwise: {}{more}",
        hex(image),
        hex(other)
    )
}

fn ranges(ranges: &[Range<usize>]) -> String {
    let mut text = "bytes ".to_owned();
    for (number, range) in ranges.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        if number == 4 {
            let _ = write!(text, " and {} more places", ranges.len() - number);
            break;
        }
        let _ = write!(text, "{comma}{}..{}", range.start, range.end);
    }
    text
}

/// Whether it is a store of a program that is durable when it is made.
fn is_durable_at_once(write: &Write, platform: Platform) -> bool {
    platform == Platform::Eadr && matches!(&*write.writer, Writer::Program)
}

fn reach_of(write: &Write) -> &'static str {
    match write.reach {
        Reach::Device => "in flight in the device",
        Reach::Cache => "in a cache",
    }
}

fn writer_of(write: &Write) -> String {
    match &*write.writer {
        Writer::Program => "the program's own stores".to_owned(),
        Writer::Device { what, .. } => what.clone(),
    }
}

fn what_saves(
    write: &Write,
    (platform, profile): (Platform, &Profile),
    state: &State,
) -> &'static str {
    match (write.reach, &*write.writer) {
        (_, Writer::Program) if platform == Platform::Eadr => {
            "On eADR a store is durable when it is made, and the power can fail before. Store these bytes before the \
             program relies on them."
        }
        (_, Writer::Program) => {
            "PmemMap::persist of these bytes would have saved them. A program that writes caches back by itself calls \
             rpma::sim::persisted."
        }
        (
            _,
            Writer::Device {
                flow: Flow::Reads(_),
                ..
            },
        ) => {
            "The bytes of a read are there when its completion was polled. Then PmemMap::persist makes them durable."
        }
        (Reach::Device, _) if profile.copies => {
            "The device is copying them. An incomplete copy may be torn, on each platform."
        }
        (
            _,
            Writer::Device {
                flow: Flow::Writes(qp),
                ..
            },
        ) if !state.is_connected(*qp) && !profile.copies => {
            "The connection that has written them has ended, and a flush on another connection does not cover them. A \
             new connection has to write them again, and flush them."
        }
        _ if profile.copies => {
            "soft-RoCE copies through the caches: a native flush for persistence of these bytes, or \
             PmemMap::persist on that host, would have saved them. A flush by reading does not."
        }
        (Reach::Device, _) if platform.keeps_what_is_visible() => {
            "A flush on the same connection, after the write, would have saved them. Its completion must be polled \
             before the program relies on it."
        }
        (Reach::Device, _) if profile.native => {
            "A native flush for persistence on the same connection, after the write, would have saved them. Its \
             completion must be polled before the program relies on it. So would the server's method: a message after \
             the write, and PmemMap::persist on that host when it has come. PmemMap::persist alone does not reach \
             bytes in the device. A flush by reading moves them into a cache, which this platform loses."
        }
        (Reach::Device, _) => {
            "The server's method would have saved them: a message after the write, and PmemMap::persist on that host \
             when it has come. PmemMap::persist alone does not reach bytes in the device. A flush by reading moves \
             them into a cache, which this platform loses."
        }
        _ => {
            "They have left the device for a cache, which this platform loses: a flush by reading does not save them, \
             and the host's PeerCfg must not promise direct writes. PmemMap::persist on that host saves them, or a \
             native flush for persistence."
        }
    }
}
