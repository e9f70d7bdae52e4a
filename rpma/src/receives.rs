//! Receives: the checks of their memory, and how they are posted to a connection's own queue
//! ([`Queues`]) and to a shared one ([`Srq`]).

use crate::error::{Error, Queue, Result};
use crate::lock::Held;
use crate::mr::{MrSlice, MrUsage, Tag, require};
use crate::peer::Peer;
use crate::queues::Queues;
use crate::slots::{Kind, PostRefusal, PostResult, refused_by_a_full_queue, waited};
use crate::srq::Srq;
use crate::verbs::LocalBuffer;

/// The longest message that the specification allows, in bytes.
const MAX_RECEIVE: u64 = 1 << 31;

#[inline]
fn check_receive(peer: &Peer, dst: MrSlice<'_>) -> Result<()> {
    require(dst.tag().usage(), MrUsage::RECV, "local")?;
    if !dst.tag().is_of(Tag::new(peer.key(), MrUsage::empty())) {
        return Err(Error::invalid(
            "the memory region was registered with another Peer than the queue's",
        ));
    }
    if dst.len() > MAX_RECEIVE {
        return Err(Error::invalid(format!(
            "a receive of {} bytes: no message has more than {MAX_RECEIVE}",
            dst.len()
        )));
    }
    Ok(())
}

/// Refuses no receives, too many, and receives that cannot be posted to a queue of this `Peer`.
/// Without a `Peer` all are refused later. Returns how many there are.
fn check_receives(peer: Option<&Peer>, receives: &[(MrSlice<'_>, u64)]) -> Result<u32> {
    if receives.is_empty() {
        return Err(Error::invalid("no receives: name one at least"));
    }
    if let Some(peer) = peer {
        for (index, (dst, _)) in receives.iter().enumerate() {
            check_receive(peer, *dst).map_err(|error| {
                Error::invalid(format!(
                    "receive {} of {}: {error}",
                    index + 1,
                    receives.len()
                ))
            })?;
        }
    }
    u32::try_from(receives.len()).map_err(|_| {
        Error::invalid(format!(
            "{} receives at once: post at most {}",
            receives.len(),
            u32::MAX
        ))
    })
}

/// Whether a receive needs no closer look: for memory of this `Peer` that takes receives, of 1
/// byte at least.
#[inline(always)]
fn is_usual(dst: &MrSlice<'_>, tag: Tag) -> bool {
    dst.tag().fits(tag, MrUsage::RECV)
        && u64::from(dst.buffer().len().wrapping_sub(1)) < MAX_RECEIVE
}

/// As [`is_usual`], of all; `None` if one needs a closer look, if the list is empty, or if it is
/// too long. How many there are.
#[inline(always)]
fn are_usual(receives: &[(MrSlice<'_>, u64)], tag: Tag) -> Option<u32> {
    let count = u32::try_from(receives.len())
        .ok()
        .filter(|count| *count > 0)?;
    receives
        .iter()
        .all(|(dst, _)| is_usual(dst, tag))
        .then_some(count)
}

impl Queues {
    #[inline]
    pub(crate) fn recv(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        if !is_usual(&dst, self.tags.recv) {
            return self.recv_any(&{ dst }, op_context);
        }
        match self.post_receive(dst.buffer(), op_context) {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, 1),
        }
    }

    /// Not inlined: its callers need no registers kept for it.
    #[inline(never)]
    fn post_receive(&self, local: LocalBuffer<'_>, op_context: u64) -> Result<u64, PostRefusal> {
        match self.post_receive_by::<false>(local, op_context) {
            Some(posted) => Ok(posted?),
            None => self.post_receive_waiting(local, op_context),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_receive_waiting(
        &self,
        local: LocalBuffer<'_>,
        op_context: u64,
    ) -> Result<u64, PostRefusal> {
        waited(self.post_receive_by::<true>(local, op_context))
    }

    #[inline(always)]
    fn post_receive_by<const WAITS: bool>(
        &self,
        local: LocalBuffer<'_>,
        op_context: u64,
    ) -> PostResult {
        self.slots.post_receives::<WAITS>(1, |mut entries| {
            let wr_id = Kind::Receive.wr_id(entries.take(op_context));
            self.qp.post_recv::<false>(local, wr_id)?;
            Ok(1)
        })
    }

    /// Posts all receives, or no receive.
    pub(crate) fn recv_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        let count = match are_usual(receives, self.tags.recv) {
            Some(count) => count,
            None => check_receives(self.srq.is_none().then_some(&self.peer), receives)?,
        };
        let posted = self.slots.post_receives::<true>(count, |mut entries| {
            let number = |op_context| Kind::Receive.wr_id(entries.take(op_context));
            self.qp
                .post_recvs::<false, _>((receives, with_buffer), number)?;
            Ok(count)
        });
        match waited(posted) {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, count),
        }
    }

    /// A receive of 0 bytes, or one that is wrong.
    #[inline(never)]
    fn recv_any(&self, dst: &MrSlice<'_>, op_context: u64) -> Result<()> {
        if self.srq.is_none() {
            check_receive(&self.peer, *dst)?;
        }
        match self.post_receive(dst.buffer(), op_context) {
            Ok(_) => Ok(()),
            Err(refusal) => self.receive_refused(refusal, 1),
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_refused(&self, refusal: PostRefusal, count: u32) -> Result<()> {
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
}

#[inline(always)]
fn with_buffer<'mr>((dst, op_context): &(MrSlice<'mr>, u64)) -> (LocalBuffer<'mr>, u64) {
    (dst.buffer(), *op_context)
}

impl Srq {
    #[inline]
    pub(crate) fn post(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        if !is_usual(&dst, self.tag()) {
            return self.post_any(&{ dst }, op_context);
        }
        match self.post_one::<true>(dst.buffer(), op_context) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, 1)),
        }
    }

    /// Posts a receive; `SOME`: of some bytes.
    #[inline(never)]
    fn post_one<const SOME: bool>(
        &self,
        local: LocalBuffer<'_>,
        op_context: u64,
    ) -> Result<(), PostRefusal> {
        match self.slots().try_lock() {
            Some(held) => self.post_held::<SOME>(held, local, op_context),
            None => self.post_later::<SOME>(local, op_context),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_later<const SOME: bool>(
        &self,
        local: LocalBuffer<'_>,
        op_context: u64,
    ) -> Result<(), PostRefusal> {
        self.post_held::<SOME>(self.slots().lock(), local, op_context)
    }

    #[inline(always)]
    fn post_held<const SOME: bool>(
        &self,
        held: Held<'_>,
        local: LocalBuffer<'_>,
        op_context: u64,
    ) -> Result<(), PostRefusal> {
        let posted = self.slots().post(held, 1, |entries| {
            let wr_id = Kind::SharedReceive.wr_id(entries.take(op_context).into());
            Ok(self.queue().post_recv::<SOME>(local, wr_id)?)
        });
        posted.map_err(PostRefusal::from)
    }

    /// A receive of 0 bytes, or one that is wrong.
    #[cold]
    #[inline(never)]
    fn post_any(&self, dst: &MrSlice<'_>, op_context: u64) -> Result<()> {
        check_receive(self.peer(), *dst)?;
        match self.post_one::<false>(dst.buffer(), op_context) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, 1)),
        }
    }

    /// Posts all receives, or no receive.
    pub(crate) fn post_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        let (count, posted) = match are_usual(receives, self.tag()) {
            Some(count) => (count, self.post_all::<true>(receives, count)),
            None => {
                let count = check_receives(Some(self.peer()), receives)?;
                (count, self.post_all::<false>(receives, count))
            }
        };
        match posted {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, count)),
        }
    }

    #[inline(always)]
    fn post_all<const SOME: bool>(
        &self,
        receives: &[(MrSlice<'_>, u64)],
        count: u32,
    ) -> Result<(), PostRefusal> {
        let posted = self.slots().post(self.slots().lock(), count, |entries| {
            let number = |op_context| Kind::SharedReceive.wr_id(entries.take(op_context).into());
            let receives = (receives, with_buffer);
            Ok(self.queue().post_recvs::<SOME, _>(receives, number)?)
        });
        posted.map_err(PostRefusal::from)
    }

    #[cold]
    fn refused(&self, refusal: PostRefusal, count: u32) -> Error {
        let slots = self.slots();
        let depth = slots.depth();
        let error = refused_by_a_full_queue(refusal, Queue::SharedReceive, depth, count);
        let is_full = matches!(error, Error::QueueFull { .. }) && depth > 0;
        match slots.kept() {
            kept if is_full && kept == depth => Error::ReceivesKept { kept, depth },
            _ => error,
        }
    }
}
