//! A replica that comes back is added again, without a registration.

use rpma::Result;
use rpma::commit::{Limits, Method, ReplicaId, Replicas, Writer, WriterCfg};
use rpma::reconnect::{Reconnect, ToWriter};
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::reconnect::hosts::{PORT, SECOND};
use crate::reconnect::support::identified;

const SIZE: usize = 4096;

/// A replica's program: it accepts each writer, after it has dropped the one before.
fn serve(host: &Host, addr: &str, limits: Limits) -> Result<()> {
    let pmem = host.pmem("log", SIZE);
    let peer = Peer::new(&Device::from_addr(addr, Side::Local)?)?;
    let usage = MrUsage::WRITE_DST
        | MrUsage::READ_SRC
        | MrUsage::FLUSH_TYPE_VISIBILITY
        | MrUsage::FLUSH_TYPE_PERSISTENT;
    let memory = Mr::reg(&peer, PmemMap::open(pmem.path(), SIZE)?, usage);
    let memory = memory.map_err(|error| error.error)?;
    let mut platform = PeerCfg::new();
    platform.set_direct_write_to_pmem(true);
    let mut offer = Offer::new(&platform);
    let offer = offer.add_region(&memory).set_limits(limits);
    let offer = offer.encode(Offer::ACCEPT)?;
    let ep = Ep::listen(&peer, addr, PORT)?;
    let mut current: Option<Conn> = None;
    loop {
        let req = ep.next_conn_req_timeout(&ConnCfg::new(), 60 * SECOND)?;
        drop(current.take());
        current = Some(req.connect(&offer)?);
    }
}

/// Adds the replica of this writer.
fn add(log: &mut Replicas, writer: Writer) -> crate::common::Result<ReplicaId> {
    let region = writer.offer().regions()[0];
    Ok(log.add(writer, region)?)
}

/// Promise: a set goes on with a replica after its connection was made again, by each method, and
/// no memory is registered for it.
#[test]
fn a_replica_is_added_again() -> crate::common::Result {
    for method in [Method::Reading, Method::Native, Method::Server] {
        let fabric = Rig::new().seed(9).fabric();
        let (client, server) = (fabric.host("client"), fabric.host("server"));
        server.set_platform(Platform::Eadr);
        let addr = server.addr().to_string();
        let serving = {
            let (server, addr) = (server.clone(), addr.clone());
            let limits = Limits::new(16, 2, 4096)?;
            server.clone().spawn(move || serve(&server, &addr, limits))
        };
        let entered = client.enter();
        sleep(SECOND);
        let device = Device::from_addr(&client.addr().to_string(), Side::Local);
        let peer = Peer::new(&device?)?;
        if method == Method::Native && !peer.is_native_flush_capable() {
            drop((peer, entered));
            server.power_cut();
            serving.join().expect("no panic").expect_err("its end");
            continue;
        }
        let mut log = Replicas::new(&peer, SIZE, 16)?;
        let to_writer = ToWriter::new(&WriterCfg::new(method));
        let offer = identified(1);
        let mut again = Reconnect::new(&peer, &addr, PORT, offer, to_writer)?;
        let mut id = add(&mut log, again.connect(&ConnCfg::new())?)?;
        let registrations = || fabric.calls()["ibv_reg_mr"];
        let before = registrations();
        for number in 1..=20_u64 {
            if method != Method::Server {
                let mut record = log.record(8)?;
                record.put(0, &number.to_le_bytes())?;
                let commit = record.commit(8, Some((0, number.to_le_bytes())), 1);
                let outcome = log.settle(commit?, 1, 5 * SECOND);
                assert_eq!(outcome.copies(), 1, "{method}: {outcome:?}");
            }
            log.set_aside(id, SECOND)?;
            let writer = again.connect(&ConnCfg::new());
            id = add(&mut log, writer?)?;
        }
        assert_eq!(registrations(), before, "{method}");
        assert_eq!(log.able(), 1);
        assert_eq!(again.counts().connected, 21);
        drop((log, again, peer, entered));
        server.power_cut();
        serving.join().expect("no panic").expect_err("its end");
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    }
    Ok(())
}
