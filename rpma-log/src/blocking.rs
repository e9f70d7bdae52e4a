//! The log for programs with threads: each call waits on its own thread.

use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use rpma::Peer;
use rpma_async::{Reactor, block_on};

use crate::{LogCfg, LogError};

/// A log whose calls block. Clones are handles of the same log: several threads may append, and
/// their records share commits. It derefs to the [`Log`](crate::Log) with the calls that do not
/// wait.
#[derive(Clone, Debug)]
pub struct Log(crate::Log);

impl Log {
    /// Opens a log, whose work is done by threads of its own: as [`crate::Log::open`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::open`], and [`Reactor::on_thread`].
    pub fn open(peer: &Peer, cfg: &LogCfg) -> Result<Self, LogError> {
        wait(crate::Log::open(&Reactor::on_thread(peer)?, cfg)).map(Self)
    }

    /// Appends a record: as [`crate::Log::append`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::append`].
    pub fn append(&self, record: &[u8]) -> Result<u64, LogError> {
        wait(self.0.append(record))
    }

    /// Appends several records: as [`crate::Log::append_many`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::append_many`].
    pub fn append_many<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Vec<u64>, LogError> {
        wait(self.0.append_many(records))
    }

    /// Forgets the records before a position: as [`crate::Log::truncate`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::truncate`].
    pub fn truncate(&self, to: u64) -> Result<(), LogError> {
        wait(self.0.truncate(to))
    }

    /// Replaces a server: as [`crate::Log::replace`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::replace`].
    pub fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<(), LogError> {
        wait(self.0.replace(old, new))
    }

    /// Waits until all records are acknowledged, and ends the log: as [`crate::Log::close`].
    ///
    /// # Errors
    ///
    /// As [`crate::Log::close`].
    pub fn close(&self) -> Result<(), LogError> {
        wait(self.0.close())
    }
}

impl Deref for Log {
    type Target = crate::Log;

    fn deref(&self) -> &crate::Log {
        &self.0
    }
}

/// The calls have limits of their own.
fn wait<F: Future>(future: F) -> F::Output {
    block_on(future, Duration::MAX).expect("no limit")
}
