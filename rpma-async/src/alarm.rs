//! [`Alarm`]: the reactor wakes a task at a time.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use crate::clock;
use crate::driver::{Due, Handle, Timer};

/// The alarm of one task. Its drop clears it.
#[derive(Debug)]
pub(crate) struct Alarm {
    reactor: Arc<Handle>,
    timer: Option<(Timer, Waker)>,
}

impl Alarm {
    pub(crate) fn new(reactor: &Arc<Handle>) -> Self {
        Self {
            reactor: Arc::clone(reactor),
            timer: None,
        }
    }

    /// Wakes the task at this time, at once if it has passed, and at no other time.
    pub(crate) fn set(&mut self, at: Option<Instant>, cx: &Context<'_>) {
        if let Some((timer, waker)) = &self.timer {
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
                self.timer = Some((self.reactor.set_timer(at, due), cx.waker().clone()));
            }
        }
    }

    fn clear(&mut self) {
        if let Some((timer, _)) = self.timer.take() {
            self.reactor.take_timer(timer);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.clear();
    }
}
