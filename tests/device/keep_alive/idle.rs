//! Connections that are idle and alive.

use rpma::sim::now;
use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::keep_alive::world::{D, STEP, Way, ends_with, jumping, lost, patient, patient_ends};

const HOUR: Duration = Duration::from_secs(3600);
const CLIENTS: usize = 4;

/// Promise: an idle connection that is alive never ends, in an hour, with keep-alives on both
/// sides: four clients of one server that only serves. Each side asks its peer once in two steps at
/// most, and these probes are not reported.
#[test]
fn an_hour_of_idle_connections() -> Result {
    // If there is a seed, time takes no real time.
    let (fabric, [server, clients]) = Rig::new().seed(1).hosts(["server", "clients"]);
    let addr = server.addr().to_string();
    let _entered = server.enter();
    let peer_here = peer()?;
    let ep = listen(&peer_here)?;
    let port = ep.get_port();
    let mut wait = Wait::new()?;
    let endpoint = wait.add_ep(ep)?;
    let until = now() + HOUR;
    let running: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let addr = addr.clone();
            clients.spawn(move || {
                let peer = peer().expect("a peer on the test device");
                let cfg = patient().expect("possible");
                let req = ConnReq::new(&peer, &addr, port, &cfg).expect("resolves");
                let conn = req.connect(&[]).expect("asks");
                let conn = conn.wait_established(LIMIT).expect("accepted");
                let left = until - now();
                let came = conn.next(&mut [Wc::default()], left);
                assert!(matches!(came, Err(Error::TimedOut(_))), "{came:?}");
            })
        })
        .collect();
    let (mut wcs, mut established) = ([Wc::default(); 4], 0);
    // The clients leave at the end of the hour.
    let left = || (until - Duration::from_millis(1)).saturating_duration_since(now());
    while let Some(happened) = wait.next(&mut wcs, left())? {
        match happened {
            Happened::Request(of, request) if of == endpoint => {
                let place = wait.place();
                let cfg = place.cfg(&peer_here, &patient()?)?;
                let req = request.into_req(&peer_here, &cfg)?;
                wait.add(place, req.connect(&[])?)?;
            }
            Happened::Event(_, ConnEvent::Established) => established += 1,
            other => panic!("after {:?} of an hour: {other:?}", until - now()),
        }
    }
    assert_eq!(established, CLIENTS);
    for client in running {
        client.join().expect("no panic");
    }
    let probes = fabric.calls()["ibv_post_send"];
    let most = 2 * CLIENTS as u64 * (HOUR.as_millis() / (2 * STEP).as_millis()) as u64;
    assert!(
        (most * 9 / 10..=most).contains(&probes),
        "{probes} of {most}"
    );
    Ok(())
}

/// Promise: the time counts from `Established`. A client may take the answer late.
#[test]
fn a_client_may_take_the_answer_late() -> Result {
    let world = jumping();
    let _entered = world.hosts[1].enter();
    let ep = world.listen()?;
    let asking = world.ask(&ep, &patient()?)?;
    let mut wait = Wait::new()?;
    let place = wait.place();
    let cfg = place.cfg(&world.peers[1], &patient()?)?;
    let member = wait.add(place, accept(&ep, &cfg)?)?;
    let mut wcs = [Wc::default()];
    let came = wait.next(&mut wcs, 10 * D)?;
    assert!(came.is_none(), "{came:?}");
    let _client = asking.wait_established(LIMIT)?;
    let came = wait.next(&mut wcs, LIMIT)?;
    assert!(matches!(came, Some(Happened::Event(of, ConnEvent::Established)) if of == member));
    world.hosts[0].freeze();
    let came = wait.next(&mut wcs, D)?;
    assert!(matches!(came, Some(Happened::Event(of, event)) if of == member && event == lost()));
    Ok(())
}

/// Promise: traffic is a sign of life. A connection with operations that complete is not asked.
#[test]
fn traffic_is_a_sign() -> Result {
    let (world, mut ends, _entered) = patient_ends(Way::Next, 0)?;
    for number in 0..100 {
        ends[0].ask(ALWAYS, number)?;
        assert_eq!(ends[0].wait(STEP / 2)?.completions.len(), 1);
    }
    assert_eq!(world.fabric.calls()["ibv_post_send"], 100);
    Ok(())
}

/// Promise: receives are signs of life as well.
#[test]
fn messages_are_signs() -> Result {
    let other = patient()?.set_keep_alive(None)?.clone();
    let (world, mut ends, _entered) = ends_with(Way::Next, 1, [&other, &patient()?])?;
    for number in 0..100 {
        ends[1].conn()?.recv(MrSlice::EMPTY, number)?;
        send_empty(ends[0].conn()?, number)?;
        assert_eq!(ends[1].wait(STEP / 2)?.completions.len(), 1);
        let mut wcs = [Wc::default()];
        while ends[0].conn()?.get_cq().get_wc(&mut wcs)? > 0 {}
    }
    assert_eq!(world.fabric.calls()["ibv_post_send"], 100);
    Ok(())
}

/// Promise: `Wait::deadline` and `Conn::keep_alive` return when work is due: for a loop that waits
/// for descriptors.
#[test]
fn deadlines_are_told() -> Result {
    let (world, ends, _entered) = patient_ends(Way::Loop, 0)?;
    let due = ends[0].conn()?.keep_alive()?.ok_or("a time")?;
    assert!(due > now() && due <= now() + STEP);
    let mut wait = Wait::new()?;
    assert_eq!(wait.deadline(), None);
    let place = wait.place();
    let cfg = place.cfg(&world.peers[0], &patient()?)?;
    let ep = world.listen()?;
    let conn = world.ask(&ep, &cfg)?;
    let _accepted = accept(&ep, &ConnCfg::new())?;
    let member = wait.add(place, conn)?;
    let mut wcs = [Wc::default()];
    let came = wait.next(&mut wcs, LIMIT)?;
    assert!(matches!(
        came,
        Some(Happened::Event(_, ConnEvent::Established))
    ));
    assert!(wait.next(&mut wcs, Duration::ZERO)?.is_none());
    let due = wait.deadline().ok_or("a time")?;
    assert!(due > now() && due <= now() + STEP, "{:?}", due - now());
    drop(wait.remove(member));
    assert_eq!(wait.deadline(), None, "it is gone");
    Ok(())
}

/// A program that was stopped, on a host that lives, answers for ever: its device does. Documented
/// at `ConnCfg::set_keep_alive`.
#[test]
fn a_program_that_is_stopped_still_answers() -> Result {
    let (_world, mut ends, _entered) = patient_ends(Way::Wait, 1)?;
    // The client makes no calls from here on.
    ends[1].idle(HOUR)
}
