//! The flag of a descriptor that decides whether a read of it blocks.

use std::os::fd::BorrowedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::{Error, Result};

/// The status flags of `fd`.
pub(super) fn flags(fd: BorrowedFd<'_>) -> Result<OFlags> {
    fcntl_getfl(fd).map_err(|errno| Error::provider("fcntl(F_GETFL)", errno))
}

/// Makes a descriptor blocking, or not. Under the lock of its channel: a take may change the flag
/// for a moment.
pub(super) fn let_block(fd: BorrowedFd<'_>, block: bool) -> Result<()> {
    let mut flags = flags(fd)?;
    flags.set(OFlags::NONBLOCK, !block);
    fcntl_setfl(fd, flags).map_err(|errno| Error::provider("fcntl(F_SETFL)", errno))
}

/// Makes a descriptor non-blocking, if it is not already, and returns its flags before that.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<OFlags> {
    let before = flags(fd)?;
    if !before.contains(OFlags::NONBLOCK) {
        fcntl_setfl(fd, before | OFlags::NONBLOCK)
            .map_err(|errno| Error::provider("fcntl(F_SETFL)", errno))?;
    }
    Ok(before)
}
