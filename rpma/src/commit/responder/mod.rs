//! [`Responder`]: the server's half of [`Method::Server`](super::Method::Server).
//!
//! It makes the bytes durable that clients wrote and name. It owns the receives and answers of each
//! client ([`Slots`]), and neither a connection nor a thread: a loop hands completions in, and
//! calls [`Responder::turn`].

mod checks;
mod slots;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::slots::RequestFault;
pub use self::slots::Slots;
use super::Limits;
use crate::clock;
use crate::conn::Conn;
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::pmem::PmemMap;
use crate::queues;
use crate::verbs::Wc;

/// The most requests of one client that a turn serves.
const AT_ONCE: usize = 4;
/// The most requests that a turn serves.
const A_TURN: usize = 16;

/// Serves the persist requests of clients, which commit by
/// [`Method::Server`](super::Method::Server).
///
/// `K` is the name of a client: the [`Member`](crate::wait::Member) of a
/// [`Wait`](crate::wait::Wait), or a number of the program's own.
///
/// The receives of the clients' connections belong to the responder. The requests of a client may
/// name only the memory of its own [`Slots`]. The responder refuses a client that names other
/// memory, sends a message that is no request, or exceeds the [`Limits`]. Then it makes no byte of
/// the request durable, stores no pointer, and ends the client's connection. The other clients go
/// on.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use rpma::commit::{Limits, Responder, Turn};
/// use rpma::pmem::PmemMap;
/// use rpma::{Conn, ConnCfg, Ep, Mr, Next, Offer, PeerCfg, Result, Wc};
///
/// /// Serves one client, until its connection ends. `log` is registered with
/// /// `MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT`.
/// fn serve(ep: &Ep, log: &Arc<Mr<PmemMap>>) -> Result<()> {
///     let limits = Limits::new(16, 4, 1 << 20)?;
///     let mut responder = Responder::new(limits);
///     let mut offer = Offer::new(&PeerCfg::new());
///     offer.add_region(log).set_limits(limits);
///
///     let req = ep.next_conn_req(&responder.conn_cfg(&ConnCfg::new())?)?;
///     if let Err(refusal) = offer.judge(req.get_private_data()) {
///         return Ok(req.reject(&refusal.encode())?);
///     }
///     let slots = responder.prepare(&req, log, ..)?;
///     let conn = req.connect(&offer.encode(Offer::ACCEPT)?)?;
///     responder.add(0, slots);
///     let mut wcs = [Wc::default(); 16];
///     loop {
///         match conn.next(&mut wcs, Duration::MAX)? {
///             Next::Completions(count) => {
///                 for wc in &wcs[..count] {
///                     responder.handle(0, wc);
///                 }
///             }
///             Next::Event(event) if event.is_end() => return Ok(()),
///             Next::Event(_notice) => {}
///         }
///         loop {
///             match responder.turn(|_client| Some(&conn)) {
///                 Turn::Idle => break,
///                 Turn::Misused(_client, error) | Turn::Failed(_client, error) => return Err(error),
///                 _ => {}
///             }
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Responder<K> {
    limits: Limits,
    clients: BTreeMap<K, Slots>,
    /// Clients with something to do, each once. It may have names of clients that are gone.
    ready: VecDeque<K>,
    /// Clients with a full send queue, and the ends of their limits.
    full: BTreeMap<K, Instant>,
    answer_limit: Duration,
}

/// The result of a [`turn`](Responder::turn).
#[derive(Debug)]
#[non_exhaustive]
pub enum Turn<K> {
    /// There was no work.
    Idle,
    /// The turn served this number of requests: 0 if it only posted receives. There may be more
    /// work.
    Served(usize),
    /// This client sent a request that was broken, or outside of its memory or limits. The
    /// responder has forgotten it, and has disconnected it.
    Misused(K, Error),
    /// A call of this side failed, or the client's connection takes no answers. The responder has
    /// forgotten the client, and has disconnected it. [`Error::QueueFull`] of the send queue: the
    /// program's own operations filled it for longer than the
    /// [limit](Responder::set_answer_limit). Of the receive queue: the device had no memory for a
    /// receive.
    Failed(K, Error),
}

impl<K: Copy + Ord> Responder<K> {
    /// As if it had served so many requests of a client.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::commit) fn start_after(&mut self, client: K, requests: u32) {
        let slots = self.clients.get_mut(&client).expect("a client");
        slots.start_after(requests);
    }

    /// Makes a responder without clients. Its offer must have the same `limits`
    /// ([`Offer::set_limits`](crate::Offer::set_limits)).
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            clients: BTreeMap::new(),
            ready: VecDeque::new(),
            full: BTreeMap::new(),
            answer_limit: Duration::from_secs(5),
        }
    }

    /// Sets how long an answer may wait for room in a send queue that the program's own operations
    /// fill. The default is 5 s. After this time the client's connection ends, as
    /// [`Turn::Failed`]. Other clients are served meanwhile.
    pub fn set_answer_limit(&mut self, limit: Duration) -> &mut Self {
        self.answer_limit = limit;
        self
    }

    /// Returns the time of the next [`turn`](Self::turn) if no completion comes before: the end of
    /// the limit of an answer that waits for room. `None` if none waits.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.full.values().min().copied()
    }

    /// Returns the limits of each client, for [`Offer::set_limits`](crate::Offer::set_limits).
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the settings of a client's connection: those of `cfg`, with slots for its requests
    /// and answers as well. [`ConnCfg::set_rnr_retry_count`] is lowered to 6 at most, because 7
    /// means for ever. This count limits the wait for a client that has no free receive for its
    /// answer.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a queue would have more than 2³² − 1 slots.
    pub fn conn_cfg(&self, cfg: &ConnCfg) -> Result<ConnCfg> {
        let (sends, receives) = slots::needed(self.limits);
        let credits = u32::from(self.limits.credits());
        let mut made = cfg.clone();
        made.set_rq_size(queues::sum(cfg.get_rq_size(), receives)?);
        made.set_sq_size(queues::sum(cfg.get_sq_size(), sends)?);
        made.set_cq_size(queues::sum(cfg.get_cq_size(), 3 * credits)?);
        made.set_rnr_retry_count(cfg.get_rnr_retry_count().min(6))?;
        Ok(made)
    }

    /// Posts the receives of a client that asks for a connection, before the request is accepted.
    /// `memory` is the region in the offer to this client. The client's requests may name only the
    /// range `offered` of it. A request for other bytes ends the client's connection.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `offered` is not inside the memory, or if the request was not
    /// made with [`conn_cfg`](Self::conn_cfg). [`Error::NotSupported`] if the memory was not
    /// registered with [`MrUsage::WRITE_DST`](crate::MrUsage::WRITE_DST) and
    /// [`FLUSH_TYPE_PERSISTENT`](crate::MrUsage::FLUSH_TYPE_PERSISTENT). [`Error::Provider`] if
    /// `ibv_reg_mr` or `ibv_post_recv` fails.
    pub fn prepare(
        &self,
        req: &ConnReq,
        memory: &Arc<Mr<PmemMap>>,
        offered: impl RangeBounds<usize>,
    ) -> Result<Slots> {
        Slots::prepare(self.limits, req, memory, offered)
    }

    /// Adds a client under a name. [`handle`](Self::handle) takes this name, with a completion of
    /// the client. The client replaces an earlier client of the same name.
    pub fn add(&mut self, client: K, slots: Slots) {
        self.clients.insert(client, slots);
    }

    /// Forgets a client, with its requests that are not served.
    ///
    /// Call this when the client's connection has ended, before you drop the connection. Call it as
    /// well when the client was cut off ([`Conn::cut_off`]).
    pub fn remove(&mut self, client: K) {
        self.clients.remove(&client);
        self.full.remove(&client);
    }

    /// Takes a completion of a client's connection. Returns whether it was one of the responder's:
    /// each receive, and the send of each answer. It also returns `false` for a client that was not
    /// [added](Self::add). The request of that client is lost.
    pub fn handle(&mut self, client: K, wc: &Wc) -> bool {
        let Some(slots) = self.clients.get_mut(&client) else {
            return false;
        };
        let is_own = slots.handle(wc);
        if slots.becomes_ready() {
            self.ready.push_back(client);
        }
        is_own
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Serves requests that have arrived: at most 16, and at most 4 of each client. This call never
    /// sleeps. It checks the requests, makes their ranges durable, stores and persists their
    /// pointers in order, and answers. Clients come in turn. `conn` returns a client's connection.
    /// A client without a connection is forgotten.
    ///
    /// After completions were passed to [`handle`](Self::handle), call this until it returns
    /// [`Turn::Idle`].
    #[cfg_attr(feature = "sim", track_caller)]
    pub fn turn<'a>(&mut self, conn: impl Fn(K) -> Option<&'a Conn>) -> Turn<K> {
        let turn = self.turn_and_keep(conn);
        if let Turn::Misused(client, _) | Turn::Failed(client, _) = &turn {
            self.remove(*client);
        }
        turn
    }

    /// As [`turn`](Self::turn), but does not forget a client that it refuses. No other turn serves
    /// it, and its completions are still the responder's, until it is [removed](Self::remove).
    #[cfg_attr(feature = "sim", track_caller)]
    pub(crate) fn turn_and_keep<'a>(&mut self, conn: impl Fn(K) -> Option<&'a Conn>) -> Turn<K> {
        let (mut served, mut worked) = (0, false);
        self.list_full();
        // Once round: a client that has more to do comes again in the next turn.
        for _ in 0..self.ready.len() {
            let Some(client) = self.ready.pop_front() else {
                break;
            };
            let Some(slots) = self.clients.get_mut(&client) else {
                continue;
            };
            let Some(conn) = conn(client) else {
                self.clients.remove(&client);
                continue;
            };
            // After a fault it stays marked as listed, so that it is never listed again.
            match slots.serve(conn, AT_ONCE.min(A_TURN - served)) {
                Ok(done) => {
                    served += done.answers;
                    worked |= done.worked;
                    if let Some(full) = self.late(client, done) {
                        return failed(conn, client, full);
                    }
                    if self
                        .clients
                        .get_mut(&client)
                        .is_some_and(Slots::stays_ready)
                    {
                        self.ready.push_back(client);
                    }
                }
                Err(RequestFault::Failed(error)) => return failed(conn, client, error),
                Err(RequestFault::Misused(error)) => {
                    let _ = conn.disconnect();
                    return Turn::Misused(client, error);
                }
            }
            if served == A_TURN {
                break;
            }
        }
        if worked {
            Turn::Served(served)
        } else {
            Turn::Idle
        }
    }

    /// Tries clients with a full send queue again: a program may poll their completions elsewhere.
    fn list_full(&mut self) {
        for client in self.full.keys() {
            if self
                .clients
                .get_mut(client)
                .is_some_and(Slots::is_tried_again)
            {
                self.ready.push_back(*client);
            }
        }
    }

    /// The error of a client with an answer that has waited for room for longer than the limit.
    fn late(&mut self, client: K, done: slots::RequestsServed) -> Option<Error> {
        if done.full.is_none() || done.answers > 0 {
            self.full.remove(&client);
        }
        let (full, now) = (done.full?, clock::now());
        let limit = self.full.entry(client).or_insert(now + self.answer_limit);
        (now >= *limit).then_some(full)
    }
}

#[cold]
fn failed<K>(conn: &Conn, client: K, error: Error) -> Turn<K> {
    let _ = conn.disconnect();
    Turn::Failed(client, error)
}
