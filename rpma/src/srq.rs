//! [`Srq`]: a shared receive queue (`struct rpma_srq`), and [`SrqCfg`] (`struct rpma_srq_cfg`).
//!
//! It owns the verbs queue and, if asked for, a completion queue for its receives. Connections
//! that use it hold it; it is destroyed after the last of them, the completion queue after it.

use std::fmt;
use std::sync::Arc;

use crate::compl_channel::CompletionChannel;
use crate::cq::{Cq, CqAttr, Owners};
use crate::error::{Error, Result};
use crate::mr::{MrSlice, MrUsage, Tag};
use crate::peer::Peer;
use crate::slots::Pool;
use crate::verbs::{CompChannel, CqKind, CqTag, Notify, SharedReceiveQueue};

/// Holds the settings of a shared receive queue. Plain data.
#[doc(alias = "rpma_srq_cfg_delete")]
#[derive(Clone, Debug)]
pub struct SrqCfg {
    rq_size: u32,
    rcq_size: u32,
    rcq_notify: Notify,
    channel: Option<(CompletionChannel, u64)>,
}

impl Default for SrqCfg {
    fn default() -> Self {
        Self {
            rq_size: 20,
            rcq_size: 20,
            rcq_notify: Notify::Any,
            channel: None,
        }
    }
}

impl SrqCfg {
    /// Makes the default settings.
    #[doc(alias = "rpma_srq_cfg_new")]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many receives may be posted and not yet polled. The default is 20.
    #[doc(alias = "rpma_srq_cfg_set_rq_size")]
    pub fn set_rq_size(&mut self, slots: u32) -> &mut Self {
        self.rq_size = slots;
        self
    }

    /// See [`set_rq_size`](Self::set_rq_size).
    #[doc(alias = "rpma_srq_cfg_get_rq_size")]
    #[must_use]
    pub fn get_rq_size(&self) -> u32 {
        self.rq_size
    }

    /// Sets the minimum size of the queue's own completion queue. It always gets room for every
    /// receive. If it is 0 there is no such queue: then receives complete in the queues of the
    /// connections on which they arrive. The default is 20.
    #[doc(alias = "rpma_srq_cfg_set_rcq_size")]
    pub fn set_rcq_size(&mut self, entries: u32) -> &mut Self {
        self.rcq_size = entries;
        self
    }

    /// See [`set_rcq_size`](Self::set_rcq_size).
    #[doc(alias = "rpma_srq_cfg_get_rcq_size")]
    #[must_use]
    pub fn get_rcq_size(&self) -> u32 {
        self.rcq_size
    }

    /// Sets the kind of completions that give events in the queue's own completion queue. The
    /// default is [`Notify::Any`].
    pub fn set_rcq_notify(&mut self, notify: Notify) -> &mut Self {
        self.rcq_notify = notify;
        self
    }

    /// See [`set_rcq_notify`](Self::set_rcq_notify).
    #[must_use]
    pub fn get_rcq_notify(&self) -> Notify {
        self.rcq_notify
    }

    /// Puts the queue's own completion queue on a channel that other queues may use as well. Its
    /// events there carry the key. The default, `None`, is a channel for this queue alone.
    pub fn set_compl_channel(&mut self, channel: Option<(CompletionChannel, u64)>) -> &mut Self {
        self.channel = channel;
        self
    }

    /// See [`set_compl_channel`](Self::set_compl_channel).
    #[must_use]
    pub fn get_compl_channel(&self) -> Option<&(CompletionChannel, u64)> {
        self.channel.as_ref()
    }
}

/// A receive queue that many connections share. Clones are handles of the same queue.
///
/// Connections that are made with [`ConnCfg::set_srq`](crate::ConnCfg::set_srq) use the queue. A
/// message on any of these connections takes the first receive that is left.
/// [`Wc::qp_num`](crate::Wc::qp_num) is different for each connection. The receives of one
/// connection complete in order. Those of several may not: the device works on them at the same
/// time.
///
/// ```no_run
/// use rpma::{ConnCfg, Mr, Peer, Result, Srq, SrqCfg};
///
/// /// A queue of 64 receives of 256 bytes each, and the settings of its connections.
/// fn shared(peer: &Peer, buffers: &Mr<Vec<u8>>) -> Result<(Srq, ConnCfg)> {
///     let mut sizes = SrqCfg::new();
///     sizes.set_rq_size(64).set_rcq_size(64);
///     let srq = Srq::new(peer, &sizes)?;
///     for n in 0..64 {
///         srq.recv(buffers.slice(256 * n..256 * (n + 1))?, n as u64)?;
///     }
///     let mut cfg = ConnCfg::new();
///     cfg.set_srq(Some(&srq));
///     Ok((srq, cfg))
/// }
/// ```
///
/// A client that dies in the middle of a message of several packets takes a receive with it until
/// its connection is dropped, and on soft-RoCE of Linux 6.12 for ever. [`kept`](Self::kept) counts
/// such slots, and [security](crate::guide::security#a-shared-receive-queue-can-be-used-up) has
/// the remedy. A slot can also be lost when [`recv`](Self::recv) fails with [`Error::Provider`],
/// because the device may have that receive. Make the queue larger than it needs to be.
///
/// Poll the queue's own completion queue until it is empty before you drop a connection, if it
/// matters from which connection a message came. Completions of a dropped connection are kept for
/// the next [`get_wc`](crate::Cq::get_wc), but their [`Wc::qp_num`](crate::Wc::qp_num) is 0.
///
/// # Threads
///
/// Threads may post at the same time, one after the other: a lock is held while one posts.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<SharedReceiveQueue>,
    rcq: Option<Cq>,
    slots: Arc<Pool>,
    peer: Peer,
    /// The required tags of its receives' memory.
    tag: Tag,
}

impl Srq {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queue is larger than the device's limit, or if the
    /// channel belongs to another device. [`Error::InvalidArgument`] also if
    /// [`SrqCfg::set_rcq_size`] is 0 and other settings of the queue's own completion queue are
    /// set. [`Error::Provider`] if `ibv_create_srq`, `ibv_create_comp_channel` or `ibv_create_cq`
    /// fails.
    #[doc(alias = "rpma_srq_new")]
    pub fn new(peer: &Peer, cfg: &SrqCfg) -> Result<Self> {
        let limit = peer.attributes().max_srq_wr;
        if cfg.rq_size > limit {
            return Err(Error::invalid(format!(
                "SrqCfg::set_rq_size({}): the device has at most {limit} slots in a shared receive queue",
                cfg.rq_size
            )));
        }
        if cfg.rcq_size == 0 && (cfg.rcq_notify == Notify::Solicited || cfg.channel.is_some()) {
            return Err(Error::invalid(
                "SrqCfg::set_rcq_notify(Solicited) and set_compl_channel are for the queue's own completion \
                 queue, and it has none: ask for one with SrqCfg::set_rcq_size, or use ConnCfg for those of \
                 the connections",
            ));
        }
        let slots = Arc::new(Pool::new(cfg.rq_size));
        let rcq = match cfg.rcq_size {
            0 => None,
            _ => Some(own_rcq(peer, cfg, &slots)?),
        };
        let queue = SharedReceiveQueue::new(peer.pd(), cfg.rq_size.max(1))?;
        Ok(Self {
            inner: Arc::new(Inner {
                queue,
                rcq,
                slots,
                peer: peer.clone(),
                tag: Tag::new(peer.key(), MrUsage::RECV),
            }),
        })
    }

    /// Posts a receive. [`MrSlice::EMPTY`] takes messages of 0 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the region belongs to another [`Peer`] or lacks
    /// [`MrUsage::RECV`](crate::MrUsage::RECV), or if `dst` has more than 2³¹ bytes.
    /// [`Error::QueueFull`] if no slot is free, or [`Error::ReceivesKept`] if it is possible that
    /// the device keeps all receives. [`Error::Provider`] if `ibv_post_srq_recv` fails.
    #[doc(alias = "rpma_srq_recv")]
    #[inline]
    pub fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        self.post(dst, op_context)
    }

    /// Posts several receives at once: all of them, or no receive. See
    /// [`Conn::recv_many`](crate::Conn::recv_many).
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv); [`Error::InvalidArgument`] also if the list is empty, or longer
    /// than the queue has slots. After [`Error::Provider`] some may be posted, and the slots of the
    /// others do not come back.
    pub fn recv_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        self.post_many(receives)
    }

    /// Returns an upper bound for the number of receives that the device keeps for connections that
    /// have ended. The slots of kept receives do not come back.
    ///
    /// soft-RoCE does not report whether it has returned the receive of a message that was cut
    /// off. So each connection that was dropped there counts, until the receives that were posted
    /// before its end have completed. A completed receive counts as kept until it is polled.
    ///
    /// When this is a large part of the queue, make a new queue for new connections: see
    /// [security](crate::guide::security).
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.inner.slots.kept()
    }

    /// Returns the queue's own completion queue, if its configuration asked for one.
    #[doc(alias = "rpma_srq_get_rcq")]
    #[must_use]
    pub fn get_rcq(&self) -> Option<&Cq> {
        self.inner.rcq.as_ref()
    }

    /// Drops this handle. If it is the last one, it returns an error if an object could not be
    /// freed. Connections and each `ConnCfg` that names the queue have handles as well.
    ///
    /// # Errors
    ///
    /// [`Error::Provider`] with the first verb that failed.
    #[doc(alias = "rpma_srq_delete")]
    pub fn delete(self) -> Result<()> {
        let Some(inner) = Arc::into_inner(self.inner) else {
            return Ok(());
        };
        let queue = inner.queue.destroy();
        queue.and(inner.rcq.map_or(Ok(()), Cq::destroy))
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.inner.peer
    }

    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.inner.tag
    }

    pub(crate) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.inner.queue
    }

    pub(crate) fn slots(&self) -> &Arc<Pool> {
        &self.inner.slots
    }
}

/// The completion queue for the receives of `slots`.
fn own_rcq(peer: &Peer, cfg: &SrqCfg, slots: &Arc<Pool>) -> Result<Cq> {
    let (channel, key) = match &cfg.channel {
        Some((channel, key)) => (channel.for_peer(peer)?, *key),
        None => (CompChannel::new(peer.pd().context())?, 0),
    };
    let entries = cfg.rq_size.max(cfg.rcq_size);
    let limit = peer.attributes().max_cqe;
    if entries > limit {
        return Err(Error::invalid(format!(
            "a completion queue of {entries} is needed, and the device has at most {limit}: ask for less \
             with SrqCfg::set_rq_size ({}) or set_rcq_size ({})",
            cfg.rq_size, cfg.rcq_size
        )));
    }
    Cq::new(CqAttr {
        channel: &channel,
        shared: cfg.channel.is_some(),
        entries,
        tag: CqTag {
            key,
            kind: CqKind::Receive,
        },
        notify: cfg.rcq_notify,
        owners: Owners {
            conn: None,
            srq: Some(Arc::clone(slots)),
        },
    })
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("queue", &self.inner.queue)
            .field("rcq", &self.inner.rcq)
            .finish_non_exhaustive()
    }
}
