//! A replica that is frozen, slow, dead or set aside.

use crate::replicas::cluster::Cluster;
use crate::replicas::prelude::*;

pub(super) const SHORT: Duration = Duration::from_millis(20);

pub(super) fn set(profile: &Profile, records: usize, way: Way) -> Result<Set> {
    Set::new(&Rig::of(profile).seed(3), way, records)
}

/// Runs a test with a set on each profile.
pub(super) fn each(records: usize, way: Way, test: impl Fn(Set) -> Result) -> Result {
    for profile in Profile::EVERY {
        test(set(&profile, records, way)?)?;
    }
    Ok(())
}

/// Commits go on with two replicas until the ring is full, which names the third one. It catches
/// up after that.
#[test]
fn a_frozen_replica_holds_the_ring_and_catches_up() -> Result {
    each(6, Way::visible().sending(2, 6), |mut set| {
        set.servers[1].host.freeze();
        for number in 0..6 {
            let outcome = set.commit(number, 2)?;
            assert_eq!(outcome.durable, 0b101, "{outcome:?}");
        }
        let full = set.append(6, 2).expect_err("the ring is full");
        assert!(matches!(full, Error::RingFull), "{full}");
        assert!(full.to_string().contains("Replicas::holders"), "{full}");
        let holders: Vec<_> = set.log.holders().collect();
        assert_eq!(holders, [set.ids[1]]);
        let waited = set.log.wait_room(8, SHORT);
        assert!(matches!(waited, Err(Error::RingFull)));
        assert_eq!(mask(set.log.holders()), 0b10);

        set.servers[1].host.thaw();
        set.log.wait_room(8, LIMIT)?;
        let outcome = set.commit(6, 3)?;
        assert_eq!(outcome.durable, 0b111, "{outcome:?}");
        assert_eq!(set.shown()?, [7; 3]);
        Ok(())
    })
}

/// Promise: a commit is pending on a replica that can still take it, frozen or not, and on no other
/// one: bytes that it sets free are not overwritten before that replica has it.
#[test]
fn a_commit_is_pending_where_it_may_still_come() -> Result {
    each(6, Way::visible().sending(1, 7), |mut set| {
        set.servers[1].host.freeze();
        let ids = [0, 1].map(|number| set.append(number, 2).expect("room"));
        for id in ids {
            set.log.settle(id, 2, LIMIT);
            assert_eq!(
                mask(set.log.pending(id)),
                0b010,
                "posted, or still in the ring"
            );
        }
        set.servers[1].host.thaw();
        set.log.settle(ids[1], 3, LIMIT);
        assert_eq!(ids.map(|id| mask(set.log.pending(id))), [0, 0]);

        set.servers[2].host.freeze();
        let id = set.append(2, 2)?;
        set.log.settle(id, 2, LIMIT);
        assert_eq!(mask(set.log.pending(id)), 0b100);
        set.log.set_aside(set.ids[2], LIMIT)?;
        assert_eq!(mask(set.log.pending(id)), 0, "it gets no commit any more");
        let other = Set::on(&set.fabric, Way::visible(), 6)?;
        assert_eq!(mask(other.log.pending(id)), 0, "of another set");
        Ok(())
    })
}

/// A replica that is late gets the bytes of each record, although the others have had them long
/// before.
#[test]
fn a_late_replica_gets_its_own_bytes() -> Result {
    each(3, Way::visible().sending(2, 7), |mut set| {
        set.servers[2].host.freeze();
        for number in 0..12 {
            if set.log.wait_room(1, SHORT).is_err() {
                set.servers[2].host.thaw();
                set.log.wait_room(1, LIMIT)?;
                set.servers[2].host.freeze();
            }
            let id = set.append(number, 2)?;
            assert!(set.log.settle(id, 2, LIMIT).copies() >= 2);
        }
        set.servers[2].host.thaw();
        set.log.wait_room(1, LIMIT)?;
        assert_eq!(set.commit(12, 3)?.durable, 0b111);
        assert_eq!(set.shown()?, [13; 3]);
        Ok(())
    })
}

/// Promise: the end of a connection that was noted long ago hides no acknowledgement. A wait looks
/// before it gives a commit up.
#[test]
fn an_end_that_was_noted_hides_no_acknowledgement() -> Result {
    each(3, Way::visible(), |mut set| {
        let id = set.append(1, 3)?;
        // A strict device keeps the flush back for a while.
        sleep(Duration::from_millis(10));
        set.servers[2].ends.clear();
        let writer = set.log.writer(set.ids[2]).ok_or("it is a member")?;
        assert_eq!(writer.conn().wait_ended(LIMIT)?, ConnEvent::Closed);
        // It takes no completions: each acknowledgement is still to be polled.
        sleep(Duration::from_secs(2));
        assert_eq!(set.settle(id, 3, LIMIT).durable, 0b111);
        Ok(())
    })
}

/// Promise: a loop that does not wait learns that no answer comes any more, a second after the end
/// and not earlier, whether the set has looked or the program has polled, and without another look.
#[test]
fn an_end_becomes_final_by_time() -> Result {
    for polls_itself in [false, true] {
        let fabric = Rig::of(&Profile::ADAPTER).seed(4).fabric();
        let way = Way::durable(Method::Server, Platform::AdrDdioOn);
        let mut of = Cluster::new(&fabric, way, 2)?;
        let replica = of.ids[0];
        of.hosts[0].freeze();
        let id = of.append(0, 2)?;
        let conn = of.log.writer(replica).ok_or("it is a member")?.conn();
        conn.disconnect()?;
        let mut wcs = [Wc::default(); 32];
        if polls_itself {
            let polled = conn.get_cq().get_wc(&mut wcs)?;
            assert!(polled > 0, "the disconnect flushes");
            for wc in &wcs[..polled] {
                of.log.handle(replica, wc);
            }
        } else {
            of.log.look();
        }
        assert_eq!(of.log.settled(id, 3), None);
        sleep(Duration::from_secs(2));
        let outcome = of.log.settled(id, 3).ok_or("it is final")?;
        assert_eq!(mask(of.log.unknown(outcome)) & 1, 1);
        of.hosts[0].thaw();
        of.cut_all();
    }
    Ok(())
}

/// Places in the ring are of any length, and are not used twice at a time.
#[test]
fn records_of_any_length_keep_their_bytes() -> Result {
    each(2, Way::visible(), |mut set| {
        for server in &set.servers {
            let link = set.fabric.between(&set.client, &server.host);
            link.delay_up_to(Duration::from_millis(3));
        }
        let len = |number: usize| 1 + number * 37 % LEN;
        let (mut at, mut expected) = (0, Vec::new());
        let mut last = None;
        for number in 0..60 {
            let bytes = vec![number as u8 + 1; len(number)];
            set.log.wait_room(bytes.len(), LIMIT)?;
            let mut record = set.log.record(bytes.len())?;
            record.put(0, &bytes)?;
            last = Some(record.commit(at, None, 2)?);
            at += bytes.len() as u64;
            expected.extend(bytes);
        }
        let last = last.ok_or("some")?;
        assert_eq!(set.settle(last, 3, LIMIT).durable, 0b111);
        set.fabric.settle();
        for server in &set.servers {
            assert!(server.bytes()?[..expected.len()] == expected);
        }
        Ok(())
    })
}

/// At the limit a posted commit is unknown, and one that waits in the ring is none of them.
#[test]
fn the_limit_makes_a_posted_commit_unknown() -> Result {
    let way = Way::visible().sending(1, 6);
    let mut set = set(&Profile::STRICT, 6, way)?;
    set.servers[1].host.freeze();
    let ids = [0, 1].map(|number| {
        let id = set.append(number, 3).expect("room");
        assert_eq!(set.settle(id, 2, LIMIT).durable, 0b101);
        id
    });
    let outcome = set.settle(ids[0], 3, SHORT);
    assert_eq!((outcome.unknown, outcome.failed), (0b10, 0), "{outcome:?}");
    let outcome = set.settle(ids[1], 3, SHORT);
    assert_eq!((outcome.unknown, outcome.failed), (0, 0), "{outcome:?}");
    assert_eq!(set.outcome(ids[0]).unknown, 0, "it goes on");
    set.servers[1].host.thaw();
    assert_eq!(set.settle(ids[1], 3, LIMIT).durable, 0b111);
    Ok(())
}

/// Setting a frozen replica aside frees the ring without its answer. After the thaw it gets no
/// byte that was not its record's.
#[test]
fn a_frozen_replica_is_set_aside() -> Result {
    each(4, Way::visible().sending(2, 7), |mut set| {
        let first = set.append(0, 3)?;
        assert_eq!(set.settle(first, 3, LIMIT).durable, 0b111);
        set.servers[1].host.freeze();
        let mut ids = vec![first];
        for number in 1.. {
            match set.append(number, 2) {
                Ok(id) => {
                    assert_eq!(set.settle(id, 2, LIMIT).durable, 0b101);
                    ids.push(id);
                }
                Err(Error::RingFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(mask(set.log.holders()), 0b10);
        set.log.set_aside(set.ids[1], LIMIT)?;
        assert_eq!(mask(set.log.holders()), 0);
        assert_eq!(set.log.able(), 2);
        assert_eq!(set.outcome(ids[0]).durable, 0b111, "it has that one");
        assert_eq!(set.outcome(ids[1]).unknown, 0b10, "posted");
        let last = *ids.last().ok_or("some")?;
        assert_eq!(set.outcome(last).failed, 0b10, "never posted");
        for number in ids.len() as u64..20 {
            let outcome = set.commit(number, 2)?;
            assert_eq!((outcome.durable, outcome.failed), (0b101, 0b10));
        }
        set.servers[1].host.thaw();
        sleep(LIMIT);
        let shown = set.shown()?;
        assert_eq!([shown[0], shown[2]], [20; 2]);
        assert!(shown[1] <= 3, "{shown:?}");
        let refused = set.append(20, 3).expect_err("two can");
        let are_two = matches!(refused, Error::TooFewReplicas { able: 2, .. });
        assert!(are_two, "{refused}");
        set.log.set_aside(set.ids[1], LIMIT)?;
        Ok(())
    })
}

/// A destroy that fails keeps the bytes, unless the device has released them.
#[test]
fn a_replica_that_cannot_be_destroyed_stops_the_set() -> Result {
    let mut set = set(&Profile::STRICT, 4, Way::visible())?;
    set.servers[1].host.freeze();
    assert_eq!(set.commit(0, 2)?.durable, 0b101);
    let fails = set.keeps_queue_pair();
    let result = set.log.set_aside(set.ids[1], SHORT);
    assert!(!fails[2].is_pending());
    let error = result.expect_err("it could not be destroyed").to_string();
    assert!(error.contains("ibv_destroy_qp"), "{error}");
    let refused = set.append(1, 2).expect_err("no more commits");
    let text = refused.to_string();
    let is_named = text.contains("replica 1") && text.contains("could not be destroyed");
    assert!(is_named, "{text}");
    Ok(())
}

/// A queue pair that is in the error state and cannot be destroyed reads no more bytes: the set
/// goes on.
#[test]
fn a_replica_that_cannot_be_destroyed_is_set_aside_by_its_disconnect() -> Result {
    each(4, Way::visible().sending(4, 7), |mut set| {
        set.servers[1].host.freeze();
        assert_eq!(set.commit(0, 2)?.durable, 0b101);
        let destroy = set.fabric.fail("ibv_destroy_qp").on(&set.client);
        let destroy = destroy.next(Errno::IO);
        set.log.set_aside(set.ids[1], LIMIT)?;
        assert!(!destroy.is_pending());
        for number in 1..10 {
            assert_eq!(set.commit(number, 2)?.durable, 0b101);
        }
        set.servers[1].host.thaw();
        sleep(LIMIT);
        assert!(set.shown()?[1] <= 1);
        Ok(())
    })
}

/// The commit of a replica without power is unknown, later ones have failed, and the others go on.
#[test]
fn a_replica_that_loses_its_power_is_unknown() -> Result {
    each(4, Way::visible(), |mut set| {
        assert_eq!(set.commit(0, 3)?.durable, 0b111);
        // It posts, and no answer comes back.
        set.servers[2].host.freeze();
        let cut_off = set.append(1, 3)?;
        set.fabric.power_cut(&set.servers[2].host);
        let began = set.fabric.now();
        let outcome = set.settle(cut_off, 3, Duration::from_secs(600));
        assert_eq!((outcome.durable, outcome.unknown), (0b011, 0b100));
        if set.servers[2].peer.is_iwarp() {
            // TCP repeats for longer than that limit.
            set.log.set_aside(set.ids[2], LIMIT)?;
        } else {
            assert!(set.fabric.now() - began < Duration::from_secs(60));
        }
        for number in 2..8 {
            set.log.wait_room(1, LIMIT)?;
            let outcome = set.commit(number, 2)?;
            assert_eq!((outcome.durable, outcome.failed), (0b011, 0b100));
        }
        let text = set.append(8, 3).expect_err("two can").to_string();
        assert!(text.contains("only 2"), "{text}");
        Ok(())
    })
}

/// The end of a connection is an event, and no completion. An acknowledgement has a second to come
/// after it.
#[test]
fn a_replica_whose_program_is_killed_is_unknown() -> Result {
    each(4, Way::visible(), |mut set| {
        set.fabric.between(&set.client, &set.servers[2].host).hold();
        let id = set.append(0, 3)?;
        set.servers[2].host.kill();
        let began = set.fabric.now();
        let outcome = set.settle(id, 3, Duration::from_secs(600));
        let took = set.fabric.now() - began;
        assert_eq!((outcome.durable, outcome.unknown), (0b011, 0b100));
        assert!(took < Duration::from_secs(10), "{took:?}");
        set.log.set_aside(set.ids[2], LIMIT)?;
        for number in 1..8 {
            let outcome = set.commit(number, 2)?;
            assert_eq!((outcome.durable, outcome.failed), (0b011, 0b100));
        }
        Ok(())
    })
}

/// Promise: the end of a replica's connection frees the bytes that it holds at once, although its
/// device would repeat its requests for seconds. This side disconnects once, and the reason of the
/// end stays.
#[test]
fn a_killed_replica_holds_no_bytes() -> Result {
    each(4, Way::visible().sending(2, 7), |mut set| {
        let link = set.fabric.between(&set.client, &set.servers[1].host);
        link.block();
        for number in 0..4 {
            assert_eq!(set.commit(number, 2)?.durable, 0b101);
        }
        set.servers[1].host.kill();
        let began = set.fabric.now();
        set.log.wait_room(LEN, LIMIT)?;
        let took = set.fabric.now() - began;
        assert!(took < SHORT, "{took:?}");
        assert_eq!(mask(set.log.holders()), 0);
        for number in 4..20 {
            assert_eq!(set.commit(number, 2)?.durable, 0b101);
        }
        // On iWARP the event comes after the flushed requests.
        sleep(SHORT);
        set.log.look();
        let conn = set.log.writer(set.ids[1]).ok_or("it is a member")?.conn();
        assert_eq!(conn.ended(), Some(&ConnEvent::Closed));
        let reason = conn.reason();
        assert!(matches!(reason, Some(Error::Ended(_))), "{reason:?}");
        assert_eq!(set.fabric.calls().get("rdma_disconnect"), Some(&1));
        Ok(())
    })
}

/// A post that fails in the provider may have been executed.
#[test]
fn a_post_that_fails_is_unknown() -> Result {
    let way = Way {
        method: Method::Native,
        ..Way::visible()
    };
    // The seed decides which of the requests have left the device.
    let mut there = [0; 2];
    let runs = (0..20).flat_map(|seed| [How::Refused, How::Done].map(|how| (seed, how)));
    for (seed, how) in runs {
        let mut set = Set::new(&Rig::strict().seed(seed), way, 4)?;
        let failing = set.fabric.fail("ibv_wr_complete").on(&set.client).how(how);
        let failing = failing.nth(2, Errno::IO);
        let id = set.append(0, 2)?;
        assert!(!failing.is_pending());
        let outcome = set.settle(id, 3, LIMIT);
        let masks = (outcome.durable, outcome.failed, outcome.unknown);
        assert_eq!(masks, (0b101, 0, 0b10));
        there[usize::from(how == How::Done)] += set.shown()?[1];
        // Its bytes are not released: no completion reports the post that failed.
        for number in 1..4 {
            let outcome = set.commit(number, 2)?;
            assert_eq!((outcome.durable, outcome.failed), (0b101, 0b10));
        }
        let full = set.append(4, 2);
        assert!(matches!(full, Err(Error::RingFull)));
        assert_eq!(mask(set.log.holders()), 0b10);
        set.log.set_aside(set.ids[1], LIMIT)?;
        assert_eq!(set.commit(4, 2)?.failed, 0b10);
    }
    assert!(there[0] == 0 && there[1] > 0, "{there:?}");
    Ok(())
}

/// Promise: a commit whose completions are there takes no event and arms no queue. One of 64 has a
/// look.
#[test]
fn a_commit_that_is_there_has_no_look() -> Result {
    let mut set = set(&Profile::RXE_6_12, 6, Way::visible())?;
    set.commit(0, 3)?;
    let looks = |set: &Set| {
        let calls = set.fabric.calls();
        ["ibv_get_cq_event", "ibv_req_notify_cq"].map(|call| calls.get(call).copied().unwrap_or(0))
    };
    let before = looks(&set);
    for number in 1..=130 {
        set.commit(number % 30, 3)?;
    }
    let after = looks(&set);
    for (before, after) in before.iter().zip(after) {
        // Two looks at each of three replicas.
        assert!(after - before <= 6, "{before} to {after}");
    }
    Ok(())
}

/// Promise: the event with which a replica ends is seen while the others settle each commit by polls
/// alone: within 64 commits, and by the first commit that begins 10 ms later.
#[test]
fn an_end_is_seen_while_the_others_settle() -> Result {
    for is_slow in [false, true] {
        each(6, Way::visible(), |mut set| {
            set.commit(0, 3)?;
            set.servers[1].host.kill();
            // The kernel of that host ends the connection.
            sleep(SHORT);
            let mut commits = 0;
            while set.log.is_able(set.ids[1]) {
                commits += 1;
                if is_slow {
                    sleep(SHORT);
                }
                set.commit(commits % 30, 2)?;
            }
            assert!(commits <= if is_slow { 1 } else { 66 }, "{commits}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A wait without a near limit ends when retries show that a host is gone.
#[test]
fn a_wait_ends_when_a_host_is_gone() -> Result {
    let mut set = set(&Profile::STRICT, 4, Way::visible().sending(1, 2))?;
    set.fabric.power_cut(&set.servers[0].host);
    set.servers[1].host.freeze();
    let id = set.append(0, 3)?;
    let began = set.fabric.now();
    let outcome = set.settle(id, 3, Duration::from_secs(600));
    assert_eq!(outcome.unknown & 1, 1, "{outcome:?}");
    assert!(set.fabric.now() - began < Duration::from_secs(60));
    Ok(())
}

/// Records in volatile memory. Two of three replicas have each record: one loss of power loses none
/// of them, and two losses can.
#[test]
fn replicated_volatile_memory_survives_one_loss_of_power() -> Result {
    for profile in Profile::EVERY {
        let (fabric, [client]) = Rig::of(&profile).seed(3).hosts(["client"]);
        let way = Way::visible();
        let servers = ["a", "b", "c"].map(|name| Server::new(&fabric, name, way).expect("made"));
        let _entered = client.enter();
        let peer = peer()?;
        let mut log = Replicas::new(&peer, 4 * LEN, 4)?;
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let mut memories = Vec::new();
        for server in &servers {
            let memory = region(&server.peer, SIZE, usage)?;
            let (writer, far) = server.connect(&peer, way, &memory)?;
            add(&mut log, writer)?;
            memories.push((memory, far));
        }
        let mut holders = Vec::new();
        for number in 0..9 {
            let frozen = &servers[number as usize % 3].host;
            frozen.freeze();
            let id = append(&mut log, number, 2)?;
            let outcome = log.settle(id, 2, LIMIT);
            assert_eq!(outcome.copies(), 2, "{outcome:?}");
            holders.push(mask(log.durable(outcome)));
            // It has the record in the end, for the next commits.
            frozen.thaw();
            assert_eq!(log.settle(id, 3, LIMIT).copies(), 3);
        }
        for dead in 0..3 {
            let left = 0b111 & !(1_u64 << dead);
            assert!(holders.iter().all(|of| of & left != 0), "one is lost");
            let is_elsewhere = holders.iter().any(|of| of & (1 << dead) == 0);
            assert!(is_elsewhere, "with two it is");
        }
        fabric.settle();
        for (memory, _) in &memories {
            assert_eq!(whole(&contents(memory)?), 9);
        }
    }
    Ok(())
}
