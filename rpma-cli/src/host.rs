//! [`Host`]: one side of a check, as its report has it.

use std::fmt;
#[cfg(not(feature = "sim"))]
use std::path::Path;

use rpma::pmem::{DevicePath, Domain};
use rpma::{Durable, Peer, PeerCfg};
use serde::{Deserialize, Serialize};

use crate::facts::Facts;

/// A host of a check. It has no name and no address: the report may be published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) rpma: String,
    pub(crate) kernel: Option<String>,
    /// The version that is loaded.
    pub(crate) rdma_core: Option<u32>,
    /// The version of its headers.
    pub(crate) built_with: Option<u32>,
    pub(crate) device: String,
    /// The device's own text, such as `rxe`.
    pub(crate) description: Option<String>,
    pub(crate) board: Option<String>,
    /// Software devices have none.
    pub(crate) firmware: Option<String>,
    pub(crate) link: Option<String>,
    pub(crate) rate: Option<String>,
    /// The MTU of the network interface, in bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) native_flush: bool,
    pub(crate) native_atomic_write: bool,
    pub(crate) on_demand_paging: bool,
    /// The memory that the server offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Memory>,
}

/// The memory of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) kind: String,
    pub(crate) domain: DomainName,
    /// Where the domain comes from.
    pub(crate) source: String,
    pub(crate) path: PathName,
    /// Why it is not registered for persistent flushes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_persistent: Option<String>,
}

/// A [`Domain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DomainName {
    Unknown,
    CpuCaches,
    MemoryController,
    Virtual,
    Volatile,
}

/// A [`DevicePath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PathName {
    ThroughCaches,
    ThroughCachesFlushing,
    PastCaches,
}

impl Memory {
    /// The only declaration that fits this memory.
    pub(crate) fn platform(&self) -> PeerCfg {
        let domain = match self.domain {
            DomainName::Unknown => Domain::Unknown,
            DomainName::CpuCaches => Domain::CpuCaches,
            DomainName::MemoryController => Domain::MemoryController,
            DomainName::Virtual => Domain::Virtual,
            DomainName::Volatile => Domain::Volatile,
        };
        let path = match self.path {
            PathName::ThroughCaches => DevicePath::ThroughCaches,
            PathName::ThroughCachesFlushing => DevicePath::ThroughCachesFlushing,
            PathName::PastCaches => DevicePath::PastCaches,
        };
        PeerCfg::for_platform(domain, path)
    }

    /// The operations that make data durable in it.
    pub(crate) fn durable(&self) -> Durable {
        self.platform().get_durable()
    }
}

impl From<Domain> for DomainName {
    fn from(domain: Domain) -> Self {
        match domain {
            Domain::CpuCaches => Self::CpuCaches,
            Domain::MemoryController => Self::MemoryController,
            Domain::Virtual => Self::Virtual,
            Domain::Volatile => Self::Volatile,
            _ => Self::Unknown,
        }
    }
}

impl From<DevicePath> for PathName {
    fn from(path: DevicePath) -> Self {
        match path {
            DevicePath::ThroughCachesFlushing => Self::ThroughCachesFlushing,
            DevicePath::PastCaches => Self::PastCaches,
            _ => Self::ThroughCaches,
        }
    }
}

impl Host {
    /// This host, with the device of a peer.
    pub(crate) fn of(peer: &Peer) -> Self {
        let facts = facts();
        let device = facts.device(peer.get_device_name()).cloned();
        let device = device.unwrap_or_default();
        let port = device.ports.iter().find(|port| port.is_active()).cloned();
        let port = port.unwrap_or_default();
        Self {
            rpma: env!("CARGO_PKG_VERSION").to_owned(),
            rdma_core: facts.rdma_core.loaded,
            built_with: facts.rdma_core.built_with,
            kernel: facts.kernel,
            device: peer.get_device_name().to_owned(),
            description: device.description,
            board: device.board,
            firmware: device.firmware,
            mtu: port.interfaces.first().and_then(|interface| interface.mtu),
            link: port.link_layer,
            rate: port.rate,
            native_flush: peer.is_native_flush_capable(),
            native_atomic_write: peer.is_native_atomic_write_capable(),
            on_demand_paging: peer.is_odp_capable(),
            memory: None,
        }
    }
}

#[cfg(not(feature = "sim"))]
fn facts() -> Facts {
    Facts::read(Path::new("/"))
}

/// A simulated host has no files.
#[cfg(feature = "sim")]
fn facts() -> Facts {
    Facts::default()
}

/// A fact, if it is known.
fn or_unknown(fact: Option<impl fmt::Display>) -> String {
    fact.map_or_else(|| "unknown".to_owned(), |fact| fact.to_string())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |native: bool| if native { "native" } else { "fallback" };
        write!(
            f,
            "{} ({}), firmware {}, link {}, MTU {}, flush {}, atomic write {}, ",
            self.device,
            or_unknown(self.board.as_ref().or(self.description.as_ref())),
            or_unknown(self.firmware.as_ref()),
            or_unknown(self.link.as_ref()),
            or_unknown(self.mtu),
            has(self.native_flush),
            has(self.native_atomic_write),
        )?;
        write!(
            f,
            "Linux {}, rdma-core {} (built with {}), rpma {}",
            or_unknown(self.kernel.as_ref()),
            or_unknown(self.rdma_core),
            or_unknown(self.built_with),
            self.rpma
        )
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, durable by {} ({})",
            self.kind,
            self.durable(),
            self.source
        )?;
        match &self.not_persistent {
            Some(why) => write!(f, "; no persistent flushes: {why}"),
            None => Ok(()),
        }
    }
}
