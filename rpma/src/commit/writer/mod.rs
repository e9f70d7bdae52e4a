//! [`Writer`]: a connection that commits by one method.
//!
//! It owns the connection, and keeps the last operation of each commit in flight. Commits of a
//! connection complete in their order, so three numbers are all of its state beside that. They count
//! the posted commits, the durable ones, and those with a released source.

mod asks;
mod cfg;
mod connecting;
mod shared;
mod waiting;

use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::asks::Asks;
pub(crate) use self::asks::Messages;
pub use self::cfg::WriterCfg;
pub use self::connecting::Connecting;
pub use self::shared::SharedWriter;
use crate::clock;
use crate::conn::{Conn, Next};
use crate::cq::Got;
use crate::error::{Error, Queue, Result};
use crate::looking::{LookDue, Took};
use crate::method::Limits;
use crate::mr::{MrSlice, RemoteSlice};
use crate::offer::Offer;
use crate::posted::{ConnId, Posted};
use crate::status::WcStatus;
use crate::verbs::{Place, Wc};

/// A connection that commits by one [`Method`](crate::commit::Method).
///
/// It has at most [`WriterCfg::in_flight`] commits in flight. It allocates only while it is made,
/// and sleeps only in [`wait`](Self::wait) and [`wait_room`](Self::wait_room).
///
/// # One writer
///
/// A writer does not detect a second writer of the same pointer. Both would commit without an
/// error, and overwrite each other's records. The server prevents that: it cuts a writer's
/// connection off ([`Conn::cut_off`]) before it accepts the next writer. [When
/// something fails](crate::guide::failures#the-server-that-it-comes-back-to) has such a server.
///
/// # Event loops
///
/// A loop calls [`look`](Self::look) when the descriptor of [`Conn::get_next_fd`] is readable, and
/// at the time that [`Conn::keep_alive`] returns. Then it calls [`is_over`](Self::is_over): after
/// the end the writer takes no more commits. With
/// [`Method::Server`](crate::commit::Method::Server), it calls [`probe`](Self::probe) before the
/// look if no answer has come for 50 ms, because only a failed operation shows that the peer's
/// host is gone. A program that polls the connection by itself hands each completion to
/// [`handle`](Self::handle).
#[derive(Debug)]
pub struct Writer {
    /// Of a writer that is shared, or in a set that is shared, the thread that sleeps has it too.
    conn: Arc<Conn>,
    id: ConnId,
    cfg: WriterCfg,
    offer: Offer,
    /// Set with the server's method: its limits, and the messages.
    server: Option<(Limits, Asks)>,
    in_flight: usize,
    /// The last operation of each commit that is not released, at the commit's number modulo the
    /// length, which is a power of 2; or `UNKNOWN`.
    lasts: Box<[u64]>,
    posted: u64,
    durable: u64,
    released: u64,
    /// There is room for the commits up to this number.
    room_until: u64,
    /// The empty write that is under way.
    probe: Option<Posted>,
    due: LookDue,
    /// The last look began after the time from which no completion comes any more
    /// ([`Conn::quiet_from`]).
    was_quiet: bool,
}

/// The post of a commit failed, so its last operation is unknown. No operation has this number.
const UNKNOWN: u64 = u64::MAX;

/// The name of one commit of one [`Writer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    conn: ConnId,
    number: u64,
}

impl Ticket {
    /// The commit's number on its connection: 1 is the first one.
    #[must_use]
    pub fn number(self) -> u64 {
        self.number
    }
}

#[cold]
fn of_another_writer() -> Error {
    Error::invalid("the commit was posted by another writer: ask that one")
}

/// The fate of a commit, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there is no fourth answer")]
pub enum Fate {
    /// The commit is in flight.
    Pending,
    /// The commit is durable, or only visible if that is the writer's
    /// [`FlushType`](crate::FlushType).
    Durable,
    /// The connection is over, and no acknowledgement has come. The commit may be in the memory,
    /// and may become durable later. A late acknowledgement makes it [`Durable`](Self::Durable).
    Unknown,
}

impl Writer {
    fn new(conn: Conn, cfg: WriterCfg, offer: Offer, server: Option<(Limits, Asks)>) -> Self {
        let credits = server
            .as_ref()
            .map_or(u16::MAX, |(limits, _)| limits.credits());
        Self {
            id: conn.id(),
            conn: Arc::new(conn),
            cfg,
            offer,
            server,
            in_flight: cfg.in_flight().min(credits).into(),
            room_until: cfg.in_flight().min(credits).into(),
            lasts: iter::repeat_n(UNKNOWN, usize::from(cfg.in_flight()).next_power_of_two())
                .collect(),
            posted: 0,
            durable: 0,
            released: 0,
            probe: None,
            due: LookDue::default(),
            was_quiet: false,
        }
    }

    /// Returns the connection, for other operations. If the program does not poll their completions
    /// itself, [`look`](Self::look) passes them to its argument.
    ///
    /// With [`Method::Server`](crate::commit::Method::Server), the receives of this connection
    /// belong to the writer.
    #[must_use]
    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// The connection, for a thread that sleeps beside it.
    pub(crate) fn share_conn(&self) -> Arc<Conn> {
        Arc::clone(&self.conn)
    }

    /// Whether a thread sleeps beside its connection.
    pub(crate) fn is_watched(&self) -> bool {
        Arc::strong_count(&self.conn) > 1
    }

    /// Returns the settings with which the writer commits.
    #[must_use]
    pub fn cfg(&self) -> &WriterCfg {
        &self.cfg
    }

    /// Returns the peer's offer.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the number of commits that can be posted now.
    #[must_use]
    pub fn room(&self) -> usize {
        (self.room_until - self.posted) as usize
    }

    /// Commits are released or durable.
    #[inline]
    fn makes_room(&mut self) {
        // With the server's method, a commit is in flight until it is released and answered.
        let gone = if self.server.is_none() {
            self.released
        } else {
            self.released.min(self.durable)
        };
        self.room_until = gone + self.in_flight as u64;
    }

    /// Returns the number of send-queue slots that are not for commits. If the program's own
    /// operations in flight take at most these slots, there is room for all commits. The number is
    /// [`ConnCfg::set_sq_size`](crate::ConnCfg::set_sq_size) in the settings that the program
    /// passed to [`WriterCfg::conn_cfg`].
    #[must_use]
    pub fn slots_beside(&self) -> u32 {
        // The connection was made with these slots at least.
        self.conn.send_slots().saturating_sub(self.cfg.slots().0)
    }

    /// Returns the number of commits that were posted.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns how many commits are durable. They have the numbers from 1 to the returned one.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns how many commits have source memory that the device no longer reads. They have the
    /// numbers from 1 to the returned one.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Returns whether the connection has ended or failed: then no commit can be posted any more.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.conn.has_ended()
    }

    /// Returns the fate of a commit, as of the last [`look`](Self::look) or
    /// [`handle`](Self::handle).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a commit of another writer.
    pub fn fate(&self, ticket: Ticket) -> Result<Fate> {
        if ticket.conn != self.id {
            return Err(of_another_writer());
        }
        Ok(match ticket.number {
            number if number <= self.durable => Fate::Durable,
            _ if self.is_over() => Fate::Unknown,
            _ => Fate::Pending,
        })
    }

    /// Commits, as [`Conn::commit`]: writes `parts`, makes them durable, then writes the 8 bytes
    /// of `pointer`, and makes these durable. It never sleeps. The source memory of the parts must
    /// not change before the commit is [`released`](Self::released).
    ///
    /// # Errors
    ///
    /// As [`Conn::commit`]. [`Error::QueueFull`] also if there is no [`room`](Self::room), with
    /// [`Queue::Commits`]; [`Error::InvalidArgument`] also if there are more than
    /// [`WriterCfg::parts`]. The commit is not posted then. After [`Error::Provider`] the fate of
    /// this commit is [unknown](Fate::Unknown), and its source memory is not released before the
    /// connection is destroyed ([`into_conn`](Self::into_conn), [`Conn::delete`]).
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn commit(
        &mut self,
        parts: &[(RemoteSlice, MrSlice<'_>)],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<Ticket> {
        if parts.len() > usize::from(self.cfg.parts()) {
            return Err(Error::invalid(format!(
                "a commit of {} parts: this writer's have up to {} (WriterCfg::set_parts)",
                parts.len(),
                self.cfg.parts()
            )));
        }
        if self.room() == 0 {
            return Err(self.full());
        }
        let (conn, number) = (&*self.conn, self.posted + 1);
        let posted = match &self.server {
            None => conn.commit(parts, pointer, self.cfg.flush_type(), number),
            Some((limits, asks)) => asks.commit(conn, *limits, number, parts, pointer),
        };
        match posted {
            Ok(posted) => {
                self.flies(posted.number());
                Ok(Ticket {
                    conn: posted.conn(),
                    number,
                })
            }
            Err(error) => {
                if let Error::Provider { .. } = error {
                    self.flies(UNKNOWN);
                }
                Err(error)
            }
        }
    }

    /// A commit is in flight, with this last operation.
    #[inline]
    fn flies(&mut self, last: u64) {
        self.posted += 1;
        let at = self.at(self.posted);
        self.lasts[at] = last;
    }

    #[inline]
    fn at(&self, number: u64) -> usize {
        number as usize & (self.lasts.len() - 1)
    }

    /// The last operation of the oldest commit that is not released.
    #[inline]
    fn next_last(&self) -> u64 {
        self.lasts[self.at(self.released + 1)]
    }

    /// The error of a commit without room. There is no more room after the connection's end.
    #[cold]
    fn full(&self) -> Error {
        if self.is_over() {
            self.conn.closed()
        } else {
            Error::QueueFull {
                queue: Queue::Commits,
                depth: self.in_flight as u32,
            }
        }
    }

    /// Whether a commit of `len` bytes and a pointer has no fault, if both are apart and inside a
    /// region with the rights for the writer's commits, and the pointer is aligned.
    #[inline]
    pub(crate) fn commits_in_regions(&self, len: u64) -> bool {
        self.server.is_none() && self.conn.commits_in_regions(len, self.cfg.flush_type())
    }

    /// Checks a commit without posting it: whether [`commit`](Self::commit) would post it, if the
    /// connection takes operations and has room.
    pub(crate) fn check(
        &self,
        parts: &[(RemoteSlice, MrSlice<'_>)],
        pointer: Option<(RemoteSlice, [u8; 8])>,
    ) -> Result<()> {
        match &self.server {
            None => self
                .conn
                .check_commit(parts, pointer.as_ref(), self.cfg.flush_type()),
            Some((limits, _)) => asks::check(*limits, parts, pointer.as_ref()),
        }
    }

    /// As if it had made so many commits: a multiple of those in flight.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::commit) fn start_after(&mut self, commits: u64) {
        assert_eq!((self.posted, commits % self.lasts.len() as u64), (0, 0));
        (self.posted, self.durable, self.released) = (commits, commits, commits);
        self.makes_room();
    }

    /// Takes a completion of the connection that the program has polled. Returns whether it was
    /// one of the writer's.
    pub fn handle(&mut self, wc: &Wc) -> bool {
        let Some(posted) = wc.posted() else {
            return self.handle_answer(wc);
        };
        if self.probe == Some(posted) {
            self.probe = None;
            return true;
        }
        if posted.conn() != self.id {
            return false;
        }
        let is_it = |number: &u64| self.lasts[self.at(*number)] == posted.number();
        let Some(number) = (self.released + 1..=self.posted).find(is_it) else {
            return false;
        };
        // Everything that was posted before it is complete as well.
        self.released = number;
        if self.server.is_none() && wc.status() == WcStatus::SUCCESS {
            self.durable = number;
        }
        self.makes_room();
        true
    }

    /// Takes an answer of the server; or a receive that was flushed, after the end.
    #[inline(never)]
    fn handle_answer(&mut self, wc: &Wc) -> bool {
        let Some((_, asks)) = &self.server else {
            return false;
        };
        if wc.status() != WcStatus::SUCCESS {
            return true;
        }
        let number = self.durable + 1;
        let taken = if number <= self.posted {
            asks.take(&self.conn, wc, number)
        } else {
            Err(Error::invalid(
                "the peer sent an answer, and no commit waits for one",
            ))
        };
        match taken {
            Ok(()) => self.durable = number,
            // The answer counts; the connection has ended.
            Err(Error::NotConnected(_)) => self.durable = number,
            // As before. The receive is not posted, and a later answer would wait for it.
            Err(error @ Error::Provider { .. }) => {
                self.durable = number;
                self.conn.end_after(&error);
            }
            Err(error) => {
                log::error!("{:?}: {error}; the connection ends", self.conn.peer_addr());
                self.conn.end_after(&error);
            }
        }
        self.makes_room();
        true
    }

    /// Looks once, without sleeping: polls the connection's queues, takes its events, and hands
    /// completions that are not the writer's to `other`.
    ///
    /// The end of the connection is not an error here: call [`is_over`](Self::is_over) after it.
    ///
    /// # Errors
    ///
    /// As [`Conn::next`]. The connection is over then, and waits return this error.
    pub fn look(&mut self, mut other: impl FnMut(Wc)) -> Result<()> {
        self.look_once(&mut other)
    }

    #[inline(never)]
    fn look_once(&mut self, other: &mut dyn FnMut(Wc)) -> Result<()> {
        self.due.looks(clock::now());
        // Before the look: the last completion comes after the grace.
        let is_quiet = self.is_over() && self.ends();
        let mut budget = self.conn.budget();
        loop {
            let took = self.next(other).inspect_err(|_| {
                // A wait returns the error at once, and so does `settled` from now on.
                self.was_quiet = true;
            })?;
            match took {
                Took::Nothing => {
                    self.was_quiet = is_quiet;
                    return Ok(());
                }
                took if budget.goes_on(took) => {}
                _ => {
                    self.conn.keep_readable();
                    return Ok(());
                }
            }
        }
    }

    /// Polls the connection's queues, and hands completions that are not the writer's to `other`.
    /// It makes no system call, unless a [`look`](Self::look) is due: after 64 polls or 10 ms. For
    /// event loops: they poll first, and look when they have found nothing and are about to sleep.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    #[inline]
    pub fn poll(&mut self, mut other: impl FnMut(Wc)) -> Result<()> {
        if !self.is_over() {
            self.poll_queues(&mut other)?;
            if !self.is_look_due(clock::now()) {
                return Ok(());
            }
        }
        self.look(other)
    }

    /// Returns the outcome of a commit if no wait is needed: it is durable, or a
    /// [`look`](Self::look) has shown that no acknowledgement comes any more
    /// ([`Conn::quiet_from`]). `None` before that.
    ///
    /// This is the half of [`wait`](Self::wait) that does not sleep, for event loops. The error is
    /// that of the wait.
    #[inline]
    #[must_use]
    pub fn settled(&self, ticket: Ticket) -> Option<Result<()>> {
        if ticket.conn == self.id {
            if ticket.number <= self.durable {
                return Some(Ok(()));
            }
            if !self.is_over() {
                return None;
            }
        }
        self.not_durable(ticket)
    }

    #[cold]
    fn not_durable(&self, ticket: Ticket) -> Option<Result<()>> {
        if ticket.conn != self.id {
            return Some(Err(of_another_writer()));
        }
        if !self.was_quiet && !self.has_completed(ticket) {
            return None;
        }
        self.conn.reason().map(Err)
    }

    /// Polls the connection's queues until they are empty, and does nothing else. Returns whether
    /// something was there. An error ends the connection, as that of a look.
    #[inline]
    pub(crate) fn poll_queues(&mut self, mut other: impl FnMut(Wc)) -> Result<bool> {
        if self.posted - self.released == 1 && self.server.is_none() {
            // The usual case.
            let mut wc = Wc::default();
            match self.conn.poll_for(self.next_last(), &mut wc) {
                Some(Ok(Got::Expected)) => {
                    self.released = self.posted;
                    self.durable = self.posted;
                    // As `makes_room`.
                    self.room_until += 1;
                    return Ok(true);
                }
                Some(Ok(Got::Nothing)) => return Ok(false),
                Some(Ok(Got::Other)) => self.handle_each(&[wc], &mut other),
                Some(Err(error)) => {
                    self.conn.end_after(&error);
                    return Err(*error);
                }
                None => {}
            }
        }
        self.poll_each(&mut other)
    }

    /// As [`poll`](Self::poll), in the unusual cases.
    #[inline(never)]
    pub(crate) fn poll_each(&mut self, other: &mut dyn FnMut(Wc)) -> Result<bool> {
        let (mut wcs, mut budget, mut taken) = ([Wc::default(); 4], None, false);
        loop {
            let polled = self.conn.poll_own(&mut wcs);
            let count = polled.inspect_err(|error| self.conn.end_after(error))?;
            self.handle_each(&wcs[..count], &mut *other);
            taken |= count > 0;
            let budget = budget.get_or_insert_with(|| self.conn.budget());
            if count < wcs.len() {
                return Ok(taken);
            }
            if !budget.goes_on(Took::Completions(count)) {
                self.conn.keep_readable();
                return Ok(taken);
            }
        }
    }

    fn handle_each(&mut self, wcs: &[Wc], mut other: impl FnMut(Wc)) {
        for wc in wcs {
            if !self.handle(wc) {
                other(*wc);
            }
        }
    }

    /// Whether a look is due, for a caller that has polled.
    #[inline]
    pub(crate) fn is_look_due(&mut self, now: Instant) -> bool {
        self.due.is_due(now)
    }

    /// A sleep that sees everything counts as a look.
    pub(crate) fn looks(&mut self, now: Instant) {
        self.due.looks(now);
    }

    /// The connection is over: disconnects, once, so that the device releases the sources of all
    /// commits. While it holds none, an answer of the server has its time to come.
    ///
    /// Returns whether no completion comes any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn ends(&self) -> bool {
        let is_quiet = self.conn.is_quiet();
        let holds_none = self.released == self.posted;
        let may_come = self.server.is_some() && self.durable < self.posted;
        if !(holds_none && may_come) || is_quiet {
            self.conn.answer_end();
        }
        is_quiet
    }

    /// Looks, and takes one thing.
    fn next(&mut self, other: &mut dyn FnMut(Wc)) -> Result<Took> {
        let mut wcs = [Wc::default(); 8];
        let next = self.conn.next(&mut wcs, Duration::ZERO);
        self.took(next, &wcs, other)
    }

    fn took(&mut self, next: Result<Next>, wcs: &[Wc], other: &mut dyn FnMut(Wc)) -> Result<Took> {
        match next {
            Ok(Next::Completions(count)) => {
                self.handle_each(&wcs[..count], &mut *other);
                Ok(Took::Completions(count))
            }
            Ok(Next::Event(_)) => Ok(self.took_event()),
            Err(Error::TimedOut(_)) => Ok(Took::Nothing),
            Err(error) => {
                // Waits return it as their reason.
                self.conn.end_after(&error);
                Err(error)
            }
        }
    }

    #[cold]
    fn took_event(&self) -> Took {
        if self.is_over() {
            self.ends();
        }
        Took::Event
    }

    /// Posts a write of 0 bytes, or on iWARP a read, for [`look`](Self::look). Its completion shows
    /// that the peer's host is there, and its failure that the host is gone. A call has no effect
    /// while another probe is in flight, or while a commit is not [`released`](Self::released). The
    /// completion of that probe or commit shows the same.
    ///
    /// # Errors
    ///
    /// As [`Conn::write`], except for [`Error::QueueFull`]: then the operations in flight serve as
    /// a probe.
    pub fn probe(&mut self) -> Result<()> {
        if self.probe.is_some() || self.released < self.posted {
            return Ok(());
        }
        let _at = Place::NONE.enter();
        match self.conn.ask() {
            Ok(posted) => {
                self.probe = Some(posted);
                Ok(())
            }
            Err(Error::QueueFull { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the connection back. Commits in flight go on, and their fate is not followed any
    /// more. [`Conn::disconnect`] and [`Conn::delete`] release their source memory.
    #[must_use]
    pub fn into_conn(self) -> Conn {
        own(self.conn)
    }

    /// Destroys the connection, as [`Conn::delete`]. After `Ok` no device reads the source memory
    /// of its commits.
    ///
    /// # Errors
    ///
    /// As [`Conn::delete`].
    pub fn delete(self) -> Result<()> {
        own(self.conn).delete()
    }
}

/// The connection of a writer that no other thread has.
fn own(conn: Arc<Conn>) -> Conn {
    match Arc::into_inner(conn) {
        Some(conn) => conn,
        None => unreachable!("a thread sleeps for a writer that is not shared"),
    }
}
