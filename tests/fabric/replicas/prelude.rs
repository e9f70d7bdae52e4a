//! The names that most of these tests use.

pub(crate) use crate::replicas::set::*;
pub(crate) use rpma::commit::{CommitId, Limits, Method, Outcome, ReplicaId, Replicas, Writer};
pub(crate) use rpma::sim::{Entered, Errno, Visited, now, sleep};
