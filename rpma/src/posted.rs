//! [`Posted`]: the name of one posted operation, by which a wait finds its completion.
//!
//! The program's own `op_context` cannot be that name, because it need not be unique: after a
//! time-out, an older operation with the same number could end the wait for a newer one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Names one posted operation, so that a program can wait for exactly this one.
///
/// Each method of [`Conn`](crate::Conn) that posts a write, read, flush, send or atomic write
/// returns one. [`Batch::post`](crate::Batch::post) returns the name of its last operation.
/// [`Conn::wait_for`](crate::Conn::wait_for) waits for the completion of exactly that operation.
/// [`Wc::posted`](crate::Wc::posted) returns the name from a completion, for programs that poll.
///
/// No two operations of a process have the same name, even with the same `op_context`, and no name
/// is used again. A program that does not wait may ignore it.
#[derive(Clone, Copy)]
pub struct Posted {
    conn: ConnId,
    /// The request's number, and [`COMPLETES`].
    number: u64,
}

/// Set in `number` if the operation completes also when it succeeds. A number has 61 bits.
const COMPLETES: u64 = 1 << 63;

impl Posted {
    #[inline(always)]
    pub(crate) fn new(conn: ConnId, number: u64, completes: bool) -> Self {
        Self {
            conn,
            number: number | u64::from(completes) << 63,
        }
    }

    #[inline(always)]
    pub(crate) fn conn(self) -> ConnId {
        self.conn
    }

    /// Returns the place of the operation in the connection's send queue. A later post of the same
    /// connection has a larger number. Operations complete in this order, and after one that fails
    /// all later ones fail. An operation of several requests has the number of the last one.
    #[inline(always)]
    #[must_use]
    pub fn number(self) -> u64 {
        self.number & !COMPLETES
    }

    /// Whether it was posted with [`Flags::COMPLETION_ALWAYS`](crate::Flags::COMPLETION_ALWAYS).
    #[inline(always)]
    pub(crate) fn completes(self) -> bool {
        self.number & COMPLETES != 0
    }
}

impl PartialEq for Posted {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // A failed operation has a completion in any case.
        self.conn == other.conn && self.number() == other.number()
    }
}

impl Eq for Posted {}

impl Hash for Posted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.conn.hash(state);
        self.number().hash(state);
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Posted({}:{})", self.conn.0, self.number())
    }
}

/// The number of a connection in this process, from its queues' creation on. It is never used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnId(u64);

/// The first one: its upper half is not 0, which marks the completions that have one.
const FIRST: u64 = 1 << 32;

static NEXT: AtomicU64 = AtomicU64::new(FIRST);

impl ConnId {
    pub(crate) fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The lower and the upper half. The upper one is not 0.
    #[inline(always)]
    pub(crate) fn halves(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }

    /// The connection of these halves; `None` if the upper one is 0.
    #[inline(always)]
    pub(crate) fn of_halves(lower: u32, upper: u32) -> Option<Self> {
        (upper != 0).then_some(Self(u64::from(upper) << 32 | u64::from(lower)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// An operation without a completion on success has one when it fails, and its program finds
    /// it.
    #[test]
    fn a_name_is_the_same_with_and_without_a_completion() {
        let conn = ConnId::new();
        let [quiet, loud] = [false, true].map(|completes| Posted::new(conn, 7, completes));
        assert_eq!(quiet, loud);
        assert!(!quiet.completes() && loud.completes());
        assert_eq!(HashSet::from([quiet, loud]).len(), 1);
        assert_ne!(quiet, Posted::new(conn, 8, false));
        assert_ne!(
            quiet,
            Posted::new(ConnId::new(), 7, false),
            "another connection"
        );
    }

    /// It is copied with every post.
    #[test]
    fn a_name_is_small() {
        assert!(size_of::<Posted>() <= 16);
    }

    #[test]
    fn a_connection_is_found_by_its_halves() {
        for id in [ConnId::new(), ConnId(u64::MAX), ConnId(FIRST)] {
            let (lower, upper) = id.halves();
            assert_eq!(ConnId::of_halves(lower, upper), Some(id));
            assert_eq!(ConnId::of_halves(lower, 0), None);
        }
    }
}
