//! Receives: the checks of their memory, and how they are posted to a connection's own queue
//! ([`Queues`]) and to a shared one ([`Srq`]).

use crate::error::{Error, Queue, Result};
use crate::lock::Held;
use crate::mr::{MrSlice, MrUsage, Tag, require};
use crate::peer::Peer;
use crate::queues::Queues;
use crate::slots::{Kind, NotTried, Outcome, Refusal, refused_by_a_full_queue, tried_in_vain};
use crate::srq::Srq;
use crate::verbs::LocalBuffer;

/// The longest message that the specification allows, in bytes.
const MAX_RECEIVE: u64 = 1 << 31;

/// Refuses memory that cannot take a receive.
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

/// Refuses no receives, too many, and receives that cannot be posted to a queue of this peer.
/// Without a peer all are refused later. Returns how many there are.
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
    u32::try_from(receives.len())
        .map_err(|_| Error::invalid(format!("{} receives at once", receives.len())))
}

impl Queues {
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

    /// Posts a receive of some bytes. Not inlined: its callers have nothing to keep in registers
    /// for it.
    #[inline(never)]
    fn post_receive(&self, local: LocalBuffer<'_>, op_context: u64) -> Outcome {
        let post = |wr_id| self.qp.post_recv_of_some(local, wr_id);
        match self.slots.try_post_receive(op_context, post) {
            Ok(number) => Outcome::posted(number),
            Err(NotTried::Later(held)) => self.post_receive_later(local, op_context, held),
            Err(NotTried::NotTaken(ring, held, error)) => {
                tried_in_vain::<false>((ring, held), 1, error)
            }
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

    /// The long way, for a receive that is unusual or wrong.
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
}

impl Srq {
    pub(crate) fn post(&self, dst: MrSlice<'_>, op_context: u64) -> Result<()> {
        check_receive(self.peer(), dst)?;
        let post = |number: u32| {
            let wr_id = Kind::SharedReceive.wr_id(number.into());
            Ok(self.queue().post_recv(dst.buffer(), wr_id)?)
        };
        let posted = self.slots().post(op_context, post);
        posted.map_err(|error| self.refused(error.into(), 1))
    }

    /// Posts receives: all of them or none.
    pub(crate) fn post_many(&self, receives: &[(MrSlice<'_>, u64)]) -> Result<()> {
        let count = check_receives(Some(self.peer()), receives)?;
        let context = |index: usize| receives[index].1;
        let posted = self.slots().post_many(receives.len(), context, |numbers| {
            let numbered = numbers.iter().zip(receives).map(|(number, (dst, _))| {
                (dst.buffer(), Kind::SharedReceive.wr_id((*number).into()))
            });
            Ok(self.queue().post_recvs(numbered)?)
        });
        posted.map_err(|error| self.refused(error.into(), count))
    }

    #[cold]
    fn refused(&self, refusal: Refusal, count: u32) -> Error {
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
