//! How a connection ends: [`Conn::closed`], and [`Conn::close`].

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rpma::{ConnEvent, Error, Result};

use super::{Conn, Shared};
use crate::timeout::timeout;
use crate::told::{Look, Wait};

impl Conn {
    /// Waits for the end of the connection, and returns its event: the peer closed it, was lost,
    /// or has answered this side's end.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    ///
    /// # Errors
    ///
    /// The first failure of the connection, if the connection failed before an event of its end
    /// came:
    ///
    /// * [`Error::Operation`]: an operation failed.
    /// * [`Error::Provider`]: a call that posts, or a call of the reactor, failed.
    /// * [`Error::NotConnected`]: the device gave the connection up.
    ///
    /// If the peer does not answer this side's end, the connection manager gives an event only
    /// after 69 s. [`Error::InvalidArgument`] if the driver is gone.
    pub fn closed(&self) -> impl Future<Output = Result<ConnEvent>> + Unpin + use<> {
        let mut until_end = UntilEnd {
            shared: Arc::clone(&self.shared),
            wait: Wait::default(),
        };
        poll_fn(move |cx| until_end.poll(cx))
    }

    /// Ends the connection without loss, within `limit`. It waits until no operation is in flight,
    /// including operations with dropped [`Op`](crate::Op)s. Then it disconnects, and waits for the
    /// peer's answer. After `limit` it disconnects in any case. This call blocks no executor.
    /// Dropping the last handle destroys the queues, which takes a device some milliseconds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops this handle. The connection goes on if there are others.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if the operations or the peer's answer take longer. Then it is possible
    /// that operations in flight were not executed. [`Error::Ended`] if the peer ended the
    /// connection while operations were in flight. If the connection failed: its first failure, or
    /// [`Error::NotConnected`].
    pub async fn close(self, limit: Duration) -> Result<()> {
        let ends = async {
            self.idle().await?;
            // Receives are flushed at each end, and are no loss.
            if let (true, Some(event)) = (self.shared.has_lost(), self.shared.end()) {
                return Err(Error::Ended(Box::new(event.clone())));
            }
            if let Some(cause) = self.shared.cause() {
                return Err(cause);
            }
            if let (true, Some(flushed)) = (self.shared.has_lost(), self.failure()) {
                return Err(flushed.into());
            }
            self.abort();
            self.closed().await?;
            Ok(())
        };
        let ended = timeout(self.shared.reactor(), limit, ends).await;
        self.abort();
        ended.unwrap_or(Err(Error::TimedOut(
            "the operations in flight did not complete, or the peer did not answer the end of the connection",
        )))
    }

    /// Ends the connection at once: operations in flight are flushed, and their
    /// [`Op`](crate::Op)s fail. The peer gets [`ConnEvent::Closed`]. This call does not wait.
    pub fn abort(&self) {
        if let Err(error) = self.shared.conn().disconnect() {
            log::debug!("{error}");
        }
    }
}

struct UntilEnd {
    shared: Arc<Shared>,
    wait: Wait,
}

impl UntilEnd {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<ConnEvent>> {
        let Self { shared, wait } = self;
        let look = || {
            let end = shared.end().cloned().map(Ok);
            let cause = || shared.cause_without_event().map(Err);
            let given_up = || shared.given_up().map(Err);
            Look::from(end.or_else(cause).or_else(given_up))
        };
        let ended = ready!(wait.poll((shared.reactor(), shared.closed()), cx, look));
        Poll::Ready(ended.and_then(|end| end))
    }
}

impl Drop for UntilEnd {
    fn drop(&mut self) {
        self.wait.leave(self.shared.closed());
    }
}
