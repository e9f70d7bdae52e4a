//! Limits for futures of any kind.

use std::future::{pending, ready};

#[cfg(feature = "sim")]
use rpma_async::Setup;
use rpma_async::{Pool, Reactor, block_on};

use crate::awaited::held::leaving_nothing;
use crate::awaited::served::polls;
use crate::awaited::support::{
    in_time, joined, listen, run, says, spawn_with, turns, with_reactor,
};
#[cfg(feature = "sim")]
use crate::awaited::world::virtually;
use crate::common::prelude::*;

const SHORT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

/// Promise: a limit passes, on tokio and on a driver's thread, also for a future that no reactor
/// has. It polls the future once at least. A future that is ready in time is no matter of the
/// limit.
#[test]
fn a_limit_passes() -> Result {
    with_reactor(async |reactor| {
        let began = Instant::now();
        assert_eq!(reactor.timeout(SHORT, pending::<()>()).await, None);
        if cfg!(not(feature = "sim")) {
            assert!(began.elapsed() >= SHORT);
        }
        assert_eq!(reactor.timeout(Duration::ZERO, ready(7)).await, Some(7));
        assert_eq!(reactor.timeout(Duration::ZERO, pending::<()>()).await, None);
        let (sends, receives) = tokio::sync::oneshot::channel();
        let waiting = spawn_with(reactor, |reactor| async move {
            reactor.timeout(Duration::MAX, receives).await
        });
        turns(1).await;
        sends.send(8).expect("it waits");
        assert_eq!(joined(waiting).await, Some(Ok(8)));
        Ok(())
    })?;
    leaving_nothing(|| {
        let reactor = Reactor::on_thread(&peer()?)?;
        let passed = block_on(reactor.timeout(SHORT, pending::<()>()), LIMIT);
        assert_eq!(passed, Some(None));
        Ok(())
    })
}

/// Promise: a limit that is dropped after its nth poll drops its future, and one that is waited for
/// again is a new one.
#[test]
fn a_dropped_limit_drops_its_future() -> Result {
    with_reactor(async |reactor| {
        let pool = Pool::new(reactor.peer(), 64, 1)?;
        for n in 0..4 {
            let held = pool.try_lease().ok_or("a block is free")?;
            let leasing = async {
                let _second = pool.lease().await;
                pending::<()>().await;
            };
            assert!(polls(reactor.timeout(HOUR, leasing), n).await.is_none());
            drop(held);
            // The future that was woken for the block is gone.
            let lease = reactor.timeout(HOUR, pool.lease()).await;
            drop(lease.ok_or("a block is free")?);
        }
        Ok(())
    })
}

/// Promise: a limit is over at once if its driver never runs, or is dropped. A wait of the reactor
/// returns its own error instead.
#[test]
fn a_limit_without_a_driver_is_over() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        assert_eq!(in_time(reactor.timeout(HOUR, pending::<()>())).await, None);
        let driving = tokio::spawn(driver);
        let limited = spawn_with(&reactor, |reactor| async move {
            reactor.timeout(HOUR, pending::<()>()).await
        });
        let (listener, _) = listen(&reactor)?;
        let accepting = spawn_with(&reactor, |reactor| async move {
            let accepted = reactor.timeout(HOUR, listener.accept()).await;
            accepted.map(|accepted| accepted.map(drop))
        });
        turns(8).await;
        assert!(!limited.is_finished() && !accepting.is_finished());
        driving.abort();
        assert_eq!(joined(limited).await, None);
        let accepted = joined(accepting).await.ok_or("the error of the wait")?;
        says(accepted, &["was dropped"]);
        assert_eq!(in_time(reactor.timeout(HOUR, pending::<()>())).await, None);
        // It needs no driver.
        assert_eq!(reactor.timeout(HOUR, ready(7)).await, Some(7));
        Ok(())
    })
}

/// Promise: a limit is one of rpma's time. Under a paused clock it passes at its instant, whether
/// or not the future has a limit of its own.
#[cfg(feature = "sim")]
#[test]
fn a_limit_passes_at_its_instant() -> Result {
    use tokio::time::{Instant, sleep};

    virtually(async |world| {
        let [reactor, _] = &world.reactors;
        let began = Instant::now();
        assert!(reactor.timeout(HOUR, pending::<()>()).await.is_none());
        let hour = began.elapsed();
        assert!((HOUR..HOUR + SHORT).contains(&hour), "{hour:?}");
        assert!(reactor.timeout(HOUR, sleep(HOUR / 2)).await.is_some());
        // The first limit of the two passes.
        let both = reactor.timeout(2 * HOUR, reactor.timeout(HOUR, pending::<()>()));
        assert_eq!(both.await, Some(None));
        let both = reactor.timeout(HOUR, reactor.timeout(2 * HOUR, pending::<()>()));
        assert_eq!(both.await, None);
        let hours = began.elapsed();
        let all = hour + HOUR * 5 / 2;
        assert!((all..all + SHORT * 4).contains(&hours), "{hours:?}");
        Ok(())
    })
}

/// Promise: of several addresses the one that works is connected, within its share of the limit; if
/// none works, the error has the reason of each.
#[cfg(feature = "sim")]
#[test]
fn each_address_has_its_share() -> Result {
    use crate::awaited::support::{accept_next, both};

    virtually(async |world| {
        let [near, far] = &world.reactors;
        let addr = |port| (world.hosts[1].addr(), port).into();
        let listener = far.listen(addr(0))?;
        // It takes no request.
        let silent = far.listen(addr(0))?;
        let addrs = [1, silent.port(), listener.port()].map(addr);
        let setup = Setup::default().with_connect_limit(Duration::from_secs(12));
        let begin = world.fabric.now();
        let accepting = accept_next(&listener, &setup, b"");
        let (conn, accepted) = both(near.connect_to_any(&addrs, &setup, b""), accepting).await;
        drop((conn?, accepted?));
        let took = world.fabric.now() - begin;
        assert_eq!(took.as_secs(), 6, "{took:?}");
        let none = near.connect_to_any(&addrs[..2], &setup, b"").await;
        let text = none.expect_err("none works").to_string();
        let begin = "none of the 2 addresses works: ";
        assert!(text.starts_with(begin), "{text}");
        Ok(())
    })
}
