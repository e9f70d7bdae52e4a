//! Failures while an operation is posted: whether its slot is taken, and the effect on the
//! connection.

use std::collections::BTreeSet;
use std::thread;

use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, ends_with, pause_in_posts, with_failures, work};

const DEPTH: u64 = 10;

/// With so many operations in the queue, the rest of its slots can be used.
fn fill_rest(queue: Queue, posted: u64, post: impl Fn(u64) -> Result<(), Error>) {
    let rest = fill(queue, DEPTH, |number| post(posted + number));
    assert_eq!(rest, DEPTH - posted, "with {posted} in the queue");
}

/// Polls so many successes, with the numbers from `first` on.
fn in_order(conn: &Conn, opcode: WcOpcode, first: u64, count: u64) -> Result {
    for (wc, number) in completions(conn, count as usize)?.iter().zip(first..) {
        assert_eq!(opcode_of(wc, number)?, opcode);
    }
    Ok(())
}

/// Whatever a queue has, a device without room for one more is `QueueFull`, without any effect: every
/// slot can be used. `complete` polls a full queue.
fn without_room(
    call: &'static str,
    queue: Queue,
    post: impl Fn(u64) -> Result<(), Error>,
    complete: impl Fn() -> Result,
) -> Result {
    for posted in 0..DEPTH {
        (0..posted).try_for_each(&post)?;
        let failing = Failing::next(call, Errno::NOMEM)?;
        assert_eq!(full(post(99)), (queue, DEPTH));
        failing.happened();
        fill_rest(queue, posted, &post);
        complete()?;
    }
    Ok(())
}

/// Promise: a device with a full queue is `QueueFull`, without any effect: the connection goes on,
/// and every slot can be used.
#[test]
fn a_device_without_room_is_a_full_queue() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let conn = &pair.client;
        let write = |number| write_nothing(conn, number).map(drop);
        let complete = || in_order(conn, WcOpcode::RDMA_WRITE, 0, DEPTH);
        without_room("ibv_post_send", Queue::Send, write, complete)
    })
}

/// Promise: after a failed post the connection takes no more operations, whether the device has the
/// request or not. It ends: all posted operations complete, with their own numbers, those that were
/// not executed as flushed; `failure` and `close` have the call; and the peer is notified of the
/// end.
#[test]
fn a_failed_post_ends_the_connection() -> Result {
    with_failures(|| {
        let peer = peer()?;
        for (errno, how) in [
            (Errno::INVAL, How::Refused),
            (Errno::IO, How::Done),
            (Errno::ACCESS, How::Done),
            // The kernel, not the queue: there is no report that the request was refused.
            (Errno::NOMEM, How::Done),
        ] {
            for closes in [false, true] {
                let Pair { client, server } = Pair::new(&peer)?;
                work(&client, 3, 3)?;
                Failing::nth(1, "ibv_post_send", errno, how)?.told(write_nothing(&client, 3));
                let posted = if how.happens() { 4 } else { 3 };
                ends_with(
                    ("ibv_post_send", errno),
                    client,
                    &server,
                    closes,
                    (posted, 3),
                )?;
            }
        }
        Ok(())
    })
}

/// Promise, as above, for native flushes and atomic writes. The device publishes them before it
/// asks the kernel for anything, so that ENOMEM is no full queue: the request is there, and
/// completes with its own number. No other one is done before its time, and no operation is lost.
#[test]
fn a_native_operation_that_fails_and_happens_all_the_same() -> Result {
    with_failures(|| {
        let peer = peer()?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(&peer, 64, usage)?;
        let part = remote(&target).slice(0..8)?;
        let mut tried = 0;
        for (opcode, errno, how) in [
            (WcOpcode::FLUSH, Errno::NOMEM, How::Done),
            (WcOpcode::FLUSH, Errno::ACCESS, How::Done),
            (WcOpcode::FLUSH, Errno::NOMEM, How::Refused),
            (WcOpcode::ATOMIC_WRITE, Errno::NOMEM, How::Done),
            (WcOpcode::ATOMIC_WRITE, Errno::ACCESS, How::Done),
            (WcOpcode::ATOMIC_WRITE, Errno::NOMEM, How::Refused),
        ] {
            let Pair { client, server } = Pair::new(&peer)?;
            let flushes = opcode == WcOpcode::FLUSH;
            if flushes && !client.has_native_flush() {
                continue; // rdma-core 44 has the atomic write only.
            }
            work(&client, 3, 3)?;
            Failing::nth(1, "ibv_wr_complete", errno, how)?.told(if flushes {
                client.flush(part, FlushType::Visibility, ALWAYS, 3)
            } else {
                client.atomic_write(part, &[5; 8], ALWAYS, 3)
            });
            let sends = if how.happens() { 4 } else { 3 };
            for wc in ends_with(
                ("ibv_wr_complete", errno),
                client,
                &server,
                false,
                (sends, 3),
            )? {
                if let Ok(done) = wc.result() {
                    let written = [WcOpcode::RDMA_WRITE, opcode][usize::from(wc.wr_id() == 3)];
                    assert_eq!(done.opcode(), written);
                }
            }
            tried += 1;
        }
        assert!(tried >= 3, "the guest has them");
        Ok(())
    })
}

/// Sends as many messages as there are receives, which have the numbers from 0 on.
fn messages(pair: &Pair) -> Result {
    for number in 0..DEPTH {
        pair.client.send(MrSlice::EMPTY, ALWAYS, number)?;
        in_order(&pair.client, WcOpcode::SEND, number, 1)?;
    }
    in_order(&pair.server, WcOpcode::RECV, 0, DEPTH)
}

/// Promise: a device with a full receive queue is `QueueFull`, without any effect, before the
/// connection is made and after.
#[test]
fn a_device_without_room_for_a_receive_is_a_full_queue() -> Result {
    with_failures(|| {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        let client = ask(&peer, &ep, &cfg)?;
        let req = request(&ep, &cfg)?;
        let recv = |number| req.recv(MrSlice::EMPTY, number);
        recv(0)?;
        let failing = Failing::next("ibv_post_recv", Errno::NOMEM)?;
        assert_eq!(full(recv(99)), (Queue::Receive, DEPTH));
        failing.happened();
        fill_rest(Queue::Receive, 1, recv);
        let server = req.connect(&[])?;
        established(&client, &server)?;
        let pair = Pair { client, server };
        messages(&pair)?;
        let recv = |number| pair.server.recv(MrSlice::EMPTY, number);
        let complete = || messages(&pair);
        without_room("ibv_post_recv", Queue::Receive, recv, complete)
    })
}

/// Promise: a receive that failed and may be in the queue ends the connection, as a failed send
/// does: it completes with its own number if it is there.
#[test]
fn a_receive_that_fails_and_happens_all_the_same() -> Result {
    with_failures(|| {
        let peer = peer()?;
        for errno in [Errno::IO, Errno::NOMEM] {
            let Pair { client, server } = Pair::new(&peer)?;
            let recv = |number: u64| client.recv(MrSlice::EMPTY, 10 + number);
            recv(0)?;
            Failing::nth(1, "ibv_post_recv", errno, How::Done)?.told(recv(1));
            let refused = recv(2).expect_err("the connection has ended");
            let failed = Error::NotConnected(NotConnected::Failed);
            assert_eq!(refused.to_string(), failed.to_string());
            ends_with(("ibv_post_recv", errno), client, &server, false, (0, 2))?;
        }
        Ok(())
    })
}

/// Promise: a receive that the device refuses has no effect, and the connection goes on.
#[test]
fn a_refused_receive_ends_nothing() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let recv = |number| pair.server.recv(MrSlice::EMPTY, number);
        recv(0)?;
        Failing::next("ibv_post_recv", Errno::INVAL)?.told(recv(1));
        fill_rest(Queue::Receive, 1, recv);
        messages(&pair)?;
        assert_eq!(pair.server.failure(), None);
        Ok(())
    })
}

/// Promise: `QueueFull` means that every slot holds an operation that has not been polled. A
/// receive that the device has refused, with a report, holds no slot.
#[test]
fn a_receive_that_the_device_refuses_takes_no_slot() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let recv = |number| pair.server.recv(MrSlice::EMPTY, number);
        recv(0)?;
        Failing::next("ibv_post_recv", Errno::INVAL)?.told(recv(99));
        fill_rest(Queue::Receive, 1, recv);
        messages(&pair)?;
        Ok(())
    })
}

/// A shared receive queue, with a completion queue of its own or without, and a connection that
/// uses it.
fn shared(rcq_size: u32) -> Result<(Srq, Pair)> {
    let peer = peer()?;
    let mut cfg = SrqCfg::new();
    let srq = Srq::new(&peer, cfg.set_rq_size(DEPTH as u32).set_rcq_size(rcq_size))?;
    let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_srq(Some(&srq)))?;
    Ok((srq, pair))
}

/// Sends as many messages as there are receives, which have the numbers from 0 on.
fn shared_messages(srq: &Srq, pair: &Pair) -> Result {
    for number in 0..DEPTH {
        pair.client.send(MrSlice::EMPTY, ALWAYS, number)?;
        in_order(&pair.client, WcOpcode::SEND, number, 1)?;
        let cq = srq.get_rcq().unwrap_or(pair.server.get_cq());
        opcode_of(&next_completion(cq)?, number)?;
    }
    Ok(())
}

/// Promise, as above, for shared receive queues.
#[test]
fn a_device_without_room_in_a_shared_receive_queue_is_a_full_queue() -> Result {
    with_failures(|| {
        for rcq_size in [0, 10] {
            let (srq, pair) = shared(rcq_size)?;
            let recv = |number| srq.recv(MrSlice::EMPTY, number);
            let complete = || shared_messages(&srq, &pair);
            without_room("ibv_post_srq_recv", Queue::SharedReceive, recv, complete)?;
        }
        Ok(())
    })
}

/// Promise, as above.
#[test]
fn a_shared_receive_that_fails_and_happens_all_the_same() -> Result {
    with_failures(|| {
        for rcq_size in [0, 10] {
            let (srq, pair) = shared(rcq_size)?;
            let recv = |number| srq.recv(MrSlice::EMPTY, number);
            for errno in [Errno::IO, Errno::NOMEM] {
                recv(0)?;
                Failing::nth(1, "ibv_post_srq_recv", errno, How::Done)?.told(recv(1));
                fill_rest(Queue::SharedReceive, 2, recv);
                shared_messages(&srq, &pair)?;
            }
            fill_rest(Queue::SharedReceive, 0, recv);
        }
        Ok(())
    })
}

/// Promise, as above. No other event would ever give the slot back.
#[test]
fn a_shared_receive_that_the_device_refuses_takes_no_slot() -> Result {
    with_failures(|| {
        for rcq_size in [0, 10] {
            let (srq, pair) = shared(rcq_size)?;
            let recv = |number| srq.recv(MrSlice::EMPTY, number);
            recv(0)?;
            Failing::next("ibv_post_srq_recv", Errno::INVAL)?.told(recv(99));
            fill_rest(Queue::SharedReceive, 1, recv);
            shared_messages(&srq, &pair)?;
        }
        Ok(())
    })
}

/// Promise: threads may post at the same time, wherever the scheduler stops them. One of them
/// stands still in each post, before and after its request is in the queue, while others post and
/// poll. Afterwards every slot can be used. (A number that was stored too late once filled the
/// queue for ever.)
#[test]
fn a_thread_that_stops_in_the_middle_of_a_post() -> Result {
    const BURSTS: u64 = 120;
    const POSTERS: u64 = 4;
    const EACH: u64 = 6;
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let conn = &pair.client;
        let deadline = Instant::now() + LIMIT;
        for burst in 0..BURSTS {
            let post = |poster: u64| {
                for n in 0..EACH {
                    while let Err(error) = write_nothing(conn, poster * EACH + n) {
                        assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
                        assert!(Instant::now() < deadline, "stuck in burst {burst}");
                        thread::yield_now();
                    }
                }
            };
            let mut polled = BTreeSet::new();
            thread::scope(|scope| -> Result {
                for poster in 0..POSTERS {
                    scope.spawn(move || {
                        pause_in_posts(if poster == 0 { 1000 } else { 0 });
                        post(poster);
                    });
                }
                while polled.len() < (POSTERS * EACH) as usize {
                    let mut wcs = [Wc::default(); 16];
                    let count = conn.get_cq().get_wc(&mut wcs)?;
                    for wc in &wcs[..count] {
                        opcode_of(wc, wc.wr_id())?;
                        assert!(polled.insert(wc.wr_id()), "twice: {wc:?}");
                    }
                    assert!(Instant::now() < deadline, "{polled:?} in burst {burst}");
                    thread::yield_now();
                }
                Ok(())
            })?;
            assert!(polled.into_iter().eq(0..POSTERS * EACH));
            assert_empty(conn.get_cq())?;
            let all = fill(Queue::Send, DEPTH, |number| {
                write_nothing(conn, number).map(drop)
            });
            assert_eq!(all, DEPTH, "after burst {burst}");
            in_order(conn, WcOpcode::RDMA_WRITE, 0, DEPTH)?;
        }
        Ok(())
    })
}
