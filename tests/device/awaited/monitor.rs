//! A program's own state, with tasks that wait for its changes.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use rpma_async::{Monitor, Reactor, block_on};

use crate::awaited::held::leaving_nothing;
use crate::awaited::served::polls;
use crate::awaited::support::{joined, spawn_with, turns, with_reactor};
use crate::common::prelude::*;

const SHORT: Duration = Duration::from_millis(20);

/// Promise: each change has the tasks that wait look again, in the order in which they began to
/// wait. A wait that takes something changes the value, and then the others look again.
#[test]
fn a_change_wakes_tasks_in_their_order() -> Result {
    with_reactor(async |reactor| {
        let places = Arc::new(Monitor::new(reactor, 0_u32));
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| {
            let order = Arc::clone(&order);
            spawn_with(&places, |places| async move {
                let take = |left: &mut u32| left.checked_sub(1).map(|rest| *left = rest);
                let taken = places.change_when(LIMIT, take).await;
                order.lock().expect("no panic").push(n);
                // The place goes to the next one.
                places.change(|left| *left += 1);
                taken
            })
        });
        turns(1).await;
        let is_early = !order.lock().expect("no panic").is_empty();
        assert!(!is_early, "there is no place");
        places.change(|left| *left = 1);
        for task in tasks {
            joined(task).await.ok_or("a place")?;
        }
        assert_eq!(*order.lock().expect("no panic"), Vec::from_iter(0..8));
        assert_eq!(places.look(|left| *left), 1);
        Ok(())
    })
}

/// Promise: a change wakes the tasks whose number the progress has reached, and no others, in the
/// order of their numbers. Each is polled twice. A wait that is dropped leaves nothing, and a change
/// that panics has all of them look.
#[test]
fn a_progress_wakes_the_tasks_that_it_reaches() -> Result {
    const TASKS: u64 = 64;
    with_reactor(async |reactor| {
        let value = Arc::new(Monitor::with_progress(reactor, 0, |value: &u64| *value));
        let (looks, order) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let tasks: Vec<_> = (1..=TASKS)
            .rev()
            .map(|number| {
                let (looks, order) = (Arc::clone(&looks), Arc::clone(&order));
                spawn_with(&value, |value| async move {
                    let is_there = |value: &u64| {
                        looks.fetch_add(1, Ordering::Relaxed);
                        (*value >= number).then_some(())
                    };
                    let reached = value.until_reached(number, LIMIT, is_there).await;
                    order.lock().expect("no panic").push(number);
                    reached
                })
            })
            .collect();
        turns(1).await;
        for number in 1..=TASKS {
            value.change(|value| *value = number);
            turns(1).await;
        }
        for task in tasks {
            joined(task).await.ok_or("reached")?;
        }
        assert_eq!(*order.lock().expect("no panic"), Vec::from_iter(1..=TASKS));
        let looked = looks.load(Ordering::Relaxed);
        assert!(looked <= 2 * TASKS as u32, "{looked} looks");

        let dropped = value.until_reached(1_000, SHORT, |_| None::<()>).await;
        assert_eq!(dropped, None);
        let looks = Arc::clone(&looks);
        let waiting = spawn_with(&value, |value| async move {
            let look = |_: &u64| (looks.fetch_add(1, Ordering::Relaxed) > looked).then_some(());
            value.until_reached(1_000, LIMIT, look).await
        });
        turns(1).await;
        let changes = Arc::clone(&value);
        let panicked =
            std::thread::spawn(move || changes.change(|_| panic!("a change panics in this test")));
        assert!(panicked.join().is_err());
        joined(waiting).await.ok_or("it looks")?;
        Ok(())
    })
}

/// Promise: a wait ends at its limit, on tokio and on a driver's thread, and looks once at least.
#[test]
fn a_wait_has_a_limit() -> Result {
    with_reactor(async |reactor| {
        let value = Monitor::new(reactor, 1);
        assert_eq!(value.until(SHORT, |_| None::<()>).await, None);
        let found = value.until(Duration::ZERO, |value| Some(*value)).await;
        assert_eq!(found, Some(1));
        assert_eq!(value.until(Duration::ZERO, |_| None::<()>).await, None);
        Ok(())
    })?;
    leaving_nothing(|| {
        let value = Monitor::new(&Reactor::on_thread(&peer()?)?, ());
        let passed = block_on(value.until(SHORT, |()| None::<()>), LIMIT);
        assert_eq!(passed, Some(None));
        Ok(())
    })
}

/// Promise: a wait that is over leaves no waker: after it has returned, and after it was dropped
/// at its nth poll.
#[test]
fn a_wait_that_is_over_is_forgotten() -> Result {
    with_reactor(async |reactor| {
        let value = Monitor::new(reactor, 0);
        for n in 0..4 {
            assert_eq!(polls(value.until(LIMIT, |_| None::<()>), n).await, None);
        }
        let woken = Arc::new(Woken);
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        {
            let is_one = |value: &i32| (*value == 1).then_some(());
            let mut waits = pin!(value.until(Duration::MAX, is_one));
            assert!(waits.as_mut().poll(&mut context).is_pending());
            assert_eq!(Arc::strong_count(&woken), 3, "it waits");
            value.change(|value| *value = 1);
            assert!(waits.as_mut().poll(&mut context).is_ready());
            assert_eq!(Arc::strong_count(&woken), 2, "it has returned");
        }
        let mut waits = Box::pin(value.until(Duration::MAX, |_| None::<()>));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        drop(waits);
        assert_eq!(Arc::strong_count(&woken), 2, "it was dropped");
        Ok(())
    })
}

/// A task that does nothing when it is woken.
struct Woken;

impl Wake for Woken {
    fn wake(self: Arc<Self>) {}
}

/// Promise: a wait that changes nothing wakes nobody, so that a thousand tasks do not look a
/// thousand times at each change.
#[test]
fn a_wait_without_a_change_wakes_nobody() -> Result {
    with_reactor(async |reactor| {
        let value = Arc::new(Monitor::new(reactor, 0));
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let waiting = spawn_with(&value, |value| async move {
            let look = |value: &i32| {
                counted.fetch_add(1, Ordering::Relaxed);
                (*value == 1).then_some(())
            };
            value.until(LIMIT, look).await
        });
        turns(1).await;
        for _ in 0..10 {
            value.until(LIMIT, |_| Some(())).await.ok_or("at once")?;
            value.look(|value| assert_eq!(*value, 0));
            turns(1).await;
        }
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        let one = |value: &mut i32| Some(std::mem::replace(value, 1));
        assert_eq!(value.change_when(LIMIT, one).await, Some(0));
        joined(waiting).await.ok_or("it is 1")?;
        assert_eq!(looks.load(Ordering::Relaxed), 2);
        Ok(())
    })
}

/// Promise: a panic in a change leaves a monitor that works, and wakes the tasks that wait for that
/// change.
#[test]
fn a_panic_leaves_a_value() -> Result {
    async fn panics(value: &Monitor<i32>, is_awaited: bool) {
        let change = |value: &mut i32| -> Option<()> {
            *value += 1;
            panic!("in a change");
        };
        if is_awaited {
            value.change_when(LIMIT, change).await
        } else {
            value.change(change)
        };
    }
    with_reactor(async |reactor| {
        for is_awaited in [false, true] {
            let value = Arc::new(Monitor::new(reactor, 1));
            let waiting = spawn_with(&value, |value| async move {
                let is_two = |value: &i32| (*value == 2).then_some(());
                value.until(LIMIT, is_two).await
            });
            turns(1).await;
            let changed = spawn_with(
                &value,
                |value| async move { panics(&value, is_awaited).await },
            );
            changed.await.expect_err("it panics");
            joined(waiting).await.ok_or("it is changed")?;
            assert_eq!(value.look(|value| *value), 2);
        }
        Ok(())
    })
}
