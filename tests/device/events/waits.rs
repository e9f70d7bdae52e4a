//! The descriptor, signals, limits, and many waiters.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::{io, thread};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::Signal;
use signal_hook::consts::SIGUSR1;

use crate::common::prelude::*;
use crate::events::support::{
    Kept, SHORT, Stop, Thread, Waited, finished, in_time, look, none, pair_on, peer_with_channel,
    polled, set_nonblocking, started, write,
};

/// Promise: the descriptor is blocking until the program changes that, and then each wait returns
/// at once; for each way to wait.
#[test]
fn the_descriptor_blocks_unless_it_was_made_non_blocking() -> Result {
    let _test = device_test();
    for (waited, _server) in Waited::each(&peer()?)? {
        let fd = waited.conn.get_cq().as_fd().try_clone_to_owned()?;
        let waited = Arc::new(waited);
        assert!(!fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK));
        // Blocks until there is an event.
        let blocked = |waited: &Arc<Waited>| -> Result {
            let waiter = started({
                let waited = Arc::clone(waited);
                move || waited.wait(LIMIT)
            });
            thread::sleep(SHORT);
            assert!(!waiter.thread.is_finished(), "it waits");
            write(&waited.conn);
            finished("a wait", waiter)?;
            polled(waited.conn.get_cq(), 1);
            Ok(())
        };
        blocked(&waited)?;

        set_nonblocking(&fd, true)?;
        let again = Arc::clone(&waited);
        let at_once = in_time("a non-blocking wait", move || {
            let start = Instant::now();
            let waits = [again.wait(LIMIT), again.wait(Duration::MAX)];
            assert!(start.elapsed() < LIMIT, "it returns at once");
            waits
        });
        for waited in at_once {
            let error = waited.expect_err("no event");
            assert!(matches!(error, Error::NoCompletion), "{error:?}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
        }
        write(&waited.conn);
        assert!(readable(&fd, LIMIT));
        waited.wait(Duration::ZERO)?;
        polled(waited.conn.get_cq(), 1);

        set_nonblocking(&fd, false)?;
        blocked(&waited)?;
    }
    Ok(())
}

/// Promise: one `poll` or `epoll` serves many queues: exactly the queues with events are ready, and
/// a wait on those does not block. An edge-triggered epoll does so as well.
#[test]
fn poll_and_epoll_serve_many_queues() -> Result {
    const QUEUES: usize = 3;
    let _test = device_test();
    let peer = peer()?;
    let pairs: Vec<_> = (0..QUEUES)
        .map(|_| Pair::new(&peer))
        .collect::<Result<_, _>>()?;
    for trigger in [epoll::EventFlags::empty(), epoll::EventFlags::ET] {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (n, pair) in pairs.iter().enumerate() {
            let cq = pair.client.get_cq();
            assert_eq!(cq.get_fd(), cq.as_fd().as_raw_fd());
            set_nonblocking(cq, true)?;
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&epoll, cq, data, trigger | epoll::EventFlags::IN)?;
        }
        // Which queues have events: each set of them.
        for set in 0..1 << QUEUES {
            let mut expected: BTreeSet<_> = (0..QUEUES).filter(|n| set >> n & 1 == 1).collect();
            expected.iter().for_each(|&n| write(&pairs[n].client));
            while !expected.is_empty() {
                for n in ready(&epoll, LIMIT)? {
                    assert!(expected.remove(&n), "queue {n} has no event, set {set:b}");
                    let cq = pairs[n].client.get_cq();
                    assert!(readable(cq, Duration::ZERO));
                    cq.wait_timeout(Duration::ZERO)?;
                    polled(cq, 1);
                    none(cq.wait_timeout(Duration::ZERO));
                }
            }
            assert_eq!(ready(&epoll, Duration::ZERO)?, [0; 0]);
            for pair in &pairs {
                assert!(!readable(pair.client.get_cq(), Duration::ZERO));
            }
        }
    }
    Ok(())
}

fn ready(epoll: impl AsFd, limit: Duration) -> Result<Vec<usize>> {
    let limit = Timespec::try_from(limit)?;
    let mut events = Vec::with_capacity(8);
    epoll::wait(&epoll, spare_capacity(&mut events), Some(&limit))?;
    let queues = events.iter().map(|event| event.data.u64() as usize);
    Ok(queues.collect())
}

/// Promise: a signal does not end a wait (`EINTR` is retried), and does not make it longer.
///
/// The handler interrupts `poll`, the only call in which a wait blocks. The kernel never restarts
/// that, with or without `SA_RESTART` (signal(7)). That the signals reach the waiting thread is
/// seen in its count of sleeps: each wakes it, and it goes to sleep again.
#[test]
fn a_signal_does_not_end_a_wait() -> Result {
    let _test = device_test();
    let handled = Arc::new(AtomicBool::new(false));
    let handler = signal_hook::flag::register(SIGUSR1, Arc::clone(&handled))?;
    for (waited, _server) in Waited::each(&peer()?)? {
        let waited = Arc::new(waited);
        let wait = |limit| -> Result<_> {
            let (sender, thread) = mpsc::channel();
            let waited = Arc::clone(&waited);
            let waiter = started(move || {
                let thread = Thread::current().expect("a number");
                sender.send(thread).expect("wanted");
                let start = Instant::now();
                (waited.wait(limit), start.elapsed())
            });
            Ok((waiter, thread.recv()?))
        };

        let (waiter, thread) = wait(Duration::MAX)?;
        for _ in 0..50 {
            let (before, deadline) = (thread.sleeps()?, Instant::now() + LIMIT);
            handled.store(false, Ordering::Relaxed);
            thread.signal(Signal::USR1);
            while !handled.load(Ordering::Relaxed) || thread.sleeps()? == before {
                assert!(!waiter.thread.is_finished(), "a signal ends the wait");
                assert!(Instant::now() < deadline, "the thread sleeps on");
                thread::yield_now();
            }
        }
        write(&waited.conn);
        let (event, _) = finished("a wait with signals", waiter);
        event?;
        polled(waited.conn.get_cq(), 1);

        let limit = SHORT * 5;
        let (waiter, thread) = wait(limit)?;
        let deadline = Instant::now() + LIMIT;
        while !waiter.thread.is_finished() {
            thread.signal(Signal::USR1);
            let is_in_time = Instant::now() < deadline;
            assert!(is_in_time, "each signal makes the wait longer");
            thread::sleep(limit / 20);
        }
        let (event, elapsed) = finished("a limited wait with signals", waiter);
        none(event);
        assert!(elapsed >= limit, "{elapsed:?}");
    }
    signal_hook::low_level::unregister(handler);
    Ok(())
}

/// Promise: a time limit is kept by each of many threads that wait on one channel, also by those
/// that see an event which another one takes: one event ends one wait.
#[test]
fn a_limit_is_kept_by_each_of_many_waiters() -> Result {
    const WAITERS: usize = 6;
    let limit = Duration::from_secs(2);
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let pair = Kept(Some(pair_on(&peer, &channel, 3)?));
    let barrier = Arc::new(Barrier::new(WAITERS + 1));
    let wait = |limit| {
        let (channel, barrier) = (channel.clone(), Arc::clone(&barrier));
        started(move || {
            barrier.wait();
            let start = Instant::now();
            (channel.wait_timeout(limit), start.elapsed())
        })
    };
    // Even if another one is slow, there is one that takes the event.
    let patient = wait(LIMIT);
    let waiters = [(); WAITERS - 1].map(|()| wait(limit));
    barrier.wait();
    thread::sleep(SHORT);
    write(&pair.client);

    let mut events = Vec::new();
    for waiter in waiters {
        match finished("a wait with a limit", waiter) {
            (Ok(event), _) => events.push(event),
            (none, elapsed) => {
                self::none(none);
                assert!(elapsed >= limit, "{elapsed:?}");
            }
        }
    }
    if !events.is_empty() {
        assert!(!patient.thread.is_finished(), "one event ends one wait");
        write(&pair.client);
    }
    let writes = events.len() + 1;
    let (event, _) = finished("the patient wait", patient);
    events.push(event?);
    assert!(writes <= 2, "one event ends one wait: {events:?}");
    for event in events {
        assert_eq!(event, (3, CqKind::Main));
    }
    polled(pair.client.get_cq(), writes);
    none(channel.wait_timeout(SHORT));
    Ok(())
}

/// Promise, as above, for the race between threads that see the same event: one takes it, and the
/// others go back to waiting for the rest of their limits.
#[test]
fn one_event_ends_one_wait() -> Result {
    const WAITERS: usize = 4;
    const EVENTS: usize = 200;
    let _test = device_test();
    let (peer, channel) = peer_with_channel()?;
    let pair = Kept(Some(pair_on(&peer, &channel, 3)?));
    let (stop, stopped) = Stop::new();
    let taken = Arc::new(AtomicUsize::new(0));
    let waits = [(); WAITERS].map(|()| Arc::default());
    let waiters = waits.clone().map(|waits: Arc<AtomicUsize>| {
        let (channel, stopped, taken) = (channel.clone(), Arc::clone(&stopped), Arc::clone(&taken));
        started(move || {
            while !stopped.load(Ordering::Relaxed) {
                if look(&channel).is_some() {
                    taken.fetch_add(1, Ordering::Relaxed);
                }
                waits.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let reaches = |count: &AtomicUsize, goal, what| {
        until(what, || count.load(Ordering::Relaxed) >= goal);
    };
    for n in 1..=EVENTS {
        write(&pair.client);
        reaches(&taken, n, "nobody takes the event");
        polled(pair.client.get_cq(), 1);
        // There is no further event, and every wait ends in time.
        let before = waits.each_ref().map(|waits| waits.load(Ordering::Relaxed));
        for (waits, before) in waits.iter().zip(before) {
            reaches(waits, before + 2, "a wait with a limit hangs");
        }
    }
    drop(stop);
    for waiter in waiters {
        finished("a wait with a limit", waiter);
    }
    assert_eq!(taken.load(Ordering::Relaxed), EVENTS);
    Ok(())
}
