//! Requests of the send queue that are posted together, with one doorbell.
//!
//! verbs has two forms for that. A chain of work requests (`next` of `struct ibv_send_wr`) has no
//! native flush and no native atomic write. A stream (`ibv_wr_start … ibv_wr_complete`) has
//! everything; but rxe's call for several local buffers, `ibv_wr_set_sge_list`, sends a wrong
//! length (rdma-core before 64), so that such requests go by a chain. Where a batch needs both it
//! is posted in runs, one after the other.
//!
//! Until it is posted a request is only written down, in the form of a chain's.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::ptr;

use rpma_sys as sys;

use super::caller::{Callers, Posting};
#[cfg(any(native_flush, native_atomic_write))]
use super::stream::Stream;
use super::wr::{
    Call, Gather, Opcode, PostError, RemoteAddress, Request, SendFlags, SendWr, chain_not_posted,
};
use super::{LocalBuffer, QueuePair};

bitflags::bitflags! {
    /// The forms that requests need.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Forms: u32 {
        const ANY = 0;
        /// Set for a native operation.
        const STREAM = 1;
        /// Set for several local buffers, which stand in units without a request.
        const CHAIN = 2;
    }
}

/// How requests are posted, where that is known: as a chain, as a stream, or as they need it.
pub(crate) const CHAIN: u8 = 0;
pub(crate) const FLUSH: u8 = 1;
pub(crate) const ATOMIC: u8 = 2;
/// One request of several local buffers.
pub(crate) const GATHER: u8 = 3;
pub(crate) const ANY_FORM: u8 = 4;

/// Room for `N` requests, or for fewer with several local buffers.
///
/// It borrows the sources of their `INLINE` data and atomic writes, which are read when it is
/// posted.
#[repr(C)]
pub(crate) struct Requests<'a, const N: usize> {
    /// How many bytes of the units are used: whole units, at most all of them. In bytes, as
    /// adding a request then calculates no address.
    used: u32,
    /// How many are used up to the last request that gives a completion when it succeeds; 0 without
    /// one.
    signaled: u32,
    forms: Forms,
    /// The bytes of the program's that they carry.
    bytes: u64,
    units: [MaybeUninit<Unit>; N],
    callers: Callers,
    local: PhantomData<&'a ()>,
}

// SAFETY: no field belongs to a thread. The post writes the pointers inside `units` and follows
// them before it returns. They are not used again.
unsafe impl<const N: usize> Send for Requests<'_, N> {}
// SAFETY: only the post writes and follows the pointers inside `units`, and it needs `&mut`.
// `&self` reads numbers.
unsafe impl<const N: usize> Sync for Requests<'_, N> {}

/// The unit in which a batch counts its memory. The first request starts at the first unit, and
/// each other one after the last unit of the one before.
#[repr(C)]
union Unit {
    request: ManuallyDrop<SendWr>,
    /// Local buffers of the last request before, if it has several.
    sges: [sys::ibv_sge; SGES],
}

/// The bytes of a unit.
const UNIT: u32 = size_of::<Unit>() as u32;

/// How many local buffers a unit has room for.
const SGES: usize = size_of::<SendWr>() / size_of::<sys::ibv_sge>();

/// How many units a request with `num_sge` local buffers takes.
#[inline(always)]
fn units_of(num_sge: usize) -> usize {
    match num_sge {
        0 | 1 => 1,
        several => 1 + several.div_ceil(SGES),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom;

impl<'a, const N: usize> Requests<'a, N> {
    /// The bytes of all units. A batch lives on a stack, which has far less than 4 GiB.
    const ROOM: u32 = {
        assert!(
            N < (u32::MAX / UNIT) as usize,
            "a batch of that many operations"
        );
        N as u32 * UNIT
    };

    fn used_units(&self) -> usize {
        (self.used / UNIT) as usize
    }

    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            used: 0,
            signaled: 0,
            forms: Forms::ANY,
            bytes: 0,
            units: [const { MaybeUninit::uninit() }; N],
            callers: Callers::new(),
            local: PhantomData,
        }
    }

    /// How many there are, and how many up to the last one that gives a completion when it
    /// succeeds.
    #[inline]
    pub(crate) fn count(&self) -> (u32, u32) {
        if self.forms.contains(Forms::CHAIN) {
            self.count_between_buffers()
        } else {
            (self.used / UNIT, self.signaled / UNIT)
        }
    }

    #[cold]
    fn count_between_buffers(&self) -> (u32, u32) {
        let (mut requests, mut signaled, mut unit) = (0, 0, 0);
        while unit < self.used_units() {
            requests += 1;
            if unit < (self.signaled / UNIT) as usize {
                signaled = requests;
            }
            // SAFETY: `unit` is below `used_units`, and `push_with` and `push_parts` have written
            // each unit up to there.
            let written = unsafe { self.units[unit].assume_init_ref() };
            // SAFETY: `unit` is the first one, or follows the last unit of a request (`units_of`).
            // So a request stands there.
            unit += units_of(unsafe { &written.request }.num_sge as usize);
        }
        (requests, signaled)
    }

    /// All of them, to be posted.
    #[inline(always)]
    pub(crate) fn written(&mut self) -> Written<'_> {
        Written {
            first: self.units.as_mut_ptr().cast(),
            used: self.used,
            count: self.count(),
            forms: self.forms,
            requests: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The operations, for reports.
    #[inline(always)]
    pub(crate) fn posting(&self) -> Posting {
        self.callers.posting()
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.signaled = 0;
        self.forms = Forms::ANY;
        self.bytes = 0;
        self.callers.clear();
    }

    /// An operation with up to one local buffer.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        request: impl FnOnce() -> Request<'a>,
        form: Forms,
        bytes: u64,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        self.push_with(|| request().wr, op_context)?;
        self.forms |= form;
        self.bytes += bytes;
        Ok(())
    }

    /// An operation with any number of local buffers, without those of 0 bytes.
    pub(crate) fn push_parts(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        parts: impl Iterator<Item = LocalBuffer<'a>> + Clone,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        let mut parts = parts.filter(|part| part.len() > 0);
        let (count, bytes) = parts.clone().fold((0, 0), |(count, bytes), part| {
            (count + 1, bytes + u64::from(part.len()))
        });
        let needed = units_of(count);
        if needed > N - self.used_units() {
            return Err(NoRoom);
        }
        let wr = SendWr::new(opcode, remote, count, flags);
        let first = match count {
            1 => parts.next(),
            _ => None,
        };
        let used = self.used_units();
        let behind = &mut self.units[used + 1..][..needed - 1];
        for unit in behind {
            let mut sges = [sys::ibv_sge::default(); SGES];
            for (sge, part) in sges.iter_mut().zip(parts.by_ref()) {
                *sge = part.to_sge();
            }
            unit.write(Unit { sges });
        }
        let sge = first.map_or_else(Default::default, |part| part.to_sge());
        let mut wr = wr;
        wr.sge.write(sge);
        self.push_with(|| wr, op_context)?;
        if needed > 1 {
            self.forms |= Forms::CHAIN;
        }
        self.used += (needed as u32 - 1) * UNIT;
        self.bytes += bytes;
        Ok(())
    }

    #[cfg(native_flush)]
    #[cold]
    pub(crate) fn push_long_flush(
        &mut self,
        mut remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        if QueuePair::flush_slots(len) as usize > N - self.used_units() {
            return Err(NoRoom);
        }
        let mut left = len;
        while left > 0 {
            let chunk = left.min(super::stream::MAX_FLUSH);
            left -= chunk;
            let flags = if left == 0 { flags } else { SendFlags::empty() };
            let request = Request::flush(remote, chunk, persistent, flags);
            self.push(|| request, Forms::STREAM, 0, op_context)?;
            remote.address = remote.address.wrapping_add(chunk);
        }
        Ok(())
    }

    #[inline(always)]
    fn push_with(&mut self, wr: impl FnOnce() -> SendWr, op_context: u64) -> Result<(), NoRoom> {
        if self.used >= Self::ROOM {
            return Err(NoRoom);
        }
        let first: *mut MaybeUninit<Unit> = self.units.as_mut_ptr();
        // SAFETY: `used` is a multiple of `UNIT` and less than `ROOM`, by the check above. So this
        // is one of `units`.
        let unit = unsafe { first.byte_add(self.used as usize) };
        // SAFETY: the place is one of `units`, and `&mut self` makes this the only reference to it.
        let unit = unsafe { &mut *unit };
        let mut wr = wr();
        let signaled = wr.send_flags & SendFlags::SIGNALED.bits() != 0;
        wr.op_context.write(op_context);
        let request = ManuallyDrop::new(wr);
        unit.write(Unit { request });
        self.used += UNIT;
        self.callers.push();
        if signaled {
            self.signaled = self.used;
        }
        Ok(())
    }
}

/// Requests that are posted, from a batch of any size.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    first: *mut Unit,
    /// How many bytes.
    used: u32,
    count: (u32, u32),
    forms: Forms,
    requests: PhantomData<&'a mut ()>,
}

impl<'a> Written<'a> {
    /// One request, of up to one local buffer.
    #[inline(always)]
    pub(crate) fn one(request: &'a mut Request<'_>, forms: Forms, op_context: u64) -> Self {
        request.wr.op_context.write(op_context);
        Self {
            first: ptr::from_mut(request).cast(),
            used: UNIT,
            count: (1, 0),
            forms,
            requests: PhantomData,
        }
    }

    /// One request, of any number of local buffers.
    #[inline(always)]
    pub(crate) fn gather(gather: &'a mut Gather<'_>, op_context: u64) -> Self {
        gather.settle();
        gather.wr.op_context.write(op_context);
        let count = gather.wr.num_sge as usize;
        Self {
            used: units_of(count) as u32 * UNIT,
            count: (1, 0),
            forms: if count > 1 { Forms::CHAIN } else { Forms::ANY },
            first: ptr::from_mut(gather).cast(),
            requests: PhantomData,
        }
    }

    /// See [`Requests::count`].
    #[inline(always)]
    pub(crate) fn count(&self) -> (u32, u32) {
        match self.count.0 {
            1 => (1, self.signaled_of_one()),
            _ => self.count,
        }
    }

    /// It is read where it is needed: a value that is kept during a post takes a register.
    #[inline(always)]
    fn signaled_of_one(&self) -> u32 {
        // SAFETY: each request is written, and only this thread has them.
        let wr = unsafe { &*self.first.cast::<SendWr>() };
        u32::from(wr.send_flags & SendFlags::SIGNALED.bits() != 0)
    }

    #[inline(always)]
    pub(crate) fn forms(&self) -> Forms {
        self.forms
    }

    #[inline(always)]
    fn all(&self) -> Run {
        Run {
            first: self.first,
            end: self.first.wrapping_byte_add(self.used as usize),
        }
    }
}

/// Requests that go the same way, one after the other: the units from `first` on, before `end`. A
/// request stands in the first unit, and in each that follows its predecessor's last. All are
/// written, and only the thread that posts has them.
#[derive(Clone, Copy)]
struct Run {
    first: *mut Unit,
    end: *mut Unit,
}

impl Run {
    /// As many as go the same way, at least one; and whether that is by a stream.
    fn of_one_form(self) -> (Self, bool) {
        let mut streamed = None;
        let mut unit = self.first;
        while unit != self.end {
            // SAFETY: a run begins with a request, and one follows the last unit of each, before
            // its end. All are written, and only this thread has them.
            let wr = unsafe { &*unit.cast::<SendWr>() };
            let needed = match wr.num_sge {
                2.. => Some(false),
                _ if wr.is_native() => Some(true),
                _ => None,
            };
            if needed.is_some() && streamed.is_some() && needed != streamed {
                break;
            }
            streamed = streamed.or(needed);
            unit = unit.wrapping_add(units_of(wr.num_sge as usize));
        }
        let run = Self { end: unit, ..self };
        (run, streamed == Some(true))
    }
}

impl QueuePair {
    /// Posts requests. `number` gets the `op_context` of each, in order, and returns the `wr_id`.
    /// [`PostError::Failed`] if some may have been posted and others not.
    #[inline(always)]
    pub(crate) fn post_written<const FORM: u8>(
        &self,
        requests: &Written<'_>,
        number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let all = requests.all();
        match (FORM, requests.forms) {
            (CHAIN, _) => self.post_chain::<false, false>(all, number),
            (GATHER, _) => self.post_chain::<true, true>(all, number),
            #[cfg(any(native_flush, native_atomic_write))]
            (FLUSH | ATOMIC, _) => self.post_stream::<FORM>(all, number),
            #[cfg(any(native_flush, native_atomic_write))]
            (_, Forms::STREAM) => self.post_stream::<FORM>(all, number),
            (_, forms) => self.post_runs(all, forms.contains(Forms::STREAM), number),
        }
    }

    /// As chains and streams, as they take turns.
    #[cold]
    #[inline(never)]
    fn post_runs(
        &self,
        all: Run,
        streamed: bool,
        mut number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let mut rest = all;
        while rest.first != rest.end {
            let (run, streamed) = if streamed {
                rest.of_one_form()
            } else {
                (rest, false)
            };
            let posted = match streamed {
                #[cfg(any(native_flush, native_atomic_write))]
                true => self.post_stream::<ANY_FORM>(run, &mut number),
                _ => self.post_chain::<true, false>(run, &mut number),
            };
            if let Err(error) = posted {
                // Earlier requests cannot be taken back.
                return Err(if run.first == all.first {
                    error
                } else {
                    error.in_the_middle(Call::PostSend)
                });
            }
            rest.first = run.end;
        }
        Ok(())
    }

    /// `GATHERS`: there are requests of several buffers, and so of several units. `ONE`: there is one
    /// request.
    #[inline(always)]
    fn post_chain<const GATHERS: bool, const ONE: bool>(
        &self,
        Run { first, end }: Run,
        mut number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let mut unit = first;
        let mut bad = ptr::null_mut();
        loop {
            let sge = unit.wrapping_byte_add(offset_of!(SendWr, sge)).cast();
            // SAFETY: a run begins with a request, and one follows the last unit of each, before
            // its end. All are written, and only this thread has them.
            let wr = unsafe { &mut *unit.cast::<SendWr>() };
            // SAFETY: `push_with`, `one` and `gather` write it with each request.
            let op_context = unsafe { wr.op_context.assume_init() };
            wr.wr_id.write(number(op_context));
            if GATHERS && wr.num_sge > 1 {
                wr.sg_list.write(unit.wrapping_add(1).cast());
                unit = unit.wrapping_add(units_of(wr.num_sge as usize));
            } else {
                wr.sg_list.write(sge);
                unit = unit.wrapping_add(1);
            }
            if ONE || unit == end {
                wr.next.write(ptr::null_mut());
                break;
            }
            wr.next.write(unit.cast());
        }
        let first = first.cast();
        // SAFETY: `ibv_post_send` of the queue pair's own context. Only `release`, which needs
        // `&mut self`, destroys the queue pair. The call copies the requests, each of which is
        // complete and points to the next one, and their buffers' addresses, which have been
        // written. Inline data is read now: each request borrows its source. For later reads and
        // writes of the device see the head of `post.rs`.
        let ret = unsafe { (self.calls.post_send)(self.as_ptr(), first, &raw mut bad) };
        match (ret, bad.is_null()) {
            (0, true) => Ok(()),
            _ => Err(chain_not_posted(Call::PostSend, ret, first, &bad)),
        }
    }

    /// Between start and complete, so that all of them are posted or no request is.
    #[cfg(any(native_flush, native_atomic_write))]
    #[inline(always)]
    fn post_stream<const FORM: u8>(
        &self,
        Run { first, end }: Run,
        mut number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let calls = self.stream()?;
        let mut unit = first;
        let mut stream = None;
        loop {
            // SAFETY: a run begins with a request. Those of a stream have one unit each:
            // `of_one_form` leaves the others to a chain. All are written.
            let wr = unsafe { &*unit.cast::<SendWr>() };
            // SAFETY: `push_with` and `one` write it with each request.
            let op_context = unsafe { wr.op_context.assume_init() };
            // The first one's before the start: each value that is kept during the calls would
            // cost two instructions (a single flush 116 instead of 110).
            calls.request(
                number(op_context),
                SendFlags::from_bits_retain(wr.send_flags),
            );
            let started = stream.get_or_insert_with(|| Stream::start(calls));
            // SAFETY: the buffer of each request is written with it, and `Written` borrows the
            // source of an inline or atomic write.
            unsafe { started.add::<FORM>(wr) };
            unit = unit.wrapping_add(1);
            if FORM == FLUSH || FORM == ATOMIC || unit == end {
                break;
            }
        }
        match stream {
            Some(stream) => stream.complete(),
            None => Ok(()),
        }
    }
}
