//! Wrong arguments: one clear error each, before any post.

use rpma::commit::{Outcome, Refused, Replicas};

use crate::common::failed::Result;
use crate::common::prelude::*;
use crate::replicas::set::{LEN, LIMIT, SIZE, START, Set, Way};

fn text(refused: Refused) -> String {
    match refused {
        Refused::Error(Error::InvalidArgument(text)) => text.into(),
        other => panic!("{other:?}"),
    }
}

/// A program that makes a new set keeps no name of the old one: an old name acknowledges no commit,
/// and sets no replica aside.
#[test]
fn names_of_another_set_are_refused() -> Result {
    let fabric = Rig::strict().seed(1).fabric();
    let mut old = Set::new(&fabric, Way::visible(), 4)?;
    let mut new = Set::new(&fabric, Way::visible(), 4)?;
    let client = new.client.clone();
    let _entered = client.enter();
    let theirs = old.append(0, 3)?;
    let own = new.append(0, 3)?;
    assert_eq!(new.log.settle(own, 3, LIMIT).copies(), 3);
    assert_eq!(new.log.settle(theirs, 3, LIMIT), Outcome::default());
    assert_eq!(new.log.outcome(theirs), Outcome::default());
    let replica = old.ids[0];
    assert!(new.log.writer(replica).is_none());
    assert!(!new.log.handle(replica, &Wc::default()));
    let refused = new.log.set_aside(replica, LIMIT).expect_err("another set");
    assert!(refused.to_string().contains("another set"), "{refused}");
    assert_eq!(new.log.able(), 3);
    let ids: Vec<_> = new.log.ids(0b101).collect();
    assert_eq!(ids, [new.ids[0], new.ids[2]]);
    Ok(())
}

#[test]
fn a_wrong_commit_is_refused_before_anything_is_posted() -> Result {
    let fabric = Rig::strict().seed(1).fabric();
    let mut set = Set::new(&fabric, Way::visible(), 4)?;
    let client = set.client.clone();
    let _entered = client.enter();
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
        let refused = set.record(1)?.commit(at, pointer, k);
        let text = text(refused.expect_err(words));
        assert!(
            text.contains(words) && text.contains("commit 1:"),
            "{words}: {text}"
        );
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
    assert_eq!(
        (id.number(), set.log.settle(id, 3, LIMIT).durable),
        (1, 0b111)
    );
    let sizes = [(0, 1), (1, 0)];
    for (bytes, records) in sizes {
        let refused = Replicas::new(&set.peer, bytes, records);
        let text = refused.expect_err("0").to_string();
        assert!(text.contains("at least 1"), "{text}");
    }
    Ok(())
}

#[test]
fn a_wrong_replica_is_refused_and_its_writer_goes_back() -> Result {
    let fabric = Rig::strict().seed(1).fabric();
    let way = Way::visible();
    let mut set = Set::new(&fabric, way, 4)?;
    let client = set.client.clone();
    let _entered = client.enter();
    let refuse = |set: &mut Set, (writer, region), words: &str| {
        let refused = set.log.add(writer, region).expect_err(words);
        let text = refused.error.to_string();
        assert!(
            text.contains(words) && text.contains("replica 3:"),
            "{text}"
        );
        *refused.writer
    };

    let peer = set.peer.clone();
    let again = set.servers[0].writer(&client, &peer, way)?;
    refuse(&mut set, again, "same region");

    let addr = set.servers[0].host.addr().to_string();
    let device = Device::from_addr(&addr, Side::Remote)?;
    let other = Peer::new(&device)?;
    let mut fourth = crate::replicas::set::Server::new(&fabric, "d", way)?;
    let foreign = fourth.writer(&client, &other, way)?;
    refuse(&mut set, foreign, "eer");

    let durable = Way {
        flush_type: FlushType::Persistent,
        ..way
    };
    let mixed = fourth.writer(&client, &peer, durable)?;
    refuse(&mut set, mixed, "flush type");

    let (writer, _) = fourth.writer(&client, &peer, way)?;
    let usage = MrUsage::READ_SRC;
    let closed = Mr::reg(&fourth.peer, vec![0; SIZE], usage)?;
    let closed = MrRemote::from_descriptor(&closed.get_descriptor())?;
    let writer = refuse(&mut set, (writer, closed), "WRITE_DST");

    // The writer that went back works. Set aside, its memory may be added again.
    let region = writer.offer().regions()[0];
    let id = set.log.add(writer, region)?;
    let commit = set.append(0, 4)?;
    assert_eq!(set.log.settle(commit, 4, LIMIT).durable, 0b1111);
    set.log.set_aside(id, LIMIT)?;
    let (writer, region) = fourth.writer(&client, &peer, way)?;
    let gone = set.log.add(writer, region)?;
    assert_eq!(gone.index(), 4);
    assert_eq!(set.log.outcome(commit).durable, 0b1111, "not the new one");
    let (writer, region) =
        crate::replicas::set::Server::new(&fabric, "e", way)?.writer(&client, &peer, way)?;
    writer.conn().disconnect()?;
    let ended = writer.conn().next_event_timeout(LIMIT)?;
    assert_eq!(ended, ConnEvent::Closed);
    let refused = set.log.add(writer, region).expect_err("it is over");
    let text = refused.error.to_string();
    assert!(
        text.contains("replica 5: the writer's connection"),
        "{text}"
    );
    Ok(())
}
