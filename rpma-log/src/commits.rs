//! [`Commits`]: the last commits of a log, each at the place of its number.

use rpma::commit::CommitId;

use crate::{COMMITS, RECENT};

/// The commits of the log's set, which gets no others: so their numbers are in one piece.
pub(crate) struct Commits {
    last: [Option<Posted>; RECENT],
    /// The number of the first one that is open, and of the next one.
    open: u64,
    next: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Posted {
    pub(crate) id: CommitId,
    /// `committed` and `shown` after it.
    pub(crate) end: u64,
    pub(crate) head: u64,
    /// It has records, and those of several appends.
    pub(crate) is_group: bool,
    pub(crate) is_shared: bool,
    /// The task that posted it waits for it.
    pub(crate) is_led: bool,
    /// It is not acknowledged, and can have enough copies.
    pub(crate) is_open: bool,
}

impl Commits {
    pub(crate) fn new() -> Self {
        Self {
            last: [None; RECENT],
            open: 1,
            next: 1,
        }
    }

    fn place(number: u64) -> usize {
        number as usize % RECENT
    }

    pub(crate) fn push(&mut self, posted: Posted) {
        let number = posted.id.number();
        self.last[Self::place(number)] = Some(posted);
        self.next = number + 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.next - self.open >= COMMITS as u64
    }

    /// A commit has enough copies, and with it all earlier ones: each server executes them in their
    /// order. `None`: that was known.
    pub(crate) fn acknowledge(&mut self, id: CommitId) -> Option<Posted> {
        let number = id.number();
        if number < self.open {
            return None;
        }
        self.open = number + 1;
        self.last[Self::place(number)]
    }

    /// The commit can have too few copies. A later one counts its records as well.
    pub(crate) fn forget(&mut self, id: CommitId) {
        if let Some(of) = self.find(id) {
            of.is_open = false;
        }
        let open = self.open().next().map(|of| of.id.number());
        self.open = open.unwrap_or(self.next);
    }

    pub(crate) fn unlead_all(&mut self) {
        let all = self.last.iter_mut().flatten();
        all.for_each(|of| of.is_led = false);
    }

    pub(crate) fn unlead(&mut self, id: CommitId) {
        if let Some(of) = self.find(id) {
            of.is_led = false;
        }
    }

    fn find(&mut self, id: CommitId) -> Option<&mut Posted> {
        let found = self.last[Self::place(id.number())].as_mut();
        found.filter(|of| of.id == id)
    }

    /// Those that are open, in their order.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Posted> {
        let last = (self.open..self.next).filter_map(|n| self.last[Self::place(n)].as_ref());
        last.filter(|of| of.is_open)
    }

    /// All that are known, from the last one on: servers of the set are behind by fewer.
    pub(crate) fn last(&self) -> impl Iterator<Item = &Posted> {
        let first = self.next.saturating_sub(RECENT as u64);
        let last = (first..self.next).rev();
        last.filter_map(|n| self.last[Self::place(n)].as_ref())
    }
}
