//! The operations of a program that its threads post, for reports.
//!
//! `rpma` uses the `wr_id` of a request for a number of its own. So it names the operation before it posts the request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;

/// An operation of a program: its number and its line.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    op_context: u64,
    place: &'static Location<'static>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.place.file(), self.place.line());
        write!(f, "op_context {}, {file}:{line}", self.op_context)
    }
}

thread_local! {
    static CALLERS: RefCell<VecDeque<Caller>> = const { RefCell::new(VecDeque::new()) };
}

/// Names the operations that this thread posts, until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Posting(());

impl Posting {
    /// Names one operation. Its line is the caller's.
    #[track_caller]
    pub fn of(op_context: u64) -> Self {
        let place = Location::caller();
        Self::all_of([Caller { op_context, place }])
    }

    /// Names the operation of each of the next requests.
    pub fn all_of(callers: impl IntoIterator<Item = Caller>) -> Self {
        // A thread that ends may post after its thread-locals are gone.
        let _ = CALLERS.try_with(|own| own.borrow_mut().extend(callers));
        Self(())
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        let _ = CALLERS.try_with(|own| own.borrow_mut().clear());
    }
}

/// Returns the operation that this thread posts.
#[must_use]
pub fn caller() -> Option<Caller> {
    let first = CALLERS.try_with(|own| own.borrow().front().copied());
    first.ok().flatten()
}

/// Takes the operation of the next request. The last one stays: a long flush has several requests.
pub(crate) fn next_caller() -> Option<Caller> {
    let next = CALLERS.try_with(|own| {
        let mut own = own.borrow_mut();
        match own.len() {
            0 | 1 => own.front().copied(),
            _ => own.pop_front(),
        }
    });
    next.ok().flatten()
}
