//! The log of the crate `rpma-log`, awaited and on threads.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::Peer;
use rpma::commit::Method;
use rpma::pmem::Ddio;
use rpma::sim::Platform;
use rpma_async::Reactor;
use rpma_log::{Fault, Log, LogCfg, LogError, ServerCfg, blocking as threads};
use rpma_scenes::{self as scenes, Appended, Opening, Record, Result, Server, Shape, blocking};

/// Longer than an entry of the scenes.
const RING: u64 = 4096;

pub(crate) struct OfRpmaLog {
    fault: Fault,
    /// The method of the commits. `None`: by the platform.
    method: Option<Method>,
    servers: usize,
    copies: usize,
}

impl OfRpmaLog {
    pub(crate) fn right() -> Self {
        Self::with(Fault::Nothing)
    }

    pub(crate) fn with(fault: Fault) -> Self {
        // These faults are in flushes.
        let flushes = matches!(fault, Fault::Visible | Fault::Platform);
        let method = flushes.then_some(Method::Reading);
        Self {
            fault,
            method,
            servers: 3,
            copies: 2,
        }
    }

    /// A right log with other numbers.
    pub(crate) fn of(servers: usize, copies: usize) -> Self {
        Self {
            servers,
            copies,
            ..Self::right()
        }
    }

    fn server(&self, server: &Server) -> ServerCfg {
        let mut cfg = ServerCfg::new(server.addr, &server.path);
        cfg.set_keys(1).set_ring(RING).set_fault(self.fault);
        if server.host.platform() == Platform::AdrDdioOff {
            cfg.set_ddio(Ddio::Off);
        }
        cfg
    }

    fn writer(&self, opening: &Opening) -> LogCfg {
        let mut cfg = LogCfg::new(&opening.servers, self.copies, opening.epoch);
        cfg.set_ring(RING)
            .set_create(opening.epoch == 1)
            .set_follow(true)
            .set_limit(Duration::from_secs(15))
            .set_fault(self.fault);
        // On eADR each device makes them durable by itself.
        let usual = match opening.platform {
            Platform::Eadr => Method::Reading,
            _ => Method::Server,
        };
        cfg.set_method(self.method.unwrap_or(usual));
        cfg
    }
}

impl scenes::Subject for OfRpmaLog {
    type Log = Open;

    fn shape(&self) -> Shape {
        let cfg = {
            let mut cfg = ServerCfg::new(([0; 4], 0).into(), "");
            cfg.set_keys(1).set_ring(RING);
            cfg
        };
        let place = cfg.place(1).expect("a key");
        // An entry of 200 bytes takes 256, and a pad up to as many.
        Shape::new(self.servers, self.copies, place.end).with_records(200, 15)
    }

    async fn serve(&self, server: Server) -> Result<()> {
        let peer = Peer::at(&server.addr.ip().to_string())?;
        let listening = self.server(&server).listen()?;
        let mut serving = rpma_async::Server::new(&Reactor::spawn(&peer)?, listening)?;
        Ok(serving.serve(drop).await?)
    }

    async fn open(&self, opening: Opening) -> Result<Open> {
        let reactor = Reactor::spawn(&Peer::at(&opening.addr.to_string())?)?;
        Ok(Open(Log::open(&reactor, &self.writer(&opening)).await?))
    }
}

fn appended(outcome: std::result::Result<u64, LogError>) -> Appended {
    match outcome {
        Ok(at) => Appended::Durable(at),
        Err(error @ LogError::Unknown { .. }) => Appended::Unknown(error.to_string()),
        Err(error) => Appended::Refused(error.to_string()),
    }
}

fn read_all(log: &Log) -> Result<Vec<Record>> {
    let (mut at, mut all) = (log.bounds().0, Vec::new());
    while let Some(record) = log.read(at)? {
        at = record.next;
        all.push(Record {
            at: record.at,
            bytes: record.bytes,
        });
    }
    Ok(all)
}

pub(crate) struct Open(Log);

impl scenes::Log for Open {
    async fn append(&self, record: &[u8]) -> Appended {
        appended(self.0.append(record).await)
    }

    async fn read_all(&self) -> Result<Vec<Record>> {
        read_all(&self.0)
    }

    async fn truncate(&self, to: u64) -> Result<()> {
        Ok(self.0.truncate(to).await?)
    }

    async fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<()> {
        Ok(self.0.replace(old, new).await?)
    }
}

/// The same log on threads.
pub(crate) struct OnThreads(pub(crate) OfRpmaLog);

impl blocking::Subject for OnThreads {
    type Log = OpenOnThreads;

    fn shape(&self) -> Shape {
        scenes::Subject::shape(&self.0)
    }

    fn serve(&self, server: Server) -> Result<()> {
        Ok(self.0.server(&server).listen()?.serve(drop)?)
    }

    fn open(&self, opening: Opening) -> Result<OpenOnThreads> {
        let peer = Peer::at(&opening.addr.to_string())?;
        let mut cfg = self.0.writer(&opening);
        // So a scene has to open it with the list that it has.
        cfg.set_follow(false);
        Ok(OpenOnThreads(threads::Log::open(&peer, &cfg)?))
    }
}

pub(crate) struct OpenOnThreads(threads::Log);

impl blocking::Log for OpenOnThreads {
    fn append(&self, record: &[u8]) -> Appended {
        appended(self.0.append(record))
    }

    fn read_all(&self) -> Result<Vec<Record>> {
        read_all(&self.0)
    }

    fn truncate(&self, to: u64) -> Result<()> {
        Ok(self.0.truncate(to)?)
    }

    fn replace(&self, old: SocketAddr, new: SocketAddr) -> Result<()> {
        Ok(self.0.replace(old, new)?)
    }
}
