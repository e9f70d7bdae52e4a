//! No reconnect is longer than its limit, under each fault of the server at any step.

use rpma::reconnect::{Reconnect, ReconnectCfg, ToConn};
use rpma::sim::{now, sleep};

use crate::common::prelude::*;
use crate::reconnect::hosts::{Ended, Hosts, PORT, SECOND, SLACK, block, block_or_drive, drive};
use crate::reconnect::support::identified;

fn cfg(limit: Duration) -> Result<ReconnectCfg> {
    let mut cfg = ReconnectCfg::new();
    cfg.set_limit(limit).set_answer_limit(2 * SECOND);
    cfg.set_waits(SECOND, SECOND)?;
    Ok(cfg)
}

/// It gave up, exactly at its limit. Returns the error.
fn at_the_limit(ended: &Ended, limit: Duration) -> &Error {
    let gave_up = ended.result.as_ref().expect_err("nobody answers");
    let Error::GaveUp(last) = gave_up else {
        panic!("{ended:?}");
    };
    let late = ended.took.checked_sub(limit);
    assert!(late.is_some_and(|late| late <= SLACK), "{ended:?}");
    last
}

/// From each try to the next one it took that long.
fn between_tries(ended: &Ended, shortest: Duration, longest: Duration) {
    for took in ended.tries.windows(2).map(|pair| pair[1] - pair[0]) {
        assert!(took >= shortest && took <= longest + SLACK, "{took:?}");
    }
}

/// Promise: each step has its limit, and the whole has one. The reason is the last try's.
#[test]
fn each_step_has_a_limit() -> Result {
    let hosts = Hosts::seeded(1);
    let _entered = hosts.client.enter();
    let mut client = hosts.client();
    let limit = 10 * SECOND;
    client.set_cfg(&cfg(limit)?);

    // The address: 1 s for each try (`ConnCfg::set_timeout`), and 0.5 to 1 s of rest.
    hosts.link.partition();
    let (_, ended) = drive(&mut client);
    assert_says(&at_the_limit(&ended, limit), &["rdma_resolve_addr"]);
    between_tries(&ended, SECOND * 3 / 2, 2 * SECOND);
    hosts.link.heal();

    // The answer: 2 s, and the same rest. The endpoint exists, and its requests are not taken.
    let ep = hosts.silent(&hosts.server)?;
    let (_, ended) = drive(&mut client);
    let error = at_the_limit(&ended, limit);
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    between_tries(&ended, SECOND * 5 / 2, 3 * SECOND);
    drop(ep);

    // No listener: each try is rejected at once.
    let (_, ended) = block(&mut client);
    let Error::NotEstablished(event) = at_the_limit(&ended, limit) else {
        panic!("{ended:?}");
    };
    assert!(matches!(**event, ConnEvent::Rejected { .. }));
    Ok(())
}

/// Promise: the limit of the whole ends a try in its middle, and `Duration::MAX` is no limit.
#[test]
fn the_limit_of_the_whole_comes_first() -> Result {
    let hosts = Hosts::seeded(2);
    let _entered = hosts.client.enter();
    let mut client = hosts.client();
    hosts.link.partition();
    let limit = SECOND / 4;
    client.set_cfg(&cfg(limit)?);
    let (_, ended) = block(&mut client);
    let none_yet = at_the_limit(&ended, limit);
    assert!(matches!(none_yet, Error::TimedOut(_)), "{none_yet:?}");

    client.set_cfg(&cfg(Duration::MAX)?);
    client.begin(&ConnCfg::new())?;
    for _ in 0..100 {
        assert!(client.advance()?.is_none());
        let deadline = client.deadline().ok_or("a step has one")?;
        sleep(deadline.saturating_duration_since(now()) + SLACK);
    }
    assert!(client.tries() > 30);
    Ok(())
}

/// Promise: an answer that is there counts, also if the program looks after all limits have passed.
#[test]
fn an_answer_that_is_there_counts() -> Result {
    let hosts = Hosts::seeded(3);
    let (_serving, _entered) = hosts.accepting();
    let mut client = hosts.client();
    client.set_cfg(&cfg(3 * SECOND)?);
    client.begin(&ConnCfg::new())?;
    // It asks the server, and is away then.
    while !hosts.fabric.calls().contains_key("rdma_connect") {
        assert!(client.advance()?.is_none());
        sleep(SECOND / 1000);
    }
    sleep(10 * SECOND);
    client.advance()?.ok_or("established")?;
    Ok(())
}

/// Promise: each address of a round gets its share of the limit, the one that works is found, and
/// the error has the reason of each.
#[test]
fn each_address_has_its_share_and_its_reason() -> Result {
    let hosts = Hosts::seeded(5);
    // It does not answer: its endpoint takes no request.
    let silent = hosts.fabric.host("silent");
    let _ep = hosts.silent(&silent)?;
    let (serving, entered) = hosts.accepting();
    let peer = peer()?;
    let [first, second] = [&silent, &hosts.server].map(|host| (host.addr(), PORT).into());
    let mut client = Reconnect::to_addrs(&peer, &[first, second], identified(1), ToConn)?;
    client.set_cfg(cfg(6 * SECOND)?.set_answer_limit(60 * SECOND));
    let begin = now();
    drop(client.connect(&ConnCfg::new())?);
    let took = now() - begin;
    assert!(took >= 3 * SECOND && took <= 3 * SECOND + SLACK, "{took:?}");
    drop((entered, serving));

    // Whichever of the tries the limit cuts.
    let off = hosts.fabric.host("off");
    off.power_cut();
    let off = (off.addr(), PORT).into();
    let _entered = hosts.client.enter();
    for seconds in 1..12 {
        let mut client = Reconnect::to_addrs(&peer, &[second, off, first], identified(1), ToConn)?;
        client.set_cfg(cfg(seconds * SECOND)?.set_answer_limit(SECOND));
        let gave_up = client.connect(&ConnCfg::new()).expect_err("none");
        let text = gave_up.to_string();
        for part in [
            "none of the 3 addresses works".to_owned(),
            format!("{first}: the time limit has passed"),
            format!("{second}: the connection was not established"),
        ] {
            assert!(text.contains(&part), "{seconds} s: {text}");
        }
    }
    Ok(())
}

/// Promise: no try begins after the limit, also if the program looks late.
#[test]
fn no_try_begins_after_the_limit() -> Result {
    let hosts = Hosts::seeded(4);
    let _entered = hosts.client.enter();
    let mut client = hosts.client();
    client.set_cfg(&cfg(3 * SECOND)?);
    client.begin(&ConnCfg::new())?;
    while client.deadline() < Some(now() + SECOND / 4) || client.tries() == 0 {
        assert!(client.advance()?.is_none());
        sleep(SECOND / 1000);
    }
    sleep(10 * SECOND);
    let gave_up = client.advance().expect_err("the limit has passed");
    assert!(matches!(gave_up, Error::GaveUp(_)), "{gave_up}");
    assert_eq!(client.tries(), 1);
    Ok(())
}

/// Promise: a reconnect that is dropped at any step leaves no object on the client, also while the
/// kernel resolves the address or the route.
#[test]
fn a_drop_at_each_step_leaves_nothing() -> Result {
    for step in 1.. {
        let hosts = Hosts::seeded(step);
        let (_serving, _entered) = hosts.accepting();
        let mut client = hosts.client();
        client.begin(&ConnCfg::new())?;
        let link = hosts.link.clone();
        let at = hosts.fabric.steps() + step;
        let at = hosts.fabric.at_step(at, move || link.partition());
        // It goes on up to the step that waits for the network.
        let mut connected = false;
        for _ in 0..20 {
            connected |= client.advance()?.is_some();
            if connected {
                break;
            }
            sleep(SECOND / 1000);
        }
        drop(client);
        let left = settled(|| hosts.client.objects(), &Objects::new());
        assert!(left.is_empty(), "{step}: {left:?}");
        let is_late = at.is_pending();
        drop(at);
        hosts.link.heal();
        if is_late {
            assert!(connected && step > 20, "{step}");
            break;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    Frozen,
    Cut,
    Parted,
}

impl Outage {
    fn action(self, hosts: &Hosts) -> impl FnOnce() + Send + 'static {
        let (server, link) = (hosts.server.clone(), hosts.link.clone());
        move || match self {
            Self::Frozen => server.freeze(),
            Self::Cut => server.power_cut(),
            Self::Parted => link.partition(),
        }
    }
}

/// Runs a connection with this fault at this step of the client's. Returns whether the fault came
/// too late for it.
fn run(outage: Outage, step: u64, is_blocking: bool, heals: bool) -> Result<bool> {
    let hosts = Hosts::seeded(step);
    let (_serving, _entered) = hosts.accepting();
    let mut client = hosts.client();
    let limit = 20 * SECOND;
    client.set_cfg(&cfg(limit)?);
    let at = hosts.fabric.steps() + step;
    let at = hosts.fabric.at_step(at, outage.action(&hosts));
    let healing = heals.then(|| {
        let (server, link) = (hosts.server.clone(), hosts.link.clone());
        hosts.client.spawn(move || {
            sleep(5 * SECOND);
            match outage {
                Outage::Frozen => server.thaw(),
                Outage::Parted => link.heal(),
                Outage::Cut => {}
            }
        })
    });
    let (conn, ended) = block_or_drive(&mut client, is_blocking);
    let what = format!("{outage:?} at {step}: {ended:?}");
    match conn.is_some() {
        true => assert!(ended.took <= limit + SLACK, "{what}"),
        false => {
            assert!(!heals, "it is reached again: {what}");
            at_the_limit(&ended, limit);
        }
    }
    drop((conn, client));
    let left = settled(|| hosts.client.objects(), &Objects::new());
    assert!(left.is_empty(), "{what}: {left:?}");
    let is_late = at.is_pending();
    drop(at);
    if let Some(healing) = healing {
        healing.join().expect("no panic");
    }
    hosts.server.thaw();
    hosts.link.heal();
    Ok(is_late)
}

/// Promise: a server that stands still, has no power or is not reached, from any step on, is given
/// up at the limit, and leaves no object on the client. One that comes back is connected to.
#[test]
fn a_fault_at_each_step_keeps_the_limit() -> Result {
    for outage in [Outage::Frozen, Outage::Cut, Outage::Parted] {
        for is_blocking in [false, true] {
            let steps = at_each_step(outage, is_blocking, false)?;
            assert!(steps > 20, "{outage:?}: {steps} steps");
        }
    }
    Ok(())
}

/// Returns the number of steps.
fn at_each_step(outage: Outage, is_blocking: bool, heals: bool) -> Result<u64> {
    let mut steps = 1;
    while !run(outage, steps, is_blocking, heals)? {
        steps += 1;
    }
    Ok(steps)
}

/// See above.
#[test]
fn a_server_that_is_reached_again_is_connected_to() -> Result {
    at_each_step(Outage::Frozen, true, true)?;
    at_each_step(Outage::Parted, true, true)?;
    Ok(())
}
