//! [`Task`]: work that a program does beside its calls, for as long as the task has an owner.
//!
//! The work of a reactor with a thread has a thread of its own as well. The thread awaits
//! [`until_end`], which ends with the work or with the drop of the task. On a runtime the work is a
//! task there, and the drop aborts it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rpma::thread::{self, JoinHandle};
use rpma::{Error, Result};

use crate::block_on::block_on;
use crate::end::End;
use crate::error::invalid;
use crate::reactor::{Reactor, Runs};
use crate::waiters::Ticket;

/// Work that runs beside its owner ([`Reactor::run`]). Dropping the task ends the work.
///
/// The future is dropped after the poll that runs. On a thread this has happened when the drop
/// returns, unless the work drops its own task. So do not drop a task under a lock that its work
/// takes. On tokio the runtime drops the future soon after.
#[must_use = "dropping it ends the work"]
pub struct Task(Running);

enum Running {
    /// `None`: the drop took it.
    Thread(Arc<End>, Option<JoinHandle<()>>),
    #[cfg(feature = "tokio")]
    Tokio(tokio::task::JoinHandle<()>),
}

impl Reactor {
    /// Runs a future beside the caller, in the way in which the reactor's driver runs: as a task of
    /// tokio (`Reactor::spawn`), or on a thread of its own ([`on_thread`](Self::on_thread)). So the
    /// background work of a library is written once, for programs with a runtime and without one.
    ///
    /// The future ends when it is complete, or when the [`Task`] is dropped. It may use this
    /// reactor and others.
    ///
    /// ```
    /// # #[cfg(feature = "sim")]
    /// # async fn example(reactor: &rpma_async::Reactor) -> rpma::Result<()> {
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use rpma_async::Monitor;
    ///
    /// let counted = Arc::new(Monitor::new(reactor, (0, 0)));
    /// let shared = Arc::clone(&counted);
    /// // Doubles each number that it finds.
    /// let task = reactor.run(async move {
    ///     let is_new = |(number, double): &mut (u64, u64)| {
    ///         (*double != 2 * *number).then(|| *double = 2 * *number)
    ///     };
    ///     while shared.change_when(Duration::MAX, is_new).await.is_some() {}
    /// })?;
    /// counted.change(|(number, _)| *number = 21);
    /// let is_42 = |(_, double): &(u64, u64)| (*double == 42).then_some(());
    /// assert!(counted.until(Duration::from_secs(5), is_42).await.is_some());
    /// drop(task);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a reactor that was made with [`Reactor::new`]: the program
    /// chose the executor of its driver, and spawns the future there. [`Error::Provider`] if the
    /// thread cannot be started. The future is dropped then.
    pub fn run(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<Task> {
        match self.runs() {
            Runs::OnThread => on_thread(Box::pin(work)),
            #[cfg(feature = "tokio")]
            Runs::OnTokio(runtime) => Ok(Task(Running::Tokio(runtime.spawn(work)))),
            Runs::Elsewhere => Err(invalid(
                "Reactor::run with a reactor whose driver the program spawned itself: spawn the \
                 work there as well, or make the reactor with Reactor::spawn or \
                 Reactor::on_thread",
            )),
        }
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

fn on_thread(work: Work) -> Result<Task> {
    let end = Arc::new(End::default());
    let until_end = until_end(work, Arc::clone(&end));
    let thread = thread::Builder::new().name("rpma-work".to_owned());
    let started = thread.spawn(move || {
        block_on(until_end, Duration::MAX);
    });
    let thread = started.map_err(|cause| Error::Provider {
        call: "pthread_create",
        cause,
        hint: None,
    })?;
    Ok(Task(Running::Thread(end, Some(thread))))
}

impl Task {
    /// Returns whether the work has ended: it is complete, or it panicked.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Running::Thread(_, thread) => thread.as_ref().is_none_or(JoinHandle::is_finished),
            #[cfg(feature = "tokio")]
            Running::Tokio(task) => task.is_finished(),
        }
    }
}

/// Ends the work.
impl Drop for Task {
    fn drop(&mut self) {
        match &mut self.0 {
            Running::Thread(end, thread) => {
                end.come();
                let own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
                if let Some(thread) = thread.take().filter(|thread| !own(thread)) {
                    // A panic there has printed its report.
                    let _ = thread.join();
                }
            }
            #[cfg(feature = "tokio")]
            Running::Tokio(task) => task.abort(),
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// Work, until it is complete or until the end.
async fn until_end(work: Work, end: Arc<End>) {
    let (mut work, mut ticket) = (Some(work), Ticket::default());
    poll_fn(|cx| {
        if end.has_come(&mut ticket, cx.waker()) {
            work = None;
        }
        match &mut work {
            Some(work) => work.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    })
    .await;
}
