//! Where threads wait: the calls that `rpma` makes in the place of the system's clock, `poll`,
//! sleeps and locks; and its random numbers.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::explore::Script;
use crate::here;
use crate::order::{Event, Standing};

/// The time that is left, for `poll`. `None` is for ever.
pub(crate) fn left(deadline: Option<Instant>, now: Instant) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(now);
    Some(Timespec::try_from(left).unwrap_or(Timespec {
        tv_sec: i64::MAX,
        tv_nsec: 0,
    }))
}

/// Finds the descriptors that can be read now.
pub(crate) fn look(fds: &mut [PollFd<'_>]) -> Result<usize, Errno> {
    match poll(fds, Some(&Timespec::default())) {
        // It has not waited.
        Err(Errno::INTR) => look(fds),
        found => found,
    }
}

thread_local! {
    /// The calling thread keeps the turn.
    static UNDIVIDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the time of the fabric of the calling thread's host. On no host it returns the system's
/// time.
///
/// The limits of `rpma` are measured with it.
#[must_use]
pub fn now() -> Instant {
    match here::place() {
        Some((shared, _)) => shared.order.time.now(),
        None => Instant::now(),
    }
}

/// Sleeps for `limit`, in the time of the fabric of the calling thread's host. The clock can jump
/// over this wait. On no host, as [`std::thread::sleep`].
pub fn sleep(limit: Duration) {
    let Some((shared, thread)) = here::place().filter(|(shared, _)| shared.order.is_on()) else {
        return thread::sleep(limit);
    };
    let until = shared.order.time.now().checked_add(limit);
    // A signal is no end.
    while shared.wait(thread, &mut [], until, Event::None) == Err(Errno::INTR) {}
}

/// A random number that follows from the seed of the fabric of the calling thread's host, if that
/// has a seed.
#[doc(hidden)]
#[must_use]
pub fn random() -> Option<u64> {
    here::place().and_then(|(shared, _)| shared.order.draw())
}

/// `poll(2)` until `deadline` by [`now`], for events of reading: where `rpma` waits.
#[doc(hidden)]
pub fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<usize, Errno> {
    wait_or(fds, deadline, Event::None)
}

fn wait_or(
    fds: &mut [PollFd<'_>],
    deadline: Option<Instant>,
    event: Event,
) -> Result<usize, Errno> {
    match here::place() {
        Some((shared, thread)) if shared.order.is_on() => shared.wait(thread, fds, deadline, event),
        Some((shared, _)) => poll(fds, left(deadline, shared.order.time.now()).as_ref()),
        None => poll(fds, left(deadline, Instant::now()).as_ref()),
    }
}

/// Waits until a descriptor is readable, or until `deadline` by [`now`]. `None` is no limit. The
/// call is `poll(2)`. The fabric of the calling thread's host decides its time and the order of
/// threads. On no host it waits in real time.
///
/// It is for the event loop of a program, whose sleep in `epoll_wait` or in a library the fabric
/// does not see. In tests the loop waits here for the descriptor of its epoll, and then calls
/// `epoll_wait` with a time-out of 0. Returns whether a descriptor is readable.
///
/// ```
/// # mod rpma { pub use rpma_sim as sim; }
/// use std::io;
/// use std::os::fd::AsFd;
/// use std::time::Duration;
///
/// use rpma::sim::{Fabric, Profile, now, wait_readable};
///
/// let fabric = Fabric::new(Profile::STRICT);
/// fabric.jump_over_waits();
/// let host = fabric.host("here");
/// let _entered = host.enter();
/// let (quiet, _writer) = io::pipe()?;
/// // An hour, which takes no real time.
/// let limit = now() + Duration::from_secs(3600);
/// assert!(!wait_readable(&[quiet.as_fd()], Some(limit))?);
/// assert!(now() >= limit);
/// # Ok::<(), io::Error>(())
/// ```
///
/// # Errors
///
/// As `poll(2)`, with [`Errno::INTR`] after a signal.
///
/// # Panics
///
/// If every thread of the fabric waits and no event can come.
pub fn wait_readable(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<bool, Errno> {
    readable(fds, deadline, Event::None)
}

/// As [`wait_readable`], for a thread that serves others: it waits for as long as they make no
/// calls, so it does not panic. Another thread that waits does.
#[doc(hidden)]
pub fn wait_to_serve(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<bool, Errno> {
    readable(fds, deadline, Event::Serves)
}

fn readable(
    fds: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
    event: Event,
) -> Result<bool, Errno> {
    let fds = fds.iter().copied();
    let mut fds: Vec<_> = fds
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    Ok(wait_or(&mut fds, deadline, event)? > 0)
}

/// Lets another thread go on, for a thread that has to wait for a lock; `false` if there are no
/// turns.
#[doc(hidden)]
pub fn pause() -> bool {
    match here::place() {
        Some((shared, thread)) if shared.order.takes_turns() => {
            shared.order.choices.with_script(Script::yields);
            shared.pass(thread, Location::caller(), Standing::Busy)
        }
        _ => false,
    }
}

/// A thread has polled several times in vain, which takes time: on the clock of the fabric 1 µs.
#[doc(hidden)]
pub fn spun() {
    sleep(Duration::from_micros(1));
}

/// Takes a lock that may be held across calls of verbs, poisoned or not.
#[doc(hidden)]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if pause() => {}
            Err(TryLockError::WouldBlock) => {
                return mutex.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

pub(crate) fn is_undivided() -> bool {
    UNDIVIDED.get()
}

/// Runs something, and keeps the turn unless it waits: with a lock that threads of several fabrics
/// use.
#[doc(hidden)]
pub fn undivided<T>(run: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            UNDIVIDED.set(self.0);
        }
    }
    let _before = Before(UNDIVIDED.replace(true));
    run()
}
