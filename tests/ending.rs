//! How connections end, or never begin: closing without loss, refusing with a reason, time limits,
//! peers that are gone, and clients that die by the thousand.

mod common;

use std::net::Ipv4Addr;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use common::{
    LIMIT, Pair, addr, addr6, completion, contents, device_test, event, invalid, next_completion,
    no_completion, opcode_of, pattern, peer, region, remote,
};
use rpma::{
    ComplChannel, CompletionChannel, Conn, ConnCfg, ConnEvent, ConnReq, Device, Ep, Error, Flags,
    FlushType, MrRemote, MrSlice, MrUsage, Notify, Peer, RejectReason, RemoteSlice, Side, Srq,
    SrqCfg, Wc, WcOpcode, WcStatus,
};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Long enough that only a hang is longer, short enough that the kernel's own limits are longer.
const SOON: Duration = Duration::from_millis(300);

fn write_nothing(conn: &Conn, wr_id: u64) -> Result<(), Error> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
}

/// An outgoing connection that nobody has answered yet, and the endpoint that it asks.
fn unanswered(peer: &Peer) -> (Conn, Ep) {
    let ep = Ep::listen(peer, &addr(), 0).expect("listens");
    let req = ConnReq::new(peer, &addr(), ep.get_port(), &ConnCfg::new()).expect("resolves");
    (req.connect(&[]).expect("asks"), ep)
}

/// Nothing that was posted before `close` is lost, however late the other side takes it: the C
/// library has only a disconnect, which discards what is in the send queue (W-30).
#[test]
fn closing_loses_nothing_that_was_posted() {
    const MESSAGES: u32 = 60;
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_sq_size(MESSAGES).set_rq_size(MESSAGES);
        cfg.set_min_rnr_timer(Some(12)).expect("possible");
        let src = region(&peer, 4096, MrUsage::SEND | MrUsage::WRITE_SRC);
        let dst = region(&peer, 4096, MrUsage::RECV | MrUsage::WRITE_DST);
        for round in 0..12 {
            let Pair { client, server } = Pair::with(&peer, &cfg, &cfg);
            let (sender, receiver) = match round % 2 {
                0 => (client, server),
                _ => (server, client),
            };
            let post = || {
                for wr_id in 0..MESSAGES.into() {
                    receiver
                        .recv(dst.slice(..).expect("all"), wr_id)
                        .expect("posted");
                }
            };
            // In some rounds the receiver is late.
            if round % 3 > 0 {
                post();
            }
            src.write_at(0, &pattern(4096, round)).expect("inside");
            for n in 0..MESSAGES {
                let flags = match n % 3 {
                    0 => ALWAYS,
                    _ => Flags::COMPLETION_ON_ERROR,
                };
                let part = src.slice(..n as usize * 60).expect("inside");
                sender
                    .send_with_imm(part, flags, n, n.into())
                    .expect("posted");
            }
            let closed = thread::scope(|scope| {
                let closing = scope.spawn(|| sender.close(LIMIT));
                if round % 3 == 0 {
                    thread::sleep(Duration::from_millis(50));
                    post();
                }
                for n in 0..MESSAGES {
                    let wc = next_completion(receiver.get_cq());
                    let success = wc.result().expect("arrives");
                    assert_eq!(success.imm_data(), Some(n), "round {round}");
                    assert_eq!(success.byte_len(), Some(n * 60));
                }
                closing.join().expect("ends").expect("closes")
            });
            let ids: Vec<_> = closed
                .iter()
                .map(|wc| {
                    wc.result().expect("was sent");
                    wc.wr_id()
                })
                .collect();
            let signaled: Vec<u64> = (0..MESSAGES.into()).step_by(3).collect();
            assert_eq!(ids, signaled, "what was not polled comes back, in order");
            assert_eq!(event(&receiver), ConnEvent::Closed);
            let last = (MESSAGES as usize - 1) * 60;
            assert_eq!(contents(&dst)[..last], pattern(4096, round)[..last]);
        }
    });
}

/// With a full send queue there is a slot for the marker nevertheless, and with the device's flush
/// and atomic write in front of it too.
#[test]
fn closing_with_a_full_send_queue() {
    device_test(|| {
        let peer = peer();
        for depth in [1, 4, 10] {
            let mut cfg = ConnCfg::new();
            cfg.set_sq_size(depth);
            let pair = Pair::with(&peer, &cfg, &cfg);
            let dst = region(
                &peer,
                64,
                MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY,
            );
            let base = (dst.get_ptr() as usize).next_multiple_of(8) - dst.get_ptr() as usize;
            let base = base as u64;
            let far = remote(&dst).slice(base..base + 8).expect("inside");
            let mut posted = 0;
            loop {
                let result = match posted % 3 {
                    0 => pair.client.atomic_write(far, &[7; 8], ALWAYS, posted),
                    1 => pair
                        .client
                        .flush(far, FlushType::Visibility, ALWAYS, posted),
                    _ => write_nothing(&pair.client, posted),
                };
                match result {
                    Ok(()) => posted += 1,
                    Err(Error::QueueFull { .. }) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert_eq!(posted, depth.into());
            let rest = pair.client.close(LIMIT).expect("closes");
            for (n, wc) in rest.iter().enumerate() {
                opcode_of(wc, n as u64);
            }
            assert_eq!(rest.len(), depth as usize);
        }
    });
}

/// What nobody has read comes back: completions as they are, receives that were not used as
/// failures. With a completion queue for receives, too.
#[test]
fn closing_returns_what_nobody_has_read() {
    device_test(|| {
        let peer = peer();
        for rcq_size in [0, 10] {
            let mut cfg = ConnCfg::new();
            cfg.set_rcq_size(rcq_size);
            let pair = Pair::with(&peer, &cfg, &cfg);
            for wr_id in 0..10 {
                pair.client.recv(MrSlice::EMPTY, wr_id).expect("posted");
            }
            for wr_id in 10..20 {
                write_nothing(&pair.client, wr_id).expect("posted");
            }
            for _ in 0..4 {
                pair.server.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
                opcode_of(&completion(&pair.server), 1);
            }
            let rest = pair.client.close(LIMIT).expect("closes");
            let ids = |keep: &dyn Fn(&Wc) -> bool| -> Vec<u64> {
                rest.iter().filter(|wc| keep(wc)).map(Wc::wr_id).collect()
            };
            let sent = ids(&|wc| wc.wr_id() >= 10 && wc.result().is_ok());
            assert_eq!(sent, (10..20).collect::<Vec<_>>());
            let used = ids(&|wc| wc.wr_id() < 10 && wc.result().is_ok());
            assert_eq!(used, [0, 1, 2, 3]);
            let unused = ids(&|wc| wc.status() == WcStatus::WR_FLUSH_ERR);
            assert_eq!(unused, [4, 5, 6, 7, 8, 9]);
            assert_eq!(rest.len(), 20, "each once, and no marker: {rest:?}");
            assert_eq!(event(&pair.server), ConnEvent::Closed);
        }
    });
}

/// Both sides close at once, each with something in flight: neither waits for the other.
#[test]
fn closing_on_both_sides_at_once() {
    device_test(|| {
        let peer = peer();
        for _ in 0..10 {
            let Pair { client, server } = Pair::new(&peer);
            for conn in [&client, &server] {
                for wr_id in 0..5 {
                    write_nothing(conn, wr_id).expect("posted");
                }
            }
            thread::scope(|scope| {
                let sides = [client, server].map(|conn| scope.spawn(|| conn.close(LIMIT)));
                for side in sides {
                    // One may find the other gone before its last acknowledgement, and says so.
                    let rest = match side.join().expect("ends") {
                        Ok(rest) => rest,
                        Err(error) => {
                            let gone = matches!(error.error, Error::Operation(_));
                            assert!(gone, "{error:?}");
                            error.completions
                        }
                    };
                    let ids: Vec<_> = rest.iter().map(Wc::wr_id).collect();
                    assert_eq!(ids, [0, 1, 2, 3, 4]);
                }
            });
        }
    });
}

/// A connection that has failed is only freed; what was in flight comes back as failures.
#[test]
fn closing_a_failed_connection() {
    device_test(|| {
        let peer = peer();
        let src = region(&peer, 8, MrUsage::WRITE_SRC);
        let gone = remote(&region(&peer, 8, MrUsage::WRITE_DST))
            .slice(..)
            .expect("all");
        // Whether or not anybody has noticed before.
        for noticed in [true, false] {
            let pair = Pair::new(&peer);
            for wr_id in 0..3 {
                pair.client.recv(MrSlice::EMPTY, wr_id).expect("posted");
            }
            for wr_id in 3..6 {
                pair.client
                    .write(gone, src.slice(..).expect("all"), ALWAYS, wr_id)
                    .expect("posted");
            }
            let mut rest = Vec::new();
            if noticed {
                let wc = next_completion(pair.client.get_cq());
                assert_eq!((wc.wr_id(), wc.status()), (3, WcStatus::REM_ACCESS_ERR));
                rest.push(wc);
                rest.extend(pair.client.close(LIMIT).expect("it is freed"));
            } else {
                let closed = pair.client.close(LIMIT).expect_err("it was not all sent");
                let Error::Operation(failure) = closed.error else {
                    panic!("{closed:?}")
                };
                assert_eq!(
                    (failure.wr_id, failure.status),
                    (3, WcStatus::REM_ACCESS_ERR)
                );
                rest.extend(closed.completions);
            }
            let mut ids: Vec<_> = rest.iter().map(Wc::wr_id).collect();
            ids.sort_unstable();
            assert_eq!(ids, [0, 1, 2, 3, 4, 5], "noticed: {noticed}");
            assert!(rest.iter().all(|wc| wc.result().is_err()), "{rest:?}");
        }
    });
}

/// A connection that the peer has closed is freed, with what is in its queues.
#[test]
fn closing_after_the_peer() {
    device_test(|| {
        let peer = peer();
        let Pair { client, server } = Pair::new(&peer);
        client.recv(MrSlice::EMPTY, 1).expect("posted");
        server.send(MrSlice::EMPTY, ALWAYS, 2).expect("posted");
        opcode_of(&completion(&server), 2);
        client.recv(MrSlice::EMPTY, 3).expect("posted");
        assert!(server.close(LIMIT).expect("closes").is_empty());
        assert_eq!(event(&client), ConnEvent::Closed);
        let rest = client.close(LIMIT).expect("closes");
        assert_eq!(rest.len(), 2);
        assert_eq!(opcode_of(&rest[0], 1), WcOpcode::RECV);
        assert_eq!(rest[1].status(), WcStatus::WR_FLUSH_ERR);
        assert_eq!(rest[1].wr_id(), 3);
    });
}

/// A peer that is gone without this side's knowing cannot acknowledge: the limit is kept, and the
/// error brings what came before.
#[test]
fn closing_keeps_its_limit() {
    device_test(|| {
        let peer = peer();
        for limit in [Duration::ZERO, SOON] {
            let Pair { client, server } = Pair::new(&peer);
            write_nothing(&client, 1).expect("posted");
            completion(&client).result().expect("the peer is there");
            client.recv(MrSlice::EMPTY, 2).expect("posted");
            drop(server);
            write_nothing(&client, 3).expect("not known yet");
            let closed = client.close(limit).expect_err("nobody acknowledges");
            assert!(matches!(closed.error, Error::TimedOut(_)), "{closed:?}");
            let text = closed.to_string();
            assert!(text.contains("did not acknowledge"), "{text}");
            let mut ids: Vec<_> = closed.completions.iter().map(Wc::wr_id).collect();
            ids.sort_unstable();
            assert_eq!(ids, [2, 3]);
            assert!(closed.completions.iter().all(|wc| wc.result().is_err()));
            let error = std::io::Error::from(Error::from(closed));
            assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        }
        // A longer limit ends with the failure of the operation instead.
        let mut cfg = ConnCfg::new();
        cfg.set_retry_count(1).expect("possible");
        cfg.set_ack_timeout(Some(14)).expect("possible");
        let Pair { client, server } = Pair::with(&peer, &cfg, &cfg);
        drop(server);
        write_nothing(&client, 4).expect("not known yet");
        let closed = client.close(LIMIT).expect_err("nobody acknowledges");
        let Error::Operation(failure) = closed.error else {
            panic!("{closed:?}")
        };
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
    });
}

/// A connection that was never established, on either side, is only freed.
#[test]
fn closing_what_was_never_established() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        client.recv(MrSlice::EMPTY, 1).expect("posted");
        let rest = client.close(LIMIT).expect("it is freed");
        assert!(rest.is_empty(), "{rest:?}");
        drop(ep);

        // Accepted, and the client does not complete the handshake: it never asks for the event.
        let (client, ep) = unanswered(&peer);
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        let server = req.connect(&[]).expect("accepts");
        match server.close(SOON) {
            Ok(rest) => assert!(rest.is_empty(), "{rest:?}"),
            Err(closed) => assert!(matches!(closed.error, Error::TimedOut(_)), "{closed:?}"),
        }
        drop(client);

        // Rejected.
        let (client, ep) = unanswered(&peer);
        drop(
            ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)
                .expect("a request"),
        );
        assert!(matches!(event(&client), ConnEvent::Rejected { .. }));
        client.close(LIMIT).expect("it is freed");
    });
}

/// A shared receive queue is not closed with a connection: its receives stay for others, and what
/// arrived on this one comes back.
#[test]
fn closing_with_a_shared_receive_queue() {
    device_test(|| {
        let peer = peer();
        let mut cfg = SrqCfg::new();
        cfg.set_rq_size(4).set_rcq_size(0);
        let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq));
        for wr_id in 0..4 {
            srq.recv(MrSlice::EMPTY, wr_id).expect("posted");
        }
        for round in 0..2 {
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg);
            for _ in 0..2 {
                client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
                opcode_of(&completion(&client), 1);
            }
            write_nothing(&server, 9).expect("posted");
            let mut rest: Vec<_> = server.close(LIMIT).expect("closes");
            rest.sort_by_key(Wc::wr_id);
            let ids: Vec<_> = rest.iter().map(Wc::wr_id).collect();
            assert_eq!(ids, [2 * round, 2 * round + 1, 9]);
            assert!(rest.iter().all(|wc| wc.result().is_ok()), "{rest:?}");
        }
    });
}

/// A reject brings its reason and its data, which the C library throws away; padded to the room
/// that the message has.
#[test]
fn a_reject_tells_why() {
    device_test(|| {
        let peer = peer();
        for data in [&[][..], b"no room", &[5; 148]] {
            let (client, ep) = unanswered(&peer);
            let req = ep
                .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
                .expect("a request");
            req.reject(data).expect("rejects");
            match event(&client) {
                ConnEvent::Rejected {
                    reason,
                    private_data,
                } => {
                    assert_eq!(reason, RejectReason::CONSUMER);
                    assert!(private_data.is_empty() || private_data.len() == 148);
                    assert!(private_data.starts_with(data), "{private_data:?}");
                    let padding = private_data.get(data.len()..).unwrap_or(&[]);
                    assert!(padding.iter().all(|&byte| byte == 0), "{private_data:?}");
                }
                other => panic!("{other:?}"),
            }
            let error = write_nothing(&client, 1).expect_err("no connection");
            assert!(matches!(error, Error::NotConnected(_)), "{error:?}");
        }
    });
}

/// A reject that cannot be sent is refused before anything happens, and the request can still be
/// taken.
#[test]
fn every_refusal_of_a_reject() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        let refused = req.reject(&[1; 149]).expect_err("148 bytes fit");
        let text = refused.to_string();
        assert!(text.contains("149") && text.contains("148"), "{text}");
        assert!(matches!(refused.error, Error::InvalidArgument(_)));
        let req = refused.req.expect("the request");
        let server = req.connect(&[]).expect("accepts after all");
        assert_eq!(event(&client), ConnEvent::Established);
        assert_eq!(event(&server), ConnEvent::Established);

        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &ConnCfg::new()).expect("resolves");
        let refused = req.reject(b"what?").expect_err("it is this side's own");
        assert!(refused.to_string().contains("outgoing"), "{refused}");
        let client = refused
            .req
            .expect("the request")
            .connect(&[])
            .expect("asks");
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        drop(client);
        // The client is gone: an error or not, everything is freed.
        if let Err(error) = req.reject(b"too late") {
            assert!(error.req.is_none() && matches!(error.error, Error::Provider { .. }));
        }
    });
}

/// `wait_established` gives the connection back when it is there.
#[test]
fn waiting_to_be_accepted() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        let server = req.connect(b"welcome").expect("accepts");
        let client = client.wait_established(LIMIT).expect("established");
        let server = server.wait_established(LIMIT).expect("established");
        assert!(client.get_private_data().starts_with(b"welcome"));
        assert_ne!(client.get_event_fd(), server.get_event_fd());
        assert_ne!(client.get_event_fd(), client.get_cq().get_fd());
        write_nothing(&client, 1).expect("posted");
        opcode_of(&completion(&client), 1);
        write_nothing(&server, 2).expect("posted");
        opcode_of(&completion(&server), 2);
    });
}

/// A reject ends the wait with the event; so does a port on which nobody listens.
#[test]
fn waiting_to_be_accepted_and_rejected() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        req.reject(b"not you").expect("rejects");
        let error = client.wait_established(LIMIT).expect_err("rejected");
        let text = error.to_string();
        assert!(
            text.contains("not established") && text.contains("reason 28"),
            "{text}"
        );
        let Error::NotEstablished(event) = &error else {
            panic!("{error:?}")
        };
        let ConnEvent::Rejected { private_data, .. } = &**event else {
            panic!("{event:?}")
        };
        assert!(private_data.starts_with(b"not you"));
        let error = std::io::Error::from(error);
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);

        let port = ep.get_port();
        ep.shutdown().expect("everything is freed");
        let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new()).expect("resolves");
        let client = req.connect(&[]).expect("asks");
        let error = client.wait_established(LIMIT).expect_err("nobody listens");
        assert!(error.to_string().contains("nobody listens"), "{error}");
    });
}

/// A listener that never accepts: the kernel would wait for more than a minute, this ends at the
/// limit. The connection is gone then: accepting it afterwards cannot bring it back.
#[test]
fn nobody_accepts_in_time() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        let start = Instant::now();
        let error = client.wait_established(SOON).expect_err("nobody accepts");
        let took = start.elapsed();
        assert!(took >= SOON && took < LIMIT / 2, "{took:?}");
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
        assert!(error.to_string().contains("did not answer"), "{error}");
        let error = std::io::Error::from(error);
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        // Skipped, or taken and failing; never established.
        let req = ep.next_conn_req_timeout(&ConnCfg::new(), SOON);
        let accepted = req.and_then(|req| Ok(req.connect(&[])?));
        if let Ok(server) = accepted {
            let error = server
                .wait_established(LIMIT)
                .expect_err("the client is gone");
            assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        }
    });
}

/// The same for the side that accepts: a client that never takes the answer never completes the
/// handshake. Afterwards it is too late for that.
#[test]
fn nobody_takes_the_answer_in_time() {
    device_test(|| {
        let peer = peer();
        let (client, ep) = unanswered(&peer);
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("a request");
        let server = req.connect(&[]).expect("accepts");
        let start = Instant::now();
        let error = server.wait_established(SOON).expect_err("nobody answers");
        let took = start.elapsed();
        assert!(took >= SOON && took < LIMIT / 2, "{took:?}");
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
        let error = client.wait_established(LIMIT).expect_err("too late");
        assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
    });
}

/// A wait of at most some time, and how it ended.
type Wait<'a> = &'a dyn Fn(Duration) -> Option<Error>;

/// Every wait has a limit, and says that nothing came.
#[test]
fn every_wait_can_be_limited() {
    device_test(|| {
        let peer = peer();
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let mut cfg = ConnCfg::new();
        cfg.set_compl_channel(ComplChannel::Shared).set_rcq_size(1);
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
        let waits: [(&str, Wait<'_>); 5] = [
            ("Ep::next_conn_req_timeout", &|limit| {
                ep.next_conn_req_timeout(&ConnCfg::new(), limit).err()
            }),
            ("Conn::next_event_timeout", &|limit| {
                pair.client.next_event_timeout(limit).err()
            }),
            ("Cq::wait_timeout", &|limit| {
                pair.client.get_cq().wait_timeout(limit).err()
            }),
            ("Conn::wait_timeout", &|limit| {
                pair.server.wait_timeout(limit).err()
            }),
            ("Cq::wait_for", &|limit| {
                pair.client.get_cq().wait_for(1, limit, |_| {}).err()
            }),
        ];
        for (name, wait) in waits {
            for limit in [Duration::ZERO, Duration::from_millis(70)] {
                let took = || {
                    let start = Instant::now();
                    let error = wait(limit);
                    assert!(
                        matches!(error, Some(Error::NoEvent | Error::NoCompletion)),
                        "{name}: {error:?}"
                    );
                    let took = start.elapsed();
                    assert!(took >= limit, "{name}: {took:?}");
                    took
                };
                // Something else may hold this program up, but not each time.
                let kept = iter::repeat_with(took)
                    .take(5)
                    .any(|took| took < limit + Duration::from_millis(500));
                assert!(kept, "{name}: much longer than {limit:?}, each time");
            }
        }
    });
}

/// A dead peer is known after the acknowledge timeout, as many times as there are retries and once
/// more: so fewer retries make it known sooner, and a shorter timeout sooner still.
///
/// The three wait at once, and the kernel tells the order in which they end. If a setting were not
/// heeded, the connection that began earlier would end earlier.
#[test]
fn a_dead_peer_can_be_known_sooner() {
    device_test(|| {
        let peer = peer();
        // 7 × 1.1 s, 2 × 1.1 s and 2 × 17 ms by the book.
        let cfgs = [(None, 18), (Some(1), 18), (Some(1), 12)];
        let end_order = |pause: Duration| {
            let channel = CompletionChannel::new(&peer).expect("a channel");
            let mut clients = Vec::new();
            for (key, (retries, timeout)) in (0..).zip(cfgs) {
                let mut cfg = ConnCfg::new();
                if let Some(retries) = retries {
                    cfg.set_retry_count(retries).expect("possible");
                }
                cfg.set_ack_timeout(Some(timeout)).expect("possible");
                let channel = channel.clone();
                cfg.set_compl_channel(ComplChannel::Of { channel, key });
                let pair = Pair::with(&peer, &cfg, &ConnCfg::new());
                drop(pair.server);
                clients.push(pair.client);
            }
            let mut began = Duration::ZERO;
            for client in &clients {
                let start = Instant::now();
                write_nothing(client, 1).expect("not known yet");
                thread::sleep(pause);
                began = began.max(start.elapsed());
            }
            let ended = [(); 3].map(|()| {
                let key = channel.wait_timeout(LIMIT).expect("ends in time").key;
                let failure = completion(&clients[key as usize])
                    .result()
                    .expect_err("nobody answers");
                assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
                key
            });
            (began, ended)
        };
        // If this program was held up between two of them, the order says nothing.
        let ended = iter::repeat_with(|| end_order(Duration::from_millis(300)))
            .take(10)
            .find_map(|(began, ended)| (began < Duration::from_millis(1800)).then_some(ended));
        assert_eq!(ended, Some([2, 1, 0]));
    });
}

/// An endpoint on port 0 gets a port of its own, which can be read, and taken again afterwards.
#[test]
fn the_kernel_chooses_a_port() {
    device_test(|| {
        let peer = peer();
        for addr in [addr(), addr6()] {
            let one = Ep::listen(&peer, &addr, 0).expect("listens");
            let other = Ep::listen(&peer, &addr, 0).expect("listens");
            assert_ne!(one.get_port(), 0);
            assert_ne!(one.get_port(), other.get_port());
            assert!(one.get_fd() >= 0 && one.get_fd() != other.get_fd());
            let port = one.get_port();
            one.shutdown().expect("everything is freed");
            let again = Ep::listen(&peer, &addr, port).expect("the port is free again");
            assert_eq!(again.get_port(), port);
        }
    });
}

/// Addresses of both families work throughout, also spelt in another way; a name is resolved, and
/// if no address of it leads to an RDMA device, the error says that, and what to do.
#[test]
fn addresses_and_names() {
    device_test(|| {
        let peer = peer();
        // A name for the resolver: the last two numbers as one.
        let octets = addr()
            .parse::<Ipv4Addr>()
            .expect("an IPv4 address")
            .octets();
        let host = u16::from_be_bytes([octets[2], octets[3]]);
        let name = format!("{}.{}.{host}", octets[0], octets[1]);
        let spelt_out = addr6().replace("::", ":0:0:0:0:0:0:");
        for (listen, ask) in [
            (addr(), addr()),
            (addr6(), addr6()),
            (addr6(), spelt_out),
            (addr(), name.clone()),
            (name, addr()),
        ] {
            let ep = Ep::listen(&peer, &listen, 0).expect("listens");
            let req = ConnReq::new(&peer, &ask, ep.get_port(), &ConnCfg::new()).expect("resolves");
            let client = req.connect(&[]).expect("asks");
            let req = ep
                .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
                .expect("a request");
            let server = req.connect(&[]).expect("accepts");
            let client = client.wait_established(LIMIT).expect("established");
            let _server = server.wait_established(LIMIT).expect("established");
            write_nothing(&client, 1).expect("posted");
            opcode_of(&completion(&client), 1);
        }
        // The resolver knows 127.1 on every host.
        for name in ["127.1", "127.0.0.1", "::1"] {
            for error in [
                Device::from_addr(name, Side::Local).err(),
                Ep::listen(&peer, name, 0).err(),
                ConnReq::new(&peer, name, 7204, &ConnCfg::new()).err(),
            ] {
                let text = error.expect("no device has it").to_string();
                assert!(text.contains("RDMA device"), "{name}: {text}");
            }
        }
        let text = invalid(ConnReq::new(&peer, "no such host", 1, &ConnCfg::new()));
        assert!(
            text.contains("\"no such host\" cannot be resolved"),
            "{text}"
        );
    });
}

/// What was set can be read back, and what was refused changes nothing.
#[test]
fn settings_of_a_connection() {
    device_test(|| {
        let peer = peer();
        let srq = Srq::new(&peer, &SrqCfg::new()).expect("a shared receive queue");
        let mut cfg = ConnCfg::new();
        cfg.set_timeout(Duration::from_secs(3))
            .set_cq_size(11)
            .set_rcq_size(12)
            .set_rcq_notify(Notify::Solicited)
            .set_sq_size(13)
            .set_rq_size(14)
            .set_max_inline_data(15)
            .set_compl_channel(ComplChannel::Shared)
            .set_srq(Some(&srq))
            .set_force_fallback(true);
        cfg.set_max_send_sge(2).expect("possible");
        cfg.set_retry_count(3).expect("possible");
        cfg.set_rnr_retry_count(4).expect("possible");
        cfg.set_ack_timeout(Some(5)).expect("possible");
        cfg.set_min_rnr_timer(Some(6)).expect("possible");
        assert!(invalid(cfg.set_min_rnr_timer(Some(32))).contains("0 to 31"));
        assert!(invalid(cfg.set_retry_count(8)).contains("0 to 7"));
        assert!(invalid(cfg.set_rnr_retry_count(8)).contains("0 to 7"));
        assert!(invalid(cfg.set_ack_timeout(Some(32))).contains("1 to 31"));
        assert!(invalid(cfg.set_max_send_sge(0)).contains("at least 1"));
        let copy = cfg.clone();
        drop(cfg);
        assert_eq!(copy.get_timeout(), Duration::from_secs(3));
        assert_eq!((copy.get_cq_size(), copy.get_rcq_size()), (11, 12));
        assert_eq!(copy.get_rcq_notify(), Notify::Solicited);
        assert_eq!((copy.get_sq_size(), copy.get_rq_size()), (13, 14));
        assert_eq!(
            (copy.get_max_inline_data(), copy.get_max_send_sge()),
            (15, 2)
        );
        assert!(matches!(copy.get_compl_channel(), ComplChannel::Shared));
        assert!(copy.get_srq().is_some() && copy.get_force_fallback());
        assert_eq!((copy.get_retry_count(), copy.get_rnr_retry_count()), (3, 4));
        assert_eq!(copy.get_ack_timeout(), Some(5));
        assert_eq!(copy.get_min_rnr_timer(), Some(6));
    });
}

/// Codes that nobody knows are shown as numbers, and never stop a program.
#[test]
fn what_is_unknown_stays_a_number() {
    let event = ConnEvent::Other {
        event: 4711,
        status: -110,
    };
    let text = event.to_string();
    assert!(
        text.contains("4711") && text.contains("timed out"),
        "{text}"
    );
    assert_eq!(RejectReason(77).to_string(), "reason 77");
    assert_eq!(WcStatus(1234).to_string(), "unknown code 1234");
    assert_eq!(WcOpcode(1234).to_string(), "unknown code 1234");
    assert!(!WcOpcode(1).is_receive() && WcOpcode(130).is_receive());
    for known in [
        ConnEvent::Established,
        ConnEvent::Closed,
        ConnEvent::TimewaitExit,
    ] {
        assert!(known.to_string().starts_with("Connection "), "{known}");
    }
}

/// A thousand clients connect and die in every way, before and after they are accepted, with
/// operations posted, rejected, waiting for an answer. The endpoint takes them as they come, and
/// works afterwards as before.
#[test]
fn a_thousand_clients_die() {
    const CLIENTS: usize = 1000;
    const KINDS: usize = 5;
    device_test(|| {
        let peer = peer();
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let port = ep.get_port();
        let src = region(&peer, 64, MrUsage::SEND | MrUsage::WRITE_SRC);
        let dst = region(&peer, 64, MrUsage::RECV | MrUsage::WRITE_DST);
        let far = remote(&dst).slice(..).expect("all");
        let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(2));
        let die = |kind: usize| {
            let request = || {
                let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new()).expect("resolves");
                req.recv(MrSlice::EMPTY, 1).expect("posted");
                req
            };
            if kind == 0 {
                // One more, of which the endpoint never hears.
                drop(request());
            }
            let client = request().connect(&[kind as u8]).expect("asks");
            if kind == 0 {
                // The request may be anywhere.
                return;
            }
            match client.wait_established(LIMIT) {
                Ok(client) => {
                    assert_ne!(kind, 1, "it was to be rejected");
                    for wr_id in 0..5 {
                        let near = src.slice(..).expect("all");
                        client.send(near, ALWAYS, wr_id).expect("posted");
                        client.write(far, near, ALWAYS, wr_id).expect("posted");
                    }
                    match kind {
                        2 => {}
                        3 => drop(next_completion(client.get_cq())),
                        _ => client.disconnect().expect("disconnects"),
                    }
                }
                Err(Error::NotEstablished(_)) => assert_eq!(kind, 1),
                Err(error) => panic!("{error:?}"),
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _counts = Leaving(&left);
                    while let nth @ 0..CLIENTS = next.fetch_add(1, Ordering::Relaxed) {
                        die(nth % KINDS);
                    }
                });
            }
            let mut accepted = Vec::new();
            let mut seen = [0; KINDS];
            let cfg = ConnCfg::new();
            while left.load(Ordering::Acquire) > 0 {
                // Some are dropped as soon as they are there, the others when the client is gone.
                accepted.retain(|(kind, conn): &(usize, Conn)| {
                    match conn.next_event_timeout(Duration::ZERO) {
                        Ok(ConnEvent::Established) => *kind != 2,
                        Ok(_) => false,
                        Err(Error::NoEvent) => *kind != 0,
                        Err(error) => panic!("a connection fails: {error:?}"),
                    }
                });
                let req = match ep.next_conn_req_timeout(&cfg, Duration::from_millis(5)) {
                    Ok(req) => req,
                    Err(Error::NoEvent) => continue,
                    Err(error) => panic!("the endpoint fails: {error:?}"),
                };
                let kind = usize::from(req.get_private_data()[0]);
                seen[kind] += 1;
                if kind == 1 {
                    req.reject(b"no").expect("this client waits");
                    continue;
                }
                for wr_id in 0..5 {
                    let part = dst.slice(..).expect("all");
                    req.recv(part, wr_id).expect("posted");
                }
                // A client that is gone cannot be accepted.
                match req.connect(&[]) {
                    Ok(conn) => accepted.push((kind, conn)),
                    Err(error) => assert_eq!(kind, 0, "{error}"),
                }
            }
            for (kind, &seen) in seen.iter().enumerate().skip(1) {
                assert_eq!(
                    seen,
                    CLIENTS / KINDS,
                    "all that waited for an answer, of kind {kind}"
                );
            }
        });
        still_works(&ep, &peer);
    });
}

/// An endpoint takes a client, past those that are gone, and messages arrive.
fn still_works(ep: &Ep, peer: &Peer) {
    const STAYS: &[u8] = b"the one that stays";
    let src = region(peer, 64, MrUsage::SEND);
    let dst = region(peer, 64, MrUsage::RECV);
    let req = ConnReq::new(peer, &addr(), ep.get_port(), &ConnCfg::new()).expect("resolves");
    let client = req.connect(STAYS).expect("asks");
    let server = loop {
        let req = ep
            .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
            .expect("the endpoint works");
        let stays = req.get_private_data().starts_with(STAYS);
        match req.connect(&[]) {
            Ok(server) if stays => break server,
            Ok(_) => {}
            Err(error) => assert!(!stays, "{error}"),
        }
    };
    let client = client.wait_established(LIMIT).expect("established");
    let server = server.wait_established(LIMIT).expect("established");
    src.write_at(0, &pattern(64, 5)).expect("inside");
    server.recv(dst.slice(..).expect("all"), 1).expect("posted");
    client
        .send(src.slice(..).expect("all"), ALWAYS, 2)
        .expect("posted");
    opcode_of(&completion(&client), 2);
    opcode_of(&completion(&server), 1);
    assert_eq!(contents(&dst), pattern(64, 5));
    no_completion(&client);
}

/// Programs that are killed at any moment: with a request that nobody has seen, when they were just
/// accepted, and in the middle of sending and writing. The kernel tells the server, for which each is
/// an ordinary end, and frees what they had.
#[test]
fn clients_that_are_killed() {
    const CHILD: &str = "RPMA_TEST_CLIENT_TO_KILL";
    const CLIENTS: usize = 12;
    const MOMENTS: usize = 3;
    if let Ok(port) = env::var(CHILD) {
        let peer = peer();
        connect_and_work(&peer, port.parse().expect("a port"));
    }
    device_test(|| {
        let peer = peer();
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let dst = region(&peer, 64, MrUsage::RECV);
        let target = region(&peer, 1 << 20, MrUsage::WRITE_DST);
        let start = || {
            let child = Command::new(env::current_exe().expect("this program"))
                .args(["clients_that_are_killed", "--exact", "--nocapture"])
                .env(CHILD, ep.get_port().to_string())
                .stdout(Stdio::null())
                .spawn();
            Killed(child.expect("this program starts"))
        };
        // One starts while another one is served.
        let mut children = vec![start()];
        for nth in 0..CLIENTS {
            if nth + 1 < CLIENTS {
                children.push(start());
            }
            let req = ep
                .next_conn_req_timeout(&ConnCfg::new(), LIMIT)
                .expect("a request");
            let id = u32::from_ne_bytes(req.get_private_data()[..4].try_into().expect("4 bytes"));
            let of_it = children.iter().position(|child| child.0.id() == id);
            let child = children.swap_remove(of_it.expect("one of them"));
            for wr_id in 0..5 {
                let part = dst.slice(..).expect("all");
                req.recv(part, wr_id).expect("posted");
            }
            match nth % MOMENTS {
                0 => {
                    drop(child);
                    // The accept fails, or the connection ends.
                    if let Ok(conn) = req.connect(&[]) {
                        assert_ne!(event(&conn), ConnEvent::Established, "it is dead");
                    }
                    continue;
                }
                1 => {
                    let conn = req.connect(&target.get_descriptor()).expect("accepts");
                    drop(child);
                    // Whether or not it came so far.
                    if event(&conn) == ConnEvent::Established {
                        assert_eq!(event(&conn), ConnEvent::Closed);
                    }
                }
                _ => {
                    let conn = req.connect(&target.get_descriptor()).expect("accepts");
                    assert_eq!(event(&conn), ConnEvent::Established);
                    let wc = completion(&conn);
                    assert_eq!(opcode_of(&wc, 0), WcOpcode::RECV);
                    drop(child);
                    assert_eq!(event(&conn), ConnEvent::Closed);
                    let rest = conn.close(LIMIT).expect("it is freed");
                    assert_eq!(rest.len(), 4, "{rest:?}");
                }
            }
        }
        still_works(&ep, &peer);
    });
}

/// The work of a client that is to be killed: a message, then writes without an end.
fn connect_and_work(peer: &Peer, port: u16) {
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(100);
    let req = ConnReq::new(peer, &addr(), port, &cfg).expect("resolves");
    let client = req.connect(&process::id().to_ne_bytes()).expect("asks");
    let client = client.wait_established(LIMIT).expect("accepted");
    let src = region(peer, 1 << 20, MrUsage::SEND | MrUsage::WRITE_SRC);
    let far = MrRemote::from_descriptor(client.get_private_data()).expect("a descriptor");
    client
        .send(src.slice(..8).expect("inside"), ALWAYS, 0)
        .expect("posted");
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let (to, from) = (far.slice(..).expect("all"), src.slice(..).expect("all"));
        match client.write(to, from, ALWAYS, 1) {
            Ok(()) => {}
            Err(Error::QueueFull { .. }) => {
                let wc = next_completion(client.get_cq());
                wc.result().expect("this side is not told to end");
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("not killed in time");
}

/// A program that is killed at the latest when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Whatever comes of it: it must not be left behind.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts down when a thread ends, also by a panic.
struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
