//! A server that only serves, and hosts that give no sign of life.

use rpma::commit::{Limits, Method};
use rpma::serve::{Reason, Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, identity, offer_by};

const KEEP_ALIVE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// A client of this key on the second host is admitted on the first one, and established.
fn joins(site: &mut Site, hosts: [&Host; 2], key: u64) -> Result<Conn> {
    // The server has receives for it, which are flushed at the end.
    let conn = site.ask_from(hosts, &offer_by(identity(key, 1, key), Method::Server))?;
    let asked = site.asked()?;
    let client = site.admit(asked)?;
    let conn = conn.wait_established(LIMIT)?;
    site.arrives(client)?;
    Ok(conn)
}

/// Promise: with a keep-alive, a server that does not post itself learns within that time that a
/// client's host stands still, and cuts the client off. The reason is the keep-alive's event,
/// although receives were flushed before it. An idle client stays for hours, and no probe is
/// reported.
#[test]
fn a_silent_client_is_gone() -> Result {
    let (fabric, [near, idle, frozen]) = Rig::new().seed(1).hosts(["server", "idle", "frozen"]);
    let (pmem, _entered) = (near.pmem("memory", 3 * LEN), near.enter());
    let mut conn_cfg = ConnCfg::new();
    conn_cfg.set_keep_alive(Some(KEEP_ALIVE))?;
    conn_cfg.set_retry_count(7)?;
    let mut cfg = ServerCfg::new();
    cfg.set_conn(&conn_cfg);
    cfg.set_commits(Some(Limits::new(2, 1, 64)?));
    let mut site = Site::on(&pmem, 2, &cfg)?;
    let _idle = joins(&mut site, [&near, &idle], 1)?;
    let _silent = joins(&mut site, [&near, &frozen], 2)?;
    let server = &mut site.server;
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
            assert!(matches!(&gone.reason, Reason::Ended(event) if *event == lost));
            assert!(gone.completions.is_empty() && gone.not_cut_off.is_none());
        }
        other => panic!("{other:?}"),
    }
    assert!(fabric.now() - begin <= KEEP_ALIVE);
    assert!(next(HOUR)?.is_none(), "the idle one stays");
    assert!(server.client(1).is_some() && server.client(2).is_none());
    Ok(())
}
