//! Waiting for many descriptors at once.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;

/// Descriptors with a number each, by which the program identifies them. A descriptor that is
/// closed leaves the set by that.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor, and makes it non-blocking: calls that wait for its events then return at
    /// once if there is none.
    pub(crate) fn add(&self, fd: impl AsFd, number: u64) -> Result<()> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.0, &fd, data, epoll::EventFlags::IN)?)
    }

    /// The number of a descriptor that has an event, or `None` when the limit has passed without
    /// any.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Option<u64>> {
        let limit = Timespec::try_from(limit)?;
        let mut events = Vec::with_capacity(1);
        retry_on_intr(|| epoll::wait(&self.0, spare_capacity(&mut events), Some(&limit)))?;
        Ok(events.first().map(|event| event.data.u64()))
    }
}
