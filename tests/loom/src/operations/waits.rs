//! Tasks that wait for room, and for blocks.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use loom::thread;

use super::{Bed, Conn, Pool, block_on};
use crate::end::End;
use crate::model;
use crate::primitives::Ordering;
use crate::waiters::Ticket;

/// A wait until `n` slots are free: the steps of conn/room.rs.
struct Ready {
    conn: Arc<Conn>,
    n: u32,
    ticket: Ticket,
    counted: bool,
}

impl Ready {
    fn new(conn: &Arc<Conn>, n: u32) -> Self {
        Self {
            conn: Arc::clone(conn),
            n,
            ticket: Ticket::default(),
            counted: false,
        }
    }

    fn has_room(&self) -> bool {
        let used = self.conn.used.fetch_add(0, Ordering::AcqRel);
        used + self.n <= self.conn.depth
    }

    fn poll(&mut self, waker: &Waker) -> Option<()> {
        if !self.has_room() {
            if !mem::replace(&mut self.counted, true) {
                self.conn.arming.sleep();
            }
            self.conn.room.wait(&mut self.ticket, waker);
            self.conn.arm_and_drain();
            if !self.has_room() {
                return None;
            }
        }
        self.leave();
        Some(())
    }

    fn leave(&mut self) {
        if mem::take(&mut self.counted) {
            self.conn.arming.wake();
        }
        self.conn.room.leave(&mut self.ticket);
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Room is given by a thread that has polled, and does not see the waker if it looks too early.
#[test]
fn room_that_another_thread_gives() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let op = conn.post(None);
        conn.device.complete();
        // The thread has taken the completion, and gives the room at any time.
        let completion = conn.device.poll().expect("it is there");
        let other = {
            let conn = Arc::clone(&conn);
            thread::spawn(move || conn.settle(completion))
        };
        let mut ready = Ready::new(&conn, 1);
        block_on(|waker| ready.poll(waker));
        drop(ready);
        other.join().unwrap();
        assert_eq!(op.wait(), Ok(()));
        conn.end([]);
    });
}

/// A task that waits for room counts as a sleeper: no other task polls.
#[test]
fn a_wait_for_room_polls_and_arms() {
    model(3, || {
        let conn = Conn::new(2, 2);
        let threads = [conn.driver(), conn.completes(2)];
        let ops = [conn.post(None), conn.post(None)];
        let mut ready = Ready::new(&conn, 2);
        block_on(|waker| ready.poll(waker));
        drop(ready);
        for op in ops {
            assert_eq!(op.wait(), Ok(()));
        }
        conn.end(threads);
    });
}

/// The end of a task comes at any time beside its looks: it goes on, and sees the end.
#[test]
fn the_end_of_a_task() {
    model(3, || {
        let end = Arc::new(End::default());
        let coming = {
            let end = Arc::clone(&end);
            thread::spawn(move || end.come())
        };
        let mut ticket = Ticket::default();
        block_on(|waker| end.has_come(&mut ticket, waker).then_some(()));
        coming.join().unwrap();
    });
}

/// Two tasks and one block: each gets it, one after the other.
#[test]
fn two_tasks_wait_for_one_block() {
    model(3, || {
        let pool = Pool::new(1);
        let block = pool.take();
        let other = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || drop(pool.lease()))
        };
        let giving = thread::spawn(move || drop(block));
        drop(pool.lease());
        other.join().unwrap();
        giving.join().unwrap();
        assert!(pool.take().is_some(), "the block is back");
    });
}

/// A wait is dropped, perhaps just when it was woken: its wake-up goes to the task that still
/// waits.
#[test]
fn a_wait_that_was_woken_is_dropped() {
    model(3, || {
        let pool = Pool::new(1);
        let block = pool.take();
        let mut ticket = Ticket::default();
        let taken = pool.take_or_wait(&mut ticket, &Bed::new().into());
        assert!(taken.is_none());
        let giving = thread::spawn(move || drop(block));
        let leaving = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.leave(&mut ticket))
        };
        drop(pool.lease());
        giving.join().unwrap();
        leaving.join().unwrap();
    });
}
