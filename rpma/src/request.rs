//! [`Request`]: a client's request for a connection, before it has any queues.
//!
//! It owns the connection-manager id of the request, on an event channel of its own. Dropping it
//! destroys the id, which rejects the request. So a server can look at the private data and refuse
//! a client without a queue pair or a completion queue.

use std::fmt;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::conn_cfg::ConnCfg;
use crate::conn_req::{ConnReq, check_private_data};
use crate::ends::no_address;
use crate::error::{Error, Result};
use crate::hints::Hint;
use crate::peer::Peer;
use crate::plan::{Plan, check_keep_alive};
use crate::refusal::MAX_REJECT_DATA;
use crate::verbs::IncomingRequest;

/// A client's request for a connection, from [`Ep::next_request`](crate::Ep::next_request) or
/// [`Happened::Request`](crate::wait::Happened::Request). It has no queues yet.
///
/// Dropping it rejects the request.
#[must_use = "dropping it rejects the request"]
pub struct Request {
    request: IncomingRequest,
}

const GONE: Hint = &["The client gave up before its request was answered", ""];

/// Why a request did not become a [`ConnReq`].
pub(crate) enum NotMade {
    /// The queues could not be made. The client was rejected.
    Failed(Error),
    /// The client is gone. The error is that of the verb that noticed it.
    Gone(Error),
}

impl Request {
    pub(crate) fn new(request: IncomingRequest) -> Self {
        Self { request }
    }

    /// Returns the data that the client sent with its request, padded with zeros (to 56 bytes on
    /// InfiniBand and RoCE).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// Returns the address of the client.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] if the connection manager has no address, which does not happen over
    /// IP.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.request.id.peer_addr().ok_or_else(no_address)
    }

    /// Makes the queues of the connection, as `cfg` describes them. `peer` may be another `Peer`
    /// than the endpoint's, if both are of the same device. [`ConnReq::connect`] accepts the
    /// request then.
    ///
    /// # Errors
    ///
    /// The request is rejected after each error.
    ///
    /// * [`Error::InvalidArgument`] if the device cannot have such queues, if `peer` belongs to
    ///   another device, or if the keep-alive is less than four acknowledgement time-outs. If
    ///   `cfg` sets no time-out, the kernel's own counts ([`ConnCfg::set_keep_alive`]).
    /// * [`Error::Provider`] if a verb fails. If the client has given up, the hint of the error
    ///   reports that.
    pub fn into_req(self, peer: &Peer, cfg: &ConnCfg) -> Result<ConnReq> {
        self.check_device(peer)?;
        let plan = Plan::new(peer, cfg)?;
        self.check_keep_alive(&plan)?;
        let without_words = |_: &Error| Vec::new();
        self.prepare(&plan, without_words)
            .map_err(|not_made| match not_made {
                NotMade::Failed(error) => error,
                NotMade::Gone(error) => error.with_hint(GONE),
            })
    }

    /// Refuses a [`Peer`] of another device.
    pub(crate) fn check_device(&self, peer: &Peer) -> Result<()> {
        peer.pd().check_device(&self.request.id)
    }

    /// Refuses a keep-alive below four of the kernel's default time-outs, if the plan sets no
    /// time-out. With one of its own, the plan was checked when it was made.
    pub(crate) fn check_keep_alive(&self, plan: &Plan) -> Result<()> {
        if plan.keep_alive.is_none() || plan.ack_timeout.is_some() {
            return Ok(());
        }
        match self.request.id.ack_timeout() {
            Ok(ack_timeout) => check_keep_alive(plan.keep_alive, ack_timeout),
            Err(error) if error.is_errno(Errno::INVAL) => Err(error.with_hint(GONE)),
            Err(error) => Err(error),
        }
    }

    /// As [`into_req`](Self::into_req), after the checks. If the queues cannot be made, the client
    /// is rejected with up to 148 bytes of private data.
    pub(crate) fn prepare(
        self,
        plan: &Plan,
        private_data: impl FnOnce(&Error) -> Vec<u8>,
    ) -> Result<ConnReq, NotMade> {
        ConnReq::incoming(plan, self.request).map_err(|(error, id)| {
            // No event reports a client that is gone: its queue pair cannot be set up, and the
            // request cannot be rejected.
            match id.reject(&private_data(&error)) {
                Ok(()) => NotMade::Failed(error),
                Err(gone) => {
                    let client = id.peer_addr();
                    let client = client.map_or_else(String::new, |addr| format!(" at {addr}"));
                    log::info!("a client{client} gave up before it was answered: {error}; {gone}");
                    NotMade::Gone(error)
                }
            }
        })
    }

    /// Rejects the request. The client finds up to 148 bytes of `private_data` in
    /// [`ConnEvent::Rejected`](crate::ConnEvent::Rejected), padded with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the private data is too long: the request is rejected without
    /// any. [`Error::Provider`] if `rdma_reject` fails (`EINVAL`: the client is gone) or
    /// `rdma_destroy_id`.
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        check_private_data(private_data, MAX_REJECT_DATA, "reject")?;
        let rejected = self.request.id.reject(private_data);
        rejected.and(self.request.id.release())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("request", &self.request)
            .finish()
    }
}
