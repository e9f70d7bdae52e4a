//! Probes: those that fail, that are lost, and their slot.

use rpma::sim::{Entered, now};

use crate::common::prelude::*;
use crate::keep_alive::world::{D, End, SIDES, STEP, Way, ends_with, lost, patient, patient_ends};

/// Promise: a probe that the device gives up ends the connection at once, and is not reported: no
/// completion, and the failure names the probe.
#[test]
fn a_probe_that_fails_ends_the_connection() -> Result {
    for way in Way::ALL {
        for here in SIDES {
            let mut cfg = patient()?;
            // 67 ms.
            cfg.set_ack_timeout(Some(14))?.set_retry_count(1)?;
            let (world, mut ends, _entered) = ends_with(way, here, [&cfg, &cfg])?;
            world.hosts[1 - here].freeze();
            let (took, saw) = ends[here].wait_for_the_end()?;
            // It is asked after a step, and has two tries. A loop that only sleeps sees that when
            // the next step is due.
            let steps = if way == Way::Loop { 2 } else { 1 };
            let limit = STEP * steps + Duration::from_millis(200);
            assert!(took <= limit, "{way:?}: {took:?}");
            let lost_at_once = (vec![], Some((lost(), 0)));
            assert_eq!((saw.completions, saw.event), lost_at_once, "{way:?}");
            let status = WcStatus::RETRY_EXC_ERR;
            let failure = ends[here].conn()?.failure();
            assert_eq!(failure, Some(Failure::Probe { status }));
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
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                let link = world
                    .fabric
                    .between(&world.hosts[here], &world.hosts[1 - here]);
                ends[here].idle(D)?;
                for _ in 0..10 {
                    if is_answer {
                        link.lose_answer(1)
                    } else {
                        link.lose_packet(1)
                    }
                    ends[here].idle(D)?;
                    assert_eq!(link.disarm(), 0, "it has happened");
                }
            }
        }
    }
    Ok(())
}

/// A connection with so many slots for operations at both ends. This thread is on the client's
/// host.
fn with_slots(depth: u32) -> Result<(World, [End; 2], Entered)> {
    let mut cfg = patient()?;
    cfg.set_sq_size(depth);
    ends_with(Way::Next, 0, [&cfg, &cfg])
}

/// Promise: a probe has a slot of its own. A full send queue does not hinder it, and while it is in
/// flight the program has as many slots as without it.
#[test]
fn a_probe_takes_no_slot() -> Result {
    const DEPTH: u32 = 3;
    for flags in [ALWAYS, Flags::COMPLETION_ON_ERROR] {
        for posted_before in 0..=DEPTH {
            let (world, mut ends, _entered) = with_slots(DEPTH)?;
            world.hosts[1].freeze();
            let post = |ends: &[End; 2], posted: u32| {
                let flags = if posted == DEPTH - 1 { ALWAYS } else { flags };
                ends[0].ask(flags, posted.into())
            };
            for posted in 0..posted_before {
                post(&ends, posted)?;
            }
            // The probe is in flight.
            ends[0].idle(STEP * 2 + STEP / 2)?;
            let calls = world.fabric.calls();
            let calls = calls.get("ibv_post_send").copied().unwrap_or(0);
            assert_eq!(calls, u64::from(posted_before) + 1, "the probe");
            for posted in posted_before..DEPTH {
                post(&ends, posted)?;
            }
            let full = post(&ends, DEPTH).expect_err("it is full");
            assert!(matches!(full, Error::QueueFull { .. }), "{full}");
            world.hosts[1].thaw();
            let until = now() + LIMIT;
            let mut completed = 0;
            while completed == 0 && now() < until {
                completed = ends[0].wait(STEP)?.completions.len();
            }
            assert!(completed > 0);
            post(&ends, 0)?;
        }
    }
    Ok(())
}

/// Promise: operations without completions do not fill the queue for ever, although a probe was in
/// flight when they were posted: the last slot is kept for one that completes.
#[test]
fn a_probe_is_no_completion_that_is_due() -> Result {
    const DEPTH: u32 = 3;
    let (world, mut ends, _entered) = with_slots(DEPTH)?;
    world.hosts[1].freeze();
    ends[0].idle(STEP * 2 + STEP / 2)?;
    for _ in 1..DEPTH {
        ends[0].ask(Flags::COMPLETION_ON_ERROR, 1)?;
    }
    let last = ends[0].ask(Flags::COMPLETION_ON_ERROR, 1);
    let last = last.expect_err("it must complete");
    assert!(matches!(last, Error::NoCompletionDue { .. }), "{last:?}");
    world.hosts[1].thaw();
    ends[0].idle(STEP)?;
    ends[0].ask(ALWAYS, 1)?;
    assert_eq!(ends[0].wait(STEP)?.completions.len(), 1);
    Ok(())
}

/// Promise: when a probe has completed, the program has no slot more than before.
#[test]
fn the_slot_of_a_probe_is_not_the_programs() -> Result {
    const DEPTH: u32 = 3;
    let (world, mut ends, _entered) = with_slots(DEPTH)?;
    ends[0].idle(D)?;
    assert!(world.fabric.calls()["ibv_post_send"] > 0, "it was asked");
    world.hosts[1].freeze();
    let post = |_: &u32| ends[0].ask(ALWAYS, 1).is_ok();
    assert_eq!((0..100).take_while(post).count() as u32, DEPTH);
    Ok(())
}

/// Promise: at most one probe is in flight. While one is on its way, messages of the peer are signs
/// of life, and later silence posts no second one.
#[test]
fn at_most_one_probe_is_in_flight() -> Result {
    const MESSAGES: u64 = 10;
    let other = patient()?.set_keep_alive(None)?.clone();
    let (world, mut ends, _entered) = ends_with(Way::Next, 0, [&patient()?, &other])?;
    receive_nothing(ends[0].conn()?, 0..MESSAGES)?;
    world.link.hold();
    for number in 0..MESSAGES {
        send_empty(ends[1].conn()?, number)?;
        let saw = ends[0].wait(STEP * 5 / 2)?;
        assert_eq!((saw.completions, saw.event), (vec![(number, true)], None));
    }
    assert_eq!(world.fabric.calls()["ibv_post_send"], MESSAGES + 1);
    world.link.release();
    ends[0].idle(2 * D)
}

/// Promise: `Conn::close` has slots of its own beside that of a probe.
#[test]
fn a_probe_leaves_room_for_the_close() -> Result {
    // 2 slots, and 3 of the library. Devices round 4 up to 4, so a missing one would show.
    let (world, mut ends, _entered) = with_slots(2)?;
    world.hosts[1].freeze();
    ends[0].idle(STEP * 2 + STEP / 2)?;
    assert_eq!(world.fabric.calls()["ibv_post_send"], 1, "the probe");
    for number in 0..2 {
        ends[0].ask(ALWAYS, number)?;
    }
    let [client, _server] = ends;
    let began = now();
    let closed = client.into_conn()?.close(Duration::from_millis(10));
    // All markers were posted: it does not wait in vain for one.
    assert!(now() - began < Duration::from_secs(1));
    let closed = closed.expect_err("nobody acknowledges");
    assert!(matches!(closed.error, Error::TimedOut(_)), "{closed:?}");
    assert_eq!(closed.object.len(), 2, "without the probe");
    Ok(())
}

/// A probe waits for the operations before it. One that takes longer than the limit ends the
/// connection, although the peer lives. Documented at `ConnCfg::set_keep_alive`.
#[test]
fn an_operation_longer_than_the_limit_ends_as_gone() -> Result {
    for (delay, ends_it) in [(D / 2, false), (D, true)] {
        let (world, mut ends, _entered) = patient_ends(Way::Next, 0)?;
        world.link.delay(delay);
        ends[0].ask(ALWAYS, 7)?;
        let saw = ends[0].wait(2 * D)?;
        assert_eq!(saw.completions, [(7, !ends_it)]);
        let event = ends_it.then(|| (lost(), 1));
        assert_eq!(saw.event, event, "{:?}", ends[0].conn()?.failure());
    }
    Ok(())
}
