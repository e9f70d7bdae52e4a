//! How waits poll, and look at what is due.

use crate::replicas::prelude::*;
use crate::replicas::served::Three;

const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_micros(5);
/// 32 polls of a set take less.
const DELAY: Duration = Duration::from_millis(1);
const SPIN: Duration = Duration::from_millis(5);

fn set(profile: &Profile, way: Way) -> Result<Set> {
    Set::new(&Rig::of(profile).seed(3), way, 100)
}

/// How long after it was frozen a replica counts as over, if the program does this each 500 ms.
fn silence(profile: &Profile, mut each: impl FnMut(&mut Set, u64) -> Result) -> Result<Duration> {
    let mut way = Way::visible().sending(30, 7);
    way.keep_alive = Some(20 * SECOND);
    let mut set = set(profile, way)?;
    set.commit(0, 3)?;
    set.servers[1].host.freeze();
    let frozen = now();
    for number in 1.. {
        if !set.log.is_able(set.ids[1]) {
            break;
        }
        sleep(SECOND / 2);
        each(&mut set, number % 20)?;
    }
    Ok(now() - frozen)
}

/// Promise: the keep-alive of a replica is as exact beside commits that the others settle, one each
/// 500 ms, as in a loop that looks as often: 10 ms later at most.
#[test]
fn commits_now_and_then_see_a_silence_in_time() -> Result {
    for profile in Profile::EVERY {
        let looks = silence(&profile, |set, _| {
            set.log.look();
            Ok(())
        })?;
        assert!(looks <= 20 * SECOND, "{looks:?}");
        // The wait sleeps, or its first poll settles the commit.
        for is_there in [false, true] {
            let commits = silence(&profile, |set, number| {
                let id = set.append(number, 2)?;
                if is_there {
                    set.fabric.settle();
                }
                assert_eq!(set.settle(id, 2, LIMIT).durable, 0b101);
                Ok(())
            })?;
            let late = commits.saturating_sub(looks);
            assert!(late <= Duration::from_millis(10), "{looks:?}, {commits:?}");
        }
    }
    Ok(())
}

/// The waits of a set, of a writer and of a connection, and whether each has slept: a sleep takes
/// the event of the completion.
fn slept(profile: &Profile, spin: Duration) -> Result<Vec<(&'static str, bool)>> {
    let way = Way {
        spin,
        ..Way::visible()
    };
    let mut set = set(profile, way)?;
    let (mut writer, _far) = set.servers[0].connect(&set.peer, way, &set.servers[0].target)?;
    let region = writer.offer().regions()[0];
    let source = region_of(&set.peer)?;
    let parts = [(region.slice(..8)?, source.slice(..)?)];
    set.commit(0, 3)?;
    for server in &set.servers {
        let link = set.fabric.between(&set.client, &server.host);
        link.delay(DELAY);
    }
    let has_event = |conn: &Conn| readable(conn.get_cq(), Duration::ZERO);
    let mut waits = Vec::new();

    // The look takes earlier events, and makes a later look not due.
    writer.look(drop)?;
    let ticket = writer.commit(&parts, None)?;
    writer.wait(ticket, LIMIT, drop)?;
    waits.push(("Writer::wait", !has_event(writer.conn())));

    writer.look(drop)?;
    for _ in 0..way.in_flight {
        writer.commit(&parts, None)?;
    }
    writer.wait_room(LIMIT, drop)?;
    waits.push(("Writer::wait_room", !has_event(writer.conn())));
    writer.wait_room(LIMIT, drop)?;
    let conn = writer.into_conn();
    while let Ok(Next::Completions(_)) = conn.next(&mut [Wc::default(); 4], SECOND) {}

    let visible = FlushType::Visibility;
    let posted = conn.flush(region.slice(..8)?, visible, Flags::COMPLETION_ALWAYS, 1)?;
    conn.wait_for(posted, LIMIT, drop)?;
    waits.push(("Conn::wait_for", !has_event(&conn)));

    while let Ok(Next::Completions(_)) = conn.next(&mut [Wc::default(); 4], SECOND) {}
    conn.flush(region.slice(..8)?, visible, Flags::COMPLETION_ALWAYS, 1)?;
    conn.next(&mut [Wc::default(); 4], LIMIT)?;
    waits.push(("Conn::next", !has_event(&conn)));

    set.log.look();
    let id = set.append(1, 3)?;
    assert_eq!(set.settle(id, 3, LIMIT).durable, 0b111);
    // Those that come while it is awake leave theirs.
    let have_events = set.log.writers().all(|of| has_event(of.conn()));
    waits.push(("Replicas::settle", !have_events));
    Ok(waits)
}

fn region_of(peer: &Peer) -> Result<Mr<Memory>> {
    region(peer, 8, MrUsage::WRITE_SRC)
}

/// Promise: a wait that may poll for long enough finds a completion without a sleep, and one that
/// may not sleeps.
#[test]
fn a_wait_that_polls_takes_no_event() -> Result {
    for profile in Profile::EVERY {
        for (spin, expected) in [(Duration::ZERO, true), (SHORT, true), (SPIN, false)] {
            for (name, slept) in slept(&profile, spin)? {
                assert_eq!(slept, expected, "{name}, {spin:?}, {}", profile.name());
            }
        }
    }
    Ok(())
}

/// Promise: a wait that polls keeps its limit, on a clock that moves only while threads wait.
#[test]
fn a_wait_that_polls_keeps_its_limit() -> Result {
    for profile in Profile::EVERY {
        let way = Way {
            spin: SPIN,
            ..Way::visible().sending(2, 7)
        };
        let mut set = set(&profile, way)?;
        let (mut writer, _far) = set.servers[0].connect(&set.peer, way, &set.servers[0].target)?;
        let region = writer.offer().regions()[0];
        let source = region_of(&set.peer)?;
        set.servers.iter().for_each(|server| server.host.freeze());
        let id = set.append(0, 1)?;
        let ticket = writer.commit(&[(region.slice(..8)?, source.slice(..)?)], None)?;
        for limit in [Duration::ZERO, SHORT, SPIN / 2, 3 * SPIN, SECOND / 10] {
            let took = |wait: &mut dyn FnMut()| {
                let from = now();
                wait();
                let took = now() - from;
                let late = took.checked_sub(limit).expect("not before the limit");
                // The calls take a while as well.
                assert!(late <= SPIN / 2, "{late:?} after {limit:?}");
            };
            took(&mut || {
                let waited = writer.wait(ticket, limit, drop);
                assert!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
            });
            took(&mut || assert_eq!(set.log.settle(id, 1, limit).copies(), 0));
        }
    }
    Ok(())
}

/// Promise: a wait for one operation leaves the completions after it, also if it polls for a while.
#[test]
fn a_wait_for_one_leaves_the_next() -> Result {
    for spin in [Duration::ZERO, SPIN] {
        let way = Way {
            spin,
            ..Way::visible()
        };
        let set = set(&Profile::STRICT, way)?;
        let (writer, _far) = set.servers[0].connect(&set.peer, way, &set.servers[0].target)?;
        let to = writer.offer().regions()[0].slice(..8)?;
        let conn = writer.into_conn();
        let link = set.fabric.between(&set.client, &set.servers[0].host);
        link.delay(DELAY);
        let flush = |n| conn.flush(to, FlushType::Visibility, Flags::COMPLETION_ALWAYS, n);
        let both = [flush(1)?, flush(2)?];
        for posted in both {
            conn.wait_for(posted, LIMIT, |_| panic!("it is another one's"))?;
        }
    }
    Ok(())
}

/// Promise: an end is seen within 64 commits or 10 ms also by waits that poll and find the
/// completion then.
#[test]
fn a_wait_that_polls_sees_an_end() -> Result {
    for spin in [Duration::ZERO, SPIN] {
        let way = Way {
            spin,
            ..Way::visible().sending(30, 7)
        };
        let mut set = set(&Profile::STRICT, way)?;
        set.commit(0, 3)?;
        let link = |n: usize| set.fabric.between(&set.client, &set.servers[n].host);
        link(0).delay(4 * SHORT);
        link(1).delay(4 * SHORT);
        link(2).hold();
        set.servers[2].ends[0].disconnect()?;
        let (began, mut commits) = (now(), 0);
        while set.log.is_able(set.ids[2]) {
            commits += 1;
            set.commit(commits % 20, 2)?;
        }
        let took = now() - began;
        assert!(commits <= 66 && took <= 4 * SPIN, "{commits}, {took:?}");
    }
    Ok(())
}

/// Promise: an acknowledgement that comes within a second after the end of its connection counts,
/// also just before that second is over.
#[test]
fn a_late_acknowledgement_has_its_second() -> Result {
    let mut acknowledged = 0;
    for late in [930, 960, 990] {
        for seed in 1..=5 {
            let fabric = Rig::of(&Profile::ADAPTER).seed(seed).fabric();
            let mut of = Three::new(&fabric, 7, 10, 10)?;
            let id = append(&mut of.log, 0, 3)?;
            sleep(Duration::from_millis(1));
            let link = fabric.between(&of.hosts[2], &of.client);
            link.delay(Duration::from_millis(late));
            for server in &mut of.servers {
                for _ in 0..20 {
                    server.turn();
                    sleep(2 * SHORT);
                }
            }
            of.servers[2].far.disconnect()?;
            let copies = of.log.settle(id, 3, LIMIT).copies();
            // The server may not have sent it.
            of.log.look();
            let later = of.log.settle(id, 3, LIMIT).copies();
            assert_eq!(copies, later, "{late} ms, seed {seed}");
            acknowledged += usize::from(copies == 3);
        }
    }
    assert!(acknowledged >= 8, "{acknowledged} of 15");
    Ok(())
}

/// Promise: what a wait leaves in a queue whose event it has taken, the descriptor for event loops
/// shows.
#[test]
fn a_wait_leaves_nothing_without_an_event() -> Result {
    let way = Way::visible().sending(30, 7);
    let set = set(&Profile::STRICT, way)?;
    let (mut writer, _far) = set.servers[0].connect(&set.peer, way, &set.servers[0].target)?;
    let region = writer.offer().regions()[0];
    let source = region_of(&set.peer)?;
    let parts = [(region.slice(..8)?, source.slice(..)?)];
    let link = set.fabric.between(&set.client, &set.servers[0].host);
    link.delay(DELAY);
    writer.conn().get_next_fd()?;
    writer.look(drop)?;
    let first = writer.commit(&parts, None)?;
    for _ in 1..20 {
        writer.commit(&parts, None)?;
    }
    writer.wait(first, LIMIT, drop)?;
    let is_shown = readable(writer.conn().get_next_fd()?, Duration::ZERO);
    sleep(SECOND);
    let is_shown = is_shown || readable(writer.conn().get_next_fd()?, Duration::ZERO);
    let before = writer.durable();
    writer.look(drop)?;
    assert!(is_shown || before == writer.durable(), "{before}");
    Ok(())
}

/// Promise: a poll that returns less than fits has found the queue empty, also if a probe of the
/// keep-alive was among the completions.
#[test]
fn a_short_poll_is_one_of_an_empty_queue() -> Result {
    for profile in Profile::EVERY {
        let world = Rig::of(&profile).seed(3).world();
        let mut cfg = ConnCfg::new();
        cfg.set_keep_alive(Some(20 * SECOND))?;
        let pair = world.connect(&cfg, &ConnCfg::new())?;
        let (conn, _entered) = (&pair.client, world.hosts[0].enter());
        let due = conn.keep_alive()?.ok_or("it keeps watch")?;
        sleep(due.saturating_duration_since(now()));
        world.link.hold();
        // The probe.
        conn.keep_alive()?;
        for n in 1..=3 {
            conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, n)?;
        }
        world.link.release();
        world.fabric.settle();
        let mut wcs = [Wc::default(); 2];
        let counts = [(); 3].map(|()| conn.get_cq().get_wc(&mut wcs).expect("polls"));
        assert_eq!(counts, [2, 1, 0], "{}", profile.name());
    }
    Ok(())
}
