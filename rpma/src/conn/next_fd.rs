//! The descriptor of [`Conn::next`] for event loops: an epoll over the descriptors of the
//! connection and its queues.
//!
//! A look that ends before the queues are empty leaves completions that may give no event. So it
//! makes the descriptor readable by an eventfd, until [`Conn::next`] finds nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::Conn;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct NextFd {
    epoll: OwnedFd,
    more: OwnedFd,
    is_lit: AtomicBool,
}

impl NextFd {
    fn new() -> Result<Self> {
        let flags = epoll::CreateFlags::CLOEXEC;
        let epoll =
            epoll::create(flags).map_err(|errno| Error::provider("epoll_create1", errno))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let more = eventfd(0, flags).map_err(|errno| Error::provider("eventfd2", errno))?;
        let fd = Self {
            epoll,
            more,
            is_lit: AtomicBool::new(false),
        };
        fd.watch(fd.more.as_fd())?;
        Ok(fd)
    }

    /// Adds a descriptor. Which of them is readable, `next` finds out.
    fn watch(&self, watched: BorrowedFd<'_>) -> Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&self.epoll, watched, data, flags)
            .map_err(|errno| Error::provider("epoll_ctl", errno))
    }

    /// Makes the descriptor readable, with a new edge.
    fn light(&self) {
        self.is_lit.store(true, Ordering::Release);
        // It fails only if the counter is full: then the descriptor is readable already.
        let _ = rustix::io::write(&self.more, &1_u64.to_ne_bytes());
    }

    fn put_out(&self) {
        if self.is_lit.load(Ordering::Relaxed) && self.is_lit.swap(false, Ordering::Acquire) {
            // Nothing to read: another thread has lit it, and not written yet. It stays readable.
            let _ = rustix::io::read(&self.more, &mut [0; 8]);
        }
    }
}

impl Conn {
    /// Returns one descriptor for event loops, in the place of those of the connection and its
    /// queues. It is readable when [`next`](Self::next) may have something. Then call `next` with a
    /// limit of 0, again and again, until it returns [`Error::TimedOut`]. After that the descriptor
    /// becomes readable when there is new work. Any other error of `next`, except
    /// [`Error::InvalidArgument`], is the end of the connection.
    ///
    /// The descriptor is the same one, and stays open, as long as the connection exists. A copy of
    /// it (`try_clone_to_owned`) belongs to the program.
    ///
    /// Some work never makes the descriptor readable. So a loop also calls `next`
    ///
    /// * each second, if another thread may leave completions in a queue;
    /// * at the time that [`keep_alive`](Self::keep_alive) returns, if the connection has a
    ///   keep-alive;
    /// * every few seconds on any one connection of an [adapter](crate#terms). An adapter reports
    ///   errors of queue pairs in events of the device, which any wait on the device reads. Then
    ///   the descriptors of the affected connections become readable. soft-RoCE reports no such
    ///   errors.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the connection is on a
    /// [`CompletionChannel`](crate::CompletionChannel). [`Error::Provider`] if `epoll_create1`,
    /// `epoll_ctl` or `eventfd2` fails. After one call has succeeded, no later call fails in this
    /// way.
    pub fn get_next_fd(&self) -> Result<BorrowedFd<'_>> {
        let (main, of_receives) = self.channels()?;
        if let Some(fd) = self.next_fd.get() {
            return Ok(fd.epoll.as_fd());
        }
        let fd = NextFd::new()?;
        // The device's own descriptor is not among them: one that many watch through others wakes
        // all of them, and the kernel allows 500.
        let (of_main, of_receives) = (main.as_fd(), of_receives.map(|channel| channel.as_fd()));
        for watched in [self.as_fd(), of_main].into_iter().chain(of_receives) {
            fd.watch(watched)?;
        }
        fd.watch(self.queues.slots.bell().fd()?)?;
        // Another thread's may have been first.
        Ok(self.next_fd.get_or_init(|| fd).epoll.as_fd())
    }

    /// A look has left something: the descriptor of [`get_next_fd`](Self::get_next_fd) is readable,
    /// if the program watches it, until [`next`](Self::next) finds nothing.
    #[cold]
    pub(crate) fn keep_readable(&self) {
        if let Some(fd) = self.next_fd.get() {
            fd.light();
        }
    }

    /// The queues are empty.
    pub(super) fn is_empty_now(&self) {
        if let Some(fd) = self.next_fd.get() {
            fd.put_out();
        }
    }
}
