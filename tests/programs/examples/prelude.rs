//! The names that most of these tests use.

pub(crate) use crate::common::program::{Ended, Program, executable, free_port, together, words};
pub(crate) use crate::examples::expected::{Contents, Values, canonical};
pub(crate) use crate::examples::runs;
pub(crate) use crate::examples::runs::{EXAMPLES, Example};
pub(crate) use crate::examples::support::*;
