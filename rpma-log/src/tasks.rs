//! Futures together, and a bell for the work of a log.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use rpma_async::{Monitor, Reactor};

pub(crate) type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Does all of them, until one has ended: the log ends with it.
pub(crate) async fn until_one_ends(all: &mut [Work<'_>]) {
    poll_fn(|cx| {
        let is_over = all.iter_mut().any(|one| one.as_mut().poll(cx).is_ready());
        if is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Waits for one, unless the other one is there before.
pub(crate) async fn unless<T>(one: impl Future<Output = T>, other: impl Future) -> Option<T> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        let there = one.as_mut().poll(cx).map(Some);
        if there.is_ready() {
            return there;
        }
        other.as_mut().poll(cx).map(|_| None)
    })
    .await
}

pub(crate) async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Wakes the work of a log. It counts the rings, so none is missed.
pub(crate) struct Bell(Monitor<u64>);

impl Bell {
    pub(crate) fn new(reactor: &Reactor) -> Self {
        Self(Monitor::new(reactor, 0))
    }

    pub(crate) fn ring(&self) {
        self.0.change(|rings| *rings += 1);
    }

    pub(crate) fn rings(&self) -> u64 {
        self.0.look(|rings| *rings)
    }

    /// Waits until it has rung more often than that. `None`: the driver of the reactor is gone.
    pub(crate) async fn after(&self, rings: u64) -> Option<()> {
        let has_rung = |now: &u64| (*now > rings).then_some(());
        self.0.until(Duration::MAX, has_rung).await
    }
}
