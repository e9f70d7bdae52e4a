//! Probes: those that fail, that are lost, and their slot.

use rpma::sim::now;

use crate::common::prelude::*;
use crate::keep_alive::world::{
    ALWAYS, D, SIDES, STEP, Way, connect, connect_patiently, jumping, lost, patient,
};

/// Promise: a probe that the device gives up ends the connection at once, and is not reported: no
/// completion, and the failure names the probe.
#[test]
fn a_probe_that_fails_ends_the_connection() -> Result {
    for way in Way::ALL {
        for here in SIDES {
            let world = jumping();
            let mut cfg = patient()?;
            // 67 ms.
            cfg.set_ack_timeout(Some(14))?;
            cfg.set_retry_count(1)?;
            let mut ends = connect(&world, way, [&cfg, &cfg])?;
            let _entered = world.hosts[here].enter();
            world.hosts[1 - here].freeze();
            let (took, saw) = ends[here].wait_for_the_end()?;
            // It is asked after a step, and has two tries. A loop that only sleeps sees that when
            // the next step is due.
            let steps = if way == Way::Loop { 2 } else { 1 };
            let limit = STEP * steps + Duration::from_millis(200);
            assert!(took <= limit, "{way:?}: {took:?}");
            assert_eq!(
                (saw.completions, saw.event),
                (vec![], Some((lost(), 0))),
                "{way:?}"
            );
            let status = WcStatus::RETRY_EXC_ERR;
            assert_eq!(
                ends[here].conn()?.failure(),
                Some(Failure::Probe { status })
            );
            assert_eq!(ends[here].conn()?.counters().probes_lost, 1);
            ends[here].says_no_more()?;
        }
    }
    Ok(())
}

/// Promise: a probe is not lost with its packet, or with its answer: the device sends it again, in
/// time.
#[test]
fn a_lost_packet_ends_nothing() -> Result {
    for way in Way::ALL {
        for here in SIDES {
            for is_answer in [false, true] {
                let world = jumping();
                let mut ends = connect_patiently(&world, way)?;
                let _entered = world.hosts[here].enter();
                let there = &world.hosts[1 - here];
                let link = world.fabric.between(&world.hosts[here], there);
                ends[here].idle(D)?;
                for _ in 0..10 {
                    match is_answer {
                        true => link.lose_answer(1),
                        false => link.lose_packet(1),
                    }
                    ends[here].idle(D)?;
                    assert_eq!(link.disarm(), 0, "it has happened");
                }
            }
        }
    }
    Ok(())
}

/// Promise: a probe has a slot of its own. A full send queue does not hinder it, and while it is in
/// flight the program has as many slots as without it.
#[test]
fn a_probe_takes_no_slot() -> Result {
    const DEPTH: u32 = 3;
    for flags in [ALWAYS, Flags::COMPLETION_ON_ERROR] {
        for posted_before in 0..=DEPTH {
            let world = jumping();
            let mut cfg = patient()?;
            cfg.set_sq_size(DEPTH);
            let mut ends = connect(&world, Way::Next, [&cfg, &cfg])?;
            let _entered = world.hosts[0].enter();
            world.hosts[1].freeze();
            let mut posted = 0;
            let post = |ends: &[crate::keep_alive::world::End; 2], posted: u32| -> Result<_> {
                let flags = if posted == DEPTH - 1 { ALWAYS } else { flags };
                let conn = ends[0].conn()?;
                Ok(conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, posted.into()))
            };
            while posted < posted_before {
                post(&ends, posted)??;
                posted += 1;
            }
            // The probe is in flight.
            ends[0].idle(STEP * 2 + STEP / 2)?;
            let calls = world.fabric.calls();
            let calls = calls.get("ibv_post_send").copied().unwrap_or(0);
            assert_eq!(calls, u64::from(posted_before) + 1, "the probe");
            while posted < DEPTH {
                post(&ends, posted)??;
                posted += 1;
            }
            let full = post(&ends, posted)?.expect_err("it is full");
            assert!(matches!(full, Error::QueueFull { .. }), "{full}");
            world.hosts[1].thaw();
            let until = now() + LIMIT;
            let mut completed = 0;
            while completed == 0 && now() < until {
                completed = ends[0].wait(STEP)?.completions.len();
            }
            assert!(completed > 0);
            post(&ends, 0)??;
        }
    }
    Ok(())
}

/// Promise: operations without completions do not fill the queue for ever, although a probe was in
/// flight when they were posted: the last slot is kept for one that completes.
#[test]
fn a_probe_is_no_completion_that_is_due() -> Result {
    const DEPTH: u32 = 3;
    let world = jumping();
    let mut cfg = patient()?;
    cfg.set_sq_size(DEPTH);
    let mut ends = connect(&world, Way::Next, [&cfg, &cfg])?;
    let _entered = world.hosts[0].enter();
    world.hosts[1].freeze();
    ends[0].idle(STEP * 2 + STEP / 2)?;
    let post = |ends: &[crate::keep_alive::world::End; 2], flags| -> Result<_> {
        let conn = ends[0].conn()?;
        Ok(conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, 1))
    };
    for _ in 1..DEPTH {
        post(&ends, Flags::COMPLETION_ON_ERROR)??;
    }
    let refused = post(&ends, Flags::COMPLETION_ON_ERROR)?.expect_err("the last one");
    assert!(
        matches!(refused, Error::NoCompletionDue { .. }),
        "{refused}"
    );
    world.hosts[1].thaw();
    ends[0].idle(STEP)?;
    post(&ends, ALWAYS)??;
    assert_eq!(ends[0].wait(STEP)?.completions.len(), 1);
    Ok(())
}

/// Promise: when a probe has completed, the program has no slot more than before.
#[test]
fn the_slot_of_a_probe_is_not_the_programs() -> Result {
    const DEPTH: u32 = 3;
    let world = jumping();
    let mut cfg = patient()?;
    cfg.set_sq_size(DEPTH);
    let mut ends = connect(&world, Way::Next, [&cfg, &cfg])?;
    let _entered = world.hosts[0].enter();
    ends[0].idle(D)?;
    assert!(world.fabric.calls()["ibv_post_send"] > 0, "it was asked");
    world.hosts[1].freeze();
    let conn = ends[0].conn()?;
    let post = |_: &u32| {
        let posted = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1);
        posted.is_ok()
    };
    assert_eq!((0..100).take_while(post).count() as u32, DEPTH);
    Ok(())
}

/// Promise: at most one probe is in flight. While one is on its way, messages of the peer are signs
/// of life, and later silence posts no second one.
#[test]
fn at_most_one_probe_is_in_flight() -> Result {
    const MESSAGES: u64 = 10;
    let world = jumping();
    let mut other = patient()?;
    other.set_keep_alive(None)?;
    let mut ends = connect(&world, Way::Next, [&patient()?, &other])?;
    let _entered = world.hosts[0].enter();
    for number in 0..MESSAGES {
        ends[0].conn()?.recv(MrSlice::EMPTY, number)?;
    }
    world.link.hold();
    for number in 0..MESSAGES {
        ends[1].conn()?.send(MrSlice::EMPTY, ALWAYS, number)?;
        let saw = ends[0].wait(STEP * 5 / 2)?;
        assert_eq!((saw.completions, saw.event), (vec![(number, true)], None));
    }
    assert_eq!(world.fabric.calls()["ibv_post_send"], MESSAGES + 1);
    world.link.release();
    ends[0].idle(2 * D)?;
    Ok(())
}

/// Promise: `Conn::close` has slots of its own beside that of a probe.
#[test]
fn a_probe_leaves_room_for_the_close() -> Result {
    let world = jumping();
    let mut cfg = patient()?;
    // 2 slots, and 3 of the library. Devices round 4 up to 4, so a missing one would show.
    cfg.set_sq_size(2);
    let mut ends = connect(&world, Way::Next, [&cfg, &cfg])?;
    let _entered = world.hosts[0].enter();
    world.hosts[1].freeze();
    ends[0].idle(STEP * 2 + STEP / 2)?;
    assert_eq!(world.fabric.calls()["ibv_post_send"], 1, "the probe");
    for number in 0..2 {
        let conn = ends[0].conn()?;
        conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, number)?;
    }
    let [client, _server] = ends;
    let began = now();
    let closed = client.into_conn()?.close(Duration::from_millis(10));
    // All markers were posted: it does not wait in vain for one.
    assert!(now() - began < Duration::from_secs(1));
    let closed = closed.expect_err("nobody acknowledges");
    assert!(
        matches!(closed.error, Error::TimedOut(_)),
        "{}",
        closed.error
    );
    assert_eq!(closed.completions.len(), 2, "without the probe");
    Ok(())
}

/// A probe waits for the operations before it. One that takes longer than the limit ends the
/// connection, although the peer lives. Documented at `ConnCfg::set_keep_alive`.
#[test]
fn an_operation_longer_than_the_limit_ends_as_gone() -> Result {
    for (delay, ends_it) in [(D / 2, false), (D, true)] {
        let world = jumping();
        let mut ends = connect_patiently(&world, Way::Next)?;
        let _entered = world.hosts[0].enter();
        world.link.delay(delay);
        let conn = ends[0].conn()?;
        conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 7)?;
        let saw = ends[0].wait(2 * D)?;
        assert_eq!(saw.completions, [(7, !ends_it)]);
        let event = ends_it.then(|| (lost(), 1));
        assert_eq!(saw.event, event, "{:?}", ends[0].conn()?.failure());
    }
    Ok(())
}
