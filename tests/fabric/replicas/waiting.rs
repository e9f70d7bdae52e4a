//! How waits poll, and look at what is due.

use crate::replicas::prelude::*;

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
    // What came before has an event that was not taken.
    let has_event = |conn: &Conn| readable(conn.get_cq(), Duration::ZERO);
    let take = |conn: &Conn| {
        while has_event(conn) {
            conn.get_cq().wait().expect("an event");
        }
    };
    let mut waits = Vec::new();

    take(writer.conn());
    let ticket = writer.commit(&parts, None)?;
    writer.wait(ticket, LIMIT, drop)?;
    waits.push(("Writer::wait", !has_event(writer.conn())));

    take(writer.conn());
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

    take(&conn);
    conn.flush(region.slice(..8)?, visible, Flags::COMPLETION_ALWAYS, 1)?;
    conn.next(&mut [Wc::default(); 4], LIMIT)?;
    waits.push(("Conn::next", !has_event(&conn)));

    set.log.writers().for_each(|of| take(of.conn()));
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
