//! Futures that are dropped, after each number of polls.

use rpma_async::{Conn, Pool, Setup};

use crate::awaited::held::{hold, release};
use crate::awaited::support::{
    Boxed, CLOSE, Ends, Memories, all_slots_are_free, begun, both, connect, dropped_after, fill,
    listen, run, take_messages,
};
use crate::common::prelude::*;

/// An operation of each kind, which takes at most one block.
type Kind = for<'c> fn(&'c Conn, &Memories) -> Boxed<'c>;

const KINDS: [(&str, Kind); 11] = [
    ("write", |conn, memories| {
        let op = conn.write(memories.to(), memories.word()).expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("write with immediate data", |conn, memories| {
        let op = conn.write_with_imm(memories.to(), memories.word(), 1);
        let op = op.expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("read", |conn, memories| {
        let op = conn.read(memories.block(&[0; 7]), memories.to());
        let op = op.expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("send", |conn, memories| {
        let op = conn.send(memories.word()).expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("send with immediate data", |conn, memories| {
        let op = conn.send_with_imm(memories.word(), 1).expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("flush", |conn, memories| {
        let op = conn.flush(memories.to(), FlushType::Visibility);
        let op = op.expect("posted");
        Box::pin(async { op.await.expect("succeeds") })
    }),
    ("atomic write", |conn, memories| {
        let at = memories.remote.slice(64..72).expect("inside");
        let op = conn.atomic_write(at, *b"a point.").expect("posted");
        Box::pin(async { op.await.expect("succeeds") })
    }),
    ("batch", |conn, memories| {
        let word = memories.word();
        let other = memories.remote.slice(32..34).expect("inside");
        let mut batch = conn.batch::<4>();
        batch.write(memories.to(), word.clone()).expect("room");
        let part = word.slice(2..4).expect("inside");
        batch.write(other, part).expect("room");
        batch.flush(other, FlushType::Visibility).expect("room");
        let op = batch.commit().expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("batch of messages", |conn, memories| {
        let word = memories.word();
        let mut batch = conn.batch::<2>();
        batch.send(word.clone()).expect("room");
        batch.send_with_imm(word, 2).expect("room");
        let op = batch.commit().expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
    ("batch that was not committed", |conn, memories| {
        let mut batch = conn.batch::<2>();
        batch.write(memories.to(), memories.word()).expect("room");
        Box::pin(async move { drop(batch) })
    }),
    ("commit", |conn, memories| {
        let word = memories.word();
        let parts = [(memories.to(), word)];
        let pointer = memories.remote.slice(64..72).expect("inside");
        let op = conn.commit(parts, Some((pointer, [3; 8])), FlushType::Visibility);
        let op = op.expect("posted");
        Box::pin(async { drop(op.await.expect("succeeds")) })
    }),
];

/// Promise: an operation may be dropped after any poll. Its block comes back, even if the only
/// active task is the one that waits for the block, and its slot is free again.
#[test]
fn operations_are_dropped_after_each_poll() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::with_blocks(&peer, 1);
    run(async {
        let setup = Setup::default().with_receives(8, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await?;
        let dropping = async {
            for (name, kind) in KINDS {
                // In flight while it is dropped.
                for n in 0..4 {
                    hold();
                    dropped_after(n, true, kind(&client, &memories)).await;
                    release();
                    println!("{name}, {n} polls");
                    drop(memories.pool.lease().await);
                    client.idle().await.expect("no error");
                }
                // Until it is complete.
                let mut n = 0;
                let is_complete = |n| dropped_after(n, false, kind(&client, &memories));
                while is_complete(n).await.is_none() {
                    n += 1;
                    drop(memories.pool.lease().await);
                    client.idle().await.expect("no error");
                }
            }
            all_slots_are_free(&client, &memories)
                .await
                .expect("it has succeeded");
            client.clone().close(CLOSE).await.expect("nothing is lost");
        };
        both(dropping, take_messages(&server)).await;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 1);
    Ok(())
}

/// Promise: several operations of one block that are dropped one by one, asleep and complete ones
/// among them, give it back with the last of them.
#[test]
fn operations_that_share_a_block_are_dropped() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::with_blocks(&peer, 1);
    run(async {
        let Ends {
            client,
            server: _server,
            ..
        } = Ends::new(&peer, &Setup::default(), &Setup::default()).await?;
        for dropped in 0..8 {
            hold();
            let word = memories.word();
            let write = || client.write(memories.to(), word.clone());
            let (mut asleep, fresh, awaited) = (write()?, write()?, write()?);
            // A device that holds no operation back may have completed it.
            let early = begun(&mut asleep).await.is_some();
            drop(word);
            let ops = [asleep, fresh, awaited];
            let mut kept = Vec::new();
            for (number, op) in ops.into_iter().enumerate().skip(usize::from(early)) {
                match dropped >> number & 1 {
                    1 => op.detach(),
                    _ => kept.push(op),
                }
            }
            release();
            for op in kept {
                op.await?;
            }
            drop(memories.pool.lease().await);
        }
        all_slots_are_free(&client, &memories).await?;
        Ok(())
    })
}

/// Promise: an operation that takes longer than its limit goes on, and its block comes back.
#[test]
fn a_limit_passes_and_the_memory_comes_back() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::with_blocks(&peer, 1);
    run(async {
        let setup = Setup::default().with_receives(1, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await?;
        // The second message waits until the first one is taken.
        let word = memories.word();
        client.send(word.clone())?.await?;
        let late = client.send(word)?;
        let limit = Duration::from_millis(1);
        assert!(tokio::time::timeout(limit, late).await.is_err());
        assert_eq!(memories.pool.available(), 0, "it goes on");
        let mut inbox = server.inbox()?;
        drop(inbox.next().await?);
        drop(memories.pool.lease().await);
        let message = inbox.next().await?.ok_or("it has arrived")?;
        assert_eq!(&*message, b"a word.");
        Ok(())
    })
}

/// Promise: a wait for a block may be dropped after any poll. If it was woken, another one gets
/// its block.
#[test]
fn waits_for_a_block_are_dropped() -> Result {
    on_fabric(|| {
        let pool = Pool::new(&peer()?, 64, 1)?;
        run(async {
            for n in 0..4 {
                let block = pool.try_lease().ok_or("free")?;
                assert!(dropped_after(n, true, pool.lease()).await.is_none());
                drop(block);
                assert_eq!(pool.available(), 1);
            }
            let block = pool.try_lease().ok_or("free")?;
            let mut first = pool.lease();
            assert!(begun(&mut first).await.is_none());
            let mut second = Box::pin(tokio::spawn(pool.lease()));
            assert!(begun(&mut second).await.is_none());
            tokio::task::yield_now().await;
            drop(block);
            // It was woken, and looks no more.
            drop(first);
            drop(second.await.expect("no panic"));
            Ok(())
        })?;
        assert_eq!(pool.available(), 1);
        Ok(())
    })
}

/// Promise: waits for room, for the end and for messages, and `close`, may be dropped after any
/// poll. They leave no trace: no operation is lost, no message, and the driver rests.
#[test]
fn waits_are_dropped_after_each_poll() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::with_blocks(&peer, 4);
    run(async {
        let setup = Setup::default().with_receives(1, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &setup, &setup).await?;
        let mut inbox = server.inbox()?;
        let mut own = client.inbox()?;
        for n in 0..5 {
            let ops = fill(&client, &memories, 4)?;
            let depth = ConnCfg::new().get_sq_size();
            assert!(dropped_after(n, true, client.ready(depth)).await.is_none());
            assert!(dropped_after(n, true, client.idle()).await.is_none());
            assert!(dropped_after(n, true, client.closed()).await.is_none());
            let closing = client.clone().close(CLOSE);
            assert!(dropped_after(n, true, closing).await.is_none());
            assert!(dropped_after(n, true, own.next()).await.is_none());
            for _ in 0..ops.len() {
                // The message is not lost with the wait.
                let mut m = 0;
                let message = loop {
                    if let Some(next) = dropped_after(m, false, inbox.next()).await {
                        break next;
                    }
                    m += 1;
                };
                let message = message?.ok_or("it has arrived")?;
                assert_eq!(&*message, b"a word.");
            }
            client.ready(depth).await?;
            for op in ops {
                op.await?;
            }
        }
        all_slots_are_free(&client, &memories).await?;
        client.close(CLOSE).await?;
        assert!(inbox.next().await?.is_none());
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: a connection that is being made may be dropped after any poll, and leaves no object.
/// The listener goes on.
#[test]
fn connecting_is_dropped_after_each_poll() -> Result {
    on_fabric(|| {
        let mut n = 0;
        let mut is_complete = false;
        while !is_complete {
            leaving(&[], || {
                is_complete = run(connect_dropped_after(&peer()?, n, false))?;
                Ok(())
            })?;
            n += 1;
        }
        assert!(n > 2, "{n} polls");
        for n in 0..5 {
            leaving(&[], || {
                assert!(!run(connect_dropped_after(&peer()?, n, true))?);
                Ok(())
            })?;
        }
        Ok(())
    })
}

async fn connect_dropped_after(peer: &Peer, n: usize, spurious: bool) -> Result<bool> {
    let reactor = rpma_async::Reactor::spawn(peer)?;
    let (listener, addr) = listen(&reactor)?;
    let setup = Setup::default().with_receives(2, 64);
    let (of_server, serving) = (setup.clone(), reactor.clone());
    let server = tokio::spawn(async move {
        let _serving = serving;
        loop {
            let incoming = listener.accept().await.expect("a request");
            match incoming.accept(&of_server, b"").await {
                Ok(conn) => drop(conn.closed().await.expect("the end")),
                Err(error) => println!("{error}"),
            }
        }
    });
    let connecting = reactor.connect(addr, &setup, b"");
    let conn = dropped_after(n, spurious, connecting).await;
    let is_complete = conn.is_some();
    drop(conn);
    if !is_complete {
        // Another one is served.
        let conn = reactor.connect(addr, &setup, b"").await;
        conn?.close(CLOSE).await?;
    }
    server.abort();
    assert!(server.await.is_err_and(|error| error.is_cancelled()));
    Ok(is_complete)
}

/// Promise: so may one that is being accepted, and the wait for a request. The client is notified.
#[test]
fn accepting_is_dropped_after_each_poll() -> Result {
    on_fabric(|| {
        let mut n = 0;
        let mut is_complete = false;
        while !is_complete {
            leaving(&[], || {
                is_complete = run(accept_dropped_after(&peer()?, n, false))?;
                Ok(())
            })?;
            n += 1;
        }
        assert!(n > 1, "{n} polls");
        for n in 0..5 {
            leaving(&[], || {
                assert!(!run(accept_dropped_after(&peer()?, n, true))?);
                Ok(())
            })?;
        }
        Ok(())
    })
}

async fn accept_dropped_after(peer: &Peer, n: usize, spurious: bool) -> Result<bool> {
    let reactor = rpma_async::Reactor::spawn(peer)?;
    let (listener, addr) = listen(&reactor)?;
    let setup = Setup::default().with_receives(2, 64);
    let connecting = reactor.connect(addr, &setup, b"");
    let accepting = async {
        // The request is not lost with the wait.
        let mut m = 0;
        let incoming = loop {
            if let Some(next) = dropped_after(m, false, listener.accept()).await {
                break next.expect("a request");
            }
            m += 1;
        };
        dropped_after(n, spurious, incoming.accept(&setup, b"")).await
    };
    let (client, server) = both(connecting, accepting).await;
    match (client, &server) {
        (Ok(client), Some(Ok(_))) => client.close(CLOSE).await?,
        (Ok(client), _) => drop(client.closed().await?),
        (Err(_), None) => {}
        (Err(error), server) => panic!("{error}, {server:?}"),
    }
    Ok(server.is_some())
}

/// Promise: a request that is dropped, or rejected, is an error of the client, and leaves no
/// object.
#[test]
fn a_request_is_dropped() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = rpma_async::Reactor::spawn(&peer)?;
        let (listener, addr) = listen(&reactor)?;
        for rejects in [false, true] {
            let connecting = reactor.connect(addr, &Setup::default(), b"");
            let refusing = async {
                let incoming = listener.accept().await.expect("a request");
                match rejects {
                    true => incoming.reject(b"no").expect("rejects"),
                    false => drop(incoming),
                }
            };
            let (client, ()) = both(connecting, refusing).await;
            let error = client.expect_err("it was refused");
            assert!(matches!(error, Error::NotEstablished(_)), "{error:?}");
        }
        Ok(())
    })
}

/// Promise: an operation that is forgotten keeps its block and its connection, and does no other
/// harm: the connection works, and so do others of its reactor.
#[test]
fn a_forgotten_operation_harms_nothing_else() -> Result {
    // librdmacm has one as well, as long as there is an id.
    let domains = if cfg!(feature = "sim") { 1 } else { 2 };
    let left = [
        ("pd", domains),
        ("mr", 2),
        ("cq", 1),
        ("qp", 1),
        ("cm_id", 2),
    ];
    leaving(&left, || {
        let peer = peer()?;
        let memories = Memories::with_blocks(&peer, 2);
        // Without it the peer has a region more, or not.
        let mut cfg = ConnCfg::new();
        cfg.set_force_fallback(true);
        let setup = Setup::new(&cfg);
        run(async {
            let Ends {
                client,
                server,
                reactor,
            } = Ends::new(&peer, &setup, &setup).await?;
            let write = |conn: &Conn| conn.write(memories.to(), memories.word());
            hold();
            std::mem::forget(write(&client)?);
            release();
            assert_eq!(memories.pool.available(), 1);
            client.idle().await?;
            for _ in 0..50 {
                write(&client)?.await?;
            }
            let (other, _end) = connect(&reactor, &Setup::default(), &Setup::default()).await;
            write(&other)?.await?;
            client.close(CLOSE).await?;
            drop(server);
            Ok(())
        })?;
        assert_eq!(memories.pool.available(), 1);
        Ok(())
    })
}
