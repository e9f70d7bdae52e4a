//! [`Batch`]: several operations with one post.

use std::fmt;

use rpma::{Flags, FlushType, RemoteSlice, Result};

use super::{Conn, Op, Sources};
use crate::error::{Refused, invalid};
use crate::place::Place;
use crate::pool::Frozen;

/// Collects up to `N` operations, and posts them together. They have one completion: all of them
/// succeed, or the connection ends.
///
/// A batch contains no reads. A read returns a [`Lease`](crate::Lease), and is posted by itself.
///
/// ```
/// # #[cfg(feature = "sim")]
/// # async fn append(conn: &rpma_async::Conn, log: rpma::MrRemote, record: rpma_async::Frozen) -> rpma::Result<()> {
/// use rpma::FlushType;
///
/// let to = log.slice(64..64 + record.len() as u64)?;
/// let mut batch = conn.batch::<4>();
/// batch.write(to, record)?;
/// batch.flush(to, FlushType::Persistent)?;
/// batch.commit()?.await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is posted before `commit`"]
pub struct Batch<'conn, const N: usize> {
    conn: &'conn Conn,
    items: [Option<(Item, Place)>; N],
    sources: Sources<N>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Write(RemoteSlice),
    WriteWithImm(RemoteSlice, u32),
    Send,
    SendWithImm(u32),
    Flush(RemoteSlice, FlushType),
    AtomicWrite(RemoteSlice, [u8; 8]),
}

impl Conn {
    /// Begins a batch of up to `N` operations. Nothing is posted before [`Batch::commit`].
    pub fn batch<const N: usize>(&self) -> Batch<'_, N> {
        Batch {
            conn: self,
            items: [None; N],
            sources: Sources([const { None }; N]),
            len: 0,
        }
    }
}

impl<const N: usize> Batch<'_, N> {
    /// Adds a write: see [`Conn::write`].
    ///
    /// # Errors
    ///
    /// [`Refused`] with [`rpma::Error::InvalidArgument`] if the batch is full. The lengths are
    /// checked by [`commit`](Self::commit).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn write(&mut self, dst: RemoteSlice, src: Frozen) -> Result<(), Refused<Frozen>> {
        self.add_source(Item::Write(dst), src)
    }

    /// Adds a write with immediate data: see [`Conn::write_with_imm`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn write_with_imm(
        &mut self,
        dst: RemoteSlice,
        src: Frozen,
        imm: u32,
    ) -> Result<(), Refused<Frozen>> {
        self.add_source(Item::WriteWithImm(dst, imm), src)
    }

    /// Adds a message: see [`Conn::send`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send(&mut self, src: Frozen) -> Result<(), Refused<Frozen>> {
        self.add_source(Item::Send, src)
    }

    /// Adds a message with immediate data: see [`Conn::send_with_imm`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn send_with_imm(&mut self, src: Frozen, imm: u32) -> Result<(), Refused<Frozen>> {
        self.add_source(Item::SendWithImm(imm), src)
    }

    /// Adds a flush: see [`Conn::flush`].
    ///
    /// # Errors
    ///
    /// [`rpma::Error::InvalidArgument`] if the batch is full.
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn flush(&mut self, dst: RemoteSlice, flush_type: FlushType) -> Result<()> {
        self.add(Item::Flush(dst, flush_type))
    }

    /// Adds an atomic write: see [`Conn::atomic_write`].
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn atomic_write(&mut self, dst: RemoteSlice, src: [u8; 8]) -> Result<()> {
        self.add(Item::AtomicWrite(dst, src))
    }

    /// The number of operations in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch has no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    fn add(&mut self, item: Item) -> Result<()> {
        let Some(place) = self.items.get_mut(self.len) else {
            return Err(full::<N>());
        };
        *place = Some((item, Place::caller()));
        self.len += 1;
        Ok(())
    }

    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    fn add_source(&mut self, item: Item, src: Frozen) -> Result<(), Refused<Frozen>> {
        let at = self.len;
        match self.add(item) {
            Ok(()) => {
                self.sources.0[at] = Some(src);
                Ok(())
            }
            Err(error) => Err(Refused {
                error,
                memory: Some(src),
            }),
        }
    }

    /// Posts all operations of the batch, or none.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the sources: the errors of [`rpma::Batch`] for the first operation that is
    /// not possible, and [`rpma::Error::InvalidArgument`] if the batch is empty. Otherwise as [all
    /// operations](Conn#operations).
    #[inline]
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn commit(self) -> Result<Op<Sources<N>>, Refused<Sources<N>>> {
        let Self {
            conn,
            items,
            sources,
            len,
        } = self;
        if len == 0 {
            return Err(Refused {
                error: invalid("a batch without operations: add one before Batch::commit"),
                memory: Some(sources),
            });
        }
        conn.post(sources, |conn, sources| {
            let mut batch = conn.batch::<N>();
            let all = items.iter().flatten().zip(&sources.0).enumerate();
            for (at, ((item, place), source)) in all {
                let _at = place.enter();
                let flags = if at + 1 == len {
                    Flags::COMPLETION_ALWAYS
                } else {
                    Flags::COMPLETION_ON_ERROR
                };
                match (item, source) {
                    (&Item::Write(dst), Some(src)) => {
                        batch.write(dst, src.region()?, flags, 0)?;
                    }
                    (&Item::WriteWithImm(dst, imm), Some(src)) => {
                        batch.write_with_imm(dst, src.region()?, flags, imm, 0)?;
                    }
                    (Item::Send, Some(src)) => batch.send(src.region()?, flags, 0)?,
                    (&Item::SendWithImm(imm), Some(src)) => {
                        batch.send_with_imm(src.region()?, flags, imm, 0)?;
                    }
                    (&Item::Flush(dst, flush_type), _) => {
                        batch.flush(dst, flush_type, flags, 0)?;
                    }
                    (Item::AtomicWrite(dst, src), _) => {
                        batch.atomic_write(*dst, src, flags, 0)?;
                    }
                    (_, None) => unreachable!("it was added with its source"),
                }
            }
            batch.post()
        })
    }
}

#[cold]
fn full<const N: usize>() -> rpma::Error {
    invalid(format!(
        "the batch is full: it takes {N} operations (Conn::batch::<N>)"
    ))
}

impl<const N: usize> fmt::Debug for Batch<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
