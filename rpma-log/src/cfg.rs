//! [`LogCfg`]: the settings of a log, and their checks.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use rpma::ConnCfg;
use rpma::commit::Method;

use crate::fault::Fault;
use crate::format::{LINE, Tail};
use crate::{GROUP, LogError, SILENCE};

/// The shortest ring: a record has at most half of it.
const LEAST_RING: u64 = 16 * LINE;
/// The writer has the ring in its memory.
const MOST_RING: u64 = 1 << 40;
/// Steps that could never be done in time would be tried again without a pause.
const LEAST_LIMIT: Duration = Duration::from_millis(10);
/// The most servers of a log: the members of a set.
const MOST_SERVERS: usize = 64;

/// The settings of a log, for its writer.
#[derive(Clone, Debug)]
pub struct LogCfg {
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) copies: usize,
    pub(crate) key: u64,
    pub(crate) epoch: u64,
    pub(crate) method: Method,
    pub(crate) ring: u64,
    pub(crate) create: bool,
    pub(crate) one_host: bool,
    pub(crate) follow: bool,
    pub(crate) limit: Duration,
    pub(crate) room_limit: Option<Duration>,
    pub(crate) silence: Duration,
    fault: Fault,
}

impl LogCfg {
    /// A log on these servers, whose records are acknowledged with so many copies. The number of
    /// servers and of copies are part of the log: they stay as they were when it was created.
    /// Two of three, or three of five, keep all acknowledged records if a server is destroyed.
    ///
    /// `epoch` is higher than that of each earlier writer, from 1 to [`Tail::MOST_EPOCH`]. A lease, a
    /// consensus service or an operator gives it.
    #[must_use]
    pub fn new(servers: &[SocketAddr], copies: usize, epoch: u64) -> Self {
        Self {
            servers: servers.to_vec(),
            copies,
            key: 1,
            epoch,
            method: Method::Reading,
            ring: 1 << 20,
            create: false,
            one_host: false,
            follow: false,
            limit: Duration::from_secs(30),
            room_limit: None,
            silence: SILENCE,
            fault: Fault::Nothing,
        }
    }

    /// Sets the key by which the servers find the memory of this log (1 by default).
    pub fn set_key(&mut self, key: u64) -> &mut Self {
        self.key = key;
        self
    }

    /// Sets the epoch, as [`new`](Self::new).
    pub fn set_epoch(&mut self, epoch: u64) -> &mut Self {
        self.epoch = epoch;
        self
    }

    /// Sets the method of the commits ([`Method::Reading`] by default). A server refuses a method by
    /// which records would not be durable on its platform.
    pub fn set_method(&mut self, method: Method) -> &mut Self {
        self.method = method;
        self
    }

    /// Sets the bytes of the ring (1 MiB by default): a multiple of 64, from 1024 to 2^40. The
    /// servers have the same number ([`ServerCfg::set_ring`](crate::ServerCfg::set_ring)). The
    /// writer has the ring in its memory as well.
    pub fn set_ring(&mut self, bytes: u64) -> &mut Self {
        self.ring = bytes;
        self
    }

    /// Creates the log, on servers without one (`false` by default). K and N - K + 1 of them have to
    /// be reached, and the others get the log later.
    pub fn set_create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Permits servers on one host, or in one failure domain, for tests: a loss of power ends all of
    /// them. Otherwise they are [`LogError::Settings`]. If the log is open before the second one is
    /// reached, that one is away, and nothing is written to it.
    pub fn permit_one_host(&mut self) -> &mut Self {
        self.one_host = true;
        self
    }

    /// Follows the list of servers that the log has (`false` by default), if it has others than these
    /// settings because one was replaced. Otherwise that is [`LogError::OtherServers`].
    pub fn set_follow(&mut self, follow: bool) -> &mut Self {
        self.follow = follow;
        self
    }

    /// Sets the limit of each call, and of each step towards a server (30 s by default): at least 10
    /// ms. After half of it, a slow server is set aside if it holds the memory of commits, or the room
    /// of truncated records. No append waits longer than a quarter of it for a server that comes back.
    pub fn set_limit(&mut self, limit: Duration) -> &mut Self {
        self.limit = limit;
        self
    }

    /// Sets the time for which an append waits for room in a full log (by default as
    /// [`set_limit`](Self::set_limit)). With `Duration::ZERO` it fails at once.
    pub fn set_room_limit(&mut self, limit: Duration) -> &mut Self {
        self.room_limit = Some(limit);
        self
    }

    /// Sets the time after which a silent server counts as gone (10 s by default): the keep-alive of
    /// its connection ([`rpma::ConnCfg::set_keep_alive`]).
    pub fn set_silence(&mut self, silence: Duration) -> &mut Self {
        self.silence = silence;
        self
    }

    /// Puts a fault into the log, for tests of tests.
    #[cfg(feature = "faults")]
    pub fn set_fault(&mut self, fault: Fault) -> &mut Self {
        self.fault = fault;
        self
    }

    /// Known when the log is compiled, without the feature `faults`.
    pub(crate) fn fault(&self) -> Fault {
        if cfg!(feature = "faults") {
            self.fault
        } else {
            Fault::Nothing
        }
    }

    /// A new writer reads so many servers: each acknowledged record is on one of them.
    pub(crate) fn read(&self) -> usize {
        self.servers.len() - self.copies + 1
    }

    pub(crate) fn most_entry(&self) -> u64 {
        self.ring.min(2 * GROUP) / 2
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        let Self {
            copies,
            ring,
            epoch,
            ..
        } = *self;
        let (count, addrs) = (self.servers.len(), BTreeSet::from_iter(&self.servers));
        let wrong = if !(1..=MOST_SERVERS).contains(&count) {
            format!("a log of {count} servers: it has 1 to {MOST_SERVERS}")
        } else if addrs.len() < count {
            "an address is there twice: each server of a log has an address of its own".to_owned()
        } else if !(1..=count).contains(&copies) {
            format!("{copies} copies on {count} servers: a record has 1 to {count}")
        } else if self.key == 0 {
            "the key is 0: a key is any other number".to_owned()
        } else if let Err(wrong) = check_ring(ring) {
            wrong
        } else if let Err(wrong) = ConnCfg::new().set_keep_alive(Some(self.silence)) {
            wrong.to_string()
        } else if self.limit < LEAST_LIMIT {
            format!(
                "a limit of {:?}: it has at least {LEAST_LIMIT:?}",
                self.limit
            )
        } else if !(1..=Tail::MOST_EPOCH).contains(&epoch) {
            format!(
                "the epoch {epoch}: epochs are from 1 to {}",
                Tail::MOST_EPOCH
            )
        } else {
            return Ok(());
        };
        Err(LogError::Settings(wrong))
    }
}

pub(crate) fn check_ring(ring: u64) -> Result<(), String> {
    if (LEAST_RING..=MOST_RING).contains(&ring) && ring % LINE == 0 {
        return Ok(());
    }
    Err(format!(
        "a ring of {ring} bytes: it has at least {LEAST_RING}, at most {MOST_RING}, and a multiple of \
         {LINE}"
    ))
}
