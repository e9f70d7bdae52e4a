//! [`Domain`]: the part of a host that keeps its data.

use std::fmt;

/// Names the part of a host that keeps its data when the power fails: its persistence domain.
///
/// [`Platform::detect`](super::Platform::detect) returns the kernel's hint. The operator of the host
/// may know better, and the program can use any of these values instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Domain {
    /// Not known: the kernel reports no domain, or one that this library does not know. No flush
    /// counts as durable.
    #[default]
    Unknown,
    /// The memory, and the caches of the processors: eADR. The kernel's word is `cpu_cache`.
    CpuCaches,
    /// The memory and its controller, without the caches: ADR. The kernel's word is
    /// `memory_controller`. Persistent CXL memory is reported as this one.
    MemoryController,
    /// virtio-pmem: the memory is a file of the hypervisor, which writes it to its disk on request.
    /// No RDMA operation makes such a request, so no flush is durable.
    Virtual,
    /// None: the memory is volatile, or the page cache of an ordinary file.
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
