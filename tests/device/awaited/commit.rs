//! Commits that are awaited.

use rpma::commit::{Fate, Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Conn, Pool, Reactor, Setup, Writer, block_on};

use crate::awaited::held::leaving_nothing;
use crate::awaited::served::{self, Serving, block, commit, polls};
use crate::awaited::support::{CLOSE, listen, run};
use crate::common::failed::Failed;
use crate::common::prelude::*;

const SIZE: usize = 2048;

/// A writer, and the server's end of its connection.
pub(crate) struct Made {
    pub(crate) writer: Writer,
    pub(crate) server: Conn,
    target: Mr<Memory>,
}

impl Made {
    /// Commits that are visible, so many in flight.
    pub(crate) async fn new(reactor: &Reactor, in_flight: u16) -> Result<Self> {
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(reactor.peer(), SIZE, usage)?;
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&target);
        let offer = offer.encode(Offer::ACCEPT)?;
        let (listener, addr) = listen(reactor)?;
        let accepting = tokio::spawn(async move {
            let incoming = listener.accept().await?;
            let accepted = incoming.accept(&Setup::default(), &offer).await;
            Ok::<_, Failed>(accepted?)
        });
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        cfg.set_in_flight(in_flight)?;
        let mut client = served::client(reactor, addr, 1, ToWriter::new(&cfg));
        let writer = client.connect(&ConnCfg::new()).await?;
        Ok(Self {
            writer: Writer::new(reactor, writer)?,
            server: accepting.await.expect("no panic")?,
            target,
        })
    }
}

fn pool(peer: &Peer) -> Result<Pool> {
    Ok(Pool::new(peer, 100, 8)?)
}

/// Promise: several tasks commit by one writer, each waits for its own ticket, and each is woken.
#[test]
fn tasks_wait_for_tickets_of_one_writer() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 3).await?;
        let pool = pool(&peer)?;
        let tasks = (0..5_u64).map(|task| {
            let (writer, pool) = (made.writer.clone(), pool.clone());
            tokio::spawn(async move {
                for round in 0..20 {
                    let bytes = block(&pool, task * 20 + round).await;
                    writer.room().await.expect("room");
                    // One thread: no other task has taken it.
                    let ticket = commit(&writer, bytes, round + 1).expect("posted");
                    writer.durable(ticket).await.expect("durable");
                    assert_eq!(writer.fate(ticket).expect("its own"), Fate::Durable);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        assert_eq!(pool.available(), 8);
        assert_eq!(contents(&made.target)?[served::TAIL as usize], 20);
        made.writer.close(CLOSE).await?;
        made.server.closed().await?;
        Ok(())
    })
}

/// Promise: handles on several threads, with the driver on a thread of its own.
#[test]
fn threads_wait_for_tickets_of_one_writer() -> Result {
    leaving_nothing(|| {
        let peer = peer()?;
        let made = run(async {
            let reactor = Reactor::on_thread(&peer)?;
            Made::new(&reactor, 2).await
        })?;
        let pool = pool(&peer)?;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(here(|| {
                    for round in 0..50 {
                        let appended = block_on(
                            async {
                                let bytes = block(&pool, round).await;
                                let ticket = loop {
                                    made.writer.room().await?;
                                    match commit(&made.writer, bytes.clone(), round) {
                                        // Another thread has taken the room.
                                        Err(Error::QueueFull { .. }) => {}
                                        posted => break posted?,
                                    }
                                };
                                made.writer.durable(ticket).await
                            },
                            LIMIT,
                        );
                        appended.expect("in time").expect("durable");
                    }
                }));
            }
        });
        let closed = block_on(made.writer.close(CLOSE), LIMIT);
        closed.ok_or("in time")??;
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: a wait that is dropped after its nth poll does not undo the commit: it becomes durable,
/// its sources go back to the pool although no task waits for the writer, and another wait finds
/// it.
#[test]
fn a_dropped_wait_undoes_nothing() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        for n in 0..6 {
            let reactor = Reactor::spawn(&peer)?;
            let serving = Serving::new(&reactor, 1)?;
            let pool = pool(&peer)?;
            let made = Made::new(&reactor, 2).await?;
            let writer = served::writer(&reactor, serving.addr, 1).await;
            let answered = Writer::new(&reactor, writer)?;
            for writer in [&made.writer, &answered] {
                let ticket = commit(writer, block(&pool, 7).await, 7)?;
                drop(polls(writer.durable(ticket), n).await);
                drop(polls(writer.room(), n).await);
                drop(polls(writer.closed(), n).await);
                let mut all = Vec::new();
                while all.len() < pool.blocks() {
                    all.push(pool.lease().await);
                }
                writer.durable(ticket).await?;
            }
            assert_eq!(contents(&made.target)?[served::TAIL as usize], 7);
            drop(polls(answered.clone().close(CLOSE), n).await);
            drop((made, answered));
            serving.stop().await;
        }
        Ok(())
    })
}

/// Promise: a peer that ends the connection wakes every wait with the reason, and sources come
/// back.
#[test]
fn an_end_wakes_all_waits() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let pool = pool(&peer)?;
        let closed = tokio::spawn({
            let writer = made.writer.clone();
            async move { writer.closed().await }
        });
        let first = commit(&made.writer, block(&pool, 1).await, 1)?;
        made.writer.durable(first).await?;
        made.server.abort();
        closed.await.expect("no panic")?;
        let ended = made.writer.room().await.expect_err("no room any more");
        assert!(matches!(ended, Error::Ended(_)), "{ended}");
        assert_eq!(made.writer.fate(first)?, Fate::Durable);
        made.writer.durable(first).await?;
        let refused = commit(&made.writer, block(&pool, 2).await, 2);
        assert!(
            matches!(refused, Err(Error::NotConnected(_))),
            "{refused:?}"
        );
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: an end of this side makes the fate of commits in flight known or unknown, never
/// pending.
#[test]
fn an_abort_leaves_no_commit_pending() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 4).await?;
        let pool = pool(&peer)?;
        let mut tickets = Vec::new();
        for number in 1..=4 {
            let bytes = block(&pool, number).await;
            tickets.push(commit(&made.writer, bytes, number)?);
        }
        made.writer.abort();
        for ticket in tickets {
            let fate = match made.writer.durable(ticket).await {
                Ok(()) => Fate::Durable,
                Err(_) => Fate::Unknown,
            };
            assert_eq!(made.writer.fate(ticket)?, fate);
        }
        drop(made);
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: bad input is one clear error before any post, and the sources come back.
#[test]
fn bad_input_is_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let other = crate::common::peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 1).await?;
        let second = Made::new(&reactor, 1).await?;
        let pool = pool(&peer)?;
        let far = made.writer.offer().regions()[0];

        let foreign = Pool::new(&other, 100, 1)?;
        let refused = commit(&made.writer, block(&foreign, 1).await, 1);
        assert!(
            matches!(refused, Err(Error::InvalidArgument(_))),
            "{refused:?}"
        );
        assert_eq!(foreign.available(), 1);

        let bytes = block(&pool, 1).await;
        let part = |at: u64| -> Result<_> { Ok((far.slice(at..at + 100)?, bytes.clone())) };
        let refused = made.writer.commit([part(0)?, part(128)?, part(256)?], None);
        let refused = refused.expect_err("3 parts");
        assert!(refused.to_string().contains("up to 2"), "{refused}");
        assert_eq!(
            refused
                .memory
                .ok_or("nothing was posted")?
                .into_iter()
                .count(),
            3
        );
        let long = (far.slice(0..101)?, bytes.clone());
        let refused = made.writer.commit([long], None).expect_err("longer");
        assert!(
            matches!(refused.error, Error::InvalidArgument(_)),
            "{refused}"
        );
        drop(refused);

        let ticket = commit(&made.writer, bytes, 1)?;
        let refused = second
            .writer
            .durable(ticket)
            .await
            .expect_err("not its own");
        assert!(refused.to_string().contains("another writer"), "{refused}");
        second.writer.fate(ticket).expect_err("not its own");
        made.writer.durable(ticket).await?;
        assert_eq!(pool.available(), 8);
        Ok(())
    })
}

/// Promise: a commit that finds no room is refused with its sources, and room comes without a task
/// that waits.
#[test]
fn a_full_writer_refuses() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let pool = pool(&peer)?;
        let mut refused = 0;
        for number in 0..200 {
            let bytes = block(&pool, number).await;
            match commit(&made.writer, bytes, number) {
                Ok(_) => {}
                Err(Error::QueueFull { queue, depth }) => {
                    assert_eq!((queue, depth), (Queue::Commits, 2));
                    refused += 1;
                    made.writer.room().await?;
                    assert!(made.writer.available() > 0);
                }
                Err(error) => panic!("{error}"),
            }
        }
        println!("{refused} of 200 were refused");
        made.writer.close(CLOSE).await?;
        Ok(())
    })
}

/// Promise: if the driver of a reactor never runs, or is dropped, each wait returns an error.
#[test]
fn a_driver_that_is_missing_is_an_error() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        let made = Made::new(&reactor, 2).await?;
        let serving = Serving::new(&reactor, 1)?;
        let writer = served::writer(&reactor, serving.addr, 1).await;

        let (without, driver) = Reactor::new(&peer)?;
        let writer = Writer::new(&without, writer)?;
        let never = writer.closed().await.expect_err("nobody wakes it");
        assert!(never.to_string().contains("never run"), "{never}");
        let waiting = tokio::spawn({
            let writer = writer.clone();
            async move { writer.closed().await }
        });
        drop(driver);
        let gone = writer.closed().await.expect_err("nobody wakes it");
        assert!(gone.to_string().contains("was dropped"), "{gone}");
        waiting
            .await
            .expect("no panic")
            .expect_err("nobody wakes it");
        drop((writer, made));
        serving.stop().await;
        Ok(())
    })
}

/// Promise: `close` past its limit is an error, and ends the connection.
#[cfg(feature = "sim")]
#[test]
fn a_close_has_a_limit() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let reactor = Reactor::spawn(&peer)?;
        // No task answers.
        let site = crate::serve::support::Site::with(1, &served::cfg()?)?;
        let addr = served::at(site.server.get_port());
        let serving = Serving::of(&reactor, site)?;
        let writer = served::writer(&reactor, addr, 1).await;
        let stopped = serving.stop().await;
        let writer = Writer::new(&reactor, writer)?;
        let pool = pool(&peer)?;
        let ticket = commit(&writer, block(&pool, 1).await, 1)?;
        let late = writer.clone().close(Duration::from_millis(120)).await;
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
        writer
            .durable(ticket)
            .await
            .expect_err("the connection is over");
        assert_eq!(writer.fate(ticket)?, Fate::Unknown);
        drop(stopped);
        Ok(())
    })
}
