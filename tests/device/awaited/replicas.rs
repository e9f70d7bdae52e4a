//! K of N, awaited.

use std::ops::Range;

use rpma::commit::{self, CommitId, Method, ReplicaId, WriterCfg};
use rpma_async::{Pool, Reactor, Reconnect, Replicas, Writer};

use crate::awaited::served::{self, Serving, Stopped, TAIL, cfg, polls, record, writer};
use crate::awaited::support::{joined, says, spawn_with, turns, with_reactor};
use crate::common::prelude::*;
use crate::serve::support::{LEN, SHORT, Site, directory_of, identity, new_directory};

pub(crate) const RING: usize = 1024;

/// A set without replicas.
pub(crate) fn new_set(reactor: &Reactor, ring: usize) -> rpma::Result<Replicas> {
    let set = commit::Replicas::new(reactor.peer(), ring, 8)?;
    Replicas::new(reactor, set)
}

/// Adds the server of a writer.
pub(crate) fn add(set: &Replicas, writer: commit::Writer) -> rpma::Result<ReplicaId> {
    let remote = writer.offer().regions()[0];
    Ok(set.add(writer, remote)?)
}

/// A set of the keys of one server, which are replicas in memory of their own.
pub(crate) async fn set_of(
    reactor: &Reactor,
    serving: &Serving,
    keys: Range<u64>,
) -> Result<(Replicas, Vec<ReplicaId>)> {
    let set = new_set(reactor, RING)?;
    set.permit_one_host().permit_one_memory();
    let mut ids = Vec::new();
    for key in keys {
        ids.push(add(&set, writer(reactor, serving.addr, key).await)?);
    }
    Ok((set, ids))
}

/// Waits until so many replicas have a commit, and no more.
pub(crate) async fn has_copies(set: &Replicas, id: CommitId, k: usize) -> Result {
    let outcome = set.settle(id, k, LIMIT).await?;
    assert_eq!(outcome.copies(), k);
    Ok(())
}

/// The replicas that hold the bytes of a ring which is full.
#[track_caller]
pub(crate) fn holders(set: &Replicas, room: rpma::Result<()>) -> Vec<ReplicaId> {
    match room {
        Err(Error::RingFull) => set.holders(),
        other => panic!("the ring is full: {other:?}"),
    }
}

/// A record of 100 bytes at 64, in two pieces, with a pointer.
pub(crate) fn commit(set: &Replicas, number: u64, k: usize) -> rpma::Result<CommitId> {
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
    let (set, _) = set_of(reactor, &quick, 1..1).await?;
    let ids = [
        add(&set, writer(reactor, quick.addr, 1).await)?,
        add(&set, writer(reactor, slow.addr, 1).await)?,
    ];
    Ok((set, quick, slow.stop().await, ids))
}

/// Ends a server. All its memory has this commit.
async fn end(serving: Serving, number: u64) -> Result {
    for region in &serving.regions {
        assert_eq!(record(region)?, (number as u8, number));
    }
    serving.stop().await;
    Ok(())
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
            Err(Error::RingFull) => match set.room(100, SHORT).await {
                Ok(()) => {}
                Err(Error::RingFull) if set.holders().contains(&slow) => break,
                // The other one has not answered yet.
                Err(Error::RingFull) => {}
                Err(error) => panic!("{error}"),
            },
            Err(error) => panic!("{error}"),
        }
    }
    Ok(last.ok_or("some fit")?)
}

/// The error of a call that was refused for another reason than the ring and its replicas.
#[track_caller]
fn error_of<T: std::fmt::Debug>(refused: rpma::Result<T>) -> rpma::Result<T> {
    match refused {
        Ok(_) | Err(Error::RingFull | Error::TooFewReplicas { .. }) => panic!("{refused:?}"),
        error => error,
    }
}

/// Promise: a replica that is slow delays no task that has its copies, is unknown after the limit,
/// and gets all commits when it goes on.
#[test]
fn a_slow_replica_delays_nobody_else() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [first, slow]) = with_a_slow_one(reactor).await?;
        let id = commit(&set, 1, 2)?;
        let outcome = set.settle(id, 1, LIMIT).await?;
        assert_eq!(set.durable(outcome), [first]);
        assert_eq!(set.failed(outcome), []);
        let outcome = set.settle(id, 2, SHORT).await?;
        assert_eq!(set.durable(outcome), [first]);
        assert_eq!(set.unknown(outcome), [slow]);

        let (last, number) = fill(&set, slow).await?;
        assert_eq!(holders(&set, set.room(100, SHORT).await), [slow]);
        let outcome = set.settle(last, 1, LIMIT).await?;
        assert_eq!(set.durable(outcome), [first]);
        let room = spawn_with(&set, |set| async move { set.room(100, LIMIT).await });
        let slow = stopped.start();
        has_copies(&set, last, 2).await?;
        joined(room).await?;
        drop(set);
        end(quick, number).await?;
        end(slow, number).await?;
        Ok(())
    })
}

/// Promise: a replica is set aside without its answer, and then the set goes on without it; a call
/// that is dropped after its nth poll can be made again.
#[test]
fn a_slow_replica_is_set_aside() -> Result {
    for n in 0..4 {
        with_reactor(async |reactor| {
            let (set, quick, stopped, [first, slow]) = with_a_slow_one(reactor).await?;
            let (last, _) = fill(&set, slow).await?;
            let early = polls(set.set_aside(slow, LIMIT), n).await;
            if early.is_none() {
                set.set_aside(slow, LIMIT).await?;
            }
            set.room(100, LIMIT).await?;
            assert_eq!(set.able(), 1);
            let outcome = set.settle(last, 1, LIMIT).await?;
            assert_eq!(set.durable(outcome), [first]);
            let others = [set.failed(outcome), set.unknown(outcome)].concat();
            assert_eq!(others, [slow]);
            let too_few = commit(&set, 1, 2).expect_err("one replica");
            let is_one = matches!(too_few, Error::TooFewReplicas { able: 1, .. });
            assert!(is_one, "{too_few}");
            has_copies(&set, commit(&set, 1, 1)?, 1).await?;
            drop((set, stopped));
            quick.stop().await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: room is made without the slow replica after the limit, and has no cost before it. If
/// too few replicas would be left, none is set aside.
#[test]
fn room_is_made_without_a_slow_replica() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [_, slow]) = with_a_slow_one(reactor).await?;
        set.make_room(100, 1, SHORT).await?;
        assert_eq!(set.able(), 2);
        fill(&set, slow).await?;
        // Two copies are not possible without the slow one.
        assert_eq!(holders(&set, set.make_room(100, 2, SHORT).await), [slow]);
        assert_eq!(set.able(), 2, "none is set aside");
        set.make_room(100, 1, SHORT).await?;
        assert_eq!((set.able(), set.is_able(slow)), (1, false));
        has_copies(&set, commit(&set, 1, 1)?, 1).await?;
        says(error_of(set.make_room(100, 0, LIMIT).await), &[]);
        let long = set.make_room(2 * RING, 1, LIMIT).await;
        says(error_of(long), &[]);
        drop((set, stopped));
        quick.stop().await;
        Ok(())
    })
}

/// Promise: a set that is closed waits for a slow replica, and ends the waits of its tasks. At the
/// limit it ends without the replica, and returns that.
#[test]
fn a_closed_set_has_all_commits_everywhere() -> Result {
    with_reactor(async |reactor| {
        for is_in_time in [true, false] {
            let (set, quick, stopped, [first, slow]) = with_a_slow_one(reactor).await?;
            let gone =
                [first, slow].map(|id| spawn_with(&set, |set| async move { set.gone(id).await }));
            let (_, number) = fill(&set, slow).await?;
            let other = set.clone();
            let slow = if is_in_time {
                let slow = stopped.start();
                set.close(LIMIT).await?;
                Some(slow)
            } else {
                let late = set.close(SHORT).await;
                assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
                drop(stopped);
                None
            };
            for gone in gone {
                assert_eq!(joined(gone).await?, None);
            }
            let too_few = commit(&other, number, 1);
            let is_none = matches!(too_few, Err(Error::TooFewReplicas { able: 0, .. }));
            assert!(is_none, "{too_few:?}");
            end(quick, number).await?;
            if let Some(slow) = slow {
                end(slow, number).await?;
            }
        }
        Ok(())
    })
}

/// Promise: a writer that reads and commits by itself becomes a replica when it has finished, and
/// not before.
#[test]
fn an_awaited_writer_becomes_a_replica() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let (set, _) = set_of(reactor, &serving, 1..2).await?;
        let pool = Pool::new(reactor.peer(), 100, 2)?;
        let awaited = async || -> Result<_> {
            let cfg = WriterCfg::new(Method::Server);
            let client = Reconnect::to_writer(reactor, serving.addr, identity(2, 1, 2), &cfg);
            let writer = client?.connect(&ConnCfg::new()).await?;
            let writer = Writer::new(reactor, writer)?;
            let memory = writer.offer().regions()[0];
            Ok((writer, memory))
        };
        let (writer, memory) = awaited().await?;
        let other = writer.clone();
        let in_use = set.add_writer(writer, memory).await;
        let in_use = in_use.expect_err("a handle is left").to_string();
        assert!(in_use.contains("other handles"), "{in_use}");
        assert_eq!(set.able(), 1);
        drop(other);

        let (writer, memory) = awaited().await?;
        let copied = writer.commit_bytes(&pool, (&memory, 64), &[7; 100], None);
        copied.await?;
        // The device may still have the block of this one.
        served::post(&writer, &pool, 8).await?;
        set.add_writer(writer, memory).await?;
        assert_eq!(set.able(), 2);
        has_copies(&set, commit(&set, 9, 2)?, 2).await?;
        drop(set);
        end(serving, 9).await?;
        Ok(())
    })
}

/// Promise: a replica that dies is an outcome of each commit, and no wait goes on for it.
#[test]
fn a_replica_that_dies_ends_no_wait_late() -> Result {
    with_reactor(async |reactor| {
        let (set, quick, stopped, [first, dead]) = with_a_slow_one(reactor).await?;
        let before = commit(&set, 1, 2)?;
        let waiting = spawn_with(&set, |set| async move {
            set.settle(before, 2, Duration::MAX).await
        });
        has_copies(&set, before, 1).await?;
        drop(stopped);
        let outcome = joined(waiting).await?;
        assert_eq!(set.durable(outcome), [first]);
        assert_eq!(set.unknown(outcome), [dead]);
        assert_eq!(set.able(), 1);
        let too_few = commit(&set, 2, 2).expect_err("one replica");
        let is_one = matches!(too_few, Error::TooFewReplicas { able: 1, .. });
        assert!(is_one, "{too_few}");
        let id = commit(&set, 2, 1)?;
        let outcome = set.settle(id, 1, Duration::MAX).await?;
        assert_eq!(set.durable(outcome), [first]);
        assert_eq!(set.failed(outcome), [dead]);
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
        let (set, _) = set_of(reactor, &serving, 1..3).await?;
        for n in 0..6 {
            let id = commit(&set, n as u64, 2)?;
            drop(polls(set.settle(id, 2, LIMIT), n).await);
            drop(polls(set.room(RING, LIMIT), n).await);
            // Without a wait the driver looks.
            while set.outcome(id).copies() < 2 {
                turns(1).await;
            }
        }
        drop(set);
        end(serving, 5).await?;
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post.
#[test]
fn bad_input_is_refused() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let (one, _) = set_of(reactor, &serving, 1..2).await?;
        let (other, _) = set_of(reactor, &serving, 2..3).await?;
        says(error_of(commit(&one, 1, 0)), &["1 to 1"]);
        says(error_of(commit(&one, 1, 2)), &["1 to 1"]);
        says(error_of(one.commit(64, &[], None, 1)), &["0 bytes"]);
        let outside = one.commit(LEN as u64, &[b"x"], None, 1);
        says(error_of(outside), &["replica 0"]);
        says(error_of(one.room(2 * RING, LIMIT).await), &["2048"]);

        let id = commit(&one, 1, 1)?;
        says(error_of(other.settle(id, 1, LIMIT).await), &["another set"]);
        let outcome = other.outcome(id);
        assert_eq!(outcome.copies(), 0, "of another set");
        assert_eq!(one.failed(outcome), []);
        assert_eq!(one.unknown(outcome), []);
        has_copies(&one, id, 1).await?;
        assert_eq!(other.durable(one.outcome(id)), [], "of another set");
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
        let (set, _) = set_of(reactor, &serving, 1..3).await?;
        let tasks = [(); 4].map(|()| {
            spawn_with(&set, |set| async move {
                for number in 1..=20 {
                    set.room(100, LIMIT).await.expect("room");
                    let id = commit(&set, number, 2).expect("posted");
                    let outcome = set.settle(id, 2, LIMIT).await.expect("the driver runs");
                    assert_eq!((outcome.copies(), set.unknown(outcome).len()), (2, 0));
                }
            })
        });
        for task in tasks {
            joined(task).await;
        }
        drop(set);
        end(serving, 20).await?;
        Ok(())
    })
}
