//! A server and a client in one thread, and the work of the client's loop.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use rpma::reconnect::{Connects, Reconnect, ReconnectCfg, ToConn};

use crate::common::prelude::*;

pub(crate) const LEN: usize = 64;

/// A server that has memory.
pub(crate) struct Server {
    pub(crate) ep: Ep,
    pub(crate) memory: Mr<Memory>,
    pub(crate) peer: Peer,
}

impl Server {
    pub(crate) fn new() -> Result<Self> {
        Self::at(&addr())
    }

    pub(crate) fn at(addr: &str) -> Result<Self> {
        let peer = Peer::at(addr)?;
        Ok(Self {
            ep: Ep::listen(&peer, addr, 0)?,
            memory: region(&peer, LEN, usage())?,
            peer,
        })
    }

    pub(crate) fn at_addr(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(addr().parse()?, self.ep.get_port()))
    }

    /// A client of this server that has the key 7.
    pub(crate) fn client(&self) -> Result<Reconnect<ToConn>> {
        self.client_with(identified(1), ToConn)
    }

    pub(crate) fn client_with<C: Connects>(
        &self,
        offer: Offer,
        connects: C,
    ) -> Result<Reconnect<C>> {
        let port = self.ep.get_port();
        let mut client = Reconnect::new(&peer()?, &addr(), port, offer, connects)?;
        client.set_cfg(&quick()?);
        Ok(client)
    }

    /// The next request, if it is there.
    pub(crate) fn request(&self) -> Option<ConnReq> {
        let cfg = ConnCfg::new();
        match self.ep.next_conn_req_timeout(&cfg, Duration::ZERO) {
            Ok(req) => Some(req),
            Err(Error::NoEvent) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn offer(&self) -> Vec<u8> {
        offer_of(&self.memory).expect("fits")
    }

    /// Accepts each request, and drops the connection before it.
    pub(crate) fn accept(&self, current: &mut Option<Conn>) {
        self.accept_with(&self.offer(), current);
    }

    /// As [`accept`](Self::accept), with this answer.
    pub(crate) fn accept_with(&self, answer: &[u8], current: &mut Option<Conn>) {
        if let Some(req) = self.request() {
            drop(current.take());
            *current = Some(req.connect(answer).expect("accepts"));
        }
    }
}

pub(crate) fn usage() -> MrUsage {
    MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY
}

/// The answer that offers this memory.
pub(crate) fn offer_of(memory: &Mr<Memory>) -> Result<Vec<u8>> {
    let mut offer = Offer::new(&PeerCfg::new());
    Ok(offer.add_region(memory).encode(Offer::ACCEPT)?)
}

/// An offer of the key 7.
pub(crate) fn identified(epoch: u64) -> Offer {
    let mut offer = Offer::new(&PeerCfg::new());
    offer.set_identity(Identity::new(7, epoch).expect("an identity"));
    offer
}

/// Waits that tests have time for.
pub(crate) fn quick() -> Result<ReconnectCfg> {
    let ms = Duration::from_millis;
    Ok(*ReconnectCfg::new().set_waits(ms(1), ms(4))?)
}

/// Connects in steps, while the server's side is in the same thread: `advance` is called only when
/// the descriptor is readable or the deadline has passed, as an event loop does.
pub(crate) fn connect<C: Connects>(
    client: &mut Reconnect<C>,
    mut serve: impl FnMut(),
) -> Result<C::Connected, Error> {
    client.begin(&ConnCfg::new()).expect("begins");
    go_on(client, &mut serve)
}

pub(crate) fn go_on<C: Connects>(
    client: &mut Reconnect<C>,
    serve: &mut dyn FnMut(),
) -> Result<C::Connected, Error> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(connected) = client.advance()? {
            assert!(client.deadline().is_none());
            assert!(!readable(&*client), "the connection's events are its own");
            return Ok(connected);
        }
        let deadline = client.deadline().expect("one is under way");
        while !readable(&*client) && now() < deadline {
            serve();
            assert!(Instant::now() < until, "it ends in time");
        }
    }
}

/// The time of the client's deadlines.
pub(crate) fn now() -> Instant {
    #[cfg(feature = "sim")]
    return rpma::sim::now();
    #[cfg(not(feature = "sim"))]
    Instant::now()
}

/// Whether `fd` is readable, within a millisecond.
pub(crate) fn readable(fd: impl AsFd) -> bool {
    crate::common::readable(fd, Duration::from_millis(1))
}

/// It neither gave up at its limit, nor did the server refuse it.
pub(crate) fn assert_another_would_fail(error: &Error) {
    assert!(!matches!(error, Error::GaveUp(_)), "{error}");
    assert!(error.refusal().is_none(), "{error}");
}
