//! The program of a replica: memory for the log of each key, and one thread that serves them.
//!
//! | memory | |
//! |---|---|
//! | the first part | the directory: the epoch and instance of each key |
//! | the nth part after it | the memory of key n |

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rpma::commit::Limits;
use rpma::pmem::{Ddio, DevicePath, Platform, PmemMap};
use rpma::serve::{Directory, Part, Served, Server, ServerCfg};
use rpma::wait::Waker;
use rpma::{ConnCfg, Device, Ep, Mr, MrUsage, Peer, PeerCfg, Side, Wc};

use super::log::GROUP;

/// Parts begin at multiples of it.
const PAGE: usize = 4096;

/// The settings of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
    pub(crate) keys: u64,
    /// The bytes of each key.
    pub(crate) len: usize,
    /// What the memory and the device keep. `None`: the kernel's hint, and DDIO.
    pub(crate) platform: Option<PeerCfg>,
    pub(crate) ddio: Ddio,
    pub(crate) silence: Duration,
}

impl Settings {
    /// The place of a key's memory. 0: the directory.
    pub(crate) fn place(&self, key: u64) -> std::ops::Range<usize> {
        let directory = Directory::len_for(self.keys as u32).next_multiple_of(PAGE);
        match key {
            0 => 0..directory,
            key => {
                let len = self.len.next_multiple_of(PAGE);
                let at = directory + len * (key as usize - 1);
                at..at + len
            }
        }
    }
}

/// A replica that listens.
pub(crate) struct Replica {
    server: Server,
    parts: BTreeMap<u64, (Peer, Arc<Mr<PmemMap>>)>,
    stop: Arc<AtomicBool>,
}

/// Ends a replica, from another thread.
#[derive(Clone)]
pub(crate) struct Stop(Arc<AtomicBool>, Waker);

impl Stop {
    pub(crate) fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.wake();
    }
}

impl Replica {
    pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let all = PmemMap::open(path, settings.place(settings.keys).end)?;
        let directory = all.part(settings.place(0))?;
        let directory = Directory::open_or_create(directory, settings.keys as u32)
            .context("the directory of the keys")?;
        let device = Device::from_addr(&settings.addr.ip().to_string(), Side::Local)?;
        let listening = Peer::new(&device)?;
        let platform = match settings.platform {
            Some(platform) => platform,
            None => PeerCfg::for_platform(
                Platform::detect(&all)?.domain(),
                DevicePath::of(&listening, settings.ddio),
            ),
        };
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(settings.silence))?;
        let mut cfg = ServerCfg::new();
        cfg.set_platform(&platform).set_conn(&conn);
        cfg.set_commits(Some(Limits::new(16, 1, GROUP as u32)?));
        let server = Server::new(Ep::listen_on(&listening, settings.addr)?, directory, &cfg)?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let mut parts = BTreeMap::new();
        for key in 1..=settings.keys {
            let peer = Peer::new(&device)?;
            let region = Mr::reg(&peer, all.part(settings.place(key))?, usage)?;
            parts.insert(key, (peer, Arc::new(region)));
        }
        Ok(Self {
            server,
            parts,
            stop: Arc::default(),
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.get_port()
    }

    pub(crate) fn stopper(&self) -> Stop {
        Stop(Arc::clone(&self.stop), self.server.waker())
    }

    /// Serves until it is stopped, or until the device is gone.
    pub(crate) fn serve(mut self) -> Result<()> {
        let mut wcs = [Wc::default(); 16];
        while !self.stop.load(Ordering::Relaxed) {
            match self.server.next(&mut wcs, Duration::MAX)? {
                Some(Served::Asks(asked)) => match self.parts.get(&asked.identity().key) {
                    Some((peer, region)) => {
                        let part = Part {
                            peer,
                            region,
                            data: b"",
                        };
                        if let Err(refused) = self.server.admit(asked, &part) {
                            log::warn!("a writer is not admitted: {refused}");
                        }
                    }
                    None => self.server.refuse(asked, "no memory for this key")?,
                },
                Some(Served::Gone(gone)) => {
                    log::info!(
                        "the writer of key {} is gone: {}",
                        gone.identity.key,
                        gone.reason
                    );
                    if gone.not_cut_off.is_some() {
                        self.release(gone.identity.key)?;
                    }
                }
                Some(Served::Failed(error)) if error.raw_os_error() == Some(libc::ENODEV) => {
                    return Err(error).context("the device is gone");
                }
                Some(other) => log::debug!("{other:?}"),
                None => {}
            }
        }
        Ok(())
    }

    /// The old writer could not be cut off: a new registration ends its writes.
    fn release(&mut self, key: u64) -> Result<()> {
        let Some((peer, region)) = self.parts.remove(&key) else {
            return Ok(());
        };
        drop(region);
        let memory = self.server.release(key)?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let region = Mr::reg(&peer, memory, usage)?;
        self.parts.insert(key, (peer, Arc::new(region)));
        Ok(())
    }
}
