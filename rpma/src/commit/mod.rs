//! Commits records: makes data durable in the memory of a peer, and then makes 8 bytes durable that
//! point to it.
//!
//! These 8 bytes are the commit's **pointer**, for example the length of a log. A reader trusts
//! only the data that a durable pointer shows.
//!
//! A [`Method`] decides how writes become durable: by the device's own flush, by a read, or by the
//! processor of the memory's host ([`Method::Server`]). A server's program offers
//! [`Method::Server`] with its [`Limits`]. A [`Writer`] is a connection that commits by one method.
//! A [`Responder`] is the server's half of [`Method::Server`]. [`Replicas`] are several writers
//! that get the same commits. Threads share a writer as a [`SharedWriter`], and a set as
//! [`SharedReplicas`].

mod lookout;
mod replicas;
mod responder;
#[cfg(test)]
mod tests;
mod wire;
#[cfg(all(test, feature = "sim"))]
mod wraps;
mod writer;

pub use self::replicas::{CommitId, Outcome, Record, ReplicaId, Replicas, SharedReplicas};
pub use self::responder::{Responder, Slots, Turn};
#[cfg(any(test, fuzzing))]
pub(crate) use self::wire::check_request;
pub(crate) use self::writer::Messages;
pub use self::writer::{Connecting, Fate, SharedWriter, Ticket, Writer, WriterCfg};
pub use crate::method::{Limits, Method};
