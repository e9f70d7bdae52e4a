//! [`LogError`]: the errors of a log.

use std::net::SocketAddr;

use rpma::Error;

/// Why a call of a log failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A setting that no log has. Nothing was done.
    #[error("{0}")]
    Settings(String),
    /// A record without a byte, or no record. Nothing was written.
    #[error("a record without a byte, or no record: the log has no entry for it")]
    Empty,
    /// Nothing was written.
    #[error("a record of {len} bytes: the log takes at most {most}")]
    TooLong {
        /// The bytes of the record.
        len: usize,
        /// The most bytes of a record: the entry has at most half of the ring, and at most 64 KiB.
        most: usize,
    },
    /// Records that are appended together. Nothing was written.
    #[error("records of {bytes} bytes with their heads: the log takes at most {most} at once")]
    TooMany {
        /// The bytes of the records, with their heads.
        bytes: u64,
        /// Half of the ring.
        most: u64,
    },
    /// The log had no room within the limit. Nothing was written.
    #[error(
        "the log is full: the records take {bytes} bytes, and there is room for {room}. Truncate it, or \
         wait for a server that has not truncated it yet"
    )]
    Full {
        /// The bytes of the records, with their heads.
        bytes: u64,
        /// The bytes that are free. A record that does not fit before the end of the ring takes more.
        room: u64,
    },
    /// The outcome of an append or a truncation is unknown. The record may be there, and may be
    /// acknowledged later ([`Log::bounds`](crate::Log::bounds)).
    #[error("the outcome of the record at {at} is unknown: {why}")]
    Unknown {
        /// The position.
        at: u64,
        /// The reason.
        why: Box<LogError>,
    },
    /// A position that was truncated, at which no record begins, or that is not acknowledged.
    #[error("no record begins at {at}: the log has the records from {head} up to {durable}")]
    NoPosition {
        /// The position.
        at: u64,
        /// The first record that is kept.
        head: u64,
        /// The end of the acknowledged records.
        durable: u64,
    },
    /// Another writer has the log. This one writes no more.
    #[error(
        "another writer has the epoch {epoch}, or an earlier open has used it: to take the log over, open \
         it with a higher one"
    )]
    Fenced {
        /// The epoch of the other writer.
        epoch: u64,
    },
    /// Too few servers could be reached within the limit: both numbers, and the reason of each server.
    /// A server without a log does not count, unless the log is created.
    #[error("too few servers can be reached: {0}")]
    TooFew(String),
    /// The log has other servers than the settings: one was replaced. Open the log with this list, or
    /// permit it by [`LogCfg::set_follow`](crate::LogCfg::set_follow).
    #[error(
        "the log has the servers {}, and the settings have others: open it with these, or permit that by \
         LogCfg::set_follow", addrs(.servers)
    )]
    OtherServers {
        /// The servers of the log, in the order of its list.
        servers: Vec<SocketAddr>,
    },
    /// N - K + 1 servers have no log. [`LogCfg::set_create`](crate::LogCfg::set_create) makes one.
    #[error("the servers have no log: create it by LogCfg::set_create")]
    Nothing,
    /// A log was to be created, and a server has one. Open it without
    /// [`LogCfg::set_create`](crate::LogCfg::set_create). A log whose creation was interrupted may
    /// have too few servers for that. It has no acknowledged record: fill its
    /// [place](crate::ServerCfg::place) with zeros on that server, while no program serves it.
    #[error(
        "the server {server} has a log already: open it, or clear its memory (ServerCfg::place)"
    )]
    Exists {
        /// The address of the server.
        server: SocketAddr,
    },
    /// The memory of a server has something else. Nothing was overwritten there.
    #[error("not this log: {0}")]
    Foreign(String),
    /// The limit has passed. [`Log::state`](crate::Log::state) has the servers that are away.
    #[error("the limit has passed (LogCfg::set_limit)")]
    TimedOut,
    /// The log was closed.
    #[error("the log was closed")]
    Closed,
    /// An error of rpma. As text, because several calls return it.
    #[error("{0}")]
    Rpma(String),
}

fn addrs(servers: &[SocketAddr]) -> String {
    let addrs: Vec<_> = servers.iter().map(SocketAddr::to_string).collect();
    addrs.join(" ")
}

impl From<Error> for LogError {
    fn from(error: Error) -> Self {
        match error.other_epoch() {
            Some(epoch) => Self::Fenced { epoch },
            None => Self::Rpma(error.to_string()),
        }
    }
}
