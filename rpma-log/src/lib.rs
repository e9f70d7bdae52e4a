//! A replicated log in the persistent memory of several servers.
//!
//! A log has N servers, and a record is acknowledged when it is durable on K of them. Take it if your
//! program must not lose what it has acknowledged: an acknowledged record survives the loss of power of
//! all servers and the destruction of any K - 1 of them, and appends go on while N - K are away. With
//! two copies on three servers, that is one.
//!
//! A log has one writer, a [`Log`], whose handles may append from any task and any thread
//! ([`blocking::Log`] is for threads), and records that are appended at the same time share commits. A
//! new writer takes the log over with a higher *epoch*, which a lease, a consensus service or an
//! operator gives it: the servers cut the old writer off, and the new one finds each acknowledged
//! record. The program of a server is two calls, [`ServerCfg::listen`] and
//! [`Server::serve`](rpma::serve::Server::serve).
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use rpma::Peer;
//! use rpma_async::Reactor;
//! use rpma_log::{Log, LogCfg, LogError};
//!
//! /// Appends from 16 tasks, while a server dies, and reads everything back.
//! # #[cfg(feature = "tokio")]
//! async fn run(host: &str, servers: [SocketAddr; 3], kill: impl FnOnce()) -> Result<(), LogError> {
//!     // `host` is an address of this host, so no server has to run for this.
//!     let reactor = Reactor::spawn(&Peer::at(host)?)?;
//!     // Two copies make a record acknowledged. The epoch of this writer is 1.
//!     let mut cfg = LogCfg::new(&servers, 2, 1);
//!     let log = Log::open(&reactor, cfg.set_create(true)).await?;
//!     let append = |task: u8| {
//!         let log = log.clone();
//!         async move {
//!             for round in 0..10 {
//!                 let record = format!("record {round} of task {task}");
//!                 log.append(record.as_bytes()).await?;
//!             }
//!             Ok::<_, LogError>(())
//!         }
//!     };
//!     let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(append(task))).collect();
//!     kill();
//!     for task in tasks {
//!         task.await.expect("no panic")?;
//!     }
//!     log.close().await?;
//!     // The next writer reads two servers, and makes their records durable under its epoch.
//!     let log = Log::open(&reactor, cfg.set_create(false).set_epoch(2)).await?;
//!     let (mut at, end) = log.bounds();
//!     let mut records = 0;
//!     while let Some(record) = log.read(at)? {
//!         records += 1;
//!         at = record.next;
//!     }
//!     assert_eq!((records, at), (160, end));
//!     log.close().await
//! }
//!
//! // It runs on the simulated fabric, and needs no RDMA: see Testing below.
//! # #[cfg(all(feature = "sim", feature = "tokio"))]
//! #[tokio::main(flavor = "current_thread", start_paused = true)]
//! async fn main() {
//!     use rpma::sim::{Fabric, Host, Platform, Profile};
//!     use tokio::time::{Instant, sleep_until};
//!
//!     /// The program of a server, on a host with persistent memory.
//!     fn serve(host: &Host) -> rpma::Result<SocketAddr> {
//!         host.set_platform(Platform::Eadr);
//!         let pmem = host.pmem("log", 16 << 20);
//!         let _entered = host.enter();
//!         let addr = (host.addr(), 7204).into();
//!         let server = rpma_log::ServerCfg::new(addr, pmem.path()).listen()?;
//!         let reactor = Reactor::spawn(&Peer::at(&host.addr().to_string())?)?;
//!         let mut server = rpma_async::Server::new(&reactor, server)?;
//!         tokio::spawn(async move { server.serve(drop).await });
//!         Ok(addr)
//!     }
//!     let fabric = Fabric::new(Profile::STRICT);
//!     fabric.follow(|| Instant::now().into_std());
//!     tokio::spawn(fabric.tick(|at| sleep_until(at.into())));
//!     let hosts = ["a", "b", "c"].map(|name| fabric.host(name));
//!     let servers = [0, 1, 2].map(|n| serve(&hosts[n]).expect("it listens"));
//!     let client = fabric.host("client");
//!     let _entered = client.enter();
//!     let ran = run(&client.addr().to_string(), servers, || hosts[1].kill()).await;
//!     ran.expect("it runs");
//! }
//! # #[cfg(not(all(feature = "sim", feature = "tokio")))]
//! # fn main() {}
//! ```
//!
//! # Calls
//!
//! | to | call |
//! |---|---|
//! | open, or create | [`Log::open`], [`LogCfg::set_create`] |
//! | append | [`Log::append`], [`Log::append_many`] |
//! | read acknowledged records | [`Log::bounds`], [`Log::read`] |
//! | free room, and see what is left of it | [`Log::truncate`], [`Log::room`] |
//! | see how far each server is | [`Log::state`] |
//! | replace a server | [`Log::replace`] |
//! | serve | [`ServerCfg::listen`] |
//! | look into a server that does not run | [`ServerCfg::stored`] |
//!
//! # Servers that are away
//!
//! Appends go on while K servers have the log. A server that comes back gets the records that it has
//! missed in the background, and so does a new one with empty memory.
//!
//! [`Log::open`] needs N - K + 1 servers that have the log. A server that was never reached has none,
//! and [`Log::close`] does not wait for it, so see its position in [`Log::state`] before you rely on it.
//!
//! A server that is gone for good is [replaced](Log::replace) by another one while the log goes on, as
//! long as K servers are there. A new one with empty memory at the same address takes the place of the
//! old one by itself. Each server has the list of the log's servers, so a server that was replaced
//! counts for nothing when it is back, and an old configuration opens no log
//! ([`LogError::OtherServers`]).
//!
//! A server that is slow delays no append until it is 8 commits late. Then appends wait for it. After
//! half of [`LogCfg::set_limit`] it is set aside, and comes back later as a server that was away.
//!
//! # Testing
//!
//! With the feature `sim` the log runs on the simulated fabric of [`rpma`], as this program does: in
//! virtual time, and under every loss of power. These are its dependencies, in a directory beside the
//! clone `rpma`:
//!
//! ```toml
//! [dependencies]
//! rpma = { path = "../rpma/rpma", default-features = false, features = ["sim"] }
//! rpma-async = { path = "../rpma/rpma-async", default-features = false, features = ["sim", "tokio"] }
//! rpma-log = { path = "../rpma/rpma-log", default-features = false, features = ["sim", "tokio"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util", "time"] }
//! ```
//!
//! With RDMA the feature `verbs` takes the place of `sim`. It is one of the default features.
//!
//! # More
//!
//! [The pages](rpma#the-pages) of `rpma` have the reasons for this design, with compaction and the part
//! of the operator ("Building a log"), and the bytes in the servers' memory ("The format of a log").

#![forbid(unsafe_code)]

mod cfg;
mod clock;
mod commits;
mod error;
mod fault;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod list;
mod log;
mod open;
mod replace;
mod replica;
mod ring;
mod server;
mod state;
mod tasks;
mod work;

pub mod blocking;
pub mod format;

use std::time::Duration;

pub use self::cfg::LogCfg;
pub use self::error::LogError;
#[cfg(feature = "faults")]
pub use self::fault::Fault;
pub use self::log::{Log, LogState, Record, ServerState};
pub use self::server::ServerCfg;
pub use self::state::Counters;

/// The most bytes of a group, and of an entry.
pub(crate) const GROUP: u64 = 64 << 10;
/// Commits that are not acknowledged.
pub(crate) const COMMITS: usize = 4;
/// The most commits that a server of the set may lack, because the set's ring has so many.
pub(crate) const RECENT: usize = 2 * COMMITS;
/// Older kernels take 8.6 s for a keep-alive's packets to be sent again.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
