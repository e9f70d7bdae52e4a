//! Unit tests of slots.rs, free.rs, arming.rs and waiters.rs. They stand here because `tests/loom`
//! includes those files, and looks there for orders of threads in which they fail.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::arming::Arming;
use crate::free::FreeList;
use crate::slots::{Abandoned, Look, MOST_WEIGHT, Settled, Slots};
use crate::waiters::{Ticket, Waiters};

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn waker() -> (Waker, impl Fn() -> u32) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    (waker, move || woken.0.load(Ordering::Relaxed))
}

/// An event costs a system call and a turn of the driver: none without a sleeper, and one for
/// many.
#[test]
fn a_queue_is_armed_once_while_somebody_sleeps() {
    let (arming, arms) = (Arming::default(), Cell::new(0));
    let arm = || {
        arms.set(arms.get() + 1);
        Ok::<_, ()>(())
    };
    let drain = || Ok(());
    assert_eq!(arming.event(arm, drain), Ok(()));
    assert_eq!(arms.get(), 0, "nobody sleeps");
    arming.sleep();
    arming.sleep();
    assert_eq!(arming.arm_and_drain(arm, drain), Ok(()));
    assert_eq!(arming.arm_and_drain(arm, drain), Ok(()));
    assert_eq!(arms.get(), 1, "it was armed");
    arming.wake();
    assert_eq!(arming.event(arm, drain), Ok(()));
    assert_eq!((arms.get(), arming.asleep()), (2, 1), "one still sleeps");
    arming.wake();
    assert_eq!(arming.event(arm, drain), Ok(()));
    assert_eq!((arms.get(), arming.asleep()), (2, 0));
}

/// The next sleeper must not rely on an arm that failed.
#[test]
fn a_failed_arm_is_none() {
    let arming = Arming::default();
    arming.sleep();
    assert_eq!(
        arming.arm_and_drain(|| Err("failed"), || Ok(())),
        Err("failed")
    );
    let armed = Cell::new(false);
    let arm = || {
        armed.set(true);
        Ok(())
    };
    assert_eq!(arming.arm_and_drain(arm, || Ok::<_, &str>(())), Ok(()));
    assert!(armed.get());
}

/// All indices are taken once, and the last one that came back is the next: its slot is in the
/// cache.
#[test]
fn each_index_is_free_once() {
    let free = FreeList::new(3);
    assert_eq!(
        [(); 4].map(|()| free.take()),
        [Some(0), Some(1), Some(2), None]
    );
    free.give_back(1);
    free.give_back(0);
    assert_eq!([(); 3].map(|()| free.take()), [Some(0), Some(1), None]);
    assert_eq!(FreeList::new(0).take(), None);
}

/// The completion of an operation that is over must not settle the next one of its slot.
#[test]
fn a_late_completion_settles_nothing() {
    let slots = Slots::<(), &str>::new(1);
    let first = slots.begin(3).expect("a slot");
    assert_eq!(slots.begin(1), None, "there is one");
    let settled = Settled {
        weight: 3,
        slept: false,
    };
    assert_eq!(slots.settle(first, Err("failed")), Some(settled));
    assert_eq!(slots.settle(first, Err("flushed")), None);
    assert_eq!(slots.finish(first, false), Err("failed"));
    let second = slots.begin(1).expect("the same slot");
    assert_ne!(first, second);
    assert_eq!(slots.settle(first, Err("flushed")), None);
    assert_eq!(slots.note_failure(first, "flushed"), None);
    assert_eq!(slots.look(second), Look::Pending);
    assert_eq!(
        slots.settle(second, Ok(())).map(|settled| settled.weight),
        Some(1)
    );
    assert_eq!(slots.finish(second, false), Ok(()));
}

/// Numbers of no slot come from no device, and harm nothing all the same.
#[test]
fn a_number_without_a_slot() {
    let slots = Slots::<(), ()>::new(1);
    assert_eq!(slots.settle(7, Ok(())), None);
    assert_eq!(slots.note_failure(7, ()), None);
    assert_eq!(slots.finish_own(7), 0);
    assert!(slots.begin(1).is_some());
}

/// An owner that sleeps is woken once, by the last waker that it left.
#[test]
fn a_settlement_wakes_the_last_waker() {
    let slots = Slots::<(), ()>::new(1);
    let number = slots.begin(1).expect("a slot");
    let ((first, first_woken), (second, second_woken)) = (waker(), waker());
    assert!(slots.park(number, &first));
    assert!(slots.park(number, &second));
    let settled = slots.settle(number, Ok(())).expect("it is in flight");
    assert!(settled.slept);
    assert_eq!((first_woken(), second_woken()), (0, 1));
    assert!(!slots.park(number, &first), "it is complete");
    assert_eq!(slots.finish(number, true), Ok(()));
    let next = slots.begin(1).expect("the same slot");
    assert!(slots.settle(next, Ok(())).is_some());
    assert_eq!(first_woken(), 0, "the waker of an earlier owner");
}

/// The slot of an abandoned operation has its memory until the completion, and no longer.
#[test]
fn an_abandoned_operation_keeps_its_memory() {
    let slots = Slots::<Arc<()>, ()>::new(2);
    let memory = Arc::new(());
    let going = slots.begin(2).expect("a slot");
    let abandoned = slots.abandon(going, Some(Arc::clone(&memory)));
    assert_eq!(abandoned, Abandoned::GoesOn { slept: false });
    assert_eq!(Arc::strong_count(&memory), 2);
    let complete = slots.begin(1).expect("a slot");
    assert!(slots.settle(complete, Ok(())).is_some());
    let abandoned = slots.abandon(complete, Some(Arc::clone(&memory)));
    assert!(matches!(abandoned, Abandoned::Complete(Some(_))));
    drop(abandoned);
    let settled = Settled {
        weight: 2,
        slept: true,
    };
    assert_eq!(slots.settle(going, Ok(())), Some(settled));
    assert_eq!(Arc::strong_count(&memory), 1);
    assert!(slots.begin(1).is_some() && slots.begin(1).is_some());
}

/// Slots, and the number of an operation whose requests 1 to 3 have its number.
fn with_parts() -> (Slots<(), &'static str, u32>, u64) {
    let slots = Slots::new(1);
    let number = slots.begin(3).expect("a slot is free");
    slots.has_parts(number);
    (slots, number)
}

/// The device may read the sources of the requests after a failed one until they are flushed.
#[test]
fn a_failed_part_keeps_the_sources_of_the_others() {
    let (slots, number) = with_parts();
    assert_eq!(slots.note_last(number, 3), None);
    assert_eq!(slots.settle_failed(number, "refused", 1), None);
    assert_eq!(slots.settle_failed(number, "flushed", 2), None);
    assert_eq!(slots.look(number), Look::Pending);
    let settled = slots.settle_failed(number, "flushed", 3).expect("the last");
    assert_eq!((settled.weight, settled.slept), (3, false));
    assert_eq!(slots.finish(number, false), Err("refused"));
}

/// Another thread may poll all completions before the post has returned, and settle them in any
/// order.
#[test]
fn the_last_part_may_fail_before_it_is_known() {
    let (slots, number) = with_parts();
    for request in [3, 1, 2] {
        assert_eq!(slots.settle_failed(number, "refused", request), None);
    }
    assert_eq!(slots.look(number), Look::Pending);
    assert!(slots.note_last(number, 3).is_some());
    assert_eq!(slots.finish(number, false), Err("refused"));
}

/// The next operation of the slot is settled as usual.
#[test]
fn parts_are_of_one_operation() {
    let (slots, number) = with_parts();
    assert_eq!(slots.note_last(number, 3), None);
    assert!(slots.settle(number, Ok(())).is_some());
    assert_eq!(slots.finish(number, false), Ok(()));
    let next = slots.begin(1).expect("it is free again");
    assert_eq!(slots.settle_failed(number, "flushed", 3), None, "late");
    assert!(slots.settle_failed(next, "refused", 4).is_some());
    assert_eq!(slots.finish(next, false), Err("refused"));
}

/// The room of an operation that may not have been posted is given back at once, and not once
/// more.
#[test]
fn an_unsure_operation_has_no_weight() {
    let slots = Slots::<(), ()>::new(1);
    let number = slots.begin(5).expect("a slot");
    let abandoned = slots.abandon_unsure(number, Some(()));
    assert_eq!(abandoned, Abandoned::GoesOn { slept: false });
    let settled = Settled {
        weight: 0,
        slept: true,
    };
    assert_eq!(slots.settle(number, Ok(())), Some(settled));
}

/// The weight of an operation must not reach its generation.
#[test]
fn an_operation_without_end_has_a_number() {
    let slots = Slots::<(), ()>::new(1);
    let number = slots.begin(u32::MAX).expect("a slot");
    let settled = slots.settle(number, Ok(())).expect("it is in flight");
    assert_eq!(settled.weight, MOST_WEIGHT);
}

/// A device that could not be stopped uses the memory of abandoned operations for ever.
#[test]
fn leaked_memory_is_not_dropped() {
    struct Noted<'a>(&'a AtomicU32);
    impl Drop for Noted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = AtomicU32::new(0);
    let slots = Slots::<_, ()>::new(1);
    let number = slots.begin(1).expect("a slot");
    let abandoned = slots.abandon(number, Some(Noted(&drops)));
    assert!(matches!(abandoned, Abandoned::GoesOn { slept: false }));
    slots.leak();
    drop(slots);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
}

/// Owners and a thread that settles share slots: Miri and ThreadSanitizer look for a data race.
#[test]
fn threads_share_slots() {
    const ROUNDS: usize = if cfg!(miri) { 10 } else { 1_000 };
    let slots = Slots::<Box<u32>, Box<u32>>::new(2);
    let posted = Mutex::new(Vec::new());
    let running = AtomicU32::new(3);
    thread::scope(|scope| {
        for owner in 0..3_u32 {
            let (slots, posted, running) = (&slots, &posted, &running);
            scope.spawn(move || {
                let (waker, _) = waker();
                for round in 0..ROUNDS {
                    let Some(number) = slots.begin(1) else {
                        thread::yield_now();
                        continue;
                    };
                    posted.lock().expect("no panic").push(number);
                    match round as u32 % 3 + owner % 2 {
                        0 => {
                            slots.abandon(number, Some(Box::new(owner)));
                        }
                        1 => {
                            slots.park(number, &waker);
                            slots.abandon(number, Some(Box::new(owner)));
                        }
                        parks => {
                            let parks = parks == 2;
                            while slots.look(number) == Look::Pending {
                                if parks {
                                    slots.park(number, &waker);
                                }
                                thread::yield_now();
                            }
                            let _ = slots.finish(number, parks);
                        }
                    }
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for round in 0_u32.. {
            let number = posted.lock().expect("no panic").pop();
            match number {
                Some(number) if round % 2 == 0 => drop(slots.settle(number, Ok(()))),
                Some(number) => {
                    slots.settle(number, Err(Box::new(round)));
                    slots.wake_all();
                }
                None if running.load(Ordering::Relaxed) == 0 => break,
                None => thread::yield_now(),
            }
        }
    });
    assert!(slots.begin(1).is_some() && slots.begin(1).is_some());
}

/// Tasks are woken one at a time, in the order of their first look, and a wake-up in vain goes on.
#[test]
fn tasks_are_woken_in_order() {
    let waiters = Waiters::default();
    let ((first, first_woken), (second, second_woken)) = (waker(), waker());
    let mut tickets = [Ticket::default(), Ticket::default()];
    waiters.wait(&mut tickets[0], &first);
    waiters.wait(&mut tickets[1], &second);
    waiters.wait(&mut tickets[0], &first);
    waiters.wake_one();
    assert_eq!((first_woken(), second_woken()), (1, 0));
    assert!(waiters.leave(&mut tickets[0]), "it was woken");
    assert!(waiters.any());
    assert!(!waiters.leave(&mut tickets[1]), "it was not");
    assert!(!waiters.any());
    waiters.wait(&mut tickets[0], &first);
    waiters.wait(&mut tickets[1], &second);
    waiters.wake_all();
    assert_eq!((first_woken(), second_woken()), (2, 1));
    assert!(!waiters.any());
}

/// A wake-up of all reaches each task that waits then, more than are taken at once too, and once: a
/// task that waits again meanwhile is not woken a second time.
#[test]
fn all_tasks_are_woken_once() {
    struct Again {
        waiters: Weak<Waiters>,
        woken: AtomicU32,
    }
    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(&self));
            let waiters = self.waiters.upgrade().expect("the test has it");
            waiters.wait(&mut Ticket::default(), &waker);
        }
    }
    let waiters = Arc::new(Waiters::default());
    let tasks = [(); 20].map(|()| {
        let task = Arc::new(Again {
            waiters: Arc::downgrade(&waiters),
            woken: AtomicU32::new(0),
        });
        waiters.wait(&mut Ticket::default(), &Waker::from(Arc::clone(&task)));
        task
    });
    for times in 1..=3 {
        assert!(waiters.any());
        waiters.wake_all();
        for task in &tasks {
            assert_eq!(task.woken.load(Ordering::Relaxed), times);
        }
    }
}

/// The panic of one waker must not cost another task its wake-up, nor a connection its counts.
#[test]
fn a_waker_that_panics_is_alone() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker panics in this test");
        }
    }
    let panics = Waker::from(Arc::new(Panics));
    let (other, woken) = waker();
    let slots = Slots::<(), ()>::new(2);
    let [first, second] = [(); 2].map(|()| slots.begin(1).expect("a slot"));
    assert!(slots.park(first, &panics) && slots.park(second, &other));
    let settled = slots.settle(first, Ok(())).expect("it is in flight");
    assert!(settled.slept);
    assert_eq!(slots.finish(first, true), Ok(()));
    let first = slots.begin(1).expect("the slot is free");
    assert!(slots.park(first, &panics));
    slots.wake_all();
    assert_eq!(woken(), 1);

    let waiters = Waiters::default();
    let mut tickets = [Ticket::default(), Ticket::default()];
    waiters.wait(&mut tickets[0], &panics);
    waiters.wait(&mut tickets[1], &other);
    waiters.wake_all();
    assert_eq!(woken(), 2);
    assert!(!waiters.any());
}

/// An owner that was woken finishes without a lock. The settlement has its waker, so the slot
/// keeps none, and the task can be freed.
#[test]
fn a_woken_owner_leaves_no_waker() {
    let slots = Slots::<(), &str>::new(1);
    for outcome in [Ok(()), Err("failed")] {
        let task = Arc::new(Woken::default());
        let number = slots.begin(1).expect("the slot is free");
        assert!(slots.park(number, &Waker::from(Arc::clone(&task))));
        assert!(!slots.finish_woken(number), "it is in flight");
        assert!(slots.settle(number, outcome).is_some_and(|to| to.slept));
        assert_eq!(slots.finish_woken(number), outcome.is_ok());
        if outcome.is_err() {
            assert_eq!(slots.finish(number, true), outcome);
        }
        assert_eq!(Arc::strong_count(&task), 1);
    }
}

/// A waker is code of the program, which may poll, post and wake at once. So it runs under no
/// lock: here another thread takes the lock of each slot while it runs.
#[test]
fn a_waker_runs_under_no_lock() {
    struct Uses(Arc<Slots<(), ()>>, AtomicBool);
    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            let (slots, (done, is_done)) = (Arc::clone(&self.0), mpsc::channel());
            thread::spawn(move || {
                slots.wake_all();
                let _ = done.send(());
            });
            let is_free = is_done.recv_timeout(Duration::from_secs(60)).is_ok();
            self.1.store(is_free, Ordering::SeqCst);
        }
    }
    let slots = Arc::new(Slots::new(2));
    for settles in [true, false] {
        let uses = Arc::new(Uses(Arc::clone(&slots), AtomicBool::new(false)));
        let number = slots.begin(1).expect("a slot is free");
        assert!(slots.park(number, &Waker::from(Arc::clone(&uses))));
        if settles {
            slots.settle(number, Ok(()));
        } else {
            slots.wake_all();
        }
        assert!(uses.1.load(Ordering::SeqCst), "a lock is held");
    }
}

/// Promise: an operation that finds its queue full names the wait of this crate.
#[test]
fn a_full_queue_names_its_wait() {
    for (queue, wait) in [
        (rpma::Queue::Send, "await Conn::ready"),
        (rpma::Queue::Commits, "await Writer::room"),
    ] {
        let error = rpma::Error::QueueFull { queue, depth: 10 };
        let refused = crate::Refused::<()> {
            error,
            memory: None,
        };
        assert!(refused.to_string().ends_with(wait), "{refused}");
    }
}
