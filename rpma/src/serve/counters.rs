//! [`ServerCounters`]: the events of a server, in numbers.

use crate::counters::Counters;

/// The events of a server since it was made: [`Server::counters`](super::Server::counters).
///
/// Each number only grows, and wraps around after 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Clients that were admitted.
    pub admitted: u64,
    /// Clients that were refused: by the server, by the program, or because an admission failed. An
    /// [`Asked`](super::Asked) that the program dropped is not counted.
    pub refused: u64,
    /// Clients that are gone.
    pub gone: u64,
    /// Clients that are gone because an admission of the same key replaced them.
    pub replaced: u64,
    /// Clients that are gone, and that could not be cut off.
    pub not_cut_off: u64,
    /// Errors of the endpoint: requests that it could not take, for example because no file
    /// descriptor was free.
    pub failed: u64,
    /// The counters of all connections together, also of clients that are gone.
    pub conns: Counters,
}
