//! Each receive is used or comes back, however messages and connections fail.

use crate::common::prelude::*;
use crate::srq::support::{ALWAYS, fill, pairs, send, srq, using};

/// A full queue is `QueueFull` with its remedy. A slot comes back when its completion is polled, on
/// whichever connection it arrived, and not before.
#[test]
fn a_full_shared_receive_queue() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let none = srq(&peer, 0, 0)?.recv(MrSlice::EMPTY, 1);
    let text = invalid(none);
    assert!(
        text.contains("SrqCfg::set_rq_size"),
        "polling cannot help: {text}"
    );
    for (depth, rcq_size) in [(1, 0), (1, 1), (7, 0), (7, 3), (100, 1)] {
        let srq = srq(&peer, depth, rcq_size)?;
        let pairs = pairs(&peer, &using(&srq), 2)?;
        assert_eq!(fill(&srq, depth), depth);
        let text = srq.recv(MrSlice::EMPTY, 1).expect_err("full").to_string();
        assert!(text.contains("SrqCfg::set_rq_size"), "{text}");
        for _ in 0..3 {
            let messages = depth.min(8);
            for n in 0..messages {
                send(&pairs[n as usize % 2].client)?;
            }
            assert_eq!(fill(&srq, depth), 0, "nothing was polled yet");
            for n in 0..messages {
                let cq = srq.get_rcq();
                let cq = cq.unwrap_or(pairs[n as usize % 2].server.get_cq());
                next_completion(cq)?.result()?;
            }
            assert_eq!(fill(&srq, depth), messages);
        }
    }
    Ok(())
}

/// Receives that arrived on a connection which is dropped before they were polled: their slots come
/// back, whichever queue they are in. Otherwise clients that die would use the queue up.
#[test]
fn slots_come_back_from_dropped_connections() -> Result {
    const DEPTH: u32 = 6;
    let _test = device_test();
    let peer = peer()?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (DEPTH, 0)] {
        let srq = srq(&peer, DEPTH, rcq_size)?;
        let mut cfg = using(&srq);
        cfg.set_rcq_size(conn_rcq_size);
        for round in 0..25 {
            assert_eq!(fill(&srq, DEPTH), if round == 0 { DEPTH } else { 3 });
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            for _ in 0..3 {
                send(&client)?;
            }
            match round % 3 {
                0 => drop((client, server)),
                1 => drop((server, client)),
                _ => {
                    drop(client);
                    assert_eq!(event(&server)?, ConnEvent::Closed);
                    server.delete()?;
                }
            }
            if let Some(rcq) = srq.get_rcq() {
                for _ in 0..3 {
                    next_completion(rcq)?.result()?;
                }
            }
        }
    }
    Ok(())
}

/// A message that was not polled when its connection was dropped has the number 0 in the place of
/// the connection's, which another one may have by then. Others keep theirs.
#[test]
fn a_message_of_a_dropped_connection_has_no_number() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let srq = srq(&peer, 4, 4)?;
    assert_eq!(fill(&srq, 4), 4);
    let rcq = srq.get_rcq().ok_or("its own")?;
    let mut pairs = pairs(&peer, &using(&srq), 2)?;
    let (stays, goes) = (pairs.remove(0), pairs.remove(0));
    send(&stays.client)?;
    send(&goes.client)?;
    let number = stays.server.get_qp_num();
    drop(goes.server);
    let numbers = [(); 2].map(|()| {
        let wc = next_completion(rcq).expect("polling works");
        wc.result().expect("a message");
        wc.qp_num()
    });
    assert_eq!(numbers, [number, 0]);
    Ok(())
}

/// Receives that a device may keep for connections that have ended are those that do not come back.
/// A queue with messages that arrive has none.
#[test]
fn receives_that_come_back_are_not_kept() -> Result {
    const DEPTH: u32 = 4;
    let _test = device_test();
    let peer = peer()?;
    let srq = srq(&peer, DEPTH, DEPTH)?;
    assert_eq!(fill(&srq, DEPTH), DEPTH);
    assert_eq!(srq.kept(), 0);
    for round in 0..3 {
        drop(Pair::with(&peer, &ConnCfg::new(), &using(&srq))?);
        assert!(srq.kept() <= 1, "{} after one connection", srq.kept());
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &using(&srq))?;
        for _ in 0..DEPTH {
            send(&client)?;
        }
        drop((client, server));
        let rcq = srq.get_rcq().ok_or("its own")?;
        for _ in 0..DEPTH {
            next_completion(rcq)?.result()?;
        }
        assert_eq!(srq.kept(), 0, "round {round}: all have come back");
        assert_eq!(fill(&srq, DEPTH), DEPTH);
    }
    Ok(())
}

/// Closing a connection returns the receives that arrived on it, and their slots come back.
#[test]
fn closing_returns_what_arrived() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (5, 0)] {
        let srq = srq(&peer, 5, rcq_size)?;
        let mut cfg = using(&srq);
        cfg.set_rcq_size(conn_rcq_size);
        assert_eq!(fill(&srq, 5), 5);
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        for _ in 0..3 {
            send(&client)?;
        }
        let mut rest = server.close(LIMIT)?;
        if let Some(rcq) = srq.get_rcq() {
            assert!(
                rest.is_empty(),
                "what the other queue has stays there: {rest:?}"
            );
            rest = (0..3)
                .map(|_| next_completion(rcq))
                .collect::<Result<_, _>>()?;
        }
        for (n, wc) in rest.iter().enumerate() {
            assert_eq!(opcode_of(wc, n as u64)?, WcOpcode::RECV);
        }
        assert_eq!(rest.len(), 3);
        assert_eq!(fill(&srq, 5), 3, "2 receives are still there for others");
        assert_eq!(event(&client)?, ConnEvent::Closed);
    }
    Ok(())
}

/// One connection that fails does not disturb the others, nor take receives away.
#[test]
fn a_failed_connection_leaves_the_receives_to_the_others() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let src = region(&peer, 64, MrUsage::SEND)?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 4), (4, 0)] {
        let srq = srq(&peer, 4, rcq_size)?;
        let mut cfg = using(&srq);
        cfg.set_rcq_size(conn_rcq_size);
        for round in 0..6 {
            assert_eq!(fill(&srq, 4), 4, "round {round}: all slots are back");
            let pairs = pairs(&peer, &cfg, 2)?;
            let receives = |pair: usize| -> Result<_> {
                let server = &pairs[pair].server;
                let cq = srq.get_rcq().or(server.get_rcq());
                next_completion(cq.unwrap_or(server.get_cq()))
            };
            // The receives have no room for it.
            let message = src.slice(..)?;
            pairs[0].client.send(message, ALWAYS, 1)?;
            let failure = completion(&pairs[0].client)?
                .result()
                .expect_err("too long");
            assert!(
                [WcStatus::REM_OP_ERR, WcStatus::REM_INV_REQ_ERR].contains(&failure.status),
                "{failure}"
            );
            let failure = receives(0)?.result().expect_err("too long");
            assert_eq!(
                (failure.wr_id, failure.qp_num),
                (0, pairs[0].server.get_qp_num())
            );
            for wr_id in 1..4 {
                send(&pairs[1].client)?;
                assert_eq!(opcode_of(&receives(1)?, wr_id)?, WcOpcode::RECV);
            }
        }
    }
    Ok(())
}

/// A message that is too long for the receive that it takes: it fails on both sides.
fn send_too_much(peer: &Peer, client: &Conn) -> Result {
    let src = region(peer, 64, MrUsage::SEND)?;
    let message = src.slice(..)?;
    client.send(message, ALWAYS, 1)?;
    completion(client)?.result().expect_err("too long");
    Ok(())
}

/// The receive that a failed connection took comes back, whether the program learns first that the
/// peer is gone or that the receive has failed. Else a client could empty the queue for ever.
#[test]
fn a_failed_receive_comes_back_also_from_a_closed_connection() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let srq = srq(&peer, 2, 0)?;
    let cfg = using(&srq);
    for end in ["event", "disconnect", "close", "drop"] {
        assert_eq!(fill(&srq, 2), 2, "before {end}: all slots are back");
        let [failing, other] =
            [(); 2].map(|()| Pair::with(&peer, &ConnCfg::new(), &cfg).expect("established"));
        send_too_much(&peer, &failing.client)?;
        let Pair { client, server } = failing;
        match end {
            "event" => {
                drop(client);
                assert_eq!(event(&server)?, ConnEvent::Closed);
                completion(&server)?.result().expect_err("too long");
            }
            "disconnect" => {
                server.disconnect()?;
                completion(&server)?.result().expect_err("too long");
            }
            "close" => {
                let error = server.close(LIMIT).expect_err("it has failed");
                assert_eq!(error.completions.len(), 1, "{error:?}");
            }
            _ => drop(server),
        }
        send(&other.client)?;
        assert_eq!(opcode_of(&completion(&other.server)?, 1)?, WcOpcode::RECV);
    }
    Ok(())
}

/// A failure in a queue where no receive of the shared queue completes gives no receive back.
#[test]
fn a_failed_send_gives_no_receive_back() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let gone = {
        let target = region(&peer, 8, MrUsage::WRITE_DST)?;
        remote(&target)
    };
    let src = region(&peer, 8, MrUsage::WRITE_SRC)?;
    for (rcq_size, conn_rcq_size) in [(4, 0), (0, 4)] {
        let srq = srq(&peer, 4, rcq_size)?;
        let mut cfg = using(&srq);
        cfg.set_rcq_size(conn_rcq_size);
        assert_eq!(fill(&srq, 4), 4);
        for _ in 0..2 {
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            let (to, from) = (gone.slice(..)?, src.slice(..)?);
            server.write(to, from, ALWAYS, 1)?;
            completion(&server)?
                .result()
                .expect_err("there is no such memory");
            assert_eq!(fill(&srq, 4), 0, "4 receives are still posted");
            drop(client);
        }
    }
    Ok(())
}
