//! A simulated RDMA fabric, in the place of libibverbs and librdmacm.
//!
//! A program that uses `rpma` cannot be tested without RDMA. A real device also hides mistakes,
//! because it usually executes in order and its calls seldom fail. With `rpma`'s feature `sim` the
//! same program runs against this crate: in one process, without root, headers, libraries or a
//! device.
//!
//! A program depends on `rpma` alone, and has this crate as `rpma::sim`.
//!
//! ```
//! # mod rpma { pub use rpma_sim as sim; }
//! use rpma::sim::{Fabric, Profile};
//!
//! let fabric = Fabric::new(Profile::RXE_6_12);
//! let (client, server) = (fabric.host("client"), fabric.host("server"));
//! let serving = server.spawn(|| { /* listens on server.addr() */ });
//! {
//!     let _in_the_client = client.enter();
//!     // From now on, this thread opens devices and memory of the client.
//! }
//! serving.join().expect("the server has finished");
//! assert!(fabric.objects().is_empty(), "everything was freed");
//! ```
//!
//! * A [`Fabric`] is a network of its own: tests with a fabric each run in parallel.
//! * A [`Host`] has one device, with an IPv4 and an IPv6 address. [`Host::add_nic`] adds a device.
//!   A thread is on a host after [`Host::enter`], or if [`Host::spawn`] started it. On a thread
//!   that is on no host, opening a device or persistent memory returns an error with that reason.
//! * A [`Profile`] selects the device, and with it the behaviour that differs from one device to
//!   another.
//! * [`Fabric::fail`] makes a call fail.
//! * [`Host::pmem`] adds persistent memory to a host. The host's [`Platform`] decides which bytes a
//!   loss of power takes. An [`Image`] is one possible state of the whole memory afterwards.
//!   [`Fabric::on_every_event`] runs a program, and calls a check of yours at every event with
//!   these images. [`Fabric::power_cut`] leaves one image. [`Host::restart`] starts the host again
//!   with it.
//! * [`Fabric::between`] returns the [`Link`] between two hosts. A test uses it to lose and delay
//!   requests, and to interrupt the network. [`Host::freeze`] stops a host's devices.
//! * [`explore`] runs a program in all orders that deviate little from a base order.
//! * [`Fabric::jump_over_waits`] makes the clock jump over waits. [`repeatable`] runs a test with a
//!   seed, and the same seed gives the same order of threads again. [`Fabric::follow`] makes the
//!   fabric use the clock of an async program.
//!
//! # How it is put in the place of the libraries
//!
//! By name, not by symbol: with the feature `sim`, `rpma-sys` re-exports [`verbs`]. This crate
//! defines no C symbol, so other code of the program that links libibverbs cannot reach the
//! simulator by accident.
//!
//! # What is simulated, and what is not
//!
//! Work is done inside the calls, by the threads that make them. Work that has to wait (a peer
//! without a receive, a peer that is gone) is tried again by one thread of the fabric, or by a
//! [future](Fabric::tick) of an async program. Descriptors are real pipes with a byte for each
//! event. Time is real, unless the fabric has a [seed](repeatable), or its clock [jumps over
//! waits](Fabric::jump_over_waits) or [follows](Fabric::follow) another clock. Without a seed, the
//! operating system decides the order of threads. A device's memory accesses are made by this
//! process: 8 aligned bytes at once.
//!
//! # How it works inside
//!
//! ```text
//! Host, rdma_cm_id, cm::Channel ─▶ Shared { State }     one lock around everything of a fabric
//! State: hosts, nics, pds, mrs, channels, cqs, srqs, qps, ids, failures, links, late, power; Clock ──▶ its one thread
//! ibv_context ──(weak)──▶ Shared                       an id keeps an open device's fabric
//! ```
//!
//! A call begins with `Shared::lock`, where threads take turns before the lock of the state. Code
//! that runs inside a call, or on the fabric's own thread, takes `lock_quietly`. Some questions
//! have one place that answers them:
//!
//! * `Choices::choose`: every choice that verbs leave open, with its kind and its number of
//!   options. A seed answers, or the script of an exploration.
//! * `State::reaches` and `State::fault`: whether packets of one host arrive at another, and the
//!   fault of a request that is about to arrive.
//! * `State::place`: all data that devices write. `power/lines.rs` decides when it is durable, and
//!   which bytes a loss of power leaves.
//! * `State::visit`: each point at which the power could fail. It calls the test's check, under the
//!   lock.
//!
//! Its files, in groups by subject (*rooms*), in `rpma-sim/src/`:
//!
//! | files | room |
//! |---|---|
//! | `fabric.rs`, `profile.rs`, `fail.rs` | the test's view: a fabric with hosts, the kind of device, calls that fail |
//! | `here.rs`, `thread.rs`, `panics.rs` | the fabric and the host that a thread is on, threads of the program, and their panics |
//! | `state.rs`, `handle.rs`, `call.rs`, `types.rs` | the one `State` and its lock, pointers of callers, errors, types of C |
//! | `device.rs`, `async_events.rs`, `pipe.rs` | devices, their asynchronous events, and descriptors of event queues |
//! | `cm/` | the connection manager: ids, event channels, and messages between ids |
//! | `cq.rs`, `srq.rs`, `memory.rs` | completion queues, shared receive queues, and regions |
//! | `qp.rs`, `modify.rs` | queue pairs: made, moved to another state, and destroyed |
//! | `post.rs`, `stream.rs`, `caller.rs` | requests are posted, and named by the line of the program |
//! | `requester.rs`, `fetch.rs` | the requester: it executes its send queue, and reads the data of requests |
//! | `responder.rs`, `late.rs` | the responder: it serves requests, and some writes are visible later |
//! | `deferred.rs`, `error_state.rs` | requests that a device keeps back, and queue pairs that fail |
//! | `tcp.rs`, `tcp/` | the connections of iWARP, which are TCP streams |
//! | `links/`, `strays.rs` | the network: its faults and delays, and requests that outlive their requester |
//! | `power/` | persistent memory, its rules (`lines.rs`, `outcomes.rs`), and losses of power |
//! | `timer.rs`, `tick.rs`, `wait.rs` | the clock, the clock of a program, and the waits that rpma makes |
//! | `order/` | the order of threads, time that stands still, and choices that another run repeats |
//! | `sync/` | locks and channels of programs |
//! | `choices.rs`, `explore/` | the source of all choices, and the orders of a program |
//! | `repeat.rs`, `sweep.rs`, `failed.rs`, `shifted.rs`, `steps.rs`, `origin.rs` | a test with a seed, a program under faults, its failure, faults that have only shifted the order, actions at a step, the program's lines |
//! | `fuzz.rs` | a property of the texts that a test takes, in tests and for a fuzz target |
//! | `miri.rs` | a system call that Miri lacks |

#![allow(
    clippy::missing_safety_doc,
    reason = "the preconditions are those of the C functions"
)]

mod async_events;
mod call;
mod caller;
mod choices;
mod cm;
mod cq;
mod deferred;
mod device;
mod error_state;
mod explore;
mod fabric;
mod fail;
mod failed;
mod fetch;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handle;
mod here;
mod late;
mod links;
mod memory;
#[cfg(miri)]
mod miri;
mod modify;
mod order;
mod origin;
mod panics;
mod pipe;
mod post;
mod power;
mod profile;
mod qp;
mod repeat;
mod requester;
mod responder;
mod shifted;
mod srq;
mod state;
mod steps;
mod strays;
mod stream;
mod sweep;
pub mod sync;
mod tcp;
pub mod thread;
mod tick;
mod timer;
mod types;
mod wait;

pub use rustix::io::Errno;

#[doc(hidden)]
pub use self::caller::{Caller, Posting, caller};
pub use self::caller::{InPlace, Place};
pub use self::explore::{Explore, Explored, ExploredLevel, FailedOrder, explore};
pub use self::fabric::{Fabric, Host, Nic};
pub use self::fail::{Failing, How};
pub use self::failed::FailedFault;
pub use self::here::Entered;
pub use self::links::Link;
pub use self::order::Trace;
pub use self::post::preempt_posts;
pub use self::power::{
    Cut, Image, Images, JointImages, Loss, Platform, Pmem, Visited, persisted, seen, stored,
};
pub use self::profile::Profile;
pub use self::repeat::repeatable;
pub use self::steps::AtStep;
pub use self::sweep::{find_fault, find_faults, storm, sweep, sweep_events};
pub use self::thread::JoinHandle;
#[doc(hidden)]
pub use self::wait::{lock, pause, random, spun, undivided, wait, wait_to_serve};
pub use self::wait::{now, sleep, wait_readable};

/// The functions and types of `verbs.h` and `rdma_cma.h` that `rpma` uses, for `rpma-sys`.
///
/// The rules of the C functions hold for these: see their manual pages.
pub mod verbs {
    #[doc(hidden)]
    pub use crate::power::{Memory, boot_here, memory_at};
    #[doc(hidden)]
    pub use crate::power::{seen, stored};

    pub use crate::async_events::{ibv_ack_async_event, ibv_event_type_str, ibv_get_async_event};
    pub use crate::cm::{
        rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_event_channel,
        rdma_create_id, rdma_create_qp_ex, rdma_destroy_event_channel, rdma_destroy_id,
        rdma_disconnect, rdma_get_cm_event, rdma_get_local_addr, rdma_get_peer_addr,
        rdma_init_qp_attr, rdma_listen, rdma_migrate_id, rdma_reject, rdma_resolve_addr,
        rdma_resolve_route, rdma_set_option,
    };
    pub use crate::cq::{
        ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel,
        ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq,
    };
    pub use crate::device::{ibv_get_device_name, ibv_query_device_ex, rpma_sys_query_port};
    pub use crate::here::{for_device, why_no_device};
    pub use crate::memory::{
        ibv_advise_mr, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, rpma_sys_reg_mr,
    };
    pub use crate::modify::ibv_modify_qp;
    pub use crate::post::{ibv_post_recv, ibv_post_send};
    pub use crate::qp::{ibv_destroy_qp, ibv_query_qp};
    pub use crate::srq::{ibv_create_srq, ibv_destroy_srq, ibv_post_srq_recv};
    pub use crate::stream::ibv_qp_to_qp_ex;
    pub use crate::types::*;
}
