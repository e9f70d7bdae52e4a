//! Connections that are TCP streams: those of iWARP devices, with the rules of
//! [`Profile::SIW_6_12`](crate::Profile::SIW_6_12).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::choices::Kind;
use crate::error_state::failed;
use crate::fetch::gather;
use crate::links::LinkFault;
use crate::qp::{Data, Operation, QpState, Send, Waiting};
use crate::requester::success;
use crate::responder::Refusal;
use crate::state::State;
use crate::timer::Timer;
use crate::types::{ibv_event_type, ibv_send_flags, ibv_wc_status};

/// A request in a stream, with the bytes that travel.
pub(crate) type Parcel = (Send, Vec<u8>);

/// The stream of a queue pair to its peer.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The host of the peer.
    to: usize,
    /// What the peer has not got yet.
    pub(crate) unsent: VecDeque<Parcel>,
    /// Something has arrived, and its acknowledgement has not.
    is_unacknowledged: bool,
}

/// The other end of a stream.
enum OtherEnd {
    Takes(u32),
    /// Nothing comes back.
    Silent,
    /// It does not know the connection.
    Gone,
}

impl State {
    pub(crate) fn is_tcp(&self, number: u32) -> bool {
        self.profile_of(number).tcp.is_some()
    }

    /// The kernel has connected a queue pair to a peer on a host. It may have so many reads in
    /// flight, and serves so many.
    pub(crate) fn connect_stream(&mut self, number: u32, peer: u32, to: usize, reads: (u8, u8)) {
        let qp = &mut self.qps[number];
        qp.peer = Some(peer);
        qp.state = QpState::ReadyToSend;
        (qp.max_rd_atomic, qp.max_dest_rd_atomic) = reads;
        qp.tcp = Some(Connection {
            to,
            unsent: VecDeque::new(),
            is_unacknowledged: false,
        });
        self.note_ends(number, peer);
    }

    /// Requests were posted to a connected queue pair, or have arrived.
    pub(crate) fn posted_to_stream(&mut self, number: u32) {
        self.hand_over(number);
        let keeps_back = self.keeps_back(number);
        if self.qps[number].waiting.is_some() {
            return;
        }
        // All of it, as a completion proves nothing.
        self.send_stream(number, |_| keeps_back);
        let qp = &self.qps[number];
        let is_kept = keeps_back && qp.tcp.as_ref().is_some_and(|tcp| !tcp.unsent.is_empty());
        if is_kept && qp.waiting.is_none() && qp.kept_since.is_none() {
            self.put_off(number, self.kept_back());
            let now = self.program_time();
            self.qps[number].kept_since = Some(now);
        }
    }

    /// Hands requests to the stream. All but reads complete.
    fn hand_over(&mut self, number: u32) {
        let mut reads = 0;
        loop {
            let qp = &self.qps[number];
            let Some(send) = qp.sends.get(reads).filter(|_| qp.tcp.is_some()) else {
                return;
            };
            if send.way.is_handed_over() {
                reads += 1;
                continue;
            }
            let is_read = send.operation == Operation::Read;
            if is_read && reads >= qp.max_rd_atomic.into()
                || send.is(ibv_send_flags::IBV_SEND_FENCE) && reads > 0
            {
                return;
            }
            let send = send.clone();
            if self.completes_by_itself(number, &send) {
                if reads > 0 {
                    // Completions are in order.
                    return;
                }
                let signaled = send.is(ibv_send_flags::IBV_SEND_SIGNALED);
                let wc = signaled.then(|| success(number, &send));
                self.qps[number].sends.pop_front();
                self.complete_send(number, wc, false);
                continue;
            }
            if is_read {
                let qp = &mut self.qps[number];
                qp.sends[reads].way.hand_over();
                let tcp = qp.tcp.as_mut().expect("it is connected");
                tcp.unsent.push_back((send, Vec::new()));
                continue;
            }
            let parts = match &send.data {
                Data::Inline(_) => Ok(Vec::new()),
                Data::At(sges) => self.parts(qp.pd, sges, 0),
            };
            let Ok(parts) = parts else {
                let status = self.profile_of(number).local_error;
                let event = ibv_event_type::IBV_EVENT_QP_FATAL;
                return self.fail_in_stream(number, reads, status, event);
            };
            parts.iter().for_each(|part| self.read_out(*part));
            let bytes = gather(&send, &parts);
            let signaled = send.is(ibv_send_flags::IBV_SEND_SIGNALED);
            let wc = signaled.then(|| success(number, &send));
            let qp = &mut self.qps[number];
            qp.sends.remove(reads);
            let tcp = qp.tcp.as_mut().expect("it is connected");
            tcp.unsent.push_back((send, bytes));
            self.complete_send(number, wc, false);
        }
    }

    /// Sends the requests in the stream before the one at which `stop` holds.
    pub(crate) fn send_stream(&mut self, number: u32, stop: impl Fn(&Send) -> bool) {
        if self.is_frozen(number) {
            return;
        }
        loop {
            // Answers of reads have made room for more.
            self.hand_over(number);
            let qp = &self.qps[number];
            let Some(tcp) = &qp.tcp else {
                return;
            };
            let Some((send, _)) = tcp.unsent.front() else {
                break;
            };
            if send.way.travels() || stop(send) {
                break;
            }
            match self.other_end(number, send.operation == Operation::Read) {
                OtherEnd::Silent => return self.await_answer(number),
                OtherEnd::Gone => return self.stream_breaks(number),
                OtherEnd::Takes(peer) => {
                    let qp = &mut self.qps[number];
                    qp.waiting = None;
                    let tcp = qp.tcp.as_mut().expect("it was there");
                    let (send, bytes) = tcp.unsent.pop_front().expect("it was there");
                    self.arrives(number, peer, send, bytes);
                }
            }
        }
        let hears = self.hears(number);
        let qp = &mut self.qps[number];
        let Some(tcp) = &mut qp.tcp else {
            return;
        };
        if hears || !tcp.is_unacknowledged {
            tcp.is_unacknowledged = false;
            qp.waiting = None;
        } else {
            self.await_answer(number);
        }
    }

    fn other_end(&self, number: u32, answers: bool) -> OtherEnd {
        let qp = &self.qps[number];
        let tcp = qp.tcp.as_ref().expect("it is connected");
        let from = self.nics[qp.nic].host;
        if !self.reaches(from, tcp.to) || answers && !self.hears(number) {
            return OtherEnd::Silent;
        }
        let is_connected = |peer: &u32| {
            let other = self.qps.get(*peer);
            other.is_some_and(|other| other.tcp.is_some() && other.peer == Some(number))
        };
        match qp.peer.filter(is_connected) {
            Some(peer) => OtherEnd::Takes(peer),
            None => OtherEnd::Gone,
        }
    }

    fn arrives(&mut self, number: u32, peer: u32, mut send: Send, mut bytes: Vec<u8>) {
        let fault = self.fault_of(number, &mut send);
        match fault {
            None | Some(LinkFault::Acknowledgement | LinkFault::Receive) => {}
            Some(LinkFault::Rest { placed }) => bytes.truncate(placed),
            Some(LinkFault::Request) => return self.loses_stream(number),
            Some(fault) => {
                // TCP sends it again, and keeps the order.
                send.way.has_no_fault();
                if fault == LinkFault::AllAcknowledgements {
                    self.qps[number].is_deaf = true;
                } else {
                    let delay = self.links.new_delay();
                    send.way.set_out(delay);
                    let resend = self.resend_after(number, 0);
                    self.clock
                        .after(resend, Timer::Arrival { qp: number, delay });
                }
                let tcp = self.qps[number].tcp.as_mut().expect("it is connected");
                return tcp.unsent.push_front((send, bytes));
            }
        }
        if send.operation.is_message() && self.has_receive(peer) && self.loses_receive(peer) {
            self.note_fault(number, &send, LinkFault::Receive);
            self.qps[peer].begun = self.take_receive(peer);
            return self.loses_stream(number);
        }
        let served = match send.operation {
            Operation::Read => self.serve_read(peer, number, &send),
            _ => self.serve(peer, number, &send, &bytes).map(|()| Vec::new()),
        };
        let answer = match served {
            Ok(answer) => answer,
            Err(refusal) => return self.terminate(peer, refusal),
        };
        if send.operation == Operation::Read && fault.is_none() {
            self.read_is_answered(number, &answer);
        }
        self.executed(number, &send, "");
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.effects.add();
        if fault.is_some() {
            return self.loses_stream(number);
        }
        let hears = self.hears(number);
        if let Some(tcp) = &mut self.qps[number].tcp {
            tcp.is_unacknowledged |= !hears;
        }
    }

    /// A responder does not serve a request: it ends the connection (TERMINATE).
    pub(crate) fn terminate(&mut self, peer: u32, refusal: Refusal) {
        match refusal {
            Refusal::NoReceive => self.fail_qp(peer),
            Refusal::Denied(_, event) => self.peer_failed(peer, event),
        }
    }

    /// The answer of the oldest read has come.
    fn read_is_answered(&mut self, number: u32, bytes: &[u8]) {
        let qp = &self.qps[number];
        let (pd, read) = (qp.pd, qp.sends[0].clone());
        let Data::At(sges) = &read.data else {
            unreachable!("a read has no inline data");
        };
        let rights = self.profile_of(number).read_destination;
        let Ok(parts) = self.parts(pd, sges, rights) else {
            let status = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
            let event = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR;
            return self.fail_in_stream(number, 0, status, event);
        };
        self.scatter(bytes, &parts, number, &read);
        self.qps[number].sends.pop_front();
        let signaled = read.is(ibv_send_flags::IBV_SEND_SIGNALED);
        if signaled {
            // The program that polls it sees its bytes.
            self.push_read(number);
        }
        self.complete_send(number, signaled.then(|| success(number, &read)), false);
    }

    /// This side's memory is not as a request needs it: the request fails, and the connection.
    fn fail_in_stream(
        &mut self,
        number: u32,
        index: usize,
        status: ibv_wc_status,
        event: ibv_event_type,
    ) {
        let send = self.qps[number].sends.remove(index);
        let send = send.expect("it is there");
        self.push_read(number);
        let wc = failed(number, send.wr_id, status);
        let solicited = self.profile_of(number).errors_are_solicited;
        self.complete_send(number, Some(wc), solicited);
        self.peer_failed(number, event);
    }

    /// For how long TCP waits for an acknowledgement after so many repetitions.
    pub(crate) fn resend_after(&self, number: u32, repetitions: u8) -> Duration {
        let tcp = self.profile_of(number).tcp.as_ref().expect("it is TCP");
        let (first, longest) = tcp.resends;
        longest.min(first * (1 << repetitions.min(20)))
    }

    /// The stream of a queue pair is interrupted. Both ends learn of it, and no more arrives.
    fn loses_stream(&mut self, number: u32) {
        if let Some(tcp) = &mut self.qps[number].tcp {
            tcp.unsent.clear();
        }
        self.fail_qp(number);
    }

    /// The other end of a stream is gone, or has not answered for too long.
    pub(crate) fn stream_breaks(&mut self, number: u32) {
        match self.id_of_stream(number) {
            Some(id) => self.closed(id),
            None => self.loses_stream(number),
        }
    }

    /// A queue pair leaves its connection, if it has one. Some of what the stream has still
    /// arrives, and then its end.
    pub(crate) fn hang_up(&mut self, number: u32) {
        let Some(tcp) = self.qps[number].tcp.take() else {
            return;
        };
        let qp = &self.qps[number];
        let (peer, from) = (qp.peer.expect("it is connected"), self.nics[qp.nic].host);
        let is_dead = self.nics[qp.nic].is_dead();
        let mut sends = tcp.unsent;
        if self.is_frozen(number) {
            sends.clear();
        }
        // A reset takes the others away.
        let has_left =
            |(send, _): &&(Send, Vec<u8>)| self.choose_for(Kind::Stray, 2, number, send) == 0;
        let arrive = sends.iter().take_while(has_left).count();
        sends.truncate(arrive);
        let closes = match is_dead {
            true => None,
            false => self.hangs_up(number),
        };
        self.leave(number, peer, (from, tcp.to), sends, closes);
    }

    /// The number of requests of a queue pair that are not executed.
    pub(crate) fn unfinished(&self, number: u32) -> usize {
        let qp = &self.qps[number];
        let unsent = qp.tcp.as_ref().map_or(0, |tcp| tcp.unsent.len());
        qp.sends.len() + unsent
    }

    pub(crate) fn stream_waits(&self, number: u32) -> bool {
        self.is_tcp(number) && matches!(self.qps[number].waiting, Some(Waiting::Answer { .. }))
    }
}

#[cfg(test)]
mod tests;
