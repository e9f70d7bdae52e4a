//! Pauses: of the peer, of this host, and of the program.

use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::keep_alive::world::{D, STEP, Way, patient_ends, sides_and_phases};

const AWAY: Duration = Duration::from_secs(30);
/// Parts of the time between two probes at which a pause begins.
const PHASES: u32 = 16;

/// Promise: a pause of D/2 ends no connection, whenever it begins: the peer's host stands still, or
/// the network carries no packets.
#[test]
fn a_pause_of_half_the_limit_ends_nothing() -> Result {
    for way in Way::ALL {
        for (here, phase) in sides_and_phases(PHASES) {
            for is_partition in [false, true] {
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                ends[here].idle(D + STEP * phase / (PHASES / 2))?;
                if is_partition {
                    world.link.partition()
                } else {
                    world.hosts[1 - here].freeze()
                }
                ends[here].idle(D / 2)?;
                if is_partition {
                    world.link.heal()
                } else {
                    world.hosts[1 - here].thaw()
                }
                ends[here].idle(2 * D)?;
            }
        }
    }
    Ok(())
}

/// Promise: a host that stands still itself ends no connection, however long, whenever that begins.
/// Its device needs a moment when it goes on: the answer is not there at the first look.
#[test]
fn this_host_away_ends_nothing() -> Result {
    for way in Way::ALL {
        for phase in 0..PHASES {
            let (world, mut ends, _entered) = patient_ends(way, 1)?;
            ends[1].idle(D + STEP * phase / (PHASES / 2))?;
            world.hosts[1].freeze();
            sleep(AWAY);
            ends[1].idle(STEP * 3 / 4)?;
            world.hosts[1].thaw();
            ends[1].idle(2 * D)?;
        }
    }
    Ok(())
}

/// Promise: the same if the peer stood still as well, for D/2 at most before this host did.
#[test]
fn both_hosts_away_end_nothing() -> Result {
    for way in Way::ALL {
        for phase in 0..=PHASES {
            let (world, mut ends, _entered) = patient_ends(way, 1)?;
            // It asks just now: the next look is the first one at an answer.
            ends[1].idle(2 * STEP)?;
            world.hosts[0].freeze();
            ends[1].idle(D / 2 * phase / PHASES)?;
            world.hosts[1].freeze();
            sleep(AWAY);
            ends[1].idle(STEP / 2)?;
            world.hosts.iter().for_each(Host::thaw);
            ends[1].idle(2 * D)?;
        }
    }
    Ok(())
}

/// Promise: a program that is away ends no connection, however long; and after that the peer has
/// its whole time again.
#[test]
fn this_program_away_ends_nothing() -> Result {
    for way in Way::ALL {
        for phase in 0..PHASES {
            let (_world, mut ends, _entered) = patient_ends(way, 0)?;
            ends[0].idle(D + STEP * phase / (PHASES / 2))?;
            // An answer lies there until it is back.
            ends[0].ask(ALWAYS, 7)?;
            sleep(AWAY);
            let saw = ends[0].wait(D / 2)?;
            let (came, event) = (saw.completions, saw.event);
            assert_eq!((came, event), (vec![(7, true)], None), "{way:?}, {phase}");
            ends[0].idle(2 * D)?;
        }
    }
    Ok(())
}
