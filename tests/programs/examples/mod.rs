//! The examples: the output of each pair, how its programs end, and how they fail.
//!
//! Each of them is a program of its own here, started as a person would start it.

mod expected;
mod failures;
mod many;
mod memcheck;
mod memory;
mod order;
mod pairs;
mod prelude;
#[path = "../../../examples/common/runs.rs"]
pub(crate) mod runs;
mod support;
mod two_logs;
