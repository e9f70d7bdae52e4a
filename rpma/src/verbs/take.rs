//! Waiting for the next event of a channel: without a lock while there is none, under the channel's
//! lock while it is taken.
//!
//! That serves two promises. No waiter blocks past its limit: another one may take the event between
//! `poll` and the read, so the read itself must never block. And an object whose event is being taken
//! cannot be destroyed meanwhile: destroying takes the same lock.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Until when to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Without a limit.
    Never,
    /// Until this instant.
    At(Instant),
}

impl Deadline {
    /// The instant `limit` from now; one that the clock cannot express is never reached.
    pub(crate) fn after(limit: Duration) -> Self {
        Instant::now()
            .checked_add(limit)
            .map_or(Self::Never, Self::At)
    }

    /// Whichever comes first.
    pub(crate) fn earlier(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(one), Self::At(other)) => Self::At(one.min(other)),
            (Self::Never, deadline) | (deadline, Self::Never) => deadline,
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        match self {
            Self::Never => false,
            Self::At(instant) => Instant::now() >= instant,
        }
    }

    /// What is left, for `poll`. `None` is for ever.
    fn remaining(self) -> Option<Timespec> {
        match self {
            Self::Never => None,
            Self::At(instant) => {
                let left = instant.saturating_duration_since(Instant::now());
                Some(Timespec::try_from(left).unwrap_or(Timespec {
                    tv_sec: i64::MAX,
                    tv_nsec: 0,
                }))
            }
        }
    }
}

/// Takes one event with `get`, which runs under `lock`, must not block, and says `None` if there is
/// nothing to take. `Ok(None)` when `deadline` passed, or at once if the user made `fd` non-blocking.
pub(super) fn take<T>(
    fd: BorrowedFd<'_>,
    lock: &Mutex<()>,
    deadline: Deadline,
    mut get: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    loop {
        let nonblocking = {
            let _guard = acquire(lock);
            // Under the lock: `get` may make the descriptor non-blocking for a moment.
            let nonblocking = flags(fd)?.contains(OFlags::NONBLOCK);
            if let Some(event) = get()? {
                return Ok(Some(event));
            }
            nonblocking
        };
        if nonblocking || !readable(fd, deadline.remaining())? {
            return Ok(None);
        }
    }
}

/// Locks a mutex that guards no data, so that a panic under it has broken nothing.
pub(super) fn acquire(lock: &Mutex<()>) -> MutexGuard<'_, ()> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status flags of `fd`.
pub(super) fn flags(fd: BorrowedFd<'_>) -> Result<OFlags> {
    fcntl_getfl(fd).map_err(|errno| Error::provider("fcntl(F_GETFL)", errno))
}

/// Whether a read of `fd` would not block now.
pub(super) fn readable_now(fd: BorrowedFd<'_>) -> Result<bool> {
    readable(
        fd,
        Some(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
}

/// Waits until `fd` can be read; `false` if `limit` passed first. A signal does not end the wait
/// early: [`take`] computes what is left and comes back.
fn readable(fd: BorrowedFd<'_>, limit: Option<Timespec>) -> Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut fds, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        // Reported as readable: the caller finds nothing to take and waits for the rest of its limit.
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(Error::provider("poll", errno)),
    }
}
