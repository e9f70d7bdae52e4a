//! Bytes of the program, through blocks of a pool: [`Writer::read_bytes`] and
//! [`Writer::commit_bytes`].
//!
//! They are for the work around commits: a log is read when it is opened, and copied to a replica
//! that was away. Both copy. They hold no block for longer than an operation takes.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rpma::commit::{Method, Ticket};
use rpma::{Error, MrRemote, Queue, RemoteSlice, Result};

use super::reading::Reading;
use super::state::WriterState;
use super::writer::Writer;
use crate::error::invalid;
use crate::place::Place;
use crate::pool::{Frozen, Lease, Pool};
use crate::timeout::timeout;

/// The pause before a post is tried again for which the device had no memory.
const PAUSE: Duration = Duration::from_millis(1);

impl Writer {
    /// Reads the bytes of `range` in the server's region `from` into new memory, through blocks of
    /// `pool`. It posts a read for each block: as many at once as there are blocks and slots.
    /// [`read`](Self::read) has the order of reads and commits.
    ///
    /// The call has no time limit. [`Reactor::timeout`](crate::Reactor::timeout) sets one.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rpma::Error;
    /// use rpma_async::{Pool, Reactor, Writer};
    ///
    /// /// Reads the server's first region.
    /// async fn read(reactor: &Reactor, writer: &Writer, pool: &Pool) -> rpma::Result<Vec<u8>> {
    ///     let log = writer.offer().regions()[0];
    ///     let read = writer.read_bytes(pool, &log, 0..log.get_size());
    ///     let read = reactor.timeout(Duration::from_secs(30), read).await;
    ///     read.unwrap_or(Err(Error::TimedOut("the log was not read")))
    /// }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its reads, as dropping a [`Reading`] does.
    ///
    /// # Errors
    ///
    /// As [`MrRemote::slice`], [`read`](Self::read) and [`Reading`]. [`Error::QueueFull`] only if
    /// reads of other tasks take all slots. [`Error::InvalidArgument`] also for more bytes than the
    /// process can allocate.
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn read_bytes(
        &self,
        pool: &Pool,
        from: &MrRemote,
        range: Range<u64>,
    ) -> impl Future<Output = Result<Vec<u8>>> {
        self.read_range(Place::caller(), pool, from, range)
    }

    async fn read_range(
        &self,
        place: Place,
        pool: &Pool,
        from: &MrRemote,
        range: Range<u64>,
    ) -> Result<Vec<u8>> {
        from.slice(range.clone())?;
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        let refused = bytes.try_reserve_exact(len);
        refused.map_err(|_| invalid(format!("no memory for the {len} bytes of {range:?}")))?;
        let (mut at, mut readings) = (range.start, VecDeque::new());
        loop {
            while at < range.end {
                let end = range.end.min(at + pool.block_size() as u64);
                let part = from.slice(at..end)?;
                let reading = self.read_part(place, pool, part, readings.is_empty());
                let Some(reading) = reading.await? else {
                    break;
                };
                readings.push_back(reading);
                at = end;
            }
            let Some(reading) = readings.pop_front() else {
                return Ok(bytes);
            };
            bytes.extend_from_slice(&reading.await?);
        }
    }

    /// Posts the read of a block. `None`: there is no block or no slot, and the caller waits for
    /// one of its own reads. `is_first`: it has none, so it waits for a block.
    async fn read_part(
        &self,
        place: Place,
        pool: &Pool,
        src: RemoteSlice,
        is_first: bool,
    ) -> Result<Option<Reading>> {
        let mut to = match pool.try_lease() {
            Some(to) => to,
            None if is_first => self.block(pool).await?,
            None => return Ok(None),
        };
        to.truncate(src.len() as usize);
        match self.read_at(place, to, src).map_err(Error::from) {
            Err(Error::QueueFull { .. }) if !is_first => Ok(None),
            read => Ok(Some(read?)),
        }
    }

    /// Writes `bytes` to the server's region `to`, from the offset `at` on. Then it writes the 8
    /// bytes of `pointer` at the pointer's own offset. It returns when the bytes and the pointer
    /// are durable. The bytes become durable before the pointer. The bytes are copied to blocks of
    /// `pool`, and each block is a [`commit`](Self::commit). The last commit includes the pointer.
    ///
    /// The call has no time limit. [`Reactor::timeout`](crate::Reactor::timeout) sets one. The
    /// memory for the pointer must not be among the bytes.
    ///
    /// # Cancel safety
    ///
    /// After the future was dropped, no further block is posted. Blocks that were posted go on.
    ///
    /// # Errors
    ///
    /// As [`MrRemote::slice`], [`commit`](Self::commit), [`room`](Self::room) and
    /// [`durable`](Self::durable), except [`Error::QueueFull`]. [`Error::InvalidArgument`] also if
    /// there are no bytes. Ranges outside of the region are refused before anything is posted.
    /// After another error a part of the bytes may be in the region, or may land there later.
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn commit_bytes(
        &self,
        pool: &Pool,
        (to, at): (&MrRemote, u64),
        bytes: &[u8],
        pointer: Option<(u64, [u8; 8])>,
    ) -> impl Future<Output = Result<()>> {
        self.commit_pieces(Place::caller(), pool, (to, at), (bytes, pointer))
    }

    async fn commit_pieces(
        &self,
        place: Place,
        pool: &Pool,
        (to, at): (&MrRemote, u64),
        (bytes, pointer): (&[u8], Option<(u64, [u8; 8])>),
    ) -> Result<()> {
        let end = at.saturating_add(bytes.len() as u64);
        to.slice(at..end)?;
        let pointer = match pointer {
            Some((at, word)) => Some((to.slice(at..at.saturating_add(8))?, word)),
            None => None,
        };
        let mut last = Err(invalid("a commit without a byte"));
        let mut at = at;
        for piece in bytes.chunks(self.piece(pool)) {
            let mut from = self.block(pool).await?;
            from.truncate(piece.len());
            from.copy_from_slice(piece);
            let part = (to.slice(at..at + piece.len() as u64)?, from.freeze());
            at += piece.len() as u64;
            let pointer = pointer.filter(|_| at == end);
            last = Ok(self.commit_part(place, part, pointer).await?);
        }
        self.durable(last?).await
    }

    /// A block, or the end of the connection: on iWARP the blocks of operations that were posted
    /// after the end, before this side knew it, come back with the writer alone.
    async fn block(&self, pool: &Pool) -> Result<Lease> {
        if let Some(block) = pool.try_lease() {
            return Ok(block);
        }
        let (mut leased, mut closed) = (pin!(pool.lease()), pin!(self.closed()));
        poll_fn(|cx| {
            if let Poll::Ready(block) = leased.as_mut().poll(cx) {
                return Poll::Ready(Ok(block));
            }
            let ended = |_event| Err(self.shared.read(WriterState::why_over));
            closed.as_mut().poll(cx).map(|end| end.and_then(ended))
        })
        .await
    }

    /// The most bytes of one commit.
    fn piece(&self, pool: &Pool) -> usize {
        let most = self.offer().limits().map(|limits| limits.bytes() as usize);
        match (self.method(), most) {
            (Method::Server, Some(most)) => most.min(pool.block_size()),
            _ => pool.block_size(),
        }
    }

    async fn commit_part(
        &self,
        place: Place,
        (to, from): (RemoteSlice, Frozen),
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket> {
        loop {
            self.room().await?;
            let posted = self.commit_at(place, [(to, from.clone())], pointer);
            match posted.map_err(Error::from) {
                // Another task was faster.
                Err(Error::QueueFull {
                    queue: Queue::Commits,
                    ..
                }) => {}
                // There is room for a commit, and the device has no memory for it at the moment
                // (`ENOMEM` of the post): no completion follows when it has.
                Err(Error::QueueFull { .. }) => {
                    let reactor = self.shared.reactor();
                    timeout(reactor, PAUSE, pending::<()>()).await;
                }
                posted => return posted,
            }
        }
    }
}
