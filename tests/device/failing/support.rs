//! The shared parts of these tests: calls that fail, and the reports that they must cause.
//!
//! On a device a library stands between this one and verbs (see `preloaded.rs`); a simulated
//! fabric lets calls fail by itself (see `simulated.rs`).

use std::any::type_name_of_val;
use std::fmt::Debug;
use std::io;

use rustix::io::Errno;

use crate::common::prelude::*;
#[cfg(not(feature = "sim"))]
use crate::failing::preloaded as verbs;
#[cfg(feature = "sim")]
use crate::failing::simulated as verbs;

pub(crate) use verbs::pause_in_posts;

/// Runs a test with verbs that can fail. No object may be left. `test` is the closure that is the
/// body of a test.
pub(crate) fn with_failures(test: impl FnOnce() -> Result) -> Result {
    verbs::with_failures(type_name_of_val(&test), || leaving(&[], test))
}

/// The same for a test that counts its objects itself.
pub(crate) fn with_failures_left(test: impl FnOnce() -> Result) -> Result {
    verbs::with_failures(type_name_of_val(&test), test)
}

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
        let text = error.to_string();
        let is_told = text.starts_with(&format!("{} failed: ", self.call));
        assert!(
            is_told && matches!(error, Error::Provider { .. }),
            "{self:?}: {error:?}"
        );
        // The one verb that does not report why.
        if self.call != "ibv_poll_cq" {
            let errno = self.errno.raw_os_error();
            assert_eq!(error.raw_os_error(), Some(errno), "{text}");
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

/// Fills a connection's queues with writes of the numbers from 0 on, and receives of those from 10
/// on.
pub(crate) fn work(conn: &Conn, writes: u64, receives: u64) -> Result {
    for number in 10..10 + receives {
        conn.recv(MrSlice::EMPTY, number)?;
    }
    for number in 0..writes {
        write_nothing(conn, number)?;
    }
    Ok(())
}

/// A server's settings: a queue of its own for receives, so that there are two queues, which have a
/// channel each, or one.
pub(crate) fn two_queues(channel: ComplChannel) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10).set_compl_channel(channel).clone()
}

/// The line in the log that this call has failed.
pub(crate) fn assert_logged(call: &str) {
    let lines = lines::take();
    let told = format!("{call} failed: ");
    assert!(
        lines.iter().any(|line| line.starts_with(&told)),
        "{lines:?}"
    );
}

/// Promise: a connection ends with this call, which has failed: it takes no operations any more,
/// `failure` has the call, and so many sends and receives complete, from any call that gives them
/// back. The other side is notified of the end.
pub(crate) fn ends_with(
    (call, errno): (&'static str, Errno),
    conn: Conn,
    other: &Conn,
    closes: bool,
    (sends, receives): (usize, usize),
) -> Result<Vec<Wc>> {
    let none = (RemoteSlice::EMPTY, MrSlice::EMPTY);
    for result in [
        conn.write(none.0, none.1, ALWAYS, 99),
        conn.read(none.1, none.0, ALWAYS, 99),
        conn.send(none.1, ALWAYS, 99),
        conn.send(none.1, ON_ERROR, 99),
    ] {
        assert_not_connected(result);
    }
    let errno = errno.raw_os_error();
    let failed = Failure::Post { call, errno };
    assert_eq!(conn.failure(), Some(failed));
    let rest = if closes {
        let error = conn.close(LIMIT).expect_err("it has failed");
        let told = error.error.to_string();
        assert!(told.starts_with(&failed.to_string()), "{told}");
        error.object
    } else {
        let rest = completions(&conn, sends + receives)?;
        assert_eq!(conn.failure(), Some(failed), "still the first");
        drop(conn);
        rest
    };
    let is_sent = |wc: &Wc| wc.posted().is_some();
    let (sent, received): (Vec<_>, Vec<_>) = rest.iter().copied().partition(is_sent);
    assert_eq!(received.len(), receives, "{rest:?}");
    for (wc, number) in received.iter().zip(10..) {
        assert_eq!((wc.status(), wc.wr_id()), (WcStatus::WR_FLUSH_ERR, number));
    }
    assert_eq!(sent.len(), sends, "{rest:?}");
    let mut flushed = false;
    for (number, wc) in sent.iter().enumerate() {
        assert_eq!(wc.wr_id(), number as u64);
        flushed |= wc.status() == WcStatus::WR_FLUSH_ERR;
        assert_eq!(
            wc.result().is_err(),
            flushed,
            "{wc:?}: each after a flushed one is"
        );
    }
    assert_eq!(event(other)?, ConnEvent::Closed);
    Ok(rest)
}
