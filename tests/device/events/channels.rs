//! Channels of several queues: the queue of an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::prelude::*;
use crate::events::support::{
    Random, SHORT, Stop, drain, finished, in_time, none, on_channel, pair_on, peer_with_channel,
    polled, rcq, receives, send, started, takes_event, takes_event_of, with_channel, write,
};

/// The keys of connections that are dropped begin here.
const DROPPED: u64 = 1 << 32;

/// Makes connections with two keys on the channel, and drops them with events, until `stopped`.
/// Returns the next key.
fn drop_connections(peer: &Peer, channel: &CompletionChannel, stopped: &AtomicBool) -> u64 {
    let mut key = DROPPED;
    while !stopped.load(Ordering::Relaxed) || key < DROPPED + 50 {
        let client = on_channel(channel, key);
        let server = on_channel(channel, key + 1);
        let Pair { client, server } = Pair::with(peer, &client, &server).expect("established");
        receives(&client, 1);
        write(&client);
        write(&server);
        send(&server, ALWAYS);
        drop((client, server));
        key += 2;
    }
    key
}

/// Waits for an event of each of many operations on connections with the keys 0 and 1. Returns the
/// highest key of a dropped connection that came among them.
fn find_queues(stable: &[Pair; 2], channel: &CompletionChannel) -> u64 {
    const STEPS: u64 = 400;
    let (mut random, mut highest) = (Random(4), 0);
    for _ in 0..STEPS {
        let key = random.below(2);
        let pair = &stable[key as usize];
        let (kind, cq) = match random.below(2) {
            0 => {
                write(&pair.client);
                (CqKind::Main, pair.client.get_cq())
            }
            _ => {
                send(&pair.server, ALWAYS);
                receives(&pair.client, 1);
                (CqKind::Receive, rcq(&pair.client))
            }
        };
        // No other operation was posted to the two, so this is the only event of theirs.
        loop {
            let event = channel.wait_timeout(LIMIT).expect("its event comes");
            if event.0 < DROPPED {
                assert_eq!(event, (key, kind));
                break;
            }
            highest = highest.max(event.0);
        }
        polled(cq, 1);
        if kind == CqKind::Receive {
            polled(pair.server.get_cq(), 1);
        }
    }
    highest
}

/// Events that a dropped queue left on the channel are discarded with it.
fn discards_events(peer: &Peer, channel: &CompletionChannel) -> Result {
    while channel.wait_timeout(Duration::ZERO).is_ok() {}
    let [one, other] = [5, 6].map(|key| {
        let pair = pair_on(peer, channel, key).expect("established");
        write(&pair.client);
        polled(pair.client.get_cq(), 1);
        pair
    });
    drop(one);
    takes_event_of(channel, 6, CqKind::Main)?;
    drop(other);
    none(channel.wait_timeout(SHORT));
    Ok(())
}

/// Promise: each event of a channel names its queue, by key and kind, also while other queues on
/// the channel are destroyed, with events of theirs on it. For a dropped connection at most the key
/// comes.
#[test]
fn the_queue_of_an_event_is_found_while_others_are_destroyed() -> Result {
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let stable = [0, 1].map(|key| {
        let pair = pair_on(&peer, &channel, key).expect("established");
        receives(&pair.client, 9);
        pair
    });
    let (stop, stopped) = Stop::new();
    let dropper = started({
        let (peer, channel) = (peer.clone(), channel.clone());
        move || drop_connections(&peer, &channel, &stopped)
    });
    let run = started({
        let channel = channel.clone();
        move || {
            let highest = find_queues(&stable, &channel);
            (stable, highest)
        }
    });
    let (stable, highest) = finished("the waits for the connections that stay", run);
    drop(stop);
    let next = finished("dropping connections", dropper);
    assert!(highest < next, "{highest} is nobody's key");
    drop(stable);
    discards_events(&peer, &channel)
}

/// Promise: with [`ComplChannel::Shared`] a wait returns the right one of the connection's two
/// queues.
#[test]
fn a_shared_channel_tells_the_queue() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for rcq_size in [0, 10] {
        let mut cfg = with_channel(ComplChannel::Shared);
        cfg.set_rcq_size(rcq_size);
        let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
        receives(&client, 10);
        let (main, receive) = (client.get_cq(), client.get_rcq().unwrap_or(client.get_cq()));
        assert_eq!(client.get_compl_fd()?, main.get_fd());
        assert_eq!(client.get_compl_fd()?, receive.get_fd());
        let of_receives = match rcq_size {
            0 => CqKind::Main,
            _ => CqKind::Receive,
        };
        for step in 0..8 {
            let (expected, expected_kind) = match step % 3 {
                0 => {
                    write(&client);
                    (main, CqKind::Main)
                }
                _ => {
                    send(&server, ALWAYS);
                    polled(server.get_cq(), 1);
                    (receive, of_receives)
                }
            };
            let (cq, kind) = client.wait_timeout(LIMIT)?;
            assert!(std::ptr::eq(cq, expected), "step {step}");
            assert_eq!(kind, expected_kind, "step {step}");
            polled(cq, 1);
        }
        none(client.wait_timeout(SHORT));
    }
    Ok(())
}

/// Promise: a connection's two queues may be on two channels. Each has the events of its own queue
/// and no other's, so that two threads serve them. The channels may be those of two `Peer`s of the
/// device.
#[test]
fn a_connections_queues_are_served_by_two_threads() -> Result {
    const MESSAGES: usize = 50;
    let _test = device_test();
    let (peer, other) = (peer()?, peer()?);
    let channel = CompletionChannel::new(&other)?;
    let of_receives = CompletionChannel::new(&peer)?;
    let mut cfg = on_channel(&channel, 1);
    cfg.set_rq_size(MESSAGES as u32);
    cfg.set_rcq_channel(Some((of_receives.clone(), 2)));
    let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
    receives(&server, MESSAGES as u64);
    let server = Arc::new(server);
    let serve = |channel: CompletionChannel, key, kind| {
        let server = Arc::clone(&server);
        started(move || {
            let cq = match kind {
                CqKind::Main => server.get_cq(),
                CqKind::Receive => rcq(&server),
            };
            let mut count = 0;
            while count < MESSAGES {
                takes_event_of(&channel, key, kind).expect("an event");
                count += drain(cq);
            }
            // The last drain may have polled a completion before its event came.
            if let Ok(event) = channel.wait_timeout(SHORT) {
                assert_eq!(event, (key, kind));
                assert_eq!(drain(cq), 0);
                none(channel.wait_timeout(SHORT));
            }
        })
    };
    let main = serve(channel, 1, CqKind::Main);
    let receiver = serve(of_receives, 2, CqKind::Receive);
    for _ in 0..MESSAGES {
        send(&client, ALWAYS);
        polled(client.get_cq(), 1);
        while let Err(error) = write_nothing(&server, 1) {
            assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
            std::thread::yield_now();
        }
    }
    finished("the thread of the operations", main);
    finished("the thread of the receives", receiver);
    Ok(())
}

/// Promise: waiting where the events do not arrive is an error, and no wait for ever.
#[test]
fn waiting_where_no_events_arrive_is_refused() -> Result {
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let of = ComplChannel::Of {
        channel: channel.clone(),
        key: 1,
    };
    for (kind, own, shared) in [
        (ComplChannel::PerCq, true, false),
        (ComplChannel::Shared, false, true),
        (of, false, false),
    ] {
        let mut cfg = with_channel(kind);
        cfg.set_rcq_size(10);
        let (client, _server) = Pair::with(&peer, &cfg, &ConnCfg::new())?.ends();
        let conn = in_time("a wait in the wrong place", move || -> Result<_> {
            let waited = client.wait_for(write_nothing(&client, 1)?, LIMIT, |_| {});
            match own || shared {
                true => drop(waited?),
                // At once, although the completion may be there.
                false => assert!(matches!(waited, Err(Error::SharedChannel)), "{waited:?}"),
            }
            for cq in [client.get_cq(), rcq(&client)] {
                if !own {
                    for refused in [cq.wait(), cq.wait_timeout(LIMIT)] {
                        assert!(matches!(refused, Err(Error::SharedChannel)), "{refused:?}");
                    }
                }
            }
            if !shared {
                for refused in [
                    client.wait().map(drop),
                    client.wait_timeout(LIMIT).map(drop),
                    client.get_compl_fd().map(drop),
                ] {
                    let refused = refused.expect_err("refused");
                    assert!(matches!(refused, Error::NotSharedChannel), "{refused:?}");
                }
            }
            Ok(client)
        })?;
        // The right place works.
        write(&conn);
        match (own, shared) {
            (true, _) => takes_event(conn.get_cq())?,
            (_, true) => drop(conn.wait_timeout(LIMIT)?),
            _ => drop(channel.wait_timeout(LIMIT)?),
        }
    }
    Ok(())
}

/// Promise: the queue of a shared receive queue may use a channel as well, next to the queues of
/// connections, and several channels keep their events apart.
#[test]
fn a_shared_receive_queue_may_use_a_channel() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let channels = [(); 2].map(|()| CompletionChannel::new(&peer).expect("a channel"));
    let key = Some((channels[0].clone(), 70));
    let srq = Srq::new(&peer, SrqCfg::new().set_compl_channel(key))?;
    let own = srq.get_rcq().ok_or("the default")?;
    for n in 0..10 {
        srq.recv(MrSlice::EMPTY, n)?;
    }
    let pairs = [71, 72].map(|key| {
        let channel = channels[(key - 71) as usize].clone();
        let mut cfg = with_channel(ComplChannel::Of { channel, key });
        cfg.set_srq(Some(&srq));
        Pair::with(&peer, &ConnCfg::new(), &cfg).expect("established")
    });
    let refused = own.wait_timeout(LIMIT).expect_err("it is not its own");
    assert!(matches!(refused, Error::SharedChannel), "{refused:?}");
    assert_eq!(own.get_fd(), channels[0].get_fd());

    for pair in &pairs {
        send(&pair.client, ALWAYS);
        takes_event_of(&channels[0], 70, CqKind::Receive)?;
        polled(own, 1);
        polled(pair.client.get_cq(), 1);
    }
    for (n, pair) in pairs.iter().enumerate() {
        write(&pair.server);
        takes_event_of(&channels[n], 71 + n as u64, CqKind::Main)?;
        polled(pair.server.get_cq(), 1);
    }
    // It is destroyed with its last connection; the channel stays.
    drop(srq);
    drop(pairs);
    for channel in channels {
        none(channel.wait_timeout(SHORT));
    }
    Ok(())
}
