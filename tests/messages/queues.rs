//! Receive queues and completion queues: full, polled, waited on.

use std::thread;
use std::time::Duration;

use rpma::{Conn, ConnCfg, ConnEvent, Error, MrSlice, Queue, RemoteSlice, Wc, WcOpcode, WcStatus};

use crate::common::{
    LIMIT, Pair, assert_empty, completion, completions, device_test, event, invalid,
    next_completion, opcode_of, peer, remote,
};
use crate::support::{ALWAYS, all, any_use, failure};

/// A full receive queue is `QueueFull` with its remedy, and a slot comes back with each completion.
#[test]
fn a_full_receive_queue() {
    device_test(|| {
        let peer = peer();
        let dst = any_use(&peer, 8);
        let mut cfg = ConnCfg::new();
        cfg.set_rq_size(0);
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
        let text = invalid(pair.server.recv(all(&dst), 1));
        assert!(text.contains("set_rq_size"), "polling cannot help: {text}");
        drop(pair);
        for depth in [1, 3, 100] {
            let mut cfg = ConnCfg::new();
            cfg.set_rq_size(depth);
            let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
            let fill = || {
                let mut posted = 0;
                loop {
                    match pair.server.recv(all(&dst), posted) {
                        Ok(()) => posted += 1,
                        Err(error) => {
                            let Error::QueueFull { queue, depth: said } = error else {
                                panic!("{error:?}")
                            };
                            assert_eq!((queue, said), (Queue::Receive, depth));
                            assert!(error.to_string().contains("set_rq_size"), "{error}");
                            return posted;
                        }
                    }
                }
            };
            assert_eq!(fill(), depth.into());
            for _ in 0..depth.min(7) {
                pair.client.send(MrSlice::EMPTY, ALWAYS, 1).expect("posted");
                completion(&pair.client).result().expect("arrives");
            }
            assert_eq!(
                fill(),
                0,
                "a slot comes back when the completion is polled, not before"
            );
            completions(&pair.server, depth.min(7) as usize);
            assert_eq!(fill(), depth.min(7).into());
        }
    });
}

/// With a completion queue of its own for receives, each queue gets its completions and no other's,
/// and more than its size asked for fit into both.
#[test]
fn a_completion_queue_for_receives() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_rcq_size(1)
            .set_cq_size(1)
            .set_rq_size(50)
            .set_sq_size(50);
        let pair = Pair::with(&peer, &cfg, &cfg);
        let rcq = pair.server.get_rcq().expect("one of its own");
        for wr_id in 0..50 {
            pair.server.recv(MrSlice::EMPTY, wr_id).expect("posted");
        }
        for wr_id in 50..100 {
            pair.client
                .send(MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
            pair.server
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id + 50)
                .expect("posted");
        }
        for wr_id in 0..50 {
            assert_eq!(opcode_of(&next_completion(rcq), wr_id), WcOpcode::RECV);
        }
        for (n, wc) in completions(&pair.client, 50).iter().enumerate() {
            assert_eq!(opcode_of(wc, 50 + n as u64), WcOpcode::SEND);
        }
        for (n, wc) in completions(&pair.server, 50).iter().enumerate() {
            assert_eq!(opcode_of(wc, 100 + n as u64), WcOpcode::RDMA_WRITE);
        }
        assert_empty(rcq);
        assert_empty(pair.client.get_rcq().expect("one of its own"));
    });
}

/// Polling moves as many completions as there is room for, and keeps the rest.
#[test]
fn polling_takes_as_many_as_fit() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        for wr_id in 0..5 {
            pair.client
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
        }
        let cq = pair.client.get_cq();
        assert_eq!(cq.get_wc(&mut []).expect("polls"), 0, "no room");
        assert_eq!(opcode_of(&next_completion(cq), 0), WcOpcode::RDMA_WRITE);
        let mut rest = Vec::new();
        while rest.len() < 4 {
            let mut wcs = [Wc::default(); 2];
            let count = cq.get_wc(&mut wcs).expect("polls");
            rest.extend(wcs[..count].iter().map(Wc::wr_id));
        }
        assert_eq!(rest, [1, 2, 3, 4]);
        assert_empty(cq);
    });
}

/// `Cq::wait_for` returns the operation that was asked for, and hands over what came before it.
#[test]
fn waiting_for_one_operation() {
    device_test(|| {
        let peer = peer();
        let pair = Pair::new(&peer);
        let cq = pair.client.get_cq();
        let write = |wr_id| {
            pair.client
                .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, wr_id)
                .expect("posted");
        };
        for wr_id in 0..6 {
            write(wr_id);
        }
        let mut others = Vec::new();
        let wc = cq
            .wait_for(3, LIMIT, |wc| others.push(wc.wr_id()))
            .expect("completes");
        assert_eq!(opcode_of(&wc, 3), WcOpcode::RDMA_WRITE);
        assert_eq!(others, [0, 1, 2]);
        // What comes after it is still there.
        let wc = cq
            .wait_for(4, LIMIT, |wc| panic!("{wc:?}"))
            .expect("completes");
        assert_eq!(wc.wr_id(), 4);
        cq.wait_for(5, LIMIT, |wc| panic!("{wc:?}"))
            .expect("completes");

        // Nothing comes: the limit is kept, and later completions are found.
        let error = cq.wait_for(9, Duration::from_millis(50), |wc| panic!("{wc:?}"));
        assert!(matches!(error, Err(Error::TimedOut(_))), "{error:?}");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| cq.wait_for(7, LIMIT, |wc| assert_eq!(wc.wr_id(), 6)));
            thread::sleep(Duration::from_millis(20));
            write(6);
            write(7);
            let found = waiter.join().expect("ends").expect("completes");
            assert_eq!(found.wr_id(), 7);
        });
    });
}

/// One thread at a time: the other one would be handed the completion that the first waits for.
#[test]
fn waiting_for_two_operations_at_once() {
    device_test(|| {
        let pair = Pair::new(&peer());
        let cq = pair.client.get_cq();
        pair.client
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)
            .expect("posted");
        pair.client
            .write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 2)
            .expect("posted");
        let mut refused = None;
        cq.wait_for(2, LIMIT, |wc| {
            assert_eq!(wc.wr_id(), 1);
            refused = thread::scope(|scope| {
                let other = scope.spawn(|| cq.wait_for(1, LIMIT, |_| {}).err());
                other.join().expect("ends")
            });
        })
        .expect("completes");
        let text = invalid(Err::<(), _>(refused.expect("refused")));
        assert!(text.contains("another thread"), "{text}");
        // Another one may go on when the first has ended.
        let error = cq
            .wait_for(1, Duration::ZERO, |_| {})
            .expect_err("handed to the first");
        assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    });
}

/// The error is why the operation failed: its own reason, or that of the earlier one for which it was
/// flushed. The connection remembers it.
#[test]
fn waiting_for_one_operation_that_fails() {
    device_test(|| {
        let peer = peer();
        let source = any_use(&peer, 8);
        let gone = remote(&any_use(&peer, 8)).slice(..).expect("all");
        for asked in [1, 2] {
            let pair = Pair::new(&peer);
            for wr_id in [1, 2] {
                pair.client
                    .write(gone, all(&source), ALWAYS, wr_id)
                    .expect("posted");
            }
            assert_eq!(pair.client.failure(), None);
            let mut others = Vec::new();
            let error = pair
                .client
                .get_cq()
                .wait_for(asked, LIMIT, |wc| others.push(failure(&wc).status))
                .expect_err("fails");
            let Error::Operation(failure) = error else {
                panic!("{error:?}")
            };
            assert_eq!(failure.wr_id, 1, "the first");
            assert_eq!(failure.status, WcStatus::REM_ACCESS_ERR, "{failure}");
            let before = [WcStatus::REM_ACCESS_ERR];
            assert_eq!(others, before[..asked as usize - 1]);
            if asked == 1 {
                completion(&pair.client).result().expect_err("flushed");
            }
            assert_eq!(pair.client.failure(), Some(failure), "still the first");
        }
    });
}

/// Receives are flushed when the connection ends, each with its number, so that a program gets its
/// buffers back.
#[test]
fn receives_come_back_when_the_connection_ends() {
    fn flushed(conn: &Conn) {
        for (n, wc) in completions(conn, 5).iter().enumerate() {
            let failure = failure(wc);
            assert_eq!(
                (failure.wr_id, failure.status),
                (n as u64, WcStatus::WR_FLUSH_ERR)
            );
        }
    }
    device_test(|| {
        let peer = peer();
        let dst = any_use(&peer, 8);
        let pair = Pair::new(&peer);
        for wr_id in 0..5 {
            pair.client.recv(all(&dst), wr_id).expect("posted");
            pair.server.recv(all(&dst), wr_id).expect("posted");
        }
        pair.client.disconnect().expect("disconnects");
        flushed(&pair.client);
        assert_eq!(event(&pair.server), ConnEvent::Closed);
        // The peer's end does not end this one: that takes its own disconnect.
        pair.server.disconnect().expect("answers");
        flushed(&pair.server);
        assert_eq!(event(&pair.client), ConnEvent::Closed);
    });
}
