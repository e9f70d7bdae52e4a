//! The shared parts of the tests: the place where they run, two connected ends (`pair.rs`, and
//! `world.rs` for those on two hosts), completions, memory and checks (`checks.rs`).
//!
//! A device test runs on a device (`device.rs`), or on a simulated fabric (`fabric.rs`). The rig
//! (`rig.rs`) makes the fabrics of all others.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test program uses a part of it"
)]

mod checks;
mod draw;
pub(crate) mod failed;
#[cfg(feature = "sim")]
pub(crate) mod failing_calls;
pub(crate) mod lines;
mod pair;
mod panics;
#[cfg(feature = "sim")]
pub(crate) mod paused;
#[cfg(not(feature = "sim"))]
#[path = "device.rs"]
mod place;
#[cfg(feature = "sim")]
#[path = "fabric.rs"]
pub(crate) mod place;
pub(crate) mod prelude;
pub(crate) mod program;
pub(crate) mod records;
#[cfg(feature = "sim")]
mod rig;
#[cfg(feature = "sim")]
mod share;
mod transport;
#[cfg(feature = "sim")]
mod world;

use std::thread;
use std::time::{Duration, Instant};

use rpma::{
    Conn, ConnEvent, Cq, Device, Error, Flags, Mr, MrRemote, MrSlice, MrUsage, Offer, Peer, Posted,
    RegisterableMemory, RemoteSlice, Side, Wc, WcOpcode,
};

pub(crate) use self::checks::*;
pub(crate) use self::draw::*;
pub(crate) use self::failed::Result;
pub(crate) use self::pair::*;
pub(crate) use self::panics::*;
pub(crate) use self::place::*;
#[cfg(feature = "sim")]
pub(crate) use self::rig::*;
#[cfg(feature = "sim")]
pub(crate) use self::share::*;
pub(crate) use self::transport::*;
#[cfg(feature = "sim")]
pub(crate) use self::world::*;

/// No wait in a test is longer: emulation is slow, but not that slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A peer on the test device.
pub(crate) fn peer() -> Result<Peer> {
    let device = Device::from_addr(&addr(), Side::Local)?;
    Ok(Peer::new(&device)?)
}

/// Begins a test. Its end fails it if there are more objects than now.
pub(crate) fn device_test() -> Counted {
    Counted::leaving(&[])
}

/// Runs a part of a test, and fails if there are not as many objects more afterwards, of each kind.
pub(crate) fn leaving(left: &[(&str, u64)], part: impl FnOnce() -> Result) -> Result {
    let _counted = Counted::leaving(left);
    part()
}

/// A runtime of one thread with a paused clock.
pub(crate) fn paused_runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().start_paused(true);
    builder.build().expect("a runtime")
}

/// The next event, in time.
pub(crate) fn event(conn: &Conn) -> Result<ConnEvent> {
    Ok(conn.next_event_timeout(LIMIT)?)
}

/// The pauses between polls that find nothing. A completion that comes soon is seen at once, and a
/// wait of seconds leaves the processor to other tests.
#[derive(Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    pub(crate) fn pause(&mut self) {
        self.0 += 1;
        if self.0 < 1000 {
            return thread::yield_now();
        }
        let short = Duration::from_micros(500);
        #[cfg(feature = "sim")]
        rpma::sim::sleep(short);
        #[cfg(not(feature = "sim"))]
        thread::sleep(short);
    }
}

/// Waits until `count` completions came, and returns them.
pub(crate) fn completions(conn: &Conn, count: usize) -> Result<Vec<Wc>> {
    let (mut all, mut pauses) = (Vec::new(), Pauses::default());
    let deadline = Instant::now() + LIMIT;
    while all.len() < count {
        let mut wcs = [Wc::default(); 16];
        let polled = conn.get_cq().get_wc(&mut wcs)?;
        all.extend_from_slice(&wcs[..polled]);
        assert!(
            Instant::now() < deadline,
            "{} of {count} completions in time",
            all.len()
        );
        if polled == 0 {
            pauses.pause();
        }
    }
    assert_eq!(
        all.len(),
        count,
        "no more completions than expected: {all:?}"
    );
    Ok(all)
}

/// Waits for the one completion that is outstanding.
pub(crate) fn completion(conn: &Conn) -> Result<Wc> {
    Ok(completions(conn, 1)?[0])
}

/// Sees that no completion comes for a while.
pub(crate) fn no_completion(conn: &Conn) -> Result {
    let (until, mut pauses) = (
        Instant::now() + Duration::from_millis(200),
        Pauses::default(),
    );
    while Instant::now() < until {
        let mut wcs = [Wc::default()];
        assert_eq!(conn.get_cq().get_wc(&mut wcs)?, 0, "{wcs:?}");
        pauses.pause();
    }
    Ok(())
}

/// Memory for regions, at a multiple of 8: the allocator's is, except for Miri's.
#[cfg(not(miri))]
pub(crate) type Memory = Vec<u8>;
#[cfg(miri)]
pub(crate) type Memory = rpma::AlignedBuf;

#[cfg(not(miri))]
fn zeroed(len: usize) -> Memory {
    vec![0; len]
}

#[cfg(miri)]
fn zeroed(len: usize) -> Memory {
    rpma::AlignedBuf::zeroed(len).expect("memory")
}

/// Zeroed memory, registered.
pub(crate) fn region(peer: &Peer, len: usize, usage: MrUsage) -> Result<Mr<Memory>> {
    Ok(Mr::reg(peer, zeroed(len), usage)?)
}

/// A region as the other side sees it: through its descriptor.
pub(crate) fn remote<M: RegisterableMemory>(mr: &Mr<M>) -> MrRemote {
    MrRemote::from_descriptor(&mr.get_descriptor()).expect("a valid descriptor")
}

/// All bytes of a region, with all that a peer's device has executed.
pub(crate) fn contents<M: RegisterableMemory>(mr: &Mr<M>) -> Result<Vec<u8>> {
    #[cfg(feature = "sim")]
    settle();
    let mut bytes = vec![0; mr.get_size()];
    mr.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Bytes in which a shifted or repeated copy shows.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// All orders of `n` things.
pub(crate) fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(n - 1) {
        for at in 0..n {
            let mut longer = shorter.clone();
            longer.insert(at, n - 1);
            all.push(longer);
        }
    }
    all
}

/// Waits for one completion of a queue.
pub(crate) fn next_completion(cq: &Cq) -> Result<Wc> {
    let deadline = Instant::now() + LIMIT;
    let (mut wcs, mut pauses) = ([Wc::default()], Pauses::default());
    while cq.get_wc(&mut wcs)? == 0 {
        assert!(Instant::now() < deadline, "a completion in time");
        pauses.pause();
    }
    Ok(wcs[0])
}

/// A queue has no completion now.
pub(crate) fn assert_empty(cq: &Cq) -> Result {
    let mut wcs = [Wc::default()];
    assert_eq!(cq.get_wc(&mut wcs)?, 0, "{wcs:?}");
    Ok(())
}

/// Returns the kind of an operation that succeeded, if it is the expected one.
pub(crate) fn opcode_of(wc: &Wc, wr_id: u64) -> Result<WcOpcode> {
    assert_eq!(wc.wr_id(), wr_id, "{wc:?}");
    Ok(wc.result()?.opcode())
}

/// The text of an error that must be about an argument.
pub(crate) fn invalid<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::InvalidArgument(text)) => text.into(),
        Err(other) => panic!("an argument error expected: {other:?}"),
        Ok(_) => panic!("an argument error expected"),
    }
}
