//! The differences of an adapter from soft-RoCE: it keeps only the promised order, so that a
//! missing fence shows, and it reports failed queue pairs.
//!
//! Of order: in each round a flush or a read fails, because its memory is gone, and a write
//! follows it: one that had to wait for it must not be executed any more.

use std::sync::{Arc, mpsc};

use crate::common::prelude::*;

/// Miri takes a second for each.
const ROUNDS: usize = if cfg!(miri) { 6 } else { 40 };
const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

/// The first operation, and the next one.
#[derive(Clone, Copy, Debug)]
enum First {
    Read,
    Flush,
    AtomicWrite,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Write(Flags),
    AtomicWrite,
    Send(Flags),
}

/// In how many rounds the next operation was executed although the first one has failed. `single`:
/// it is posted by a call of its own.
fn executed(force_fallback: bool, first: First, then: Then, single: bool) -> Result<usize> {
    executed_on(&Profile::STRICT, force_fallback, first, then, single)
}

fn executed_on(
    profile: &Profile,
    force_fallback: bool,
    first: First,
    then: Then,
    single: bool,
) -> Result<usize> {
    let here = Rig::of(profile).here();
    let peer = peer()?;
    let source = region(&peer, 8, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
    source.store_u64(0, 1)?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let gone = remote(&region(&peer, 8, usage)?).slice(..)?;
    let tail = region(&peer, 8, usage)?;
    let (to, from) = (remote(&tail).slice(..)?, source.slice(..)?);
    let mut cfg = ConnCfg::new();
    cfg.set_force_fallback(force_fallback);
    let mut executed = 0;
    for _ in 0..ROUNDS {
        tail.store_u64(0, 0)?;
        let (conn, server) = Pair::with(&peer, &cfg, &cfg)?.ends();
        server.recv(MrSlice::EMPTY, 3)?;
        let mut batch = conn.batch::<4>();
        match first {
            First::Read => batch.read(from, gone, ALWAYS, 1),
            First::Flush => batch.flush(gone, FlushType::Visibility, ALWAYS, 1),
            First::AtomicWrite => batch.atomic_write(gone, &[1; 8], ALWAYS, 1),
        }?;
        if single {
            batch.post()?;
            batch.clear();
        }
        match then {
            Then::Write(flags) => batch.write(to, from, ALWAYS | flags, 2),
            Then::AtomicWrite => batch.atomic_write(to, &[1; 8], ALWAYS, 2),
            Then::Send(flags) => batch.send(MrSlice::EMPTY, ALWAYS | flags, 2),
        }?;
        // The connection may have failed already.
        if let Ok(posted) = batch.post() {
            let mut failed = 0;
            let last = conn.wait_for(posted, LIMIT, |wc| {
                failed += u32::from(wc.result().is_err())
            });
            assert!(failed == 1 || last.is_err(), "its memory is gone: {last:?}");
        }
        let mut wcs = [Wc::default()];
        let received = server.get_cq().get_wc(&mut wcs)? == 1 && wcs[0].result().is_ok();
        here.fabric.settle();
        executed += usize::from(received || tail.load_u64(0)? != 0);
    }
    Ok(executed)
}

/// Each operation is overtaken in some rounds.
fn assert_overtakes(then: Then) -> Result {
    for (force_fallback, first) in [
        (false, First::Read),
        (false, First::Flush),
        (true, First::Flush),
        (false, First::AtomicWrite),
    ] {
        let ahead = executed(force_fallback, first, then, false)?;
        assert!(ahead > 0, "{first:?}");
    }
    Ok(())
}

/// The basis of the other tests: this adapter does let a write overtake. (The write is posted
/// together with the operation that it overtakes: if it had a post of its own, the time between the
/// two would decide.)
#[test]
fn a_plain_write_may_be_executed_first() -> Result {
    assert_overtakes(Then::Write(ALWAYS))
}

/// As above, a message: the peer may have it before the flush that was posted first.
#[test]
fn a_message_may_be_executed_first() -> Result {
    assert_overtakes(Then::Send(ALWAYS))
}

/// Promise of `Flags::FENCE`: the operation is executed after earlier reads, and after fallback
/// flushes.
#[test]
fn a_fenced_operation_comes_after_reads() -> Result {
    for single in [true, false] {
        for (force_fallback, first) in [(false, First::Read), (true, First::Flush)] {
            for fenced in [Then::Write(Flags::FENCE), Then::Send(Flags::FENCE)] {
                let ahead = executed(force_fallback, first, fenced, single)?;
                assert_eq!(ahead, 0, "{first:?}, {fenced:?}");
            }
        }
    }
    Ok(())
}

/// Promise: an adapter keeps its fences even if its driver reports no vendor id (mana_ib did not).
/// Before, such a device was taken for soft-RoCE, and a log's tail came before its data.
#[test]
fn a_device_without_a_vendor_id_has_fences() -> Result {
    let nameless = Profile::STRICT.with_vendor_id(0);
    for single in [true, false] {
        let fenced = Then::Write(Flags::FENCE);
        let ahead = executed_on(&nameless, false, First::Read, fenced, single)?;
        assert_eq!(ahead, 0);
        let ahead = executed_on(&nameless, true, First::Flush, Then::AtomicWrite, single)?;
        assert_eq!(ahead, 0);
    }
    Ok(())
}

/// Promise of `Conn::atomic_write`: it is executed after earlier flushes, the device's own and the
/// fallback's. So a log's tail is never there before its data.
#[test]
fn an_atomic_write_stays_behind_a_flush() -> Result {
    for single in [true, false] {
        for force_fallback in [false, true] {
            let ahead = executed(force_fallback, First::Flush, Then::AtomicWrite, single)?;
            assert_eq!(ahead, 0, "fallback: {force_fallback}");
        }
    }
    Ok(())
}

/// Promise: a device's report about a queue pair ends its connection, at the side that has done
/// nothing wrong as well, and at once.
#[test]
fn a_failed_queue_pair_is_told() -> Result {
    let _here = Rig::strict().here();
    let peer = peer()?;
    let Pair { client, server } = Pair::new(&peer)?;
    fail_both(&peer, &client)?;
    let told = server.next(&mut [Wc::default()], LIMIT);
    assert!(is_given_up(&told), "{told:?}");
    let refused = server.recv(MrSlice::EMPTY, 1);
    assert!(is_given_up(&refused), "{refused:?}");
    Ok(())
}

fn is_given_up<T>(result: &rpma::Result<T>) -> bool {
    matches!(result, Err(Error::NotConnected(NotConnected::GivenUp)))
}

/// Writes to memory that is gone: the queue pairs of both sides fail.
fn fail_both(peer: &Peer, client: &Conn) -> Result {
    let source = region(peer, 8, MrUsage::WRITE_SRC)?;
    let gone = remote(&region(peer, 8, MrUsage::WRITE_DST)?);
    let written = client.write(gone.slice(..)?, source.slice(..)?, ALWAYS, 1)?;
    let done = client.wait_for(written, LIMIT, |_| {});
    done.expect_err("its memory is gone");
    Ok(())
}

/// Promise of `Cq::wait` and `Conn::wait`: a wait ends when the device gives the queue pair up,
/// whether it takes the news itself or another thread does. Before, it slept on: without a limit,
/// for ever.
#[test]
fn a_wait_ends_with_its_queue_pair() -> Result {
    let here = Rig::strict().here();
    let peer = peer()?;
    let mut shared = ConnCfg::new();
    shared.set_compl_channel(ComplChannel::Shared);
    type Wait = fn(&Conn) -> rpma::Result<()>;
    let of_queue: Wait = |conn| conn.get_cq().wait();
    let of_conn: Wait = |conn| conn.wait().map(drop);
    for (cfg, wait) in [(ConnCfg::new(), of_queue), (shared, of_conn)] {
        for waiters in [1, 2] {
            let Pair { client, server } = Pair::with(&peer, &cfg, &cfg)?;
            let server = Arc::new(server);
            let (told, ends) = mpsc::channel();
            for _ in 0..waiters {
                let (server, told) = (Arc::clone(&server), told.clone());
                let waits = move || told.send(wait(&server)).expect("the test goes on");
                here.host.spawn(waits);
            }
            fail_both(&peer, &client)?;
            for _ in 0..waiters {
                let ended = ends.recv_timeout(LIMIT)?;
                assert!(is_given_up(&ended), "{ended:?}");
            }
        }
    }
    Ok(())
}
