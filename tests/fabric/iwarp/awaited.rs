//! `rpma-async`: reads, which land beside their leases, and operations that never complete.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake, Waker};

use rpma::sim::{Errno, now};
use rpma_async::{Pool, Reactor, Setup, block_on};

use super::{SECOND, connected, world};
use crate::common::prelude::*;

/// The two ends of a connection of `rpma-async`, the client's first.
fn awaited(both: &World) -> Result<[rpma_async::Conn; 2]> {
    let reactor = |side: usize| {
        let _entered = both.hosts[side].enter();
        Reactor::on_thread(&both.peers[side])
    };
    let (near, far) = (reactor(0)?, reactor(1)?);
    let listener = far.listen((both.hosts[1].addr(), 0).into())?;
    let at = (both.hosts[1].addr(), listener.port()).into();
    let setup = Setup::default();
    let ends = async {
        tokio::join!(near.connect(at, &setup, &[]), async {
            let asks = listener.accept().await.expect("a request");
            asks.accept(&setup, &[]).await
        })
    };
    let (client, server) = block_on(ends, LIMIT).ok_or("in time")?;
    Ok([client?, server?])
}

/// Promise of `rpma-async`: a read lands in its lease also on iWARP, where the destination of a read
/// has a right of the peers to write: the bytes land beside the block, and are copied. If that
/// memory cannot be registered, the lease comes back, and the connection lives.
#[test]
fn a_read_lands_in_its_lease() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let memory = both.memories(64)?;
    let target = pattern(64, 3);
    memory.target.write_at(0, &target)?;
    let [client, _server] = awaited(&both)?;
    let from = |range| remote(&memory.target).slice(range);
    let pool = Pool::new(&both.peers[0], 50, 3)?;
    let lease = |len| {
        let mut lease = pool.try_lease().expect("a block is free");
        lease.fill(0xEE);
        lease.truncate(len);
        lease
    };
    let failing = both.fabric.fail("ibv_reg_mr").next(Errno::NOMEM);
    let refused = client.read(lease(8), from(0..8)?);
    let refused = refused.expect_err("no memory");
    assert!(!failing.is_pending());
    assert!(matches!(refused.error, Error::Provider { .. }), "{refused}");
    assert_eq!(*refused.memory.ok_or("nothing was posted")?, [0xEE; 8]);

    let mut reads = Vec::new();
    for part in [0..50, 20..27, 63..64_usize] {
        let src = from(part.start as u64..part.end as u64)?;
        reads.push((client.read(lease(part.len()), src)?, part));
    }
    assert_eq!(pool.available(), 0);
    for (read, part) in reads {
        assert_eq!(*read.wait(LIMIT)?, target[part]);
    }
    assert_eq!(pool.available(), 3);
    Ok(())
}

/// Promise of `rpma-async`: no write of a peer reaches the bytes that a lease lends, also if the
/// lease was the destination of a read, with any key of the device.
#[test]
fn no_peer_writes_to_a_lease() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let memory = both.memories(8)?;
    let [client, _server] = awaited(&both)?;
    // The keys of the simulated device follow each other at one distance: one byte is apart.
    let open = || region(&both.peers[0], 8, MrUsage::WRITE_DST);
    let key_of = |mr: &Mr<Memory>| -> [u8; 4] {
        let descriptor = mr.get_descriptor();
        descriptor[16..20].try_into().expect("4 bytes")
    };
    let [first, second] = [open()?, open()?];
    let after = |n: u32| {
        let [near, far] = [&first, &second].map(|mr| u32::from_le_bytes(key_of(mr)));
        let number = (near >> 8) + n * ((far >> 8) - (near >> 8));
        let last = (n as u8).wrapping_mul((far as u8).wrapping_sub(near as u8));
        (number << 8 | u32::from((near as u8).wrapping_add(last))).to_le_bytes()
    };
    let pool = Pool::new(&both.peers[0], 8, 1)?;
    let lease = pool.try_lease().ok_or("free")?;
    let to = remote(&memory.target).slice(..)?;
    let lease = client.read(lease, to)?.wait(LIMIT)?;
    let last = open()?;
    assert_eq!(after(4), key_of(&last), "the pool has two regions");

    let source = region(&both.peers[1], 8, MrUsage::WRITE_SRC)?;
    source.write_at(0, b"attacker")?;
    let attack = |at: *const u8, key: [u8; 4]| -> Result {
        let place = forged(&first, |bytes| {
            bytes[..8].copy_from_slice(&(at.addr() as u64).to_le_bytes());
            bytes[16..20].copy_from_slice(&key);
        });
        let Pair { client, server } = connected(&both)?;
        server.post_write(place.slice(..)?, source.slice(..)?)?;
        // It arrives, whether it is refused or not.
        drop(server.close(LIMIT));
        drop(client);
        Ok(())
    };
    let before = lease.to_vec();
    for key in [2, 3].map(after) {
        attack(lease.as_ptr(), key)?;
    }
    assert_eq!(*lease, before);
    // The same attack reaches a region with the right.
    attack(last.get_ptr(), after(4))?;
    assert_eq!(contents(&last)?, b"attacker");
    Ok(())
}

/// A waker that stops the thread that calls it.
#[derive(Default)]
struct Stops {
    /// Whether a thread is there, and whether it may go on.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Stops {
    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool, then: impl Fn(&mut (bool, bool))) {
        let mut state = self.state.lock().expect("no panic");
        then(&mut state);
        self.changed.notify_all();
        let waiting = |state: &mut (bool, bool)| !until(state);
        let _state = self.changed.wait_while(state, waiting).expect("no panic");
    }
}

impl Wake for Stops {
    fn wake(self: Arc<Self>) {
        self.wait(|state| state.1, |state| state.0 = true);
    }
}

/// Promise of `rpma-async`: each wait ends, also that for an operation which was posted after the
/// end of the connection, before this side knew it. soft-iWARP never completes it.
#[test]
fn an_operation_posted_after_the_end_ends() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let memory = both.memories(8)?;
    let [client, server] = awaited(&both)?;
    let pool = Pool::new(&both.peers[0], 8, 3)?;
    let lease = || pool.try_lease().ok_or("free");
    let to = remote(&memory.target).slice(..)?;
    // The driver stops where it wakes the task of this read.
    both.link.hold();
    let (stops, mut asleep) = (Arc::new(Stops::default()), client.read(lease()?, to)?);
    let waker = Waker::from(Arc::clone(&stops));
    let polled = Pin::new(&mut asleep).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    both.link.release();
    stops.wait(|state| state.0, |_| {});
    server.abort();
    rpma::sim::sleep(SECOND);
    let late = client.read(lease()?, to)?;
    client.write(to, lease()?.freeze())?.detach();
    stops.wait(|_| true, |state| state.1 = true);

    let began = now();
    let failed = late.wait(LIMIT).expect_err("it was posted too late");
    assert!(matches!(failed.error, Error::Ended(_)), "{failed:?}");
    assert!(now() < began + 4 * SECOND);
    assert!(failed.memory.is_none(), "the queue pair has it: {failed:?}");
    block_on(client.idle(), LIMIT)
        .ok_or("in time")?
        .expect_err("never complete");
    drop(asleep);
    drop((client, server));
    assert_eq!(pool.available(), 3);
    Ok(())
}
