//! Platforms: which bytes of a host's memory survive when its power fails.

use std::fmt;

/// Decides which bytes of a host's memory survive when its power fails.
///
/// ADR: the memory controller's queues are saved, the caches are not. eADR: the caches are saved
/// as well. With Intel's DDIO, devices write into the caches of the processor. Other vendors have
/// similar features.
///
/// # What a loss of power leaves
///
#[doc = include_str!("rules.md")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Platform {
    /// ADR, and devices write into the caches: the usual setting, and the default.
    #[default]
    AdrDdioOn,
    /// ADR, and devices write past the caches.
    AdrDdioOff,
    /// eADR.
    Eadr,
    /// The memory is volatile, even if the kernel calls it persistent: no byte survives.
    Volatile,
}

impl Platform {
    /// All of them, for loops.
    pub const ALL: [Self; 4] = [
        Self::AdrDdioOn,
        Self::AdrDdioOff,
        Self::Eadr,
        Self::Volatile,
    ];

    /// Whether the memory keeps anything.
    #[must_use]
    pub fn is_persistent(self) -> bool {
        self != Self::Volatile
    }

    /// Whether the writes of a device are durable as soon as they are visible.
    pub(crate) fn keeps_what_is_visible(self) -> bool {
        matches!(self, Self::AdrDdioOff | Self::Eadr)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AdrDdioOn => "ADR, DDIO on",
            Self::AdrDdioOff => "ADR, DDIO off",
            Self::Eadr => "eADR",
            Self::Volatile => "volatile memory",
        })
    }
}
