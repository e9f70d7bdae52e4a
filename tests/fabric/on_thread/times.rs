//! Waits pass in the time of the fabric: `block_on`, and the timers of a reactor's thread.

use std::future::{pending, poll_fn};
use std::task::Poll;
use std::thread as real;

use rpma::sim::now;
use rpma::thread;
use rpma_async::{Conn, Pool, Reactor, block_on};

use crate::common::prelude::*;
use crate::on_thread::program::{SILENCE, Server, nothing_is_left, reactor_on, setup, wait};

const MINUTE: Duration = Duration::from_secs(60);

/// Runs a test in which the clock jumps, and one with a seed.
fn in_each_time(test: impl Fn(&Fabric) -> Result) -> Result {
    let fabric = Rig::new().jumping().fabric();
    {
        // Otherwise the clock would jump while this thread starts another one.
        let _entered = fabric.host("main").enter();
        test(&fabric)?;
    }
    let fabric = Rig::new().seed(7).fabric();
    test(&fabric)?;
    assert_eq!(fabric.why_not_repeatable(), None);
    Ok(())
}

/// It took so long. If there is a seed the clock stands while threads compute, and it took no
/// longer.
fn assert_took(began: Instant, limit: Duration, is_seeded: bool) {
    let took = now() - began;
    assert!(took >= limit, "{took:?}");
    assert!(!is_seeded || took < limit + limit / 60, "{took:?}");
}

/// Two connected ends, on a host each, with the reactors' threads.
struct Ends {
    here: Host,
    there: Host,
    reactor: Reactor,
    client: Conn,
    server: (Server, Conn),
}

fn ends(fabric: &Fabric) -> Result<Ends> {
    let [here, there] = ["client", "server"].map(|name| fabric.host(name));
    let server = Server::new(&there)?;
    let addr = server.addr;
    let accepting = there.spawn(move || -> Result<_> {
        let conn = server.accept()?;
        Ok((server, conn))
    });
    let host = here.clone();
    let connecting = here.spawn(move || -> Result<_> {
        let reactor = reactor_on(&host)?;
        let conn = wait(reactor.connect(addr, &setup(), &[]))?;
        Ok((reactor, conn))
    });
    let (reactor, client) = connecting.join().expect("no panic")?;
    Ok(Ends {
        server: accepting.join().expect("no panic")?,
        here,
        there,
        reactor,
        client,
    })
}

/// Promise: a limit of `block_on`, or of `Op::wait`, passes at its instant and in no real time,
/// beside connections with keep-alives.
#[test]
fn a_limit_passes_at_its_instant() -> Result {
    let began = Instant::now();
    in_each_time(|fabric| {
        let ends = ends(fabric)?;
        let is_seeded = fabric.seed().is_some();
        let (reactor, client) = (ends.reactor, ends.client);
        let waiting = ends.here.spawn(move || -> Result {
            for _ in 0..20 {
                let began = now();
                assert!(block_on(pending::<()>(), MINUTE).is_none());
                assert_took(began, MINUTE, is_seeded);
            }
            assert!(block_on(pending::<()>(), Duration::ZERO).is_none());
            // A message that is not received is sent again and again.
            let pool = Pool::new(reactor.peer(), 64, 1)?;
            let word = pool.try_lease().ok_or("a block")?.freeze();
            for _ in 0..4 {
                client.send(word.clone())?.wait(MINUTE)?;
            }
            let began = now();
            let short = Duration::from_millis(1);
            let failed = client.send(word)?.wait(short).expect_err("there is none");
            assert!(matches!(failed.error, Error::TimedOut(_)), "{failed}");
            assert_took(began, short, is_seeded);
            Ok(())
        });
        waiting.join().expect("no panic")?;
        drop(ends.server);
        nothing_is_left(fabric);
        Ok(())
    })?;
    // 40 minutes have passed on the fabrics.
    assert!(began.elapsed() < 10 * MINUTE);
    Ok(())
}

/// Promise: each of several threads that await on one reactor is woken at its own instant, the
/// first one first.
#[test]
fn threads_of_one_reactor_wake_at_their_instants() -> Result {
    const THREADS: u32 = 5;
    in_each_time(|fabric| {
        let ends = ends(fabric)?;
        let is_seeded = fabric.seed().is_some();
        let (reactor, client) = (ends.reactor, ends.client);
        let threads = ends.here.spawn(move || {
            let began = now();
            let threads = (1..=THREADS).map(|number| {
                let client = client.clone();
                thread::spawn(move || {
                    let limit = number * MINUTE;
                    // The connection goes on, so it has no end.
                    assert!(block_on(client.closed(), limit).is_none());
                    assert_took(began, limit, is_seeded);
                })
            });
            for thread in Vec::from_iter(threads) {
                thread.join().expect("no panic");
            }
            drop(reactor);
        });
        threads.join().expect("no panic");
        drop(ends.server);
        nothing_is_left(fabric);
        Ok(())
    })
}

/// Promise: a peer that stands still is an end after the time of the keep-alive, for each thread
/// that awaits, and takes no real time.
#[test]
fn a_frozen_peer_is_an_end_in_virtual_time() -> Result {
    in_each_time(|fabric| {
        let ends = ends(fabric)?;
        let began = fabric.now();
        ends.there.freeze();
        let waiting = [(); 3].map(|()| {
            let client = ends.client.clone();
            ends.here.spawn(move || wait(client.closed()))
        });
        for waiting in waiting {
            let event = waiting.join().expect("no panic")?;
            assert!(matches!(event, ConnEvent::Lost { .. }), "{event:?}");
        }
        let took = fabric.now() - began;
        // The keep-alive's time, and not the 69 s of the connection manager.
        assert!(fabric.seed().is_none() || took <= SILENCE, "{took:?}");
        let last = (ends.reactor, ends.client);
        let last = ends.here.spawn(move || drop(last));
        last.join().expect("no panic");
        drop(ends.server);
        nothing_is_left(fabric);
        Ok(())
    })
}

/// Promise: off any host all of it is in real time, even beside a fabric with a clock that jumps:
/// there are no jumps for threads outside of the fabric.
#[test]
fn off_a_host_time_is_real() -> Result {
    const SHORT: Duration = Duration::from_millis(50);
    let fabric = Rig::new().jumping().fabric();
    let peer = peer_of(&fabric.host("client"));
    let before = fabric.now();
    let began = Instant::now();
    let reactor = Reactor::on_thread(&peer)?;
    assert!(block_on(pending::<()>(), SHORT).is_none());
    assert!(began.elapsed() >= SHORT);
    // A wake-up from elsewhere ends it.
    let mut waking = None;
    let woken = poll_fn(|cx| {
        let Some(thread) = waking.take() else {
            let waker = cx.waker().clone();
            let wakes = move || {
                real::sleep(SHORT);
                waker.wake();
            };
            waking = Some(real::spawn(wakes));
            return Poll::Pending;
        };
        Poll::Ready(thread.join())
    });
    let ended = block_on(woken, MINUTE).ok_or("woken")?;
    ended.expect("no panic");
    drop(reactor);
    assert!(fabric.now() - before < MINUTE);
    Ok(())
}
