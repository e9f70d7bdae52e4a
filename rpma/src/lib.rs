//! Writes to another host's persistent memory over RDMA, and reports when those bytes would survive a
//! power cut.
//!
//! Use it if your program replicates a log, a database or a cache into the memory of other hosts. rpma
//! is the successor of librpma, a C library. It keeps librpma's objects, names and wire format, so a
//! Rust client can talk to a C server and the other way round, but it calls libibverbs and librdmacm
//! directly. Two commands show it at work, in a clone of the project with nothing but Rust installed:
//!
//! ```console
//! $ cargo sim-log    # a replicated log: it recovers from a power cut at every event of a run
//! $ cargo sim-test   # all tests that run on the simulated fabric
//! ```
//!
//! # A program
//!
//! The server offers persistent memory, and the client writes to it:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use rpma::pmem::{Ddio, PmemMap};
//! use rpma::{ConnCfg, ConnReq, Ep, Mr, MrUsage, Offer, Peer, PeerCfg, Result};
//!
//! /// The limit of each wait.
//! const LIMIT: Duration = Duration::from_secs(60);
//!
//! /// Lets one client write to persistent memory, such as `/dev/dax0.0`.
//! pub fn serve(peer: &Peer, ep: &Ep, path: &str) -> Result<Mr<PmemMap>> {
//!     let map = PmemMap::open(path, 1024)?;
//!     let platform = PeerCfg::detect(&map, peer, Ddio::On)?;
//!     let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
//!     let memory = Mr::reg(peer, map, usage)?;
//!     let request = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
//!     // The client gets the address and the key of the memory.
//!     let conn = request.establish(Offer::new(&platform).add_region(&memory), LIMIT)?;
//!     // The client works with the memory, and then ends the connection.
//!     conn.wait_ended(LIMIT)?;
//!     Ok(memory)
//! }
//!
//! /// Writes to the memory of a server. After `Ok`, the bytes survive a loss of power there.
//! pub fn write(addr: &str, port: u16, bytes: &[u8]) -> Result<()> {
//!     let peer = Peer::toward(addr)?;
//!     let source = Mr::reg(&peer, bytes.to_vec(), MrUsage::WRITE_SRC)?;
//!     let request = ConnReq::new(&peer, addr, port, &ConnCfg::new())?;
//!     let conn = request.establish(&Offer::default(), LIMIT)?;
//!     let memory = conn.offer()?.memory(bytes.len() as u64)?;
//!     let target = memory.slice(..bytes.len() as u64)?;
//!     conn.write_durable(target, source.slice(..)?, LIMIT)
//! }
//! ```
//!
//! For persistent memory the server maps a device and declares, by [`PeerCfg::detect`], which flushes
//! make data durable on that machine. [`write_durable`](Conn::write_durable) posts a write and its
//! flush and waits for the flush, so the data survives a loss of power when it returns. A program that
//! has many operations in flight posts them itself ([operations](Conn#operations)), and waits for those
//! that it names ([`Conn::wait_for`]). [Getting started](crate::guide::getting_started) has the rest of
//! this program, and runs it simulated, in a guest machine, and on hardware.
//!
//! # The objects
//!
//! | | | librpma |
//! |---|---|---|
//! | [`Device`] | an RDMA device, found by an address | `ibv_context` |
//! | [`Peer`] | a protection domain, for connections and memory | `rpma_peer` |
//! | [`Mr`], [`MrRemote`] | registered memory, local and remote | `rpma_mr_local`, `rpma_mr_remote` |
//! | [`Ep`] | listens for connection requests | `rpma_ep` |
//! | [`ConnReq`], [`ConnCfg`] | a connection before it is made, and its settings | `rpma_conn_req`, `rpma_conn_cfg` |
//! | [`Conn`] | a connection: reads, writes, flushes, messages | `rpma_conn` |
//! | [`Batch`] | several operations, posted with one call | |
//! | [`Next`] | a completion or an event of a connection ([`Conn::next`]) | |
//! | [`Srq`] | a receive queue that connections share | `rpma_srq` |
//! | [`Wait`](wait::Wait) | waits for endpoints, connections and shared receive queues | |
//! | [`CompletionChannel`] | waits for the completion queues of many connections | |
//! | [`Cq`], [`Wc`] | a completion queue, and a work completion | `rpma_cq`, `ibv_wc` |
//! | [`PeerCfg`] | a host's declaration of its platform, which it sends to the other side | `rpma_peer_cfg` |
//! | [`Offer`], [`Refusal`] | private data to connect or accept, and to reject | |
//! | [`commit`] | durable commits of data and a pointer, to one host or to K of N | |
//! | [`serve`] | a server that keeps memory for each client, and only the client's newest connection can write to it | |
//! | [`reconnect`] | connects again, with the same registered memory | |
//! | [`pmem`] | mapped persistent memory | (libpmem) |
//! | `sim` | a simulated fabric for tests (feature `sim`) | |
//! | [`sync`], [`thread`] | std's locks, channels and threads, for tests with the feature `sim` | |
//!
//! Most functions `rpma_<object>_<verb>` are `<Object>::<verb>`, and a drop frees an object. A
//! search for the C name finds the method, and the page on [porting from
//! librpma](crate::guide::porting_from_librpma) lists them all. The crate `rpma-async` has operations
//! that are awaited, and `rpma-log` a replicated log.
//!
//! # What is safe
//!
//! **Memory.** No sequence of safe calls can corrupt memory, even with [`std::mem::forget`], drops in
//! any order, panics, threads and a hostile peer. A region owns its memory and is deregistered before
//! this memory is freed, and no safe method lends a reference to memory that a device can write.
//!
//! **Descriptors.** The descriptors of [`AsFd`](std::os::fd::AsFd) are for `poll`, `epoll` and `fcntl`.
//! Like `/proc/self/mem`, they are an exception to the promise about memory. Bytes that a program
//! *writes* to the descriptor of an endpoint or a connection are a command to the kernel, with
//! addresses in it. An event that a program *reads* from a completion channel is never acknowledged, so
//! its queue can never be destroyed.
//!
//! **Data.** A completed [`FlushType::Persistent`] means that the data survives a loss of power.
//! [Persistence](crate::guide::persistence) has the conditions, and [`Conn`'s
//! documentation](Conn#order) the order of operations.
//!
//! **Waits.** Each wait takes a limit, or has a second form that takes one (`…_timeout`). [When
//! something fails](crate::guide::failures) has the reports of each fault.
//!
//! **Peers.** A peer with a region's descriptor ([`Mr::get_descriptor`]) can use the region as its
//! [`MrUsage`] allows. It can also read a region that may be flushed and, on iWARP, write to a
//! destination of reads. A peer without the descriptor can guess it, and reaches in this way any
//! region of the [`Peer`] on which its connection was made, so use one `Peer` for each domain of
//! trust. No traffic is encrypted or authenticated. [Security](crate::guide::security) has the
//! details.
//!
//! # Requirements
//!
//! * Linux 6.1 or newer, on x86-64 or aarch64, and Rust 1.85 or newer.
//! * To build: the headers and libraries of libibverbs and librdmacm (rdma-core 44 or newer), and
//!   libclang for the bindings. A native flush needs headers of rdma-core 45 or newer.
//! * To run: rdma-core, and an RDMA device with an address. Soft-RoCE makes a device out of any
//!   network interface.
//!
//! # Features
//!
//! | | |
//! |---|---|
//! | `verbs` (default) | links libibverbs and librdmacm |
//! | `sim` | replaces them by a simulated fabric, for tests |
//!
//! One of them is needed, and `sim` has precedence in every build in which cargo combines them. If
//! some members of a workspace need `sim` and others need `verbs`, build each member by itself
//! (`cargo build -p`).
//!
//! # Tests without hardware
//!
//! Enable the feature `sim` in `[dev-dependencies]` only. Then `cargo build` links the libraries, while
//! `cargo test` uses the simulator and needs only Rust. In such a test any call can fail, the network
//! can lose packets, and the power can fail at every event. [Testing your
//! program](crate::guide::testing_your_program) leads from a first test to a log that survives every
//! power cut.
//!
//! # The pages
//!
//! The module [`guide`] has the project's documentation:
//!
//! | to | read |
//! |---|---|
//! | write a first program, and mend the first errors | [getting started](crate::guide::getting_started) |
//! | check two hosts and their adapters | [hardware](crate::guide::hardware) |
//! | know when data is durable | [persistence](crate::guide::persistence) |
//! | build a replicated log | the crate `rpma-log`, [building a log](crate::guide::building_a_log), [its format](crate::guide::log_format) |
//! | handle dead peers and time-outs, connect again and recover | [when something fails](crate::guide::failures) |
//! | test a program under faults and losses of power | [testing your program](crate::guide::testing_your_program) |
//! | wait for many connections, or in an event loop | [completion events](crate::guide::completion_events) |
//! | know the powers of a hostile peer | [security](crate::guide::security) |
//! | make it fast | [performance](crate::guide::performance) |
//! | port a program from C, or come from verbs | [porting from librpma](crate::guide::porting_from_librpma) |
//! | read a whole program | [the examples](crate::guide::examples) |
//! | upgrade | the changelog, and the section on versions in the repository's `CONTRIBUTING.md` |
//! | write an async program (crate `rpma-async`) | [how it works](crate::guide::rpma_async), [testing it](crate::guide::testing_your_program) |
//! | change the library | [architecture](crate::guide::architecture), [our own tests](crate::guide::testing) |
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | peer, in lower case | the other side of a connection: its program, its host and its device |
//! | [`Peer`] | an object of this host, a protection domain, under librpma's name |
//! | [`Device`] | an RDMA device: an adapter, soft-RoCE or soft-iWARP |
//! | adapter | an RDMA device in hardware: every device except soft-RoCE and soft-iWARP counts as one |
//! | soft-RoCE | an RDMA device in software, by Linux's driver rxe (`rdma_rxe`) |
//! | soft-iWARP | an RDMA device in software over TCP, by Linux's driver siw |
//! | native flush | a flush by the device's own operation ([`Conn::has_native_flush`]) |
//! | fallback flush | a flush by reading, on a connection without native flush ([`Conn::flush`]) |
//!
//! # Threads
//!
//! Every type of verbs and memory is [`Send`] and [`Sync`], and the operations of a [`Conn`] take
//! `&self`. The exceptions are [`RawMemory`] and [`GivenBack`], which can contain it. They are only
//! `Send`: their owner has promised that the memory may move to another thread, and not that
//! threads may share it.
//!
//! The data path does not allocate or copy. Posting takes the lock of the queue pair, and polling
//! takes the lock of the completion queue. An uncontended lock costs two atomic instructions. A
//! thread that waits for a lock sleeps. Never post or poll in a signal handler: if the handler
//! interrupts the thread that holds the lock, the handler waits without end.
//!
//! # Processes
//!
//! Open devices after a `fork`, and after a change of credentials. For devices that were opened
//! before, the kernel refuses most verbs in the child and in the changed process. It does not
//! refuse to destroy: if a child drops an inherited object, the parent's object is destroyed. Such
//! a child must end with `_exit` or `exec`, as a child of [`std::process::Command`] does.
//!
//! # Logs
//!
//! The [`log`] crate receives the events of connections, and failures in a `Drop`, which have no
//! caller to return to.

#![deny(unsafe_code)]

mod address;
mod bell;
mod clock;
pub mod commit;
#[cfg(doctest)]
mod compile_fail;
mod compl_channel;
mod conn;
mod conn_cfg;
mod conn_req;
mod counters;
mod cq;
mod device;
mod ends;
mod ep;
mod error;
mod event;
mod failure;
mod flags;
mod flush;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hints;
mod joined_fd;
mod lock;
mod looking;
mod method;
mod mr;
mod offer;
mod peer;
mod peer_cfg;
mod plan;
pub mod pmem;
mod posted;
mod primitives;
mod queues;
mod range;
mod receives;
pub mod reconnect;
mod refusal;
mod request;
pub mod serve;
mod site;
mod slots;
mod srq;
mod status;
pub mod sync;
pub mod thread;
mod verbs;
pub mod wait;

pub use crate::address::Side;
pub use crate::compl_channel::{ComplChannel, CompletionChannel};
pub use crate::conn::{Batch, Conn, Next};
pub use crate::conn_cfg::ConnCfg;
pub use crate::conn_req::{ConnReq, Resolving};
pub use crate::counters::Counters;
pub use crate::cq::Cq;
pub use crate::device::Device;
pub use crate::ep::Ep;
pub use crate::error::{Error, GivenBack, Queue, Result};
pub use crate::event::ConnEvent;
pub use crate::failure::{Failure, NotConnected};
pub use crate::flags::Flags;
pub use crate::flush::FlushType;
pub use crate::mr::{Advice, Mr, MrRemote, MrSlice, MrUsage, RemoteSlice};
pub use crate::offer::{Identity, Offer};
pub use crate::peer::Peer;
pub use crate::peer_cfg::{Durable, PeerCfg};
pub use crate::posted::Posted;
pub use crate::refusal::{Refusal, RefusalCode};
pub use crate::request::Request;
pub use crate::site::Site;
pub use crate::srq::{Srq, SrqCfg};
pub use crate::status::{WcFailure, WcOpcode, WcStatus};
pub use crate::verbs::{
    AlignedBuf, CqKind, DeviceEventKind, Notify, RawMemory, RegisterableMemory, Wc, WcSuccess,
};

#[cfg(any(doc, doctest))]
pub mod guide;

/// A simulated fabric in the place of the libraries, for tests (feature `sim`).
///
/// Add `rpma = { …, features = ["sim"] }` to the
/// [`[dev-dependencies]`](crate#tests-without-hardware). The tests of a program then run in one
/// process. [Testing your program](crate::guide::testing_your_program) is a tutorial.
///
/// | to | take |
/// |---|---|
/// | run both sides in one process | [`Fabric`](sim::Fabric), [`Host`](sim::Host), [`Profile`](sim::Profile) |
/// | let a call fail | [`Fabric::fail`](sim::Fabric::fail) |
/// | run under each single fault, and under several | [`sweep`](fn@sim::sweep), [`storm`](sim::storm) |
/// | events that the connection manager sends by itself | [`Host::cm_event`](sim::Host::cm_event), [`sweep_events`](sim::sweep_events) |
/// | do something at one step of a run | [`Fabric::at_step`](sim::Fabric::at_step) |
/// | lose or delay requests and acknowledgements, interrupt the network, freeze a host | [`Fabric::between`](sim::Fabric::between), [`Host::freeze`](sim::Host::freeze) |
/// | run a small program in all orders that deviate little | [`explore`](fn@sim::explore) |
/// | see writes out of order on the target | [`Fabric::early_reads`](sim::Fabric::early_reads) |
/// | have persistent memory | [`Host::pmem`](sim::Host::pmem), [`Platform`](sim::Platform) |
/// | check every memory image that a loss of power may leave, at every event | [`Fabric::on_every_event`](sim::Fabric::on_every_event), [`Cut`](sim::Cut) |
/// | cut the power in recoveries | [`Fabric::find_loss_in_recovery`](sim::Fabric::find_loss_in_recovery) |
/// | let a host lose its power and come back | [`Fabric::power_cut`](sim::Fabric::power_cut), [`Host::restart`](sim::Host::restart) |
/// | wait for hours of virtual time without real time | [`Fabric::jump_over_waits`](sim::Fabric::jump_over_waits) |
/// | repeat a run with its order of threads | [`repeatable`](sim::repeatable) |
/// | test an async program, with the paused clock of tokio | [`Fabric::follow`](sim::Fabric::follow), [`Fabric::tick`](sim::Fabric::tick), [a test](crate::guide::testing_your_program#a-log-that-survives-every-cut) |
/// | show the caller's line in the fabric's reports, if a library posts for its caller | [`Place`](sim::Place) |
/// | have threads that wait for each other | [`sync`], [`thread`] |
///
/// ```
/// use std::time::Duration;
///
/// use rpma::sim::{Errno, Fabric, Profile};
/// use rpma::{ConnCfg, ConnReq, Device, Ep, Flags, FlushType, Mr, MrRemote, MrUsage, Peer, Side};
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// The program: it writes to the region whose descriptor the server sends.
/// fn write(addr: &str, port: u16, bytes: &[u8]) -> rpma::Result<()> {
///     let peer = Peer::toward(addr)?;
///     let source = Mr::reg(&peer, bytes.to_vec(), MrUsage::WRITE_SRC)?;
///     let asking = ConnReq::new(&peer, addr, port, &ConnCfg::new())?.connect(&[])?;
///     let conn = asking.wait_established(LIMIT)?;
///     let target = MrRemote::from_descriptor(conn.get_private_data())?.slice(..bytes.len() as u64)?;
///     conn.write(target, source.slice(..)?, Flags::COMPLETION_ON_ERROR, 1)?;
///     let flushed = conn.flush(target, FlushType::Visibility, Flags::COMPLETION_ALWAYS, 2)?;
///     conn.wait_for(flushed, LIMIT, |_| {})?;
///     Ok(())
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::new(Profile::STRICT);
/// let (client, server) = (fabric.host("client"), fabric.host("server"));
/// let addr = server.addr().to_string();
/// {
///     // In this block, this thread runs on the server.
///     let _entered = server.enter();
///     let peer = Peer::at(&addr)?;
///     let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
///     let memory = Mr::reg(&peer, vec![0; 5], usage)?;
///     let ep = Ep::listen(&peer, &addr, 0)?;
///     let port = ep.get_port();
///     let writing = client.spawn(move || write(&addr, port, b"hello"));
///     let req = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
///     let conn = req.connect(&memory.get_descriptor())?.wait_established(LIMIT)?;
///     writing.join().expect("no panic")?;
///     drop(conn);
///     assert_eq!(memory.dereg()?, b"hello");
///
///     // The error of a failed call names the call.
///     let addr = server.addr().to_string();
///     let failing = fabric.fail("ibv_reg_mr").on(&client).next(Errno::NOMEM);
///     let writing = client.spawn(move || write(&addr, port, b"hello"));
///     let error = writing.join().expect("no panic").expect_err("it cannot register");
///     assert!(error.to_string().contains("ibv_reg_mr"));
///     assert!(!failing.is_pending());
/// }
/// assert!(fabric.objects().is_empty(), "everything was freed");
/// # Ok(())
/// # }
/// ```
///
/// By default, time is real: if a test lets a peer die, [`ConnCfg::set_ack_timeout`] and
/// [`set_retry_count`](ConnCfg::set_retry_count) determine how soon the other side notices, unless
/// the fabric's clock [jumps over waits](sim::Fabric::jump_over_waits).
///
/// A recovery that writes can lose its power, too. This one rounds a counter up to an even number,
/// and is cut at each of its own events:
///
/// ```
/// use std::path::Path;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use rpma::pmem::PmemMap;
/// use rpma::sim::{Fabric, Profile};
///
/// fn store(map: &PmemMap, value: u64) {
///     map.write_at(0, &value.to_le_bytes()).expect("inside");
///     map.persist(..8).expect("inside");
/// }
///
/// fn recover(path: &Path) -> u64 {
///     let map = PmemMap::open(path, 4096).expect("the memory");
///     let counter = map.load_u64(0).expect("inside").next_multiple_of(2);
///     store(&map, counter);
///     counter
/// }
///
/// let fabric = Fabric::new(Profile::STRICT);
/// let host = fabric.host("counter");
/// let memory = host.pmem("counter", 4096);
/// let _entered = host.enter();
/// let counted = AtomicU64::new(0);
/// let found = fabric.find_loss_in_recovery(
///     &memory,
///     || counted.load(Ordering::Relaxed), // the promise, at any event
///     recover,
///     |promise, found| assert!(found >= promise, "{promise} counted, {found} found"),
///     || {
///         let map = PmemMap::open(memory.path(), 4096).expect("the memory");
///         for number in 1..4 {
///             store(&map, number);
///             counted.store(number, Ordering::Relaxed);
///         }
///     },
/// );
/// assert!(found.is_ok());
/// ```
#[cfg(feature = "sim")]
pub mod sim {
    #[doc(hidden)]
    pub use rpma_sys::sim::wait_to_serve;
    #[doc(inline)]
    pub use rpma_sys::sim::{
        AtStep, Cut, Entered, Errno, Explore, Explored, ExploredLevel, Fabric, FailedFault,
        FailedOrder, Failing, Host, How, Image, Images, InPlace, JoinHandle, JointImages, Link,
        Loss, Nic, Place, Platform, Pmem, Profile, Trace, Visited, explore, find_fault,
        find_faults, now, persisted, preempt_posts, repeatable, seen, sleep, stored, storm, sweep,
        sweep_events, wait_readable,
    };
}

/// The program in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons stand with each type: the providers lock, and unlocked fields do not change.
    #[test]
    fn every_type_may_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Device>();
        check::<Side>();
        check::<Peer>();
        check::<PeerCfg>();
        check::<Durable>();
        check::<Offer>();
        check::<Identity>();
        check::<Refusal>();
        check::<RefusalCode>();
        check::<commit::Method>();
        check::<commit::Limits>();
        check::<commit::Writer>();
        check::<commit::SharedWriter>();
        check::<commit::WriterCfg>();
        check::<commit::Connecting>();
        check::<commit::Ticket>();
        check::<commit::Fate>();
        check::<commit::Replicas>();
        check::<commit::SharedReplicas>();
        check::<reconnect::Reconnect<reconnect::ToConn>>();
        check::<reconnect::Reconnect<reconnect::ToWriter>>();
        check::<reconnect::ReconnectCfg>();
        check::<commit::Record<'_>>();
        check::<commit::ReplicaId>();
        check::<commit::CommitId>();
        check::<commit::Outcome>();
        // Memory, and registerable memory.
        check::<Mr<Vec<u8>>>();
        // A region shares memory. The owner of the memory may not be shared itself.
        check::<Mr<RawMemory>>();
        check::<MrSlice<'_>>();
        check::<MrRemote>();
        check::<RemoteSlice>();
        check::<MrUsage>();
        check::<Advice>();
        check::<AlignedBuf>();
        check::<pmem::PmemMap>();
        check::<pmem::PmemKind>();
        check::<pmem::Ddio>();
        // Connections.
        check::<Ep>();
        check::<ConnCfg>();
        check::<ConnReq>();
        check::<Request>();
        check::<Resolving>();
        check::<Conn>();
        check::<Batch<'_, 4>>();
        check::<Next>();
        check::<ConnEvent>();
        check::<Flags>();
        check::<FlushType>();
        check::<wait::Wait>();
        check::<wait::Place>();
        check::<wait::Member>();
        check::<wait::Happened>();
        check::<wait::Waker>();
        check::<DeviceEventKind>();
        check::<serve::Server>();
        check::<serve::ServerCfg>();
        check::<serve::ServerCounters>();
        check::<serve::Directory>();
        check::<serve::Asked>();
        check::<serve::Layout>();
        check::<serve::Client>();
        check::<serve::Served>();
        check::<serve::Gone>();
        check::<serve::Reason>();
        check::<serve::Refused>();
        check::<Srq>();
        check::<SrqCfg>();
        // Completions.
        check::<Cq>();
        check::<CqKind>();
        check::<Notify>();
        check::<ComplChannel>();
        check::<CompletionChannel>();
        check::<Wc>();
        check::<WcSuccess>();
        check::<WcFailure>();
        check::<WcOpcode>();
        check::<WcStatus>();
        // Errors.
        check::<Error>();
        check::<Queue>();
        check::<GivenBack<Conn>>();

        fn check_send<T: Send>() {}
        check_send::<RawMemory>();
        check_send::<GivenBack<RawMemory>>();
    }
}
