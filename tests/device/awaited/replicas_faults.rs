//! Faults of one replica of three while commits are in flight, by each method.

use rpma::commit::{Method, Outcome, ReplicaId};
use rpma::sim::Errno;
use rpma_async::Replicas;
use tokio::time::{Instant, sleep};

use crate::awaited::failing::failed_posts;
use crate::awaited::hosts::{Far, Outage, end_all, fars, methods, with_each};
use crate::awaited::replicas::{RING, add, commit, fill, has_copies, holders, new_set};
use crate::awaited::support::{in_time, joined, spawn_with};
use crate::awaited::world::{World, impatient, virtually, within};
use crate::common::prelude::*;

/// The retries of `impatient` are over, and so is the time in which an acknowledgement may come.
const NOTICED: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(120);

/// Three replicas. The last one is faulty.
pub(crate) struct Three {
    pub(crate) set: Replicas,
    ids: [ReplicaId; 3],
    pub(crate) fars: Vec<Far>,
}

impl Three {
    pub(crate) async fn new(world: &World, method: Method, conn: &ConnCfg) -> Result<Self> {
        let set = new_set(&world.reactors[0], RING)?;
        let mut fars = fars(world, 3, method);
        let mut ids = Vec::new();
        for far in &mut fars {
            ids.push(add(&set, far.connect(world, 2, conn).await?)?);
        }
        let ids = ids.try_into().expect("three");
        Ok(Self { set, ids, fars })
    }

    /// Those that are not faulty.
    fn good(&self) -> u64 {
        mask(self.ids[..2].to_vec())
    }

    fn faulty(&self) -> u64 {
        mask([self.ids[2]])
    }

    /// The faulty one alone has not got a commit.
    fn is_at_the_good(&self, outcome: Outcome) {
        assert_eq!(self.durable(outcome), self.good());
        assert_eq!(self.failed(outcome) | self.unknown(outcome), self.faulty());
    }

    fn durable(&self, outcome: Outcome) -> u64 {
        mask(self.set.durable(outcome))
    }

    fn failed(&self, outcome: Outcome) -> u64 {
        mask(self.set.failed(outcome))
    }

    fn unknown(&self, outcome: Outcome) -> u64 {
        mask(self.set.unknown(outcome))
    }

    fn holders(&self, room: rpma::Result<()>) -> u64 {
        mask(holders(&self.set, room))
    }

    /// Ends the set. Then the power goes, and the replicas must have this commit. The faulty one
    /// has one of these.
    async fn keep(mut self, number: u64, faulty: std::ops::RangeInclusive<u64>) {
        drop(self.set);
        self.fars[0].keeps(number..=number).await;
        self.fars[1].keeps(number..=number).await;
        self.fars[2].keeps(faulty).await;
        end_all(self.fars).await;
    }
}

/// Promise: a fault of one replica delays no commit that the others have: these have it after a
/// power cut. A wait for all three keeps its limit, and without a limit it ends when the retries
/// are over. Then the replica is no longer able, and the reason is known.
#[test]
fn a_faulty_replica_delays_no_copies_of_the_others() -> Result {
    with_each(async |world, method, outage| {
        let mut of = Three::new(world, method, &impatient()).await?;
        let (set, ids) = (of.set.clone(), of.ids);
        has_copies(&set, commit(&set, 1, 3)?, 3).await?;

        outage.begin(world, &mut of.fars[2]).await?;
        let second = commit(&set, 2, 2)?;
        let millisecond = Duration::from_millis(1);
        let outcome = within(millisecond, set.settle(second, 2, LIMIT)).await?;
        assert_eq!(of.durable(outcome), of.good());
        of.is_at_the_good(within(SHORT, set.settle(second, 3, SHORT)).await?);
        let outcome = within(NOTICED, set.settle(second, 3, Duration::MAX)).await?;
        of.is_at_the_good(outcome);
        assert_eq!(set.outcome(second), outcome);

        assert_eq!(set.able(), 2);
        let failure = set.failure(ids[2]);
        println!("{failure:?}");
        assert!(failure.is_some() || outage.is_told());
        let too_few = commit(&set, 3, 3).expect_err("two are able");
        let are_two = matches!(too_few, Error::TooFewReplicas { able: 2, .. });
        assert!(are_two, "{too_few}");
        let third = commit(&set, 3, 2)?;
        let outcome = within(millisecond, set.settle(third, 2, LIMIT)).await?;
        assert_eq!(
            (of.durable(outcome), of.failed(outcome)),
            (of.good(), of.faulty())
        );
        // Messages that are left arrive.
        outage.end(&of.fars[2]);
        sleep(Duration::from_secs(10)).await;
        drop(set);
        of.keep(3, 1..=2).await;
        Ok(())
    })
}

/// Promise: a faulty replica holds the bytes of the ring until its device has released them. A
/// wait for room names it, and keeps its limit. When the fault has passed, the wait ends, all
/// replicas have all commits, and no replica has bytes of a later record in the place of an earlier
/// one.
#[test]
fn a_fault_that_passes_gives_the_ring_back() -> Result {
    with_each(async |world, method, outage| {
        if !outage.passes(method) {
            return Ok(());
        }
        let mut of = Three::new(world, method, &ConnCfg::new()).await?;
        outage.begin(world, &mut of.fars[2]).await?;
        let (last, number) = fill(&of.set, of.ids[2]).await?;
        let began = Instant::now();
        assert_eq!(of.holders(of.set.room(100, SHORT).await), of.faulty());
        assert_eq!(began.elapsed(), SHORT);
        let outcome = of.set.settle(last, 2, SHORT).await?;
        assert_eq!(of.durable(outcome), of.good());

        let room = spawn_with(&of.set, |set| async move { set.room(100, LIMIT).await });
        sleep(SHORT).await;
        assert!(!room.is_finished());
        outage.end(&of.fars[2]);
        has_copies(&of.set, last, 3).await?;
        joined(room).await?;
        of.keep(number, number..=number).await;
        Ok(())
    })
}

/// Promise: a replica is set aside within the limit, under each fault. The set has the bytes of its
/// ring then, and the replica never gets later writes there.
#[test]
fn a_faulty_replica_is_set_aside() -> Result {
    with_each(async |world, method, outage| {
        if !outage.passes(method) {
            return Ok(());
        }
        let mut of = Three::new(world, method, &ConnCfg::new()).await?;
        outage.begin(world, &mut of.fars[2]).await?;
        let (last, number) = fill(&of.set, of.ids[2]).await?;
        within(SHORT, of.set.set_aside(of.ids[2], SHORT)).await?;
        within(Duration::ZERO, of.set.room(100, SHORT)).await?;
        let outcome = of.set.outcome(last);
        assert_eq!(of.failed(outcome) | of.unknown(outcome), of.faulty());
        // Twice around the ring.
        let last = number + 2 * RING as u64 / 100;
        for later in number + 1..=last {
            of.set.room(100, LIMIT).await?;
            let outcome = of.set.settle(commit(&of.set, later, 2)?, 2, LIMIT).await?;
            assert_eq!(of.durable(outcome), of.good());
        }
        outage.end(&of.fars[2]);
        sleep(Duration::from_secs(10)).await;
        of.keep(last, 0..=number).await;
        Ok(())
    })
}

/// Promise: an own device that stands still releases no bytes. The ring stays full, and a replica
/// that is set aside gives its bytes back when its queue pair is destroyed, after the limit.
#[test]
fn an_own_device_that_stands_still_keeps_the_ring() -> Result {
    with_each(async |world, method, outage| {
        if outage != Outage::Frozen {
            return Ok(());
        }
        let of = Three::new(world, method, &ConnCfg::new()).await?;
        world.hosts[0].freeze();
        while commit(&of.set, 1, 1).is_ok() {}
        let all = of.good() | of.faulty();
        assert_eq!(of.holders(of.set.room(100, SHORT).await), all);
        for (n, id) in of.ids.into_iter().enumerate() {
            let began = Instant::now();
            of.set.set_aside(id, SHORT).await?;
            assert_eq!(began.elapsed(), SHORT);
            let room = of.set.room(100, SHORT).await;
            match n {
                2 => room?,
                _ => assert_eq!(of.holders(room) & mask([id]), 0),
            }
        }
        world.hosts[0].thaw();
        drop(of.set);
        end_all(of.fars).await;
        Ok(())
    })
}

/// Promise: with the server's method, a wait for all copies ends even if one replica's device took
/// the request, and its host is gone before the answer, so that no operation is in flight that
/// would fail.
#[test]
fn a_replica_that_took_the_request_and_is_gone() -> Result {
    with_each(async |world, method, outage| {
        // A server that is stopped admits no client.
        if method != Method::Server || outage == Outage::CutOff {
            return Ok(());
        }
        let mut of = Three::new(world, method, &impatient()).await?;
        of.fars[2].stop().await;
        let id = commit(&of.set, 1, 3)?;
        let outcome = of.set.settle(id, 3, Duration::from_secs(3)).await?;
        assert_eq!(of.durable(outcome), of.good());
        assert_eq!(of.set.able(), 3, "its host is there");
        outage.begin(world, &mut of.fars[2]).await?;
        let settled = in_time(of.set.settle(id, 3, Duration::MAX));
        let outcome = within(NOTICED, settled).await?;
        assert_eq!(of.durable(outcome), of.good());
        assert_eq!(of.unknown(outcome), of.faulty());
        assert_eq!(of.set.able(), 2);
        outage.end(&of.fars[2]);
        of.keep(1, 0..=1).await;
        Ok(())
    })
}

/// Promise: a replica with a failed post, in any way, holds the bytes of that commit in the ring
/// until its connection is destroyed: its device may read them. It has no later commit.
#[test]
fn a_failed_post_keeps_the_ring() -> Result {
    for method in methods() {
        let mut failed = 0;
        for (call, how) in failed_posts() {
            println!("{method}, {call}, {how:?}");
            failed += usize::from(virtually(async |world| {
                let of = Three::new(world, method, &ConnCfg::new()).await?;
                let failing = world.fail(call).how(how).nth(3, Errno::IO);
                let id = commit(&of.set, 1, 2)?;
                let has_failed = !failing.disarm();
                assert_eq!(of.set.is_able(of.ids[2]), !has_failed);
                if !has_failed {
                    of.set.settle(id, 3, LIMIT).await?;
                    of.keep(1, 1..=1).await;
                    return Ok(false);
                }
                let mut last = (id, 1);
                let full = loop {
                    let room = of.set.room(100, SHORT).await;
                    if room.is_err() {
                        break room;
                    }
                    let number = last.1 + 1;
                    assert!(number <= RING as u64 / 100, "its bytes are free");
                    last = (commit(&of.set, number, 2)?, number);
                };
                assert_eq!(of.holders(full), of.faulty());
                let (last, number) = last;
                let settled = of.set.settle(last, 2, LIMIT).await;
                assert_eq!(of.durable(settled?), of.good());
                within(SHORT, of.set.set_aside(of.ids[2], SHORT)).await?;
                of.set.room(100, SHORT).await?;
                of.keep(number, 0..=1).await;
                Ok(true)
            })?);
        }
        assert!(failed > 0, "{method}");
    }
    Ok(())
}
