//! Descriptors of event queues: a pipe that holds one byte for each event.
//!
//! A pipe and not an eventfd: each event is an edge for `epoll`, and Miri supports it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::wait::wait;

/// Bytes are added and taken under the lock of the queue of their events. So there are always as
/// many as events, except for those that the pipe has no room for, and taking one never waits.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Events that the pipe has no byte for: it is readable without.
    beyond: AtomicUsize,
}

impl Pipe {
    pub(crate) fn new() -> Result<Self, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&write, OFlags::NONBLOCK)?;
        Ok(Self {
            read,
            write,
            beyond: AtomicUsize::new(0),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    /// An event has come.
    pub(crate) fn add(&self) {
        loop {
            match rustix::io::write(&self.write, &[1]) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.beyond.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                added => {
                    added.expect("a pipe takes a byte");
                    return;
                }
            }
        }
    }

    /// An event has gone.
    pub(crate) fn take(&self) {
        if self.beyond.load(Ordering::Relaxed) > 0 {
            self.beyond.fetch_sub(1, Ordering::Relaxed);
            return;
        }
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

/// Sleeps until there is an event, as a read of the descriptor would: it fails with `EAGAIN` if
/// the user has made it non-blocking, and with `EINTR` after a signal.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    if fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
        return Err(Errno::AGAIN);
    }
    wait(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
    Ok(())
}
