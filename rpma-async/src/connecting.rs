//! A connection that is being made, by either side: [`connect`] and [`accept`].
//!
//! A client's address and route are resolved; then, on both sides, the queues are there, receives
//! are posted, and the connection is asked for or accepted. From then on it is a [`Shared`], and
//! the driver takes its events. A drop at any time destroys all of it.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use rpma::{ConnReq, Error, Request, Resolving, Result};
use rustix::io::Errno;

use crate::clock;
use crate::conn::{Conn, Shared};
use crate::driver::{Handle, Member};
use crate::inbox::Receives;
use crate::setup::Setup;
use crate::told::{Look, wait};
use crate::waiters::Waiters;

/// As [`Reactor::connect`](crate::Reactor::connect).
pub(crate) fn connect(
    reactor: &Arc<Handle>,
    addr: SocketAddr,
    setup: &Setup,
    private_data: &[u8],
) -> impl Future<Output = Result<Conn>> + use<> {
    let until = clock::after(setup.connect_limit());
    let resolve = Resolve::new(reactor, addr, setup, private_data);
    async move {
        let asked = resolve?.ask(until).await?;
        established_by(until, asked).await
    }
}

/// As [`Incoming::accept`](crate::Incoming::accept).
pub(crate) fn accept(
    reactor: &Arc<Handle>,
    request: Request,
    setup: &Setup,
    private_data: &[u8],
) -> impl Future<Output = Result<Conn>> + use<> {
    let until = clock::after(setup.connect_limit());
    let accept = || {
        let seat = Seat::new(reactor, Weak::<Waiters>::new());
        let cfg = setup.cfg(reactor, seat.key)?;
        let req = request.into_req(reactor.peer(), &cfg)?;
        seat.start(req, setup, private_data)
    };
    let accepted = accept();
    async move { established_by(until, accepted?).await }
}

/// Waits until a connection that was asked for, or accepted, is established.
async fn established_by(until: Option<Instant>, asked: Arc<Shared>) -> Result<Conn> {
    let look = || by(until, established(&asked));
    wait(asked.reactor(), asked.closed(), look).await??;
    Ok(Conn::new(asked))
}

/// The result of a look, or the end of the time.
fn by<T>(until: Option<Instant>, found: Option<Result<T>>) -> Look<Result<T>> {
    match found {
        Some(result) => Look::Ready(result),
        None if until.is_some_and(|until| until <= clock::now()) => Look::Ready(Err(
            Error::TimedOut("the connection was not established within Setup::with_connect_limit"),
        )),
        None => Look::Until(until),
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

/// A client's address and route are being resolved.
struct Resolve {
    resolving: Resolving,
    waiters: Arc<Waiters>,
    seat: Seat,
    setup: Setup,
    private_data: Box<[u8]>,
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

    /// Waits for the kernel, and asks for the connection.
    async fn ask(self, until: Option<Instant>) -> Result<Arc<Shared>> {
        let mut resolving = Some(self.resolving);
        let mut advance = || match resolving.take()?.advance() {
            Ok(ControlFlow::Continue(goes_on)) => {
                resolving = Some(goes_on);
                None
            }
            Ok(ControlFlow::Break(req)) => Some(Ok(req)),
            Err(error) => Some(Err(error)),
        };
        let look = || by(until, advance());
        let req = wait(&self.seat.reactor, &self.waiters, look).await??;
        self.seat.start(req, &self.setup, &self.private_data)
    }
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
