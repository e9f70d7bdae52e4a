//! The steps and the checks that many tests need, in a line each: the beginning of a test,
//! operations without bytes, completions, and errors.

#[cfg(feature = "sim")]
use std::env;
use std::fmt::{Debug, Display};
use std::ops::Range;
use std::os::fd::AsFd;
#[cfg(feature = "sim")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

use rpma::commit::ReplicaId;
use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Ep, Error, Flags, Mr, MrRemote, MrSlice, MrUsage, Offer,
    Peer, Posted, Queue, RegisterableMemory, RemoteSlice, Wc, WcFailure, WcOpcode,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

#[cfg(feature = "sim")]
use super::share;
use super::{
    Counted, LIMIT, Memories, Memory, Pair, Pauses, Result, addr, completion, contents,
    device_test, event, invalid, is_iwarp, opcode_of, peer,
};

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
pub(crate) const ON_ERROR: Flags = Flags::COMPLETION_ON_ERROR;

/// The usage of memory that a peer writes and flushes, but does not read.
pub(crate) const FLUSHED: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_VISIBILITY);

/// A bit for the place of each replica.
pub(crate) fn mask(ids: impl IntoIterator<Item = ReplicaId>) -> u64 {
    let bits = ids.into_iter().map(|id| 1 << id.index());
    bits.fold(0, |mask, bit: u64| mask | bit)
}

/// Begins a test that needs a peer: the peer goes before objects are counted.
pub(crate) fn peer_test() -> Result<(Counted, Peer)> {
    let test = device_test();
    Ok((test, peer()?))
}

/// Settings of connections that have the device's own flushes and atomic writes, and of those that
/// have the fallback. (rdma-core 44 has no flush of its own: there it is the fallback twice.)
pub(crate) fn both_ways() -> [ConnCfg; 2] {
    [false, true].map(|fallback| ConnCfg::new().set_force_fallback(fallback).clone())
}

/// The kind of a flush's completion.
pub(crate) fn flush_opcode(conn: &Conn) -> WcOpcode {
    if conn.has_native_flush() {
        WcOpcode::FLUSH
    } else {
        WcOpcode::RDMA_READ
    }
}

/// A request to an endpoint of this host. It is not sent yet.
pub(crate) fn resolve(peer: &Peer, ep: &Ep, cfg: &ConnCfg) -> Result<ConnReq> {
    Ok(ConnReq::new(peer, &addr(), ep.get_port(), cfg)?)
}

/// The next event of both ends: they are connected.
#[track_caller]
pub(crate) fn established(client: &Conn, server: &Conn) -> Result {
    assert_eq!(event(client)?, ConnEvent::Established);
    assert_eq!(event(server)?, ConnEvent::Established);
    Ok(())
}

/// Posts a write of no bytes.
pub(crate) fn write_nothing(conn: &Conn, op_context: u64) -> Result<Posted, Error> {
    conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, op_context)
}

/// Sends a message of no bytes, and sees that it was sent.
#[track_caller]
pub(crate) fn send_nothing(conn: &Conn) -> Result {
    conn.send(MrSlice::EMPTY, ALWAYS, 1)?;
    assert_eq!(done(conn, 1)?, WcOpcode::SEND);
    Ok(())
}

/// Waits for the one operation that is outstanding, which must have this number and succeed.
#[track_caller]
pub(crate) fn done(conn: &Conn, wr_id: u64) -> Result<WcOpcode> {
    opcode_of(&completion(conn)?, wr_id)
}

/// Waits for the one operation that is outstanding, which must fail.
#[track_caller]
pub(crate) fn fails(conn: &Conn) -> Result<WcFailure> {
    Ok(failure(&completion(conn)?))
}

#[track_caller]
pub(crate) fn failure(wc: &Wc) -> WcFailure {
    wc.result().expect_err("the operation fails")
}

/// The numbers of operations.
pub(crate) fn numbers<'a>(wcs: impl IntoIterator<Item = &'a Wc>) -> Vec<u64> {
    wcs.into_iter().map(Wc::wr_id).collect()
}

/// These operations have succeeded, with these numbers, in order.
#[track_caller]
pub(crate) fn assert_done(wcs: &[Wc], expected: impl IntoIterator<Item = u64>) -> Result {
    assert!(wcs.iter().map(Wc::wr_id).eq(expected), "{wcs:?}");
    for wc in wcs {
        wc.result()?;
    }
    Ok(())
}

/// The other side's reason: the next event must be a reject.
#[track_caller]
pub(crate) fn rejected(conn: &Conn) -> Result<i32> {
    match event(conn)? {
        ConnEvent::Rejected { reason, .. } => Ok(reason),
        other => panic!("a reject expected: {other:?}"),
    }
}

/// The text has each of these words.
#[track_caller]
pub(crate) fn assert_says(said: &impl Display, words: &[&str]) {
    let text = said.to_string();
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// An error about an argument, with each of these words.
#[track_caller]
pub(crate) fn assert_invalid<T>(result: Result<T, Error>, words: &[&str]) {
    assert_says(&invalid(result), words);
}

/// The queue without room, and its depth.
#[track_caller]
pub(crate) fn full<T: Debug>(result: Result<T, Error>) -> (Queue, u64) {
    match result {
        Err(Error::QueueFull { queue, depth }) => (queue, depth.into()),
        other => panic!("a full queue expected: {other:?}"),
    }
}

/// The connection takes no operations, yet or any more.
#[track_caller]
pub(crate) fn assert_not_connected<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::NotConnected(_))), "{result:?}");
}

/// The text of an error about an ability that is missing.
#[track_caller]
pub(crate) fn not_supported<T: Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::NotSupported(_)) => error.to_string(),
        other => panic!("a missing ability expected: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_timed_out<T: Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
}

/// Posts operations with the numbers from 0 on until this queue, of this depth, is full. Returns
/// how many there were.
#[track_caller]
pub(crate) fn fill(
    queue: Queue,
    depth: u64,
    mut post: impl FnMut(u64) -> Result<(), Error>,
) -> u64 {
    let mut posted = 0;
    loop {
        match post(posted) {
            Ok(()) => posted += 1,
            refused => {
                assert_eq!(full(refused), (queue, depth));
                return posted;
            }
        }
    }
}

/// Posts as soon as there is room.
#[track_caller]
pub(crate) fn until_posted(mut post: impl FnMut() -> Result<Posted, Error>) -> Posted {
    let begin = Instant::now();
    loop {
        match post() {
            Err(Error::QueueFull { .. }) if begin.elapsed() < LIMIT => thread::yield_now(),
            posted => break posted.expect("posted"),
        }
    }
}

impl Pair {
    /// A pair with each of these settings at both ends, one after the other.
    pub(crate) fn each(
        peer: &Peer,
        cfgs: impl IntoIterator<Item = ConnCfg>,
    ) -> impl Iterator<Item = Self> {
        let pair = |cfg| Self::with(peer, &cfg, &cfg).expect("established");
        cfgs.into_iter().map(pair)
    }

    /// Two pairs with these settings.
    pub(crate) fn two(peer: &Peer, client: &ConnCfg, server: &ConnCfg) -> Result<[Self; 2]> {
        let pair = || Self::with(peer, client, server);
        Ok([pair()?, pair()?])
    }
}

impl Memories {
    /// Nobody serves this client: its write fails, if it is taken at all, and has no effect.
    #[track_caller]
    pub(crate) fn assert_not_served(&self, client: &Conn) -> Result {
        // The client may have heard of the end.
        if let Ok(posted) = self.write(client, 1) {
            match client.wait_for(posted, LIMIT, |_| {}) {
                Err(Error::Operation(_) | Error::Ended(_) | Error::NotConnected(_)) => {}
                Ok(_) if is_iwarp() => {}
                served => panic!("{served:?}"),
            }
        }
        assert_ne!(
            contents(&self.target)?,
            contents(&self.source)?,
            "it was written"
        );
        Ok(())
    }
}

/// The same bytes of two regions: where a part of a commit goes to, and where it comes from.
#[track_caller]
pub(crate) fn part_of<'a>(
    far: &MrRemote,
    source: &'a Mr<Memory>,
    at: usize,
    len: usize,
) -> (RemoteSlice, MrSlice<'a>) {
    let to = far.slice(at as u64..(at + len) as u64).expect("inside");
    (to, source.slice(at..at + len).expect("inside"))
}

/// A region as its peer sees it that believes a forged descriptor.
#[track_caller]
pub(crate) fn forged<M: RegisterableMemory>(mr: &Mr<M>, forge: impl FnOnce(&mut [u8])) -> MrRemote {
    let mut descriptor = mr.get_descriptor();
    forge(&mut descriptor);
    MrRemote::from_descriptor(&descriptor).expect("a valid descriptor")
}

/// A text, as that of an error, has these words.
#[track_caller]
pub(crate) fn says(text: impl Display, words: &str) {
    let text = text.to_string();
    assert!(text.contains(words), "{words}: {text}");
}

/// Sends a message of 0 bytes.
pub(crate) fn send_empty(conn: &Conn, op_context: u64) -> Result<Posted, Error> {
    conn.send(MrSlice::EMPTY, ALWAYS, op_context)
}

/// Posts receives of 0 bytes with these numbers.
pub(crate) fn receive_nothing(conn: &Conn, op_contexts: Range<u64>) -> Result<(), Error> {
    for op_context in op_contexts {
        conn.recv(MrSlice::EMPTY, op_context)?;
    }
    Ok(())
}

/// Runs a share of so many seeds, and names the one that fails. `RPMA_SIM_RUNS` sets the number of
/// seeds that run, and `RPMA_SIM_SEED` the only one.
#[cfg(feature = "sim")]
pub(crate) fn with_seeds(runs: u64, run: impl Fn(u64)) {
    let number = |variable: &str| -> Option<u64> {
        let text = env::var(variable).ok()?;
        Some(text.parse().expect(variable))
    };
    let seeds = match (number("RPMA_SIM_SEED"), number("RPMA_SIM_RUNS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(runs)) => (0..runs).collect(),
        (None, None) => share("seeds", 4, 0..runs),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("seed {seed}: run again with RPMA_SIM_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

/// Gives other threads their turn until this is so, in time.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (deadline, mut pauses) = (Instant::now() + LIMIT, Pauses::default());
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        pauses.pause();
    }
}

/// Whether the descriptor becomes readable within `limit`, without taking the event.
pub(crate) fn readable(fd: impl AsFd, limit: Duration) -> bool {
    let limit = limit.try_into().expect("short");
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    // A signal of the system may come, as after a machine that stood still.
    retry_on_intr(|| poll(&mut fds, Some(&limit))).expect("polls") > 0
}

/// The memory that the other side offers.
pub(crate) fn offered(conn: &Conn) -> Result<MrRemote, Error> {
    Ok(conn.offer()?.regions()[0])
}
