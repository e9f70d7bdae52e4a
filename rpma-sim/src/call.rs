//! How the C functions report errors.

use std::ffi::c_int;
use std::ptr;

use rustix::io::Errno;

/// The error that a call finds by itself.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// For calls that return 0 or a positive errno.
pub(crate) fn errno_of(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => errno.raw_os_error(),
    }
}

/// For calls that return 0, or −1 with the reason in errno.
pub(crate) fn minus_one(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// For calls that return an object, or NULL with the reason in errno.
pub(crate) fn null<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

fn set_errno(errno: Errno) {
    // SAFETY: the function has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` leads to the errno of this thread, which no other one writes to.
    unsafe { *place = errno.raw_os_error() };
}
