//! The operations of a connection: each method posts and returns an [`Op`].

use std::sync::Arc;

use rpma::{Error, Flags, FlushType, Posted, RemoteSlice, Result};

use super::memory::{self, Memory};
use super::{Conn, Op, Sources};
use crate::error::{Refused, invalid};
use crate::place::Place;
use crate::pool::{Frozen, Lease};
use crate::slots::MOST_WEIGHT;

/// The bytes that one request of a native flush covers.
const FLUSHED: u64 = 1 << 31;

/// # Operations
///
/// A method posts its operation before it returns, and the [`Op`] that it returns only waits. So
/// `conn.write(to, record)?.await?` asks two questions: was the write posted, and has it succeeded?
///
/// The order of operations, and the meaning of a completion, are those of [`rpma::Conn`]: a
/// completed write is at the peer's device, and a completed flush of it makes it visible or
/// persistent.
///
/// # Errors
///
/// [`Refused`] with the memory, if nothing was posted. Its errors are those of [`rpma::Conn`]'s
/// operation of the same name. A full queue is [`Error::QueueFull`]: [`ready`](Self::ready) waits
/// for room. [`Error::InvalidArgument`] also if so many finished [`Op`]s are kept that no slot is
/// free. After [`Error::Provider`] the device may have the request, and the memory goes back to
/// its pool when no device can use it.
impl Conn {
    /// Writes `src` to `dst` of the peer. The lengths must be equal.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::write`].
    #[inline]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn write(&self, dst: RemoteSlice, src: Frozen) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, 1, |conn, src, number| {
            conn.write(dst, src.region()?, Flags::COMPLETION_ALWAYS, number)
        })
    }

    /// As [`write`](Self::write), and sends the peer `imm` with an empty message.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::write_with_imm`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn write_with_imm(
        &self,
        dst: RemoteSlice,
        src: Frozen,
        imm: u32,
    ) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, 1, |conn, src, number| {
            conn.write_with_imm(dst, src.region()?, Flags::COMPLETION_ALWAYS, imm, number)
        })
    }

    /// Reads `src` of the peer into `dst`. The lengths must be equal: see [`Lease::truncate`].
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::read`]. On iWARP also the errors of
    /// a registration, with the block: the first read registers the memory in which reads land
    /// ([`Pool`](crate::Pool)).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn read(&self, dst: Lease, src: RemoteSlice) -> Result<Op<Lease>, Refused<Lease>> {
        if let Err(error) = dst.prepare_read() {
            return Err(Refused {
                error,
                memory: Some(dst),
            });
        }
        self.post(dst, 1, |conn, dst, number| {
            conn.read(dst.destination()?, src, Flags::COMPLETION_ALWAYS, number)
        })
    }

    /// Sends `src` as a message, which lands in a receive of the peer.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::send`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send(&self, src: Frozen) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, 1, |conn, src, number| {
            conn.send(src.region()?, Flags::COMPLETION_ALWAYS, number)
        })
    }

    /// As [`send`](Self::send), with 4 bytes beside the message.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::send_with_imm`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send_with_imm(&self, src: Frozen, imm: u32) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, 1, |conn, src, number| {
            conn.send_with_imm(src.region()?, Flags::COMPLETION_ALWAYS, imm, number)
        })
    }

    /// Makes earlier writes of this connection to `dst` visible or persistent.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::flush`].
    #[inline]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn flush(&self, dst: RemoteSlice, flush_type: FlushType) -> Result<Op<()>, Refused<()>> {
        let weight = self.flush_weight(dst);
        self.post((), weight, |conn, (), number| {
            conn.flush(dst, flush_type, Flags::COMPLETION_ALWAYS, number)
        })
    }

    /// Writes 8 bytes to `dst` of the peer as one unit, after all flushes that were posted before.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::atomic_write`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn atomic_write(&self, dst: RemoteSlice, src: [u8; 8]) -> Result<Op<()>, Refused<()>> {
        self.post((), 1, |conn, (), number| {
            conn.atomic_write(dst, &src, Flags::COMPLETION_ALWAYS, number)
        })
    }

    /// Writes `parts`, flushes them, writes the 8 bytes of `pointer`, and flushes these. This is
    /// one post with one completion. The completion means that all these bytes are durable (or
    /// visible). See [`rpma::Conn::commit`].
    ///
    /// # Slots
    ///
    /// Wait for this many free slots before a commit ([`ready`](Self::ready)). A commit of several
    /// parts may take fewer, because one flush can serve several parts ([`rpma::Conn::commit`]):
    ///
    /// | parts | without a pointer | with a pointer |
    /// |---|---|---|
    /// | 1 | 2 | 4 |
    /// | 2 | 4 | 6 |
    /// | n | 2 n | 2 n + 2 |
    ///
    /// A flush counts as one slot here. A native flush of more than 2 GiB takes one slot for each
    /// 2 GiB, rounded up.
    ///
    /// # Pointers that only grow
    ///
    /// The order of posts is that of the calls. If several tasks commit to one log, take the number
    /// of a record and post it without an await between. Otherwise another task may post a later
    /// number first, and the pointer goes backwards:
    ///
    /// ```no_run
    /// # use std::sync::Mutex;
    /// # use rpma::{FlushType, MrRemote};
    /// # use rpma_async::{Conn, Frozen};
    /// /// `next` is the number of records. The lock is held from the number to the post.
    /// async fn append(
    ///     (conn, log): (&Conn, &MrRemote),
    ///     next: &Mutex<u64>,
    ///     record: Frozen,
    /// ) -> rpma::Result<()> {
    ///     conn.ready(4).await?;
    ///     let appended = {
    ///         let mut next = next.lock().expect("no panic");
    ///         let at = 64 * (1 + *next);
    ///         let parts = [(log.slice(at..at + 64)?, record)];
    ///         let pointer = (log.slice(..8)?, (*next + 1).to_le_bytes());
    ///         let appended = conn.commit(parts, Some(pointer), FlushType::Persistent)?;
    ///         *next += 1;
    ///         appended
    ///     };
    ///     appended.await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations), and those of [`rpma::Conn::commit`].
    #[inline]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn commit<const N: usize>(
        &self,
        parts: [(RemoteSlice, Frozen); N],
        pointer: Option<(RemoteSlice, [u8; 8])>,
        flush_type: FlushType,
    ) -> Result<Op<Sources<N>>, Refused<Sources<N>>> {
        let mut weight = 0_u64;
        let to = parts.each_ref().map(|(to, _)| {
            weight += 1 + u64::from(self.flush_weight(*to));
            *to
        });
        weight += if pointer.is_some() { 2 } else { 0 };
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let sources = Sources(parts.map(|(_, from)| Some(from)));
        let shared = &self.shared;
        self.post(sources, weight, |conn, sources, number| {
            // All its requests have this number, and the first that fails may not be the last one.
            if N > 1 {
                shared.has_parts(number);
            }
            let empty = [(RemoteSlice::EMPTY, rpma::MrSlice::EMPTY); N];
            let mut regions = empty;
            let from = sources.0.iter().flatten();
            for ((region, to), from) in regions.iter_mut().zip(to).zip(from) {
                *region = (to, from.region()?);
            }
            let posted = conn.commit(&regions, pointer, flush_type, number)?;
            if N > 1 {
                shared.note_last(number, posted);
            }
            Ok(posted)
        })
    }

    /// The slots of the send queue that a flush takes.
    #[inline]
    pub(super) fn flush_weight(&self, dst: RemoteSlice) -> u32 {
        if dst.len() <= FLUSHED {
            1
        } else {
            self.long_flush_weight(dst.len())
        }
    }

    #[cold]
    fn long_flush_weight(&self, len: u64) -> u32 {
        if self.has_native_flush() {
            u32::try_from(len.div_ceil(FLUSHED)).unwrap_or(u32::MAX)
        } else {
            1
        }
    }

    /// Posts an operation with a slot of its own.
    #[inline(always)]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub(super) fn post<B: Memory>(
        &self,
        memory: B,
        weight: u32,
        post: impl FnOnce(&rpma::Conn, &B, u64) -> Result<Posted>,
    ) -> Result<Op<B>, Refused<B>> {
        let shared = &self.shared;
        // A longer flush of a peer's word is refused by the post, and must not wrap the counts.
        let weight = weight.min(MOST_WEIGHT);
        let Some(number) = shared.begin(weight) else {
            return Err(self.no_slot(memory));
        };
        let _at = Place::caller().enter();
        match post(shared.conn(), &memory, number) {
            Ok(_) => Ok(Op::new(Arc::clone(shared), number, memory)),
            Err(error) => Err(self.refused(number, weight, error, memory)),
        }
    }

    #[cold]
    #[inline(never)]
    fn refused<B: Memory>(&self, number: u64, weight: u32, error: Error, memory: B) -> Refused<B> {
        let mut memory = Some(memory);
        let held = || memory.take().and_then(memory::into_held);
        self.shared.refused(number, weight, &error, held);
        Refused { error, memory }
    }

    #[cold]
    #[inline(never)]
    fn no_slot<B>(&self, memory: B) -> Refused<B> {
        let slots = self.shared.depth().saturating_mul(2);
        let text = format!(
            "{slots} operations of this connection are in flight, or complete and their Ops are kept: await \
             or drop them, or ask for more slots (ConnCfg::set_sq_size)"
        );
        Refused {
            error: invalid(text),
            memory: Some(memory),
        }
    }
}
