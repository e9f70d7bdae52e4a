//! The tests that the author of a replicated log would write, for any log.
//!
//! A test that appends, cuts the power and reads back passes with most faults of a log: it takes a
//! server that comes back in the middle of the load, a writer that thaws, or an order of answers in
//! which one copy is alone. These are *scenes*. Each begins with a promise of every log, and fails with
//! the simulator's report.
//!
//! A log is a [`Subject`]: a program of a server, and a writer that opens, appends, reads and perhaps
//! forgets. Its calls are awaited, and run on tokio in virtual time. Those of a
//! [`blocking::Subject`] block, and run on threads that a seed orders. A test is one line:
//! `Suite::new(subject).run().check()`. The page `docs/testing-your-program.md` has the rule of the
//! judge, and a report.
//!
//! # A small log
//!
//! A whole log under the suite, which needs both of its servers:
//!
#![cfg_attr(feature = "sim", doc = "```no_run")]
#![cfg_attr(not(feature = "sim"), doc = "```text")]
#![doc = include_str!("../examples/small-log.rs")]
//! ```
//!
//! # Why a crate
//!
//! The scenes use `rpma`, `rpma-async` and tokio. As a module of `rpma::sim` they would make the lowest
//! crate depend on those above it. As a crate they are one more dependency of a log's tests:
//!
//! ```toml
//! [dev-dependencies]
//! rpma-scenes = { path = "../rpma/rpma-scenes", features = ["sim"] }
//! ```
//!
//! The feature `sim` is not a default feature, so that a build of the whole workspace of `rpma` can use
//! the libraries. Without it the crate is empty.

#![forbid(unsafe_code)]
#![cfg(feature = "sim")]

mod cuts;
mod exec;
mod model;
mod scenes;
mod stage;
mod subject;
mod suite;
mod world;

pub mod blocking;

pub use self::blocking::Blocking;
pub use self::subject::{Ability, Appended, Log, Opening, Record, Result, Server, Shape, Subject};
pub use self::suite::{Outcome, Played, Report, Suite};
