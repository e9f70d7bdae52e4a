//! [`Batch`]: several operations that are posted with one doorbell, all of them or none.
//!
//! Each is checked when it is added, as a single one is, and written down. No lock is held
//! meanwhile. Posting numbers them, under one hold of the send queue's lock.

use std::{fmt, slice};

use super::Conn;
use super::fences::behind_a_flush;
use super::short::{AtomicWrites, by_itself};
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::lock::Held;
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
use crate::queues::Queues;
use crate::slots::{Kind, NotTried, Outcome, Refusal, Wanted, tried_in_vain};
use crate::verbs::{
    Forms, LocalBuffer, NoRoom, Opcode, Posting, RemoteAddress, Requests, SendFlags, Written,
};

/// Operations of one connection that are posted together: all of them, or no operation.
///
/// [`Conn::batch`] makes one, with room for `N` operations. Each method adds one, after the checks
/// of [`Conn`]'s method of that name. [`post`](Self::post) posts them, and leaves the batch empty
/// for the next ones. They are executed in the order in which they were added. Their
/// [order](Conn#order) is the same as if they were posted one by one. Only the last one needs a
/// completion.
///
/// An operation that is refused is not added, and the batch stays unchanged. Drop the batch to send
/// no operation.
///
/// It saves doorbells: the device is notified once for all operations. Over soft-RoCE that is a
/// system call; elsewhere a write to the device.
///
/// It lives on the stack, uses 128 bytes for each of the `N` entries, and does not allocate. An
/// operation with 2 to 8 [parts](Self::write_gather) uses two entries, one with 9 to 16 parts uses
/// three. A native flush uses one entry for each 2 GiB. Data with [`Flags::INLINE`] and that of
/// [`atomic_write`](Self::atomic_write) is read when the batch is posted. The batch borrows this
/// data until you use the batch for the last time, even after a post. So declare this data before
/// the batch.
///
/// ```no_run
/// use rpma::{Conn, Error, Flags, FlushType, MrRemote, Mr};
/// use std::time::Duration;
///
/// fn write_records<M>(conn: &Conn, log: &MrRemote, at: u64, records: &Mr<M>, count: u64) -> Result<(), Error> {
///     let mut batch = conn.batch::<17>();
///     for n in 0..count {
///         let (from, to) = ((n * 64) as usize, at + n * 64);
///         let record = records.slice(from..from + 64)?;
///         batch.write(log.slice(to..to + 64)?, record, Flags::COMPLETION_ON_ERROR, n)?;
///     }
///     let written = log.slice(at..at + count * 64)?;
///     batch.flush(written, FlushType::Persistent, Flags::COMPLETION_ALWAYS, count)?;
///     let flushed = batch.post()?;
///     conn.wait_for(flushed, Duration::from_secs(10), |_other| {})?;
///     Ok(())
/// }
/// ```
///
/// # How it is posted
///
/// It is posted as a chain of work requests with `ibv_post_send`. If it has a native flush or a
/// native atomic write, it is posted between `ibv_wr_start` and `ibv_wr_complete` instead. Gathers
/// in such a batch are still posted with `ibv_post_send`: the other call, `ibv_wr_set_sge_list`,
/// sends wrong lengths on soft-RoCE before rdma-core 64. So such a batch is posted in several
/// parts, each with its own doorbell.
#[must_use = "nothing is sent before `post`"]
// In this order: if a zero came after the requests, the compiler would make zeros of all of them.
#[repr(C)]
pub struct Batch<'a, const N: usize> {
    conn: &'a Conn,
    /// It has flushes, which are to be noted if a fence is missing when they are posted.
    flushes: bool,
    requests: Requests<'a, N>,
}

impl Conn {
    /// Makes an empty batch with room for `N` operations.
    #[inline]
    pub fn batch<const N: usize>(&self) -> Batch<'_, N> {
        Batch {
            conn: self,
            requests: Requests::new(),
            flushes: false,
        }
    }
}

impl<'a, const N: usize> Batch<'a, N> {
    /// As [`Conn::read`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::NotSupported`] as there, and
    /// [`Error::InvalidArgument`] if the batch has no room.
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn read(
        &mut self,
        dst: MrSlice<'a>,
        src: RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        if !self.conn.reads_simply::<false>(&dst, &src, flags) {
            return self.read_any(&{ dst }, &{ src }, flags, op_context);
        }
        let (remote, local) = (src.address(), dst.buffer());
        self.push(Opcode::READ, remote, local, flags, op_context)
    }

    /// As [`Conn::write`].
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write(
        &mut self,
        dst: RemoteSlice,
        src: MrSlice<'a>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.write_as(Opcode::WRITE, dst, src, flags, op_context)
    }

    /// As [`Conn::write_with_imm`].
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write_with_imm(
        &mut self,
        dst: RemoteSlice,
        src: MrSlice<'a>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.write_as(Opcode::write_with_imm(imm), dst, src, flags, op_context)
    }

    #[inline(always)]
    fn write_as(
        &mut self,
        opcode: Opcode,
        dst: RemoteSlice,
        src: MrSlice<'a>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        if !self.conn.writes_simply::<false>(&dst, &src, flags) {
            return self.write_any(opcode, &{ dst }, &[src], flags, op_context);
        }
        self.push(opcode, dst.address(), src.buffer(), flags, op_context)
    }

    /// As [`Conn::write_gather`]. It takes more room than one operation.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn write_gather(
        &mut self,
        dst: RemoteSlice,
        src: &[MrSlice<'a>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.write_any(Opcode::WRITE, &dst, src, flags, op_context)
    }

    /// As [`Conn::send`].
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send(&mut self, src: MrSlice<'a>, flags: Flags, op_context: u64) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.send_as(Opcode::SEND, src, flags, op_context)
    }

    /// As [`Conn::send_with_imm`].
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send_with_imm(
        &mut self,
        src: MrSlice<'a>,
        flags: Flags,
        imm: u32,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.send_as(Opcode::send_with_imm(imm), src, flags, op_context)
    }

    #[inline(always)]
    fn send_as(
        &mut self,
        opcode: Opcode,
        src: MrSlice<'a>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        if !self.conn.sends_simply::<false>(&src, flags) {
            return self.send_any(opcode, &[src], flags, op_context);
        }
        self.push(opcode, RemoteAddress::NONE, src.buffer(), flags, op_context)
    }

    /// As [`Conn::send_gather`]. It takes more room than one operation.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn send_gather(
        &mut self,
        src: &[MrSlice<'a>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        self.send_any(Opcode::SEND, src, flags, op_context)
    }

    /// As [`Conn::atomic_write`]: it is executed after the flushes before it, even those of the
    /// same batch.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn atomic_write(
        &mut self,
        dst: RemoteSlice,
        src: &'a [u8; 8],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        let short = &self.conn.short;
        let (remote, verbs) = (dst.address(), short.unsolicited(flags));
        let requests = &mut self.requests;
        Self::added(match self.conn.writes_atomically_simply(&dst, flags) {
            #[cfg(native_atomic_write)]
            AtomicWrites::Native => requests.push_atomic_write(remote, src, verbs, op_context),
            AtomicWrites::Fallback => {
                let verbs = verbs | short.after_flushes;
                requests.push_inline(remote, src, verbs, op_context)
            }
            _ => return self.atomic_write_any(&{ dst }, src, flags, op_context),
        })
    }

    /// As [`Conn::flush`]: it also flushes the earlier writes of the batch.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn flush(
        &mut self,
        dst: RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let _posting = Posting::of(op_context);
        if !self.conn.flushes_simply(&dst, flush_type, flags) {
            return self.flush_any(&{ dst }, flush_type, flags, op_context);
        }
        let flags = self.conn.short.unsolicited(flags);
        self.flushes = true;
        self.push_flush(&dst, flush_type, flags, op_context)
    }

    /// Returns the number of its operations. A native flush counts once for each 2 GiB.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.count().0 as usize
    }

    /// Returns whether it has no operations.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all operations from the batch without posting them.
    #[inline]
    pub fn clear(&mut self) {
        self.requests.clear();
        self.flushes = false;
    }

    /// Posts all operations, empties the batch, and returns the [`Posted`] of the last operation.
    /// If the post fails, no operation is sent, and the batch keeps all of them.
    /// [`Error::Provider`] is the exception (see below). After [`Error::QueueFull`] poll
    /// completions, and post the batch again.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the batch is empty, or has more operations than the send
    ///   queue has slots.
    /// * [`Error::QueueFull`] and [`Error::NoCompletionDue`] if there are not enough free slots
    ///   for all. The last free slot may be kept, as for single operations
    ///   ([`Queue::Send`](crate::Queue::Send)).
    /// * [`Error::NotConnected`] as for single operations.
    /// * [`Error::Provider`] if `ibv_post_send` or `ibv_wr_complete` fails. Then the connection
    ///   takes no more operations, and some of the batch may be executed. The error reports whether
    ///   the device has taken the operations before the one that it refused. If its doorbell
    ///   failed, all may be executed.
    #[inline]
    pub fn post(&mut self) -> Result<Posted> {
        self.post_as("batch")
    }

    /// As [`post`](Self::post), with this name in errors.
    #[inline(always)]
    pub(super) fn post_as(&mut self, name: &str) -> Result<Posted> {
        let (count, signaled) = self.requests.count();
        let wanted = Wanted { count, signaled };
        if count == 0 {
            return Err(empty());
        }
        let _posting = self.requests.posting();
        let bytes = self.requests.bytes();
        let only = match by_itself(self.requests.is_one_place()) {
            true => self.requests.only(),
            false => None,
        };
        let posted = match only {
            Some((request, op_context)) => self.conn.post(request, bytes, op_context),
            None => {
                let requests = self.requests.written();
                self.conn.post_batch(requests, wanted, bytes)
            }
        };
        match posted.result() {
            Ok(number) => {
                let posted = self.conn.queues.slots.name(number, signaled == count);
                if self.flushes {
                    self.conn.fences.flushed(posted);
                }
                // Last: the compiler leaves it out where the batch ends here.
                self.clear();
                Ok(posted)
            }
            Err(refusal) => self.conn.batch_refused(refusal, name, count),
        }
    }

    #[inline(always)]
    fn push(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        local: LocalBuffer<'a>,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let flags = self.conn.short.flags(flags);
        Self::added(self.requests.push(opcode, remote, local, flags, op_context))
    }

    #[inline(always)]
    fn push_flush(
        &mut self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: SendFlags,
        op_context: u64,
    ) -> Result<()> {
        let remote = dst.address();
        Self::added(match self.conn.flush_method {
            FlushMethod::Read(target) => {
                let target = target.first(dst.len());
                self.requests.push_read(remote, target, flags, op_context)
            }
            #[cfg(native_flush)]
            FlushMethod::Native => {
                let persistent = flush_type == FlushType::Persistent;
                let requests = &mut self.requests;
                requests.push_flush(remote, dst.len(), persistent, flags, op_context)
            }
            // Not reached: without the operation in rdma-core no queue pair has it.
            #[cfg(not(native_flush))]
            FlushMethod::Native => {
                let _ = flush_type;
                return Err(Error::not_supported(
                    "rdma-core was built without native flush",
                ));
            }
        })
    }

    #[inline(always)]
    fn added(pushed: Result<(), NoRoom>) -> Result<()> {
        match pushed {
            Ok(()) => Ok(()),
            Err(NoRoom) => Err(no_room(N)),
        }
    }
}

/// The slow path, as in [`super::ops_any`].
impl<'a, const N: usize> Batch<'a, N> {
    #[inline(never)]
    fn read_any(
        &mut self,
        dst: &MrSlice<'a>,
        src: &RemoteSlice,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.conn.check_read(dst, src, flags)?;
        let flags = self.conn.short.flags(flags);
        let (remote, parts) = (src.address(), slice::from_ref(dst));
        self.push_parts(Opcode::READ, remote, parts, flags, op_context)
    }

    #[inline(never)]
    fn write_any(
        &mut self,
        opcode: Opcode,
        dst: &RemoteSlice,
        src: &[MrSlice<'a>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.conn.check_write(dst, src, flags)?;
        let flags = self.conn.short.flags(flags);
        self.push_parts(opcode, dst.address(), src, flags, op_context)
    }

    #[inline(never)]
    fn send_any(
        &mut self,
        opcode: Opcode,
        src: &[MrSlice<'a>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.conn.check_send(src, flags)?;
        let flags = self.conn.short.flags(flags);
        self.push_parts(opcode, RemoteAddress::NONE, src, flags, op_context)
    }

    fn push_parts(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        parts: &[MrSlice<'a>],
        flags: SendFlags,
        op_context: u64,
    ) -> Result<()> {
        let parts = parts.iter().map(MrSlice::buffer);
        let requests = &mut self.requests;
        Self::added(requests.push_parts(opcode, remote, parts, flags, op_context))
    }

    #[inline(never)]
    fn atomic_write_any(
        &mut self,
        dst: &RemoteSlice,
        src: &'a [u8; 8],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let flags = self.conn.check_atomic_write(dst, flags)?;
        let native = self.conn.queues.qp.native_ops().atomic_write;
        let is_plain = self.conn.flush_method.has_plain_atomic_writes(native);
        if self.flushes && !is_plain && self.conn.fences.is_missing() {
            return Err(behind_a_flush());
        }
        let (remote, requests) = (dst.address(), &mut self.requests);
        #[cfg(native_atomic_write)]
        if self.conn.queues.qp.native_ops().atomic_write {
            let pushed = requests.push_atomic_write(remote, src, flags, op_context);
            return Self::added(pushed);
        }
        Self::added(requests.push_inline(remote, src, flags, op_context))
    }

    #[inline(never)]
    fn flush_any(
        &mut self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        self.conn.check_flush(dst, flush_type, flags)?;
        let flags = self.conn.short.unsolicited(flags);
        self.push_flush(dst, flush_type, flags, op_context)?;
        self.flushes = true;
        Ok(())
    }
}

impl Conn {
    /// Posts all operations, or no operation. Not inlined, so that it exists once.
    #[inline(never)]
    fn post_batch(&self, mut requests: Written<'_>, wanted: Wanted, bytes: u64) -> Outcome {
        let Queues { qp, slots, .. } = &self.queues;
        let posted = match requests.forms() {
            Forms::ANY => slots.try_post_sends(wanted, bytes, |mut entries| {
                qp.post_written(&mut requests, move |op_context| {
                    Kind::Send.wr_id(entries.take(op_context))
                })
            }),
            _ => slots.try_post_sends(wanted, bytes, |mut entries| {
                qp.post_written_by_form(&mut requests, move |op_context| {
                    Kind::Send.wr_id(entries.take(op_context))
                })
            }),
        };
        match posted {
            Ok(number) => Outcome::posted(number),
            Err(NotTried::Later(held)) => self.post_batch_later(requests, (wanted, bytes), held),
            Err(NotTried::NotTaken(ring, held, error)) => {
                tried_in_vain::<true>((ring, held), wanted.count, error)
            }
        }
    }

    /// As [`post_batch`](Self::post_batch), for a lock that another thread holds, or if there seem
    /// to be too few entries.
    #[cold]
    #[inline(never)]
    fn post_batch_later(
        &self,
        mut requests: Written<'_>,
        (wanted, bytes): (Wanted, u64),
        held: Option<Held<'_>>,
    ) -> Outcome {
        drop(held);
        let Queues { qp, slots, .. } = &self.queues;
        slots.post_sends(wanted, bytes, |mut entries| {
            qp.post_written_by_form(&mut requests, move |op_context| {
                Kind::Send.wr_id(entries.take(op_context))
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn batch_refused(&self, refusal: Refusal, name: &str, count: u32) -> Result<Posted> {
        Err(self.queues.send_refused(refusal, name, count))
    }
}

#[cold]
#[inline(never)]
fn empty() -> Error {
    Error::invalid("the batch is empty: add operations, and then post it")
}

#[cold]
#[inline(never)]
fn no_room(room: usize) -> Error {
    Error::invalid(format!(
        "the batch has no room for the operation: it was made with Conn::batch for {room} (an operation with several \
         parts takes the room of two or three, and a native flush takes one for each 2 GiB)"
    ))
}

impl<const N: usize> fmt::Debug for Batch<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len())
            .field("room", &N)
            .finish_non_exhaustive()
    }
}
