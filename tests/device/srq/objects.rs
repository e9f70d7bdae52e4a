//! Refusals, settings, and objects that are dropped in any order.

use std::any::Any;

use crate::common::prelude::*;
use crate::srq::support::{fill, srq, using};

/// Objects that do not belong together are refused when they are put together, with the reason.
#[test]
fn every_refusal_of_a_shared_receive_queue() -> Result {
    let _test = device_test();
    let (peer, stranger) = (peer()?, peer()?);
    let foreign = srq(&stranger, 10, 10)?;
    let ep = listen(&peer)?;
    let cfg = using(&foreign);
    let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
    assert!(text.contains("another Peer"), "{text}");
    assert_invalid(ep.next_conn_req_timeout(&cfg, LIMIT), &["another Peer"]);

    let own = srq(&peer, 10, 10)?;
    let theirs = region(&stranger, 8, MrUsage::RECV)?;
    assert_invalid(own.recv(theirs.slice(..)?, 1), &["another Peer"]);
    let wrong = region(&peer, 8, MrUsage::SEND)?;
    assert_invalid(own.recv(wrong.slice(..)?, 1), &["needs RECV"]);
    assert_eq!(fill(&own, 10), 10, "a refused receive takes no slot");

    // A connection of a shared queue has no receive queue of its own.
    let cfg = using(&own);
    let req = resolve(&peer, &ep, &cfg)?;
    assert_invalid(req.recv(MrSlice::EMPTY, 1), &["Srq::recv"]);
    let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
    assert_invalid(pair.server.recv(MrSlice::EMPTY, 1), &["Srq::recv"]);

    for (rq_size, rcq_size) in [(u32::MAX, 0), (1 << 21, 0), (1 << 20, 1), (1, u32::MAX)] {
        let mut cfg = SrqCfg::new();
        let srq = Srq::new(&peer, cfg.set_rq_size(rq_size).set_rcq_size(rcq_size));
        let blamed = match rcq_size {
            u32::MAX => "set_rcq_size (4294967295)",
            _ => "set_rq_size",
        };
        assert_invalid(srq, &["at most", blamed]);
    }
    // Receives of a shared queue may need more completions than one completion queue has.
    let large = srq(&peer, 32_760, 0)?;
    let text = invalid(ConnReq::new(&peer, &addr(), ep.get_port(), &using(&large)));
    assert!(text.contains("SrqCfg::set_rq_size (32760)"), "{text}");
    Ok(())
}

/// In any order of drops, everything is freed: connections hold the queue.
#[test]
fn objects_may_be_dropped_in_any_order() -> Result {
    let _test = device_test();
    // Each of the five first, second, … once, in both directions.
    let orders = (0..5).flat_map(|first| {
        let forwards: Vec<usize> = (0..5).map(|n| (first + n) % 5).collect();
        let backwards = forwards.iter().rev().copied().collect();
        [forwards, backwards]
    });
    for order in orders {
        for (rcq_size, delete) in [(0, false), (10, false), (10, true)] {
            let peer = peer()?;
            let srq = srq(&peer, 10, rcq_size)?;
            let mr = region(&peer, 64, MrUsage::RECV)?;
            for wr_id in 0..5 {
                srq.recv(mr.slice(..)?, wr_id)?;
            }
            let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &using(&srq))?;
            send_nothing(&client)?;
            let mut things: Vec<Option<Box<dyn Any>>> = vec![
                Some(Box::new(srq)),
                Some(Box::new(client)),
                Some(Box::new(server)),
                Some(Box::new(mr)),
                Some(Box::new(peer)),
            ];
            for &index in &order {
                let thing = things[index].take().ok_or("each once")?;
                match thing.downcast::<Srq>() {
                    Ok(srq) if delete => srq.delete()?,
                    other => drop(other),
                }
            }
        }
    }
    Ok(())
}

/// Deleting a handle leaves the queue to its other handles and its connections; the last one frees
/// it.
#[test]
fn a_queue_lives_as_long_as_its_users() -> Result {
    let (_test, peer) = peer_test()?;
    let srq = srq(&peer, 10, 0)?;
    let another = srq.clone();
    assert_eq!(fill(&srq, 10), 10);
    let pair = Pair::with(&peer, &ConnCfg::new(), &using(&srq))?;
    srq.delete()?;
    // The same queue.
    full(another.recv(MrSlice::EMPTY, 1));
    another.delete()?;
    for wr_id in 0..10 {
        send_nothing(&pair.client)?;
        assert_eq!(done(&pair.server, wr_id)?, WcOpcode::RECV);
    }
    // A handle can be had from a configuration that has it.
    let srq = self::srq(&peer, 10, 10)?;
    let cfg = using(&srq);
    drop(srq);
    let srq = cfg.get_srq().ok_or("the configuration holds it")?.clone();
    drop(cfg);
    srq.recv(MrSlice::EMPTY, 1)?;
    srq.delete()?;
    Ok(())
}

/// Settings can be read back; the defaults are librpma's code's (its manual has others).
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
