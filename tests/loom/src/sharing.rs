//! A state that threads share, and the one that sleeps for all of them: commit/lookout.rs.
//!
//! The device completes commits in the order of their posts. It gives an event for a completion if
//! its queue is armed, and an event that is taken arms the queue. A poll takes one completion, as
//! the shortest one of a writer does. The models check in every order: each thread that waits for a
//! commit gets it, a limit holds, and a thread that leaves strands no other one.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};

use crate::lookout::{Shared, Watched};
use crate::model;
use crate::sync::Deadline;

/// Without a limit.
const NEVER: Duration = Duration::MAX;
/// A limit that passes while the thread sleeps.
const SHORT: Duration = Duration::from_secs(1);

struct Device {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    posted: u64,
    completed: u64,
    /// Completions that were not polled.
    completions: u64,
    is_armed: bool,
    events: u64,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                posted: 0,
                completed: 0,
                completions: 0,
                is_armed: true,
                events: 0,
            }),
            changed: Condvar::new(),
        })
    }

    fn with<T>(&self, run: impl FnOnce(&mut Queue) -> T) -> T {
        run(&mut self.queue.lock().unwrap())
    }

    fn post(&self) {
        self.with(|queue| queue.posted += 1);
        self.changed.notify_all();
    }

    /// Completes so many commits, which may be posted later.
    fn completes(self: &Arc<Self>, commits: u64) -> JoinHandle<()> {
        let device = Arc::clone(self);
        thread::spawn(move || (0..commits).for_each(|_| device.complete()))
    }

    fn complete(&self) {
        let mut queue = self.queue.lock().unwrap();
        while queue.posted == queue.completed {
            queue = self.changed.wait(queue).unwrap();
        }
        queue.completed += 1;
        queue.completions += 1;
        if mem::take(&mut queue.is_armed) {
            queue.events += 1;
            self.changed.notify_all();
        }
    }

    /// Sleeps until an event is there, takes it, and arms the queue.
    fn sleep(&self, has_limit: bool) {
        let mut queue = self.queue.lock().unwrap();
        while queue.events == 0 {
            if has_limit {
                return;
            }
            queue = self.changed.wait(queue).unwrap();
        }
        queue.events -= 1;
        drop(queue);
        // Completions come before the queue is armed.
        self.with(|queue| queue.is_armed = true);
    }
}

/// A writer: its commits are durable in their order.
struct Writer {
    device: Arc<Device>,
    posted: u64,
    durable: u64,
}

impl Watched for Writer {
    type Wanted = u64;
    type Found = u64;
    type Sleep = (Arc<Device>, bool);
    type Slept = ();

    fn poll(&mut self) -> bool {
        let taken = self.device.with(|queue| {
            let taken = queue.completions.min(1);
            queue.completions -= taken;
            taken
        });
        self.durable += taken;
        taken > 0
    }

    fn judge(&mut self, wanted: &u64) -> Option<u64> {
        (self.durable >= *wanted).then_some(self.durable)
    }

    fn is_look_due(&mut self) -> bool {
        false
    }

    fn before_sleep(&mut self, deadline: Deadline) -> Self::Sleep {
        (
            Arc::clone(&self.device),
            matches!(deadline, Deadline::At(_)),
        )
    }

    fn spin(_: &Self::Sleep, _: impl FnMut() -> bool) -> bool {
        false
    }

    fn sleep((device, has_limit): Self::Sleep) {
        device.sleep(has_limit);
    }

    fn after_sleep(&mut self, (): ()) {
        self.durable += self.device.with(|queue| mem::take(&mut queue.completions));
    }
}

type Log = Arc<Shared<Writer>>;

fn log(device: &Arc<Device>) -> Log {
    Arc::new(Shared::new(Writer {
        device: Arc::clone(device),
        posted: 0,
        durable: 0,
    }))
}

fn post(log: &Log) -> u64 {
    let mut held = log.lock();
    held.state.posted += 1;
    held.state.device.post();
    held.state.posted
}

fn append(log: &Log, limit: Duration) {
    let number = post(log);
    match log.wait(number, limit) {
        Some(durable) => assert!(durable >= number),
        None => assert_ne!(limit, NEVER, "it has no limit"),
    }
}

fn appends(log: &Log, limit: Duration) -> JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || append(&log, limit))
}

fn ends(device: JoinHandle<()>, threads: impl IntoIterator<Item = JoinHandle<()>>) {
    device.join().unwrap();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Two threads append, of which one is the lookout for both.
#[test]
fn each_of_two_gets_its_commit() {
    model(3, || {
        let device = Device::new();
        let log = log(&device);
        let completing = device.completes(2);
        let other = appends(&log, NEVER);
        append(&log, NEVER);
        ends(completing, [other]);
    });
}

/// Three threads append: the lookout is handed on.
#[test]
fn each_of_three_gets_its_commit() {
    model(1, || {
        let device = Device::new();
        let log = log(&device);
        let completing = device.completes(3);
        let others = [appends(&log, NEVER), appends(&log, NEVER)];
        append(&log, NEVER);
        ends(completing, others);
    });
}

/// A thread goes on to its next commit, and finds another lookout or none.
#[test]
fn a_thread_comes_back() {
    model(2, || {
        let device = Device::new();
        let log = log(&device);
        let completing = device.completes(3);
        let other = appends(&log, NEVER);
        append(&log, NEVER);
        append(&log, NEVER);
        ends(completing, [other]);
    });
}

/// The limit of one thread passes, as the lookout or on its seat, also while it is called: the other
/// ones go on.
#[test]
fn a_limit_strands_nobody() {
    for limit in [Duration::ZERO, SHORT] {
        model(2, move || {
            let device = Device::new();
            let log = log(&device);
            let completing = device.completes(2);
            let other = appends(&log, limit);
            append(&log, NEVER);
            ends(completing, [other]);
        });
        model(1, move || {
            let device = Device::new();
            let log = log(&device);
            let completing = device.completes(3);
            let others = [appends(&log, limit), appends(&log, NEVER)];
            append(&log, NEVER);
            ends(completing, others);
        });
    }
}

/// The commit of the other thread completes only when this thread has gone on: it is told at once,
/// also by a lookout that sleeps on.
#[test]
fn each_is_told_at_once() {
    model(3, || {
        let device = Device::new();
        let log = log(&device);
        let (first, second) = (post(&log), post(&log));
        let completing = device.completes(1);
        let other = {
            let log = Arc::clone(&log);
            thread::spawn(move || assert!(log.wait(second, NEVER).is_some()))
        };
        assert!(log.wait(first, NEVER).is_some());
        device.complete();
        ends(completing, [other]);
    });
}

/// A thread that never waits polls the completions of others: they are told.
#[test]
fn a_thread_that_looks_tells_the_others() {
    model(2, || {
        let device = Device::new();
        let log = log(&device);
        let completing = device.completes(2);
        let looking = {
            let log = Arc::clone(&log);
            thread::spawn(move || log.look())
        };
        let other = appends(&log, NEVER);
        append(&log, NEVER);
        ends(completing, [other, looking]);
    });
}
