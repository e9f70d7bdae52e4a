//! A server with a loop and a responder in one task, beside its clients on the same thread.

use std::sync::Arc;

use rpma::serve::{Layout, Parts, Served};
use rpma_async::{Pool, Reactor, Server, Writer};

use crate::awaited::served::{self, Serving, block, cfg, commit, polls, record, serve, writer};
use crate::awaited::support::{CLOSE, in_time, run};
use crate::common::failed::Failed;
use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, new_directory, usage};

/// Promise: the task of a server admits clients and answers their commits, while these clients are
/// tasks of the same thread, and have several commits in flight each.
#[test]
fn clients_commit_beside_the_server_s_task() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let serving = Serving::new(&reactor, 3)?;
        let clients = (1..=3).map(|key| {
            let (reactor, addr) = (reactor.clone(), serving.addr);
            tokio::spawn(async move {
                let pool = Pool::new(reactor.peer(), 100, 8).expect("a pool");
                let writer = writer(&reactor, addr, key).await;
                let writer = Writer::new(&reactor, writer).expect("watched");
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
                let mut back = Vec::new();
                for _ in 0..8 {
                    back.push(pool.lease().await);
                }
                writer.close(CLOSE).await.expect("closes");
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no panic");
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
    let _test = device_test();
    let peer = peer()?;
    run(async {
        for n in 0..6 {
            let reactor = Reactor::spawn(&peer)?;
            let site = Site::with(1, &cfg()?)?;
            let addr = served::at(site.server.get_port());
            let mut server = Server::new(&reactor, site.server)?;
            let client = tokio::spawn({
                let reactor = reactor.clone();
                async move { writer(&reactor, addr, 1).await }
            });
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
            drop(client.await?);
            waker.wake();
            serving.await.expect("no panic");
        }
        Ok(())
    })
}

/// Promise: if a server is gone, each task that waits for it gets an error, and does not wait for
/// ever.
#[test]
fn a_server_that_dies_wakes_its_clients() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let pool = Pool::new(&peer, 100, 8)?;
        let serving = Serving::new(&reactor, 1)?;
        let writer = writer(&reactor, serving.addr, 1).await;
        let writer = Writer::new(&reactor, writer)?;
        let closed = tokio::spawn({
            let writer = writer.clone();
            async move { writer.closed().await }
        });
        let bytes = block(&pool, 1).await;
        let first = commit(&writer, bytes, 1)?;
        writer.durable(first).await?;
        serving.kill().await;
        closed.await.expect("no panic")?;
        let ended = writer.room().await.expect_err("no room any more");
        // Not that its receives were flushed, which the end has done.
        assert!(matches!(ended, Error::Ended(_)), "{ended}");
        let refused = commit(&writer, block(&pool, 2).await, 2);
        let refused = refused.expect_err("it has ended");
        assert!(matches!(refused, Error::NotConnected(_)), "{refused}");
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: a task serves until the server is woken, as rpma's own loop does.
#[test]
fn a_task_serves_until_it_is_woken() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let layout = Layout::new(2, LEN)?;
        let all = PmemMap::open(devdax(), layout.len())?;
        all.write_at(0, &vec![0; layout.directory().len()])?;
        let cfg = cfg()?;
        let (server, mut parts) =
            rpma::serve::Server::listen(served::at(0), &all, &layout, usage(), &cfg)?;
        let (addr, waker) = (served::at(server.get_port()), server.waker());
        let region = Arc::clone(parts.get(2).ok_or("a part")?.region);
        let mut server = Server::new(&reactor, server)?;
        let serving = tokio::spawn(async move {
            let mut notes = Vec::new();
            let note = |served: Served| notes.push(served.to_string());
            server.serve(&mut parts, note).await?;
            Ok::<_, Error>(notes)
        });
        let writer = writer(&reactor, addr, 2).await;
        let writer = Writer::new(&reactor, writer)?;
        let pool = Pool::new(&peer, 100, 1)?;
        let first = commit(&writer, block(&pool, 1).await, 1)?;
        writer.durable(first).await?;
        assert_eq!(record(&region)?, (1, 1));
        waker.wake();
        let notes = in_time(serving).await.expect("no panic")?;
        assert_eq!(notes, ["a client is connected"]);
        Ok(())
    })
}

/// Promise: the task of a server answers with its parts as rpma's own loop does: a client commits
/// into the part of its key.
#[test]
fn a_task_answers_with_parts() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let layout = Layout::new(2, LEN)?;
        let all = PmemMap::open(devdax(), layout.len())?;
        let directory = new_directory(all.part(layout.directory())?, 2)?;
        let site = Site::over(0, &cfg()?, all, directory)?;
        let mut parts = Parts::reg(&site.device, &site.all, &layout, usage())?;
        let region = Arc::clone(parts.get(2).ok_or("a part")?.region);
        let addr = served::at(site.server.get_port());
        let mut server = Server::new(&reactor, site.server)?;
        let serving = tokio::spawn(async move {
            let mut wcs = [Wc::default(); 4];
            loop {
                let served = server.next(&mut wcs).await?;
                match server.answer(served, &mut parts)? {
                    Some(Served::Gone(gone)) => return Ok::<_, Failed>(gone.identity.key),
                    None | Some(Served::Arrived(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        let writer = writer(&reactor, addr, 2).await;
        let writer = Writer::new(&reactor, writer)?;
        let pool = Pool::new(&peer, 100, 1)?;
        let first = commit(&writer, block(&pool, 1).await, 1)?;
        writer.durable(first).await?;
        assert_eq!(record(&region)?, (1, 1));
        writer.close(CLOSE).await?;
        assert_eq!(serving.await.expect("no panic")?, 2);
        Ok(())
    })
}
