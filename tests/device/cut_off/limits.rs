//! How long cutting off takes, in virtual time. It never waits for the peer.

use rpma::sim::{Errno, now};

use crate::common::prelude::*;
use crate::cut_off::support::{flushed, numbers};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Two hosts, and two ends of a connection.
fn connected(profile: &Profile) -> Result<(World, Pair)> {
    let world = Rig::of(profile).seed(1).world();
    let pair = world.connect(&ConnCfg::new(), &ConnCfg::new())?;
    Ok((world, pair))
}

/// A shared receive queue with receives that complete in the queues of its connections.
fn queue(peer: &Peer) -> Result<Srq> {
    let srq = Srq::new(peer, SrqCfg::new().set_rcq_size(0))?;
    for number in 0..3 {
        srq.recv(MrSlice::EMPTY, number)?;
    }
    Ok(srq)
}

/// Cuts a connection off, and returns the time that it takes.
fn timed(server: Conn, host: &Host) -> Result<(Vec<Wc>, Duration)> {
    let _entered = host.enter();
    let begin = now();
    Ok((server.cut_off()?, now() - begin))
}

/// Promise: it takes a millisecond, whether the peer answers or not. With own operations in flight,
/// too, which are returned as flushed.
#[test]
fn it_waits_for_no_peer() -> Result {
    for profile in Profile::ALL {
        for is_silent in [false, true] {
            let (world, pair) = connected(&profile)?;
            receive_nothing(&pair.server, 0..2)?;
            if is_silent {
                world.link.partition();
                let _entered = world.hosts[1].enter();
                write_nothing(&pair.server, 7)?;
            }
            let (rest, took) = timed(pair.server, &world.hosts[1])?;
            let sent = if is_silent { vec![7] } else { vec![] };
            assert_eq!(numbers(&rest), [sent, vec![0, 1]]);
            assert_eq!(flushed(&rest), rest.len(), "{rest:?}");
            assert!(took < MILLISECOND, "{}: {took:?}", profile.name());
            world.link.heal();
        }
    }
    Ok(())
}

/// Promise: a device that does not flush is waited for a second at most. Its operations are
/// unknown, and the peer is still cut off.
#[test]
fn a_device_that_does_not_flush() -> Result {
    for profile in Profile::ALL {
        let (world, pair) = connected(&profile)?;
        receive_nothing(&pair.server, 0..2)?;
        world.hosts[1].freeze();
        let (rest, took) = timed(pair.server, &world.hosts[1])?;
        assert!(rest.is_empty(), "{rest:?}");
        let second = Duration::from_secs(1);
        let limit = second..second + 2 * MILLISECOND;
        assert!(limit.contains(&took), "{}: {took:?}", profile.name());
        world.hosts[1].thaw();
    }
    Ok(())
}

/// Promise: it does not wait for a queue pair that did not enter the error state, which does not
/// flush.
#[test]
fn a_queue_pair_that_does_not_enter_the_error_state() -> Result {
    for profile in Profile::ALL {
        let (world, pair) = connected(&profile)?;
        receive_nothing(&pair.server, 0..2)?;
        let calls = ["ibv_modify_qp", "rdma_disconnect"];
        let failing = calls.map(|call| world.fabric.fail(call).next(Errno::IO));
        let (rest, took) = timed(pair.server, &world.hosts[1])?;
        assert!(!failing.iter().any(|failing| failing.is_pending()));
        assert!(rest.is_empty(), "{rest:?}");
        assert!(took < MILLISECOND, "{}: {took:?}", profile.name());
    }
    Ok(())
}

/// Promise: with a shared receive queue it waits for the receive of an incomplete message, for at
/// most 0.1 s, and returns it if the device does.
#[test]
fn an_incomplete_message() -> Result {
    for profile in Profile::ALL {
        let world = Rig::of(&profile).seed(1).world();
        let srq = queue(&world.peers[1])?;
        let cfg = ConnCfg::new().set_srq(Some(&srq)).clone();
        let Pair { client, server } = world.connect(&ConnCfg::new(), &cfg)?;
        world.hosts[1].lose_receive(1);
        let failed = client.wait_for(send_empty(&client, 1)?, LIMIT, |_| {});
        failed.expect_err("it is never complete");
        let (rest, took) = timed(server, &world.hosts[1])?;
        let returns = profile.name() != Profile::RXE_6_12.name();
        let received = if returns { vec![0] } else { vec![] };
        assert_eq!(numbers(&rest), [vec![], received], "{}", profile.name());
        assert!(took < Duration::from_millis(102), "{took:?}");
        assert!(srq.kept() <= 1);
    }
    Ok(())
}
