//! Futures that are dropped, after each number of polls.

use rpma_async::{Conn, Op, Pool, Reactor, Refused, Setup};
use tokio::task::JoinSet;

use crate::awaited::held::{hold, release};
use crate::awaited::support::{
    Boxed, CLOSE, Memories, all_slots_are_free, begun, both, connect, dropped_after, fill, joined,
    listen, receives, run, spawn_with, take, take_messages, turns, with_ends, with_reactor,
};
use crate::common::prelude::*;

/// An operation of each kind, which takes at most one block.
type Kind = for<'c> fn(&'c Conn, &Memories) -> Boxed<'c>;

/// The operation, once it is complete.
fn succeeds<'c, B: rpma_async::Memory + 'c>(posted: Result<Op<B>, Refused<B>>) -> Boxed<'c> {
    let op = posted.expect("posted");
    Box::pin(async { drop(op.await.expect("succeeds")) })
}

const KINDS: [(&str, Kind); 11] = [
    ("write", |conn, memories| {
        succeeds(conn.write(memories.to(), memories.word()))
    }),
    ("write with immediate data", |conn, memories| {
        succeeds(conn.write_with_imm(memories.to(), memories.word(), 1))
    }),
    ("read", |conn, memories| {
        succeeds(conn.read(memories.block(&[0; 7]), memories.to()))
    }),
    ("send", |conn, memories| {
        succeeds(conn.send(memories.word()))
    }),
    ("send with immediate data", |conn, memories| {
        succeeds(conn.send_with_imm(memories.word(), 1))
    }),
    ("flush", |conn, memories| {
        succeeds(conn.flush(memories.to(), FlushType::Visibility))
    }),
    ("atomic write", |conn, memories| {
        let at = memories.remote.slice(64..72).expect("inside");
        succeeds(conn.atomic_write(at, *b"a point."))
    }),
    ("batch", |conn, memories| {
        let word = memories.word();
        let other = memories.remote.slice(32..34).expect("inside");
        let mut batch = conn.batch::<4>();
        batch.write(memories.to(), word.clone()).expect("room");
        let part = word.slice(2..4).expect("inside");
        batch.write(other, part).expect("room");
        batch.flush(other, FlushType::Visibility).expect("room");
        succeeds(batch.commit())
    }),
    ("batch of messages", |conn, memories| {
        let word = memories.word();
        let mut batch = conn.batch::<2>();
        batch.send(word.clone()).expect("room");
        batch.send_with_imm(word, 2).expect("room");
        succeeds(batch.commit())
    }),
    ("batch that was not committed", |conn, memories| {
        let mut batch = conn.batch::<2>();
        batch.write(memories.to(), memories.word()).expect("room");
        Box::pin(async move { drop(batch) })
    }),
    ("commit", |conn, memories| {
        let parts = [(memories.to(), memories.word())];
        let pointer = memories.remote.slice(64..72).expect("inside");
        succeeds(conn.commit(parts, Some((pointer, [3; 8])), FlushType::Visibility))
    }),
];

/// Drops a future after each number of polls, and begins it again, until it is complete.
async fn in_the_end<T>(mut future: impl AsyncFnMut() -> T) -> T {
    let mut n = 0;
    loop {
        if let Some(result) = dropped_after(n, false, future()).await {
            return result;
        }
        n += 1;
    }
}

/// Promise: an operation may be dropped after any poll. Its block comes back, even if the only
/// active task is the one that waits for the block, and its slot is free again.
#[test]
fn operations_are_dropped_after_each_poll() -> Result {
    with_ends(1, [0, 8], async |memories, (client, server)| {
        let dropping = async {
            for (name, kind) in KINDS {
                // In flight while it is dropped.
                for n in 0..4 {
                    hold();
                    dropped_after(n, true, kind(&client, memories)).await;
                    release();
                    println!("{name}, {n} polls");
                    drop(memories.pool.lease().await);
                    client.idle().await.expect("no error");
                }
                // Until it is complete.
                let mut n = 0;
                let is_complete = |n| dropped_after(n, false, kind(&client, memories));
                while is_complete(n).await.is_none() {
                    n += 1;
                    drop(memories.pool.lease().await);
                    client.idle().await.expect("no error");
                }
            }
            let free = all_slots_are_free(&client, memories).await;
            free.expect("it has succeeded");
            client.clone().close(CLOSE).await.expect("nothing is lost");
        };
        both(dropping, take_messages(&server)).await;
        Ok(())
    })
}

/// Promise: several operations of one block that are dropped one by one, asleep and complete ones
/// among them, give it back with the last of them.
#[test]
fn operations_that_share_a_block_are_dropped() -> Result {
    with_ends(1, [0, 0], async |memories, (client, _server)| {
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
        all_slots_are_free(&client, memories).await?;
        Ok(())
    })
}

/// Promise: an operation that takes longer than its limit goes on, and its block comes back.
#[test]
fn a_limit_passes_and_the_memory_comes_back() -> Result {
    with_ends(1, [0, 1], async |memories, (client, server)| {
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
        take(&mut inbox, 1).await
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
            let mut second = tokio::spawn(pool.lease());
            assert!(begun(&mut second).await.is_none());
            turns(1).await;
            drop(block);
            // It was woken, and looks no more.
            drop(first);
            drop(joined(second).await);
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
    with_ends(4, [1, 1], async |memories, (client, server)| {
        let mut inbox = server.inbox()?;
        let mut own = client.inbox()?;
        for n in 0..5 {
            let ops = fill(&client, memories, 4)?;
            let depth = ConnCfg::new().get_sq_size();
            assert!(dropped_after(n, true, client.ready(depth)).await.is_none());
            assert!(dropped_after(n, true, client.idle()).await.is_none());
            assert!(dropped_after(n, true, client.closed()).await.is_none());
            let closing = client.clone().close(CLOSE);
            assert!(dropped_after(n, true, closing).await.is_none());
            assert!(dropped_after(n, true, own.next()).await.is_none());
            for _ in 0..ops.len() {
                // The message is not lost with the wait.
                let message = in_the_end(async || inbox.next().await).await;
                let message = message?.ok_or("it has arrived")?;
                assert_eq!(&*message, b"a word.");
            }
            client.ready(depth).await?;
            for op in ops {
                op.await?;
            }
        }
        all_slots_are_free(&client, memories).await?;
        client.close(CLOSE).await?;
        assert!(inbox.next().await?.is_none());
        Ok(())
    })
}

/// Promise: a connection that is being made may be dropped after any poll, and leaves no object.
/// The listener goes on.
#[test]
fn connecting_is_dropped_after_each_poll() -> Result {
    after_each_poll(2, connect_dropped_after)
}

/// Runs a part with each number of polls after which it drops its future, until this is complete
/// before, after so many polls at least. Then with polls without a wake-up, which never complete
/// it. No part leaves an object.
fn after_each_poll(
    least: usize,
    part: impl AsyncFn(&Reactor, usize, bool) -> Result<bool>,
) -> Result {
    let is_complete = |n, spurious| -> Result<bool> {
        let _test = device_test();
        let peer = peer()?;
        run(async { part(&Reactor::spawn(&peer)?, n, spurious).await })
    };
    on_fabric(|| {
        let mut n = 0;
        while !is_complete(n, false)? {
            n += 1;
        }
        assert!(n >= least, "{n} polls");
        for n in 0..5 {
            assert!(!is_complete(n, true)?);
        }
        Ok(())
    })
}

async fn connect_dropped_after(reactor: &Reactor, n: usize, spurious: bool) -> Result<bool> {
    let (listener, addr) = listen(reactor)?;
    let setup = receives(2);
    let server = spawn_with(&setup, |setup| async move {
        // The kernel sends the end of a dropped client once. If that is lost, its connection has no
        // end, and must not keep the next client waiting.
        let mut conns = JoinSet::new();
        loop {
            let incoming = listener.accept().await.expect("a request");
            let setup = setup.clone();
            conns.spawn(async move {
                match incoming.accept(&setup, b"").await {
                    Ok(conn) => drop(conn.closed().await.expect("the end")),
                    Err(error) => println!("{error}"),
                }
            });
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
    after_each_poll(1, accept_dropped_after)
}

async fn accept_dropped_after(reactor: &Reactor, n: usize, spurious: bool) -> Result<bool> {
    let (listener, addr) = listen(reactor)?;
    let setup = receives(2);
    let connecting = reactor.connect(addr, &setup, b"");
    let accepting = async {
        // The request is not lost with the wait.
        let incoming = in_the_end(async || listener.accept().await).await;
        let incoming = incoming.expect("a request");
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
    with_reactor(async |reactor| {
        let (listener, addr) = listen(reactor)?;
        for rejects in [false, true] {
            let connecting = reactor.connect(addr, &Setup::default(), b"");
            let refusing = async {
                let incoming = listener.accept().await.expect("a request");
                if rejects {
                    incoming.reject(b"no").expect("rejects")
                } else {
                    drop(incoming)
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
    let objects = [
        ("mr", 2),
        ("cq", 1),
        ("qp", 1),
        ("cm_id", 2),
        ("pd", domains),
    ];
    leaving(&objects, || {
        let peer = peer()?;
        let memories = Memories::with_blocks(&peer, 2);
        // Without it the peer has a region more, or not.
        let mut cfg = ConnCfg::new();
        cfg.set_force_fallback(true);
        let setup = Setup::new(&cfg);
        run(async {
            let reactor = Reactor::spawn(&peer)?;
            let (client, _server) = connect(&reactor, &setup, &setup).await;
            let write = |conn: &Conn| conn.write(memories.to(), memories.word());
            hold();
            std::mem::forget(write(&client)?);
            release();
            assert_eq!(memories.pool.available(), 1);
            client.idle().await?;
            for _ in 0..50 {
                write(&client)?.await?;
            }
            let (other, _end) = connect(&reactor, &receives(0), &receives(0)).await;
            write(&other)?.await?;
            client.close(CLOSE).await?;
            Ok(())
        })?;
        assert_eq!(memories.pool.available(), 1);
        Ok(())
    })
}
