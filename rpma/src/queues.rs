//! The queues of one connection, from its request to its end.
//!
//! They are made together, for both sides, and torn down in the order of the fields: the queue
//! pair with its id; the completion queues; the channel that they share, if they do; the share of
//! the peer.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::cq::{Cq, CqAttr, Owners};
use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::mr::{MrUsage, Tag};
use crate::peer::Peer;
use crate::plan::{CqPlan, Plan};
use crate::slots::{ConnSlots, PostRefusal};
use crate::srq::Srq;
use crate::verbs::{
    BeforeDestroy, CmId, CompChannel, CqKind, CqTag, Freed, Hooks, OnError, Opcode, QpAttr,
    QueuePair, RemoteAddress, Request, SendFlags,
};

/// The fallback of an atomic write sends its 8 bytes inside the work request.
const MIN_INLINE_DATA: u32 = 8;

#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) qp: QueuePair,
    /// After the queue pair.
    gone: EndsWaits,
    pub(crate) cq: Cq,
    pub(crate) rcq: Option<Cq>,
    /// The channel of both completion queues, for
    /// [`ComplChannel::Shared`](crate::ComplChannel::Shared).
    pub(crate) channel: Option<Arc<CompChannel>>,
    pub(crate) slots: Arc<ConnSlots>,
    pub(crate) srq: Option<Srq>,
    pub(crate) limits: RequestLimits,
    pub(crate) min_rnr_timer: Option<u8>,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) spin: Duration,
    pub(crate) peer: Peer,
    pub(crate) tags: Tags,
    pub(crate) ends: Ends,
}

/// The limits of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Bytes.
    pub(crate) message: u32,
    /// Bytes with [`Flags::INLINE`](crate::Flags::INLINE).
    pub(crate) inline: u32,
    /// Local parts.
    pub(crate) sge: u32,
}

/// The required tags of local parts: the key of the `Peer`, and the usage.
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
    /// An operation of 0 bytes that the peer's device answers: its completion proves that the device
    /// has everything that was posted before.
    ///
    /// On InfiniBand and RoCE the peer's device acknowledges a write (InfiniBand specification,
    /// 9.7). On iWARP a write completes when this side's TCP has its bytes. Only a read is answered
    /// there, after the writes and messages before it were placed (RFC 5040, 5.5). soft-RoCE gets
    /// no read, because it fails one that is sent again after a write of 0 bytes.
    pub(crate) fn question(&self) -> Request<'static> {
        let opcode = if self.peer.is_iwarp() {
            Opcode::READ
        } else {
            Opcode::WRITE
        };
        Request::without_data(opcode, RemoteAddress::NONE, SendFlags::SIGNALED)
    }

    /// Makes the queues on `id`, or gives the id back.
    pub(crate) fn new(plan: &Plan, mut id: CmId) -> Result<Self, (Error, CmId)> {
        let peer = &plan.peer;
        // The receives of a shared queue that has a completion queue of its own complete there.
        let shared = plan.srq.as_ref().filter(|srq| srq.get_rcq().is_none());
        let shared = shared.map(|srq| Arc::clone(srq.slots()));
        let slots = ConnSlots::new(plan.sends, plan.receives).sharing(shared);
        let slots = Arc::new(slots.completing_here(plan.peer.is_iwarp()));
        let prepared = (|| {
            if let Some(exponent) = plan.ack_timeout {
                id.set_ack_timeout(exponent)?;
            }
            let message = peer.pd().context().max_message_size(id.device_port())?;
            if !plan.native.flush {
                // Flushes will read into it.
                peer.flush_target()?;
            }
            Ok((message, completion_queues(plan, &slots)?))
        })();
        let (message, (cq, rcq, channel)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, id)),
        };
        let srq = plan.srq.clone();
        let receive_cq = srq
            .as_ref()
            .and_then(Srq::get_rcq)
            .or(rcq.as_ref())
            .unwrap_or(&cq);
        let attr = QpAttr {
            send_cq: cq.queue(),
            recv_cq: receive_cq.queue(),
            max_send_wr: plan.send_queue,
            max_recv_wr: plan.receive_queue,
            max_send_sge: plan.max_send_sge,
            max_inline_data: plan.max_inline_data.max(MIN_INLINE_DATA),
            srq: srq.as_ref().map(Srq::queue),
            native: plan.native,
        };
        let hooks = Hooks {
            on_error: on_error(&slots, Ends::before(id.peer_addr())),
            before_destroy: before_destroy(plan, &cq, rcq.as_ref()),
        };
        let qp = QueuePair::new(id, peer.pd(), &attr, hooks).map_err(|(error, id)| {
            let inline = plan.max_inline_data > MIN_INLINE_DATA && error.is_errno(Errno::INVAL);
            if inline {
                (
                    error.with_hint(&["The device may not have that much inline data", ""]),
                    id,
                )
            } else {
                (error, id)
            }
        })?;
        Ok(Self {
            ends: Ends::of(&qp),
            qp,
            gone: EndsWaits(Arc::clone(&slots)),
            cq,
            rcq,
            channel,
            slots,
            srq,
            limits: RequestLimits {
                message,
                inline: plan.max_inline_data,
                sge: plan.max_send_sge,
            },
            min_rnr_timer: plan.min_rnr_timer,
            keep_alive: plan.keep_alive,
            spin: plan.spin,
            peer: peer.clone(),
            tags: Tags::of(peer),
        })
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn send_refused(&self, refusal: PostRefusal, what: &str, count: u32) -> Error {
        self.end_after(refusal.of_send());
        self.slots.send_refused(refusal, what, count)
    }

    /// Ends the connection if a call that posts has failed: the device may have the request, or
    /// not. In the error state of the queue pair all its requests complete.
    pub(crate) fn end_after(&self, failure: Option<Failure>) {
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

    /// Frees everything. An object that cannot be freed is leaked.
    pub(crate) fn destroy(self) -> Freed {
        let Freed { queue_pair, rest } = self.qp.destroy();
        drop(self.gone);
        let queue = self.cq.destroy();
        let receive_queue = self.rcq.map_or(Ok(()), Cq::destroy);
        let channel = self.channel.map_or(Ok(()), CompChannel::destroy);
        let shared = self.srq.map_or(Ok(()), Srq::delete);
        let rest = rest.and(queue).and(receive_queue);
        Freed {
            queue_pair,
            rest: rest.and(channel).and(shared),
        }
    }
}

/// When this is dropped the queue pair is gone: threads that wait on handles of its completion
/// queues wake.
#[derive(Debug)]
struct EndsWaits(Arc<ConnSlots>);

impl Drop for EndsWaits {
    fn drop(&mut self) {
        self.0.gone();
    }
}

fn on_error(slots: &Arc<ConnSlots>, ends: Ends) -> OnError {
    let failed = Arc::clone(slots);
    Arc::new(move |what| {
        failed.fail(Failure::Device);
        log::error!("{ends}: {what}: the connection takes no more operations");
    })
}

/// Receives of a shared queue complete in the connection's queues or in its own. Their completions
/// must not go with the connection.
fn before_destroy(plan: &Plan, cq: &Cq, rcq: Option<&Cq>) -> Option<BeforeDestroy> {
    let of_conn = std::iter::once(cq).chain(rcq).map(Cq::polled);
    let shared = of_conn.filter(|polled| polled.takes_shared_receives());
    let own = plan.srq.as_ref().and_then(Srq::get_rcq).map(Cq::polled);
    let drained: Vec<_> = shared.chain(own).cloned().collect();
    if drained.is_empty() {
        return None;
    }
    let pool = plan.srq.as_ref().map(|srq| Arc::clone(srq.slots()));
    let call = Box::new(move |qp_num, may_be_kept| {
        drained
            .iter()
            .for_each(|polled| polled.before_destroy(qp_num));
        if let Some(pool) = pool.as_ref().filter(|_| may_be_kept) {
            pool.may_keep();
        }
    });
    let soft_roce = plan.peer.attributes().soft_roce;
    Some(BeforeDestroy { soft_roce, call })
}

/// The main queue, the one for receives, and the channel that they share.
type CompletionQueues = (Cq, Option<Cq>, Option<Arc<CompChannel>>);

fn completion_queues(plan: &Plan, slots: &Arc<ConnSlots>) -> Result<CompletionQueues> {
    let new_channel = || CompChannel::new(plan.peer.pd().context());
    let common = plan.one_channel.then(new_channel).transpose()?;
    let make = |kind, queue: &CqPlan| {
        let (channel, key, shared) = match (&queue.channel, &common) {
            (Some((channel, key)), _) => (Arc::clone(channel), *key, true),
            (None, Some(common)) => (Arc::clone(common), 0, true),
            (None, None) => (new_channel()?, 0, false),
        };
        let srq = plan.srq.as_ref().filter(|_| queue.has_shared_receives);
        Cq::new(CqAttr {
            channel: &channel,
            shared,
            entries: queue.entries,
            tag: CqTag { key, kind },
            notify: queue.notify,
            owners: Owners {
                conn: Some(Arc::clone(slots)),
                srq: srq.map(|srq| Arc::clone(srq.slots())),
            },
        })
    };
    let cq = make(CqKind::Main, &plan.cq)?;
    let rcq = plan.rcq.as_ref();
    let rcq = rcq.map(|rcq| make(CqKind::Receive, rcq)).transpose()?;
    Ok((cq, rcq, common))
}

/// Slots of a queue, and more of them.
pub(crate) fn sum(slots: u32, more: u32) -> Result<u32> {
    slots.checked_add(more).ok_or_else(|| {
        Error::invalid(format!(
            "{slots} slots of a queue, and {more} more: that is too many"
        ))
    })
}
