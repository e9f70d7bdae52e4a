//! An awaited set of three replicas by the server's method: an acknowledgement has a request and an
//! answer, and each of them has its own delay.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use rpma::commit::{Limits, Method, Replicas as Set, WriterCfg};
use rpma::serve::{self, Layout, ServerCfg};
use rpma::sim::Image;
use rpma_async::{Reactor, Reconnect, Replicas, Server};

use crate::common::prelude::*;
use crate::explored::cases::Case;
use crate::explored::replicas::{on_two, place, record};

const RECORDS: u64 = 1;
const SIZE: usize = 4096;
/// The copies that acknowledge a record.
const COPIES: usize = 2;

/// The wait of the program for its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    ForAll,
    /// For one copy.
    ForOne,
    /// A time-out is taken for success: the outcome is not looked at.
    Elapsed,
}

fn peer_of(host: &Host) -> Result<Peer> {
    let _entered = host.enter();
    Ok(Peer::at(&host.addr().to_string())?)
}

fn serve(host: &Host, pmem: &Pmem, layout: &Layout) -> Result<SocketAddr> {
    let server = {
        let _entered = host.enter();
        let all = PmemMap::open(pmem.path(), layout.len())?;
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_PERSISTENT;
        let mut cfg = ServerCfg::new();
        cfg.set_commits(Some(Limits::new(4, 2, 4096)?));
        serve::Server::listen((host.addr(), 0).into(), &all, layout, usage, &cfg)?
    };
    let addr = (host.addr(), server.get_port()).into();
    let mut server = Server::new(&Reactor::spawn(&peer_of(host)?)?, server)?;
    tokio::spawn(async move { server.serve(drop).await });
    Ok(addr)
}

async fn connect(reactor: &Reactor, servers: &[SocketAddr]) -> Result<Replicas> {
    let set = Replicas::new(reactor, Set::new(reactor.peer(), 1 << 16, 16)?)?;
    let (identity, cfg) = (Identity::new(1, 1)?, WriterCfg::new(Method::Server));
    for server in servers {
        let mut client = Reconnect::to_writer(reactor, *server, identity, &cfg)?;
        let writer = client.connect(&ConnCfg::new()).await?;
        let memory = writer.offer().memory(SIZE as u64)?;
        set.add(writer, memory).map_err(Error::from)?;
    }
    Ok(set)
}

async fn append(set: &Replicas, number: u64, waits: Waits) -> Result<()> {
    let tail = Some((0, (number + 1).to_le_bytes()));
    let id = set.commit(place(number) as u64, &[&record(number)], tail, COPIES)?;
    let copies = if waits == Waits::ForOne { 1 } else { COPIES };
    let outcome = set.settle(id, copies, LIMIT).await?;
    if waits != Waits::Elapsed {
        outcome.require(copies)?;
    }
    Ok(())
}

fn run(fabric: &Fabric, waits: Waits) {
    let runtime = paused::runtime();
    runtime.block_on(async { paused::follow(fabric) });
    let client = fabric.host("client");
    let hosts = ["one", "two", "three"].map(|name| fabric.host(name));
    let layout = Layout::new(1, SIZE).expect("a layout");
    let part = layout.part(1).expect("the part of the key");
    let pmems = hosts.each_ref().map(|host| host.pmem("log", layout.len()));
    let promised = AtomicU64::new(0);
    let look = |cut: &Cut<'_>| {
        let promised = promised.load(Ordering::Relaxed);
        for images in cut.joint_images(&pmems.each_ref()) {
            let bytes = images
                .iter()
                .map(|image: &Image| &image.bytes()[part.clone()]);
            on_two(&bytes.collect::<Vec<_>>(), promised);
        }
    };
    let set = runtime.block_on(async {
        let ticking = paused::tick(fabric);
        let both = hosts.iter().zip(&pmems);
        let addrs = both.map(|(host, pmem)| serve(host, pmem, &layout));
        let addrs = addrs.collect::<Result<Vec<_>>>()?;
        let reactor = Reactor::spawn(&peer_of(&client)?)?;
        Ok::<_, anyhow::Error>((connect(&reactor, &addrs).await?, ticking))
    });
    let (set, ticking) = set.expect("nothing deviates until now");
    // It may fail, where an operation takes too long.
    let _result = fabric.on_every_event(look, || {
        runtime.block_on(async {
            for number in 0..RECORDS {
                append(&set, number, waits).await?;
                promised.store(number + 1, Ordering::Relaxed);
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    ticking.abort();
}

pub(crate) fn set() -> Case {
    let right = Case::new(&[Profile::ADAPTER], |fabric| run(fabric, Waits::ForAll));
    let text = "a promised record has";
    let one = "awaited: a set that waits for one copy of two";
    let elapsed = "awaited: a set's time-out that is taken for success";
    right
        .wrong(one, text, |fabric| run(fabric, Waits::ForOne))
        .wrong(elapsed, text, |fabric| run(fabric, Waits::Elapsed))
}

#[test]
fn a_set_by_the_servers_method() {
    set().check();
}
