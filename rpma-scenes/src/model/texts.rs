//! The model's texts for reports.

use super::{Entry, Model};
use crate::course::ranges;
use crate::subject::Record;

/// A broken promise.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) why: String,
    /// The record that should have been read, if it is one.
    pub(crate) lost: Option<usize>,
}

impl From<String> for Broken {
    fn from(why: String) -> Self {
        Self { why, lost: None }
    }
}

/// A record that should have been read.
pub(super) struct Lost {
    pub(super) number: usize,
    pub(super) why: String,
    /// Its position, if that is known.
    pub(super) at: Option<u64>,
}

impl Lost {
    /// With the record that was read in its place.
    pub(super) fn broken(self, read: &[Record], found: &[Option<usize>]) -> Broken {
        let place = read.iter().position(|record| Some(record.at) == self.at);
        let other = place.and_then(|place| found.iter().position(|found| *found == Some(place)));
        let why = match other {
            Some(other) => format!("{}: record {other} is read in its place", self.why),
            None => self.why,
        };
        let lost = Some(self.number);
        Broken { why, lost }
    }
}

impl Model {
    /// The records that were read, by their numbers. The positions are of the first one and the last.
    pub(crate) fn text(&self, read: &[Record]) -> String {
        let [Some(first), Some(last)] = [read.first(), read.last()] else {
            return "no record".to_owned();
        };
        let numbers = read.iter().filter_map(|record| self.named(record).ok());
        let numbers: Vec<_> = numbers.collect();
        let others = match read.len() - numbers.len() {
            0 => String::new(),
            others => format!(" and {others} that no writer has appended"),
        };
        let (runs, first, last) = (ranges(&numbers), first.at, last.at);
        match (read.len(), numbers.is_empty()) {
            (count, true) => format!("{count} that no writer has appended, from {first} on"),
            (1, _) => format!("record {runs}, at {first}"),
            _ => format!("the records {runs}{others}, at {first} to {last}"),
        }
    }

    /// Whether the bytes of a record are in a memory, in one piece.
    pub(crate) fn is_in(&self, number: usize, memory: &[u8]) -> bool {
        self.entries[number].is_in(memory)
    }

    /// The numbers of the records whose bytes are in a memory, in one piece.
    pub(crate) fn records_in(&self, memory: &[u8]) -> String {
        let mut numbers = Vec::from_iter(0..self.entries.len());
        numbers.retain(|number| self.is_in(*number, memory));
        match numbers.is_empty() {
            true => "none".to_owned(),
            false => ranges(&numbers),
        }
    }

    /// Whether a memory has all records that the next writer has to read.
    pub(crate) fn is_whole_in(&self, memory: &[u8]) -> bool {
        let must_be = |of: &&Entry| match of.position() {
            Some(at) => at >= self.forgets,
            None => of.settled == Some(true) && self.forgets == 0,
        };
        let mut all = self.entries.iter().filter(must_be);
        all.all(|of| of.is_in(memory))
    }
}
