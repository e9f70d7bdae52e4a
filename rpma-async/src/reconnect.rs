//! [`Reconnect`]: connects again, in a task. [`ToConn`]: to a connection of a reactor.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use rpma::commit::WriterCfg;
use rpma::reconnect::{self, Connects, ReconnectCfg, ToWriter};
use rpma::{ConnCfg, ConnReq, Identity, Offer, PeerCfg, Result};

use crate::clock;
use crate::conn::{Conn, Shared};
use crate::connecting::Seat;
use crate::driver::Handle;
use crate::error::invalid;
use crate::inbox::Receives;
use crate::primitives::Mutex;
use crate::reactor::Reactor;
use crate::setup::Setup;
use crate::told::{Look, Told, is_readable};
use crate::waiters::Waiters;

/// Connects again, and is awaited. It is the awaited form of [`rpma::reconnect::Reconnect`], with
/// the same tries, limits and waits. It derefs to that reconnect, for its settings and counts.
///
/// The type `C` chooses the kind of connection ([`Connects`]). [`ToConn`] makes a
/// [`Conn`](crate::Conn) of a reactor. [`to_writer`](Self::to_writer) connects as a writer of
/// commits.
///
/// The system's resolver, which looks up a host name, blocks the executor. So make the reconnect
/// with addresses ([`to_addrs`](reconnect::Reconnect::to_addrs)).
///
/// ```no_run
/// use std::net::SocketAddr;
///
/// use rpma::commit::{Method, WriterCfg};
/// use rpma::{ConnCfg, Identity};
/// use rpma_async::{Reactor, Reconnect, Writer};
///
/// /// Calls `work` with a writer, and again with a new one after each failure.
/// async fn run<W>(reactor: &Reactor, server: SocketAddr, work: impl Fn(Writer) -> W) -> rpma::Result<()>
/// where
///     W: Future<Output = rpma::Error>,
/// {
///     let (identity, commits) = (Identity::new(7, 1)?, WriterCfg::new(Method::Reading));
///     let mut server = Reconnect::to_writer(reactor, server, identity, &commits)?;
///     loop {
///         let writer = server.connect(&ConnCfg::new()).await?;
///         // `work` recovers first, and drops the writer at its end.
///         let error = work(Writer::new(reactor, writer)?).await;
///         eprintln!("{error}: connecting again");
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Reconnect<C: Connects = ToWriter> {
    told: Told,
    reconnect: reconnect::Reconnect<C>,
}

impl<C: Connects> Reconnect<C> {
    /// Makes an awaited reconnect. The reactor watches its descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`](rpma::Error::Provider) if `epoll_ctl` fails. The reconnect is dropped
    /// then.
    pub fn new(reactor: &Reactor, reconnect: reconnect::Reconnect<C>) -> Result<Self> {
        let told = Told::new(reactor.handle(), reconnect.as_fd())?;
        Ok(Self { told, reconnect })
    }

    /// Connects, as [`reconnect::Reconnect::connect`]. It tries until the server accepts, or until
    /// a failure is final. It gives up when the limit
    /// ([`ReconnectCfg::set_limit`](reconnect::ReconnectCfg::set_limit)) has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the try that is under way
    /// ([`cancel`](reconnect::Reconnect::cancel)). If the server has just accepted that try, the
    /// server sees its connection end.
    ///
    /// # Errors
    ///
    /// As [`reconnect::Reconnect::connect`]. An error also without a [`Driver`](crate::Driver).
    pub async fn connect(&mut self, cfg: &ConnCfg) -> Result<C::Connected> {
        let Self { told, reconnect } = self;
        reconnect.begin(cfg)?;
        let under_way = UnderWay(reconnect);
        let look = || {
            let reconnect = &mut *under_way.0;
            match reconnect.advance() {
                Ok(Some(connected)) => Look::Ready(Ok(connected)),
                Ok(None) if is_readable(reconnect.as_fd()) => Look::Until(Some(clock::now())),
                Ok(None) => Look::Until(reconnect.deadline()),
                Err(error) => Look::Ready(Err(error)),
            }
        };
        told.wait(look).await?
    }
}

impl<C: Connects> Reconnect<C> {
    /// Sets the limits and waits: as [`reconnect::Reconnect::set_cfg`].
    pub fn set_cfg(&mut self, cfg: &ReconnectCfg) -> &mut Self {
        self.reconnect.set_cfg(cfg);
        self
    }

    /// Sets the offer of the next tries: as [`reconnect::Reconnect::set_offer`].
    ///
    /// # Errors
    ///
    /// As [`reconnect::Reconnect::set_offer`].
    pub fn set_offer(&mut self, offer: Offer) -> Result<&mut Self> {
        self.reconnect.set_offer(offer)?;
        Ok(self)
    }
}

impl Reconnect<ToWriter> {
    /// Makes a client of the server at this address. The client connects as a writer of commits,
    /// for [`Writer::new`](crate::Writer::new) or [`Replicas::add`](crate::Replicas::add). The
    /// offer that it sends contains `identity`.
    ///
    /// # Errors
    ///
    /// As [`reconnect::Reconnect::to_addrs`] and [`new`](Self::new).
    pub fn to_writer(
        reactor: &Reactor,
        addr: SocketAddr,
        identity: Identity,
        commits: &WriterCfg,
    ) -> Result<Self> {
        let mut offer = Offer::new(&PeerCfg::new());
        offer.set_identity(identity);
        let to_writer = ToWriter::new(commits);
        let server = reconnect::Reconnect::to_addrs(reactor.peer(), &[addr], offer, to_writer)?;
        Self::new(reactor, server)
    }
}

/// A reconnect that is given up if it is not awaited to its end.
struct UnderWay<'a, C: Connects>(&'a mut reconnect::Reconnect<C>);

impl<C: Connects> Drop for UnderWay<'_, C> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl<C: Connects> Deref for Reconnect<C> {
    type Target = reconnect::Reconnect<C>;

    fn deref(&self) -> &reconnect::Reconnect<C> {
        &self.reconnect
    }
}

/// Makes a [`Conn`] of a reactor, and sends the offer as private data: the steps of a
/// [`Reconnect`].
///
/// [`Conn::offer`] decodes the server's offer, and applies its platform.
pub struct ToConn {
    reactor: Arc<Handle>,
    receives: Option<(u32, usize)>,
    prepared: Mutex<Option<Prepared>>,
}

struct Prepared {
    seat: Seat,
    setup: Setup,
}

impl ToConn {
    /// Makes connections of this reactor. The reactor and the reconnect must have the same
    /// [`Peer`](rpma::Peer).
    #[must_use]
    pub fn new(reactor: &Reactor) -> Self {
        Self {
            reactor: Arc::clone(reactor.handle()),
            receives: None,
            prepared: Mutex::default(),
        }
    }

    /// Lets each connection receive messages, as [`Setup::with_receives`].
    #[must_use]
    pub fn with_receives(mut self, count: u32, size: usize) -> Self {
        self.receives = Some((count, size));
        self
    }
}

/// A connection that is asked for.
#[derive(Debug)]
pub struct AskedConn {
    /// Before its receives: the queue pair goes first.
    conn: rpma::Conn,
    receives: Option<Receives>,
}

impl Connects for ToConn {
    type Asked = AskedConn;
    type Connected = Conn;

    fn conn_cfg(&self, cfg: &ConnCfg) -> Result<ConnCfg> {
        let mut setup = Setup::new(cfg);
        if let Some((count, size)) = self.receives {
            setup = setup.with_receives(count, size);
        }
        let seat = Seat::new(&self.reactor, Weak::<Waiters>::new());
        let cfg = setup.cfg(&self.reactor, seat.key())?;
        *self.prepared.lock() = Some(Prepared { seat, setup });
        Ok(cfg)
    }

    fn ask(&mut self, req: ConnReq, offer: &Offer) -> Result<AskedConn> {
        let data = offer.encode(Offer::CONNECT)?;
        let receives = self
            .receives
            .map(|wanted| Receives::new(self.reactor.peer(), wanted))
            .transpose()?;
        if let Some(receives) = &receives {
            receives.post(&req)?;
        }
        let conn = req.connect(&data)?;
        conn.set_nonblocking(true)?;
        Ok(AskedConn { conn, receives })
    }

    fn conn(asked: &AskedConn) -> &rpma::Conn {
        &asked.conn
    }

    fn finish(&mut self, asked: AskedConn) -> Result<Conn> {
        let prepared = self.prepared.lock().take();
        let Some(Prepared { seat, setup }) = prepared else {
            return Err(invalid(
                "this ToConn has made its connection already: call ToConn::conn_cfg before each \
                 connection",
            ));
        };
        let AskedConn { conn, receives } = asked;
        let shared: Arc<Shared> = seat.fill(conn, &setup, receives)?;
        // The reconnect has taken that event.
        shared.established();
        Ok(Conn::new(shared))
    }
}

impl fmt::Debug for ToConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToConn")
            .field("receives", &self.receives)
            .finish_non_exhaustive()
    }
}
