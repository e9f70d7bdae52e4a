//! The descriptor of [`Conn::next`] for event loops, which joins those of the connection and its
//! queues.
//!
//! A look that ends before the queues are empty leaves completions that may give no event. So it
//! makes the descriptor readable by an eventfd, until [`Conn::next`] finds nothing.

use std::os::fd::{AsFd, BorrowedFd};

use super::Conn;
use crate::error::Result;
use crate::joined_fd::JoinedFd;

impl Conn {
    /// Returns one descriptor for event loops, in the place of those of the connection and its
    /// queues. It is readable when [`next`](Self::next) may have something. Then call `next` with a
    /// limit of 0, again and again, until it returns [`TimedOut`](crate::Error::TimedOut). After
    /// that the descriptor becomes readable when there is new work. Any other error of `next`,
    /// except [`InvalidArgument`](crate::Error::InvalidArgument), is the end of the connection.
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
    /// On a runtime its watcher owns a copy of the descriptor (in `rpma-async` the reactor does all
    /// of this). `AsyncFd::register` makes the watcher of tokio. It is `unsafe`, and an `OwnedFd`
    /// meets its requirement:
    ///
    /// ```no_run
    /// use std::io;
    /// use std::os::fd::OwnedFd;
    /// use std::time::Duration;
    ///
    /// use rpma::{Conn, Error, Next, Wc};
    /// use tokio::io::unix::AsyncFd;
    ///
    /// /// `watched` has `conn.get_next_fd()?.try_clone_to_owned()?`.
    /// async fn next(conn: &Conn, watched: &AsyncFd<OwnedFd>, wcs: &mut [Wc]) -> io::Result<Next> {
    ///     loop {
    ///         let mut guard = watched.readable().await?;
    ///         match conn.next(wcs, Duration::ZERO) {
    ///             Err(Error::TimedOut(_)) => guard.clear_ready(),
    ///             came => return Ok(came?),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if the connection is on a
    /// [`CompletionChannel`](crate::CompletionChannel). [`Provider`](crate::Error::Provider) if
    /// `epoll_create1`, `epoll_ctl` or `eventfd2` fails. After one call has succeeded, no later call
    /// fails in this way.
    pub fn get_next_fd(&self) -> Result<BorrowedFd<'_>> {
        let (main, of_receives) = self.channels()?;
        if let Some(fd) = self.next_fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = JoinedFd::new()?;
        // The device's own descriptor is not among them: one that many watch through others wakes
        // all of them, and the kernel allows 500.
        let (of_main, of_receives) = (main.as_fd(), of_receives.map(|channel| channel.as_fd()));
        for watched in [self.as_fd(), of_main].into_iter().chain(of_receives) {
            fd.watch(watched)?;
        }
        fd.watch(self.queues.slots.bell().fd()?)?;
        // Another thread's may have been first.
        Ok(self.next_fd.get_or_init(|| fd).as_fd())
    }

    /// A look has left something: the descriptor of [`get_next_fd`](Self::get_next_fd) is readable,
    /// if the program watches it, until [`next`](Self::next) finds nothing.
    #[cold]
    pub(crate) fn keep_readable(&self) {
        if let Some(fd) = self.next_fd.get() {
            fd.light();
        }
    }

    pub(super) fn is_empty_now(&self) {
        if let Some(fd) = self.next_fd.get() {
            fd.put_out();
        }
    }
}
