//! Mistakes: one clear error each, before anything is posted, and no panic.

use std::ops::Bound;

use rpma_async::{Conn, Pool, Reactor, Setup, block_on};

use crate::awaited::support::{CLOSE, Ends, Memories, both, listen, run};
use crate::common::prelude::*;

/// The error is about an argument, and its text has all of `parts`.
#[track_caller]
fn says<T, E: Into<Error>>(result: Result<T, E>, parts: &[&str]) {
    let text = invalid(result.map_err(Into::into));
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

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
    let write = client
        .write(to, of_other.word())
        .expect_err("another peer's");
    assert!(write.memory.is_some());
    says(Err::<(), _>(write), &["another Peer"]);
    let read = client
        .read(of_other.block(&[0; 7]), to)
        .expect_err("another peer's");
    assert!(read.memory.is_some());
    says(Err::<(), _>(read), &["another Peer"]);
    let send = client.send(of_other.word()).expect_err("another peer's");
    assert!(send.memory.is_some());
    says(Err::<(), _>(send), &["another Peer"]);
    let mut batch = client.batch::<2>();
    batch.write(to, memories.word())?;
    batch.write(to, of_other.word())?;
    let refused = batch.commit().expect_err("another peer's");
    assert_eq!(refused.memory.ok_or("all")?.into_iter().count(), 2);
    Ok(())
}

fn lengths_that_differ(client: &Conn, memories: &Memories) -> Result {
    let (to, longer) = (memories.to(), memories.remote.slice(..80)?);
    let write = client.write(longer, memories.word()).expect_err("too long");
    assert!(write.memory.is_some());
    says(Err::<(), _>(write), &["80", "7"]);
    let write = client
        .write(to, memories.block(&[0; 80]).freeze())
        .expect_err("too long");
    says(Err::<(), _>(write), &["80", "7"]);
    let whole = memories.pool.try_lease().ok_or("free")?;
    let read = client.read(whole, to).expect_err("not truncated");
    assert!(read.memory.is_some());
    says(Err::<(), _>(read), &["100", "7"]);
    let at = memories.remote.slice(60..68)?;
    says(client.atomic_write(at, [0; 8]), &["8"]);
    says(client.atomic_write(to, [0; 8]), &["8"]);
    Ok(())
}

/// The region has no such right.
fn a_flush_without_the_right(client: &Conn, memories: &Memories) {
    let flush = client
        .flush(memories.to(), FlushType::Persistent)
        .expect_err("no right");
    assert!(flush.to_string().len() > 20, "{flush}");
}

/// Batches without operations, and one with more than it has room for, which is never committed.
fn empty_and_full_batches(client: &Conn, memories: &Memories) -> Result {
    let empty = client.batch::<3>().commit();
    says(empty, &["batch without operations"]);
    says(client.batch::<0>().commit(), &["batch without operations"]);
    let (to, at) = (memories.to(), memories.remote.slice(60..68)?);
    let mut batch = client.batch::<1>();
    assert!(batch.is_empty());
    batch.write(to, memories.word())?;
    let more = batch.write(to, memories.word()).expect_err("it is full");
    assert!(more.memory.is_some());
    says(Err::<(), _>(more), &["full", "takes 1"]);
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
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let (memories, of_other) = (Memories::new(&peer), Memories::new(&other));
    run(async {
        let setup = Setup::default().with_receives(2, 64);
        let Ends {
            client,
            server: _server,
            ..
        } = Ends::new(&peer, &setup, &setup).await?;
        let posted = client.counters().posted;
        memory_of_another_peer(&client, &memories, &of_other)?;
        lengths_that_differ(&client, &memories)?;
        a_flush_without_the_right(&client, &memories);
        empty_and_full_batches(&client, &memories)?;
        a_batch_that_is_too_long(&client, &memories)?;
        waits_that_would_never_end(&client).await?;
        assert_eq!(client.counters().posted, posted, "nothing was posted");
        assert_eq!(memories.pool.available(), 4);
        client.close(CLOSE).await?;
        Ok(())
    })?;
    assert_eq!(
        (memories.pool.available(), of_other.pool.available()),
        (4, 4)
    );
    Ok(())
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
    let wrong: [(Setup, &[&str]); 7] = [
        (
            with(|cfg| _ = cfg.set_compl_channel(of())),
            &["completion channel"],
        ),
        (
            with(|cfg| _ = cfg.set_compl_channel(ComplChannel::Shared)),
            &["channel"],
        ),
        (
            with(|cfg| _ = cfg.set_srq(Some(&srq))),
            &["shared receive queue"],
        ),
        (
            with(|cfg| _ = cfg.set_rcq_notify(Notify::Solicited)),
            &["solicited"],
        ),
        (
            Setup::default().with_receives(0, 64),
            &["0 receives of 64 bytes"],
        ),
        (
            Setup::default().with_receives(1, 0),
            &["1 receives of 0 bytes"],
        ),
        (
            Setup::default().with_receives(u32::MAX, 64),
            &["4294967295 receives", "16777216"],
        ),
    ];
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let (listener, addr) = listen(&reactor)?;
        for (setup, parts) in &wrong {
            says(reactor.connect(addr, setup, b"").await, parts);
            let connecting = reactor.connect(addr, &Setup::default(), b"");
            let accepting = async {
                let incoming = listener.accept().await.expect("a request");
                says(incoming.accept(setup, b"").await, parts);
            };
            let (client, ()) = both(connecting, accepting).await;
            let error = client.expect_err("it is rejected");
            assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        }
        // Private data that is too long.
        says(
            reactor.connect(addr, &Setup::default(), &[0; 57]).await,
            &["57", "56"],
        );
        let connecting = reactor.connect(addr, &Setup::default(), b"");
        let accepting = async {
            let incoming = listener.accept().await.expect("a request");
            says(
                incoming.accept(&Setup::default(), &[0; 197]).await,
                &["197", "196"],
            );
        };
        let (client, ()) = both(connecting, accepting).await;
        client.expect_err("it is rejected");
        // A connection without receives.
        let Ends {
            client,
            server: _server,
            ..
        } = Ends::new(&peer, &Setup::default(), &Setup::default()).await?;
        says(client.inbox(), &["no receives", "with_receives"]);
        Ok(())
    })
}

fn with(set: impl FnOnce(&mut ConnCfg)) -> Setup {
    let mut cfg = ConnCfg::new();
    set(&mut cfg);
    Setup::new(&cfg)
}

/// Promise: more finished operations than there are slots are an error that names the remedy. So
/// does a batch. Finished operations are awaited as usual.
#[test]
fn finished_operations_that_are_kept() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let ends = Ends::new(&peer, &Setup::default(), &Setup::default()).await?;
        let client: &Conn = &ends.client;
        let mut kept = Vec::new();
        let word = memories.word();
        while let Ok(op) = client.write(memories.to(), word.clone()) {
            kept.push(op);
            client.idle().await?;
        }
        assert_eq!(kept.len(), 20);
        let refused = client
            .write(memories.to(), word.clone())
            .expect_err("no slot");
        assert!(refused.memory.is_some());
        says(
            Err::<(), _>(refused),
            &["20 operations", "await or drop them"],
        );
        let mut batch = client.batch::<1>();
        batch.write(memories.to(), word)?;
        says(batch.commit(), &["20 operations"]);
        client.ready(10).await?;
        for op in kept {
            op.await?;
        }
        client.flush(memories.to(), FlushType::Visibility)?.await?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: a reactor outside of a runtime, or in one that lacks a driver, reports that.
#[test]
fn runtimes_that_do_not_fit() -> Result {
    let _test = device_test();
    let peer = peer()?;
    says(
        Reactor::spawn(&peer),
        &["outside of a tokio runtime", "on_thread"],
    );
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime?.block_on(async {
        says(
            Reactor::spawn(&peer),
            &["no I/O driver, or no time driver", "enable_all"],
        );
        says(Reactor::new(&peer).map(drop), &["no I/O driver"]);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime?.block_on(async {
        says(Reactor::spawn(&peer), &["no I/O driver"]);
    });
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
        let accepting = std::thread::spawn(move || -> Result {
            let accepted = block_on(unused.accept(), LIMIT).ok_or("in time")?;
            says(accepted, &["never run"]);
            Ok(())
        });
        says(connecting.await, &["never run", "spawn the Driver"]);
        accepting.join().expect("no panic")?;
        drop(driver);
        let connecting = reactor.connect(addr, &Setup::default(), b"").await;
        says(connecting, &["was dropped"]);

        let (reactor, driver) = Reactor::new(&peer)?;
        let (listener, addr) = listen(&reactor)?;
        let connecting = reactor.connect(addr, &Setup::default(), b"");
        let accepting = async {
            let incoming = listener.accept().await.expect("a request");
            incoming.accept(&Setup::default(), b"").await
        };
        #[expect(clippy::async_yields_async, reason = "it is awaited later")]
        let driving = async {
            tokio::task::yield_now().await;
            tokio::spawn(driver)
        };
        let (connected, (accepted, driver)) = both(connecting, both(accepting, driving)).await;
        drop((connected?, accepted?));
        drop((reactor, listener));
        driver.await.expect("no panic")?;
        Ok(())
    })
}

/// Promise: futures of a reactor are awaited wherever the program likes: on another thread,
/// outside of the runtime that its driver is on.
#[test]
fn awaited_outside_of_the_drivers_runtime() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let setup = Setup::default().with_receives(1, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await?;
        client.send(memories.word())?.await?;
        let sent = client.send(memories.word())?;
        let client = client.clone();
        let elsewhere = tokio::task::spawn_blocking(move || {
            std::thread::spawn(move || {
                block_on(sent, LIMIT)
                    .expect("in time")
                    .expect("it has landed");
                block_on(client.idle(), LIMIT)
                    .expect("in time")
                    .expect("no error");
                let closed = block_on(client.closed(), Duration::from_millis(1));
                assert!(closed.is_none(), "its limit is kept");
                block_on(client.close(CLOSE), LIMIT).expect("in time")
            })
            .join()
        });
        let mut inbox = server.inbox()?;
        while inbox.next().await?.is_some() {}
        elsewhere.await.expect("no panic").expect("no panic")?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: the peer of another device, or an address without a device, is an error.
#[test]
fn addresses_that_do_not_fit() -> Result {
    let _test = device_test();
    let peer: Peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let nobody = "192.0.2.1:7204".parse()?;
        reactor.listen(nobody).expect_err("no address of this host");
        let (listener, addr) = listen(&reactor)?;
        let again = reactor.listen(addr).expect_err("the port is taken");
        assert!(matches!(again, Error::Provider { .. }), "{again:?}");
        drop(listener);
        let error = reactor.connect(addr, &Setup::default(), b"").await;
        let error = error.expect_err("nobody listens");
        assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        Ok(())
    })
}
