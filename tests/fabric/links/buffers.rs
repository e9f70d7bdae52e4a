//! Buffers that are changed too early, and memory that is freed.

use crate::links::prelude::*;

/// When a program changes a buffer that it has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reuse {
    /// After the write's completion.
    AfterItsCompletion,
    /// Right after the post.
    AfterThePost,
}

/// Sends numbered buffers out of the same memory; how many of them arrived as another one, and how
/// many as a mixture.
fn reuse(profile: &Profile, how: Reuse, loses_packets: bool, seed: u64) -> Result<(usize, usize)> {
    const COUNT: usize = 8;
    let fabric = Rig::of(profile).seed(seed).emptied();
    let world = World::on(&fabric);
    let both = Both::new(&world, &ConnCfg::new())?;
    if loses_packets {
        world.link.lose_packets(3);
    }
    let part = LEN / 2;
    let (mut other, mut mixed) = (0, 0);
    for number in 1..=COUNT as u8 {
        both.source.write_at(0, &vec![number; part])?;
        let from = both.source.slice(..part)?;
        let to = remote(&both.target).slice(..part as u64)?;
        let posted = both.client.write(to, from, ALWAYS, 1)?;
        if how == Reuse::AfterThePost {
            both.source.write_at(0, &vec![0xEE; part])?;
        }
        both.done(posted)?;
        let written = &both.written()?[..part];
        match written.iter().filter(|byte| **byte != number).count() {
            0 => {}
            all if all == part => other += 1,
            _ => mixed += 1,
        }
    }
    Ok((other, mixed))
}

/// A buffer belongs to the device until its completion: a program that changes it before sends
/// other bytes, or a mixture. On adapters that happens by itself, and everywhere when a packet is
/// sent again.
#[test]
fn a_buffer_that_is_used_again_too_early() {
    for profile in Profile::ALL {
        for loses_packets in [false, true] {
            let count = |how| {
                let run = |seed| reuse(&profile, how, loses_packets, seed);
                let all = (1..=10).map(|seed| run(seed).expect("it completes"));
                all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            let name = profile.name();
            assert_eq!(count(Reuse::AfterItsCompletion), (0, 0), "{name}");
            let (other, mixed) = count(Reuse::AfterThePost);
            match loses_packets || profile.is_adapter() {
                true => assert!(other > 0 && mixed > 0, "{name}: {other} and {mixed} of 80"),
                false => assert_eq!((other, mixed), (0, 0), "{name}"),
            }
        }
    }
}

/// Memory that is given back has all bytes that devices have executed, and is not written later: a
/// write that was late lands before its region is gone.
#[test]
fn late_writes_land_before_their_memory_is_freed() -> Result {
    for profile in Profile::ALL {
        for seed in 1..=10 {
            let fabric = Rig::of(&profile).seed(seed).emptied();
            let world = World::on(&fabric);
            let both = Both::new(&world, &ConnCfg::new())?;
            let written = both.write(1)?;
            both.done(written)?;
            let memory = both.target.dereg()?;
            let name = profile.name();
            assert_eq!(memory.as_slice(), pattern(LEN, 1), "{name}, {seed}");
        }
    }
    Ok(())
}
