//! [`Asked`]: a request that the program has to answer.
//!
//! The request is shared with the server, which rejects it after the limit for answers. The side
//! that takes it out answers it. The server's side is weak, so that dropping an [`Asked`] rejects.
//!
//! The question is a value, and no closure of the program is called. So the program may answer
//! later, or in another thread, and a panic of its answer is in its own code.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::Refused;
use crate::error::Error;
use crate::offer::{Identity, Offer};
use crate::refusal::{Refusal, RefusalCode};
use crate::request::Request;

/// The part of an [`Asked`] that its question shares.
#[derive(Debug)]
struct Shared {
    /// That of the question.
    number: u64,
    open: Mutex<Option<Open>>,
}

/// A request without an answer, and the share of the open questions.
pub(super) type Open = (Request, Arc<()>);

/// A client asks to be admitted.
///
/// The program answers with [`Server::admit`](super::Server::admit) or
/// [`Server::refuse`](super::Server::refuse), at once or later. Until then it may keep the `Asked`,
/// even in another thread.
///
/// Dropping the `Asked` rejects the request: the client may try again. Until an admission, the
/// server cuts off no connection and writes nothing.
#[must_use = "dropping it rejects the request"]
pub struct Asked {
    request: Arc<Shared>,
    offer: Offer,
    identity: Identity,
    kept: Option<Identity>,
    peer_addr: Option<SocketAddr>,
}

impl Asked {
    pub(super) fn new(
        open: Open,
        (offer, identity): (Offer, Identity),
        kept: Option<Identity>,
        number: u64,
    ) -> Self {
        Self {
            peer_addr: open.0.peer_addr().ok(),
            request: Arc::new(Shared {
                number,
                open: Mutex::new(Some(open)),
            }),
            offer,
            identity,
            kept,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.request.number
    }

    /// Returns the key, the epoch and the instance of the client.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the identity that the directory kept for the key when the client asked. It is `None`
    /// for a new key. If the kept writer comes back, this is the client's own identity. If another
    /// writer takes over, this identity has a lower epoch.
    #[must_use]
    pub fn kept(&self) -> Option<Identity> {
        self.kept
    }

    /// Returns the client's offer: its method, and the bytes that the client's program sends.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the address of the client. `None` if the connection manager has none, which does not
    /// happen over IP.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer_addr
    }

    pub(super) fn refused(&self, refusal: Refusal, error: Option<Error>) -> Box<Refused> {
        Box::new(Refused {
            refusal,
            error,
            identity: Some(self.identity),
            peer_addr: self.peer_addr,
        })
    }

    pub(super) fn question(&self, at: Option<Instant>) -> Question {
        Question {
            at,
            request: Arc::downgrade(&self.request),
            identity: self.identity,
        }
    }

    /// Takes the request, which the server may have rejected after the limit.
    pub(super) fn take(&self) -> Option<Request> {
        take(&self.request)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(request) = self.take() {
            let refusal = Refusal::new(RefusalCode::Full, "the server did not answer");
            if let Err(error) = request.reject(&refusal.encode()) {
                log::info!("a client gave up before it was rejected: {error}");
            }
        }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("identity", &self.identity)
            .field("kept", &self.kept)
            .field("peer_addr", &self.peer_addr)
            .finish_non_exhaustive()
    }
}

/// The server's side of an [`Asked`].
#[derive(Debug)]
pub(super) struct Question {
    /// When it is rejected; never without a limit.
    pub(super) at: Option<Instant>,
    request: Weak<Shared>,
    pub(super) identity: Identity,
}

impl Question {
    pub(super) fn is_open(&self) -> bool {
        self.request.strong_count() > 0
    }

    /// Whether it counts as open: its share goes with the request.
    pub(super) fn has_share(&self) -> bool {
        let shared = self.request.upgrade();
        shared.is_some_and(|of| lock(&of).is_some())
    }

    pub(super) fn is_of(&self, asked: &Asked) -> bool {
        std::ptr::eq(self.request.as_ptr(), Arc::as_ptr(&asked.request))
    }

    pub(super) fn take(&self) -> Option<Request> {
        take(&*self.request.upgrade()?)
    }
}

fn take(request: &Shared) -> Option<Request> {
    let mut open = lock(request);
    open.take().map(|(request, _share)| request)
}

fn lock(request: &Shared) -> MutexGuard<'_, Option<Open>> {
    // Nothing panics while it is locked.
    request.open.lock().unwrap_or_else(PoisonError::into_inner)
}
