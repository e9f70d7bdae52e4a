//! The differences of an adapter from soft-RoCE: it keeps only the promised order, so that a
//! missing fence shows, and it reports failed queue pairs.
//!
//! Of order: in each round a flush or a read fails, because its memory is gone, and a write
//! follows it: one that had to wait for it must not be executed any more.

use std::sync::{Arc, mpsc};
use std::thread;

use rpma::AlignedBuf;

use crate::common::prelude::*;

/// Miri takes a second for each.
const ROUNDS: usize = if cfg!(miri) { 6 } else { 40 };
const LIMIT: Duration = Duration::from_secs(10);

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
    executed_on(Profile::STRICT, force_fallback, first, then, single)
}

fn executed_on(
    profile: Profile,
    force_fallback: bool,
    first: First,
    then: Then,
    single: bool,
) -> Result<usize> {
    let fabric = Rig::of(&profile).fabric();
    let host = fabric.host("here");
    let _entered = host.enter();
    let peer = peer()?;
    let source = Mr::reg(&peer, zeroed()?, MrUsage::WRITE_SRC | MrUsage::READ_DST)?;
    source.store_u64(0, 1)?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
    let part = |mr: &Mr<AlignedBuf>| -> RemoteSlice {
        let remote = MrRemote::from_descriptor(&mr.get_descriptor()).expect("a descriptor");
        remote.slice(..).expect("all")
    };
    let gone = part(&Mr::reg(&peer, zeroed()?, usage)?);
    let tail = Mr::reg(&peer, zeroed()?, usage)?;
    let mut cfg = ConnCfg::new();
    cfg.set_force_fallback(force_fallback);
    Ok((0..ROUNDS)
        .filter(|_| {
            tail.store_u64(0, 0).expect("aligned");
            let (conn, server) = Pair::with(&peer, &cfg, &cfg).expect("established").ends();
            server.recv(MrSlice::EMPTY, 3).expect("posted");
            let (to, from) = (part(&tail), source.slice(..).expect("all"));
            let mut batch = conn.batch::<4>();
            let always = Flags::COMPLETION_ALWAYS;
            match first {
                First::Read => batch.read(from, gone, always, 1),
                First::Flush => batch.flush(gone, FlushType::Visibility, always, 1),
                First::AtomicWrite => batch.atomic_write(gone, &[1; 8], always, 1),
            }
            .expect("added");
            if single {
                batch.post().expect("posted");
                batch.clear();
            }
            match then {
                Then::Write(flags) => batch.write(to, from, always | flags, 2),
                Then::AtomicWrite => batch.atomic_write(to, &[1; 8], always, 2),
                Then::Send(flags) => batch.send(MrSlice::EMPTY, always | flags, 2),
            }
            .expect("added");
            // The connection may have failed already.
            if let Ok(posted) = batch.post() {
                let mut failed = 0;
                let last = conn.wait_for(posted, LIMIT, |wc| {
                    failed += u32::from(wc.result().is_err())
                });
                assert!(failed == 1 || last.is_err(), "its memory is gone: {last:?}");
            }
            let mut wcs = [Wc::default()];
            let received =
                server.get_cq().get_wc(&mut wcs).expect("polls") == 1 && wcs[0].result().is_ok();
            fabric.settle();
            received || tail.load_u64(0).expect("aligned") != 0
        })
        .count())
}

/// 8 bytes, at a multiple of 8.
fn zeroed() -> Result<AlignedBuf> {
    Ok(AlignedBuf::zeroed(8)?)
}

/// The basis of the other tests: this adapter does let a write overtake. (The write is posted
/// together with the operation that it overtakes: if it had a post of its own, the time between the
/// two would decide.)
#[test]
fn a_plain_write_may_be_executed_first() -> Result {
    for (force_fallback, first) in [
        (false, First::Read),
        (false, First::Flush),
        (true, First::Flush),
        (false, First::AtomicWrite),
    ] {
        let plain = Then::Write(Flags::COMPLETION_ALWAYS);
        let ahead = executed(force_fallback, first, plain, false)?;
        assert!(ahead > 0, "{first:?}");
    }
    Ok(())
}

/// As above, a message: the peer may have it before the flush that was posted first.
#[test]
fn a_message_may_be_executed_first() -> Result {
    for (force_fallback, first) in [
        (false, First::Read),
        (false, First::Flush),
        (true, First::Flush),
        (false, First::AtomicWrite),
    ] {
        let ahead = executed(
            force_fallback,
            first,
            Then::Send(Flags::COMPLETION_ALWAYS),
            false,
        )?;
        assert!(ahead > 0, "{first:?}");
    }
    Ok(())
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
    let nameless = || Profile::STRICT.with_vendor_id(0);
    for single in [true, false] {
        let fenced = Then::Write(Flags::FENCE);
        let ahead = executed_on(nameless(), false, First::Read, fenced, single)?;
        assert_eq!(ahead, 0);
        let ahead = executed_on(nameless(), true, First::Flush, Then::AtomicWrite, single)?;
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
    let fabric = Rig::strict().fabric();
    let host = fabric.host("here");
    let _entered = host.enter();
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
    let source = Mr::reg(peer, zeroed()?, MrUsage::WRITE_SRC)?;
    let gone = {
        let mr = Mr::reg(peer, zeroed()?, MrUsage::WRITE_DST)?;
        MrRemote::from_descriptor(&mr.get_descriptor())?
    };
    let (to, from) = (gone.slice(..)?, source.slice(..)?);
    let written = client.write(to, from, Flags::COMPLETION_ALWAYS, 1);
    client
        .wait_for(written?, LIMIT, |_| {})
        .expect_err("its memory is gone");
    Ok(())
}

/// Promise of `Cq::wait` and `Conn::wait`: a wait ends when the device gives the queue pair up,
/// whether it takes the news itself or another thread does. Before, it slept on: without a limit,
/// for ever.
#[test]
fn a_wait_ends_with_its_queue_pair() -> Result {
    let fabric = Rig::strict().fabric();
    let host = fabric.host("here");
    let _entered = host.enter();
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
                let (server, told, host) = (Arc::clone(&server), told.clone(), host.clone());
                thread::spawn(move || {
                    let _entered = host.enter();
                    told.send(wait(&server)).expect("the test goes on");
                });
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
