//! Requests that stay on their way, where a test can have that.

#[cfg(feature = "sim")]
mod way {
    use std::thread;
    use std::time::{Duration, Instant};

    use crate::common::{LIMIT, Result, on_fabric, with_fabric};

    pub(crate) fn hold() {
        with_fabric(|fabric, host| fabric.between(host, host).hold());
    }

    pub(crate) fn release() {
        with_fabric(|fabric, host| fabric.between(host, host).release());
    }

    /// Runs a test that leaves no objects: a thread of its own may drop the last of them, a moment
    /// later.
    pub(crate) fn leaving_nothing(test: impl FnOnce() -> Result) -> Result {
        on_fabric(|| {
            let objects = || with_fabric(|fabric, _host| fabric.objects());
            let before = objects();
            test()?;
            let until = Instant::now() + LIMIT;
            while objects() != before {
                assert!(Instant::now() < until, "objects leak: {:?}", objects());
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    }
}

/// On a device operations take the time that they take.
#[cfg(not(feature = "sim"))]
mod way {
    use crate::common::Result;

    pub(crate) fn hold() {}

    pub(crate) fn release() {}

    pub(crate) fn leaving_nothing(test: impl FnOnce() -> Result) -> Result {
        crate::common::leaving(&[], test)
    }
}

pub(crate) use way::{hold, leaving_nothing, release};

/// Holds the operations of [`unanswered`](super::support::unanswered) back, which are reads on iWARP.
pub(crate) fn hold_unanswered() {
    if crate::common::is_iwarp() {
        hold();
    }
}
