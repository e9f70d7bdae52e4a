//! When a device reads the data that it sends.
//!
//! At any time between the post and the completion, in parts, and again for packets that it sends
//! again (the buffer belongs to the device until the completion was polled: `ibv_post_send(3)`).
//! So a program that changes a buffer too early sends other bytes, or a mixture.

use crate::choices::Kind;
use crate::memory::{Part, fetch};
use crate::qp::{Data, Send};
use crate::state::State;

/// The payload of a packet.
const PACKET: u64 = 1024;

impl Send {
    fn sends_memory(&self) -> bool {
        let is_there = matches!(self.data, Data::At(_)) && self.data.len() > 0;
        is_there && !self.operation.is_slow()
    }
}

impl State {
    /// Requests from one on were posted. On a device that [reorders](crate::Profile::STRICT) a
    /// part of the data of some is read at once, and the rest when they are executed.
    pub(crate) fn begin_to_fetch(&mut self, number: u32, first: usize) {
        if !self.profile_of(number).reorders {
            return;
        }
        for index in first..self.qps[number].sends.len() {
            if !self.qps[number].sends[index].sends_memory() {
                continue;
            }
            let begins = self.choose_for(Kind::Fetch, 3, number, &self.qps[number].sends[index]);
            if begins == 0 {
                continue;
            }
            let send = self.qps[number].sends[index].clone();
            let Data::At(sges) = &send.data else {
                continue;
            };
            // Errors in them are found in their turn.
            let parts = self.parts(self.qps[number].pd, sges, 0);
            let mut fetched = gather(&send, &parts.unwrap_or_default());
            let read_by_now = if begins == 1 || fetched.is_empty() {
                0
            } else {
                self.choose_for(Kind::Bytes, fetched.len() as u32, number, &send)
            };
            fetched.truncate(read_by_now as usize);
            self.qps[number].sends[index].fetched = Some(fetched);
        }
    }

    /// A packet of a request is lost. Those before it have arrived, and are not sent again.
    pub(crate) fn send_first_packets(&mut self, number: u32, index: usize, parts: &[Part]) {
        let send = self.qps[number].sends[index].clone();
        let packets = send.data.len().div_ceil(PACKET);
        let fetched = if send.sends_memory() && packets > 1 {
            let arrived =
                PACKET * u64::from(self.choose_for(Kind::Packets, packets as u32, number, &send));
            let mut fetched = gather(&send, parts);
            fetched.truncate(arrived as usize);
            Some(fetched)
        } else {
            None
        };
        self.qps[number].sends[index].fetched = fetched;
    }
}

/// Returns the data of a request: the bytes that its device has read before, and the rest from
/// memory now.
pub(crate) fn gather(send: &Send, parts: &[Part]) -> Vec<u8> {
    match &send.data {
        Data::Inline(bytes) => bytes.clone(),
        Data::At(_) => {
            let mut bytes = Vec::new();
            for part in parts {
                fetch(*part, &mut bytes);
            }
            let fetched = send.fetched.as_deref().unwrap_or_default();
            let before = fetched.len().min(bytes.len());
            bytes[..before].copy_from_slice(&fetched[..before]);
            bytes
        }
    }
}
