//! How often the driver works: for tasks that sleep, and for no others.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use rpma_async::{Conn, Driver, Reactor};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::awaited::support::{Memories, ask, begun, dropped_after, joined, receives, turns};
use crate::awaited::world::{World, virtually};
use crate::common::prelude::*;

/// A driver with counted polls.
struct Counted {
    driver: Driver,
    polls: Arc<AtomicU32>,
}

impl Counted {
    /// A reactor of the first host, and its driver, which runs.
    fn spawn(world: &World) -> Result<(Reactor, JoinHandle<rpma::Result<()>>, Arc<AtomicU32>)> {
        let (reactor, driver) = Reactor::new(&world.peers[0])?;
        let polls = Arc::<AtomicU32>::default();
        let counted = Self {
            driver,
            polls: Arc::clone(&polls),
        };
        Ok((reactor, tokio::spawn(counted), polls))
    }
}

impl Future for Counted {
    type Output = rpma::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.driver).poll(cx)
    }
}

/// 1,000 operations that are complete when they are awaited. Others, and the driver, may run after
/// each.
async fn thousand(conn: &Conn, memories: &Memories, dropped: bool) -> Result {
    for round in 0..500 {
        let to = memories.to();
        let write = conn.write(to, memories.word())?;
        let flush = conn.flush(to, FlushType::Visibility)?;
        if dropped && round % 10 == 0 {
            write.detach()
        } else {
            drop(write.await?)
        }
        flush.await?;
        turns(1).await;
    }
    Ok(())
}

/// Promise: 1,000 operations that do not sleep wake the driver at most twice. It is so again
/// after some slept, and after waits for room, for messages and for the end that were dropped.
#[test]
fn the_driver_rests_while_nobody_sleeps() -> Result {
    virtually(async |world| {
        let memories = world.memories(4);
        let (reactor, driver, polls) = Counted::spawn(world)?;
        let setup = receives(2);
        let (client, server) = world.connect_from(&reactor, &setup, &setup).await?;
        let during = async |dropped| -> Result<_> {
            turns(5).await;
            let before = polls.load(Ordering::Relaxed);
            thousand(&client, &memories, dropped).await?;
            Ok(polls.load(Ordering::Relaxed) - before)
        };
        assert!(during(false).await? <= 2);
        // A sleep arms the queue, and the wake-up ends that.
        world.link.hold();
        let mut asleep = ask(&client, &memories)?;
        assert!(begun(&mut asleep).await.is_none());
        client.write(memories.to(), memories.word())?.detach();
        assert!(begun(&mut client.idle()).await.is_none());
        assert!(begun(&mut client.ready(10)).await.is_none());
        assert!(begun(&mut client.closed()).await.is_none());
        world.link.release();
        asleep.await?;
        let mut inbox = client.inbox()?;
        assert!(begun(&mut inbox.next()).await.is_none());
        drop(inbox);
        assert!(during(false).await? <= 2);
        drop(client.inbox());
        assert!(during(false).await? <= 2);
        // A dropped operation may arm it once.
        assert!(during(true).await? <= 52);
        drop((client, server, reactor));
        joined(driver).await?;
        Ok(())
    })
}

/// Promise: everything that waits is woken when the device is done, and not when the driver looks
/// at all connections, which it does each second: memory of dropped operations, waits for room,
/// and messages.
#[test]
fn nothing_waits_for_the_next_look_of_the_driver() -> Result {
    const DELAY: Duration = Duration::from_millis(5);
    virtually(async |world| {
        let memories = world.memories(1);
        let setup = receives(2);
        let (client, server) = world.connect(&setup, &setup).await?;
        world.link.delay(DELAY);
        for begins in [true, false, false] {
            let began = Instant::now();
            let mut write = ask(&client, &memories)?;
            if begins {
                assert!(begun(&mut write).await.is_none());
            }
            write.detach();
            drop(memories.pool.lease().await);
            is_delayed(began);
        }
        for n in [10, 0] {
            let began = Instant::now();
            let write = ask(&client, &memories)?;
            match n {
                0 => client.idle().await?,
                n => client.ready(n).await?,
            }
            is_delayed(began);
            write.await?;
        }
        let began = Instant::now();
        let mut inbox = server.inbox()?;
        client.send(memories.word())?.detach();
        drop(inbox.next().await?.ok_or("a message")?);
        is_delayed(began);
        client.close(2 * DELAY).await?;
        Ok(())
    })?;

    #[track_caller]
    fn is_delayed(began: Instant) {
        let took = began.elapsed();
        assert!((DELAY..2 * DELAY).contains(&took), "{took:?}");
    }
    Ok(())
}

/// Promise: connections, listeners, and connections that were being made leave no trace in their
/// reactor. The driver of a reactor without them sleeps without a limit.
#[test]
fn a_reactor_without_connections_rests() -> Result {
    virtually(async |world| {
        let (reactor, driver, polls) = Counted::spawn(world)?;
        let setup = receives(2);
        drop(reactor.listen((world.hosts[0].addr(), 0).into())?);
        let (client, server) = world.connect_from(&reactor, &setup, &setup).await?;
        client.close(Duration::from_secs(5)).await?;
        drop(server);
        let nobody = (world.hosts[1].addr(), 7).into();
        for n in 0..4 {
            let connecting = reactor.connect(nobody, &setup, b"");
            dropped_after(n, false, connecting).await;
            let connecting = reactor.connect(nobody, &setup, &[0; 100]);
            connecting.await.expect_err("too long");
        }
        let during = async || {
            sleep(Duration::from_secs(5)).await;
            let before = polls.load(Ordering::Relaxed);
            sleep(Duration::from_secs(100)).await;
            polls.load(Ordering::Relaxed) - before
        };
        assert_eq!(during().await, 0);
        // A connection is looked at each second.
        let (client, server) = world.connect_from(&reactor, &setup, &setup).await?;
        assert!((99..=102).contains(&during().await));
        drop((client, server, reactor));
        joined(driver).await?;
        Ok(())
    })
}
