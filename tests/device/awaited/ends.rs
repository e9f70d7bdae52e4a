//! How connections, reactors and their drivers end.

use std::sync::Arc;

use rpma_async::{Conn, Reactor, Setup, block_on};
use tokio::task::JoinHandle;

use crate::awaited::held::{hold, hold_unanswered, leaving_nothing, release};
use crate::awaited::sleepers::Sleepers;
use crate::awaited::support::{
    CLOSE, Memories, accept_next, all_blocks, begun, both, connect, count_words, fill, joined,
    listen, receives, run, spawn_with, turns, unanswered, with_ends,
};
use crate::common::prelude::*;

/// Promise: a peer that closes, aborts or drops its connection wakes everything that sleeps, with
/// the reason.
#[test]
fn the_peer_ends_and_all_wake() -> Result {
    type End = fn(Conn) -> JoinHandle<()>;
    let ends: [(&str, End); 3] = [
        ("abort", |server| {
            server.abort();
            tokio::spawn(async move { drop(server.closed().await.expect("the end")) })
        }),
        ("drop", |server| {
            drop(server);
            tokio::spawn(async {})
        }),
        ("close", |server| {
            let closing = server.close(CLOSE);
            tokio::spawn(async { closing.await.expect("nothing is lost") })
        }),
    ];
    for (name, end) in ends {
        println!("{name}");
        with_ends(4, [2, 0], async |memories, (client, server)| {
            hold_unanswered();
            let sleepers = Sleepers::new(&client, memories).await?;
            let ended = end(server);
            sleepers.woken().await.is_closed_by_the_peer();
            joined(ended).await;
            // And in later calls.
            client.idle().await?;
            let ready = client.ready(1).await;
            assert!(matches!(ready, Err(Error::Ended(_))), "{ready:?}");
            assert_eq!(client.closed().await?, ConnEvent::Closed);
            assert!(client.inbox()?.next().await?.is_none());
            let refused = client.send(memories.word()).expect_err("it is over");
            assert!(matches!(refused.error, Error::NotConnected(_)), "{refused}");
            assert!(refused.memory.is_some());
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: both sides may close, one after the other or at the same time. No operation was in
/// flight, so none is lost, and both sides are notified of that.
#[test]
fn both_sides_close() -> Result {
    for at_once in [true, false] {
        with_ends(4, [2, 2], async |memories, (client, server)| {
            client.send(memories.word())?.await?;
            let closes = if at_once {
                both(client.close(CLOSE), server.close(CLOSE)).await
            } else {
                let first = client.close(CLOSE).await;
                server.closed().await?;
                (first, server.close(CLOSE).await)
            };
            closes.0?;
            closes.1?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: `close` waits for all operations in flight, even dropped ones, and the peer has their
/// data.
#[test]
fn close_waits_for_what_is_in_flight() -> Result {
    with_ends(4, [0, 2], async |memories, (client, server)| {
        // Two of them land. The others wait until those were taken.
        drop(fill(&client, memories, 5)?);
        let mut closing = Box::pin(client.close(CLOSE));
        for _ in 0..5 {
            assert!(begun(&mut closing).await.is_none());
            turns(1).await;
        }
        let (closed, taken) = both(closing, count_words(&server)).await;
        closed?;
        assert_eq!(taken?, 5);
        Ok(())
    })
}

/// Promise: its limit is kept, and then the connection is over.
#[test]
fn close_keeps_its_limit() -> Result {
    with_ends(4, [0, 0], async |memories, (client, server)| {
        hold_unanswered();
        let ops = unanswered(&client, memories, 1)?;
        let closed = client.close(Duration::from_millis(2)).await;
        assert!(matches!(closed, Err(Error::TimedOut(_))), "{closed:?}");
        assert_eq!(server.closed().await?, ConnEvent::Closed);
        for op in ops {
            let failed = op.await.expect_err("nobody took it");
            assert!(failed.has_memory, "no device uses it: {failed:?}");
        }
        Ok(())
    })
}

/// Promise: all messages that arrived before the end are returned, and then the end, for ever.
#[test]
fn messages_before_the_end_are_returned() -> Result {
    with_ends(4, [0, 8], async |memories, (client, server)| {
        for _ in 0..8 {
            client.send(memories.word())?.await?;
        }
        client.abort();
        server.closed().await?;
        let mut inbox = server.inbox()?;
        let mut kept = Vec::new();
        while let Some(message) = inbox.next().await? {
            kept.push(message);
        }
        assert_eq!(kept.len(), 8);
        drop(server);
        for message in kept {
            assert_eq!(&*message, b"a word.");
        }
        assert!(inbox.next().await?.is_none());
        Ok(())
    })
}

fn tells_of_the_driver(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::InvalidArgument(_))
        && text.contains("driver of this reactor was dropped")
}

/// Promise: a driver that was dropped is an error of everything that sleeps, or would sleep, and
/// no silence. The memory of an operation goes back when its connection is gone.
#[test]
fn a_dropped_driver_is_an_error() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        let driver = tokio::spawn(driver);
        let other = Reactor::spawn(&peer)?;
        let (listener, addr) = listen(&other)?;
        let (own, _own_addr) = listen(&reactor)?;
        let connecting = reactor.connect(addr, &receives(2), b"");
        let setup = Setup::default();
        let accepting = accept_next(&listener, &setup, b"");
        let (client, server) = both(connecting, accepting).await;
        let (client, server) = (client?, server?);
        hold_unanswered();
        let sleepers = Sleepers::without_close(&client, &memories).await?;
        let own = Arc::new(own);
        let accepting = spawn_with(&own, |own| async move { own.accept().await.map(drop) });
        // No program accepts it.
        let connecting = tokio::spawn(reactor.connect(addr, &setup, b""));
        turns(3).await;
        driver.abort();
        assert!(driver.await.is_err_and(|error| error.is_cancelled()));

        let woken = sleepers.woken().await;
        woken.each_tells(tells_of_the_driver);
        let idle = woken.idle.as_ref();
        assert!(tells_of_the_driver(idle.expect_err("an error")));
        let held = woken.ops.iter().filter(|op| op.is_ok()).count();
        assert_eq!(held, 0, "they go on");
        let refused = reactor.connect(addr, &setup, b"").await;
        for result in [
            joined(accepting).await,
            joined(connecting).await.map(drop),
            own.accept().await.map(drop),
            refused.map(drop),
            client.closed().await.map(drop),
            client.idle().await,
            client.inbox()?.next().await.map(drop),
            client.clone().close(CLOSE).await,
        ] {
            assert!(tells_of_the_driver(&result.expect_err("an error")));
        }
        drop(client);
        server.closed().await?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: a driver ends with the last handle of its reactor, of a connection, an operation, a
/// message or a listener, and not before.
#[test]
fn the_last_handle_ends_the_driver() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        let driver = tokio::spawn(driver);
        let (listener, _addr) = listen(&reactor)?;
        let (client, server) = connect(&reactor, &Setup::default(), &receives(2)).await;
        drop(reactor);
        client.send(memories.word())?.await?;
        let mut inbox = server.inbox()?;
        let message = inbox.next().await?.ok_or("a message")?;
        let last = client.write(memories.to(), memories.word())?;
        for handle in [
            Box::new(listener) as Box<dyn Send>,
            Box::new(inbox),
            Box::new(server),
            Box::new(client),
            Box::new(message),
            Box::new(last),
        ] {
            turns(1).await;
            assert!(!driver.is_finished());
            drop(handle);
        }
        joined(driver).await?;
        Ok(())
    })
}

/// Promise: the thread of a reactor ends with the last handle, also if the last one is dropped in
/// the middle of something, and on any thread.
#[test]
fn the_last_handle_ends_the_thread() -> Result {
    leaving_nothing(|| {
        let peer = peer()?;
        let memories = Memories::new(&peer);
        for _ in 0..5 {
            let reactor = Reactor::on_thread(&peer)?;
            let setup = Setup::default();
            let connecting = connect(&reactor, &setup, &setup);
            let (client, server) = block_on(connecting, CLOSE).ok_or("in time")?;
            hold();
            let op = client.write(memories.to(), memories.word())?;
            drop((reactor, client, server));
            std::thread::spawn(|| drop(op)).join().expect("no panic");
            release();
        }
        // If the driver was at work for the connection, it has dropped the last of it.
        block_on(all_blocks(&memories.pool), LIMIT).ok_or("no block is lost")?;
        Ok(())
    })
}

/// Promise: `abort` ends the connection at once for both sides. Operations in flight fail, and
/// their memory is free.
#[test]
fn abort_ends_at_once() -> Result {
    with_ends(4, [2, 0], async |memories, (client, server)| {
        hold_unanswered();
        let sleepers = Sleepers::new(&client, memories).await?;
        client.abort();
        let woken = sleepers.woken().await;
        for op in &woken.ops {
            let failed = op.as_ref().expect_err("it was in flight");
            assert!(failed.has_memory, "{woken:?}");
        }
        assert!(woken.closed.is_ok() && woken.idle.is_ok(), "{woken:?}");
        assert!(matches!(woken.inbox, Ok(false)), "{woken:?}");
        assert!(matches!(woken.close, Some(Err(_))), "{woken:?}");
        assert_eq!(server.closed().await?, ConnEvent::Closed);
        Ok(())
    })
}
