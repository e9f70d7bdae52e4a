//! The names that most of these tests use.

pub(crate) use crate::replicated_log::example::blocking::Log;
pub(crate) use crate::replicated_log::example::format::Found;
pub(crate) use crate::replicated_log::example::{Fault, LogError, Lsn};
pub(crate) use crate::replicated_log::world::*;
pub(crate) use rpma::commit::Method;
pub(crate) use rpma::sim::sleep;
pub(crate) use rpma::sync::Mutex;
pub(crate) use rpma::thread;
