//! `Conn::cut_off` when a verb fails: it is `Ok` if the queue pair is destroyed, and an error if
//! not.

use std::ops::Range;

use log::LevelFilter;
use rpma::GivenBack;
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, two_queues, with_failures_left, work};

/// The operations in the server's queues: writes with these numbers, and receives.
const WRITES: Range<u64> = 0..3;
const RECEIVES: Range<u64> = 10..15;

/// Cuts a server's connection off while calls fail, and returns the result. Afterwards the client's
/// writes have no effect, and another connection of the same peer goes on.
fn cuts_off(
    left: &[(&str, u64)],
    channel: ComplChannel,
    calls: &[(u32, &'static str)],
    check: impl Fn(Result<Vec<Wc>, GivenBack<Vec<Wc>>>) -> Result,
) -> Result {
    lines::keep(LevelFilter::Error);
    let _left = Counted::leaving(left);
    let peer = peer()?;
    let memories = Memories::new(&peer, &peer, 8)?;
    let mut client = ConnCfg::new();
    client.set_retry_count(2)?.set_ack_timeout(Some(14))?;
    let [pair, other] = Pair::two(&peer, &client, &two_queues(channel))?;
    work(&pair.server, 3, 5)?;
    lines::take();
    let failing = calls
        .iter()
        .map(|(nth, call)| Failing::nth(*nth, call, Errno::IO, How::Refused));
    let failing: Vec<_> = failing.collect::<Result<_, _>>()?;
    check(pair.server.cut_off())?;
    failing.iter().for_each(Failing::happened);
    memories.assert_not_served(&pair.client)?;
    memories.write(&other.client, 1)?;
    done(&other.client, 1)?;
    assert_eq!(contents(&memories.target)?, contents(&memories.source)?);
    Ok(())
}

/// All that was in the queues is there, each queue's in order.
fn all(wcs: &[Wc]) {
    for of in [WRITES, RECEIVES] {
        let numbers = wcs.iter().map(Wc::wr_id);
        let numbers = numbers.filter(|number| of.contains(number));
        assert!(numbers.eq(of.clone()), "{wcs:?}");
    }
    assert_eq!(wcs.len(), 8, "{wcs:?}");
}

/// Promise: it is an error if the queue pair cannot be destroyed, with the remedy and all
/// completions.
#[test]
fn a_queue_pair_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        let left = [("qp", 1), ("cq", 2), ("pd", 1)];
        let call = (1, "ibv_destroy_qp");
        cuts_off(&left, ComplChannel::PerCq, &[call], |result| {
            let error = result.expect_err("it is not destroyed");
            all(&error.object);
            let text = error.to_string();
            assert!(text.starts_with("ibv_destroy_qp failed: "), "{text}");
            assert!(text.ends_with("(Mr::dereg)"), "{text}");
            Ok(())
        })
    })
}

/// Promise: any other object that cannot be freed is logged, and no error. All completions are
/// returned.
#[test]
fn other_objects_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        // librdmacm has a domain of its own on a device while there is an id, and so for ever
        // after this.
        let _id = peer()?;
        for (call, left) in [
            ("rdma_destroy_id", &[][..]),
            ("ibv_destroy_cq", &[("cq", 1)]),
            ("ibv_destroy_comp_channel", &[]),
        ] {
            for channel in [ComplChannel::PerCq, ComplChannel::Shared] {
                cuts_off(left, channel, &[(1, call)], |result| {
                    all(&result.expect(call));
                    let lines = lines::take();
                    let told = format!("{call} failed: ");
                    assert!(lines.iter().any(|line| line.contains(&told)), "{lines:?}");
                    Ok(())
                })?;
            }
        }
        Ok(())
    })
}

/// Promise: a call that fails before the queue pair is destroyed costs completions at most: those
/// that the failed poll would have returned, and those that the device has not flushed.
#[test]
fn a_call_before_that_fails() -> Result {
    with_failures_left(|| {
        for call in [
            // One call moves the queue pair, and so does the other.
            "ibv_modify_qp",
            "rdma_disconnect",
            // The markers, without which it waits for a second.
            "ibv_post_send",
            "ibv_post_recv",
        ] {
            // On iWARP it posts none.
            if is_iwarp() && call.starts_with("ibv_post") {
                continue;
            }
            cuts_off(&[], ComplChannel::PerCq, &[(1, call)], |result| {
                all(&result?);
                Ok(())
            })?;
        }
        for nth in 1..=2 {
            let call = (nth, "ibv_poll_cq");
            cuts_off(&[], ComplChannel::PerCq, &[call], |result| {
                assert!(result?.len() <= 8);
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Promise: a queue pair that does not enter the error state is still destroyed.
#[test]
fn a_queue_pair_that_does_not_enter_the_error_state() -> Result {
    with_failures_left(|| {
        let calls = [(1, "ibv_modify_qp"), (1, "rdma_disconnect")];
        cuts_off(&[], ComplChannel::PerCq, &calls, |result| {
            let wcs = result?;
            let is_write = |wc: &Wc| wc.result().is_ok() && WRITES.contains(&wc.wr_id());
            assert!(wcs.iter().all(is_write), "nothing is flushed: {wcs:?}");
            Ok(())
        })
    })
}

/// Promise, as above, with a shared receive queue. It waits for the last receive. The queue keeps
/// its receives, and serves its other connections.
#[test]
fn a_shared_receive_queue() -> Result {
    with_failures_left(|| {
        let _left = Counted::leaving(&[("cq", 1)]);
        let peer = peer()?;
        let srq = Srq::new(&peer, &SrqCfg::new())?;
        let cfg = ConnCfg::new().set_srq(Some(&srq)).clone();
        let other = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
        for number in RECEIVES {
            srq.recv(MrSlice::EMPTY, number)?;
        }
        for call in ["ibv_query_qp", "ibv_modify_qp", "ibv_destroy_cq"] {
            let left = usize::from(call == "ibv_destroy_cq");
            let _left = Counted::leaving(&[("cq", 1)][..left]);
            let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            let failing = Failing::next(call, Errno::IO)?;
            let rest = pair.server.cut_off()?;
            assert!(rest.is_empty(), "{rest:?}");
            failing.happened();
            assert_eq!(event(&pair.client)?, ConnEvent::Closed);
        }
        for _ in RECEIVES {
            send_nothing(&other.client)?;
        }
        Ok(())
    })
}
