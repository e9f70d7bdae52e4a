//! The settings of `rpma perf`, as values: its arguments and its results have them.
//!
//! A [`Setting`] is a point of a grid, and a [`Sweep`] is the part of an argument that makes it one.

mod figures;
mod grid;
mod limit;
mod setting;
mod units;

pub(crate) use self::figures::{Latency, Measured};
pub(crate) use self::grid::{Sweep, parse_size};
pub(crate) use self::limit::Limit;
pub(crate) use self::setting::{Completions, Flush, Method, Op, Setting, USUAL, number};
pub(crate) use self::units::{Bytes, Nanos, PerSecond};
