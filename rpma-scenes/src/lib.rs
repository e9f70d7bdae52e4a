//! The tests that the author of a replicated log would write, for any log.
//!
//! Most faults of a log show only when a server comes back in the middle of the load, when a frozen
//! writer thaws, or when one copy arrives alone. These are *scenes*: each has a promise of every log,
//! and fails with a report.
//!
//! A log is a [`Subject`]: a program of a server, and a writer that opens, appends, reads and perhaps
//! forgets. Its calls are awaited, and run on tokio in virtual time. Those of a [`blocking::Subject`]
//! block, and run on threads that a seed orders. A test is one line:
//! `Suite::new(subject).run().check()`.
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
//! # An awaited log
//!
//! The tasks of the servers and of the writers are those of one thread, in virtual time. This log has
//! one server:
//!
#![cfg_attr(feature = "sim", doc = "```no_run")]
#![cfg_attr(not(feature = "sim"), doc = "```text")]
#![doc = include_str!("../examples/awaited-log.rs")]
//! ```
//!
//! # The scenes
//!
#![doc = include_str!("../scenes.md")]
//!
//! # Use
//!
//! ```toml
//! [dev-dependencies]
//! rpma-scenes = { path = "../rpma/rpma-scenes", features = ["sim"] }
//! ```
//!
//! Without the feature `sim` the crate is empty, so that a build of the whole workspace of `rpma` can
//! use the libraries. It is no module of `rpma::sim`, because that must not depend on tokio.
//!
//! # More
//!
//! [The page](rpma#the-pages) on testing your program has the rule of the judge, and a report.

#![forbid(unsafe_code)]
#![cfg(feature = "sim")]

mod acts;
mod course;
mod cuts;
mod ends;
mod exec;
mod model;
mod openings;
mod scenes;
mod stage;
mod subject;
mod suite;
mod ways;
mod world;
mod writer;

pub mod blocking;

pub use self::blocking::Blocking;
pub use self::subject::{Ability, Appended, Log, Opening, Record, Result, Server, Shape, Subject};
pub use self::suite::{Outcome, Played, Report, Suite};
