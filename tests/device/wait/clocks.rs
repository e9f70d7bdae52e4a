//! A wait on a fabric with a clock that jumps, and threads that run in the order of a seed.

use rpma::sim::{Trace, now, sleep};
use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::wait::support::{joined, write};

const HOUR: Duration = Duration::from_secs(3600);

/// Promise: limits, timers and wake-ups follow the fabric's clock.
#[test]
fn an_hour_passes_at_once() -> Result {
    let here = Rig::new().jumping().here();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let (mut wait, mut wcs) = (Wait::new()?, [Wc::default(); 4]);
    let began = now();
    assert!(wait.next(&mut wcs, HOUR)?.is_none());
    assert!(now() >= began + HOUR);

    // The steps of a keep-alive, for an hour.
    let mut cfg = ConnCfg::new();
    cfg.set_keep_alive(Some(Duration::from_secs(60)))?;
    let (member, client) = joined(&mut wait, &ep, &peer, &cfg)?;
    let conn = wait.conn(member).ok_or("a member")?;
    conn.recv(MrSlice::EMPTY, 7)?;
    send_empty(&client, 1)?;
    let began = now();
    let came = wait.next(&mut wcs, HOUR)?;
    assert!(matches!(came, Some(Happened::Completions(of, 1)) if of == member));
    assert!(now() < began + Duration::from_secs(3));
    assert!(wait.next(&mut wcs, HOUR)?.is_none());

    let waker = wait.waker();
    let waking = here.host.spawn(move || {
        sleep(HOUR / 2);
        waker.wake();
    });
    let began = now();
    assert!(matches!(wait.next(&mut wcs, HOUR)?, Some(Happened::Woken)));
    assert!(now() < began + HOUR);
    waking.join().expect("no panic");
    Ok(())
}

/// A server with one wait, and its clients, each in a thread: every message and every event comes.
fn serve(seed: u64) -> Result<(Trace, Option<String>)> {
    const CLIENTS: usize = 3;
    const MESSAGES: u64 = 6;
    let (fabric, [server, clients]) = Rig::new().seed(seed).hosts(["server", "clients"]);
    {
        let _entered = server.enter();
        let (peer, addr) = (peer()?, server.addr().to_string());
        let ep = listen(&peer)?;
        let port = ep.get_port();
        let mut wait = Wait::new()?;
        wait.add_ep(ep)?;
        let waker = wait.waker();
        let running: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (addr, waker) = (addr.clone(), waker.clone());
                clients.spawn(move || {
                    let device = Device::from_addr(&addr, Side::Remote).expect("opens");
                    let peer = Peer::new(&device).expect("a peer");
                    let req = ConnReq::new(&peer, &addr, port, &ConnCfg::new()).expect("resolves");
                    let asking = req.connect(&[]).expect("asks");
                    let conn = asking.wait_established(HOUR).expect("accepted");
                    for number in 0..MESSAGES {
                        let sent = send_empty(&conn, number).expect("posted");
                        conn.wait_for(sent, HOUR, |_| {}).expect("sent");
                    }
                    waker.wake();
                })
            })
            .collect();
        let (mut wcs, mut received, mut ended, mut woken) = ([Wc::default(); 2], 0, 0, 0);
        while ended < CLIENTS || received < CLIENTS as u64 * MESSAGES {
            match wait.next(&mut wcs, HOUR)?.ok_or("in time")? {
                Happened::Request(_, request) => {
                    let place = wait.place();
                    let cfg = place.cfg(&peer, &ConnCfg::new())?;
                    let req = request.into_req(&peer, &cfg)?;
                    for number in 0..MESSAGES {
                        req.recv(MrSlice::EMPTY, number)?;
                    }
                    let conn = req.connect(&[])?;
                    assert!(write(&conn, u64::MAX));
                    wait.add(place, conn)?;
                }
                Happened::Completions(_, count) => {
                    let is_message = |wc: &&Wc| wc.wr_id() < MESSAGES && wc.result().is_ok();
                    received += wcs[..count].iter().filter(is_message).count() as u64;
                }
                Happened::Event(_, ConnEvent::Established) => {}
                Happened::Event(..) => ended += 1,
                Happened::Woken => woken += 1,
                happened => panic!("{happened:?}"),
            }
        }
        for client in running {
            client.join().expect("no panic");
        }
        assert!((1..=CLIENTS).contains(&woken), "{woken}");
    }
    Ok((fabric.trace(), fabric.why_not_repeatable()))
}

/// Promise: a server with one wait serves its clients in every order of threads, and the same seed
/// gives the same run.
#[test]
fn every_order_of_threads() -> Result {
    for seed in 0..40 {
        let (first, reason) = serve(seed)?;
        assert_eq!(reason, None, "seed {seed}");
        assert_eq!(first, serve(seed)?.0, "seed {seed}");
    }
    Ok(())
}
