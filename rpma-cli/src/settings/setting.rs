//! [`Setting`]: a point of the grid, with all that a result depends on.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::units::{Bytes, PerSecond};

/// An operation that is measured.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// An RDMA write. Its completion is no promise that the data are durable
    #[default]
    Write,
    /// An RDMA read
    Read,
    /// Writes and reads in turn: bytes go in both directions at once
    ReadWrite,
    /// A message. The server posts the receives
    Send,
    /// Writes, and one flush of all their bytes
    WriteFlush,
    /// A commit of a record and its pointer, to one server or to several
    Commit,
    /// An atomic write of 8 bytes
    AtomicWrite,
}

/// The method of a commit or a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Method {
    /// The device's own flush and atomic write
    Native,
    /// A read after the write
    Reading,
    /// The server's processor makes the data durable. Only for commits
    Server,
}

/// The end of a flush or a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flush {
    /// Other programs see the data
    Visible,
    /// The data survive a loss of power
    Durable,
}

/// How completions are awaited.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Completions {
    /// The thread looks at the queue without a pause
    #[default]
    Poll,
    /// The thread sleeps until a completion event
    Wait,
}

/// A point of the grid. Points have the order of their fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) op: Op,
    /// The method of commits and flushes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<Method>,
    /// The type of commits and flushes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flush: Option<Flush>,
    /// The bytes of each operation.
    pub(crate) size: u64,
    /// The operations in flight on each connection.
    pub(crate) depth: u32,
    /// The operations that are posted with one doorbell, and complete together.
    pub(crate) batch: u32,
    pub(crate) threads: u32,
    /// The connections of all threads.
    pub(crate) connections: u32,
    pub(crate) completions: Completions,
    /// The intended operations in a second, of all connections. `None`: a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// The copies that a commit waits for, if it goes to several servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copies: Option<u32>,
    /// The servers of each commit.
    pub(crate) servers: u32,
}

/// The name of a value, as it is in arguments.
pub(crate) fn name<T: ValueEnum>(value: T) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Setting {
    /// The groups of operations that are in flight on a connection.
    pub(crate) fn slots(&self) -> u32 {
        self.depth / self.batch
    }

    /// Each part in words. The words of two settings have the same places.
    pub(crate) fn words(&self) -> Vec<String> {
        vec![
            self.operation(),
            Bytes(self.size).to_string(),
            format!("depth {}", self.depth),
            format!("batch {}", self.batch),
            number(self.threads as usize, "thread"),
            number(self.connections as usize, "connection"),
            name(self.completions),
            match self.rate {
                Some(rate) => format!("open loop, {}", PerSecond(rate)),
                None => CLOSED.into(),
            },
        ]
    }

    /// The operation in words: `commit (native, durable, 2 of 3)`.
    pub(crate) fn operation(&self) -> String {
        let words = [
            self.method.map(name),
            self.flush.map(name),
            self.copies
                .map(|copies| format!("{copies} of {}", self.servers)),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        if words.is_empty() {
            name(self.op)
        } else {
            format!("{} ({})", name(self.op), words.join(", "))
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.words();
        words.retain(|word| word != CLOSED && !USUAL.contains(&&**word));
        f.write_str(&words.join(", "))
    }
}

const CLOSED: &str = "closed loop";
/// These are left out where all settings have them.
pub(crate) const USUAL: [&str; 3] = ["batch 1", "1 thread", "1 connection"];

/// `1 run`, `2 runs`.
pub(crate) fn number(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::samples::setting;

    #[test]
    fn settings_have_the_order_of_their_numbers() {
        let with = |size, rate| Setting {
            size,
            rate,
            ..setting()
        };
        assert!(with(64, None) < with(512, None));
        assert!(with(64, None) < with(64, Some(9.0)));
        assert!(with(64, Some(9.0)) < with(64, Some(10.0)));
    }
}
