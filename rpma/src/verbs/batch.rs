//! Requests of the send queue that are posted together, with one doorbell.
//!
//! verbs has two forms for that. A chain of work requests (`next` of `struct ibv_send_wr`) has no native
//! flush and no native atomic write. A stream (`ibv_wr_start … ibv_wr_complete`) has everything; but
//! rxe's call for several local buffers, `ibv_wr_set_sge_list`, sends a wrong length (rdma-core before 64), so
//! that such requests go by a chain. Where a batch needs both it is posted in runs, one after the other.
//!
//! Until it is posted a request is only written down, in the form of a chain's.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use rpma_sys as sys;

#[cfg(any(native_flush, native_atomic_write))]
use super::stream::Stream;
use super::wr::{Call, Opcode, PostError, RemoteAddress, SendFlags, SendWr, chain_not_posted};
use super::{LocalBuffer, QueuePair, ReadTarget};

/// Room for `N` requests, or for fewer with several local buffers.
///
/// It borrows what their `INLINE` data and atomic writes are read from when it is posted.
pub(crate) struct Requests<'a, const N: usize> {
    /// How much of the room is used: a request takes as many places as it has local buffers, and one if it
    /// has none. It stands at the first of them; all its buffers are there.
    used: usize,
    requests: u32,
    /// How many there are up to the last one that gives a completion when it succeeds.
    signaled: u32,
    /// Whether there is one that only a stream has.
    streamed: bool,
    /// Whether there is one that only a chain has.
    chained: bool,
    wrs: [MaybeUninit<Listed>; N],
    sges: [MaybeUninit<sys::ibv_sge>; N],
    local: PhantomData<&'a ()>,
}

/// A request that is written down. Its work request is at its beginning.
#[repr(C)]
struct Listed {
    wr: SendWr,
    op_context: u64,
}

/// That a request has no place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom;

impl<'a, const N: usize> Requests<'a, N> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            used: 0,
            requests: 0,
            signaled: 0,
            streamed: false,
            chained: false,
            wrs: [const { MaybeUninit::uninit() }; N],
            sges: [const { MaybeUninit::uninit() }; N],
            local: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.requests
    }

    /// How many there are up to the last one that gives a completion when it succeeds; 0 if none does.
    #[inline]
    pub(crate) fn signaled(&self) -> u32 {
        self.signaled
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.requests = 0;
        self.signaled = 0;
        self.streamed = false;
        self.chained = false;
    }

    /// An operation with one local buffer of some bytes.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: LocalBuffer<'a>,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let wr = SendWr::new(opcode, remote, 1, flags);
        self.push_with(wr, local.to_sge(), op_context)
    }

    /// A read into `target`.
    #[inline(always)]
    pub(crate) fn push_read(
        &mut self,
        remote: RemoteAddress,
        target: ReadTarget,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let wr = SendWr::new(Opcode::Read, remote, 1, flags);
        self.push_with(wr, target.0.to_sge(), op_context)
    }

    /// A write of 8 bytes, which travel inside the request.
    pub(crate) fn push_inline(
        &mut self,
        remote: RemoteAddress,
        bytes: &'a [u8; 8],
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let wr = SendWr::new(Opcode::Write, remote, 1, flags | SendFlags::INLINE);
        self.push_with(wr, sge_of(bytes), op_context)
    }

    /// An operation with any number of local buffers, none of which is empty.
    pub(crate) fn push_parts(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        parts: &[LocalBuffer<'a>],
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let first = self.used;
        let places = parts.len().max(1);
        if places > N - first {
            return Err(NoRoom);
        }
        for (sge, part) in self.sges[first..].iter_mut().zip(parts) {
            sge.write(part.to_sge());
        }
        let wr = SendWr::new(opcode, remote, parts.len(), flags);
        self.wrs[first].write(Listed { wr, op_context });
        self.chained |= places > 1;
        self.note(places, flags);
        Ok(())
    }

    /// A native flush, in as many requests as [`QueuePair::flush_slots`] says; the last one carries `flags`.
    #[cfg(native_flush)]
    pub(crate) fn push_flush(
        &mut self,
        mut remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let count = QueuePair::flush_slots(len);
        if count as usize > N - self.used {
            return Err(NoRoom);
        }
        let mut left = len;
        for _ in 0..count {
            let chunk = left.min(super::stream::MAX_FLUSH);
            left -= chunk;
            let flags = if left == 0 { flags } else { SendFlags::empty() };
            let wr = SendWr::flush(persistent, remote, flags);
            let place = sys::ibv_sge {
                addr: 0,
                // At most MAX_FLUSH.
                length: chunk as u32,
                lkey: 0,
            };
            self.push_with(wr, place, op_context)?;
            remote.address = remote.address.wrapping_add(chunk);
        }
        self.streamed = true;
        Ok(())
    }

    /// A native atomic write.
    #[cfg(native_atomic_write)]
    #[inline(always)]
    pub(crate) fn push_atomic_write(
        &mut self,
        remote: RemoteAddress,
        bytes: &'a [u8; 8],
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let wr = SendWr::atomic_write(remote, flags);
        self.push_with(wr, sge_of(bytes), op_context)?;
        self.streamed = true;
        Ok(())
    }

    #[inline(always)]
    fn push_with(&mut self, wr: SendWr, sge: sys::ibv_sge, op_context: u64) -> Result<(), NoRoom> {
        let place = self.used;
        if place >= N {
            return Err(NoRoom);
        }
        let flags = SendFlags::from_bits_retain(wr.send_flags);
        self.wrs[place].write(Listed { wr, op_context });
        self.sges[place].write(sge);
        self.note(1, flags);
        Ok(())
    }

    #[inline(always)]
    fn note(&mut self, places: usize, flags: SendFlags) {
        self.used += places;
        self.requests += 1;
        if flags.contains(SendFlags::SIGNALED) {
            self.signaled = self.requests;
        }
    }

    #[inline]
    fn list(&mut self) -> List<'_> {
        List {
            wrs: self.wrs.as_mut_ptr().cast(),
            sges: self.sges.as_mut_ptr().cast(),
            used: self.used,
            streamed: self.streamed,
            chained: self.chained,
            requests: PhantomData,
        }
    }
}

#[inline(always)]
fn sge_of(bytes: &[u8; 8]) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: 8,
        lkey: 0,
    }
}

/// [`Requests`] of any length.
struct List<'r> {
    wrs: *mut Listed,
    sges: *mut sys::ibv_sge,
    used: usize,
    streamed: bool,
    chained: bool,
    requests: PhantomData<&'r mut ()>,
}

/// Requests that go the same way, one after the other: the places from `first` on, before `end`.
struct Run {
    first: usize,
    end: usize,
    streamed: bool,
}

impl List<'_> {
    /// The request at a place, and its first local buffer.
    ///
    /// # Safety
    ///
    /// One stands there, and no other reference to it is used afterwards.
    #[inline(always)]
    unsafe fn at<'l>(&mut self, place: usize) -> (&'l mut Listed, *mut sys::ibv_sge) {
        debug_assert!(place < self.used);
        // SAFETY: `Requests` has written it, and is borrowed for as long as the list.
        let listed = unsafe { &mut *self.wrs.wrapping_add(place) };
        (listed, self.sges.wrapping_add(place))
    }

    /// The run that begins at a place where a request stands.
    #[inline(always)]
    fn run(&mut self, first: usize) -> Run {
        let mut run = Run {
            first,
            end: self.used,
            streamed: self.streamed,
        };
        if self.streamed && self.chained {
            self.shorten(&mut run);
        }
        run
    }

    #[cold]
    #[inline(never)]
    fn shorten(&mut self, run: &mut Run) {
        let mut streamed = None;
        let mut place = run.first;
        while place < self.used {
            // SAFETY: a request stands at the first place, and at each that follows its predecessor's.
            let (Listed { wr, .. }, _) = unsafe { self.at(place) };
            let needed = match wr.num_sge {
                2.. => Some(false),
                _ if wr.is_native() => Some(true),
                _ => None,
            };
            if needed.is_some() && streamed.is_some() && needed != streamed {
                break;
            }
            streamed = streamed.or(needed);
            place += wr.places();
        }
        run.end = place;
        run.streamed = streamed == Some(true);
    }
}

impl QueuePair {
    /// Posts them all. `number` is told the index and the `op_context` of each, in order, and gives the
    /// `wr_id`. [`PostError::Failed`] if some may have been posted and others not.
    #[inline(always)]
    pub(crate) fn post_batch<const N: usize>(
        &self,
        requests: &mut Requests<'_, N>,
        number: impl FnMut(u32, u64) -> u64,
    ) -> Result<(), PostError> {
        self.post_list(&mut requests.list(), number)
    }

    #[inline(always)]
    fn post_list(
        &self,
        list: &mut List<'_>,
        mut number: impl FnMut(u32, u64) -> u64,
    ) -> Result<(), PostError> {
        let (mut place, mut index) = (0, 0);
        while place < list.used {
            let run = list.run(place);
            let mut number = |op_context| {
                index += 1;
                number(index - 1, op_context)
            };
            let posted = match run.streamed {
                #[cfg(any(native_flush, native_atomic_write))]
                true => self.post_stream(list, &run, &mut number),
                _ => self.post_chain(list, &run, &mut number),
            };
            if let Err(error) = posted {
                // What went before cannot be taken back.
                return Err(match place {
                    0 => error,
                    _ => error.in_the_middle(Call::PostSend),
                });
            }
            place = run.end;
        }
        Ok(())
    }

    #[inline(always)]
    fn post_chain(
        &self,
        list: &mut List<'_>,
        run: &Run,
        number: &mut impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let mut place = run.first;
        loop {
            // SAFETY: a run begins with a request, and there is one behind each, before its end.
            let (Listed { wr, op_context }, sges) = unsafe { list.at(place) };
            wr.wr_id.write(number(*op_context));
            wr.sg_list.write(sges);
            place += wr.places();
            if place >= run.end {
                wr.next = ptr::null_mut();
                break;
            }
            // It begins with its work request. Not beyond the array: another one stands there.
            wr.next = list.wrs.wrapping_add(place).cast();
        }
        let first = list.wrs.wrapping_add(run.first).cast();
        let mut bad = ptr::null_mut();
        // SAFETY: `ibv_post_send` of the queue pair's own context. The queue pair is alive; the call copies
        // the requests, each of which is complete and points to the next one, and their entries, which
        // have been written. Inline data is read now: `Requests` borrows it. For what the device reads and
        // writes later see the head of `post.rs`.
        let ret = unsafe { (self.calls.post_send)(self.as_ptr(), first, &raw mut bad) };
        match ret {
            0 => Ok(()),
            _ => Err(chain_not_posted(Call::PostSend, ret, first, bad)),
        }
    }

    /// Between start and complete, so that all of them are posted or none.
    #[cfg(any(native_flush, native_atomic_write))]
    #[inline(always)]
    fn post_stream(
        &self,
        list: &mut List<'_>,
        run: &Run,
        number: &mut impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let stream = Stream::start(self.stream()?);
        let mut place = run.first;
        while place < run.end {
            // SAFETY: a run begins with a request, and there is one behind each, before its end.
            let (Listed { wr, op_context }, sge) = unsafe { list.at(place) };
            let sge = match wr.num_sge {
                0 => sys::ibv_sge::default(),
                // SAFETY: the request has one, which was written with it.
                _ => unsafe { *sge },
            };
            // SAFETY: what an inline or atomic write reads is borrowed by `Requests`.
            unsafe { stream.add(wr, sge, number(*op_context)) };
            place += wr.places();
        }
        stream.complete()
    }
}
