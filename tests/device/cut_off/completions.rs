//! The completions that `cut_off` returns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::prelude::*;
use crate::cut_off::support::{flushed, message, numbers, waits_until_it_fails};

/// Promise: it returns each completion that had not been polled once: those of a queue in their
/// order, the others of the connection after its own, and no marker. So with each kind of channel,
/// with a queue for receives, and with full queues.
#[test]
fn it_returns_unpolled_completions() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let channel = CompletionChannel::new(&peer)?;
    let of = ComplChannel::Of { channel, key: 1 };
    for rcq_size in [0, 10] {
        for channel in [ComplChannel::PerCq, ComplChannel::Shared, of.clone()] {
            let mut cfg = ConnCfg::new();
            cfg.set_rcq_size(rcq_size).set_compl_channel(channel);
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            receive_nothing(&server, 0..10)?;
            for _ in 0..4 {
                message(&client, 1)?;
            }
            for number in 10..20 {
                write_nothing(&server, number)?;
            }
            let rest = server.cut_off()?;
            let [sent, received] = numbers(&rest);
            assert_eq!(sent, (10..20).collect::<Vec<_>>());
            assert_eq!(received, (0..10).collect::<Vec<_>>());
            let used = rest.iter().filter(|wc| wc.posted().is_none());
            let used = used.filter(|wc| wc.result().is_ok()).map(Wc::wr_id);
            assert_eq!(used.collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert!(flushed(&rest) >= 6, "{rest:?}");
            assert_eq!(event(&client)?, ConnEvent::Closed);
        }
    }
    Ok(())
}

/// Promise: completions that were polled before are not returned.
#[test]
fn it_returns_no_completion_twice() -> Result {
    let _test = device_test();
    let Pair { client, server } = Pair::new(&peer()?)?;
    receive_nothing(&server, 0..3)?;
    write_nothing(&server, 10)?;
    opcode_of(&completion(&server)?, 10)?;
    message(&client, 1)?;
    opcode_of(&completion(&server)?, 0)?;
    assert_eq!(numbers(&server.cut_off()?), [vec![], vec![1, 2]]);
    Ok(())
}

/// Promise: messages of a shared receive queue that complete in the connection's queues are
/// returned, those of the shared queue's own completion queue stay there, and the slots of both
/// come back. Its other connections go on.
#[test]
fn messages_of_a_shared_receive_queue() -> Result {
    const DEPTH: u64 = 8;
    let _test = device_test();
    let peer = peer()?;
    for (own, conns) in [(0, 0), (0, 10), (8, 0)] {
        let mut cfg = SrqCfg::new();
        cfg.set_rq_size(DEPTH as u32).set_rcq_size(own);
        let srq = Srq::new(&peer, &cfg)?;
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq)).set_rcq_size(conns);
        let other = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        let mut next = 0;
        for round in 0..4 {
            let room = if round == 0 { DEPTH } else { 3 };
            for _ in 0..room {
                srq.recv(MrSlice::EMPTY, next)?;
                next += 1;
            }
            let full = srq.recv(MrSlice::EMPTY, next);
            assert!(matches!(full, Err(Error::QueueFull { .. })), "{full:?}");
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            for _ in 0..2 {
                message(&client, 1)?;
            }
            let mut arrived = server.cut_off()?;
            if let Some(rcq) = srq.get_rcq() {
                assert!(arrived.is_empty(), "{arrived:?}");
                arrived = vec![next_completion(rcq)?, next_completion(rcq)?];
            }
            assert_eq!((arrived.len(), flushed(&arrived)), (2, 0), "{arrived:?}");
            assert!(srq.kept() <= DEPTH as u32);
            message(&other.client, 2)?;
            let cq = srq.get_rcq().or(other.server.get_rcq());
            next_completion(cq.unwrap_or(other.server.get_cq()))?.result()?;
        }
    }
    Ok(())
}

/// Promise: a thread that waits on a handle of a queue wakes with an error.
#[test]
fn a_wait_on_a_handle_ends() -> Result {
    let _test = device_test();
    let cfg = ConnCfg::new().set_rcq_size(10).clone();
    let Pair { server, client } = Pair::with(&peer()?, &ConnCfg::new(), &cfg)?;
    let cqs = [server.get_cq(), server.get_rcq().ok_or("it has one")?].map(Clone::clone);
    thread::scope(|scope| -> Result {
        let waits = cqs.map(|cq| scope.spawn(here(move || waits_until_it_fails(&cq))));
        assert!(server.cut_off()?.is_empty());
        for wait in waits {
            assert_eq!(wait.join().expect("ends"), NotConnected::Closed);
        }
        Ok(())
    })?;
    assert_eq!(event(&client)?, ConnEvent::Closed);
    Ok(())
}

/// Promise: a thread that polls a handle meanwhile and `cut_off` get each completion once together.
#[test]
fn another_thread_may_poll() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for _ in 0..20 {
        let Pair { client, server } = Pair::new(&peer)?;
        // Without it the writes are unanswered. On iWARP, those after the end never complete.
        let _client = is_iwarp().then_some(client);
        receive_nothing(&server, 0..10)?;
        for number in 10..20 {
            write_nothing(&server, number)?;
        }
        let (cq, ended) = (server.get_cq().clone(), AtomicBool::new(false));
        let mut all = thread::scope(|scope| -> Result<_> {
            let polls = scope.spawn(here(|| -> Result<_> {
                let mut all = Vec::new();
                let mut wcs = [Wc::default(); 3];
                while !ended.load(Ordering::Relaxed) {
                    let count = cq.get_wc(&mut wcs)?;
                    all.extend(wcs[..count].iter().map(Wc::wr_id));
                    thread::yield_now();
                }
                Ok(all)
            }));
            let rest = server.cut_off()?;
            ended.store(true, Ordering::Relaxed);
            let mut all = polls.join().expect("ends")?;
            all.extend(rest.iter().map(Wc::wr_id));
            Ok(all)
        })?;
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
        assert_eq!(cq.get_wc(&mut [Wc::default()])?, 0);
        waits_until_it_fails(&cq);
    }
    Ok(())
}
