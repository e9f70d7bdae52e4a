//! The usual causes of failures, and their remedies.

use rustix::io::Errno;

use crate::error::Error;

/// For `ENODEV` of an object that had a device.
pub(crate) const DEVICE_REMOVED: &str = "This host's RDMA device was removed, and all objects on it have ended: drop \
                                         them, and open the device again when it is back";

/// A failure to make something that has a descriptor.
pub(crate) fn descriptors(error: Error) -> Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => error.with_hint(
            "Each connection has up to five descriptors: raise RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of a \
             systemd unit), or make the connections for a Wait, where they share a completion channel",
        ),
        _ => error,
    }
}

/// A failure to register memory; `persistent` if the right to flush to persistence was asked for.
pub(crate) fn registration(error: Error, persistent: bool) -> Error {
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
        return error;
    };
    match errno {
                // EPERM is for a limit of 0.
        Errno::NOMEM | Errno::PERM => error.with_hint(
            "Registered memory is locked: raise RLIMIT_MEMLOCK (`ulimit -l unlimited`, LimitMEMLOCK= \
             of a systemd unit) or give the process CAP_IPC_LOCK",
        ),
        Errno::OPNOTSUPP => error.with_hint(
            "A file on a DAX file system can be registered only on a device with on-demand paging: \
             use a device-DAX (/dev/dax…) instead",
        ),
        Errno::FAULT => error.with_hint(
            "Since Linux 6.5 the kernel does not pin a mapping of an ordinary file for writing, and a \
             mapping must have the rights that the usage needs: use a device-DAX, or register \
             anonymous memory and copy to the file",
        ),
        Errno::INVAL if persistent => error.with_hint(
            "MrUsage::FLUSH_TYPE_PERSISTENT is for persistent memory: this memory is volatile, or the \
             device takes it for volatile",
        ),
        _ => error,
    }
}
