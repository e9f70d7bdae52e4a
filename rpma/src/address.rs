//! Addresses and names, and the errors in using them.

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
    attempt: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let found = (addr, port).to_socket_addrs().map_err(|error| {
        Error::invalid(format!("the address {addr:?} cannot be resolved: {error}"))
    })?;
    try_found(addr, found, attempt)
}

fn try_found<T>(
    name: &str,
    found: impl Iterator<Item = SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let mut last: Option<Error> = None;
    for addr in found {
        if let Some(previous) = &last {
            log::debug!("trying {addr}, the next address of {name:?}: {previous}");
        }
        match attempt(addr) {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::invalid(format!("{name:?} stands for no address"))))
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

/// Advises about a failure to bind or to resolve an address.
pub(crate) fn hint(error: Error, side: Side) -> Error {
    const NO_DEVICE: &str = "No RDMA device that this user may open has this address or leads to it: use \
                             an address of a network interface that has one (`rdma link` lists them), \
                             and look at the rights of /dev/infiniband/uverbs*";
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
    fn an_address_stands_for_itself() {
        let found = try_each("127.0.0.1", 7, Ok).expect("works");
        assert_eq!(found, "127.0.0.1:7".parse().expect("an address"));
    }

    #[test]
    fn the_first_address_that_works_is_taken() {
        let addrs: Vec<SocketAddr> = ["192.0.2.1:7", "[2001:db8::2]:7", "192.0.2.3:7"]
            .map(|addr| addr.parse().expect("an address"))
            .into();
        // How many fail before one works.
        for failing in 0..=addrs.len() {
            let mut tried = Vec::new();
            let found = try_found("a name", addrs.iter().copied(), |addr| {
                tried.push(addr);
                match tried.len() > failing {
                    true => Ok(addr),
                    false => Err(Error::invalid(format!("nothing at {addr}"))),
                }
            });
            let tries = addrs.len().min(failing + 1);
            assert_eq!(tried, addrs[..tries], "in order, and none in vain");
            match addrs.get(failing) {
                Some(works) => assert_eq!(found.expect("works"), *works),
                None => {
                    let error = found.expect_err("none works").to_string();
                    assert!(error.contains("nothing at 192.0.2.3:7"), "{error}");
                }
            }
        }
        let error = try_found("a name", [].into_iter(), Ok).expect_err("none");
        assert!(error.to_string().contains("no address"), "{error}");
    }
}
