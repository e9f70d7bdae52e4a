//! Writes to another host's persistent memory, with futures: the operations of [`rpma`] are awaited.
//!
//! Take this crate if your program runs on tokio or another executor, or if many of its tasks write at
//! the same time. A call posts an operation and returns an [`Op`], which only waits, so the send queue
//! has the operations in the order of the calls, and a write and its flush are posted before either is
//! awaited:
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use rpma::{Device, FlushType, Offer, Peer, Side};
//! use rpma_async::{Pool, Reactor, Setup};
//!
//! # #[cfg(feature = "tokio")]
//! async fn append(server: SocketAddr) -> rpma::Result<()> {
//!     let peer = Peer::new(&Device::from_socket_addr(server, Side::Remote)?)?;
//!     let reactor = Reactor::spawn(&peer)?;
//!     let conn = reactor.connect(server, &Setup::default(), &[]).await?;
//!     // The offer has the server's memory, and the declaration of its platform.
//!     let offer = conn.offer()?;
//!     let log = offer.memory(5)?;
//!
//!     let pool = Pool::new(&peer, 4096, 64)?;
//!     let mut record = pool.lease().await;
//!     record[..5].copy_from_slice(b"hello");
//!     record.truncate(5);
//!     // Both are posted, one after the other, before either is awaited.
//!     let written = conn.write(log.slice(..5)?, record.freeze())?;
//!     let flushed = conn.flush(log.slice(..5)?, FlushType::Persistent)?;
//!     written.await?;
//!     flushed.await?;
//!     conn.close(Duration::from_secs(5)).await
//! }
//! ```
//!
//! # The parts
//!
//! An operation owns blocks of a registered [`Pool`] until it is complete. One [`Driver`] for each
//! [`Reactor`] wakes tasks that sleep, and a task that awaits an operation also polls the completion
//! queue itself.
//!
//! | to | take |
//! |---|---|
//! | connect and accept | [`Reactor::connect`], [`Reactor::listen`], [`Setup`] |
//! | have memory for operations | [`Pool`], [`Lease`], [`Frozen`] |
//! | write, read, flush, send | [`Conn`], [`Op`] |
//! | post several operations at once | [`Conn::batch`], [`Conn::commit`] |
//! | wait for room, or until nothing is in flight | [`Conn::ready`], [`Conn::idle`] |
//! | receive messages | [`Setup::with_receives`], [`Inbox`] |
//! | learn of a connection's end, and end it | [`Conn::closed`], [`Conn::close`], [`Conn::abort`] |
//! | commit a record to one server, or to several, by one of the methods of [`rpma::commit`] | [`Writer`], [`Replicas`] |
//! | append to a log on several servers | the crate `rpma-log` |
//! | serve clients by their keys | [`Server`] |
//! | connect again | [`Reconnect`], [`ToConn`] |
//! | wait for the program's own state | [`Monitor`] |
//! | run work beside the program's calls, until its owner is dropped | [`Reactor::run`], [`Task`] |
//! | do without a runtime | [`Reactor::on_thread`], [`Op::wait`], [`block_on`] |
//!
//! # What is safe
//!
//! A future may be dropped at any time, because no device uses memory that was returned to the
//! program. If its documentation has no section on cancel safety, it only waits. An operation that
//! is forgotten (`mem::forget`) keeps its memory for ever. A [`Lease`] lends `&mut [u8]` of
//! registered memory, which no safe method of [`rpma`] itself does. This is sound, because no peer
//! has a right to a pool's memory, and an operation takes the lease until it is complete.
//!
//! Durability, order and waits are those of [`rpma`](rpma#what-is-safe).
//!
//! # Runtimes
//!
//! With the feature `tokio` (default) the driver is a task of tokio, whose runtime needs its I/O and
//! time drivers. With `async-io` the driver is a task of any executor. Both features may be on, and any
//! executor can await the futures.
//!
//! # Testing without hardware
//!
//! The feature `sim` replaces the libraries by the simulated fabric of [`rpma`], which can follow
//! tokio's paused clock (`rpma::sim::Fabric::follow`). So an async program is tested in virtual time,
//! and under every loss of power.
//!
//! # More
//!
//! [The pages](rpma#the-pages) of `rpma` have the design of this crate, its invariants, and tests of
//! async programs.

#![deny(unsafe_code)]

mod alarm;
mod arming;
mod block_on;
mod clock;
mod commit;
mod conn;
mod connecting;
mod driver;
mod end;
mod error;
mod inbox;
mod listener;
mod monitor;
mod ops;
mod place;
mod pool;
mod primitives;
mod raw;
mod reactor;
mod reconnect;
mod region;
mod serve;
mod setup;
mod task;
mod tasks;
#[cfg(test)]
mod tests;
mod timeout;
mod told;
mod turn;
mod waiters;
mod watched;

pub use self::block_on::block_on;
pub use self::commit::{Reading, Replicas, Writer};
pub use self::conn::{Batch, Conn, Memory, Op, Sources};
pub use self::driver::Driver;
pub use self::error::{Failed, Refused};
pub use self::inbox::{Inbox, Message};
pub use self::listener::{Incoming, Listener};
pub use self::monitor::Monitor;
pub use self::pool::{Frozen, Lease, Pool};
pub use self::reactor::Reactor;
pub use self::reconnect::{Reconnect, ToConn};
pub use self::serve::Server;
pub use self::setup::Setup;
pub use self::task::Task;

/// The programs on the page on testing run: those that block, and the awaited ones.
#[cfg(all(doctest, feature = "sim", feature = "tokio"))]
#[doc = include_str!("../../docs/testing-your-program.md")]
struct TestingYourProgram;
