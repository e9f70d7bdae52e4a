//! [`SharedWriter`]: a writer of many threads. One of those that wait sleeps for all of them
//! ([`lookout`](crate::commit::lookout)).

use std::fmt;
use std::time::Duration;

use super::{Fate, Ticket, Writer, WriterCfg, of_another_writer};
use crate::clock;
use crate::commit::lookout::{Shared, Watched};
use crate::conn::Conn;
use crate::error::{Error, Result};
use crate::looking;
use crate::mr::{MrSlice, RemoteSlice};
use crate::offer::Offer;
use crate::sync::Arc;
use crate::verbs::Deadline;

/// A [`Writer`] that threads share: some post commits while others wait for theirs.
///
/// Clones are handles of the same writer, one for each thread for example. All calls take `&self`.
///
/// | call | it may sleep |
/// |---|---|
/// | [`commit`](Self::commit), [`look`](Self::look) | no |
/// | [`wait`](Self::wait), [`wait_released`](Self::wait_released), [`wait_room`](Self::wait_room) | up to their limit |
/// | all others | no |
///
/// A thread that sleeps here holds no lock, so no `commit` waits for another thread's `wait`. If
/// several threads wait, one of them sleeps for the events of the connection, and wakes each other
/// thread when that thread's commit is durable.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::commit::SharedWriter;
/// use rpma::{Error, Mr, MrRemote, Result};
///
/// const LIMIT: Duration = Duration::from_secs(10);
///
/// /// Writes each record to the next place of `to`. Each thread calls this with its own source,
/// /// which has room for one record.
/// fn write_all(
///     writer: &SharedWriter,
///     to: &MrRemote,
///     source: &mut Mr<Vec<u8>>,
///     records: &[&[u8]],
/// ) -> Result<()> {
///     let mut at = 0;
///     for record in records {
///         source.write_at(0, record)?;
///         let end = at + record.len();
///         let parts = [(to.slice(at as u64..end as u64)?, source.slice(..record.len())?)];
///         let ticket = loop {
///             match writer.commit(&parts, None) {
///                 Ok(ticket) => break ticket,
///                 // Another thread may take the room first.
///                 Err(Error::QueueFull { .. }) => writer.wait_room(LIMIT)?,
///                 Err(error) => return Err(error),
///             }
///         };
///         writer.wait(ticket, LIMIT)?;
///         // The next record takes the source.
///         writer.wait_released(ticket, LIMIT)?;
///         at = end;
///     }
///     Ok(())
/// }
/// ```
///
/// # Order
///
/// Commits are posted in the order of the calls of [`commit`](Self::commit), and executed in that
/// order. Threads that choose the place of a record in a log need one order of places and commits:
/// they choose the place and call `commit` with a lock of their own. Neither sleeps, so no thread
/// holds that lock for long. Give it back before [`wait`](Self::wait) and
/// [`wait_room`](Self::wait_room).
///
/// # The connection
///
/// The completions and events of the connection belong to the shared writer: the program neither
/// polls nor waits on [`conn`](Self::conn). It may post its own operations there, of which
/// [`Writer::slots_beside`] may be in flight. Their completions are dropped, and
/// [`look`](Self::look) takes them.
///
/// A logger of the program must not call the shared writer: some messages come while its lock is
/// held.
#[derive(Clone)]
pub struct SharedWriter(Arc<Parts>);

struct Parts {
    conn: Arc<Conn>,
    cfg: WriterCfg,
    offer: Offer,
    shared: Shared<Watch>,
}

#[derive(Debug)]
struct Watch {
    writer: Writer,
    /// No completion comes any more: the connection is over, and its last look has come.
    is_done: bool,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// That this commit is durable.
    Durable(Ticket),
    /// That the device has released the sources of this commit.
    Released(Ticket),
    Room,
}

#[derive(Debug)]
struct Sleep {
    conn: Arc<Conn>,
    until: Deadline,
    /// See [`Writer::sleeps_until`].
    is_asked: bool,
}

#[derive(Debug)]
struct Slept {
    /// Nothing happened, and the server's host is to be asked.
    is_silent: bool,
    /// No completion comes any more.
    has_failed: bool,
}

impl Watch {
    /// Polls with `poll`. Returns whether something has changed. An error has ended the connection.
    #[inline]
    fn poll_by(&mut self, poll: impl FnOnce(&mut Writer) -> Result<bool>) -> bool {
        // Before the poll: the last one comes after the grace.
        let was_quiet = self.writer.is_over() && self.writer.ends();
        let polled = poll(&mut self.writer);
        self.is_done |= was_quiet || polled.is_err();
        polled.unwrap_or(true) || was_quiet
    }

    #[cold]
    #[inline(never)]
    fn judge_released(&self, ticket: Ticket) -> Option<Result<()>> {
        let is_there = self.writer.released >= ticket.number;
        let is_over = self.is_done && self.writer.is_over();
        match is_there {
            true => Some(Ok(())),
            false => is_over.then(|| self.reason())?,
        }
    }

    #[cold]
    fn reason(&self) -> Option<Result<()>> {
        self.writer.conn.reason().map(Err)
    }
}

impl Watched for Watch {
    type Wanted = Wanted;
    type Found = Result<()>;
    type Sleep = Sleep;
    type Slept = Slept;

    #[inline]
    fn poll(&mut self) -> bool {
        self.poll_by(|writer| writer.poll_queues(drop))
    }

    #[inline]
    fn judge(&mut self, wanted: &Wanted) -> Option<Result<()>> {
        let writer = &self.writer;
        let (is_there, nothing_comes) = match *wanted {
            Wanted::Durable(ticket) => (
                writer.durable >= ticket.number,
                self.is_done || writer.has_completed(ticket),
            ),
            Wanted::Released(ticket) => return self.judge_released(ticket),
            Wanted::Room => (writer.room() > 0 && !writer.is_over(), true),
        };
        if is_there {
            Some(Ok(()))
        } else if nothing_comes && writer.is_over() {
            self.reason()
        } else {
            None
        }
    }

    #[inline]
    fn is_look_due(&mut self) -> bool {
        self.writer.is_look_due(clock::now())
    }

    fn before_sleep(&mut self, deadline: Deadline) -> Sleep {
        self.writer.looks(clock::now());
        let (until, is_asked) = self.writer.sleeps_until(deadline);
        Sleep {
            conn: Arc::clone(&self.writer.conn),
            until,
            is_asked,
        }
    }

    #[inline]
    fn spin(sleep: &Sleep, mut poll: impl FnMut() -> bool) -> bool {
        let time = sleep.conn.spin_time();
        looking::spin(time, sleep.until, || poll().then_some(())).is_some()
    }

    fn sleep(sleep: Sleep) -> Slept {
        let slept = sleep.conn.sleep_for_all(sleep.until);
        let slept = slept.inspect_err(|error| sleep.conn.end_after(error));
        Slept {
            is_silent: sleep.is_asked && matches!(slept, Ok(false)),
            has_failed: slept.is_err(),
        }
    }

    fn after_sleep(&mut self, slept: Slept) {
        let taken = self.poll_by(|writer| writer.poll_each(&mut drop));
        self.is_done |= slept.has_failed;
        if slept.is_silent && !taken {
            // A failure is one of the connection, which the next sleep finds.
            let _ = self.writer.probe();
        }
    }
}

impl SharedWriter {
    /// Makes a writer that threads share.
    #[must_use]
    pub fn new(writer: Writer) -> Self {
        Self(Arc::new(Parts {
            conn: Arc::clone(&writer.conn),
            cfg: writer.cfg,
            offer: writer.offer.clone(),
            shared: Shared::new(Watch {
                writer,
                is_done: false,
            }),
        }))
    }

    /// Gives the writer back, if this is its last handle. No thread waits then.
    ///
    /// # Errors
    ///
    /// The handle, if there are others.
    pub fn into_writer(self) -> Result<Writer, Self> {
        // The connection in the parts goes before the writer comes back.
        let parts = Arc::try_unwrap(self.0).map_err(Self)?;
        Ok(parts.shared.into_inner().writer)
    }

    /// Commits, as [`Writer::commit`]. It never sleeps, also while other threads wait. The source
    /// memory of the parts must not change before the commit is [`released`](Self::released).
    ///
    /// # Errors
    ///
    /// As [`Writer::commit`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn commit(
        &self,
        parts: &[(RemoteSlice, MrSlice<'_>)],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket> {
        let mut held = self.0.shared.lock();
        let posted = held.state.writer.commit(parts, pointer);
        if posted.is_err() {
            // The connection may be over.
            held.tell();
        }
        posted
    }

    /// Waits until a commit is durable, for at most `limit`. With a limit of 0 it polls, and looks
    /// once. Any thread may wait for a commit, and several threads may wait for the same one.
    ///
    /// After `Ok` the source memory is [released](Self::released) as well, except with
    /// [`Method::Server`](crate::commit::Method::Server): see
    /// [`wait_released`](Self::wait_released).
    ///
    /// # Errors
    ///
    /// As [`Writer::wait`]: [`Error::TimedOut`] when the limit has passed.
    pub fn wait(&self, ticket: Ticket, limit: Duration) -> Result<()> {
        if ticket.conn != self.0.conn.id() {
            return Err(of_another_writer());
        }
        let found = self.0.shared.wait(Wanted::Durable(ticket), limit);
        found.unwrap_or(Err(Error::TimedOut(Writer::NOT_DURABLE)))
    }

    /// Waits until this host's device no longer reads the source memory of a commit, for at most
    /// `limit`: as [`Writer::wait_released`].
    ///
    /// # Errors
    ///
    /// As [`Writer::wait_released`]: [`Error::TimedOut`] when the limit has passed.
    pub fn wait_released(&self, ticket: Ticket, limit: Duration) -> Result<()> {
        if ticket.conn != self.0.conn.id() {
            return Err(of_another_writer());
        }
        let found = self.0.shared.wait(Wanted::Released(ticket), limit);
        found.unwrap_or(Err(Error::TimedOut(Writer::NOT_RELEASED)))
    }

    /// Waits until there is room for another commit, for at most `limit`. All threads that wait
    /// here find the same room. So a [`commit`](Self::commit) after this may still return
    /// [`Error::QueueFull`], because another thread was faster. Then wait again.
    ///
    /// # Errors
    ///
    /// As [`Writer::wait_room`]: [`Error::TimedOut`] when the limit has passed.
    pub fn wait_room(&self, limit: Duration) -> Result<()> {
        let found = self.0.shared.wait(Wanted::Room, limit);
        found.unwrap_or(Err(Error::TimedOut(Writer::NO_ROOM)))
    }

    /// Looks once, without sleeping: polls the connection's queues, and takes its events if no
    /// other thread sleeps for them. A program calls this if it never waits.
    pub fn look(&self) {
        self.0.shared.look();
    }

    /// Returns the fate of a commit, as far as any thread has learned it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a commit of another writer.
    pub fn fate(&self, ticket: Ticket) -> Result<Fate> {
        self.with(|writer| writer.fate(ticket))
    }

    /// Returns the number of commits that can be posted now, as [`Writer::room`].
    #[must_use]
    pub fn room(&self) -> usize {
        self.with(Writer::room)
    }

    /// Returns the number of commits that were posted.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.with(Writer::posted)
    }

    /// Returns how many commits are durable, as [`Writer::durable`].
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.with(Writer::durable)
    }

    /// Returns how many commits have source memory that the device no longer reads, as
    /// [`Writer::released`].
    #[must_use]
    pub fn released(&self) -> u64 {
        self.with(Writer::released)
    }

    /// Returns whether the connection has ended or failed: then no commit can be posted any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.conn.has_ended()
    }

    /// Returns the connection. See [the connection](Self#the-connection).
    #[must_use]
    pub fn conn(&self) -> &Conn {
        &self.0.conn
    }

    /// Returns the settings with which the writer commits.
    #[must_use]
    pub fn cfg(&self) -> &WriterCfg {
        &self.0.cfg
    }

    /// Returns the peer's offer.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.0.offer
    }

    fn with<T>(&self, read: impl FnOnce(&Writer) -> T) -> T {
        read(&self.0.shared.lock().state.writer)
    }
}

impl fmt::Debug for SharedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedWriter").field(&self.0.shared).finish()
    }
}
