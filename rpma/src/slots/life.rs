//! The life of a connection: its [`ConnState`], why it failed, and the bell at its end.
//!
//! [`ConnSlots::end`] ends the life, and then both rings. A post ([`Ring::post`]) asks for the state
//! only where it looks for entries, under the lock of its ring. Markers are posted in each state.
//!
//! [`Ring::post`]: super::ring::Ring::post

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ConnSlots;
use crate::bell::Bell;
use crate::error::Error;
use crate::failure::{Failure, NotConnected};

/// Whether a connection takes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnState {
    /// Not yet.
    Connecting,
    /// It does.
    Open,
    /// An operation or a post has failed: the queue pair is in the error state.
    Failed,
    /// The device has reported an error of the queue pair.
    Broken,
    /// The keep-alive found no peer.
    Silent,
    /// This side or the peer has closed the connection, or it was never made.
    Closed,
}

impl ConnState {
    #[inline]
    fn from_u8(state: u8) -> Self {
        match state {
            0 => Self::Connecting,
            1 => Self::Open,
            2 => Self::Failed,
            3 => Self::Broken,
            4 => Self::Silent,
            _ => Self::Closed,
        }
    }
}

/// The state, the failure and the bell. Its owner ends the rings.
#[derive(Debug)]
pub(super) struct Life {
    state: AtomicU8,
    /// The first failure, or the one that explains it.
    failure: Mutex<Option<Failure>>,
    /// Rings when completions may be missing from then on.
    bell: Bell,
}

impl Life {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(ConnState::Connecting as u8),
            failure: Mutex::new(None),
            bell: Bell::default(),
        }
    }

    #[inline]
    pub(super) fn state(&self) -> ConnState {
        ConnState::from_u8(self.state.load(Ordering::Acquire))
    }

    fn open(&self) {
        let (from, to) = (ConnState::Connecting as u8, ConnState::Open as u8);
        let _ = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The first end counts. Returns the state before. It takes no lock: a poster calls it under
    /// the lock of a ring.
    pub(super) fn end(&self, state: ConnState) -> ConnState {
        let ended = |now: u8| (now <= ConnState::Open as u8).then_some(state as u8);
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, ended);
        ConnState::from_u8(before.unwrap_or_else(|now| now))
    }

    fn note(&self, failure: Failure) {
        let mut first = self.lock_failure();
        if first.is_none_or(|first| failure.explains(&first)) {
            *first = Some(failure);
        }
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Failure>> {
        // A panic cannot leave it half written.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnSlots {
    /// From now on operations may be posted, unless the connection has ended already.
    pub(crate) fn open(&self) {
        self.life.open();
    }

    /// Ends posting. The first end counts. Returns the state before.
    pub(crate) fn end(&self, state: ConnState) -> ConnState {
        let before = self.life.end(state);
        // A post that has entries does not look at the state.
        self.send.end();
        self.receive.end();
        before
    }

    /// Ends posting, for this reason.
    #[cold]
    pub(crate) fn fail(&self, failure: impl Into<Failure>) {
        let failure = failure.into();
        self.life.note(failure);
        // After the reason is there: a thread that is refused asks for it.
        self.end(match failure {
            Failure::Device => ConnState::Broken,
            Failure::Silent { .. } | Failure::Probe { .. } => ConnState::Silent,
            Failure::Operation(_) | Failure::Post { .. } => ConnState::Failed,
        });
        if failure == Failure::Device {
            self.life.bell.ring();
        }
    }

    /// Everything that was in flight has come, or will not come any more.
    pub(crate) fn end_waits(&self) {
        self.life.bell.ring();
    }

    /// The queue pair is gone.
    pub(crate) fn gone(&self) {
        self.end(ConnState::Closed);
        self.life.bell.ring();
    }

    /// Rings when completions may be missing from then on: see [`over`](Self::over).
    pub(crate) fn bell(&self) -> &Bell {
        &self.life.bell
    }

    /// The first failure, or the one that explains it.
    pub(crate) fn failure(&self) -> Option<Failure> {
        *self.life.lock_failure()
    }

    pub(crate) fn state(&self) -> ConnState {
        self.life.state()
    }

    /// Whether it takes no operations yet.
    pub(crate) fn is_connecting(&self) -> bool {
        self.life.state() == ConnState::Connecting
    }

    /// The error of a connection for which no completion may come any more: the device has given
    /// its queue pair up, or the queue pair is gone.
    pub(crate) fn over(&self) -> Option<Error> {
        self.life.bell.has_rung().then(|| self.closed())
    }

    /// The error of an operation that it does not take.
    #[cold]
    pub(crate) fn closed(&self) -> Error {
        Error::NotConnected(match self.life.state() {
            ConnState::Connecting => NotConnected::NotYet,
            // The operation came before it opened, just now.
            ConnState::Open if !self.send.has_ended() && !self.receive.has_ended() => {
                NotConnected::NotYet
            }
            // A post has failed just now.
            ConnState::Open | ConnState::Failed => NotConnected::Failed,
            ConnState::Broken => NotConnected::GivenUp,
            ConnState::Silent => NotConnected::Silent,
            ConnState::Closed => NotConnected::Closed,
        })
    }
}
