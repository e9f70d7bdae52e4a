//! One wait for everything: completions of either queue and events of the connection, on every
//! setting of the completion channel, while other threads poll and wait.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::prelude::*;

const SHORT: Duration = Duration::from_millis(50);

/// Each setting of a server that waits.
fn settings() -> [(&'static str, ConnCfg); 3] {
    let mut receives = ConnCfg::new();
    receives.set_rcq_size(10);
    let mut shared = receives.clone();
    shared.set_compl_channel(ComplChannel::Shared);
    [
        ("one queue", ConnCfg::new()),
        ("a queue for receives", receives),
        ("a shared channel", shared),
    ]
}

fn write(conn: &Conn, op_context: u64) {
    write_nothing(conn, op_context).expect("posted");
}

/// Sends a message of 0 bytes, and waits until it has arrived.
fn message(conn: &Conn) -> Result {
    conn.send(MrSlice::EMPTY, ALWAYS, 1)?;
    completion(conn)?;
    Ok(())
}

/// All that is there, as an event loop takes it, until nothing comes for so long: the numbers of
/// completions, and events.
fn drain(conn: &Conn, limit: Duration) -> (Vec<u64>, Vec<ConnEvent>) {
    let (mut numbers, mut events, mut wcs) = (vec![], vec![], [Wc::default(); 4]);
    loop {
        match conn.next(&mut wcs, limit) {
            Ok(Next::Completions(count)) => numbers.extend(wcs[..count].iter().map(Wc::wr_id)),
            Ok(Next::Event(event)) => events.push(event),
            Err(Error::TimedOut(_)) => return (numbers, events),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The next result: the numbers of completions, or the event.
fn next(conn: &Conn) -> Result<Vec<u64>, ConnEvent> {
    let mut wcs = [Wc::default(); 4];
    match conn.next(&mut wcs, LIMIT).expect("in time") {
        Next::Completions(count) => Ok(wcs[..count].iter().map(Wc::wr_id).collect()),
        Next::Event(event) => Err(event),
    }
}

/// So many completions, one after the other, in any order of the queues.
fn numbers(conn: &Conn, count: usize) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    while all.len() < count {
        all.extend(next(conn).expect("completions"));
    }
    all
}

fn times_out(conn: &Conn) {
    let began = Instant::now();
    let result = conn.next(&mut [Wc::default()], SHORT);
    assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
    assert!(began.elapsed() >= SHORT);
}

/// Promise: a queue that gives events for solicited completions only is refused, whether it was
/// made so or changed later: the wait would miss the others.
#[test]
fn solicited_events_are_refused() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let mut made = ConnCfg::new();
    made.set_rcq_size(10).set_rcq_notify(Notify::Solicited);
    let Pair { server, client } = Pair::with(&peer, &ConnCfg::new(), &made)?;
    let next = || server.next(&mut [Wc::default()], SHORT);
    assert_invalid(next(), &["Conn::next", "Cq::wait"]);
    let rcq = server.get_rcq().ok_or("receives")?;
    rcq.req_notify(Notify::Any)?;
    times_out(&server);
    rcq.req_notify(Notify::Solicited)?;
    assert_invalid(next(), &["Conn::next", "Cq::wait"]);
    drop(client);
    Ok(())
}

/// Promise: completions of both queues and events of the connection end the wait, whichever comes,
/// and no other event does before its limit.
#[test]
fn whatever_comes_first_on_every_setting() -> Result {
    let _test = device_test();
    let peer = peer()?;
    for (what, cfg) in settings() {
        println!("{what}");
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        times_out(&server);
        // Completions that are there already.
        for number in 0..3 {
            server.recv(MrSlice::EMPTY, 10 + number)?;
            write(&server, number);
            message(&client)?;
        }
        let expected = BTreeSet::from([0, 1, 2, 10, 11, 12]);
        assert_eq!(numbers(&server, 6), expected, "{what}");
        times_out(&server);

        // Completions that come while it waits. If its events were lost each would take until
        // the next look, a second.
        server.recv(MrSlice::EMPTY, 100)?;
        let began = Instant::now();
        for number in 0..20 {
            let got = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(30));
                    match number % 2 {
                        0 => write(&server, number),
                        _ => message(&client).expect("posted"),
                    }
                });
                next(&server).expect("a completion")
            });
            match number % 2 {
                0 => assert_eq!(got, [number], "{what}"),
                _ => {
                    assert_eq!(got, [100], "{what}");
                    server.recv(MrSlice::EMPTY, 100)?;
                }
            }
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");

        // The end, while it waits; and before it, the operations in flight.
        message(&client)?;
        thread::scope(|scope| {
            scope.spawn(|| client.disconnect().expect("disconnects"));
            assert_eq!(next(&server), Ok(vec![100]), "{what}");
            assert_eq!(next(&server), Err(ConnEvent::Closed), "{what}");
        });
        // The other side is notified in the same way.
        server.disconnect()?;
        assert_eq!(next(&client), Err(ConnEvent::Closed), "{what}");
    }
    Ok(())
}

/// Promise: it misses no completion that other threads leave. `wait_for` takes the event of several
/// completions, and leaves those after its own one without any.
#[test]
fn what_others_leave_is_found() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let conn = &pair.client;
    thread::scope(|scope| {
        let waits = scope.spawn(|| next(conn));
        // It sleeps. Another thread takes the event, and leaves one completion.
        thread::sleep(SHORT);
        let others = scope.spawn(|| -> Result<_> {
            let posted = write_nothing(conn, 1)?;
            write(conn, 2);
            Ok(conn.wait_for(posted, LIMIT, |_| {}))
        });
        let one = others.join().expect("no panic")?;
        let next = waits.join().expect("no panic").expect("a completion");
        match one {
            Ok(wc) => assert_eq!((wc.wr_id(), next), (1, vec![2])),
            // The one that sleeps was faster: it has the first, or both.
            Err(error) => assert!(matches!(error, Error::PolledElsewhere), "{error:?}"),
        }
        Ok(())
    })
}

/// Promise: several threads may wait; each completion goes to one of them.
#[test]
fn two_threads_share_what_comes() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let conn = &pair.client;
    let take = || {
        let (numbers, events) = drain(conn, Duration::from_secs(3));
        assert!(events.is_empty(), "{events:?}");
        numbers
    };
    let mut all = thread::scope(|scope| {
        let takers = [scope.spawn(take), scope.spawn(take)];
        for number in 0..200 {
            while let Err(error) = write_nothing(conn, number) {
                assert!(matches!(error, Error::QueueFull { .. }), "{error:?}");
                thread::yield_now();
            }
        }
        takers.map(|taker| taker.join().expect("no panic")).concat()
    });
    all.sort_unstable();
    assert!(all.into_iter().eq(0..200));
    Ok(())
}

/// Promise: a failure is a completion like others; the event of the end comes after it.
#[test]
fn failures_come_before_the_end() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let Pair { client, server } = Pair::new(&peer)?;
    let small = region(&peer, 1, MrUsage::RECV)?;
    let source = region(&peer, 8, MrUsage::SEND)?;
    server.recv(small.slice(..)?, 7)?;
    client.send(source.slice(..)?, ALWAYS, 1)?;
    for conn in [&server, &client] {
        let mut wcs = [Wc::default(); 4];
        assert_eq!(conn.next(&mut wcs, LIMIT)?, Next::Completions(1));
        // Which one is the device's choice.
        assert_ne!(wcs[0].status(), WcStatus::SUCCESS);
    }
    drop(server);
    assert_eq!(next(&client), Err(ConnEvent::Closed));
    Ok(())
}

/// Promise: without room for a completion, and on a channel of the program's, `next` is an error
/// that names the remedy.
#[test]
fn where_there_is_no_next() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let channel = CompletionChannel::new(&peer)?;
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(ComplChannel::Of { channel, key: 1 });
    let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
    says(invalid(pair.server.get_next_fd()), "Wait::next");
    let next = pair.server.next(&mut [Wc::default()], SHORT);
    assert_says(&invalid(next), &["Wait::next"]);
    invalid(pair.client.next(&mut [], SHORT));
    Ok(())
}

/// Promise: one descriptor is readable while `next` has something, of any kind, on every setting;
/// and not otherwise.
#[test]
fn one_descriptor_for_everything() -> Result {
    let readable = |conn: &Conn, limit| -> Result<_> { Ok(readable(conn.get_next_fd()?, limit)) };
    let drain = |conn: &Conn| drain(conn, Duration::ZERO);
    for (what, cfg) in settings() {
        leaving(&[], || {
            let Pair { client, server } = Pair::with(&peer()?, &ConnCfg::new(), &cfg)?;
            assert!(!readable(&server, SHORT)?, "{what}: nothing is there");
            for round in 0..3 {
                write(&server, round);
                assert!(readable(&server, LIMIT)?, "{what}: a completion");
                assert_eq!(drain(&server), (vec![round], vec![]), "{what}");
                assert!(!readable(&server, SHORT)?, "{what}: nothing more");
                server.recv(MrSlice::EMPTY, 10 + round)?;
                message(&client)?;
                assert!(readable(&server, LIMIT)?, "{what}: a receive");
                assert_eq!(drain(&server), (vec![10 + round], vec![]), "{what}");
                assert!(!readable(&server, SHORT)?, "{what}: nothing more");
            }
            client.disconnect()?;
            assert!(readable(&server, LIMIT)?, "{what}: the end");
            let mut ended = drain(&server).1;
            let deadline = Instant::now() + LIMIT;
            while ended.is_empty() {
                assert!(readable(&server, deadline - Instant::now())?, "{what}");
                ended = drain(&server).1;
            }
            assert_eq!(ended, [ConnEvent::Closed], "{what}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: a program that watches by edges, as tokio does, misses no completion either. When
/// `next` has no more, each queue gives an event for its next completion, though the events of two
/// queues stood in one channel.
#[test]
fn an_edge_of_the_descriptor_is_enough() -> Result {
    for (what, cfg) in settings() {
        leaving(&[], || {
            let Pair { client, server } = Pair::with(&peer()?, &ConnCfg::new(), &cfg)?;
            let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let fd = server.get_next_fd()?;
            epoll::add(&edges, fd, epoll::EventData::new_u64(0), flags)?;
            // As an event loop does it: sleep until the next edge, then take all that is there.
            let take = |count: usize| -> Result<_> {
                let mut got = BTreeSet::new();
                while got.len() < count {
                    let limit = Timespec::try_from(LIMIT)?;
                    let mut events = Vec::with_capacity(4);
                    let edge = epoll::wait(&edges, spare_capacity(&mut events), Some(&limit));
                    assert_eq!(edge?, 1, "{what}: no edge, with {got:?}");
                    let (numbers, events) = drain(&server, Duration::ZERO);
                    assert!(events.is_empty(), "{what}: {events:?}");
                    got.extend(numbers);
                }
                Ok(got)
            };
            let mut comes = BTreeSet::new();
            for round in 0..5 {
                // Both events are there before anything is taken.
                server.recv(MrSlice::EMPTY, 10 + round)?;
                write(&server, round);
                message(&client)?;
                thread::sleep(SHORT);
                comes.extend(take(2)?);
                // And now one of each, after all was taken.
                server.recv(MrSlice::EMPTY, 20 + round)?;
                message(&client)?;
                comes.extend(take(1)?);
                write(&server, 30 + round);
                comes.extend(take(1)?);
            }
            assert_eq!(comes.len(), 20, "{what}: {comes:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Bad luck: no descriptor is left for the first call, or for the last of those that it makes. It
/// names the call that failed, keeps no object, and works when there are some again.
#[test]
#[cfg_attr(feature = "sim", ignore = "on a device only: a process for itself")]
fn a_descriptor_that_cannot_be_made_is_an_error() -> Result {
    let _test = device_test();
    let pair = Pair::new(&peer()?)?;
    let before = getrlimit(Resource::Nofile);
    let free = File::open("/dev/null")?.as_raw_fd() as u64;
    for (left, call) in [(0, "epoll_create1"), (1, "eventfd2")] {
        let current = Some(free + left);
        setrlimit(Resource::Nofile, Rlimit { current, ..before })?;
        let refused = pair.client.get_next_fd().map(|fd| fd.as_raw_fd());
        setrlimit(Resource::Nofile, before)?;
        let error = refused.expect_err("no descriptor is left").to_string();
        assert!(error.starts_with(&format!("{call} failed")), "{error}");
    }
    let fd = pair.client.get_next_fd()?.as_raw_fd();
    assert_eq!(fd as u64, free, "nothing was left open, but one");
    Ok(())
}
