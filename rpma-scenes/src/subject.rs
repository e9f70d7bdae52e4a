//! [`Subject`]: a log under test, as the scenes see it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use rpma::sim::{Host, Platform};

/// The result of a call of a subject. Its error is any error, and a text in the reports.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A log under test, whose calls are awaited. The servers and the writers are tasks of one thread of
/// tokio, in virtual time. [`blocking::Subject`](crate::blocking::Subject) is for threads.
///
/// Only a suite makes a [`Server`] and an [`Opening`]. For tests of your own, such as one that repeats
/// the history of a report, put the bodies into functions of an address and a path.
///
/// Each future is polled on its host. So opening a device and opening persistent memory need no
/// [`Host::enter`], unless the subject does this in a task of its own.
pub trait Subject: Send + Sync + 'static {
    /// The log, as its writer has it.
    type Log: Log;

    /// Whether its calls block: each server and each task then has a thread. Only
    /// [`Blocking`](crate::Blocking) sets it.
    #[doc(hidden)]
    const BLOCKS: bool = false;

    /// Its numbers, and its abilities.
    fn shape(&self) -> Shape;

    /// The program of a server, until its host ends it. It finds the memory as an earlier run of the
    /// program has left it.
    ///
    /// # Errors
    ///
    /// The suite starts the program again when the scene wants the server to run.
    fn serve(&self, server: Server) -> impl Future<Output = Result<()>> + Send;

    /// Opens the log as its next writer. The epoch 1 makes the log, and each later writer has a
    /// higher epoch. A later one makes no log while a server is away that may have it: those that it
    /// reaches may be new, or have lost their memory.
    /// If the first writer dies before it has opened the log, later ones may make it or fail.
    ///
    /// # Errors
    ///
    /// The log cannot be opened, or a later epoch finds none, or no record would be durable.
    fn open(&self, opening: Opening) -> impl Future<Output = Result<Self::Log>> + Send;
}

/// A log that is open. Dropping it ends the writer.
pub trait Log: Send + Sync + 'static {
    /// Appends a record. Each record of a scene has other bytes. A log may refuse an empty record,
    /// and one that is longer than [its longest](Shape::with_records).
    fn append(&self, record: &[u8]) -> impl Future<Output = Appended> + Send;

    /// All records, in their order.
    ///
    /// # Errors
    ///
    /// The records cannot be read. A scene fails then, unless it has disturbed the log.
    fn read_all(&self) -> impl Future<Output = Result<Vec<Record>>> + Send;

    /// Forgets the records before that of a position, which [`append`](Self::append) has returned.
    /// After `Ok`, their room can be used again. Other tasks may append meanwhile. A position before
    /// that of an earlier truncation changes nothing, with `Ok` or an error.
    ///
    /// # Errors
    ///
    /// The outcome is unknown, and the records may be read or not. Or the log cannot do that: see
    /// [`Ability::Truncates`].
    fn truncate(&self, to: u64) -> impl Future<Output = Result<()>> + Send {
        async move { Err(format!("no record before {to} can be forgotten").into()) }
    }

    /// Replaces a server by one with empty memory, while the log goes on: both by their addresses.
    /// After `Ok` the new server has the place of the old one, which counts for nothing. The old one
    /// may be gone. This has to succeed while the new server runs, and as many others as a record has
    /// copies.
    ///
    /// # Errors
    ///
    /// The outcome is unknown, and the same call may come again. Or the new server has a place in the
    /// log already, or the log cannot do that: see [`Ability::Replaces`].
    fn replace(&self, old: SocketAddr, new: SocketAddr) -> impl Future<Output = Result<()>> + Send {
        async move { Err(format!("{old} cannot be replaced by {new}").into()) }
    }
}

/// The outcome of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The record is durable, at a position that is higher than those of the records before it.
    Durable(u64),
    /// The record is not in the log, and never will be.
    Refused(String),
    /// The record may be in the log now, or later.
    Unknown(String),
}

/// A record of a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its position: that of [`Appended::Durable`].
    pub at: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, bytes } = self;
        let first = &bytes[..bytes.len().min(16)];
        write!(f, "{} bytes at {at}, {first:02x?}", bytes.len())
    }
}

/// A server that is to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Server {
    /// The address at which it listens.
    pub addr: SocketAddr,
    /// Its persistent memory, for `PmemMap::open`.
    pub path: PathBuf,
    /// The bytes of that memory: those of [`Shape::new`], rounded up.
    pub len: usize,
    /// Its number, from 0: `server-0` in reports.
    pub number: usize,
    /// Its host.
    pub host: Host,
}

/// A writer that is to open the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    /// The address of the writer's device.
    pub addr: IpAddr,
    /// The addresses of all servers in any order, also of those that do not run. After
    /// [`Log::replace`] it may be an old list: the log then opens with its last list, or not at all.
    pub servers: Vec<SocketAddr>,
    /// The epoch of the writer, which is below 2³¹.
    pub epoch: u64,
    /// The platform of the servers.
    pub platform: Platform,
    /// Its host.
    pub host: Host,
}

/// The numbers of a log, and its abilities.
#[derive(Clone, Debug)]
pub struct Shape {
    pub(crate) servers: usize,
    pub(crate) copies: usize,
    pub(crate) memory: usize,
    pub(crate) longest: usize,
    pub(crate) records: usize,
    lacks: Vec<Ability>,
}

impl Shape {
    /// The least length of the longest record.
    pub const LEAST_LONGEST: usize = 40;
    /// The least number of records.
    pub const LEAST_RECORDS: usize = 12;

    /// A log on so many servers, with `memory` bytes of persistent memory each. A record is durable
    /// with so many copies. The log has all [abilities](Ability), records of up to 200 bytes, and
    /// room for 15 of them.
    ///
    /// # Panics
    ///
    /// If the number of copies is not one from 1 to the number of servers, or for no memory.
    #[must_use]
    pub fn new(servers: usize, copies: usize, memory: usize) -> Self {
        assert!((1..=servers).contains(&copies) && memory > 0);
        Self {
            servers,
            copies,
            memory,
            longest: 200,
            records: 15,
            lacks: Vec::new(),
        }
    }

    /// Sets the bytes of the longest record, and the number of such records for which the log has
    /// room before any is forgotten.
    ///
    /// # Panics
    ///
    /// For fewer than [`LEAST_LONGEST`](Self::LEAST_LONGEST) bytes, or
    /// [`LEAST_RECORDS`](Self::LEAST_RECORDS) records.
    #[must_use]
    pub fn with_records(mut self, longest: usize, records: usize) -> Self {
        assert!(longest >= Self::LEAST_LONGEST && records >= Self::LEAST_RECORDS);
        (self.longest, self.records) = (longest, records);
        self
    }

    /// The log lacks this ability. Scenes that need it are not tried.
    #[must_use]
    pub fn without(mut self, ability: Ability) -> Self {
        self.lacks.push(ability);
        self
    }

    /// Whether the log lacks an ability. If all servers have each record, or if one has it alone, a
    /// writer needs all of them.
    pub(crate) fn lacks(&self, ability: Ability) -> bool {
        let needs_all = self.copies == self.servers || self.copies == 1;
        let of_spare = matches!(
            ability,
            Ability::GoesOn | Ability::Returns | Ability::Refills | Ability::Replaces
        );
        self.lacks.contains(&ability) || needs_all && of_spare
    }

    /// So many servers are enough for a new writer.
    pub(crate) fn quorum(&self) -> usize {
        if self.lacks(Ability::GoesOn) {
            return self.servers;
        }
        self.copies.max(self.servers - self.copies + 1)
    }
}

/// An ability that not every log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ability {
    /// Records can be forgotten: [`Log::truncate`].
    Truncates,
    /// Several tasks append at the same time.
    Shares,
    /// The log opens, and goes on, while some servers are away: as many as are not needed for the
    /// copies of a record.
    GoesOn,
    /// A server that was away gets the records that it has missed, while the writer goes on.
    Returns,
    /// A server may come back with empty memory, to a new writer or to the same one.
    Refills,
    /// Another server takes the place of one, for good: [`Log::replace`].
    Replaces,
    /// A writer takes over from one that still lives, and that one can append no more.
    TakesOver,
    /// A record whose bytes were damaged in the memory of one server is not returned.
    DetectsDamage,
}

impl Ability {
    fn text(self) -> &'static str {
        match self {
            Self::Truncates => "to forget records",
            Self::Shares => "to append from several tasks",
            Self::GoesOn => "to go on while a server is away",
            Self::Returns => "to bring a server up to date that comes back",
            Self::Refills => "to take a server with empty memory",
            Self::Replaces => "to replace a server by another one",
            Self::TakesOver => "to take over from a writer that lives",
            Self::DetectsDamage => "to detect damaged records",
        }
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
