//! Addresses and names, and the errors in using them.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::path::Path;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::hints::Hint;

/// The call that asks the name service.
pub(crate) const LOOK_UP: &str = "getaddrinfo";

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
    refuse_other_forms(addr)?;
    let found = (addr, port).to_socket_addrs().map_err(|error| {
        unresolvable(addr).unwrap_or_else(|| unresolved(addr, &error.to_string()))
    })?;
    try_found(addr, found, attempt)
}

/// Looks a name up. A failure of the name service may pass, so it is no error in the argument.
pub(crate) fn look_up(name: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (name, port).to_socket_addrs().map_err(|error| {
        let named = || io::Error::new(error.kind(), format!("{name:?}: {error}"));
        unresolvable(name).unwrap_or_else(|| Error::provider(LOOK_UP, named()))
    })?;
    Ok(found.collect())
}

fn unresolved(addr: &str, why: &str) -> Error {
    Error::invalid(format!("the address {addr:?} cannot be resolved: {why}"))
}

/// Refuses text that has the address in another form, before a name service is asked for it.
pub(crate) fn refuse_other_forms(addr: &str) -> Result<()> {
    if let Ok(both) = addr.parse::<SocketAddr>() {
        return Err(Error::invalid(format!(
            "{addr:?} is an address with a port: give the address {} and the port {} apart",
            both.ip(),
            both.port()
        )));
    }
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((name, port)) = addr.split_once(':').filter(|(_, port)| is_port(port)) {
        return Err(Error::invalid(format!(
            "{addr:?} is a name with a port: give the name {name} and the port {port} apart"
        )));
    }
    let inner = addr
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match inner {
        Some(inner) => Err(Error::invalid(format!(
            "{addr:?} has brackets, which only an address with a port needs: give {inner}"
        ))),
        None => Ok(()),
    }
}

/// The error of text that no name service can resolve, with a better reason than the service has.
fn unresolvable(addr: &str) -> Option<Error> {
    let is_interface = |name: &str| {
        let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        is_name && Path::new("/sys/class/net").join(name).exists()
    };
    if is_interface(addr) {
        let why =
            format!("it is a network interface: give one of its addresses (`ip addr show {addr}`)");
        return Some(unresolved(addr, &why));
    }
    let (ip, interface) = addr.split_once('%')?;
    let is_wrong = ip.parse::<Ipv6Addr>().is_ok() && !is_interface(interface);
    let why = format!("this host has no network interface {interface:?}");
    is_wrong.then(|| unresolved(addr, &why))
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

/// Returns the form of an address that is passed to the kernel and compared. An IPv4 address in an
/// IPv6 one (`::ffff:10.0.0.1`), as a socket of both families shows its peers, is the IPv4 address:
/// no device has the other form.
///
/// Refuses wildcards. librdmacm accepts them, and binds them to no device (W-19).
pub(crate) fn usable(addr: SocketAddr) -> Result<SocketAddr> {
    let addr = match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, v6.port()).into(),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    };
    if addr.ip().is_unspecified() {
        return Err(Error::invalid(format!(
            "{} is a wildcard and belongs to no RDMA device in particular: give an address of the \
             device to use (`rdma link` and `ip addr` show them)",
            addr.ip()
        )));
    }
    Ok(addr)
}

/// Whether both addresses lead to one host, as far as they show it. A link-local address holds on
/// one link alone, so its scope counts.
pub(crate) fn is_one_host(one: SocketAddr, other: SocketAddr) -> bool {
    let scope = |addr| match addr {
        SocketAddr::V6(v6) if is_link_local(addr) => v6.scope_id(),
        _ => 0,
    };
    one.ip().to_canonical() == other.ip().to_canonical() && scope(one) == scope(other)
}

fn is_link_local(addr: SocketAddr) -> bool {
    match addr {
        SocketAddr::V6(v6) => v6.ip().segments()[0] & 0xFFC0 == 0xFE80,
        SocketAddr::V4(_) => false,
    }
}

/// Advises about a failure to bind or to resolve an address.
pub(crate) fn hint(error: Error, addr: SocketAddr, side: Side) -> Error {
    const LINK_LOCAL: Hint = &[
        "The address is link-local, and holds on the network interface after the % alone",
        "is that the right one, and does it have an RDMA device?",
    ];
    const NO_SCOPE: Hint = &[
        "The address is link-local",
        "give the network interface on which it holds, as in fe80::1%eth0",
    ];
    const NO_DEVICE: Hint = &[
        "No RDMA device that this user may open has this address or leads to it",
        "use an address of a network interface that has one (`rdma link` lists them), and look at the rights of \
         /dev/infiniband/uverbs*",
    ];
    const NO_ROUTE: Hint = &[
        "The address cannot be reached from any RDMA device of this host",
        "is it right, is the other host up, and is there a route to it?",
    ];
    const TAKEN: Hint = &["Another program listens on this port", "choose another one"];
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
        return error;
    };
    match (side, errno) {
        (_, Errno::NODEV | Errno::INVAL | Errno::NETUNREACH)
        | (Side::Local, Errno::ADDRNOTAVAIL)
        | (Side::Remote, Errno::HOSTUNREACH | Errno::TIMEDOUT)
            if is_link_local(addr) =>
        {
            error.with_hint(match addr {
                SocketAddr::V6(v6) if v6.scope_id() != 0 => LINK_LOCAL,
                _ => NO_SCOPE,
            })
        }
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
        for addr in ["0.0.0.0:1", "[::]:1", "[::ffff:0.0.0.0]:1"] {
            let error = usable(addr.parse().expect("an address")).expect_err("a wildcard");
            assert!(error.to_string().contains("wildcard"), "{error}");
        }
    }

    /// Promise: an address has one form, in which it is passed on and compared. The scope is a part
    /// of a link-local one.
    #[test]
    fn an_address_has_one_form() {
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for (text, form) in [
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("[::ffff:10.0.0.1]:7", "10.0.0.1:7"),
            ("[fd77::1]:7", "[fd77::1]:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(usable(addr(text)).expect("usable"), addr(form));
        }
        for (one, other, is_one) in [
            ("10.0.0.1:7", "[::ffff:10.0.0.1]:8", true),
            ("10.0.0.1:7", "10.0.0.2:7", false),
            ("[fd77::1%3]:7", "[fd77::1]:7", true),
            ("[fe80::1%3]:7", "[fe80::1%3]:8", true),
            ("[fe80::1%3]:7", "[fe80::1%4]:7", false),
        ] {
            assert_eq!(
                is_one_host(addr(one), addr(other)),
                is_one,
                "{one}, {other}"
            );
        }
    }

    /// Promise: text in another form gets the form that is asked for.
    #[test]
    fn another_form_is_an_argument_error_with_the_remedy() {
        for (text, words) in [
            (
                "10.0.0.1:7204",
                "give the address 10.0.0.1 and the port 7204 apart",
            ),
            (
                "[fd77::1]:7204",
                "give the address fd77::1 and the port 7204 apart",
            ),
            ("db7:7204", "give the name db7 and the port 7204 apart"),
            ("[fd77::1]", "give fd77::1"),
            ("lo", "it is a network interface"),
            (
                "fe80::1%eth99",
                "this host has no network interface \"eth99\"",
            ),
        ] {
            let tried = try_each(text, 1, |_| Ok(())).expect_err("another form");
            let looked_up = refuse_other_forms(text).and_then(|()| look_up(text, 1).map(drop));
            for error in [tried, looked_up.expect_err("another form")] {
                assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    }

    /// Promise: the advice about a link-local address is about its interface.
    #[test]
    fn a_link_local_address_has_advice_of_its_own() {
        let with = |addr: &str| {
            let error = Error::provider("rdma_bind_addr", Errno::NODEV);
            hint(error, addr.parse().expect("an address"), Side::Local).to_string()
        };
        assert!(with("[fe80::1%3]:7").contains("after the %"));
        assert!(with("[fe80::1]:7").contains("as in fe80::1%eth0"));
        assert!(with("10.0.0.1:7").contains("No RDMA device"));
    }

    #[test]
    fn a_name_that_does_not_resolve_is_an_argument_error() {
        const NAME: &str = "no such name.invalid";
        let error = try_each(NAME, 1, |_| Ok(())).expect_err("no address");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        // It may be found later.
        let error = look_up(NAME, 1).expect_err("no address");
        assert!(matches!(error, Error::Provider { .. }), "{error:?}");
        assert!(error.to_string().contains(NAME), "{error}");
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
                if tried.len() > failing {
                    Ok(addr)
                } else {
                    Err(Error::invalid(format!("nothing at {addr}")))
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
