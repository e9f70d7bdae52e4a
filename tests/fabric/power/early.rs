//! Writes become visible to a program on the target in any order.

use rpma::sim::sleep;

use crate::common::prelude::*;
use crate::power::world::{ALWAYS, Way, World, arrives};

const LEN: usize = 256;
const DATA: usize = 1024;
/// How often the server looks for a flag that may not come.
const LOOKS: u32 = 200;

/// How the client notifies the server that the data is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// A plain write of a number, posted after the data.
    Plain,
    /// As that, after the data's completion was polled.
    AfterItsCompletion,
    /// `Conn::atomic_write`.
    Atomic,
    /// The same after a flush that was not polled.
    AtomicAfterAFlush,
    /// A plain write after a flush for visibility that was polled.
    AfterAFlush,
    /// A message.
    Message,
}

const ALL: [Flag; 6] = [
    Flag::Plain,
    Flag::AfterItsCompletion,
    Flag::Atomic,
    Flag::AtomicAfterAFlush,
    Flag::AfterAFlush,
    Flag::Message,
];

/// Whether a device can place the flag before the data.
fn breaks(profile: &Profile, flag: Flag) -> bool {
    profile.is_adapter()
        && match flag {
            Flag::Plain | Flag::AfterItsCompletion => true,
            Flag::Atomic => !profile.flushes_natively(),
            Flag::AtomicAfterAFlush | Flag::AfterAFlush | Flag::Message => false,
        }
}

/// Returns how often the data was old, and the findings of the fabric.
fn run(profile: &Profile, flag: Flag, seed: u64) -> Result<(usize, Vec<String>)> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    let world = World::new(&fabric, Way::on(Platform::Eadr))?;
    let old = run_on(&world, flag, 8)?;
    Ok((old, fabric.early_reads()))
}

/// For each of so many flags, the server waits for it and reads the data. Returns how often the data
/// was old.
pub(crate) fn run_on(world: &World, flag: Flag, flags: u64) -> Result<usize> {
    let mut old = 0;
    for number in 1..=flags {
        let bytes = number.to_le_bytes();
        world.write(DATA, &[number as u8; LEN])?;
        match flag {
            Flag::AfterItsCompletion => world.wait_for_write()?,
            Flag::AtomicAfterAFlush => world.post_flush(DATA, LEN, FlushType::Visibility)?,
            Flag::AfterAFlush => world.flush_as(DATA, LEN, FlushType::Visibility)?,
            Flag::Plain | Flag::Atomic | Flag::Message => {}
        }
        match flag {
            Flag::Atomic | Flag::AtomicAfterAFlush => world.atomic_write(0, &bytes)?,
            Flag::Message => {
                world.notify(ALWAYS)?;
                arrives(&world.far, 4)?;
                world.expect_request()?;
            }
            _ => world.write(0, &bytes)?,
        }
        let mut looks = 0;
        while flag != Flag::Message && u64::from_le(world.target.load_u64(0)?) != number {
            looks += 1;
            if looks > LOOKS {
                return Err("the flag does not come".into());
            }
            sleep(Duration::from_micros(10));
            // The client polls its queue sometimes.
            world.conn.get_cq().get_wc(&mut [Wc::default()])?;
        }
        let mut data = [0; LEN];
        world.target.read_at(DATA, &mut data)?;
        old += usize::from(data != [number as u8; LEN]);
        world.wait_for_write()?;
    }
    Ok(old)
}

/// A flag by a plain write does not stand for the data before it, and neither does one after the
/// data's completion. On soft-RoCE both do. A message does everywhere, and so does a flag after a
/// flush that was polled, or an atomic write after any flush.
#[test]
fn a_plain_flag_is_seen_before_its_data() -> Result {
    for profile in Profile::EVERY {
        for flag in ALL {
            let began = Instant::now();
            let (mut old, mut told) = (0, 0);
            for seed in 1..=10 {
                let (olds, findings) = run(&profile, flag, seed)?;
                old += u32::from(olds > 0);
                told += u32::from(!findings.is_empty());
            }
            let name = profile.name();
            let is_right = if breaks(&profile, flag) {
                old >= 8 && told >= 8
            } else {
                old == 0 && told == 0
            };
            assert!(is_right, "{name}, {flag:?}: {old}, {told}");
            assert!(began.elapsed() < Duration::from_secs(10), "{name}");
        }
    }
    Ok(())
}

/// The report names both writes, and the operations that order them.
#[test]
fn an_early_read_is_told() -> Result {
    let (_, told) = run(&Profile::STRICT, Flag::Plain, 1)?;
    let parts = [
        "a program on server has read a write of 8 bytes (op_context 0, tests/fabric/power/world.rs:",
        "not visible yet: a write of 256 bytes (op_context 0, tests/fabric/power/world.rs:",
        "a message or immediate data",
    ];
    assert_says(&told.concat(), &parts);
    Ok(())
}
