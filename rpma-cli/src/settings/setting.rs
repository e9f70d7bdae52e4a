//! [`Setting`]: a point of the grid, with all that a result depends on.

use std::fmt;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::grid::{count, parse_rate, parse_size};
use super::units::{Bytes, PerSecond};

/// An operation that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Flush {
    /// Other programs see the data
    Visible,
    /// The data survive a loss of power
    Durable,
}

/// How completions are awaited.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Completions {
    /// The thread looks at the queue without a pause
    #[default]
    Poll,
    /// The thread sleeps until a completion event
    Wait,
}

/// A point of the grid. Points have the order of their fields.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// The operation
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Op::Write)]
    pub(crate) op: Op,
    /// How commits and flushes take effect. Without it: the first of these that the server serves
    #[arg(long, value_enum, value_name = "NAME")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<Method>,
    /// What a commit or a flush ends with. Without it: durable, if the server's memory can be
    #[arg(long, value_enum, value_name = "NAME")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) flush: Option<Flush>,
    /// The bytes of each operation: a number, with k, m or g for KiB, MiB or GiB
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    pub(crate) size: u64,
    /// The operations in flight on each connection
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count(u32::MAX))]
    pub(crate) depth: u32,
    /// The operations that are posted with one doorbell. The last one has a completion
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count(u32::MAX))]
    pub(crate) batch: u32,
    /// The threads. Each has its own connections
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count(1024))]
    pub(crate) threads: u32,
    /// The connections of all threads. Without it: one for each thread
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) connections: u32,
    /// How completions are awaited
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Completions::Poll)]
    pub(crate) completions: Completions,
    /// An open loop with so many operations a second, of all connections: a number, with k or m for
    /// thousands or millions
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// The copies that a commit waits for. Without it: one on each server
    #[arg(long, value_name = "COUNT", value_parser = count(u32::MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copies: Option<u32>,
    /// The servers of each commit.
    #[arg(skip)]
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
