//! Members of a [`Wait`]: added, looked up, and taken out.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::Wait;
use super::member::{Kept, Member};
use super::place::{Place, Source};
use super::timers::Timer;
use crate::conn::Conn;
use crate::cq::Cq;
use crate::ep::Ep;
use crate::error::{Error, GivenBack, Result};
use crate::srq::Srq;

impl Wait {
    /// Adds a connection that was made for this place. It need not be established yet.
    ///
    /// # Errors
    ///
    /// [`GivenBack`], with the connection. [`Error::InvalidArgument`] if it was not made
    /// with the settings of this place, if the place is one of another wait, or if a queue gives
    /// events for solicited completions only ([`Notify::Solicited`](crate::Notify::Solicited)).
    /// [`Error::Provider`] if `epoll_ctl` fails.
    pub fn add(&mut self, place: Place, conn: Conn) -> Result<Member, GivenBack<Box<Conn>>> {
        let queues = [Some(conn.get_cq()), conn.get_rcq()];
        let added = self.check(&place, &queues).and_then(|()| {
            self.channels
                .watch(conn.as_fd(), Source::Member(place.member))
        });
        if let Err(error) = added {
            return Err(GivenBack::boxed(error, conn));
        }
        let (inbox, member) = (Arc::clone(&self.channels.inbox), place.member);
        let is_broken = conn.on_end_of_waits(Some(Box::new(move || {
            inbox.post(|news| news.broken.push(member));
        })));
        let has_keep_alive = conn.has_keep_alive();
        self.fill(place, Kept::Conn(Box::new(conn)));
        if has_keep_alive {
            self.keep_alive_is_due(member);
        }
        if is_broken {
            self.note_broken(member);
        }
        Ok(member)
    }

    /// Adds a shared receive queue that was made for this place: the wait returns the completions
    /// of its receives. Add the connections that use the queue as well.
    /// [`Wc::qp_num`](crate::Wc::qp_num) is different for each of them.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn add_srq(&mut self, place: Place, srq: Srq) -> Result<Member, GivenBack<Box<Srq>>> {
        let checked = match srq.get_rcq() {
            None => Err(not_of_this_place()),
            rcq => self.check(&place, &[rcq]),
        };
        if let Err(error) = checked {
            return Err(GivenBack::boxed(error, srq));
        }
        let member = place.member;
        self.fill(place, Kept::Srq(srq));
        Ok(member)
    }

    /// Adds an endpoint: the wait returns the requests of its clients.
    ///
    /// # Errors
    ///
    /// [`GivenBack`], with the endpoint: [`Error::Provider`] if `epoll_ctl` fails.
    pub fn add_ep(&mut self, ep: Ep) -> Result<Member, GivenBack<Box<Ep>>> {
        let place = self.place();
        let member = place.member;
        match self.channels.watch(ep.as_fd(), Source::Member(member)) {
            Ok(()) => {
                self.fill(place, Kept::Ep(ep));
                Ok(member)
            }
            Err(error) => Err(GivenBack::boxed(error, ep)),
        }
    }

    fn check(&self, place: &Place, queues: &[Option<&Cq>]) -> Result<()> {
        if !Arc::ptr_eq(&place.channels, &self.channels) {
            return Err(Error::invalid("the place is one of another Wait"));
        }
        let mut queues = queues.iter().flatten();
        if !queues.clone().all(|cq| place.is_of(cq)) {
            return Err(not_of_this_place());
        }
        queues.try_for_each(|cq| cq.refuse_solicited("Wait::next"))
    }

    fn fill(&mut self, mut place: Place, kept: Kept) {
        place.is_used = true;
        let member = place.member;
        let Some(slot) = self.members.get_mut(member) else {
            return;
        };
        slot.kept = kept;
        slot.marks.may_have_completions();
        self.list(member);
    }

    /// Returns a connection. `None` if it was removed, or if the member is no connection.
    #[must_use]
    pub fn conn(&self, member: Member) -> Option<&Conn> {
        match &self.members.get(member)?.kept {
            Kept::Conn(conn) => Some(conn),
            _ => None,
        }
    }

    /// Returns an endpoint, as [`conn`](Self::conn).
    #[must_use]
    pub fn ep(&self, member: Member) -> Option<&Ep> {
        match &self.members.get(member)?.kept {
            Kept::Ep(ep) => Some(ep),
            _ => None,
        }
    }

    /// Returns a shared receive queue, as [`conn`](Self::conn).
    #[must_use]
    pub fn srq(&self, member: Member) -> Option<&Srq> {
        match &self.members.get(member)?.kept {
            Kept::Srq(srq) => Some(srq),
            _ => None,
        }
    }

    /// Takes a connection out, and returns it. `None` as [`conn`](Self::conn).
    ///
    /// Its queues stay on the wait's channel, where their events are ignored from here on. So poll
    /// them ([`Cq::get_wc`]), [`close`](Conn::close) the connection, [`cut it off`](Conn::cut_off)
    /// or drop it: its methods that wait for completions return errors. It may outlive the wait.
    pub fn remove(&mut self, member: Member) -> Option<Conn> {
        self.conn(member)?;
        match self.take_out(member) {
            Kept::Conn(conn) => {
                conn.on_end_of_waits(None);
                Some(*conn)
            }
            _ => None,
        }
    }

    /// Takes an endpoint out, and returns it. `None` as [`ep`](Self::ep).
    pub fn remove_ep(&mut self, member: Member) -> Option<Ep> {
        self.ep(member)?;
        match self.take_out(member) {
            Kept::Ep(ep) => Some(ep),
            _ => None,
        }
    }

    /// Takes a shared receive queue out, and returns it, as [`remove`](Self::remove).
    pub fn remove_srq(&mut self, member: Member) -> Option<Srq> {
        self.srq(member)?;
        match self.take_out(member) {
            Kept::Srq(srq) => Some(srq),
            _ => None,
        }
    }

    fn take_out(&mut self, member: Member) -> Kept {
        if let Some(slot) = self.members.get(member) {
            let (keep_alive, rested) = (slot.marks.keep_alive, slot.marks.rested);
            for (at, timer) in [(keep_alive, Timer::KeepAlive), (rested, Timer::Rested)] {
                if let Some(at) = at {
                    self.timers.remove(&(at, member, timer));
                }
            }
        }
        let kept = self.members.free(member);
        kept.unwatch(&self.channels);
        kept
    }
}

#[cold]
fn not_of_this_place() -> Error {
    Error::invalid(
        "its completion queues were not made for this place: make it with the settings that Place::cfg or \
         Place::srq_cfg returns",
    )
}
