//! [`Writer`]: awaited commits.
//!
//! It owns the writer of rpma, behind one short lock, the sources of its commits, and the
//! destinations of its reads. A task that waits, a commit that finds no room, or the driver takes
//! the lock and looks.
//!
//! Torn down with the last handle: the reactor forgets it; the connection is destroyed; the blocks
//! go back to their pools. If the queue pair cannot be destroyed, they are leaked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rpma::commit::{self, Fate, Method, Ticket};
use rpma::{ConnEvent, Error, Offer, RemoteSlice, Result};

use super::reading::Reading;
use super::state::{Wanted, WriterState};
use crate::conn::Sources;
use crate::error::{Refused, unnumbered};
use crate::place::Place;
use crate::pool::{Frozen, Lease};
use crate::reactor::Reactor;
use crate::timeout::timeout;
use crate::watched::Watched;

/// Commits to one server by one method: the awaited form of [`rpma::commit::Writer`], with the
/// same tickets, fates and errors. Clones are handles of the same writer: any task and any thread
/// may commit, and wait for any ticket.
///
/// A commit is posted at once, and is executed in the order of the calls. So a task can post
/// several commits, to one writer or to many, before it waits for the first.
///
/// The writer owns the sources of its commits until the device has released them, and the
/// destinations of its reads until they are complete. Dropping the last handle ends the
/// connection, which takes a device some milliseconds. The fate of commits in flight is then
/// unknown.
///
/// [`Reconnect`](crate::Reconnect) with [`ToWriter`](rpma::reconnect::ToWriter) connects without
/// blocking, and has an example.
///
/// ```no_run
/// use rpma::RemoteSlice;
/// use rpma_async::{Frozen, Writer};
///
/// /// Appends a record, and shows it by the log's new length.
/// async fn append(
///     writer: &Writer,
///     (to, record): (RemoteSlice, Frozen),
///     (tail, len): (RemoteSlice, u64),
/// ) -> rpma::Result<()> {
///     writer.room().await?;
///     let ticket = writer.commit([(to, record)], Some((tail, len.to_le_bytes())))?;
///     writer.durable(ticket).await
/// }
/// ```
#[derive(Clone)]
pub struct Writer {
    pub(super) shared: Arc<Watched<WriterState>>,
    /// It counts the handles, and the reads that have not returned. The driver has `shared` as
    /// well, while it is at work.
    offer: Arc<Offer>,
}

impl Writer {
    /// Makes an awaited writer. The reactor watches its connection. That connection may belong to
    /// any [`Peer`](rpma::Peer), and must not use a [`CompletionChannel`](rpma::CompletionChannel).
    ///
    /// # Errors
    ///
    /// As [`rpma::Conn::get_next_fd`]; [`Error::Provider`] also if `epoll_ctl` fails. The writer
    /// is dropped then, which ends its connection.
    pub fn new(reactor: &Reactor, writer: commit::Writer) -> Result<Self> {
        let offer = Arc::new(writer.offer().clone());
        let shared = Watched::new(reactor.handle(), WriterState::new(writer));
        shared.read(|state| shared.watch(state.writer().conn().get_next_fd()?))?;
        // Events that came before are taken.
        shared.take_events();
        Ok(Self { shared, offer })
    }

    /// The server's offer, with its regions.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the number of commits that can be posted now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.read(|state| state.writer().room())
    }

    /// Posts a commit before it returns, as [`commit::Writer::commit`], with the blocks of a
    /// [`Pool`](crate::Pool) as sources. [`durable`](Self::durable) waits for the ticket. A
    /// program need not wait: the commit goes on, and its sources go back to their pool.
    ///
    /// # Errors
    ///
    /// [`Refused`] as [`commit::Writer::commit`], with the sources. [`Error::QueueFull`] if there
    /// is no room: [`room`](Self::room) waits for it. After [`Error::Provider`] the fate of this
    /// commit is unknown, and the connection is over. The sources go back to their pool when the
    /// connection is destroyed.
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn commit<const N: usize>(
        &self,
        parts: [(RemoteSlice, Frozen); N],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket, Refused<Sources<N>>> {
        self.commit_at(Place::caller(), parts, pointer)
    }

    /// Commits, for this line of the program.
    pub(super) fn commit_at<const N: usize>(
        &self,
        place: Place,
        parts: [(RemoteSlice, Frozen); N],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket, Refused<Sources<N>>> {
        let _at = place.enter();
        let has_room = |state: &WriterState| state.writer().room() > 0;
        let post = |state: &mut WriterState| state.commit(parts, pointer);
        self.shared.post(has_room, post)
    }

    pub(super) fn method(&self) -> Method {
        self.shared.read(|state| state.writer().cfg().method())
    }

    /// Waits until a commit is durable, or only visible if the writer's
    /// [`FlushType`](rpma::FlushType) is for visibility. All earlier commits are durable then,
    /// too.
    ///
    /// With [`Method::Server`] the wait asks after each 50 ms of silence whether the server's host
    /// is there, so a host that is gone ends the wait after the connection's retries. If only the
    /// server's *program* is stopped (`SIGSTOP`, a deadlock), its device answers, and the wait has
    /// no end: set a limit with [`Reactor::timeout`](crate::Reactor::timeout).
    ///
    /// # Cancel safety
    ///
    /// It only waits: the commit goes on, and can be waited for again.
    ///
    /// # Errors
    ///
    /// As [`commit::Writer::wait`]: the reason for which the connection is over. The commit may be
    /// there, and may become durable later ([`Fate::Unknown`]). [`Error::InvalidArgument`] for a
    /// ticket of another writer, and without a [`Driver`](crate::Driver).
    pub async fn durable(&self, ticket: Ticket) -> Result<()> {
        let judge = move |state: &mut WriterState| {
            let settled = state.writer().settled(ticket)?;
            Some(settled.map_err(unnumbered))
        };
        self.shared.wait(Wanted::Durable(ticket), judge).await
    }

    /// Waits until there is room for another commit. The room is not reserved: of several tasks
    /// that wait, one commits first.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// As [`commit::Writer::wait_room`]: the reason for which the connection is over.
    /// [`Error::InvalidArgument`] without a [`Driver`](crate::Driver).
    pub async fn room(&self) -> Result<()> {
        let judge = |state: &mut WriterState| state.room();
        self.shared.wait(Wanted::Room, judge).await
    }

    /// Reads `src` of the server into `dst`, and posts the read before it returns: as
    /// [`Conn::read`](crate::Conn::read), on the connection of the commits. The lengths must be
    /// equal: see [`Lease::truncate`].
    ///
    /// A read is executed after the commits that were posted before. The order is that of
    /// [`rpma::Conn::read`].
    ///
    /// Reads take slots of the send queue that no commit takes
    /// ([`commit::Writer::slots_beside`]). With the default of
    /// [`ConnCfg::set_sq_size`](rpma::ConnCfg::set_sq_size), up to 10 reads may be in flight. So a
    /// commit never finds the queue full because of reads.
    ///
    /// ```no_run
    /// use rpma_async::{Pool, Writer};
    ///
    /// /// Reads the length of a log in the first 8 bytes, and makes it durable.
    /// async fn recover(writer: &Writer, pool: &Pool) -> rpma::Result<u64> {
    ///     let log = writer.offer().regions()[0].slice(..8)?;
    ///     let mut tail = pool.lease().await;
    ///     tail.truncate(8);
    ///     let tail = writer.read(tail, log)?.await?.freeze();
    ///     // It may be visible only: another loss of power could take it away.
    ///     let written = writer.commit([(log, tail.clone())], None)?;
    ///     writer.durable(written).await?;
    ///     Ok(u64::from_le_bytes(tail[..8].try_into().expect("8 bytes")))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`] as [`rpma::Conn::read`], with the block. [`Error::QueueFull`] if there are too
    /// many reads: await one of them. On iWARP also the errors of a registration, with the block, as
    /// [`Conn::read`](crate::Conn::read). After [`Error::Provider`] without the block the connection
    /// is over. The block goes back to its pool when the connection is destroyed.
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn read(&self, dst: Lease, src: RemoteSlice) -> Result<Reading, Refused<Lease>> {
        self.read_at(Place::caller(), dst, src)
    }

    /// Reads, for this line of the program.
    pub(super) fn read_at(
        &self,
        place: Place,
        dst: Lease,
        src: RemoteSlice,
    ) -> Result<Reading, Refused<Lease>> {
        let _at = place.enter();
        let has_room = |state: &WriterState| state.reads.has_room();
        let read = self.shared.post(has_room, |state| state.read(dst, src));
        let (number, dst) = read?;
        Ok(Reading::new((&self.shared, &self.offer), number, dst))
    }

    /// Whether there is no other handle, and no read whose future has not returned.
    pub(super) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.offer) == 1
    }

    /// Waits until the device has released the blocks of all commits. With the server's method this
    /// release may come after the last answer.
    pub(super) async fn released(&self) -> Result<()> {
        let judge = |state: &mut WriterState| match state.writer().is_over() {
            true => Some(Err(state.why_over())),
            false => state.is_released().then_some(Ok(())),
        };
        self.shared.wait(Wanted::Released, judge).await
    }

    /// Returns rpma's own writer, for [`Replicas::add`](crate::Replicas::add). The reactor no
    /// longer watches it. Its connection and its counts stay as they are.
    ///
    /// # Errors
    ///
    /// This handle, in each of these cases:
    ///
    /// * The writer has other handles, or a [`Reading`] that has not returned.
    /// * The device has not released the blocks of all commits and reads.
    ///   [`durable`](Self::durable) of the last ticket waits for that, except with
    ///   [`Method::Server`]. [`Replicas::add_writer`](crate::Replicas::add_writer) waits for it
    ///   with every method.
    /// * A post failed. This call then never succeeds.
    pub fn into_inner(self) -> Result<commit::Writer, Self> {
        if !self.is_last_handle() {
            return Err(self);
        }
        // Completions that no task has waited for release blocks.
        self.shared.take_events();
        let take =
            |state: &mut WriterState| state.is_released().then(|| state.take_writer()).flatten();
        let Some(writer) = self.shared.with(take) else {
            return Err(self);
        };
        if let Ok(fd) = writer.conn().get_next_fd() {
            self.shared.watch_no_more(fd);
        }
        Ok(writer)
    }

    /// The fate of a commit: as [`commit::Writer::fate`], after a look at the connection.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a ticket of another writer.
    pub fn fate(&self, ticket: Ticket) -> Result<Fate> {
        self.shared.take_events();
        self.shared.read(|state| state.writer().fate(ticket))
    }

    /// Waits for the end of the connection, and returns its event. The fate of commits that are
    /// not durable is unknown then.
    ///
    /// Only an operation that fails, or a keep-alive
    /// ([`ConnCfg::set_keep_alive`](rpma::ConnCfg::set_keep_alive)), detects that a host is gone.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// The failure with which the connection has ended, if there is no event of its end.
    /// [`Error::InvalidArgument`] without a [`Driver`](crate::Driver).
    pub async fn closed(&self) -> Result<ConnEvent> {
        let judge = |state: &mut WriterState| {
            let conn = state.writer().conn();
            if let Some(event) = conn.ended() {
                return Some(Ok(event.clone()));
            }
            // An end has flushed an operation, and the event of that end is still to come.
            let failure = conn.failure().filter(|failure| !failure.is_flushed())?;
            Some(Err(unnumbered(failure.into())))
        };
        self.shared.wait(Wanted::End, judge).await
    }

    /// Ends the connection without loss: waits until all commits are durable, disconnects, and
    /// waits for the server's answer. All of this has to happen within `limit`. After `limit` it
    /// disconnects in any case. Dropping the last handle destroys the queues.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops this handle. The connection goes on if there are others.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if the commits or the server's answer take longer. Otherwise as
    /// [`durable`](Self::durable): then the fate of commits that are not durable is unknown.
    pub async fn close(self, limit: Duration) -> Result<()> {
        let shared = &self.shared;
        let ends = async {
            if let Some(last) = shared.read(|state| state.last) {
                self.durable(last).await?;
            }
            self.abort();
            self.closed().await.map(drop)
        };
        let ended = timeout(shared.reactor(), limit, ends).await;
        self.abort();
        ended.unwrap_or(Err(Error::TimedOut(
            "the commits in flight did not complete, or the server did not answer the end of the connection",
        )))
    }

    /// Ends the connection at once: the fate of commits in flight is unknown. It does not wait.
    pub fn abort(&self) {
        self.shared.with(|state| {
            if let Err(error) = state.writer().conn().disconnect() {
                log::debug!("{error}");
            }
        });
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.read(|state| {
            f.debug_struct("Writer")
                .field("writer", state.writer())
                .finish_non_exhaustive()
        })
    }
}
