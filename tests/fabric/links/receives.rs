//! Receives of messages that never arrive whole.

use crate::links::prelude::*;

/// Receives that a shared queue has room for, and each has no bytes.
const DEPTH: u32 = 4;

/// A shared receive queue, with a completion queue of its own or without, and the settings of a
/// server that uses it.
fn shared(world: &World, rcq_size: u32) -> Result<(Srq, ConnCfg)> {
    let mut cfg = SrqCfg::new();
    cfg.set_rq_size(DEPTH).set_rcq_size(rcq_size);
    let srq = Srq::new(&world.peers[1], &cfg)?;
    let mut cfg = patient();
    cfg.set_srq(Some(&srq));
    Ok((srq, cfg))
}

/// Posts receives until there are no free slots; how many, and the error then.
fn fill(srq: &Srq) -> (u32, Error) {
    for posted in 0.. {
        if let Err(error) = srq.recv(MrSlice::EMPTY, posted.into()) {
            return (posted, error);
        }
    }
    unreachable!("the queue has an end")
}

/// As [`fill`] of a queue that is full then.
fn fill_up(srq: &Srq) -> u32 {
    let (posted, error) = fill(srq);
    let queue = Queue::SharedReceive;
    let is_full = matches!(error, Error::QueueFull { queue: of, .. } if of == queue);
    assert!(is_full, "{error:?}");
    posted
}

/// A client that dies in the middle of a message.
fn break_a_message(world: &World, cfg: &ConnCfg) -> Result {
    let Pair { client, server } = world.connect(&patient(), cfg)?;
    world.hosts[1].lose_receive(1);
    client.send(MrSlice::EMPTY, ALWAYS, 1)?;
    unanswered(&completion(&client), 1);
    drop(client);
    let _entered = world.hosts[1].enter();
    drop(server);
    Ok(())
}

/// Whether a device returns the receive of an incomplete message. Then it is in the shared queue's
/// own completion queue, or was in that of the connection.
fn returned(profile: &Profile, srq: &Srq, count: u32) -> Result<bool> {
    let returns = *profile != Profile::RXE_6_12;
    if let Some(rcq) = srq.get_rcq().filter(|_| returns) {
        for _ in 0..count {
            let flushed = next_completion(rcq)?.result().expect_err("flushed");
            assert_eq!(flushed.status, WcStatus::WR_FLUSH_ERR, "{flushed}");
        }
    }
    Ok(returns)
}

/// A message that is lost with its receive. Dropping its connection waits until the device has
/// returned the receive, where it does. Otherwise the slot of the shared queue stays counted, and
/// the queue reports it. The other receives go on serving the other clients.
#[test]
fn a_receive_of_an_incomplete_message() -> Result {
    for profile in Profile::ALL {
        let fabric = Rig::of(&profile).jumping().emptied();
        let world = World::on(&fabric);
        for rcq_size in [0, DEPTH] {
            let (srq, cfg) = shared(&world, rcq_size)?;
            assert_eq!(fill_up(&srq), DEPTH);
            let Pair { client, server } = world.connect(&patient(), &cfg)?;
            break_a_message(&world, &cfg)?;
            let returns = returned(&profile, &srq, 1)?;
            let rcq = srq.get_rcq().unwrap_or(server.get_cq());
            assert_empty(rcq)?;
            for n in 1..DEPTH.into() {
                client.send(MrSlice::EMPTY, ALWAYS, n)?;
                opcode_of(&completion(&client), n)?;
                opcode_of(&next_completion(rcq)?, n)?;
            }
            let kept = u32::from(!returns);
            assert_eq!(srq.kept(), kept, "{}", profile.name());
            assert_eq!(fill_up(&srq), DEPTH - kept, "{}", profile.name());
        }
    }
    Ok(())
}

/// As many broken messages as a shared queue has slots. If the device keeps their receives, the
/// queue is used up and reports that. A new queue serves new connections, while the old connections
/// go on without messages until they end.
#[test]
fn a_queue_that_is_used_up_is_replaced() -> Result {
    for profile in Profile::ALL {
        let fabric = Rig::of(&profile).jumping().emptied();
        let world = World::on(&fabric);
        for rcq_size in [0, DEPTH] {
            let (old, cfg) = shared(&world, rcq_size)?;
            assert_eq!(fill_up(&old), DEPTH);
            let (old_client, old_server) = world.connect(&patient(), &cfg)?.ends();
            (0..DEPTH).for_each(|_| break_a_message(&world, &cfg).expect("posted"));
            if returned(&profile, &old, DEPTH)? {
                assert_eq!(fill_up(&old), DEPTH, "{}", profile.name());
                assert_eq!(old.kept(), 0, "all are new");
                continue;
            }
            assert_eq!(old.kept(), DEPTH);
            let (0, error) = fill(&old) else {
                panic!("no slot has come back")
            };
            let Error::ReceivesKept { kept, depth } = error else {
                panic!("{error:?}")
            };
            assert_eq!((kept, depth), (DEPTH, DEPTH));
            assert!(error.to_string().contains("Srq::new"), "{error}");

            let (new, cfg) = shared(&world, rcq_size)?;
            assert_eq!(fill_up(&new), DEPTH);
            let Pair { client, server } = world.connect(&patient(), &cfg)?;
            client.send(MrSlice::EMPTY, ALWAYS, 1)?;
            opcode_of(&completion(&client), 1)?;
            let rcq = new.get_rcq().unwrap_or(server.get_cq());
            opcode_of(&next_completion(rcq)?, 0)?;
            // The old ones still write.
            knock(&old_client, 2)?;
            opcode_of(&completion(&old_client), 2)?;
            old_server.delete()?;
            drop(cfg);
            old.delete()?;
        }
    }
    Ok(())
}

/// A device that never reports the last receive of a connection delays its drop for a limited
/// time, and the receive counts as kept until it comes back.
#[test]
fn a_last_receive_is_waited_for_with_a_limit() -> Result {
    each(|world| {
        let (srq, cfg) = shared(world, DEPTH)?;
        let Pair { client, server } = world.connect(&patient(), &cfg)?;
        assert_eq!(fill_up(&srq), DEPTH);
        world.fabric.jump_over_waits();
        let start = now();
        {
            let _entered = world.hosts[1].enter();
            // Its device sends no report.
            world.hosts[1].freeze();
            drop(server);
            world.hosts[1].thaw();
        }
        assert!(now() - start < Duration::from_secs(1));
        assert_eq!(srq.kept(), 1, "it may be");
        drop(client);
        // The last message of a later connection proves that all are there.
        let (client, _server) = world.connect(&patient(), &cfg)?.ends();
        for n in 0..DEPTH.into() {
            client.send(MrSlice::EMPTY, ALWAYS, n)?;
            opcode_of(&completion(&client), n)?;
            opcode_of(&next_completion(srq.get_rcq().ok_or("its own")?)?, n)?;
        }
        assert_eq!(srq.kept(), 0);
        Ok(())
    })
}

/// A receive of a connection's own queue comes back when its connection ends.
#[test]
fn a_receive_of_ones_own_is_flushed() -> Result {
    each_connected(&patient(), |world, both| {
        world.hosts[1].lose_receive(2);
        for n in 1..=3 {
            both.server.recv(MrSlice::EMPTY, n)?;
        }
        both.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
        opcode_of(&completion(&both.client), 1)?;
        let (to, from) = (both.target()?, both.source.slice(..)?);
        both.client.write_with_imm(to, from, ALWAYS, 7, 2)?;
        unanswered(&completion(&both.client), 2);
        opcode_of(&completion(&both.server), 1)?;
        assert_empty(both.server.get_cq())?;
        assert_eq!(both.written()?, [0; LEN]);
        drop(both.client);
        assert_eq!(event(&both.server)?, ConnEvent::Closed);
        let flushed = both.server.close(LIMIT)?;
        let flushed: Vec<_> = flushed.iter().map(Wc::wr_id).collect();
        assert_eq!(flushed, [2, 3]);
        Ok(())
    })
}
