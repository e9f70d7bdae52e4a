//! An append to a log on three servers, of which two make it acknowledged.

use rpma::Result;
use rpma_async::{Reactor, Server};
use rpma_log::{Log, LogCfg, ServerCfg};

use crate::awaited::{alone, row};
use crate::common::prelude::*;
use crate::{LEN, ROUNDS};

/// A log on servers of their own hosts.
async fn log(fabric: &Fabric, reactor: &Reactor) -> Result<Log> {
    let mut servers = Vec::new();
    for name in ["one", "two", "three"] {
        let host = fabric.host(name);
        host.set_platform(Platform::Eadr);
        let pmem = host.pmem("log", 16 << 20);
        let _entered = host.enter();
        let addr = (host.addr(), 7204).into();
        let reactor = Reactor::spawn(&Peer::at(&host.addr().to_string())?)?;
        let server = ServerCfg::new(addr, pmem.path()).listen()?;
        let mut server = Server::new(&reactor, server)?;
        tokio::spawn(async move { server.serve(drop).await });
        servers.push(addr);
    }
    let mut cfg = LogCfg::new(&servers, 2, 1);
    let log = Log::open(reactor, cfg.set_create(true)).await;
    Ok(log.expect("it opens"))
}

pub(crate) async fn awaited(fabric: &Fabric, reactor: &Reactor) -> Result<()> {
    let log = log(fabric, reactor).await?;
    // The third server is one of the set as well.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(log.state().servers.iter().all(|of| of.durable.is_some()));
    for warm in [true, false] {
        alone(measured_append(&log)).await?;
        row("log_append", warm);
    }
    Ok(())
}

async fn measured_append(log: &Log) -> Result<()> {
    for _ in 0..ROUNDS {
        log.append(&[1; LEN]).await.expect("appended");
    }
    Ok(())
}
