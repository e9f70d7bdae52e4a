//! [`LogError`]: everything that a call of the log can return.

use super::Lsn;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("{0}")]
    Arguments(String),
    /// Nothing was written.
    #[error("a record of {len} bytes: at most {most}")]
    TooLong { len: usize, most: usize },
    /// Nothing was written.
    #[error("the log is full: truncate it, or wait for the replica that has not truncated it yet")]
    Full,
    /// The record may be there, and may be acknowledged later: see `Log::bounds`.
    #[error("the outcome of the record at {0} is unknown: {1}")]
    Unknown(Lsn, Box<LogError>),
    #[error("no record begins at {0}, between the head and the last acknowledged record")]
    NoPosition(Lsn),
    /// This writer can write no more.
    #[error("another writer has the epoch {epoch}: to take over, open the log with a higher one")]
    Fenced { epoch: u64 },
    #[error("too few replicas can be reached: {0}")]
    TooFew(String),
    #[error("the replicas have no log: create it")]
    Nothing,
    #[error("a replica has a log already: open it, or clear its memory")]
    Exists,
    /// Nothing was overwritten there.
    #[error("not this log: {0}")]
    Foreign(String),
    #[error("the limit has passed")]
    TimedOut,
    #[error("the log was closed")]
    Closed,
    #[error("{0}")]
    Rpma(String),
}

impl From<rpma::Error> for LogError {
    fn from(error: rpma::Error) -> Self {
        match error.other_epoch() {
            Some(epoch) => Self::Fenced { epoch },
            None => Self::Rpma(error.to_string()),
        }
    }
}
