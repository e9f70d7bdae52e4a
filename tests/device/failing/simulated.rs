//! Calls that fail on a simulated fabric.

use rpma::sim;
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::How;

/// Runs a test on a fabric with calls that can fail.
pub(crate) fn with_failures(_: &str, test: impl FnOnce() -> Result) -> Result {
    on_fabric(test)
}

/// A call that is armed.
#[derive(Debug)]
pub(crate) struct Armed(sim::Failing);

impl Armed {
    /// Takes it back if it is still to come, and returns whether it was.
    pub(crate) fn disarm(&self) -> bool {
        self.0.disarm()
    }
}

/// The `nth` call from now on fails.
pub(crate) fn arm(call: &'static str, nth: u32, errno: Errno, how: How) -> Result<Armed> {
    let how = match how {
        How::Refused => sim::How::Refused,
        How::Done => sim::How::Done,
        How::LastRefused => sim::How::LastRefused,
        How::LastDropped => sim::How::LastDropped,
    };
    Ok(Armed(with_fabric(|fabric, host| {
        fabric.fail(call).on(host).how(how).nth(nth, errno)
    })))
}

/// From now on each post of this thread stops for so many microseconds, before and after its
/// request is in the queue, as if something else had the processor.
pub(crate) fn pause_in_posts(us: u32) {
    sim::preempt_posts(Duration::from_micros(us.into()));
}
