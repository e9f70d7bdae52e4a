//! A server with a loop and a responder in one task, beside its clients on the same thread.

use std::sync::Arc;

use rpma::serve::{Layout, Served};
use rpma_async::{Pool, Server};

use crate::awaited::served::{
    Serving, append, at, awaited, block, cfg, commit, polls, post, record, serve, writer,
};
use crate::awaited::support::{CLOSE, all_blocks, is_over, joined, spawn_with, with_reactor};
use crate::common::failed::Failed;
use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, usage};

/// Promise: the task of a server admits clients and answers their commits, while these clients are
/// tasks of the same thread, and have several commits in flight each.
#[test]
fn clients_commit_beside_the_server_s_task() -> Result {
    with_reactor(async |reactor| {
        let serving = Serving::new(reactor, 3)?;
        let addr = serving.addr;
        let clients = [1, 2, 3].map(|key| {
            spawn_with(reactor, |reactor| async move {
                let pool = Pool::new(reactor.peer(), 100, 8).expect("a pool");
                let writer = awaited(&reactor, addr, key).await;
                let mut last = None;
                for number in 1..=40 {
                    let bytes = block(&pool, number).await;
                    writer.room().await.expect("room");
                    last = Some(commit(&writer, bytes, number).expect("posted"));
                }
                let last = last.expect("40");
                assert_eq!(last.number(), 40);
                writer.durable(last).await.expect("durable");
                // An answer may come before the completion that gives the bytes back.
                drop(all_blocks(&pool).await);
                writer.close(CLOSE).await.expect("closes");
            })
        });
        for client in clients {
            joined(client).await;
        }
        let regions = serving.regions.clone();
        let stopped = serving.stop().await;
        assert_eq!((stopped.arrived, stopped.gone), (3, 3));
        for region in regions {
            assert_eq!(record(&region)?, (40, 40));
        }
        Ok(())
    })
}

/// Promise: a `next` that is dropped after its nth poll has taken no event: the next one returns
/// it.
#[test]
fn a_dropped_next_takes_nothing() -> Result {
    for n in 0..6 {
        with_reactor(async |reactor| {
            let site = Site::with(1, &cfg()?)?;
            let addr = at(site.server.get_port());
            let mut server = Server::new(reactor, site.server)?;
            let client = spawn_with(
                reactor,
                |reactor| async move { writer(&reactor, addr, 1).await },
            );
            let mut wcs = [Wc::default(); 4];
            let served = match polls(server.next(&mut wcs), n).await {
                None => server.next(&mut wcs).await,
                Some(served) => served,
            };
            let Served::Asks(asked) = served? else {
                panic!("no client asks");
            };
            assert_eq!(asked.identity().key, 1);
            // Which rejects the request: the client tries again.
            drop(asked);
            let parts = site.parts.into_values().collect();
            let waker = server.waker();
            let serving = tokio::spawn(serve(server, parts));
            drop(joined(client).await);
            waker.wake();
            joined(serving).await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: if a server is gone, each task that waits for it gets an error, and does not wait for
/// ever.
#[test]
fn a_server_that_dies_wakes_its_clients() -> Result {
    with_reactor(async |reactor| {
        let pool = Pool::new(reactor.peer(), 100, 8)?;
        let serving = Serving::new(reactor, 1)?;
        let writer = awaited(reactor, serving.addr, 1).await;
        let closed = spawn_with(&writer, |writer| async move { writer.closed().await });
        append(&writer, &pool, 1).await?;
        serving.kill().await;
        joined(closed).await?;
        let ended = writer.room().await.expect_err("no room any more");
        // Not that its receives were flushed, which the end has done.
        assert!(matches!(ended, Error::Ended(_)), "{ended}");
        is_over(post(&writer, &pool, 2).await);
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: a task serves until the server is woken, as rpma's own loop does.
#[test]
fn a_task_serves_until_it_is_woken() -> Result {
    with_reactor(async |reactor| {
        let layout = Layout::new(2, LEN)?;
        let all = PmemMap::open(devdax(), layout.len())?;
        all.write_at(0, &vec![0; layout.directory().len()])?;
        let server = rpma::serve::Server::listen(at(0), &all, &layout, usage(), &cfg()?)?;
        let (addr, waker) = (at(server.get_port()), server.waker());
        let region = Arc::clone(server.region(2).ok_or("a part")?);
        let mut server = Server::new(reactor, server)?;
        let (sent, mut notes) = tokio::sync::mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            let note = |served: Served| sent.send(served.to_string()).expect("a test reads");
            server.serve(note).await
        });
        let writer = awaited(reactor, addr, 2).await;
        let pool = Pool::new(reactor.peer(), 100, 1)?;
        append(&writer, &pool, 1).await?;
        assert_eq!(record(&region)?, (1, 1));
        // A one-sided write needs no server: the record can be there before the event of its
        // client is taken.
        assert_eq!(notes.recv().await.as_deref(), Some("a client is connected"));
        waker.wake();
        joined(serving).await?;
        assert_eq!(notes.recv().await, None);
        Ok(())
    })
}

/// Promise: the task of a server answers with its parts as rpma's own loop does: a client commits
/// into the part of its key.
#[test]
fn a_task_answers_with_parts() -> Result {
    with_reactor(async |reactor| {
        let layout = Layout::new(2, LEN)?;
        let all = PmemMap::open(devdax(), layout.len())?;
        all.write_at(0, &vec![0; layout.directory().len()])?;
        let server = rpma::serve::Server::listen(at(0), &all, &layout, usage(), &cfg()?)?;
        let region = Arc::clone(server.region(2).ok_or("a part")?);
        let addr = at(server.get_port());
        let mut server = Server::new(reactor, server)?;
        let serving = tokio::spawn(async move {
            let mut wcs = [Wc::default(); 4];
            loop {
                let served = server.next(&mut wcs).await?;
                match server.answer(served)? {
                    Some(Served::Gone(gone)) => return Ok::<_, Failed>(gone.identity.key),
                    None | Some(Served::Arrived(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        let writer = awaited(reactor, addr, 2).await;
        let pool = Pool::new(reactor.peer(), 100, 1)?;
        append(&writer, &pool, 1).await?;
        assert_eq!(record(&region)?, (1, 1));
        writer.close(CLOSE).await?;
        assert_eq!(joined(serving).await?, 2);
        Ok(())
    })
}
