//! The tests that the author of a replicated log would write, for any log.
//!
//! A test that appends, cuts the power and reads back passes with most faults of a log. To find them, a
//! server has to come back in the middle of the load, a frozen writer has to thaw, or one copy has to
//! arrive alone. These are *scenes*: each begins with a promise of every log, and fails with the
//! simulator's report.
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
//! The feature `sim` is not a default feature, so that a build of the whole workspace of `rpma` can use
//! the libraries. Without it the crate is empty. It is a crate and no module of `rpma::sim`, because it
//! uses `rpma`, `rpma-async` and tokio, on which the simulator must not depend.
//!
//! # More
//!
//! [The page](rpma#the-pages) on testing your program has the rule of the judge, and a report.

#![forbid(unsafe_code)]
#![cfg(feature = "sim")]

mod acts;
mod cuts;
mod exec;
mod model;
mod scenes;
mod stage;
mod subject;
mod suite;
mod world;
mod writer;

pub mod blocking;

pub use self::blocking::Blocking;
pub use self::subject::{Ability, Appended, Log, Opening, Record, Result, Server, Shape, Subject};
pub use self::suite::{Outcome, Played, Report, Suite};
