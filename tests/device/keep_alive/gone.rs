//! Peers that are gone.

use crate::common::prelude::*;
use crate::keep_alive::world::{
    D, SIDES, STEP, Way, connect, jumping, lost, patient, patient_ends, sides_and_phases, silent,
};

/// The outage of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    /// Its host stands still.
    Frozen,
    /// Its host loses its power.
    NoPower,
    /// The network carries no packets.
    Partition,
    /// Its program is killed.
    Killed,
}

impl Outage {
    const ALL: [Self; 4] = [Self::Frozen, Self::NoPower, Self::Partition, Self::Killed];

    fn happens(self, world: &World, there: usize) {
        match self {
            Self::Frozen => world.hosts[there].freeze(),
            Self::NoPower => world.hosts[there].power_cut(),
            Self::Partition => world.link.partition(),
            Self::Killed => world.hosts[there].kill(),
        }
    }
}

fn is_silent(error: &Error) {
    let is_silent = matches!(error, Error::NotConnected(NotConnected::Silent));
    assert!(is_silent, "{error}");
}

/// Promise: under each fault of a peer, with retries that have no end, the other side notices it
/// within D: a client and a server, idle, in each kind of wait, whenever it happens. The program
/// gets the end once, with its reason, and never a probe.
#[test]
fn a_peer_that_is_gone_is_noticed_in_time() -> Result {
    for way in Way::ALL {
        for outage in Outage::ALL {
            for (here, phase) in sides_and_phases(8) {
                let what = format!("{way:?}, {outage:?}, seen by {here}, phase {phase}");
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                // From each part of the time between two probes.
                ends[here].idle(D + STEP * phase / 4)?;
                outage.happens(&world, 1 - here);
                let (took, saw) = ends[here].wait_for_the_end()?;
                assert!(took <= D, "{what}: {took:?}");
                assert_eq!(saw.completions, [], "{what}");
                let (event, _) = saw.event.ok_or("an event")?;
                if outage == Outage::Killed {
                    // A program that waits for completions alone takes no events.
                    match way {
                        Way::Channel => assert_eq!(event, lost(), "{what}"),
                        _ => assert_eq!(event, ConnEvent::Closed, "{what}"),
                    }
                    continue;
                }
                let failure = ends[here].conn()?.failure();
                assert_eq!((event, failure), (lost(), silent()), "{what}");
                is_silent(&ends[here].ask(ALWAYS, 1).expect_err("it has ended"));
                ends[here].says_no_more()?;
            }
        }
    }
    Ok(())
}

/// Promise: operations in flight complete first, all of them, although no answer comes; then comes
/// the event. The failures report that they were flushed, and `failure` has the reason.
#[test]
fn operations_in_flight_complete_before_the_end() -> Result {
    for way in Way::ALL {
        for here in SIDES {
            let (world, mut ends, _entered) = patient_ends(way, here)?;
            world.hosts[1 - here].freeze();
            let quiet = Flags::COMPLETION_ON_ERROR;
            for (number, flags) in [(1, quiet), (2, ALWAYS), (3, quiet)] {
                ends[here].ask(flags, number)?;
            }
            let (took, saw) = ends[here].wait_for_the_end()?;
            assert!(took <= D, "{way:?}: {took:?}");
            let flushed = [1, 2, 3].map(|number| (number, false));
            assert_eq!(saw.completions, flushed, "{way:?}");
            assert_eq!(saw.event, Some((lost(), 3)), "{way:?}");
            assert_eq!(ends[here].conn()?.failure(), silent());
        }
    }
    Ok(())
}

/// Promise: `Conn::wait_for` keeps watch as well, and returns the reason.
#[test]
fn a_wait_for_an_operation_notices() -> Result {
    let (world, ends, _entered) = patient_ends(Way::Next, 0)?;
    let conn = ends[0].conn()?;
    world.link.partition();
    let began = rpma::sim::now();
    let waited = conn.wait_for(ends[0].ask(ALWAYS, 1)?, 100 * D, |_| {});
    is_silent(&waited.expect_err("nobody answers"));
    assert!(rpma::sim::now() - began <= D);
    assert_eq!(conn.next_event_timeout(Duration::ZERO)?, lost());
    Ok(())
}

/// Promise: a thread that sleeps for events wakes when another thread's wait ends the connection.
#[test]
fn a_thread_that_waits_for_events_wakes() -> Result {
    let (world, ends, _entered) = patient_ends(Way::Channel, 0)?;
    world.hosts[1].freeze();
    let conn = ends[0].conn()?;
    rpma::thread::scope(|scope| -> Result {
        let events = scope.spawn(|| conn.next_event());
        let ended = loop {
            match conn.wait_timeout(2 * D) {
                // The probe was flushed.
                Ok((cq, _)) => assert_eq!(cq.get_wc(&mut [Wc::default()])?, 0),
                Err(error) => break error,
            }
        };
        is_silent(&ended);
        assert_eq!(events.join().expect("no panic")?, lost());
        Ok(())
    })?;
    assert_eq!(ends[0].conn()?.failure(), silent());
    Ok(())
}

/// Promise: without a keep-alive an idle connection to a host that is gone stays as before, without
/// any post for it.
#[test]
fn without_a_keep_alive_nothing_is_asked() -> Result {
    let world = jumping();
    let cfg = patient()?.set_keep_alive(None)?.clone();
    for way in [Way::Wait, Way::Next, Way::Channel] {
        let mut ends = connect(&world, way, [&cfg, &ConnCfg::new()])?;
        let _entered = world.hosts[0].enter();
        assert_eq!(ends[0].conn()?.keep_alive()?, None);
        world.hosts[1].freeze();
        ends[0].idle(100 * D)?;
        world.hosts[1].thaw();
    }
    assert!(!world.fabric.calls().contains_key("ibv_post_send"));
    Ok(())
}
