//! The names that most of these tests use.

pub(crate) use crate::follow::world::*;
