//! The texts of panics, and the ends of threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rpma::thread::JoinHandle;

/// The text of the panic that this ends with.
#[track_caller]
pub(crate) fn panic_of<T>(run: impl FnOnce() -> T) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else {
        panic!("a panic expected");
    };
    text_of(panic)
}

/// The text of a panic.
pub(crate) fn text_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a text")).to_owned(),
    }
}

/// Waits for the ends of threads, and returns their results.
pub(crate) fn joined<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let threads = threads.into_iter();
    threads
        .map(|thread| thread.join().expect("no panic"))
        .collect()
}
