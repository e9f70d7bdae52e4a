//! The names and the outcomes of commits, and a writer that was not added.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The number of a set in this process. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SetId(u64);

impl SetId {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The first replica of this place.
    pub(super) fn replica(self, index: usize) -> ReplicaId {
        ReplicaId {
            set: self,
            // 64 at most.
            index: index as u8,
            generation: 0,
        }
    }

    pub(super) fn commit(self, number: u64) -> CommitId {
        CommitId { set: self, number }
    }
}

/// A replica of one [`Replicas`](super::Replicas).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId {
    pub(super) set: SetId,
    index: u8,
    /// How many replicas had its place before.
    generation: u32,
}

impl ReplicaId {
    /// The next replica of the same place. `None`: no name is left.
    pub(super) fn next(self) -> Option<Self> {
        let generation = self.generation.checked_add(1)?;
        Some(Self { generation, ..self })
    }

    /// Returns the place of the replica in the set, from 0 on. A later replica may get the same
    /// place, with another id ([`Replicas::add`](super::Replicas::add)).
    #[must_use]
    pub fn index(self) -> usize {
        self.index.into()
    }

    pub(super) fn mask(self) -> u64 {
        1 << self.index
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {}", self.index)
    }
}

/// A commit of one [`Replicas`](super::Replicas).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId {
    pub(super) set: SetId,
    number: u64,
}

impl CommitId {
    /// Its number in the set: 1 is the first commit.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {}", self.number)
    }
}

/// The state of a commit on the replicas of its set, when the outcome was made.
///
/// [`Replicas::durable`], [`Replicas::failed`] and [`Replicas::unknown`] name the replicas. A
/// replica in none of the three still had the commit in flight, had not got it yet, or was added
/// later.
///
/// [`Replicas::durable`]: super::Replicas::durable
/// [`Replicas::failed`]: super::Replicas::failed
/// [`Replicas::unknown`]: super::Replicas::unknown
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub(super) commit: CommitId,
    // Bits of places.
    pub(super) durable: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
}

impl Outcome {
    pub(super) fn new(commit: CommitId) -> Self {
        Self {
            commit,
            durable: 0,
            failed: 0,
            unknown: 0,
        }
    }

    /// Returns the number of replicas on which the commit is durable, or visible if the writers'
    /// flush type is [`Visibility`](crate::FlushType::Visibility).
    #[must_use]
    pub fn copies(&self) -> usize {
        self.durable.count_ones() as usize
    }

    /// Returns an error if the commit has fewer than `k` [`copies`](Self::copies).
    ///
    /// # Errors
    ///
    /// [`Error::TooFewCopies`], with the numbers of replicas that have not answered and that never
    /// get the commit.
    pub fn require(&self, k: usize) -> Result<()> {
        if self.copies() >= k {
            return Ok(());
        }
        Err(Error::TooFewCopies {
            copies: self.durable.count_ones(),
            k: k.try_into().unwrap_or(u32::MAX),
            unknown: self.unknown.count_ones(),
            failed: self.failed.count_ones(),
        })
    }
}
