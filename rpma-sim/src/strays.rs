//! Requests that outlive their requester: those that were on their way when its queue pair failed
//! or was destroyed.
//!
//! A network delivers the requests that it has. The responder executes it, in order, as long as its
//! own queue pair takes requests: until it fails, is reset or destroyed. How many of the requests
//! had left the device is chosen by the seed.

use std::collections::{BTreeMap, VecDeque};

use crate::choices::Kind;
use crate::cm::Message;
use crate::fetch::gather;
use crate::qp::{Operation, QpState, Send, Waiting};
use crate::state::State;
use crate::timer::Timer;
use crate::types::ibv_send_flags;

#[derive(Debug, Default)]
pub(crate) struct Strays(BTreeMap<u32, Left>);

impl Strays {
    /// How many requests each queue pair has left.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (u32, usize)> {
        self.0
            .iter()
            .map(|(number, left)| (*number, left.sends.len()))
    }
}

/// The requests that a queue pair has left.
#[derive(Debug)]
struct Left {
    /// Its peer, and the host that it was on.
    peer: u32,
    host: usize,
    /// The peer's host, and the peer's id if it learns of the end of the connection after them.
    to: usize,
    closes: Option<u32>,
    /// Each request, with the bytes that travel.
    sends: VecDeque<(Send, Vec<u8>)>,
}

impl State {
    /// A queue pair takes no more requests: some of those that it has may be on their way.
    pub(crate) fn leave_requests(&mut self, number: u32) {
        if self.is_tcp(number) {
            return self.hang_up(number);
        }
        let qp = &self.qps[number];
        let in_flight =
            qp.state == QpState::ReadyToSend && matches!(qp.waiting, None | Some(Waiting::Network));
        let Some(peer) = qp.peer.filter(|_| in_flight && !self.is_frozen(number)) else {
            return;
        };
        let (pd, host) = (qp.pd, self.nics[qp.nic].host);
        let mut sends = VecDeque::new();
        // Whether a read before this request has no answer. A fence waits for it (IBA 10.8.3.3).
        let mut reads = false;
        for send in self.qps[number].sends.clone() {
            if send.done.is_some() {
                continue;
            }
            if reads && send.is(ibv_send_flags::IBV_SEND_FENCE) {
                break;
            }
            reads |= matches!(send.operation, Operation::Read);
            if send.way.is_executed() {
                continue;
            }
            let parts = match &send.data {
                crate::qp::Data::Inline(_) => Ok(Vec::new()),
                crate::qp::Data::At(sges) => self.parts(pd, sges, 0),
            };
            // The others have not left the device.
            let Some(parts) = parts
                .ok()
                .filter(|_| self.choose_for(Kind::Stray, 2, number, &send) == 0)
            else {
                break;
            };
            let bytes = gather(&send, &parts);
            sends.push_back((send, bytes));
        }
        let to = self
            .qps
            .get(peer)
            .map_or(host, |peer| self.nics[peer.nic].host);
        self.leave(number, peer, (host, to), sends, None);
    }

    /// A queue pair leaves these requests on their way between two hosts. After them an id of the
    /// peer learns of the end of the connection.
    pub(crate) fn leave(
        &mut self,
        number: u32,
        peer: u32,
        (host, to): (usize, usize),
        mut sends: VecDeque<(Send, Vec<u8>)>,
        closes: Option<u32>,
    ) {
        if sends.is_empty() {
            return self.says_end((host, to), closes);
        }
        if sends.iter().any(|(send, _)| !send.way.travels()) {
            let (delay, late) = (self.links.new_delay(), self.kept_back());
            for (send, _) in &mut sends {
                send.way.set_out(delay);
            }
            self.clock.after(late, Timer::Arrival { qp: number, delay });
        }
        let left = Left {
            peer,
            host,
            to,
            closes,
            sends,
        };
        self.links.strays.0.insert(number, left);
    }

    /// The requests that a queue pair has left arrive.
    pub(crate) fn strays_arrive(&mut self, number: u32, delay: Option<u64>) {
        while let Some(left) = self.links.strays.0.get_mut(&number) {
            let has_arrived = |(send, _): &(Send, Vec<u8>)| delay.is_none() || send.way.is(delay);
            if !left.sends.front().is_some_and(has_arrived) {
                break;
            }
            let (peer, host) = (left.peer, left.host);
            let (send, bytes) = left.sends.pop_front().expect("it is there");
            if !self.takes_from(peer, number, host)
                || !self.serve_stray(number, peer, &send, &bytes)
            {
                return self.no_more_strays(number);
            }
        }
        let left = self.links.strays.0.get(&number);
        if left.is_some_and(|left| left.sends.is_empty()) {
            self.no_more_strays(number);
        }
    }

    fn no_more_strays(&mut self, number: u32) {
        if let Some(left) = self.links.strays.0.remove(&number) {
            self.says_end((left.host, left.to), left.closes);
        }
    }

    /// The end of a stream comes to an id of the peer.
    fn says_end(&mut self, way: (usize, usize), closes: Option<u32>) {
        if let Some(to) = closes {
            self.send_between(way, Message::Closed { to });
        }
    }

    /// The queue pairs that have left requests on this way between two hosts.
    pub(crate) fn strays_on(&self, (from, to): (usize, usize)) -> Vec<u32> {
        let strays = self.links.strays.0.iter();
        let those = strays.filter(|(_, left)| {
            let peer = self.qps.get(left.peer);
            left.host == from && peer.is_some_and(|peer| self.nics[peer.nic].host == to)
        });
        those.map(|(number, _)| *number).collect()
    }

    /// Whether a responder takes requests of a queue pair that may be gone.
    fn takes_from(&self, peer: u32, number: u32, host: usize) -> bool {
        self.qps.get(peer).is_some_and(|qp| {
            matches!(qp.state, QpState::ReadyToReceive | QpState::ReadyToSend)
                && qp.peer == Some(number)
                && self.has_way(host, self.nics[qp.nic].host)
        })
    }

    /// Whether the requests after this one are served.
    fn serve_stray(&mut self, number: u32, peer: u32, send: &Send, bytes: &[u8]) -> bool {
        // The answer of a read is dropped.
        if send.operation == Operation::Read {
            return true;
        }
        let is_served = self.serve_or_fail(peer, number, send, bytes);
        if is_served {
            let how = ", which was in flight when that connection ended";
            self.executed(number, send, how);
        }
        is_served
    }
}
