//! [`Alarm`]: the reactor wakes a task at a time.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use crate::clock;
use crate::driver::{Due, Handle, Timer};

/// The alarm of one task. Its drop clears it.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Set>);

#[derive(Debug)]
struct Set {
    timer: Timer,
    waker: Waker,
    reactor: Arc<Handle>,
}

impl Alarm {
    /// Wakes the task at this time, at once if it has passed, and at no other time.
    pub(crate) fn set(&mut self, reactor: &Arc<Handle>, at: Option<Instant>, cx: &Context<'_>) {
        if let Some(Set { timer, waker, .. }) = &self.0 {
            if Some(timer.0) == at && waker.will_wake(cx.waker()) {
                return;
            }
        }
        self.clear();
        match at {
            None => {}
            Some(at) if at <= clock::now() => cx.waker().wake_by_ref(),
            Some(at) => {
                let due = Due::Wake(cx.waker().clone());
                self.0 = Some(Set {
                    timer: reactor.set_timer(at, due),
                    waker: cx.waker().clone(),
                    reactor: Arc::clone(reactor),
                });
            }
        }
    }

    fn clear(&mut self) {
        if let Some(set) = self.0.take() {
            set.reactor.take_timer(set.timer);
        }
    }
}

impl Drop for Alarm {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            self.clear();
        }
    }
}
