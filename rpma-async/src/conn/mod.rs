//! [`Conn`]: a connection with awaited operations.

mod batch;
mod ends;
mod memory;
mod op;
mod ops;
mod queue;
mod room;
mod shared;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rpma::{Counters, Failure, PeerCfg, Result};

pub use self::batch::Batch;
pub use self::ends::Closed;
pub use self::memory::{Memory, Sources};
pub use self::op::Op;
pub use self::room::Ready;
pub(crate) use self::shared::Shared;
use crate::inbox::Inbox;

/// A connection of a [`Reactor`](crate::Reactor). Clones are handles of the same connection: any
/// task and any thread may post, and await.
///
/// It ends with [`close`](Self::close), with [`abort`](Self::abort), or when the last handle, the
/// last [`Op`], [`Message`](crate::Message) and [`Inbox`] is dropped. That drop destroys the
/// queues, on its thread, which takes a device some milliseconds. (If the driver is at work for
/// the connection at that moment, it drops the last of it.) An [`Op`] that is forgotten
/// (`mem::forget`) leaks the connection.
///
/// When the peer ends the connection, or is lost, the reactor disconnects. Operations in flight
/// complete as flushed, and all tasks that sleep are woken with the reason.
#[derive(Clone)]
pub struct Conn {
    shared: Arc<Shared>,
}

impl Conn {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The messages of the peer.
    ///
    /// # Errors
    ///
    /// [`rpma::Error::InvalidArgument`] if the connection has no receives
    /// ([`Setup::with_receives`](crate::Setup::with_receives)), or if there is an inbox already.
    pub fn inbox(&self) -> Result<Inbox> {
        Inbox::new(&self.shared)
    }

    /// The private data of the peer, which it sent to connect or accept: see
    /// [`rpma::Conn::get_private_data`].
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.shared.conn().get_private_data()
    }

    /// Applies the peer's declaration: see [`rpma::Conn::apply_remote_peer_cfg`].
    pub fn apply_remote_peer_cfg(&self, cfg: &PeerCfg) {
        self.shared.conn().apply_remote_peer_cfg(cfg);
    }

    /// Whether flushes are the device's own: see [`rpma::Conn::has_native_flush`].
    #[must_use]
    pub fn has_native_flush(&self) -> bool {
        self.shared.conn().has_native_flush()
    }

    /// Whether atomic writes are the device's own: see [`rpma::Conn::has_native_atomic_write`].
    #[must_use]
    pub fn has_native_atomic_write(&self) -> bool {
        self.shared.conn().has_native_atomic_write()
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// As [`rpma::Conn::peer_addr`].
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.shared.conn().peer_addr()
    }

    /// The address of this side.
    ///
    /// # Errors
    ///
    /// As [`rpma::Conn::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.shared.conn().local_addr()
    }

    /// Why the connection failed: see [`rpma::Conn::failure`].
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure()
    }

    /// Numbers of requests, bytes and failures: see [`rpma::Conn::counters`].
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.conn().counters()
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Conn").field(&self.shared).finish()
    }
}
