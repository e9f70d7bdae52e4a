//! [`ServerCfg`]: the program of a server, with memory for the log of each key.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rpma::commit::Limits;
use rpma::pmem::{Ddio, PmemMap};
use rpma::serve::{self, Layout, Server};
use rpma::{ConnCfg, Error, MrUsage};

use crate::cfg::check_ring;
use crate::fault::Fault;
use crate::format::{RING, Stored};
use crate::{GROUP, LogError, SILENCE};

/// The settings of a server of logs, which lends memory and does not read the records.
///
/// ```no_run
/// # fn main() -> rpma::Result<()> {
/// use rpma_log::ServerCfg;
///
/// let cfg = ServerCfg::new(([192, 168, 0, 1], 7204).into(), "/dev/dax0.0");
/// cfg.listen()?.serve(|served| eprintln!("{served}"))
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ServerCfg {
    addr: SocketAddr,
    path: PathBuf,
    keys: u32,
    ring: u64,
    ddio: Option<Ddio>,
    silence: Duration,
    fault: Fault,
}

impl ServerCfg {
    /// A server at this address, with memory of a device-DAX or of a file.
    #[must_use]
    pub fn new(addr: SocketAddr, path: impl AsRef<Path>) -> Self {
        Self {
            addr,
            path: path.as_ref().to_owned(),
            keys: 8,
            ring: 1 << 20,
            ddio: None,
            silence: SILENCE,
            fault: Fault::Nothing,
        }
    }

    /// Sets the number of logs: the keys from 1 to this one have memory (8 by default).
    pub fn set_keys(&mut self, keys: u32) -> &mut Self {
        self.keys = keys;
        self
    }

    /// Sets the bytes of the ring of each log (1 MiB by default), as
    /// [`LogCfg::set_ring`](crate::LogCfg::set_ring).
    pub fn set_ring(&mut self, bytes: u64) -> &mut Self {
        self.ring = bytes;
        self
    }

    /// Declares the setting of DDIO, as [`serve::ServerCfg::set_ddio`].
    pub fn set_ddio(&mut self, ddio: Ddio) -> &mut Self {
        self.ddio = Some(ddio);
        self
    }

    /// Sets the time after which a silent writer counts as gone (10 s by default).
    pub fn set_silence(&mut self, silence: Duration) -> &mut Self {
        self.silence = silence;
        self
    }

    /// Puts a fault into the server, for tests of tests.
    #[cfg(feature = "faults")]
    pub fn set_fault(&mut self, fault: Fault) -> &mut Self {
        self.fault = fault;
        self
    }

    /// A server that listens, with the memory of its logs. [`Server::serve`] serves the writers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a ring that no log has. Otherwise as [`Layout::new`],
    /// [`PmemMap::open`], [`ConnCfg::set_keep_alive`] and [`Server::listen`].
    pub fn listen(&self) -> rpma::Result<Server> {
        let layout = self.layout()?;
        let all = PmemMap::open(&self.path, layout.len())?;
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(self.silence))?;
        let mut cfg = serve::ServerCfg::new();
        let commits = Limits::new(16, 1, GROUP as u32)?;
        cfg.set_conn(&conn).set_commits(Some(commits));
        if let Some(ddio) = self.ddio {
            cfg.set_ddio(ddio);
        }
        let mut usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        if cfg!(feature = "faults") {
            self.fault.set_server(&mut cfg);
            // A writer with a fault flushes for visibility.
            usage |= MrUsage::FLUSH_TYPE_VISIBILITY;
        }
        Server::listen(self.addr, &all, &layout, usage, &cfg)
    }

    /// Reads the log of a key, while no program serves it. So an operator looks at a server whose
    /// log does not open. The newest acknowledged records may be missing there.
    ///
    /// # Errors
    ///
    /// [`LogError::Settings`] for a key without memory, [`LogError::Rpma`] as [`PmemMap::open`], and
    /// [`LogError::Foreign`] as [`Stored::decode`].
    pub fn stored(&self, key: u64) -> Result<Stored, LogError> {
        let place = self.place(key)?;
        let mut bytes = vec![0; place.len()];
        PmemMap::open(&self.path, self.layout()?.len())?.read_at(place.start, &mut bytes)?;
        Stored::decode(&bytes, self.ring)
    }

    /// The part of the memory that has the log of a key. The rest is the directory and other logs.
    ///
    /// # Errors
    ///
    /// [`LogError::Settings`] for a key without memory, [`LogError::Rpma`] for a ring that no log has.
    pub fn place(&self, key: u64) -> Result<Range<usize>, LogError> {
        let place = self.layout()?.part(key);
        let keys = self.keys;
        place.ok_or_else(|| {
            LogError::Settings(format!(
                "the key {key}: the server has the keys from 1 to {keys}"
            ))
        })
    }

    fn layout(&self) -> rpma::Result<Layout> {
        check_ring(self.ring).map_err(|wrong| Error::InvalidArgument(wrong.into()))?;
        Layout::new(self.keys, (RING + self.ring) as usize)
    }
}
