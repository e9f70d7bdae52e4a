//! Completions give their slots back, and get the program's `op_context`.

use std::sync::atomic::Ordering;

use super::contexts::View;
use super::pool::Returning;
use super::ring::Ring;
use super::{ConnSlots, Kind, Pool};
use crate::posted::ConnId;
use crate::status::WcStatus;
use crate::verbs::Wc;

impl ConnSlots {
    /// Settles the completions at the beginning of `wcs`, as long as they are of the connection or
    /// of its shared receive queue, and have succeeded: gives their slots back, and labels them.
    /// Returns how many are left. For the holder of the completion queue's lock.
    #[inline(never)]
    pub(crate) fn settle(&self, wcs: &mut [Wc]) -> usize {
        match wcs {
            [wc] if is_success_of::<true>(wc) => {
                let number = label::<true>(self.send.op_contexts(), self.id, wc);
                self.send.done_with(number);
                0
            }
            [wc] => self.settle_receive(wc),
            _ => self.settle_many(wcs),
        }
    }

    /// As [`settle`](Self::settle), for the send with this number; `false` if it is another
    /// completion, or has failed.
    #[inline(always)]
    pub(crate) fn settle_expected(&self, number: u64, wc: &mut Wc) -> bool {
        let is_it = wc.status() == WcStatus::SUCCESS && wc.wr_id() == Kind::Send.wr_id(number);
        if is_it {
            label::<true>(self.send.op_contexts(), self.id, wc);
            self.send.done_with(number);
        }
        is_it
    }

    /// As [`settle`](Self::settle), for one that is no send: 81 instructions for a receive of a
    /// shared queue, which are 167 in [`settle_many`](Self::settle_many).
    #[inline(never)]
    fn settle_receive(&self, wc: &mut Wc) -> usize {
        if is_success_of::<false>(wc) {
            let number = label::<false>(self.receive.op_contexts(), self.id, wc);
            self.receive.done_with(number);
            return 0;
        }
        match &self.shared {
            Some(shared) => shared.settle(std::slice::from_mut(wc)),
            None => 1,
        }
    }

    #[inline(never)]
    fn settle_many(&self, wcs: &mut [Wc]) -> usize {
        let alike = match wcs.first().map_or(u64::MAX, Wc::wr_id) >> Kind::NUMBER {
            SEND => self.settle_of::<true>(&self.send, wcs),
            RECEIVE => self.settle_of::<false>(&self.receive, wcs),
            _ => 0,
        };
        let mut wcs = &mut wcs[alike..];
        while !wcs.is_empty() {
            let own = self.settle_own(wcs);
            wcs = &mut wcs[own..];
            let Some(shared) = self.shared.as_ref().filter(|_| !wcs.is_empty()) else {
                break;
            };
            let left = shared.settle(wcs);
            let settled = wcs.len() - left;
            if own + settled == 0 {
                break;
            }
            wcs = &mut wcs[settled..];
        }
        wcs.len()
    }

    /// Settles those at the beginning that are of this ring, four at a time, which share the
    /// questions that are asked of each: 16 sends cost 269 instructions, and one after the other
    /// 395. Returns how many.
    #[inline(always)]
    fn settle_of<const SENDS: bool>(&self, ring: &Ring, wcs: &mut [Wc]) -> usize {
        let (mut settled, mut last) = (0, None);
        let (contexts, id) = (ring.op_contexts(), self.id);
        for some in wcs.chunks_exact_mut(4) {
            let Some(done) = settle_alike::<SENDS>(contexts, id, some) else {
                break;
            };
            (settled, last) = (settled + 4, Some(done));
        }
        // All entries are read now.
        if let Some(last) = last {
            ring.done_with(last);
        }
        settled
    }

    /// As [`settle`](Self::settle), those of the connection's own queues, one after the other.
    /// Returns how many.
    #[inline(always)]
    fn settle_own(&self, wcs: &mut [Wc]) -> usize {
        let (sends, receives) = (self.send.op_contexts(), self.receive.op_contexts());
        let (mut sent, mut received) = (NONE, NONE);
        let (id, mut settled) = (self.id, 0);
        for wc in wcs {
            if wc.status() != WcStatus::SUCCESS {
                break;
            }
            match wc.wr_id() >> Kind::NUMBER {
                SEND => sent = label::<true>(sends, id, wc),
                RECEIVE => received = label::<false>(receives, id, wc),
                _ => break,
            }
            settled += 1;
        }
        // All entries are read now.
        if sent != NONE {
            self.send.done_with(sent);
        }
        if received != NONE {
            self.receive.done_with(received);
        }
        settled
    }

    /// Gives the slot of a request back and labels its completion, whether it has failed or not;
    /// `false` if it is of no queue of the connection. For the holder of the completion queue's
    /// lock.
    #[inline]
    pub(crate) fn complete(&self, wc: &mut Wc, kind: Kind, number: u64) -> bool {
        match kind {
            Kind::Send | Kind::AllSent | Kind::SendsFlushed => {
                wc.set_any_send(self.send.complete(number), self.id, number);
            }
            Kind::Receive | Kind::ReceivesFlushed => {
                wc.set_any_receive(self.receive.complete(number));
            }
            Kind::SharedReceive | Kind::Probe => return false,
        }
        true
    }
}

/// Whether it is a send or a receive that has succeeded.
#[inline(always)]
fn is_success_of<const SENDS: bool>(wc: &Wc) -> bool {
    let kind = (wc.wr_id() ^ first_of::<SENDS>()) >> Kind::NUMBER;
    kind as u32 | wc.status().0 == WcStatus::SUCCESS.0
}

/// Labels completions and returns the number of the last one, if all of them succeeded and are of
/// these sends or receives. If not, they are unchanged.
#[inline(always)]
fn settle_alike<const SENDS: bool>(contexts: View<'_>, id: ConnId, wcs: &mut [Wc]) -> Option<u64> {
    let first = first_of::<SENDS>();
    let (mut kinds, mut statuses) = (0, 0);
    for wc in &*wcs {
        kinds |= wc.wr_id() ^ first;
        statuses |= wc.status().0;
    }
    if (kinds >> Kind::NUMBER) as u32 | statuses != WcStatus::SUCCESS.0 {
        return None;
    }
    let mut last = None;
    for wc in wcs {
        last = Some(label::<SENDS>(contexts, id, wc));
    }
    last
}

/// Puts the program's `op_context` into a completion, and the name of its operation if it is a
/// send queue's. Returns its number.
#[inline(always)]
fn label<const SENDS: bool>(contexts: View<'_>, id: ConnId, wc: &mut Wc) -> u64 {
    let number = wc.wr_id() ^ first_of::<SENDS>();
    let op_context = contexts.of(number).load(Ordering::Relaxed);
    if SENDS {
        wc.set_send(op_context, id, number)
    } else {
        wc.set_receive(op_context)
    }
    number
}

impl Pool {
    /// As [`ConnSlots::settle`], for the shared receive queue's own completion queue.
    #[inline(always)]
    pub(crate) fn settle(&self, wcs: &mut [Wc]) -> usize {
        let mut returning = self.returning();
        let mut left = wcs.len();
        for wc in wcs {
            if wc.status() != WcStatus::SUCCESS || !take_back(&mut returning, wc) {
                break;
            }
            left -= 1;
        }
        left
    }

    /// Gives the slot of a receive back and labels its completion, whether it has failed or not;
    /// `false` if the receive was not posted.
    pub(crate) fn complete(&self, wc: &mut Wc, number: u64) -> bool {
        let op_context = self.returning().complete(number);
        op_context.is_some_and(|op_context| {
            wc.set_any_receive(op_context);
            true
        })
    }
}

/// Gives the slot of a receive back that has succeeded, and labels its completion.
#[inline(always)]
fn take_back(returning: &mut Returning<'_>, wc: &mut Wc) -> bool {
    // The number of another kind is larger than any number of this kind.
    let number = wc.wr_id().wrapping_sub(SHARED << Kind::NUMBER);
    match returning.complete(number) {
        Some(op_context) => wc.set_receive(op_context),
        None => return false,
    }
    true
}

/// No number: they have 61 bits.
const NONE: u64 = u64::MAX;

const SEND: u64 = Kind::Send as u64;
const RECEIVE: u64 = Kind::Receive as u64;
const SHARED: u64 = Kind::SharedReceive as u64;

/// The `wr_id` of number 0 of the sends or the receives.
const fn first_of<const SENDS: bool>() -> u64 {
    if SENDS {
        (Kind::Send as u64) << Kind::NUMBER
    } else {
        (Kind::Receive as u64) << Kind::NUMBER
    }
}
