//! A replica that comes back is added again, without a registration.

use rpma::commit::{Limits, Method, ReplicaId, Replicas, Writer, WriterCfg};
use rpma::reconnect::{Reconnect, ToWriter};
use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::reconnect::hosts::{PORT, SECOND, SIZE, serve_memory};
use crate::reconnect::support::identified;

/// Adds the replica of this writer.
fn add(log: &mut Replicas, writer: Writer) -> Result<ReplicaId> {
    let region = writer.offer().regions()[0];
    Ok(log.add(writer, region)?)
}

/// Promise: a set goes on with a replica after its connection was made again, by each method, and
/// no memory is registered for it.
#[test]
fn a_replica_is_added_again() -> Result {
    for method in [Method::Reading, Method::Native, Method::Server] {
        let (fabric, [client, server]) = Rig::new().seed(9).hosts(["client", "server"]);
        server.set_platform(Platform::Eadr);
        let (pmem, addr) = (server.pmem("log", SIZE), server.addr().to_string());
        let serving = {
            let (host, limits) = (server.clone(), Limits::new(16, 2, 4096)?);
            server.spawn(move || serve_memory(&host, &pmem, Some(limits), 60 * SECOND))
        };
        let entered = client.enter();
        sleep(SECOND);
        let peer = peer()?;
        if method == Method::Native && !peer.is_native_flush_capable() {
            drop((peer, entered));
            server.power_cut();
            serving.join().expect("no panic").expect_err("its end");
            continue;
        }
        let mut log = Replicas::new(&peer, SIZE, 16)?;
        let to_writer = ToWriter::new(&WriterCfg::new(method));
        let mut again = Reconnect::new(&peer, &addr, PORT, identified(1), to_writer)?;
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
        assert_eq!(again.connected(), 21);
        drop((log, again, peer, entered));
        server.power_cut();
        serving.join().expect("no panic").expect_err("its end");
        assert!(fabric.objects().is_empty(), "{:?}", fabric.objects());
    }
    Ok(())
}
