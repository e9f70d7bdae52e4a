//! Queues and channels that are dropped while events arrive and others wait.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::{fs, thread};

use crate::common::prelude::*;
use crate::events::support::{
    Kept, Random, SHORT, Stop, Waited, drain, finished, in_time, look, none, on_channel, pair_on,
    peer_with_channel, polled, receives, send, set_nonblocking, started, write,
};

/// Promise: each event is acknowledged exactly once. Destroying a queue waits until as many events
/// are acknowledged as were taken, for ever if they are too few or too many. So dropping it after
/// any history shows it, for each way to wait.
#[test]
fn each_event_is_acknowledged_once() -> Result {
    type History = fn(&Waited, &Conn);
    const HISTORIES: [(&str, History); 10] = [
        ("nothing", |_, _| {}),
        ("an event that nobody took", |waited, _| {
            write(&waited.conn);
            polled(waited.conn.get_cq(), 1);
        }),
        ("an event without polling", |waited, _| waited.gets_event()),
        ("an event and a completion", |waited, _| {
            waited.gets_event();
            polled(waited.conn.get_cq(), 1);
        }),
        ("many events, the last not taken", |waited, _| {
            for _ in 0..50 {
                waited.gets_event();
                polled(waited.conn.get_cq(), 1);
            }
            write(&waited.conn);
        }),
        ("a wait in vain", |waited, _| none(waited.wait(SHORT))),
        ("a non-blocking wait in vain, then an event", |waited, _| {
            let fd = waited.conn.get_cq();
            set_nonblocking(fd, true).expect("sets the flags");
            none(waited.wait(LIMIT));
            write(&waited.conn);
            assert!(readable(fd, LIMIT));
            waited.wait(LIMIT).expect("an event");
        }),
        ("an event that came without a completion", |waited, _| {
            waited.gets_event();
            write(&waited.conn);
            polled(waited.conn.get_cq(), 2);
            waited.wait(LIMIT).expect("an event");
        }),
        ("two threads that wait", |waited, _| {
            write(&waited.conn);
            let (sender, events) = mpsc::channel();
            thread::scope(|scope| {
                for sender in [sender.clone(), sender] {
                    scope.spawn(move || sender.send(waited.wait(LIMIT)).expect("wanted"));
                }
                for _ in 0..2 {
                    write(&waited.conn);
                    events.recv().expect("waits").expect("an event");
                }
            });
        }),
        ("a failure", |waited, _| {
            receives(&waited.conn, 3);
            waited.conn.disconnect().expect("disconnects");
            let _lost = waited.wait(SHORT);
        }),
    ];
    let _test = device_test();
    let peer = peer()?;
    for (name, history) in HISTORIES {
        for (waited, server) in Waited::each(&peer)? {
            in_time(&format!("dropping after: {name}"), move || {
                history(&waited, &server);
                waited.conn.delete()
            })?;
        }
    }
    Ok(())
}

/// Promise: queues may be destroyed while other threads wait on their channel. Neither hangs: not
/// the drop, for an acknowledgement, nor a wait, for an event that was discarded after it was
/// seen.
fn drops_while_others_wait(rounds: u64) -> Result {
    const LAST: u64 = u64::MAX;
    let (peer, channel) = peer_with_channel()?;
    let last = Kept(Some(pair_on(&peer, &channel, LAST)?));

    let unlimited = started({
        let channel = channel.clone();
        move || {
            loop {
                let event = channel.wait().expect("waits without a limit");
                if event.0 == LAST {
                    return;
                }
                assert!(event.0 < 2 * rounds, "{event:?}");
            }
        }
    });
    let ((stop, stopped), waits) = (Stop::new(), Arc::new(AtomicU64::new(0)));
    let limited = started({
        let (channel, waits) = (channel.clone(), Arc::clone(&waits));
        move || {
            while !stopped.load(Ordering::Relaxed) {
                let event = look(&channel);
                assert!(event.is_none_or(|of| of.0 < 2 * rounds), "{event:?}");
                waits.fetch_add(1, Ordering::Relaxed);
            }
        }
    });

    let mut random = Random(3);
    for round in 0..rounds {
        let cfg = |side| on_channel(&channel, 2 * round + side);
        let Pair { client, server } = Pair::with(&peer, &cfg(0), &cfg(1))?;
        receives(&server, 2);
        for conn in [&client, &server] {
            (0..3).for_each(|_| write(conn));
        }
        (0..2).for_each(|_| send(&client, ALWAYS));
        random.pause();
        let other = started(move || drop(server));
        random.pause();
        in_time("dropping a connection", move || drop(client));
        finished("dropping the other side", other);

        // No event is left, and the limited waits still end.
        let before = waits.load(Ordering::Relaxed);
        until(&format!("a limited wait hangs, round {round}"), || {
            waits.load(Ordering::Relaxed) >= before + 2
        });
    }

    drop(stop);
    finished("the wait with a limit", limited);
    write(&last.client);
    finished("the wait without a limit", unlimited);
    Ok(())
}

/// Protects programs that drop connections while one thread serves the events of all.
#[test]
fn queues_are_dropped_while_others_wait_on_their_channel() -> Result {
    let _test = device_test();
    drops_while_others_wait(100)
}

/// As above, for rarer races. Each round drops two connections.
#[test]
#[ignore = "long: some minutes"]
fn queues_are_dropped_while_others_wait_on_their_channel_long() -> Result {
    let _test = device_test();
    drops_while_others_wait(10_000)
}

/// Promise, as above, for the moment in which a queue goes and its event is there: either the event
/// is taken, with its right key, or it is discarded. The queue is that of a shared receive queue:
/// with a connection's, the queue pair goes first, which is slow, and the event is taken by then.
fn events_taken_while_their_queue_is_destroyed(rounds: u64) -> Result {
    const WAITERS: u64 = 2;
    let (peer, channel) = peer_with_channel()?;
    let (stop, stopped) = Stop::new();
    let (round, waits) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let waiters = [(); WAITERS as usize].map(|()| {
        let (channel, round, waits) = (channel.clone(), Arc::clone(&round), Arc::clone(&waits));
        let stopped = Arc::clone(&stopped);
        started(move || {
            let (mut random, mut next) = (Random(5), 1);
            while !stopped.load(Ordering::Relaxed) {
                if round.load(Ordering::Acquire) < next {
                    thread::yield_now();
                    continue;
                }
                random.pause();
                if let Some(event) = look(&channel) {
                    assert_eq!(event, (next, CqKind::Receive));
                }
                next += 1;
                waits.fetch_add(1, Ordering::Release);
            }
        })
    });
    for n in 1..=rounds {
        let key = Some((channel.clone(), n));
        let srq = Srq::new(&peer, SrqCfg::new().set_compl_channel(key))?;
        srq.recv(MrSlice::EMPTY, 1)?;
        let pair = Pair::with(&peer, &ConnCfg::new(), ConnCfg::new().set_srq(Some(&srq)))?;
        send(&pair.client, ALWAYS);
        assert!(readable(&channel, LIMIT), "its event arrives");
        drop(pair);
        assert!(readable(&channel, Duration::ZERO), "the event stays");

        let dropper = started({
            let round = Arc::clone(&round);
            move || {
                round.store(n, Ordering::Release);
                Random(n).pause();
                drop(srq);
            }
        });
        finished("destroying a queue", dropper);
        until(&format!("a limited wait hangs, round {n}"), || {
            waits.load(Ordering::Acquire) >= n * WAITERS
        });
        none(channel.wait_timeout(Duration::ZERO));
    }
    drop(stop);
    for waiter in waiters {
        finished("a waiter", waiter);
    }
    Ok(())
}

/// Protects the memory of an event, which is its queue's, and the waits.
#[test]
fn an_event_is_taken_while_its_queue_is_destroyed() -> Result {
    let _test = device_test();
    events_taken_while_their_queue_is_destroyed(200)
}

/// As above, for rarer races.
#[test]
#[ignore = "long: some minutes"]
fn an_event_is_taken_while_its_queue_is_destroyed_long() -> Result {
    let _test = device_test();
    events_taken_while_their_queue_is_destroyed(10_000)
}

/// The descriptors of event channels that are open in this process.
fn event_descriptors() -> Result<usize> {
    let fds = fs::read_dir("/proc/self/fd")?;
    let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let is_one = |link: &PathBuf| link.to_string_lossy().contains("infinibandevent");
    Ok(links.filter(is_one).count())
}

/// Promise: a channel lives until its last handle and its last queue are gone, whichever goes
/// first, with and without events on it; then it is closed.
#[test]
fn a_channel_outlives_its_queues_in_each_order() -> Result {
    let _test = device_test();
    in_time("dropping queues and their channel", || {
        drop(Pair::new(&peer()?)?);
        let before = event_descriptors()?;
        for (n, order) in permutations(4).into_iter().enumerate() {
            let (peer, channel) = peer_with_channel()?;
            let pairs = [0, 1].map(|key| {
                let pair = pair_on(&peer, &channel, key).expect("established");
                if n % 2 == 0 {
                    write(&pair.client);
                }
                pair
            });
            let [one, other] = pairs;
            let (mut peer, mut channel) = (Some(peer), Some(channel));
            let mut clients = [Some(one.client), Some(other.client)];
            for thing in order {
                match thing {
                    0 => drop(peer.take()),
                    1 => drop(channel.take()),
                    client => drop(clients[client - 2].take()),
                }
                // Who is left can be used.
                for client in clients.iter().flatten() {
                    drain(client.get_cq());
                    write(client);
                    assert!(readable(client.get_cq(), LIMIT), "its event arrives");
                }
                if let Some(channel) = &channel {
                    while channel.wait_timeout(SHORT / 10).is_ok() {}
                }
            }
        }
        assert_eq!(event_descriptors()?, before, "all channels are closed");
        Ok(())
    })
}

/// Promise: a wait on a handle of the queue ends when the connection is dropped, as no completion
/// comes any more. Before, it slept on: without a limit, for ever.
#[test]
fn a_wait_on_a_clone_ends_with_the_connection() -> Result {
    let _test = device_test();
    for delete in [false, true] {
        let Pair { client, .. } = Pair::new(&peer()?)?;
        let cq = client.get_cq().clone();
        let (tell, waits) = mpsc::channel();
        let waiter = started(move || {
            tell.send(()).expect("the test goes on");
            loop {
                // An event of something that was flushed at the end.
                match cq.wait() {
                    Ok(()) => _ = drain(&cq),
                    Err(error) => return error,
                }
            }
        });
        waits.recv()?;
        if delete {
            client.delete()?
        } else {
            drop(client)
        }
        let ended = finished("the wait", waiter);
        let is_closed = matches!(ended, Error::NotConnected(NotConnected::Closed));
        assert!(is_closed, "{ended:?}");
    }
    Ok(())
}
