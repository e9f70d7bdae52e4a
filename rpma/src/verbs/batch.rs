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
use super::wr::{
    Call, Opcode, PostError, RemoteAddress, Request, SendFlags, SendWr, bytes_sge, chain_not_posted,
};
use super::{LocalBuffer, QueuePair, ReadTarget};

bitflags::bitflags! {
    /// The forms that requests need.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Forms: u32 {
        const ANY = 0;
        /// Set for a native operation.
        const STREAM = 1;
        /// Of several local buffers, which stand in units without a request.
        const CHAIN = 2;
    }
}

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

/// How many units a request with so many local buffers takes.
#[inline(always)]
fn units_of(num_sge: usize) -> usize {
    match num_sge {
        0 | 1 => 1,
        several => 1 + several.div_ceil(SGES),
    }
}

/// The error of a request for which no unit is left.
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
        match self.forms.contains(Forms::CHAIN) {
            false => (self.used / UNIT, self.signaled / UNIT),
            true => self.count_between_buffers(),
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
            forms: self.forms,
            requests: PhantomData,
        }
    }

    /// The bytes of the program's that they carry.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether one unit is used, and so there is one request.
    #[inline(always)]
    pub(crate) fn is_one_place(&self) -> bool {
        self.used == UNIT
    }

    /// The only request, with its `op_context`, if it goes by a chain.
    #[inline(always)]
    pub(crate) fn only(&mut self) -> Option<(&mut Request<'a>, u64)> {
        if self.used != UNIT || self.forms != Forms::ANY {
            return None;
        }
        let unit: *mut Request<'a> = self.units.as_mut_ptr().cast();
        // SAFETY: one unit is used, so `push_with` has written a request there. `Request` is a
        // transparent `SendWr`, and its buffer lives for `'a`.
        let request = unsafe { &mut *unit };
        // SAFETY: `push_with` writes it with each request.
        let op_context = unsafe { request.wr.op_context.assume_init() };
        Some((request, op_context))
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

    /// An operation with one local buffer, of some bytes.
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
        self.push_with(wr, local.to_sge(), op_context)?;
        self.bytes += u64::from(local.len());
        Ok(())
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
        let wr = SendWr::new(Opcode::READ, remote, 1, flags);
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
        let wr = SendWr::new(Opcode::WRITE, remote, 1, flags | SendFlags::INLINE);
        self.push_with(wr, bytes_sge(bytes), op_context)?;
        self.bytes += 8;
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
        self.push_with(wr, sge, op_context)?;
        if needed > 1 {
            self.forms |= Forms::CHAIN;
        }
        self.used += (needed as u32 - 1) * UNIT;
        self.bytes += bytes;
        Ok(())
    }

    /// A native flush, in [`QueuePair::flush_slots`] requests; the last one carries `flags`.
    #[cfg(native_flush)]
    #[inline(always)]
    pub(crate) fn push_flush(
        &mut self,
        remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        if len > super::stream::MAX_FLUSH {
            return self.push_long_flush(remote, len, persistent, flags, op_context);
        }
        let wr = SendWr::flush(persistent, remote, flags);
        // At most MAX_FLUSH.
        let length = len as u32;
        let range = sys::ibv_sge {
            length,
            ..Default::default()
        };
        self.push_with(wr, range, op_context)?;
        self.forms |= Forms::STREAM;
        Ok(())
    }

    #[cfg(native_flush)]
    #[cold]
    fn push_long_flush(
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
            self.push_flush(remote, chunk, persistent, flags, op_context)?;
            remote.address = remote.address.wrapping_add(chunk);
        }
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
        self.push_with(wr, bytes_sge(bytes), op_context)?;
        self.forms |= Forms::STREAM;
        self.bytes += 8;
        Ok(())
    }

    #[inline(always)]
    fn push_with(
        &mut self,
        mut wr: SendWr,
        sge: sys::ibv_sge,
        op_context: u64,
    ) -> Result<(), NoRoom> {
        if self.used >= Self::ROOM {
            return Err(NoRoom);
        }
        let first: *mut MaybeUninit<Unit> = self.units.as_mut_ptr();
        // SAFETY: `used` is a multiple of `UNIT` and less than `ROOM`, by the check above. So this
        // is one of `units`.
        let unit = unsafe { first.byte_add(self.used as usize) };
        // SAFETY: the place is one of `units`, and `&mut self` makes this the only reference to it.
        let unit = unsafe { &mut *unit };
        let signaled = wr.send_flags & SendFlags::SIGNALED.bits() != 0;
        wr.sge.write(sge);
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
    forms: Forms,
    requests: PhantomData<&'a mut ()>,
}

impl Written<'_> {
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
    /// Posts requests that any form has. `number` gets the `op_context` of each, in order, and
    /// returns the `wr_id`. [`PostError::Failed`] if some may have been posted and others not.
    #[inline(always)]
    pub(crate) fn post_written(
        &self,
        requests: &mut Written<'_>,
        number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        self.post_chain::<false>(requests.all(), number)
    }

    /// As [`post_written`](Self::post_written), for a mix of requests that need a stream and
    /// requests that need a chain.
    #[inline(always)]
    pub(crate) fn post_written_by_form(
        &self,
        requests: &mut Written<'_>,
        number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let all = requests.all();
        match requests.forms {
            #[cfg(any(native_flush, native_atomic_write))]
            Forms::STREAM => self.post_stream(all, number),
            forms => self.post_runs(all, forms.contains(Forms::STREAM), number),
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
            let (run, streamed) = match streamed {
                true => rest.of_one_form(),
                false => (rest, false),
            };
            let posted = match streamed {
                #[cfg(any(native_flush, native_atomic_write))]
                true => self.post_stream(run, &mut number),
                _ => self.post_chain::<true>(run, &mut number),
            };
            if let Err(error) = posted {
                // Earlier requests cannot be taken back.
                return Err(match run.first == all.first {
                    true => error,
                    false => error.in_the_middle(Call::PostSend),
                });
            }
            rest.first = run.end;
        }
        Ok(())
    }

    /// `GATHERS`: there are requests of several buffers, and so of several units.
    #[inline(always)]
    fn post_chain<const GATHERS: bool>(
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
            // SAFETY: `push_with` writes it with each request.
            let op_context = unsafe { wr.op_context.assume_init() };
            wr.wr_id.write(number(op_context));
            if GATHERS && wr.num_sge > 1 {
                wr.sg_list.write(unit.wrapping_add(1).cast());
                unit = unit.wrapping_add(units_of(wr.num_sge as usize));
            } else {
                wr.sg_list.write(sge);
                unit = unit.wrapping_add(1);
            }
            if unit == end {
                wr.next.write(ptr::null_mut());
                break;
            }
            wr.next.write(unit.cast());
        }
        let first = first.cast();
        // SAFETY: `ibv_post_send` of the queue pair's own context. Only `release`, which needs
        // `&mut self`, destroys the queue pair. The call copies the requests, each of which is
        // complete and points to the next one, and their buffers' addresses, which have been
        // written. Inline data is read now: `Requests` borrows it. For later reads and writes of
        // the device see the head of `post.rs`.
        let ret = unsafe { (self.calls.post_send)(self.as_ptr(), first, &raw mut bad) };
        match (ret, bad.is_null()) {
            (0, true) => Ok(()),
            _ => Err(chain_not_posted(Call::PostSend, ret, first, &bad)),
        }
    }

    /// Between start and complete, so that all of them are posted or no request is.
    #[cfg(any(native_flush, native_atomic_write))]
    #[inline(never)]
    fn post_stream(
        &self,
        Run { first, end }: Run,
        mut number: impl FnMut(u64) -> u64,
    ) -> Result<(), PostError> {
        let stream = super::stream::Stream::start(self.stream()?);
        let mut unit = first;
        while unit != end {
            // SAFETY: a run begins with a request. Those of a stream have one unit each:
            // `of_one_form` leaves the others to a chain. All are written.
            let wr = unsafe { &*unit.cast::<SendWr>() };
            // SAFETY: `push_with` writes it with each request.
            let op_context = unsafe { wr.op_context.assume_init() };
            // SAFETY: `push_with` writes the buffer of each request, and `Requests` borrows the
            // source of an inline or atomic write.
            unsafe { stream.add(wr, number(op_context)) };
            unit = unit.wrapping_add(1);
        }
        stream.complete()
    }
}
