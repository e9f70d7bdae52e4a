//! The results of a server's calls.

use std::fmt;
use std::net::SocketAddr;

use super::{Asked, Client};
use crate::error::Error;
use crate::event::ConnEvent;
use crate::failure::Failure;
use crate::offer::Identity;
use crate::refusal::Refusal;
use crate::verbs::{DeviceEventKind, Wc};

/// The result of [`Server::next`](super::Server::next).
#[derive(Debug)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "it is returned and matched, and no collection has many of them"
)]
pub enum Served {
    /// A client asks to be admitted. The server has judged its offer.
    Asks(Asked),
    /// The connection of a client that was admitted is established.
    Arrived(Client),
    /// Operations of this connection completed. The second value is the number of completions,
    /// which are at the beginning of the caller's slice. Completions of
    /// [`Method::Server`](crate::commit::Method::Server) are not among them.
    Completions(Client, usize),
    /// A client is gone. The server has cut it off, unless [`Gone::not_cut_off`] is `Some`.
    Gone(Box<Gone>),
    /// The server refused a request by itself, or [`Server::answer`](super::Server::answer) did.
    Refused(Box<Refused>),
    /// The endpoint could not take a request, or failed
    /// ([`Happened::Failed`](crate::wait::Happened::Failed)). The endpoint goes on after a rest of
    /// 100 ms. With `ENODEV` its device is gone: drop the server. [`Server::serve`] also passes on
    /// [`Error::PartLost`] in this way.
    ///
    /// [`Server::serve`]: super::Server::serve
    Failed(Error),
    /// An event of the device of this name.
    Device(Box<str>, DeviceEventKind),
    /// A [`Waker`](crate::wait::Waker) was called.
    Woken,
}

/// In words, for the program's log.
impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asks(asked) => {
                let key = asked.identity().key;
                write!(f, "a client of the key {key:#x} asks to be admitted")
            }
            Self::Arrived(_) => f.write_str("a client is connected"),
            Self::Completions(_, count) => write!(f, "{count} operations of a client completed"),
            Self::Gone(gone) => gone.fmt(f),
            Self::Refused(refused) => write!(f, "a client is refused: {refused}"),
            Self::Failed(error) => error.fmt(f),
            Self::Device(device, kind) => write!(f, "the device {device}: {kind:?}"),
            Self::Woken => f.write_str("the server was woken"),
        }
    }
}

/// A client that is gone.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gone {
    /// The client, whose name is never used again.
    pub client: Client,
    /// The client's key, epoch and instance.
    pub identity: Identity,
    /// Why the server ended the connection.
    pub reason: Reason,
    /// The first failure of the connection, if it failed.
    pub failure: Option<Failure>,
    /// The completions of the program's operations that were not returned yet. The outcome of an
    /// operation without a completion is unknown.
    pub completions: Vec<Wc>,
    /// `Some` if the connection could not be cut off, with the reason. Then writes of the client
    /// may still land. The server refuses the key until its region is deregistered
    /// ([`Server::release`](super::Server::release)).
    pub not_cut_off: Option<Error>,
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, reason) = (self.identity.key, &self.reason);
        write!(f, "the client of the key {key:#x} is gone: {reason}")?;
        match &self.not_cut_off {
            Some(error) => write!(f, "; it could not be cut off: {error}"),
            None => Ok(()),
        }
    }
}

/// Why a connection ended: the reason of a [`Gone`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The connection manager reported the connection's end, or the keep-alive found that the
    /// client is gone ([`ConnEvent::Lost`]; [`Gone::failure`] has the reason).
    Ended(ConnEvent),
    /// The connection, or a verb of it, failed on this side. This is also the reason for a client
    /// that used memory without the rights for it, if the device reported the error here.
    Failed(Error),
    /// A client of the same key was admitted.
    Replaced,
    /// A request by the server's method was broken, or outside of the client's memory or limits:
    /// the client's program has a fault. The server has executed no part of the request.
    Misused(Error),
    /// The connection was not established in time.
    NotEstablished,
    /// The program cut off the client.
    CutOff,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(event) => event.fmt(f),
            Self::Failed(error) => error.fmt(f),
            Self::Replaced => f.write_str("a client of the same key was admitted"),
            Self::Misused(error) => write!(f, "the client's request was refused: {error}"),
            Self::NotEstablished => f.write_str("the connection was not established in time"),
            Self::CutOff => f.write_str("the program cut it off"),
        }
    }
}

/// A client that the server refused: by itself, in [`Server::answer`](super::Server::answer), or in
/// [`Server::admit`](super::Server::admit).
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused {
    /// The code, epoch and words that the client finds in
    /// [`ConnEvent::Rejected`](crate::ConnEvent::Rejected). A client that is gone got none. If an
    /// admission failed after the client had been accepted, the connection is closed instead.
    pub refusal: Refusal,
    /// The cause, if it is on this side: a wrong part, or a verb that failed. From
    /// [`Server::answer`](super::Server::answer) also that the client gave up before it was
    /// refused. `None` if the server refused the client by itself.
    pub error: Option<Error>,
    /// The client's identity, if its offer has one.
    pub identity: Option<Identity>,
    /// The client's address.
    pub peer_addr: Option<SocketAddr>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => error.fmt(f),
            None => self.refusal.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Box<Refused>> for Error {
    fn from(refused: Box<Refused>) -> Self {
        match refused.error {
            Some(error) => error,
            None => Self::invalid(refused.refusal.words()),
        }
    }
}
