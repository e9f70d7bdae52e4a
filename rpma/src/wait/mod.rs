//! One wait for everything: [`Wait`].
//!
//! A server has an endpoint, many connections, and perhaps a shared receive queue. A [`Wait`] owns
//! them as its members, and [`Wait::next`] returns the events of any of them, with the name of the
//! member. [Completion events](crate::guide::completion_events#which-wait-to-use) compares it with
//! the other ways to wait.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use rpma::wait::{Happened, Wait};
//! use rpma::{ConnCfg, ConnEvent, Ep, Peer, Wc};
//!
//! fn serve(peer: &Peer, ep: Ep) -> rpma::Result<()> {
//!     let mut wait = Wait::new()?;
//!     wait.add_ep(ep)?;
//!     let mut wcs = [Wc::default(); 16];
//!     while let Some(happened) = wait.next(&mut wcs, Duration::from_secs(15))? {
//!         match happened {
//!             // A client asks. Its queues are made for this wait.
//!             Happened::Request(_endpoint, request) => {
//!                 let place = wait.place();
//!                 let cfg = place.cfg(peer, &ConnCfg::new())?;
//!                 let accepted = request.into_req(peer, &cfg).and_then(|req| Ok(req.connect(&[])?));
//!                 match accepted {
//!                     Ok(conn) => drop(wait.add(place, conn)?),
//!                     Err(error) => eprintln!("a client was not accepted: {error}"),
//!                 }
//!             }
//!             Happened::Completions(client, count) => println!("{client:?}: {:?}", &wcs[..count]),
//!             Happened::Event(client, ConnEvent::Established) => println!("{client:?} is here"),
//!             // The client is gone. Dropping its connection frees it.
//!             Happened::Event(client, event) if event.is_end() => drop(wait.remove(client)),
//!             Happened::Failed(member, error) => {
//!                 eprintln!("{member:?}: {error}");
//!                 drop(wait.remove(member));
//!             }
//!             other => println!("{other:?}"),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # How it works
//!
//! One epoll holds a descriptor for the events of each endpoint and each connection. The
//! completion queues of all members of one device share a completion channel, which is one
//! descriptor more. A completion event carries the key of its queue, and the key is the [`Member`].
//! After it has taken an event, the wait arms the queue again, and then lists the member as ready.
//! The member stays in the list until a poll returns fewer completions than fit. Then the queue is
//! empty, and its next completion gives an event.
//!
//! A turn is one poll of the member at the head of that list. If it fills the caller's room, the
//! member goes to the end of the list. The wait asks epoll after at most 8 turns, even while the
//! list is not empty. So the cost of a call depends on the number of ready members, not of
//! registered ones.

mod adding;
mod inbox;
mod member;
mod place;
mod ready;
mod taking;
mod timers;
mod turn;

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

pub use self::inbox::Waker;
pub use self::member::Member;
use self::member::{Kept, Members};
use self::place::Channels;
pub use self::place::Place;
use self::ready::{Ready, ReadyList};
use self::timers::Timer;
use crate::clock;
use crate::conn::refuse_no_room;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::looking::Vain;
use crate::request::Request;
use crate::verbs::{CqTag, Deadline, DeviceEventKind, Wc};

/// How long an endpoint rests after an error.
const REST: Duration = Duration::from_millis(100);

/// One wait for endpoints, connections, shared receive queues, devices, and wake-ups from other
/// threads.
///
/// It owns its members. Each member is added once. The queues of a connection are made for the
/// wait before it is added ([`place`](Self::place)).
///
/// Dropping it drops its members, which ends their connections.
///
/// # Fairness
///
/// No member is starved: [the
/// guide](crate::guide::completion_events#one-wait-for-many-connections) has the bounds.
///
/// # Threads
///
/// One thread waits. Others may call [`Waker::wake`], and may make the connection of a [`Place`].
pub struct Wait {
    members: Members,
    ready: ReadyList,
    is_wake_listed: bool,
    /// When a member has a turn without an event.
    timers: BTreeSet<(Instant, Member, Timer)>,
    /// A program watches the descriptor.
    is_lent: AtomicBool,
    taken: Vec<(CqTag, Result<()>)>,
    channels: Arc<Channels>,
}

/// The result of [`Wait::next`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Happened {
    /// Operations of this member completed. The second value is the number of completions, which
    /// are at the beginning of the caller's slice. Those of receives may come before
    /// [`ConnEvent::Established`].
    Completions(Member, usize),
    /// An event of this connection. The wait returns up to one slice of the connection's
    /// completions before it. More may follow.
    Event(Member, ConnEvent),
    /// A client asks this endpoint for a connection.
    Request(Member, Request),
    /// This member failed. Each failure is returned once, after the member's completions.
    ///
    /// * A connection: [`Error::NotConnected`] if the device gave its queue pair up. Completions
    ///   and events are still returned after that. Remove the member.
    /// * A connection or a shared receive queue: [`Error::Provider`] if a verb failed. Completions
    ///   and events are still returned after that, except those that come by the failed verb.
    ///   Remove the member.
    /// * An endpoint ([`Ep::next_request`](crate::Ep::next_request)): a request failed, and the
    ///   endpoint goes on. It rests for 100 ms first, so a lasting error returns at most 10 times
    ///   a second.
    Failed(Member, Error),
    /// An event of the device of this name. (Errors of a queue pair are the member's failure.)
    ///
    /// Each wait that has a place on the device gets it, whichever thread took the event.
    Device(Box<str>, DeviceEventKind),
    /// A [`Waker`] was called.
    Woken,
}

impl Wait {
    /// Makes a wait without members. Its completion channels are made when a device is used for
    /// the first time.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `epoll_create1`, `eventfd2` or `epoll_ctl` fails.
    pub fn new() -> Result<Self> {
        Ok(Self {
            members: Members::default(),
            ready: ReadyList::default(),
            is_wake_listed: false,
            timers: BTreeSet::new(),
            is_lent: AtomicBool::new(false),
            taken: Vec::new(),
            channels: Arc::new(Channels::new()?),
        })
    }

    /// Reserves a place for a connection or for a shared receive queue. Make its queues with
    /// [`Place::cfg`] or [`Place::srq_cfg`].
    pub fn place(&mut self) -> Place {
        for left in self.channels.inbox.take_left() {
            self.members.free(left);
        }
        Place {
            member: self.members.reserve(),
            channels: Arc::clone(&self.channels),
            is_used: false,
        }
    }

    /// Waits for the next event, for at most `limit` (`Duration::MAX` is no limit), and returns it.
    /// `None` means that the limit has passed, and that no member was ready after that. If the
    /// limit is 0 it looks and does not sleep.
    ///
    /// Completions go to `wcs`. Its length is the size of a turn: 16 is a good start.
    ///
    /// Completions and events that the program takes by itself, from a member's own methods, are
    /// not returned here.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `wcs` is empty. [`Error::Provider`] if `epoll_wait` or `poll`
    /// fails. A failure of a member is [`Happened::Failed`], and never an error here.
    pub fn next(&mut self, wcs: &mut [Wc], limit: Duration) -> Result<Option<Happened>> {
        refuse_no_room(wcs)?;
        let next = self.next_within(wcs, limit);
        if self.is_lent.load(Ordering::Relaxed) && !self.ready.is_empty() {
            self.channels.inbox.post(|_| {});
        }
        next
    }

    /// The owner of the wait has something to return: the descriptor is readable, if a program
    /// watches it.
    pub(crate) fn keep_readable(&self) {
        if self.is_lent.load(Ordering::Relaxed) {
            self.channels.inbox.post(|_| {});
        }
    }

    fn next_within(&mut self, wcs: &mut [Wc], limit: Duration) -> Result<Option<Happened>> {
        let (mut deadline, mut is_last) = (None, limit.is_zero());
        let mut vain = Vain::default();
        loop {
            while let Some(ready) = self.ready.turn() {
                if let Some(happened) = self.turn(ready, wcs) {
                    return Ok(Some(happened));
                }
            }
            let found = self.look()? || !self.ready.is_empty();
            if found && vain.goes_on() {
                continue;
            }
            if is_last {
                return Ok(None);
            }
            // The clock is not asked while something is ready.
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(limit));
            if !found {
                self.sleep(deadline)?;
                vain = Vain::default();
            }
            is_last = deadline.has_passed();
        }
    }

    fn turn(&mut self, ready: Ready, wcs: &mut [Wc]) -> Option<Happened> {
        let member = match ready {
            Ready::Member(member) => member,
            Ready::Woken => {
                self.is_wake_listed = false;
                return Some(Happened::Woken);
            }
            Ready::Device(device, kind) => return Some(Happened::Device(device, kind)),
            Ready::KeepAlive(member) => {
                self.watch_peer(member);
                return None;
            }
        };
        let slot = self.members.get_mut(member)?;
        let happened = slot.turn(member, &self.channels, wcs);
        slot.marks.is_listed = slot.goes_on();
        match (slot.marks.is_listed, slot.marks.event_is_next) {
            (true, true) => self.ready.push_front(Ready::Member(member)),
            (true, false) => self.ready.push(Ready::Member(member)),
            (false, _) => {}
        }
        if matches!(
            (&slot.kept, &happened),
            (Kept::Ep(_), Some(Happened::Failed(..)))
        ) {
            let at = now_and(REST);
            if let Some(before) = slot.marks.rested.replace(at) {
                self.timers.remove(&(before, member, Timer::Rested));
            }
            self.timers.insert((at, member, Timer::Rested));
        }
        // Its keep-alive has nothing to do any more.
        if matches!(&happened, Some(Happened::Event(_, event)) if event.is_end()) {
            if let Some(due) = slot.marks.keep_alive.take() {
                self.timers.remove(&(due, member, Timer::KeepAlive));
            }
        }
        happened
    }

    fn list(&mut self, member: Member) {
        if let Some(slot) = self.members.get_mut(member) {
            if !std::mem::replace(&mut slot.marks.is_listed, true) {
                self.ready.push(Ready::Member(member));
            }
        }
    }

    fn sleep(&self, deadline: Deadline) -> Result<()> {
        let until = match self.deadline() {
            Some(timer) => deadline.earlier(Deadline::At(timer)),
            None => deadline,
        };
        let mut fds = [PollFd::new(&*self.channels, PollFlags::IN)];
        match clock::poll(&mut fds, until.instant()) {
            // The caller looks and sleeps again.
            Err(Errno::INTR) => Ok(()),
            polled => polled
                .map(drop)
                .map_err(|errno| Error::provider("poll", errno)),
        }
    }

    /// Returns a waker of this wait, for other threads.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.channels.inbox))
    }

    /// Returns the time at which the wait has work to do, even if no event comes earlier: an event
    /// loop calls [`next`](Self::next) at this time. `None` if the wait has no such work. The
    /// answer is good until the next call of `next`.
    ///
    /// Such work is the end of an endpoint's pause after an error, or the next step of a
    /// keep-alive ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)). A thread that
    /// sleeps in `next` does not need this method.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, ..)| *at)
    }

    /// Returns the wait's descriptor, as [`AsRawFd`] does.
    ///
    /// For `poll` and `epoll` only. It is readable when [`next`](Self::next) may have something.
    /// An [event loop](crate::guide::completion_events#event-loops) then calls `next` with a limit
    /// of 0 until it returns `None`, and also at the [`deadline`](Self::deadline). The descriptor
    /// may be readable although `next` then returns `None`.
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

fn now_and(later: Duration) -> Instant {
    clock::now() + later
}

impl AsFd for Wait {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // From here on the descriptor is kept readable while members are listed; they may be
        // already.
        if !self.is_lent.swap(true, Ordering::Relaxed) {
            self.channels.inbox.post(|_| {});
        }
        self.channels.as_fd()
    }
}

impl AsRawFd for Wait {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("members", &self.members)
            .field("deadline", &self.deadline())
            .finish_non_exhaustive()
    }
}
