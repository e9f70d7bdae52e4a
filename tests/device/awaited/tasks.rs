//! Work that runs beside its owner: [`Reactor::run`], [`Task`].

use std::future::pending;
use std::sync::{Arc, Mutex, Weak, mpsc};

use rpma_async::{Monitor, Reactor, Task, block_on};

use crate::awaited::held::leaving_nothing;
use crate::awaited::support::{in_time, says, turns, with_reactor};
use crate::common::prelude::*;

/// Work that never ends by itself, and whether it is there.
fn endless() -> (impl Future<Output = ()> + Send + 'static, Weak<()>) {
    let own = Arc::new(());
    let there = Arc::downgrade(&own);
    let work = async move {
        let _own = own;
        pending().await
    };
    (work, there)
}

/// Lets other tasks run until this is so.
async fn ends(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        turns(1).await;
    }
}

/// Promise: on a thread the work is gone when the drop of its task returns, also while it sleeps,
/// and with its handle of the reactor.
#[test]
fn a_thread_ends_with_its_task() -> Result {
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        for _ in 0..100 {
            let (work, there) = endless();
            let held = reactor.clone();
            let task = reactor.run(async move {
                let _held = held;
                work.await;
            })?;
            assert!(!task.is_finished());
            drop(task);
            assert!(there.upgrade().is_none());
        }
        Ok(())
    })
}

/// Promise: on tokio the runtime drops the work soon after the drop of its task.
#[test]
fn a_task_of_tokio_ends_with_its_owner() -> Result {
    with_reactor(async |reactor| {
        let (work, there) = endless();
        let task = reactor.run(work)?;
        turns(1).await;
        assert!(!task.is_finished());
        drop(task);
        in_time(ends(|| there.upgrade().is_none())).await;
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
    while number.change_when(LIMIT, answer).await > Some(0) {}
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
        in_time(ends(|| task.is_finished())).await;
        Ok(())
    })?;
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        let task = block_on(asks(&reactor), LIMIT).ok_or("in time")??;
        until("the task ends", || task.is_finished());
        Ok(())
    })
}

/// Promise: work that panics, or that drops its own task, leaves the owner alone.
#[test]
fn work_that_ends_itself() -> Result {
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        let task = reactor.run(async { panic!("on purpose") })?;
        until("the task ends", || task.is_finished());
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
                turns(1).await;
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
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build()?;
        let _entered = runtime.enter();
        let (reactor, driver) = Reactor::new(&peer()?)?;
        let (work, there) = endless();
        says(reactor.run(work), &["spawn the work there"]);
        assert!(there.upgrade().is_none());
        drop((reactor, driver));
        Ok(())
    })
}
