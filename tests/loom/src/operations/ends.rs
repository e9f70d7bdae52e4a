//! The end of a connection beside owners that sleep.

use std::sync::Arc;

use loom::thread;

use super::{Conn, block_on};
use crate::model;
use crate::primitives::{AtomicBool, Ordering};
use crate::waiters::{Ticket, Waiters};

/// The device reports no more events: the owner sees that before it sleeps, or is woken.
#[test]
fn a_connection_that_is_given_up_wakes_a_sleeper() {
    model(3, || {
        let conn = Conn::new(1);
        let is_given_up = Arc::new(AtomicBool::new(false));
        let other = {
            let (conn, is_given_up) = (Arc::clone(&conn), Arc::clone(&is_given_up));
            thread::spawn(move || {
                is_given_up.store(true, Ordering::SeqCst);
                conn.wake_operations();
            })
        };
        let mut op = conn.post(None);
        block_on(|waker| match op.poll(waker) {
            Some(_) => unreachable!("nothing completes"),
            None => is_given_up.load(Ordering::SeqCst).then_some(()),
        });
        other.join().unwrap();
        drop(op);
        conn.device.complete();
        conn.end([]);
    });
}

/// A task that waits for a message looks at the end, too: it sees that before it sleeps, or is
/// woken.
#[test]
fn an_end_wakes_a_task() {
    model(3, || {
        let waiters = Arc::new(Waiters::default());
        let has_ended = Arc::new(AtomicBool::new(false));
        let other = {
            let (waiters, has_ended) = (Arc::clone(&waiters), Arc::clone(&has_ended));
            thread::spawn(move || {
                has_ended.store(true, Ordering::SeqCst);
                waiters.wake_all();
            })
        };
        let mut ticket = Ticket::default();
        block_on(|waker| {
            waiters.wait(&mut ticket, waker);
            has_ended.load(Ordering::SeqCst).then_some(())
        });
        waiters.leave(&mut ticket);
        other.join().unwrap();
    });
}

/// The wake-up of everybody takes a waker out that a settlement was about to take: either wakes it.
#[test]
fn everybody_is_woken_beside_a_settlement() {
    model(2, || {
        let conn = Conn::new(1);
        let threads = [conn.driver(), conn.completes(1)];
        let waking = {
            let conn = Arc::clone(&conn);
            thread::spawn(move || conn.wake_operations())
        };
        assert_eq!(conn.post(None).wait(), Ok(()));
        waking.join().unwrap();
        conn.end(threads);
    });
}
