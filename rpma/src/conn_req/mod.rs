//! [`ConnReq`]: a connection before it is made (`struct rpma_conn_req`).
//!
//! It owns the connection-manager id, its queue pair and the completion queue, and hands them on
//! to the [`Conn`]. Dropping it destroys the queue pair, the id (which rejects an incoming
//! request) and the queue, in this order.

mod resolving;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::Duration;

pub use self::resolving::Resolving;
use crate::address;
use crate::conn::{Conn, NotAccepted};
use crate::conn_cfg::ConnCfg;
use crate::error::{Error, GivenBack, Result};
use crate::mr::MrSlice;
use crate::offer::Offer;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::queues::Queues;
use crate::refusal::MAX_REJECT_DATA;
use crate::verbs::{CmId, ConnParam, IncomingRequest};

const MAX_CONNECT_DATA: usize = 56;
/// Accepting with more makes the kernel reject the request.
const MAX_ACCEPT_DATA: usize = 196;
/// librdmacm puts the device's limit in the place of this value (`RDMA_MAX_INIT_DEPTH`).
const MAX_READS: u8 = 0xFF;

/// A request for a connection: an outgoing one, made by [`new`](Self::new), or an incoming one,
/// from [`Ep::next_conn_req`](crate::Ep::next_conn_req).
///
/// Dropping an incoming request rejects it.
///
/// # Threads
///
/// Several threads may post receives: a lock lets one thread post after the other. A method that
/// ends the request consumes it.
pub struct ConnReq {
    queues: Queues,
    private_data: Box<[u8]>,
    direction: Direction,
    retry_count: u8,
    rnr_retry_count: u8,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Outgoing,
    Incoming {
        responder_resources: u8,
        initiator_depth: u8,
    },
}

/// The limits of a request in one direction.
struct Terms {
    max_data: usize,
    /// The name of the call in errors.
    call: &'static str,
    responder_resources: u8,
    initiator_depth: u8,
}

impl Direction {
    fn terms(self) -> Terms {
        match self {
            Self::Outgoing => Terms {
                max_data: MAX_CONNECT_DATA,
                call: "connect",
                responder_resources: MAX_READS,
                initiator_depth: MAX_READS,
            },
            Self::Incoming {
                responder_resources,
                initiator_depth,
            } => Terms {
                max_data: MAX_ACCEPT_DATA,
                call: "accept",
                responder_resources,
                initiator_depth,
            },
        }
    }
}

impl ConnReq {
    /// Prepares a connection to `addr` (as in [`Device::from_addr`](crate::Device::from_addr)) and
    /// `port`: resolves the address and the route, each within [`ConnCfg::set_timeout`], and makes
    /// the queues. The other program gets no message yet.
    ///
    /// If a name has several addresses, the call tries to *resolve* each, and takes the first one
    /// that resolves, even if no program listens there.
    /// [`Reconnect`](crate::reconnect::Reconnect) connects to each in turn.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a wildcard address, a name that cannot be resolved, or an
    /// address that is reached through another device than that of `peer`.
    /// [`Error::InvalidArgument`] also for a configuration that the device of `peer` cannot have.
    /// [`Error::Provider`] naming `rdma_resolve_addr`, `rdma_resolve_route` (`ETIMEDOUT` past the
    /// limit) or the verb that could not make a queue.
    #[doc(alias = "rpma_conn_req_new")]
    pub fn new(peer: &Peer, addr: &str, port: u16, cfg: &ConnCfg) -> Result<Self> {
        let req = address::try_each(addr, port, |found| Self::to_addr(peer, found, cfg))?;
        log::info!("requesting a connection to {addr}:{port}");
        Ok(req)
    }

    /// As [`new`](Self::new), for an address: no name is looked up.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn to_addr(peer: &Peer, addr: SocketAddr, cfg: &ConnCfg) -> Result<Self> {
        Self::resolve(peer, addr, cfg)?.wait()
    }

    /// As [`to_addr`](Self::to_addr), without blocking. The call only starts to resolve the
    /// address. Call [`Resolving::advance`] whenever the descriptor is readable.
    ///
    /// An event loop connects in these steps: `resolve`; `advance` until it is
    /// `ControlFlow::Break`; [`connect`](Self::connect), which does not block;
    /// [`Conn::set_nonblocking`]; and [`Conn::next_event`] when the connection's descriptor is
    /// readable, until it is [`ConnEvent::Established`](crate::ConnEvent::Established). To make
    /// `peer` without blocking, use an address of this host ([`Peer::at`]).
    ///
    /// The kernel gives up on an address and on a route after [`ConnCfg::set_timeout`], and then
    /// the descriptor is readable. Its limit for the peer's answer is longer
    /// ([`Conn::wait_established`]), so the loop needs one of its own.
    ///
    /// ```no_run
    /// use rpma::{Conn, ConnCfg, ConnEvent, ConnReq, Error, Peer, Result};
    /// use std::net::SocketAddr;
    /// use std::ops::ControlFlow;
    /// use std::os::fd::AsFd;
    ///
    /// fn connect(peer: &Peer, addr: SocketAddr, until_readable: impl Fn(&dyn AsFd)) -> Result<Conn> {
    ///     let mut resolving = ConnReq::resolve(peer, addr, &ConnCfg::new())?;
    ///     let req = loop {
    ///         resolving = match resolving.advance()? {
    ///             ControlFlow::Break(req) => break req,
    ///             ControlFlow::Continue(resolving) => resolving,
    ///         };
    ///         until_readable(&resolving);
    ///     };
    ///     let conn = req.connect(&[])?;
    ///     conn.set_nonblocking(true)?;
    ///     loop {
    ///         until_readable(&conn);
    ///         match conn.next_event()? {
    ///             ConnEvent::Established => return Ok(conn),
    ///             event if event.is_end() => return Err(Error::NotEstablished(Box::new(event))),
    ///             notice => println!("{notice}"),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a wildcard address, or a configuration that the device of
    /// `peer` cannot have. [`Error::Provider`] naming `rdma_resolve_addr` or a verb that makes the
    /// request's id.
    pub fn resolve(peer: &Peer, addr: SocketAddr, cfg: &ConnCfg) -> Result<Resolving> {
        Resolving::new(Plan::new(peer, cfg)?, addr, cfg.get_timeout())
    }

    /// A request with a resolved address and route, or its id back if the queues cannot be made.
    pub(crate) fn outgoing(plan: &Plan, id: CmId) -> Result<Self, (Error, CmId)> {
        Self::prepare(plan, id, Direction::Outgoing)
    }

    /// A request that a client sent, or its id back if the queues cannot be made.
    pub(crate) fn incoming(plan: &Plan, request: IncomingRequest) -> Result<Self, (Error, CmId)> {
        let max = plan.peer.attributes().max_rd_atom;
        let direction = Direction::Incoming {
            // At least 1 each: with 0 a read would never complete or report.
            responder_resources: request.initiator_depth.clamp(1, max),
            initiator_depth: request.responder_resources.clamp(1, max),
        };
        let mut req = Self::prepare(plan, request.id, direction)?;
        req.private_data = request.private_data;
        Ok(req)
    }

    fn prepare(plan: &Plan, id: CmId, direction: Direction) -> Result<Self, (Error, CmId)> {
        Ok(Self {
            queues: Queues::new(plan, id)?,
            private_data: Box::default(),
            direction,
            retry_count: plan.retry_count,
            rnr_retry_count: plan.rnr_retry_count,
        })
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.queues.peer
    }

    /// A mark that is there as long as the connection's queue pair.
    pub(crate) fn alive(&self) -> Weak<()> {
        self.queues.qp.alive()
    }

    pub(crate) fn flushes_natively(&self) -> bool {
        self.queues.qp.native_ops().flush
    }

    /// Refuses a request with fewer slots for sends and for receives than the `needed` ones, which
    /// `settings` asks for.
    pub(crate) fn check_slots(&self, needed: (u32, u32), settings: &str) -> Result<()> {
        let slots = self.queues.slots.depths();
        if slots.0 < needed.0 || slots.1 < needed.1 {
            Err(Error::invalid(format!(
                "the request has {} slots for sends and {} for receives, and its commits take {} \
                 and {}: make it with {settings}",
                slots.0, slots.1, needed.0, needed.1
            )))
        } else {
            Ok(())
        }
    }

    /// Posts a receive before the connection exists, so that the peer's first message finds it. The
    /// connection takes it over. [`MrSlice::EMPTY`] takes messages of 0 bytes.
    ///
    /// # Errors
    ///
    /// As [`Conn::recv`].
    #[doc(alias = "rpma_conn_req_recv")]
    pub fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        self.queues.recv(dst, op_context)
    }

    /// As [`recv`](Self::recv), several at once: all of them, or no receive. See
    /// [`Conn::recv_many`].
    ///
    /// # Errors
    ///
    /// As [`Conn::recv_many`].
    pub fn recv_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        self.queues.recv_many(receives)
    }

    /// Connects (an outgoing request) or accepts (an incoming one). It does not wait for the peer:
    /// [`Conn::next_event`] reports the result.
    ///
    /// On iWARP the kernel may wait for the peer in `rdma_connect`, so a thread makes that call. A
    /// failure comes from [`Conn::next_event`] as well:
    /// [`ConnEvent::Rejected`](crate::ConnEvent::Rejected) if no program listens.
    /// [`Conn`](Conn#dropping) has the rule for a connection that is dropped meanwhile.
    ///
    /// `private_data` travels with the request (up to 56 bytes) or with the answer (up to 196).
    /// `&[]` sends none. InfiniBand and RoCE pad the data with zeros to the full length. So data of
    /// variable length must include its length.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the private data is too long: then the request is unchanged,
    /// and [`GivenBack::object`] is `Some`. After every other error the request is gone.
    ///
    /// [`Error::Provider`] if `rdma_connect` fails, or on iWARP if there is no thread
    /// (`pthread_create`), or if 64 connections of the device were given up for which the kernel
    /// still waits (`EAGAIN`). When accepting, it is [`Error::Provider`] if
    /// `rdma_init_qp_attr`, `ibv_modify_qp`, `rdma_accept` or `ibv_query_qp` fails. `EINVAL` from
    /// `rdma_init_qp_attr` or `rdma_accept` means that the client is gone.
    #[doc(alias = "rpma_conn_req_connect")]
    pub fn connect(self, private_data: &[u8]) -> Result<Conn, GivenBack<Option<Box<Self>>>> {
        let terms = self.direction.terms();
        if let Err(error) = check_private_data(private_data, terms.max_data, terms.call) {
            return Err(not_connected(error, Some(self)));
        }
        let made = match self.direction {
            Direction::Outgoing => {
                let param = self.param(private_data);
                Conn::connect(self.queues, param)
            }
            Direction::Incoming { .. } => self.accept(private_data).map_err(|not| not.error),
        };
        made.map_err(|error| not_connected(error, None))
    }

    /// Connects or accepts with an [`Offer`], and waits until the connection is established: the
    /// offer travels as the private data of [`connect`](Self::connect), and
    /// [`Conn::wait_established`] waits for at most `limit`. The other side reads it with
    /// [`Conn::offer`]. A side without memory sends `Offer::default()`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the offer is too long ([`Offer::CONNECT`],
    /// [`Offer::ACCEPT`]). Otherwise as `connect` and `wait_established`. After every error the
    /// request is gone.
    pub fn establish(self, offer: &Offer, limit: Duration) -> Result<Conn> {
        let private_data = offer.encode(self.direction.terms().max_data)?;
        self.connect(&private_data)?.wait_established(limit)
    }

    /// The caller has checked the length of the private data.
    pub(crate) fn accept(self, private_data: &[u8]) -> Result<Conn, NotAccepted> {
        let param = self.param(private_data);
        Conn::accept(self.queues, self.private_data, param)
    }

    fn param<'data>(&self, private_data: &'data [u8]) -> ConnParam<'data> {
        let terms = self.direction.terms();
        ConnParam {
            private_data,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
        }
    }

    /// Returns the address of the client, or the destination of an outgoing request.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] if the connection manager has no address, which does not happen over
    /// IP.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.queues.ends.peer()
    }

    /// Returns the private data that the client sent with its request, padded with zeros (to 56
    /// bytes on InfiniBand and RoCE). It is empty for an outgoing request.
    #[doc(alias = "rpma_conn_req_get_private_data")]
    #[must_use]
    pub fn get_private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Rejects an incoming request with a reason: the client finds up to 148 bytes of
    /// `private_data` in [`ConnEvent::Rejected`](crate::ConnEvent::Rejected), padded with zeros.
    /// Dropping the request rejects it without private data.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for an outgoing request, or if the private data is too long: then
    /// the request is unchanged, and [`GivenBack::object`] is `Some`. [`Error::Provider`] if
    /// `rdma_reject` fails (`EINVAL`: the client is gone), or if something could not be freed.
    pub fn reject(self, private_data: &[u8]) -> Result<(), GivenBack<Option<Box<Self>>>> {
        let refused = match self.direction {
            Direction::Outgoing => Err(Error::invalid(
                "an outgoing request cannot be rejected: drop it, and nothing is sent",
            )),
            Direction::Incoming { .. } => {
                check_private_data(private_data, MAX_REJECT_DATA, "reject")
            }
        };
        if let Err(error) = refused {
            return Err(not_connected(error, Some(self)));
        }
        let rejected = self.queues.qp.reject(private_data);
        let freed = self.queues.destroy().all();
        let rejected = rejected.and(freed);
        rejected.map_err(|error| not_connected(error, None))
    }

    /// Drops the request, and returns an error if an object could not be freed. An incoming request
    /// is rejected.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with the first verb that failed. The rest is still freed.
    #[doc(alias = "rpma_conn_req_delete")]
    pub fn delete(self) -> Result<()> {
        self.queues.destroy().all()
    }
}

/// An error, and the request if it was refused before anything happened.
#[cold]
pub(crate) fn not_connected(error: Error, req: Option<ConnReq>) -> GivenBack<Option<Box<ConnReq>>> {
    let object = req.map(Box::new);
    GivenBack { error, object }
}

/// Its error names `call`.
pub(crate) fn check_private_data(data: &[u8], limit: usize, call: &str) -> Result<()> {
    if data.len() <= limit {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{} bytes of private data are more than the {limit} that fit when you {call}",
        data.len()
    )))
}

impl fmt::Debug for ConnReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnReq")
            .field("queues", &self.queues)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}
