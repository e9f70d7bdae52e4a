//! [`Reactor`]: connects, listens, and has one [`Driver`], which wakes tasks.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpma::reconnect::Tries;
use rpma::{Error, Peer, Result, thread};

use crate::conn::Conn;
use crate::connecting;
use crate::driver::{Core, Driver, Handle, Turns, of_this_runtime};
use crate::listener::Listener;
use crate::setup::Setup;
use crate::timeout::timeout;

/// Makes connections with awaited operations. Clones are handles of the same reactor.
///
/// A reactor belongs to one [`Peer`], and has a driver: a task ([`new`](Self::new), or
/// `Reactor::spawn` with the feature `tokio`) or a thread ([`on_thread`](Self::on_thread)). Futures
/// of its connections may be awaited anywhere, also on other executors and threads than the
/// driver's.
#[derive(Clone)]
pub struct Reactor {
    handle: Arc<Handle>,
    runs: Runs,
}

/// How the driver of a reactor runs, and with it the work of [`Reactor::run`].
#[derive(Clone)]
pub(crate) enum Runs {
    /// On a thread of its own.
    OnThread,
    #[cfg(feature = "tokio")]
    OnTokio(tokio::runtime::Handle),
    /// By an executor of the program.
    Elsewhere,
}

impl Reactor {
    /// Makes a reactor and its driver, which the caller spawns. The driver uses the tokio runtime
    /// in which this is called. Outside of a tokio runtime, with the feature `async-io`, the driver
    /// uses the reactor of async-io.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] outside of a runtime (without the feature `async-io`), or in a
    /// tokio runtime without its I/O or time driver. [`Error::Provider`] if
    /// `ibv_create_comp_channel`, `epoll_create1`, `eventfd2` or `epoll_ctl` fails, or if the
    /// runtime cannot watch a descriptor.
    pub fn new(peer: &Peer) -> Result<(Self, Driver)> {
        let (reactor, turns) = Self::with_turns(peer, Runs::Elsewhere)?;
        let epoll = reactor.handle.epoll().try_clone();
        let epoll = epoll.map_err(|cause| Error::Provider {
            call: "fcntl(F_DUPFD_CLOEXEC)",
            cause,
            hint: None,
        })?;
        let watch = of_this_runtime(epoll)?;
        Ok((reactor, Driver::new(watch, turns)))
    }

    /// Makes a reactor, and spawns its driver on the tokio runtime in which this is called.
    ///
    /// If the runtime's clock is paused and no fabric follows it (`rpma::sim::Fabric::follow`),
    /// the driver ends, and logs an error that names both clocks. Then waits fail as after the drop
    /// of a [`Driver`].
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`Error::InvalidArgument`] outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn spawn(peer: &Peer) -> Result<Self> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            crate::error::invalid("Reactor::spawn outside of a tokio runtime: call it in one, or use Reactor::on_thread")
        })?;
        let (mut reactor, driver) = Self::new(peer)?;
        runtime.spawn(async move {
            if let Err(error) = driver.await {
                log::error!("the driver of a reactor ended: {error}");
            }
        });
        reactor.runs = Runs::OnTokio(runtime);
        Ok(reactor)
    }

    /// Makes a reactor whose driver is a thread of its own, for programs without a runtime. The
    /// thread ends when the last handle of the reactor, of its connections and of its listeners is
    /// dropped. [`Op::wait`](crate::Op::wait) and [`block_on`](crate::block_on) wait for futures.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] as [`new`](Self::new), or if the thread cannot be started.
    pub fn on_thread(peer: &Peer) -> Result<Self> {
        let (reactor, turns) = Self::with_turns(peer, Runs::OnThread)?;
        // It will run, however long the thread takes to begin.
        reactor.handle.driver_runs();
        let thread = thread::Builder::new().name("rpma-async".to_owned());
        let started = thread.spawn(move || turns.run());
        let thread = started.map_err(|cause| Error::Provider {
            call: "pthread_create",
            cause,
            hint: None,
        })?;
        reactor.handle.set_thread(thread);
        Ok(reactor)
    }

    fn with_turns(peer: &Peer, runs: Runs) -> Result<(Self, Turns)> {
        let core = Arc::new(Core::new(peer)?);
        let turns = Turns::new(&core)?;
        let handle = Arc::new(Handle::new(core));
        Ok((Self { handle, runs }, turns))
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Returns the [`Peer`] of the reactor's connections.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.handle.peer()
    }

    /// Connects to a listening program, with up to 56 bytes of private data. This call begins to
    /// connect at once, and looks up no name. The future returns the connection when it is
    /// established.
    ///
    /// It ends after [`Setup::with_connect_limit`] at the latest. The kernel gives up on an address
    /// and a route after [`rpma::ConnCfg::set_timeout`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the connection up. The peer may still see the connection
    /// established, and then ended.
    ///
    /// # Errors
    ///
    /// All of them are errors of the future. The errors of [`rpma::ConnReq::resolve`],
    /// [`rpma::Resolving::advance`] and [`rpma::ConnReq::connect`]. [`Error::NotEstablished`] with
    /// the event that came instead: rejected, unreachable, lost. [`Error::TimedOut`] after the
    /// limit: the connection is destroyed. [`Error::InvalidArgument`] for settings that do not fit
    /// a reactor ([`Setup`]), and without a driver ([`Driver`]).
    pub fn connect(
        &self,
        addr: SocketAddr,
        setup: &Setup,
        private_data: &[u8],
    ) -> impl Future<Output = Result<Conn>> + use<> {
        connecting::connect(&self.handle, addr, setup, private_data)
    }

    /// Connects to the first of these addresses of a server that works, as
    /// [`connect`](Self::connect). Each address gets the rest of
    /// [`Setup::with_connect_limit`], divided by the number of addresses that are left. A refusal
    /// by the server ends it. A program resolves a name with its runtime (`tokio::net::lookup_host`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up.
    ///
    /// # Errors
    ///
    /// As [`rpma::reconnect::Tries`]: [`Error::NoAddress`](rpma::Error::NoAddress) with the reason
    /// of each address.
    pub async fn connect_to_any(
        &self,
        addrs: &[SocketAddr],
        setup: &Setup,
        private_data: &[u8],
    ) -> Result<Conn> {
        let mut tries = Tries::new(addrs, setup.connect_limit())?;
        while let Some((addr, limit)) = tries.begin() {
            let setup = setup.clone().with_connect_limit(limit);
            match self.connect(addr, &setup, private_data).await {
                Ok(conn) => return Ok(conn),
                Err(error) => tries.failed(error)?,
            }
        }
        Err(tries.into_error())
    }

    /// Listens at an address of this host. With port 0 the kernel chooses one
    /// ([`Listener::port`]).
    ///
    /// # Errors
    ///
    /// As [`rpma::Ep::listen_on`].
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener> {
        Listener::new(&self.handle, addr)
    }

    /// Awaits a future for at most `limit` (`Duration::MAX` is for ever). After the limit it drops
    /// the future and returns `None`. The future is polled at least once.
    ///
    /// The driver of this reactor wakes the task, so `timeout` needs no runtime, and any future
    /// can have such a limit. Its time is rpma's: on the simulated fabric, the fabric's time.
    ///
    /// Without a [`Driver`], `timeout` returns `None` at once if the future is not ready. A future
    /// of this reactor returns an error then, and `timeout` returns that error as the output.
    ///
    /// ```
    /// # #[cfg(feature = "sim")]
    /// # async fn example(reactor: &rpma_async::Reactor, pool: &rpma_async::Pool) -> rpma::Result<()> {
    /// use std::time::Duration;
    ///
    /// let lease = reactor.timeout(Duration::from_secs(5), pool.lease()).await;
    /// let lease = lease.ok_or(rpma::Error::TimedOut("no block is free"))?;
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`.
    pub async fn timeout<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        timeout(self.handle(), limit, future).await
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor")
            .field("peer", self.peer())
            .finish_non_exhaustive()
    }
}
