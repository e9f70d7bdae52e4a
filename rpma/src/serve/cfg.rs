//! [`ServerCfg`]: the settings of a [`Server`](super::Server).

use std::sync::Arc;
use std::time::Duration;

use crate::conn_cfg::ConnCfg;
use crate::error::{Error, Result};
use crate::method::Limits;
use crate::peer::Peer;
use crate::peer_cfg::PeerCfg;
use crate::pmem::{Ddio, PmemMap};
use crate::site;
use crate::verbs::Notify;

/// The settings of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct ServerCfg {
    /// `None`: not declared.
    pub(super) platform: Option<PeerCfg>,
    pub(super) ddio: Ddio,
    pub(super) domain: Option<u64>,
    pub(super) conn: ConnCfg,
    pub(super) commits: Option<Limits>,
    pub(super) data: Arc<[u8]>,
    pub(super) most_clients: usize,
    pub(super) most_questions: usize,
    pub(super) answer_limit: Duration,
    pub(super) establish_limit: Duration,
}

impl Default for ServerCfg {
    fn default() -> Self {
        Self {
            platform: None,
            ddio: Ddio::On,
            domain: None,
            conn: ConnCfg::new(),
            commits: None,
            data: Arc::default(),
            most_clients: 100,
            most_questions: 16,
            answer_limit: Duration::from_secs(5),
            establish_limit: Duration::from_secs(10),
        }
    }
}

impl ServerCfg {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the declaration of this host's platform for clients. [`PeerCfg::detect`] makes the
    /// right one. Without this call, [`Server::new`](super::Server::new) declares no way to make
    /// data durable, and [`Server::listen`](super::Server::listen) declares the platform that it
    /// detects.
    pub fn set_platform(&mut self, platform: &PeerCfg) -> &mut Self {
        self.platform = Some(*platform);
        self
    }

    /// Sets whether writes of the adapter go to the processor's caches, for the platform that
    /// [`Server::listen`](super::Server::listen) detects. The default is [`Ddio::On`], under which
    /// less is durable. No program can find out the setting: it is the operator's word.
    pub fn set_ddio(&mut self, ddio: Ddio) -> &mut Self {
        self.ddio = ddio;
        self
    }

    /// Sets the failure domain of this host by its name, which the server sends to its clients as a
    /// hash. Give virtual machines of one machine, and hosts with one power supply, the same one: a
    /// client refuses two copies in one failure domain. The default is none.
    ///
    /// # Errors
    ///
    /// As [`Site::set_failure_domain`](crate::Site::set_failure_domain).
    pub fn set_failure_domain(&mut self, name: &str) -> Result<&mut Self> {
        self.domain = Some(site::of_domain(name)?);
        Ok(self)
    }

    /// Sets how the connections of clients are made. The default is that of [`ConnCfg`].
    pub fn set_conn(&mut self, cfg: &ConnCfg) -> &mut Self {
        self.conn = cfg.clone();
        self
    }

    /// Serves the server's method with these limits: the server answers the requests of clients
    /// that named [`Method::Server`](crate::commit::Method::Server). `None`, the default, refuses
    /// these clients.
    ///
    /// Set no limits if the processor makes nothing durable on this platform
    /// ([`PeerCfg::get_processor_persists`]): [`Server::new`](super::Server::new) refuses such
    /// settings.
    pub fn set_commits(&mut self, limits: Option<Limits>) -> &mut Self {
        self.commits = limits;
        self
    }

    /// Sets the bytes that [`Server::answer`](super::Server::answer) sends to each client that it
    /// admits ([`Offer::data`]). The default is none.
    ///
    /// Bytes that do not fit into the answer make each admission fail ([`Offer::set_data`]).
    ///
    /// [`Offer::data`]: crate::Offer::data
    /// [`Offer::set_data`]: crate::Offer::set_data
    pub fn set_data(&mut self, data: &[u8]) -> &mut Self {
        self.data = data.into();
        self
    }

    /// Sets the maximum number of connections. The default is 100. A client of a key that has a
    /// connection takes the place of that connection. If no place is free, every other client is
    /// refused as full.
    ///
    /// Each connection has one file descriptor (`ulimit -n`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0.
    pub fn set_most_clients(&mut self, most: usize) -> Result<&mut Self> {
        self.most_clients = positive(most, "clients")?;
        Ok(self)
    }

    /// Sets the maximum number of [`Asked`](super::Asked) that are not answered yet, 16 by default.
    /// Requests beyond that are refused as full. If a writer (a key and an instance) asks again,
    /// its earlier request is refused.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0.
    pub fn set_most_questions(&mut self, most: usize) -> Result<&mut Self> {
        self.most_questions = positive(most, "questions")?;
        Ok(self)
    }

    /// Sets how long an answer may take. The default is 5 s. After this time the server refuses an
    /// [`Asked`](super::Asked) as full that the program has not answered. It ends a client as
    /// [`Reason::Failed`](super::Reason::Failed) if the answer to its commit finds no room in the
    /// send queue, which the program's own operations fill.
    pub fn set_answer_limit(&mut self, limit: Duration) -> &mut Self {
        self.answer_limit = limit;
        self
    }

    /// Sets how long a client that was admitted may take until its connection is established. The
    /// default is 10 s. After this time the server cuts the client off.
    pub fn set_establish_limit(&mut self, limit: Duration) -> &mut Self {
        self.establish_limit = limit;
        self
    }
}

impl ServerCfg {
    pub(super) fn declared(&self) -> PeerCfg {
        self.platform.unwrap_or_default()
    }

    /// The settings for this memory and device: with a declaration.
    pub(super) fn for_platform(&self, memory: &PmemMap, peer: &Peer) -> Result<Self> {
        let mut cfg = self.clone();
        if cfg.platform.is_none() {
            cfg.platform = Some(PeerCfg::detect(memory, peer, self.ddio)?);
        }
        cfg.check()?;
        Ok(cfg)
    }

    /// A durable answer on volatile memory would be a lie. A server waits with a
    /// [`Wait`](crate::wait::Wait), to which no client could be added.
    pub(super) fn check(&self) -> Result<()> {
        if self.conn.get_rcq_notify() == Notify::Solicited {
            return Err(Error::invalid(
                "the settings for connections ask for events of solicited messages alone, and a server would \
                 miss the others: leave out ConnCfg::set_rcq_notify",
            ));
        }
        if self.commits.is_some() && !self.declared().get_processor_persists() {
            return Err(Error::not_supported(
                "commits by the server's method on a platform whose processor makes nothing durable: \
                 the memory is volatile or virtual, or the kernel names no domain \
                 (PeerCfg::detect). Serve without ServerCfg::set_commits; if you know better, \
                 declare PeerCfg::set_processor_persists",
            ));
        }
        Ok(())
    }
}

fn positive(most: usize, of: &str) -> Result<usize> {
    match most {
        0 => Err(Error::invalid(format!(
            "the maximum number of {of} is 0: it must be at least 1"
        ))),
        most => Ok(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmem::{DevicePath, Domain};

    /// Promise: commits need a processor that makes data durable, or the program's own word.
    #[test]
    fn commits_by_domain() -> Result<()> {
        let check = |domain, commits: bool, vouches: bool| {
            let mut platform = PeerCfg::for_platform(domain, DevicePath::ThroughCaches);
            if vouches {
                platform.set_processor_persists(true);
            }
            let limits = Limits::new(1, 1, 64)?;
            let mut cfg = ServerCfg::new();
            cfg.set_platform(&platform)
                .set_commits(commits.then_some(limits));
            cfg.check()
        };
        for domain in [Domain::Volatile, Domain::Virtual, Domain::Unknown] {
            let error = check(domain, true, false).expect_err("refused");
            assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
            assert!(
                error.to_string().contains("makes nothing durable"),
                "{error}"
            );
            check(domain, false, false)?;
            check(domain, true, true)?;
        }
        check(Domain::MemoryController, true, false)?;
        check(Domain::CpuCaches, true, false)
    }
}
