//! The shared parts of the tests of completion events: operations that give one, waits that must
//! end, and the clean-up after a test that fails.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::{fs, hint, mem, panic, thread};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::prelude::*;

/// How long "no event" is looked at.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

/// Posts an operation that completes in the connection's main queue, and nowhere else.
pub(crate) fn write(conn: &Conn) {
    write_nothing(conn, 1).expect("posted");
}

/// Posts a message of 0 bytes.
pub(crate) fn send(conn: &Conn, flags: Flags) {
    conn.send(MrSlice::EMPTY, flags | Flags::COMPLETION_ON_ERROR, 2)
        .expect("posted");
}

/// Posts `count` receives.
pub(crate) fn receives(conn: &Conn, count: u64) {
    receive_nothing(conn, 0..count).expect("posted");
}

/// Polls until `count` completions came, without any wait for events; all must be successes.
pub(crate) fn polled(cq: &Cq, count: usize) {
    let mut all = 0;
    until(&format!("{count} completions"), || {
        all += drain(cq);
        all >= count
    });
    assert_eq!(all, count, "no more completions than operations");
}

/// Polls until the queue is empty; all must be successes.
pub(crate) fn drain(cq: &Cq) -> usize {
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
pub(crate) fn takes_event(cq: &Cq) -> Result {
    cq.wait_timeout(LIMIT)?;
    Ok(())
}

/// There is no event.
pub(crate) fn no_event(cq: &Cq) {
    none(cq.wait_timeout(SHORT));
}

/// As [`none`], of a connection or an endpoint.
pub(crate) fn nothing<T: std::fmt::Debug>(waited: Result<T, Error>) {
    assert!(matches!(waited, Err(Error::NoEvent)), "{waited:?}");
}

/// Waits for a moment. Returns an event, if one comes.
pub(crate) fn look(channel: &CompletionChannel) -> Option<(u64, CqKind)> {
    match channel.wait_timeout(Duration::from_millis(2)) {
        Ok(event) => Some(event),
        Err(Error::NoCompletion) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// The next event of a channel is this queue's.
pub(crate) fn takes_event_of(channel: &CompletionChannel, key: u64, kind: CqKind) -> Result {
    let event = channel.wait_timeout(LIMIT)?;
    assert_eq!(event, (key, kind));
    Ok(())
}

pub(crate) fn none<T: std::fmt::Debug>(waited: Result<T, Error>) {
    assert!(matches!(waited, Err(Error::NoCompletion)), "{waited:?}");
}

pub(crate) fn set_nonblocking(fd: impl AsFd, on: bool) -> Result {
    let mut flags = fcntl_getfl(&fd)?;
    flags.set(OFlags::NONBLOCK, on);
    fcntl_setfl(&fd, flags)?;
    Ok(())
}

/// Runs in another thread the code that a broken promise lets hang, and fails if it does.
pub(crate) fn in_time<T: Send + 'static>(
    what: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    finished(what, started(run))
}

/// Something that runs in another thread.
pub(crate) struct Started<T> {
    result: mpsc::Receiver<T>,
    pub(crate) thread: thread::JoinHandle<()>,
}

pub(crate) fn started<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Started<T> {
    let (sender, result) = mpsc::channel();
    let thread = thread::spawn(here(move || {
        let _test_has_failed = sender.send(run());
    }));
    Started { result, thread }
}

pub(crate) fn finished<T>(what: &str, Started { result, thread }: Started<T>) -> T {
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

/// A thread's id in the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Thread(Pid);

impl Thread {
    pub(crate) fn current() -> Result<Self> {
        let link = fs::read_link("/proc/thread-self")?;
        let id = link.file_name().and_then(|id| id.to_str());
        let id = id.ok_or("a name")?;
        Ok(Self(Pid::from_raw(id.parse()?).ok_or("not 0")?))
    }

    /// Signals the thread: the kernel gives a process's signal to the thread with that id if it
    /// can. It may have ended.
    pub(crate) fn signal(self, signal: Signal) {
        match kill_process(self.0, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("kill: {error}"),
        }
    }

    /// How often it went to sleep.
    pub(crate) fn sleeps(self) -> Result<u64> {
        let path = format!("/proc/self/task/{}/status", self.0.as_raw_nonzero());
        let status = fs::read_to_string(path)?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.and_then(|n| n.trim().parse().ok()).ok_or("a number")?)
    }
}

/// An object that is not dropped if the test fails: beside a hanging thread, its drop might hang as
/// well.
pub(crate) struct Kept<T>(pub(crate) Option<T>);

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

/// Stops another thread, also when the test fails.
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn new() -> (Self, Arc<AtomicBool>) {
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
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// One of `0..end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Half of the time no pause, else up to 300 µs.
    pub(crate) fn pause(&mut self) {
        if self.below(2) == 0 {
            let until = Instant::now() + Duration::from_micros(self.below(300));
            while Instant::now() < until {
                hint::spin_loop();
            }
        }
    }
}

pub(crate) fn peer_with_channel() -> Result<(Peer, CompletionChannel)> {
    let peer = peer()?;
    let channel = CompletionChannel::new(&peer)?;
    Ok((peer, channel))
}

pub(crate) fn with_channel(channel: ComplChannel) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(channel);
    cfg
}

/// A connection with events that arrive on `channel`, with a queue of its own for receives.
pub(crate) fn on_channel(channel: &CompletionChannel, key: u64) -> ConnCfg {
    let channel = channel.clone();
    let mut cfg = with_channel(ComplChannel::Of { channel, key });
    cfg.set_rcq_size(10);
    cfg
}

/// A client with events that arrive on `channel`, and a server.
pub(crate) fn pair_on(peer: &Peer, channel: &CompletionChannel, key: u64) -> Result<Pair> {
    Pair::with(peer, &on_channel(channel, key), &ConnCfg::new())
}

/// A client that connects to a server. Only solicited messages give events of the server's receive
/// queue.
pub(crate) fn solicited(peer: &Peer, channel: ComplChannel) -> Result<Pair> {
    let mut cfg = with_channel(channel);
    cfg.set_rcq_size(10).set_rcq_notify(Notify::Solicited);
    let pair = Pair::with(peer, &ConnCfg::new(), &cfg)?;
    receives(&pair.server, 10);
    Ok(pair)
}

pub(crate) fn rcq(conn: &Conn) -> &Cq {
    conn.get_rcq().expect("a queue for receives")
}

/// The three ways to wait, as one.
pub(crate) struct Waited {
    pub(crate) conn: Conn,
    channel: Option<CompletionChannel>,
}

impl Waited {
    /// Settings for connections with events that arrive on the same channel, if that is possible.
    pub(crate) fn cfg(&self) -> ConnCfg {
        match self.channel.clone() {
            Some(channel) => with_channel(ComplChannel::Of { channel, key: 8 }),
            None => ConnCfg::new(),
        }
    }

    /// Each kind of channel, and the other side of its connection.
    pub(crate) fn each(peer: &Peer) -> Result<Vec<(Self, Conn)>> {
        let channel = CompletionChannel::new(peer)?;
        let of = ComplChannel::Of {
            channel: channel.clone(),
            key: 9,
        };
        let kinds = [
            (ComplChannel::PerCq, None),
            (ComplChannel::Shared, None),
            (of, Some(channel)),
        ];
        let connect = |(kind, channel)| -> Result<_> {
            let mut cfg = with_channel(kind);
            cfg.set_rcq_size(10);
            let (conn, server) = Pair::with(peer, &cfg, &ConnCfg::new())?.ends();
            Ok((Self { conn, channel }, server))
        };
        kinds.into_iter().map(connect).collect()
    }

    /// Posts a write, and takes its event.
    pub(crate) fn gets_event(&self) {
        write(&self.conn);
        self.wait(LIMIT).expect("an event");
    }

    pub(crate) fn wait(&self, limit: Duration) -> rpma::Result<()> {
        match &self.channel {
            Some(channel) => channel.wait_timeout(limit).map(drop),
            None if self.conn.get_compl_fd().is_ok() => self.conn.wait_timeout(limit).map(drop),
            None => self.conn.get_cq().wait_timeout(limit),
        }
    }
}
