//! Locks, condition variables and channels for programs that are tested on a simulated fabric.
//!
//! Without the feature `sim` these are the types of [`std::sync`] themselves, re-exported. With it
//! they have the same methods and the same errors. In two cases the fabric of the thread's host
//! decides the order and the time of their waits:
//!
//! * The fabric's clock jumps over waits, after `jump_over_waits` or `follow` of
//!   `rpma::sim::Fabric`. Limits are then virtual, and the clock jumps while all threads wait.
//! * The fabric has a seed (`rpma::sim::repeatable`). Its clock jumps as well. The seed also
//!   chooses the thread that is woken and the thread that gets a lock. A run is repeated by its
//!   seed.
//!
//! If then every thread waits without a limit and no event can come, one of them panics and names
//! the last call of each thread.
//!
//! Otherwise, and in a thread that is on no host, they behave as std's. Start threads with
//! [`thread`](crate::thread).
//!
//! ```
//! use std::collections::VecDeque;
//! use std::time::Duration;
//!
//! use rpma::sync::{Condvar, Mutex, mpsc};
//! use rpma::thread;
//!
//! let (queue, is_filled) = (Mutex::new(VecDeque::new()), Condvar::new());
//! let (answers, received) = mpsc::channel();
//! thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let queue = queue.lock().expect("no panic");
//!         let queue = is_filled.wait_while(queue, |queue| queue.is_empty());
//!         let first = queue.expect("no panic").pop_front();
//!         answers.send(first).expect("a receiver");
//!     });
//!     queue.lock().expect("no panic").push_back(7);
//!     is_filled.notify_one();
//!     assert_eq!(received.recv_timeout(Duration::from_secs(10)), Ok(Some(7)));
//! });
//! ```
//!
//! [Testing your program](crate::guide::testing_your_program#threads-and-tasks) has the rules of a
//! test with threads. Other types of [`std::sync`] and other crates' locks wait in real time. On a
//! fabric, no [`Condvar`] wakes a thread without a notification.

pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, Weak, atomic};

#[cfg(feature = "sim")]
pub use rpma_sys::sim::sync::{Condvar, Mutex, MutexGuard, WaitTimeoutResult, mpsc};
#[cfg(not(feature = "sim"))]
pub use std::sync::{Condvar, Mutex, MutexGuard, WaitTimeoutResult, mpsc};

#[cfg(all(test, not(feature = "sim")))]
#[expect(unused_qualifications, reason = "each name is compared with std's")]
mod tests {
    use std::sync;

    use super::{Condvar, Mutex, MutexGuard, mpsc};
    use crate::thread;

    /// Without the feature `sim` each type is std's own: a value of one is a value of the other.
    #[test]
    fn without_sim_they_are_std_s() {
        let lock: sync::Mutex<u8> = Mutex::new(1);
        let guard: sync::MutexGuard<'_, u8> = lock.lock().expect("no panic");
        let guard: MutexGuard<'_, u8> = guard;
        let changed: sync::Condvar = Condvar::new();
        changed.notify_one();
        drop(guard);
        let channel: (sync::mpsc::Sender<u8>, sync::mpsc::Receiver<u8>) = mpsc::channel();
        drop(channel);
        let thread: std::thread::JoinHandle<u8> = thread::spawn(|| 1);
        assert_eq!(thread.join().expect("no panic"), 1);
    }
}
