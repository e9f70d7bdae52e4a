//! Posting a commit: writes, a flush of all of them, an atomic write, and its flush, by one call.
//!
//! It is not written down as a [batch](super::batch) is: the requests are made as they are posted.

use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use rpma_sys as sys;

use super::wr::{
    Call, Opcode, PostError, RemoteAddress, SendFlags, SendWr, bytes_sge, chain_not_posted,
};
use super::{LocalBuffer, QueuePair, ReadTarget};

/// How many writes a commit has at most.
pub(crate) const MAX_COMMIT_PARTS: usize = 16;

/// A write of a commit.
pub(crate) trait CommitPart {
    fn remote(&self) -> RemoteAddress;

    /// Of some bytes.
    fn local(&self) -> LocalBuffer<'_>;
}

/// A commit that one flush covers.
pub(crate) struct Commit<'a, Part> {
    /// [`MAX_COMMIT_PARTS`] at most.
    pub(crate) parts: &'a [Part],
    /// The memory of all parts, and its length: what one flush takes.
    pub(crate) all: (RemoteAddress, u64),
    pub(crate) pointer: Option<(RemoteAddress, &'a [u8; 8])>,
    pub(crate) persistent: bool,
}

impl<Part> Commit<'_, Part> {
    /// How many requests it has. The last one gives a completion.
    #[inline(always)]
    pub(crate) fn requests(&self) -> u32 {
        // A few.
        self.parts.len() as u32 + 1 + 2 * u32::from(self.pointer.is_some())
    }

    /// The flags of the first flush.
    #[inline(always)]
    fn first_flush(&self) -> SendFlags {
        match self.pointer {
            Some(_) => SendFlags::empty(),
            None => SendFlags::SIGNALED,
        }
    }
}

impl QueuePair {
    /// Posts it by flushes that read into `target`, as a chain. The write of the pointer has the
    /// flags `after_flushes`. `number` gives the `wr_id` of each request, in order.
    #[inline(always)]
    pub(crate) fn post_reading_commit<Part: CommitPart>(
        &self,
        commit: &Commit<'_, Part>,
        (target, after_flushes): (ReadTarget, SendFlags),
        number: impl FnMut() -> u64,
    ) -> Result<(), PostError> {
        let mut requests = [const { MaybeUninit::<SendWr>::uninit() }; MAX_COMMIT_PARTS + 3];
        let first: *mut SendWr = requests.as_mut_ptr().cast();
        let mut chain = Chain {
            next: first,
            end: first.wrapping_add(MAX_COMMIT_PARTS + 3),
            number,
        };
        for part in commit.parts {
            let wr = SendWr::new(Opcode::WRITE, part.remote(), 1, SendFlags::empty());
            chain.add(wr, part.local().to_sge());
        }
        let (all, len) = commit.all;
        let flush = SendWr::new(Opcode::READ, all, 1, commit.first_flush());
        chain.add(flush, target.first(len).0.to_sge());
        if let Some((remote, bytes)) = commit.pointer {
            let flags = after_flushes | SendFlags::INLINE;
            chain.add(
                SendWr::new(Opcode::WRITE, remote, 1, flags),
                bytes_sge(bytes),
            );
            let flush = SendWr::new(Opcode::READ, remote, 1, SendFlags::SIGNALED);
            chain.add(flush, target.0.to_sge());
        }
        let last = chain.next.wrapping_sub(1);
        // SAFETY: it was added, as each commit has a flush.
        unsafe { (*last).next.write(ptr::null_mut()) };
        let (first, mut bad) = (first.cast(), ptr::null_mut());
        // SAFETY: as in `post`, with a chain whose requests and entries are alive and written.
        let ret = unsafe { (self.calls.post_send)(self.as_ptr(), first, &raw mut bad) };
        match (ret, bad.is_null()) {
            (0, true) => Ok(()),
            _ => Err(chain_not_posted(Call::PostSend, ret, first, bad)),
        }
    }

    /// Posts it by native flushes and a native atomic write, as a stream.
    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(crate) fn post_native_commit<Part: CommitPart>(
        &self,
        commit: &Commit<'_, Part>,
        mut number: impl FnMut() -> u64,
    ) -> Result<(), PostError> {
        let stream = super::stream::Stream::start(self.stream()?);
        for part in commit.parts {
            stream.write(part.remote(), part.local(), SendFlags::empty(), number());
        }
        let (all, len) = commit.all;
        stream.flush(all, len, commit.persistent, commit.first_flush(), number());
        if let Some((remote, bytes)) = commit.pointer {
            stream.atomic_write(remote, bytes, SendFlags::empty(), number());
            let flags = SendFlags::SIGNALED;
            stream.flush(remote, 8, commit.persistent, flags, number());
        }
        stream.complete()
    }
}

/// Requests that are linked as they are made.
struct Chain<Number> {
    next: *mut SendWr,
    /// After the last place.
    end: *mut SendWr,
    number: Number,
}

impl<Number: FnMut() -> u64> Chain<Number> {
    #[inline(always)]
    fn add(&mut self, mut wr: SendWr, sge: sys::ibv_sge) {
        let at = self.next;
        assert!(at < self.end, "a commit has no more requests");
        self.next = at.wrapping_add(1);
        wr.wr_id.write((self.number)());
        wr.next.write(self.next.cast());
        wr.sg_list
            .write(at.wrapping_byte_add(offset_of!(SendWr, sge)).cast());
        wr.sge.write(sge);
        // SAFETY: a place of the array, by the assertion, which only pointers made of its first one
        // are used for.
        unsafe { at.write(wr) };
    }
}
