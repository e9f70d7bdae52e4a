//! The shared parts of these tests: calls that fail, and the reports that they must cause.
//!
//! On a device a library stands between this one and verbs (see `preloaded.rs`); a simulated
//! fabric lets calls fail by itself (see `simulated.rs`).

use std::fmt::Debug;
use std::io;

use rustix::io::Errno;

use crate::common::prelude::*;
#[cfg(not(feature = "sim"))]
use crate::failing::preloaded as verbs;
#[cfg(feature = "sim")]
use crate::failing::simulated as verbs;

pub(crate) use verbs::{pause_in_posts, with_failures_left};

/// Runs a test with verbs that can fail. No object may be left.
pub(crate) fn with_failures(test: impl FnOnce() -> Result) -> Result {
    with_failures_left(|| leaving(&[], test))
}

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// How a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// It has no effect; one that posts returns the request that it refused.
    Refused = 0,
    /// It does everything first.
    Done = 1,
    /// It takes all requests of a chain except the last, and returns that one as refused.
    LastRefused = 2,
    /// As that, but it returns 0.
    LastDropped = 3,
}

impl How {
    pub(crate) fn happens(self) -> bool {
        matches!(self, Self::Done)
    }
}

/// A call that fails, once.
#[derive(Debug)]
pub(crate) struct Failing {
    call: &'static str,
    errno: Errno,
    armed: verbs::Armed,
}

impl Failing {
    /// The next call from now on.
    pub(crate) fn next(call: &'static str, errno: Errno) -> Result<Self> {
        Self::nth(1, call, errno, How::Refused)
    }

    /// The `nth` call from now on.
    pub(crate) fn nth(nth: u32, call: &'static str, errno: Errno, how: How) -> Result<Self> {
        let armed = verbs::arm(call, nth, errno, how)?;
        Ok(Self { call, errno, armed })
    }

    /// It has failed, and `result` must be its error.
    pub(crate) fn told<T: Debug, E: Into<Error> + Debug>(self, result: Result<T, E>) {
        self.text(result);
    }

    /// As `told`, in this text.
    pub(crate) fn text<T: Debug, E: Into<Error> + Debug>(self, result: Result<T, E>) -> String {
        self.happened();
        let error = match result {
            Ok(value) => panic!("{self:?} is swallowed: {value:?}"),
            Err(error) => error.into(),
        };
        assert!(
            matches!(error, Error::Provider { .. }),
            "{self:?}: {error:?}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{} failed: ", self.call)),
            "{self:?}: {text}"
        );
        // The one verb that does not report why.
        if self.call != "ibv_poll_cq" {
            assert_eq!(
                error.raw_os_error(),
                Some(self.errno.raw_os_error()),
                "{text}"
            );
            let why = io::Error::from(self.errno).to_string();
            assert!(text.contains(&why), "{self:?}: {text}");
        }
        text
    }

    /// The call has been made, and has failed.
    pub(crate) fn happened(&self) {
        assert!(!self.armed.disarm(), "{self:?}: nobody calls it");
    }
}

/// Posts a write of 0 bytes.
pub(crate) fn write(conn: &Conn, op_context: u64) -> Result<Posted, Error> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context)
}

/// Promise: this call has failed, `failure` has it, and so many sends and receives complete, from
/// any call that gives them back.
pub(crate) fn ends_with(
    call: &'static str,
    errno: Errno,
    conn: Conn,
    closes: bool,
    (sends, receives): (usize, usize),
) -> Result<Vec<Wc>> {
    let failed = Failure::Post {
        call,
        errno: errno.raw_os_error(),
    };
    assert_eq!(conn.failure(), Some(failed));
    let rest = match closes {
        true => {
            let error = conn.close(LIMIT).expect_err("it has failed");
            let told = error.error.to_string();
            assert!(told.starts_with(&failed.to_string()), "{told}");
            error.completions
        }
        false => {
            let rest = completions(&conn, sends + receives)?;
            assert_eq!(conn.failure(), Some(failed), "still the first");
            rest
        }
    };
    let (sent, received): (Vec<_>, Vec<_>) = rest
        .iter()
        .copied()
        .partition(|wc: &Wc| wc.posted().is_some());
    only_receives(&received, receives as u64);
    assert_eq!(sent.len(), sends, "{rest:?}");
    let mut flushed = false;
    for (number, wc) in sent.iter().enumerate() {
        assert_eq!(wc.wr_id(), number as u64);
        flushed |= wc.status() == WcStatus::WR_FLUSH_ERR;
        assert!(flushed || wc.result().is_ok(), "{wc:?}");
        assert!(
            !flushed || wc.result().is_err(),
            "executed after a flushed one"
        );
    }
    Ok(rest)
}

/// So many receives that were flushed, with the numbers from 10 on.
pub(crate) fn only_receives(wcs: &[Wc], count: u64) {
    assert_eq!(wcs.len() as u64, count, "{wcs:?}");
    for (wc, number) in wcs.iter().zip(10..) {
        let failure = wc.result().expect_err("flushed");
        assert_eq!(
            (failure.status, failure.wr_id),
            (WcStatus::WR_FLUSH_ERR, number)
        );
    }
}
