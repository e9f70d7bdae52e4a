//! Arming, waiting, polling: which completion gives an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{panic, thread};

use crate::common::prelude::*;
use crate::events::support::{
    Random, SHORT, drain, finished, no_event, none, on_channel, pair_on, peer_with_channel, polled,
    receives, send, started, takes_event, takes_event_of, write,
};

/// Promise: one arm gives one event, however many completions follow. Polling does not arm.
#[test]
fn an_arm_gives_one_event() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let cq = pair.client.get_cq();
    // Armed when it was made, and then each time by the wait.
    for burst in [3, 8] {
        for _ in 0..burst {
            write(&pair.client);
            polled(cq, 1);
        }
        takes_event(cq)?;
        no_event(cq);
        for _ in 0..burst {
            write(&pair.client);
        }
        polled(cq, burst);
        takes_event(cq)?;
        no_event(cq);
    }
    Ok(())
}

/// Promise: arming again has no effect as long as the first arm has not given its event.
#[test]
fn arms_are_not_counted() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let cq = pair.client.get_cq();
    for _ in 0..3 {
        cq.req_notify(Notify::Any)?;
    }
    for _ in 0..3 {
        write(&pair.client);
        polled(cq, 1);
    }
    takes_event(cq)?;
    no_event(cq);
    Ok(())
}

/// Promise: a completion that came before the queue was armed gives no event, and is in the queue.
/// That is why a wait is followed by polling until the queue is empty.
#[test]
fn a_completion_before_arming_gives_no_event() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let (client, server) = (&pair.client, &pair.server);
    receives(server, 4);
    let cq = server.get_cq();
    for arm in [None, Some(Notify::Any)] {
        // The first message uses up the arm. rxe completes a receive before it acknowledges
        // the message, so when the sender has its completion, the receive's is in the queue.
        for _ in 0..2 {
            send(client, ALWAYS);
            polled(client.get_cq(), 1);
        }
        if let Some(notify) = arm {
            cq.req_notify(notify)?;
        }
        takes_event(cq)?;
        no_event(cq);
        assert_eq!(drain(cq), 2, "the second was there, without an event");
    }
    Ok(())
}

/// Promise: arm, poll until empty, wait: no wake-up is lost, whenever completions come.
///
/// The sender goes on only when everything so far was counted. So no later message can wake a
/// receiver that has missed one.
fn arm_poll_wait(messages: u64) -> Result {
    let Pair { client, server } = Pair::new(&peer()?)?;
    receives(&server, 10);
    let counted = Arc::new(AtomicU64::new(0));
    let sender = started({
        let counted = Arc::clone(&counted);
        move || {
            let (mut random, mut sent) = (Random(1), 0);
            while sent < messages {
                let burst = (1 + random.below(4)).min(messages - sent);
                for _ in 0..burst {
                    send(&client, ALWAYS);
                    random.pause();
                }
                sent += burst;
                let deadline = Instant::now() + LIMIT * 2;
                while counted.load(Ordering::Acquire) < sent {
                    assert!(Instant::now() < deadline, "nobody receives");
                    thread::yield_now();
                }
                polled(client.get_cq(), burst.try_into().expect("a few"));
                random.pause();
            }
            client
        }
    });
    let (mut random, mut received, cq) = (Random(2), 0, server.get_cq());
    while received < messages {
        if let Err(error) = cq.wait_timeout(LIMIT) {
            assert!(matches!(error, Error::NoCompletion), "{error:?}");
            let late = drain(cq);
            assert!(late > 0, "the sender has stopped after {received}");
            // It may have come at the last moment; then its event is here as well.
            cq.wait_timeout(Duration::from_secs(1))
                .unwrap_or_else(|_| panic!("lost a wake-up after {received} messages: {late}"));
            panic!("a message took longer than {LIMIT:?}");
        }
        loop {
            let mut wcs = [Wc::default(); 2];
            let count = cq.get_wc(&mut wcs)? as u64;
            if count == 0 {
                break;
            }
            receives(&server, count);
            received += count;
            counted.store(received, Ordering::Release);
            random.pause();
        }
        random.pause();
    }
    assert_eq!(received, messages);
    drop(finished("the sender", sender));
    Ok(())
}

/// Protects programs that follow the loop of the documentation from sleeping for ever.
#[test]
fn arm_poll_wait_never_misses_a_completion() -> Result {
    let _test = device_test();
    arm_poll_wait(5_000)
}

/// As above, for rarer races.
#[test]
#[ignore = "long: some minutes"]
fn arm_poll_wait_never_misses_a_completion_long() -> Result {
    let _test = device_test();
    arm_poll_wait(100_000)
}

/// Promise: an event may come without a completion: the drain has polled it, after the arm.
#[test]
fn an_event_may_come_without_a_completion() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let cq = pair.client.get_cq();
    write(&pair.client);
    takes_event(cq)?;
    // Armed. The second completion gives an event, and is drained together with the first.
    write(&pair.client);
    polled(cq, 2);
    takes_event(cq)?;
    assert_eq!(drain(cq), 0, "an event, and no completion");
    no_event(cq);
    write(&pair.client);
    takes_event(cq)?;
    polled(cq, 1);
    Ok(())
}

/// Promise: polling takes no events. An event without a wait is reported by a later wait.
#[test]
fn a_polled_completion_leaves_its_event() -> Result {
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let pair = Pair::with(&peer, &ConnCfg::new(), &on_channel(&channel, 5))?;
    for conn in [&pair.client, &pair.server] {
        write(conn);
        polled(conn.get_cq(), 1);
        assert_eq!(drain(conn.get_cq()), 0);
        assert!(readable(conn.get_cq(), LIMIT), "the event stays");
    }
    takes_event(pair.client.get_cq())?;
    no_event(pair.client.get_cq());
    takes_event_of(&channel, 5, CqKind::Main)?;
    none(channel.wait_timeout(SHORT));
    Ok(())
}

/// Promise: [`CompletionChannel::try_take`] takes one event, never waits, and arms no queue. So a
/// program that polls while it is busy is not woken again.
#[test]
fn an_event_that_is_tried_arms_nothing() -> Result {
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let pair = pair_on(&peer, &channel, 7)?;
    let cq = pair.client.get_cq();
    let take = || channel.try_take();
    for _ in 0..3 {
        assert_eq!(take()?, None, "nothing came, and it does not wait");
        write(&pair.client);
        polled(cq, 1);
        assert!(readable(&channel, LIMIT), "an event");
        let event = take()?.ok_or("the event")?;
        assert_eq!(event, (7, CqKind::Main));
        // Not armed: this one gives no event.
        write(&pair.client);
        polled(cq, 1);
        assert_eq!(take()?, None);
        assert!(!readable(&channel, SHORT), "it was not armed");
        cq.req_notify(Notify::Any)?;
    }
    Ok(())
}
