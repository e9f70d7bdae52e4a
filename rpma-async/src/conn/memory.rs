//! The memory of operations: [`Memory`].

use crate::pool::{Frozen, Lease};

/// The memory of a dropped operation, as its slot keeps it.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept, and dropped")]
pub(crate) enum Held {
    Lease(Lease),
    Frozen(Frozen),
    Many(Box<[Option<Frozen>]>),
}

mod sealed {
    pub trait Memory {
        #[doc(hidden)]
        fn into_held(self) -> Option<super::HeldMemory>;

        /// The operation has succeeded.
        #[doc(hidden)]
        #[inline]
        fn succeeded(self) -> Self
        where
            Self: Sized,
        {
            self
        }
    }
}

/// [`Held`], where a name must be public.
#[derive(Debug)]
pub struct HeldMemory(Held);

/// The memory that an [`Op`](crate::Op) keeps until it is complete: a [`Lease`], a [`Frozen`], the
/// [`Sources`](crate::Sources) of a batch, or none.
pub trait Memory: sealed::Memory + Send + Unpin + 'static {}

/// The memory, for a slot.
pub(super) fn into_held(memory: impl Memory) -> Option<Held> {
    memory.into_held().map(|held| held.0)
}

#[inline]
pub(super) fn succeeded<B: Memory>(memory: B) -> B {
    memory.succeeded()
}

impl sealed::Memory for () {
    fn into_held(self) -> Option<HeldMemory> {
        None
    }
}

impl Memory for () {}

impl sealed::Memory for Lease {
    fn into_held(self) -> Option<HeldMemory> {
        Some(HeldMemory(Held::Lease(self)))
    }

    #[inline]
    fn succeeded(self) -> Self {
        // Only a read has a lease.
        self.with_read()
    }
}

impl Memory for Lease {}

impl sealed::Memory for Frozen {
    fn into_held(self) -> Option<HeldMemory> {
        Some(HeldMemory(Held::Frozen(self)))
    }
}

impl Memory for Frozen {}

/// The sources of a batch or a commit, in the order in which they were added.
#[derive(Debug)]
pub struct Sources<const N: usize>(pub(crate) [Option<Frozen>; N]);

impl<const N: usize> IntoIterator for Sources<N> {
    type Item = Frozen;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Frozen>, N>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

impl<const N: usize> sealed::Memory for Sources<N> {
    fn into_held(self) -> Option<HeldMemory> {
        Some(HeldMemory(Held::Many(Box::new(self.0))))
    }
}

impl<const N: usize> Memory for Sources<N> {}
