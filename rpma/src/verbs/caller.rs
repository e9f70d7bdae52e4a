//! The operations that the program posts, for reports of the simulated fabric.
//!
//! Only a build with the feature `sim` and with debug assertions has them.
//! `cargo xtask bench cost` counts the instructions of a simulated build without debug assertions,
//! which are those of a build for devices.

#[cfg(all(feature = "sim", debug_assertions))]
pub(crate) use self::of_the_fabric::Callers;
#[cfg(not(all(feature = "sim", debug_assertions)))]
pub(crate) use self::unnamed::{Callers, Place, Posting};
#[cfg(all(feature = "sim", debug_assertions))]
pub(crate) use rpma_sys::sim::{Place, Posting};

#[cfg(all(feature = "sim", debug_assertions))]
mod of_the_fabric {
    use rpma_sys::sim::{Caller, Posting, caller};

    /// The operations of a batch's requests.
    pub(crate) struct Callers(Vec<Option<Caller>>);

    impl Callers {
        pub(crate) fn new() -> Self {
            Self(Vec::new())
        }

        /// Adds a request of the operation that this thread posts.
        pub(crate) fn push(&mut self) {
            self.0.push(caller());
        }

        pub(crate) fn clear(&mut self) {
            self.0.clear();
        }

        /// Names the operations while the requests are posted.
        pub(crate) fn posting(&self) -> Posting {
            Posting::all_of(self.0.iter().copied())
        }
    }
}

#[cfg(not(all(feature = "sim", debug_assertions)))]
mod unnamed {
    pub(crate) struct Posting;

    impl Posting {
        #[inline(always)]
        pub(crate) fn of(_op_context: u64) -> Self {
            Self
        }
    }

    /// The program's line, for posts that come later.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Place;

    impl Place {
        pub(crate) const NONE: Self = Self;

        #[inline(always)]
        pub(crate) fn caller() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn enter(self) -> Self {
            self
        }
    }

    pub(crate) struct Callers;

    impl Callers {
        #[inline(always)]
        pub(crate) fn new() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn push(&mut self) {}

        #[inline(always)]
        pub(crate) fn clear(&mut self) {}

        #[inline(always)]
        pub(crate) fn posting(&self) -> Posting {
            Posting
        }
    }
}
