//! Mistakes: one clear error each, before anything is posted, and no panic.

use std::ops::Bound;

use rpma_async::{Conn, Pool, Reactor, Setup, block_on};

use crate::awaited::support::{
    CLOSE, Memories, accept_next, both, connect, gives_back, joined, listen, run, says, turns,
    with_ends, with_reactor,
};
use crate::common::prelude::*;

/// Promise: a pool without a byte, or of more than there can be, is refused.
#[test]
fn pools_that_cannot_be() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for (block, count) in [(0, 1), (1, 0), (0, 0)] {
        let sizes = format!("{count} blocks of {block} bytes");
        says(Pool::new(&peer, block, count), &[&sizes, "at least"]);
    }
    for (block, count) in [
        (usize::MAX, 1),
        (usize::MAX / 2, 3),
        (1 << 40, 1 << 40),
        (1, u32::MAX as usize + 1),
        (isize::MAX as usize, 1),
    ] {
        let sizes = format!("{count} blocks of {block} bytes");
        says(Pool::new(&peer, block, count), &[&sizes, "more"]);
    }
    // A pool with too many bytes for this machine or its device.
    let error = Pool::new(&peer, 1 << 45, 1).expect_err("32 TiB");
    assert!(error.to_string().len() > 20, "{error}");
    Ok(())
}

/// Promise: a slice outside of its block is refused, with any bounds.
#[test]
fn slices_outside_of_a_block() -> Result {
    let _test = device_test();
    let pool = Pool::new(&peer()?, 64, 1)?;
    let mut lease = pool.try_lease().ok_or("free")?;
    lease.truncate(10);
    lease.truncate(50);
    let block = lease.freeze();
    assert_eq!(block.len(), 10, "a longer length changes nothing");
    let end = Bound::Excluded(usize::MAX);
    let whole = (Bound::Included(0), Bound::Included(usize::MAX));
    let after = (Bound::Excluded(usize::MAX), Bound::Unbounded);
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let backwards = block.slice(4..3);
    for refused in [
        block.slice(..11),
        block.slice(11..),
        block.slice(5..=10),
        block.slice((Bound::Included(0), end)),
        block.slice(whole),
        block.slice(after),
        backwards,
    ] {
        says(refused, &["slice", "10 bytes", "not inside"]);
    }
    let part = block.slice(2..8)?;
    assert_eq!(part.slice(..)?.len(), 6);
    assert_eq!(part.slice(6..)?.len(), 0);
    says(part.slice(..7), &["6 bytes"]);
    Ok(())
}

/// Memory of another peer's pool is refused, and comes back.
fn memory_of_another_peer(client: &Conn, memories: &Memories, of_other: &Memories) -> Result {
    let to = memories.to();
    let parts = ["another Peer"];
    gives_back(client.write(to, of_other.word()), &parts);
    gives_back(client.read(of_other.block(&[0; 7]), to), &parts);
    gives_back(client.send(of_other.word()), &parts);
    let mut batch = client.batch::<2>();
    batch.write(to, memories.word())?;
    batch.write(to, of_other.word())?;
    let refused = batch.commit().expect_err("another peer's");
    assert_eq!(refused.memory.ok_or("all")?.into_iter().count(), 2);
    Ok(())
}

fn lengths_that_differ(client: &Conn, memories: &Memories) -> Result {
    let (to, longer) = (memories.to(), memories.remote.slice(..80)?);
    gives_back(client.write(longer, memories.word()), &["80", "7"]);
    let long = memories.block(&[0; 80]).freeze();
    gives_back(client.write(to, long), &["80", "7"]);
    let whole = memories.pool.try_lease().ok_or("free")?;
    gives_back(client.read(whole, to), &["100", "7"]);
    let at = memories.remote.slice(60..68)?;
    says(client.atomic_write(at, [0; 8]), &["8"]);
    says(client.atomic_write(to, [0; 8]), &["8"]);
    Ok(())
}

/// The region has no such right.
fn a_flush_without_the_right(client: &Conn, memories: &Memories) {
    let flush = client.flush(memories.to(), FlushType::Persistent);
    let flush = flush.expect_err("no right");
    assert!(flush.to_string().len() > 20, "{flush}");
}

/// Batches without operations, and one with more than it has room for, which is never committed.
fn empty_and_full_batches(client: &Conn, memories: &Memories) -> Result {
    says(client.batch::<3>().commit(), &["batch without operations"]);
    says(client.batch::<0>().commit(), &["batch without operations"]);
    let (to, at) = (memories.to(), memories.remote.slice(60..68)?);
    let mut batch = client.batch::<1>();
    assert!(batch.is_empty());
    batch.write(to, memories.word())?;
    gives_back(batch.write(to, memories.word()), &["full", "takes 1"]);
    says(batch.flush(to, FlushType::Visibility), &["full"]);
    says(batch.atomic_write(at, [0; 8]), &["full"]);
    says(batch.send(memories.word()), &["full"]);
    assert_eq!(batch.len(), 1);
    Ok(())
}

/// One of more operations than the queue has slots.
fn a_batch_that_is_too_long(client: &Conn, memories: &Memories) -> Result {
    let mut batch = client.batch::<11>();
    let word = memories.word();
    for _ in 0..11 {
        batch.write(memories.to(), word.clone())?;
    }
    drop(word);
    let refused = batch.commit().expect_err("too long");
    assert_eq!(refused.memory.ok_or("all")?.into_iter().count(), 11);
    assert!(refused.error.to_string().len() > 20, "{}", refused.error);
    Ok(())
}

async fn waits_that_would_never_end(client: &Conn) -> Result {
    let depth = ConnCfg::new().get_sq_size();
    client.ready(depth).await?;
    client.ready(0).await?;
    for n in [depth + 1, u32::MAX] {
        let parts = [&*n.to_string(), "10 slots", "set_sq_size"];
        says(client.ready(n).await, &parts);
    }
    let inbox = client.inbox()?;
    says(client.inbox(), &["one at a time"]);
    drop(inbox);
    drop(client.inbox()?);
    Ok(())
}

/// Promise: operations that are not possible are refused with their memory, before any post.
#[test]
fn operations_that_are_not_possible() -> Result {
    with_ends(4, [2, 2], async |memories, (client, _server)| {
        let of_other = Memories::new(&peer()?);
        let posted = client.counters().posted;
        memory_of_another_peer(&client, memories, &of_other)?;
        lengths_that_differ(&client, memories)?;
        a_flush_without_the_right(&client, memories);
        empty_and_full_batches(&client, memories)?;
        a_batch_that_is_too_long(&client, memories)?;
        waits_that_would_never_end(&client).await?;
        assert_eq!(client.counters().posted, posted, "nothing was posted");
        assert_eq!(memories.pool.available(), 4);
        client.close(CLOSE).await?;
        assert_eq!(of_other.pool.available(), 4);
        Ok(())
    })
}

/// Promise: settings that do not fit a reactor are refused on both sides, and the error names them.
/// The client is notified.
#[test]
fn settings_that_do_not_fit() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut srq = SrqCfg::new();
    srq.set_rq_size(4);
    let srq = Srq::new(&peer, &srq)?;
    let channel = CompletionChannel::new(&peer)?;
    let of = || ComplChannel::Of {
        channel: channel.clone(),
        key: 1,
    };
    let of_channel = with(|cfg| _ = cfg.set_compl_channel(of()));
    let of_shared = with(|cfg| _ = cfg.set_compl_channel(ComplChannel::Shared));
    let of_srq = with(|cfg| _ = cfg.set_srq(Some(&srq)));
    let solicited = with(|cfg| _ = cfg.set_rcq_notify(Notify::Solicited));
    let receives = |count, size| Setup::default().with_receives(count, size);
    let wrong: [(Setup, &[&str]); 7] = [
        (of_channel, &["completion channel"]),
        (of_shared, &["channel"]),
        (of_srq, &["shared receive queue"]),
        (solicited, &["solicited"]),
        (receives(0, 64), &["0 receives of 64 bytes"]),
        (receives(1, 0), &["1 receives of 0 bytes"]),
        (
            receives(u32::MAX, 64),
            &["set_rq_size(4294967295)", "has at most"],
        ),
    ];
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let (listener, addr) = listen(&reactor)?;
        for (setup, parts) in &wrong {
            says(reactor.connect(addr, setup, b"").await, parts);
            let connecting = reactor.connect(addr, &Setup::default(), b"");
            let (client, server) = both(connecting, accept_next(&listener, setup, b"")).await;
            says(server, parts);
            let error = client.expect_err("it is rejected");
            assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        }
        // Private data that is too long.
        let setup = Setup::default();
        let connected = reactor.connect(addr, &setup, &[0; 57]).await;
        says(connected, &["57", "56"]);
        let connecting = reactor.connect(addr, &setup, b"");
        let (client, server) = both(connecting, accept_next(&listener, &setup, &[0; 197])).await;
        says(server, &["197", "196"]);
        client.expect_err("it is rejected");
        // A connection without receives.
        let (client, _server) = connect(&reactor, &setup, &setup).await;
        says(client.inbox(), &["no receives", "with_receives"]);
        Ok(())
    })
}

fn with(set: impl FnOnce(&mut ConnCfg)) -> Setup {
    let mut cfg = ConnCfg::new();
    set(&mut cfg);
    Setup::new(&cfg)
}

/// Promise: a program may keep more finished operations than the queue has slots, and await them
/// later.
#[test]
fn finished_operations_that_are_kept() -> Result {
    with_ends(4, [0, 0], async |memories, (client, _server)| {
        let mut kept = Vec::new();
        let word = memories.word();
        for _ in 0..50 {
            kept.push(client.write(memories.to(), word.clone())?);
            client.idle().await?;
        }
        client.ready(10).await?;
        for op in kept {
            op.await?;
        }
        client.flush(memories.to(), FlushType::Visibility)?.await?;
        Ok(())
    })
}

/// Promise: a reactor outside of a runtime, or in one that lacks a driver, reports that.
#[test]
fn runtimes_that_do_not_fit() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let outside = ["outside of a tokio runtime", "on_thread"];
    says(Reactor::spawn(&peer), &outside);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.build()?.block_on(async {
        let drivers = ["no I/O driver, or no time driver", "enable_all"];
        says(Reactor::spawn(&peer), &drivers);
        says(Reactor::new(&peer).map(drop), &["no I/O driver"]);
    });
    let runtime = builder.enable_time().build()?;
    runtime.block_on(async { says(Reactor::spawn(&peer), &["no I/O driver"]) });
    Ok(())
}

/// Promise: a runtime with a paused clock, beside a fabric that does not follow it, is an error
/// which names the remedy: the driver would set its timers again and again.
#[test]
fn a_paused_clock_that_is_not_followed() -> Result {
    let _test = device_test();
    let peer = peer()?;
    paused_runtime().block_on(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        let driver = tokio::spawn(driver);
        let (_listener, _) = listen(&reactor)?;
        let remedy = ["is paused", "Fabric::follow"];
        says(driver.await.expect("no panic"), &remedy);
        let (listener, _) = listen(&reactor)?;
        says(listener.accept().await.map(drop), &remedy);
        Ok(())
    })
}

/// Promise: if the driver of a reactor never runs, connecting and accepting return an error, after
/// some seconds. A driver that begins to run a moment later causes no error.
#[test]
fn a_driver_that_never_runs() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        let (_listener, addr) = listen(&reactor)?;
        let (unused, _addr) = listen(&reactor)?;
        let connecting = reactor.connect(addr, &Setup::default(), b"");
        let accepting = std::thread::spawn(move || {
            let accepted = block_on(unused.accept(), LIMIT).expect("in time");
            says(accepted, &["never run"]);
        });
        says(connecting.await, &["never run", "spawn the Driver"]);
        accepting.join().expect("no panic");
        drop(driver);
        let connecting = reactor.connect(addr, &Setup::default(), b"").await;
        says(connecting, &["was dropped"]);

        let (reactor, driver) = Reactor::new(&peer)?;
        let (listener, addr) = listen(&reactor)?;
        let connecting = reactor.connect(addr, &Setup::default(), b"");
        let setup = Setup::default();
        let accepting = accept_next(&listener, &setup, b"");
        #[expect(clippy::async_yields_async, reason = "it is awaited later")]
        let driving = async {
            turns(1).await;
            tokio::spawn(driver)
        };
        let (connected, (accepted, driver)) = both(connecting, both(accepting, driving)).await;
        drop((connected?, accepted?));
        drop((reactor, listener));
        joined(driver).await?;
        Ok(())
    })
}

/// Promise: futures of a reactor are awaited wherever the program likes: on another thread,
/// outside of the runtime that its driver is on.
#[test]
fn awaited_outside_of_the_drivers_runtime() -> Result {
    with_ends(4, [0, 1], async |memories, (client, server)| {
        client.send(memories.word())?.await?;
        let sent = client.send(memories.word())?;
        let elsewhere = move || -> Result {
            block_on(sent, LIMIT).ok_or("in time")??;
            block_on(client.idle(), LIMIT).ok_or("in time")??;
            let closed = block_on(client.closed(), Duration::from_millis(1));
            assert!(closed.is_none(), "its limit is kept");
            Ok(block_on(client.close(CLOSE), LIMIT).ok_or("in time")??)
        };
        let elsewhere = tokio::task::spawn_blocking(move || std::thread::spawn(elsewhere).join());
        let mut inbox = server.inbox()?;
        while inbox.next().await?.is_some() {}
        joined(elsewhere).await.expect("no panic")?;
        Ok(())
    })
}

/// Promise: the peer of another device, or an address without a device, is an error.
#[test]
fn addresses_that_do_not_fit() -> Result {
    with_reactor(async |reactor| {
        let nobody = "192.0.2.1:7204".parse()?;
        reactor.listen(nobody).expect_err("no address of this host");
        let (listener, addr) = listen(reactor)?;
        let again = reactor.listen(addr).expect_err("the port is taken");
        assert!(matches!(again, Error::Provider { .. }), "{again:?}");
        drop(listener);
        let error = reactor.connect(addr, &Setup::default(), b"").await;
        let error = error.expect_err("nobody listens");
        assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        Ok(())
    })
}
