//! What wakes an event loop when the device has given a queue pair up: see
//! [`Conn::get_next_fd`](crate::Conn::get_next_fd) and [`Wait`](crate::wait::Wait).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// A descriptor that becomes readable, and stays so, when the device has given the queue pair up, if anybody watches
/// for it.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<Watchers>);

#[derive(Default)]
struct Watchers {
    /// The device has given the queue pair up.
    has_happened: bool,
    fd: Option<OwnedFd>,
    call: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers")
            .field("has_happened", &self.has_happened)
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl GivenUp {
    /// After the state has changed: see [`watch`](Self::watch).
    pub(crate) fn wake(&self) {
        let mut watchers = self.lock();
        watchers.has_happened = true;
        if let Some(fd) = &watchers.fd {
            // It fails if the counter is full: then it is readable already.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
        if let Some(call) = &watchers.call {
            call();
        }
    }

    /// Makes each later [`wake`](Self::wake) call this, which must not call back here. `None` ends that.
    /// Returns whether it has happened before.
    pub(crate) fn set_call(&self, call: Option<Box<dyn Fn() + Send + Sync>>) -> bool {
        let mut watchers = self.lock();
        watchers.call = call;
        watchers.has_happened
    }

    /// Makes the descriptor, if there is none, and gives it to `watch`. Who looks at the state behind this, and calls
    /// [`wake`](Self::wake) if it has changed already, misses nothing.
    pub(crate) fn watch(&self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        let fd = &mut self.lock().fd;
        if fd.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            *fd = Some(eventfd(0, flags).map_err(|errno| Error::provider("eventfd2", errno))?);
        }
        fd.as_ref().map_or(Ok(()), |fd| watch(fd.as_fd()))
    }

    fn lock(&self) -> MutexGuard<'_, Watchers> {
        // A panic cannot leave it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

    use super::*;

    /// No test with a device sees it: soft-RoCE gives no queue pair up.
    #[test]
    fn who_watches_is_woken_when_the_queue_pair_is_given_up() {
        let readable = |fd: &OwnedFd| {
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
        };
        let given_up = GivenUp::default();
        given_up.wake();
        let [first, second] = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        for epoll in [&first, &second] {
            given_up
                .watch(|fd| {
                    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
                    epoll::add(epoll, fd, data, flags).unwrap();
                    Ok(())
                })
                .unwrap();
            assert!(!readable(epoll), "nothing has happened");
        }
        given_up.wake();
        for epoll in [&first, &second] {
            assert!(readable(epoll) && readable(epoll), "it stays so");
        }
    }

    /// A wait that begins to watch too late learns it at once, and a wait that has ended is not called.
    #[test]
    fn a_call_comes_once_for_each_time_it_happens() {
        let calls = Arc::new(AtomicU32::new(0));
        let given_up = GivenUp::default();
        let set = || {
            let calls = Arc::clone(&calls);
            given_up.set_call(Some(Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })))
        };
        assert!(!set(), "nothing has happened");
        given_up.wake();
        assert!(set(), "it happened before");
        assert!(given_up.set_call(None));
        given_up.wake();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
