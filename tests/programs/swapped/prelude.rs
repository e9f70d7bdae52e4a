//! The names that most of these tests use.

pub(crate) use crate::common::program::{find, hex, together, words};
pub(crate) use crate::swapped::support::*;
