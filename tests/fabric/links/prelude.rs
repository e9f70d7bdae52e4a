//! The names that most of these tests use.

pub(crate) use crate::links::world::*;
pub(crate) use rpma::sim::{now, sleep};
