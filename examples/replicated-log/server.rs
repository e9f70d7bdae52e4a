//! The program of a replica: memory for the log of each key, and one thread that serves them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rpma::commit::Limits;
use rpma::pmem::{Ddio, DevicePath, Platform, PmemMap};
use rpma::serve::{Layout, Parts, Served, Server, ServerCfg};
use rpma::wait::Waker;
use rpma::{ConnCfg, Device, Durable, Ep, MrUsage, Peer, PeerCfg, Side, Wc};

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
}

/// A replica that listens, and the memory of its keys.
pub(crate) struct Replica(Server, Parts);

impl Replica {
    pub(crate) fn open(settings: &Settings) -> Result<Self> {
        let layout = settings.layout()?;
        let all = PmemMap::open(&settings.path, layout.len())?;
        let directory = layout.open_directory(&all);
        let directory = directory.context("the directory of the keys")?;
        let device = Device::from_socket_addr(settings.addr, Side::Local)?;
        let listening = Peer::new(&device)?;
        let off = settings.ddio_off;
        let ddio = if off { Ddio::Off } else { Ddio::On };
        let path = DevicePath::of(&listening, ddio);
        let mut platform = PeerCfg::for_platform(Platform::detect(&all)?.domain(), path);
        if settings.fault == Fault::Platform {
            platform.set_durable(Durable::DirectWrites);
        }
        let mut conn = ConnCfg::new();
        conn.set_keep_alive(Some(settings.silence))?;
        let mut cfg = ServerCfg::new();
        cfg.set_platform(&platform).set_conn(&conn);
        cfg.set_commits(Some(Limits::new(16, 1, GROUP as u32)?));
        // Writers flush for persistence. One with a fault does for visibility.
        let flushes = MrUsage::FLUSH_TYPE_PERSISTENT | MrUsage::FLUSH_TYPE_VISIBILITY;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | flushes;
        let parts = Parts::reg(&device, &all, &layout, usage)?;
        let ep = Ep::listen_on(&listening, settings.addr)?;
        Ok(Self(Server::new(ep, directory, &cfg)?, parts))
    }

    /// Ends [`serve`](Self::serve), from another thread, also before it has begun.
    pub(crate) fn waker(&self) -> Waker {
        self.0.waker()
    }

    /// Serves until it is woken, or until the device is gone.
    pub(crate) fn serve(self) -> Result<()> {
        let Self(mut server, mut parts) = self;
        let mut wcs = [Wc::default(); 16];
        while let Some(served) = server.next(&mut wcs, Duration::MAX)? {
            match server.answer(served, &mut parts)? {
                Some(Served::Woken) => break,
                Some(Served::Refused(refused)) => log::warn!("a writer is refused: {refused}"),
                Some(Served::Gone(gone)) => log::info!("{gone}"),
                Some(Served::Failed(error)) if error.raw_os_error() == Some(libc::ENODEV) => {
                    return Err(error).context("the device is gone");
                }
                other => log::debug!("{other:?}"),
            }
        }
        Ok(())
    }
}
