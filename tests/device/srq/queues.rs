//! The completions of each completion queue: all rows of the reference's table. One queue serves
//! many connections.

use std::collections::BTreeMap;

use crate::common::prelude::*;
use crate::srq::support::{fill, pairs, receives_of, srq, take, using};

/// Where the receives of a connection complete.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Main,
    OwnRcq,
    SrqsRcq,
}

/// One row: a connection made so gets its operations' completions in the main queue and its
/// receives' in the `expected` one, no completion in any other, and waits with the fitting call.
fn check_row(
    peer: &Peer,
    srq: Option<&Srq>,
    rcq_size: u32,
    shared: bool,
    expected: Where,
) -> Result {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(rcq_size).set_srq(srq);
    if shared {
        cfg.set_compl_channel(ComplChannel::Shared);
    }
    let Pair { client, server } = Pair::with(peer, &ConnCfg::new(), &cfg)?;
    assert_eq!(server.get_rcq().is_some(), expected == Where::OwnRcq);
    let queue = |place| match place {
        Where::Main => Some(server.get_cq()),
        Where::OwnRcq => server.get_rcq(),
        Where::SrqsRcq => srq.and_then(Srq::get_rcq),
    };

    for round in 0..3 {
        match srq {
            Some(srq) => srq.recv(MrSlice::EMPTY, 7)?,
            None => server.recv(MrSlice::EMPTY, 7)?,
        }
        for (place, opcode) in [
            (Where::Main, WcOpcode::RDMA_WRITE),
            (expected, WcOpcode::RECV),
        ] {
            match opcode {
                WcOpcode::RECV => send_nothing(&client)?,
                _ => drop(write_nothing(&server, 7)?),
            }
            let cq = queue(place).ok_or("it is there")?;
            wait(&server, cq, place, shared)?;
            let wc = next_completion(cq)?;
            assert_eq!(opcode_of(&wc, 7)?, opcode, "round {round}");
            assert_eq!(wc.qp_num(), server.get_qp_num());
            for place in [Where::Main, Where::OwnRcq, Where::SrqsRcq] {
                queue(place).map_or(Ok(()), assert_empty)?;
            }
        }
    }
    assert_eq!(server.get_compl_fd().is_ok(), shared);
    Ok(())
}

/// Waits for the event of a queue's next completion in the way that its channel needs, and sees
/// that the other way is refused.
fn wait(server: &Conn, cq: &Cq, place: Where, shared: bool) -> Result {
    if shared {
        let (said, kind) = server.wait_timeout(LIMIT)?;
        assert!(std::ptr::eq(said, cq), "of the queue with the completion");
        let expected = match place {
            Where::Main => CqKind::Main,
            _ => CqKind::Receive,
        };
        assert_eq!(kind, expected);
        assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::SharedChannel)));
        assert_eq!(server.get_compl_fd()?, cq.get_fd());
    } else {
        cq.wait_timeout(LIMIT)?;
        for refused in [server.wait_timeout(LIMIT), server.wait()] {
            assert!(matches!(refused, Err(Error::NotSharedChannel)));
        }
        let fd = server.get_compl_fd();
        assert!(matches!(fd, Err(Error::NotSharedChannel)));
    }
    Ok(())
}

#[test]
fn row_1_one_queue() -> Result {
    let _test = device_test();
    check_row(&peer()?, None, 0, false, Where::Main)
}

#[test]
fn row_2_a_queue_for_receives() -> Result {
    let _test = device_test();
    check_row(&peer()?, None, 10, false, Where::OwnRcq)
}

#[test]
fn row_3_one_queue_on_a_shared_channel() -> Result {
    let _test = device_test();
    check_row(&peer()?, None, 0, true, Where::Main)
}

#[test]
fn row_4_two_queues_on_a_shared_channel() -> Result {
    let _test = device_test();
    check_row(&peer()?, None, 10, true, Where::OwnRcq)
}

#[test]
fn row_5_a_shared_receive_queue_and_the_main_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 0)?;
    assert!(srq.get_rcq().is_none());
    for shared in [false, true] {
        check_row(&peer, Some(&srq), 0, shared, Where::Main)?;
    }
    Ok(())
}

#[test]
fn row_6_a_shared_receive_queue_and_a_queue_for_receives() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 0)?;
    for shared in [false, true] {
        check_row(&peer, Some(&srq), 10, shared, Where::OwnRcq)?;
    }
    Ok(())
}

#[test]
fn row_7_a_shared_receive_queue_with_its_own_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 10)?;
    for rcq_size in [0, 10] {
        check_row(&peer, Some(&srq), rcq_size, false, Where::SrqsRcq)?;
    }
    Ok(())
}

#[test]
fn row_8_a_shared_channel_with_a_queue_elsewhere_is_refused() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 10)?;
    let ep = listen(&peer)?;
    for rcq_size in [0, 10] {
        let mut cfg = using(&srq);
        cfg.set_compl_channel(ComplChannel::Shared)
            .set_rcq_size(rcq_size);
        let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
        assert!(text.contains("ComplChannel::Shared"), "{text}");
        assert_invalid(ep.next_conn_req_timeout(&cfg, LIMIT), &["ComplChannel::Of"]);
    }
    Ok(())
}

/// The combination that row 8 refuses is possible with a channel of the program's own, over all
/// queues of both.
#[test]
fn one_channel_over_the_queues_of_everything() -> Result {
    let (_test, peer) = peer_test()?;
    let channel = CompletionChannel::new(&peer)?;
    let of = |key| ComplChannel::Of {
        channel: channel.clone(),
        key,
    };
    let mut cfg = SrqCfg::new();
    cfg.set_compl_channel(Some((channel.clone(), 100)));
    assert_eq!(cfg.get_compl_channel().map(|(_, key)| *key), Some(100));
    let srq = Srq::new(&peer, &cfg)?;
    let one = Pair::with(&peer, &ConnCfg::new(), using(&srq).set_compl_channel(of(1)))?;
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(of(2)).set_rcq_size(10);
    let two = Pair::with(&peer, &ConnCfg::new(), &cfg)?;

    let next = || -> Result<_> {
        let event = channel.wait_timeout(LIMIT)?;
        Ok(event)
    };
    srq.recv(MrSlice::EMPTY, 1)?;
    send_nothing(&one.client)?;
    assert_eq!(next()?, (100, CqKind::Receive));
    let rcq = srq.get_rcq().ok_or("one of its own")?;
    assert_eq!(opcode_of(&next_completion(rcq)?, 1)?, WcOpcode::RECV);
    two.server.recv(MrSlice::EMPTY, 2)?;
    send_nothing(&two.client)?;
    assert_eq!(next()?, (2, CqKind::Receive));
    for (pair, key) in [(&one, 1), (&two, 2)] {
        write_nothing(&pair.server, 3)?;
        assert_eq!(next()?, (key, CqKind::Main));
    }
    for cq in [rcq, one.server.get_cq(), two.server.get_cq()] {
        assert!(matches!(cq.wait_timeout(LIMIT), Err(Error::SharedChannel)));
    }
    for conn in [&one.server, &two.server] {
        let waited = conn.wait_timeout(LIMIT);
        assert!(matches!(waited, Err(Error::NotSharedChannel)));
    }
    Ok(())
}

/// One queue serves several connections. Each message lands in one receive, and the completion has
/// its connection. Those of one connection take the receives in their order; two connections may
/// complete theirs in either order, as the device works on both at the same time.
#[test]
fn connections_are_told_apart() -> Result {
    const CLIENTS: usize = 4;
    const EACH: usize = 5;
    let (_test, peer) = peer_test()?;
    for rcq_size in [0, 20] {
        let total = CLIENTS * EACH;
        let srq = srq(&peer, total as u32, rcq_size)?;
        let pairs = pairs(&peer, &using(&srq), CLIENTS)?;
        let dst = region(&peer, total, MrUsage::RECV)?;
        for n in 0..total {
            srq.recv(dst.slice(n..=n)?, n as u64)?;
        }
        let names: Vec<u8> = (1..=CLIENTS as u8).collect();
        let src = Mr::reg(&peer, names, MrUsage::SEND)?;
        for _ in 0..EACH {
            for (n, pair) in pairs.iter().enumerate() {
                pair.client.send(src.slice(n..=n)?, ALWAYS, 1)?;
            }
        }
        let mut got = Vec::new();
        for pair in &pairs {
            got.extend(take(receives_of(&srq, &pair.server), EACH)?);
        }
        let bytes = contents(&dst)?;
        let mut used = BTreeMap::new();
        let mut last = BTreeMap::new();
        for wc in &got {
            let success = wc.result()?;
            let message = (success.opcode(), success.byte_len());
            assert_eq!(message, (WcOpcode::RECV, Some(1)));
            let name = usize::from(bytes[wc.wr_id() as usize]);
            assert_eq!(wc.qp_num(), pairs[name - 1].server.get_qp_num());
            assert_eq!(used.insert(wc.wr_id(), name), None, "each receive once");
            let before = last.insert(wc.qp_num(), wc.wr_id());
            assert!(before < Some(wc.wr_id()), "in order: {got:?}");
        }
        for name in 1..=CLIENTS {
            assert_eq!(used.values().filter(|&&n| n == name).count(), EACH);
        }
        for pair in &pairs {
            completions(&pair.client, EACH)?;
        }
    }
    Ok(())
}

/// Waiting for events on the queue's own completion queue.
#[test]
fn waiting_for_receives() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 10)?;
    let rcq = srq.get_rcq().ok_or("one of its own")?;
    let pairs = pairs(&peer, &using(&srq), 2)?;
    assert_eq!(fill(&srq, 10), 10);
    for round in 0..5 {
        send_nothing(&pairs[round % 2].client)?;
        rcq.wait()?;
        opcode_of(&next_completion(rcq)?, round as u64)?;
    }
    for round in 5..8 {
        send_nothing(&pairs[round % 2].client)?;
    }
    for round in 5..8 {
        opcode_of(&next_completion(rcq)?, round)?;
    }
    Ok(())
}
