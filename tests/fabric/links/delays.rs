//! Requests that stay on their way, some of them for longer than their requester lives.

use std::collections::BTreeSet;

use crate::links::prelude::*;

/// A delayed request is not there before its time, nor completed, and arrives in order.
#[test]
fn delayed_requests_stay_in_order() -> Result {
    each_connected(&patient(), |world, both| {
        let values = |n: u8| {
            let to = remote(&both.target).slice(0..8).expect("inside");
            let posted = both.client.atomic_write(to, &[n; 8], ALWAYS, n.into());
            posted.expect("posted");
        };
        world.link.delay(Duration::from_secs(3600));
        (1..=3).for_each(values);
        assert_empty(both.client.get_cq())?;
        assert_eq!(both.written()?[..8], [0; 8]);
        world.link.delay(Duration::ZERO);
        for n in 1..=3 {
            opcode_of(&completion(&both.client), n)?;
        }
        assert_eq!(both.written()?[..8], [3; 8]);

        let delay = Duration::from_millis(20);
        world.link.delay(delay);
        let start = Instant::now();
        (4..=9).for_each(values);
        for n in 4..=9 {
            opcode_of(&completion(&both.client), n)?;
            assert!(start.elapsed() >= delay);
        }
        assert_eq!(both.written()?[..8], [9; 8]);
        Ok(())
    })
}

/// Held requests stay on their way without a limit, and arrive in their order; those of a requester
/// that has gone meanwhile, too.
#[test]
fn held_requests_are_released() -> Result {
    each_connected(&impatient(), |world, both| {
        world.fabric.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.link.hold();
        let written = both.write(1)?;
        timed_out(both.wait(written, Duration::from_secs(3600)));
        assert_eq!(both.written()?, [0; LEN]);
        world.link.release();
        both.done(written)?;
        assert_eq!(both.written()?, pattern(LEN, 1));

        both.target.write_at(0, &[0; LEN])?;
        let mut landed = false;
        for _ in 0..20 {
            world.link.hold();
            let Pair { client, server } = world.connect(&impatient(), &impatient())?;
            let from = both.source.slice(..)?;
            client.write(both.target()?, from, ALWAYS, 2)?;
            drop(client);
            assert_eq!(both.written()?, [0; LEN]);
            world.link.release();
            landed |= both.written()? == pattern(LEN, 1);
            both.target.write_at(0, &[0; LEN])?;
            drop(server);
        }
        assert!(landed, "by chance");
        Ok(())
    })
}

/// Held requests do not stay for ever if their queue pair at the other end is destroyed meanwhile:
/// after the release they get no answer, and they fail when the retries are over.
#[test]
fn held_requests_to_nothing_fail() -> Result {
    each_connected(&impatient(), |world, both| {
        world.link.hold();
        let written = both.write(1)?;
        drop(both.server);
        world.link.release();
        unanswered_wait(both.client.wait_for(written, LIMIT, |_| {}));
        Ok(())
    })
}

/// A prefix of the requests that are on their way lands after their requester has gone, whether it
/// is destroyed or only disconnected, unless the responder has gone first.
#[test]
fn requests_that_outlive_their_requester() -> Result {
    /// The number of writes that have landed.
    fn landed(profile: &Profile, seed: u64, disconnects: bool, stays: bool) -> Result<usize> {
        let fabric = Rig::of(profile).seed(seed).emptied();
        let world = World::on(&fabric);
        let _entered = world.hosts[0].enter();
        let both = Both::new(&world, &patient())?;
        world.link.delay(Duration::from_millis(50));
        for n in 0..3 {
            let from = both.source.slice(8 * n..8 * n + 8)?;
            let at = 8 * n as u64;
            let to = remote(&both.target).slice(at..at + 8)?;
            both.client.write(to, from, ALWAYS, 0)?;
        }
        if disconnects {
            both.client.disconnect()?;
        } else {
            drop((both.client, both.source));
        }
        let server = stays.then_some(both.server);
        sleep(Duration::from_secs(1));
        drop(server);
        let (bytes, whole) = (contents(&both.target)?, pattern(LEN, 1));
        let count = (0..3).take_while(|n| bytes[8 * n..8 * n + 8] == whole[8 * n..8 * n + 8]);
        let count = count.count();
        assert!(bytes[8 * count..].iter().all(|byte| *byte == 0), "a prefix");
        Ok(count)
    }
    for profile in Profile::ALL {
        for disconnects in [true, false] {
            let counts = (0..40).map(|seed| landed(&profile, seed, disconnects, true));
            let counts = counts.collect::<Result<BTreeSet<_>>>()?;
            assert_eq!(counts, BTreeSet::from([0, 1, 2, 3]), "{}", profile.name());
            let gone = (0..10).map(|seed| landed(&profile, seed, disconnects, false));
            let gone = gone.collect::<Result<Vec<_>>>()?;
            assert_eq!(gone, [0; 10], "the responder has gone");
        }
    }
    Ok(())
}
