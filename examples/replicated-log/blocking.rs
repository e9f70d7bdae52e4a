//! The log for programs with threads: each call waits on its own thread.

use std::ops::Deref;
use std::time::Duration;

use rpma::Peer;
use rpma_async::{Reactor, block_on};

use super::log::{self, LogCfg};
use super::{LogError, Lsn};

/// A log. Several threads may append, and their records share commits. It derefs to the log that
/// has the calls that do not wait.
pub(crate) struct Log(log::Log);

impl Log {
    pub(crate) fn open(peer: &Peer, cfg: &LogCfg) -> Result<Self, LogError> {
        wait(log::Log::open(&Reactor::on_thread(peer)?, cfg)).map(Self)
    }

    pub(crate) fn append(&self, record: &[u8]) -> Result<Lsn, LogError> {
        wait(self.0.append(record))
    }

    pub(crate) fn truncate(&self, to: Lsn) -> Result<(), LogError> {
        wait(self.0.truncate(to))
    }

    pub(crate) fn close(self) -> Result<(), LogError> {
        wait(self.0.close())
    }
}

impl Deref for Log {
    type Target = log::Log;

    fn deref(&self) -> &log::Log {
        &self.0
    }
}

/// The calls have limits of their own.
fn wait<F: Future>(future: F) -> F::Output {
    block_on(future, Duration::MAX).expect("no limit")
}
