//! Descriptors of event queues: a pipe that holds one byte for each event.
//!
//! A pipe and not an eventfd: each event is an edge for `epoll`, and Miri knows it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Bytes are added and taken under the lock of the queue whose events they stand for, so that there are always as many
/// as events, and taking one never waits.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    pub(crate) fn new() -> Result<Self, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { read, write })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// For waiting without a lock. The descriptor may be closed meanwhile only if its owner destroys the channel that
    /// somebody waits on, which verbs forbids.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.read, 0)
    }

    /// An event has come.
    pub(crate) fn add(&self) {
        // A pipe has room for 65,536 of them.
        rustix::io::write(&self.write, &[1]).expect("a pipe takes a byte");
    }

    /// An event has gone.
    pub(crate) fn take(&self) {
        let mut byte = [0];
        loop {
            match rustix::io::read(&self.read, &mut byte) {
                Err(Errno::INTR) => {}
                taken => {
                    taken.expect("there is a byte for each event");
                    return;
                }
            }
        }
    }
}

/// Sleeps until there is an event, as a read of the descriptor would: it fails with `EAGAIN` if the user has made it
/// non-blocking, and with `EINTR` after a signal.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    if fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
        return Err(Errno::AGAIN);
    }
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
    Ok(())
}
