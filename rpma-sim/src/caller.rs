//! The operations of a program that its threads post, for reports.
//!
//! `rpma` uses the `wr_id` of a request for a number of its own. So it names the operation before
//! it posts the request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

/// An operation of a program: its number and its line.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// `None`: it is that of a library above `rpma`.
    op_context: Option<u64>,
    place: &'static Location<'static>,
}

impl Caller {
    pub(crate) fn line(&self) -> (&'static str, u32) {
        (self.place.file(), self.place.line())
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(op_context) = self.op_context {
            write!(f, "op_context {op_context}, ")?;
        }
        write!(f, "{}:{}", self.place.file(), self.place.line())
    }
}

thread_local! {
    static CALLERS: RefCell<VecDeque<Option<Caller>>> = const { RefCell::new(VecDeque::new()) };
    static PLACE: Cell<Option<Place>> = const { Cell::new(None) };
}

/// Holds a line of a program, for a library above `rpma` that posts operations for the program.
///
/// A report of the fabric names each operation by the line that calls `rpma`. If a library posts
/// in a closure, in a future or later, this is a line of the library. Such a library takes the
/// line of its caller, and enters it before it posts. The operations then have the caller's line
/// in reports, and no `op_context`:
///
/// ```
/// use rpma_sim::Place;
///
/// #[track_caller]
/// fn append(post: impl FnOnce()) {
///     let _at = Place::caller().enter();
///     post();
/// }
/// # append(|| ());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Place(Option<&'static Location<'static>>);

impl Place {
    /// No line: the library posts for itself.
    pub const NONE: Self = Self(None);

    /// Takes the line of the caller. If this thread has already entered a place, because the
    /// caller is a library as well, it takes that place.
    #[must_use]
    #[track_caller]
    pub fn caller() -> Self {
        let entered = PLACE.try_with(Cell::get).ok().flatten();
        entered.unwrap_or(Self(Some(Location::caller())))
    }

    /// Names the operations that this thread posts, until the result is dropped. An outer place
    /// counts again afterwards.
    pub fn enter(self) -> InPlace {
        let outer = PLACE.try_with(|place| place.replace(Some(self)));
        InPlace {
            outer: outer.ok().flatten(),
            of_this_thread: PhantomData,
        }
    }
}

/// Names the operations that this thread posts: [`Place::enter`].
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct InPlace {
    outer: Option<Place>,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for InPlace {
    fn drop(&mut self) {
        // A thread that ends may post after its thread-locals are gone.
        let _ = PLACE.try_with(|place| place.set(self.outer));
    }
}

/// Names the operations that this thread posts, until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Posting(());

impl Posting {
    /// Names one operation. Its line is the caller's, or that of the [`Place`] of this thread.
    #[track_caller]
    pub fn of(op_context: u64) -> Self {
        let is_entered = PLACE.try_with(Cell::get).ok().flatten().is_some();
        let Place(place) = Place::caller();
        Self::all_of([place.map(|place| Caller {
            op_context: (!is_entered).then_some(op_context),
            place,
        })])
    }

    /// Names the operation of each of the next requests.
    pub fn all_of(callers: impl IntoIterator<Item = Option<Caller>>) -> Self {
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
    first.ok().flatten().flatten()
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
    next.ok().flatten().flatten()
}
