//! Posting a commit: writes, a flush of all of them, an atomic write, and its flush, by one call.
//!
//! It is not written down as a [batch](super::batch) is: the requests are made as they are posted.

use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use rpma_sys as sys;

use super::wr::{
    Call, Opcode, Placement, PostError, RemoteAddress, SendFlags, SendWr, bytes_sge,
    chain_not_posted,
};
use super::{LocalBuffer, QueuePair, ReadTarget};

pub(crate) const MAX_COMMIT_PARTS: usize = 16;

pub(crate) trait CommitPart {
    fn remote(&self) -> RemoteAddress;

    /// The source, which has as many bytes as are written, and at least one.
    fn local(&self) -> LocalBuffer<'_>;
}

/// The pointer of a commit: where it is, and its bytes. `()` is no pointer.
pub(crate) trait CommitPointer {
    fn place(&self) -> Option<(RemoteAddress, &[u8; 8])>;
}

impl CommitPointer for () {
    #[inline(always)]
    fn place(&self) -> Option<(RemoteAddress, &[u8; 8])> {
        None
    }
}

/// A commit that one flush covers.
pub(crate) struct Commit<'a, Part, Pointer> {
    /// [`MAX_COMMIT_PARTS`] at most.
    pub(crate) parts: &'a [Part],
    /// The memory that one flush takes.
    pub(crate) hull: (RemoteAddress, u64),
    pub(crate) pointer: &'a Pointer,
    #[cfg_attr(
        not(all(native_flush, native_atomic_write)),
        expect(dead_code, reason = "only a native flush has a kind")
    )]
    pub(crate) placement: Placement,
}

impl<Part: CommitPart, Pointer: CommitPointer> Commit<'_, Part, Pointer> {
    /// How many requests it has. The last one gives a completion.
    #[inline(always)]
    pub(crate) fn requests(&self) -> u32 {
        let more = match self.pointer.place() {
            Some(_) => 3,
            None => 1,
        };
        // A few.
        self.parts.len() as u32 + more
    }

    /// The flags of the flush of the parts.
    #[inline(always)]
    fn first_flush(&self) -> SendFlags {
        match self.pointer.place() {
            Some(_) => SendFlags::empty(),
            None => SendFlags::SIGNALED,
        }
    }
}

impl QueuePair {
    /// Posts it by flushes that read into `target`, as a chain. The write of the pointer has the
    /// flags `after_flushes`. `number` gives the `wr_id` of each request, in order.
    #[inline(always)]
    pub(crate) fn post_reading_commit<Part: CommitPart, Pointer: CommitPointer>(
        &self,
        commit: &Commit<'_, Part, Pointer>,
        (target, after_flushes): (ReadTarget, SendFlags),
        number: impl FnMut() -> u64,
    ) -> Result<(), PostError> {
        let mut requests = [const { MaybeUninit::<SendWr>::uninit() }; MAX_COMMIT_PARTS + 3];
        assert!(
            commit.parts.len() <= MAX_COMMIT_PARTS,
            "the caller checked how many there are"
        );
        let first: *mut SendWr = requests.as_mut_ptr().cast();
        let next = first;
        let mut chain = Chain { next, number };
        for part in commit.parts {
            let wr = SendWr::new(Opcode::WRITE, part.remote(), 1, SendFlags::empty());
            // SAFETY: by the assertion there are at most `MAX_COMMIT_PARTS` of these, and
            // `requests` has three places more.
            unsafe { chain.add(wr, part.local().to_sge()) };
        }
        let (all, len) = commit.hull;
        let flush = SendWr::new(Opcode::READ, all, 1, commit.first_flush());
        // SAFETY: the first of the three places in `requests` beyond those of the parts.
        unsafe { chain.add(flush, target.first(len).0.to_sge()) };
        if let Some((remote, bytes)) = commit.pointer.place() {
            let flags = after_flushes | SendFlags::INLINE;
            let write = SendWr::new(Opcode::WRITE, remote, 1, flags);
            // SAFETY: the second of the three places beyond those of the parts.
            unsafe { chain.add(write, bytes_sge(bytes)) };
            let flush = SendWr::new(Opcode::READ, remote, 1, SendFlags::SIGNALED);
            // SAFETY: the third of the three places beyond those of the parts.
            unsafe { chain.add(flush, target.0.to_sge()) };
        }
        let last = chain.next.wrapping_sub(1);
        // SAFETY: `add` has written the place before `next`: each commit has a flush.
        unsafe { (*last).next.write(ptr::null_mut()) };
        let (first, mut bad) = (first.cast(), ptr::null_mut());
        // SAFETY: `ibv_post_send` of the queue pair's own context. Only `release`, which needs
        // `&mut self`, destroys the queue pair. `add` has written each request of the chain into
        // `requests`, which lives until the call has returned. `commit` borrows the inline data.
        // For later reads and writes of the device see the head of `post.rs`.
        let ret = unsafe { (self.calls.post_send)(self.as_ptr(), first, &raw mut bad) };
        match (ret, bad.is_null()) {
            (0, true) => Ok(()),
            _ => Err(chain_not_posted(Call::PostSend, ret, first, &bad)),
        }
    }

    /// Posts it by native flushes and a native atomic write, as a stream. Flags are those of all
    /// requests until they are set again.
    #[cfg(all(native_flush, native_atomic_write))]
    #[inline(always)]
    pub(crate) fn post_native_commit<Part: CommitPart, Pointer: CommitPointer>(
        &self,
        commit: &Commit<'_, Part, Pointer>,
        mut number: impl FnMut() -> u64,
    ) -> Result<(), PostError> {
        let ops = self.native_ops();
        debug_assert!(ops.flush && ops.atomic_write, "the caller looked: {ops:?}");
        let parts = commit.parts;
        // Not only in a debug build: it takes the place of the loop's own look.
        assert!(!parts.is_empty(), "the caller looked");
        let stream = super::stream::Stream::start(self.stream()?);
        stream.set_flags(SendFlags::empty());
        for part in parts {
            stream.set_number(number());
            stream.write(part.remote());
            // Read only now: a value that is kept during a call takes a register.
            stream.set_local(part.local());
        }
        if commit.pointer.place().is_none() {
            stream.set_flags(SendFlags::SIGNALED);
        }
        stream.set_number(number());
        let (all, len) = commit.hull;
        stream.flush_range(all, len, commit.placement);
        if let Some((remote, bytes)) = commit.pointer.place() {
            stream.set_number(number());
            stream.atomic_write(remote, bytes);
        }
        // Looked at again, for the same reason.
        if let Some((remote, _)) = commit.pointer.place() {
            stream.set_number(number());
            stream.set_flags(SendFlags::SIGNALED);
            stream.flush_range(remote, 8, commit.placement);
        }
        stream.complete()
    }
}

/// Requests that are linked as they are made.
struct Chain<Number> {
    next: *mut SendWr,
    number: Number,
}

impl<Number: FnMut() -> u64> Chain<Number> {
    /// # Safety
    ///
    /// There is a place for it, in an array which only pointers made of the first one are used for.
    #[inline(always)]
    unsafe fn add(&mut self, mut wr: SendWr, sge: sys::ibv_sge) {
        let at = self.next;
        self.next = at.wrapping_add(1);
        wr.wr_id.write((self.number)());
        wr.next.write(self.next.cast());
        wr.sg_list
            .write(at.wrapping_byte_add(offset_of!(SendWr, sge)).cast());
        wr.sge.write(sge);
        // SAFETY: by `# Safety` the array has a place for it at `at`.
        unsafe { at.write(wr) };
    }
}
