//! Owners of operations beside the device, the driver, and other threads that poll.

use std::sync::Arc;

use loom::thread;

use super::{Bed, Conn, Pool, block_on};
use crate::model;
use crate::primitives::{AtomicBool, Ordering};
use crate::slots::PART;

/// A settlement of the first operation must not reach the second one, and each owner is woken.
#[test]
fn two_operations_in_one_slot() {
    model(2, || {
        let conn = Conn::new(1, 1);
        let threads = [conn.driver(), conn.completes_and_drains(2)];
        assert_eq!(conn.post(None).wait(), Ok(()));
        assert_eq!(conn.post(None).wait(), Ok(()));
        conn.end(threads);
    });
}

/// Either may poll the other's completion, and either may have armed the queue for both.
#[test]
fn two_owners() {
    model(2, || {
        let conn = Conn::new(2, 2);
        let threads = [conn.driver(), conn.completes(2)];
        let other = {
            let op = conn.post(None);
            thread::spawn(move || assert_eq!(op.wait(), Ok(())))
        };
        assert_eq!(conn.post(None).wait(), Ok(()));
        other.join().unwrap();
        conn.end(threads);
    });
}

/// The only owner sleeps beside the driver: it arms the queue, or the driver does.
#[test]
fn an_owner_sleeps() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let threads = [conn.driver(), conn.completes(1)];
        assert_eq!(conn.post(None).wait(), Ok(()));
        conn.end(threads);
    });
}

/// A task that moves is polled with another waker, without having been woken: the last one counts.
#[test]
fn an_owner_is_polled_again_with_another_waker() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let threads = [conn.driver(), conn.completes(1)];
        let mut op = conn.post(None);
        let first = op.poll(&Bed::new().into());
        let outcome = first.unwrap_or_else(|| block_on(|waker| op.poll(waker)));
        assert_eq!(outcome, Ok(()));
        drop(op);
        conn.end(threads);
    });
}

/// An owner that sleeps abandons its operation. Another thread has the slot afterwards, and its
/// waker stays where it is.
#[test]
fn the_slot_of_an_abandoned_operation() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let mut op = conn.post(None);
        let outcome = op.poll(&Bed::new().into());
        assert!(outcome.is_none(), "nothing completes yet");
        let drains = conn.completes_and_drains(2);
        let abandons = thread::spawn(move || drop(op));
        let next = loop {
            match conn.try_post(None) {
                Ok(op) => break op,
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(next.wait(), Ok(()));
        conn.end([drains, abandons]);
    });
}

/// An owner takes the failure of its operation. Another thread has the slot afterwards, and its
/// waker stays where it is.
#[test]
fn the_slot_of_a_failed_operation() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let mut op = conn.begin();
        let outcome = op.poll(&Bed::new().into());
        assert!(outcome.is_none(), "nothing completes yet");
        conn.device.complete_as(op.number, Err("refused"));
        conn.drain().unwrap();
        let finishes = thread::spawn(move || assert_eq!(op.wait(), Err("refused")));
        let drains = conn.completes_and_drains(1);
        let next = loop {
            match conn.try_post(None) {
                Ok(op) => break op,
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(next.wait(), Ok(()));
        conn.end([finishes, drains]);
    });
}

/// The memory of abandoned operations comes back although no other task polls: they count as
/// sleepers until they are complete. The event of the first must not be the last one.
#[test]
fn abandoned_operations_give_their_memory_back() {
    model(2, || {
        let (conn, pool) = (Conn::new(2, 2), Pool::new(2));
        let threads = [conn.driver(), conn.completes(2)];
        for _ in 0..2 {
            let block = pool.take().expect("a block is free");
            drop(conn.post(Some(block)));
        }
        let both = [(); 2].map(|()| pool.lease());
        drop(both);
        conn.end(threads);
    });
}

/// The requests of a native flush fail with one number each: the owner returns after the first, and
/// the rest come when its slot is another one's.
#[test]
fn late_completions_of_one_number() {
    model(3, || {
        let conn = Conn::new(1, 2);
        let flush = conn.begin();
        for failure in ["refused", "flushed", "flushed"] {
            conn.device.complete_as(flush.number, Err(failure));
        }
        let drains = conn.drains();
        let failure = flush.wait().expect_err("it has failed");
        assert!(["refused", "flushed"].contains(&failure));
        let next = conn.post(None);
        conn.device.complete();
        let driver = conn.driver();
        assert_eq!(next.wait(), Ok(()), "not the failure of another operation");
        conn.end([drains, driver]);
    });
}

/// A part of a batch fails, and the rest is flushed. The reason is of one of the two, and no part
/// of it is left for the next owner.
#[test]
fn a_part_of_a_batch_fails() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let batch = conn.begin();
        conn.device.complete_as(batch.number | PART, Err("refused"));
        conn.device.complete_as(batch.number, Err("flushed"));
        let threads = [conn.drains(), conn.driver()];
        let failure = batch.wait().expect_err("it has failed");
        assert!(["refused", "flushed"].contains(&failure));
        let next = conn.begin();
        conn.device.complete_as(next.number, Err("its own"));
        assert_eq!(next.wait(), Err("its own"));
        conn.end(threads);
    });
}

/// All requests of a commit have its number. It is complete when the last one has failed, whether
/// another thread polls that before the post has returned, or after it.
#[test]
fn a_commit_fails() {
    model(3, || {
        let conn = Conn::new(1, 1);
        let is_flushed = Arc::new(AtomicBool::new(false));
        let commit = conn.begin();
        conn.slots.has_parts(commit.number);
        let device = {
            let (conn, is_flushed) = (Arc::clone(&conn), Arc::clone(&is_flushed));
            let number = commit.number;
            thread::spawn(move || {
                conn.device.complete_as(number, Err("refused"));
                is_flushed.store(true, Ordering::Relaxed);
                conn.device.complete_as(number, Err("flushed"));
                conn.drain().unwrap();
            })
        };
        let settled = conn.slots.note_last(commit.number, "flushed");
        settled
            .into_iter()
            .for_each(|settled| conn.settled(settled));
        let driver = conn.driver();
        let failure = commit.wait().expect_err("it has failed");
        assert!(["refused", "flushed"].contains(&failure));
        assert!(
            is_flushed.load(Ordering::Relaxed),
            "a device reads the sources"
        );
        let next = conn.begin();
        conn.device.complete_as(next.number, Ok(()));
        assert_eq!(next.wait(), Ok(()));
        conn.end([device, driver]);
    });
}
