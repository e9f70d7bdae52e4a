//! Connects again: with the same [`Peer`] and registered memory, within limits, and with waits that
//! grow.
//!
//! A [`Reconnect`] makes the connections of one client to one server, one after the other: the
//! first one, and a new one after each end. It judges each failed try. Some refusals need a
//! decision of the program, and end the reconnect ([`Error::refusal`]). An error that another try
//! would get again ends the reconnect as well. After every other failure the next try follows,
//! until the limit has passed ([`Error::GaveUp`]).
//!
//! ```no_run
//! use rpma::reconnect::{Reconnect, ToConn};
//! use rpma::{Conn, ConnCfg, Error, Identity, Offer, Peer, PeerCfg};
//!
//! /// Calls `write` with a connection, and again with a new one after each failure.
//! fn run(peer: &Peer, key: u64, epoch: u64, write: impl Fn(Conn) -> Error) -> Result<(), Error> {
//!     let mut offer = Offer::new(&PeerCfg::new());
//!     offer.set_identity(Identity::new(key, epoch)?);
//!     let mut server = Reconnect::new(peer, "server.example", 7204, offer, ToConn)?;
//!     loop {
//!         let conn = server.connect(&ConnCfg::new())?;
//!         // `write` recovers first, and drops the connection at its end.
//!         let error = write(conn);
//!         eprintln!("{error}: connecting again");
//!     }
//! }
//! ```
//!
//! [When something fails](crate::guide::failures#the-client-that-comes-back) has the rules for the
//! program: recovery, late writes of old connections, epochs.
//!
//! # How it works
//!
//! A round tries each address of the server once. A try has three steps: the address and the route
//! are resolved ([`Resolving`]), the server is asked, and the connection is established. No call of
//! [`Reconnect::advance`] waits, except for the look-up of a host name. One epoll, which lives as
//! long as the `Reconnect`, holds the descriptor of the try. So an event loop watches the same
//! descriptor all the time.
//!
//! A loop could not watch the descriptors of the tries themselves, because the next one often has
//! the same number.
//!
//! A `Reconnect` owns the try that is under way. Dropping it, or [`Reconnect::cancel`], drops that
//! try, at any step.

mod addresses;
mod cfg;
mod connects;
mod verdict;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::io::Errno;

use self::addresses::{Tried, share};
pub use self::addresses::{Tries, connect, first_that_works};
use self::cfg::Jitter;
pub use self::cfg::ReconnectCfg;
pub use self::connects::{Connects, ToConn, ToWriter};
use self::verdict::Verdict;
use crate::address::{self, LOOK_UP};
use crate::clock;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::conn_req::Resolving;
use crate::error::{Error, Result};
use crate::event::ConnEvent;
use crate::offer::Offer;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::verbs::{Deadline, random};

/// Connects to one server, again and again, with the same [`Peer`] and the same offer.
///
/// A `Reconnect` registers no memory. Regions of the `Peer` stay registered, and work with each new
/// connection.
///
/// # Before it connects
///
/// Drop the old connection, or [`Writer`](crate::commit::Writer), before
/// [`connect`](Self::connect) or [`begin`](Self::begin). A server cuts off the old connection on
/// its side before it accepts the new one. After that comes the
/// [recovery](crate::guide::failures#the-order-of-recovery).
///
/// # Event loops
///
/// [`begin`](Self::begin) and [`advance`](Self::advance) do not wait, except for the look-up of a
/// host name in `advance` ([`new`](Self::new)). A loop calls `advance` when the descriptor
/// ([`AsFd`]) is readable, and when [`deadline`](Self::deadline) has passed:
///
/// ```no_run
/// use rpma::reconnect::{Reconnect, ToConn};
/// use rpma::wait::Wait;
/// use rpma::{ConnCfg, Peer};
/// # fn wait_for(server: &Reconnect<ToConn>) {}
///
/// # fn run(peer: &Peer, mut server: Reconnect<ToConn>, wait: &mut Wait) -> rpma::Result<()> {
/// // The queues are made for this place, in every try.
/// let place = wait.place();
/// server.begin(&place.cfg(peer, &ConnCfg::new())?)?;
/// let conn = loop {
///     if let Some(conn) = server.advance()? {
///         break conn;
///     }
///     // The loop does other work until `server.as_fd()` is readable, or `server.deadline()`.
///     wait_for(&server);
/// };
/// wait.add(place, conn).map_err(|not_added| not_added.error)?;
/// # Ok(()) }
/// ```
///
/// Some calls take milliseconds, because the device makes or destroys a queue pair in them. If
/// there is a shared receive queue, giving up a try takes up to 0.1 s ([`Conn`](crate::Conn)).
pub struct Reconnect<C: Connects> {
    under_way: Option<UnderWay<C::Asked>>,
    epoll: OwnedFd,
    peer: Peer,
    target: Target,
    offer: Offer,
    cfg: ReconnectCfg,
    connects: C,
    jitter: Jitter,
    /// Rounds that failed, one after the other.
    failed: u32,
    /// When the last connection was established, or the server refused this offer.
    since: Option<Instant>,
    /// Each asks one address.
    tries: u64,
    /// Connections that were established.
    connected: u64,
}

#[derive(Clone, Debug)]
enum Target {
    Addrs(Vec<SocketAddr>),
    /// Each round looks the name up.
    Name(Box<str>, u16),
}

struct UnderWay<A> {
    step: Step<A>,
    all: All,
}

/// The state beside the step.
struct All {
    conn_cfg: ConnCfg,
    /// The end of all tries.
    deadline: Deadline,
    /// The addresses that this round has still to try, the next one last.
    to_try: Vec<SocketAddr>,
    /// Whether an address of this round may give another result at another time.
    is_hopeful: bool,
    /// The address that is tried now, and the end of its share of the limit.
    trying: Option<(SocketAddr, Deadline)>,
    /// The last error of each address, of this round or of an earlier one.
    tried: Tried,
    /// The name was not found when it was looked up last.
    unfound: Option<Error>,
}

impl All {
    fn take_error(&mut self) -> Option<Error> {
        self.unfound.take().or(self.tried.take())
    }

    /// The end of the share of the address that is tried now.
    fn share(&self) -> Deadline {
        self.trying.map_or(self.deadline, |(_, until)| until)
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "a reconnect has one, and a connection is as large"
)]
enum Step<A> {
    /// The next try, or the next round, begins then.
    Resting(Deadline),
    Resolving(Resolving),
    /// The server answers before then.
    Asked(A, Deadline),
}

enum Moved<C: Connects> {
    /// There is no work now.
    Waits(Step<C::Asked>),
    On(Step<C::Asked>),
    Connected(C::Connected),
}

impl<A> Step<A> {
    fn now() -> Self {
        Self::Resting(Deadline::after(Duration::ZERO))
    }
}

impl<C: Connects> Reconnect<C> {
    /// Makes a client of the server at `addr` (as in [`ConnReq::new`]) and `port`. The client sends
    /// `offer`. It does not connect yet.
    ///
    /// If `addr` is a host name, each round of tries looks it up and tries each of its addresses.
    /// [`connect`](Self::connect) and [`advance`](Self::advance) wait for the system's resolver
    /// then. An event loop that must not wait resolves the name by itself, and uses
    /// [`to_addrs`](Self::to_addrs).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a wildcard address, or an offer that is too long.
    /// [`Error::Provider`] if `epoll_create1` or `getrandom` fails.
    pub fn new(peer: &Peer, addr: &str, port: u16, offer: Offer, connects: C) -> Result<Self> {
        address::refuse_other_forms(addr)?;
        match addr.parse::<IpAddr>() {
            Ok(ip) => Self::to_addrs(peer, &[SocketAddr::new(ip, port)], offer, connects),
            Err(_) => Self::to(peer, Target::Name(addr.into(), port), offer, connects),
        }
    }

    /// As [`new`](Self::new), for a server with these addresses. Each round tries them in this
    /// order.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new). [`Error::InvalidArgument`] also if there is no address.
    pub fn to_addrs(peer: &Peer, addrs: &[SocketAddr], offer: Offer, connects: C) -> Result<Self> {
        if addrs.is_empty() {
            return Err(Error::invalid("a server without an address"));
        }
        let addrs = addrs.iter().map(|addr| address::usable(*addr));
        let addrs = addrs.collect::<Result<_>>()?;
        Self::to(peer, Target::Addrs(addrs), offer, connects)
    }

    fn to(peer: &Peer, target: Target, offer: Offer, connects: C) -> Result<Self> {
        offer.encode(Offer::CONNECT)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::provider("epoll_create1", errno))?;
        Ok(Self {
            under_way: None,
            epoll,
            peer: peer.clone(),
            target,
            offer,
            cfg: ReconnectCfg::new(),
            connects,
            jitter: Jitter::new(random()?),
            failed: 0,
            since: None,
            tries: 0,
            connected: 0,
        })
    }

    /// Sets the limits and waits. The limit of the whole reconnect counts from the next
    /// [`begin`](Self::begin) or [`connect`](Self::connect) on.
    pub fn set_cfg(&mut self, cfg: &ReconnectCfg) -> &mut Self {
        self.cfg = *cfg;
        self
    }

    /// Sets the offer of the next tries: for example with a higher epoch, if the program takes
    /// over. The `Reconnect` itself never raises the epoch. After this call the next reconnect
    /// begins without the wait of [`begin`](Self::begin).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the new offer is too long. Then the offer stays unchanged.
    pub fn set_offer(&mut self, offer: Offer) -> Result<&mut Self> {
        offer.encode(Offer::CONNECT)?;
        self.offer = offer;
        self.since = None;
        Ok(self)
    }

    /// Returns the offer.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the [`Peer`], for example to make settings with
    /// [`Place::cfg`](crate::wait::Place::cfg).
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns how many tries there were since it was made. Each try asks one address.
    #[must_use]
    pub fn tries(&self) -> u64 {
        self.tries
    }

    /// Returns how many connections were established. The first one is not a reconnect, all others
    /// are.
    #[must_use]
    pub fn connected(&self) -> u64 {
        self.connected
    }

    /// Connects, and waits for at most [`ReconnectCfg::set_limit`]. The look-up of a host name may
    /// take longer.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin), before the first try. [`Error::GaveUp`] if the limit has passed.
    /// [`Error::NotEstablished`] if the server refused the client for a reason that does not go
    /// away by itself ([`Error::refusal`]):
    ///
    /// * [`RefusalCode::Taken`](crate::RefusalCode::Taken): a program that decides to take over
    ///   sends an epoch above [`Refusal::epoch`](crate::Refusal::epoch)
    ///   ([`set_offer`](Self::set_offer)).
    /// * [`RefusalCode::OldEpoch`](crate::RefusalCode::OldEpoch): another writer has taken over.
    ///
    /// Otherwise the error that another try would get as well, such as a server that does not serve
    /// the method, or this host's device after its removal (`ENODEV`).
    pub fn connect(&mut self, cfg: &ConnCfg) -> Result<C::Connected> {
        self.begin(cfg)?;
        loop {
            if let Some(connected) = self.advance()? {
                return Ok(connected);
            }
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            match clock::poll(&mut fds, self.deadline()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    self.cancel();
                    return Err(Error::provider("poll", errno));
                }
            }
        }
    }

    /// Begins to connect, and returns before the first try: [`advance`](Self::advance) goes on. A
    /// reconnect that is under way is given up.
    ///
    /// The first try is due at once, unless one of these happened less than the [longest
    /// wait](ReconnectCfg::set_waits) ago:
    ///
    /// * The last connection was established.
    /// * The last reconnect gave up for a reason other than its limit.
    ///
    /// Then a wait comes first, as after a failed round. The wait takes at most half of the limit.
    /// So a server that accepts and fails, or that refuses, is not asked more often than one that
    /// is down. After [`set_offer`](Self::set_offer) the first try is due at once.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for settings that the device cannot have, as [`ConnReq::new`].
    /// Errors of [`Connects::conn_cfg`].
    pub fn begin(&mut self, cfg: &ConnCfg) -> Result<()> {
        self.cancel();
        let conn_cfg = self.connects.conn_cfg(cfg)?;
        // The same check as in each try.
        Plan::new(&self.peer, &conn_cfg)?;
        let lived = |since: Instant| clock::now().saturating_duration_since(since);
        let step = match self.since.take().map(lived) {
            // A try comes within the limit.
            Some(lived) if lived < self.cfg.longest_wait() => {
                self.rest(Verdict::Again, self.cfg.limit() / 2)
            }
            _ => {
                self.failed = 0;
                Step::now()
            }
        };
        self.under_way = Some(UnderWay {
            step,
            all: All {
                conn_cfg,
                deadline: Deadline::after(self.cfg.limit()),
                to_try: Vec::new(),
                is_hopeful: false,
                trying: None,
                tried: Tried::default(),
                unfound: None,
            },
        });
        Ok(())
    }

    /// Goes on as far as possible without waiting. Returns the connection when it is established.
    /// `None` means that there is no work before the descriptor is readable or the
    /// [deadline](Self::deadline) has passed.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect): the reconnect has ended then. [`Error::InvalidArgument`] also
    /// if no reconnect is under way.
    pub fn advance(&mut self) -> Result<Option<C::Connected>> {
        let Some(UnderWay { mut step, mut all }) = self.under_way.take() else {
            return Err(Error::invalid(
                "no reconnect is under way: call Reconnect::begin first",
            ));
        };
        loop {
            step = match self.step(step, &mut all) {
                Ok(Moved::On(step)) => step,
                Ok(Moved::Connected(connected)) => {
                    self.connected += 1;
                    self.since = Some(clock::now());
                    return Ok(Some(connected));
                }
                Ok(Moved::Waits(_)) if all.deadline.has_passed() => {
                    const LATE: Error = Error::TimedOut("the server did not answer");
                    if let Some((addr, _)) = all.trying {
                        all.tried.add_first(addr, LATE);
                    }
                    let last = all.take_error().unwrap_or(LATE);
                    return Err(self.gives_up(Error::GaveUp(Box::new(last))));
                }
                Ok(Moved::Waits(step)) => {
                    self.under_way = Some(UnderWay { step, all });
                    return Ok(None);
                }
                Err(error) => {
                    let next = self.after(error, &mut all);
                    next.inspect_err(|_| self.since = Some(clock::now()))?
                }
            };
        }
    }

    /// Returns the next time at which [`advance`](Self::advance) has something to do, if the
    /// descriptor is not readable before. `None` if no try is under way.
    ///
    /// On a simulated fabric it is a time of the fabric's clock (`rpma::sim::now`).
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let UnderWay { step, all } = self.under_way.as_ref()?;
        let of_step = match step {
            Step::Resting(until) | Step::Asked(_, until) => *until,
            Step::Resolving(resolving) => resolving.deadline().earlier(all.share()),
        };
        of_step.earlier(all.deadline).instant()
    }

    /// Gives up a reconnect that is under way, if there is one. If the server has accepted the
    /// connection in the meantime, it sees the connection end.
    pub fn cancel(&mut self) {
        self.under_way = None;
    }

    fn step(&mut self, step: Step<C::Asked>, all: &mut All) -> Result<Moved<C>> {
        match step {
            Step::Resting(until) if !until.has_passed() || all.deadline.has_passed() => {
                Ok(Moved::Waits(Step::Resting(until)))
            }
            Step::Resting(_) => self.try_next(all),
            Step::Resolving(resolving) => match resolving.advance()? {
                // The other addresses of the round get their shares.
                ControlFlow::Continue(_) if all.share().has_passed() && !all.to_try.is_empty() => {
                    Err(Error::TimedOut("the address was not resolved"))
                }
                ControlFlow::Continue(resolving) => Ok(Moved::Waits(Step::Resolving(resolving))),
                ControlFlow::Break(req) => {
                    let asked = self.connects.ask(req, &self.offer)?;
                    let until = Deadline::after(self.cfg.answer_limit()).earlier(all.share());
                    Ok(Moved::On(Step::Asked(asked, until)))
                }
            },
            Step::Asked(asked, until) => {
                let is_last = until.has_passed();
                match C::conn(&asked).next_event_timeout(Duration::ZERO) {
                    Ok(ConnEvent::Established) => {
                        self.forget(C::conn(&asked).as_fd());
                        self.connects.finish(asked).map(Moved::Connected)
                    }
                    Ok(event) if event.is_end() => Err(Error::NotEstablished(Box::new(event))),
                    // The next turn looks for the next event.
                    Ok(_notice) => Ok(Moved::On(Step::Asked(asked, until))),
                    Err(Error::NoEvent) if is_last => {
                        Err(Error::TimedOut("the server did not answer"))
                    }
                    Err(Error::NoEvent) => Ok(Moved::Waits(Step::Asked(asked, until))),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Begins the next try, and a round before it if the last one is over.
    fn try_next(&mut self, all: &mut All) -> Result<Moved<C>> {
        if all.to_try.is_empty() {
            all.is_hopeful = false;
            all.trying = None;
            all.to_try = self.target.addrs()?;
            all.to_try.reverse();
            all.unfound = None;
            all.tried.keep(&all.to_try);
        }
        let Some(addr) = all.to_try.pop() else {
            return Err(Error::provider(LOOK_UP, io::ErrorKind::NotFound));
        };
        let share = share(all.deadline.left(), all.to_try.len() + 1);
        all.trying = Some((addr, Deadline::after(share)));
        self.tries += 1;
        let resolving = ConnReq::resolve(&self.peer, addr, &all.conn_cfg)?;
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&self.epoll, &resolving, data, flags)
            .map_err(|errno| Error::provider("epoll_ctl", errno))?;
        Ok(Moved::On(Step::Resolving(resolving)))
    }

    /// The descriptor lives on with the connection.
    fn forget(&self, fd: BorrowedFd<'_>) {
        if let Err(errno) = epoll::delete(&self.epoll, fd) {
            log::debug!("epoll_ctl: {errno}");
        }
    }

    /// Judges a failed try.
    fn after(&mut self, error: Error, all: &mut All) -> Result<Step<C::Asked>> {
        let verdict = Verdict::on(&error);
        let is_gone = error.is_errno(Errno::NODEV) && self.peer.is_gone();
        if is_gone || verdict == Verdict::Refused {
            return Err(self.gives_up(error));
        }
        let (tries, target) = (self.tries, &self.target);
        log::info!("try {tries} to connect to {target}: {error}");
        match all.trying.take() {
            Some((addr, _)) => all.tried.add(addr, error),
            None => all.unfound = Some(error),
        }
        all.is_hopeful |= verdict == Verdict::Again;
        Ok(match (verdict, all.to_try.is_empty(), all.is_hopeful) {
            (Verdict::Slowly, ..) => {
                all.to_try.clear();
                self.rest(Verdict::Slowly, Duration::MAX)
            }
            (_, false, _) => Step::now(),
            (_, true, true) => self.rest(Verdict::Again, Duration::MAX),
            (_, true, false) => {
                let nothing = || Error::provider(LOOK_UP, io::ErrorKind::NotFound);
                let error = all.take_error().unwrap_or_else(nothing);
                return Err(self.gives_up(error));
            }
        })
    }

    fn gives_up(&self, error: Error) -> Error {
        let (tries, target) = (self.tries, &self.target);
        log::warn!("gave up to connect to {target} at try {tries}: {error}");
        error
    }

    /// The wait after a round that failed, of `most` at most.
    fn rest(&mut self, verdict: Verdict, most: Duration) -> Step<C::Asked> {
        self.failed = self.failed.saturating_add(1);
        let wait = match verdict {
            Verdict::Slowly => self.cfg.longest_wait(),
            _ => self.cfg.wait_after(self.failed),
        };
        Step::Resting(Deadline::after(self.jitter.shorten(wait.min(most))))
    }
}

impl Target {
    fn addrs(&self) -> Result<Vec<SocketAddr>> {
        match self {
            Self::Addrs(addrs) => Ok(addrs.clone()),
            Self::Name(name, port) => address::look_up(name, *port),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addrs(addrs) => f.debug_list().entries(addrs).finish(),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl<C: Connects> AsFd for Reconnect<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl<C: Connects> AsRawFd for Reconnect<C> {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

impl<C: Connects> fmt::Debug for Reconnect<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnect")
            .field("target", &self.target)
            .field("is_under_way", &self.under_way.is_some())
            .field("tries", &self.tries)
            .field("connected", &self.connected)
            .finish_non_exhaustive()
    }
}
