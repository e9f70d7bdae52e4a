//! Writers: connections that commit by one method. Their durability is in tests/fabric/power.

use rpma::commit::{Fate, Method, Writer, WriterCfg};

use crate::common::prelude::*;

const LIMIT: Duration = Duration::from_secs(60);
const SIZE: usize = 1024;
const TAIL: usize = SIZE - 8;

fn visible(method: Method) -> Result<WriterCfg> {
    let mut cfg = WriterCfg::new(method);
    cfg.set_flush_type(FlushType::Visibility)?;
    Ok(cfg)
}

/// A writer, and the server's end of its connection.
struct Made {
    writer: Writer,
    server: Conn,
    far: MrRemote,
}

fn connect(peer: &Peer, target: &Mr<Memory>, cfg: &WriterCfg) -> Result<Made> {
    let ep = listen(peer)?;
    let settings = cfg.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(peer, &addr(), ep.get_port(), &settings)?;
    let connecting = Writer::connect(req, cfg, &Offer::new(&PeerCfg::new()))?;
    let asked = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let mut offer = Offer::new(&PeerCfg::new());
    offer.add_region(target);
    let server = asked.connect(&offer.encode(Offer::ACCEPT)?)?;
    let writer = connecting.wait(LIMIT)?;
    let server = server.wait_established(LIMIT)?;
    let far = writer.offer().regions()[0];
    Ok(Made {
        writer,
        server,
        far,
    })
}

/// The one-sided methods that the device has.
fn methods(peer: &Peer) -> Vec<Method> {
    match peer.is_native_flush_capable() {
        true => vec![Method::Native, Method::Reading],
        false => vec![Method::Reading],
    }
}

fn part<'a>(
    far: &MrRemote,
    source: &'a Mr<Memory>,
    at: usize,
    len: usize,
) -> Result<(RemoteSlice, MrSlice<'a>)> {
    let dst = far.slice(at as u64..(at + len) as u64)?;
    Ok((dst, source.slice(at..at + len)?))
}

fn target(peer: &Peer) -> Result<Mr<Memory>> {
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    region(peer, SIZE, usage)
}

#[test]
fn commits_complete_in_their_order() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(SIZE, 3))?;
    for method in methods(&peer) {
        let target = target(&peer)?;
        let mut cfg = visible(method)?;
        cfg.set_in_flight(4)?;
        let mut made = connect(&peer, &target, &cfg)?;
        let tail = made.far.slice(TAIL as u64..)?;
        let mut tickets = Vec::new();
        for number in 0..12u64 {
            let at = number as usize * 64;
            let parts = [
                part(&made.far, &source, at, 24)?,
                part(&made.far, &source, at + 32, 32)?,
            ];
            let pointer = Some((tail, (number + 1).to_ne_bytes()));
            while made.writer.room() == 0 {
                made.writer.look(|wc| panic!("{wc:?}"))?;
            }
            let ticket = made.writer.commit(&parts, pointer)?;
            assert_eq!(ticket.number(), number + 1);
            tickets.push(ticket);
        }
        let last = tickets[11];
        made.writer.wait(last, LIMIT, |wc| panic!("{wc:?}"))?;
        for ticket in tickets {
            assert_eq!(made.writer.fate(ticket)?, Fate::Durable);
        }
        assert_eq!(made.writer.released(), 12);
        assert_eq!(made.writer.room(), 4);
        assert_eq!(contents(&target)?[TAIL..], 12u64.to_ne_bytes());
        assert_eq!(contents(&target)?[..24], contents(&source)?[..24]);
        made.writer.into_conn().close(LIMIT)?;
        drop(made.server);
    }
    Ok(())
}

#[test]
fn more_than_fits_is_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = target(&peer)?;
    for method in methods(&peer) {
        let mut cfg = visible(method)?;
        cfg.set_in_flight(2)?;
        let mut made = connect(&peer, &target, &cfg)?;
        let one = part(&made.far, &source, 0, 8)?;
        let text = invalid(made.writer.commit(&[one; 3], None));
        assert!(
            text.contains("3 parts") && text.contains("set_parts"),
            "{text}"
        );
        made.writer.commit(&[one], None)?;
        let last = made.writer.commit(&[one; 2], None)?;
        let full = made
            .writer
            .commit(&[one], None)
            .expect_err("2 are in flight");
        let is_full = matches!(
            full,
            Error::QueueFull {
                queue: Queue::Commits,
                depth: 2
            }
        );
        assert!(is_full, "{full}");
        assert!(full.to_string().contains("Writer::wait_room"), "{full}");
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
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = target(&peer)?;
    for method in methods(&peer) {
        let mut cfg = visible(method)?;
        cfg.set_in_flight(2)?;
        let mut made = connect(&peer, &target, &cfg)?;
        let one = part(&made.far, &source, 0, 8)?;
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
        assert!(
            matches!(over, Error::Ended(_) | Error::Operation(_)),
            "{over:?}"
        );
    }
    Ok(())
}

/// A commit that the peer's end cuts off is not called durable, and its source is released.
#[test]
fn the_fate_of_what_is_cut_off_is_unknown() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = target(&peer)?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &target, &visible(method)?)?;
        let one = part(&made.far, &source, 0, 8)?;
        let first = made.writer.commit(&[one], None)?;
        made.writer.wait(first, LIMIT, |_| {})?;
        made.writer.conn().disconnect()?;
        let refused = made.writer.commit(&[one], None);
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
        assert_eq!(made.writer.fate(first)?, Fate::Durable);
        let mut other = connect(&peer, &target, &visible(method)?)?;
        let gone = other.writer.commit(&[one], None)?;
        let text = invalid(made.writer.fate(gone));
        assert!(text.contains("another writer"), "{text}");
        other.writer.wait(gone, LIMIT, |_| {})?;
    }
    Ok(())
}

/// A completion of the program's own operation is handed on, and that of a probe is not.
#[test]
fn other_completions_are_the_programs() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = target(&peer)?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &target, &visible(method)?)?;
        let (dst, src) = part(&made.far, &source, 0, 8)?;
        let flags = Flags::COMPLETION_ALWAYS;
        let own = made.writer.conn().write(dst, src, flags, 7)?;
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
    let _test = device_test();
    let peer = peer()?;
    let source = region(&peer, SIZE, MrUsage::WRITE_SRC)?;
    let target = target(&peer)?;
    for method in methods(&peer) {
        let mut made = connect(&peer, &target, &visible(method)?)?;
        let part = part(&made.far, &source, 0, 8)?;
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

/// The method is the program's choice: the connection does not take another one.
#[test]
fn a_connection_of_another_method_is_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    for (method, fallback, words) in [
        (Method::Native, true, "the connection has none"),
        (Method::Reading, false, "flushes natively"),
    ] {
        if method == Method::Reading && !peer.is_native_flush_capable() {
            continue;
        }
        let mut settings = ConnCfg::new();
        settings.set_force_fallback(fallback);
        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &settings)?;
        let offer = Offer::new(&PeerCfg::new());
        let refused = Writer::connect(req, &WriterCfg::new(method), &offer);
        let refused = refused.expect_err("another method");
        assert!(refused.req.is_some(), "the request goes back");
        let text = refused.error.to_string();
        assert!(text.contains(words), "{text}");
    }
    Ok(())
}

/// A request with too few slots would refuse commits for which the writer has room.
#[test]
fn a_request_with_too_few_slots_is_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    for (method, sends, receives) in [
        (Method::Reading, 7, 0),
        (Method::Server, 4, 1),
        (Method::Server, 5, 0),
    ] {
        let mut cfg = WriterCfg::new(method);
        cfg.set_in_flight(1)?;
        let mut settings = ConnCfg::new();
        settings
            .set_sq_size(sends)
            .set_rq_size(receives)
            .set_force_fallback(true);
        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &settings)?;
        let refused = Writer::connect(req, &cfg, &Offer::default()).expect_err("too few");
        assert!(refused.req.is_some(), "the request goes back");
        let text = refused.error.to_string();
        let slots = format!("{sends} slots for sends and {receives} for receives");
        assert!(
            text.contains(&slots) && text.contains("WriterCfg::conn_cfg"),
            "{text}"
        );
    }
    Ok(())
}

/// Before the event the peer's offer is not there.
#[test]
fn a_writer_is_not_finished_before_its_connection_is_established() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let cfg = visible(Method::Reading)?;
    let settings = cfg.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(&peer, &addr(), ep.get_port(), &settings)?;
    let connecting = Writer::connect(req, &cfg, &Offer::default())?;
    let early = connecting.finish().expect_err("nobody has accepted it");
    let is_early = matches!(early, Error::NotConnected(NotConnected::NotYet));
    assert!(is_early, "{early:?}");
    Ok(())
}

/// A peer that sends no offer is no peer of a writer.
#[test]
fn a_peer_without_an_offer_is_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let ep = listen(&peer)?;
    let cfg = visible(Method::Reading)?;
    let settings = cfg.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(&peer, &addr(), ep.get_port(), &settings)?;
    let connecting = Writer::connect(req, &cfg, &Offer::new(&PeerCfg::new()))?;
    let asked = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT);
    let server = asked?.connect(&[])?;
    let text = invalid(connecting.wait(LIMIT));
    assert!(text.contains("the peer sent no Offer"), "{text}");
    drop(server);
    Ok(())
}
