//! [`Domain`] and [`DevicePath`]: the two facts about a host that decide which flush is durable.

use std::fmt;

use crate::peer::Peer;

/// The part of a host that keeps its data when the power fails: its persistence domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Domain {
    /// The kernel reports no domain, or a word that is new to this library. No flush counts as
    /// durable.
    #[default]
    Unknown,
    /// The memory, and the caches of the processors: eADR. The kernel's word is `cpu_cache`.
    CpuCaches,
    /// The memory and its controller, without the caches: ADR. The kernel's word is
    /// `memory_controller`. Persistent CXL memory is reported as `MemoryController`.
    MemoryController,
    /// virtio-pmem, or POWER's memory with `ibm,hcall-flush-required`: the hypervisor makes data
    /// durable on request. No RDMA operation makes such a request, so no flush is durable.
    Virtual,
    /// The memory loses its data: DRAM, or the page cache of an ordinary file.
    Volatile,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "unknown",
            Self::CpuCaches => "memory and processor caches (eADR)",
            Self::MemoryController => "memory and its controller (ADR)",
            Self::Virtual => "virtio-pmem",
            Self::Volatile => "volatile",
        })
    }
}

/// Declares whether an adapter's writes go into the caches of its host's processors. DDIO is
/// Intel's name, and other vendors have the same feature.
///
/// No program can read this setting. The operator declares it. The setting holds for the root port
/// of one adapter or for the whole host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ddio {
    /// Writes go into the caches: the usual setting.
    #[default]
    On,
    /// Writes bypass the caches.
    Off,
}

/// The path of a device's writes to the memory of its own host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DevicePath {
    /// Through the caches, and the device has no native flush: an adapter with DDIO on, soft-RoCE
    /// before Linux 6.2, or soft-iWARP.
    #[default]
    ThroughCaches,
    /// Through the caches, and a native flush of the device writes them back: soft-RoCE since
    /// Linux 6.2. No adapter has a native flush today.
    ThroughCachesFlushing,
    /// Past the caches: an adapter with DDIO off.
    PastCaches,
}

impl DevicePath {
    /// Returns the path of the device of `peer`. `ddio` is the operator's word for an adapter.
    ///
    /// It is ignored for soft-RoCE and soft-iWARP. A device counts as flushing if
    /// [`Peer::is_native_flush_capable`] returns `true`.
    pub(crate) fn of(peer: &Peer, ddio: Ddio) -> Self {
        match ddio {
            Ddio::Off if !peer.attributes().copies => Self::PastCaches,
            _ if peer.is_native_flush_capable() => Self::ThroughCachesFlushing,
            _ => Self::ThroughCaches,
        }
    }
}
