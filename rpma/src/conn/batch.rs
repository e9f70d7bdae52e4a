//! [`Batch`]: several operations that are posted with one doorbell, all of them or none.
//!
//! Each is checked when it is added, as a single one is, and written down. No lock is held
//! meanwhile. Posting numbers them, under one hold of the send queue's lock.
//!
//! `ibv_wr_start` could be called when the batch is made, and each operation go to the device at
//! once. But a batch that is forgotten would hold the provider's lock for ever.

use std::fmt;

use super::Conn;
use super::check::Boxed;
use super::sink::Sink;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::FlushType;
use crate::mr::{MrSlice, RemoteSlice};
use crate::posted::Posted;
use crate::slots::PostRefusal;
#[cfg(native_flush)]
use crate::verbs::SendFlags;
use crate::verbs::{
    ANY_FORM, CHAIN, Forms, NoRoom, Opcode, Posting, RemoteAddress, Request, Requests, Written,
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
/// It is posted as a chain of work requests with `ibv_post_send`, or between `ibv_wr_start` and
/// `ibv_wr_complete` if it has a native flush or a native atomic write. Gathers in such a batch
/// are still posted with `ibv_post_send`, so it is posted in several parts, each with its own
/// doorbell.
#[must_use = "nothing is sent before `post`"]
// In this order: if a zero came after the requests, the compiler would make zeros of all of them.
#[repr(C)]
pub struct Batch<'a, const N: usize> {
    conn: &'a Conn,
    requests: Requests<'a, N>,
}

impl Conn {
    /// Makes an empty batch with room for `N` operations.
    #[inline]
    pub fn batch<const N: usize>(&self) -> Batch<'_, N> {
        Batch {
            conn: self,
            requests: Requests::new(),
        }
    }
}

impl<'a, const N: usize> Batch<'a, N> {
    /// As [`Conn::read`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::NotSupported`] as that call, and
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
        self.conn
            .read_to(self, (dst, src), flags, op_context)
            .map_err(|error| *error)
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
        self.conn
            .write_to(self, Opcode::WRITE, (dst, src), flags, op_context)
            .map_err(|error| *error)
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
        self.conn.check_immediate()?;
        let opcode = Opcode::write_with_imm(imm);
        self.conn
            .write_to(self, opcode, (dst, src), flags, op_context)
            .map_err(|error| *error)
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
        match self.conn.check_write(&dst, src, flags) {
            Ok(_) => self.push_parts(Opcode::WRITE, dst.address(), src, flags, op_context),
            Err(fault) => Err(*self.conn.wrong(fault)),
        }
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
        self.conn
            .send_to(self, Opcode::SEND, src, flags, op_context)
            .map_err(|error| *error)
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
        self.conn.check_immediate()?;
        self.conn
            .send_to(self, Opcode::send_with_imm(imm), src, flags, op_context)
            .map_err(|error| *error)
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
        match self.conn.check_send(src, flags) {
            Ok(_) => self.push_parts(Opcode::SEND, RemoteAddress::NONE, src, flags, op_context),
            Err(fault) => Err(*self.conn.wrong(fault)),
        }
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
        self.conn
            .atomic_write_to(self, (dst, src), flags, op_context)
            .map_err(|error| *error)
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
        self.conn
            .flush_to(self, dst, flush_type, flags, op_context)
            .map_err(|error| *error)
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
        if count == 0 {
            return Err(empty());
        }
        let _posting = self.requests.posting();
        let bytes = self.requests.bytes();
        let posted = self.conn.post_batch(self.requests.written(), bytes);
        match posted {
            Ok(number) => {
                let posted = self.conn.queues.slots.name(number, signaled == count);
                // Last: the compiler leaves it out where the batch ends here.
                self.clear();
                Ok(posted)
            }
            Err(refusal) => self.conn.batch_refused(refusal, name, count),
        }
    }

    #[inline(always)]
    fn added(pushed: Result<(), NoRoom>) -> Result<()> {
        match pushed {
            Ok(()) => Ok(()),
            Err(NoRoom) => Err(no_room(N)),
        }
    }
}

impl<'a, const N: usize> Batch<'a, N> {
    fn push_parts(
        &mut self,
        opcode: Opcode,
        remote: RemoteAddress,
        parts: &[MrSlice<'a>],
        flags: Flags,
        op_context: u64,
    ) -> Result<()> {
        let flags = self.conn.short.flags(flags);
        let parts = parts.iter().map(MrSlice::buffer);
        let requests = &mut self.requests;
        Self::added(requests.push_parts(opcode, remote, parts, flags, op_context))
    }
}

impl<'a, const N: usize> Sink<'a> for &mut Batch<'a, N> {
    type Added = ();

    #[inline(always)]
    fn add(
        self,
        request: impl FnOnce() -> Request<'a>,
        (form, _flushes): (Forms, bool),
        bytes: u64,
        op_context: u64,
    ) -> Boxed<()> {
        Batch::<N>::added(self.requests.push(request, form, bytes, op_context))
            .map_err(Box::new)?;
        Ok(())
    }

    #[cfg(native_flush)]
    #[cold]
    #[inline(never)]
    fn add_long_flush(
        self,
        (remote, len): (RemoteAddress, u64),
        persistent: bool,
        flags: SendFlags,
        op_context: u64,
    ) -> Boxed<()> {
        let requests = &mut self.requests;
        Batch::<N>::added(requests.push_long_flush(remote, len, persistent, flags, op_context))
            .map_err(Box::new)
    }
}

impl Conn {
    /// Not inlined, so that it exists once.
    #[inline(never)]
    pub(super) fn post_batch(&self, requests: Written<'_>, bytes: u64) -> Result<u64, PostRefusal> {
        match requests.forms() {
            Forms::ANY => self.post_all::<CHAIN>(requests, bytes),
            _ => self.post_all::<ANY_FORM>(requests, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn batch_refused(&self, refusal: PostRefusal, name: &str, count: u32) -> Result<Posted> {
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
