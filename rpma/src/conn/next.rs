//! [`Conn::next`]: one wait for all completions and events of a connection. For many connections:
//! [`Wait`](crate::wait::Wait).
//!
//! It polls before it sleeps and after it has taken an event. Taking an event arms the queue again,
//! and happens only when the queues are empty. So an event stays in its channel, for others that
//! sleep, as long as there may be something to poll. Taking one is one read, because the sleep has
//! shown that it is there ([`EventsGone`]). Other threads may leave completions without an event:
//! `Conn::wait_for` leaves those that come after its own. They are found within [`BOUND`], because
//! no sleep is longer.

use std::iter;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::Conn;
use crate::cq::{Cq, Got};
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::looking::{self, BOUND, EVENTS, Vain};
use crate::queues::Queues;
use crate::verbs::{CompChannel, Deadline, Wc};

const NOTHING: Error = Error::TimedOut("neither a completion nor an event of the connection came");

/// The result of [`Conn::next`]: completions, or one event of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a connection has these two")]
pub enum Next {
    /// The number of completions, at least 1. They are at the beginning of the slice that was
    /// given to the call.
    Completions(usize),
    /// An event of the connection. All completions that had come before were returned before.
    Event(ConnEvent),
}

/// The number of events that had gone from a connection's channels before a sleep. If it is the same
/// afterwards, an event that the sleep has reported is still there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventsGone {
    main: u64,
    of_receives: u64,
}

/// The channel of a connection's queues, and that of receives if it is another one.
pub(super) type Channels<'conn> = (&'conn Arc<CompChannel>, Option<&'conn Arc<CompChannel>>);

impl From<Channels<'_>> for EventsGone {
    #[inline]
    fn from((main, of_receives): Channels<'_>) -> Self {
        Self {
            main: main.gone(),
            of_receives: of_receives.map_or(0, |channel| channel.gone()),
        }
    }
}

impl EventsGone {
    /// Takes an event of each channel that a sleep has reported, and arms its queue: the next
    /// completion gives another event. Returns whether one was there.
    #[inline]
    fn take_reported(
        self,
        (main, own): Channels<'_>,
        of_main: bool,
        of_receives: bool,
    ) -> Result<bool> {
        let taken = of_main && main.take_seen(self.main)?;
        match own {
            Some(own) if of_receives => Ok(own.take_seen(self.of_receives)? || taken),
            _ => Ok(taken),
        }
    }
}

impl Conn {
    /// The most descriptors of one connection in a sleep over several.
    pub(crate) const WATCHED: usize = 4;

    /// Waits for completions of either queue of the connection, or an event of the connection, for
    /// at most `limit` (`Duration::MAX` is no limit). Returns the first that comes. It misses no
    /// completion, even if other threads poll or wait meanwhile: completions that they leave are
    /// found within a second.
    ///
    /// If the limit is 0, it looks once. When it returns [`Error::TimedOut`], all queues are
    /// empty, and each queue gives an event for its next completion. So the program may then wait
    /// for the descriptor of [`get_next_fd`](Self::get_next_fd), or for the descriptors of the
    /// connection and its queues. If a descriptor is in non-blocking mode, the call still waits
    /// until its limit.
    ///
    /// It returns completions before events. So when the connection ends, the completions that are
    /// in the queues are returned before [`ConnEvent::Closed`]. More completions may follow the
    /// event, because the last data of the peer can be slower than the notice of its end. Call
    /// again until the call returns [`Error::TimedOut`]. If the connection fails early, its flushed
    /// receives may be returned before [`ConnEvent::Established`].
    ///
    /// It does not return receives that complete in a shared receive queue's own queue: wait for
    /// them with [`Srq::get_rcq`](crate::Srq::get_rcq).
    ///
    /// A member of a [`Wait`](crate::wait::Wait) needs [`Wait::next`](crate::wait::Wait::next).
    /// For other waits, see [which wait to
    /// use](crate::guide::completion_events#which-wait-to-use).
    ///
    /// If the peer's host is gone, the call returns the end of an idle connection only with a
    /// keep-alive ([`ConnCfg::set_keep_alive`](crate::ConnCfg::set_keep_alive)), which probes the
    /// peer.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the limit has passed. [`Error::NotConnected`] if the device has
    /// reported an error of the queue pair, or the keep-alive has ended the connection, and the
    /// queues are empty. [`Error::InvalidArgument`] if there is no room for a completion, if the
    /// connection is on a [`CompletionChannel`](crate::CompletionChannel) or a member of a `Wait`,
    /// or if the queue for receives gives events for solicited completions only
    /// ([`Notify::Solicited`](crate::Notify::Solicited)). [`Error::Provider`] if `ibv_poll_cq`,
    /// `ibv_get_cq_event`, `ibv_req_notify_cq`, `rdma_get_cm_event` or `poll` fails, or as
    /// [`next_event`](Self::next_event).
    pub fn next(&self, wcs: &mut [Wc], limit: Duration) -> Result<Next> {
        if wcs.is_empty() || !self.has_own_channels {
            refuse_no_room(wcs)?;
            return Err(on_a_completion_channel());
        }
        // The usual case: one queue, and a completion is there.
        if self.queues.rcq.is_none() {
            let polled = self.queues.cq.polled().get_wc(wcs)?;
            if polled > 0 {
                return Ok(Next::Completions(polled));
            }
        }
        self.next_later(wcs, limit)
    }

    /// As [`next`](Self::next), if no completion was there at once, or there are two queues.
    #[inline(never)]
    fn next_later(&self, wcs: &mut [Wc], limit: Duration) -> Result<Next> {
        if let Some(rcq) = &self.queues.rcq {
            rcq.refuse_solicited("Conn::next")?;
        }
        // Before the clock is asked, which costs more.
        if let Some(next) = self.look(wcs)? {
            return Ok(next);
        }
        let deadline = Deadline::after(limit);
        match self.spin(wcs, deadline)? {
            Some(next) => Ok(next),
            None => self.next_until(wcs, deadline),
        }
    }

    /// Polls for a while before the caller sleeps: see
    /// [`ConnCfg::set_spin`](crate::ConnCfg::set_spin). The caller has just polled the queues until
    /// they were empty.
    pub(crate) fn spin(&self, wcs: &mut [Wc], deadline: Deadline) -> Result<Option<Next>> {
        let time = self.spin_time();
        if time.is_zero() {
            return Ok(None);
        }
        let due = self.watch_peer();
        if self.has_kept_event() {
            return Ok(None);
        }
        let until = due.map_or(deadline, |due| deadline.earlier(Deadline::At(due)));
        looking::spin(time, until, || self.look(wcs).transpose()).transpose()
    }

    /// As [`next`](Self::next), for a caller that has just polled the queues until they were empty.
    #[inline(never)]
    pub(crate) fn next_until(&self, wcs: &mut [Wc], deadline: Deadline) -> Result<Next> {
        let channels = self.channels()?;
        let mut vain = Vain::default();
        loop {
            self.is_empty_now();
            let due = self.watch_peer();
            if let Some(event) = self.kept_event() {
                return Ok(Next::Event(event));
            }
            let until = due.map_or(deadline, |due| deadline.earlier(Deadline::At(due)));
            let before = EventsGone::from(channels);
            let (watched, count) = self.watched(channels);
            let [event, of_main, of_own] = watched;
            let mut fds = [self.device_fd(), event, of_main, of_own];
            self.sleep(&mut fds[..=count], until.earlier(Deadline::after(BOUND)))?;
            let [_, event, of_main, of_own] = fds.map(|fd| !fd.revents().is_empty());
            let taken = before.take_reported(channels, of_main, of_own);
            // A channel of a device that is gone fails each time: other results come first.
            if let Some(next) = self.look_again(wcs, event)? {
                taken.inspect_err(not_told).ok();
                return Ok(next);
            }
            // After one event may be another, of a queue that is not armed. A program that waits for
            // the descriptor's next edge would miss completions there.
            let may_be_more = taken?;
            if deadline.has_passed() && !(may_be_more && vain.goes_on()) {
                return Err(NOTHING);
            }
        }
    }

    /// Sleeps as [`next`](Self::next) does, but polls nothing: for a thread that sleeps for others
    /// as well, which poll meanwhile. It takes the events. The caller has polled the queues until
    /// they were empty, and does so again. Returns whether something was there.
    ///
    /// An error that comes with the end of the connection is its end as well.
    pub(crate) fn sleep_for_all(&self, deadline: Deadline) -> Result<bool> {
        let channels = self.channels()?;
        let due = self.watch_peer();
        if self.has_kept_event() {
            return self.take_events().map(|()| true);
        }
        let until = due.map_or(deadline, |due| deadline.earlier(Deadline::At(due)));
        // These steps are written out in `next_until` too: one function for both makes a commit that
        // sleeps 15 instructions dearer, and 44 if it is not inlined.
        let before = EventsGone::from(channels);
        let (watched, count) = self.watched(channels);
        let [event, of_main, of_own] = watched;
        let mut fds = [self.device_fd(), event, of_main, of_own];
        self.sleep(&mut fds[..=count], until.earlier(Deadline::after(BOUND)))?;
        let [_, event, of_main, of_own] = fds.map(|fd| !fd.revents().is_empty());
        let taken = before.take_reported(channels, of_main, of_own);
        // A channel of a device that is gone fails each time: other results come first.
        if event {
            self.take_events()?;
        }
        self.end_of_waits()?;
        Ok(taken? || event)
    }

    pub(crate) fn take_events(&self) -> Result<()> {
        for _ in 0..EVENTS {
            match self.event_now() {
                Ok(_) => {}
                // Another thread has taken it, or there are no more.
                Err(Error::NoEvent) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn end_of_waits(&self) -> Result<()> {
        self.queues.slots.end_of_waits().map_or(Ok(()), Err)
    }

    /// See [`ConnCfg::set_spin`](crate::ConnCfg::set_spin).
    pub(crate) fn spin_time(&self) -> Duration {
        self.queues.spin
    }

    /// The descriptors of its events, of its channel, and of that for receives; and how many of
    /// them count.
    #[inline]
    fn watched<'conn>(
        &'conn self,
        (main, of_receives): Channels<'conn>,
    ) -> ([PollFd<'conn>; 3], usize) {
        let own = of_receives.unwrap_or(main);
        let fds = [
            PollFd::new(self, PollFlags::IN),
            PollFd::new(main, PollFlags::IN),
            PollFd::new(own, PollFlags::IN),
        ];
        (fds, 2 + usize::from(of_receives.is_some()))
    }

    /// See [`EventsGone`].
    pub(crate) fn events_gone(&self) -> Result<EventsGone> {
        self.channels().map(EventsGone::from)
    }

    pub(crate) fn can_be_watched(&self) -> Result<()> {
        self.channels()?;
        self.queues.slots.bell().fd().map(drop)
    }

    /// The descriptors for a sleep over several connections: that of its end, if another thread has
    /// taken it, and then as [`watched`](Self::watched).
    pub(crate) fn watched_with_bell(&self) -> impl Iterator<Item = PollFd<'_>> {
        let bell = self.queues.slots.bell().fd();
        // Without a descriptor for it, one of the others stands in its place.
        let bell = bell.unwrap_or_else(|_| self.as_fd());
        let bell = PollFd::from_borrowed_fd(bell, PollFlags::IN);
        let own = self.channels().map(|channels| {
            let (fds, count) = self.watched(channels);
            fds.into_iter().take(count)
        });
        iter::once(bell).chain(own.into_iter().flatten())
    }

    /// Takes the events of its channels. The next ones of `reported` are for the descriptors of
    /// [`watched_with_bell`](Self::watched_with_bell). Returns whether an event was there, and whether
    /// something else was reported.
    pub(crate) fn take_reported_with_bell(
        &self,
        before: EventsGone,
        reported: &mut impl Iterator<Item = bool>,
    ) -> Result<(bool, bool)> {
        let mut next = || reported.next().unwrap_or_default();
        let (bell, event, of_main) = (next(), next(), next());
        let channels = self.channels()?;
        let of_receives = channels.1.is_some() && next();
        let taken = before.take_reported(channels, of_main, of_receives)?;
        Ok((taken, bell || event))
    }

    pub(crate) fn device_fd(&self) -> PollFd<'_> {
        let channel = self.queues.cq.queue().channel();
        PollFd::from_borrowed_fd(channel.device_fd(), PollFlags::IN)
    }

    /// Sleeps until one of these is readable, or the deadline has passed: then it returns `false`.
    /// The first one is that of its device.
    pub(crate) fn sleep(&self, fds: &mut [PollFd<'_>], deadline: Deadline) -> Result<bool> {
        self.queues.cq.queue().channel().sleep(fds, deadline)
    }

    /// Polls both queues, for [`Wait`](crate::wait::Wait).
    pub(crate) fn poll(&self, wcs: &mut [Wc]) -> Result<usize> {
        match self.look(wcs)? {
            Some(Next::Completions(count)) => Ok(count),
            _ => Ok(0),
        }
    }

    /// Polls for the completion of the operation with this number. `None`: it has more queues than
    /// one, or a channel that is not its own.
    #[inline(always)]
    pub(crate) fn poll_for(&self, number: u64, wc: &mut Wc) -> Option<Result<Got, Box<Error>>> {
        let has_one = self.has_own_channels && self.queues.rcq.is_none();
        has_one.then(|| self.queues.cq.polled().get_one(number, wc))
    }

    /// Polls the queues as [`next`](Self::next) does, and does nothing else.
    #[inline]
    pub(crate) fn poll_own(&self, wcs: &mut [Wc]) -> Result<usize> {
        match &self.queues.rcq {
            None if self.has_own_channels => self.queues.cq.polled().get_wc(wcs),
            Some(_) if self.has_own_channels => self.poll(wcs),
            _ => Err(on_a_completion_channel()),
        }
    }

    /// The event that is there, or [`Error::NoEvent`].
    pub(crate) fn event_now(&self) -> Result<ConnEvent> {
        self.event_until(Deadline::after(Duration::ZERO))
    }

    /// Calls this when completions may be missing from then on, and when a probe fails; `None` ends
    /// that. Returns whether the first has happened before.
    pub(crate) fn on_end_of_waits(&self, call: Option<Box<dyn Fn() + Send + Sync>>) -> bool {
        self.queues.slots.bell().set_call(call)
    }

    /// Its channels. An error if the program has made them.
    #[inline]
    pub(super) fn channels(&self) -> Result<Channels<'_>> {
        if self.is_on_a_completion_channel() {
            return Err(on_a_completion_channel());
        }
        let main = self.queues.cq.queue().channel();
        let of_receives = self.queues.rcq.as_ref().map(|rcq| rcq.queue().channel());
        Ok((
            main,
            of_receives.filter(|channel| !Arc::ptr_eq(channel, main)),
        ))
    }

    /// Whether one of its queues uses a channel that the program has made.
    #[inline(always)]
    pub(super) fn is_on_a_completion_channel(&self) -> bool {
        let Queues {
            cq, rcq, channel, ..
        } = &self.queues;
        channel.is_none() && (cq.is_shared() || rcq.as_ref().is_some_and(Cq::is_shared))
    }

    fn look(&self, wcs: &mut [Wc]) -> Result<Option<Next>> {
        let queues = &self.queues;
        let mut both = [Some(&queues.cq), queues.rcq.as_ref()];
        // One that is never empty must not keep the other one's from being seen.
        if queues.rcq.is_some() && self.receives_next.fetch_not(Ordering::Relaxed) {
            both.reverse();
        }
        let mut count = 0;
        for cq in both.into_iter().flatten() {
            match cq.get_wc(&mut wcs[count..]) {
                Ok(polled) => count += polled,
                // It fails again next time; the polled completions are not lost.
                Err(error) if count > 0 => not_told(&error),
                Err(error) => return Err(error),
            }
        }
        Ok((count > 0).then_some(Next::Completions(count)))
    }

    /// Returns the completions after a sleep, or the event if one was seen.
    fn look_again(&self, wcs: &mut [Wc], event: bool) -> Result<Option<Next>> {
        if let Some(next) = self.look(wcs)? {
            return Ok(Some(next));
        }
        if event {
            match self.event_now() {
                // Another thread has taken it.
                Err(Error::NoEvent) => {}
                event => return event.map(|event| Some(Next::Event(event))),
            }
        }
        match self.queues.slots.end_of_waits() {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }
}

#[cold]
fn on_a_completion_channel() -> Error {
    Error::invalid(
        "the connection is on a completion channel, whose events are also those of others: wait with \
         Wait::next if it was made for a Wait, or else with CompletionChannel::wait",
    )
}

/// A failure that comes with something to return. It comes again if it lasts.
#[cold]
fn not_told(error: &Error) {
    log::warn!("{error}; something else came first");
}

pub(crate) fn refuse_no_room(wcs: &[Wc]) -> Result<()> {
    if wcs.is_empty() {
        Err(Error::invalid("no room for completions: pass one at least"))
    } else {
        Ok(())
    }
}
