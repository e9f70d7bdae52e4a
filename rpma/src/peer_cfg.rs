//! [`PeerCfg`]: a peer's declaration of its platform (`struct rpma_peer_cfg`).

use std::fmt;

use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::pmem::{Ddio, DevicePath, Domain, Platform, PmemMap};

/// Names the operations of a client that make data durable in the memory of a host. The host's
/// processor has no part in them.
///
/// The answer depends on the host's memory, its caches and its device.
/// [Persistence](crate::guide::persistence) has the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durable {
    /// The memory is volatile, or its host makes no declaration. No operation of a client makes
    /// data durable there. The host's program may be able to do so
    /// ([`Method::Server`](crate::commit::Method::Server)).
    #[default]
    Nothing,
    /// Native flushes ([`Conn::has_native_flush`](crate::Conn::has_native_flush)). A flush by
    /// reading is not enough: data can stay in the processor's caches.
    NativeFlushes,
    /// Every flush. Data that a device has written is durable as soon as it is visible.
    DirectWrites,
}

impl fmt::Display for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "no flush",
            Self::NativeFlushes => "native flushes",
            Self::DirectWrites => "direct writes",
        })
    }
}

/// Declares how the memory and the device of a host behave. Plain data.
///
/// The host of the memory declares it and sends it, in an [`Offer`](crate::Offer) or as a
/// descriptor of its own. The other side applies it with
/// [`Conn::apply_remote_peer_cfg`](crate::Conn::apply_remote_peer_cfg).
///
/// [`detect`](Self::detect) makes it from the kernel's report. It is a promise about the platform,
/// and no software can check it. A peer that promises too much loses flushed data when its power
/// fails.
#[doc(alias = "rpma_peer_cfg_delete")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCfg {
    durable: Durable,
    reorders: bool,
    /// Not sent.
    no_processor: bool,
}

impl PeerCfg {
    /// Makes a configuration without promises.
    #[doc(alias = "rpma_peer_cfg_new")]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the configuration of this host from the kernel's report about `memory`, the device of
    /// `peer`, and the operator's setting of DDIO.
    ///
    /// The configuration follows the table in [persistence](crate::guide::persistence). Every
    /// combination that is not known to be durable is [`Durable::Nothing`].
    /// [`PmemMap::persistence_domain`] returns the kernel's report in words. soft-RoCE and
    /// soft-iWARP copy with the processor, so `ddio` is ignored for them.
    ///
    /// The report is a hint. An operator with better knowledge declares it by
    /// [`set_durable`](Self::set_durable) and
    /// [`set_processor_persists`](Self::set_processor_persists).
    ///
    /// ```no_run
    /// # fn main() -> rpma::Result<()> {
    /// use rpma::pmem::{Ddio, PmemMap};
    /// use rpma::{Device, Peer, PeerCfg, Side};
    ///
    /// let peer = Peer::at("192.0.2.1")?;
    /// let map = PmemMap::open("/dev/dax0.0", 4096)?;
    /// println!("persistence domain: {}", map.persistence_domain()?);
    /// let cfg = PeerCfg::detect(&map, &peer, Ddio::On)?;
    /// println!("durable by {}", cfg.get_durable());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PmemMap::persistence_domain`].
    pub fn detect(memory: &PmemMap, peer: &Peer, ddio: Ddio) -> Result<Self> {
        let domain = Platform::detect(memory)?.domain;
        Ok(Self::for_platform(domain, DevicePath::of(peer, ddio)))
    }

    pub(crate) fn for_platform(domain: Domain, path: DevicePath) -> Self {
        let mut cfg = Self::new();
        cfg.set_durable(durable(domain, path));
        cfg.set_processor_persists(matches!(
            domain,
            Domain::CpuCaches | Domain::MemoryController
        ));
        cfg
    }

    /// Declares the operations that make data durable in this host's memory.
    pub fn set_durable(&mut self, durable: Durable) -> &mut Self {
        self.durable = durable;
        self
    }

    /// Returns the declared operations. The default is [`Durable::Nothing`].
    #[must_use]
    pub fn get_durable(&self) -> Durable {
        self.durable
    }

    /// Declares whether this host's own processor can make data durable, by
    /// [`PmemMap::persist`](crate::pmem::PmemMap::persist). The declaration stays on this host,
    /// and is not sent. If it is `false`, a [`Server`](crate::serve::Server) cannot serve
    /// [`Method::Server`](crate::commit::Method::Server).
    pub fn set_processor_persists(&mut self, persists: bool) -> &mut Self {
        self.no_processor = !persists;
        self
    }

    /// See [`set_processor_persists`](Self::set_processor_persists). The default is `true`, which
    /// no software has checked. [`detect`](Self::detect) sets it from the persistence domain.
    #[must_use]
    pub fn get_processor_persists(&self) -> bool {
        !self.no_processor
    }

    /// Declares [`Durable::DirectWrites`] (`true`) or [`Durable::Nothing`] (`false`), as librpma
    /// does. [`set_durable`](Self::set_durable) has a third state.
    #[doc(alias = "rpma_peer_cfg_set_direct_write_to_pmem")]
    pub fn set_direct_write_to_pmem(&mut self, supported: bool) -> &mut Self {
        self.set_durable(if supported {
            Durable::DirectWrites
        } else {
            Durable::Nothing
        })
    }

    /// Returns whether [`Durable::DirectWrites`] is declared.
    #[doc(alias = "rpma_peer_cfg_get_direct_write_to_pmem")]
    #[must_use]
    pub fn get_direct_write_to_pmem(&self) -> bool {
        self.durable == Durable::DirectWrites
    }

    /// Declares whether this host's device may execute an operation before earlier ones:
    /// [adapters](crate#terms) may, soft-RoCE does not.
    /// [`Offer::add_region`](crate::Offer::add_region) declares it by itself, from the region's
    /// device.
    ///
    /// Only a peer on soft-RoCE, which posts no fence, uses the declaration. An operation that
    /// needs a fence is [`Error::NotSupported`] there: one with
    /// [`Flags::FENCE`](crate::Flags::FENCE), a fallback [atomic write](crate::Conn::atomic_write),
    /// and a commit with a pointer by the fallback.
    pub fn set_reorders(&mut self, reorders: bool) -> &mut Self {
        self.reorders = reorders;
        self
    }

    /// See [`set_reorders`](Self::set_reorders). The default is `false`.
    #[must_use]
    pub fn get_reorders(&self) -> bool {
        self.reorders
    }

    /// Returns the descriptor for the peer: 1 byte, as in librpma. It is 1 for
    /// [`Durable::DirectWrites`] and 0 otherwise.
    ///
    /// So [`Durable::NativeFlushes`] becomes [`Durable::Nothing`] at the peer, and
    /// [`set_reorders`](Self::set_reorders) is lost. An [`Offer`](crate::Offer) carries both.
    #[doc(alias = "rpma_peer_cfg_get_descriptor")]
    #[must_use]
    pub fn get_descriptor(&self) -> [u8; 1] {
        [u8::from(self.get_direct_write_to_pmem())]
    }

    /// Returns the size of the descriptor in bytes: always 1.
    #[doc(alias = "rpma_peer_cfg_get_descriptor_size")]
    #[must_use]
    pub fn get_descriptor_size(&self) -> usize {
        self.get_descriptor().len()
    }

    /// Decodes a peer's descriptor. As in librpma, any byte except 0 is "supported", and bytes
    /// after the first are ignored.
    ///
    /// The descriptor is the peer's word, sent without authentication.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it is empty.
    #[doc(alias = "rpma_peer_cfg_from_descriptor")]
    pub fn from_descriptor(descriptor: &[u8]) -> Result<Self> {
        let Some(&byte) = descriptor.first() else {
            return Err(Error::invalid(
                "a peer configuration's descriptor has 1 byte, this one is empty",
            ));
        };
        let mut cfg = Self::new();
        cfg.set_direct_write_to_pmem(byte != 0);
        log::info!(
            "the peer says that direct write to persistent memory is {}",
            if cfg.get_direct_write_to_pmem() {
                "supported"
            } else {
                "not supported"
            }
        );
        Ok(cfg)
    }
}

impl TryFrom<&[u8]> for PeerCfg {
    type Error = Error;

    fn try_from(descriptor: &[u8]) -> Result<Self> {
        Self::from_descriptor(descriptor)
    }
}

/// The table of docs/persistence.md.
fn durable(domain: Domain, path: DevicePath) -> Durable {
    match (domain, path) {
        (Domain::CpuCaches, _) | (Domain::MemoryController, DevicePath::PastCaches) => {
            Durable::DirectWrites
        }
        (Domain::MemoryController, DevicePath::ThroughCachesFlushing) => Durable::NativeFlushes,
        (Domain::MemoryController, DevicePath::ThroughCaches)
        | (Domain::Unknown | Domain::Virtual | Domain::Volatile, _) => Durable::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [DevicePath; 3] = [
        DevicePath::ThroughCaches,
        DevicePath::ThroughCachesFlushing,
        DevicePath::PastCaches,
    ];

    /// Promise: the processor makes data durable only in memory with a known domain.
    #[test]
    fn the_processor_of_a_known_domain() {
        for (domain, persists) in [
            (Domain::CpuCaches, true),
            (Domain::MemoryController, true),
            (Domain::Unknown, false),
            (Domain::Virtual, false),
            (Domain::Volatile, false),
        ] {
            for path in PATHS {
                let cfg = PeerCfg::for_platform(domain, path);
                assert_eq!(cfg.get_processor_persists(), persists, "{domain}");
            }
        }
        assert!(PeerCfg::new().get_processor_persists());
    }

    /// Promise: each row of the table in docs/persistence.md.
    #[test]
    fn the_table() {
        let row = |domain| PATHS.map(|path| PeerCfg::for_platform(domain, path).get_durable());
        assert_eq!(row(Domain::CpuCaches), [Durable::DirectWrites; 3]);
        assert_eq!(
            row(Domain::MemoryController),
            [
                Durable::Nothing,
                Durable::NativeFlushes,
                Durable::DirectWrites
            ]
        );
        for domain in [Domain::Unknown, Domain::Virtual, Domain::Volatile] {
            assert_eq!(row(domain), [Durable::Nothing; 3], "{domain}");
        }
    }

    /// Promise: a program without declarations about its host gets no promise.
    #[test]
    fn the_defaults_promise_nothing() {
        let cfg = PeerCfg::for_platform(Domain::default(), DevicePath::default());
        assert_eq!(cfg.get_durable(), Durable::Nothing);
        assert_eq!(Ddio::default(), Ddio::On);
    }

    #[test]
    fn the_descriptor_is_librpmas() {
        let mut cfg = PeerCfg::new();
        assert_eq!(cfg.get_descriptor(), [0]);
        assert_eq!(cfg.set_direct_write_to_pmem(true).get_descriptor(), [1]);
        assert_eq!(cfg.get_descriptor_size(), 1);
        assert!(
            PeerCfg::from_descriptor(&[0x80, 7])
                .expect("valid")
                .get_direct_write_to_pmem()
        );
        assert!(
            !PeerCfg::from_descriptor(&[0])
                .expect("valid")
                .get_direct_write_to_pmem()
        );
        assert!(PeerCfg::from_descriptor(&[]).is_err());
    }

    /// Promise: a peer that reads only one bit never believes that a flush by reading is enough.
    #[test]
    fn the_descriptor_never_promises_too_much() {
        for (durable, byte, received) in [
            (Durable::Nothing, 0, Durable::Nothing),
            (Durable::NativeFlushes, 0, Durable::Nothing),
            (Durable::DirectWrites, 1, Durable::DirectWrites),
        ] {
            let mut cfg = PeerCfg::new();
            assert_eq!(cfg.set_durable(durable).get_durable(), durable);
            assert_eq!(cfg.get_descriptor(), [byte]);
            let at_peer = PeerCfg::from_descriptor(&cfg.get_descriptor()).expect("valid");
            assert_eq!(at_peer.get_durable(), received);
        }
        let mut cfg = PeerCfg::new();
        cfg.set_durable(Durable::NativeFlushes);
        assert!(!cfg.get_direct_write_to_pmem());
        cfg.set_direct_write_to_pmem(false);
        assert_eq!(cfg.get_durable(), Durable::Nothing);
    }
}
