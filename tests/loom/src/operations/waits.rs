//! Tasks that wait for room, and for blocks.

use std::sync::Arc;
use std::task::Waker;

use loom::thread;

use super::{Bed, Conn, Pool, block_on};
use crate::end::End;
use crate::model;
use crate::primitives::wake;
use crate::waiters::Ticket;

/// A wait until `n` slots are free: the steps of conn/room.rs.
struct Ready {
    conn: Arc<Conn>,
    n: u32,
    ticket: Ticket,
}

impl Ready {
    fn new(conn: &Arc<Conn>, n: u32) -> Self {
        Self {
            conn: Arc::clone(conn),
            n,
            ticket: Ticket::default(),
        }
    }

    /// Whether there is room. If not, the task has left its waker.
    fn has_room(&mut self, waker: &Waker) -> bool {
        let mut ops = self.conn.ops.lock();
        if self.conn.free(ops.done()) >= self.n {
            return true;
        }
        let old = ops.park_for_room(&mut self.ticket, self.n, waker);
        drop(ops);
        drop(old);
        false
    }

    fn poll(&mut self, waker: &Waker) -> Option<()> {
        if !self.has_room(waker) {
            self.conn.arm_and_drain();
            if !self.has_room(waker) {
                return None;
            }
        }
        self.leave();
        Some(())
    }

    /// If there is room, the next task goes on.
    fn leave(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let mut ops = self.conn.ops.lock();
        let left = ops.unpark_for_room(&mut self.ticket);
        let done = ops.done();
        let next = ops.go_for_room(|| self.conn.free(done));
        drop(ops);
        drop(left);
        next.into_iter().for_each(wake);
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Room is given by a thread that polls, and the task does not look in vain.
#[test]
fn room_that_another_thread_gives() {
    model(3, || {
        let conn = Conn::new(1);
        let op = conn.post(None);
        conn.device.complete();
        let other = conn.drains();
        let mut ready = Ready::new(&conn, 1);
        block_on(|waker| ready.poll(waker));
        drop(ready);
        other.join().unwrap();
        assert_eq!(op.wait(), Ok(()));
        conn.end([]);
    });
}

/// A task that waits for room arms the queue: no other task polls.
#[test]
fn a_wait_for_room_polls_and_arms() {
    model(3, || {
        let conn = Conn::new(2);
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

/// Two tasks wait for the same slot and post nothing: the first wakes the second. If the first is
/// given up, it does so as well.
#[test]
fn a_free_slot_is_handed_on() {
    for gives_up in [false, true] {
        model(2, move || {
            let conn = Conn::new(1);
            let op = conn.post(None);
            let mut first = Ready::new(&conn, 1);
            let _ = first.poll(&Bed::new().into());
            let giving = {
                let conn = Arc::clone(&conn);
                thread::spawn(move || {
                    conn.device.complete();
                    conn.drain().unwrap();
                    if gives_up {
                        drop(first);
                    } else {
                        block_on(|waker| first.poll(waker));
                    }
                })
            };
            let mut second = Ready::new(&conn, 1);
            block_on(|waker| second.poll(waker));
            drop(second);
            giving.join().unwrap();
            assert_eq!(op.wait(), Ok(()));
            conn.end([]);
        });
    }
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
