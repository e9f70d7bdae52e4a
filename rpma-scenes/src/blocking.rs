//! A subject whose calls block: each server and each task of a scene has a thread.

use std::net::SocketAddr;

use crate::subject::{self, Appended, Opening, Record, Result, Server, Shape};

/// A log under test, whose calls block. [`Blocking`] makes a [`Subject`](crate::Subject) of it.
///
/// A seed orders the threads. So a subject takes its locks from `rpma::sync` and its own threads from
/// `rpma::thread`.
pub trait Subject: Send + Sync + 'static {
    /// The log, as its writer has it.
    type Log: Log;

    /// As [`Subject::shape`](crate::Subject::shape).
    fn shape(&self) -> Shape;

    /// As [`Subject::serve`](crate::Subject::serve). It has a thread on the server's host. When the
    /// host ends its programs, each call of rpma fails, and the function has to return.
    ///
    /// # Errors
    ///
    /// As [`Subject::serve`](crate::Subject::serve).
    fn serve(&self, server: Server) -> Result<()>;

    /// As [`Subject::open`](crate::Subject::open), in a thread on the writer's host.
    ///
    /// # Errors
    ///
    /// As [`Subject::open`](crate::Subject::open).
    fn open(&self, opening: Opening) -> Result<Self::Log>;
}

/// A log that is open: as [`Log`](crate::Log).
pub trait Log: Send + Sync + 'static {
    /// As [`Log::append`](crate::Log::append).
    fn append(&self, record: &[u8]) -> Appended;

    /// As [`Log::read_all`](crate::Log::read_all).
    ///
    /// # Errors
    ///
    /// As [`Log::read_all`](crate::Log::read_all).
    fn read_all(&self) -> Result<Vec<Record>>;

    /// As [`Log::truncate`](crate::Log::truncate).
    ///
    /// # Errors
    ///
    /// As [`Log::truncate`](crate::Log::truncate).
    fn truncate(&self, to: u64) -> Result<()> {
        Err(format!("no record before {to} can be forgotten").into())
    }

    /// As [`Log::replace`](crate::Log::replace).
    ///
    /// # Errors
    ///
    /// As [`Log::replace`](crate::Log::replace).
    fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<()> {
        Err(format!("{old} cannot be replaced by {new}").into())
    }
}

/// A subject with calls that block, for [`Suite::new`](crate::Suite::new).
#[derive(Clone, Debug)]
pub struct Blocking<S>(pub S);

impl<S: Subject> subject::Subject for Blocking<S> {
    type Log = BlockingLog<S::Log>;

    const BLOCKS: bool = true;

    fn shape(&self) -> Shape {
        self.0.shape()
    }

    async fn serve(&self, server: Server) -> Result<()> {
        self.0.serve(server)
    }

    async fn open(&self, opening: Opening) -> Result<Self::Log> {
        self.0.open(opening).map(BlockingLog)
    }
}

/// The log of a [`Blocking`] subject.
#[derive(Debug)]
pub struct BlockingLog<L>(L);

impl<L: Log> subject::Log for BlockingLog<L> {
    async fn append(&self, record: &[u8]) -> Appended {
        self.0.append(record)
    }

    async fn read_all(&self) -> Result<Vec<Record>> {
        self.0.read_all()
    }

    async fn truncate(&self, to: u64) -> Result<()> {
        self.0.truncate(to)
    }

    async fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<()> {
        self.0.replace(old, new)
    }
}
