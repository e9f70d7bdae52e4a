//! A server that only serves, and hosts that give no sign of life.

use std::sync::Arc;

use rpma::commit::{Limits, Method};
use rpma::serve::{Directory, Part, Reason, Served, Server, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, identity, offer, usage};

const KEEP_ALIVE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A client of this key on this host is admitted and established.
fn joins(
    server: &mut Server,
    (near, far): (&Host, &Host),
    memory: PmemMap,
    key: u64,
) -> Result<Conn> {
    let addr = near.addr().to_string();
    let peer = Peer::new(&Device::from_addr(&addr, Side::Local)?)?;
    let region = Arc::new(Mr::reg(&peer, memory, usage())?);
    let conn = {
        let _entered = far.enter();
        let device = Device::from_addr(&addr, Side::Remote)?;
        let own = Peer::new(&device)?;
        let req = ConnReq::new(&own, &addr, server.get_port(), &ConnCfg::new());
        // The server has receives for it, which are flushed at the end.
        let mut offer = offer(identity(key, 1, key));
        offer.set_method(Method::Server, FlushType::Persistent);
        let data = offer.encode(Offer::CONNECT)?;
        req?.connect(&data)?
    };
    let Some(Served::Asks(asked)) = server.next(&mut [Wc::default()], LIMIT)? else {
        panic!("a client asks");
    };
    let part = Part {
        peer: &peer,
        region: &region,
        data: &[],
    };
    let client = server.admit(asked, &part)?;
    let conn = conn.wait_established(LIMIT)?;
    let served = server.next(&mut [Wc::default()], LIMIT)?;
    assert!(
        matches!(served, Some(Served::Arrived(of)) if of == client),
        "{served:?}"
    );
    Ok(conn)
}

/// Promise: with a keep-alive, a server that does not post itself learns within that time that a
/// client's host stands still, and cuts the client off. The reason is the keep-alive's event,
/// although receives were flushed before it. An idle client stays for hours, and no probe is
/// reported.
#[test]
fn a_silent_client_is_gone() -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let near = fabric.host("server");
    let [idle, frozen] = ["idle", "frozen"].map(|name| fabric.host(name));
    let pmem = near.pmem("memory", 3 * LEN);
    let _entered = near.enter();
    let all = PmemMap::open(pmem.path(), 3 * LEN)?;
    let part = |n: usize| all.part(n * LEN..(n + 1) * LEN);
    let addr = near.addr().to_string();
    let device = Device::from_addr(&addr, Side::Local)?;
    let ep = Ep::listen(&Peer::new(&device)?, &addr, 0)?;
    let mut conn_cfg = ConnCfg::new();
    conn_cfg.set_keep_alive(Some(KEEP_ALIVE))?;
    conn_cfg.set_retry_count(7)?;
    let mut cfg = ServerCfg::new();
    cfg.set_conn(&conn_cfg);
    cfg.set_commits(Some(Limits::new(2, 1, 64)?));
    let directory = Directory::create(part(0)?, 2)?;
    let mut server = Server::new(ep, directory, &cfg)?;
    let _idle = joins(&mut server, (&near, &idle), part(1)?, 1)?;
    let _silent = joins(&mut server, (&near, &frozen), part(2)?, 2)?;
    let mut next = |limit| server.next(&mut [Wc::default()], limit);
    assert!(next(HOUR)?.is_none(), "both are alive");
    frozen.freeze();
    let begin = fabric.now();
    match next(HOUR)? {
        Some(Served::Gone(gone)) => {
            assert_eq!(gone.identity.key, 2);
            // On an adapter the retries of the probe end first.
            let failure = gone.failure.ok_or("a failure")?;
            let is_silent = matches!(failure, Failure::Silent { .. } | Failure::Probe { .. });
            assert!(is_silent, "{failure:?}");
            // The same on each device, whichever of the two it was.
            let lost = ConnEvent::Lost { status: -110 };
            assert!(
                matches!(&gone.reason, Reason::Ended(event) if *event == lost),
                "{:?}",
                gone.reason
            );
            assert!(gone.completions.is_empty() && gone.not_cut_off.is_none());
        }
        other => panic!("{other:?}"),
    }
    assert!(fabric.now() - begin <= KEEP_ALIVE);
    assert!(next(HOUR)?.is_none(), "the idle one stays");
    assert!(server.client(1).is_some() && server.client(2).is_none());
    Ok(())
}
