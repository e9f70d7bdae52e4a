//! Messages and the receives that they need.

use std::thread;

use crate::common::prelude::*;
use crate::messages::support::{all, any_use, directions, receives};

/// Receives that were posted before the connection exists take the peer's first messages, on both
/// sides: no message is sent twice (the retry count of 0 would end the connection).
#[test]
fn receives_posted_before_the_connection_exists() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_rnr_retry_count(0)?.clone();
    let (src, dst) = (any_use(&peer, 64)?, any_use(&peer, 64)?);
    src.write_at(0, b"first and second")?;
    let part = |range| dst.slice(range);
    let ep = listen(&peer)?;
    for _ in 0..10 {
        dst.write_at(0, &[0; 64])?;
        let req = resolve(&peer, &ep, &cfg)?;
        req.recv(part(0..8)?, 1)?;
        let client = req.connect(&[])?;
        // While the peer has not answered, too.
        client.recv(part(8..16)?, 2)?;
        let req = request(&ep, &cfg)?;
        req.recv(part(16..24)?, 3)?;
        req.recv(MrSlice::EMPTY, 4)?;
        let server = req.connect(&[])?;
        server.recv(part(24..32)?, 5)?;

        // The accepting side may send at once.
        server.send(src.slice(..5)?, ALWAYS, 6)?;
        server.send(src.slice(10..16)?, ALWAYS, 7)?;
        assert_eq!(event(&client)?, ConnEvent::Established);
        client.send(src.slice(..5)?, ALWAYS, 8)?;
        client.send(MrSlice::EMPTY, ALWAYS, 9)?;
        client.send(src.slice(10..16)?, ALWAYS, 10)?;

        for (conn, ids) in [(&client, [1, 2, 8, 9, 10]), (&server, [3, 4, 5, 6, 7])] {
            let mut wcs = completions(conn, 5)?;
            wcs.sort_by_key(Wc::wr_id);
            assert_done(&wcs, ids)?;
        }
        let there = contents(&dst)?;
        for at in [0, 16] {
            assert_eq!(there[at..at + 5], *b"first");
            assert_eq!(there[at + 8..at + 14], *b"second");
        }
        assert_eq!(event(&server)?, ConnEvent::Established);
    }
    Ok(())
}

/// A request that is dropped with receives posted frees everything, on both sides.
#[test]
fn a_request_dropped_with_receives_posted() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new();
    let dst = any_use(&peer, 64)?;
    let ep = listen(&peer)?;
    let req = resolve(&peer, &ep, &cfg)?;
    let posted = fill(Queue::Receive, 10, |wr_id| req.recv(all(&dst), wr_id));
    assert_eq!(posted, 10);
    drop(req);
    let client = ask(&peer, &ep, &cfg)?;
    let req = request(&ep, &cfg)?;
    req.recv(all(&dst), 1)?;
    req.delete()?;
    rejected(&client)?;
    Ok(())
}

/// A message without a receive waits for one; no message is lost or duplicated.
#[test]
fn a_message_without_a_receive_waits_for_one() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    let (src, dst) = (any_use(&peer, 64)?, any_use(&peer, 64)?);
    src.write_at(0, &pattern(64, 3))?;
    pair.client.send(all(&src), ALWAYS, 1)?;
    let far = remote(&dst).slice(..8)?;
    let near = src.slice(..8)?;
    pair.client.write_with_imm(far, near, ALWAYS, 4, 2)?;
    no_completion(&pair.client)?;
    no_completion(&pair.server)?;
    pair.server.recv(all(&dst), 3)?;
    assert_eq!(receives(&pair.server, 3)?, (WcOpcode::RECV, Some(64), None));
    assert_eq!(done(&pair.client, 1)?, WcOpcode::SEND);
    pair.server.recv(MrSlice::EMPTY, 4)?;
    let notice = (WcOpcode::RECV_RDMA_WITH_IMM, Some(8), Some(4));
    assert_eq!(receives(&pair.server, 4)?, notice);
    assert_eq!(done(&pair.client, 2)?, WcOpcode::RDMA_WRITE);
    no_completion(&pair.server)?;
    assert_eq!(contents(&dst)?, pattern(64, 3));
    Ok(())
}

/// If the pause between tries is shorter than the acknowledge timeout, the waiting does not use up
/// the tries that are for a dead peer: on rxe these would be over after some 4 s.
#[test]
fn a_message_without_a_receive_waits_longer_than_for_a_dead_peer() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_min_rnr_timer(Some(16))?.clone();
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    for conn in [&pair.client, &pair.server] {
        conn.send(MrSlice::EMPTY, ALWAYS, 1)?;
    }
    thread::sleep(Duration::from_secs(6));
    for conn in [&pair.client, &pair.server] {
        assert_empty(conn.get_cq())?;
    }
    for (from, to) in directions(&pair) {
        to.recv(MrSlice::EMPTY, 2)?;
        assert_eq!(done(to, 2)?, WcOpcode::RECV);
        assert_eq!(done(from, 1)?, WcOpcode::SEND);
    }
    Ok(())
}

/// A limited number of tries ends the connection of a sender with messages that meet no receive.
/// The accepting side's number counts for both sides: a client cannot make a server wait for ever.
#[test]
fn a_message_without_a_receive_may_fail_instead() -> Result {
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_rnr_retry_count(1)?.clone();
    for sender in [0, 1] {
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        let (conn, _) = directions(&pair)[sender];
        conn.send(MrSlice::EMPTY, ALWAYS, 1)?;
        let failure = fails(conn)?;
        assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR, "{failure}");
        assert_eq!((failure.wr_id, failure.qp_num), (1, conn.get_qp_num()));
        assert_not_connected(conn.send(MrSlice::EMPTY, ALWAYS, 2));
    }
    Ok(())
}

/// The receiver also decides how long the sender waits before it tries again: it sends the code
/// that was set, and no other.
#[test]
fn the_receiver_says_how_long_to_wait_for_a_receive() -> Result {
    /// How often the sender tries again.
    const TRIES: u8 = 3;
    let (_test, peer) = peer_test()?;
    let until_failed = |code| -> Result<_> {
        let mut cfg = ConnCfg::new();
        cfg.set_rnr_retry_count(TRIES)?.set_min_rnr_timer(code)?;
        // Long enough to have no part in it.
        cfg.set_ack_timeout(Some(21))?;
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let start = Instant::now();
        pair.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
        let failure = fails(&pair.client)?;
        assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR, "{failure}");
        Ok(start.elapsed())
    };
    let at_least = |micros| Duration::from_micros(micros) * TRIES.into();
    let shortest = until_failed(Some(1))?;
    let long = until_failed(Some(31))?;
    let longest = until_failed(None)?;
    assert!(long >= at_least(491_520), "{long:?}");
    assert!(longest >= at_least(655_360), "{longest:?}");
    // 0.03 ms by the book.
    assert!(shortest < at_least(491_520), "{shortest:?}");
    Ok(())
}

/// A message longer than its receive fails on both sides: on neither is there half a message that
/// looks whole, and neither connection goes on.
#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() -> Result {
    let (_test, peer) = peer_test()?;
    let (src, dst) = (any_use(&peer, 4096)?, any_use(&peer, 4096)?);
    for (sent, room) in [(9, 8), (4096, 1000), (1, 0)] {
        let pair = Pair::new(&peer)?;
        pair.server.recv(dst.slice(..room)?, 1)?;
        pair.server.recv(all(&dst), 2)?;
        pair.client.send(src.slice(..sent)?, ALWAYS, 3)?;
        let at_sender = completion(&pair.client)?;
        let at_receiver = completions(&pair.server, 2)?;
        assert_eq!((at_sender.wr_id(), at_receiver[0].wr_id()), (3, 1));
        // rxe has the first pair of codes; the specification and adapters the second.
        match (at_sender.status(), at_receiver[0].status()) {
            (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR)
            | (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR) => {}
            statuses => panic!("{statuses:?}"),
        }
        // The other is given back.
        assert_eq!(at_receiver[1].status(), WcStatus::WR_FLUSH_ERR);
        for conn in [&pair.client, &pair.server] {
            assert_not_connected(conn.send(MrSlice::EMPTY, ALWAYS, 4));
            assert_not_connected(conn.recv(MrSlice::EMPTY, 4));
        }
    }
    Ok(())
}
