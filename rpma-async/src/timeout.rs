//! A future with a limit, on the reactor's own timers: no runtime is asked for the time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::alarm::Alarm;
use crate::clock;
use crate::driver::{Handle, Patience};

/// As [`Reactor::timeout`](crate::Reactor::timeout).
pub(crate) async fn timeout<F: Future>(
    reactor: &Arc<Handle>,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let until = clock::after(limit);
    let mut alarm = Alarm::default();
    let mut patience = Patience::default();
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let Some(until) = until else {
            return Poll::Pending;
        };
        if until <= clock::now() {
            return Poll::Ready(None);
        }
        alarm.set(reactor, Some(until), cx);
        // After the alarm: a driver that goes later wakes the task.
        if let Poll::Ready(Err(_gone)) = patience.poll(reactor, cx) {
            // It may have gone since that poll: a wait of the reactor has its error now.
            return match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => Poll::Ready(None),
            };
        }
        Poll::Pending
    })
    .await
}
