//! Programs without tokio: a driver on a thread of its own, or on another executor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rpma_async::{Conn, Reactor, Setup, block_on};

use crate::awaited::backpressure::no_room;
use crate::awaited::held::leaving_nothing;
use crate::awaited::support::{
    CLOSE, Memories, all_slots_are_free, connect, count_words, joined, receives, take, with_bytes,
};
use crate::common::failed::Failed;
use crate::common::prelude::*;

/// Awaits a future on this thread.
fn wait<T>(future: impl Future<Output = T>) -> T {
    block_on(future, LIMIT).expect("in time")
}

/// Runs a test with a reactor that has a thread as its driver, and with one that has a future of
/// async-io as its driver.
fn on_each(test: impl Fn(&Peer, &Reactor) -> Result) -> Result {
    leaving_nothing(|| {
        let peer = peer()?;
        let reactor = Reactor::on_thread(&peer)?;
        test(&peer, &reactor)
    })?;
    leaving_nothing(|| {
        let peer = peer()?;
        // There is no runtime of tokio here.
        let (reactor, driver) = Reactor::new(&peer)?;
        let driving = thread::spawn(here(move || async_io::block_on(driver)));
        test(&peer, &reactor)?;
        drop(reactor);
        driving.join().expect("no panic")?;
        Ok(())
    })
}

/// Promise: operations are waited for without a runtime: those that are complete, those that
/// sleep, and those that take longer than a limit, which go on.
#[test]
fn operations_without_a_runtime() -> Result {
    on_each(|peer, reactor| {
        let memories = Memories::new(peer);
        let (client, server) = wait(connect(reactor, &receives(0), &receives(1)));
        let write = client.write(memories.to(), memories.word())?;
        assert_eq!(&*write.wait(LIMIT)?, b"a word.");
        let flush = client.flush(memories.to(), FlushType::Visibility);
        flush?.wait(LIMIT)?;
        client.send(memories.word())?.wait(LIMIT)?;

        // There is no receive for these, until the first message is taken.
        let late = client.send(memories.word())?.wait(Duration::from_millis(1));
        let failed = late.expect_err("it takes longer");
        assert!(matches!(failed.error, Error::TimedOut(_)), "{failed:?}");
        assert!(failed.memory.is_none(), "it goes on");
        let later = client.send(memories.word())?;
        let begins = AtomicBool::new(false);
        thread::scope(|scope| -> Result {
            let sleeper = scope.spawn(|| {
                begins.store(true, Ordering::SeqCst);
                later.wait(LIMIT)
            });
            while !begins.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let mut inbox = server.inbox()?;
            wait(take(&mut inbox, 3))?;
            sleeper.join().expect("no panic")?;
            Ok(())
        })?;
        wait(client.idle())?;
        assert_eq!(memories.pool.available(), 4);
        wait(all_slots_are_free(&client, &memories))?;
        wait(client.close(CLOSE))?;
        wait(server.closed())?;
        Ok(())
    })
}

/// Promise: many threads post and wait on one connection, with fewer blocks than threads, and all
/// of their operations complete.
#[test]
fn threads_share_a_connection() -> Result {
    const THREADS: usize = 4;
    const ROUNDS: u32 = 200;
    on_each(|peer, reactor| {
        let memories = Memories::with_blocks(peer, 3);
        let (client, server) = wait(connect(reactor, &receives(0), &receives(4)));
        thread::scope(|scope| -> Result {
            let taking = scope.spawn(here(|| wait(count_words(&server))));
            let posting = [(); THREADS].map(|()| {
                let (client, memories) = (&client, &memories);
                scope.spawn(here(move || {
                    wait(many(client, memories, ROUNDS)).expect("succeeds")
                }))
            });
            let sent = posting.map(|thread| thread.join().expect("no panic"));
            wait(client.clone().close(CLOSE))?;
            let taken = taking.join().expect("no panic")?;
            assert_eq!(taken, sent.into_iter().sum());
            Ok(())
        })?;
        assert_eq!(memories.pool.available(), 3);
        Ok(())
    })
}

/// Operations of several kinds, some awaited and some dropped. Returns the number of messages.
async fn many(client: &Conn, memories: &Memories, rounds: u32) -> Result<u32> {
    let mut sent = 0;
    for round in 0..rounds {
        let mut block = with_bytes(memories.pool.lease().await, b"a word.").freeze();
        let op = loop {
            let posted = match round % 3 {
                0 => client.write(memories.to(), block),
                _ => client.send(block),
            };
            match posted {
                Ok(op) => break op,
                // Another thread has taken the room.
                refused => block = no_room(refused),
            }
            client.ready(1).await?;
        };
        sent += u32::from(round % 3 != 0);
        match round % 2 {
            0 => drop(op.await?),
            _ => op.detach(),
        }
    }
    Ok(sent)
}

/// Promise: on three worker threads of tokio, tasks that share a connection and its few blocks
/// all come to their end.
#[test]
fn tasks_on_three_workers() -> Result {
    const TASKS: usize = 8;
    leaving_nothing(|| {
        let peer = peer()?;
        let memories = Arc::new(Memories::with_blocks(&peer, 5));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(3).enable_all().build()?;
        runtime.block_on(async {
            let mut cfg = ConnCfg::new();
            cfg.set_sq_size(5);
            let reactor = Reactor::spawn(&peer)?;
            let (client, server) = connect(&reactor, &Setup::new(&cfg), &receives(3)).await;
            let taking = tokio::spawn(async move { count_words(&server).await });
            let tasks = [(); TASKS].map(|()| {
                let (client, memories) = (client.clone(), Arc::clone(&memories));
                tokio::spawn(async move { many(&client, &memories, 300).await.expect("succeeds") })
            });
            let mut sent = 0;
            for task in tasks {
                sent += joined(task).await;
            }
            client.close(CLOSE).await?;
            assert_eq!(joined(taking).await?, sent);
            Ok::<_, Failed>(())
        })?;
        drop(runtime);
        assert_eq!(memories.pool.available(), 5);
        Ok(())
    })
}

/// Promise: an executor that polls a future without a wake-up, or moves it from thread to thread,
/// with another waker each time, loses no wake-up.
#[test]
fn operations_move_between_threads() -> Result {
    on_each(|peer, reactor| {
        let memories = Memories::new(peer);
        let (client, server) = wait(connect(reactor, &receives(0), &receives(1)));
        client.send(memories.word())?.wait(LIMIT)?;
        let mut op = client.send(memories.word())?;
        let mut closed = client.closed();
        let mut idle = client.idle();
        for _ in 0..3 {
            // Each thread leaves its waker, and goes.
            (op, closed, idle) = thread::spawn(move || {
                let short = Duration::from_millis(1);
                assert!(block_on(&mut op, short).is_none());
                assert!(block_on(&mut closed, short).is_none());
                assert!(block_on(&mut idle, short).is_none());
                (op, closed, idle)
            })
            .join()
            .expect("no panic");
        }
        let mut inbox = server.inbox()?;
        wait(take(&mut inbox, 1))?;
        wait(op)?;
        wait(idle)?;
        drop((inbox, server));
        wait(closed)?;
        Ok(())
    })
}
