//! The waits of a writer: polls, with sleeps between them that take what they have seen.

use std::time::Duration;

use super::{Ticket, Writer, of_another_writer};
use crate::clock;
use crate::error::{Error, Result};
use crate::looking::{self, Took};
use crate::verbs::{Deadline, Wc};

/// How often a wait for an answer asks whether the peer's host is there.
const PROBE_EVERY: Duration = Duration::from_millis(50);

impl Writer {
    pub(super) const NOT_DURABLE: &str = "the commit is not known to be durable, and its source memory is still in \
                                          use: wait again, or drop the writer and connect again";
    pub(super) const NOT_RELEASED: &str =
        "the device still reads the source memory of the commit: wait again, or disconnect";
    pub(super) const NO_ROOM: &str = "the oldest commit in flight is not complete";

    /// Waits until a commit is durable, for at most `limit`. With a limit of 0 it polls, and looks
    /// once. Completions that are not the writer's go to `other`.
    ///
    /// After `Ok` the source memory of the commit is [released](Self::released) as well, except
    /// with [`Method::Server`](crate::commit::Method::Server): there the answer can come first.
    /// Call [`wait_released`](Self::wait_released) before you change the memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a commit of another writer. [`Error::TimedOut`] when the
    /// limit has passed: the commit goes on, and its outcome is not known yet. Otherwise the
    /// reason for which the connection is over, as [`Conn::wait_for`](crate::Conn::wait_for).
    pub fn wait(
        &mut self,
        ticket: Ticket,
        limit: Duration,
        mut other: impl FnMut(Wc),
    ) -> Result<()> {
        if ticket.conn != self.id {
            return Err(of_another_writer());
        }
        self.look_until(
            limit,
            &mut other,
            |writer| writer.durable >= ticket.number,
            |writer| writer.has_completed(ticket),
            Self::NOT_DURABLE,
        )
    }

    /// Waits until this host's device no longer reads the source memory of a commit, for at most
    /// `limit`: then the program may change the memory. Completions that are not the writer's go to
    /// `other`.
    ///
    /// Only a program that uses [`Method::Server`](crate::commit::Method::Server) needs this call,
    /// or one whose [`wait`](Self::wait) has failed. `Ok` means nothing for durability. After the
    /// end of the connection the device releases all sources.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait). If the reason for the end is returned, the device has not released
    /// the memory within a second after the end. It does so when the connection is destroyed
    /// ([`delete`](Self::delete)).
    pub fn wait_released(
        &mut self,
        ticket: Ticket,
        limit: Duration,
        mut other: impl FnMut(Wc),
    ) -> Result<()> {
        if ticket.conn != self.id {
            return Err(of_another_writer());
        }
        let is_released = |writer: &Self| writer.released >= ticket.number;
        let look = |writer: &mut Self, other: &mut dyn FnMut(Wc)| {
            writer.look(other)?;
            if is_released(writer) || !writer.was_quiet {
                return Ok(());
            }
            writer.conn.reason().map_or(Ok(()), Err)
        };
        let found = looking::wait(
            &mut (self, &mut other as &mut dyn FnMut(Wc)),
            limit,
            |(writer, _)| is_released(writer).then_some(()),
            |(writer, other)| look(writer, &mut **other),
            |(writer, other), deadline| writer.sleep(deadline, &mut **other),
        )?;
        found.ok_or(Error::TimedOut(Self::NOT_RELEASED))
    }

    /// Waits until there is [`room`](Self::room) for another commit, for at most `limit`. If there
    /// is no room, it waits until the oldest commit is durable and its source memory is
    /// [released](Self::released). Completions that are not the writer's go to `other`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the limit has passed. Otherwise the reason for which the
    /// connection is over, as [`Conn::wait_for`](crate::Conn::wait_for).
    pub fn wait_room(&mut self, limit: Duration, mut other: impl FnMut(Wc)) -> Result<()> {
        self.look_until(
            limit,
            &mut other,
            |writer| writer.room() > 0 && !writer.is_over(),
            |_| true,
            Self::NO_ROOM,
        )
    }

    /// Polls and sleeps until it `is_done`, for at most `limit`. After the connection's end it looks
    /// for a while longer, unless `nothing_comes`.
    #[inline]
    fn look_until(
        &mut self,
        limit: Duration,
        other: &mut dyn FnMut(Wc),
        is_done: impl Fn(&Self) -> bool,
        nothing_comes: impl Fn(&Self) -> bool,
        late: &'static str,
    ) -> Result<()> {
        if is_done(self) {
            return Ok(());
        }
        let from = clock::now();
        let look = |writer: &mut Self, other: &mut dyn FnMut(Wc)| {
            writer.look(other)?;
            let nothing_comes = writer.was_quiet || nothing_comes(writer);
            if !is_done(writer) && nothing_comes && writer.is_over() {
                return writer.conn.reason().map_or(Ok(()), Err);
            }
            Ok(())
        };
        let found = looking::wait_polling(
            &mut (&mut *self, &mut *other),
            (from, limit),
            |(writer, _)| is_done(writer).then_some(()),
            |(writer, other)| {
                if !writer.is_over() {
                    writer.poll_queues(&mut **other)?;
                    if is_done(writer) || !writer.is_over() {
                        return Ok(());
                    }
                }
                look(writer, &mut **other)
            },
            |(writer, other), deadline| writer.sleep(deadline, &mut **other),
            |(writer, other)| look(writer, &mut **other),
        )?;
        if found.is_none() {
            return Err(Error::TimedOut(late));
        }
        if self.is_look_due(from) {
            // An error is the end of the connection, of which later waits have the reason.
            let _ = self.look(other);
        }
        Ok(())
    }

    /// Sleeps until something happened, and takes it. After a silence it probes the server.
    fn sleep(&mut self, deadline: Deadline, other: &mut dyn FnMut(Wc)) -> Result<()> {
        let (until, is_asked) = self.sleeps_until(deadline);
        let mut wcs = [Wc::default(); 8];
        let spun = self.conn.spin(&mut wcs, until);
        let next = match spun.transpose() {
            Some(spun) => spun,
            None => {
                let next = self.conn.next_until(&mut wcs, until);
                self.looks(clock::now());
                next
            }
        };
        match self.took(next, &wcs, &mut *other)? {
            // What came before the queue was armed again has no event any more.
            Took::Completions(count) if count == wcs.len() => self.poll_each(other).map(drop),
            // No part of the request is in flight any more: the answer alone would not show
            // that the host is gone.
            Took::Nothing if is_asked => self.probe(),
            _ => Ok(()),
        }
    }

    /// The end of a sleep, and whether the server's host is to be asked if nothing comes until then.
    #[inline(always)]
    pub(super) fn sleeps_until(&self, deadline: Deadline) -> (Deadline, bool) {
        let quiet = self.conn.quiet_from();
        let until = quiet.map_or(deadline, |at| deadline.earlier(Deadline::At(at)));
        let is_asked = self.server.is_some() && quiet.is_none();
        let until = if is_asked {
            until.earlier(Deadline::after(PROBE_EVERY))
        } else {
            until
        };
        (until, is_asked)
    }

    /// Whether no further completion comes for a commit that is not durable.
    pub(super) fn has_completed(&self, ticket: Ticket) -> bool {
        self.server.is_none() && self.released >= ticket.number
    }
}
