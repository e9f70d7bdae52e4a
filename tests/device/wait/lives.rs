//! Members that come and go: places, names, removal, and drops in each order.

use std::thread;

use rpma::wait::{Happened, Wait};

use crate::common::prelude::*;
use crate::wait::support::{
    SHORT, completes, empty_wait, gets_message, goes_on, is_event, joined, next, nothing, pair,
    send, wait_for_one, write,
};

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
    let (mut wait, ep, peer) = empty_wait()?;
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
    assert_says(&refused.error, &["Place::cfg"]);
    assert!(write(&refused.object, 1), "it is as good as before");

    // For another place, and for one of another wait.
    let (first, second) = (wait.place(), wait.place());
    let mut other = Wait::new()?;
    let cfg = first.cfg(&peer, &ConnCfg::new())?;
    let (_client, server) = pair(&ep, &peer, &cfg)?;
    let refused = wait.add(second, server).expect_err("another place");
    let refused = other.add(first, *refused.object);
    assert_says(&refused.expect_err("refused").error, &["another Wait"]);
    // Two connections of one place: there is none for the second.
    let place = wait.place();
    let cfg = place.cfg(&peer, &ConnCfg::new())?;
    let (_client, server) = pair(&ep, &peer, &cfg)?;
    let (_second_client, second) = pair(&ep, &peer, &cfg)?;
    let member = wait.add(place, server)?;
    let strange = wait.place();
    let refused = wait.add(strange, second).expect_err("no place");
    assert_says(&refused.error, &["Place::cfg"]);
    is_event(&mut wait, member, &ConnEvent::Established)?;
    // A completion there is no completion of the member.
    assert!(write(&refused.object, 1));
    completions(&refused.object, 1)?;
    nothing(&mut wait)?;

    // Settings that name a channel, and a shared receive queue without completions.
    let channel = CompletionChannel::new(&peer)?;
    let place = wait.place();
    let mut shared = ConnCfg::new();
    invalid(place.cfg(&peer, shared.set_compl_channel(ComplChannel::Shared)));
    let channel = Some((channel, 1));
    invalid(place.cfg(&peer, ConnCfg::new().set_rcq_channel(channel.clone())));
    invalid(place.srq_cfg(&peer, SrqCfg::new().set_rcq_size(0)));
    invalid(place.srq_cfg(&peer, SrqCfg::new().set_compl_channel(channel)));
    let srq = Srq::new(&peer, &SrqCfg::new())?;
    let refused = wait.add_srq(place, srq).expect_err("without a place");
    assert_says(&refused.error, &["Place::srq_cfg"]);
    Ok(())
}

/// Promise: a member that was removed is never reported again, its completions stay in its queues,
/// and its name stands for no later member.
#[test]
fn a_removed_member_is_gone() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let (mut wait, ep, member, client) = wait_for_one(&peer)?;
    let mut wcs = [Wc::default(); 4];
    // Completions with an event in the channel, one that is listed, and an event.
    for number in 0..3 {
        gets_message(&wait, (member, &client), number)?;
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
    let waited = conn.wait_for(write_nothing(&conn, 1)?, SHORT, |_| {});
    assert!(matches!(waited, Err(Error::SharedChannel)), "{waited:?}");
    assert!(matches!(conn.get_cq().wait(), Err(Error::SharedChannel)));
    says(invalid(conn.next(&mut wcs, SHORT)), "Wait::next");
    says(invalid(conn.get_next_fd()), "Wait::next");
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
            let (mut wait, ep, member, client) = wait_for_one(&peer)?;
            let (_other, _client) = joined(&mut wait, &ep, &peer, &ConnCfg::new())?;
            let place = wait.place();
            gets_message(&wait, (member, &client), 1)?;
            match order {
                0 => drop((wait, client, place)),
                1 => drop((client, wait, place)),
                2 => {
                    let conn = wait.remove(member).ok_or("a connection")?;
                    drop(wait);
                    assert_eq!(conn.get_cq().get_wc(&mut [Wc::default(); 4])?, 1);
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
    let (mut wait, ep, peer) = empty_wait()?;
    let place = wait.place();
    let cfg = place.srq_cfg(&peer, &SrqCfg::new())?;
    let srq = Srq::new(&peer, &cfg)?;
    let shared = wait.add_srq(place, srq.clone())?;
    let cfg = ConnCfg::new().set_srq(Some(&srq)).clone();
    let mut clients: Vec<_> = (0..3)
        .map(|_| joined(&mut wait, &ep, &peer, &cfg))
        .collect::<Result<_, _>>()?;
    for (number, (member, client)) in clients.iter().enumerate() {
        srq.recv(MrSlice::EMPTY, number as u64)?;
        send(client)?;
        let wc = completes(&mut wait, shared)?;
        let conn = wait.conn(*member).ok_or("a member")?;
        assert_eq!(wc.qp_num(), conn.get_qp_num());
        goes_on(&mut wait, *member)?;
    }
    srq.recv(MrSlice::EMPTY, 10)?;
    let (member, client) = clients.pop().ok_or("one")?;
    send(&client)?;
    drop(wait.remove(member));
    assert_eq!(completes(&mut wait, shared)?.wr_id(), 10);
    assert!(wait.srq(shared).is_some());
    drop(wait.remove_srq(shared));
    nothing(&mut wait)
}

/// Promise: a queue that gives events for solicited completions only is refused: the wait would
/// miss the others.
#[test]
fn solicited_events_are_refused() -> Result {
    let _test = device_test();
    let (mut wait, ep, peer) = empty_wait()?;
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10).set_rcq_notify(Notify::Solicited);
    let (place, client) = (wait.place(), ask(&peer, &ep, &ConnCfg::new())?);
    let server = accept(&ep, &place.cfg(&peer, &cfg)?)?;
    let refused = wait.add(place, server).map_err(Error::from);
    assert_invalid(refused, &["Wait::next", "Cq::wait"]);
    drop(client);
    Ok(())
}

/// Promise: one wait takes members of several devices.
#[test]
fn members_of_two_devices() -> Result {
    let _test = device_test();
    let mut wait = Wait::new()?;
    let mut members = vec![];
    for addr in [addr(), other_addr(), addr()] {
        let peer = Peer::at(&addr)?;
        let ep = Ep::listen(&peer, &addr, 0)?;
        let place = wait.place();
        let cfg = place.cfg(&peer, &ConnCfg::new())?;
        let req = ConnReq::new(&peer, &addr, ep.get_port(), &ConnCfg::new());
        let client = req?.connect(&[])?;
        let member = wait.add(place, accept(&ep, &cfg)?)?;
        // The client's side of the handshake.
        event(&client)?;
        is_event(&mut wait, member, &ConnEvent::Established)?;
        members.push((member, client));
    }
    for (member, _) in &members {
        goes_on(&mut wait, *member)?;
    }
    nothing(&mut wait)
}
