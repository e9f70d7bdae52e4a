//! A future with a limit, on the reactor's own timers: no runtime is asked for the time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::clock;
use crate::reactor::{Core, Due, Timer};

/// Awaits a future for at most `limit`; `None` past it.
pub(crate) async fn timeout<F: Future>(
    core: &Core,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let until = clock::after(limit);
    let mut alarm = Alarm { core, timer: None };
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
        alarm.clear();
        alarm.timer = Some(core.set_timer(until, Due::Wake(cx.waker().clone())));
        Poll::Pending
    })
    .await
}

struct Alarm<'core> {
    core: &'core Core,
    timer: Option<Timer>,
}

impl Alarm<'_> {
    fn clear(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.core.take_timer(timer);
        }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
