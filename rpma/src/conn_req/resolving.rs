//! [`Resolving`]: a request whose address and route the kernel resolves ([`ConnReq::resolve`]).
//!
//! It owns the connection-manager id. With both resolved it makes the queues, and becomes a
//! [`ConnReq`].

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use super::ConnReq;
use crate::address::{self, Side};
use crate::error::Result;
use crate::plan::Plan;
use crate::verbs::{CmId, Deadline, Resolution};

/// A request for a connection while its address and route are being resolved, without blocking: see
/// [`ConnReq::resolve`].
///
/// Its descriptor ([`AsFd`]) is readable when [`advance`](Self::advance) has something to do.
/// Dropping it gives up.
#[derive(Debug)]
#[must_use = "nothing happens before `advance`"]
pub struct Resolving {
    id: CmId,
    addr: SocketAddr,
    stage: Resolution,
    /// By then the kernel must have ended this stage.
    deadline: Deadline,
    /// The limit of each stage.
    limit: Duration,
    plan: Plan,
}

impl Resolving {
    /// Asks the kernel for the address. Each stage has `limit`.
    pub(crate) fn new(plan: Plan, addr: SocketAddr, limit: Duration) -> Result<Self> {
        let addr = address::usable(addr)?;
        let mut id = CmId::to_connect(plan.peer.pd().context())?;
        id.resolve_addr(addr, limit)
            .map_err(|error| address::hint(error, addr, Side::Remote))?;
        Ok(Self {
            id,
            addr,
            stage: Resolution::Addr,
            deadline: Resolution::deadline(limit),
            limit,
            plan,
        })
    }

    /// Goes on as far as it can without waiting for the network. A single call may be enough. The
    /// last call makes the queues, which takes the device some milliseconds.
    ///
    /// `Break` has the request, which can be connected. `Continue` means that the kernel is at
    /// work: wait until the descriptor is readable.
    ///
    /// # Errors
    ///
    /// As [`ConnReq::new`]. The request is gone.
    pub fn advance(self) -> Result<ControlFlow<ConnReq, Self>> {
        self.advance_until(Deadline::after(Duration::ZERO))
    }

    /// By then [`advance`](Self::advance) always has something to do.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Waits until the address and the route are resolved, each within its limit.
    pub(crate) fn wait(self) -> Result<ConnReq> {
        self.wait_until(Deadline::Never)
    }

    pub(crate) fn wait_until(self, deadline: Deadline) -> Result<ConnReq> {
        match self.advance_until(deadline)? {
            ControlFlow::Break(req) => Ok(req),
            ControlFlow::Continue(resolving) => Err(resolving.stage.timed_out()),
        }
    }

    fn advance_until(mut self, deadline: Deadline) -> Result<ControlFlow<ConnReq, Self>> {
        let addr = self.addr;
        let hint = |error| address::hint(error, addr, Side::Remote);
        loop {
            let until = deadline.earlier(self.deadline);
            if !self.id.resolved(self.stage, until).map_err(hint)? {
                return if self.deadline.has_passed() {
                    Err(hint(self.stage.timed_out()))
                } else {
                    Ok(ControlFlow::Continue(self))
                };
            }
            if self.stage == Resolution::Route {
                break;
            }
            self.plan.peer.pd().check_device(&self.id)?;
            self.id.resolve_route(self.limit).map_err(hint)?;
            self.stage = Resolution::Route;
            self.deadline = Resolution::deadline(self.limit);
        }
        let req = ConnReq::outgoing(&self.plan, self.id);
        req.map(ControlFlow::Break).map_err(|(error, _id)| error)
    }
}

impl AsFd for Resolving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

impl AsRawFd for Resolving {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
