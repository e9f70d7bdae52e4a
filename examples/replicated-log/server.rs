//! The program of a replica: memory for the log of each key, and one thread that serves them.
//!
//! | memory | |
//! |---|---|
//! | the first part | the directory: the epoch and instance of each key |
//! | the nth part after it | the memory of key n |

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rpma::commit::Limits;
use rpma::pmem::{Ddio, DevicePath, Platform, PmemMap};
use rpma::serve::{Directory, Part, Served, Server, ServerCfg};
use rpma::wait::Waker;
use rpma::{ConnCfg, Device, Durable, Ep, Mr, MrUsage, Peer, PeerCfg, Side, Wc};

use super::Fault;
use super::format::RING;
use super::log::{GROUP, SILENCE};

/// Parts begin at multiples of it.
const PAGE: usize = 4096;

/// The settings of a replica.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Settings {
    pub(crate) addr: SocketAddr,
    /// A device-DAX, or a file.
    pub(crate) path: PathBuf,
    /// The keys that have memory: from 1 to this one.
    #[arg(long, default_value_t = 8)]
    pub(crate) keys: u64,
    /// The bytes of each key's ring.
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) ring: u64,
    /// Writes of the adapter bypass the processor's caches.
    #[arg(long)]
    pub(crate) ddio_off: bool,
    #[arg(skip = SILENCE)]
    pub(crate) silence: Duration,
    /// Puts a fault in, to see what it breaks.
    #[arg(long = "break", value_name = "FAULT", value_parser = Fault::named, default_value = "nothing")]
    pub(crate) fault: Fault,
}

impl Settings {
    /// The place of a key's memory. 0: the directory.
    pub(crate) fn place(&self, key: u64) -> std::ops::Range<usize> {
        let directory = Directory::len_for(self.keys as u32).next_multiple_of(PAGE);
        let len = ((RING + self.ring) as usize).next_multiple_of(PAGE);
        match key as usize {
            0 => 0..directory,
            key => directory + len * (key - 1)..directory + len * key,
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
    pub(crate) fn open(settings: &Settings) -> Result<Self> {
        let all = PmemMap::open(&settings.path, settings.place(settings.keys).end)?;
        let directory = all.part(settings.place(0))?;
        let directory = Directory::open_or_create(directory, settings.keys as u32)
            .context("the directory of the keys")?;
        let device = Device::from_addr(&settings.addr.ip().to_string(), Side::Local)?;
        let listening = Peer::new(&device)?;
        let ddio = if settings.ddio_off {
            Ddio::Off
        } else {
            Ddio::On
        };
        let (domain, path) = (
            Platform::detect(&all)?.domain(),
            DevicePath::of(&listening, ddio),
        );
        let mut platform = PeerCfg::for_platform(domain, path);
        if settings.fault == Fault::Platform {
            platform.set_durable(Durable::DirectWrites);
        }
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(settings.silence))?;
        let mut cfg = ServerCfg::new();
        cfg.set_platform(&platform).set_conn(&conn);
        cfg.set_commits(Some(Limits::new(16, 1, GROUP as u32)?));
        let server = Server::new(Ep::listen_on(&listening, settings.addr)?, directory, &cfg)?;
        let mut parts = BTreeMap::new();
        for key in 1..=settings.keys {
            let peer = Peer::new(&device)?;
            let region = Mr::reg(&peer, all.part(settings.place(key))?, usage())?;
            parts.insert(key, (peer, Arc::new(region)));
        }
        let stop = Arc::default();
        Ok(Self {
            server,
            parts,
            stop,
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
                    let key = gone.identity.key;
                    log::info!("the writer of key {key} is gone: {}", gone.reason);
                    if gone.not_cut_off.is_some() {
                        self.release(key)?;
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
        let region = Mr::reg(&peer, memory, usage())?;
        self.parts.insert(key, (peer, Arc::new(region)));
        Ok(())
    }
}

/// Writers flush for persistence. One with a fault does for visibility.
fn usage() -> MrUsage {
    MrUsage::WRITE_DST
        | MrUsage::READ_SRC
        | MrUsage::FLUSH_TYPE_PERSISTENT
        | MrUsage::FLUSH_TYPE_VISIBILITY
}
