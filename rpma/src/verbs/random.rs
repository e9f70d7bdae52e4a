//! Random numbers: the system's. On a simulated fabric with a seed they follow from the seed.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// Draws a random number.
pub(crate) fn random() -> Result<u64> {
    #[cfg(feature = "sim")]
    if let Some(number) = rpma_sys::sim::random() {
        return Ok(number);
    }
    let mut bytes = [0; 8];
    // Up to 256 bytes come at once, and no signal interrupts the call.
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Error::provider("getrandom", errno))?;
    Ok(u64::from_ne_bytes(bytes))
}
