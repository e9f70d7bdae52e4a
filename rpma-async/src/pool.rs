//! [`Pool`]: registered memory in blocks. [`Lease`] and [`Frozen`]: a block, to write and to read.
//!
//! An operation takes a lease or a share by value, and gives it back with its result. So the bytes
//! cannot change while a device works on them, and no program has to count operations for that.
//! A block that is never given back (`mem::forget`) is lost for the pool, and does no other harm.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;
use std::task::{Context, Poll};

use rpma::{Error, MrSlice, Peer, Result};

use crate::raw::{Blocks, Common, Exclusive};
use crate::region::Region;
use crate::waiters::Ticket;

/// Blocks begin at multiples of it: two of them share no cache line.
const ALIGNMENT: usize = 64;

/// Registered memory in blocks of one size, from which operations take their sources and
/// destinations. Clones are handles of the same pool.
///
/// A peer has no right to a pool's memory: no write or read of a peer reaches its bytes. A block is
/// free again when its [`Lease`], or the last of its [`Frozen`]s, is dropped. The memory is
/// deregistered when the last handle and the last block are gone.
///
/// On iWARP the first read registers as much memory again, in which the bytes of reads land. They
/// are copied into the block when the read is complete, because the destination of a read has a
/// right of the peers to write there.
///
/// ```
/// # #[cfg(feature = "sim")]
/// # fn example(peer: &rpma::Peer) -> rpma::Result<()> {
/// use rpma_async::Pool;
///
/// let pool = Pool::new(peer, 4096, 16)?;
/// let mut record = pool.try_lease().expect("a block is free");
/// record[..5].copy_from_slice(b"hello");
/// record.truncate(5);
/// let record = record.freeze();
/// let other = record.clone();
/// assert_eq!(&*other, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    blocks: Arc<Blocks<Region>>,
}

impl Pool {
    /// Registers `count` blocks of `block` bytes each, which are zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there are no blocks, if a block has no bytes, or if all of
    /// them together are more than the device registers as one region. [`Error::Provider`] if the
    /// memory cannot be allocated or registered ([`Mr::reg`](rpma::Mr::reg)).
    pub fn new(peer: &Peer, block: usize, count: usize) -> Result<Self> {
        if block == 0 || count == 0 {
            return Err(Error::InvalidArgument(
                format!(
                    "a pool of {count} blocks of {block} bytes: it needs at least one block of at \
                     least one byte"
                )
                .into(),
            ));
        }
        let stride = block.checked_next_multiple_of(ALIGNMENT);
        let bytes = stride.and_then(|stride| stride.checked_mul(count));
        let too_many = || {
            let text = format!(
                "a pool of {count} blocks of {block} bytes is more memory than there can be"
            );
            Error::InvalidArgument(text.into())
        };
        let (stride, bytes) = stride.zip(bytes).ok_or_else(too_many)?;
        if u32::try_from(count).is_err() || isize::try_from(bytes).is_err() {
            return Err(too_many());
        }
        let region = Region::new(peer, bytes)?;
        Ok(Self {
            blocks: Arc::new(Blocks::new(region, block, stride)),
        })
    }

    /// Takes a block, if one is free. The block has the bytes of its last use.
    #[must_use]
    pub fn try_lease(&self) -> Option<Lease> {
        self.blocks.take().map(Lease::new)
    }

    /// Takes a block, as soon as one is free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing. Tasks that wait are woken in the order of their first
    /// poll.
    pub fn lease(&self) -> impl Future<Output = Lease> + Unpin + use<> {
        let mut leasing = Leasing {
            blocks: Arc::clone(&self.blocks),
            ticket: Ticket::default(),
        };
        poll_fn(move |cx| leasing.poll(cx))
    }

    /// Returns the number of bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.blocks.size()
    }

    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.count()
    }

    /// The number of blocks that are free now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.blocks.available()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("block_size", &self.block_size())
            .field("blocks", &self.blocks())
            .field("available", &self.available())
            .finish()
    }
}

struct Leasing {
    blocks: Arc<Blocks<Region>>,
    ticket: Ticket,
}

impl Leasing {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Lease> {
        let taken = self.blocks.take_or_wait(&mut self.ticket, cx.waker());
        taken.map_or(Poll::Pending, |block| Poll::Ready(Lease::new(block)))
    }
}

impl Drop for Leasing {
    fn drop(&mut self) {
        self.blocks.leave(&mut self.ticket);
    }
}

/// Holds a block of a [`Pool`] alone, with the right to write. It derefs to the block's bytes.
pub struct Lease {
    block: Exclusive<Region>,
    len: usize,
}

impl Lease {
    fn new(block: Exclusive<Region>) -> Self {
        let len = block.blocks().size();
        Self { block, len }
    }

    /// Shortens the lease to its first `len` bytes. A longer `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Has the length of its block again.
    pub(crate) fn restore(&mut self) {
        self.len = self.block.blocks().size();
    }

    /// Gives up the right to write. Operations that only read the bytes take the result.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        Frozen {
            block: self.block.into_common(),
            from: 0,
            to: self.len,
        }
    }

    /// Returns the pool of the block.
    #[must_use]
    pub fn pool(&self) -> Pool {
        Pool {
            blocks: Arc::clone(self.block.blocks()),
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> Result<MrSlice<'_>> {
        self.block.region(self.len)
    }

    /// Makes sure that there is memory where a read lands. After that, an error of the read's call is
    /// one of its post.
    #[inline]
    pub(crate) fn prepare_read(&self) -> Result<()> {
        self.block.blocks().memory().prepare_read()
    }

    /// Where the bytes of a read land.
    #[inline]
    pub(crate) fn destination(&self) -> Result<MrSlice<'_>> {
        self.block.destination(self.len)
    }

    /// The same with the bytes of a read that is complete.
    #[inline]
    pub(crate) fn with_read(mut self) -> Self {
        let taken = self.block.take_read(self.len);
        taken.expect("the read had this length");
        self
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.block.bytes(self.len)
    }
}

impl DerefMut for Lease {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut(self.len)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Holds a block of a [`Pool`], or a part of it, whose bytes do not change. Clones and
/// [`slice`](Self::slice)s share the block: several operations may read it at the same time.
///
/// So a record can be posted to two connections from one block. For copies of one log use
/// [`Replicas`](crate::Replicas), because the second post may be refused.
#[derive(Clone)]
pub struct Frozen {
    block: Common<Region>,
    from: usize,
    to: usize,
}

impl Frozen {
    /// Returns a part of the bytes, which shares the block.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the range is not inside these bytes.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let len = self.to - self.from;
        let begin = match range.start_bound() {
            Bound::Included(&at) => Some(at),
            Bound::Excluded(&at) => at.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1),
            Bound::Excluded(&at) => Some(at),
            Bound::Unbounded => Some(len),
        };
        match begin.zip(end) {
            Some((begin, end)) if begin <= end && end <= len => Ok(Self {
                block: self.block.clone(),
                from: self.from + begin,
                to: self.from + end,
            }),
            _ => {
                let range = (range.start_bound(), range.end_bound());
                let text = format!(
                    "a slice {range:?} of {len} bytes of a pool's block is not inside of them"
                );
                Err(Error::InvalidArgument(text.into()))
            }
        }
    }

    /// Returns the whole block with the right to write, if this is the block's last holder.
    ///
    /// # Errors
    ///
    /// `self`, if there are other clones or slices of the block. An operation may have one of
    /// them.
    pub fn thaw(self) -> Result<Lease, Self> {
        let Self { block, from, to } = self;
        match block.into_exclusive() {
            Ok(block) => Ok(Lease::new(block)),
            Err(block) => Err(Self { block, from, to }),
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> Result<MrSlice<'_>> {
        self.block.region(self.from, self.to)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.block.bytes(self.from, self.to)
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen")
            .field("range", &(self.from..self.to))
            .finish_non_exhaustive()
    }
}
