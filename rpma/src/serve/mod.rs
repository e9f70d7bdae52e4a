//! Serving clients by their keys: [`Server`] and its [`Directory`].
//!
//! Each client has a key, and each key has memory of its own on the server. At most one connection
//! writes to this memory. A client that dies may come back while its old connection still looks
//! alive, or another process may take its place. The server must not accept the new writer while
//! writes of the old one can still land, and must know the last writer after its own restart.
//!
//! A client sends its [`Identity`] with its [`Offer`]. The server's directory keeps the last
//! identity of each key. The server compares the client's identity with the kept one:
//!
//! | the client's epoch | its instance | |
//! |---|---|---|
//! | higher than the kept one, or a new key | any | the program is asked |
//! | the kept one | the kept one | the program is asked: the writer comes back |
//! | the kept one | another | refused: [`RefusalCode::Taken`] |
//! | lower | any | refused: [`RefusalCode::OldEpoch`] |
//!
//! The program answers with [`Server::answer`] or [`Server::admit`]. The server then cuts off the
//! key's old connection, makes the identity durable in its directory, makes the queues, and accepts
//! the client, in this order. So each key has at most one queue pair. A client that the server
//! refuses before the admission has no queues at any time.
//!
//! A complete server. Its [`Layout`] divides one memory into the directory and equal parts:
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use rpma::commit::Limits;
//! use rpma::pmem::PmemMap;
//! use rpma::serve::{Layout, Server, ServerCfg};
//! use rpma::{MrUsage, Result};
//!
//! fn serve(addr: SocketAddr, path: &str) -> Result<()> {
//!     // The keys 1 to 64, with 2 MiB for each. The memory is all zeros before the first start.
//!     let layout = Layout::new(64, 2 << 20)?;
//!     let all = PmemMap::open(path, layout.len())?;
//!     let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
//!     let mut cfg = ServerCfg::new();
//!     cfg.set_commits(Some(Limits::new(16, 4, 1 << 20)?)).set_data(b"log v1");
//!     let mut server = Server::listen(addr, &all, &layout, usage, &cfg)?;
//!     // Until a thread calls `server.waker()`.
//!     server.serve(|served| println!("{served}"))
//! }
//! ```
//!
//! A program with other work on the same thread calls [`Server::next`] and [`Server::answer`] in a
//! loop of its own.
//!
//! # Unequal parts
//!
//! Some programs answer by themselves: their keys have memory of different lengths, or they decide
//! later or in another thread. [`Server::new`] makes a server without memory for its keys. The
//! program makes a [`Peer`] and a region for each key. For each [`Served::Asks`] it calls
//! [`Server::admit`] with them, or [`Server::refuse`] with words. Errors of both calls concern this
//! client alone, and the server goes on.
//!
//! If a connection could not be cut off, a [`Gone`] has [`not_cut_off`](Gone::not_cut_off), or a
//! client is refused with [`RefusalCode::NotCutOff`]. Then the program drops its own `Arc` of the
//! region, calls [`Server::release`], and registers the memory again with another [`Peer`].
//!
//! # Before the program trusts a client's bytes
//!
//! Cutting off ends the writes of the old connection. Bytes that landed before are visible, and
//! *not durable*: make them durable before you rely on them ([`Mr::persist`]). Cutting off stops
//! that connection, not the client: any other connection of the same [`Peer`] may write to the same
//! region. So a server refuses two keys with one `Peer`. Do not make other connections with a key's
//! `Peer`.
//!
//! # Teardown
//!
//! A [`Server`] owns a [`Wait`], and with it the endpoint and all connections. Dropping the server
//! ends them. After that it drops the regions and `Peer`s of its keys.
//!
//! [`Peer`]: crate::Peer

// `admit.rs` judges requests and admits clients. `directory/` keeps identities. `keys.rs` has the
// memory and connection of each key, and checks parts. `asked.rs` shares an open request between
// program and server. `layout.rs` and `parts.rs` are for servers of equal parts.

mod admit;
mod asked;
mod cfg;
mod counters;
mod directory;
mod keys;
mod layout;
mod parts;
mod questions;
mod told;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::admit::rejected;
pub use self::asked::Asked;
pub use self::cfg::ServerCfg;
pub use self::counters::ServerCounters;
pub use self::directory::Directory;
use self::keys::Keys;
pub use self::layout::Layout;
use self::parts::Parts;
use self::questions::Questions;
pub use self::told::{Gone, Reason, Refused, Served};
use crate::clock;
use crate::commit::{Responder, Turn};
use crate::conn::{Conn, refuse_no_room};
use crate::ep::Ep;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::looking::{self, Vain};
use crate::mr::Mr;
use crate::offer::{Identity, Offer};
use crate::pmem::PmemMap;
use crate::refusal::{Refusal, RefusalCode};
use crate::site::Site;
use crate::verbs::{Deadline, Wc};
use crate::wait::{Happened, Member, Wait, Waker};

/// A client that was admitted: the name of its connection, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Client(Member);

/// Serves clients by their keys, on one thread.
///
/// A server owns its endpoint and the connections. A program calls [`next`](Self::next) in a loop,
/// and passes each result to [`answer`](Self::answer), which answers [`Served::Asks`]. With
/// [`ServerCfg::set_commits`], [`next`](Self::next) also serves the requests of
/// [`Method::Server`](crate::commit::Method::Server).
///
/// Ending a client takes about a millisecond of this thread ([`Conn::cut_off`]). So does an
/// admission that replaces a client. On soft-RoCE both may take some seconds if the client's host
/// is gone. Other clients wait for that long.
///
/// A broken request, too many requests, a program that does not answer, or a lack of file
/// descriptors has no effect on other clients. The server refuses the request in each of these
/// cases.
pub struct Server {
    wait: Wait,
    endpoint: Member,
    directory: Directory,
    keys: Keys,
    /// `None`: the program has the memory of the keys.
    parts: Option<Parts>,
    cfg: ServerCfg,
    /// The offer to each client, without its memory.
    offer: Offer,
    responder: Option<Responder<Client>>,
    /// In the order of their limits.
    questions: Questions,
    /// Clients that are not established yet, and their limits.
    establishing: BTreeSet<(Instant, Client)>,
    /// Connections that have ended, and still exist.
    ending: VecDeque<(Client, Reason)>,
    told: VecDeque<Served>,
    /// With the counters of the connections that are gone.
    counters: ServerCounters,
}

impl Server {
    /// Makes a server of this endpoint, without memory for its keys: the program answers each
    /// [`Served::Asks`] with [`admit`](Self::admit) or [`refuse`](Self::refuse).
    /// [`listen`](Self::listen) makes a server of equal parts.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for commits ([`ServerCfg::set_commits`]) on a platform whose
    /// processor makes nothing durable ([`PeerCfg::get_processor_persists`]). [`Error::Provider`]
    /// if `epoll_create1`, `eventfd2` or `epoll_ctl` fails. The endpoint is dropped then.
    ///
    /// [`PeerCfg::get_processor_persists`]: crate::PeerCfg::get_processor_persists
    pub fn new(ep: Ep, directory: Directory, cfg: &ServerCfg) -> Result<Self> {
        cfg.check()?;
        let mut wait = Wait::new()?;
        let endpoint = wait.add_ep(ep)?;
        let mut offer = Offer::new(&cfg.declared());
        offer.set_site(Site {
            domain: cfg.domain,
            ..directory.site()
        });
        if let Some(limits) = cfg.commits {
            offer.set_limits(limits);
        }
        Ok(Self {
            wait,
            endpoint,
            directory,
            keys: Keys::default(),
            parts: None,
            cfg: cfg.clone(),
            offer,
            responder: cfg.commits.map(|limits| {
                let mut responder = Responder::new(limits);
                responder.set_answer_limit(cfg.answer_limit);
                responder
            }),
            questions: Questions::default(),
            establishing: BTreeSet::new(),
            ending: VecDeque::new(),
            told: VecDeque::new(),
            counters: ServerCounters::default(),
        })
    }

    /// Waits until something happens, for at most `limit` (`Duration::MAX` is none), and returns
    /// it. `None` means that the limit has passed. With a limit of 0 it does not sleep.
    ///
    /// Completions go to `wcs`: at most `wcs.len()` in one call. A length of 16 is a good start.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `wcs` is empty. [`Error::Provider`] if `epoll_wait` or `poll`
    /// fails. A failure of a client is returned as [`Served::Gone`], and a failure of the endpoint
    /// as [`Served::Failed`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn next(&mut self, wcs: &mut [Wc], limit: Duration) -> Result<Option<Served>> {
        refuse_no_room(wcs)?;
        let (deadline, mut vain) = (Deadline::after(limit), Vain::default());
        loop {
            self.take_due();
            if let Some(served) = self.take_told() {
                self.keep_readable();
                return Ok(Some(served));
            }
            let works = self.serve_commits();
            if !self.ending.is_empty() {
                continue;
            }
            let left = deadline.left();
            let wait = if works {
                Duration::ZERO
            } else {
                self.own_deadline().map_or(left, |at| {
                    left.min(at.saturating_duration_since(clock::now()))
                })
            };
            let happened = self.wait.next(wcs, wait)?;
            let is_idle = happened.is_none() && !works;
            if let Some(served) = happened.and_then(|happened| self.note(happened, wcs)) {
                self.keep_readable();
                return Ok(Some(served));
            }
            if left.is_zero() && (is_idle || !vain.goes_on()) {
                self.keep_readable();
                return Ok(None);
            }
        }
    }

    /// The descriptor stays readable while a call of `next` would return something.
    fn keep_readable(&self) {
        let works = self.responder.as_ref().is_some_and(Responder::is_ready);
        if works || !self.told.is_empty() || !self.ending.is_empty() {
            self.wait.keep_readable();
        }
    }

    fn take_told(&mut self) -> Option<Served> {
        if let Some(served) = self.told.pop_front() {
            return Some(served);
        }
        while let Some((client, reason)) = self.ending.pop_front() {
            if let Some(gone) = self.end(client, reason) {
                return Some(Served::Gone(Box::new(gone)));
            }
        }
        None
    }

    /// Takes an event of the wait.
    fn note(&mut self, happened: Happened, wcs: &mut [Wc]) -> Option<Served> {
        match happened {
            Happened::Completions(member, count) => {
                let (client, wcs) = (Client(member), &mut wcs[..count]);
                if wcs.iter().any(|wc| wc.result().is_err()) {
                    self.failed(client);
                }
                match self.keep_own(client, wcs) {
                    0 => None,
                    count => Some(Served::Completions(client, count)),
                }
            }
            Happened::Event(member, ConnEvent::Established) => {
                let client = Client(member);
                if let Some(by) = self.keys.established(client) {
                    self.establishing.remove(&(by, client));
                }
                Some(Served::Arrived(client))
            }
            Happened::Event(member, event) => {
                if event.is_end() {
                    self.ending
                        .push_back((Client(member), Reason::Ended(event)));
                }
                None
            }
            Happened::Request(_, request) => Some(self.judge(request)),
            Happened::Failed(member, error) if member == self.endpoint => {
                self.counters.failed += 1;
                Some(Served::Failed(error))
            }
            Happened::Failed(member, error) => {
                self.ending
                    .push_back((Client(member), Reason::Failed(error)));
                None
            }
            Happened::Device(device, kind) => Some(Served::Device(device, kind)),
            Happened::Woken => Some(Served::Woken),
        }
    }

    /// An operation of this connection failed, with which it has ended. Its event may never come,
    /// except that of the keep-alive.
    fn failed(&mut self, client: Client) {
        let conn = self.conn(client);
        let failure = conn.filter(|conn| !conn.is_ended_by_keep_alive());
        if let Some(failure) = failure.and_then(Conn::failure) {
            self.ending
                .push_back((client, Reason::Failed(failure.into())));
        }
    }

    /// Gives the responder its completions, moves the others to the front, and counts them.
    fn keep_own(&mut self, client: Client, wcs: &mut [Wc]) -> usize {
        let Some(responder) = &mut self.responder else {
            return wcs.len();
        };
        let mut kept = 0;
        for at in 0..wcs.len() {
            if !responder.handle(client, &wcs[at]) {
                wcs[kept] = wcs[at];
                kept += 1;
            }
        }
        kept
    }

    /// A turn of the server's method. Returns whether there was work.
    #[cfg_attr(feature = "sim", track_caller)]
    fn serve_commits(&mut self) -> bool {
        let Some(responder) = &mut self.responder else {
            return false;
        };
        // The completions that are flushed at a client's end are not the program's.
        match responder.turn_and_keep(|client| self.wait.conn(client.0)) {
            Turn::Idle => false,
            Turn::Served(_) => true,
            Turn::Misused(client, error) => {
                self.ending.push_back((client, Reason::Misused(error)));
                true
            }
            Turn::Failed(client, error) => {
                self.ending.push_back((client, Reason::Failed(error)));
                true
            }
        }
    }

    /// Ends questions and connections whose limits have passed.
    fn take_due(&mut self) {
        if self.questions.is_empty() && self.establishing.is_empty() {
            return;
        }
        let now = clock::now();
        while let Some(asks) = self.questions.take_due(now) {
            if let Some(request) = asks.take() {
                let refusal = Refusal::new(RefusalCode::Full, "the server did not answer in time");
                let refused = rejected(request, refusal, Some(asks.identity));
                self.counters.refused += 1;
                self.told.push_back(Served::Refused(refused));
            }
        }
        while let Some(&(at, client)) = self.establishing.first() {
            if at > now {
                break;
            }
            self.establishing.pop_first();
            self.judge_late(client);
        }
    }

    /// The limit of the establishment has passed. If this program stood still, the event may be
    /// there, and is not taken yet: the connection itself is asked.
    fn judge_late(&mut self, client: Client) {
        for _ in 0..looking::EVENTS {
            let Some(conn) = self.wait.conn(client.0) else {
                return;
            };
            let happened = match conn.event_now() {
                Ok(event) => {
                    let is_over = event.is_end() || event == ConnEvent::Established;
                    (Happened::Event(client.0, event), is_over)
                }
                Err(Error::NoEvent) => break,
                Err(error) => (Happened::Failed(client.0, error), true),
            };
            let served = self.note(happened.0, &mut []);
            self.told.extend(served);
            if happened.1 {
                return;
            }
        }
        self.ending.push_back((client, Reason::NotEstablished));
    }

    /// When the next of these limits passes.
    fn own_deadline(&self) -> Option<Instant> {
        let asks = self.questions.deadline();
        let establishing = self.establishing.first().map(|(at, _)| *at);
        let answers = self.responder.as_ref().and_then(Responder::deadline);
        [asks, establishing, answers].into_iter().flatten().min()
    }

    /// Cuts off a client. `None` if it is gone already.
    pub fn cut_off(&mut self, client: Client) -> Option<Gone> {
        self.end(client, Reason::CutOff)
    }

    fn end(&mut self, client: Client, reason: Reason) -> Option<Gone> {
        let key = self.keys.key_of(client)?;
        let identity = self.directory.get(key)?;
        let conn = self.wait.remove(client.0)?;
        let failure = conn.failure();
        let counting = conn.slots();
        let (mut completions, not_cut_off) = match conn.cut_off() {
            Ok(completions) => (completions, None),
            Err(error) => (error.object, Some(error.error)),
        };
        // With those that were polled just now.
        self.counters.conns += counting.counters();
        if let Some(responder) = &mut self.responder {
            completions.retain(|wc| !responder.handle(client, wc));
            responder.remove(client);
        }
        if let Some(by) = self.keys.disconnect(client, not_cut_off.is_none()) {
            self.establishing.remove(&(by, client));
        }
        self.counters.gone += 1;
        self.counters.replaced += u64::from(matches!(reason, Reason::Replaced));
        self.counters.not_cut_off += u64::from(not_cut_off.is_some());
        Some(Gone {
            client,
            identity,
            reason,
            failure,
            completions,
            not_cut_off,
        })
    }

    /// Deregisters the region of a key that has no connection, returns its memory, and forgets the
    /// part. The next admission brings another one.
    ///
    /// This is the remedy if a connection could not be cut off: no write of that connection lands
    /// after this call has returned `Ok`. Register the memory again with another [`Peer`]: the old
    /// queue pair can still reach regions of its own `Peer`. [`answer`](Self::answer) does both.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the server has no region of this key, if the key has a
    /// connection, or if the region's `Arc` has another owner: the program, or a server of
    /// [`listen`](Self::listen), which keeps its parts. [`Error::Provider`] if `ibv_dereg_mr`
    /// fails: the memory stays allocated, and a key that was not cut off is refused as long as the
    /// server lives.
    ///
    /// [`Peer`]: crate::Peer
    pub fn release(&mut self, key: u64) -> Result<PmemMap> {
        self.keys.release(key)
    }

    /// Returns the region of a key: of its part, or without parts ([`new`](Self::new)) of its last
    /// admission. `None` if there is none, or if the memory of the part could not be registered
    /// again ([`answer`](Self::answer)).
    ///
    /// Do not keep a clone of the `Arc`: the region cannot be deregistered then.
    #[must_use]
    pub fn region(&self, key: u64) -> Option<&Arc<Mr<PmemMap>>> {
        match &self.parts {
            Some(parts) => parts.region(key),
            None => self.keys.region(key),
        }
    }

    /// Returns the connection of a client. `None` if the client is gone.
    #[must_use]
    pub fn conn(&self, client: Client) -> Option<&Conn> {
        self.wait.conn(client.0)
    }

    /// Returns the identity of a client. `None` if the client is gone.
    #[must_use]
    pub fn identity(&self, client: Client) -> Option<Identity> {
        self.directory.get(self.keys.key_of(client)?)
    }

    /// Returns the client of a key that has a connection.
    #[must_use]
    pub fn client(&self, key: u64) -> Option<Client> {
        self.keys.client(key)
    }

    /// Returns the clients that have a connection.
    pub fn clients(&self) -> impl Iterator<Item = Client> + '_ {
        self.keys.clients()
    }

    /// Returns the counters of the server and of all its connections.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        let living = self.clients().filter_map(|client| self.conn(client));
        let mut counters = self.counters;
        counters.conns += living.map(Conn::counters).sum();
        counters
    }

    /// Returns the identities that the server sends to its clients: those of its
    /// [directory](Directory::site), with the failure domain of the settings.
    #[must_use]
    pub fn site(&self) -> Site {
        self.offer.site()
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the port of the endpoint.
    #[must_use]
    pub fn get_port(&self) -> u16 {
        self.wait.ep(self.endpoint).map_or(0, Ep::get_port)
    }

    /// Returns a waker, for other threads: [`Served::Woken`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.wait.waker()
    }

    /// Returns the time at which the server itself has something to do, as [`Wait::deadline`]. An
    /// event loop calls [`next`](Self::next) at this time.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let own = self.own_deadline().into_iter();
        own.chain(self.wait.deadline()).min()
    }

    /// Returns the server's descriptor, as [`Wait::get_fd`].
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait.as_fd()
    }
}

impl AsRawFd for Server {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("wait", &self.wait)
            .field("directory", &self.directory)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}
