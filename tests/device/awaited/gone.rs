//! Waits for the end of one replica.

use rpma::commit::{ReplicaId, Replicas as Set};
use rpma_async::{Reactor, Replicas};
use std::ops::Range;

use crate::awaited::served::{Serving, TAIL, cfg, poll_once, polls, writer};
use crate::awaited::support::{in_time, run};
use crate::common::prelude::*;
use crate::serve::support::Site;

/// A set of the keys of one server.
async fn set_of(
    reactor: &Reactor,
    serving: &Serving,
    keys: Range<u64>,
) -> Result<(Replicas, Vec<ReplicaId>)> {
    let set = Set::new(reactor.peer(), 1024, 8)?;
    let set = Replicas::new(reactor, set)?;
    set.permit_one_host().permit_one_memory();
    let mut ids = Vec::new();
    for key in keys {
        ids.push(add(&set, reactor, serving, key).await?);
    }
    Ok((set, ids))
}

async fn add(set: &Replicas, reactor: &Reactor, serving: &Serving, key: u64) -> Result<ReplicaId> {
    let writer = writer(reactor, serving.addr, key).await;
    let remote = writer.offer().regions()[0];
    Ok(set.add(writer, remote)?)
}

/// Commits to `k` replicas, and waits until they have it.
async fn commits(set: &Replicas, k: usize) -> Result {
    let pointer = Some((TAIL, [1; 8]));
    let id = set.commit(64, &[b"record"], pointer, k)?;
    let outcome = set.settle(id, k, LIMIT).await?;
    assert_eq!(outcome.copies(), k);
    Ok(())
}

/// Promise: each wait ends when its own replica is set aside or lost, and not for another one. A
/// wait that comes later returns at once. A replica of another set is gone.
#[test]
fn each_replica_has_its_own_end() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::of(&reactor, Site::with(4, &cfg()?)?)?;
        let (set, ids) = set_of(&reactor, &serving, 1..4).await?;
        let (other, others) = set_of(&reactor, &serving, 4..5).await?;
        assert_eq!(set.ids(u64::MAX), ids);
        assert_eq!(set.ids(ids[1].mask()), [ids[1]]);
        let waits = ids.iter().map(|&id| {
            let set = set.clone();
            tokio::spawn(async move { set.gone(id).await })
        });
        let mut waits = waits.collect::<Vec<_>>();
        commits(&set, 3).await?;
        assert!(ids.iter().all(|&id| set.is_able(id)));
        assert!(waits.iter().all(|wait| !wait.is_finished()));

        set.set_aside(ids[1], LIMIT).await?;
        let gone = in_time(waits.remove(1)).await.expect("no panic");
        assert_eq!(gone?, None);
        assert!(!set.is_able(ids[1]) && set.is_able(ids[0]) && set.is_able(ids[2]));
        commits(&set, 2).await?;
        assert!(waits.iter().all(|wait| !wait.is_finished()));

        assert!(!set.is_able(others[0]), "of another set");
        let gone = in_time(set.gone(others[0])).await;
        assert_eq!(gone?, None);

        serving.kill().await;
        for wait in waits {
            in_time(wait).await.expect("no panic")?;
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
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::of(&reactor, Site::with(2, &cfg()?)?)?;
        for n in 0..4 {
            let (set, ids) = set_of(&reactor, &serving, 1..2).await?;
            assert!(polls(set.gone(ids[0]), n).await.is_none());
            let added = add(&set, &reactor, &serving, 2).await?;
            commits(&set, 2).await?;
            let gone = tokio::spawn({
                let set = set.clone();
                async move { set.gone(added).await }
            });
            set.set_aside(added, LIMIT).await?;
            in_time(gone).await.expect("no panic")?;
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
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::of(&reactor, Site::with(2, &cfg()?)?)?;
        let (set, ids) = set_of(&reactor, &serving, 1..3).await?;
        let old = ids[1];
        let mut waiting = Box::pin(set.gone(old));
        assert!(poll_once(waiting.as_mut()).await.is_none());
        commits(&set, 2).await?;
        let pointer = Some((TAIL, [1; 8]));
        let before = set.commit(64, &[b"record"], pointer, 2)?;
        let outcome = set.settle(before, 2, LIMIT).await?;
        assert_eq!(outcome.durable, 0b11);

        let mut id = old;
        for _ in 0..Set::MOST - 1 {
            set.set_aside(id, LIMIT).await?;
            id = add(&set, &reactor, &serving, 2).await?;
        }
        assert_eq!((id.index(), id.mask()), (old.index(), old.mask()));
        assert_ne!(id, old);
        assert!(set.ids(u64::MAX).contains(&id) && !set.ids(u64::MAX).contains(&old));
        assert_eq!(set.outcome(before).durable, 0b1, "the new one never got it");

        let gone = in_time(waiting).await?;
        assert_eq!(gone, None);
        let gone = in_time(set.gone(old)).await?;
        assert_eq!(gone, None);
        assert!(!set.is_able(old));
        assert_eq!(set.failure(old), None);
        set.set_aside(old, LIMIT).await?;
        assert!(set.is_able(id));
        commits(&set, 2).await?;
        drop(set);
        serving.stop().await;
        Ok(())
    })
}

/// Promise: a driver that is dropped is an error of the wait.
#[test]
fn a_driver_that_is_gone_ends_the_wait() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::of(&reactor, Site::with(1, &cfg()?)?)?;
        let writer = writer(&reactor, serving.addr, 1).await;
        let remote = writer.offer().regions()[0];
        let (without, driver) = Reactor::new(&peer)?;
        let driving = tokio::spawn(driver);
        let set = Set::new(&peer, 1024, 8)?;
        let set = Replicas::new(&without, set)?;
        let id = set.add(writer, remote)?;
        let waiting = tokio::spawn({
            let set = set.clone();
            async move { set.gone(id).await }
        });
        commits(&set, 1).await?;
        driving.abort();
        let gone = in_time(waiting).await.expect("no panic");
        let gone = gone.expect_err("nobody wakes it");
        assert!(gone.to_string().contains("was dropped"), "{gone}");
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
    use std::time::Duration;

    use rpma::{ConnCfg, Failure, WcStatus};

    use crate::awaited::far::Far;
    use crate::awaited::world::virtually;

    const MINUTE: Duration = Duration::from_secs(60);

    // The driver looks each second in any case, which is too late for that keep-alive.
    for keep_alive in [Some(Duration::from_secs(2)), None] {
        virtually(async |world| {
            let third = world.fabric.host("third");
            let on_third = {
                let _entered = third.enter();
                Reactor::spawn(&peer()?)?
            };
            let mut cfg = ConnCfg::new();
            cfg.set_keep_alive(keep_alive)?;
            // So the retries of a probe take longer than the keep-alive.
            cfg.set_ack_timeout(Some(16))?;
            let on_second = (&world.hosts[1], &world.reactors[1]);
            let fars = [
                Far::on(world, on_second, &cfg).await?,
                Far::on(world, (&third, &on_third), &cfg).await?,
            ];
            let [client, _] = &world.reactors;
            let set = Set::new(client.peer(), 1024, 8)?;
            let set = Replicas::new(client, set)?;
            let mut servers = Vec::new();
            let ids = fars.map(|far| {
                servers.push((far.server, far.target));
                let remote = far.writer.offer().regions()[0];
                set.add(far.writer, remote).expect("added")
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
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::of(&reactor, Site::with(3, &cfg()?)?)?;
        let (set, ids) = set_of(&reactor, &serving, 1..4).await?;
        // Its server's responder stands still, so no replica answers.
        let stopped = serving.stop().await;
        let id = set.commit(64, &[b"record"], None, 3)?;
        let mut everywhere = Box::pin(set.everywhere(id));
        assert!(
            polls(everywhere.as_mut(), 9).await.is_none(),
            "nothing is there"
        );
        for id in &ids {
            set.set_aside(*id, LIMIT).await?;
        }
        in_time(everywhere).await?;
        drop(stopped);
        Ok(())
    })
}
