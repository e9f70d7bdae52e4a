//! The waits between tries.

use rpma::reconnect::{Reconnect, ReconnectCfg, ToConn};
use rpma::sim::{Trace, now, sleep};

use crate::common::prelude::*;
use crate::reconnect::hosts::{Ended, Hosts, PORT, SLACK, block, block_or_drive, drive};
use crate::reconnect::support::identified;

const LONGEST: Duration = Duration::from_secs(5);

/// The whole waits that the documentation has for the defaults.
fn documented() -> impl Iterator<Item = Duration> {
    let growing = [50, 100, 200, 400, 800, 1600, 3200];
    let growing = growing.into_iter().map(Duration::from_millis);
    growing.chain(std::iter::repeat(LONGEST))
}

/// A wait of this time, shortened to its half at most.
fn is_wait(took: Duration, whole: Duration) -> bool {
    took >= whole / 2 && took <= whole + SLACK
}

/// The tries have these waits between them.
fn assert_waits(ended: &Ended, whole: impl Iterator<Item = Duration>) {
    let between = ended.tries.windows(2).map(|pair| pair[1] - pair[0]);
    for (took, whole) in between.zip(whole) {
        assert!(is_wait(took, whole), "{whole:?}: {ended:?}");
    }
}

/// Promise: the documented waits after tries without an answer. The first try is due at once.
#[test]
fn waits_grow_up_to_the_longest() {
    for seed in 0..5 {
        let hosts = Hosts::seeded(seed);
        let _entered = hosts.client.enter();
        let (_, ended) = drive(&mut hosts.client());
        assert!(ended.tries[0] < SLACK, "{ended:?}");
        assert!(ended.tries.len() > 15, "{ended:?}");
        assert_waits(&ended, documented());
    }
}

/// Promise: a server that is full, or could not cut off, is asked slowly from the first answer on.
#[test]
fn a_busy_server_is_asked_slowly() {
    for code in [RefusalCode::Full, RefusalCode::NotCutOff] {
        let hosts = Hosts::seeded(3);
        let _serving = hosts.reject_each(code, "later");
        let _entered = hosts.client.enter();
        sleep(LONGEST);
        let (_, ended) = drive(&mut hosts.client());
        assert!(ended.tries.len() > 10, "{ended:?}");
        assert_waits(&ended, std::iter::repeat(LONGEST));
        let gave_up = ended.result.expect_err("it stays full");
        assert!(matches!(gave_up, Error::GaveUp(_)), "{gave_up}");
        assert_says(&gave_up, &["\"later\""]);
    }
}

/// Promise: a server that accepts and fails is asked as rarely as one that is down. After a
/// connection that lasted, the first try is due at once again, and the waits are the first ones.
#[test]
fn short_connections_count_as_failures() -> Result {
    let hosts = Hosts::seeded(4);
    let serving = hosts.accept_each();
    let _entered = hosts.client.enter();
    sleep(LONGEST);
    let mut client = hosts.client();
    let mut waited = Vec::new();
    let mut next = |lives: Duration| -> Result {
        let (conn, ended) = block(&mut client);
        ended.result?;
        waited.push(ended.took);
        sleep(lives);
        drop(conn);
        Ok(())
    };
    for _ in 0..10 {
        next(Duration::ZERO)?;
    }
    next(LONGEST)?;
    next(LONGEST)?;
    let whole = [Duration::ZERO].into_iter().chain(documented());
    for (took, whole) in waited[..11].iter().zip(whole) {
        assert!(is_wait(*took, whole), "{waited:?}");
    }
    assert!(waited[11] < SLACK, "{waited:?}");
    assert_eq!(client.connected(), 12);
    drop(serving);
    let (_, ended) = drive(&mut client);
    assert_waits(&ended, documented());
    Ok(())
}

/// Promise: a loop does not ask a server that refuses more often than one that is down, and each
/// reconnect has a try within its limit. With another offer the first try is due at once.
#[test]
fn a_server_that_refuses_is_not_asked_in_a_loop() -> Result {
    let hosts = Hosts::seeded(6);
    let _serving = hosts.reject_each(RefusalCode::Refused, "not you");
    let _entered = hosts.client.enter();
    sleep(LONGEST);
    let mut client = hosts.client();
    let next = |client: &mut _| {
        let (_, ended) = block(client);
        let gave_up = ended.result.expect_err("it is refused");
        assert!(gave_up.refusal().is_some(), "{gave_up:?}");
        ended.took
    };
    let whole = [Duration::ZERO].into_iter().chain(documented());
    for whole in whole.take(12) {
        let took = next(&mut client);
        assert!(is_wait(took, whole), "{took:?}");
    }
    let limit = Duration::from_secs(1);
    client.set_cfg(ReconnectCfg::new().set_limit(limit));
    assert!(next(&mut client) <= limit / 2 + SLACK);
    client.set_offer(identified(2))?;
    assert!(next(&mut client) < SLACK);
    Ok(())
}

/// Promise: a thousand clients that lose their server at one moment do not come back in step.
#[test]
fn clients_do_not_come_back_in_step() -> Result {
    let hosts = Hosts::seeded(5);
    let _entered = hosts.client.enter();
    let (began, mut due) = (now(), Vec::new());
    let mut cfg = ReconnectCfg::new();
    // The wait that each client has then: 5 to 10 s.
    let whole = Duration::from_secs(10);
    cfg.set_waits(whole, whole)?.set_answer_limit(3 * whole);
    let (peer, addr) = (peer()?, hosts.server.addr().to_string());
    for number in 0..1000 {
        let mut client = Reconnect::new(&peer, &addr, PORT, Offer::default(), ToConn)?;
        client.set_cfg(&cfg);
        client.begin(&ConnCfg::new())?;
        let started = now();
        let waits = (started + whole / 2)..(started + 2 * whole);
        while client.tries() == 0 || !client.deadline().is_some_and(|due| waits.contains(&due)) {
            assert!(client.advance()?.is_none());
            assert!(now() - started < whole / 4, "{number}");
            sleep(Duration::from_micros(10));
        }
        due.push(client.deadline().ok_or("a wait")? - started);
    }
    assert!(now() > began);
    // In each of 20 parts of the time there are about 50.
    let mut parts = [0; 20];
    for due in due {
        let part = (due - whole / 2).as_millis() / 250;
        parts[part.min(19) as usize] += 1;
    }
    let is_even = parts.iter().all(|count| (20..100).contains(count));
    assert!(is_even, "{parts:?}");
    Ok(())
}

/// A run with this seed: its calls, its tries, and its instance.
fn run(seed: u64) -> (Trace, Vec<Duration>, u64) {
    let hosts = Hosts::seeded(seed);
    let serving = hosts.accept_each();
    let entered = hosts.client.enter();
    hosts.link.partition();
    let link = hosts.link.clone();
    let healing = hosts.client.spawn(move || {
        sleep(Duration::from_secs(7));
        link.heal();
    });
    let mut client = hosts.client();
    let (conn, ended) = drive(&mut client);
    ended.result.expect("it is reached again");
    let instance = client.offer().identity().expect("set").instance;
    drop((conn, client));
    healing.join().expect("no panic");
    drop((entered, serving));
    assert_eq!(hosts.fabric.why_not_repeatable(), None);
    (hosts.fabric.trace(), ended.tries, instance)
}

/// Promise: a seed repeats the waits and the instance, and another seed has others.
#[test]
fn a_seed_repeats_the_waits() {
    let [one, again, other] = [11, 11, 12].map(run);
    assert_eq!(one, again);
    assert_ne!(one.1, other.1);
    assert_ne!(one.2, other.2);
}

/// Promise: the steps of an event loop and the blocking call do the same.
#[test]
fn both_forms_do_the_same() {
    let outcome = |ended: Ended| {
        let text = match ended.result {
            Ok(()) => "connected".to_owned(),
            Err(gave_up) => format!("{gave_up:?}"),
        };
        ((text, ended.counts), ended.took)
    };
    for scenario in 0..4 {
        let of_form = |is_blocking: bool| {
            let hosts = Hosts::seeded(20 + scenario);
            let _serving = match scenario {
                // No listener; a server that accepts; one that refuses; one that is not reached.
                0 => None,
                2 => Some(hosts.reject_each(RefusalCode::Taken, "by another instance")),
                _ => Some(hosts.accept_each()),
            };
            let _entered = hosts.client.enter();
            sleep(LONGEST);
            if scenario == 3 {
                hosts.link.partition();
            }
            let mut client = hosts.client();
            let (conn, ended) = block_or_drive(&mut client, is_blocking);
            drop((conn, client));
            hosts.link.heal();
            outcome(ended)
        };
        let (steps, blocking) = (of_form(false), of_form(true));
        assert_eq!(steps.0, blocking.0);
        let difference = steps.1.abs_diff(blocking.1);
        assert!(difference < SLACK, "{steps:?}, {blocking:?}");
    }
}

/// Promise: an instance is drawn for each identity, and an identity that no server accepts is
/// refused.
#[test]
fn instances_follow_from_the_seed() {
    let drawn = |seed| {
        let hosts = Hosts::seeded(seed);
        let _entered = hosts.client.enter();
        [1, 2].map(|epoch| Identity::new(7, epoch).expect("an identity").instance)
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let [one, other] = drawn(1);
    assert_ne!(one, other);
}
