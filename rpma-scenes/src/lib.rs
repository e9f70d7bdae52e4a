//! The tests that the author of a replicated log would write, for any log.
//!
//! A test that appends, cuts the power and reads back passes with most faults of a log: it takes a
//! server that comes back in the middle of the load, a writer that thaws, or an order of answers in
//! which one copy is alone. These are *scenes*. Each begins with a promise of every log, and fails with
//! the simulator's report.
//!
//! A log is a [`Subject`]: a program of a server, and a writer that opens, appends, reads and perhaps
//! forgets. One judge decides all scenes, with one rule: each durable record is read back once, in
//! order and whole, by each later opening; one whose outcome is unknown at most once, and then by all
//! or by none; a refused one never; and nothing else is read.
//!
//! ```no_run
//! # fn my_log() -> impl rpma_scenes::Subject { NoLog }
//! # struct NoLog;
//! # impl rpma_scenes::Subject for NoLog {
//! #     type Log = Self;
//! #     fn shape(&self) -> rpma_scenes::Shape { rpma_scenes::Shape::new(3, 2, 4096) }
//! #     async fn serve(&self, _: rpma_scenes::Server) -> rpma_scenes::Result<()> { Ok(()) }
//! #     async fn open(&self, _: rpma_scenes::Opening) -> rpma_scenes::Result<Self> { Ok(NoLog) }
//! # }
//! # impl rpma_scenes::Log for NoLog {
//! #     async fn append(&self, _: &[u8]) -> rpma_scenes::Appended { unimplemented!() }
//! #     async fn read_all(&self) -> rpma_scenes::Result<Vec<rpma_scenes::Record>> { unimplemented!() }
//! # }
//! use rpma_scenes::Suite;
//!
//! // In a test: `my_log` returns your subject.
//! Suite::new(my_log()).run().check();
//! ```
//!
//! The page on [testing a program](rpma::guide::testing_your_program) has a whole log under the suite.
//! The calls of a [`Subject`] are awaited, and run on tokio in virtual time. Those of a
//! [`blocking::Subject`] block, and run on threads that a seed orders.
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
