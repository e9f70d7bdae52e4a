//! The life of a connection: its [`ConnState`], and its end.
//!
//! Only this file decides about the end of a connection. All others ask it:
//!
//! | question | answer |
//! |---|---|
//! | Why is it over? | [`ConnSlots::reason`]; for a flushed operation [`ConnSlots::reason_of`] |
//! | Why does it not take an operation? | [`ConnSlots::closed`], a view of the same cause |
//! | Has it ended, by a failure, a failed call or an event? | [`ConnSlots::has_ended`] |
//! | After which time is no completion expected? | [`ConnSlots::quiet_from`], a second after that |
//! | Is it certain that completions may be missing? | [`ConnSlots::end_of_waits`]: the bell has rung |
//! | Does it take operations? | [`ConnSlots::state`]: not after a disconnect, which is no end yet |
//!
//! An end has an order: its cause is noted, then the time, then the state changes, and at last the
//! rings end. So a thread that finds the connection over finds the cause and the time as well.
//!
//! Posts are refused before the connection is open, because on soft-RoCE a request that is posted
//! too early fails, but stays in the queue and is sent later.
//!
//! A post ([`Ring::post`]) asks for the state only where it looks for entries, under the lock of
//! its ring. Markers are posted in each state.
//!
//! [`Ring::post`]: super::ring::Ring::post

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::ConnSlots;
use crate::bell::Bell;
use crate::error::Error;
use crate::event::ConnEvent;
use crate::failure::{Failure, NotConnected};
use crate::status::WcFailure;
use crate::verbs::Deadline;

/// For how long a completion may still come after the connection's end: an acknowledgement and the
/// peer's disconnect reach this host by different ways.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ConnState {
    /// Not yet.
    Connecting,
    /// It does.
    Open,
    /// A failure ended it: the queue pair is in the error state.
    Failed,
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
            _ => Self::Closed,
        }
    }
}

/// The state, and the end. Its owner ends the rings.
#[derive(Debug)]
pub(super) struct Life {
    state: AtomicU8,
    /// The first failure, or the one that explains it.
    failure: Mutex<Option<Failure>>,
    /// The error for which the library disconnected.
    failed_call: OnceLock<Error>,
    event: OnceLock<ConnEvent>,
    /// The time after which no completion is expected. Once it is set, the end is known.
    quiet: OnceLock<Deadline>,
    is_given_up: AtomicBool,
    /// The keep-alive ended it.
    is_silent: AtomicBool,
    /// This side has asked for the end, or has answered it.
    has_disconnected: AtomicBool,
    bell: Bell,
}

impl Life {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(ConnState::Connecting as u8),
            failure: Mutex::new(None),
            failed_call: OnceLock::new(),
            event: OnceLock::new(),
            quiet: OnceLock::new(),
            is_given_up: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            has_disconnected: AtomicBool::new(false),
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

    /// The first end counts. Returns the state before.
    fn end(&self, state: ConnState) -> ConnState {
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

    /// Ends posting, and the traffic. The cause has been noted.
    fn finish(&self, state: ConnState) {
        self.life.quiet.get_or_init(|| Deadline::after(GRACE));
        self.end(state);
    }

    #[cold]
    pub(crate) fn fail(&self, failure: impl Into<Failure>) {
        let failure = failure.into();
        self.life.note(failure);
        match failure {
            Failure::Device => self.life.is_given_up.store(true, Ordering::Release),
            Failure::Silent { .. } | Failure::Probe { .. } if !self.takes_no_more() => {
                self.life.is_silent.store(true, Ordering::Release);
            }
            _ => {}
        }
        self.finish(ConnState::Failed);
        if failure == Failure::Device {
            self.life.bell.ring();
        }
    }

    /// Ends the connection, because this call failed or the peer broke the rules. The caller
    /// disconnects.
    #[cold]
    pub(crate) fn call_failed(&self, error: &Error) {
        if let Some(error) = error.again() {
            self.life.failed_call.get_or_init(|| error);
        }
        self.finish(ConnState::Closed);
    }

    pub(crate) fn disconnects(&self) {
        self.life.has_disconnected.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_disconnected(&self) -> bool {
        self.life.has_disconnected.load(Ordering::Relaxed)
    }

    /// Returns whether this is the first event of an end.
    pub(crate) fn ended_with(&self, event: &ConnEvent) -> bool {
        let is_first = self.life.event.set(event.clone()).is_ok();
        self.finish(ConnState::Closed);
        is_first
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

    /// Rings when completions may be missing from then on: see
    /// [`end_of_waits`](Self::end_of_waits).
    pub(crate) fn bell(&self) -> &Bell {
        &self.life.bell
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        *self.life.lock_failure()
    }

    /// The event with which it ended, once the time of the end is known.
    pub(crate) fn event(&self) -> Option<&ConnEvent> {
        self.life.quiet.get().and(self.life.event.get())
    }

    pub(crate) fn state(&self) -> ConnState {
        self.life.state()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.life.is_silent.load(Ordering::Acquire)
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.life.state() == ConnState::Connecting
    }

    /// Whether it takes no operations any more.
    pub(crate) fn takes_no_more(&self) -> bool {
        self.life.state() > ConnState::Open
    }

    /// Whether a failure, a failed call or an event has ended it. A disconnect of this side has
    /// not: it flushes the operations in flight, and its event is still to come.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.life.quiet.get().is_some()
    }

    pub(crate) fn quiet_from(&self) -> Option<Deadline> {
        self.life.quiet.get().copied()
    }

    /// Whether the time of [`Conn::quiet_from`](crate::Conn::quiet_from) has come. A wait asks
    /// before its last look.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet_from().is_some_and(Deadline::has_passed)
    }

    /// The failure or the call that ended it. A flushed operation is no cause: it failed because
    /// of the end.
    pub(crate) fn cause(&self) -> Option<Error> {
        let failure = self.failure().filter(|failure| !failure.is_flushed());
        let failed_call = || self.life.failed_call.get().and_then(Error::again);
        failure.map(Error::from).or_else(failed_call)
    }

    /// As [`cause`](Self::cause), or else the event of the end.
    pub(crate) fn cause_or_event(&self) -> Option<Error> {
        let ended = || self.event().cloned().map(Box::new).map(Error::Ended);
        self.cause().or_else(ended)
    }

    /// Why it is over; `None` if it is not.
    #[cold]
    pub(crate) fn reason(&self) -> Option<Error> {
        let flushed = || self.failure().map_or_else(|| self.closed(), Error::from);
        let is_over = self.has_ended() || self.takes_no_more();
        is_over.then(|| self.cause_or_event().unwrap_or_else(flushed))
    }

    /// Why an operation failed: a flushed one because of the connection's end.
    #[cold]
    pub(crate) fn reason_of(&self, failure: WcFailure) -> Error {
        let is_flushed = Failure::from(failure).is_flushed();
        let reason = is_flushed.then(|| self.cause_or_event()).flatten();
        reason.unwrap_or(Error::Operation(failure))
    }

    /// The error of a connection for which no completion may come any more: the device has given
    /// its queue pair up, the keep-alive has ended it, or the queue pair is gone.
    pub(crate) fn end_of_waits(&self) -> Option<Error> {
        self.life.bell.has_rung().then(|| self.closed())
    }

    /// The error of an operation that it does not take.
    #[cold]
    pub(crate) fn closed(&self) -> Error {
        let state = self.life.state();
        let is_early = !self.has_ended()
            && match state {
                ConnState::Connecting => true,
                // The operation came before it opened, just now. Or a post has failed just now.
                ConnState::Open => !self.send.has_ended() && !self.receive.has_ended(),
                ConnState::Failed | ConnState::Closed => false,
            };
        let failure = self.failure();
        Error::NotConnected(if is_early {
            NotConnected::NotYet
        } else if self.life.is_given_up.load(Ordering::Acquire) {
            // Before an operation that explains it: completions may be missing.
            NotConnected::GivenUp
        } else if self.is_silent() {
            NotConnected::Silent
        } else if state == ConnState::Closed && failure.is_none_or(|failure| failure.is_flushed()) {
            NotConnected::Closed
        } else {
            NotConnected::Failed
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::status::WcStatus;

    fn open() -> ConnSlots {
        let slots = ConnSlots::new(1, 1);
        slots.open();
        slots
    }

    fn flushed(wr_id: u64) -> WcFailure {
        WcFailure::for_test(wr_id, WcStatus::WR_FLUSH_ERR)
    }

    /// Promise: a thread that finds a connection over finds the cause and the time, whenever it
    /// looks.
    #[test]
    fn the_end_comes_after_its_cause() {
        for _ in 0..500 {
            let slots = open();
            thread::scope(|scope| {
                scope.spawn(|| slots.fail(flushed(1)));
                while !slots.takes_no_more() {
                    std::hint::spin_loop();
                }
                assert!(slots.failure().is_some() && slots.quiet_from().is_some());
            });
            let slots = open();
            let closed = ConnEvent::Closed;
            thread::scope(|scope| {
                scope.spawn(|| slots.ended_with(&closed));
                while !slots.takes_no_more() {
                    std::hint::spin_loop();
                }
                assert!(slots.event().is_some() && slots.quiet_from().is_some());
            });
        }
    }

    /// Promise: a flushed operation explains no end, and is explained by it.
    #[test]
    fn a_flushed_operation_is_no_cause() {
        let of = |slots: &ConnSlots| (slots.reason(), slots.reason_of(flushed(7)));
        let slots = open();
        assert!(matches!(
            of(&slots),
            (None, Error::Operation(WcFailure { wr_id: 7, .. }))
        ));
        slots.end(ConnState::Closed);
        assert!(matches!(
            of(&slots),
            (
                Some(Error::NotConnected(NotConnected::Closed)),
                Error::Operation(_)
            )
        ));
        slots.fail(flushed(1));
        assert!(matches!(
            of(&slots),
            (
                Some(Error::Operation(WcFailure { wr_id: 1, .. })),
                Error::Operation(WcFailure { wr_id: 7, .. })
            )
        ));
        slots.ended_with(&ConnEvent::Closed);
        assert!(matches!(
            of(&slots),
            (Some(Error::Ended(_)), Error::Ended(_))
        ));
        slots.call_failed(&Error::provider("poll", rustix::io::Errno::NOMEM));
        assert!(matches!(
            of(&slots),
            (
                Some(Error::Provider { call: "poll", .. }),
                Error::Provider { .. }
            )
        ));
        slots.fail(Failure::Device);
        assert!(matches!(
            of(&slots),
            (
                Some(Error::NotConnected(NotConnected::GivenUp)),
                Error::NotConnected(_)
            )
        ));
        let length = WcFailure::for_test(8, WcStatus::LOC_LEN_ERR);
        assert!(matches!(slots.reason_of(length), Error::Operation(of) if of == length));
    }

    /// Promise: the time of `quiet_from` follows the first end, and an end of posting alone has no
    /// such time.
    #[test]
    fn the_first_end_counts() {
        let slots = open();
        slots.end(ConnState::Closed);
        assert!(slots.takes_no_more() && slots.quiet_from().is_none() && !slots.is_quiet());
        assert!(slots.ended_with(&ConnEvent::Closed));
        let first = slots.quiet_from().and_then(Deadline::instant);
        assert!(first.is_some());
        assert!(!slots.ended_with(&ConnEvent::Lost { status: 0 }));
        slots.fail(Failure::Device);
        assert_eq!(slots.quiet_from().and_then(Deadline::instant), first);
        assert_eq!(slots.event(), Some(&ConnEvent::Closed));
    }

    /// Promise: a program that hears that completions may be missing hears it also if an operation
    /// has failed; and an end by the keep-alive stays one, also if a later failure explains it.
    #[test]
    fn what_is_missing_is_not_hidden_by_a_cause() {
        let why = |slots: &ConnSlots| match slots.closed() {
            Error::NotConnected(why) => why,
            other => panic!("{other:?}"),
        };
        let length = WcFailure::for_test(1, WcStatus::LOC_LEN_ERR);
        let slots = open();
        slots.fail(length);
        assert_eq!(why(&slots), NotConnected::Failed);
        slots.fail(Failure::Device);
        assert_eq!(why(&slots), NotConnected::GivenUp);
        assert!(matches!(slots.reason(), Some(Error::Operation(of)) if of == length));
        let slots = open();
        let status = WcStatus::WR_FLUSH_ERR;
        slots.fail(Failure::Probe { status });
        slots.fail(length);
        assert_eq!(why(&slots), NotConnected::Silent);
        let slots = open();
        slots.fail(length);
        slots.fail(Failure::Probe { status });
        assert_eq!(why(&slots), NotConnected::Failed);
    }
}
