//! Places of replicas that were set aside go to new ones.

use crate::replicas::prelude::*;

/// Sets the third replica aside, and adds another connection of its server.
fn reconnect(set: &mut Set, way: Way, old: ReplicaId) -> Result<ReplicaId> {
    set.log.set_aside(old, LIMIT)?;
    let writer = set.servers[2].writer(&set.peer, way)?;
    let id = add(&mut set.log, writer)?;
    set.servers[2].ends.remove(0);
    Ok(id)
}

/// Promise: a set takes new replicas for ever, if others are set aside. First the new places are
/// used, and then that of the one that was set aside longest ago. An old id reaches no other
/// replica.
#[test]
fn a_set_reconnects_for_ever() -> Result {
    for profile in Profile::EVERY {
        let way = Way::visible();
        let mut set = Set::new(&Rig::of(&profile).seed(1), way, 4)?;
        let first = set.append(0, 3)?;
        assert_eq!(set.settle(first, 3, LIMIT).durable, 0b111);
        let mut gone = Vec::new();
        let mut id = set.ids[2];
        for number in 0..150 {
            gone.push(id);
            id = reconnect(&mut set, way, id)?;
            assert_eq!(id.index(), 2 + (number + 1) % (Replicas::MOST - 2));
            assert!(!gone.contains(&id));
        }
        // Its replica 2 is forgotten, and the new one in its place never got the commit.
        let after = set.outcome(first);
        assert_eq!((after.durable, after.failed, after.unknown), (0b11, 0, 0));

        for old in &gone {
            assert!(!set.log.is_able(*old));
            assert!(set.log.writer(*old).is_none());
            set.log.set_aside(*old, LIMIT)?;
        }
        assert!(set.log.is_able(id), "no old id reaches a new replica");
        let same_place = gone.iter().find(|old| old.index() == id.index());
        let old = *same_place.ok_or("its place was used before")?;

        let last = set.append(1, 3)?;
        set.fabric.settle();
        let mut wcs = [Wc::default(); 4];
        let writer = set.log.writer(id).ok_or("it is there")?;
        let count = writer.conn().get_cq().get_wc(&mut wcs)?;
        assert!(count > 0, "a completion of the commit");
        for wc in &wcs[..count] {
            assert!(!set.log.handle(old, wc));
        }
        assert_eq!(set.outcome(last).durable, 0, "nothing was taken");
        for wc in &wcs[..count] {
            assert!(set.log.handle(id, wc));
        }
        let outcome = set.log.settle(last, 3, LIMIT);
        let held: Vec<_> = set.log.durable(outcome).collect();
        assert_eq!(held, [set.ids[0], set.ids[1], id]);
    }
    Ok(())
}

/// Promise: a replica in an old place gets no commit from before it, also if the ring still has
/// it, and is named for none: neither with copies nor with those that hold the ring.
#[test]
fn a_new_replica_in_an_old_place_has_no_earlier_commit() -> Result {
    for profile in Profile::EVERY {
        let way = Way::visible().sending(4, 7);
        let mut set = Set::new(&Rig::of(&profile).seed(2), way, 4)?;
        let mut id = set.ids[2];
        for _ in 0..Replicas::MOST - 3 {
            id = reconnect(&mut set, way, id)?;
        }
        set.servers[1].host.freeze();
        let mut commits = Vec::new();
        loop {
            match set.append(commits.len() as u64, 2) {
                Ok(commit) => {
                    let outcome = set.settle(commit, 2, LIMIT);
                    assert_eq!(outcome.durable, 0b1 | mask([id]));
                    commits.push(commit);
                }
                Err(Error::RingFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(mask(set.log.holders()), 0b10);
        let old = id;
        let id = reconnect(&mut set, way, id)?;
        assert_eq!(id.index(), 2, "the place of the oldest one");
        set.fabric.settle();
        set.log.look();
        let number = commits.len() as u64;
        let full = set.append(number, 2).expect_err("replica 1 is frozen");
        assert!(matches!(full, Error::RingFull), "{full}");
        assert_eq!(mask(set.log.holders()), 0b10);
        for commit in &commits {
            let outcome = set.outcome(*commit);
            assert_eq!(outcome.durable, 0b1 | mask([old]));
            assert_eq!((outcome.failed | outcome.unknown) & mask([id]), 0);
        }

        set.servers[1].host.thaw();
        let first = set.settle(commits[0], 3, LIMIT);
        assert_eq!(first.durable, 0b11 | mask([old]));
        set.log.wait_room(1, LIMIT)?;
        assert_eq!(set.commit(number, 3)?.durable, 0b11 | mask([id]));
        for commit in &commits {
            let outcome = set.outcome(*commit);
            assert_eq!(outcome.durable, 0b11 | mask([old]));
        }
        assert_eq!(set.shown()?, [number + 1; 3]);
    }
    Ok(())
}

/// Promise: an outcome names no replica that was added after its commit, also if that one has got
/// the place of a replica of the outcome.
#[test]
fn an_old_outcome_names_no_new_replica() -> Result {
    let way = Way::visible();
    let mut set = Set::new(&Rig::strict().seed(5), way, 4)?;
    let first = set.append(0, 3)?;
    let durable = set.log.settle(first, 3, LIMIT);
    assert!(set.log.durable(durable).eq(set.ids.clone()));
    let old = set.ids[2];
    set.servers[2].host.freeze();
    let second = set.append(1, 2)?;
    let unknown = set.log.settle(second, 3, Duration::from_millis(20));
    assert!(set.log.unknown(unknown).eq([old]));
    set.log.set_aside(old, LIMIT)?;
    set.servers[2].host.thaw();
    let third = set.append(2, 2)?;
    let failed = set.log.settle(third, 2, LIMIT);
    assert!(set.log.failed(failed).eq([old]));

    let mut id = old;
    for _ in 0..=Replicas::MOST - 3 {
        id = reconnect(&mut set, way, id)?;
    }
    assert_eq!(id.index(), old.index());
    assert_ne!(id, old);
    assert_eq!(durable.copies(), 3);
    for outcome in [durable, unknown, failed] {
        assert!(set.log.durable(outcome).eq(set.ids[..2].to_vec()));
        assert_eq!(set.log.failed(outcome).count(), 0);
        assert_eq!(set.log.unknown(outcome).count(), 0);
    }
    let fourth = set.append(3, 3)?;
    let outcome = set.log.settle(fourth, 3, LIMIT);
    assert!(set.log.durable(outcome).eq([set.ids[0], set.ids[1], id]));
    Ok(())
}

/// Promise: two places stay. One is of a replica with a queue pair that may still read the ring,
/// and one of a replica that is over and was not set aside.
#[test]
fn places_that_may_be_in_use_stay() -> Result {
    let way = Way::visible();
    let mut set = Set::new(&Rig::strict().seed(3), way, 4)?;
    set.servers[1].host.freeze();
    let commit = set.append(0, 2)?;
    assert_eq!(set.settle(commit, 2, LIMIT).durable, 0b101);
    let fails = set.keeps_queue_pair();
    let [over, lost, mut id] = set.ids[..] else {
        unreachable!("three replicas")
    };
    let aside = set.log.set_aside(lost, Duration::from_millis(20));
    aside.expect_err("it could not be destroyed");
    assert!(!fails[2].is_pending());
    set.log.set_aside(lost, LIMIT)?;
    set.servers[0].ends.clear();
    set.fabric.settle();
    set.log.look();
    assert!(!set.log.is_able(over));
    for number in 0..130 {
        id = reconnect(&mut set, way, id)?;
        assert_eq!(id.index(), 2 + (number + 1) % (Replicas::MOST - 2));
    }
    // The answer about an earlier commit stays.
    let outcome = set.outcome(commit);
    assert_eq!((outcome.durable, outcome.unknown), (0b1, 0b10));
    Ok(())
}

/// Promise: a set of 64 replicas that were not set aside takes no other one, and names the remedy.
#[test]
fn a_full_set_takes_no_other_replica() -> Result {
    let way = Way::visible();
    let mut set = Set::new(&Rig::strict().seed(4), way, 4)?;
    let server = &set.servers[0];
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let mut ends = Vec::new();
    let mut new = || -> Result<_> {
        let target = Mr::reg(&server.peer, vec![0; SIZE], usage)?;
        let (writer, far) = server.connect(&set.peer, way, &target)?;
        ends.push((far, target));
        Ok(writer)
    };
    for index in 3..Replicas::MOST {
        assert_eq!(add(&mut set.log, new()?)?.index(), index);
    }
    let writer = new()?;
    let region = writer.offer().regions()[0];
    let refused = set.log.add(writer, region).expect_err("64 are there");
    let text = refused.error.to_string();
    let is_named = text.contains("at most 64") && text.contains("set_aside");
    assert!(is_named, "{text}");
    assert_eq!(set.log.able(), Replicas::MOST);
    for n in [1, 2, 1] {
        set.log.set_aside(set.ids[n], LIMIT)?;
    }
    let id = add(&mut set.log, *refused.object)?;
    assert_eq!(id.index(), 1);
    assert_ne!(id, set.ids[1]);
    Ok(())
}
