//! The names that most of these tests use.

pub(crate) use crate::common::program::{find, unhex};
pub(crate) use crate::interop::support::*;
