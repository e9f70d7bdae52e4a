//! Peers that are killed, cut off, or silent, and queue pairs that a device gives up.

use std::future::pending;

use rpma_async::Setup;
use tokio::time::{Instant, sleep};

use crate::awaited::sleepers::Sleepers;
use crate::awaited::support::{CLOSE, Memories, both, joined, receives};
use crate::awaited::world::{impatient, is_unanswered, virtually, within};
use crate::common::prelude::*;

/// Holds the operations of [`Sleepers`] back, which are reads on iWARP.
fn hold_unanswered(link: &Link) {
    if is_iwarp() {
        link.hold();
    }
}

/// Promise: a peer with killed programs wakes all sleeping tasks, with the reason.
#[test]
fn a_killed_peer_wakes_all() -> Result {
    virtually(async |world| {
        let memories = Memories::new(&world.peers[0]);
        let (client, _server) = world.connect(&receives(2), &Setup::default()).await?;
        hold_unanswered(&world.link);
        let sleepers = Sleepers::new(&client, &memories).await?;
        world.hosts[1].kill();
        sleepers.woken().await.is_closed_by_the_peer();
        drop(client);
        assert_eq!(memories.pool.available(), 4);
        Ok(())
    })
}

/// Promise: an operation that a peer does not answer ends the connection, and every sleeping task
/// is woken with its failure, even tasks that do not wait for an operation, and before the
/// connection manager notices the loss.
#[test]
fn a_peer_that_is_cut_off_wakes_all() -> Result {
    virtually(async |world| {
        let memories = Memories::new(&world.peers[0]);
        let setup = Setup::new(&impatient()).with_receives(2, 64);
        let (client, _server) = world.connect(&setup, &Setup::default()).await?;
        hold_unanswered(&world.link);
        let sleepers = Sleepers::new(&client, &memories).await?;
        world.link.partition();
        let woken = within(Duration::from_secs(5), sleepers.woken()).await;
        woken.each_tells(is_unanswered);
        for op in &woken.ops {
            let failed = op.as_ref().expect_err("the peer has not answered");
            assert!(failed.has_memory, "{failed:?}");
        }
        woken.idle?;
        assert!(client.closed().await.is_err());
        let ready = client.ready(1).await;
        assert!(matches!(ready, Err(Error::Operation(_))), "{ready:?}");
        let closed = client.clone().close(CLOSE).await;
        assert!(matches!(closed, Err(Error::Operation(_))), "{closed:?}");
        // When the connection manager notices it there is an event.
        sleep(Duration::from_secs(100)).await;
        assert_eq!(client.closed().await?, ConnEvent::Closed);
        world.link.heal();
        Ok(())
    })
}

/// Promise: the driver takes the steps of a keep-alive. A peer that is silent ends the connection,
/// if there are no posts and no polls, within the time of the settings.
#[test]
fn a_silent_peer_wakes_all() -> Result {
    for (freezes, receives) in [(false, true), (true, true), (true, false)] {
        virtually(async |world| {
            let mut cfg = impatient();
            let silence = Duration::from_secs(8);
            cfg.set_keep_alive(Some(silence))?;
            let mut setup = Setup::new(&cfg);
            if receives {
                setup = setup.with_receives(2, 64);
            }
            let (client, _server) = world.connect(&setup, &Setup::default()).await?;
            let inbox = client.inbox();
            assert_eq!(inbox.is_ok(), receives);
            let inbox = tokio::spawn(async move {
                match inbox {
                    Ok(mut inbox) => inbox.next().await.map(|next| next.is_some()),
                    // Without receives no operation is flushed: the keep-alive alone has failed.
                    Err(_) => pending().await,
                }
            });
            let closed = tokio::spawn(client.closed());
            let closing = tokio::spawn(client.clone().closed());
            sleep(10 * silence).await;
            assert!(!inbox.is_finished(), "the peer answers");
            assert!(!closed.is_finished(), "the peer answers");
            if freezes {
                world.hosts[1].freeze()
            } else {
                world.link.partition()
            }
            let event = within(silence, joined(closed)).await?;
            println!("{event:?}");
            if receives {
                assert!(!joined(inbox).await?);
            }
            assert_eq!(joined(closing).await?, event);
            let ready = client.ready(1).await;
            assert!(matches!(ready, Err(Error::Ended(_))), "{ready:?}");
            let closed = client.clone().close(CLOSE).await;
            let silent: rpma::Result<()> = Err(Error::NotConnected(NotConnected::Silent));
            assert_eq!(format!("{closed:?}"), format!("{silent:?}"));
            if freezes {
                world.hosts[1].thaw()
            } else {
                world.link.heal()
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: a queue pair that its device gives up, or breaks, because of the peer wakes everything
/// that sleeps.
#[test]
fn a_broken_queue_pair_wakes_all() -> Result {
    virtually(async |world| {
        let [of_client, of_server] = world.peers.each_ref().map(Memories::new);
        let setup = Setup::new(&impatient());
        let (client, server) = world.connect(&setup, &receives(2)).await?;
        hold_unanswered(&world.fabric.between(&world.hosts[1], &world.hosts[0]));
        let sleepers = Sleepers::new(&server, &of_server).await?;
        // The client asks for memory that is not there any more.
        let remote = of_server.remote.slice(8..15)?;
        of_server.target.dereg()?;
        let write = client.write(remote, of_client.word())?;
        let is_refused = write.await.is_err();
        assert!(is_refused || is_iwarp());
        let woken = sleepers.woken().await;
        println!("{woken:?}");
        for op in &woken.ops {
            assert!(op.is_err(), "{woken:?}");
        }
        assert!(woken.ready.is_err(), "{woken:?}");
        assert!(matches!(woken.close, Some(Err(_))), "{woken:?}");
        // The device may have kept completions back.
        let mut failed = woken.ops.iter().flat_map(|op| op.as_ref().err());
        if failed.all(|failed| failed.has_memory) {
            assert!(woken.idle.is_ok());
        }
        let flush = client.flush(of_client.to(), FlushType::Visibility);
        assert!(flush.is_err(), "the client knows");
        drop((client, server, woken));
        assert_eq!(of_server.pool.available(), 4);
        assert_eq!(of_client.pool.available(), 4);
        Ok(())
    })
}

/// Promise: a limit that begins while the driver sleeps is kept to the millisecond. The driver
/// would wake later by itself, for its look at all connections.
#[test]
fn a_limit_wakes_a_driver_that_sleeps() -> Result {
    virtually(async |world| {
        let memories = Memories::new(&world.peers[1]);
        let (client, _server) = world.connect(&Setup::default(), &Setup::default()).await?;
        world.link.hold();
        let flush = client.flush(memories.to(), FlushType::Visibility)?;
        // It has slept for some time, and would for as long again.
        sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        let limit = Duration::from_millis(20);
        let closed = client.close(limit).await;
        assert!(matches!(closed, Err(Error::TimedOut(_))), "{closed:?}");
        assert_eq!(began.elapsed(), limit);
        flush.await.expect_err("it was flushed");
        Ok(())
    })
}

/// Promise: connecting ends in time. A server that has the request and does not answer it: the
/// kernel would wait for 17 minutes.
#[test]
fn connecting_has_a_limit() -> Result {
    let short = Duration::from_secs(5);
    for (setup, limit) in [
        (Setup::default(), Duration::from_secs(90)),
        (Setup::default().with_connect_limit(short), short),
    ] {
        virtually(async |world| {
            let ip = world.hosts[1].addr();
            let listener = world.reactors[1].listen((ip, 0).into())?;
            let at = (ip, listener.port()).into();
            let began = Instant::now();
            let connecting = world.reactors[0].connect(at, &setup, b"");
            let (late, unanswered) = both(connecting, listener.accept()).await;
            assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
            assert_eq!(began.elapsed(), limit);
            drop(unanswered?);

            // The side that accepts. Its answer is lost.
            let connecting = world.reactors[0].connect(at, &setup, b"");
            let accepting = async {
                let incoming = listener.accept().await.expect("a request");
                world.link.partition();
                let began = Instant::now();
                let accepted = incoming.accept(&Setup::default().with_connect_limit(short), b"");
                (accepted.await.map(drop), began.elapsed())
            };
            let (_, (accepted, took)) = both(connecting, accepting).await;
            assert!(matches!(accepted, Err(Error::TimedOut(_))), "{accepted:?}");
            assert_eq!(took, short);
            world.link.heal();
            Ok(())
        })?;
    }
    Ok(())
}
