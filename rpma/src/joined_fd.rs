//! One descriptor in the place of several: an epoll. An eventfd makes it readable for a reason that
//! has no descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct JoinedFd {
    epoll: OwnedFd,
    more: OwnedFd,
    is_lit: AtomicBool,
}

impl JoinedFd {
    pub(crate) fn new() -> Result<Self> {
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

    /// Adds a descriptor. The caller finds out which of them is readable.
    pub(crate) fn watch(&self, watched: BorrowedFd<'_>) -> Result<()> {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&self.epoll, watched, data, flags)
            .map_err(|errno| Error::provider("epoll_ctl", errno))
    }

    /// Makes the descriptor readable, with a new edge.
    pub(crate) fn light(&self) {
        self.is_lit.store(true, Ordering::Release);
        // It fails only if the counter is full: then the descriptor is readable already.
        let _ = rustix::io::write(&self.more, &1_u64.to_ne_bytes());
    }

    pub(crate) fn put_out(&self) {
        if self.is_lit.load(Ordering::Relaxed) && self.is_lit.swap(false, Ordering::Acquire) {
            // Nothing to read: another thread has lit it, and not written yet. It stays readable.
            let _ = rustix::io::read(&self.more, &mut [0; 8]);
        }
    }
}

impl AsFd for JoinedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
