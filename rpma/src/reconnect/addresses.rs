//! The addresses of a server, tried one after the other: each gets a share of the limit, and the
//! error has the reason of each.

use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use super::connects::Connects;
use super::verdict::Verdict;
use crate::address::{self, Side};
use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::offer::Offer;
use crate::peer::Peer;
use crate::verbs::Deadline;

/// Addresses that were tried in vain.
#[derive(Debug, Default)]
pub(super) struct Tried(Vec<(SocketAddr, Error)>);

impl Tried {
    /// The error replaces an earlier one of this address.
    pub(super) fn add(&mut self, addr: SocketAddr, error: Error) {
        self.0.retain(|(tried, _)| *tried != addr);
        self.0.push((addr, error));
    }

    /// The error of an address that has none yet.
    pub(super) fn add_first(&mut self, addr: SocketAddr, error: Error) {
        if self.0.iter().all(|(tried, _)| *tried != addr) {
            self.add(addr, error);
        }
    }

    pub(super) fn keep(&mut self, addrs: &[SocketAddr]) {
        self.0.retain(|(tried, _)| addrs.contains(tried));
    }

    /// Takes the error of all: of one address it is the address's own.
    pub(super) fn take(&mut self) -> Option<Error> {
        let mut tried = mem::take(&mut self.0);
        match tried.len() {
            0 | 1 => tried.pop().map(|(_, error)| error),
            _ => Some(Error::NoAddress(tried.into())),
        }
    }
}

/// The part of the `left` time that the next one of these addresses gets.
pub(super) fn share(left: Duration, addresses: usize) -> Duration {
    match left {
        Duration::MAX => left,
        left => left / u32::try_from(addresses.max(1)).unwrap_or(u32::MAX),
    }
}

/// The addresses of a server, which a program tries one after the other within a limit: for event
/// loops. [`first_that_works`] is the same for a program that may block.
///
/// Each address gets the rest of the limit, divided by the number of addresses that are left. A
/// [`Refusal`](crate::Refusal) of the server ends the tries, because another address leads to the
/// same server.
///
/// ```
/// use std::time::Duration;
///
/// use rpma::Error;
/// use rpma::reconnect::Tries;
///
/// let addrs = ["10.0.0.1:7204".parse().unwrap(), "[fd77::1]:7204".parse().unwrap()];
/// let mut tries = Tries::new(&addrs, Duration::from_secs(10))?;
/// while let Some((addr, limit)) = tries.begin() {
///     // The program tries `addr` for at most `limit`.
///     # assert!(limit <= Duration::from_secs(10));
///     tries.failed(Error::TimedOut("the server did not answer"))?;
/// }
/// let error = tries.into_error().to_string();
/// assert!(error.starts_with("none of the 2 addresses works: 10.0.0.1:7204: "), "{error}");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Tries {
    /// The next one last.
    left: Vec<SocketAddr>,
    deadline: Deadline,
    trying: Option<SocketAddr>,
    tried: Tried,
}

impl Tries {
    /// Makes the tries of these addresses, in this order. The limit counts from now on;
    /// `Duration::MAX` is no limit.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no address, or a wildcard address.
    pub fn new(addrs: &[SocketAddr], limit: Duration) -> Result<Self> {
        let left = addrs.iter().rev().map(|addr| address::usable(*addr));
        let left: Vec<_> = left.collect::<Result<_>>()?;
        if left.is_empty() {
            return Err(Error::invalid("a server without an address"));
        }
        Ok(Self {
            left,
            deadline: Deadline::after(limit),
            trying: None,
            tried: Tried::default(),
        })
    }

    /// Returns the next address, and the time that it may take. `None` if all were tried.
    pub fn begin(&mut self) -> Option<(SocketAddr, Duration)> {
        let share = share(self.deadline.left(), self.left.len());
        self.trying = self.left.pop();
        self.trying.map(|addr| (addr, share))
    }

    /// Notes that the address of the last [`begin`](Self::begin) does not work, for this reason.
    ///
    /// # Errors
    ///
    /// The reason, if it is a refusal of the server: no other address is to be tried.
    pub fn failed(&mut self, error: Error) -> Result<()> {
        if Verdict::on(&error) == Verdict::Refused {
            return Err(error);
        }
        if let Some(addr) = self.trying.take() {
            log::info!("{addr}: {error}");
            self.tried.add(addr, error);
        }
        Ok(())
    }

    /// Returns [`Error::NoAddress`] with the reason of each address, or the reason itself if there
    /// was one address.
    #[must_use]
    pub fn into_error(mut self) -> Error {
        let none = || Error::invalid("no address was tried");
        self.tried.take().unwrap_or_else(none)
    }
}

/// Calls `attempt` with each address of a name, until one works. Each call gets the time that it
/// may take, as [`Tries`] has it. `name` is a host name, or an address as in
/// [`Device::from_addr`](crate::Device::from_addr).
///
/// [`connect`] is this call for a connection with a [`Peer`] of its own. A
/// [`Reconnect`](super::Reconnect) tries its addresses in the same way.
///
/// # Errors
///
/// As [`Tries::into_error`] and [`Tries::failed`]. [`Error::InvalidArgument`] for text that is no
/// name or address, and for a wildcard address. [`Error::Provider`] (`getaddrinfo`) if the name
/// cannot be resolved.
pub fn first_that_works<T>(
    name: &str,
    port: u16,
    limit: Duration,
    mut attempt: impl FnMut(SocketAddr, Duration) -> Result<T>,
) -> Result<T> {
    address::refuse_other_forms(name)?;
    let deadline = Deadline::after(limit);
    let mut tries = Tries::new(&address::look_up(name, port)?, deadline.left())?;
    while let Some((addr, limit)) = tries.begin() {
        match attempt(addr, limit) {
            Ok(works) => return Ok(works),
            Err(error) => tries.failed(error)?,
        }
    }
    Err(tries.into_error())
}

/// Connects to a server by its name, and makes the [`Peer`] for the address that works: a name may
/// have addresses that lead through other devices of this host, or on which the server does not
/// listen. The call blocks for at most `limit`, and up to a second more for each address to which
/// no device of this host is found. Connect again with a [`Reconnect`](super::Reconnect) of that
/// peer.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::reconnect::{ToConn, connect};
/// use rpma::{ConnCfg, Offer};
///
/// let limit = Duration::from_secs(10);
/// let (peer, conn) = connect("db7", 7204, limit, &ConnCfg::new(), &Offer::default(), ToConn)?;
/// println!("connected to {} through {:?}", conn.peer_addr()?, peer);
/// # Ok::<(), rpma::Error>(())
/// ```
///
/// # Errors
///
/// As [`first_that_works`]. The errors of an address are those of
/// [`Device::from_socket_addr`](crate::Device::from_socket_addr), [`Peer::new`],
/// [`ConnReq::resolve`](crate::ConnReq::resolve), [`Conn::wait_established`](crate::Conn) and
/// `connects`.
pub fn connect<C: Connects>(
    name: &str,
    port: u16,
    limit: Duration,
    cfg: &ConnCfg,
    offer: &Offer,
    mut connects: C,
) -> Result<(Peer, C::Connected)> {
    let cfg = connects.conn_cfg(cfg)?;
    first_that_works(name, port, limit, |addr, limit| {
        let deadline = Deadline::after(limit);
        let peer = Peer::new(&Device::from_socket_addr(addr, Side::Remote)?)?;
        let resolving = ConnReq::resolve(&peer, addr, &cfg)?;
        let asked = connects.ask(resolving.wait_until(deadline)?, offer)?;
        established(C::conn(&asked), deadline)?;
        Ok((peer, connects.finish(asked)?))
    })
}

/// Waits until a connection is established, as [`Conn::wait_established`] does for its owner.
fn established(conn: &Conn, deadline: Deadline) -> Result<()> {
    loop {
        match conn.next_event_timeout(deadline.left()) {
            Ok(ConnEvent::Established) => return Ok(()),
            Ok(event) if event.is_end() => return Err(Error::NotEstablished(Box::new(event))),
            Ok(_notice) => {}
            Err(Error::NoEvent) => return Err(Error::TimedOut("the server did not answer")),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::{Refusal, RefusalCode};

    fn addrs() -> Vec<SocketAddr> {
        let addrs = ["192.0.2.1:7", "[2001:db8::2]:7", "192.0.2.3:7"];
        addrs.map(|addr| addr.parse().expect("an address")).into()
    }

    /// Promise: each address gets the time that is left, divided by the addresses that are left;
    /// and the error has the reason of each.
    #[test]
    fn each_address_gets_its_share() {
        let mut tries = Tries::new(&addrs(), Duration::from_secs(90)).expect("addresses");
        for (expected, seconds) in addrs().into_iter().zip([30, 45, 90]) {
            let (addr, share) = tries.begin().expect("an address");
            let most = Duration::from_secs(seconds);
            assert!(addr == expected && share <= most && share + Duration::from_secs(1) > most);
            let reason = Error::invalid(format!("nothing at {}", addr.ip()));
            tries.failed(reason).expect("the next one");
        }
        assert_eq!(tries.begin(), None);
        assert_eq!(
            tries.into_error().to_string(),
            "none of the 3 addresses works: 192.0.2.1:7: nothing at 192.0.2.1; [2001:db8::2]:7: \
             nothing at 2001:db8::2; 192.0.2.3:7: nothing at 192.0.2.3"
        );
        let mut one = Tries::new(&addrs()[..1], Duration::MAX).expect("an address");
        assert_eq!(one.begin(), Some((addrs()[0], Duration::MAX)));
        one.failed(Error::invalid("its own")).expect("no refusal");
        assert_eq!(one.into_error().to_string(), "its own");
        Tries::new(&[], Duration::MAX).expect_err("no address");
    }

    /// Promise: the first address that works is taken, and text that is no name is an error.
    #[test]
    fn the_first_address_that_works_is_taken() {
        let limit = Duration::from_secs(9);
        let found = first_that_works("127.0.0.1", 7, limit, |addr, share| Ok((addr, share)));
        let (addr, share) = found.expect("works");
        assert!(addr == "127.0.0.1:7".parse().expect("an address") && share <= limit);
        let other = first_that_works("127.0.0.1:7", 7, limit, |_, _| Ok(()));
        assert!(matches!(other, Err(Error::InvalidArgument(_))));
    }

    /// Promise: a refusal by the server ends it, because another address leads to the same server.
    #[test]
    fn a_refusal_ends_it() {
        let private_data = Refusal::new(RefusalCode::OldEpoch, "old").encode();
        let event = ConnEvent::Rejected {
            reason: ConnEvent::BY_PROGRAM,
            private_data: private_data.into(),
        };
        let mut tries = Tries::new(&addrs(), Duration::MAX).expect("addresses");
        tries.begin().expect("an address");
        let refused = tries.failed(Error::NotEstablished(Box::new(event)));
        assert!(matches!(refused, Err(Error::NotEstablished(_))));
    }
}
