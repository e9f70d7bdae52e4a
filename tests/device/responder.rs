//! The server's method: a writer asks, and a responder makes durable and answers. Its durability is
//! in tests/fabric/power.

use std::sync::Arc;
use std::thread;

use rpma::WcSuccess;
use rpma::commit::{Fate, Limits, Method, Responder, Turn, Writer, WriterCfg};

use crate::common::prelude::*;

const SIZE: usize = 4096;
/// The offered bytes: not the last ones.
const OFFERED: usize = 2048;
const TAIL: usize = 1024;

/// A server with its clients.
struct Server {
    peer: Peer,
    ep: Ep,
    log: Arc<Mr<PmemMap>>,
    responder: Responder<usize>,
    conns: Vec<Conn>,
    ended: Vec<(usize, String)>,
}

impl Server {
    fn new(peer: &Peer, credits: u16) -> Result<Self> {
        let map = PmemMap::open(devdax(), SIZE)?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let log = Mr::reg(peer, map, usage)?;
        log.write_at(0, &[0; SIZE])?;
        Ok(Self {
            peer: peer.clone(),
            ep: listen(peer)?,
            log: Arc::new(log),
            responder: Responder::new(Limits::new(credits, 4, 512)?),
            conns: Vec::new(),
            ended: Vec::new(),
        })
    }

    fn offer(&self) -> Offer {
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&self.log);
        offer.set_limits(self.responder.limits()).clone()
    }

    fn request(&self, cfg: &ConnCfg) -> ConnReq {
        resolve(&self.peer, &self.ep, cfg).expect("resolves")
    }

    /// Accepts the client that asks.
    fn accept(&mut self) -> Result {
        let cfg = self.responder.conn_cfg(&ConnCfg::new())?;
        let req = self.ep.next_conn_req_timeout(&cfg, LIMIT)?;
        let slots = self.responder.prepare(&req, &self.log, ..OFFERED);
        let answer = self.offer().encode(Offer::ACCEPT)?;
        self.conns.push(req.connect(&answer)?);
        self.responder.add(self.conns.len() - 1, slots?);
        Ok(())
    }

    fn writer(&mut self, cfg: &WriterCfg) -> Result<Writer> {
        let settings = cfg.conn_cfg(&ConnCfg::new())?;
        let req = self.request(&settings);
        let connecting = Writer::connect(req, cfg, &Offer::default())?;
        self.accept()?;
        Ok(connecting.wait(LIMIT)?)
    }

    /// A client that sends messages of its own, and its memory.
    fn raw(&mut self, cfg: &ConnCfg) -> Result<(Conn, Mr<Memory>)> {
        let asking = self.request(cfg).connect(&[])?;
        self.accept()?;
        let memory = region(&self.peer, 1024, MrUsage::SEND | MrUsage::RECV)?;
        Ok((asking.wait_established(LIMIT)?, memory))
    }

    /// One round of the server's loop; how many requests it served.
    fn step(&mut self) -> usize {
        let mut wcs = [Wc::default(); 16];
        for (client, conn) in self.conns.iter().enumerate() {
            while let Ok(count @ 1..) = conn.get_cq().get_wc(&mut wcs) {
                for wc in &wcs[..count] {
                    self.responder.handle(client, wc);
                }
            }
        }
        let conns = &self.conns;
        match self.responder.turn(|client| conns.get(client)) {
            Turn::Served(count) => count,
            Turn::Misused(client, error) | Turn::Failed(client, error) => {
                self.ended.push((client, error.to_string()));
                0
            }
            _ => 0,
        }
    }

    /// Serves until this is so for a writer.
    fn serve(&mut self, writer: &mut Writer, is_so: impl Fn(&Writer) -> bool) {
        self.until(|_| {
            writer.look(|_| {}).expect("connected");
            is_so(writer)
        });
    }

    /// Serves until this is so.
    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            if self.step() == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(begin.elapsed() < LIMIT, "it does not happen");
        }
    }
}

/// A server of so many credits, a writer of it, and its memory as the writer sees it.
fn served(peer: &Peer, credits: u16) -> Result<(Server, Writer, MrRemote)> {
    let mut server = Server::new(peer, credits)?;
    let writer = server.writer(&WriterCfg::new(Method::Server))?;
    let far = writer.offer().regions()[0];
    Ok((server, writer, far))
}

fn source(peer: &Peer) -> Result<Mr<Memory>> {
    let source = region(peer, SIZE, MrUsage::WRITE_SRC)?;
    source.write_at(0, &pattern(SIZE, 4))?;
    Ok(source)
}

fn tail(far: &MrRemote, number: u64) -> Result<Option<(RemoteSlice, [u8; 8])>> {
    let to = far.slice(TAIL as u64..TAIL as u64 + 8)?;
    Ok(Some((to, number.to_ne_bytes())))
}

/// More requests of a client than a turn serves are served by the next turns, although no
/// completion comes in between.
#[test]
fn requests_that_wait_are_served_by_later_turns() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let mut server = Server::new(&peer, 16)?;
    let mut writer = server.writer(WriterCfg::new(Method::Server).set_in_flight(16)?)?;
    let far = writer.offer().regions()[0];
    for number in 1..=15 {
        let parts = [part_of(&far, &source, 32 * number as usize, 8)];
        writer.commit(&parts, tail(&far, number)?)?;
    }
    let begin = Instant::now();
    while writer.released() < 15 {
        writer.look(|_| {})?;
        assert!(begin.elapsed() < LIMIT);
    }
    server.serve(&mut writer, |writer| writer.durable() == 15);
    assert_eq!(server.log.load_u64(TAIL)?, 15);
    Ok(())
}

#[test]
fn commits_are_answered_in_their_order() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    // More credits than commits in flight, and fewer.
    for (credits, in_flight, room) in [(16, 3, 3), (2, 16, 2)] {
        let mut server = Server::new(&peer, credits)?;
        let mut cfg = WriterCfg::new(Method::Server);
        let mut writer = server.writer(cfg.set_in_flight(in_flight)?)?;
        assert_eq!(writer.room(), room, "the smaller limit");
        let far = writer.offer().regions()[0];
        let mut last = None;
        for number in 0..30u64 {
            server.until(|_| {
                writer.look(|wc| panic!("{wc:?}")).expect("connected");
                writer.room() > 0
            });
            let at = number as usize * 32;
            let parts = [(at, 8), (at + 16, 16)];
            let parts = parts.map(|(at, len)| part_of(&far, &source, at, len));
            let ticket = writer.commit(&parts, tail(&far, number + 1)?)?;
            assert_eq!(ticket.number(), number + 1);
            last = Some(ticket);
        }
        let last = last.ok_or("the last one")?;
        server.serve(&mut writer, |writer| {
            writer.fate(last).expect("its own") == Fate::Durable
        });
        let mut bytes = [0; SIZE];
        server.log.read_at(0, &mut bytes)?;
        assert_eq!(bytes[TAIL..TAIL + 8], 30u64.to_ne_bytes());
        assert_eq!(bytes[..8], pattern(SIZE, 4)[..8]);
        server.serve(&mut writer, |writer| writer.room() == room);
        assert_eq!((writer.durable(), writer.released()), (30, 30));
        assert!(server.ended.is_empty(), "{:?}", server.ended);
    }
    Ok(())
}

/// An answer alone makes no room: the source may be under way still. Without an answer the wait
/// keeps to its limit.
#[test]
fn a_wait_for_room_needs_an_answer() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let (mut server, mut writer, far) = served(&peer, 1)?;
    let parts = [part_of(&far, &source, 0, 8)];
    for number in 1..=5 {
        writer.commit(&parts, tail(&far, number)?)?;
        let short = Duration::from_millis(10);
        assert_timed_out(writer.wait_room(short, |_| {}));
        server.until(|server| server.log.load_u64(TAIL).expect("inside") == number);
        writer.wait_room(LIMIT, |_| {})?;
        assert_eq!((writer.durable(), writer.released()), (number, number));
    }
    Ok(())
}

/// A commit that gets no answer on a connection that has ended is an error and no silence, even in
/// waits with a limit that is shorter than the time in which an answer may still come.
#[test]
fn short_waits_learn_of_the_end() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let (mut server, mut writer, far) = served(&peer, 1)?;
    let ticket = writer.commit(&[part_of(&far, &source, 0, 8)], tail(&far, 1)?)?;
    drop(server.conns.pop());
    let begin = Instant::now();
    let ended = loop {
        match writer.wait(ticket, Duration::from_millis(100), |_| {}) {
            Err(Error::TimedOut(_)) => assert!(begin.elapsed() < LIMIT, "no end"),
            ended => break ended.expect_err("it is not durable"),
        }
    };
    let is_end = matches!(ended, Error::Ended(_) | Error::Operation(_));
    assert!(is_end, "{ended:?}");
    Ok(())
}

/// Commits without an answer keep their room, and after the connection's end no answer comes. So
/// another commit is refused because of the end, and not because there is no room.
#[test]
fn a_full_writer_tells_of_the_end() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let (mut server, mut writer, far) = served(&peer, 1)?;
    let parts = [part_of(&far, &source, 0, 8)];
    writer.commit(&parts, tail(&far, 1)?)?;
    full(writer.commit(&parts, tail(&far, 2)?));
    drop(server.conns.pop());
    writer.wait_room(LIMIT, |_| {}).expect_err("it has ended");
    assert_not_connected(writer.commit(&parts, tail(&far, 2)?));
    Ok(())
}

/// Each is refused before anything is posted.
#[test]
fn a_writer_asks_for_nothing_that_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let mut server = Server::new(&peer, 2)?;
    let mut writer = server.writer(WriterCfg::new(Method::Server).set_parts(16)?)?;
    let far = writer.offer().regions()[0];
    let one = part_of(&far, &source, 0, 8);
    let odd = far.slice(20..28)?;
    let long = far.slice(16..32)?;
    for (parts, pointer, words) in [
        (&[][..], None, "0 parts"),
        (&[one; 5][..], None, "up to 4 parts"),
        (&[part_of(&far, &source, 0, 513)][..], None, "513 bytes"),
        (&[part_of(&far, &source, 0, 0)][..], None, "0 bytes"),
        (&[one][..], Some((odd, [1; 8])), "multiple of 8"),
        (&[one][..], Some((long, [1; 8])), "16 bytes"),
        (&[one][..], Some((one.0, [1; 8])), "lies in part 1"),
    ] {
        assert_invalid(writer.commit(parts, pointer), &[words]);
    }
    assert_eq!(writer.posted(), 0);
    writer.commit(&[one], tail(&far, 1)?)?;
    writer.commit(&[one], tail(&far, 2)?)?;
    // No credit is left.
    assert_eq!(full(writer.commit(&[one], None)).1, 2);
    server.serve(&mut writer, |writer| writer.durable() == 2);
    Ok(())
}

/// A request as its bytes.
fn request(number: u32, pointer: Option<(u64, u64)>, ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![b'r', b'C', 1, ranges.len() as u8];
    bytes.extend(number.to_le_bytes());
    bytes.extend([u8::from(pointer.is_some()), 0, 0, 0, 0, 0, 0, 0]);
    for (address, word) in [pointer.unwrap_or_default()].iter().chain(ranges) {
        bytes.extend(address.to_le_bytes());
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn send(conn: &Conn, memory: &Mr<Memory>, bytes: &[u8]) -> Result {
    memory.write_at(0, bytes)?;
    conn.send(memory.slice(..bytes.len())?, ALWAYS, 0)?;
    Ok(())
}

/// A client with a wrong request is cut off, no byte is stored for it, and the others go on.
#[test]
fn a_wrong_request_ends_its_connection_alone() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let (mut server, mut writer, far) = served(&peer, 2)?;
    let base = server.log.get_ptr().addr() as u64;
    let end = base + OFFERED as u64;
    let good = (base, 8);
    let at = Some((base + TAIL as u64, 7));
    let one = |pointer, ranges: &[_]| request(1, pointer, ranges);
    let mut newer = one(at, &[good]);
    newer[2] = 2;
    let wrong = vec![
        (one(at, &[]), "0 ranges"),
        (one(at, &[good; 5]), "5 ranges"),
        (one(at, &[good, (base, 0)]), "names 0 bytes"),
        (one(at, &[(base - 1, 8)]), "names 8 bytes"),
        (one(at, &[(end - 7, 8)]), "names 8 bytes"),
        (one(at, &[(end, 1)]), "names 1 bytes"),
        (one(at, &[(base, u64::MAX)]), "names 18446744073709551615"),
        (one(at, &[(u64::MAX, 2)]), "names 2 bytes"),
        (one(at, &[(base, 256), (base, 257)]), "has 513 bytes"),
        (one(Some((base + 4, 7)), &[good]), "multiple of 8"),
        (one(Some((end, 7)), &[good]), "its pointer at"),
        (one(Some((u64::MAX - 7, 7)), &[good]), "its pointer at"),
        (
            one(Some((base + 8, 7)), &[(base + 15, 8)]),
            "inside the 8 bytes",
        ),
        (newer, "version 2"),
        (request(2, at, &[good]), "number 2, where 1 is due"),
        (b"hello".to_vec(), "of 5 bytes"),
        (vec![], "of 0 bytes"),
        ([one(at, &[good]), vec![0; 241]].concat(), "of 289 bytes"),
        // It does not fit into the receive.
        ([one(at, &[good]), vec![0; 256]].concat(), "failed"),
    ];
    for (number, (bytes, words)) in wrong.into_iter().enumerate() {
        let (conn, memory) = server.raw(&ConnCfg::new())?;
        let client = server.conns.len() - 1;
        send(&conn, &memory, &bytes)?;
        server.until(|server| !server.ended.is_empty());
        let (ended, text) = server.ended.remove(0);
        assert_eq!(ended, client);
        assert!(text.contains(words), "{words}: {text}");
        assert_eq!(server.log.load_u64(TAIL)?, number as u64);
        let parts = [part_of(&far, &source, 0, 8)];
        let honest = writer.commit(&parts, tail(&far, number as u64 + 1)?)?;
        server.serve(&mut writer, |writer| {
            writer.fate(honest).expect("its own") == Fate::Durable && writer.room() == 2
        });
        drop(conn);
    }
    Ok(())
}

/// A client that takes no answers, and one that sends more than its credits, do not keep an honest
/// one from its commits.
#[test]
fn floods_and_deaf_clients_delay_nobody() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let (mut server, mut writer, far) = served(&peer, 2)?;
    let base = server.log.get_ptr().addr() as u64;
    let cfg = ConnCfg::new().set_sq_size(64).set_cq_size(64).clone();
    let (deaf, deaf_memory) = server.raw(&cfg)?;
    let (flood, flood_memory) = server.raw(&cfg)?;
    let answer = flood_memory.slice(512..520)?;
    for _ in 0..8 {
        flood.recv(answer, 0)?;
    }
    let mut wcs = [Wc::default(); 16];
    let (mut flooded, mut in_flight) = (0, 0);
    for number in 1..=2 {
        send(&deaf, &deaf_memory, &request(number, None, &[(base, 8)]))?;
    }
    for number in 1..=30u64 {
        let parts = [part_of(&far, &source, 0, 8)];
        let ticket = writer.commit(&parts, tail(&far, number)?)?;
        server.until(|_| {
            // Six at a time, where two are allowed. All have the same bytes.
            while in_flight < 6 && flooded < 3 && flood.failure().is_none() {
                flooded += 1;
                let bytes = request(flooded, None, &[(base, 8)]);
                let at = 64 * flooded as usize;
                flood_memory.write_at(at, &bytes).expect("inside");
                let message = flood_memory.slice(at..at + bytes.len()).expect("inside");
                in_flight += usize::from(flood.send(message, ALWAYS, 0).is_ok());
            }
            while let Ok(1..) = flood.get_cq().get_wc(&mut wcs) {}
            writer.look(|_| {}).expect("connected");
            writer.fate(ticket).expect("its own") == Fate::Durable && writer.room() == 2
        });
    }
    assert_eq!(server.log.load_u64(TAIL)?, 30);
    drop((deaf, flood));
    Ok(())
}

/// The needs of commits are checked before a client is accepted.
#[test]
fn a_client_is_prepared_with_the_right_memory_and_queues_only() -> Result {
    let (_test, peer) = peer_test()?;
    let server = Server::new(&peer, 2)?;
    let map = PmemMap::open(devdax(), SIZE)?;
    let unflushed = Mr::reg(&peer, map, MrUsage::WRITE_DST)?;
    let right = server.responder.conn_cfg(&ConnCfg::new())?;
    let few = ConnCfg::new().set_sq_size(2).set_rq_size(3).clone();
    let ask = || server.request(&ConnCfg::new()).connect(&[]);
    let _asking = [ask()?, ask()?];
    let asked = |cfg| server.ep.next_conn_req_timeout(cfg, LIMIT);
    let responder = &server.responder;
    // It has no persistent flushes.
    not_supported(responder.prepare(&asked(&right)?, &Arc::new(unflushed), ..));
    let refused = responder.prepare(&asked(&few)?, &server.log, ..);
    assert_invalid(refused, &["Responder::conn_cfg"]);
    Ok(())
}

/// A peer that does not serve the method refuses it with words, or is refused by the writer.
#[test]
fn a_method_that_is_not_served_is_refused_with_words() -> Result {
    let (_test, peer) = peer_test()?;
    let mut server = Server::new(&peer, 2)?;
    let cfg = WriterCfg::new(Method::Server);
    let without = Offer::new(&PeerCfg::new());
    let ask = |server: &Server| -> Result<_> {
        let req = server.request(&cfg.conn_cfg(&ConnCfg::new())?);
        let connecting = Writer::connect(req, &cfg, &Offer::default())?;
        let asked = server.ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
        Ok((connecting, asked))
    };

    let (connecting, asked) = ask(&server)?;
    let refusal = without.judge(asked.get_private_data());
    let refusal = refusal.expect_err("not served");
    assert_eq!(refusal.code(), RefusalCode::Refused);
    asked.reject(&refusal.encode())?;
    let error = connecting.wait(LIMIT).expect_err("rejected");
    assert_says(&error, &["no durable commits by server's method"]);

    // A server that does not look.
    let (connecting, asked) = ask(&server)?;
    server
        .conns
        .push(asked.connect(&without.encode(Offer::ACCEPT)?)?);
    not_supported(connecting.wait(LIMIT));

    let mut offer = Offer::default();
    offer.set_method(cfg.method(), cfg.flush_type());
    let judged = server.offer().judge(&offer.encode(Offer::CONNECT)?);
    judged.expect("served");
    Ok(())
}

/// A server that sends a wrong answer ends the connection, and no commit is called durable.
#[test]
fn a_wrong_answer_is_no_acknowledgement() -> Result {
    let (_test, peer) = peer_test()?;
    let source = source(&peer)?;
    let answers = region(&peer, 64, MrUsage::SEND)?;
    for wrong in [
        &b"rA\x01\0\x02\0\0\0"[..],
        b"rA\x01\x01\x01\0\0\0",
        b"rA\x02\0\x01\0\0\0",
        b"rA\x01\0\x01\0\0",
        b"",
    ] {
        let (server, mut writer, far) = served(&peer, 2)?;
        let parts = [part_of(&far, &source, 0, 8)];
        let ticket = writer.commit(&parts, None)?;
        answers.write_at(0, wrong)?;
        server.conns[0].send(answers.slice(..wrong.len())?, ALWAYS, 0)?;
        let begin = Instant::now();
        while !writer.is_over() {
            let _ = writer.look(|_| {});
            assert!(begin.elapsed() < LIMIT, "{wrong:?}");
        }
        assert_eq!((writer.fate(ticket)?, writer.durable()), (Fate::Unknown, 0));
        writer.wait(ticket, LIMIT, |_| {}).expect_err("it is over");
    }
    Ok(())
}

/// Promise: a client that was cut off is not served any more: neither requests that the responder
/// has taken nor those that `cut_off` returns. Its pointers are not stored. So both after `remove`,
/// even if another connection has its name, and if the program finds no connection for the client.
#[test]
fn a_client_that_was_cut_off_is_not_served() -> Result {
    let (_test, peer) = peer_test()?;
    for removes in [true, false] {
        let mut server = Server::new(&peer, 4)?;
        // Without a receive for the first answer, the server's end fails after its retries.
        let (client, memory) = server.raw(ConnCfg::new().set_rcq_size(4))?;
        client.recv(memory.slice(512..520)?, 0)?;
        let (_next, _memory) = server.raw(&ConnCfg::new())?;
        let base = server.log.get_ptr().addr() as u64;
        let asks = |number: u32| -> Result {
            let pointer = Some((base + TAIL as u64, number.into()));
            send(&client, &memory, &request(number, pointer, &[(base, 8)]))?;
            completion(&client)?.result()?;
            Ok(())
        };
        asks(1)?;
        server.until(|server| server.log.load_u64(TAIL).expect("inside") == 1);
        asks(2)?;
        // The responder has taken it, and has had no turn.
        let mut wcs = [Wc::default(); 16];
        let count = server.conns[0].get_cq().get_wc(&mut wcs)?;
        for wc in &wcs[..count] {
            assert!(server.responder.handle(0, wc), "{wc:?}");
        }
        asks(3)?;

        let rest = server.conns.remove(0).cut_off()?;
        let is_message = |ok: WcSuccess| ok.opcode() == WcOpcode::RECV;
        let is_request = |wc: &&Wc| wc.result().is_ok_and(is_message);
        let arrived = rest.iter().filter(is_request).count();
        assert_eq!(arrived, 1, "the third request: {rest:?}");
        if removes {
            server.responder.remove(0);
        }
        let conns = &server.conns;
        for _ in 0..3 {
            let turn = server.responder.turn(|_| conns.first().filter(|_| removes));
            assert!(matches!(turn, Turn::Idle), "{turn:?}");
        }
        for wc in &rest {
            assert!(!server.responder.handle(0, wc), "it is forgotten");
        }
        assert_eq!(server.log.load_u64(TAIL)?, 1);
    }
    Ok(())
}
