//! K of N, awaited.

use rpma::commit::{CommitId, Method, Outcome, Refused, ReplicaId, Replicas as Set, WriterCfg};
use rpma_async::{Pool, Reactor, Reconnect, Replicas, Writer};

use crate::awaited::served::{Serving, Stopped, TAIL, block, cfg, polls, record, writer};
use crate::awaited::support::{run, with_reactor};
use crate::common::prelude::*;
use crate::serve::support::{LEN, SHORT, Site, directory_of, identity, new_directory};

pub(crate) const RING: usize = 1024;

/// A set of the keys of one server, which are replicas in memory of their own.
async fn set(reactor: &Reactor, serving: &Serving, keys: std::ops::Range<u64>) -> Result<Replicas> {
    let set = Set::new(reactor.peer(), RING, 8)?;
    let set = Replicas::new(reactor, set)?;
    set.permit_one_host().permit_one_memory();
    for key in keys {
        add(&set, reactor, serving.addr, key).await?;
    }
    Ok(set)
}

async fn add(
    set: &Replicas,
    reactor: &Reactor,
    addr: std::net::SocketAddr,
    key: u64,
) -> Result<ReplicaId> {
    let writer = writer(reactor, addr, key).await;
    let remote = writer.offer().regions()[0];
    Ok(set.add(writer, remote)?)
}

/// A record of 100 bytes at 64, in two pieces, with a pointer.
pub(crate) fn commit(set: &Replicas, number: u64, k: usize) -> Result<CommitId, Refused> {
    let bytes = [number as u8; 100];
    let pointer = Some((TAIL, number.to_ne_bytes()));
    set.commit(64, &[&bytes[..8], &bytes[8..]], pointer, k)
}

/// A server of key 1, in the nth part of the memory.
fn site(all: &PmemMap, n: usize) -> Result<Site> {
    let own = all.part(2 * LEN * n..2 * LEN * (n + 1))?;
    let directory = new_directory(directory_of(&own)?, 31)?;
    Site::over(1, &cfg()?, own, directory)
}

/// A set of a replica that answers, and one with a responder that stands still.
async fn with_a_slow_one(
    reactor: &Reactor,
) -> Result<(Replicas, Serving, Stopped, [ReplicaId; 2])> {
    let all = PmemMap::open(devdax(), 4 * LEN)?;
    let quick = Serving::of(reactor, site(&all, 0)?)?;
    let slow = Serving::of(reactor, site(&all, 1)?)?;
    let set = set(reactor, &quick, 1..1).await?;
    let ids = [
        add(&set, reactor, quick.addr, 1).await?,
        add(&set, reactor, slow.addr, 1).await?,
    ];
    Ok((set, quick, slow.stop().await, ids))
}

/// Commits until the ring is full, and returns the last commit and its number.
pub(crate) async fn fill(set: &Replicas, slow: ReplicaId) -> Result<(CommitId, u64)> {
    let (mut last, mut number) = (None, 1);
    loop {
        match commit(set, number, 1) {
            Ok(id) => {
                last = Some((id, number));
                number += 1;
            }
            // Completions that are still to come give room, except for those that wait for the
            // server.
            Err(Refused::RingFull { .. }) => match set.room(100, SHORT).await {
                Ok(()) => {}
                Err(Refused::RingFull { held_by }) if held_by & slow.mask() != 0 => break,
                // The other one has not answered yet.
                Err(Refused::RingFull { .. }) => {}
                Err(refused) => panic!("{refused}"),
            },
            Err(refused) => panic!("{refused}"),
        }
    }
    Ok(last.ok_or("some fit")?)
}

/// Promise: a replica that is slow delays no task that has its copies, is unknown after the limit,
/// and gets all commits when it goes on.
#[test]
fn a_slow_replica_delays_nobody_else() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [first, slow]) = with_a_slow_one(reactor).await?;
        let id = commit(&set, 1, 2)?;
        let outcome = set.settle(id, 1, LIMIT).await?;
        assert_eq!((outcome.durable, outcome.failed), (first.mask(), 0));
        let outcome = set.settle(id, 2, SHORT).await?;
        assert_eq!(
            (outcome.durable, outcome.unknown),
            (first.mask(), slow.mask())
        );

        let (last, number) = fill(&set, slow).await?;
        let full = set.room(100, SHORT).await.expect_err("the ring is full");
        assert!(matches!(full, Refused::RingFull { held_by } if held_by == slow.mask()));
        let outcome = set.settle(last, 1, LIMIT).await?;
        assert_eq!(outcome.durable, first.mask());
        let room = tokio::spawn({
            let set = set.clone();
            async move { set.room(100, LIMIT).await }
        });
        let slow = stopped.start();
        let outcome = set.settle(last, 2, LIMIT).await?;
        assert_eq!(outcome.copies(), 2);
        room.await.expect("no panic")?;
        drop(set);
        for serving in [quick, slow] {
            assert_eq!(record(&serving.regions[0])?, (number as u8, number));
            serving.stop().await;
        }
        Ok(())
    })
}

/// Promise: a replica is set aside without its answer, and then the set goes on without it; a call
/// that is dropped after its nth poll can be made again.
#[test]
fn a_slow_replica_is_set_aside() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        for n in 0..4 {
            let reactor = Reactor::spawn(&peer)?;
            let (set, quick, stopped, [first, slow]) = with_a_slow_one(&reactor).await?;
            let (last, _) = fill(&set, slow).await?;
            let early = polls(set.set_aside(slow, LIMIT), n).await;
            if early.is_none() {
                set.set_aside(slow, LIMIT).await?;
            }
            set.room(100, LIMIT).await?;
            assert_eq!(set.able(), 1);
            let outcome = set.settle(last, 1, LIMIT).await?;
            assert_eq!(outcome.durable, first.mask());
            assert_eq!(outcome.failed | outcome.unknown, slow.mask());
            let too_few = commit(&set, 1, 2).expect_err("one replica");
            assert!(matches!(too_few, Refused::TooFew { able: 1 }), "{too_few}");
            let id = commit(&set, 1, 1)?;
            let outcome = set.settle(id, 1, LIMIT).await?;
            assert_eq!(outcome.copies(), 1);
            drop((set, stopped));
            quick.stop().await;
        }
        Ok(())
    })
}

/// Promise: room is made without the slow replica after the limit, and has no cost before it. If too
/// few replicas would be left, none is set aside.
#[test]
fn room_is_made_without_a_slow_replica() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [_, slow]) = with_a_slow_one(reactor).await?;
        set.make_room(100, 1, SHORT).await?;
        assert_eq!(set.able(), 2);
        fill(&set, slow).await?;
        // Two copies are not possible without the slow one.
        match set.make_room(100, 2, SHORT).await {
            Err(Refused::RingFull { held_by }) => assert_eq!(held_by, slow.mask()),
            other => panic!("{other:?}"),
        }
        assert_eq!(set.able(), 2, "none is set aside");
        set.make_room(100, 1, SHORT).await?;
        assert_eq!((set.able(), set.is_able(slow)), (1, false));
        let id = commit(&set, 1, 1)?;
        let outcome = set.settle(id, 1, LIMIT).await?;
        assert_eq!(outcome.copies(), 1);
        let none = set.make_room(100, 0, LIMIT).await;
        assert!(
            matches!(none, Err(Refused::Error(Error::InvalidArgument(_)))),
            "{none:?}"
        );
        let long = set.make_room(2 * RING, 1, LIMIT).await;
        assert!(matches!(long, Err(Refused::Error(_))), "{long:?}");
        drop((set, stopped));
        quick.stop().await;
        Ok(())
    })
}

/// Promise: a writer that reads and commits by itself becomes a replica when it has finished, and
/// not before.
#[test]
fn an_awaited_writer_becomes_a_replica() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let set = set(reactor, &serving, 1..2).await?;
        let pool = Pool::new(reactor.peer(), 100, 2)?;
        let awaited = async || -> Result<_> {
            let identity = identity(2, 1, 2);
            let cfg = WriterCfg::new(Method::Server);
            let client = Reconnect::to_writer(reactor, serving.addr, identity, &cfg);
            let writer = client?.connect(&ConnCfg::new()).await;
            let writer = Writer::new(reactor, writer?)?;
            let memory = writer.offer().regions()[0];
            Ok((writer, memory))
        };
        let (writer, memory) = awaited().await?;
        let other = writer.clone();
        let in_use = set.add_writer(writer, memory).await;
        let in_use = in_use.expect_err("a handle is left");
        assert!(in_use.to_string().contains("other handles"), "{in_use}");
        assert_eq!(set.able(), 1);
        drop(other);

        let (writer, memory) = awaited().await?;
        let copied = writer.commit_bytes(&pool, (&memory, 64), &[7; 100], None);
        copied.await?;
        // The device may still have the block of this one.
        let bytes = block(&pool, 8).await;
        crate::awaited::served::commit(&writer, bytes, 8)?;
        set.add_writer(writer, memory).await?;
        assert_eq!(set.able(), 2);
        let id = commit(&set, 9, 2)?;
        let outcome = set.settle(id, 2, LIMIT).await?;
        assert_eq!(outcome.copies(), 2);
        drop(set);
        for region in &serving.regions {
            assert_eq!(record(region)?, (9, 9));
        }
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a replica that dies is an outcome of each commit, and no wait goes on for it.
#[test]
fn a_replica_that_dies_ends_no_wait_late() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [first, dead]) = with_a_slow_one(reactor).await?;
        let before = commit(&set, 1, 2)?;
        let waiting = tokio::spawn({
            let set = set.clone();
            async move { set.settle(before, 2, Duration::MAX).await }
        });
        let outcome = set.settle(before, 1, LIMIT).await?;
        assert_eq!(outcome.copies(), 1);
        drop(stopped);
        let outcome = waiting.await.expect("no panic")?;
        assert_eq!(
            (outcome.durable, outcome.unknown),
            (first.mask(), dead.mask())
        );
        assert_eq!(set.able(), 1);
        let too_few = commit(&set, 2, 2).expect_err("one replica");
        assert!(matches!(too_few, Refused::TooFew { able: 1 }), "{too_few}");
        let id = commit(&set, 2, 1)?;
        let outcome = set.settle(id, 1, Duration::MAX).await?;
        assert_eq!(
            (outcome.durable, outcome.failed),
            (first.mask(), dead.mask())
        );
        drop(set);
        quick.stop().await;
        Ok(())
    })
}

/// Promise: waits that are dropped after their nth poll have no effect: the commits go on, and the
/// ring gets free although no task waits for it.
#[test]
fn dropped_waits_undo_nothing() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let set = set(reactor, &serving, 1..3).await?;
        for n in 0..6 {
            let id = commit(&set, n as u64, 2)?;
            drop(polls(set.settle(id, 2, LIMIT), n).await);
            drop(polls(set.room(RING, LIMIT), n).await);
            // Without a wait the driver looks.
            while set.outcome(id).copies() < 2 {
                tokio::task::yield_now().await;
            }
        }
        drop(set);
        for region in &serving.regions {
            assert_eq!(record(region)?, (5, 5));
        }
        serving.stop().await;
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post.
#[test]
fn bad_input_is_refused() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let one = set(reactor, &serving, 1..2).await?;
        let other = set(reactor, &serving, 2..3).await?;
        let invalid = |refused: Refused, text: &str| {
            assert!(matches!(
                &refused,
                Refused::Error(Error::InvalidArgument(_))
            ));
            assert!(refused.to_string().contains(text), "{text}: {refused}");
        };
        invalid(commit(&one, 1, 0).expect_err("no copies"), "1 to 1");
        invalid(commit(&one, 1, 2).expect_err("two copies"), "1 to 1");
        invalid(
            one.commit(64, &[], None, 1).expect_err("no bytes"),
            "0 bytes",
        );
        let outside = one.commit(LEN as u64, &[b"x"], None, 1);
        invalid(outside.expect_err("outside"), "replica 0");
        let long = one.room(2 * RING, LIMIT).await;
        invalid(long.expect_err("longer than the ring"), "2048");

        let id = commit(&one, 1, 1)?;
        let outcome = other.settle(id, 1, LIMIT).await?;
        assert_eq!(outcome, Outcome::default(), "of another set");
        let outcome = one.settle(id, 1, LIMIT).await?;
        assert_eq!(outcome.copies(), 1);
        drop((one, other));
        serving.stop().await;
        Ok(())
    })
}

/// Promise: tasks append to two replicas, each waits for its own commits, and both have all of
/// them.
#[test]
fn tasks_append_to_two_replicas() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let set = set(reactor, &serving, 1..3).await?;
        let tasks = (0..4).map(|_| {
            let set = set.clone();
            tokio::spawn(async move {
                for number in 1..=20 {
                    set.room(100, LIMIT).await.expect("room");
                    let id = commit(&set, number, 2).expect("posted");
                    let outcome = set.settle(id, 2, LIMIT).await.expect("the driver runs");
                    assert_eq!((outcome.copies(), outcome.unknown), (2, 0));
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        drop(set);
        for region in &serving.regions {
            assert_eq!(record(region)?, (20, 20));
        }
        serving.stop().await;
        Ok(())
    })
}
