//! The operations of a connection: each method posts and returns an [`Op`].

use std::sync::Arc;

use rpma::{Error, Flags, FlushType, Posted, RemoteSlice, Result};

use super::memory::{self, Memory};
use super::{Conn, Op, Sources};
use crate::error::Refused;
use crate::place::Place;
use crate::pool::{Frozen, Lease};

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
/// for room. After [`Error::Provider`] the device may have the request, and the memory goes back to
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
        self.post(src, |conn, src| {
            conn.write(dst, src.region()?, Flags::COMPLETION_ALWAYS, 0)
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
        self.post(src, |conn, src| {
            conn.write_with_imm(dst, src.region()?, Flags::COMPLETION_ALWAYS, imm, 0)
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
        self.post(dst, |conn, dst| {
            conn.read(dst.destination()?, src, Flags::COMPLETION_ALWAYS, 0)
        })
    }

    /// Sends `src` as a message, which lands in a receive of the peer.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::send`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send(&self, src: Frozen) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, |conn, src| {
            conn.send(src.region()?, Flags::COMPLETION_ALWAYS, 0)
        })
    }

    /// As [`send`](Self::send), with 4 bytes beside the message.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::send_with_imm`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send_with_imm(&self, src: Frozen, imm: u32) -> Result<Op<Frozen>, Refused<Frozen>> {
        self.post(src, |conn, src| {
            conn.send_with_imm(src.region()?, Flags::COMPLETION_ALWAYS, imm, 0)
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
        self.post((), |conn, ()| {
            conn.flush(dst, flush_type, Flags::COMPLETION_ALWAYS, 0)
        })
    }

    /// Writes 8 bytes to `dst` of the peer as one unit, after all flushes that were posted before.
    ///
    /// # Errors
    ///
    /// As [all operations](Self#operations); see [`rpma::Conn::atomic_write`].
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn atomic_write(&self, dst: RemoteSlice, src: [u8; 8]) -> Result<Op<()>, Refused<()>> {
        self.post((), |conn, ()| {
            conn.atomic_write(dst, &src, Flags::COMPLETION_ALWAYS, 0)
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
        let to = parts.each_ref().map(|(to, _)| *to);
        let sources = Sources(parts.map(|(_, from)| Some(from)));
        self.post(sources, |conn, sources| {
            let empty = [(RemoteSlice::EMPTY, rpma::MrSlice::EMPTY); N];
            let mut regions = empty;
            let from = sources.0.iter().flatten();
            for ((region, to), from) in regions.iter_mut().zip(to).zip(from) {
                *region = (to, from.region()?);
            }
            conn.commit(&regions, pointer, flush_type, 0)
        })
    }

    /// Posts an operation. It is named by its number in the send queue, so no `op_context` is
    /// needed.
    #[inline(always)]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub(super) fn post<B: Memory>(
        &self,
        memory: B,
        post: impl FnOnce(&rpma::Conn, &B) -> Result<Posted>,
    ) -> Result<Op<B>, Refused<B>> {
        let shared = &self.shared;
        let _at = Place::caller().enter();
        match post(shared.conn(), &memory) {
            Ok(posted) => {
                let number = shared.posted(posted);
                Ok(Op::new(Arc::clone(shared), number, memory))
            }
            Err(error) => Err(self.refused(error, memory)),
        }
    }

    #[cold]
    #[inline(never)]
    fn refused<B: Memory>(&self, error: Error, memory: B) -> Refused<B> {
        let memory = if let Error::Provider { .. } = error {
            // The device may have the request.
            self.shared.refused(memory::into_held(memory));
            None
        } else {
            Some(memory)
        };
        Refused { error, memory }
    }
}
