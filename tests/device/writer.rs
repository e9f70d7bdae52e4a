//! Writers: connections that commit by one method. Their durability is in tests/fabric/power.

use rpma::commit::{Connecting, Fate, Method, Writer, WriterCfg};

use crate::common::prelude::*;

const SIZE: usize = 1024;
const TAIL: usize = SIZE - 8;

fn visible(method: Method) -> Result<WriterCfg> {
    Ok(*WriterCfg::new(method).set_flush_type(FlushType::Visibility)?)
}

/// A writer, the server's end of its connection, and the memory of both.
struct Made {
    writer: Writer,
    server: Conn,
    memories: Memories,
    far: MrRemote,
}

fn connect(peer: &Peer, cfg: &WriterCfg) -> Result<Made> {
    let memories = Memories::new(peer, peer, SIZE)?;
    let (connecting, ep) = ask_to_commit(peer, cfg)?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(&memories.target);
    let asked = request(&ep, &ConnCfg::new())?;
    let server = asked.connect(&offer.encode(Offer::ACCEPT)?)?;
    let writer = connecting.wait(LIMIT)?;
    Ok(Made {
        server: server.wait_established(LIMIT)?,
        memories,
        far: writer.offer().regions()[0],
        writer,
    })
}

/// A writer without an answer yet, and the endpoint that it asks.
fn ask_to_commit(peer: &Peer, cfg: &WriterCfg) -> Result<(Connecting, Ep)> {
    let ep = listen(peer)?;
    let req = resolve(peer, &ep, &cfg.conn_cfg(&ConnCfg::new())?)?;
    let connecting = Writer::connect(req, cfg, &Offer::new(&PeerCfg::new()))?;
    Ok((connecting, ep))
}

/// The one-sided methods that the device has.
fn methods(peer: &Peer) -> Vec<Method> {
    if peer.is_native_flush_capable() {
        vec![Method::Native, Method::Reading]
    } else {
        vec![Method::Reading]
    }
}

#[test]
fn commits_complete_in_their_order() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, visible(method)?.set_in_flight(4)?)?;
        let tail = made.far.slice(TAIL as u64..)?;
        let mut tickets = Vec::new();
        for number in 0..12u64 {
            let at = number as usize * 64;
            let parts = [
                part_of(&made.far, &made.memories.source, at, 24),
                part_of(&made.far, &made.memories.source, at + 32, 32),
            ];
            let pointer = Some((tail, (number + 1).to_ne_bytes()));
            while made.writer.room() == 0 {
                made.writer.look(|wc| panic!("{wc:?}"))?;
            }
            let ticket = made.writer.commit(&parts, pointer)?;
            assert_eq!(ticket.number(), number + 1);
            tickets.push(ticket);
        }
        made.writer
            .wait(tickets[11], LIMIT, |wc| panic!("{wc:?}"))?;
        for ticket in tickets {
            assert_eq!(made.writer.fate(ticket)?, Fate::Durable);
        }
        assert_eq!((made.writer.released(), made.writer.room()), (12, 4));
        let there = contents(&made.memories.target)?;
        assert_eq!(there[TAIL..], 12u64.to_ne_bytes());
        assert_eq!(there[..24], contents(&made.memories.source)?[..24]);
        made.writer.into_conn().close(LIMIT)?;
    }
    Ok(())
}

#[test]
fn more_than_fits_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, visible(method)?.set_in_flight(2)?)?;
        let one = part_of(&made.far, &made.memories.source, 0, 8);
        let many = made.writer.commit(&[one; 3], None);
        assert_invalid(many, &["3 parts", "set_parts"]);
        made.writer.commit(&[one], None)?;
        let last = made.writer.commit(&[one; 2], None)?;
        // 2 are in flight.
        let third = made.writer.commit(&[one], None);
        assert_says(third.as_ref().expect_err("full"), &["Writer::wait_room"]);
        assert_eq!(full(third), (Queue::Commits, 2));
        made.writer.wait(last, LIMIT, |_| {})?;
        assert_eq!(made.writer.posted(), 2, "what was refused has no number");
    }
    let mut cfg = WriterCfg::new(Method::Server);
    assert!(invalid(cfg.set_flush_type(FlushType::Visibility)).contains("durable"));
    assert!(invalid(cfg.set_in_flight(0)).contains("at least 1"));
    assert!(invalid(cfg.set_parts(17)).contains("1 to 16"));
    assert!(invalid(cfg.set_parts(0)).contains("1 to 16"));
    Ok(())
}

/// With room there is a commit less in flight, and its source is released. A connection that is
/// over has no room.
#[test]
fn a_wait_for_room_ends_when_the_oldest_commit_is_complete() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, visible(method)?.set_in_flight(2)?)?;
        let one = part_of(&made.far, &made.memories.source, 0, 8);
        made.writer.wait_room(LIMIT, |_| {})?;
        for number in 1..=20 {
            made.writer.commit(&[one], None)?;
            made.writer.wait_room(LIMIT, |_| {})?;
            assert!(made.writer.released() + 1 >= number);
            assert!(made.writer.durable() + 1 >= number);
        }
        made.server.disconnect()?;
        let over = loop {
            // The look takes the event of the end.
            match made.writer.wait_room(LIMIT, |_| {}) {
                Ok(()) => drop(made.writer.commit(&[one], None)),
                Err(over) => break over,
            }
        };
        let is_end = matches!(over, Error::Ended(_) | Error::Operation(_));
        assert!(is_end, "{over:?}");
    }
    Ok(())
}

/// A commit that the peer's end cuts off is not called durable, and its source is released.
#[test]
fn the_fate_of_what_is_cut_off_is_unknown() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &visible(method)?)?;
        let one = part_of(&made.far, &made.memories.source, 0, 8);
        let first = made.writer.commit(&[one], None)?;
        made.writer.wait(first, LIMIT, |_| {})?;
        made.writer.conn().disconnect()?;
        assert_not_connected(made.writer.commit(&[one], None));
        assert_eq!(made.writer.fate(first)?, Fate::Durable);
        let mut other = connect(&peer, &visible(method)?)?;
        let gone = other.writer.commit(&[one], None)?;
        assert_invalid(made.writer.fate(gone), &["another writer"]);
        other.writer.wait(gone, LIMIT, |_| {})?;
    }
    Ok(())
}

/// A completion of the program's own operation is handed on, and that of a probe is not.
#[test]
fn other_completions_are_the_programs() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &visible(method)?)?;
        let (dst, src) = part_of(&made.far, &made.memories.source, 0, 8);
        let own = made.writer.conn().write(dst, src, ALWAYS, 7)?;
        made.writer.probe()?;
        made.writer.probe()?;
        let last = made.writer.commit(&[(dst, src)], None)?;
        let mut others = Vec::new();
        made.writer.wait(last, LIMIT, |wc| others.push(wc))?;
        assert_eq!(others.len(), 1);
        assert_eq!((others[0].posted(), others[0].wr_id()), (Some(own), 7));
    }
    Ok(())
}

/// Promise: no probe is posted while the device works on a commit, which shows a lost host as
/// well. On soft-RoCE a probe would fail the commit's read if a packet of that is lost.
#[test]
fn a_commit_in_flight_needs_no_probe() -> Result {
    let (_test, peer) = peer_test()?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &visible(method)?)?;
        let part = part_of(&made.far, &made.memories.source, 0, 8);
        let ticket = made.writer.commit(&[part], None)?;
        let requests = |made: &Made| made.writer.conn().counters().posted;
        let before = requests(&made);
        made.writer.probe()?;
        assert_eq!(requests(&made), before);
        made.writer.wait(ticket, LIMIT, |_| {})?;
        while made.writer.released() < made.writer.posted() {
            made.writer.look(|_| {})?;
        }
        made.writer.probe()?;
        assert_eq!(requests(&made), before + 1);
    }
    Ok(())
}

/// This request is none for a writer, for a reason with these words, and goes back.
fn refuses(cfg: &WriterCfg, req: ConnReq, words: &[&str]) {
    let refused = Writer::connect(req, cfg, &Offer::default()).expect_err("refused");
    assert!(refused.object.is_some(), "the request goes back");
    assert_says(&refused.error, words);
}

/// The method is the program's choice: the connection does not take another one.
#[test]
fn a_connection_of_another_method_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    for (method, fallback, words) in [
        (Method::Native, true, "the connection has none"),
        (Method::Reading, false, "flushes natively"),
    ] {
        if method == Method::Reading && !peer.is_native_flush_capable() {
            continue;
        }
        let settings = ConnCfg::new().set_force_fallback(fallback).clone();
        refuses(
            &WriterCfg::new(method),
            resolve(&peer, &ep, &settings)?,
            &[words],
        );
    }
    Ok(())
}

/// A request with too few slots would refuse commits for which the writer has room.
#[test]
fn a_request_with_too_few_slots_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    for (method, sends, receives) in [
        (Method::Reading, 7, 0),
        (Method::Server, 4, 1),
        (Method::Server, 5, 0),
    ] {
        let cfg = *WriterCfg::new(method).set_in_flight(1)?;
        let mut settings = ConnCfg::new();
        settings.set_sq_size(sends).set_rq_size(receives);
        settings.set_force_fallback(true);
        let req = resolve(&peer, &ep, &settings)?;
        let slots = format!("{sends} slots for sends and {receives} for receives");
        refuses(&cfg, req, &[&slots, "WriterCfg::conn_cfg"]);
    }
    Ok(())
}

/// Before the event the peer's offer is not there.
#[test]
fn a_writer_is_not_finished_before_its_connection_is_established() -> Result {
    let (_test, peer) = peer_test()?;
    let (connecting, _ep) = ask_to_commit(&peer, &visible(Method::Reading)?)?;
    let early = connecting.finish().expect_err("nobody has accepted it");
    let is_early = matches!(early, Error::NotConnected(NotConnected::NotYet));
    assert!(is_early, "{early:?}");
    Ok(())
}

/// A peer that sends no offer is no peer of a writer.
#[test]
fn a_peer_without_an_offer_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let (connecting, ep) = ask_to_commit(&peer, &visible(Method::Reading)?)?;
    let _server = accept(&ep, &ConnCfg::new())?;
    assert_invalid(connecting.wait(LIMIT), &["the peer sent no Offer"]);
    Ok(())
}
