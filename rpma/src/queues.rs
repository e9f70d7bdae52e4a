//! The queues of one connection, from its request to its end.
//!
//! They are made together, for both sides, and torn down in the order of the fields: the queue pair with
//! its id; the completion queues; the channel that they share, if they do; the share of the peer.

use std::sync::Arc;

use rustix::io::Errno;

use crate::compl_channel::ComplChannel;
use crate::conn_cfg::ConnCfg;
use crate::cq::{Cq, CqAttr, Owners};
use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::lock::Held;
use crate::mr::{MrSlice, MrUsage, Tag};
use crate::peer::Peer;
use crate::slots::{
    ConnSlots, Kind, NotTried, Outcome, RECEIVE_MARKERS, Refusal, SEND_MARKERS, one_not_taken,
};
use crate::srq::{MAX_RECEIVE, Srq, check_receive, check_receives};
use crate::verbs::{
    BeforeDestroy, CmId, CompChannel, CqKind, CqTag, Hooks, LocalBuffer, MAX_SGE, NativeOps,
    Notify, QpAttr, QueuePair,
};

/// The fallback of an atomic write sends its 8 bytes inside the work request.
const MIN_INLINE_DATA: u32 = 8;

/// The queues of one connection.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) qp: QueuePair,
    /// After the queue pair.
    gone: Gone,
    pub(crate) cq: Cq,
    pub(crate) rcq: Option<Cq>,
    /// The channel of both completion queues, for [`ComplChannel::Shared`].
    pub(crate) channel: Option<Arc<CompChannel>>,
    pub(crate) slots: Arc<ConnSlots>,
    pub(crate) srq: Option<Srq>,
    pub(crate) limits: Limits,
    pub(crate) min_rnr_timer: Option<u8>,
    pub(crate) peer_reorders: bool,
    pub(crate) peer: Peer,
    pub(crate) tags: Tags,
    pub(crate) ends: Ends,
}

/// What one operation may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes.
    pub(crate) message: u32,
    /// Bytes with [`Flags::INLINE`](crate::Flags::INLINE).
    pub(crate) inline: u32,
    /// Local parts.
    pub(crate) sge: u32,
}

/// What the tags of local parts must have: the peer's key, and the usage.
#[derive(Debug)]
pub(crate) struct Tags {
    /// For no usage.
    pub(crate) none: Tag,
    pub(crate) read_dst: Tag,
    pub(crate) write_src: Tag,
    pub(crate) send: Tag,
    pub(crate) recv: Tag,
}

impl Tags {
    fn of(peer: &Peer) -> Self {
        let tag = |usage| Tag::new(peer.key(), usage);
        Self {
            none: tag(MrUsage::empty()),
            read_dst: tag(MrUsage::READ_DST),
            write_src: tag(MrUsage::WRITE_SRC),
            send: tag(MrUsage::SEND),
            recv: tag(MrUsage::RECV),
        }
    }
}

impl Queues {
    /// Makes the queues on `id`, or gives the id back.
    pub(crate) fn new(peer: &Peer, mut id: CmId, cfg: &ConnCfg) -> Result<Self, (Error, CmId)> {
        let srq = cfg.get_srq().cloned();
        let receives = if srq.is_some() { 0 } else { cfg.get_rq_size() };
        let slots = Arc::new(ConnSlots::new(cfg.get_sq_size(), receives));
        let prepared = (|| {
            if let Some(exponent) = cfg.get_ack_timeout() {
                id.set_ack_timeout(exponent)?;
            }
            let message = peer.pd().context().max_message_size(id.device_port())?;
            if cfg.get_force_fallback() || !peer.is_native_flush_capable() {
                // Flushes will read into it.
                peer.flush_target()?;
            }
            Ok((message, completion_queues(peer, cfg, &slots)?))
        })();
        let (message, (cq, rcq, channel)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, id)),
        };
        let receive_cq = srq
            .as_ref()
            .and_then(Srq::get_rcq)
            .or(rcq.as_ref())
            .unwrap_or(&cq);
        let limits = Limits {
            message,
            inline: cfg.get_max_inline_data(),
            sge: cfg.get_max_send_sge(),
        };
        let attr = QpAttr {
            send_cq: cq.queue(),
            recv_cq: receive_cq.queue(),
            max_send_wr: sends(cfg),
            max_recv_wr: receives.saturating_add(RECEIVE_MARKERS),
            max_send_sge: limits.sge,
            max_inline_data: limits.inline.max(MIN_INLINE_DATA),
            srq: srq.as_ref().map(Srq::queue),
            native: match cfg.get_force_fallback() {
                true => NativeOps::default(),
                false => peer.native_ops(),
            },
        };
        let failed = Arc::clone(&slots);
        let of_error = Ends::before(id.peer_addr());
        // Receives of a shared queue complete in the connection's or in its own, and must not go with the connection.
        let drained = std::iter::once(&cq).chain(&rcq).map(Cq::polled);
        let drained = drained.filter(|polled| polled.takes_shared_receives());
        let own = srq.as_ref().and_then(Srq::get_rcq).map(Cq::polled);
        let drained: Vec<_> = drained.chain(own).cloned().collect();
        let hooks = Hooks {
            on_error: Arc::new(move |what| {
                failed.fail(Failure::Device);
                log::error!("{of_error}: {what}: the connection takes no more operations");
            }),
            before_destroy: match drained.is_empty() {
                true => None,
                false => {
                    let pool = srq.as_ref().map(|srq| Arc::clone(srq.slots()));
                    let call = Box::new(move |qp_num, may_be_kept| {
                        drained
                            .iter()
                            .for_each(|polled| polled.before_destroy(qp_num));
                        if let Some(pool) = pool.as_ref().filter(|_| may_be_kept) {
                            pool.may_keep();
                        }
                    });
                    let soft_roce = peer.attributes().soft_roce;
                    Some(BeforeDestroy { soft_roce, call })
                }
            },
        };
        let qp = QueuePair::new(id, peer.pd(), &attr, hooks).map_err(|(error, id)| {
            let inline = limits.inline > MIN_INLINE_DATA && error.is_errno(Errno::INVAL);
            match inline {
                true => (
                    error.with_hint("The device may not have that much inline data"),
                    id,
                ),
                false => (error, id),
            }
        })?;
        Ok(Self {
            ends: Ends::of(&qp),
            qp,
            gone: Gone(Arc::clone(&slots)),
            cq,
            rcq,
            channel,
            slots,
            srq,
            limits,
            min_rnr_timer: cfg.get_min_rnr_timer(),
            peer_reorders: cfg.get_peer_reorders(),
            peer: peer.clone(),
            tags: Tags::of(peer),
        })
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        let usual = dst.tag().fits(self.tags.recv, MrUsage::RECV)
            && u64::from(dst.buffer().len().wrapping_sub(1)) < MAX_RECEIVE;
        if !usual {
            return self.recv_any(&{ dst }, op_context);
        }
        match self.post_receive(dst.buffer(), op_context).result() {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, 1),
        }
    }

    /// Posts a receive of some bytes. Not inlined: its callers have nothing to keep in registers for it.
    #[inline(never)]
    fn post_receive(&self, local: LocalBuffer<'_>, op_context: u64) -> Outcome {
        let post = |wr_id| self.qp.post_recv_of_some(local, wr_id);
        match self.slots.try_post_receive(op_context, post) {
            Ok(number) => Outcome::posted(number),
            Err(NotTried::Later(held)) => self.post_receive_later(local, op_context, held),
            Err(NotTried::NotTaken(ring, held, error)) => one_not_taken::<false>(ring, held, error),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_receive_later(
        &self,
        local: LocalBuffer<'_>,
        op_context: u64,
        held: Option<Held<'_>>,
    ) -> Outcome {
        drop(held);
        let post = |wr_id| self.qp.post_recv(local, wr_id);
        self.slots.post_receive(op_context, post)
    }

    /// Posts receives: all of them or none.
    pub(crate) fn recv_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        let count = check_receives(self.srq.is_none().then_some(&self.peer), receives)?;
        let posted = self.slots.post_receives(count, |mut entries| {
            let numbered = receives.iter().map(move |(dst, op_context)| {
                let number = entries.take(*op_context);
                (dst.buffer(), Kind::Receive.wr_id(number))
            });
            self.qp.post_recvs(numbered)
        });
        match posted.result() {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, count),
        }
    }

    /// The long way, for what is unusual or wrong.
    #[inline(never)]
    fn recv_any(&self, dst: &MrSlice<'_>, op_context: u64) -> Result<()> {
        if self.srq.is_none() {
            check_receive(&self.peer, *dst)?;
        }
        let posted = self.post_receive_later(dst.buffer(), op_context, None);
        match posted.result() {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, 1),
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_refused(&self, refusal: Refusal, count: u32) -> Result<()> {
        Err(match self.srq {
            // Its own queue has no slots.
            Some(_) => Error::invalid(
                "the connection receives from a shared receive queue: post to that, with Srq::recv",
            ),
            None => {
                self.end_after(refusal.of_receive());
                self.slots.receive_refused(refusal, count)
            }
        })
    }

    /// Why an operation of `count` requests was not posted.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_refused(&self, refusal: Refusal, what: &str, count: u32) -> Error {
        self.end_after(refusal.of_send());
        self.slots.send_refused(refusal, what, count)
    }

    /// Ends the connection if a call that posts has failed: the device may have the request, or not. In the
    /// error state of the queue pair everything that it has completes.
    fn end_after(&self, failure: Option<Failure>) {
        let Some(failure) = failure else {
            return;
        };
        self.slots.fail(failure);
        log::error!(
            "{}: {failure}: the connection takes no more operations",
            self.ends
        );
        if let Err(error) = self.qp.set_error() {
            log::error!(
                "{}: {error}: what was posted before may not complete; drop the connection",
                self.ends
            );
        }
    }

    /// Frees everything; the first failure is returned.
    pub(crate) fn destroy(self) -> Result<()> {
        let queue_pair = self.qp.destroy();
        drop(self.gone);
        let queue = self.cq.destroy();
        let receive_queue = self.rcq.map_or(Ok(()), Cq::destroy);
        let channel = self.channel.map_or(Ok(()), CompChannel::destroy);
        let shared = self.srq.map_or(Ok(()), Srq::delete);
        queue_pair
            .and(queue)
            .and(receive_queue)
            .and(channel)
            .and(shared)
    }
}

/// When this is dropped the queue pair is gone: threads that wait on handles of its completion queues wake.
#[derive(Debug)]
struct Gone(Arc<ConnSlots>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.gone();
    }
}

/// The main queue, the one for receives, and the channel that they share.
type CompletionQueues = (Cq, Option<Cq>, Option<Arc<CompChannel>>);

fn completion_queues(
    peer: &Peer,
    cfg: &ConnCfg,
    slots: &Arc<ConnSlots>,
) -> Result<CompletionQueues> {
    let (common, key, own) = match cfg.get_compl_channel() {
        ComplChannel::PerCq => (None, 0, None),
        ComplChannel::Shared => {
            let channel = CompChannel::new(peer.pd().context())?;
            (Some(Arc::clone(&channel)), 0, Some(channel))
        }
        ComplChannel::Of { channel, key } => (Some(channel.for_peer(peer)?), *key, None),
    };
    let sizes = Sizes::of(cfg);
    // The slots of a shared receive queue come back where its receives complete: in its own queue, or
    // in ours for receives, or in our only one.
    let srq_here = cfg.get_srq().filter(|srq| srq.get_rcq().is_none());
    let takes_receives = match sizes.receive {
        Some(_) => CqKind::Receive,
        None => CqKind::Main,
    };
    let of_receives = cfg.get_rcq_channel();
    let make = |kind, entries, notify| {
        let (channel, key, shared) = match (kind, of_receives, &common) {
            (CqKind::Receive, Some((channel, key)), _) => (channel.for_peer(peer)?, *key, true),
            (_, _, Some(channel)) => (Arc::clone(channel), key, true),
            (_, _, None) => (CompChannel::new(peer.pd().context())?, 0, false),
        };
        Cq::new(CqAttr {
            channel: &channel,
            shared,
            entries,
            tag: CqTag { key, kind },
            notify,
            owners: Owners {
                conn: Some(Arc::clone(slots)),
                srq: srq_here
                    .filter(|_| kind == takes_receives)
                    .map(|srq| Arc::clone(srq.slots())),
            },
        })
    };
    let cq = make(CqKind::Main, sizes.main, Notify::Any)?;
    let rcq = match sizes.receive {
        None => None,
        Some(entries) => Some(make(CqKind::Receive, entries, cfg.get_rcq_notify())?),
    };
    Ok((cq, rcq, own))
}

/// The send queue's real size: with room for the markers of [`Conn::close`](crate::Conn::close).
fn sends(cfg: &ConnCfg) -> u32 {
    cfg.get_sq_size().saturating_add(SEND_MARKERS)
}

/// The receive queue's.
fn receives(cfg: &ConnCfg) -> u32 {
    cfg.get_rq_size().saturating_add(RECEIVE_MARKERS)
}

/// The real sizes of the completion queues: every operation that can be posted may give a completion.
struct Sizes {
    main: u32,
    receive: Option<u32>,
}

impl Sizes {
    fn of(cfg: &ConnCfg) -> Self {
        let srq_has_own = cfg.get_srq().is_some_and(|srq| srq.get_rcq().is_some());
        let receives = match cfg.get_srq() {
            Some(_) if srq_has_own => 0,
            Some(srq) => srq.slots().depth(),
            None => receives(cfg),
        };
        // As in librpma: the queue of the shared receive queue goes first.
        if cfg.get_rcq_size() == 0 || srq_has_own {
            let main = sends(cfg).saturating_add(receives).max(cfg.get_cq_size());
            return Self {
                main,
                receive: None,
            };
        }
        Self {
            main: sends(cfg).max(cfg.get_cq_size()),
            receive: Some(receives.max(cfg.get_rcq_size())),
        }
    }
}

/// Refuses what the device cannot have, with its limits, and what belongs to another device or peer.
pub(crate) fn check(peer: &Peer, cfg: &ConnCfg) -> Result<()> {
    let attributes = peer.attributes();
    let (wr, cqe) = (attributes.max_qp_wr, attributes.max_cqe);
    for (setter, queue, asked, needed) in [
        ("set_sq_size", "send queue", cfg.get_sq_size(), sends(cfg)),
        (
            "set_rq_size",
            "receive queue",
            cfg.get_rq_size(),
            receives(cfg),
        ),
    ] {
        if needed > wr {
            return Err(Error::invalid(format!(
                "ConnCfg::{setter}({asked}) needs a {queue} of {needed}, and the device has at most {wr}: ask \
                 for less"
            )));
        }
    }
    let sizes = Sizes::of(cfg);
    for (setter, asked, needed) in [
        ("set_cq_size", cfg.get_cq_size(), sizes.main),
        (
            "set_rcq_size",
            cfg.get_rcq_size(),
            sizes.receive.unwrap_or(0),
        ),
    ] {
        if needed > cqe {
            let shared = cfg.get_srq().map_or(0, |srq| srq.slots().depth());
            return Err(Error::invalid(format!(
                "a completion queue of {needed} is needed, and the device has at most {cqe}: ask for less \
                 with ConnCfg::{setter} ({asked}), set_sq_size ({}), set_rq_size ({}) or \
                 SrqCfg::set_rq_size ({shared})",
                cfg.get_sq_size(),
                cfg.get_rq_size(),
            )));
        }
    }
    let sge = attributes.max_sge.min(MAX_SGE as u32);
    if cfg.get_max_send_sge() > sge {
        return Err(Error::invalid(format!(
            "{} local parts of one operation: at most {sge} are possible here",
            cfg.get_max_send_sge()
        )));
    }
    if let Some(srq) = cfg.get_srq() {
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
    }
    if let ComplChannel::Of { channel, .. } = cfg.get_compl_channel() {
        channel.for_peer(peer)?;
    }
    if let Some((channel, _)) = cfg.get_rcq_channel() {
        channel.for_peer(peer)?;
        if matches!(cfg.get_compl_channel(), ComplChannel::Shared) {
            return Err(Error::invalid(
                "ComplChannel::Shared puts both queues on one channel, and ConnCfg::set_rcq_channel the one \
                 for receives on another: leave out one of the two",
            ));
        }
    }
    if sizes.receive.is_none() {
        let setting = match (cfg.get_rcq_channel(), cfg.get_rcq_notify()) {
            (Some(_), _) => "set_rcq_channel",
            (None, Notify::Solicited) => "set_rcq_notify(Solicited)",
            (None, Notify::Any) => return Ok(()),
        };
        return Err(Error::invalid(format!(
            "ConnCfg::{setting} is for a completion queue of the connection's receives, and it has none: ask \
             for one with ConnCfg::set_rcq_size, or use SrqCfg if its receives are those of a shared \
             receive queue"
        )));
    }
    Ok(())
}
