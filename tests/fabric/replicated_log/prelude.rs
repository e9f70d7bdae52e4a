//! The names that most of these tests use.

pub(crate) use crate::replicated_log::world::*;
pub(crate) use rpma::commit::Method;
pub(crate) use rpma::sim::sleep;
pub(crate) use rpma::sync::Mutex;
pub(crate) use rpma::thread;
pub(crate) use rpma_log::blocking::Log;
pub(crate) use rpma_log::format::Stored;
pub(crate) use rpma_log::{Fault, LogError, Record};
