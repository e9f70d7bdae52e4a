//! Waits for the end of one replica.

use rpma::commit::Replicas as Set;
use rpma_async::{Reactor, Replicas};

use crate::awaited::replicas::{RING, add, has_copies, new_set, set_of};
use crate::awaited::served::{Serving, TAIL, polls, writer};
use crate::awaited::support::{begun, in_time, joined, says, spawn_with, with_reactor};
use crate::common::prelude::*;

/// Commits to `k` replicas, and waits until they have it.
async fn commits(set: &Replicas, k: usize) -> Result {
    let pointer = Some((TAIL, [1; 8]));
    let id = set.commit(64, &[b"record"], pointer, k)?;
    has_copies(set, id, k).await
}

/// Promise: each wait ends when its own replica is set aside or lost, and not for another one. A
/// wait that comes later returns at once. A replica of another set is gone.
#[test]
fn each_replica_has_its_own_end() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 4)?;
        let (set, ids) = set_of(reactor, &serving, 1..4).await?;
        let (other, others) = set_of(reactor, &serving, 4..5).await?;
        let wait = |&id| spawn_with(&set, |set| async move { set.gone(id).await });
        let mut waits: Vec<_> = ids.iter().map(wait).collect();
        commits(&set, 3).await?;
        assert!(ids.iter().all(|&id| set.is_able(id)));
        assert!(waits.iter().all(|wait| !wait.is_finished()));

        set.set_aside(ids[1], LIMIT).await?;
        assert_eq!(joined(waits.remove(1)).await?, None);
        assert!(!set.is_able(ids[1]) && set.is_able(ids[0]) && set.is_able(ids[2]));
        commits(&set, 2).await?;
        assert!(waits.iter().all(|wait| !wait.is_finished()));

        assert!(!set.is_able(others[0]), "of another set");
        assert_eq!(in_time(set.gone(others[0])).await?, None);

        serving.kill().await;
        for wait in waits {
            joined(wait).await?;
        }
        assert_eq!(set.able(), 0);
        for id in ids {
            in_time(set.gone(id)).await?;
        }
        drop((set, other));
        Ok(())
    })
}

/// Promise: a wait that is dropped after its nth poll has no effect, and a replica that is added
/// meanwhile has its own wait.
#[test]
fn a_dropped_wait_for_the_end() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        for n in 0..4 {
            let (set, ids) = set_of(reactor, &serving, 1..2).await?;
            assert!(polls(set.gone(ids[0]), n).await.is_none());
            let added = add(&set, writer(reactor, serving.addr, 2).await)?;
            commits(&set, 2).await?;
            let gone = spawn_with(&set, |set| async move { set.gone(added).await });
            set.set_aside(added, LIMIT).await?;
            joined(gone).await?;
            commits(&set, 1).await?;
            // The server sees both ends before the keys come again.
            drop(set);
        }
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a replica is gone when another one has got its place, also for a wait that began
/// before, and its id reaches no other replica.
#[test]
fn a_place_that_is_used_again_belongs_to_the_new_replica() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 2)?;
        let (set, ids) = set_of(reactor, &serving, 1..3).await?;
        let old = ids[1];
        let mut waiting = Box::pin(set.gone(old));
        assert!(begun(&mut waiting).await.is_none());
        commits(&set, 2).await?;
        let pointer = Some((TAIL, [1; 8]));
        let before = set.commit(64, &[b"record"], pointer, 2)?;
        let outcome = set.settle(before, 2, LIMIT).await?;
        assert_eq!(set.durable(outcome), ids);

        let mut id = old;
        for _ in 0..Set::MOST - 1 {
            set.set_aside(id, LIMIT).await?;
            id = add(&set, writer(reactor, serving.addr, 2).await)?;
        }
        assert_eq!(id.index(), old.index());
        assert_ne!(id, old);
        assert_eq!(set.durable(outcome), [ids[0]]);
        let outcome = set.outcome(before);
        assert_eq!(outcome.copies(), 1, "the new one never got it");
        assert_eq!(set.durable(outcome), [ids[0]]);

        assert_eq!(in_time(waiting).await?, None);
        assert_eq!(in_time(set.gone(old)).await?, None);
        assert!(!set.is_able(old));
        assert_eq!(set.failure(old), None);
        set.set_aside(old, LIMIT).await?;
        assert!(set.is_able(id));
        commits(&set, 2).await?;
        let after = set.commit(64, &[b"record"], pointer, 2)?;
        let outcome = set.settle(after, 2, LIMIT).await?;
        assert_eq!(set.durable(outcome), [ids[0], id]);
        drop(set);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a driver that is dropped is an error of the wait.
#[test]
fn a_driver_that_is_gone_ends_the_wait() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 1)?;
        let writer = writer(reactor, serving.addr, 1).await;
        let (without, driver) = Reactor::new(reactor.peer())?;
        let driving = tokio::spawn(driver);
        let set = new_set(&without, RING)?;
        let id = add(&set, writer)?;
        let waiting = spawn_with(&set, |set| async move { set.gone(id).await });
        commits(&set, 1).await?;
        driving.abort();
        says(joined(waiting).await, &["was dropped"]);
        drop(set);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a host that is gone ends the wait with the failure of its connection, and no other
/// one: with a keep-alive within its time, and otherwise by the first commit that fails.
#[cfg(feature = "sim")]
#[test]
fn a_host_that_is_gone_ends_the_wait() -> Result {
    use crate::awaited::made::Linked;
    use crate::awaited::world::virtually;

    const MINUTE: Duration = Duration::from_secs(60);

    // The driver looks each second in any case, which is too late for that keep-alive.
    for keep_alive in [Some(Duration::from_secs(2)), None] {
        virtually(async |world| {
            let third = world.fabric.host("third");
            let on_third = Reactor::spawn(&peer_of(&third))?;
            let mut cfg = ConnCfg::new();
            cfg.set_keep_alive(keep_alive)?;
            // So the retries of a probe take longer than the keep-alive.
            cfg.set_ack_timeout(Some(16))?;
            let [client, on_second] = &world.reactors;
            let linked = [
                Linked::new(client, (on_second, world.hosts[1].addr().into()), 16, &cfg).await?,
                Linked::new(client, (&on_third, third.addr().into()), 16, &cfg).await?,
            ];
            let set = new_set(client, RING)?;
            let mut servers = Vec::new();
            let ids = linked.map(|linked| {
                servers.push((linked.server, linked.target));
                add(&set, linked.writer).expect("added")
            });
            let mut waits = ids.map(|id| Box::pin(set.gone(id)));
            for wait in &mut waits {
                let early = client.timeout(MINUTE, wait).await;
                assert!(early.is_none(), "it is there: {early:?}");
            }
            world.link.partition();
            let [mut lost, mut kept] = waits;
            if keep_alive.is_none() {
                assert!(client.timeout(MINUTE, &mut lost).await.is_none(), "idle");
                set.commit(64, &[b"record"], None, 1)?;
            }
            let limit = keep_alive.unwrap_or(MINUTE);
            let gone = client.timeout(limit, lost).await.ok_or("in time")?;
            match gone? {
                Some(Failure::Silent { .. } | Failure::Probe { .. }) => {
                    assert!(keep_alive.is_some());
                }
                Some(Failure::Operation(failure)) => {
                    assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR);
                    assert!(keep_alive.is_none());
                }
                other => panic!("{other:?}"),
            }
            assert!(client.timeout(MINUTE, &mut kept).await.is_none());
            assert!(!set.is_able(ids[0]) && set.is_able(ids[1]));
            drop(servers);
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: `everywhere` waits for each replica that can still take the commit, and not for one
/// that is set aside meanwhile.
#[test]
fn a_commit_is_everywhere() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 3)?;
        let (set, ids) = set_of(reactor, &serving, 1..4).await?;
        // Its server's responder stands still, so no replica answers.
        let stopped = serving.stop().await;
        let id = set.commit(64, &[b"record"], None, 3)?;
        let mut everywhere = Box::pin(set.everywhere(id));
        let early = polls(everywhere.as_mut(), 9).await;
        assert!(early.is_none(), "nothing is there");
        for id in &ids {
            set.set_aside(*id, LIMIT).await?;
        }
        in_time(everywhere).await?;
        drop(stopped);
        Ok(())
    })
}
