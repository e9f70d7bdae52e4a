//! Closing without loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma::WcFailure;
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::prelude::*;
use crate::ending::support::{SOON, unanswered};

/// All operations that were posted before `close` arrive, however late the other side takes them.
/// The C library has only a disconnect, which discards the operations in the send queue (W-30).
#[test]
fn closing_loses_nothing_that_was_posted() -> Result {
    const MESSAGES: u32 = 60;
    let (_test, peer) = peer_test()?;
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(MESSAGES).set_rq_size(MESSAGES);
    cfg.set_min_rnr_timer(Some(12))?;
    let src = region(&peer, 4096, MrUsage::SEND)?;
    let dst = region(&peer, 4096, MrUsage::RECV)?;
    for round in 0..12 {
        let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
        let (sender, receiver) = match round % 2 {
            0 => (client, server),
            _ => (server, client),
        };
        let post = || -> Result {
            for wr_id in 0..MESSAGES.into() {
                receiver.recv(dst.slice(..)?, wr_id)?;
            }
            Ok(())
        };
        // In some rounds the receiver is late.
        if round % 3 > 0 {
            post()?;
        }
        src.write_at(0, &pattern(4096, round))?;
        for n in 0..MESSAGES {
            let flags = if n % 3 == 0 { ALWAYS } else { ON_ERROR };
            let part = src.slice(..n as usize * 60)?;
            sender.send_with_imm(part, flags, n, n.into())?;
        }
        let closed = thread::scope(|scope| -> Result<_> {
            let closing = scope.spawn(|| sender.close(LIMIT));
            if round % 3 == 0 {
                thread::sleep(Duration::from_millis(50));
                post()?;
            }
            for n in 0..MESSAGES {
                let wc = next_completion(receiver.get_cq())?;
                let success = wc.result()?;
                assert_eq!(success.imm_data(), Some(n), "round {round}");
                assert_eq!(success.byte_len(), Some(n * 60));
            }
            Ok(closing.join().expect("ends")?)
        })?;
        // What was not polled comes back, in order.
        assert_done(&closed, (0..MESSAGES.into()).step_by(3))?;
        assert_eq!(event(&receiver)?, ConnEvent::Closed);
        let last = (MESSAGES as usize - 1) * 60;
        assert_eq!(contents(&dst)?[..last], pattern(4096, round)[..last]);
    }
    Ok(())
}

/// Even if the send queue is full there is a slot for the marker, and also with the device's flush
/// and atomic write in front of it.
#[test]
fn closing_with_a_full_send_queue() -> Result {
    let (_test, peer) = peer_test()?;
    for depth in [1, 4, 10] {
        let cfg = ConnCfg::new().set_sq_size(depth).clone();
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        let client = pair.client;
        let dst = region(&peer, 64, FLUSHED)?;
        let base = dst.get_ptr().align_offset(8) as u64;
        let far = remote(&dst).slice(base..base + 8)?;
        let posted = fill(Queue::Send, depth.into(), |nth| {
            let posted = match nth % 3 {
                0 => client.atomic_write(far, &[7; 8], ALWAYS, nth),
                1 => client.flush(far, FlushType::Visibility, ALWAYS, nth),
                _ => write_nothing(&client, nth),
            };
            posted.map(drop)
        });
        assert_eq!(u64::from(depth), posted);
        let rest = client.close(LIMIT)?;
        assert_done(&rest, 0..posted)?;
    }
    Ok(())
}

/// Completions that were not polled come back unchanged, and receives that were not used as
/// failures. So do those of a completion queue for receives.
#[test]
fn closing_returns_what_nobody_has_read() -> Result {
    let (_test, peer) = peer_test()?;
    for rcq_size in [0, 10] {
        let cfg = ConnCfg::new().set_rcq_size(rcq_size).clone();
        let pair = Pair::with(&peer, &cfg, &cfg)?;
        for wr_id in 0..10 {
            pair.client.recv(MrSlice::EMPTY, wr_id)?;
        }
        for wr_id in 10..20 {
            write_nothing(&pair.client, wr_id)?;
        }
        for _ in 0..4 {
            send_nothing(&pair.server)?;
        }
        let rest = pair.client.close(LIMIT)?;
        let (ok, unused): (Vec<_>, Vec<_>) = rest.iter().partition(|wc: &&Wc| wc.result().is_ok());
        let (used, sent): (Vec<_>, Vec<_>) = ok.into_iter().partition(|wc: &&Wc| wc.wr_id() < 10);
        assert!(numbers(sent).into_iter().eq(10..20));
        assert_eq!(numbers(used), [0, 1, 2, 3]);
        let flushed = |wc: &&Wc| wc.status() == WcStatus::WR_FLUSH_ERR;
        assert!(unused.iter().all(flushed), "{unused:?}");
        assert_eq!(numbers(unused), [4, 5, 6, 7, 8, 9]);
        assert_eq!(rest.len(), 20, "each once, and no marker: {rest:?}");
        assert_eq!(event(&pair.server)?, ConnEvent::Closed);
    }
    Ok(())
}

/// Both sides close at once, each with something in flight: neither waits for the other.
#[test]
fn closing_on_both_sides_at_once() -> Result {
    let (_test, peer) = peer_test()?;
    for _ in 0..10 {
        let Pair { client, server } = Pair::new(&peer)?;
        for conn in [&client, &server] {
            for wr_id in 0..5 {
                write_nothing(conn, wr_id)?;
            }
        }
        thread::scope(|scope| {
            let sides = [client, server].map(|conn| scope.spawn(|| conn.close(LIMIT)));
            for side in sides {
                // One may find the other gone before its last acknowledgement, and reports
                // that.
                let rest = match side.join().expect("ends") {
                    Ok(rest) => rest,
                    Err(error) => {
                        unacknowledged(&error.error);
                        error.object
                    }
                };
                assert_eq!(numbers(&rest), [0, 1, 2, 3, 4]);
            }
        });
    }
    Ok(())
}

/// A connection that has failed is only freed; operations in flight come back as failures.
#[test]
fn closing_a_failed_connection() -> Result {
    let (_test, peer) = peer_test()?;
    let src = region(&peer, 8, MrUsage::WRITE_SRC)?;
    let gone = remote(&region(&peer, 8, MrUsage::WRITE_DST)?).slice(..)?;
    // Whether or not a call has noticed before.
    for noticed in [true, false] {
        let pair = Pair::new(&peer)?;
        for wr_id in 0..3 {
            pair.client.recv(MrSlice::EMPTY, wr_id)?;
        }
        for wr_id in 3..6 {
            pair.client.write(gone, src.slice(..)?, ALWAYS, wr_id)?;
        }
        let mut rest = Vec::new();
        if noticed {
            let wc = next_completion(pair.client.get_cq())?;
            assert_eq!((wc.wr_id(), wc.status()), (3, WcStatus::REM_ACCESS_ERR));
            rest.push(wc);
        }
        let closed = pair.client.close(LIMIT).expect_err("it has failed");
        let failure = operation_failed(closed.error);
        assert_eq!(
            (failure.wr_id, failure.status),
            (3, WcStatus::REM_ACCESS_ERR)
        );
        rest.extend(closed.object);
        assert_eq!(sorted(&rest), [0, 1, 2, 3, 4, 5], "noticed: {noticed}");
        assert!(rest.iter().all(|wc| wc.result().is_err()), "{rest:?}");
    }
    Ok(())
}

/// A connection that the peer has closed is freed, with the contents of its queues. If the program
/// has not taken the event of the end, `close` returns an error soon: there may have been an
/// operation that the peer has not seen.
#[test]
fn closing_after_the_peer() -> Result {
    let (_test, peer) = peer_test()?;
    for taken in [true, false] {
        let Pair { client, server } = Pair::new(&peer)?;
        client.recv(MrSlice::EMPTY, 1)?;
        server.send(MrSlice::EMPTY, ALWAYS, 2)?;
        done(&server, 2)?;
        client.recv(MrSlice::EMPTY, 3)?;
        assert!(server.close(LIMIT)?.is_empty());
        let rest = if taken {
            assert_eq!(event(&client)?, ConnEvent::Closed);
            client.close(LIMIT)?
        } else {
            let mut fds = [PollFd::new(&client, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None), Ok(1), "the event is there");
            let closed = client.close(LIMIT).expect_err("nobody acknowledges");
            unacknowledged(&closed.error);
            closed.object
        };
        assert_eq!(rest.len(), 2);
        assert_eq!(opcode_of(&rest[0], 1)?, WcOpcode::RECV);
        assert_eq!(rest[1].status(), WcStatus::WR_FLUSH_ERR);
        assert_eq!(rest[1].wr_id(), 3);
    }
    Ok(())
}

/// The failure with which a connection ended.
fn operation_failed(error: Error) -> WcFailure {
    match error {
        Error::Operation(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// The numbers of operations, which come back in any order.
fn sorted(wcs: &[Wc]) -> Vec<u64> {
    let mut numbers = numbers(wcs);
    numbers.sort_unstable();
    numbers
}

/// The peer was gone before it acknowledged everything: its event came first, or its operations
/// failed.
fn unacknowledged(error: &Error) {
    let told = match error {
        Error::Ended(event) => **event == ConnEvent::Closed,
        Error::NotConnected(reason) => *reason == NotConnected::Unacknowledged,
        _ => false,
    };
    assert!(told, "{error:?}");
}

/// A peer that takes no message does not acknowledge: the limit is kept, and the error brings all
/// that was posted.
#[test]
fn closing_keeps_its_limit() -> Result {
    let (_test, peer) = peer_test()?;
    for limit in [Duration::ZERO, SOON] {
        let Pair { client, server } = Pair::new(&peer)?;
        write_nothing(&client, 1)?;
        completion(&client)?.result()?;
        client.recv(MrSlice::EMPTY, 2)?;
        client.send(MrSlice::EMPTY, ALWAYS, 3)?;
        let closed = client.close(limit).expect_err("nobody acknowledges");
        assert!(matches!(closed.error, Error::TimedOut(_)), "{closed:?}");
        let text = closed.to_string();
        assert!(text.contains("did not acknowledge"), "{text}");
        assert_eq!(sorted(&closed.object), [2, 3]);
        assert!(closed.object.iter().all(|wc| wc.result().is_err()));
        let error = std::io::Error::from(Error::from(closed));
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        drop(server);
    }
    // A longer limit ends with the failure of the operation instead.
    let cfg = ConnCfg::new().set_rnr_retry_count(1)?.clone();
    let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
    client.send(MrSlice::EMPTY, ALWAYS, 4)?;
    let closed = client.close(LIMIT).expect_err("nobody acknowledges");
    let failure = operation_failed(closed.error);
    assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR, "{failure}");
    drop(server);
    Ok(())
}

/// A connection that was never established, on either side, is only freed.
#[test]
fn closing_what_was_never_established() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, ep) = unanswered(&peer)?;
    client.recv(MrSlice::EMPTY, 1)?;
    let rest = client.close(LIMIT)?;
    assert!(rest.is_empty(), "{rest:?}");
    drop(ep);

    // Accepted, and the client does not complete the handshake: it never asks for the event.
    let (client, ep) = unanswered(&peer)?;
    let server = accept(&ep, &ConnCfg::new())?;
    match server.close(SOON) {
        Ok(rest) => assert!(rest.is_empty(), "{rest:?}"),
        // On iWARP the accepting side must not send first (docs/failures.md), and its close asks.
        Err(closed) => {
            let is_late = matches!(closed.error, Error::TimedOut(_));
            let is_over = matches!(closed.error, Error::Ended(_) | Error::NotConnected(_));
            assert!(is_late || is_iwarp() && is_over, "{closed:?}");
        }
    }
    drop(client);

    // Rejected.
    let (client, ep) = unanswered(&peer)?;
    drop(ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?);
    assert!(matches!(event(&client)?, ConnEvent::Rejected { .. }));
    client.close(LIMIT)?;
    Ok(())
}

/// A shared receive queue is not closed with a connection: its receives stay for others, and
/// messages that arrived on this one come back.
#[test]
fn closing_with_a_shared_receive_queue() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = Srq::new(&peer, SrqCfg::new().set_rq_size(4).set_rcq_size(0))?;
    let cfg = ConnCfg::new().set_srq(Some(&srq)).clone();
    for wr_id in 0..4 {
        srq.recv(MrSlice::EMPTY, wr_id)?;
    }
    for round in 0..2 {
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        for _ in 0..2 {
            send_nothing(&client)?;
        }
        write_nothing(&server, 9)?;
        let rest = server.close(LIMIT)?;
        assert_eq!(sorted(&rest), [2 * round, 2 * round + 1, 9]);
        assert!(rest.iter().all(|wc| wc.result().is_ok()), "{rest:?}");
    }
    Ok(())
}

/// Promise of `Conn::disconnect`: when it has returned, the peer is cut off, also one that does
/// not look at its events.
#[test]
fn a_disconnect_cuts_the_peer_off() -> Result {
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, 8)?;
    let pair = Pair::new(&peer)?;
    pair.server.disconnect()?;
    memories.assert_not_served(&pair.client)
}

/// Promise of `Conn::close`: it is an error if the peer's end cut an operation off, also if
/// another call has taken that event.
#[test]
fn closing_after_a_wait_has_taken_the_end() -> Result {
    let _test = device_test();
    let Pair { client, server } = Pair::new(&peer()?)?;
    drop(server);
    let posted = write_nothing(&client, 1)?;
    let waited = client.wait_for(posted, LIMIT, |_| {});
    assert!(matches!(waited, Err(Error::Ended(_))), "{waited:?}");
    let closed = client.close(LIMIT).expect_err("the write was cut off");
    unacknowledged(&closed.error);
    // On iWARP it was posted after the end, and never completes.
    let completed = usize::from(!is_iwarp());
    assert_eq!(closed.object.len(), completed, "{closed:?}");

    // All was acknowledged.
    let Pair { client, server } = Pair::new(&peer()?)?;
    write_nothing(&client, 1)?;
    done(&client, 1)?;
    drop(server);
    assert_eq!(event(&client)?, ConnEvent::Closed);
    assert_eq!(client.close(LIMIT)?.len(), 0);
    Ok(())
}

/// Promise of `Conn::close`: its markers are its own. Another thread may poll them with another
/// handle of the queue: that thread has completions of the program alone, and the close ends
/// before its limit.
#[test]
fn closing_while_another_thread_polls() -> Result {
    let (_test, peer) = peer_test()?;
    for _ in 0..10 {
        let pair = Pair::new(&peer)?;
        for wr_id in 0..10 {
            write_nothing(&pair.client, wr_id)?;
        }
        let (cq, is_over) = (pair.client.get_cq().clone(), AtomicBool::new(false));
        let (rest, polled) = thread::scope(|scope| -> Result<_> {
            let polling = scope.spawn(|| -> Result<_> {
                let (mut polled, mut wcs) = (Vec::new(), [Wc::default(); 1]);
                while !is_over.load(Ordering::Relaxed) {
                    let count = cq.get_wc(&mut wcs)?;
                    polled.extend(&wcs[..count]);
                }
                Ok(polled)
            });
            let rest = pair.client.close(LIMIT);
            is_over.store(true, Ordering::Relaxed);
            Ok((rest, polling.join().expect("no panic")?))
        })?;
        let all = [rest?, polled].concat();
        assert!(sorted(&all).into_iter().eq(0..10), "{all:?}");
    }
    Ok(())
}
