//! Shared receive queues, and which completion queue gets what: all rows of the reference's table.

mod common;

use std::any::Any;
use std::collections::BTreeMap;

use common::{
    LIMIT, Pair, addr, assert_empty, completion, completions, contents, device_test, event,
    invalid, next_completion, opcode_of, peer, region, remote,
};
use rpma::{
    ComplChannel, CompletionChannel, Conn, ConnCfg, ConnEvent, ConnReq, Cq, CqKind, Ep, Error,
    Flags, Mr, MrSlice, MrUsage, Notify, Peer, Queue, RemoteSlice, Srq, SrqCfg, WcOpcode, WcStatus,
};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

fn srq(peer: &Peer, rq_size: u32, rcq_size: u32) -> Srq {
    let mut cfg = SrqCfg::new();
    cfg.set_rq_size(rq_size).set_rcq_size(rcq_size);
    Srq::new(peer, &cfg).expect("a shared receive queue")
}

/// A server's settings with `srq`.
fn using(srq: &Srq) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_srq(Some(srq));
    cfg
}

/// Clients of one endpoint, whose server sides use `cfg`.
fn pairs(peer: &Peer, cfg: &ConnCfg, count: usize) -> Vec<Pair> {
    (0..count)
        .map(|_| Pair::with(peer, &ConnCfg::new(), cfg))
        .collect()
}

/// Sends a message of no bytes and sees that it was sent.
fn send(conn: &Conn) {
    conn.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
    assert_eq!(opcode_of(&completion(conn), 1), WcOpcode::SEND);
}

/// Posts receives until the queue is full; how many there were.
fn fill(srq: &Srq, depth: u32) -> u32 {
    for posted in 0.. {
        match srq.recv(MrSlice::EMPTY, posted.into()) {
            Ok(()) => {}
            Err(Error::QueueFull {
                queue: Queue::SharedReceive,
                depth: said,
            }) if said == depth => return posted,
            Err(other) => panic!("{other:?}"),
        }
    }
    unreachable!("the queue has an end")
}

/// Where the receives of a connection complete.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Main,
    OwnRcq,
    SrqsRcq,
}

/// One row: a connection made so gets its operations' completions in the main queue and its
/// receives' where `expected` says, nothing in any other, and waits with the fitting call.
fn check_row(peer: &Peer, srq: Option<&Srq>, rcq_size: u32, shared: bool, expected: Where) {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(rcq_size).set_srq(srq);
    if shared {
        cfg.set_compl_channel(ComplChannel::Shared);
    }
    let Pair { client, server } = Pair::with(peer, &ConnCfg::new(), &cfg);
    let main = server.get_cq();
    assert_eq!(server.get_rcq().is_some(), expected == Where::OwnRcq);
    let srqs = srq.and_then(Srq::get_rcq);
    let queues: Vec<(Where, &Cq)> = [
        (Where::Main, Some(main)),
        (Where::OwnRcq, server.get_rcq()),
        (Where::SrqsRcq, srqs),
    ]
    .into_iter()
    .filter_map(|(place, cq)| Some((place, cq?)))
    .collect();

    for round in 0..3 {
        match srq {
            Some(srq) => srq.recv(MrSlice::EMPTY, 7).expect("posted"),
            None => server.recv(MrSlice::EMPTY, 7).expect("posted"),
        }
        for (place, opcode) in [
            (Where::Main, WcOpcode::RDMA_WRITE),
            (expected, WcOpcode::RECV),
        ] {
            match opcode {
                WcOpcode::RECV => send(&client),
                _ => server
                    .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 7)
                    .expect("posted"),
            }
            let cq = queues
                .iter()
                .find(|(at, _)| *at == place)
                .map(|(_, cq)| *cq)
                .expect("it is there");
            wait(&server, cq, place, shared);
            let wc = next_completion(cq);
            assert_eq!(opcode_of(&wc, 7), opcode, "round {round}");
            assert_eq!(wc.qp_num(), server.get_qp_num());
            for (_, cq) in &queues {
                assert_empty(cq);
            }
        }
    }
    assert_eq!(server.get_compl_fd().is_ok(), shared);
}

/// Waits for the event of a queue's next completion in the way that its channel needs, and sees
/// that the other way is refused.
fn wait(server: &Conn, cq: &Cq, place: Where, shared: bool) {
    if shared {
        let (said, kind) = server.wait_timeout(LIMIT).expect("an event");
        assert!(std::ptr::eq(said, cq), "of the queue with the completion");
        let expected = match place {
            Where::Main => CqKind::Main,
            _ => CqKind::Receive,
        };
        assert_eq!(kind, expected);
        assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::SharedChannel)));
        assert_eq!(server.get_compl_fd().expect("shared"), cq.get_fd());
    } else {
        cq.wait_timeout(LIMIT).expect("an event");
        for refused in [server.wait_timeout(LIMIT), server.wait()] {
            assert!(matches!(refused, Err(Error::NotSharedChannel)));
        }
        assert!(matches!(
            server.get_compl_fd(),
            Err(Error::NotSharedChannel)
        ));
    }
}

#[test]
fn row_1_one_queue() {
    device_test(|| check_row(&peer(), None, 0, false, Where::Main));
}

#[test]
fn row_2_a_queue_for_receives() {
    device_test(|| check_row(&peer(), None, 10, false, Where::OwnRcq));
}

#[test]
fn row_3_one_queue_on_a_shared_channel() {
    device_test(|| check_row(&peer(), None, 0, true, Where::Main));
}

#[test]
fn row_4_two_queues_on_a_shared_channel() {
    device_test(|| check_row(&peer(), None, 10, true, Where::OwnRcq));
}

#[test]
fn row_5_a_shared_receive_queue_and_the_main_queue() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 0);
        assert!(srq.get_rcq().is_none());
        for shared in [false, true] {
            check_row(&peer, Some(&srq), 0, shared, Where::Main);
        }
    });
}

#[test]
fn row_6_a_shared_receive_queue_and_a_queue_for_receives() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 0);
        for shared in [false, true] {
            check_row(&peer, Some(&srq), 10, shared, Where::OwnRcq);
        }
    });
}

#[test]
fn row_7_a_shared_receive_queue_with_its_own_queue() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 10);
        for rcq_size in [0, 10] {
            check_row(&peer, Some(&srq), rcq_size, false, Where::SrqsRcq);
        }
    });
}

#[test]
fn row_8_a_shared_channel_with_a_queue_elsewhere_is_refused() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 10);
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        for rcq_size in [0, 10] {
            let mut cfg = using(&srq);
            cfg.set_compl_channel(ComplChannel::Shared)
                .set_rcq_size(rcq_size);
            let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
            assert!(text.contains("ComplChannel::Shared"), "{text}");
            let text = invalid(ep.next_conn_req_timeout(&cfg, LIMIT));
            assert!(text.contains("ComplChannel::Of"), "{text}");
        }
    });
}

/// What row 8 refuses can be had with a channel of the program's own, over all queues of both.
#[test]
fn one_channel_over_the_queues_of_everything() {
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let of = |key| ComplChannel::Of {
            channel: channel.clone(),
            key,
        };
        let mut cfg = SrqCfg::new();
        cfg.set_compl_channel(Some((channel.clone(), 100)));
        assert_eq!(cfg.get_compl_channel().map(|(_, key)| *key), Some(100));
        let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
        let mut cfg = using(&srq);
        cfg.set_compl_channel(of(1));
        let one = Pair::with(&peer, &ConnCfg::new(), &cfg);
        let mut cfg = ConnCfg::new();
        cfg.set_compl_channel(of(2)).set_rcq_size(10);
        let two = Pair::with(&peer, &ConnCfg::new(), &cfg);

        let next = || {
            let event = channel.wait_timeout(LIMIT).expect("an event");
            (event.key, event.kind)
        };
        srq.recv(MrSlice::EMPTY, 1).expect("posted");
        send(&one.client);
        assert_eq!(next(), (100, CqKind::Receive));
        let rcq = srq.get_rcq().expect("one of its own");
        assert_eq!(opcode_of(&next_completion(rcq), 1), WcOpcode::RECV);
        two.server.recv(MrSlice::EMPTY, 2).expect("posted");
        send(&two.client);
        assert_eq!(next(), (2, CqKind::Receive));
        for (pair, key) in [(&one, 1), (&two, 2)] {
            pair.server
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 3)
                .expect("posted");
            assert_eq!(next(), (key, CqKind::Main));
        }
        for cq in [rcq, one.server.get_cq(), two.server.get_cq()] {
            assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::SharedChannel)));
        }
        for conn in [&one.server, &two.server] {
            assert!(matches!(
                conn.wait_timeout(LIMIT),
                Err(Error::NotSharedChannel)
            ));
        }
    });
}

/// One queue serves several connections. Each message lands in one receive, and the completion says
/// on which connection; with a queue of its own they come in the order of the receives.
#[test]
fn connections_are_told_apart() {
    const CLIENTS: usize = 4;
    const EACH: usize = 5;
    device_test(|| {
        let peer = peer();
        for rcq_size in [0, 20] {
            let total = CLIENTS * EACH;
            let srq = srq(&peer, total as u32, rcq_size);
            let pairs = pairs(&peer, &using(&srq), CLIENTS);
            let dst = region(&peer, total, MrUsage::RECV);
            for n in 0..total {
                srq.recv(dst.slice(n..=n).expect("inside"), n as u64)
                    .expect("posted");
            }
            let names: Vec<u8> = (1..=CLIENTS as u8).collect();
            let src = Mr::reg(&peer, names, MrUsage::SEND).expect("registers");
            for _ in 0..EACH {
                for (n, pair) in pairs.iter().enumerate() {
                    let name = src.slice(n..=n).expect("inside");
                    pair.client.send(name, ALWAYS, 1).expect("posted");
                }
            }
            let got: Vec<_> = match srq.get_rcq() {
                Some(rcq) => (0..total).map(|_| next_completion(rcq)).collect(),
                None => pairs
                    .iter()
                    .flat_map(|pair| completions(&pair.server, EACH))
                    .collect(),
            };
            let bytes = contents(&dst);
            let mut used = BTreeMap::new();
            for (nth, wc) in got.iter().enumerate() {
                let success = wc.result().expect("succeeds");
                assert_eq!(
                    (success.opcode(), success.byte_len()),
                    (WcOpcode::RECV, Some(1))
                );
                let name = usize::from(bytes[wc.wr_id() as usize]);
                assert_eq!(wc.qp_num(), pairs[name - 1].server.get_qp_num());
                assert_eq!(used.insert(wc.wr_id(), name), None, "each receive once");
                if rcq_size > 0 {
                    assert_eq!(wc.wr_id(), nth as u64);
                }
            }
            for name in 1..=CLIENTS {
                assert_eq!(used.values().filter(|&&n| n == name).count(), EACH);
            }
            for pair in &pairs {
                completions(&pair.client, EACH);
            }
        }
    });
}

/// A full queue is `QueueFull` with its remedy. A slot comes back when its completion is polled, on
/// whichever connection it arrived, and not before.
#[test]
fn a_full_shared_receive_queue() {
    device_test(|| {
        let peer = peer();
        for (depth, rcq_size) in [(0, 0), (1, 0), (1, 1), (7, 0), (7, 3), (100, 1)] {
            let srq = srq(&peer, depth, rcq_size);
            let pairs = pairs(&peer, &using(&srq), 2);
            assert_eq!(fill(&srq, depth), depth);
            let text = srq.recv(MrSlice::EMPTY, 1).expect_err("full").to_string();
            assert!(text.contains("SrqCfg::set_rq_size"), "{text}");
            for _ in 0..3 {
                let messages = depth.min(8);
                for n in 0..messages {
                    send(&pairs[n as usize % 2].client);
                }
                assert_eq!(fill(&srq, depth), 0, "nothing was polled yet");
                for n in 0..messages {
                    let cq = srq.get_rcq();
                    let cq = cq.unwrap_or(pairs[n as usize % 2].server.get_cq());
                    next_completion(cq).result().expect("succeeds");
                }
                assert_eq!(fill(&srq, depth), messages);
            }
        }
    });
}

/// Receives that arrived on a connection which is dropped before anybody polled them: their slots
/// come back, whichever queue they are in. Otherwise clients that die would use the queue up.
#[test]
fn slots_come_back_from_dropped_connections() {
    const DEPTH: u32 = 6;
    device_test(|| {
        let peer = peer();
        for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (DEPTH, 0)] {
            let srq = srq(&peer, DEPTH, rcq_size);
            let mut cfg = using(&srq);
            cfg.set_rcq_size(conn_rcq_size);
            for round in 0..25 {
                assert_eq!(fill(&srq, DEPTH), if round == 0 { DEPTH } else { 3 });
                let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg);
                for _ in 0..3 {
                    send(&client);
                }
                match round % 3 {
                    0 => drop((client, server)),
                    1 => drop((server, client)),
                    _ => {
                        drop(client);
                        assert_eq!(event(&server), ConnEvent::Closed);
                        server.delete().expect("everything is freed");
                    }
                }
                if let Some(rcq) = srq.get_rcq() {
                    for _ in 0..3 {
                        next_completion(rcq).result().expect("succeeds");
                    }
                }
            }
        }
    });
}

/// Closing a connection returns the receives that arrived on it, and their slots come back.
#[test]
fn closing_returns_what_arrived() {
    device_test(|| {
        let peer = peer();
        for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (5, 0)] {
            let srq = srq(&peer, 5, rcq_size);
            let mut cfg = using(&srq);
            cfg.set_rcq_size(conn_rcq_size);
            assert_eq!(fill(&srq, 5), 5);
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg);
            for _ in 0..3 {
                send(&client);
            }
            let mut rest = server.close(LIMIT).expect("closes");
            if let Some(rcq) = srq.get_rcq() {
                assert!(
                    rest.is_empty(),
                    "what the other queue has stays there: {rest:?}"
                );
                rest = (0..3).map(|_| next_completion(rcq)).collect();
            }
            for (n, wc) in rest.iter().enumerate() {
                assert_eq!(opcode_of(wc, n as u64), WcOpcode::RECV);
            }
            assert_eq!(rest.len(), 3);
            assert_eq!(fill(&srq, 5), 3, "2 receives are still there for others");
            assert_eq!(event(&client), ConnEvent::Closed);
        }
    });
}

/// One connection that fails does not disturb the others, nor take receives away.
#[test]
fn a_failed_connection_leaves_the_receives_to_the_others() {
    device_test(|| {
        let peer = peer();
        let src = region(&peer, 64, MrUsage::SEND);
        for (rcq_size, conn_rcq_size) in [(0, 0), (0, 4), (4, 0)] {
            let srq = srq(&peer, 4, rcq_size);
            let mut cfg = using(&srq);
            cfg.set_rcq_size(conn_rcq_size);
            for round in 0..6 {
                assert_eq!(fill(&srq, 4), 4, "round {round}: all slots are back");
                let pairs = pairs(&peer, &cfg, 2);
                let receives = |pair: usize| {
                    let server = &pairs[pair].server;
                    let cq = srq.get_rcq().or(server.get_rcq());
                    next_completion(cq.unwrap_or(server.get_cq()))
                };
                // The receives have no room for it.
                let message = src.slice(..).expect("all");
                pairs[0].client.send(message, ALWAYS, 1).expect("posted");
                let failure = completion(&pairs[0].client).result().expect_err("too long");
                assert!(
                    [WcStatus::REM_OP_ERR, WcStatus::REM_INV_REQ_ERR].contains(&failure.status),
                    "{failure}"
                );
                let failure = receives(0).result().expect_err("too long");
                assert_eq!(
                    (failure.wr_id, failure.qp_num),
                    (0, pairs[0].server.get_qp_num())
                );
                for wr_id in 1..4 {
                    send(&pairs[1].client);
                    assert_eq!(opcode_of(&receives(1), wr_id), WcOpcode::RECV);
                }
            }
        }
    });
}

/// A message that is too long for the receive that it takes: it fails on both sides.
fn send_too_much(peer: &Peer, client: &Conn) {
    let src = region(peer, 64, MrUsage::SEND);
    let message = src.slice(..).expect("all");
    client.send(message, ALWAYS, 1).expect("posted");
    completion(client).result().expect_err("too long");
}

/// The receive that a failed connection took comes back, whatever the program learns first: that the
/// peer is gone or that the receive has failed. Else a client could empty the queue for ever.
#[test]
fn a_failed_receive_comes_back_also_from_a_closed_connection() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 2, 0);
        let cfg = using(&srq);
        for end in ["event", "disconnect", "close", "drop"] {
            assert_eq!(fill(&srq, 2), 2, "before {end}: all slots are back");
            let [failing, other] = [(); 2].map(|()| Pair::with(&peer, &ConnCfg::new(), &cfg));
            send_too_much(&peer, &failing.client);
            let Pair { client, server } = failing;
            match end {
                "event" => {
                    drop(client);
                    assert_eq!(event(&server), ConnEvent::Closed);
                    completion(&server).result().expect_err("too long");
                }
                "disconnect" => {
                    server.disconnect().expect("tells the client");
                    completion(&server).result().expect_err("too long");
                }
                "close" => {
                    let error = server.close(LIMIT).expect_err("it has failed");
                    assert_eq!(error.completions.len(), 1, "{error:?}");
                }
                _ => drop(server),
            }
            send(&other.client);
            assert_eq!(opcode_of(&completion(&other.server), 1), WcOpcode::RECV);
        }
    });
}

/// What fails in a queue where no receive of the shared queue completes gives nothing back.
#[test]
fn a_failed_send_gives_no_receive_back() {
    device_test(|| {
        let peer = peer();
        let gone = {
            let target = region(&peer, 8, MrUsage::WRITE_DST);
            remote(&target)
        };
        let src = region(&peer, 8, MrUsage::WRITE_SRC);
        for (rcq_size, conn_rcq_size) in [(4, 0), (0, 4)] {
            let srq = srq(&peer, 4, rcq_size);
            let mut cfg = using(&srq);
            cfg.set_rcq_size(conn_rcq_size);
            assert_eq!(fill(&srq, 4), 4);
            for _ in 0..2 {
                let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg);
                let (to, from) = (gone.slice(..).expect("all"), src.slice(..).expect("all"));
                server.write(to, from, ALWAYS, 1).expect("posted");
                completion(&server)
                    .result()
                    .expect_err("there is no such memory");
                assert_eq!(fill(&srq, 4), 0, "4 receives are still posted");
                drop(client);
            }
        }
    });
}

/// What does not belong together is refused when it is put together, with the reason.
#[test]
fn every_refusal_of_a_shared_receive_queue() {
    device_test(|| {
        let (peer, stranger) = (peer(), peer());
        let foreign = srq(&stranger, 10, 10);
        let ep = Ep::listen(&peer, &addr(), 0).expect("listens");
        let cfg = using(&foreign);
        let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
        assert!(text.contains("another Peer"), "{text}");
        let text = invalid(ep.next_conn_req_timeout(&cfg, LIMIT));
        assert!(text.contains("another Peer"), "{text}");

        let own = srq(&peer, 10, 10);
        let theirs = region(&stranger, 8, MrUsage::RECV);
        let text = invalid(own.recv(theirs.slice(..).expect("all"), 1));
        assert!(text.contains("another Peer"), "{text}");
        let wrong = region(&peer, 8, MrUsage::SEND);
        let text = invalid(own.recv(wrong.slice(..).expect("all"), 1));
        assert!(text.contains("needs RECV"), "{text}");
        assert_eq!(fill(&own, 10), 10, "a refused receive takes no slot");

        // A connection of a shared queue has none of its own.
        let cfg = using(&own);
        let req = ConnReq::new(&peer, &addr(), ep.get_port(), &cfg).expect("resolves");
        let text = invalid(req.recv(MrSlice::EMPTY, 1));
        assert!(text.contains("Srq::recv"), "{text}");
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
        let text = invalid(pair.server.recv(MrSlice::EMPTY, 1));
        assert!(text.contains("Srq::recv"), "{text}");

        for (rq_size, rcq_size) in [(u32::MAX, 0), (1 << 21, 0), (1 << 20, 1), (1, u32::MAX)] {
            let mut cfg = SrqCfg::new();
            cfg.set_rq_size(rq_size).set_rcq_size(rcq_size);
            let text = invalid(Srq::new(&peer, &cfg));
            assert!(text.contains("at most"), "{text}");
            let blamed = match rcq_size {
                u32::MAX => format!("set_rcq_size ({rcq_size})"),
                _ => "set_rq_size".to_owned(),
            };
            assert!(text.contains(&blamed), "{text}");
        }
        // Receives of a shared queue may need more completions than one completion queue has.
        let large = srq(&peer, 32_760, 0);
        let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &using(&large)));
        assert!(text.contains("SrqCfg::set_rq_size (32760)"), "{text}");
    });
}

/// Whatever the order of drops, everything is freed: connections hold the queue.
#[test]
fn objects_may_be_dropped_in_any_order() {
    device_test(|| {
        // Each of the five first, second, … once, in both directions.
        let orders = (0..5).flat_map(|first| {
            let forwards: Vec<usize> = (0..5).map(|n| (first + n) % 5).collect();
            let backwards = forwards.iter().rev().copied().collect();
            [forwards, backwards]
        });
        for order in orders {
            for (rcq_size, delete) in [(0, false), (10, false), (10, true)] {
                let peer = peer();
                let srq = srq(&peer, 10, rcq_size);
                let mr = region(&peer, 64, MrUsage::RECV);
                for wr_id in 0..5 {
                    srq.recv(mr.slice(..).expect("all"), wr_id).expect("posted");
                }
                let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &using(&srq));
                send(&client);
                let mut things: Vec<Option<Box<dyn Any>>> = vec![
                    Some(Box::new(srq)),
                    Some(Box::new(client)),
                    Some(Box::new(server)),
                    Some(Box::new(mr)),
                    Some(Box::new(peer)),
                ];
                for &index in &order {
                    let thing = things[index].take().expect("each once");
                    match thing.downcast::<Srq>() {
                        Ok(srq) if delete => srq.delete().expect("everything is freed"),
                        other => drop(other),
                    }
                }
            }
        }
    });
}

/// Deleting a handle leaves the queue to its other handles and its connections; the last one frees
/// it.
#[test]
fn a_queue_lives_as_long_as_its_users() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 0);
        let another = srq.clone();
        assert_eq!(fill(&srq, 10), 10);
        let pair = Pair::with(&peer, &ConnCfg::new(), &using(&srq));
        srq.delete().expect("not the last");
        let error = another.recv(MrSlice::EMPTY, 1).expect_err("the same queue");
        assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
        another.delete().expect("the connection has it");
        for wr_id in 0..10 {
            send(&pair.client);
            assert_eq!(opcode_of(&completion(&pair.server), wr_id), WcOpcode::RECV);
        }
        // A handle can be had from a configuration that has it.
        let srq = self::srq(&peer, 10, 10);
        let cfg = using(&srq);
        drop(srq);
        let srq = cfg.get_srq().expect("the configuration holds it").clone();
        drop(cfg);
        srq.recv(MrSlice::EMPTY, 1).expect("posted");
        srq.delete().expect("the last: everything is freed");
    });
}

/// Waiting for events on the queue's own completion queue, and for one receive.
#[test]
fn waiting_for_receives() {
    device_test(|| {
        let peer = peer();
        let srq = srq(&peer, 10, 10);
        let rcq = srq.get_rcq().expect("one of its own");
        let pairs = pairs(&peer, &using(&srq), 2);
        assert_eq!(fill(&srq, 10), 10);
        for round in 0..5 {
            send(&pairs[round % 2].client);
            rcq.wait().expect("an event");
            opcode_of(&next_completion(rcq), round as u64);
        }
        for round in 5..8 {
            send(&pairs[round % 2].client);
        }
        let mut before = 0;
        rcq.wait_for(7, LIMIT, |_| before += 1).expect("arrives");
        assert_eq!(before, 2);
    });
}

/// What was set can be read back; the defaults are librpma's code's (its manual says otherwise).
#[test]
fn settings_of_a_shared_receive_queue() {
    let mut cfg = SrqCfg::new();
    assert_eq!((cfg.get_rq_size(), cfg.get_rcq_size()), (20, 20));
    assert_eq!(cfg.get_rcq_notify(), Notify::Any);
    assert!(cfg.get_compl_channel().is_none());
    cfg.set_rq_size(3)
        .set_rcq_size(5)
        .set_rcq_notify(Notify::Solicited);
    assert_eq!((cfg.get_rq_size(), cfg.get_rcq_size()), (3, 5));
    assert_eq!(cfg.get_rcq_notify(), Notify::Solicited);
}
