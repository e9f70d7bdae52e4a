//! Each receive is used or comes back, however messages and connections fail.

use crate::common::prelude::*;
use crate::srq::support::{fill, messages, pairs, receives_of, srq, take, using};

/// A full queue is `QueueFull` with its remedy. A slot comes back when its completion is polled, on
/// whichever connection it arrived, and not before.
#[test]
fn a_full_shared_receive_queue() -> Result {
    let (_test, peer) = peer_test()?;
    // Polling cannot help.
    let none = srq(&peer, 0, 0)?.recv(MrSlice::EMPTY, 1);
    assert_invalid(none, &["SrqCfg::set_rq_size"]);
    for (depth, rcq_size) in [(1, 0), (1, 1), (7, 0), (7, 3), (100, 1)] {
        let srq = srq(&peer, depth, rcq_size)?;
        let pairs = pairs(&peer, &using(&srq), 2)?;
        assert_eq!(fill(&srq, depth), depth);
        let error = srq.recv(MrSlice::EMPTY, 1).expect_err("full");
        assert_says(&error, &["SrqCfg::set_rq_size"]);
        for _ in 0..3 {
            let messages = depth.min(8);
            for n in 0..messages {
                send_nothing(&pairs[n as usize % 2].client)?;
            }
            assert_eq!(fill(&srq, depth), 0, "nothing was polled yet");
            for n in 0..messages {
                take(receives_of(&srq, &pairs[n as usize % 2].server), 1)?;
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
    let (_test, peer) = peer_test()?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (DEPTH, 0)] {
        let srq = srq(&peer, DEPTH, rcq_size)?;
        let cfg = using(&srq).set_rcq_size(conn_rcq_size).clone();
        for round in 0..25 {
            assert_eq!(fill(&srq, DEPTH), if round == 0 { DEPTH } else { 3 });
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            messages(&client, 3)?;
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
                take(rcq, 3)?;
            }
        }
    }
    Ok(())
}

/// A message that was not polled when its connection was dropped has the number 0 in the place of
/// the connection's, which another one may have by then. Others keep theirs.
#[test]
fn a_message_of_a_dropped_connection_has_no_number() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 4, 4)?;
    assert_eq!(fill(&srq, 4), 4);
    let rcq = srq.get_rcq().ok_or("its own")?;
    let [stays, goes] = Pair::two(&peer, &ConnCfg::new(), &using(&srq))?;
    send_nothing(&stays.client)?;
    send_nothing(&goes.client)?;
    let number = stays.server.get_qp_num();
    drop(goes.server);
    let numbers = take(rcq, 2)?.iter().map(Wc::qp_num).collect::<Vec<_>>();
    assert_eq!(numbers, [number, 0]);
    Ok(())
}

/// Receives that a device may keep for connections that have ended are those that do not come back.
/// A queue with messages that arrive has none.
#[test]
fn receives_that_come_back_are_not_kept() -> Result {
    const DEPTH: u32 = 4;
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, DEPTH, DEPTH)?;
    assert_eq!(fill(&srq, DEPTH), DEPTH);
    assert_eq!(srq.kept(), 0);
    for round in 0..3 {
        drop(Pair::with(&peer, &ConnCfg::new(), &using(&srq))?);
        assert!(srq.kept() <= 1, "{} after one connection", srq.kept());
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &using(&srq))?;
        messages(&client, DEPTH as usize)?;
        drop((client, server));
        let rcq = srq.get_rcq().ok_or("its own")?;
        take(rcq, DEPTH as usize)?;
        assert_eq!(srq.kept(), 0, "round {round}: all have come back");
        assert_eq!(fill(&srq, DEPTH), DEPTH);
    }
    Ok(())
}

/// Closing a connection returns the receives that arrived on it, and their slots come back.
#[test]
fn closing_returns_what_arrived() -> Result {
    let (_test, peer) = peer_test()?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 10), (5, 0)] {
        let srq = srq(&peer, 5, rcq_size)?;
        let cfg = using(&srq).set_rcq_size(conn_rcq_size).clone();
        assert_eq!(fill(&srq, 5), 5);
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        messages(&client, 3)?;
        let mut rest = server.close(LIMIT)?;
        if let Some(rcq) = srq.get_rcq() {
            // What the other queue has stays there.
            assert!(rest.is_empty(), "{rest:?}");
            rest = take(rcq, 3)?;
        }
        for (wc, wr_id) in rest.iter().zip(0..) {
            assert_eq!(opcode_of(wc, wr_id)?, WcOpcode::RECV);
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
    let (_test, peer) = peer_test()?;
    for (rcq_size, conn_rcq_size) in [(0, 0), (0, 4), (4, 0)] {
        let srq = srq(&peer, 4, rcq_size)?;
        let cfg = using(&srq).set_rcq_size(conn_rcq_size).clone();
        for round in 0..6 {
            assert_eq!(fill(&srq, 4), 4, "round {round}: all slots are back");
            let [failing, other] = Pair::two(&peer, &ConnCfg::new(), &cfg)?;
            let receives = |server| next_completion(receives_of(&srq, server));
            let status = send_too_much(&peer, &failing.client)?;
            let is_told = [WcStatus::REM_OP_ERR, WcStatus::REM_INV_REQ_ERR].contains(&status);
            assert!(is_told || is_iwarp(), "{status}");
            let failure = failure(&receives(&failing.server)?);
            assert_eq!(
                (failure.wr_id, failure.qp_num),
                (0, failing.server.get_qp_num())
            );
            for wr_id in 1..4 {
                send_nothing(&other.client)?;
                assert_eq!(opcode_of(&receives(&other.server)?, wr_id)?, WcOpcode::RECV);
            }
        }
    }
    Ok(())
}

/// A message that is too long for the receive that it takes: it fails on both sides, or on iWARP
/// on the other one.
fn send_too_much(peer: &Peer, client: &Conn) -> Result<WcStatus> {
    let message = region(peer, 64, MrUsage::SEND)?;
    client.send(message.slice(..)?, ALWAYS, 1)?;
    let sent = completion(client)?;
    assert!(is_iwarp() || sent.result().is_err(), "{sent:?}");
    Ok(sent.status())
}

/// The receive that a failed connection took comes back, whether the program learns first that the
/// peer is gone or that the receive has failed. Else a client could empty the queue for ever.
#[test]
fn a_failed_receive_comes_back_also_from_a_closed_connection() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 2, 0)?;
    let cfg = using(&srq);
    for end in ["event", "disconnect", "close", "drop"] {
        assert_eq!(fill(&srq, 2), 2, "before {end}: all slots are back");
        let [failing, other] = Pair::two(&peer, &ConnCfg::new(), &cfg)?;
        send_too_much(&peer, &failing.client)?;
        let Pair { client, server } = failing;
        match end {
            "event" => {
                drop(client);
                assert_eq!(event(&server)?, ConnEvent::Closed);
                fails(&server)?;
            }
            "disconnect" => {
                server.disconnect()?;
                fails(&server)?;
            }
            "close" => {
                let error = server.close(LIMIT).expect_err("it has failed");
                assert_eq!(error.object.len(), 1, "{error:?}");
            }
            _ => drop(server),
        }
        send_nothing(&other.client)?;
        assert_eq!(done(&other.server, 1)?, WcOpcode::RECV);
    }
    Ok(())
}

/// A failure in a queue where no receive of the shared queue completes gives no receive back.
#[test]
fn a_failed_send_gives_no_receive_back() -> Result {
    let (_test, peer) = peer_test()?;
    let gone = remote(&region(&peer, 8, MrUsage::WRITE_DST)?);
    let src = region(&peer, 8, MrUsage::WRITE_SRC)?;
    for (rcq_size, conn_rcq_size) in [(4, 0), (0, 4)] {
        let srq = srq(&peer, 4, rcq_size)?;
        let cfg = using(&srq).set_rcq_size(conn_rcq_size).clone();
        assert_eq!(fill(&srq, 4), 4);
        for _ in 0..2 {
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            let (to, from) = (gone.slice(..)?, src.slice(..)?);
            server.write(to, from, ALWAYS, 1)?;
            assert_eq!(outcome(&server, 1)?, refused());
            assert_eq!(fill(&srq, 4), 0, "4 receives are still posted");
            drop(client);
        }
    }
    Ok(())
}
