//! The operations of a connection of rpma-async, and the tasks that wait: slots.rs, free.rs,
//! arming.rs and waiters.rs, with the steps of conn/shared.rs, conn/room.rs and raw/blocks.rs
//! around them.
//!
//! A model has a device, which completes operations in the order of their posts, and a driver,
//! which takes events. At its end every slot and every block is back, and no task counts as a
//! sleeper.

mod ends;
mod free_list;
mod owners;
mod waits;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::Condvar;
use loom::thread::{self, JoinHandle};

use crate::arming::Arming;
use crate::primitives::{AtomicU32, Mutex, Ordering};
use crate::slots::{Abandoned, Look, PART, Settled, Slots};
use crate::waiters::{Ticket, Waiters};

/// A device, its completion queue, and the completion channel.
#[derive(Default)]
struct Device {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
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
    fn post(&self, number: u64) {
        self.state.lock().posted.push_back(number);
        self.changed.notify_all();
    }

    /// Completes the next operation, which may be posted later.
    fn complete(&self) {
        let mut state = self.state.lock();
        while state.posted.is_empty() {
            state = self.changed.wait(state).unwrap();
        }
        let number = state.posted.pop_front().unwrap();
        self.push(&mut state, (number, Ok(())));
    }

    /// A completion that the model makes.
    fn complete_as(&self, number: u64, outcome: Result<(), Failure>) {
        self.push(&mut self.state.lock(), (number, outcome));
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
    /// A request that fails is named by its failure.
    slots: Slots<Block, Failure, Failure>,
    arming: Arming,
    slot_count: u32,
    used: AtomicU32,
    depth: u32,
    room: Waiters,
    device: Device,
}

impl Conn {
    fn new(slots: u32, depth: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: Slots::new(slots),
            arming: Arming::default(),
            slot_count: slots,
            used: AtomicU32::new(0),
            depth,
            room: Waiters::default(),
            device: Device::default(),
        })
    }

    /// Begins and posts an operation, for which there is a slot.
    fn post(self: &Arc<Self>, memory: Option<Block>) -> Op {
        self.try_post(memory).ok().expect("a slot")
    }

    fn try_post(self: &Arc<Self>, memory: Option<Block>) -> Result<Op, Option<Block>> {
        let Some(number) = self.slots.begin(1) else {
            return Err(memory);
        };
        self.used.fetch_add(1, Ordering::AcqRel);
        self.device.post(number);
        Ok(self.op(number, memory))
    }

    /// Begins an operation that is not posted: the model completes it.
    fn begin(self: &Arc<Self>) -> Op {
        let number = self.slots.begin(1).expect("a slot");
        self.used.fetch_add(1, Ordering::AcqRel);
        self.op(number, None)
    }

    fn op(self: &Arc<Self>, number: u64, memory: Option<Block>) -> Op {
        Op {
            conn: Arc::clone(self),
            number,
            parked: false,
            memory: Some(memory),
        }
    }

    /// A thread that polls.
    fn drains(self: &Arc<Self>) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || conn.drain().unwrap())
    }

    fn give_room(&self, weight: u32) {
        self.used.fetch_sub(weight, Ordering::AcqRel);
        if self.room.any() {
            self.room.wake_all();
        }
    }

    fn settle(&self, (number, outcome): Completion) {
        if number & PART != 0 {
            if let Err(failure) = outcome {
                self.slots.note_failure(number & !PART, failure);
            }
            return;
        }
        let settled = match outcome {
            Ok(()) => self.slots.settle(number, Ok(())),
            Err(failure) => self.slots.settle_failed(number, failure, failure),
        };
        if let Some(settled) = settled {
            self.settled(settled);
        }
    }

    fn settled(&self, settled: Settled) {
        if settled.slept {
            self.arming.wake();
        }
        self.give_room(settled.weight);
    }

    fn drain(&self) -> Result<(), ()> {
        while let Some(completion) = self.device.poll() {
            self.settle(completion);
        }
        Ok(())
    }

    fn arm_and_drain(&self) {
        let armed = self
            .arming
            .arm_and_drain(|| self.device.arm(), || self.drain());
        armed.unwrap();
    }

    /// A thread that takes events.
    fn driver(self: &Arc<Self>) -> JoinHandle<()> {
        let conn = Arc::clone(self);
        thread::spawn(move || {
            while conn.device.take_event() {
                let event = conn.arming.event(|| conn.device.arm(), || conn.drain());
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
        assert_eq!(self.arming.asleep(), 0, "a sleeper is counted");
        assert_eq!(self.used.load(Ordering::Acquire), 0, "room is taken");
        for _ in 0..self.slot_count {
            assert!(self.slots.begin(1).is_some(), "a slot is lost");
        }
    }
}

/// An operation: the steps of conn/shared.rs and of conn/op.rs.
struct Op {
    conn: Arc<Conn>,
    number: u64,
    parked: bool,
    memory: Option<Option<Block>>,
}

impl Op {
    fn poll(&mut self, waker: &Waker) -> Option<Result<(), Failure>> {
        let outcome = self.look(waker)?;
        self.memory = None;
        Some(outcome)
    }

    fn look(&mut self, waker: &Waker) -> Option<Result<(), Failure>> {
        if !self.parked {
            if let Some(outcome) = self.look_without_sleep() {
                return Some(outcome);
            }
        } else if self.conn.slots.finish_woken(self.number) {
            return Some(Ok(()));
        }
        if !self.is_complete() {
            self.sleep(waker);
        }
        let finish = || self.conn.slots.finish(self.number, self.parked);
        self.is_complete().then(finish)
    }

    fn is_complete(&self) -> bool {
        self.conn.slots.look(self.number) == Look::Complete
    }

    /// Polls until its own completion is there.
    fn look_without_sleep(&self) -> Option<Result<(), Failure>> {
        let (conn, number) = (&self.conn, self.number);
        while let Some(completion) = conn.device.poll() {
            if completion == (number, Ok(())) {
                conn.give_room(conn.slots.finish_own(number));
                return Some(Ok(()));
            }
            conn.settle(completion);
            if self.is_complete() {
                return Some(conn.slots.finish(number, false));
            }
        }
        None
    }

    fn sleep(&mut self, waker: &Waker) {
        let was_parked = mem::replace(&mut self.parked, true);
        if !was_parked {
            self.conn.arming.sleep();
        }
        if self.conn.slots.park(self.number, waker) {
            self.conn.arm_and_drain();
        } else if !was_parked {
            self.conn.arming.wake();
        }
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
        let conn = &self.conn;
        conn.arming.sleep();
        match conn.slots.abandon(self.number, memory) {
            Abandoned::GoesOn { slept: true } => conn.arming.wake(),
            Abandoned::GoesOn { slept: false } => conn.arm_and_drain(),
            Abandoned::Complete(_) => conn.arming.wake(),
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
