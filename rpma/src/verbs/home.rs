//! The host of an id that is made for a device.
//!
//! A process is on one host, so librdmacm has no question here. A program on the simulated fabric
//! has several hosts, and an id for a device is on the host of that, whichever thread makes it.

#[cfg(feature = "sim")]
pub(super) use rpma_sys::for_device;

/// Runs `make`, which makes ids and event channels.
///
/// # Safety
///
/// The device is open.
#[cfg(not(feature = "sim"))]
#[inline(always)]
pub(super) unsafe fn for_device<T>(
    _device: *mut rpma_sys::ibv_context,
    make: impl FnOnce() -> T,
) -> T {
    make()
}
