//! Time, and waits: the system's. If the feature `sim` is on it is the simulated fabric's, so that
//! the fabric sees each thread that waits.

#[cfg(not(feature = "sim"))]
pub(crate) use self::of_the_system::{lock, now, pause, poll, sleep, spun, undivided};
#[cfg(feature = "sim")]
pub(crate) use rpma_sys::sim::{lock, now, pause, sleep, spun, undivided, wait as poll};

#[cfg(not(feature = "sim"))]
mod of_the_system {
    use std::sync::{Mutex, MutexGuard, PoisonError};
    pub(crate) use std::thread::sleep;
    use std::time::Instant;

    use rustix::event::{PollFd, Timespec};
    use rustix::io::Errno;

    #[inline(always)]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// `poll(2)` until an instant. `None` is for ever.
    #[inline(always)]
    pub(crate) fn poll(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<usize, Errno> {
        let left = deadline.map(|instant| {
            let left = instant.saturating_duration_since(now());
            Timespec::try_from(left).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        rustix::event::poll(fds, left.as_ref())
    }

    /// Takes a lock that may be held across calls of verbs. A panic under it leaves the data
    /// intact.
    #[inline(always)]
    pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was another thread to wait for, and it has run: not here.
    #[inline(always)]
    pub(crate) fn pause() -> bool {
        false
    }

    /// A thread has polled several times in vain. Time has passed by itself.
    #[inline(always)]
    pub(crate) fn spun() {}

    /// Runs something with a lock that the threads of several fabrics use: here there is one.
    #[inline(always)]
    pub(crate) fn undivided<T>(run: impl FnOnce() -> T) -> T {
        run()
    }
}
