//! [`Ep`]: a listening endpoint (`struct rpma_ep`).
//!
//! It owns a listening connection-manager id and its event channel. Requests get channels of their
//! own before the program sees them, so they and their connections outlive the endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;

use crate::address::{self, Side};
use crate::conn_cfg::ConnCfg;
use crate::conn_req::ConnReq;
use crate::error::{Error, Result};
use crate::looking;
use crate::peer::Peer;
use crate::plan::Plan;
use crate::refusal::{Refusal, RefusalCode};
use crate::request::{NotMade, Request};
use crate::verbs::{CmEventKind, CmId, Deadline};

/// An endpoint at which clients ask for connections.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rpma::{Conn, ConnCfg, Device, Ep, Mr, MrUsage, Peer, Result, Side};
///
/// /// Accepts one client, and sends it the key of the memory.
/// fn accept(ep: &Ep, memory: &Mr<Vec<u8>>) -> Result<Conn> {
///     let limit = Duration::from_secs(60);
///     let request = ep.next_conn_req_timeout(&ConnCfg::new(), limit)?;
///     request.connect(&memory.get_descriptor())?.wait_established(limit)
/// }
///
/// # fn main() -> Result<()> {
/// let peer = Peer::at("192.0.2.1")?;
/// let ep = Ep::listen(&peer, "192.0.2.1", 7204)?;
/// # let memory = Mr::reg(&peer, vec![0; 64], MrUsage::WRITE_DST)?;
/// let conn = accept(&ep, &memory)?;
/// # drop(conn);
/// # Ok(())
/// # }
/// ```
///
/// A server of many clients waits for requests and connections together
/// ([`Wait`](crate::wait::Wait)).
///
/// # Requests that are not returned
///
/// Each call that waits for a request takes it from the kernel first. From then on the client waits
/// for an answer, and no later call finds the request again. So the call ends a request that it
/// cannot return:
///
/// | The case | The request | The reason |
/// |---|---|---|
/// | The client gave up before its request was taken. | skipped | It cannot be answered any more. |
/// | The process has no descriptor for the request's own event channel. | rejected, with [`RefusalCode::Full`] | Without that channel the request cannot outlive the endpoint. The client may try again later. |
/// | [`next_conn_req`](Self::next_conn_req) cannot make the queues. | rejected, without private data | The call returns the error of the verb, and has no request to return. Without an answer the client would wait until its own limit. |
/// | The client gave up while `next_conn_req` made the queues. | skipped | An error would look like a fault of this server. |
///
/// [`next_request`](Self::next_request) makes no queues, so it has only the first two cases. Use it
/// if the server is to check a client first, or to reject with private data of its own
/// ([`Request::reject`]).
///
/// # Threads
///
/// Several threads may wait for requests: each request goes to one of them, under the lock of the
/// event channel.
pub struct Ep {
    id: CmId,
    peer: Peer,
}

impl Ep {
    /// Listens at `addr` (as in [`Device::from_addr`](crate::Device::from_addr)) and `port`. With
    /// port 0 the kernel chooses one: see [`get_port`](Self::get_port).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a wildcard address, an address of another device than that
    /// of `peer`, or a name that cannot be resolved. [`Error::Provider`] naming `rdma_bind_addr`
    /// (`ENODEV` or `EADDRNOTAVAIL`: no RDMA device has the address; `EADDRINUSE`: the port is
    /// taken) or `rdma_listen`.
    #[doc(alias = "rpma_ep_listen")]
    pub fn listen(peer: &Peer, addr: &str, port: u16) -> Result<Self> {
        let ep = address::try_each(addr, port, |found| Self::listen_on(peer, found))?;
        log::info!("waiting for connections on {addr}:{port}");
        Ok(ep)
    }

    /// As [`listen`](Self::listen), at an address: no name is looked up.
    ///
    /// # Errors
    ///
    /// As [`listen`](Self::listen).
    pub fn listen_on(peer: &Peer, addr: SocketAddr) -> Result<Self> {
        Ok(Self {
            id: bind(peer, addr)?,
            peer: peer.clone(),
        })
    }

    /// Waits for the next request, without a limit, and makes its queues with the settings of
    /// `cfg`.
    ///
    /// Some requests [are not returned](Self#requests-that-are-not-returned). If the client gives
    /// up while this host stands still, or its packets are lost, no event reports that. The
    /// request is still returned, and its connection is never established.
    /// [`Conn::wait_established`](crate::Conn::wait_established) with a limit ends such a
    /// connection. Do not let other clients wait for this limit: give each connection a thread
    /// that waits for it, or let one thread wait for the descriptors of all connections.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvent`] if the descriptor was made non-blocking and there is no request.
    /// [`Error::InvalidArgument`] if the endpoint's device cannot have `cfg`: a queue that is too
    /// large, a completion channel of another device, or a shared receive queue of another
    /// [`Peer`]. The call then takes no request from the kernel: clients still wait.
    /// [`Error::Provider`] if a verb fails. `ENODEV` means that the device was removed, and the
    /// endpoint is of no more use. After every other error the endpoint works as before. A server
    /// logs the error and calls again, after a pause, because a lasting error would keep it busy.
    #[doc(alias = "rpma_ep_next_conn_req")]
    pub fn next_conn_req(&self, cfg: &ConnCfg) -> Result<ConnReq> {
        self.next(cfg, Deadline::Never)
    }

    /// As [`next_conn_req`](Self::next_conn_req), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`next_conn_req`](Self::next_conn_req), and [`Error::NoEvent`] when the limit has passed.
    pub fn next_conn_req_timeout(&self, cfg: &ConnCfg, limit: Duration) -> Result<ConnReq> {
        self.next(cfg, Deadline::after(limit))
    }

    fn next(&self, cfg: &ConnCfg, deadline: Deadline) -> Result<ConnReq> {
        let plan = Plan::new(&self.peer, cfg)?;
        let next = || self.next_request_until(deadline);
        looking::skip(deadline, next, |request| {
            match request.prepare(&plan, |_| Vec::new()) {
                Ok(req) => Some(Ok(req)),
                Err(NotMade::Failed(error)) => Some(Err(error)),
                Err(NotMade::Gone(_)) => None,
            }
        })
    }

    /// Waits for the next request, without a limit, and makes no queues for it. The server can
    /// read the client's private data first, and then choose the [`Peer`] and the settings for
    /// [`Request::into_req`].
    ///
    /// Some requests [are not returned](Self#requests-that-are-not-returned). If the client has
    /// given up without a word, [`Request::into_req`] fails, with that hint.
    ///
    /// # Errors
    ///
    /// [`Error::NoEvent`] if the descriptor was made non-blocking and there is no request.
    /// [`Error::Provider`] if `rdma_get_cm_event` fails: no request was taken. `ENODEV` means that
    /// the device was removed. [`Error::Provider`] also if `rdma_create_event_channel` (`EMFILE`)
    /// or `rdma_migrate_id` fails: the request is rejected, with [`RefusalCode::Full`].
    pub fn next_request(&self) -> Result<Request> {
        self.next_request_until(Deadline::Never)
    }

    /// As [`next_request`](Self::next_request), for at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`next_request`](Self::next_request), and [`Error::NoEvent`] when the limit has passed.
    pub fn next_request_timeout(&self, limit: Duration) -> Result<Request> {
        self.next_request_until(Deadline::after(limit))
    }

    pub(crate) fn next_request_until(&self, deadline: Deadline) -> Result<Request> {
        let next = || {
            let next = self.id.next_request(deadline, cannot_take())?;
            next.ok_or(Error::NoEvent)
        };
        looking::skip(deadline, next, |next| match next {
            Ok(request) => Some(Ok(Request::new(request))),
            Err(event) => {
                match event.kind {
                    CmEventKind::DeviceRemoval => {
                        return Some(Err(Error::provider("rdma_get_cm_event", Errno::NODEV)));
                    }
                    CmEventKind::Other(_) => log::info!("a notice: {event:?}"),
                    _ => log::info!("a client gave up before its request was taken: {event:?}"),
                }
                None
            }
        })
    }

    /// Returns the port on which the endpoint listens.
    #[must_use]
    pub fn get_port(&self) -> u16 {
        self.id.local_addr().map_or(0, |addr| addr.port())
    }

    /// Makes the descriptor of the endpoint's events non-blocking, or blocking again. In
    /// non-blocking mode [`next_conn_req`](Self::next_conn_req) and
    /// [`next_request`](Self::next_request) return [`Error::NoEvent`] at once if there is no
    /// request. Other threads may wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `fcntl` fails.
    pub fn set_nonblocking(&self, on: bool) -> Result<()> {
        self.id.set_nonblocking(on)
    }

    /// Returns the descriptor of the endpoint's event channel, as [`AsRawFd`] does.
    ///
    /// For `poll`, `epoll` and `fcntl` only: a read from it steals an event. It is readable when a
    /// request may be there. To change `O_NONBLOCK`, see
    /// [`Conn::get_event_fd`](crate::Conn::get_event_fd).
    #[doc(alias = "rpma_ep_get_fd")]
    #[must_use]
    pub fn get_fd(&self) -> RawFd {
        self.as_raw_fd()
    }

    /// Stops listening, and returns an error if an object could not be freed. Dropping does the
    /// same.
    ///
    /// Requests that the program has not taken are rejected. Connections are not touched.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] if `rdma_destroy_id` fails.
    #[doc(alias = "rpma_ep_shutdown")]
    pub fn shutdown(mut self) -> Result<()> {
        self.id.release()
    }
}

/// The reason for a client with a request that could not be taken: it may try again.
fn cannot_take() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let words = "the server cannot take another request now";
    BYTES.get_or_init(|| Refusal::new(RefusalCode::Full, words).encode())
}

/// An id that listens at `addr`.
fn bind(peer: &Peer, addr: SocketAddr) -> Result<CmId> {
    let addr = address::usable(addr)?;
    let mut id = CmId::of(peer.pd().context())?;
    id.bind_addr(addr)
        .map_err(|error| address::hint(error, addr, Side::Local))?;
    peer.pd().check_device(&id)?;
    id.listen()?;
    Ok(id)
}

impl AsFd for Ep {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl AsRawFd for Ep {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ep")
            .field("id", &self.id)
            .field("peer", &self.peer)
            .finish()
    }
}
