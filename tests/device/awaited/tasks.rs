//! Work that runs beside its owner: [`Reactor::run`], [`Task`].

use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};

use rpma_async::{Monitor, Reactor, Task, block_on};

use crate::awaited::held::leaving_nothing;
use crate::awaited::support::{in_time, with_reactor};
use crate::common::prelude::*;

/// Sends word of its drop.
struct Dropped(mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Work that never ends by itself, and the word of its drop.
fn endless() -> (
    impl Future<Output = ()> + Send + 'static,
    mpsc::Receiver<()>,
) {
    let (sender, dropped) = mpsc::channel();
    let sender = Dropped(sender);
    let work = async move {
        let _sender = sender;
        pending().await
    };
    (work, dropped)
}

fn until_finished(task: &Task) {
    let until = Instant::now() + LIMIT;
    while !task.is_finished() {
        assert!(Instant::now() < until, "the work does not end");
        std::thread::yield_now();
    }
}

/// Promise: on a thread the work is gone when the drop of its task returns, also while it sleeps,
/// and with its handle of the reactor.
#[test]
fn a_thread_ends_with_its_task() -> Result {
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        for _ in 0..100 {
            let (work, dropped) = endless();
            let held = reactor.clone();
            let task = reactor.run(async move {
                let _held = held;
                work.await;
            })?;
            assert!(!task.is_finished());
            drop(task);
            dropped.try_recv()?;
        }
        Ok(())
    })
}

/// Promise: on tokio the runtime drops the work soon after the drop of its task.
#[test]
fn a_task_of_tokio_ends_with_its_owner() -> Result {
    with_reactor(async |reactor| {
        let (work, dropped) = endless();
        let task = reactor.run(work)?;
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(task);
        while dropped.try_recv().is_err() {
            in_time(tokio::task::yield_now()).await;
        }
        Ok(())
    })
}

/// Work that answers: it doubles each number, and ends at 0.
async fn double(number: Arc<Monitor<(u64, u64)>>) {
    let answer = |(asked, answer): &mut (u64, u64)| {
        (*answer != 2 * *asked).then(|| {
            *answer = 2 * *asked;
            *answer
        })
    };
    while number
        .change_when(LIMIT, answer)
        .await
        .is_some_and(|answer| answer > 0)
    {}
}

async fn asks(reactor: &Reactor) -> Result<Task> {
    let number = Arc::new(Monitor::new(reactor, (0, 0)));
    let task = reactor.run(double(Arc::clone(&number)))?;
    for asked in [21, 4, 0] {
        number.change(|number| number.0 = asked);
        let is_there = |(_, answer): &(u64, u64)| (*answer == 2 * asked).then_some(());
        number.until(LIMIT, is_there).await.ok_or("an answer")?;
    }
    Ok(task)
}

/// Promise: the same work runs beside threads and beside tasks, and a task whose work is complete
/// knows it.
#[test]
fn work_is_written_once() -> Result {
    with_reactor(async |reactor| {
        let task = asks(reactor).await?;
        while !task.is_finished() {
            in_time(tokio::task::yield_now()).await;
        }
        Ok(())
    })?;
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        let task = block_on(asks(&reactor), LIMIT).ok_or("in time")??;
        until_finished(&task);
        Ok(())
    })
}

/// Promise: work that panics, or that drops its own task, leaves the owner alone.
#[test]
fn work_that_ends_itself() -> Result {
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        let task = reactor.run(async { panic!("on purpose") })?;
        until_finished(&task);
        drop(task);

        let own = Arc::new(Mutex::new(None));
        let (sender, ended) = mpsc::channel();
        let held = Arc::clone(&own);
        let task = reactor.run(async move {
            loop {
                let own = held.lock().expect("no panic").take();
                if own.is_some() {
                    drop(own);
                    let _ = sender.send(());
                    return;
                }
                tokio::task::yield_now().await;
            }
        })?;
        *own.lock().expect("no panic") = Some(task);
        ended.recv_timeout(LIMIT)?;
        Ok(())
    })
}

/// Promise: a reactor whose driver the program spawned names the remedy, and drops the work.
#[test]
fn no_executor_is_known() -> Result {
    leaving_nothing(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let _entered = runtime.enter();
        let (reactor, driver) = Reactor::new(&peer()?)?;
        let (work, dropped) = endless();
        let refused = reactor.run(work).expect_err("no executor");
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused:?}");
        assert!(
            refused.to_string().contains("spawn the work there"),
            "{refused}"
        );
        dropped.recv_timeout(Duration::ZERO)?;
        drop((reactor, driver));
        Ok(())
    })
}
