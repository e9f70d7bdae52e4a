//! Members that come and go: places, names, removal, and drops in each order.

use std::thread;

use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::wait::support::{SHORT, joined, next, nothing, pair, send, write};

/// Promise: a waker of another thread ends a sleep, and a wake-up is kept for the next call.
/// Several are one.
#[test]
fn another_thread_wakes_the_wait() -> Result {
    let _test = device_test();
    let mut wait = Wait::new()?;
    let (waker, mut wcs) = (wait.waker(), [Wc::default()]);
    for _ in 0..20 {
        let other = waker.clone();
        let woken = thread::scope(|scope| -> Result<_> {
            scope.spawn(here(move || other.wake()));
            next(&mut wait, &mut wcs)
        })?;
        assert!(matches!(woken, Happened::Woken));
        nothing(&mut wait)?;
    }
    for _ in 0..3 {
        waker.wake();
    }
    assert!(matches!(next(&mut wait, &mut wcs)?, Happened::Woken));
    nothing(&mut wait)?;
    drop(wait);
    waker.wake();
    Ok(())
}

/// Promise: a place that was dropped is used again; a connection that was not made for its place
/// is given back.
#[test]
fn places_that_are_not_used_and_connections_without() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let mut wait = Wait::new()?;
    for _ in 0..10 {
        drop(wait.place());
        let place = wait.place();
        place.cfg(&peer, &ConnCfg::new())?;
    }
    assert!(format!("{wait:?}").matches("Slot").count() <= 2, "{wait:?}");

    // Not made for a place.
    let (_client, server) = pair(&ep, &peer, &ConnCfg::new())?;
    let strange = wait.place();
    let refused = wait.add(strange, server).expect_err("strange");
    let text = refused.error.to_string();
    assert!(text.contains("Place::cfg"), "{text}");
    assert!(write(&refused.refused, 1), "it is as good as before");

    // For another place, and for one of another wait.
    let (first, second) = (wait.place(), wait.place());
    let mut other = Wait::new()?;
    let cfg = first.cfg(&peer, &ConnCfg::new())?;
    let (_client, server) = pair(&ep, &peer, &cfg)?;
    let refused = wait.add(second, server).expect_err("another place");
    let refused = other
        .add(first, *refused.refused)
        .expect_err("another wait");
    assert!(refused.error.to_string().contains("another Wait"));
    // Two connections of one place: there is none for the second.
    let place = wait.place();
    let cfg = place.cfg(&peer, &ConnCfg::new())?;
    let (_client, server) = pair(&ep, &peer, &cfg)?;
    let (_second_client, second) = pair(&ep, &peer, &cfg)?;
    let member = wait.add(place, server)?;
    let strange = wait.place();
    let refused = wait.add(strange, second).expect_err("no place");
    assert!(refused.error.to_string().contains("Place::cfg"));
    let mut wcs = [Wc::default()];
    assert!(matches!(next(&mut wait, &mut wcs)?, Happened::Event(of, _) if of == member));
    // A completion there is no completion of the member.
    assert!(write(&refused.refused, 1));
    completions(&refused.refused, 1)?;
    nothing(&mut wait)?;

    // Settings that name a channel, and a shared receive queue without completions.
    let channel = CompletionChannel::new(&peer)?;
    let place = wait.place();
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(ComplChannel::Shared);
    invalid(place.cfg(&peer, &cfg));
    cfg.set_compl_channel(ComplChannel::PerCq);
    cfg.set_rcq_channel(Some((channel.clone(), 1)));
    invalid(place.cfg(&peer, &cfg));
    invalid(place.srq_cfg(&peer, SrqCfg::new().set_rcq_size(0)));
    let mut srq_cfg = SrqCfg::new();
    srq_cfg.set_compl_channel(Some((channel, 1)));
    invalid(place.srq_cfg(&peer, &srq_cfg));
    let srq = Srq::new(&peer, &SrqCfg::new())?;
    let refused = wait.add_srq(place, srq).expect_err("without a place");
    assert!(refused.error.to_string().contains("Place::srq_cfg"));
    Ok(())
}

/// Promise: a member that was removed is never reported again, its completions stay in its queues,
/// and its name stands for no later member.
#[test]
fn a_removed_member_is_gone() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let mut wait = Wait::new()?;
    let mut wcs = [Wc::default(); 4];
    let (member, client) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
    // Completions with an event in the channel, one that is listed, and an event.
    let conn = wait.conn(member).ok_or("a member")?;
    for number in 0..3 {
        conn.recv(MrSlice::EMPTY, number)?;
        send(&client)?;
    }
    let came = wait.next(&mut wcs[..1], LIMIT)?;
    assert!(matches!(came, Some(Happened::Completions(of, 1)) if of == member));
    let conn = wait.remove(member).ok_or("a connection")?;
    assert!(wait.conn(member).is_none() && wait.remove(member).is_none());
    nothing(&mut wait)?;
    assert_eq!(conn.get_cq().get_wc(&mut wcs)?, 2);

    // It is no member, and still on the wait's channel.
    let (later, _client) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
    assert_ne!(later, member);
    assert!(wait.conn(member).is_none() && wait.conn(later).is_some());
    for _ in 0..5 {
        assert!(write(&conn, 1));
        completions(&conn, 1)?;
        nothing(&mut wait)?;
    }
    let written = conn.write(
        RemoteSlice::EMPTY,
        MrSlice::EMPTY,
        crate::wait::support::ALWAYS,
        1,
    );
    let waited = conn.wait_for(written?, SHORT, |_| {});
    assert!(matches!(waited, Err(Error::SharedChannel)), "{waited:?}");
    assert!(matches!(conn.get_cq().wait(), Err(Error::SharedChannel)));
    assert!(invalid(conn.next(&mut wcs, SHORT)).contains("Wait::next"));
    assert!(invalid(conn.get_next_fd()).contains("Wait::next"));
    conn.close(LIMIT)?;

    // Members of other kinds.
    let endpoint = wait.add_ep(ep)?;
    assert!(wait.conn(endpoint).is_none() && wait.remove(endpoint).is_none());
    assert!(wait.ep(later).is_none() && wait.remove_ep(later).is_none());
    assert!(wait.srq(later).is_none() && wait.remove_srq(later).is_none());
    drop(wait.remove_ep(endpoint).ok_or("an endpoint")?);
    assert!(wait.ep(endpoint).is_none());
    Ok(())
}

/// Promise: a wait, its connections, their clients, and places may be dropped in any order, with
/// completions and events that were not taken.
#[test]
fn drops_in_each_order() -> Result {
    for order in 0..6 {
        leaving(&[], || {
            let peer = peer()?;
            let ep = listen(&peer)?;
            let mut wait = Wait::new()?;
            let (member, client) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
            let (_other, other) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
            let (place, mut wcs) = (wait.place(), [Wc::default(); 4]);
            let conn = wait.conn(member).ok_or("a member")?;
            conn.recv(MrSlice::EMPTY, 1)?;
            send(&client)?;
            match order {
                0 => drop((wait, client, place)),
                1 => drop((client, wait, place)),
                2 => {
                    let conn = wait.remove(member).ok_or("a connection")?;
                    drop(wait);
                    assert_eq!(conn.get_cq().get_wc(&mut wcs)?, 1);
                    assert!(write(&conn, 2));
                    completions(&conn, 1)?;
                    conn.close(LIMIT)?;
                }
                3 => {
                    drop(wait.remove(member));
                    nothing(&mut wait)?;
                    drop((place, wait));
                }
                4 => {
                    let cq = wait.conn(member).ok_or("a member")?.get_cq().clone();
                    drop(wait);
                    drop((cq, place));
                }
                _ => {
                    // Made for a place of a wait that is gone.
                    let cfg = place.cfg(&peer, &ConnCfg::new())?;
                    drop(wait);
                    let (_client, server) = pair(&ep, &peer, &cfg)?;
                    drop(place);
                    assert!(write(&server, 1));
                    completions(&server, 1)?;
                }
            }
            drop(other);
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: messages that complete in a shared receive queue's own completion queue are that
/// member's completions, beside those of the connections, also when a connection is dropped that
/// they came on.
#[test]
fn a_shared_receive_queue_is_a_member() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let mut wait = Wait::new()?;
    let place = wait.place();
    let cfg = place.srq_cfg(&peer, &SrqCfg::new())?;
    let srq = Srq::new(&peer, &cfg)?;
    let shared = wait.add_srq(place, srq.clone())?;
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(&srq));
    let mut clients: Vec<_> = (0..3)
        .map(|_| joined(&mut wait, &ep, &peer, &cfg))
        .collect::<Result<_, _>>()?;
    let mut wcs = [Wc::default(); 4];
    for (number, (member, client)) in clients.iter().enumerate() {
        srq.recv(MrSlice::EMPTY, number as u64)?;
        send(client)?;
        let came = next(&mut wait, &mut wcs)?;
        assert!(
            matches!(came, Happened::Completions(of, 1) if of == shared),
            "{came:?}"
        );
        let conn = wait.conn(*member).ok_or("a member")?;
        assert_eq!(wcs[0].qp_num(), conn.get_qp_num());
        assert!(write(conn, 7));
        let came = next(&mut wait, &mut wcs)?;
        assert!(
            matches!(came, Happened::Completions(of, 1) if of == *member),
            "{came:?}"
        );
    }
    srq.recv(MrSlice::EMPTY, 10)?;
    let (member, client) = clients.pop().ok_or("one")?;
    send(&client)?;
    drop(wait.remove(member));
    let came = next(&mut wait, &mut wcs)?;
    assert!(
        matches!(came, Happened::Completions(of, 1) if of == shared),
        "{came:?}"
    );
    assert_eq!(wcs[0].wr_id(), 10);
    assert!(wait.srq(shared).is_some());
    drop(wait.remove_srq(shared));
    nothing(&mut wait)?;
    Ok(())
}

/// Promise: completions of a queue for solicited events, which give no event, come within a second.
#[test]
fn unsolicited_completions_are_found() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let mut wait = Wait::new()?;
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10).set_rcq_notify(Notify::Solicited);
    let (member, client) = joined(&mut wait, &ep, &peer, &cfg)?;
    assert!(wait.deadline().is_some());
    let mut wcs = [Wc::default(); 4];
    for number in 0..2 {
        let conn = wait.conn(member).ok_or("a member")?;
        conn.recv(MrSlice::EMPTY, number)?;
        send(&client)?;
        let came = next(&mut wait, &mut wcs)?;
        assert!(
            matches!(came, Happened::Completions(of, 1) if of == member),
            "{came:?}"
        );
        assert_eq!(wcs[0].wr_id(), number);
    }
    drop(client);
    let came = next(&mut wait, &mut wcs)?;
    assert!(
        matches!(came, Happened::Event(of, ConnEvent::Closed) if of == member),
        "{came:?}"
    );
    drop(wait.remove(member));
    assert_eq!(wait.deadline(), None);
    Ok(())
}

/// Promise: one wait takes members of several devices.
#[test]
fn members_of_two_devices() -> Result {
    let _test = device_test();
    let mut wait = Wait::new()?;
    let (mut members, mut wcs) = (vec![], [Wc::default()]);
    for addr in [addr(), other_addr(), addr()] {
        let device = Device::from_addr(&addr, Side::Local)?;
        let peer = Peer::new(&device)?;
        let ep = Ep::listen(&peer, &addr, 0)?;
        let place = wait.place();
        let cfg = place.cfg(&peer, &ConnCfg::new())?;
        let req = ConnReq::new(&peer, &addr, ep.get_port(), &ConnCfg::new());
        let client = req?.connect(&[])?;
        let conn = accept(&ep, &cfg)?;
        let member = wait.add(place, conn)?;
        // The client's side of the handshake.
        event(&client)?;
        let came = next(&mut wait, &mut wcs)?;
        assert!(
            matches!(came, Happened::Event(of, _) if of == member),
            "{came:?}"
        );
        members.push((member, client));
    }
    for (member, _) in &members {
        assert!(write(wait.conn(*member).ok_or("a member")?, 1));
        let came = next(&mut wait, &mut wcs)?;
        assert!(
            matches!(came, Happened::Completions(of, 1) if of == *member),
            "{came:?}"
        );
    }
    nothing(&mut wait)?;
    Ok(())
}
