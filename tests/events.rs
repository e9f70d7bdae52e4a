//! The promises about completion events, one or more tests for each: see docs/completion-events.md.
//!
//! No test passes by luck or by being fast. "No event" is looked at for a short while, and then the
//! test goes on with the same queue, so that an event that comes late disturbs it. What may hang if
//! a promise is broken runs in a thread of its own, so that the test fails instead.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::hint;
use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, Pair, device_test, peer, permutations};
use rpma::{
    ComplChannel, CompletionChannel, Conn, ConnCfg, Cq, CqEvent, CqKind, Error, Flags, MrSlice,
    Notify, Peer, RemoteSlice, Srq, SrqCfg, Wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGUSR1;

/// How long "no event" is looked at.
const SHORT: Duration = Duration::from_millis(100);

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// Posts an operation that completes in the connection's main queue, and nowhere else.
fn write(conn: &Conn) {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 1)
        .expect("posted");
}

/// Posts a message of 0 bytes.
fn send(conn: &Conn, flags: Flags) {
    conn.send(MrSlice::EMPTY, flags | Flags::COMPLETION_ON_ERROR, 2)
        .expect("posted");
}

/// Posts `count` receives.
fn receives(conn: &Conn, count: u64) {
    for n in 0..count {
        conn.recv(MrSlice::EMPTY, n).expect("posted");
    }
}

/// Polls until `count` completions came, without any wait for events; all must be successes.
fn polled(cq: &Cq, count: usize) {
    let (mut all, deadline) = (0, Instant::now() + LIMIT);
    while all < count {
        all += drain(cq);
        assert!(Instant::now() < deadline, "{all} of {count} completions");
        thread::yield_now();
    }
    assert_eq!(all, count, "no more completions than operations");
}

/// Polls until the queue is empty; all must be successes.
fn drain(cq: &Cq) -> usize {
    let mut all = 0;
    loop {
        let mut wcs = [Wc::default(); 8];
        let count = cq.get_wc(&mut wcs).expect("polls");
        if count == 0 {
            return all;
        }
        for wc in &wcs[..count] {
            wc.result().expect("the operation succeeds");
        }
        all += count;
    }
}

/// There is an event, or there will be one.
fn takes_event(cq: &Cq) {
    cq.wait_timeout(LIMIT).expect("an event");
}

/// There is no event.
fn no_event(cq: &Cq) {
    none(cq.wait_timeout(SHORT));
}

fn none<T: std::fmt::Debug>(waited: Result<T, Error>) {
    assert!(matches!(waited, Err(Error::NoCompletion)), "{waited:?}");
}

/// Whether the descriptor becomes readable within `limit`, which takes nothing.
fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("a short time");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).expect("polls") > 0
}

fn set_nonblocking(fd: impl AsFd, on: bool) {
    let mut flags = fcntl_getfl(&fd).expect("flags");
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(&fd, flags).expect("sets the flags");
}

/// Runs in another thread what a broken promise lets hang, and fails if it does.
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    finished(what, started(run))
}

/// Something that runs in another thread.
struct Started<T> {
    result: mpsc::Receiver<T>,
    thread: thread::JoinHandle<()>,
}

fn started<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Started<T> {
    let (sender, result) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _test_has_failed = sender.send(run());
    });
    Started { result, thread }
}

fn finished<T>(what: &str, Started { result, thread }: Started<T>) -> T {
    match result.recv_timeout(LIMIT) {
        Ok(result) => {
            thread.join().expect("it has finished");
            result
        }
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => panic::resume_unwind(payload),
            Ok(()) => unreachable!("it sends its result or panics"),
        },
    }
}

/// Something that is not dropped if the test fails: next to what hangs, that might hang as well.
struct Kept<T>(Option<T>);

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("dropped later")
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            mem::forget(self.0.take());
        }
    }
}

/// Tells another thread to stop, also when the test fails.
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn new() -> (Self, Arc<AtomicBool>) {
        let stop = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&stop)), stop)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Random numbers that are the same in every run.
struct Random(u64);

impl Random {
    /// One of `0..end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Half of the time none, else up to 300 µs.
    fn pause(&mut self) {
        if self.below(2) == 0 {
            let until = Instant::now() + Duration::from_micros(self.below(300));
            while Instant::now() < until {
                hint::spin_loop();
            }
        }
    }
}

fn with_channel(channel: ComplChannel) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(channel);
    cfg
}

/// A connection whose events arrive on `channel`, with a queue of its own for receives.
fn on_channel(channel: &CompletionChannel, key: u64) -> ConnCfg {
    let channel = channel.clone();
    let mut cfg = with_channel(ComplChannel::Of { channel, key });
    cfg.set_rcq_size(10);
    cfg
}

/// A client that connects to a server with a receive queue of which only solicited messages give
/// events.
fn solicited(peer: &Peer, channel: ComplChannel) -> Pair {
    let mut cfg = with_channel(channel);
    cfg.set_rcq_size(10).set_rcq_notify(Notify::Solicited);
    let pair = Pair::with(peer, &ConnCfg::new(), &cfg);
    receives(&pair.server, 10);
    pair
}

fn rcq(conn: &Conn) -> &Cq {
    conn.get_rcq().expect("a queue for receives")
}

/// Promise: one arm gives one event, however many completions follow. Polling does not arm.
#[test]
fn an_arm_gives_one_event() {
    device_test(|| {
        let pair = Pair::new(&peer());
        let cq = pair.client.get_cq();
        // Armed when it was made, and then each time by the wait.
        for burst in [3, 8] {
            for _ in 0..burst {
                write(&pair.client);
                polled(cq, 1);
            }
            takes_event(cq);
            no_event(cq);
            for _ in 0..burst {
                write(&pair.client);
            }
            polled(cq, burst);
            takes_event(cq);
            no_event(cq);
        }
    });
}

/// Promise: a completion that came before the queue was armed gives no event, and is in the queue.
/// That is why a wait is followed by polling until the queue is empty.
#[test]
fn a_completion_before_arming_gives_no_event() {
    device_test(|| {
        let pair = Pair::new(&peer());
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
                cq.req_notify(notify).expect("arms");
            }
            takes_event(cq);
            no_event(cq);
            assert_eq!(drain(cq), 2, "the second was there, without an event");
        }
    });
}

/// Promise: arm, poll until empty, wait: no wake-up is lost, whenever completions come.
///
/// The sender goes on only when everything so far was counted. So no later message can wake a
/// receiver that has missed one.
fn arm_poll_wait(messages: u64) {
    let pair = Pair::new(&peer());
    let Pair { client, server } = pair;
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
            let count = cq.get_wc(&mut wcs).expect("polls") as u64;
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
}

/// Protects programs that follow the loop of the documentation from sleeping for ever.
#[test]
fn arm_poll_wait_never_misses_a_completion() {
    device_test(|| arm_poll_wait(5_000));
}

/// As above, for rarer races.
#[test]
#[ignore = "long: some minutes"]
fn arm_poll_wait_never_misses_a_completion_long() {
    device_test(|| arm_poll_wait(100_000));
}

/// Promise: an event may come without a completion: the drain has polled it, after the arm.
#[test]
fn an_event_may_come_without_a_completion() {
    device_test(|| {
        let pair = Pair::new(&peer());
        let cq = pair.client.get_cq();
        write(&pair.client);
        takes_event(cq);
        // Armed. The second completion gives an event, and is drained together with the first.
        write(&pair.client);
        polled(cq, 2);
        takes_event(cq);
        assert_eq!(drain(cq), 0, "an event, and no completion");
        no_event(cq);
        write(&pair.client);
        takes_event(cq);
        polled(cq, 1);
    });
}

/// Promise: polling takes no events. One that nobody waited for is reported by a later wait.
#[test]
fn a_polled_completion_leaves_its_event() {
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let pair = Pair::with(&peer, &ConnCfg::new(), &on_channel(&channel, 5));
        for conn in [&pair.client, &pair.server] {
            write(conn);
            polled(conn.get_cq(), 1);
            assert_eq!(drain(conn.get_cq()), 0);
            assert!(readable(conn.get_cq(), LIMIT), "the event stays");
        }
        takes_event(pair.client.get_cq());
        no_event(pair.client.get_cq());
        let event = channel.wait_timeout(LIMIT).expect("an event");
        assert_eq!((event.key, event.kind), (5, CqKind::Main));
        none(channel.wait_timeout(SHORT));
    });
}

/// The three ways to wait, as one.
struct Waited {
    conn: Conn,
    channel: Option<CompletionChannel>,
}

impl Waited {
    /// Each kind of channel, and the other side of its connection.
    fn each(peer: &Peer) -> Vec<(Self, Conn)> {
        let channel = CompletionChannel::new(peer).expect("a channel");
        let mut all = Vec::new();
        for own in [None, Some(channel)] {
            let kinds = match own.clone() {
                None => vec![ComplChannel::PerCq, ComplChannel::Shared],
                Some(channel) => vec![ComplChannel::Of { channel, key: 9 }],
            };
            for kind in kinds {
                let mut cfg = with_channel(kind);
                cfg.set_rcq_size(10);
                let Pair { client, server } = Pair::with(peer, &cfg, &ConnCfg::new());
                let channel = own.clone();
                all.push((
                    Self {
                        conn: client,
                        channel,
                    },
                    server,
                ));
            }
        }
        all
    }

    fn wait(&self, limit: Duration) -> rpma::Result<()> {
        match &self.channel {
            Some(channel) => channel.wait_timeout(limit).map(drop),
            None if self.conn.get_compl_fd().is_ok() => self.conn.wait_timeout(limit).map(drop),
            None => self.conn.get_cq().wait_timeout(limit),
        }
    }
}

/// Promise: each event is acknowledged exactly once. Destroying a queue waits until as many events
/// are acknowledged as were taken, for ever if they are too few or too many. So dropping it after
/// any history shows it, for each way to wait.
#[test]
fn each_event_is_acknowledged_once() {
    type History = fn(&Waited, &Conn);
    const HISTORIES: [(&str, History); 10] = [
        ("nothing", |_, _| {}),
        ("an event that nobody took", |waited, _| {
            write(&waited.conn);
            polled(waited.conn.get_cq(), 1);
        }),
        ("an event without polling", |waited, _| {
            write(&waited.conn);
            waited.wait(LIMIT).expect("an event");
        }),
        ("an event and a completion", |waited, _| {
            write(&waited.conn);
            waited.wait(LIMIT).expect("an event");
            polled(waited.conn.get_cq(), 1);
        }),
        ("many events, the last not taken", |waited, _| {
            for _ in 0..50 {
                write(&waited.conn);
                waited.wait(LIMIT).expect("an event");
                polled(waited.conn.get_cq(), 1);
            }
            write(&waited.conn);
        }),
        ("a wait in vain", |waited, _| none(waited.wait(SHORT))),
        ("a non-blocking wait in vain, then an event", |waited, _| {
            let fd = waited.conn.get_cq();
            set_nonblocking(fd, true);
            none(waited.wait(LIMIT));
            write(&waited.conn);
            assert!(readable(fd, LIMIT));
            waited.wait(LIMIT).expect("an event");
        }),
        ("an event that came without a completion", |waited, _| {
            write(&waited.conn);
            waited.wait(LIMIT).expect("an event");
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
    device_test(|| {
        let peer = peer();
        for (name, history) in HISTORIES {
            for (waited, server) in Waited::each(&peer) {
                let freed = in_time(&format!("dropping after: {name}"), move || {
                    history(&waited, &server);
                    waited.conn.delete()
                });
                freed.expect("everything is freed");
            }
        }
    });
}

/// Promise: queues may be destroyed while other threads wait on their channel. Neither hangs: not
/// the drop, for an acknowledgement, nor a wait, for an event that was discarded after it was
/// seen.
fn drops_while_others_wait(rounds: u64) {
    const LAST: u64 = u64::MAX;
    let peer = peer();
    let channel = CompletionChannel::new(&peer).expect("a channel");
    let last = Pair::with(&peer, &on_channel(&channel, LAST), &ConnCfg::new());
    let last = Kept(Some(last));

    let unlimited = started({
        let channel = channel.clone();
        move || {
            loop {
                let event = channel.wait().expect("waits without a limit");
                if event.key == LAST {
                    return;
                }
                assert!(event.key < 2 * rounds, "{event:?}");
            }
        }
    });
    let ((stop, stopped), waits) = (Stop::new(), Arc::new(AtomicU64::new(0)));
    let limited = started({
        let (channel, waits) = (channel.clone(), Arc::clone(&waits));
        move || {
            while !stopped.load(Ordering::Relaxed) {
                match channel.wait_timeout(Duration::from_millis(2)) {
                    Ok(event) => assert!(event.key < 2 * rounds, "{event:?}"),
                    Err(error) => assert!(matches!(error, Error::NoCompletion), "{error:?}"),
                }
                waits.fetch_add(1, Ordering::Relaxed);
            }
        }
    });

    let mut random = Random(3);
    for round in 0..rounds {
        let cfg = |side| on_channel(&channel, 2 * round + side);
        let Pair { client, server } = Pair::with(&peer, &cfg(0), &cfg(1));
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
        let (before, deadline) = (waits.load(Ordering::Relaxed), Instant::now() + LIMIT);
        while waits.load(Ordering::Relaxed) < before + 2 {
            assert!(
                Instant::now() < deadline,
                "a limited wait hangs, round {round}"
            );
            thread::yield_now();
        }
    }

    drop(stop);
    finished("the wait with a limit", limited);
    write(&last.client);
    finished("the wait without a limit", unlimited);
}

/// Protects programs that drop connections while one thread serves the events of all.
#[test]
fn queues_are_dropped_while_others_wait_on_their_channel() {
    device_test(|| drops_while_others_wait(100));
}

/// As above, for rarer races. Each round drops two connections.
#[test]
#[ignore = "long: some minutes"]
fn queues_are_dropped_while_others_wait_on_their_channel_long() {
    device_test(|| drops_while_others_wait(10_000));
}

/// Promise, as above, for the moment in which a queue goes and its event is there: either the event
/// is taken, with its right key, or it is discarded. The queue is that of a shared receive queue:
/// with a connection's, the queue pair goes first, which is slow, and the event is taken by then.
fn events_taken_while_their_queue_is_destroyed(rounds: u64) {
    const WAITERS: u64 = 2;
    let peer = peer();
    let channel = CompletionChannel::new(&peer).expect("a channel");
    let ((stop, stopped), round, waits) = (
        Stop::new(),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicU64::new(0)),
    );
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
                match channel.wait_timeout(Duration::from_millis(2)) {
                    Ok(event) => assert_eq!((event.key, event.kind), (next, CqKind::Receive)),
                    Err(error) => assert!(matches!(error, Error::NoCompletion), "{error:?}"),
                }
                next += 1;
                waits.fetch_add(1, Ordering::Release);
            }
        })
    });
    for n in 1..=rounds {
        let mut cfg = SrqCfg::new();
        cfg.set_compl_channel(Some((channel.clone(), n)));
        let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
        srq.recv(MrSlice::EMPTY, 1).expect("posted");
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq));
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
        send(&pair.client, ALWAYS);
        assert!(readable(&channel, LIMIT), "its event arrives");
        drop((pair, cfg));
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
        let deadline = Instant::now() + LIMIT;
        while waits.load(Ordering::Acquire) < n * WAITERS {
            assert!(Instant::now() < deadline, "a limited wait hangs, round {n}");
            thread::yield_now();
        }
        none(channel.wait_timeout(Duration::ZERO));
    }
    drop(stop);
    for waiter in waiters {
        finished("a waiter", waiter);
    }
}

/// Protects the memory behind an event, which is its queue's, and the waits.
#[test]
fn an_event_is_taken_while_its_queue_is_destroyed() {
    device_test(|| events_taken_while_their_queue_is_destroyed(200));
}

/// As above, for rarer races.
#[test]
#[ignore = "long: some minutes"]
fn an_event_is_taken_while_its_queue_is_destroyed_long() {
    device_test(|| events_taken_while_their_queue_is_destroyed(10_000));
}

/// The descriptors of event channels that are open in this process.
fn event_descriptors() -> usize {
    let fds = fs::read_dir("/proc/self/fd").expect("the list of descriptors");
    let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("infinibandevent"))
        .count()
}

/// Promise: a channel lives until its last handle and its last queue are gone, whichever goes
/// first, with and without events on it; then it is closed.
#[test]
fn a_channel_outlives_its_queues_in_each_order() {
    device_test(|| {
        in_time("dropping queues and their channel", || {
            drop(Pair::new(&peer()));
            let before = event_descriptors();
            for (n, order) in permutations(4).into_iter().enumerate() {
                let peer = peer();
                let channel = CompletionChannel::new(&peer).expect("a channel");
                let pairs = [0, 1].map(|key| {
                    let pair = Pair::with(&peer, &on_channel(&channel, key), &ConnCfg::new());
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
            assert_eq!(event_descriptors(), before, "all channels are closed");
        });
    });
}

/// Promise: the descriptor is blocking until the program changes that, and then each wait returns
/// at once; for each way to wait.
#[test]
fn the_descriptor_blocks_unless_it_was_made_non_blocking() {
    device_test(|| {
        for (waited, _server) in Waited::each(&peer()) {
            let (waited, fd) = (Arc::new(waited), |waited: &Waited| {
                waited.conn.get_cq().as_fd().try_clone_to_owned()
            });
            let fd = fd(&waited).expect("another descriptor of the same channel");
            assert!(!fcntl_getfl(&fd).expect("flags").contains(OFlags::NONBLOCK));
            // Blocks until there is an event.
            let blocked = |waited: &Arc<Waited>| {
                let waiter = started({
                    let waited = Arc::clone(waited);
                    move || waited.wait(LIMIT)
                });
                thread::sleep(SHORT);
                assert!(!waiter.thread.is_finished(), "it waits");
                write(&waited.conn);
                finished("a wait", waiter).expect("an event");
                polled(waited.conn.get_cq(), 1);
            };
            blocked(&waited);

            set_nonblocking(&fd, true);
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
            waited.wait(Duration::ZERO).expect("takes what is there");
            polled(waited.conn.get_cq(), 1);

            set_nonblocking(&fd, false);
            blocked(&waited);
        }
    });
}

/// Promise: one `poll` or `epoll` serves many queues: exactly the queues with events are ready,
/// and a wait on those does not block. With an edge-triggered epoll as well.
#[test]
fn poll_and_epoll_serve_many_queues() {
    const QUEUES: usize = 3;
    device_test(|| {
        let peer = peer();
        let pairs: Vec<_> = (0..QUEUES).map(|_| Pair::new(&peer)).collect();
        for trigger in [epoll::EventFlags::empty(), epoll::EventFlags::ET] {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
            for (n, pair) in pairs.iter().enumerate() {
                let cq = pair.client.get_cq();
                assert_eq!(cq.get_fd(), cq.as_fd().as_raw_fd());
                set_nonblocking(cq, true);
                let data = epoll::EventData::new_u64(n as u64);
                epoll::add(&epoll, cq, data, trigger | epoll::EventFlags::IN).expect("adds");
            }
            // Which queues have events: each set of them.
            for set in 0..1 << QUEUES {
                let mut expected: BTreeSet<_> = (0..QUEUES).filter(|n| set >> n & 1 == 1).collect();
                expected.iter().for_each(|&n| write(&pairs[n].client));
                while !expected.is_empty() {
                    for n in ready(&epoll, LIMIT) {
                        assert!(expected.remove(&n), "queue {n} has no event, set {set:b}");
                        let cq = pairs[n].client.get_cq();
                        assert!(readable(cq, Duration::ZERO));
                        cq.wait_timeout(Duration::ZERO).expect("an event");
                        polled(cq, 1);
                        none(cq.wait_timeout(Duration::ZERO));
                    }
                }
                assert_eq!(ready(&epoll, Duration::ZERO), [0; 0]);
                for pair in &pairs {
                    assert!(!readable(pair.client.get_cq(), Duration::ZERO));
                }
            }
        }
    });
}

fn ready(epoll: impl AsFd, limit: Duration) -> Vec<usize> {
    let limit = Timespec::try_from(limit).expect("a short time");
    let mut events = Vec::with_capacity(8);
    epoll::wait(
        &epoll,
        rustix::buffer::spare_capacity(&mut events),
        Some(&limit),
    )
    .expect("waits");
    events
        .iter()
        .map(|event| event.data.u64() as usize)
        .collect()
}

/// A thread, as the kernel knows it.
#[derive(Clone, Copy)]
struct Thread(Pid);

impl Thread {
    fn current() -> Self {
        let link = fs::read_link("/proc/thread-self").expect("who we are");
        let id = link.file_name().and_then(|id| id.to_str()).expect("a name");
        Self(Pid::from_raw(id.parse().expect("a number")).expect("not 0"))
    }

    /// Signals the thread: the kernel gives a process's signal to the thread with that id if it
    /// can. It may have ended.
    fn signal(self) {
        match kill_process(self.0, Signal::USR1) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("kill: {error}"),
        }
    }

    /// How often it went to sleep.
    fn sleeps(self) -> u64 {
        let path = format!("/proc/self/task/{}/status", self.0.as_raw_nonzero());
        let status = fs::read_to_string(path).expect("the thread lives");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|n| n.trim().parse().ok()).expect("a number")
    }
}

/// Promise: a signal does not end a wait (`EINTR` is retried), and does not make it longer.
///
/// The handler interrupts `poll`, the only call in which a wait blocks. The kernel never restarts
/// that, whatever `SA_RESTART` says (signal(7)). That the signals reach the waiting thread is seen
/// in its count of sleeps: each wakes it, and it goes to sleep again.
#[test]
fn a_signal_does_not_end_a_wait() {
    device_test(|| {
        let handled = Arc::new(AtomicBool::new(false));
        let handler =
            signal_hook::flag::register(SIGUSR1, Arc::clone(&handled)).expect("a handler");
        for (waited, _server) in Waited::each(&peer()) {
            let waited = Arc::new(waited);
            let wait = |limit| {
                let (sender, thread) = mpsc::channel();
                let waited = Arc::clone(&waited);
                let waiter = started(move || {
                    sender.send(Thread::current()).expect("wanted");
                    let start = Instant::now();
                    (waited.wait(limit), start.elapsed())
                });
                (waiter, thread.recv().expect("it starts"))
            };

            let (waiter, thread) = wait(Duration::MAX);
            for _ in 0..50 {
                let (before, deadline) = (thread.sleeps(), Instant::now() + LIMIT);
                handled.store(false, Ordering::Relaxed);
                thread.signal();
                while !handled.load(Ordering::Relaxed) || thread.sleeps() == before {
                    assert!(!waiter.thread.is_finished(), "a signal ends the wait");
                    assert!(Instant::now() < deadline, "the thread sleeps on");
                    thread::yield_now();
                }
            }
            write(&waited.conn);
            let (event, _) = finished("a wait with signals", waiter);
            event.expect("the wait goes on after signals");
            polled(waited.conn.get_cq(), 1);

            let limit = SHORT * 5;
            let (waiter, thread) = wait(limit);
            let deadline = Instant::now() + LIMIT;
            while !waiter.thread.is_finished() {
                thread.signal();
                assert!(
                    Instant::now() < deadline,
                    "each signal makes the wait longer"
                );
                thread::sleep(limit / 20);
            }
            let (event, elapsed) = finished("a limited wait with signals", waiter);
            none(event);
            assert!(elapsed >= limit, "{elapsed:?}");
        }
        signal_hook::low_level::unregister(handler);
    });
}

/// Promise: a time limit is kept by each of many threads that wait on one channel, also by those
/// that see an event which another one takes: one event ends one wait.
#[test]
fn a_limit_is_kept_by_each_of_many_waiters() {
    const WAITERS: usize = 6;
    let limit = Duration::from_secs(2);
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let pair = Pair::with(&peer, &on_channel(&channel, 3), &ConnCfg::new());
        let pair = Kept(Some(pair));
        let barrier = Arc::new(Barrier::new(WAITERS + 1));
        let wait = |limit| {
            let (channel, barrier) = (channel.clone(), Arc::clone(&barrier));
            started(move || {
                barrier.wait();
                let start = Instant::now();
                (channel.wait_timeout(limit), start.elapsed())
            })
        };
        // Whoever is slow, there is one that takes the event.
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
        events.push(event.expect("an event of its own"));
        assert!(writes <= 2, "one event ends one wait: {events:?}");
        for event in events {
            assert_eq!((event.key, event.kind), (3, CqKind::Main));
        }
        polled(pair.client.get_cq(), writes);
        none(channel.wait_timeout(SHORT));
    });
}

/// Promise, as above, for the race between threads that see the same event: one takes it, and the
/// others go back to waiting for the rest of their limits.
#[test]
fn one_event_ends_one_wait() {
    const WAITERS: usize = 4;
    const EVENTS: usize = 200;
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let pair = Pair::with(&peer, &on_channel(&channel, 3), &ConnCfg::new());
        let pair = Kept(Some(pair));
        let (stop, stopped) = Stop::new();
        let (taken, waits) = (
            Arc::new(AtomicUsize::new(0)),
            [(); WAITERS].map(|()| Arc::default()),
        );
        let waiters = waits.clone().map(|waits: Arc<AtomicUsize>| {
            let (channel, stopped, taken) =
                (channel.clone(), Arc::clone(&stopped), Arc::clone(&taken));
            started(move || {
                while !stopped.load(Ordering::Relaxed) {
                    match channel.wait_timeout(Duration::from_millis(2)) {
                        Ok(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => assert!(matches!(error, Error::NoCompletion), "{error:?}"),
                    }
                    waits.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let reaches = |count: &AtomicUsize, goal, what| {
            let deadline = Instant::now() + LIMIT;
            while count.load(Ordering::Relaxed) < goal {
                assert!(Instant::now() < deadline, "{what}");
                thread::yield_now();
            }
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
    });
}

/// Promise: a queue for solicited events gives one for messages with [`Flags::SOLICITED`], from
/// its creation on, and none for others; also after an event.
#[test]
fn only_solicited_messages_give_events() {
    device_test(|| {
        let peer = peer();
        let pair = solicited(&peer, ComplChannel::PerCq);
        let (client, rcq) = (&pair.client, rcq(&pair.server));
        for _ in 0..2 {
            send(client, ALWAYS);
            polled(rcq, 1);
            assert!(!readable(rcq, SHORT), "a plain message gives no event");
            none(rcq.wait_timeout(SHORT));
            send(client, ALWAYS | Flags::SOLICITED);
            assert!(readable(rcq, LIMIT), "a solicited one does");
            takes_event(rcq);
            polled(rcq, 1);
        }
        let imm = |flags, imm| {
            client
                .write_with_imm(RemoteSlice::EMPTY, MrSlice::EMPTY, flags, imm, 4)
                .expect("posted");
        };
        imm(ALWAYS, 1);
        polled(rcq, 1);
        assert!(
            !readable(rcq, SHORT),
            "nor does a plain write with immediate data"
        );
        imm(ALWAYS | Flags::SOLICITED, 2);
        assert!(readable(rcq, LIMIT), "a solicited one does");
        takes_event(rcq);
        polled(rcq, 1);

        // The main queue's events are not affected.
        write(&pair.server);
        takes_event(pair.server.get_cq());
    });
}

/// As above, on the completion queue of a shared receive queue.
#[test]
fn only_solicited_messages_give_events_of_a_shared_receive_queue() {
    device_test(|| {
        let peer = peer();
        let mut cfg = SrqCfg::new();
        cfg.set_rcq_notify(Notify::Solicited);
        let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
        for n in 0..10 {
            srq.recv(MrSlice::EMPTY, n).expect("posted");
        }
        let mut cfg = ConnCfg::new();
        cfg.set_srq(Some(&srq));
        let pair = Pair::with(&peer, &ConnCfg::new(), &cfg);
        let rcq = srq.get_rcq().expect("the default");
        for _ in 0..2 {
            send(&pair.client, ALWAYS);
            polled(rcq, 1);
            assert!(!readable(rcq, SHORT), "a plain message gives no event");
            send(&pair.client, ALWAYS | Flags::SOLICITED);
            assert!(readable(rcq, LIMIT), "a solicited one does");
            takes_event(rcq);
            polled(rcq, 1);
        }
    });
}

/// Promise: a wait for solicited events is bounded (1 s), so that a program that waits without a
/// limit notices a failure, for which rxe of Linux 6.12 gives no event. A limit is kept as well.
#[test]
fn a_wait_for_solicited_events_is_bounded() {
    /// Waits without a limit when there is no event; says how long it took.
    fn bounded(server: Conn, shared: bool) -> (Conn, Duration) {
        in_time("an unlimited wait for solicited events", move || {
            let start = Instant::now();
            match shared {
                false => rcq(&server).wait().expect("as if there were an event"),
                true => {
                    let (cq, kind) = server.wait().expect("as if there were an event");
                    assert!(std::ptr::eq(cq, rcq(&server)));
                    assert_eq!(kind, CqKind::Receive);
                }
            }
            let elapsed = start.elapsed();
            (server, elapsed)
        })
    }
    device_test(|| {
        let peer = peer();
        for shared in [false, true] {
            let channel = match shared {
                false => ComplChannel::PerCq,
                true => ComplChannel::Shared,
            };
            let Pair { client, server } = solicited(&peer, channel);
            // A message without an event is found.
            send(&client, ALWAYS);
            let (server, elapsed) = bounded(server, shared);
            assert!(elapsed > SHORT, "it does wait: {elapsed:?}");
            assert!(!readable(rcq(&server), Duration::ZERO), "there is no event");
            polled(rcq(&server), 1);

            let start = Instant::now();
            none(match shared {
                false => rcq(&server).wait_timeout(SHORT),
                true => server.wait_timeout(SHORT).map(drop),
            });
            assert!(start.elapsed() >= SHORT);

            // So is a failure.
            server.disconnect().expect("fails the receives");
            let deadline = Instant::now() + LIMIT;
            let (mut server, mut failed) = (server, 0);
            while failed < 9 {
                (server, _) = bounded(server, shared);
                let mut wcs = [Wc::default(); 16];
                let count = rcq(&server).get_wc(&mut wcs).expect("polls");
                assert!(wcs[..count].iter().all(|wc| wc.result().is_err()));
                failed += count;
                assert!(Instant::now() < deadline, "{failed} failures");
            }
        }
    });
}

/// Promise: `Cq::req_notify` changes what gives events; a request that was made before gives its
/// event first.
#[test]
fn req_notify_changes_what_gives_events() {
    device_test(|| {
        let peer = peer();
        let mut cfg = ConnCfg::new();
        cfg.set_rcq_size(10);
        let Pair { client, server } = Pair::with(&peer, &cfg, &cfg);
        receives(&server, 10);
        let rcq = rcq(&server);
        let plain = |gives_event| {
            send(&client, ALWAYS);
            polled(rcq, 1);
            match gives_event {
                true => takes_event(rcq),
                false => assert!(!readable(rcq, SHORT), "a plain message gives no event"),
            }
        };
        plain(true);
        rcq.req_notify(Notify::Solicited).expect("arms");
        plain(true);
        plain(false);
        send(&client, ALWAYS | Flags::SOLICITED);
        assert!(readable(rcq, LIMIT), "a solicited one gives an event");
        takes_event(rcq);
        polled(rcq, 1);
        plain(false);
        rcq.req_notify(Notify::Any).expect("arms");
        plain(true);
        plain(true);

        // For programs that wait in another way: one event for each request.
        for _ in 0..2 {
            send(&client, ALWAYS);
            polled(rcq, 1);
            assert!(readable(rcq, LIMIT));
            rcq.req_notify(Notify::Any).expect("arms");
        }
        takes_event(rcq);
        takes_event(rcq);
        no_event(rcq);
    });
}

/// Promise: each event of a channel names its queue, by key and kind, also while other queues on
/// the channel are destroyed, with events of theirs on it. Of a dropped connection at most the key
/// comes.
#[test]
fn the_queue_of_an_event_is_found_while_others_are_destroyed() {
    const STEPS: u64 = 400;
    const DROPPED: u64 = 1 << 32;
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let stable = [0, 1].map(|key| {
            let pair = Pair::with(&peer, &on_channel(&channel, key), &ConnCfg::new());
            receives(&pair.client, 9);
            pair
        });
        let (stop, stopped) = Stop::new();
        let dropper = started({
            let (peer, channel) = (peer.clone(), channel.clone());
            move || {
                let mut key = DROPPED;
                while !stopped.load(Ordering::Relaxed) || key < DROPPED + 50 {
                    let client = on_channel(&channel, key);
                    let server = on_channel(&channel, key + 1);
                    let Pair { client, server } = Pair::with(&peer, &client, &server);
                    receives(&client, 1);
                    write(&client);
                    write(&server);
                    send(&server, ALWAYS);
                    drop(client);
                    drop(server);
                    key += 2;
                }
                key
            }
        });
        let run = started({
            let channel = channel.clone();
            move || {
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
                    // Nothing else was posted to the two, so this is the only event of theirs.
                    loop {
                        let event = channel.wait_timeout(LIMIT).expect("its event comes");
                        if event.key < DROPPED {
                            assert_eq!((event.key, event.kind), (key, kind));
                            break;
                        }
                        highest = highest.max(event.key);
                    }
                    polled(cq, 1);
                    if kind == CqKind::Receive {
                        polled(pair.server.get_cq(), 1);
                    }
                }
                (stable, highest)
            }
        });
        let (stable, highest) = finished("the waits for the connections that stay", run);
        drop(stop);
        let next = finished("dropping connections", dropper);
        assert!(highest < next, "{highest} is nobody's key");
        drop(stable);

        // What a dropped queue left on the channel is discarded with it.
        while channel.wait_timeout(Duration::ZERO).is_ok() {}
        let pairs = [5, 6].map(|key| {
            let pair = Pair::with(&peer, &on_channel(&channel, key), &ConnCfg::new());
            write(&pair.client);
            polled(pair.client.get_cq(), 1);
            pair
        });
        let [one, other] = pairs;
        drop(one);
        let event = channel.wait_timeout(LIMIT).expect("the other's");
        assert_eq!((event.key, event.kind), (6, CqKind::Main));
        drop(other);
        none(channel.wait_timeout(SHORT));
    });
}

/// Promise: with [`ComplChannel::Shared`] a wait tells the right one of the connection's two
/// queues.
#[test]
fn a_shared_channel_tells_the_queue() {
    device_test(|| {
        let peer = peer();
        for rcq_size in [0, 10] {
            let mut cfg = with_channel(ComplChannel::Shared);
            cfg.set_rcq_size(rcq_size);
            let Pair { client, server } = Pair::with(&peer, &cfg, &cfg);
            receives(&client, 10);
            let (main, receive) = (client.get_cq(), client.get_rcq().unwrap_or(client.get_cq()));
            assert_eq!(client.get_compl_fd().expect("shared"), main.get_fd());
            assert_eq!(client.get_compl_fd().expect("shared"), receive.get_fd());
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
                let (cq, kind) = client.wait_timeout(LIMIT).expect("an event");
                assert!(std::ptr::eq(cq, expected), "step {step}");
                assert_eq!(kind, expected_kind, "step {step}");
                polled(cq, 1);
            }
            none(client.wait_timeout(SHORT));
        }
    });
}

/// Promise: waiting where the events do not arrive is an error, and no wait for ever.
#[test]
fn waiting_where_no_events_arrive_is_refused() {
    device_test(|| {
        let peer = peer();
        let channel = CompletionChannel::new(&peer).expect("a channel");
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
            let Pair { client, server } = Pair::with(&peer, &cfg, &ConnCfg::new());
            let conn = in_time("a wait in the wrong place", move || {
                for cq in [client.get_cq(), rcq(&client)] {
                    if !own {
                        for refused in [
                            cq.wait(),
                            cq.wait_timeout(LIMIT),
                            cq.wait_for(1, LIMIT, |_| {}).map(drop),
                        ] {
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
                client
            });
            // The right place works.
            write(&conn);
            match (own, shared) {
                (true, _) => takes_event(conn.get_cq()),
                (_, true) => drop(conn.wait_timeout(LIMIT).expect("an event")),
                _ => drop(channel.wait_timeout(LIMIT).expect("an event")),
            }
            drop(server);
        }
    });
}

/// Promise: the queue of a shared receive queue may use a channel as well, next to the queues of
/// connections, and several channels keep their events apart.
#[test]
fn a_shared_receive_queue_may_use_a_channel() {
    device_test(|| {
        let peer = peer();
        let channels = [(); 2].map(|()| CompletionChannel::new(&peer).expect("a channel"));
        let mut cfg = SrqCfg::new();
        cfg.set_compl_channel(Some((channels[0].clone(), 70)));
        let srq = Srq::new(&peer, &cfg).expect("a shared receive queue");
        let own = srq.get_rcq().expect("the default");
        for n in 0..10 {
            srq.recv(MrSlice::EMPTY, n).expect("posted");
        }
        let pairs = [71, 72].map(|key| {
            let channel = channels[(key - 71) as usize].clone();
            let mut cfg = with_channel(ComplChannel::Of { channel, key });
            cfg.set_srq(Some(&srq));
            Pair::with(&peer, &ConnCfg::new(), &cfg)
        });
        let refused = own.wait_timeout(LIMIT).expect_err("it is not its own");
        assert!(matches!(refused, Error::SharedChannel), "{refused:?}");
        assert_eq!(own.get_fd(), channels[0].get_fd());

        let next = |channel: &CompletionChannel| {
            let CqEvent { key, kind, .. } = channel.wait_timeout(LIMIT).expect("an event");
            (key, kind)
        };
        for pair in &pairs {
            send(&pair.client, ALWAYS);
            assert_eq!(next(&channels[0]), (70, CqKind::Receive));
            polled(own, 1);
            polled(pair.client.get_cq(), 1);
        }
        for (n, pair) in pairs.iter().enumerate() {
            write(&pair.server);
            assert_eq!(next(&channels[n]), (71 + n as u64, CqKind::Main));
            polled(pair.server.get_cq(), 1);
        }
        // It is destroyed with its last connection; the channel stays.
        drop(srq);
        drop(pairs);
        for channel in channels {
            none(channel.wait_timeout(SHORT));
        }
    });
}
