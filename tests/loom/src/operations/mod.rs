//! The operations of a connection of rpma-async, and the tasks that wait: ops.rs, tasks.rs,
//! arming.rs and waiters.rs, with the steps of conn/shared.rs, conn/room.rs and raw/blocks.rs
//! around them.
//!
//! A model has a device, which completes operations in the order of their posts, and a driver,
//! which takes events. At its end every operation is complete, and nothing waits for one.

mod ends;
mod owners;
mod waits;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Condvar;
use loom::thread::{self, JoinHandle};

use crate::arming::Arming;
use crate::ops::{Done, Go, Ops};
use crate::primitives::{Mutex, wake};
use crate::waiters::{Ticket, Waiters};

/// A device, its completion queue, and the completion channel.
#[derive(Default)]
struct Device {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    posted: VecDeque<u64>,
    completions: VecDeque<Completion>,
    is_armed: bool,
    events: u32,
    /// The driver ends.
    is_over: bool,
}

/// The number of an operation, and its outcome.
type Completion = (u64, Result<(), Failure>);

/// Why a request failed.
type Failure = &'static str;

impl Device {
    /// Posts a request, and returns its number.
    fn post(&self) -> u64 {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.posted.push_back(number);
        drop(state);
        self.changed.notify_all();
        number
    }

    /// Completes the next request, which may be posted later.
    fn complete(&self) {
        self.complete_as(Ok(()));
    }

    fn complete_as(&self, outcome: Result<(), Failure>) {
        let mut state = self.state.lock();
        while state.posted.is_empty() {
            state = self.changed.wait(state).unwrap();
        }
        let number = state.posted.pop_front().unwrap();
        self.push(&mut state, (number, outcome));
    }

    fn push(&self, state: &mut State, completion: Completion) {
        state.completions.push_back(completion);
        if mem::take(&mut state.is_armed) {
            state.events += 1;
            self.changed.notify_all();
        }
    }

    fn poll(&self) -> Option<Completion> {
        self.state.lock().completions.pop_front()
    }

    /// The next completion gives an event.
    fn arm(&self) -> Result<(), ()> {
        self.state.lock().is_armed = true;
        Ok(())
    }

    /// Waits for an event. `false` at the end.
    fn take_event(&self) -> bool {
        let mut state = self.state.lock();
        while state.events == 0 {
            if state.is_over {
                return false;
            }
            state = self.changed.wait(state).unwrap();
        }
        state.events -= 1;
        true
    }

    fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}

/// A connection: the parts of conn/shared.rs without verbs.
struct Conn {
    ops: Mutex<Ops<Option<Block>, Failure>>,
    done: Done,
    arming: Arming,
    depth: u32,
    device: Device,
}

impl Conn {
    fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self {
            ops: Mutex::new(Ops::new(depth)),
            done: Done::new(),
            arming: Arming::default(),
            depth,
            device: Device::default(),
        })
    }

    /// Posts an operation.
    fn post(self: &Arc<Self>, memory: Option<Block>) -> Op {
        Op {
            conn: Arc::clone(self),
            number: self.device.post(),
            ticket: Ticket::default(),
            memory: Some(memory),
        }
    }

    /// A thread that polls.
    fn drains(self: &Arc<Self>) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || {
            conn.drain().unwrap();
        })
    }

    /// The slots of the send queue that are free.
    fn free(&self, done: u64) -> u32 {
        let posted = self.device.state.lock().next;
        self.depth - (posted - done) as u32
    }

    /// Polls one completion, and notes it. `Err`: there was none, and whether a task waits.
    fn poll(&self) -> Result<Completion, bool> {
        let mut ops = self.ops.lock();
        let Some(completion) = self.device.poll() else {
            return Err(ops.is_waited());
        };
        ops.note(completion.0, completion.1);
        self.done.publish(&ops);
        let woken = ops.go_task();
        drop(ops);
        woken.into_iter().for_each(wake);
        self.go();
        Ok(completion)
    }

    fn go(&self) {
        let room = {
            let mut ops = self.ops.lock();
            let done = ops.done();
            ops.go_for_room(|| self.free(done))
        };
        room.into_iter().for_each(wake);
        loop {
            let next = self.ops.lock().go();
            match next {
                Some(Go::Wake(waker)) => wake(waker),
                Some(Go::Free(memory)) => drop(memory),
                None => return,
            }
        }
    }

    fn wake_operations(&self) {
        let mut walk = None;
        loop {
            let next = self.ops.lock().go_all(&mut walk);
            match next {
                Some(waker) => wake(waker),
                None => return,
            }
        }
    }

    /// Returns whether a task waits, as the last poll has found it.
    fn drain(&self) -> Result<bool, ()> {
        loop {
            if let Err(is_waited) = self.poll() {
                return Ok(is_waited);
            }
        }
    }

    fn arm_and_drain(&self) {
        self.arming.arm(|| self.device.arm()).unwrap();
        self.drain().unwrap();
    }

    /// A thread that takes events.
    fn driver(self: &Arc<Self>) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || {
            while conn.device.take_event() {
                let (arm, drain) = (|| conn.device.arm(), || conn.drain());
                let event = conn.arming.event(arm, drain, |is_waited| is_waited);
                event.unwrap();
            }
        })
    }

    /// A thread that completes the next `count` operations, when they are posted.
    fn completes(self: &Arc<Self>, count: usize) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || (0..count).for_each(|_| conn.device.complete()))
    }

    /// A thread that does so, and polls after each of them.
    fn completes_and_drains(self: &Arc<Self>, count: usize) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || {
            for _ in 0..count {
                conn.device.complete();
                conn.drain().unwrap();
            }
        })
    }

    /// Ends the threads. Every operation is complete.
    fn end(&self, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        self.device.end();
        for thread in threads {
            thread.join().unwrap();
        }
        self.drain().unwrap();
        let mut ops = self.ops.lock();
        let left = ops.is_waited() || ops.go().is_some();
        assert!(!left, "a task is left, or memory");
        assert_eq!(ops.done(), self.device.state.lock().next);
    }
}

/// An operation: the steps of conn/shared.rs and of conn/op.rs.
struct Op {
    conn: Arc<Conn>,
    number: u64,
    ticket: Ticket,
    memory: Option<Option<Block>>,
}

impl Op {
    fn poll(&mut self, waker: &Waker) -> Option<Result<(), Failure>> {
        let outcome = self.look(waker)?;
        self.memory = None;
        Some(outcome)
    }

    fn look(&mut self, waker: &Waker) -> Option<Result<(), Failure>> {
        if self.ticket.is_none() {
            // Its own completion, or an earlier one.
            while let Ok((number, outcome)) = self.conn.poll() {
                if number == self.number && outcome.is_ok() {
                    return Some(outcome);
                }
            }
        } else if self.conn.done.has_succeeded(self.number) {
            return Some(Ok(()));
        }
        self.sleep(waker);
        if !self.conn.done.has(self.number) {
            return None;
        }
        let mut ops = self.conn.ops.lock();
        let outcome = ops.outcome(self.number)?;
        let left = ops.unpark(&mut self.ticket);
        drop(ops);
        drop(left);
        Some(outcome)
    }

    fn sleep(&mut self, waker: &Waker) {
        let mut ops = self.conn.ops.lock();
        if self.number < ops.done() {
            return;
        }
        let old = ops.park(&mut self.ticket, self.number, waker);
        drop(ops);
        drop(old);
        self.conn.arm_and_drain();
    }

    fn wait(mut self) -> Result<(), Failure> {
        block_on(|waker| self.poll(waker))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let mut ops = self.conn.ops.lock();
        let left = ops.unpark(&mut self.ticket);
        let free = ops.abandon(self.number, memory);
        drop(ops);
        drop(left);
        if free.is_none() {
            self.conn.arm_and_drain();
        }
    }
}

/// The free blocks of a pool, with the steps of raw/blocks.rs.
struct Pool {
    free: Mutex<Vec<u32>>,
    waiters: Waiters,
}

impl Pool {
    fn new(count: u32) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::new((0..count).collect()),
            waiters: Waiters::default(),
        })
    }

    fn take(self: &Arc<Self>) -> Option<Block> {
        let index = self.free.lock().pop()?;
        Some(Block(Arc::clone(self), index))
    }

    fn take_or_wait(self: &Arc<Self>, ticket: &mut Ticket, waker: &Waker) -> Option<Block> {
        let taken = self.take().or_else(|| {
            self.waiters.wait(ticket, waker);
            self.take()
        });
        if taken.is_some() {
            self.waiters.leave(ticket);
        }
        taken
    }

    /// Awaits a block.
    fn lease(self: &Arc<Self>) -> Block {
        let mut ticket = Ticket::default();
        block_on(|waker| self.take_or_wait(&mut ticket, waker))
    }

    /// A wait is dropped.
    fn leave(&self, ticket: &mut Ticket) {
        if self.waiters.leave(ticket) {
            self.waiters.wake_one();
        }
    }
}

struct Block(Arc<Pool>, u32);

impl Drop for Block {
    fn drop(&mut self) {
        self.0.free.lock().push(self.1);
        if self.0.waiters.any() {
            self.0.waiters.wake_one();
        }
    }
}

/// Polls until there is a result, and sleeps in between until the waker is woken.
fn block_on<T>(mut poll: impl FnMut(&Waker) -> Option<T>) -> T {
    let bed = Bed::new();
    let waker = Waker::from(Arc::clone(&bed));
    loop {
        if let Some(result) = poll(&waker) {
            return result;
        }
        bed.sleep();
    }
}

/// A thread sleeps here until it is woken.
#[derive(Default)]
struct Bed {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Bed {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn sleep(&self) {
        let mut is_woken = self.is_woken.lock();
        while !*is_woken {
            is_woken = self.woken.wait(is_woken).unwrap();
        }
        *is_woken = false;
    }
}

impl Wake for Bed {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.woken.notify_one();
    }
}
