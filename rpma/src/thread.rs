//! Threads for programs that are tested on a simulated fabric.
//!
//! Without the feature `sim` this is a part of [`std::thread`], re-exported. With it a thread
//! starts on the simulated host of the thread that starts it, as with `rpma::sim::Host::spawn`.
//! The clock can jump while a thread waits for another one or [sleeps](sleep), and a seed repeats
//! the order of threads. In a thread that is on no host everything is as in [`std::thread`].
//!
//! ```
//! use rpma::thread;
//!
//! let numbers = [1, 2];
//! let sum: i32 = thread::scope(|scope| {
//!     let threads = numbers.each_ref().map(|number| scope.spawn(move || number + 1));
//!     threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
//! });
//! assert_eq!(sum, 5);
//! ```
//!
//! [`sync`](crate::sync) has the locks and channels to go with them. `park` and `unpark` are not
//! here: a thread that parks waits in real time.

#[cfg(feature = "sim")]
pub use rpma_sys::sim::thread::{
    AccessError, Builder, JoinHandle, LocalKey, Result, Scope, ScopedJoinHandle, Thread, ThreadId,
    available_parallelism, current, panicking, scope, sleep, spawn, yield_now,
};
#[cfg(not(feature = "sim"))]
pub use std::thread::{
    AccessError, Builder, JoinHandle, LocalKey, Result, Scope, ScopedJoinHandle, Thread, ThreadId,
    available_parallelism, current, panicking, scope, sleep, spawn, yield_now,
};
