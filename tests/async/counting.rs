//! How often the driver works: for tasks that sleep, and for no others.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use rpma::FlushType;
use rpma_async::{Conn, Driver, Reactor, Setup};
use tokio::task::yield_now;

use crate::support::{Memories, begun};
use crate::world::virtually;

/// A driver whose polls are counted.
struct Counted {
    driver: Driver,
    polls: Arc<AtomicU32>,
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
async fn thousand(conn: &Conn, memories: &Memories, dropped: bool) {
    for round in 0..500 {
        let to = memories.to();
        let write = conn.write(to, memories.word()).expect("posted");
        let flush = conn.flush(to, FlushType::Visibility).expect("posted");
        match dropped && round % 10 == 0 {
            true => write.detach(),
            false => drop(write.await.expect("succeeds")),
        }
        flush.await.expect("succeeds");
        yield_now().await;
    }
}

/// Promise: 1,000 operations that do not sleep wake the driver at most twice. It is so again after some
/// slept, and after waits for room, for messages and for the end that were dropped.
#[test]
fn the_driver_rests_while_nobody_sleeps() {
    virtually(async |world| {
        let memories = world.memories(4);
        let (reactor, driver) = Reactor::new(&world.peers[0]).expect("a reactor");
        let polls = Arc::<AtomicU32>::default();
        let counted = Counted {
            driver,
            polls: Arc::clone(&polls),
        };
        let driver = tokio::spawn(counted);
        let setup = Setup::default().with_receives(2, 64);
        let (client, server) = world.connect_from(&reactor, &setup, &setup).await;
        let during = async |dropped| {
            for _ in 0..5 {
                yield_now().await;
            }
            let before = polls.load(Ordering::Relaxed);
            thousand(&client, &memories, dropped).await;
            polls.load(Ordering::Relaxed) - before
        };
        assert!(during(false).await <= 2);
        // A sleep arms the queue, and the wake-up ends that.
        world.link.hold();
        let mut asleep = client
            .write(memories.to(), memories.word())
            .expect("posted");
        assert!(begun(&mut asleep).await.is_none());
        let dropped = client
            .write(memories.to(), memories.word())
            .expect("posted");
        dropped.detach();
        assert!(begun(&mut client.idle()).await.is_none());
        assert!(begun(&mut client.ready(10)).await.is_none());
        assert!(begun(&mut client.closed()).await.is_none());
        world.link.release();
        asleep.await.expect("succeeds");
        let mut inbox = client.inbox().expect("it has receives");
        assert!(begun(&mut inbox.next()).await.is_none());
        drop(inbox);
        assert!(during(false).await <= 2);
        drop(client.inbox());
        assert!(during(false).await <= 2);
        // A dropped operation may arm it once.
        assert!(during(true).await <= 52);
        drop((client, server, reactor));
        driver.await.expect("no panic").expect("no error");
    });
}
