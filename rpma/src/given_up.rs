//! What wakes an event loop when the device has given a queue pair up: see
//! [`Conn::get_next_fd`](crate::Conn::get_next_fd).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// A descriptor that becomes readable, and stays so, when the device has given the queue pair up, if anybody watches
/// for it.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<Option<OwnedFd>>);

impl GivenUp {
    /// After the state has changed: see [`watch`](Self::watch).
    pub(crate) fn wake(&self) {
        if let Some(fd) = &*self.lock() {
            // It fails if the counter is full: then it is readable already.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor, if there is none, and gives it to `watch`. Who looks at the state behind this, and calls
    /// [`wake`](Self::wake) if it has changed already, misses nothing.
    pub(crate) fn watch(&self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
        let mut fd = self.lock();
        if fd.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            *fd = Some(eventfd(0, flags).map_err(|errno| Error::provider("eventfd2", errno))?);
        }
        fd.as_ref().map_or(Ok(()), |fd| watch(fd.as_fd()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        // A panic cannot leave it half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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
}
