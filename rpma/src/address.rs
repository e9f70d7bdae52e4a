//! Addresses and names, and what goes wrong with them.

use std::net::{SocketAddr, ToSocketAddrs};

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Which side an address is on (`enum rpma_util_ibv_context_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an address is on this side or on the other"
)]
pub enum Side {
    /// The address is this host's: the device is the one that has it.
    Local,
    /// The address is another host's: the device is the one through which it is reached.
    Remote,
}

/// Calls `attempt` with each address that `addr` stands for until one works. The error is the last
/// one's.
pub(crate) fn try_each<T>(
    addr: &str,
    port: u16,
    mut attempt: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let found = (addr, port).to_socket_addrs().map_err(|error| {
        Error::invalid(format!("the address {addr:?} cannot be resolved: {error}"))
    })?;
    let mut last = None;
    for addr in found {
        match attempt(addr) {
            Ok(value) => return Ok(value),
            Err(error) => {
                if let Some(previous) = last.replace(error) {
                    log::debug!("trying the next address of {addr}: {previous}");
                }
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::invalid(format!("{addr:?} stands for no address"))))
}

/// librdmacm accepts a wildcard, and binds it to no device (W-19).
pub(crate) fn refuse_wildcard(addr: SocketAddr) -> Result<()> {
    if addr.ip().is_unspecified() {
        return Err(Error::invalid(format!(
            "{} is a wildcard and belongs to no RDMA device in particular: give an address of the \
             device to use (`rdma link` and `ip addr` show them)",
            addr.ip()
        )));
    }
    Ok(())
}

/// What to do about a failure to bind or to resolve an address.
pub(crate) fn hint(error: Error, side: Side) -> Error {
    const NO_DEVICE: &str = "No RDMA device has this address or leads to it: use an address of a \
                             network interface that has one (`rdma link` lists them)";
    const NO_ROUTE: &str = "The address cannot be reached from any RDMA device of this host: is it \
                            right, is the other host up, and is there a route to it?";
    const TAKEN: &str = "Another program listens on this port: choose another one";
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
        return error;
    };
    match (side, errno) {
        (_, Errno::NODEV) | (Side::Local, Errno::ADDRNOTAVAIL) => error.with_hint(NO_DEVICE),
        (Side::Local, Errno::ADDRINUSE) => error.with_hint(TAKEN),
        (Side::Remote, Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT) => {
            error.with_hint(NO_ROUTE)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_refused() {
        for addr in ["0.0.0.0:1", "[::]:1"] {
            let error = refuse_wildcard(addr.parse().expect("an address")).expect_err("a wildcard");
            assert!(error.to_string().contains("wildcard"), "{error}");
        }
        assert!(refuse_wildcard("10.0.0.1:1".parse().expect("an address")).is_ok());
    }

    #[test]
    fn a_name_that_does_not_resolve_is_an_argument_error() {
        let error = try_each("no such name.invalid", 1, |_| Ok(())).expect_err("no address");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    }

    #[test]
    fn the_first_address_that_works_is_taken() {
        let mut tried = 0;
        let found = try_each("127.0.0.1", 7, |addr| {
            tried += 1;
            Ok(addr)
        });
        assert_eq!(
            found.expect("works"),
            "127.0.0.1:7".parse().expect("an address")
        );
        assert_eq!(tried, 1);
    }
}
