//! Wrong arguments: one clear error each, before any post.

use crate::replicas::prelude::*;

/// A set with a ring of four records.
fn strict() -> Result<Set> {
    Set::new(&Rig::strict().seed(1), Way::visible(), 4)
}

fn text(refused: Error) -> String {
    match refused {
        Error::InvalidArgument(text) => text.into(),
        other => panic!("{other:?}"),
    }
}

/// A program that makes a new set keeps no name of the old one: an old name acknowledges no commit,
/// and sets no replica aside.
#[test]
fn names_of_another_set_are_refused() -> Result {
    let mut old = strict()?;
    let mut new = Set::on(&old.fabric, Way::visible(), 4)?;
    let theirs = old.append(0, 3)?;
    let own = new.append(0, 3)?;
    let settled = new.log.settle(own, 3, LIMIT);
    assert_eq!(settled.copies(), 3);
    assert!(new.log.durable(settled).eq(new.ids.clone()));
    let foreign = old.log.settle(theirs, 3, LIMIT);
    assert_eq!(foreign.copies(), 3);
    let none = Named {
        durable: 0,
        failed: 0,
        unknown: 0,
    };
    assert_eq!(Named::by(&new.log, foreign), none);
    for outcome in [new.log.settle(theirs, 3, LIMIT), new.log.outcome(theirs)] {
        assert_eq!(outcome.copies(), 0);
        assert_eq!(Named::by(&new.log, outcome), none);
        assert_eq!(Named::by(&old.log, outcome), none);
    }
    let replica = old.ids[0];
    assert!(new.log.writer(replica).is_none());
    assert!(!new.log.handle(replica, &Wc::default()));
    let refused = new.log.set_aside(replica, LIMIT).expect_err("another set");
    assert!(refused.to_string().contains("another set"), "{refused}");
    assert_eq!(new.log.able(), 3);
    Ok(())
}

#[test]
fn a_wrong_commit_is_refused_before_anything_is_posted() -> Result {
    let mut set = strict()?;
    let end = SIZE as u64;
    let pointer = |at: u64| Some((at, [1; 8]));
    for (at, pointer, k, words) in [
        (START, None, 0, "0 copies were asked for, and the set has 3"),
        (START, None, 4, "4 copies were asked for, and the set has 3"),
        (end - LEN as u64 + 1, None, 2, "replica 0"),
        (u64::MAX, None, 2, "replica 0"),
        (START, pointer(4), 2, "8"),
        (START, pointer(START), 2, "pointer"),
        (START, pointer(START + 96), 2, "pointer"),
        (START, pointer(end), 2, "replica 0"),
        (START, pointer(u64::MAX), 2, "replica 0"),
    ] {
        let refused = made(&mut set.log, 1)?.commit(at, pointer, k);
        let text = text(refused.expect_err(words));
        let is_right = text.contains(words) && text.contains("commit 1:");
        assert!(is_right, "{words}: {text}");
    }
    for (len, words) in [
        (0, "0 bytes"),
        (4 * LEN + 1, "the ring of source memory, which has"),
    ] {
        let text = text(set.log.record(len).map(drop).expect_err(words));
        assert!(text.contains(words), "{text}");
    }
    let mut record = set.log.record(8)?;
    for (at, len) in [(0, 9), (8, 1), (usize::MAX, 1)] {
        let error = record.put(at, &vec![1; len]).expect_err("outside");
        assert!(error.to_string().ends_with("which has 8 bytes"), "{error}");
    }
    drop(record);
    for id in &set.ids {
        assert_eq!(set.log.writer(*id).ok_or("it is there")?.posted(), 0);
    }
    let id = set.append(0, 3)?;
    assert_eq!(id.number(), 1);
    assert_eq!(set.settle(id, 3, LIMIT).durable, 0b111);
    for (bytes, records) in [(0, 1), (1, 0)] {
        let refused = Replicas::new(&set.peer, bytes, records);
        let text = refused.expect_err("0").to_string();
        assert!(text.contains("at least 1"), "{text}");
    }
    Ok(())
}

/// Adds a replica in vain, and returns its writer. The error has these words.
fn refuse(set: &mut Set, writer: Writer, words: [&str; 2]) -> Writer {
    let region = writer.offer().regions()[0];
    refuse_region(set, writer, region, words)
}

fn refuse_region(set: &mut Set, writer: Writer, region: MrRemote, words: [&str; 2]) -> Writer {
    let refused = set.log.add(writer, region).expect_err(words[1]);
    let text = refused.error.to_string();
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
    *refused.object
}

#[test]
fn a_wrong_replica_is_refused_and_its_writer_goes_back() -> Result {
    let way = Way::visible();
    let mut set = strict()?;
    let peer = set.peer.clone();
    let again = set.servers[0].writer(&peer, way)?;
    refuse(&mut set, again, ["replica 3:", "same region"]);

    let other = peer_of(&set.client);
    let mut fourth = Server::new(&set.fabric, "d", way)?;
    let foreign = fourth.writer(&other, way)?;
    refuse(&mut set, foreign, ["replica 3:", "eer"]);

    let flush_type = FlushType::Persistent;
    let mixed = fourth.writer(&peer, Way { flush_type, ..way })?;
    refuse(&mut set, mixed, ["replica 3:", "flush type"]);

    let writer = fourth.writer(&peer, way)?;
    let closed = Mr::reg(&fourth.peer, vec![0; SIZE], MrUsage::READ_SRC)?;
    let words = ["replica 3:", "WRITE_DST"];
    let writer = refuse_region(&mut set, writer, remote(&closed), words);

    // The writer that went back works. Set aside, its memory may be added again.
    let id = add(&mut set.log, writer)?;
    let commit = set.append(0, 4)?;
    assert_eq!(set.settle(commit, 4, LIMIT).durable, 0b1111);
    set.log.set_aside(id, LIMIT)?;
    let gone = add(&mut set.log, fourth.writer(&peer, way)?)?;
    assert_eq!(gone.index(), 4);
    assert_eq!(set.outcome(commit).durable, 0b1111, "not the new one");
    let writer = Server::new(&set.fabric, "e", way)?.writer(&peer, way)?;
    writer.conn().disconnect()?;
    assert_eq!(event(writer.conn())?, ConnEvent::Closed);
    refuse(&mut set, writer, ["replica 5: the writer's connection"; 2]);
    Ok(())
}
