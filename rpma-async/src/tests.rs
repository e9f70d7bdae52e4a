//! Unit tests of ops.rs, tasks.rs, arming.rs and waiters.rs. They stand here because `tests/loom`
//! includes those files, and looks there for orders of threads in which they fail.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use crate::arming::Arming;
use crate::ops::{Go, Ops};
use crate::tasks::Tasks;
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
    assert_eq!(arming.event(arm, drain, |()| false), Ok(()));
    assert_eq!(arms.get(), 0, "nobody sleeps");
    assert_eq!(arming.arm(arm), Ok(()));
    assert_eq!(arming.arm(arm), Ok(()));
    assert_eq!(arms.get(), 1, "it was armed");
    assert_eq!(arming.event(arm, drain, |()| true), Ok(()));
    assert_eq!(arms.get(), 2, "one still sleeps");
    assert_eq!(arming.event(arm, drain, |()| false), Ok(()));
    assert_eq!(arms.get(), 2);
}

/// The next sleeper must not rely on an arm that failed.
#[test]
fn a_failed_arm_is_none() {
    let arming = Arming::default();
    assert_eq!(arming.arm(|| Err("no memory")), Err("no memory"));
    let arms = Cell::new(0);
    let arm = || {
        arms.set(1);
        Ok::<_, ()>(())
    };
    assert_eq!(arming.arm(arm), Ok(()));
    assert_eq!(arms.get(), 1);
}

/// A completion settles the operations before it, which may have no completion of their own. After
/// a failure all later operations have failed, and the earlier ones have not.
#[test]
fn the_order_of_completions_is_their_outcome() {
    let mut ops = Ops::<(), &str>::new(4);
    assert_eq!(ops.outcome(0), None);
    ops.note(2, Ok(()));
    assert_eq!(
        [0, 2, 3].map(|of| ops.outcome(of)),
        [Some(Ok(())), Some(Ok(())), None]
    );
    assert!(!ops.has_failed());
    ops.note(4, Err("refused"));
    ops.note(5, Err("flushed"));
    let failed = Some(Err("refused"));
    let outcomes = [3, 4, 5, 6].map(|of| ops.outcome(of));
    assert_eq!(outcomes, [Some(Ok(())), failed, failed, None]);
    assert!(ops.has_failed());
}

/// Takes all that goes: how many wakers, and the memory.
fn go<M>(ops: &mut Ops<M, &str>) -> (u32, Vec<M>) {
    let (mut woken, mut free) = (0, Vec::new());
    while let Some(next) = ops.go() {
        match next {
            Go::Wake(waker) => {
                waker.wake();
                woken += 1;
            }
            Go::Free(memory) => free.push(memory),
        }
    }
    (woken, free)
}

/// A completion wakes the tasks that wait for it or for an earlier one, by their last wakers, and no
/// others.
#[test]
fn a_completion_wakes_its_tasks() {
    let mut ops = Ops::<(), &str>::new(4);
    let ((first, first_woken), (second, second_woken)) = (waker(), waker());
    let mut tickets = [Ticket::default(), Ticket::default()];
    ops.park(&mut tickets[1], 7, &second);
    ops.park(&mut tickets[0], 3, &second);
    assert!(ops.park(&mut tickets[0], 3, &first).is_some());
    ops.note(2, Ok(()));
    assert_eq!(go(&mut ops).0, 0);
    ops.note(3, Ok(()));
    assert_eq!(go(&mut ops).0, 1);
    assert_eq!((first_woken(), second_woken()), (1, 0));
    assert!(ops.unpark(&mut tickets[0]).is_none(), "it was woken");
    assert!(ops.is_waited());
    assert!(ops.unpark(&mut tickets[1]).is_some());
    assert!(!ops.is_waited());
}

/// The order in which operations are abandoned is that of the program.
#[test]
fn an_abandoned_operation_keeps_its_memory() {
    let mut ops = Ops::<u32, &str>::new(4);
    ops.note(0, Ok(()));
    assert_eq!(ops.abandon(0, 100), Some(100), "it is complete");
    for number in [2, 1, 3] {
        assert_eq!(ops.abandon(number, number as u32), None);
    }
    assert!(ops.is_waited());
    ops.note(2, Ok(()));
    assert_eq!(go(&mut ops), (0, vec![1, 2]));
    assert!(ops.is_waited());
    ops.note(3, Err("refused"));
    assert!(!ops.is_waited(), "the queue need not be armed again for it");
    assert_eq!(go(&mut ops), (0, vec![3]));
}

/// A device that could not be stopped uses the memory of abandoned operations for ever.
#[test]
fn leaked_memory_is_not_dropped() {
    let memory = Arc::new(());
    let mut ops = Ops::<Arc<()>, &str>::new(1);
    ops.abandon(0, Arc::clone(&memory));
    ops.keep(Arc::clone(&memory));
    ops.leak();
    drop(ops);
    assert_eq!(Arc::strong_count(&memory), 3);
}

/// A free slot wakes the first task that has room in it, and a task that was woken in vain has its
/// place again.
#[test]
fn room_wakes_one_task() {
    let mut ops = Ops::<(), &str>::new(4);
    let wakers = [(); 3].map(|()| waker());
    let mut tickets = [(); 3].map(|()| Ticket::default());
    for ((waker, _), ticket) in wakers.iter().zip(&mut tickets) {
        ops.park_for_room(ticket, 2, waker);
    }
    let woken = || wakers.each_ref().map(|(_, woken)| woken());
    assert!(ops.go_for_room(|| 1).is_none());
    ops.go_for_room(|| 2).expect("there is room").wake();
    assert_eq!(woken(), [1, 0, 0]);
    ops.park_for_room(&mut tickets[0], 2, &wakers[0].0);
    ops.go_for_room(|| 2).expect("there is room").wake();
    assert_eq!(woken(), [2, 0, 0]);
    ops.unpark_for_room(&mut tickets[0]);
    ops.go_for_room(|| 2).expect("there is room").wake();
    assert_eq!(woken(), [2, 1, 0]);
}

/// A task that wants many slots is first when they are free, before a later one that wants few. While
/// they are not, the later one goes on.
#[test]
fn room_is_given_in_the_order_of_the_tasks() {
    let mut ops = Ops::<(), &str>::new(8);
    let ((many, many_woken), (few, few_woken)) = (waker(), waker());
    let mut tickets = [Ticket::default(), Ticket::default()];
    ops.park_for_room(&mut tickets[0], 8, &many);
    ops.park_for_room(&mut tickets[1], 1, &few);
    ops.go_for_room(|| 7).expect("there is room").wake();
    assert_eq!((many_woken(), few_woken()), (0, 1));
    ops.park_for_room(&mut tickets[1], 1, &few);
    ops.go_for_room(|| 8).expect("there is room").wake();
    assert_eq!((many_woken(), few_woken()), (1, 1));
}

/// A walk reaches each task that waits when it begins, once, also if a woken task waits again.
#[test]
fn a_walk_reaches_each_task_once() {
    let mut tasks = Tasks::<()>::default();
    let wakers = [(); 5].map(|()| waker());
    let mut tickets = [(); 5].map(|()| Ticket::default());
    for (number, ((waker, _), ticket)) in (0..5).rev().zip(wakers.iter().zip(&mut tickets)) {
        tasks.wait(ticket, (number / 2, ()), waker);
    }
    let mut walk = tasks.walk();
    while let Some(next) = tasks.take_next(&mut walk, |()| true) {
        next.wake();
        for (number, ((waker, _), ticket)) in (0..5).rev().zip(wakers.iter().zip(&mut tickets)) {
            tasks.wait(ticket, (number / 2, ()), waker);
        }
    }
    assert_eq!(wakers.each_ref().map(|(_, woken)| woken()), [1; 5]);
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
    for number in [0, 7, u64::MAX] {
        let _old = waiters.wait_for(number, &mut tickets[0], &first);
        let reached = [0, 6, 7, u64::MAX].map(|reached| waiters.any_up_to(reached));
        let expected = [0, 6, 7, u64::MAX].map(|reached| reached >= number);
        assert_eq!(reached, expected, "{number}");
        waiters.leave(&mut tickets[0]);
    }
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

/// The panic of one waker must not cost another task its wake-up.
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
    let waiters = Waiters::default();
    let mut tickets = [Ticket::default(), Ticket::default()];
    waiters.wait(&mut tickets[0], &panics);
    waiters.wait(&mut tickets[1], &other);
    waiters.wake_all();
    assert_eq!(woken(), 1);
    assert!(!waiters.any());
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
