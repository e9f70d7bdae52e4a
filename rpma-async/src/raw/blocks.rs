//! Memory in blocks of one size, and references into them.
//!
//! A block is free, or has one holder that may write ([`Exclusive`]), or holders that only read
//! ([`Common`]), which are counted. A device that works on a block is a holder: the operation
//! keeps the program's share until it is complete.
//!
//! Memory that a device may write to has no Rust references elsewhere. Here they are sound:
//!
//! * No peer has a right to a pool's memory ([`Region`]).
//! * The device touches a block only for an operation that names it, and that operation is a
//!   holder. The program has the block again after the last completion, and the pool after the
//!   queue pair is destroyed. A block of a queue pair that cannot be destroyed is leaked.
//! * A block keeps its region registered, and the region owns the memory.

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use rpma::{MrSlice, Result};

use crate::primitives::Mutex;
use crate::region::Region;
use crate::waiters::{Ticket, Waiters};

/// Bytes that blocks are made of.
///
/// # Safety
///
/// [`base`](Self::base) is where [`len`](Self::len) initialised bytes begin, which may be read and
/// written there from any thread as long as `self` is not dropped, also if it is moved. No other
/// code accesses them, except a device for an operation that names them.
#[expect(
    unsafe_code,
    reason = "a declaration: the implementations are in this file"
)]
pub(crate) unsafe trait Memory: Send + Sync {
    fn base(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
}

// SAFETY: `self` owns the memory of `blocks`, which does not move and is initialised. `Region` lends
// it to no other code, and gives a peer no right to it.
#[expect(unsafe_code, reason = "see there")]
unsafe impl Memory for Region {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.blocks().get_ptr()).expect("registered memory has an address")
    }

    fn len(&self) -> usize {
        self.blocks().get_size()
    }
}

/// The longest count of readers of one block. More of them are a leak in the program.
const MOST_READERS: u32 = u32::MAX / 2;

/// A pool's memory and its free blocks.
pub(crate) struct Blocks<M> {
    base: NonNull<u8>,
    /// The bytes from one block to the next.
    stride: usize,
    size: usize,
    /// The holders of each block that is not free.
    holders: Box<[AtomicU32]>,
    free: Mutex<Vec<u32>>,
    waiters: Waiters,
    memory: M,
}

// SAFETY: `base` points into `memory`, whose bytes any thread may read and write.
#[expect(unsafe_code, reason = "see there")]
unsafe impl<M: Memory> Send for Blocks<M> {}
// SAFETY: the free blocks are behind a lock, and the counts are atomic. Only the holders of a block
// reach its bytes, in `memory`, which any thread may read and write.
#[expect(unsafe_code, reason = "see there")]
unsafe impl<M: Memory> Sync for Blocks<M> {}

impl<M: Memory> Blocks<M> {
    /// As many blocks of `size` bytes as there is memory for, one each `stride` bytes.
    pub(crate) fn new(memory: M, size: usize, stride: usize) -> Self {
        let stride = stride.max(size).max(1);
        let count = u32::try_from(memory.len() / stride).unwrap_or(u32::MAX);
        Self {
            base: memory.base(),
            stride,
            size,
            holders: (0..count).map(|_| AtomicU32::new(0)).collect(),
            free: Mutex::new((0..count).rev().collect()),
            waiters: Waiters::default(),
            memory,
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    pub(crate) fn count(&self) -> usize {
        self.holders.len()
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn available(&self) -> usize {
        self.free.lock().len()
    }

    #[inline]
    pub(crate) fn take(self: &Arc<Self>) -> Option<Exclusive<M>> {
        let index = self.free.lock().pop()?;
        self.holders[index as usize].store(1, Ordering::Relaxed);
        Some(Exclusive(Holder {
            blocks: Arc::clone(self),
            index,
        }))
    }

    /// Takes a free block, or leaves a waker for the time that there is one.
    pub(crate) fn take_or_wait(
        self: &Arc<Self>,
        ticket: &mut Ticket,
        waker: &Waker,
    ) -> Option<Exclusive<M>> {
        let taken = self.take().or_else(|| {
            self.waiters.wait(ticket, waker);
            // The lock of the free blocks orders this look and a block that is given back: one of
            // the two sees the other.
            self.take()
        });
        if taken.is_some() {
            self.waiters.leave(ticket);
        }
        taken
    }

    /// The task of this ticket waits no longer. Its wake-up, if it had one, goes to another task.
    pub(crate) fn leave(&self, ticket: &mut Ticket) {
        if self.waiters.leave(ticket) {
            self.waiters.wake_one();
        }
    }

    fn give_back(&self, index: u32) {
        self.free.lock().push(index);
        if self.waiters.any() {
            self.waiters.wake_one();
        }
    }
}

impl Blocks<Region> {
    /// The bytes of a block from `from` to `to`, for an operation.
    #[inline]
    fn region(&self, index: u32, from: usize, to: usize) -> Result<MrSlice<'_>> {
        let begin = index as usize * self.stride;
        self.memory.blocks().slice(begin + from..begin + to)
    }
}

impl<M: fmt::Debug> fmt::Debug for Blocks<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("size", &self.size)
            .field("count", &self.holders.len())
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// One of the holders of a block. Its drop is a holder less.
struct Holder<M: Memory> {
    blocks: Arc<Blocks<M>>,
    /// Below the number of blocks.
    index: u32,
}

impl<M: Memory> Holder<M> {
    #[inline]
    fn holders(&self) -> &AtomicU32 {
        &self.blocks.holders[self.index as usize]
    }

    /// Where the block begins.
    #[inline]
    fn address(&self) -> NonNull<u8> {
        // SAFETY: `new` makes one count for each `stride` bytes of `memory`, and `index` is below
        // their number.
        #[expect(unsafe_code, reason = "see there")]
        unsafe {
            self.blocks
                .base
                .add(self.index as usize * self.blocks.stride)
        }
    }

    /// The bytes of the block from `from` to `to`, as far as it has them.
    #[inline]
    fn bytes(&self, from: usize, to: usize) -> &[u8] {
        let to = to.min(self.blocks.size);
        let from = from.min(to);
        // SAFETY: `from` is at most `size`, by the two lines above, so it is in the block or at its
        // end.
        #[expect(unsafe_code, reason = "see there")]
        let address = unsafe { self.address().add(from) };
        // SAFETY: `to` is at most `size`, so the bytes are inside of the block, which has this
        // holder: an `Exclusive` that is borrowed, or one of several `Common`s. So no thread writes
        // as long as the result lives: a device writes only for an operation that has the
        // `Exclusive`.
        #[expect(unsafe_code, reason = "see there")]
        unsafe {
            slice::from_raw_parts(address.as_ptr(), to - from)
        }
    }
}

impl<M: Memory> Drop for Holder<M> {
    #[inline]
    fn drop(&mut self) {
        // The only holder: no other one can appear meanwhile.
        let is_last = self.holders().load(Ordering::Acquire) == 1
            || self.holders().fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.blocks.give_back(self.index);
        }
    }
}

/// The only holder of a block.
pub(crate) struct Exclusive<M: Memory>(Holder<M>);

impl<M: Memory> Exclusive<M> {
    pub(crate) fn blocks(&self) -> &Arc<Blocks<M>> {
        &self.0.blocks
    }

    /// The first `len` bytes of the block, as far as it has them.
    #[inline]
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        self.0.bytes(0, len)
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.0.blocks.size);
        // SAFETY: `len` is at most `size`, so the bytes are inside of the block. This is its only
        // holder, which is borrowed mutably as long as the result lives.
        #[expect(unsafe_code, reason = "see there")]
        unsafe {
            slice::from_raw_parts_mut(self.0.address().as_ptr(), len)
        }
    }

    /// Gives up the right to write.
    #[inline]
    pub(crate) fn into_common(self) -> Common<M> {
        Common(self.0)
    }
}

impl Exclusive<Region> {
    /// The first `len` bytes of the block, for an operation.
    #[inline]
    pub(crate) fn region(&self, len: usize) -> Result<MrSlice<'_>> {
        self.0.blocks.region(self.0.index, 0, len)
    }

    /// Where the bytes land that a read fetches into the first `len` bytes of the block.
    pub(crate) fn destination(&self, len: usize) -> Result<MrSlice<'_>> {
        match self.0.blocks.memory.landing() {
            None => self.region(len),
            Some(landing) => {
                let begin = self.landed_at();
                landing.slice(begin..begin + len)
            }
        }
    }

    /// Copies the bytes of a read that is complete into the first `len` bytes of the block, if they
    /// have landed elsewhere.
    #[inline]
    pub(crate) fn take_read(&mut self, len: usize) -> Result<()> {
        if self.0.blocks.memory.landing().is_none() {
            return Ok(());
        }
        let blocks = Arc::clone(&self.0.blocks);
        let (begin, landing) = (self.landed_at(), blocks.memory.landing());
        landing.map_or(Ok(()), |landing| {
            landing.read_at(begin, self.bytes_mut(len))
        })
    }

    /// Where the block begins, in the memory of all blocks.
    fn landed_at(&self) -> usize {
        self.0.index as usize * self.0.blocks.stride
    }
}

/// One of the holders of a block that only read.
pub(crate) struct Common<M: Memory>(Holder<M>);

impl<M: Memory> Common<M> {
    #[inline]
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        self.0.bytes(from, to)
    }

    /// Takes the right to write, if there is no other holder.
    pub(crate) fn into_exclusive(self) -> Result<Exclusive<M>, Self> {
        // The reads of the other holders come before.
        match self.0.holders().load(Ordering::Acquire) {
            1 => Ok(Exclusive(self.0)),
            _ => Err(self),
        }
    }
}

impl Common<Region> {
    #[inline]
    pub(crate) fn region(&self, from: usize, to: usize) -> Result<MrSlice<'_>> {
        self.0.blocks.region(self.0.index, from, to)
    }
}

impl<M: Memory> Clone for Common<M> {
    fn clone(&self) -> Self {
        let before = self.0.holders().fetch_add(1, Ordering::Relaxed);
        let holder = Holder {
            blocks: Arc::clone(&self.0.blocks),
            index: self.0.index,
        };
        // Before the count can begin anew. The drop of `holder` takes it back, so it stays there.
        assert!(
            before <= MOST_READERS,
            "a block of a pool has more than {MOST_READERS} readers: the program leaks them"
        );
        Self(holder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    // SAFETY: `Bytes::new` allocates initialised bytes, which only `drop` frees, and gives them to
    // no other code.
    #[expect(unsafe_code, reason = "see there")]
    unsafe impl Memory for Bytes {
        fn base(&self) -> NonNull<u8> {
            self.0
        }

        fn len(&self) -> usize {
            self.1
        }
    }

    /// Bytes that are freed with this.
    struct Bytes(NonNull<u8>, usize);

    // SAFETY: it owns its allocation, which any thread may free.
    #[expect(unsafe_code, reason = "see there")]
    unsafe impl Send for Bytes {}
    // SAFETY: a shared reference gives out the address only.
    #[expect(unsafe_code, reason = "see there")]
    unsafe impl Sync for Bytes {}

    impl Bytes {
        fn new(len: usize) -> Self {
            let bytes = Box::into_raw(vec![0_u8; len].into_boxed_slice());
            Self(NonNull::new(bytes.cast()).expect("an address"), len)
        }
    }

    impl Drop for Bytes {
        fn drop(&mut self) {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.0.as_ptr(), self.1);
            // SAFETY: `new` made the pointer of a box of as many bytes, and `drop` runs once.
            #[expect(unsafe_code, reason = "see there")]
            drop(unsafe { Box::from_raw(bytes) });
        }
    }

    fn blocks(count: usize) -> Arc<Blocks<Bytes>> {
        Arc::new(Blocks::new(Bytes::new(count * 8), 5, 8))
    }

    /// Two holders of one block would write to the same bytes.
    #[test]
    fn no_block_is_lent_twice() {
        let blocks = blocks(3);
        let mut held: Vec<_> = std::iter::from_fn(|| blocks.take()).take(9).collect();
        assert_eq!((held.len(), blocks.available()), (3, 0));
        for (number, block) in held.iter_mut().enumerate() {
            block.bytes_mut(9).fill(number as u8);
        }
        for (number, block) in held.iter().enumerate() {
            assert_eq!(block.bytes(9), [number as u8; 5], "as long as a block");
        }
        let places: HashSet<_> = held.iter().map(|block| block.bytes(1).as_ptr()).collect();
        assert_eq!(places.len(), 3);
        drop(held);
        assert_eq!(blocks.available(), 3);
    }

    /// A reader that became a writer beside other readers would change bytes under them.
    #[test]
    fn only_the_last_reader_may_write_again() {
        let blocks = blocks(1);
        let one = blocks.take().expect("it is free").into_common();
        let other = one.clone();
        let Err(one) = one.into_exclusive() else {
            panic!("there is another reader");
        };
        drop(other);
        assert_eq!(blocks.available(), 0, "one reader is left");
        let Ok(mut exclusive) = one.into_exclusive() else {
            panic!("it is the last one");
        };
        exclusive.bytes_mut(5).copy_from_slice(b"bytes");
        assert_eq!(exclusive.into_common().bytes(1, 3), b"yt");
        assert_eq!(blocks.available(), 1);
    }

    /// The count must not begin anew, however often a program catches the panic: a writer beside
    /// readers would change bytes under them.
    #[test]
    fn too_many_readers_are_refused_each_time() {
        let blocks = blocks(1);
        let one = blocks.take().expect("it is free").into_common();
        // Clones that were forgotten would count like this.
        one.0.holders().store(MOST_READERS + 1, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(catch_unwind(AssertUnwindSafe(|| one.clone())).is_err());
        }
        assert_eq!(one.0.holders().load(Ordering::Relaxed), MOST_READERS + 1);
        assert_eq!(blocks.available(), 0);
    }

    /// Threads take, share and give back at the same time: Miri looks for a data race.
    #[test]
    fn threads_share_blocks() {
        let blocks = blocks(2);
        thread::scope(|scope| {
            for number in 0..3 {
                let blocks = &blocks;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let Some(mut block) = blocks.take() else {
                            thread::yield_now();
                            continue;
                        };
                        block.bytes_mut(5).fill(number);
                        let one = block.into_common();
                        let other = one.clone();
                        let reader =
                            scope.spawn(move || assert_eq!(other.bytes(0, 5), [number; 5]));
                        assert_eq!(one.bytes(0, 5), [number; 5]);
                        drop(one);
                        reader.join().expect("no panic");
                    }
                });
            }
        });
        assert_eq!(blocks.available(), 2);
    }

    #[test]
    fn a_block_outlives_its_pool() {
        let blocks = blocks(1);
        let mut block = blocks.take().expect("it is free");
        drop(blocks);
        block.bytes_mut(5).fill(1);
        assert_eq!(block.bytes(5), [1; 5]);
    }
}
