//! Completions give their slots back, and get the program's `op_context`.

use std::sync::atomic::Ordering;

use super::ring::Ring;
use super::{ConnSlots, Kind};
use crate::verbs::{Wc, WcStatus};

impl ConnSlots {
    /// Settles the completions at the beginning of `wcs`, as long as they are of the same queue of
    /// the connection and have succeeded: gives their slots back, and labels them. Returns how
    /// many are left. For the holder of the completion queue's lock.
    #[inline(never)]
    pub(crate) fn settle(&self, wcs: &mut [Wc]) -> usize {
        let [wc] = wcs else {
            return self.settle_many(wcs);
        };
        if wc.status() != WcStatus::SUCCESS {
            return 1;
        }
        if wc.wr_id() >> Kind::NUMBER != Kind::Send as u64 {
            return self.settle_receive(wc);
        }
        self.send.done_with(self.label::<true>(&self.send, wc));
        0
    }

    /// As [`settle`](Self::settle), for the send with this number; `false` if it is another
    /// completion, or has failed.
    #[inline(always)]
    pub(crate) fn settle_expected(&self, number: u64, wc: &mut Wc) -> bool {
        let is_it = wc.status() == WcStatus::SUCCESS && wc.wr_id() == Kind::Send.wr_id(number);
        if is_it {
            self.send.done_with(self.label::<true>(&self.send, wc));
        }
        is_it
    }

    /// As [`settle`](Self::settle), for one that has succeeded and is no send.
    #[inline(never)]
    fn settle_receive(&self, wc: &mut Wc) -> usize {
        if wc.wr_id() >> Kind::NUMBER != Kind::Receive as u64 {
            return 1;
        }
        let number = self.label::<false>(&self.receive, wc);
        self.receive.done_with(number);
        0
    }

    #[inline(never)]
    fn settle_many(&self, wcs: &mut [Wc]) -> usize {
        match wcs.first().map_or(u64::MAX, Wc::wr_id) >> Kind::NUMBER {
            kind if kind == Kind::Send as u64 => self.settle_of::<true>(&self.send, wcs),
            kind if kind == Kind::Receive as u64 => self.settle_of::<false>(&self.receive, wcs),
            _ => wcs.len(),
        }
    }

    /// As [`settle`](Self::settle), where the first is of this ring: that of the sends or that of
    /// the receives.
    #[inline(always)]
    fn settle_of<const SENDS: bool>(&self, ring: &Ring, wcs: &mut [Wc]) -> usize {
        let (mut settled, mut last) = (0, None);
        // Four at a time, which share what is asked of each; then one at a time.
        for some in wcs.chunks_exact_mut(4) {
            let Some(done) = self.settle_alike::<SENDS>(ring, some) else {
                break;
            };
            (settled, last) = (settled + 4, Some(done));
        }
        for one in wcs[settled..].chunks_exact_mut(1) {
            let Some(done) = self.settle_alike::<SENDS>(ring, one) else {
                break;
            };
            (settled, last) = (settled + 1, Some(done));
        }
        // All entries are read now.
        if let Some(last) = last {
            ring.done_with(last);
        }
        wcs.len() - settled
    }

    /// Labels completions and returns the number of the last one, if all of them succeeded and are
    /// of this ring. If not, nothing has happened.
    #[inline(always)]
    fn settle_alike<const SENDS: bool>(&self, ring: &Ring, wcs: &mut [Wc]) -> Option<u64> {
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
            last = Some(self.label::<SENDS>(ring, wc));
        }
        last
    }

    /// Puts the program's `op_context` into a completion, and the name of its operation if it is a
    /// send queue's. Returns its number.
    #[inline(always)]
    fn label<const SENDS: bool>(&self, ring: &Ring, wc: &mut Wc) -> u64 {
        let number = wc.wr_id() ^ first_of::<SENDS>();
        let op_context = ring.op_contexts().of(number).load(Ordering::Relaxed);
        match SENDS {
            true => wc.set_send(op_context, self.id, number),
            false => wc.set_receive(op_context),
        }
        number
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
            Kind::SharedReceive => return false,
        }
        true
    }
}

/// The `wr_id` of number 0 of the sends or the receives.
const fn first_of<const SENDS: bool>() -> u64 {
    match SENDS {
        true => (Kind::Send as u64) << Kind::NUMBER,
        false => (Kind::Receive as u64) << Kind::NUMBER,
    }
}
