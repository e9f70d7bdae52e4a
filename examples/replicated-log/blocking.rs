//! The log for programs with threads: each call waits on its own thread.

use std::ops::Deref;
use std::time::Duration;

use rpma::Peer;
use rpma::thread::{self, JoinHandle};
use rpma_async::{Reactor, block_on};

use super::log::{self, LogCfg};
use super::{LogError, Lsn};

/// A log. Several threads may append, and their records share commits. It derefs to the handle that
/// has the calls that do not wait.
pub(crate) struct Log {
    log: log::Log,
    work: Option<JoinHandle<()>>,
}

impl Log {
    pub(crate) fn open(peer: &Peer, cfg: &LogCfg) -> Result<Self, LogError> {
        let log = log::Log::new(&Reactor::on_thread(peer)?, cfg)?;
        let work = log.clone().work();
        let work = Some(thread::spawn(move || wait(work)));
        let log = Self { log, work };
        wait(log.log.opened())?;
        Ok(log)
    }

    pub(crate) fn append(&self, record: &[u8]) -> Result<Lsn, LogError> {
        wait(self.log.append(record))
    }

    pub(crate) fn truncate(&self, to: Lsn) -> Result<(), LogError> {
        wait(self.log.truncate(to))
    }

    pub(crate) fn close(self) -> Result<(), LogError> {
        wait(self.log.close())
    }
}

impl Deref for Log {
    type Target = log::Log;

    fn deref(&self) -> &log::Log {
        &self.log
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.log.0.end(LogError::Closed);
        // A panic there has printed its report.
        let _ = self.work.take().map(JoinHandle::join);
    }
}

/// The calls have limits of their own.
fn wait<F: Future>(future: F) -> F::Output {
    block_on(future, Duration::MAX).expect("no limit")
}
