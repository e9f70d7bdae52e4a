//! `Conn::cut_off` when a verb fails: it is `Ok` if the queue pair is destroyed, and an error if
//! not.

use std::ops::Range;

use log::LevelFilter;
use rpma::CloseError;
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{ALWAYS, Failing, How, with_failures_left, write};

/// The operations in the server's queues: writes with these numbers, and receives.
const WRITES: Range<u64> = 0..3;
const RECEIVES: Range<u64> = 10..15;
const BYTES: [u8; 8] = [7; 8];

/// The server's settings: two queues with a channel each, or with one.
fn settings(channel: ComplChannel) -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_rcq_size(10).set_compl_channel(channel);
    cfg
}

/// Cuts a server's connection off while calls fail, and returns the result. Afterwards the client's
/// writes have no effect, and another connection of the same peer goes on.
fn cuts_off(
    left: &[(&str, u64)],
    cfg: &ConnCfg,
    calls: &[(u32, &'static str)],
    check: impl Fn(Result<Vec<Wc>, CloseError>) -> Result,
) -> Result {
    leaving(left, || {
        let peer = peer()?;
        let target = region(&peer, 8, MrUsage::WRITE_DST)?;
        let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
        source.write_at(0, &BYTES)?;
        let writes = |client: &Conn| -> Result<_> {
            let to = remote(&target).slice(..)?;
            Ok(client.write(to, source.slice(..)?, ALWAYS, 1))
        };
        let mut client = ConnCfg::new();
        client.set_retry_count(2)?;
        client.set_ack_timeout(Some(14))?;
        let [pair, other] = [(); 2].map(|()| Pair::with(&peer, &client, cfg).expect("established"));
        if cfg.get_srq().is_none() {
            for number in RECEIVES {
                pair.server.recv(MrSlice::EMPTY, number)?;
            }
        }
        for number in WRITES {
            write(&pair.server, number)?;
        }
        lines::take();
        let failing = calls
            .iter()
            .map(|(nth, call)| Failing::nth(*nth, call, Errno::IO, How::Refused));
        let failing: Vec<_> = failing.collect::<Result<_, _>>()?;
        check(pair.server.cut_off())?;
        failing.iter().for_each(Failing::happened);
        // The client may have heard of it.
        if writes(&pair.client)?.is_ok() {
            completion(&pair.client)?
                .result()
                .expect_err("it is cut off");
        }
        assert_ne!(contents(&target)?, BYTES, "{calls:?}");
        writes(&other.client)??;
        opcode_of(&completion(&other.client)?, 1)?;
        assert_eq!(contents(&target)?, BYTES);
        Ok(())
    })
}

/// All that was in the queues is there, each queue's in order.
fn all(wcs: &[Wc]) {
    let of = |range: Range<u64>| {
        let numbers = wcs.iter().map(Wc::wr_id);
        numbers
            .filter(|number| range.contains(number))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(WRITES), WRITES.collect::<Vec<_>>(), "{wcs:?}");
    assert_eq!(of(RECEIVES), RECEIVES.collect::<Vec<_>>(), "{wcs:?}");
    assert_eq!(wcs.len(), 8, "{wcs:?}");
}

/// Promise: it is an error if the queue pair cannot be destroyed, with the remedy and all
/// completions.
#[test]
fn a_queue_pair_that_cannot_be_destroyed() -> Result {
    with_failures_left(|| {
        lines::keep(LevelFilter::Error);
        let left = [("qp", 1), ("cq", 2), ("pd", 1)];
        let cfg = settings(ComplChannel::PerCq);
        cuts_off(&left, &cfg, &[(1, "ibv_destroy_qp")], |result| {
            let error = result.expect_err("it is not destroyed");
            all(&error.completions);
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
        lines::keep(LevelFilter::Error);
        // librdmacm has a domain of its own on a device while there is an id, and so for ever
        // after this.
        let _id = peer()?;
        for (call, left) in [
            ("rdma_destroy_id", &[][..]),
            ("ibv_destroy_cq", &[("cq", 1)]),
            ("ibv_destroy_comp_channel", &[]),
        ] {
            for channel in [ComplChannel::PerCq, ComplChannel::Shared] {
                cuts_off(left, &settings(channel), &[(1, call)], |result| {
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
        lines::keep(LevelFilter::Error);
        let cfg = settings(ComplChannel::PerCq);
        // One call moves the queue pair, and so does the other.
        cuts_off(&[], &cfg, &[(1, "ibv_modify_qp")], |result| {
            all(&result?);
            Ok(())
        })?;
        cuts_off(&[], &cfg, &[(1, "rdma_disconnect")], |result| {
            all(&result?);
            Ok(())
        })?;
        // The markers, without which it waits for a second.
        cuts_off(&[], &cfg, &[(1, "ibv_post_send")], |result| {
            all(&result?);
            Ok(())
        })?;
        cuts_off(&[], &cfg, &[(1, "ibv_post_recv")], |result| {
            all(&result?);
            Ok(())
        })?;
        for nth in 1..=2 {
            cuts_off(&[], &cfg, &[(nth, "ibv_poll_cq")], |result| {
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
        lines::keep(LevelFilter::Error);
        let cfg = settings(ComplChannel::PerCq);
        let calls = [(1, "ibv_modify_qp"), (1, "rdma_disconnect")];
        cuts_off(&[], &cfg, &calls, |result| {
            let wcs = result?;
            let done = wcs
                .iter()
                .all(|wc| wc.result().is_ok() && WRITES.contains(&wc.wr_id()));
            assert!(done, "nothing is flushed: {wcs:?}");
            Ok(())
        })
    })
}

/// Promise, as above, with a shared receive queue. It waits for the last receive. The queue keeps
/// its receives, and serves its other connections.
#[test]
fn a_shared_receive_queue() -> Result {
    with_failures_left(|| {
        lines::keep(LevelFilter::Error);
        leaving(&[("cq", 1)], || {
            let peer = peer()?;
            let srq = Srq::new(&peer, &SrqCfg::new())?;
            let mut cfg = ConnCfg::new();
            cfg.set_srq(Some(&srq));
            let other = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
            for number in RECEIVES {
                srq.recv(MrSlice::EMPTY, number)?;
            }
            for call in ["ibv_query_qp", "ibv_modify_qp", "ibv_destroy_cq"] {
                let left: &[_] = if call == "ibv_destroy_cq" {
                    &[("cq", 1)]
                } else {
                    &[]
                };
                leaving(left, || {
                    let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
                    let failing = Failing::next(call, Errno::IO)?;
                    let rest = pair.server.cut_off()?;
                    assert!(rest.is_empty(), "{rest:?}");
                    failing.happened();
                    let ended = pair.client.next_event_timeout(LIMIT);
                    assert_eq!(ended?, ConnEvent::Closed);
                    Ok(())
                })?;
            }
            for _ in RECEIVES {
                other.client.send(MrSlice::EMPTY, ALWAYS, 1)?;
                opcode_of(&completion(&other.client)?, 1)?;
            }
            Ok(())
        })
    })
}
