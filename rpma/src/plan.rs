//! [`Plan`]: the settings of a connection, checked for a `Peer`.
//!
//! A plan is made before any other step, so that bad settings have no effect. [`Queues`] are made
//! from it. It has the real sizes of the queues, with the markers of
//! [`Conn::close`](crate::Conn::close). Every operation that can be posted may give a completion,
//! and the completion queues have room for all of them.
//!
//! [`Queues`]: crate::queues::Queues

use std::sync::Arc;
use std::time::Duration;

use crate::compl_channel::ComplChannel;
use crate::conn_cfg::ConnCfg;
use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::slots::{RECEIVE_MARKERS, SEND_MARKERS};
use crate::srq::Srq;
use crate::verbs::{CompChannel, MAX_SGE, NativeOps, Notify};

/// Settings that the device of a `Peer` can have, and all that the queues of a connection are made
/// from.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) peer: Peer,
    pub(crate) srq: Option<Srq>,
    /// Slots for the program's operations.
    pub(crate) sends: u32,
    /// Slots for the program's receives: 0 with a shared receive queue.
    pub(crate) receives: u32,
    pub(crate) send_queue: u32,
    pub(crate) receive_queue: u32,
    /// Whether the completion queues share one new channel ([`ComplChannel::Shared`]).
    pub(crate) one_channel: bool,
    pub(crate) cq: CqPlan,
    pub(crate) rcq: Option<CqPlan>,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline_data: u32,
    /// The device's own operations. Without a flush of its own, flushes read.
    pub(crate) native: NativeOps,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) min_rnr_timer: Option<u8>,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) spin: Duration,
}

#[derive(Debug)]
pub(crate) struct CqPlan {
    pub(crate) entries: u32,
    pub(crate) notify: Notify,
    /// The program's channel, and the key of the events.
    pub(crate) channel: Option<Channel>,
    /// Whether receives of the shared receive queue complete here, and give their slots back.
    pub(crate) has_shared_receives: bool,
}

type Channel = (Arc<CompChannel>, u64);

impl Plan {
    /// Refuses settings beyond the device's limits, and objects of another device or `Peer`.
    pub(crate) fn new(peer: &Peer, cfg: &ConnCfg) -> Result<Self> {
        let srq = cfg.get_srq();
        let sizes = Sizes::new(peer, cfg)?;
        let sge = peer.attributes().max_sge.min(MAX_SGE as u32);
        if cfg.get_max_send_sge() > sge {
            return Err(Error::invalid(format!(
                "{} local parts of one operation: at most {sge} are possible here",
                cfg.get_max_send_sge()
            )));
        }
        if let Some(srq) = srq {
            check_srq(peer, cfg, srq)?;
        }
        if peer.is_iwarp() {
            check_keep_alive_over_tcp(cfg.get_keep_alive())?;
        } else {
            // The kernel's own time-out is known when the connection opens.
            check_keep_alive(cfg.get_keep_alive(), cfg.get_ack_timeout())?;
        }
        let (channel, receive_channel) = channels(peer, cfg)?;
        if sizes.rcq.is_none() {
            check_no_rcq(cfg)?;
        }
        // The slots of a shared receive queue come back where its receives complete: in its own
        // queue, or in the connection's for receives, or in the connection's only one.
        let has_shared_receives = srq.is_some_and(|srq| srq.get_rcq().is_none());
        Ok(Self {
            peer: peer.clone(),
            srq: srq.cloned(),
            sends: cfg.get_sq_size(),
            receives: sizes.receives,
            send_queue: sizes.send_queue,
            receive_queue: sizes.receives.saturating_add(RECEIVE_MARKERS),
            one_channel: matches!(cfg.get_compl_channel(), ComplChannel::Shared),
            cq: CqPlan {
                entries: sizes.cq,
                notify: Notify::Any,
                channel,
                has_shared_receives: has_shared_receives && sizes.rcq.is_none(),
            },
            rcq: sizes.rcq.map(|entries| CqPlan {
                entries,
                notify: cfg.get_rcq_notify(),
                channel: receive_channel,
                has_shared_receives,
            }),
            max_send_sge: cfg.get_max_send_sge(),
            max_inline_data: cfg.get_max_inline_data(),
            native: if cfg.get_force_fallback() {
                NativeOps::default()
            } else {
                peer.native_ops()
            },
            ack_timeout: cfg.get_ack_timeout(),
            min_rnr_timer: cfg.get_min_rnr_timer(),
            retry_count: cfg.get_retry_count(),
            rnr_retry_count: cfg.get_rnr_retry_count(),
            keep_alive: cfg.get_keep_alive(),
            spin: cfg.get_spin(),
        })
    }
}

struct Sizes {
    receives: u32,
    send_queue: u32,
    cq: u32,
    rcq: Option<u32>,
}

impl Sizes {
    fn new(peer: &Peer, cfg: &ConnCfg) -> Result<Self> {
        let (sq_size, rq_size) = (cfg.get_sq_size(), cfg.get_rq_size());
        let send_queue = sq_size.saturating_add(SEND_MARKERS);
        let receive_queue = rq_size.saturating_add(RECEIVE_MARKERS);
        let limit = peer.attributes().max_qp_wr;
        for (setter, queue, asked, needed) in [
            ("set_sq_size", "send queue", sq_size, send_queue),
            ("set_rq_size", "receive queue", rq_size, receive_queue),
        ] {
            if needed > limit {
                return Err(Error::invalid(format!(
                    "ConnCfg::{setter}({asked}) needs a {queue} of {needed}, and the device has at most {limit}: ask \
                     for less"
                )));
            }
        }
        let srq_depth = cfg.get_srq().map(|srq| srq.slots().depth());
        let srq_has_own = cfg.get_srq().is_some_and(|srq| srq.get_rcq().is_some());
        let completed_receives = match srq_depth {
            Some(_) if srq_has_own => 0,
            Some(depth) => depth,
            None => receive_queue,
        };
        let (cq_size, rcq_size) = (cfg.get_cq_size(), cfg.get_rcq_size());
        // As in librpma: the queue of the shared receive queue goes first.
        let (cq, rcq) = if rcq_size == 0 || srq_has_own {
            (send_queue.saturating_add(completed_receives), None)
        } else {
            (send_queue, Some(completed_receives.max(rcq_size)))
        };
        let cq = cq.max(cq_size);
        let limit = peer.attributes().max_cqe;
        for (setter, asked, needed) in [
            ("set_cq_size", cq_size, cq),
            ("set_rcq_size", rcq_size, rcq.unwrap_or(0)),
        ] {
            if needed > limit {
                return Err(Error::invalid(format!(
                    "a completion queue of {needed} is needed, and the device has at most {limit}: ask for less \
                     with ConnCfg::{setter} ({asked}), set_sq_size ({sq_size}), set_rq_size ({rq_size}) or \
                     SrqCfg::set_rq_size ({})",
                    srq_depth.unwrap_or(0)
                )));
            }
        }
        Ok(Self {
            receives: srq_depth.map_or(rq_size, |_| 0),
            send_queue,
            cq,
            rcq,
        })
    }
}

fn check_srq(peer: &Peer, cfg: &ConnCfg, srq: &Srq) -> Result<()> {
    if srq.peer().key() != peer.key() {
        return Err(Error::invalid(
            "the shared receive queue was made for another Peer than the connection's",
        ));
    }
    if matches!(cfg.get_compl_channel(), ComplChannel::Shared) && srq.get_rcq().is_some() {
        return Err(Error::invalid(
            "ComplChannel::Shared is for a connection's own two queues, and this connection's \
             receives complete in the queue of its shared receive queue: set SrqCfg::set_rcq_size to \
             0, or use ComplChannel::Of for both",
        ));
    }
    Ok(())
}

/// The program's channels for the main queue and for that of the receives.
fn channels(peer: &Peer, cfg: &ConnCfg) -> Result<(Option<Channel>, Option<Channel>)> {
    let main = match cfg.get_compl_channel() {
        ComplChannel::Of { channel, key } => Some((channel.for_peer(peer)?, *key)),
        ComplChannel::PerCq | ComplChannel::Shared => None,
    };
    let Some((channel, key)) = cfg.get_rcq_channel() else {
        let receives = main.clone();
        return Ok((main, receives));
    };
    let receives = Some((channel.for_peer(peer)?, *key));
    if matches!(cfg.get_compl_channel(), ComplChannel::Shared) {
        return Err(Error::invalid(
            "ComplChannel::Shared puts both queues on one channel, and ConnCfg::set_rcq_channel the one \
             for receives on another: leave out one of the two",
        ));
    }
    Ok((main, receives))
}

/// Refuses settings of a completion queue for receives. The connection has no such queue.
fn check_no_rcq(cfg: &ConnCfg) -> Result<()> {
    let setting = match (cfg.get_rcq_channel(), cfg.get_rcq_notify()) {
        (Some(_), _) => "set_rcq_channel",
        (None, Notify::Solicited) => "set_rcq_notify(Solicited)",
        (None, Notify::Any) => return Ok(()),
    };
    Err(Error::invalid(format!(
        "ConnCfg::{setting} is for a completion queue of the connection's receives, and it has none: ask \
         for one with ConnCfg::set_rcq_size, or use SrqCfg if its receives are those of a shared \
         receive queue"
    )))
}

/// Refuses a keep-alive below four acknowledgement time-outs. `ack_timeout` is their exponent. With
/// fewer, one lost packet could end the connection. Without an exponent the device has no such
/// time-out.
pub(crate) fn check_keep_alive(
    keep_alive: Option<Duration>,
    ack_timeout: Option<u8>,
) -> Result<()> {
    let (Some(keep_alive), Some(exponent @ 1..=31)) = (keep_alive, ack_timeout) else {
        return Ok(());
    };
    let timeout = Duration::from_nanos(4_096 << exponent);
    if keep_alive < 4 * timeout {
        Err(Error::invalid(format!(
            "a keep-alive of {keep_alive:?} is less than four acknowledgement time-outs of \
             {timeout:?}, so one lost packet could end the connection: raise \
             ConnCfg::set_keep_alive to {:?} or more, or lower ConnCfg::set_ack_timeout",
            4 * timeout
        )))
    } else {
        Ok(())
    }
}

/// Refuses a keep-alive below four times the shortest time after which TCP sends again
/// (`TCP_RTO_MIN`), as [`check_keep_alive`] does for other devices.
fn check_keep_alive_over_tcp(keep_alive: Option<Duration>) -> Result<()> {
    const SHORTEST: Duration = Duration::from_millis(4 * 200);
    match keep_alive {
        Some(keep_alive) if keep_alive < SHORTEST => Err(Error::invalid(format!(
            "a keep-alive of {keep_alive:?} is less than four times the 200 ms after which TCP \
             sends again on iWARP, so one lost packet could end the connection: raise \
             ConnCfg::set_keep_alive to {SHORTEST:?} or more"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: on iWARP a keep-alive is long enough for a packet that TCP sends again.
    #[test]
    fn a_limit_below_four_of_tcp_is_refused() {
        let four = Duration::from_millis(800);
        for right in [None, Some(four)] {
            check_keep_alive_over_tcp(right).expect("four");
        }
        let less = Some(four - Duration::from_nanos(1));
        let error = check_keep_alive_over_tcp(less)
            .expect_err("less")
            .to_string();
        for part in ["799.999999ms", "200 ms", "800ms", "set_keep_alive"] {
            assert!(error.contains(part), "{error}");
        }
    }

    /// Promise: less than four acknowledgement time-outs is refused, with both numbers and the
    /// remedy; a device without a time-out has no such limit.
    #[test]
    fn a_limit_below_four_time_outs_is_refused() {
        // 4.096 µs · 2^17 = 536.870912 ms.
        let four = Duration::from_nanos(4 * (4_096 << 17));
        check_keep_alive(Some(four), Some(17)).expect("four");
        let less = four - Duration::from_nanos(1);
        let error = check_keep_alive(Some(less), Some(17))
            .expect_err("less than four")
            .to_string();
        for part in [
            "2.147483647s",
            "536.870912ms",
            "2.147483648s",
            "set_keep_alive",
            "set_ack_timeout",
        ] {
            assert!(error.contains(part), "{error}");
        }
        for none in [None, Some(0)] {
            check_keep_alive(Some(less), none).expect("no time-out");
        }
        check_keep_alive(None, Some(17)).expect("no keep-alive");
    }
}
