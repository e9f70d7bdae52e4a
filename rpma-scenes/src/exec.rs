//! The tasks of a scene: tasks of a runtime with a paused clock, or threads that a seed orders.

use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpma::sim::{self, Fabric, Host};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until, timeout};

use crate::world::fail;

/// Longer than any limit of a log, and than the connection manager's.
const FOREVER: Duration = Duration::from_secs(4 * 3600);

/// Runs a scene on a fabric.
pub(crate) struct Executor {
    /// `None`: each task is a thread.
    runtime: Option<Runtime>,
    host: Host,
}

impl Executor {
    pub(crate) fn new(blocks: bool, fabric: &Fabric) -> Self {
        let runtime = (!blocks).then(|| {
            let mut builder = Builder::new_current_thread();
            let builder = builder.enable_all().start_paused(true);
            let runtime = builder.build().expect("the system has a runtime");
            runtime.block_on(async {
                fabric.follow(|| Instant::now().into_std());
                tokio::spawn(fabric.tick(|at| sleep_until(at.into())));
            });
            runtime
        });
        Self {
            runtime,
            host: fabric.host("scene"),
        }
    }

    pub(crate) fn run<F: Future>(&self, scene: F) -> F::Output {
        match &self.runtime {
            Some(runtime) => runtime.block_on(scene),
            None => {
                // Off a host the order of threads would not be the seed's.
                let _entered = self.host.enter();
                at_once(scene)
            }
        }
    }
}

/// The result of a future whose calls block.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => fail("a call of a blocking subject does not block".to_owned()),
    }
}

/// A future that is polled on a host.
struct OnHost<F> {
    host: Host,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for OnHost<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.host.enter();
        self.future.as_mut().poll(cx)
    }
}

/// Awaits a call of the subject on a host. Each call of a log has limits of its own.
pub(crate) async fn on<F: Future>(blocks: bool, host: &Host, call: &str, future: F) -> F::Output {
    let future = OnHost {
        host: host.clone(),
        future: Box::pin(future),
    };
    if blocks {
        return future.await;
    }
    let ended = timeout(FOREVER, future).await;
    ended.unwrap_or_else(|_| {
        fail(format!(
            "{call} has not returned after {FOREVER:?} of virtual time"
        ))
    })
}

/// A task of a scene, or a server.
pub(crate) enum Handle<T> {
    Task(tokio::task::JoinHandle<T>),
    Thread(sim::JoinHandle<T>),
}

/// Starts a task on a host.
pub(crate) fn spawn<F>(blocks: bool, host: &Host, future: F) -> Handle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    if blocks {
        return Handle::Thread(host.spawn(move || at_once(future)));
    }
    let (host, future) = (host.clone(), Box::pin(future));
    Handle::Task(tokio::spawn(OnHost { host, future }))
}

impl<T> Handle<T> {
    /// Its result. A panic goes on here.
    pub(crate) async fn join(self) -> T {
        match self {
            Self::Task(task) => task
                .await
                .unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => panic!("a task was ended"),
                }),
            Self::Thread(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        }
    }

    /// Ends it, after its host has ended its programs.
    pub(crate) async fn end(self) {
        match self {
            Self::Task(task) => {
                task.abort();
                if let Err(Ok(panic)) = task.await.map_err(JoinError::try_into_panic) {
                    resume_unwind(panic);
                }
            }
            Self::Thread(thread) => {
                let ended = thread.join();
                ended.map_or_else(|panic| resume_unwind(panic), drop);
            }
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Self::Task(task) => task.is_finished(),
            Self::Thread(thread) => thread.is_finished(),
        }
    }
}

/// Lets virtual time pass.
pub(crate) async fn sleep(blocks: bool, time: Duration) {
    if blocks {
        return sim::sleep(time);
    }
    tokio::time::sleep(time).await;
}
