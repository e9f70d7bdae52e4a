//! What a flush promises, and how it is done.

use crate::mr::MrUsage;

/// What a flush waits for (`enum rpma_flush_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the two types of the InfiniBand specification"
)]
pub enum FlushType {
    /// When the flush completes, the data of every earlier write on the same connection to the flushed
    /// range is in the persistence domain of the peer: it survives a loss of power there.
    ///
    /// It needs two things from the peer. The region must have been registered with
    /// [`MrUsage::FLUSH_TYPE_PERSISTENT`]. And the peer must have declared
    /// `PeerCfg::set_direct_write_to_pmem`, applied with `Conn::apply_remote_peer_cfg`: whether the
    /// fallback's read pushes data all the way into the memory depends on its platform, and a native
    /// flush tells only that this side's device can ask for it. The promise is as good as that word.
    Persistent,
    /// When the flush completes, the data of every earlier write on the same connection to the flushed
    /// range is visible to everybody who reads the memory at the peer.
    ///
    /// It promises nothing for a loss of power.
    Visibility,
}

impl FlushType {
    /// The right that the remote region must give.
    pub(crate) fn usage(self) -> MrUsage {
        match self {
            Self::Persistent => MrUsage::FLUSH_TYPE_PERSISTENT,
            Self::Visibility => MrUsage::FLUSH_TYPE_VISIBILITY,
        }
    }
}

/// How a connection flushes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlushMethod {
    /// The device's flush operation.
    Native,
    /// A read of a few bytes of the range. On one connection the responder executes it after the writes
    /// before it, and PCI Express does not let the answer pass them.
    Read,
}
