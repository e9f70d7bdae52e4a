//! The names that most of these tests use.

pub(crate) use crate::cli::support::*;
pub(crate) use crate::common::program::{Ended, Program, free_port};
