//! Receive queues and completion queues: full, polled, waited on.

use std::thread;

use crate::common::prelude::*;
use crate::messages::support::{all, any_use};

/// A full receive queue is `QueueFull` with its remedy, and a slot comes back with each completion.
#[test]
fn a_full_receive_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let dst = any_use(&peer, 8)?;
    let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_rq_size(0))?;
    let text = invalid(pair.server.recv(all(&dst), 1));
    assert!(text.contains("set_rq_size"), "polling cannot help: {text}");
    drop(pair);
    for depth in [1, 3, 100] {
        let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_rq_size(depth))?;
        let fill = || {
            let recv = |wr_id| pair.server.recv(all(&dst), wr_id);
            let posted = fill(Queue::Receive, depth.into(), recv);
            assert_says(&recv(posted).expect_err("full"), &["set_rq_size"]);
            posted
        };
        assert_eq!(fill(), depth.into());
        let messages = depth.min(7);
        for _ in 0..messages {
            send_nothing(&pair.client)?;
        }
        // A slot comes back when the completion is polled, not before.
        assert_eq!(fill(), 0);
        completions(&pair.server, messages as usize)?;
        assert_eq!(fill(), messages.into());
    }
    Ok(())
}

/// If there is a completion queue of its own for receives, each queue gets its completions and no
/// other's, and more than its size asked for fit into both.
#[test]
fn a_completion_queue_for_receives() -> Result {
    let (_test, peer) = peer_test()?;
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(1).set_cq_size(1);
    cfg.set_rq_size(50).set_sq_size(50);
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let rcq = pair.server.get_rcq().ok_or("one of its own")?;
    for wr_id in 0..50 {
        pair.server.recv(MrSlice::EMPTY, wr_id)?;
    }
    for wr_id in 50..100 {
        pair.client.send(MrSlice::EMPTY, ALWAYS, wr_id)?;
        write_nothing(&pair.server, wr_id + 50)?;
    }
    for wr_id in 0..50 {
        assert_eq!(opcode_of(&next_completion(rcq)?, wr_id)?, WcOpcode::RECV);
    }
    for (wc, wr_id) in completions(&pair.client, 50)?.iter().zip(50..) {
        assert_eq!(opcode_of(wc, wr_id)?, WcOpcode::SEND);
    }
    for (wc, wr_id) in completions(&pair.server, 50)?.iter().zip(100..) {
        assert_eq!(opcode_of(wc, wr_id)?, WcOpcode::RDMA_WRITE);
    }
    assert_empty(rcq)?;
    assert_empty(pair.client.get_rcq().ok_or("one of its own")?)?;
    Ok(())
}

/// Polling moves as many completions as there is room for, and keeps the rest.
#[test]
fn polling_takes_as_many_as_fit() -> Result {
    let (_test, peer) = peer_test()?;
    let pair = Pair::new(&peer)?;
    for wr_id in 0..5 {
        write_nothing(&pair.client, wr_id)?;
    }
    let cq = pair.client.get_cq();
    assert_eq!(cq.get_wc(&mut [])?, 0, "no room");
    assert_eq!(opcode_of(&next_completion(cq)?, 0)?, WcOpcode::RDMA_WRITE);
    let mut rest = Vec::new();
    while rest.len() < 4 {
        let mut wcs = [Wc::default(); 2];
        let count = cq.get_wc(&mut wcs)?;
        rest.extend(wcs[..count].iter().map(Wc::wr_id));
    }
    assert_eq!(rest, [1, 2, 3, 4]);
    assert_empty(cq)?;
    Ok(())
}

/// `Conn::wait_for` returns the operation that was asked for, and hands over earlier completions.
#[test]
fn waiting_for_one_operation() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let conn = &pair.client;
    let posted = (0..6).map(|wr_id| write_nothing(conn, wr_id));
    let posted: Vec<_> = posted.collect::<Result<_, _>>()?;
    let mut others = Vec::new();
    let wc = conn.wait_for(posted[3], LIMIT, |wc| others.push(wc.posted()))?;
    assert_eq!(opcode_of(&wc, 3)?, WcOpcode::RDMA_WRITE);
    assert_eq!(wc.posted(), Some(posted[3]));
    let before: Vec<_> = posted[..3].iter().map(|posted| Some(*posted)).collect();
    assert_eq!(others, before);
    // Later completions are still there.
    for (wr_id, posted) in (4..).zip(&posted[4..]) {
        let wc = conn.wait_for(*posted, LIMIT, |wc| panic!("{wc:?}"));
        assert_eq!(wc?.wr_id(), wr_id);
    }
    // Completions that were returned or handed over do not come again, which is found at once.
    for posted in posted {
        let again = conn.wait_for(posted, Duration::MAX, |wc| panic!("{wc:?}"));
        assert!(matches!(again, Err(Error::PolledElsewhere)), "{again:?}");
    }
    Ok(())
}

/// Promise: no other completion satisfies a wait: not that of an operation with an equal number,
/// before or after it, nor that of a receive.
#[test]
fn no_other_completion_satisfies_a_wait() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let (conn, far) = (&pair.client, &pair.server);
    let write = || write_nothing(conn, 7);
    conn.recv(MrSlice::EMPTY, 7)?;
    far.send(MrSlice::EMPTY, ALWAYS, 7)?;
    completion(far)?.result()?;
    let (first, second, third) = (write()?, write()?, write()?);
    assert!(first != second && second != third);
    let mut others = Vec::new();
    let wc = conn.wait_for(second, LIMIT, |wc| others.push(wc))?;
    assert_eq!(wc.posted(), Some(second));
    others.sort_by_key(|wc| wc.posted().is_some());
    // The message and the earlier write.
    let named = others.iter().map(Wc::posted);
    assert!(named.eq([None, Some(first)]), "{others:?}");
    let wc = conn.wait_for(third, LIMIT, |wc| panic!("{wc:?}"))?;
    assert_eq!(wc.posted(), Some(third));
    Ok(())
}

/// Promise: waiting for something that cannot come is an error at once: of an operation without a
/// completion, of another connection, and also where the connection has ended.
#[test]
fn waiting_for_what_cannot_come() -> Result {
    let (_test, peer) = peer_test()?;
    let [conn, other] = [Pair::new(&peer)?, Pair::new(&peer)?];
    let (conn, other) = (&conn.client, &other.client);
    let (to, from) = (RemoteSlice::EMPTY, MrSlice::EMPTY);
    let quiet = conn.write(to, from, ON_ERROR, 1)?;
    let foreign = write_nothing(other, 1)?;
    let mut batch = conn.batch::<2>();
    batch.write(to, from, ALWAYS, 2)?;
    batch.write(to, from, ON_ERROR, 3)?;
    let quiet_batch = batch.post()?;
    let wait = |posted| conn.wait_for(posted, Duration::MAX, |wc| panic!("{wc:?}"));
    for ended in [false, true] {
        assert_invalid(wait(quiet), &["COMPLETION_ALWAYS"]);
        assert_invalid(wait(quiet_batch), &["COMPLETION_ALWAYS"]);
        assert_invalid(wait(foreign), &["another connection"]);
        if !ended {
            conn.disconnect()?;
        }
    }
    other.wait_for(foreign, LIMIT, |wc| panic!("{wc:?}"))?;
    Ok(())
}

/// One thread at a time: the other one would be handed the completion that the first waits for.
#[test]
fn waiting_for_two_operations_at_once() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let conn = &pair.client;
    let (first, second) = (write_nothing(conn, 1)?, write_nothing(conn, 2)?);
    let mut refused = None;
    conn.wait_for(second, LIMIT, |wc| {
        assert_eq!(wc.posted(), Some(first));
        refused = thread::scope(|scope| {
            let other = scope.spawn(|| conn.wait_for(first, LIMIT, |_| {}).err());
            other.join().expect("ends")
        });
    })?;
    assert_invalid(Err::<(), _>(refused.ok_or("refused")?), &["another thread"]);
    // Another one may go on when the first has ended.
    let handed = conn.wait_for(first, LIMIT, |_| {});
    assert!(matches!(handed, Err(Error::PolledElsewhere)), "{handed:?}");
    Ok(())
}

/// The error is why the operation failed: its own reason, or that of the earlier one for which it
/// was flushed. The connection remembers it.
#[test]
fn waiting_for_one_operation_that_fails() -> Result {
    let (_test, peer) = peer_test()?;
    let source = any_use(&peer, 8)?;
    let gone = remote(&any_use(&peer, 8)?).slice(..)?;
    for asked in [1, 2] {
        let pair = Pair::new(&peer)?;
        let write = |wr_id| pair.client.write(gone, all(&source), ALWAYS, wr_id);
        let posted = [write(1)?, write(2)?];
        assert_eq!(pair.client.failure(), None);
        let mut others = Vec::new();
        let other = |wc: Wc| others.push(wc.status());
        let waited = pair.client.wait_for(posted[asked - 1], LIMIT, other);
        let Err(Error::Operation(failure)) = waited else {
            panic!("{waited:?}")
        };
        assert_eq!(failure.wr_id, 1, "the first");
        assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR, "{failure}");
        let before = [WcStatus::REM_ACCESS_ERR];
        assert_eq!(others, before[..asked - 1]);
        if asked == 1 {
            fails(&pair.client)?;
        }
        let first = Some(Failure::Operation(failure));
        assert_eq!(pair.client.failure(), first, "still the first");
    }
    Ok(())
}

/// Receives are flushed when the connection ends, each with its number, so that a program gets its
/// buffers back.
#[test]
fn receives_come_back_when_the_connection_ends() -> Result {
    fn flushed(conn: &Conn) -> Result {
        for (wc, wr_id) in completions(conn, 5)?.iter().zip(0..) {
            assert_eq!((wc.wr_id(), wc.status()), (wr_id, WcStatus::WR_FLUSH_ERR));
        }
        Ok(())
    }
    let (_test, peer) = peer_test()?;
    let dst = any_use(&peer, 8)?;
    let pair = Pair::new(&peer)?;
    for wr_id in 0..5 {
        pair.client.recv(all(&dst), wr_id)?;
        pair.server.recv(all(&dst), wr_id)?;
    }
    pair.client.disconnect()?;
    flushed(&pair.client)?;
    assert_eq!(event(&pair.server)?, ConnEvent::Closed);
    // The peer's end does not end this one: that takes its own disconnect.
    pair.server.disconnect()?;
    flushed(&pair.server)?;
    assert_eq!(event(&pair.client)?, ConnEvent::Closed);
    Ok(())
}
