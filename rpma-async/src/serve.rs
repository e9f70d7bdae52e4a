//! [`Server`]: a server with a task as its loop.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rpma::pmem::PmemMap;
use rpma::serve::{self, Asked, Client, Gone, Refused, Served};
use rpma::{Mr, Peer, Result, Wc};

use crate::Reactor;
use crate::clock;
use crate::place::Place;
use crate::told::{Look, Told, is_readable};

/// Completions that [`Server::serve`] polls at most in one turn.
const POLLED: usize = 16;

/// Serves clients, as [`rpma::serve::Server`], in a task beside others on the same thread. It
/// derefs to that server. A task awaits [`serve`](Self::serve), or awaits [`next`](Self::next) and
/// answers by itself.
///
/// With [`ServerCfg::set_commits`](rpma::serve::ServerCfg::set_commits) that task is the responder
/// as well: [`next`](Self::next) serves the commits of clients. So the task must return to `next`
/// soon. Long work for one client, such as a look-up before its admission, belongs in another
/// task. Give that task the [`Asked`](rpma::serve::Asked). After its decision it wakes the
/// server's task by a [`Waker`](rpma::wait::Waker).
///
/// Admitting and ending a client takes a millisecond or more of the thread ([`serve::Server`]).
/// Dropping the server ends the connections.
///
/// ```no_run
/// use rpma::serve;
/// use rpma_async::{Reactor, Server};
///
/// /// The server is from `rpma::serve::Server::listen`.
/// async fn serve(reactor: &Reactor, server: serve::Server) -> rpma::Result<()> {
///     let mut server = Server::new(reactor, server)?;
///     server.serve(|served| println!("{served}")).await
/// }
/// ```
#[derive(Debug)]
pub struct Server {
    told: Told,
    server: serve::Server,
}

impl Server {
    /// Makes an awaited server. The reactor watches the server's descriptor. The `Peer`s of the
    /// server may differ from the reactor's `Peer`.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`](rpma::Error::Provider) if `epoll_ctl` fails. The server is dropped
    /// then.
    pub fn new(reactor: &Reactor, server: serve::Server) -> Result<Self> {
        let told = Told::new(reactor.handle(), server.as_fd())?;
        Ok(Self { told, server })
    }

    /// Waits until something happens, and returns it: as [`serve::Server::next`] without a limit.
    /// It serves the commits of clients meanwhile.
    ///
    /// Completions go to `wcs`: at most `wcs.len()` in one call. A length of 16 is a good start.
    ///
    /// # Cancel safety
    ///
    /// An event is taken only when it is returned: the future may be dropped at any time. No commit
    /// is served until the next call.
    ///
    /// # Errors
    ///
    /// As [`serve::Server::next`]. [`Error::InvalidArgument`](rpma::Error::InvalidArgument)
    /// without a [`Driver`](crate::Driver).
    #[cfg_attr(all(feature = "sim", debug_assertions), track_caller)]
    pub fn next<'a>(&'a mut self, wcs: &'a mut [Wc]) -> impl Future<Output = Result<Served>> {
        // Answers have the line of this call.
        let place = Place::caller();
        let Self { told, server } = self;
        let look = move || {
            let _at = place.enter();
            match server.next(wcs, Duration::ZERO) {
                Ok(Some(served)) => Look::Ready(Ok(served)),
                // Commits are left, for example: other tasks run before them.
                Ok(None) if is_readable(server.as_fd()) => Look::Until(Some(clock::now())),
                Ok(None) => Look::Until(server.deadline()),
                Err(error) => Look::Ready(Err(error)),
            }
        };
        async move { told.wait(look).await? }
    }

    /// Serves clients until the server is woken: as [`serve::Server::serve`].
    ///
    /// # Cancel safety
    ///
    /// An event is taken only when it is handled: the future may be dropped at any time. No client
    /// is served until the next call.
    ///
    /// # Errors
    ///
    /// As [`serve::Server::serve`]. [`Error::InvalidArgument`](rpma::Error::InvalidArgument)
    /// without a [`Driver`](crate::Driver).
    pub async fn serve(&mut self, mut note: impl FnMut(Served)) -> Result<()> {
        let mut wcs = [Wc::default(); POLLED];
        loop {
            let served = self.next(&mut wcs).await?;
            if self.server.handle(served, &mut note)?.is_break() {
                return Ok(());
            }
        }
    }

    /// Answers a client's request with the part of its key. It returns refusals and all other
    /// events, as [`serve::Server::answer`].
    ///
    /// # Errors
    ///
    /// As [`serve::Server::answer`].
    pub fn answer(&mut self, served: Served) -> Result<Option<Served>> {
        self.server.answer(served)
    }

    /// Admits a client: as [`serve::Server::admit`].
    ///
    /// # Errors
    ///
    /// As [`serve::Server::admit`].
    pub fn admit(
        &mut self,
        asked: Asked,
        peer: &Peer,
        region: &Arc<Mr<PmemMap>>,
        data: &[u8],
    ) -> Result<Client, Box<Refused>> {
        self.server.admit(asked, peer, region, data)
    }

    /// Refuses a client: as [`serve::Server::refuse`].
    ///
    /// # Errors
    ///
    /// As [`serve::Server::refuse`].
    pub fn refuse(&mut self, asked: Asked, words: &str) -> Result<()> {
        self.server.refuse(asked, words)
    }

    /// Cuts off a client: as [`serve::Server::cut_off`].
    pub fn cut_off(&mut self, client: Client) -> Option<Gone> {
        self.server.cut_off(client)
    }

    /// Deregisters the region of a key without a connection: as [`serve::Server::release`].
    ///
    /// # Errors
    ///
    /// As [`serve::Server::release`].
    pub fn release(&mut self, key: u64) -> Result<PmemMap> {
        self.server.release(key)
    }
}

impl Deref for Server {
    type Target = serve::Server;

    fn deref(&self) -> &serve::Server {
        &self.server
    }
}
