//! [`Connecting`]: a connection that is being made, by either side.
//!
//! A client's address and route are resolved; then, on both sides, the queues are there, receives
//! are posted, and the connection is asked for or accepted. From then on it is a [`Shared`], and
//! the driver takes its events. A drop at any time destroys all of it.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rpma::{ConnReq, Error, Request, Resolving, Result};
use rustix::io::Errno;

use crate::alarm::Alarm;
use crate::clock;
use crate::conn::{Conn, Shared};
use crate::driver::{Handle, Member, Patience, poll_told};
use crate::inbox::Receives;
use crate::setup::Setup;
use crate::waiters::{Ticket, Waiters};

/// Waits until a connection is established, and returns it: the future of
/// [`Reactor::connect`](crate::Reactor::connect) and
/// [`Incoming::accept`](crate::Incoming::accept).
///
/// It ends after [`Setup::with_connect_limit`] at the latest. The kernel gives up on an address and
/// a route after [`rpma::ConnCfg::set_timeout`].
///
/// # Cancel safety
///
/// Dropping it gives the connection up. The peer may still see the connection established, and
/// then ended.
///
/// # Errors
///
/// The errors of [`ConnReq::resolve`], [`Resolving::advance`], [`Request::into_req`] and
/// [`ConnReq::connect`]. [`Error::NotEstablished`] with the event that came instead: rejected,
/// unreachable, lost. [`Error::TimedOut`] after the limit: the connection is destroyed.
/// [`Error::InvalidArgument`] for settings that do not fit a reactor
/// ([`Setup`]), and if the driver of the reactor never ran or is gone.
#[must_use = "dropping it gives the connection up"]
pub struct Connecting {
    reactor: Arc<Handle>,
    stage: Stage,
    patience: Patience,
    ticket: Ticket,
    /// By then it must be established.
    until: Option<Instant>,
    alarm: Alarm,
}

enum Stage {
    Failed(Error),
    Resolving(Box<Resolve>),
    /// It was asked for, or accepted.
    Asked(Arc<Shared>),
    Over,
}

/// A client's address and route are being resolved.
struct Resolve {
    resolving: Resolving,
    waiters: Arc<Waiters>,
    seat: Seat,
    setup: Setup,
    private_data: Box<[u8]>,
}

/// A key of the reactor, until the connection has it. Dropping it gives the key back.
pub(crate) struct Seat {
    reactor: Arc<Handle>,
    key: u64,
    is_used: bool,
}

impl Seat {
    pub(crate) fn new(reactor: &Arc<Handle>, member: Weak<dyn Member>) -> Self {
        Self {
            reactor: Arc::clone(reactor),
            key: reactor.join(member),
            is_used: false,
        }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Posts the receives, and asks for the connection, or accepts it.
    fn start(self, req: ConnReq, setup: &Setup, data: &[u8]) -> Result<Arc<Shared>> {
        let reactor = Arc::clone(&self.reactor);
        let receives = setup
            .receives()
            .map(|wanted| Receives::new(reactor.peer(), wanted))
            .transpose()?;
        if let Some(receives) = &receives {
            receives.post(&req)?;
        }
        let conn = req.connect(data)?;
        conn.set_nonblocking(true)?;
        self.fill(conn, setup, receives)
    }

    /// Gives the seat to a connection that was asked for, or accepted.
    pub(crate) fn fill(
        mut self,
        conn: rpma::Conn,
        setup: &Setup,
        receives: Option<Receives>,
    ) -> Result<Arc<Shared>> {
        let reactor = Arc::clone(&self.reactor);
        match reactor.tell(self.key, conn.as_fd()) {
            // Since its address was resolved.
            Err(error) if error.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            told => told?,
        }
        self.is_used = true;
        let shared = Shared::new(conn, &reactor, self.key, setup.depth(), receives);
        // Those that came before the driver knew it.
        shared.take_events();
        Ok(shared)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.is_used {
            self.reactor.leave(self.key);
        }
    }
}

impl Connecting {
    fn new(reactor: &Arc<Handle>, setup: &Setup, stage: Result<Stage>) -> Self {
        Self {
            until: clock::after(setup.connect_limit()),
            alarm: Alarm::default(),
            reactor: Arc::clone(reactor),
            stage: stage.unwrap_or_else(Stage::Failed),
            patience: Patience::default(),
            ticket: Ticket::default(),
        }
    }

    pub(crate) fn to(
        reactor: &Arc<Handle>,
        addr: SocketAddr,
        setup: &Setup,
        private_data: &[u8],
    ) -> Self {
        Self::new(
            reactor,
            setup,
            Resolve::new(reactor, addr, setup, private_data)
                .map(|resolve| Stage::Resolving(Box::new(resolve))),
        )
    }

    pub(crate) fn accept(
        reactor: &Arc<Handle>,
        request: Request,
        setup: &Setup,
        private_data: &[u8],
    ) -> Self {
        let accept = || {
            let seat = Seat::new(reactor, Weak::<Waiters>::new());
            let cfg = setup.cfg(reactor, seat.key)?;
            let req = request.into_req(reactor.peer(), &cfg)?;
            seat.start(req, setup, private_data)
        };
        Self::new(reactor, setup, accept().map(Stage::Asked))
    }
}

impl Resolve {
    fn new(
        reactor: &Arc<Handle>,
        addr: SocketAddr,
        setup: &Setup,
        private_data: &[u8],
    ) -> Result<Self> {
        let waiters = Arc::<Waiters>::default();
        let member: Weak<Waiters> = Arc::downgrade(&waiters);
        let seat = Seat::new(reactor, member);
        let cfg = setup.cfg(reactor, seat.key)?;
        let resolving = ConnReq::resolve(reactor.peer(), addr, &cfg)?;
        reactor.tell(seat.key, resolving.as_fd())?;
        Ok(Self {
            resolving,
            waiters,
            seat,
            setup: setup.clone(),
            private_data: private_data.into(),
        })
    }

    /// Goes on as far as it can. The ticket is for the time that the kernel works.
    fn advance(mut self: Box<Self>, ticket: &mut Ticket, cx: &mut Context<'_>) -> Result<Stage> {
        // Before the look, so that later events wake the task.
        self.waiters.wait(ticket, cx.waker());
        match self.resolving.advance()? {
            ControlFlow::Continue(resolving) => {
                self.resolving = resolving;
                Ok(Stage::Resolving(self))
            }
            ControlFlow::Break(req) => {
                self.waiters.leave(ticket);
                let shared = self.seat.start(req, &self.setup, &self.private_data)?;
                Ok(Stage::Asked(shared))
            }
        }
    }
}

impl Future for Connecting {
    type Output = Result<Conn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Conn>> {
        let this = &mut *self;
        loop {
            match std::mem::replace(&mut this.stage, Stage::Over) {
                Stage::Over => panic!("a connection that was returned is polled again"),
                Stage::Failed(error) => return Poll::Ready(Err(error)),
                Stage::Resolving(resolve) => {
                    let stage = resolve.advance(&mut this.ticket, cx)?;
                    let is_waiting = matches!(stage, Stage::Resolving(_));
                    this.stage = stage;
                    if is_waiting {
                        return this.pending(cx);
                    }
                }
                Stage::Asked(shared) => {
                    let told =
                        poll_told(&this.reactor, shared.closed(), &mut this.ticket, cx, || {
                            established(&shared)
                        });
                    if told.is_pending() {
                        this.stage = Stage::Asked(shared);
                        return this.pending(cx);
                    }
                    ready!(told)?;
                    return Poll::Ready(Ok(Conn::new(shared)));
                }
            }
        }
    }
}

fn established(shared: &Shared) -> Option<Result<()>> {
    // Its end may follow at once, and is the connection's.
    if shared.is_established() {
        return Some(Ok(()));
    }
    if let Some(end) = shared.end() {
        return Some(Err(Error::NotEstablished(Box::new(end.clone()))));
    }
    shared.given_up().map(Err)
}

impl Connecting {
    /// Waits for the driver, and for the limit.
    fn pending(&mut self, cx: &mut Context<'_>) -> Poll<Result<Conn>> {
        let given_up = match self.patience.poll(&self.reactor, cx) {
            Poll::Ready(Err(error)) => error,
            _ if self.until.is_some_and(|until| until <= clock::now()) => Error::TimedOut(
                "the connection was not established within Setup::with_connect_limit",
            ),
            _ => {
                self.alarm.set(&self.reactor, self.until, cx);
                return Poll::Pending;
            }
        };
        self.leave();
        self.stage = Stage::Over;
        Poll::Ready(Err(given_up))
    }

    fn leave(&mut self) {
        match &self.stage {
            Stage::Resolving(resolve) => resolve.waiters.leave(&mut self.ticket),
            Stage::Asked(shared) => shared.closed().leave(&mut self.ticket),
            Stage::Failed(_) | Stage::Over => false,
        };
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            Stage::Failed(_) => "failed",
            Stage::Resolving(_) => "resolving",
            Stage::Asked(_) => "asked",
            Stage::Over => "over",
        };
        f.debug_struct("Connecting")
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}
