//! [`Load`]: operations of one connection, or of one set of replicas.

mod commits;
mod replicas;
mod verbs;

use std::time::Duration;

pub(super) use self::commits::Commits;
pub(super) use self::replicas::Copies;
pub(super) use self::verbs::{MOST, Verbs};
use crate::client::Result;

/// Operations that are posted and polled. Slots complete in the order of their posts.
pub(super) trait Load: Send {
    /// Posts the operations of a slot, which complete together. `false`: there is no room yet.
    fn post(&mut self, slot: u32) -> Result<bool>;

    /// Calls `done` for each slot that has completed.
    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result;

    /// Sleeps until a slot may have completed, for at most `limit`.
    fn sleep(&mut self, limit: Duration) -> Result;
}
