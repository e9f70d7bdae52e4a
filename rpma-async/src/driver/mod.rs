//! [`Driver`]: takes events, wakes sleepers, and handles timers that are due.

mod core;
mod table;
mod timers;
mod watch;

use std::fmt;
use std::future::Future;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rpma::wait::{Place, Wait};
use rpma::{ConnCfg, Error, Result, Wc};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use self::core::{CHANNEL, DEVICE, WAKE};
pub(crate) use self::core::{Core, Handle, Patience};
pub(crate) use self::table::Member;
pub(crate) use self::timers::{Due, Timer};
use self::watch::Watch;
pub(crate) use self::watch::of_this_runtime;
use crate::clock::now;
use crate::primitives::wake;

/// Descriptors that one turn reports at most.
const REPORTED: usize = 64;
/// The limit of a look that does not wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Completion events that one turn takes at most.
const TAKEN: usize = 256;
/// Turns before other tasks get their turn.
const TURNS: usize = 16;
/// How often the driver looks at all connections. The device may have given a queue pair up, and
/// another wait of the process may have taken that event.
const SWEEP: Duration = Duration::from_secs(1);
/// How much earlier than rpma's clock a runtime may be, because it rounds its times.
const EARLY: Duration = Duration::from_millis(20);

/// Wakes the tasks of a [`Reactor`](crate::Reactor): a future for the program to spawn.
///
/// It ends when the last handle of the reactor, of its connections and of its listeners is
/// dropped. If it is dropped earlier, each wait on a connection, a listener or another object of
/// the reactor fails with [`Error::InvalidArgument`]. If it never runs, they fail after about five
/// seconds. [`Reactor::timeout`](crate::Reactor::timeout) and
/// [`Monitor::until`](crate::Monitor::until) return `None` then.
/// [`Pool::lease`](crate::Pool::lease) still waits.
///
/// # Errors
///
/// [`Error::Provider`] if the runtime cannot watch the descriptor any more.
/// [`Error::InvalidArgument`] if the runtime's clock is paused, and the fabric does not follow it
/// (`rpma::sim::Fabric::follow`).
#[must_use = "without its driver a reactor wakes no task: spawn it"]
pub struct Driver {
    watch: Watch,
    turns: Turns,
}

impl Driver {
    pub(crate) fn new(watch: Watch, turns: Turns) -> Self {
        Self { watch, turns }
    }
}

impl Future for Driver {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { watch, turns } = &mut *self;
        turns.core.driver_runs();
        let mut is_timed = false;
        for _ in 0..TURNS {
            if turns.is_stale {
                turns.find_next();
                // Its mark comes with a wake-up of the driver.
                if turns.core.is_closed() {
                    return Poll::Ready(Ok(()));
                }
                watch.set_time(turns.next);
                is_timed = false;
            }
            if !is_timed {
                is_timed = true;
                turns.is_stale = watch.poll_time(cx).is_ready();
                if turns.is_stale && turns.is_early() {
                    let error = turns.core.clocks_differ();
                    turns.end();
                    return Poll::Ready(Err(error));
                }
            }
            match watch.poll_take(cx, || turns.take_now()) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(cause)) => {
                    turns.end();
                    return Poll::Ready(Err(Error::Provider {
                        call: "the runtime's watch of a descriptor",
                        cause,
                        hint: None,
                    }));
                }
                // A time has come.
                Poll::Pending if turns.is_stale => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// The work of a driver, on any runtime or on a thread of its own.
pub(crate) struct Turns {
    core: Arc<Core>,
    /// It takes the events of the device, and gets those that other waits have taken.
    device: Wait,
    /// Without one it would not watch the device.
    _place: Place,
    /// When all connections are looked at next.
    sweep: Option<Instant>,
    /// The time of the next timer.
    next: Option<Instant>,
    /// `next` has come, or another thread has set an earlier timer.
    is_stale: bool,
    channel_is_gone: bool,
}

impl Turns {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        let mut device = Wait::new()?;
        let place = device.place();
        place.cfg(core.peer(), &ConnCfg::new())?;
        core.watch(device.as_fd(), DEVICE, epoll::EventFlags::IN)?;
        Ok(Self {
            core: Arc::clone(core),
            device,
            _place: place,
            sweep: None,
            next: None,
            is_stale: true,
            channel_is_gone: false,
        })
    }

    /// Does all turns on this thread, until the last handle is gone.
    pub(crate) fn run(mut self) {
        self.core.driver_runs();
        loop {
            if self.is_stale {
                self.find_next();
            }
            if self.core.is_closed() {
                return;
            }
            self.is_stale = self.next.is_some_and(|next| next <= now());
            let next = self.next;
            self.wait(next);
        }
    }

    /// Waits until this time for events, without one for ever, and handles them.
    #[cfg(not(feature = "sim"))]
    fn wait(&mut self, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        self.take(left.as_ref(), TAKEN);
    }

    /// In the fabric's time and order, as all waits of rpma.
    #[cfg(feature = "sim")]
    fn wait(&mut self, until: Option<Instant>) {
        // Otherwise a signal, or a time has come: both are looked at.
        if let Ok(true) = rpma::sim::wait_to_serve(&[self.core.epoll().as_fd()], until) {
            self.take(Some(&NOW), TAKEN);
        }
    }

    /// Handles the timers that are due, and finds the next one.
    #[cold]
    fn find_next(&mut self) {
        self.is_stale = false;
        self.next = self.do_due();
    }

    /// Handles the timers that are due, and returns the time of the next one.
    fn do_due(&mut self) -> Option<Instant> {
        let has_members = self.core.has_members();
        if !has_members && self.core.first_timer().is_none() {
            self.sweep = None;
            return None;
        }
        let now = now();
        while let Some(due) = self.core.due(now) {
            match due {
                Due::Wake(waker) => wake(waker),
                Due::KeepAlive(member) => {
                    if let Some(member) = member.upgrade() {
                        member.keep_alive();
                    }
                }
            }
        }
        if !has_members {
            self.sweep = None;
        } else if self.sweep.is_none_or(|sweep| sweep <= now) {
            if self.sweep.is_some() {
                self.sweep();
            }
            self.sweep = now.checked_add(SWEEP);
        }
        [self.core.first_timer(), self.sweep]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles the events that are there. Returns whether it has taken all of them.
    fn take_now(&mut self) -> bool {
        // Most sleeps end with one completion event. Another look costs less than an attempt to
        // take a second event.
        self.take(Some(&NOW), 1) || self.take(Some(&NOW), TAKEN)
    }

    /// Waits for events for at most `limit` (without one, for ever), and handles them, at most so
    /// many of completions. Returns whether it has taken all of them.
    #[inline(always)]
    fn take(&mut self, limit: Option<&Timespec>, most: usize) -> bool {
        let mut room = [const { MaybeUninit::uninit() }; REPORTED];
        match epoll::wait(self.core.epoll(), &mut room, limit) {
            Ok(([], _)) => true,
            Ok((reported, _)) => self.handle(reported, most),
            Err(Errno::INTR) => false,
            Err(errno) => {
                log::error!("epoll_wait failed: {errno}");
                true
            }
        }
    }

    fn handle(&mut self, reported: &[epoll::Event], most: usize) -> bool {
        let mut all = reported.len() < REPORTED;
        let mut looked = None;
        for event in reported {
            match event.data.u64() {
                CHANNEL => all &= self.take_completions(most),
                DEVICE => self.take_device_events(),
                WAKE => {
                    self.core.take_wake();
                    self.is_stale = true;
                }
                // A set has a descriptor for each replica, and one look takes the events of all.
                key if looked == Some(key) => {}
                key => {
                    looked = Some(key);
                    if let Some(member) = self.core.member(key) {
                        member.event();
                    }
                }
            }
        }
        all
    }

    fn take_completions(&mut self, most: usize) -> bool {
        for _ in 0..most {
            match self.core.channel().try_take() {
                Ok(None) => return true,
                Ok(Some((key, kind))) => {
                    if let Some(member) = self.core.member(key) {
                        member.completed(kind);
                    }
                }
                Err(error) => {
                    if !self.channel_is_gone {
                        log::error!("{error}; no operation that sleeps is woken any more");
                        self.channel_is_gone = true;
                    }
                    self.core.unwatch(self.core.channel().as_fd());
                    for member in self.core.members() {
                        member.channel_failed(&error);
                    }
                    return true;
                }
            }
        }
        false
    }

    fn take_device_events(&mut self) {
        let mut wcs = [Wc::default()];
        loop {
            match self.device.next(&mut wcs, Duration::ZERO) {
                Ok(Some(happened)) => log::warn!("{happened:?}"),
                Ok(None) => break,
                Err(error) => {
                    log::error!("{error}");
                    break;
                }
            }
        }
        self.sweep();
    }

    fn sweep(&self) {
        for member in self.core.members() {
            member.look();
        }
    }

    /// Whether the time of the next timer has come for the runtime, and not for rpma: then the
    /// driver would set it again and again.
    fn is_early(&self) -> bool {
        self.next.is_some_and(|next| now() + EARLY < next)
    }

    /// Wakes every sleeper for the last time: each of them fails.
    fn end(&self) {
        self.core.driver_goes();
        while let Some(due) = self.core.due_any() {
            if let Due::Wake(waker) = due {
                wake(waker);
            }
        }
        for member in self.core.members() {
            member.wake_everybody();
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.end();
    }
}
