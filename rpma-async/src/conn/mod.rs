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

use rpma::{Counters, Failure, Offer, PeerCfg, Result};

pub use self::batch::Batch;
pub(crate) use self::memory::Held;
pub use self::memory::{Memory, Sources};
pub use self::op::Op;
pub(crate) use self::shared::Shared;
use crate::inbox::Inbox;

/// A connection of a [`Reactor`](crate::Reactor). Clones are handles of the same connection: any
/// task and any thread may post, and await.
///
/// It ends with [`close`](Self::close), with [`abort`](Self::abort), or when all of its handles,
/// [`Op`]s, [`Message`](crate::Message)s and its [`Inbox`] are dropped. The thread of the last
/// drop, or the driver, destroys the queues, which takes a device some milliseconds. An [`Op`]
/// that is forgotten (`mem::forget`) leaks the connection.
///
/// When the peer ends the connection, or is lost, the reactor disconnects. Operations in flight
/// complete as flushed, and all tasks that sleep are woken with the reason. A side that only waits
/// detects a lost peer only by a keep-alive
/// ([`ConnCfg::set_keep_alive`](rpma::ConnCfg::set_keep_alive)), whose probes the driver sends.
/// Without one, a server keeps the connections of lost clients for ever.
///
/// # Example
///
/// Several tasks append to one log, by one connection. The pool and the send queue limit the
/// operations in flight: a task waits for a block, and then for room. If a task times out, it
/// stops waiting, but its record is still written. After a failure the program closes the
/// connection as well, and returns the reason.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use std::time::Duration;
///
/// use rpma::{Error, FlushType, MrRemote, Result};
/// use rpma_async::{Conn, Pool};
///
/// const RECORD: u64 = 64;
/// const LIMIT: Duration = Duration::from_secs(5);
///
/// #[derive(Clone)]
/// struct Log {
///     conn: Conn,
///     pool: Pool,
///     memory: MrRemote,
///     /// The number of records that were posted.
///     posted: Rc<Cell<u64>>,
/// }
///
/// impl Log {
///     async fn append(&self, byte: u8) -> Result<u64> {
///         let mut record = self.pool.lease().await;
///         record.fill(byte);
///         // A record and its flush, the pointer and its flush: 4 slots.
///         self.conn.ready(4).await?;
///         // No await from the number to the post: the pointers never go backwards.
///         let number = self.posted.get();
///         let at = RECORD * (1 + number);
///         let parts = [(self.memory.slice(at..at + RECORD)?, record.freeze())];
///         let pointer = (self.memory.slice(..8)?, (number + 1).to_le_bytes());
///         let appended = self.conn.commit(parts, Some(pointer), FlushType::Visibility)?;
///         self.posted.set(number + 1);
///         appended.await?;
///         Ok(number)
///     }
/// }
///
/// # #[cfg(feature = "tokio")]
/// async fn append_all(log: &Log, bytes: std::ops::Range<u8>) -> Result<()> {
///     let tasks = bytes.map(|byte| {
///         let log = log.clone();
///         tokio::task::spawn_local(async move {
///             let appended = tokio::time::timeout(LIMIT, log.append(byte)).await;
///             // The record may still be written, and its memory comes back to the pool.
///             appended.unwrap_or(Err(Error::TimedOut("the record is not durable in time")))
///         })
///     });
///     // All of them are under way before the first is awaited.
///     let tasks: Vec<_> = tasks.collect();
///     let mut result = Ok(());
///     for task in tasks {
///         result = result.and(task.await.expect("no panic").map(drop));
///     }
///     // It waits for all records, also after time-outs, and returns the first failure.
///     result.and(log.conn.clone().close(LIMIT).await)
/// }
/// # #[cfg(all(feature = "sim", feature = "tokio"))]
/// # fn main() {
/// #     use rpma::sim::{Fabric, Profile};
/// #     use rpma::{Device, Mr, MrUsage, Offer, Peer, PeerCfg, Side};
/// #     use rpma_async::{Reactor, Setup};
/// #     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
/// #     let fabric = Fabric::new(Profile::STRICT);
/// #     let host = fabric.host("both");
/// #     let _entered = host.enter();
/// #     let work = async {
/// #         let peer = Peer::at(&host.addr().to_string())?;
/// #         let reactor = Reactor::spawn(&peer)?;
/// #         let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
/// #         let memory = Mr::reg(&peer, vec![0; 4096], usage)?;
/// #         let offer = Offer::new(&PeerCfg::new()).add_region(&memory).encode(Offer::ACCEPT)?;
/// #         let listener = reactor.listen((host.addr(), 0).into())?;
/// #         let at = (host.addr(), listener.port()).into();
/// #         let serving = tokio::task::spawn_local(async move {
/// #             let accepted = listener.accept().await?.accept(&Setup::default(), &offer).await?;
/// #             accepted.closed().await.map(drop)
/// #         });
/// #         let conn = reactor.connect(at, &Setup::default(), &[]).await?;
/// #         let remote = conn.offer()?.regions()[0];
/// #         let pool = Pool::new(&peer, RECORD as usize, 4)?;
/// #         let log = Log { conn, pool, memory: remote, posted: Rc::default() };
/// #         append_all(&log, 1..21).await?;
/// #         assert_eq!(log.pool.available(), 4);
/// #         serving.await.expect("no panic")?;
/// #         assert_eq!(memory.load_u64(0)?, 20);
/// #         Ok::<(), Error>(())
/// #     };
/// #     let tasks = tokio::task::LocalSet::new();
/// #     tasks.block_on(&runtime.expect("a runtime"), work).expect("it appends");
/// # }
/// # #[cfg(not(all(feature = "sim", feature = "tokio")))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Conn {
    shared: Arc<Shared>,
}

impl Conn {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the inbox: the messages of the peer.
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

    /// Decodes the peer's offer, and applies its platform: see [`rpma::Conn::offer`].
    ///
    /// # Errors
    ///
    /// As [`rpma::Conn::offer`].
    pub fn offer(&self) -> Result<Offer> {
        self.shared.conn().offer()
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
