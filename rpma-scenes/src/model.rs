//! The judge: a model of the log, with one rule. Each durable record is read back once, in order and
//! whole, by each later opening; an unknown one at most once, and then by all or by none, or by all if
//! its own writer has read it; a refused one never; and nothing else is read. A forgotten record is
//! not read again.

mod texts;

use self::texts::{Broken, Lost};
use crate::subject::{Appended, Record};

/// A record that was appended.
#[derive(Clone, Debug)]
struct Entry {
    bytes: Vec<u8>,
    /// The epoch of its writer.
    epoch: u64,
    /// Its append has begun and ended at these moments of the model.
    begun: u64,
    ended: u64,
    /// `None`: the append has not ended.
    outcome: Option<Appended>,
    /// An opening has decided whether it is in the log.
    settled: Option<bool>,
    /// The position at which it was read last.
    read_at: Option<u64>,
}

impl Entry {
    fn position(&self) -> Option<u64> {
        match self.outcome {
            Some(Appended::Durable(at)) => Some(at),
            _ => None,
        }
    }

    fn is_in(&self, memory: &[u8]) -> bool {
        let mut windows = memory.windows(self.bytes.len().max(1));
        self.bytes.is_empty() || windows.any(|bytes| bytes == self.bytes)
    }
}

/// The records of a log, and the outcomes that its writers have got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    entries: Vec<Entry>,
    now: u64,
    /// Records before `forgets` may be gone, and those before `forgotten` are.
    forgets: u64,
    forgotten: u64,
    /// The servers of the log; those after a change whose outcome is not known; and those before the
    /// last change.
    servers: Vec<usize>,
    next: Option<Vec<usize>>,
    before: Option<Vec<usize>>,
    /// Servers that lack records. One of them gets those that it had before.
    lacking: Vec<usize>,
    /// A writer has opened the log.
    is_opened: bool,
    /// The broken promise of an append, which the next check reports.
    broken: Option<String>,
}

const NEVER: u64 = u64::MAX;

impl Model {
    /// An empty log on so many servers.
    pub(crate) fn new(servers: usize) -> Self {
        Self {
            servers: (0..servers).collect(),
            ..Self::default()
        }
    }

    /// The servers of the log. In a change, those before it.
    pub(crate) fn servers(&self) -> &[usize] {
        &self.servers
    }

    /// The lists that the log may have: in a change two.
    pub(crate) fn lists(&self) -> Vec<Vec<usize>> {
        let next = self.next.iter().cloned();
        [self.servers.clone()].into_iter().chain(next).collect()
    }

    /// The servers before the last change, if there was one.
    pub(crate) fn before(&self) -> Option<&[usize]> {
        self.before.as_deref()
    }

    /// Servers that lack records: with them alone the log need not open.
    pub(crate) fn lacking(&self) -> &[usize] {
        &self.lacking
    }

    pub(crate) fn lack(&mut self, servers: &[usize]) {
        self.now += 1;
        self.lacking = servers.to_vec();
    }

    /// A server is replaced by another one.
    pub(crate) fn replaces(&mut self, old: usize, new: usize) {
        self.now += 1;
        let after = |n: &usize| if *n == old { new } else { *n };
        self.next = Some(self.servers.iter().map(after).collect());
        self.before = Some(self.servers.clone());
    }

    /// That is done.
    pub(crate) fn replaced(&mut self) {
        self.now += 1;
        self.servers = self.next.take().expect("it has begun");
    }

    fn moment(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A new record of so many bytes, whose append begins. Returns its number.
    pub(crate) fn begin(&mut self, epoch: u64, len: usize) -> (usize, Vec<u8>) {
        let number = self.entries.len();
        let byte = |at: usize| (number * 37 + at * 11 + 1) as u8;
        let mut bytes: Vec<u8> = (0..len).map(byte).collect();
        // So no two records are the same, nor the beginning of another one. A shorter one has the
        // beginning of its name, which few records have.
        let name = (number as u32 + 1).to_le_bytes();
        let named = len.min(name.len());
        bytes[..named].copy_from_slice(&name[..named]);
        if len >= 2 * name.len() {
            bytes[len - 4..].copy_from_slice(&(len as u32).to_le_bytes());
        }
        let entry = Entry {
            bytes: bytes.clone(),
            epoch,
            begun: self.moment(),
            ended: NEVER,
            outcome: None,
            settled: None,
            read_at: None,
        };
        self.entries.push(entry);
        (number, bytes)
    }

    /// The append of a record has ended.
    pub(crate) fn end(&mut self, number: usize, outcome: Appended) {
        let ended = self.moment();
        let same = match outcome {
            Appended::Durable(at) => self.entries.iter().position(|of| of.position() == Some(at)),
            _ => None,
        };
        let entry = &mut self.entries[number];
        (entry.ended, entry.outcome) = (ended, Some(outcome));
        if let (Some(false), Some(at)) = (entry.settled, entry.position()) {
            self.break_with(format!(
                "record {number} became durable at {at} for a writer from which another one has taken over, and that \
                 one has not read it"
            ));
        }
        if let Some(other) = same {
            self.break_with(format!(
                "the records {other} and {number} have the same position"
            ));
        }
    }

    fn break_with(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// How many records are durable.
    pub(crate) fn durable(&self) -> usize {
        let durable = self.entries.iter().filter(|of| of.position().is_some());
        durable.count()
    }

    pub(crate) fn is_opened(&self) -> bool {
        self.is_opened
    }

    pub(crate) fn appended(&self) -> usize {
        self.entries.len()
    }

    /// The bytes of durable records that are not forgotten.
    pub(crate) fn kept(&self) -> Vec<Vec<u8>> {
        let is_kept = |of: &&Entry| of.position().is_some_and(|at| at >= self.forgets);
        let kept = self.entries.iter().filter(is_kept);
        kept.map(|of| of.bytes.clone()).collect()
    }

    /// A truncation begins.
    pub(crate) fn forget(&mut self, to: u64) {
        self.forgets = self.forgets.max(to);
        self.now += 1;
    }

    /// A truncation is done.
    pub(crate) fn forgot(&mut self, to: u64) {
        self.forgotten = self.forgotten.max(to);
        self.now += 1;
    }

    /// Changes with each change of the model, for images that were checked already.
    pub(crate) fn version(&self) -> u64 {
        self.now
    }

    /// Judges the records that a writer has read.
    pub(crate) fn check(&self, read: &[Record]) -> Result<(), Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone().into());
        }
        let mut found: Vec<Option<usize>> = vec![None; self.entries.len()];
        let mut before: Option<&Record> = None;
        for (place, record) in read.iter().enumerate() {
            let number = self.named(record)?;
            if found[number].replace(place).is_some() {
                return Err(format!("record {number} is read twice").into());
            }
            self.check_one(number, record)?;
            if let Some(before) = before.filter(|before| before.at >= record.at) {
                let (at, before) = (record.at, before.at);
                return Err(format!("record {number} is at {at}, after one at {before}").into());
            }
            before = Some(record);
        }
        self.check_order(&found)?;
        self.check_missing(&found)
            .map_err(|lost| lost.broken(read, &found))
    }

    /// The number of a record that was read.
    fn named(&self, record: &Record) -> Result<usize, String> {
        let same = |of: &Entry| of.bytes == record.bytes;
        if let Some(number) = self.entries.iter().position(same) {
            return Ok(number);
        }
        let name = record
            .bytes
            .first_chunk()
            .map(|name| u32::from_le_bytes(*name));
        let number = name.and_then(|name| (name as usize).checked_sub(1));
        let like = number.and_then(|number| Some((number, self.entries.get(number)?)));
        Err(match like {
            Some((number, of)) => format!(
                "record {number} is read damaged: {record:?}, and it has {} bytes",
                of.bytes.len()
            ),
            None => format!("a record is read that no writer has appended: {record:?}"),
        })
    }

    fn check_one(&self, number: usize, record: &Record) -> Result<(), String> {
        let entry = &self.entries[number];
        match &entry.outcome {
            Some(Appended::Refused(why)) => {
                return Err(format!("record {number} was refused ({why}), and is read"));
            }
            Some(Appended::Durable(at)) if *at != record.at => {
                let place = self
                    .entries
                    .iter()
                    .position(|of| of.position() == Some(record.at));
                let place =
                    place.map_or_else(String::new, |of| format!(", the place of record {of}"));
                return Err(format!(
                    "record {number} was durable at {at}, and is read at {}{place}",
                    record.at
                ));
            }
            _ => {}
        }
        if entry.position().is_some_and(|at| at < self.forgotten) {
            return Err(format!("record {number} was forgotten, and is read again"));
        }
        match entry.settled {
            Some(false) => Err(format!(
                "record {number} is read, and an earlier opening has not read it"
            )),
            _ => Ok(()),
        }
    }

    /// A record that was durable before another append began is read before that one.
    fn check_order(&self, found: &[Option<usize>]) -> Result<(), String> {
        let mut order: Vec<_> = found.iter().enumerate().collect();
        order.retain(|(_, place)| place.is_some());
        order.sort_unstable_by_key(|(_, place)| **place);
        let mut latest = (0, 0);
        for (number, _) in order {
            let entry = &self.entries[number];
            if entry.position().is_some() && entry.ended < latest.0 {
                let after = latest.1;
                return Err(format!(
                    "record {number} was durable before the append of record {after} began, and is read after it"
                ));
            }
            latest = latest.max((entry.begun, number));
        }
        Ok(())
    }

    fn check_missing(&self, found: &[Option<usize>]) -> Result<(), Lost> {
        let all = || self.entries.iter().zip(found).enumerate();
        let kept = all().filter_map(|(_, (of, found))| found.and(of.position()));
        // The records that may be forgotten are so from the first one on.
        let first = kept.min().unwrap_or(NEVER).min(self.forgets);
        for (number, (of, found)) in all() {
            let (is_found, at) = (found.is_some(), of.position());
            if is_found {
                continue;
            }
            match at {
                Some(at) if at >= first => {
                    let lost = match at < self.forgets {
                        true => "is missing between others that were kept",
                        false => "was durable, and is lost",
                    };
                    return Err(Lost {
                        number,
                        at: Some(at),
                        why: format!("record {number} (at {at}) {lost}"),
                    });
                }
                Some(_) => {}
                None if of.settled == Some(true) && self.forgets == 0 => {
                    let at = of.read_at;
                    let place = at.map_or_else(String::new, |at| format!(" at {at}"));
                    return Err(Lost {
                        number,
                        at,
                        why: format!(
                            "the outcome of record {number} was unknown, it was read{place}, and now it is lost"
                        ),
                    });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A writer with this epoch has opened the log and read these records, which are right. So the
    /// outcomes of all writers before it are decided.
    pub(crate) fn settle(&mut self, epoch: u64, read: &[Record]) {
        self.now += 1;
        self.is_opened = true;
        for entry in self.entries.iter_mut().filter(|of| of.epoch < epoch) {
            let there = read.iter().find(|record| record.bytes == entry.bytes);
            entry.settled = Some(there.is_some());
            entry.read_at = there.map(|record| record.at);
        }
    }

    /// A writer that goes on has read these records, which are right. So each later one reads them.
    pub(crate) fn keep(&mut self, read: &[Record]) {
        for record in read {
            let unknown = |of: &&mut Entry| of.position().is_none() && of.settled.is_none();
            let mut entries = self.entries.iter_mut().filter(unknown);
            if let Some(entry) = entries.find(|of| of.bytes == record.bytes) {
                (entry.settled, entry.read_at) = (Some(true), Some(record.at));
                self.now += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with these outcomes, in their order, of the epoch 1.
    fn model(outcomes: &[Appended]) -> Model {
        let mut model = Model::default();
        for outcome in outcomes {
            let (number, _) = model.begin(1, 40);
            model.end(number, outcome.clone());
        }
        model
    }

    fn read(model: &Model, numbers: &[usize]) -> Vec<Record> {
        let record = |number: &usize| Record {
            at: 10 * *number as u64,
            bytes: model.entries[*number].bytes.clone(),
        };
        numbers.iter().map(record).collect()
    }

    fn fails(model: &Model, numbers: &[usize], with: &str) {
        let why = model.check(&read(model, numbers)).expect_err(with).why;
        assert!(why.contains(with), "{why}");
    }

    const UNKNOWN: Appended = Appended::Unknown(String::new());
    const REFUSED: Appended = Appended::Refused(String::new());
    use Appended::Durable;

    /// Promise: each clause of the rule fails for a log that breaks it alone.
    #[test]
    fn the_rule_has_each_of_its_clauses() {
        let of = model(&[Durable(0), UNKNOWN, Durable(20), REFUSED]);
        for right in [&[0, 1, 2][..], &[0, 2]] {
            of.check(&read(&of, right)).expect("right");
        }
        fails(&of, &[0], "lost");
        fails(&of, &[2], "lost");
        fails(&of, &[0, 0, 2], "twice");
        fails(&of, &[2, 0], "after");
        fails(&of, &[0, 2, 3], "refused");
        let mut other = read(&of, &[0, 2]);
        other[1].bytes.push(0);
        let why = of.check(&other).expect_err("damaged").why;
        assert!(why.contains("damaged"), "{why}");
        other[1].bytes = vec![9; 30];
        let why = of.check(&other).expect_err("of no writer").why;
        assert!(why.contains("no writer"), "{why}");
        let mut moved = read(&of, &[0, 2]);
        moved[1].at += 1;
        let why = of.check(&moved).expect_err("moved").why;
        assert!(why.contains("is read at"), "{why}");
    }

    /// Promise: a record that is lost is named with the one that is read in its place, also if its
    /// outcome was unknown.
    #[test]
    fn the_record_in_the_place_of_a_lost_one_is_named() {
        let mut of = model(&[Durable(0), Durable(10), UNKNOWN, UNKNOWN]);
        let mut other = read(&of, &[0, 2]);
        other[1].at = 10;
        let why = of.check(&other).expect_err("lost").why;
        let right = "record 1 (at 10) was durable, and is lost: record 2 is read in its place";
        assert_eq!(why, right);
        of.settle(2, &read(&of, &[0, 1, 2]));
        let mut other = read(&of, &[0, 1]);
        let (_, bytes) = of.begin(2, 40);
        other.push(Record { at: 20, bytes });
        let why = of.check(&other).expect_err("lost").why;
        let right = "the outcome of record 2 was unknown, it was read at 20, and now it is lost: record 4 is read in \
                     its place";
        assert_eq!(why, right);
        let mut moved = read(&of, &[0, 1]);
        moved[0].at = 10;
        let why = of.check(&moved).expect_err("moved").why;
        assert!(
            why.ends_with("is read at 10, the place of record 1"),
            "{why}"
        );
    }

    /// Promise: records of any length are known by their bytes.
    #[test]
    fn records_of_any_length_are_known() {
        let mut of = Model::default();
        for len in [0, 1, 1, 3, 4, 4, 7, 8, 8, 40] {
            let (number, bytes) = of.begin(1, len);
            assert_eq!(bytes.len(), len);
            of.end(number, Durable(10 * number as u64));
        }
        of.check(&read(&of, &Vec::from_iter(0..10))).expect("right");
        fails(&of, &[0, 1, 3, 4, 5, 6, 7, 8, 9], "record 2 (at 20)");
        assert_eq!(of.records_in(&[]), "0");
    }

    /// Promise: records that follow each other are a range.
    #[test]
    fn the_text_of_records_has_ranges() {
        let of = model(&[
            Durable(0),
            Durable(10),
            Durable(20),
            Durable(30),
            Durable(40),
        ]);
        let text = |numbers: &[usize]| of.text(&read(&of, numbers));
        assert_eq!(text(&[0, 1, 2, 4]), "the records 0 to 2, 4, at 0 to 40");
        assert_eq!(text(&[1]), "record 1, at 10");
        assert_eq!(text(&[]), "no record");
        let mut other = read(&of, &[0, 1]);
        other[1].bytes = vec![0; 40];
        let found = of.text(&other);
        let right = "the records 0 and 1 that no writer has appended, at 0 to 10";
        assert_eq!(found, right);
        let found = of.text(&other[1..]);
        assert_eq!(found, "1 that no writer has appended, from 10 on");
    }

    /// Promise: after an opening the answer for an unknown record stays the same.
    #[test]
    fn an_unknown_record_is_read_by_all_openings_or_by_none() {
        let of = model(&[Durable(0), UNKNOWN]);
        let mut with = of.clone();
        with.settle(2, &read(&of, &[0, 1]));
        fails(&with, &[0], "now it is lost");
        let mut without = of.clone();
        without.settle(2, &read(&of, &[0]));
        fails(&without, &[0, 1], "has not read it");
        // Its own writer is still asked.
        without = of.clone();
        without.settle(1, &read(&of, &[0]));
        without.check(&read(&of, &[0, 1])).expect("right");
    }

    /// Promise: a record that its own writer has read is read by all openings, and one that it has
    /// not read by all or by none.
    #[test]
    fn a_record_that_its_writer_has_read_stays() {
        let mut of = model(&[Durable(0), UNKNOWN, UNKNOWN]);
        of.keep(&read(&of, &[0, 1]));
        fails(&of, &[0], "now it is lost");
        for right in [&[0, 1][..], &[0, 1, 2]] {
            of.check(&read(&of, right)).expect("right");
        }
    }

    /// Promise: records are forgotten from the first one on, and do not come back.
    #[test]
    fn records_are_forgotten_from_the_first_one_on() {
        let mut of = model(&[Durable(0), Durable(10), Durable(20)]);
        of.forget(20);
        for right in [&[0, 1, 2][..], &[1, 2], &[2]] {
            of.check(&read(&of, right)).expect("right");
        }
        fails(&of, &[0, 2], "missing between");
        fails(&of, &[0, 1], "lost");
        // Later openings may have forgotten more of them.
        let mut some = of.clone();
        some.settle(2, &read(&of, &[1, 2]));
        some.check(&read(&of, &[2])).expect("right");
        fails(&some, &[0, 1, 2], "has not read it");
        of.settle(2, &read(&of, &[2]));
        fails(&of, &[1, 2], "has not read it");
        of.forgot(20);
        fails(&of, &[0, 1, 2], "forgotten");
    }

    /// Promise: a writer that was taken over cannot have a record durable that the next one lacks.
    #[test]
    fn an_old_writer_has_no_record_durable() {
        let mut of = model(&[Durable(0)]);
        let (number, _) = of.begin(1, 40);
        of.settle(2, &read(&of, &[0]));
        of.end(number, Durable(10));
        fails(&of, &[0, 1], "taken over");
    }

    /// Promise: two records of tasks that append at the same time may have any order, and those that
    /// follow each other one.
    #[test]
    fn the_order_is_that_of_appends_that_follow_each_other() {
        let mut of = Model::default();
        let [(one, _), (two, _)] = [of.begin(1, 40), of.begin(1, 40)];
        of.end(two, Durable(10));
        of.end(one, Durable(0));
        of.check(&read(&of, &[0, 1])).expect("right");
        let mut of = model(&[Durable(10), Durable(0)]);
        let read = [
            Record {
                at: 0,
                bytes: of.entries[1].bytes.clone(),
            },
            Record {
                at: 10,
                bytes: of.entries[0].bytes.clone(),
            },
        ];
        let why = of.check(&read).expect_err("the other order").why;
        assert!(why.contains("is read after"), "{why}");
        of.entries[1].begun = 0;
        of.check(&read).expect("right");
    }
}
