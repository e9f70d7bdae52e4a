//! [`Peer`]: this host's side of everything (`struct rpma_peer`).
//!
//! It owns a protection domain and holds the abilities of the device. Regions, endpoints and
//! connections hold it; the domain is freed after the last of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::address::{self, Side};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::verbs::{
    AccessFlags, AlignedBuf, DeviceAttributes, LocalBuffer, NativeOps, Pd, Registered,
};

/// A fallback flush reads at most this much: any read pushes the earlier writes out.
const FLUSH_READ_LEN: usize = 8;

/// A protection domain of a device: memory and connections of one `Peer` may be used together.
///
/// It is an object of this host, with librpma's name. In lower case, a peer is the other side of a
/// connection ([terms](crate#terms)). Clones are handles of the same domain.
///
/// Make one `Peer` for each domain of trust. Keys of regions are short, and every connection of a
/// `Peer` can try them on every region of the same `Peer`. No key works across two of them. See
/// [security](crate::guide::security).
///
/// # Threads
///
/// Threads may register and connect at the same time: the provider locks the state that registering
/// changes.
#[doc(alias = "rpma_peer_delete")]
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    key: PeerKey,
    /// The target of the reads of fallback flushes, for all connections: its bytes are never used.
    /// It goes before the domain.
    flush_target: OnceLock<Registered<AlignedBuf>>,
    pd: Arc<Pd>,
    attributes: DeviceAttributes,
}

impl Peer {
    /// Allocates a protection domain on `device` and queries the abilities of the device.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `ibv_query_device_ex` or `ibv_alloc_pd` fails.
    /// [`Error::NotSupported`] if the process has 16,777,215 `Peer`s already.
    #[doc(alias = "rpma_peer_new")]
    pub fn new(device: &Device) -> Result<Self> {
        let attributes = device.context().query_device()?;
        for (has, what) in [
            (attributes.native_flush, "flush"),
            (attributes.native_atomic_write, "atomic write"),
        ] {
            if !has {
                log::info!(
                    "{}: no native {what}, its fallback is used",
                    device.get_name()
                );
            }
        }
        let pd = Pd::new(device.context())?;
        Ok(Self {
            inner: Arc::new(Inner {
                key: PeerKey::take()?,
                flush_target: OnceLock::new(),
                pd,
                attributes,
            }),
        })
    }

    /// Makes the `Peer` on this host's device that has the address `addr`: [`new`](Self::new) on
    /// [`Device::from_addr`] with [`Side::Local`]. A server begins with it.
    ///
    /// # Errors
    ///
    /// As [`Device::from_addr`] and [`new`](Self::new).
    pub fn at(addr: &str) -> Result<Self> {
        Self::new(&Device::from_addr(addr, Side::Local)?)
    }

    /// Makes the `Peer` on the device of this host through which `addr`, an address or name of
    /// another host, is reached: [`new`](Self::new) on [`Device::from_addr`] with
    /// [`Side::Remote`]. A client begins with it.
    ///
    /// # Errors
    ///
    /// As [`Device::from_addr`] and [`new`](Self::new).
    pub fn toward(addr: &str) -> Result<Self> {
        Self::new(&Device::from_addr(addr, Side::Remote)?)
    }

    /// Makes the `Peer` on the device of this host through which one of `addrs` is reached: a
    /// client of several servers begins with it, because some of them may be down. The first
    /// address that is reached counts, and each that is not takes up to 1 s. Ports are ignored.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no address, or a wildcard among them. If none is reached, the
    /// error of the last, as [`Device::from_socket_addr`] returns it. [`Error::Provider`] as
    /// [`new`](Self::new).
    pub fn toward_any(addrs: &[SocketAddr]) -> Result<Self> {
        for addr in addrs {
            address::usable(*addr)?;
        }
        let mut result = Err(Error::invalid("no address of a server is given"));
        for addr in addrs {
            result = Device::from_socket_addr(*addr, Side::Remote);
            match &result {
                Ok(_) => break,
                Err(error) => log::debug!("no device leads to {addr}: {error}"),
            }
        }
        Self::new(&result?)
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn get_device_name(&self) -> &str {
        self.inner.pd.context().name()
    }

    /// Returns whether the device has native flush (both global visibility and persistence). A
    /// connection uses it unless its settings force the fallback
    /// ([`ConnCfg::set_force_fallback`](crate::ConnCfg::set_force_fallback)).
    #[must_use]
    pub fn is_native_flush_capable(&self) -> bool {
        self.inner.attributes.native_flush
    }

    /// Returns whether the device has the native atomic write.
    #[must_use]
    pub fn is_native_atomic_write_capable(&self) -> bool {
        self.inner.attributes.native_atomic_write
    }

    /// Returns whether the device supports on-demand paging for reads and writes.
    #[must_use]
    pub fn is_odp_capable(&self) -> bool {
        self.inner.attributes.odp
    }

    /// Returns whether messages of this device travel over iWARP, where the peer can write to the
    /// destinations of reads ([`MrUsage::READ_DST`](crate::MrUsage::READ_DST)).
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        self.pd().context().is_iwarp()
    }

    /// Whether its device answers no more: it was removed.
    #[cold]
    pub(crate) fn is_gone(&self) -> bool {
        self.pd().context().query_device().is_err()
    }

    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        &self.inner.attributes
    }

    pub(crate) fn native_ops(&self) -> NativeOps {
        NativeOps {
            flush: self.inner.attributes.native_flush,
            atomic_write: self.inner.attributes.native_atomic_write,
        }
    }

    /// Local memory for the reads of fallback flushes, registered when the first connection asks.
    pub(crate) fn flush_target(&self) -> Result<LocalBuffer<'_>> {
        let target = match self.inner.flush_target.get() {
            Some(target) => target,
            None => {
                let buffer = AlignedBuf::zeroed(FLUSH_READ_LEN)?;
                let mut access = AccessFlags::LOCAL_WRITE;
                if self.pd().context().is_iwarp() {
                    access |= AccessFlags::REMOTE_WRITE;
                }
                let region =
                    Registered::new(self.pd(), buffer, access).map_err(|(error, _buffer)| error)?;
                // Another connection may have been first: then this region goes again.
                self.inner.flush_target.get_or_init(|| region)
            }
        };
        Ok(target
            .buffer(0, FLUSH_READ_LEN)
            .unwrap_or(LocalBuffer::EMPTY))
    }

    #[inline]
    pub(crate) fn key(&self) -> PeerKey {
        self.inner.key
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.inner.pd
    }
}

/// Identifies a `Peer` for as long as something holds it. It has 24 bits, so that it fits into one
/// word with the permitted uses of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerKey(u32);

/// The keys that were given back, and the first that was never given out.
static KEYS: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 1));

fn keys() -> MutexGuard<'static, (Vec<u32>, u32)> {
    // No code panics under it.
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerKey {
    /// The key of memory without a `Peer`.
    pub(crate) const ANY: Self = Self(0);
    pub(crate) const BITS: u32 = 24;

    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn for_test(number: u32) -> Self {
        Self(number)
    }

    fn take() -> Result<Self> {
        let mut keys = keys();
        let (free, next) = &mut *keys;
        if let Some(key) = free.pop() {
            return Ok(Self(key));
        }
        if *next == 1 << Self::BITS {
            return Err(Error::not_supported(
                "a process can have 16,777,215 Peers at a time",
            ));
        }
        *next += 1;
        Ok(Self(*next - 1))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Every region of the `Peer` holds it, and every slice borrows its region: the key is
        // unused now.
        keys().0.push(self.key.0);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("device", &self.get_device_name())
            .field("attributes", &self.inner.attributes)
            .finish()
    }
}
