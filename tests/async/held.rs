//! Requests that stay on their way, where a test can have that.

#[cfg(feature = "sim")]
mod way {
    use crate::common::with_fabric;

    pub(crate) fn hold() {
        with_fabric(|fabric, host| fabric.between(host, host).hold());
    }

    pub(crate) fn release() {
        with_fabric(|fabric, host| fabric.between(host, host).release());
    }
}

/// On a device operations take the time that they take.
#[cfg(not(feature = "sim"))]
mod way {
    pub(crate) fn hold() {}

    pub(crate) fn release() {}
}

pub(crate) use way::{hold, release};
