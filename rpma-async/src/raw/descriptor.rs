//! The descriptor that tokio watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Has the current runtime watch a descriptor, until the result is dropped.
///
/// # Panics
///
/// Outside of a runtime, and in one without an I/O driver.
#[expect(unsafe_code, reason = "tokio asks its caller")]
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the result owns the descriptor, which stays open and is the same as long as it
    // exists.
    let watched = unsafe { AsyncFd::register(descriptor) };
    Ok(watched?)
}
