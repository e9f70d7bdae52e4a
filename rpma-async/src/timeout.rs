//! A future with a limit, on the reactor's own timers: no runtime is asked for the time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::alarm::Alarm;
use crate::clock;
use crate::reactor::{Handle, Patience, Reactor};

impl Reactor {
    /// Awaits a future for at most `limit` (`Duration::MAX` is for ever). After the limit it drops
    /// the future and returns `None`. The future is polled at least once.
    ///
    /// The driver of this reactor wakes the task. So `timeout` needs no runtime. Its time is
    /// rpma's: on the simulated fabric, the fabric's time. Any future can have such a limit, also
    /// one that does not belong to a reactor.
    ///
    /// A driver that is gone wakes no task. Then `timeout` returns `None` at once, if the future is
    /// not ready. A driver that never runs counts as gone after about five seconds. In both cases,
    /// a future of this reactor returns an error, and `timeout` returns that error as the output.
    ///
    /// ```
    /// # #[cfg(feature = "sim")]
    /// # async fn example(reactor: &rpma_async::Reactor, pool: &rpma_async::Pool) -> rpma::Result<()> {
    /// use std::time::Duration;
    ///
    /// let lease = reactor.timeout(Duration::from_secs(5), pool.lease()).await;
    /// let lease = lease.ok_or(rpma::Error::TimedOut("no block is free"))?;
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        timeout(self.handle(), limit, future).await
    }
}

/// As [`Reactor::timeout`].
pub(crate) async fn timeout<F: Future>(
    reactor: &Arc<Handle>,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let until = clock::after(limit);
    let mut alarm = Alarm::new(reactor);
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
        alarm.set(Some(until), cx);
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
