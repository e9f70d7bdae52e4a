//! The program of a replica: memory for the log of each key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rpma::commit::Limits;
use rpma::pmem::{Ddio, PmemMap};
use rpma::serve::{Layout, Server, ServerCfg};
use rpma::{ConnCfg, MrUsage};

use super::Fault;
use super::format::RING;
use super::log::{GROUP, SILENCE};

/// The settings of a replica.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
    /// A device-DAX, or a file.
    pub(crate) path: PathBuf,
    /// The keys that have memory: from 1 to this one.
    #[arg(long, default_value_t = 8)]
    pub(crate) keys: u32,
    /// The bytes of each key's ring.
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) ring: u64,
    /// Writes of the adapter bypass the processor's caches.
    #[arg(long)]
    pub(crate) ddio_off: bool,
    #[arg(skip = SILENCE)]
    pub(crate) silence: Duration,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", value_enum, default_value = "nothing")]
    pub(crate) fault: Fault,
}

impl Settings {
    /// The places of the directory and of each key's memory.
    pub(crate) fn layout(&self) -> rpma::Result<Layout> {
        Layout::new(self.keys, RING.saturating_add(self.ring) as usize)
    }

    /// A server that listens, with the memory of its keys.
    pub(crate) fn open(&self) -> rpma::Result<Server> {
        let layout = self.layout()?;
        let all = PmemMap::open(&self.path, layout.len())?;
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(self.silence))?;
        let mut cfg = ServerCfg::new();
        let commits = Limits::new(16, 1, GROUP as u32)?;
        cfg.set_conn(&conn).set_commits(Some(commits));
        if self.ddio_off {
            cfg.set_ddio(Ddio::Off);
        }
        self.fault.set_server(&mut cfg);
        // Writers flush for persistence. One with a fault does for visibility.
        let flushes = MrUsage::FLUSH_TYPE_PERSISTENT | MrUsage::FLUSH_TYPE_VISIBILITY;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | flushes;
        Server::listen(self.addr, &all, &layout, usage, &cfg)
    }
}
