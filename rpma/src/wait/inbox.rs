//! The messages of other threads to a wait: wake-ups, broken queue pairs, events of devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::member::Member;
use crate::error::{Error, Result};
use crate::verbs::DeviceEventKind;

/// Events of devices that are kept for the program. All of them are in the log.
const MOST_DEVICE_EVENTS: usize = 64;

/// Wakes a [`Wait`](super::Wait) from any thread. Clones wake the same one.
#[derive(Clone, Debug)]
pub struct Waker(pub(super) Arc<Inbox>);

impl Waker {
    /// Makes [`Wait::next`](super::Wait::next) return [`Happened::Woken`](super::Happened::Woken):
    /// the call that sleeps now, or the next one. Several calls before that are reported as one.
    /// After the wait was dropped it has no effect.
    pub fn wake(&self) {
        self.0.post(|news| news.woken = true);
    }
}

/// News for a wait, and the descriptor that is readable while there are some.
#[derive(Debug)]
pub(super) struct Inbox {
    fd: OwnedFd,
    state: Mutex<InboxState>,
}

#[derive(Debug, Default)]
struct InboxState {
    news: News,
    /// The descriptor is readable.
    is_lit: bool,
    /// Places that were dropped unused.
    left: Vec<Member>,
}

#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) woken: bool,
    /// Members with a queue pair that the device gave up.
    pub(super) broken: Vec<Member>,
    /// Device and event.
    pub(super) devices: Vec<(Box<str>, DeviceEventKind)>,
}

impl Inbox {
    pub(super) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            fd: eventfd(0, flags).map_err(|errno| Error::provider("eventfd2", errno))?,
            state: Mutex::default(),
        })
    }

    /// Adds news, and makes the descriptor readable.
    pub(super) fn post(&self, add: impl FnOnce(&mut News)) {
        let mut state = self.lock();
        add(&mut state.news);
        if !std::mem::replace(&mut state.is_lit, true) {
            // It cannot fail: the counter was 0, or is far from full.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn post_device(&self, device: &str, kind: DeviceEventKind) {
        self.post(|news| {
            if news.devices.len() < MOST_DEVICE_EVENTS {
                news.devices.push((device.into(), kind));
            }
        });
    }

    /// Takes all news. The descriptor is not readable any more.
    pub(super) fn take(&self) -> News {
        let mut state = self.lock();
        if std::mem::take(&mut state.is_lit) {
            // A signal interrupts no read that does not wait.
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
        std::mem::take(&mut state.news)
    }

    pub(super) fn leave(&self, place: Member) {
        self.lock().left.push(place);
    }

    pub(super) fn take_left(&self) -> Vec<Member> {
        std::mem::take(&mut self.lock().left)
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        // No code panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
