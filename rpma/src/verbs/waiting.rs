//! Waits of threads: for the next event of a channel, which is taken as well, or for one of several
//! descriptors.
//!
//! A thread sleeps without a lock, and takes the event under the channel's lock. So two guarantees
//! hold. No thread blocks after its limit: another thread may take the event between `poll` and the
//! read, so the read never blocks. And no object is destroyed while its event is being taken,
//! because destroying takes the same lock.
//!
//! A wait that has the device also takes the [events of the device](super::device_events).
//!
//! `take_event`, `sleep`, `readable_now` and the channel's `get_event` are `#[inline]`: as calls they
//! add up to 104 instructions to a commit of a writer that finds its event, and without the word
//! unrelated code elsewhere decides whether they are calls (`cargo xtask bench cost`).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::deadline::Deadline;
use super::device_events::DeviceEvents;
use super::nonblocking::flags;
use crate::bell::Bell;
use crate::clock::{lock, now, poll};
use crate::error::{Error, Result};

/// Takes one event with `get`. `get` runs under the channel's lock, must not block, and returns
/// `None` if there is no event. Its argument is whether an event is there for sure. `Ok(None)` when
/// `deadline` passed or the bell has rung, or at once if the user made `fd` non-blocking.
#[inline]
pub(super) fn take_event<T>(
    fd: BorrowedFd<'_>,
    beside: Beside<'_, '_>,
    turns: &Turns,
    deadline: Deadline,
    mut get: impl FnMut(bool) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let (mut seen, mut was_woken) = (None, false);
    loop {
        beside.tell();
        let before = {
            let turn = turns.acquire();
            let event = get(seen == Some(turns.gone()));
            if !matches!(event, Ok(None)) {
                turn.took();
                return event;
            }
            // Under the lock: `get` may make the descriptor non-blocking for a moment.
            if flags(fd)?.contains(OFlags::NONBLOCK) {
                return Ok(None);
            }
            turns.gone()
        };
        // `get` may have taken something: a thread that sleeps on must not keep it for itself.
        beside.tell();
        if beside.bell.is_some_and(Bell::has_rung) {
            return Ok(None);
        }
        // Others may take each event that wakes this thread: the limit still holds.
        if was_woken && deadline.has_passed() {
            return Ok(None);
        }
        was_woken = true;
        match woken(fd, beside, deadline)? {
            None => return Ok(None),
            Some(readable) => seen = readable.then_some(before),
        }
    }
}

/// A channel's lock, and how many events have gone from the channel, taken or discarded.
///
/// The number grows under the lock, after the event has gone. So if a caller has the lock, and the
/// number is the same as before it saw the channel readable, an event is still there. Reading the
/// number needs no lock: an old one only differs.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lock: Mutex<()>,
    gone: AtomicU64,
}

/// The lock of a channel, for a call that takes an event, or none.
#[derive(Debug)]
pub(super) struct Turn<'channel> {
    turns: &'channel Turns,
    _guard: MutexGuard<'channel, ()>,
}

/// The lock of a channel, for calls that may take events, or discard some.
#[derive(Debug)]
pub(super) struct Hold<'channel>(Turn<'channel>);

impl Turns {
    #[inline]
    pub(super) fn acquire(&self) -> Turn<'_> {
        Turn {
            turns: self,
            _guard: lock(&self.lock),
        }
    }

    #[inline]
    pub(super) fn hold(&self) -> Hold<'_> {
        Hold(self.acquire())
    }

    /// The number of events that have gone. It is read before everything that follows.
    #[inline]
    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }
}

impl Turn<'_> {
    /// An event has gone.
    #[inline]
    pub(super) fn took(&self) {
        // The lock is held: no other thread writes it.
        let gone = self.turns.gone.load(Ordering::Relaxed);
        self.turns.gone.store(gone + 1, Ordering::Release);
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.took();
    }
}

/// The descriptors that a wait watches beside its own.
#[derive(Clone, Copy)]
pub(super) struct Beside<'wait, 'device> {
    pub(super) device: Option<&'wait DeviceEvents<'device>>,
    /// Ends the wait.
    pub(super) bell: Option<&'wait Bell>,
}

impl Beside<'_, '_> {
    fn tell(&self) {
        if let Some(device) = self.device {
            device.tell();
        }
    }
}

/// Whether a read of `fd` would not block now. It also takes the events of the device.
#[inline]
pub(super) fn readable_now(fd: BorrowedFd<'_>, device: Option<&DeviceEvents<'_>>) -> Result<bool> {
    let mut fds = [device.map_or(fd, DeviceEvents::fd), fd]
        .map(|watched| PollFd::from_borrowed_fd(watched, PollFlags::IN));
    sleep(&mut fds, device, Deadline::At(now()))?;
    Ok(!fds[1].revents().is_empty())
}

/// Waits until there may be an event to take or to report, and returns whether `fd` can be read;
/// `None` if `deadline` passed first.
fn woken(fd: BorrowedFd<'_>, beside: Beside<'_, '_>, deadline: Deadline) -> Result<Option<bool>> {
    let bell = beside.bell.map(Bell::fd).transpose()?;
    let device = beside.device.map(DeviceEvents::fd);
    let mut fds = [device, Some(fd), bell]
        .map(|watched| PollFd::from_borrowed_fd(watched.unwrap_or(fd), PollFlags::IN));
    let woken = sleep(&mut fds, beside.device, deadline)?;
    Ok(woken.then(|| !fds[1].revents().is_empty()))
}

/// Waits until one of several descriptors can be read, or the device has an event. Their events
/// then show which can be read. The device's event is taken and reported. Returns `false` if
/// `deadline` passed first. The first descriptor is the device's.
#[inline]
pub(super) fn any_readable(
    fds: &mut [PollFd<'_>],
    device: &DeviceEvents<'_>,
    deadline: Deadline,
) -> Result<bool> {
    let woken = sleep(fds, Some(device), deadline);
    device.tell();
    woken
}

/// Waits until one of several descriptors can be read; `false` if `deadline` passed first. The
/// first one is that of `device`, if there is one: its events are taken.
#[inline]
fn sleep(
    fds: &mut [PollFd<'_>],
    device: Option<&DeviceEvents<'_>>,
    deadline: Deadline,
) -> Result<bool> {
    let mut from = 0;
    loop {
        fds.iter_mut().for_each(PollFd::clear_revents);
        // Signals have no effect: even a wait of no time ends with `EINTR` if one is pending.
        let ready = match poll(&mut fds[from..], deadline.instant()) {
            Err(Errno::INTR) => continue,
            result => result.map_err(|errno| Error::provider("poll", errno))?,
        };
        let first = fds[0].revents();
        if let Some(device) = device.filter(|_| !first.is_empty()) {
            if first.contains(PollFlags::IN) {
                device.take_all();
            } else if ready == 1 {
                // The descriptor of a device that is gone would end every wait at once.
                from = 1;
                continue;
            }
        }
        return Ok(ready > 0);
    }
}
