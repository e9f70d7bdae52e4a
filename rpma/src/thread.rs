//! Threads for programs whose tests run on a simulated fabric.
//!
//! Without the feature `sim` this is a part of [`std::thread`], re-exported. With it a thread
//! starts on the simulated host of the thread that starts it, as with `rpma::sim::Host::spawn`.
//! The fabric knows when a thread waits for another one, and [`sleep`] is virtual where the clock
//! jumps. Off a host everything is as in [`std::thread`].
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
