//! Objects that cannot be freed: the failure is reported, the rest is still freed, and no object is
//! freed that is still in use.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use log::LevelFilter;
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, assert_logged, two_queues, with_failures_left, work};

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Delete,
    Close,
    Drop,
}

impl End {
    const ALL: [Self; 3] = [Self::Delete, Self::Close, Self::Drop];

    /// Ends the connection, for which `call` fails.
    fn ends(self, conn: Conn, call: &'static str) -> Result {
        lines::take();
        let failing = Failing::next(call, Errno::IO)?;
        match self {
            Self::Delete => failing.told(conn.delete()),
            Self::Close => failing.told(conn.close(LIMIT)),
            Self::Drop => {
                drop(conn);
                failing.happened();
                assert_logged(call);
            }
        }
        Ok(())
    }
}

/// Two connections of one peer. One cannot be freed: the other one goes on. `left`: the objects
/// that stay.
fn cannot_free(call: &'static str, left: &[(&str, u64)], channel: ComplChannel) -> Result {
    let cfg = &two_queues(channel);
    lines::keep(LevelFilter::Error);
    for end in End::ALL {
        let _left = Counted::leaving(left);
        let peer = peer()?;
        let [pair, other] = Pair::two(&peer, cfg, &ConnCfg::new())?;
        write_nothing(&pair.client, 1)?;
        end.ends(pair.client, call)?;
        assert_eq!(event(&pair.server)?, ConnEvent::Closed, "{end:?}");
        write_nothing(&other.client, 2)?;
        done(&other.client, 2)?;
    }
    Ok(())
}

/// Promise: a call that ends a connection reports that its queue pair could not be destroyed. The
/// queues of that and its domain stay as well: the device may use them.
#[test]
fn a_queue_pair_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        let left = [("qp", 1), ("cq", 2), ("pd", 1)];
        cannot_free("ibv_destroy_qp", &left, ComplChannel::PerCq)
    })
}

/// Promise: also then the peer is cut off. The queue pair stays, and no data that the peer sends
/// reaches memory by it.
#[test]
fn a_queue_pair_that_cannot_be_destroyed_serves_nobody() -> Result {
    with_failures_left(|| {
        let _left = Counted::leaving(&[("qp", 1), ("cq", 2), ("pd", 1)]);
        let peer = peer()?;
        let memories = Memories::new(&peer, &peer, 8)?;
        let cfg = two_queues(ComplChannel::PerCq);
        let Pair { client, server } = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        let failing = Failing::next("ibv_destroy_qp", Errno::IO)?;
        drop(server);
        failing.happened();
        memories.assert_not_served(&client)
    })
}

/// Promise, as above, for the id. The kernel destroys it with its event channel.
#[test]
fn an_id_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        // librdmacm has a domain of its own on a device while there is an id, and so for ever
        // after this.
        let _id = peer()?;
        cannot_free("rdma_destroy_id", &[], ComplChannel::PerCq)?;
        let _left = Counted::leaving(&[]);
        let ep = Ep::listen(&peer()?, &addr(), 0)?;
        Failing::next("rdma_destroy_id", Errno::IO)?.told(ep.shutdown());
        Ok(())
    })
}

/// Promise, as above, for a completion queue. The other one is freed.
#[test]
fn a_completion_queue_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        for channel in [ComplChannel::PerCq, ComplChannel::Shared] {
            cannot_free("ibv_destroy_cq", &[("cq", 1)], channel)?;
        }
        Ok(())
    })
}

/// Promise, as above, for a completion channel, whether a queue has it for itself or not.
#[test]
fn a_completion_channel_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        for channel in [ComplChannel::PerCq, ComplChannel::Shared] {
            cannot_free("ibv_destroy_comp_channel", &[], channel)?;
        }
        Ok(())
    })
}

fn srq(peer: &Peer) -> Result<Srq> {
    Ok(Srq::new(peer, &SrqCfg::new())?)
}

/// Promise: `Srq::delete` returns the first verb that failed.
#[test]
fn a_shared_receive_queue_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        for (call, left) in [
            ("ibv_destroy_srq", &[("srq", 1), ("pd", 1)][..]),
            ("ibv_destroy_cq", &[("cq", 1)]),
            ("ibv_destroy_comp_channel", &[]),
        ] {
            let _left = Counted::leaving(left);
            let peer = peer()?;
            let (one, other) = (srq(&peer)?, srq(&peer)?);
            Failing::next(call, Errno::IO)?.told(one.delete());
            other.recv(MrSlice::EMPTY, 1)?;
            other.delete()?;
        }
        Ok(())
    })
}

/// Promise: `Conn::delete` reports whether everything could be freed: also its shared receive
/// queue, if it has the last handle of that.
#[test]
fn the_last_connection_of_a_shared_receive_queue_tells_its_failure() -> Result {
    with_failures_left(|| {
        for (call, left) in [
            ("ibv_destroy_srq", &[("srq", 1), ("pd", 1)][..]),
            ("ibv_destroy_cq", &[("cq", 1)]),
        ] {
            let _left = Counted::leaving(left);
            let peer = peer()?;
            let cfg = ConnCfg::new().set_srq(Some(&srq(&peer)?)).clone();
            let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            drop(cfg);
            // The connection's own queue goes first.
            let nth = if call == "ibv_destroy_cq" { 2 } else { 1 };
            Failing::nth(nth, call, Errno::IO, How::Refused)?.told(pair.server.delete());
        }
        Ok(())
    })
}

/// Memory that reports when it is freed.
struct Watched {
    bytes: Vec<u8>,
    freed: Arc<AtomicBool>,
}

// SAFETY: the bytes are in the heap block of `bytes`, which only its Drop frees. It is private and
// never grows, so they stay in place, and there is no other reference to them.
unsafe impl RegisterableMemory for Watched {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Relaxed);
    }
}

/// Promise: memory that cannot be deregistered stays allocated, as the device may still use it:
/// peers go on writing to it. `Mr::dereg` reports it, and so does the log if the region is dropped.
#[test]
fn memory_that_cannot_be_deregistered_stays() -> Result {
    with_failures_left(|| {
        lines::keep(LevelFilter::Error);
        for drops in [false, true] {
            let _left = Counted::leaving(&[("mr", 1), ("pd", 1)]);
            let peer = peer()?;
            let pair = Pair::new(&peer)?;
            let freed = Arc::new(AtomicBool::new(false));
            let memory = Watched {
                bytes: vec![0; 64],
                freed: Arc::clone(&freed),
            };
            let target = Mr::reg(&peer, memory, MrUsage::WRITE_DST)?;
            let part = remote(&target).slice(..)?;
            let failing = Failing::next("ibv_dereg_mr", Errno::IO)?;
            if drops {
                drop(target);
                failing.happened();
                assert_logged("ibv_dereg_mr");
            } else {
                failing.told(target.dereg().map(drop));
            }
            assert!(!freed.load(Ordering::Relaxed), "it is registered");
            let local = region(&peer, 64, MrUsage::WRITE_SRC)?;
            pair.client.write(part, local.slice(..)?, ALWAYS, 1)?;
            done(&pair.client, 1)?;
        }
        Ok(())
    })
}

/// Closes a connection with writes of the numbers 0 to 2 and receives of those from 10 to 14, for
/// which the nth `call` fails. The completions that come back are in order, and all of their
/// operations were posted.
fn closes_with(nth: u32, call: &'static str) -> Result {
    let _left = Counted::leaving(&[]);
    let Pair { client, server } = Pair::new(&peer()?)?;
    work(&client, 3, 5)?;
    let failing = Failing::nth(nth, call, Errno::IO, How::Refused)?;
    let closed = client.close(LIMIT);
    failing.happened();
    let error = closed.expect_err(call);
    let of = |range: Range<u64>| {
        let mut numbers = range.clone();
        let wcs = error.object.iter().map(Wc::wr_id);
        let mut wcs = wcs.filter(|number| range.contains(number));
        wcs.all(|number| numbers.next() == Some(number))
    };
    assert!(of(0..3) && of(10..15), "{call}: {error:?}");
    assert!(error.object.len() <= 8, "{call}: {error:?}");
    failing.told(Err::<(), _>(error));
    assert_eq!(event(&server)?, ConnEvent::Closed);
    Ok(())
}

/// Promise: `Conn::close` returns the verb that failed, any of them, and still frees the
/// connection.
#[test]
fn closing_with_a_verb_that_fails() -> Result {
    with_failures_left(|| {
        // The marker after the sends; the move to the error state; both times that the queue is
        // read.
        closes_with(1, "ibv_post_send")?;
        closes_with(1, "ibv_modify_qp")?;
        closes_with(1, "ibv_poll_cq")?;
        closes_with(2, "ibv_poll_cq")?;
        Ok(())
    })
}

/// Promise, as above, if the verb is one that marks the end of the flushed operations: without the
/// marker, some of these may be lost.
#[test]
fn closing_without_a_marker() -> Result {
    with_failures_left(|| {
        closes_with(2, "ibv_post_send")?;
        closes_with(1, "ibv_post_recv")?;
        Ok(())
    })
}
