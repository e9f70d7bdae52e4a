//! A bell that wakes the waits of a connection after its end: the device has given its queue pair
//! up, the keep-alive has ended it, or it was dropped. No event may come for them any more.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// It rings once, and for ever. Its descriptor is made for the first thread that sleeps beside it.
#[derive(Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    fd: OnceLock<OwnedFd>,
    call: Mutex<Option<Call>>,
}

pub(crate) type Call = Box<dyn Fn() + Send + Sync>;

impl Bell {
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Relaxed);
        // Pairs with the fence in `fd`: the sleeper's descriptor is seen here, or the ringing is
        // seen there.
        fence(Ordering::SeqCst);
        if let Some(fd) = self.fd.get() {
            wake(fd);
        }
        self.call();
    }

    /// Calls as [`ring`](Self::ring) does, and wakes no sleeper.
    pub(crate) fn call(&self) {
        if let Some(call) = &*self.lock_call() {
            call();
        }
    }

    /// Makes the ringing call this, which must not call back here; `None` ends that. Returns
    /// whether it has rung already.
    pub(crate) fn set_call(&self, call: Option<Call>) -> bool {
        let mut current = self.lock_call();
        *current = call;
        self.has_rung()
    }

    fn lock_call(&self) -> MutexGuard<'_, Option<Call>> {
        // A panic cannot leave it half written.
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// The descriptor that becomes readable when the bell rings, and stays so.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd.as_fd());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made = eventfd(0, flags).map_err(|errno| Error::provider("eventfd2", errno))?;
        // Another thread's may have been first.
        let fd = self.fd.get_or_init(|| made);
        fence(Ordering::SeqCst);
        if self.has_rung() {
            wake(fd);
        }
        Ok(fd.as_fd())
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell")
            .field("rung", &self.has_rung())
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

fn wake(fd: &OwnedFd) {
    // It fails if the counter is full: then the descriptor is readable already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(bell.fd().unwrap(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }

    /// A thread that goes to sleep after the end of its connection is woken as well.
    #[test]
    fn sleepers_before_and_after_the_ringing_are_woken() {
        let (early, late) = (Bell::default(), Bell::default());
        assert!(!readable(&early) && !early.has_rung());
        for bell in [&early, &late] {
            bell.ring();
            assert!(bell.has_rung() && readable(bell));
            assert!(readable(bell), "it stays so");
        }
    }

    /// A wait that begins to watch too late learns it at once, and a wait that has ended is not
    /// called.
    #[test]
    fn a_call_comes_with_the_ringing() {
        let calls = Arc::new(AtomicU32::new(0));
        let bell = Bell::default();
        let set = || {
            let calls = Arc::clone(&calls);
            bell.set_call(Some(Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })))
        };
        assert!(!set(), "nothing has happened");
        bell.ring();
        assert!(set(), "it happened before");
        assert!(bell.set_call(None));
        bell.ring();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
