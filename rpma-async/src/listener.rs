//! [`Listener`]: clients ask, and are accepted or rejected.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures_core::Stream;
use rpma::{Ep, Error, Request, Result};

use crate::connecting::Connecting;
use crate::driver::{Handle, Patience, poll_told};
use crate::setup::Setup;
use crate::waiters::{Ticket, Waiters};

/// An endpoint at which clients ask for connections: [`Reactor::listen`](crate::Reactor::listen).
///
/// It is a [`Stream`] of requests, which never ends by itself. Several tasks may wait: each
/// request goes to one of them. [`Inbox`](crate::Inbox) has an example of a server.
pub struct Listener {
    ep: Ep,
    waiters: Arc<Waiters>,
    key: u64,
    reactor: Arc<Handle>,
    /// The ticket of the stream.
    ticket: Ticket,
    patience: Patience,
}

impl Listener {
    pub(crate) fn new(reactor: &Arc<Handle>, addr: SocketAddr) -> Result<Self> {
        let ep = Ep::listen_on(reactor.peer(), addr)?;
        ep.set_nonblocking(true)?;
        let waiters = Arc::<Waiters>::default();
        let member: Weak<Waiters> = Arc::downgrade(&waiters);
        let listener = Self {
            key: reactor.join(member),
            ep,
            waiters,
            reactor: Arc::clone(reactor),
            ticket: Ticket::default(),
            patience: Patience::default(),
        };
        reactor.tell(listener.key, listener.ep.as_fd())?;
        Ok(listener)
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
    /// [`Error::InvalidArgument`] if the driver of the reactor never ran or is gone.
    pub fn accept(&self) -> Accept<'_> {
        Accept {
            listener: self,
            ticket: Ticket::default(),
            patience: Patience::default(),
        }
    }

    fn poll(
        &self,
        ticket: &mut Ticket,
        patience: &mut Patience,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Incoming>> {
        let told = poll_told(&self.reactor, &self.waiters, ticket, cx, || {
            match self.ep.next_request() {
                Err(Error::NoEvent) => None,
                request => Some(request),
            }
        });
        if told.is_pending() {
            if let Poll::Ready(Err(error)) = patience.poll(&self.reactor, cx) {
                self.waiters.leave(ticket);
                return Poll::Ready(Err(error));
            }
            return Poll::Pending;
        }
        told.map_ok(|request| Incoming {
            request,
            reactor: Arc::clone(&self.reactor),
        })
    }
}

impl Stream for Listener {
    type Item = Result<Incoming>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut ticket = std::mem::take(&mut self.ticket);
        let mut patience = std::mem::take(&mut self.patience);
        let polled = self.poll(&mut ticket, &mut patience, cx);
        self.ticket = ticket;
        self.patience = patience;
        polled.map(Some)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
        self.reactor.tell_no_more(self.ep.as_fd());
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("ep", &self.ep)
            .finish_non_exhaustive()
    }
}

/// A wait for a request: [`Listener::accept`].
#[derive(Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct Accept<'listener> {
    listener: &'listener Listener,
    ticket: Ticket,
    patience: Patience,
}

impl Future for Accept<'_> {
    type Output = Result<Incoming>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Incoming>> {
        let Self {
            listener,
            ticket,
            patience,
        } = &mut *self;
        listener.poll(ticket, patience, cx)
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        // If it was woken, the request is for another one.
        if self.listener.waiters.leave(&mut self.ticket) {
            self.listener.waiters.wake_all();
        }
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
    pub fn accept(self, setup: &Setup, private_data: &[u8]) -> Connecting {
        Connecting::accept(&self.reactor, self.request, setup, private_data)
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
