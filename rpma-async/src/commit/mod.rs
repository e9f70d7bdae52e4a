//! Commits by a method, awaited: to one server ([`Writer`]), and to several ([`Replicas`]).

mod bytes;
mod reading;
mod replicas;
mod state;
mod writer;

use std::sync::PoisonError;

use rpma::sync::{Mutex, MutexGuard};

pub use self::reading::Reading;
pub use self::replicas::Replicas;
pub use self::writer::Writer;

/// Takes the lock of an object of rpma. It is held across verbs, and never while a task waits.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A drop needs no state that a panic of rpma can have broken.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
