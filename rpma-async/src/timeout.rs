//! A future with a limit, on the reactor's own timers: no runtime is asked for the time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::alarm::Alarm;
use crate::clock;
use crate::reactor::Handle;

/// Awaits a future for at most `limit`; `None` past it.
pub(crate) async fn timeout<F: Future>(
    reactor: &Arc<Handle>,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let until = clock::after(limit);
    let mut alarm = Alarm::new(reactor);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if until.is_some_and(|until| until <= clock::now()) {
            return Poll::Ready(None);
        }
        alarm.set(until, cx);
        Poll::Pending
    })
    .await
}
