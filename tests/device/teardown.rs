//! Tearing down: in any order, with operations in flight, forgotten, and from several threads.

use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::prelude::*;

/// In every order in which a program can drop its objects, everything is freed, and no call fails.
#[test]
fn objects_may_be_dropped_in_each_order() -> Result {
    let _test = device_test();
    for order in permutations(5) {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        let client = ask(&peer, &ep, &cfg)?;
        let server = accept(&ep, &cfg)?;
        assert_eq!(event(&client)?, ConnEvent::Established);
        let mr = region(&peer, 64, MrUsage::WRITE_SRC | MrUsage::WRITE_DST)?;
        client.write(remote(&mr).slice(..)?, mr.slice(..)?, ALWAYS, 1)?;

        let mut things: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new(peer)),
            Some(Box::new(ep)),
            Some(Box::new(client)),
            Some(Box::new(server)),
            Some(Box::new(mr)),
        ];
        for index in order {
            drop(things[index].take().ok_or("each once")?);
        }
    }
    Ok(())
}

/// After its region is gone the memory is only its owner's, even for operations in flight.
#[test]
fn memory_is_not_touched_after_deregistration() -> Result {
    const LEN: usize = 4 << 20;
    let (_test, peer) = peer_test()?;
    let source = region(&peer, LEN, MrUsage::READ_SRC)?;
    source.write_at(0, &pattern(LEN, 3))?;
    let part = remote(&source).slice(..)?;
    for delay in [0, 1, 20, 100] {
        let pair = Pair::new(&peer)?;
        let target = region(&peer, LEN, MrUsage::READ_DST)?;
        for wr_id in 0..4 {
            pair.client.read(target.slice(..)?, part, ALWAYS, wr_id)?;
        }
        thread::sleep(Duration::from_millis(delay));
        let memory = target.dereg()?;
        let before = memory.as_slice().to_vec();
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            // The device does not write into memory that was given back.
            assert!(memory.as_slice() == before);
        }
    }
    Ok(())
}

/// Operations on a region that is dropped end their connection with an error, without another
/// effect.
#[test]
fn a_region_dropped_with_work_posted_ends_the_connection() -> Result {
    const LEN: usize = 1 << 20;
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    let pair = Pair::new(&peer)?;
    for wr_id in 0..8 {
        memories.write(&pair.client, wr_id)?;
    }
    drop(memories.source);
    let wcs = completions(&pair.client, 8)?;
    // 8 MiB are not sent in the time that a drop takes.
    assert!(wcs.iter().any(|wc| wc.result().is_err()), "{wcs:?}");
    Ok(())
}

#[test]
fn a_connection_dropped_with_work_posted() -> Result {
    const LEN: usize = 1 << 20;
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, LEN)?;
    let part = memories.to()?;
    for side in 0..4 {
        let Pair { client, server } = Pair::new(&peer)?;
        for wr_id in 0..4 {
            memories.write(&client, wr_id)?;
            client.flush(part, FlushType::Visibility, ALWAYS, wr_id)?;
        }
        let start = Instant::now();
        match side {
            0 => drop(client),
            1 => drop(server),
            2 => client.delete()?,
            _ => server.delete()?,
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    Ok(())
}

/// The requester learns of a peer that is gone, in bounded time: the default retry count is not the
/// endless one.
#[test]
fn a_peer_that_is_gone_is_noticed() -> Result {
    let (_test, peer) = peer_test()?;
    let memories = Memories::new(&peer, &peer, 8)?;
    let Pair { client, server } = Pair::new(&peer)?;
    drop(server);
    if !is_iwarp() {
        memories.write(&client, 1)?;
        let failure = fails(&client)?;
        assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
    }
    assert_eq!(event(&client)?, ConnEvent::Closed);
    assert_not_connected(memories.write(&client, 2));
    Ok(())
}

/// A region that is forgotten stays registered, and the memory allocated: the device may go on
/// writing.
#[test]
fn a_forgotten_region_is_harmless() -> Result {
    // The objects that it leaves differ: librdmacm has a domain of its own while there is an id.
    on_fabric(|| {
        let peer = peer()?;
        let pair = Pair::new(&peer)?;
        let target = region(&peer, 64, MrUsage::WRITE_DST | MrUsage::READ_SRC)?;
        let part = remote(&target).slice(..)?;
        std::mem::forget(target);
        let source = region(&peer, 64, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
        source.write_at(0, &[5; 64])?;
        let local = source.slice(..)?;
        pair.client.write(part, local, ALWAYS, 1)?;
        done(&pair.client, 1)?;
        source.write_at(0, &[0; 64])?;
        pair.client.read(local, part, ALWAYS, 2)?;
        done(&pair.client, 2)?;
        assert_eq!(contents(&source)?, [5; 64]);
        Ok(())
    })
}

/// A panic unwinds through everything and leaves no object.
#[test]
fn a_panic_leaks_nothing() -> Result {
    let _test = device_test();
    let result = std::panic::catch_unwind(|| {
        let peer = peer().expect("a peer on the test device");
        let pair = Pair::new(&peer).expect("established");
        let memories = Memories::new(&peer, &peer, 64).expect("registers");
        memories.write(&pair.client, 1).expect("posted");
        panic!("on purpose");
    });
    assert!(result.is_err());
    Ok(())
}

/// Posting, polling and waiting for events from several threads at once.
#[test]
fn threads_share_a_connection() -> Result {
    const POSTS: u64 = 500;
    let (_test, peer) = peer_test()?;
    let cfg = ConnCfg::new().set_sq_size(32).clone();
    let pair = Pair::with(&peer, &cfg, &cfg)?;
    let memories = Memories::new(&peer, &peer, 64)?;
    let done = AtomicBool::new(false);
    let polled = thread::scope(|scope| -> Result<_> {
        let post = |numbers: Range<u64>| {
            numbers.for_each(|wr_id| _ = until_posted(|| memories.write(&pair.client, wr_id)));
        };
        let posters = [0, 1, 2].map(|poster| {
            let numbers = poster * POSTS..(poster + 1) * POSTS;
            scope.spawn(move || post(numbers))
        });
        let poller = scope.spawn(|| -> Result<_> {
            let (mut polled, start) = (Vec::new(), Instant::now());
            while polled.len() < 3 * POSTS as usize {
                let mut wcs = [Wc::default(); 8];
                let count = pair.client.get_cq().get_wc(&mut wcs)?;
                for wc in &wcs[..count] {
                    wc.result()?;
                    polled.push(wc.wr_id());
                }
                let count = polled.len();
                assert!(start.elapsed() < LIMIT, "{count} completions in time");
            }
            Ok(polled)
        });
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let none = pair.client.next_event_timeout(Duration::from_millis(10));
                assert!(matches!(none, Err(Error::NoEvent)), "{none:?}");
            }
        });
        for poster in posters {
            poster.join().expect("posts everything");
        }
        let polled = poller.join().expect("polls everything")?;
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("sees no event");
        Ok(polled)
    })?;
    // Each operation completes once.
    let unique = polled.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(unique.len(), 3 * POSTS as usize);
    Ok(())
}

/// Two threads in the connection manager at once: one waits for events, the other disconnects.
#[test]
fn disconnecting_while_another_thread_waits() -> Result {
    let (_test, peer) = peer_test()?;
    for _ in 0..10 {
        let pair = Pair::new(&peer)?;
        thread::scope(|scope| -> Result {
            let waiter = scope.spawn(|| event(&pair.client));
            pair.client.disconnect()?;
            pair.server.disconnect()?;
            assert_eq!(waiter.join().expect("an event")?, ConnEvent::Closed);
            Ok(())
        })?;
    }
    Ok(())
}

/// Everything may move to another thread, and be dropped there.
#[test]
fn everything_can_be_sent_to_another_thread() -> Result {
    let _test = device_test();
    let device = Device::from_addr(&addr(), Side::Local)?;
    let peer = Peer::new(&device)?;
    let pair = Pair::new(&peer)?;
    let mr = region(&peer, 64, MrUsage::WRITE_SRC)?;
    thread::spawn(move || drop((mr, pair.server, device, pair.client, peer)))
        .join()
        .expect("drops everything");
    Ok(())
}

/// Promise: a handle of a queue may stay longer than its connection, in any order, with a watcher
/// of its descriptor; the queue goes with the last one.
#[test]
fn handles_of_queues_outlive_their_connection() -> Result {
    let (_test, peer) = peer_test()?;
    for receives_first in [true, false] {
        let cfg = ConnCfg::new().set_rcq_size(10).clone();
        let Pair { client, server } = Pair::with(&peer, &cfg, &ConnCfg::new())?;
        let cq = client.get_cq().clone();
        let rcq = client.get_rcq().ok_or("its own")?.clone();
        write_nothing(&client, 1)?;
        // Another handle, the same queue.
        assert_eq!(next_completion(&cq)?.wr_id(), 1);
        assert_empty(client.get_cq())?;
        cq.wait_timeout(LIMIT)?;
        client.delete()?;
        drop(server);
        assert_empty(&cq)?;
        let waited = rcq.wait_timeout(LIMIT);
        let closed = matches!(waited, Err(Error::NotConnected(NotConnected::Closed)));
        assert!(closed, "{waited:?}");
        let again = cq.clone();
        if receives_first {
            drop((rcq, cq, again))
        } else {
            drop((cq, again, rcq))
        }
    }
    Ok(())
}
