//! [`Core`]: the part that the handles of a reactor share with its driver.
//!
//! One epoll watches all descriptors: the completion channel, the device, the wake-up of the
//! driver, and one descriptor of the connection manager for each member. The last kind is
//! edge-triggered, so each member takes all its events at once. A runtime watches the epoll alone.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rpma::thread::{self, JoinHandle};
use rpma::{CompletionChannel, Error, Peer, Result};
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::table::{Member, Table};
use super::timers::{Due, Timer, Timers};
use crate::error::{clocks_differ, driver_is_gone, driver_never_ran, provider};
use crate::primitives::Mutex;

/// The data of the descriptors that are not a member's.
pub(super) const CHANNEL: u64 = u64::MAX;
pub(super) const DEVICE: u64 = u64::MAX - 1;
pub(super) const WAKE: u64 = u64::MAX - 2;

// How the driver is.
const NEW: u8 = 0;
const RUNS: u8 = 1;
const GONE: u8 = 2;
/// It has ended, because its runtime has another clock.
const CLOCKS: u8 = 3;

/// For how long waits yield to a driver that has not run yet, in real time: it may be the fabric's
/// time that waits for the driver. A driver on the same thread runs between two polls; one on
/// another thread needs some time.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Core {
    peer: Peer,
    channel: CompletionChannel,
    epoll: OwnedFd,
    wake: OwnedFd,
    table: Mutex<Table>,
    timers: Mutex<Timers>,
    driver: AtomicU8,
    closed: AtomicBool,
}

impl Core {
    pub(crate) fn new(peer: &Peer) -> Result<Self> {
        let flags = epoll::CreateFlags::CLOEXEC;
        let wake_flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let core = Self {
            peer: peer.clone(),
            channel: CompletionChannel::new(peer)?,
            epoll: epoll::create(flags).map_err(|errno| provider("epoll_create1", errno))?,
            wake: eventfd(0, wake_flags).map_err(|errno| provider("eventfd2", errno))?,
            table: Mutex::default(),
            timers: Mutex::default(),
            driver: AtomicU8::new(NEW),
            closed: AtomicBool::new(false),
        };
        core.watch(core.channel.as_fd(), CHANNEL, epoll::EventFlags::IN)?;
        core.watch(core.wake.as_fd(), WAKE, epoll::EventFlags::IN)?;
        Ok(core)
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    pub(super) fn watch(
        &self,
        fd: BorrowedFd<'_>,
        data: u64,
        flags: epoll::EventFlags,
    ) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(data), flags)
            .map_err(|errno| provider("epoll_ctl", errno))
    }

    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        if let Err(errno) = epoll::delete(&self.epoll, fd) {
            log::debug!("epoll_ctl: {errno}");
        }
    }

    pub(crate) fn join(&self, member: Weak<dyn Member>) -> u64 {
        self.table.lock().insert(member)
    }

    /// Watches a descriptor of the member with this key from now on.
    pub(crate) fn tell(&self, key: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.watch(fd, key, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Ends what [`tell`](Self::tell) began.
    pub(crate) fn tell_no_more(&self, fd: BorrowedFd<'_>) {
        self.unwatch(fd);
    }

    pub(crate) fn replace(&self, key: u64, member: Weak<dyn Member>) {
        self.table.lock().replace(key, member);
        // It may be the first connection: there is a time for the next sweep.
        self.wake_driver();
    }

    pub(crate) fn leave(&self, key: u64) {
        let left = self.table.lock().remove(key);
        drop(left);
    }

    #[inline]
    pub(super) fn member(&self, key: u64) -> Option<Arc<dyn Member>> {
        self.table.lock().get(key)
    }

    /// One after the other, without the lock between them, and without memory for them.
    pub(super) fn members(&self) -> impl Iterator<Item = Arc<dyn Member>> {
        let members = (0..).map_while(|index| self.table.lock().at(index));
        members.flatten()
    }

    pub(super) fn has_members(&self) -> bool {
        !self.table.lock().is_empty()
    }

    pub(crate) fn set_timer(&self, at: Instant, due: Due) -> Timer {
        let (timer, is_first) = self.timers.lock().add(at, due);
        if is_first {
            self.wake_driver();
        }
        timer
    }

    pub(crate) fn take_timer(&self, timer: Timer) {
        let due = self.timers.lock().remove(timer);
        drop(due);
    }

    pub(super) fn first_timer(&self) -> Option<Instant> {
        self.timers.lock().first()
    }

    pub(super) fn due(&self, now: Instant) -> Option<Due> {
        self.timers.lock().take(now)
    }

    /// Takes one, whenever it is due.
    pub(super) fn due_any(&self) -> Option<Due> {
        let mut timers = self.timers.lock();
        let first = timers.first()?;
        timers.take(first)
    }

    /// Makes the epoll readable.
    fn wake_driver(&self) {
        // It cannot fail: the counter is far from full.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(super) fn take_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(crate) fn driver_runs(&self) {
        if self.driver.load(Ordering::Relaxed) != RUNS {
            self.driver.store(RUNS, Ordering::SeqCst);
        }
    }

    /// The driver wakes no task any more.
    pub(super) fn driver_goes(&self) {
        self.driver.fetch_max(GONE, Ordering::SeqCst);
    }

    /// Nor will it, because its runtime has another clock. Returns the error.
    pub(super) fn clocks_differ(&self) -> Error {
        self.driver.fetch_max(CLOCKS, Ordering::SeqCst);
        clocks_differ()
    }

    /// Whether the driver can wake the caller, which has left its waker before.
    pub(crate) fn check_driver(&self) -> Result<()> {
        match self.driver.load(Ordering::SeqCst) {
            GONE => Err(driver_is_gone()),
            CLOCKS => Err(clocks_differ()),
            _ => Ok(()),
        }
    }

    pub(crate) fn driver_has_run(&self) -> bool {
        self.driver.load(Ordering::Relaxed) != NEW
    }

    /// The last handle is gone.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake_driver();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A handle. With the last one the driver ends.
#[derive(Debug)]
pub(crate) struct Handle {
    core: Arc<Core>,
    /// The driver's own thread, if it has one.
    thread: OnceLock<JoinHandle<()>>,
}

impl Handle {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            thread: OnceLock::new(),
        }
    }

    /// The driver is on this thread, which ends with the last handle.
    pub(crate) fn set_thread(&self, thread: JoinHandle<()>) {
        // There is one driver.
        let _ = self.thread.set(thread);
    }
}

impl std::ops::Deref for Handle {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
        if let Some(thread) = self.thread.take() {
            // It may be the driver that drops the last connection.
            if thread.thread().id() != thread::current().id() {
                // It has not panicked, or has said so.
                let _ = thread.join();
            }
        }
    }
}

/// A wait for a driver that has not run yet: without it, no task would be woken.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Pending while the driver has not run, and an error if it does not. The task is polled again
    /// after others, so that the driver runs.
    pub(crate) fn poll(&mut self, core: &Core, cx: &Context<'_>) -> Poll<Result<()>> {
        if core.driver_has_run() {
            return Poll::Ready(core.check_driver());
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Poll::Ready(Err(driver_never_ran()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
