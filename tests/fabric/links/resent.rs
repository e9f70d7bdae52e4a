//! Requests that are sent again after a time-out.

use std::collections::BTreeSet;

use crate::links::prelude::*;

/// A lost packet, and an acknowledgement that is lost once, cost only a time-out each.
#[test]
fn what_is_sent_again_takes_a_time_out() -> Result {
    each(|world| {
        let mut cfg = ConnCfg::new();
        cfg.set_ack_timeout(Some(20))?;
        let one = Duration::from_nanos(4_096 << 20);
        let both = Both::new(world, &cfg)?;
        world.fabric.jump_over_waits();
        let _entered = world.hosts[0].enter();
        both.server.recv(MrSlice::EMPTY, 7)?;
        for lost in [Link::lose_packet, Link::lose_answer] {
            lost(&world.link, 1);
            let start = now();
            let written = both.write(1)?;
            let first = both.write(2)?;
            both.done(written)?;
            both.done(first)?;
            assert!(now() - start >= one, "{:?}", now() - start);
            assert_eq!(both.written()?, pattern(LEN, 1));
        }
        // A message is delivered once.
        world.link.lose_answer(1);
        let sent = both.client.send(MrSlice::EMPTY, ALWAYS, 3)?;
        both.done(sent)?;
        assert_eq!(opcode_of(&completion(&both.server), 7)?, WcOpcode::RECV);
        assert_empty(both.server.get_cq())
    })
}

/// A network that loses packets and delays by chance: everything is written, in order, and another
/// seed takes another time.
#[test]
fn a_bad_network_loses_time_alone() -> Result {
    fn takes(profile: &Profile, seed: u64) -> Result<Duration> {
        let fabric = Rig::of(profile).seed(seed).emptied();
        let world = World::on(&fabric);
        let _entered = world.hosts[0].enter();
        let both = Both::new(&world, &ConnCfg::new())?;
        world.link.delay_up_to(Duration::from_millis(10));
        world.link.lose_packets(5);
        let start = now();
        for number in 0..30_u8 {
            both.source.write_at(0, &[number; LEN])?;
            let written = both.write(number.into())?;
            both.done(written)?;
            assert_eq!(both.written()?, [number; LEN]);
        }
        Ok(now() - start)
    }
    for profile in Profile::ALL {
        let times = (1..=5).map(|seed| takes(&profile, seed));
        let times = times.collect::<Result<Vec<_>>>()?;
        assert_eq!(takes(&profile, 1)?, times[0]);
        // Some packets were lost.
        let least = times.iter().min();
        assert!(least > Some(&Duration::from_millis(500)), "{times:?}");
        assert_eq!(BTreeSet::from_iter(times).len(), 5);
    }
    Ok(())
}

/// On soft-RoCE of Linux 6.12 a native flush cannot be sent again: alone, after a message that
/// waits for a receive, or if its answer was lost.
#[test]
fn a_native_flush_that_is_sent_again() -> Result {
    /// How the flush ends.
    fn ends(
        profile: &Profile,
        is_ready: bool,
        accident: impl FnOnce(&Link),
    ) -> Result<Option<WcStatus>> {
        let fabric = Rig::of(profile).emptied();
        let world = World::on(&fabric);
        let both = Both::new(&world, &impatient())?;
        world.fabric.jump_over_waits();
        let _entered = world.hosts[0].enter();
        if is_ready {
            both.server.recv(MrSlice::EMPTY, 4)?;
        }
        accident(&world.link);
        let mut batch = both.client.batch::<2>();
        let flags = Flags::COMPLETION_ON_ERROR;
        batch.send(MrSlice::EMPTY, flags, 1)?;
        batch.flush(both.target()?, FlushType::Visibility, ALWAYS, 2)?;
        let flushed = batch.post()?;
        let waiting = world.hosts[1].spawn({
            let server = both.server;
            move || {
                sleep(Duration::from_millis(1));
                let posted = server.recv(MrSlice::EMPTY, 3);
                sleep(Duration::from_secs(60));
                posted.map(|()| server)
            }
        });
        let ended = both.client.wait_for(flushed, LIMIT, |_| {});
        drop(waiting.join());
        match ended {
            Ok(_) => Ok(None),
            Err(Error::Operation(failure)) => Ok(Some(failure.status)),
            Err(error) => panic!("{error:?}"),
        }
    }
    for profile in Profile::ALL {
        let flawed = profile == Profile::RXE_6_12;
        let access = flawed.then_some(WcStatus::REM_ACCESS_ERR);
        let unanswered = flawed.then_some(WcStatus::RETRY_EXC_ERR);
        let name = profile.name();
        let packet = ends(&profile, true, |link| link.lose_packet(2))?;
        assert_eq!(packet, access, "{name}");
        let behind = ends(&profile, true, |link| link.lose_packet(1))?;
        assert_eq!(behind, access, "{name}");
        let waited = ends(&profile, false, |_| {})?;
        assert_eq!(waited, access, "{name}");
        let answer = ends(&profile, true, |link| link.lose_answer(2))?;
        assert_eq!(answer, unanswered, "{name}");
    }
    Ok(())
}
