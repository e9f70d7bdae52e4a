//! The log for programs on tokio: its work is a task, and its calls are awaited.

use std::ops::Deref;

use rpma::Peer;
use rpma_async::Reactor;
use tokio::task::JoinHandle;

use super::LogError;
use super::log::{self, LogCfg};

/// A log. It derefs to the handle that has its calls.
pub(crate) struct Log {
    log: log::Log,
    work: JoinHandle<()>,
}

impl Log {
    pub(crate) async fn open(peer: &Peer, cfg: &LogCfg) -> Result<Self, LogError> {
        let log = log::Log::new(&Reactor::spawn(peer)?, cfg)?;
        let work = tokio::spawn(log.clone().work());
        let log = Self { log, work };
        log.opened().await?;
        Ok(log)
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
        self.work.abort();
    }
}
