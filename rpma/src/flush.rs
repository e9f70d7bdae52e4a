//! The guarantees of a flush, its methods, and the order of operations after it.

use crate::error::{Error, Result};
use crate::mr::MrUsage;
use crate::verbs::{ReadTarget, SendFlags};

/// The condition that a flush waits for (`enum rpma_flush_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the two types of the InfiniBand specification"
)]
pub enum FlushType {
    /// When the flush completes, the data of every earlier write on the same connection to the
    /// flushed range is in the persistence domain of the peer. It survives a loss of power there.
    ///
    /// It needs two things from the peer. The region must have been registered with
    /// [`MrUsage::FLUSH_TYPE_PERSISTENT`]. And the peer must have declared that the flushes of this
    /// connection make data durable ([`Durable`](crate::Durable)).
    /// [`Conn::apply_remote_peer_cfg`](crate::Conn::apply_remote_peer_cfg) applies the declaration.
    /// The promise is as good as that declaration: no software can check it.
    Persistent,
    /// When the flush completes, every reader of the memory at the peer sees the data of every
    /// earlier write on the same connection to the flushed range.
    ///
    /// It gives no guarantee for a loss of power.
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

#[derive(Clone, Copy, Debug)]
pub(crate) enum FlushMethod {
    /// The device's flush operation.
    Native,
    /// A read of a few bytes of the range. On one connection the responder executes it after the
    /// writes before it, and PCI Express does not let the answer pass them.
    Read(ReadTarget),
}

impl FlushMethod {
    /// Whether an atomic write is the device's own and stays after earlier flushes without a fence.
    pub(crate) fn has_plain_atomic_writes(self, native: bool) -> bool {
        native && matches!(self, Self::Native)
    }

    /// The flags that order an atomic write after the flushes before it. `native`: it is the
    /// device's own operation. `fence`: the flags of a fence on this device, empty if it executes
    /// in order.
    pub(crate) fn fence_of_atomic_write(self, native: bool, fence: SendFlags) -> Result<SendFlags> {
        match self {
            // The flushes are reads, and a fence covers earlier reads.
            Self::Read(_) => Ok(fence),
            // An ATOMIC_WRITE stays after a FLUSH by itself.
            Self::Native if native => Ok(SendFlags::empty()),
            // The device executes in order.
            Self::Native if fence.is_empty() => Ok(SendFlags::empty()),
            Self::Native => Err(Error::not_supported(
                "the device has a native flush and no native atomic write, and an ordinary write is not \
                 guaranteed to stay after a native flush: poll the flush and then use Conn::write, or \
                 make the connection with ConnCfg::set_force_fallback",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: SendFlags = SendFlags::empty();
    const READ: FlushMethod = FlushMethod::Read(ReadTarget::EMPTY);

    /// No test with a device sees this: soft-RoCE keeps the order without, and others are not
    /// there.
    #[test]
    fn an_atomic_write_is_fenced_behind_fallback_flushes_and_never_on_soft_roce() {
        for native in [true, false] {
            let fence = |method: FlushMethod, fence| method.fence_of_atomic_write(native, fence);
            assert_eq!(fence(READ, SendFlags::FENCE).unwrap(), SendFlags::FENCE);
            assert_eq!(fence(READ, NONE).unwrap(), NONE);
            assert_eq!(fence(FlushMethod::Native, NONE).unwrap(), NONE);
        }
        let behind_native =
            |native| FlushMethod::Native.fence_of_atomic_write(native, SendFlags::FENCE);
        assert_eq!(behind_native(true).unwrap(), NONE);
        assert!(matches!(behind_native(false), Err(Error::NotSupported(_))));
    }

    /// A usual atomic write has no fence.
    #[test]
    fn only_an_atomic_write_without_a_fence_is_usual() {
        for (method, native, plain) in [
            (FlushMethod::Native, true, true),
            (FlushMethod::Native, false, false),
            (READ, true, false),
            (READ, false, false),
        ] {
            assert_eq!(method.has_plain_atomic_writes(native), plain);
        }
    }
}
