//! [`Listener`]: clients ask, and are accepted or rejected.

use std::fmt;
use std::future::Future;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use rpma::{Ep, Error, Request, Result};

use crate::conn::Conn;
use crate::connecting;
use crate::driver::Handle;
use crate::setup::Setup;
use crate::told::{Look, Told, Wait};

/// An endpoint at which clients ask for connections: [`Reactor::listen`](crate::Reactor::listen).
///
/// It is a [`Stream`] of requests, which never ends by itself. Several tasks may wait: each
/// request goes to one of them. [`Inbox`](crate::Inbox) has an example of a server.
pub struct Listener {
    told: Told,
    /// The wait of the stream.
    wait: Wait,
    ep: Ep,
}

impl Listener {
    pub(crate) fn new(reactor: &Arc<Handle>, addr: SocketAddr) -> Result<Self> {
        let ep = Ep::listen_on(reactor.peer(), addr)?;
        ep.set_nonblocking(true)?;
        Ok(Self {
            told: Told::new(reactor, ep.as_fd())?,
            wait: Wait::default(),
            ep,
        })
    }

    /// Returns the port of the listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ep.get_port()
    }

    /// Waits for the next request.
    ///
    /// # Cancel safety
    ///
    /// A request is taken only when it is returned: the future may be dropped at any time.
    ///
    /// # Errors
    ///
    /// As [`Ep::next_request`]. After most of these errors the next call may succeed. A server
    /// that gets the same error again and again should pause before the next call.
    /// [`Error::InvalidArgument`] without a [`Driver`](crate::Driver).
    pub async fn accept(&self) -> Result<Incoming> {
        self.told.wait(|| self.look()).await?
    }

    fn look(&self) -> Look<Result<Incoming>> {
        match self.ep.next_request() {
            Err(Error::NoEvent) => Look::Until(None),
            request => Look::Ready(request.map(|request| Incoming {
                request,
                reactor: Arc::clone(self.told.reactor()),
            })),
        }
    }
}

impl Stream for Listener {
    type Item = Result<Incoming>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut wait = mem::take(&mut self.wait);
        let polled = self.told.poll(&mut wait, cx, || self.look());
        self.wait = wait;
        polled.map(|told| Some(told.and_then(|request| request)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A request that was not answered keeps the descriptor.
        self.told.reactor().tell_no_more(self.ep.as_fd());
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("ep", &self.ep)
            .finish_non_exhaustive()
    }
}

/// A client's request for a connection. Dropping it rejects the request.
#[derive(Debug)]
#[must_use = "dropping it rejects the request"]
pub struct Incoming {
    request: Request,
    reactor: Arc<Handle>,
}

impl Incoming {
    /// The private data of the client: see [`Request::private_data`].
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// The address of the client.
    ///
    /// # Errors
    ///
    /// As [`Request::peer_addr`].
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.request.peer_addr()
    }

    /// Accepts the request, with up to 196 bytes of private data. This call makes the queues and
    /// sends the answer before it returns. The future returns the connection when it is
    /// established.
    ///
    /// # Cancel safety
    ///
    /// As [`Reactor::connect`](crate::Reactor::connect).
    ///
    /// # Errors
    ///
    /// The errors of [`Request::into_req`]. Otherwise as
    /// [`Reactor::connect`](crate::Reactor::connect).
    pub fn accept(
        self,
        setup: &Setup,
        private_data: &[u8],
    ) -> impl Future<Output = Result<Conn>> + use<> {
        connecting::accept(&self.reactor, self.request, setup, private_data)
    }

    /// Rejects the request: see [`Request::reject`].
    ///
    /// # Errors
    ///
    /// As [`Request::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}
