//! Clients that stand still with writes in flight, and go on after they were cut off.
//!
//! `RPMA_SIM_RUNS` sets the number of seeds of each profile, and `RPMA_SIM_SEED` the only one.

use rpma::sim::sleep;

use crate::common::prelude::*;

/// Seeds of each profile.
const RUNS: u64 = 100;
const WRITES: usize = 4;
/// Several packets.
const LEN: usize = 4096;
/// The longest way of a request.
const WAY: Duration = Duration::from_millis(1);

/// Where the writes are when the server loses touch with the client.
#[derive(Clone, Copy, Debug)]
enum Stands {
    /// The client stands still, and has sent no write.
    BeforeItSends,
    /// The client stands still, and writes are on their way. Some of them may have arrived.
    WhileTheyTravel,
    /// No host stands still: writes are on their way, and more are sent.
    Never,
}

const ALL: [Stands; 3] = [
    Stands::BeforeItSends,
    Stands::WhileTheyTravel,
    Stands::Never,
];

/// How the server treats a client that it takes for dead.
#[derive(Clone, Copy, Debug)]
enum Server {
    CutsOff,
    KeepsTheConnection,
}

/// Reads bytes as a program on the server does.
fn bytes(target: &Mr<Memory>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; WRITES * LEN];
    target.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn write_all(client: &Conn, source: &Mr<Memory>, target: &Mr<Memory>) -> Result {
    let far = remote(target);
    for at in (0..WRITES * LEN).step_by(LEN) {
        let to = far.slice(at as u64..(at + LEN) as u64)?;
        client.write(to, source.slice(at..at + LEN)?, ALWAYS, 0)?;
    }
    Ok(())
}

/// Returns how many bytes of the server's memory change after the server has lost its client.
fn changed(profile: &Profile, seed: u64, stands: Stands, does: Server) -> Result<usize> {
    let world = Rig::of(profile).seed(seed).world();
    let Memories { source, target } = world.memories(WRITES * LEN)?;
    let _entered = world.hosts[0].enter();
    let patient = ConnCfg::new().set_retry_count(7)?.clone();
    let Pair { client, server } = world.connect(&patient, &patient)?;

    match stands {
        Stands::BeforeItSends => world.hosts[0].freeze(),
        Stands::WhileTheyTravel | Stands::Never => world.link.delay_up_to(WAY),
    }
    write_all(&client, &source, &target)?;
    if let Stands::WhileTheyTravel = stands {
        sleep(WAY * (seed % 4) as u32 / 4);
        world.hosts[0].freeze();
    }

    let kept = match does {
        Server::CutsOff => {
            let completions = server.cut_off()?;
            assert!(completions.is_empty(), "{completions:?}");
            None
        }
        Server::KeepsTheConnection => {
            world.fabric.settle();
            Some(server)
        }
    };
    let before = bytes(&target)?;
    world.hosts[0].thaw();
    if let Server::CutsOff = does {
        // The client may have noticed already.
        let (from, to) = (source.slice(8..16), remote(&target).slice(..8));
        let _ = client.write(to?, from?, ALWAYS, 9);
    }
    sleep(2 * WAY);
    world.fabric.settle();
    let after = bytes(&target)?;
    drop((client, kept));
    Ok(before.iter().zip(&after).filter(|(a, b)| a != b).count())
}

/// Promise: after `cut_off` no byte of the client lands, wherever its writes are: not sent, on
/// their way, or partly arrived. Bytes that landed before are visible then, and no later.
#[test]
fn a_client_that_thaws_changes_nothing() {
    thaws(RUNS, Server::CutsOff);
}

/// The same clients change bytes if the server keeps the connection: the test above can fail.
#[test]
fn a_client_that_is_not_cut_off_changes_bytes() {
    thaws(RUNS, Server::KeepsTheConnection);
}

#[test]
#[ignore = "long: some minutes"]
fn ten_thousand_clients_that_thaw() {
    thaws(10_000, Server::CutsOff);
    thaws(10_000, Server::KeepsTheConnection);
}

fn thaws(runs: u64, does: Server) {
    for profile in Profile::EVERY {
        with_seeds(runs, |seed| {
            for stands in ALL {
                let changed = changed(&profile, seed, stands, does).expect("inside");
                // All writes may have arrived, unless they have had no time.
                let may_be_late = matches!(stands, Stands::WhileTheyTravel) && seed % 4 > 0;
                let is_right = match does {
                    Server::CutsOff => changed == 0,
                    Server::KeepsTheConnection => may_be_late || changed > 0,
                };
                let name = profile.name();
                assert!(is_right, "{name}, {stands:?}, {does:?}: {changed} bytes");
            }
        });
    }
}
