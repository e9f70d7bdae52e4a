//! Owners of operations beside the device, the driver, and other threads that poll.

use std::sync::Arc;

use loom::thread;

use super::{Bed, Conn, Pool, block_on};
use crate::model;

/// Each operation is complete by its own completion, and its owner is woken for it.
#[test]
fn two_operations_of_one_owner() {
    model(2, || {
        let conn = Conn::new(1);
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
        let conn = Conn::new(2);
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
        let conn = Conn::new(1);
        let threads = [conn.driver(), conn.completes(1)];
        assert_eq!(conn.post(None).wait(), Ok(()));
        conn.end(threads);
    });
}

/// A task that moves is polled with another waker, without having been woken: the last one counts.
#[test]
fn an_owner_is_polled_again_with_another_waker() {
    model(3, || {
        let conn = Conn::new(1);
        let threads = [conn.driver(), conn.completes(1)];
        let mut op = conn.post(None);
        let first = op.poll(&Bed::new().into());
        let outcome = first.unwrap_or_else(|| block_on(|waker| op.poll(waker)));
        assert_eq!(outcome, Ok(()));
        drop(op);
        conn.end(threads);
    });
}

/// An owner that sleeps abandons its operation, beside one that awaits the next: that one keeps its
/// waker.
#[test]
fn an_owner_that_sleeps_leaves() {
    model(3, || {
        let conn = Conn::new(2);
        let mut op = conn.post(None);
        let outcome = op.poll(&Bed::new().into());
        assert!(outcome.is_none(), "nothing completes yet");
        let drains = conn.completes_and_drains(2);
        let abandons = thread::spawn(move || drop(op));
        assert_eq!(conn.post(None).wait(), Ok(()));
        conn.end([drains, abandons]);
    });
}

/// The memory of abandoned operations comes back although no other task polls: the queue is armed
/// until they are complete. The event of the first must not be the last one.
#[test]
fn abandoned_operations_give_their_memory_back() {
    model(2, || {
        let (conn, pool) = (Conn::new(2), Pool::new(2));
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

/// A request fails, and those after it are flushed. Threads poll one completion each: the order in
/// which they note them is that of the device, so the earlier operation has succeeded and the others
/// have the first failure.
#[test]
fn a_failure_beside_other_threads() {
    model(3, || {
        let conn = Conn::new(3);
        let [good, bad, late] = [(); 3].map(|()| conn.post(None));
        conn.device.complete();
        conn.device.complete_as(Err("refused"));
        conn.device.complete_as(Err("flushed"));
        let others = [(); 2].map(|()| {
            let conn = Arc::clone(&conn);
            thread::spawn(move || conn.poll().is_ok())
        });
        assert_eq!(late.wait(), Err("refused"));
        assert_eq!(good.wait(), Ok(()));
        assert_eq!(bad.wait(), Err("refused"));
        for other in others {
            other.join().unwrap();
        }
        conn.end([]);
    });
}

/// The owner of several requests awaits the last one: a device may read the sources of the others
/// until it has flushed them all.
#[test]
fn a_part_of_a_commit_fails() {
    model(3, || {
        let conn = Conn::new(2);
        let first = conn.device.post();
        let commit = conn.post(None);
        let device = {
            let conn = Arc::clone(&conn);
            thread::spawn(move || {
                conn.device.complete_as(Err("refused"));
                conn.drain().unwrap();
                assert!(conn.ops.lock().outcome(first).is_some());
                conn.device.complete_as(Err("flushed"));
            })
        };
        let (driver, number) = (conn.driver(), commit.number);
        assert_eq!(commit.wait(), Err("refused"));
        assert!(
            conn.ops.lock().done() > number,
            "a device reads the sources"
        );
        conn.end([device, driver]);
    });
}
