//! The requester: it executes the requests of a send queue, tries them again, and completes them.
//! The other end is [`crate::responder`]. After a failure both are in the
//! [error state](crate::error_state).
//!
//! A request is executed as a whole, by the thread that posted it or, if it had to wait, by the
//! fabric's own. The head of a send queue is executed first, except on devices that
//! [reorder](crate::Profile::STRICT). Completions are always in order.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::choices::Kind;
use crate::error_state::failed;
use crate::fetch::gather;
use crate::links::{BEYOND_LIMITS, LinkFault};
use crate::memory::Part;
use crate::qp::{Data, Operation, QpState, Send, Waiting};
use crate::responder::Refusal;
use crate::state::State;
use crate::timer::Timer;
use crate::types::{ibv_event_type, ibv_send_flags, ibv_wc, ibv_wc_opcode, ibv_wc_status};

/// How many bytes a queue pair moves at once. The rest waits for as long as a network takes for
/// these bytes.
const AT_ONCE: u64 = 1 << 16;

/// A slow network: 100 MB/s.
const NANOSECONDS_A_BYTE: u64 = 10;

/// How the execution of a request ends.
pub(crate) enum Outcome {
    Done(ibv_wc),
    Failed(ibv_wc_status),
    /// As that, and the responder has failed, which this event reports.
    Denied(ibv_wc_status, ibv_event_type),
    /// The peer has no receive.
    NoReceive,
    /// The peer is gone.
    NoAnswer,
    /// It is never executed: a connection without room for reads.
    Never,
}

impl State {
    /// Requests were posted to a queue pair that has been connected.
    pub(crate) fn posted(&mut self, number: u32) {
        let qp = &self.qps[number];
        if qp.state == QpState::Error {
            return self.flush(number);
        }
        if self.is_frozen(number) {
            return;
        }
        if self.is_tcp(number) {
            return self.posted_to_stream(number);
        }
        match qp.waiting {
            Some(Waiting::Answer { .. }) => return self.send_on(number),
            Some(_) => return,
            None => {}
        }
        let reorders = self.reorders(number);
        let keeps_back = self.keeps_back(number);
        self.run_until(number, |send| {
            keeps_back && (send.operation.is_slow() || send.fetched.is_some())
        });
        let qp = &self.qps[number];
        let is_ready = qp.state == QpState::ReadyToSend && qp.waiting.is_none();
        if is_ready && !qp.sends.is_empty() && keeps_back {
            if reorders {
                self.overtake(number);
            }
            // The first one's time counts.
            if self.qps[number].kept_since.is_none() {
                self.put_off(number, self.kept_back());
                let now = self.program_time();
                self.qps[number].kept_since = Some(now);
            }
        }
    }

    pub(crate) fn try_again(&mut self, number: u32, attempt: u64) {
        let Some(qp) = self.qps.get(number) else {
            return;
        };
        if qp.attempt != attempt || qp.state != QpState::ReadyToSend {
            return;
        }
        if self.is_frozen(number) {
            return;
        }
        self.qps[number].ignores_polls = false;
        let qp = &self.qps[number];
        if let Some(since) = qp.kept_since.filter(|_| qp.waiting.is_none()) {
            let left = (since + self.kept_back()).saturating_duration_since(self.program_time());
            if !left.is_zero() {
                // Checks have taken so long: the program had no time to promise anything.
                self.put_off(number, left);
                self.qps[number].kept_since = Some(since);
                return;
            }
        }
        let for_ever = self.profile_of(number).retries_for_ever;
        let is_stream = self.stream_waits(number);
        let qp = &mut self.qps[number];
        qp.kept_since = None;
        let (left, status) = match &mut qp.waiting {
            None => return self.run(number),
            Some(Waiting::Network) => {
                qp.waiting = None;
                return self.run(number);
            }
            Some(Waiting::Receive { left }) => (left, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR),
            Some(Waiting::Answer { left }) => (left, ibv_wc_status::IBV_WC_RETRY_EXC_ERR),
        };
        let for_ever = match status {
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => true,
            _ => for_ever,
        };
        match *left {
            7 if for_ever => {}
            0 if is_stream => return self.stream_breaks(number),
            0 => return self.fail_first(number, status),
            _ => *left -= 1,
        }
        if status == ibv_wc_status::IBV_WC_RETRY_EXC_ERR {
            self.resend(number);
        }
        self.run(number);
    }

    /// Executes requests in order, as far as that goes.
    pub(crate) fn run(&mut self, number: u32) {
        self.run_until(number, |_| false);
    }

    /// As [`run`](Self::run), but not this one.
    pub(crate) fn run_until(&mut self, number: u32, stop: impl Fn(&Send) -> bool) {
        if self.is_tcp(number) {
            return self.send_stream(number, stop);
        }
        let mut bytes = 0;
        if self.is_frozen(number) {
            return;
        }
        loop {
            self.retire(number);
            let qp = &mut self.qps[number];
            if qp.state != QpState::ReadyToSend {
                return;
            }
            if bytes >= AT_ONCE {
                qp.waiting = Some(Waiting::Network);
                return self.put_off(number, Duration::from_nanos(bytes * NANOSECONDS_A_BYTE));
            }
            let goes = |first: &&Send| !stop(first) && !first.way.travels();
            let Some(first) = qp.sends.front().filter(goes) else {
                return;
            };
            bytes += first.data.len();
            match self.execute(number, 0) {
                Outcome::Done(wc) => {
                    let qp = &mut self.qps[number];
                    qp.waiting = None;
                    qp.sends[0].done = Some(wc);
                    if self.answers_late(number) {
                        return;
                    }
                }
                Outcome::Failed(status) => return self.fail_first(number, status),
                Outcome::Denied(status, event) => return self.denied(number, status, event),
                Outcome::NoReceive => return self.await_receive(number),
                Outcome::NoAnswer => {
                    self.await_answer(number);
                    return self.send_on(number);
                }
                Outcome::Never => return,
            }
        }
    }

    /// Whether the completion of the first request, which is executed, comes late, and with it all
    /// that follows. Only an exploration lets that happen.
    fn answers_late(&mut self, number: u32) -> bool {
        let first = &self.qps[number].sends[0];
        if !self.choices.explores() || !first.is(ibv_send_flags::IBV_SEND_SIGNALED) {
            return false;
        }
        let delay = match self.choose_for(Kind::Answer, 3, number, first) {
            0 => return false,
            1 => self.late(),
            _ => BEYOND_LIMITS,
        };
        self.qps[number].waiting = Some(Waiting::Network);
        self.put_off(number, delay);
        true
    }

    /// Executes the requests after those with lost acknowledgements: the device sends on while it
    /// waits for these.
    fn send_on(&mut self, number: u32) {
        let mut reads = 0;
        for index in 0.. {
            let qp = &self.qps[number];
            let Some(send) = qp.sends.get(index) else {
                return;
            };
            let takes_credit = matches!(send.operation, Operation::Read | Operation::AtomicWrite);
            if !send.way.is_executed() && send.done.is_none() {
                let waits = send.way.travels()
                    || takes_credit && reads >= qp.max_rd_atomic.into()
                    || send.is(ibv_send_flags::IBV_SEND_FENCE) && reads > 0;
                if waits || self.hears(number) {
                    return;
                }
                self.execute(number, index);
                let send = &self.qps[number].sends.get(index);
                if !send.is_some_and(|send| send.way.is_executed()) {
                    return;
                }
            }
            reads += usize::from(takes_credit);
        }
    }

    /// Completes the requests that are executed and follow no unfinished one.
    fn retire(&mut self, number: u32) {
        loop {
            let sends = &mut self.qps[number].sends;
            let Some(wc) = sends.front().and_then(|send| send.done) else {
                return;
            };
            let send = sends.pop_front().expect("it is there");
            let signaled = send.is(ibv_send_flags::IBV_SEND_SIGNALED);
            if signaled {
                // Earlier reads are there for the program that polls it.
                self.push_read(number);
            }
            self.complete_send(number, signaled.then_some(wc), false);
        }
    }

    /// A request has left the send queue, with a completion or without.
    pub(crate) fn complete_send(&mut self, number: u32, wc: Option<ibv_wc>, solicited: bool) {
        let by_polling = self.profile_of(number).frees_slots_by_polling;
        let qp = &mut self.qps[number];
        if by_polling {
            qp.unpolled += 1;
            qp.kept_slots += 1;
        }
        if let Some(wc) = wc {
            let slots = std::mem::take(&mut qp.unpolled);
            let cq = qp.send_cq;
            self.complete(cq, wc, solicited, slots);
        }
    }

    pub(crate) fn put_off(&mut self, number: u32, delay: Duration) {
        let qp = &mut self.qps[number];
        qp.kept_since = None;
        qp.attempt += 1;
        let attempt = qp.attempt;
        let timer = Timer::Try {
            qp: number,
            attempt,
        };
        self.clock.after(delay, timer);
    }

    fn await_receive(&mut self, number: u32) {
        let qp = &self.qps[number];
        let left = match qp.waiting {
            Some(Waiting::Receive { left }) => left,
            _ => qp.rnr_retry_count,
        };
        if left == 0 {
            return self.fail_first(number, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
        }
        let peer = qp.peer.and_then(|peer| self.qps.get(peer));
        let delay = rnr_timer(peer.map_or(0, |peer| peer.min_rnr_timer));
        // The later requests have been sent, too.
        self.resend(number);
        self.qps[number].waiting = Some(Waiting::Receive { left });
        self.put_off(number, delay);
    }

    pub(crate) fn await_answer(&mut self, number: u32) {
        if let Some(retries) = self.profile_of(number).tcp.as_ref().map(|tcp| tcp.retries) {
            let qp = &mut self.qps[number];
            let left = match qp.waiting {
                Some(Waiting::Answer { left }) => left,
                _ => retries,
            };
            qp.waiting = Some(Waiting::Answer { left });
            return self.put_off(number, self.resend_after(number, retries - left));
        }
        let qp = &mut self.qps[number];
        let left = match qp.waiting {
            Some(Waiting::Answer { left }) => left,
            _ => qp.retry_count,
        };
        qp.waiting = Some(Waiting::Answer { left });
        if qp.ack_timeout == 0 {
            // It waits for ever.
            return;
        }
        let delay = Duration::from_nanos(4_096 << qp.ack_timeout.min(31));
        self.put_off(number, delay);
    }

    pub(crate) fn execute(&mut self, number: u32, index: usize) -> Outcome {
        let qp = &self.qps[number];
        let send = qp.sends[index].clone();
        let (pd, max_reads) = (qp.pd, qp.max_rd_atomic);
        let takes_credit = matches!(send.operation, Operation::Read | Operation::AtomicWrite);
        if takes_credit && max_reads == 0 {
            return Outcome::Never;
        }
        if self.completes_by_itself(number, &send) {
            return Outcome::Done(success(number, &send));
        }
        // Its own memory first.
        let is_read = send.operation == Operation::Read;
        let rights = match is_read {
            true => self.profile_of(number).read_destination,
            false => 0,
        };
        let parts = match &send.data {
            Data::Inline(_) => Vec::new(),
            Data::At(sges) => match self.parts(pd, sges, rights) {
                Ok(parts) => parts,
                Err(_) => return Outcome::Failed(self.profile_of(number).local_error),
            },
        };
        let Some(peer) = self.peer_that_answers(number) else {
            // All of it is sent again.
            self.qps[number].sends[index].fetched = None;
            return Outcome::NoAnswer;
        };
        self.choices.with_script(|script| {
            script.uses_device(self.nics[self.qps[number].nic].host);
            if send.operation.is_message() {
                script.uses_device(self.nics[self.qps[peer].nic].host);
            }
        });
        let is_native = matches!(
            send.operation,
            Operation::Flush { .. } | Operation::AtomicWrite
        );
        let cannot_be_repeated = is_native && !self.profile_of(number).repeats_natives;
        if send.way.is_executed() {
            return if cannot_be_repeated {
                Outcome::NoAnswer
            } else {
                self.repeat(number, peer, &send, &parts)
            };
        }
        let mut fault = self.fault(number, index);
        let mut hears = self.hears(number);
        match fault {
            Some(LinkFault::AllAcknowledgements) => {
                self.qps[number].is_deaf = true;
                hears = false;
            }
            Some(LinkFault::Answer) => hears = false,
            Some(LinkFault::Packet) => {
                self.fault_is_over(number, index);
                self.send_first_packets(number, index, &parts);
                return Outcome::NoAnswer;
            }
            _ => {}
        }
        if matches!(
            fault,
            Some(LinkFault::AllAcknowledgements | LinkFault::Answer)
        ) {
            self.fault_is_over(number, index);
            fault = None;
        }
        if send.way.is_resent() && cannot_be_repeated {
            return Outcome::Denied(
                ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
            );
        }
        let lost = Outcome::Failed(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        if fault == Some(LinkFault::Request) {
            return lost;
        }
        let takes_receive = send.operation.is_message() && self.has_receive(peer);
        if takes_receive && self.loses_receive(peer) {
            self.note_fault(number, &send, LinkFault::Receive);
            // Its own queue still has it, until it fails; a shared one has it no more.
            if self.qps[peer].srq.is_some() {
                self.qps[peer].begun = self.take_receive(peer);
            }
            return lost;
        }
        let answered = match fault {
            // The bytes come with the answer.
            _ if is_read && (fault.is_some() || !hears) => {
                self.serve_read(peer, number, &send).map(drop)
            }
            None if is_read => self
                .serve_read(peer, number, &send)
                .map(|bytes| self.scatter(&bytes, &parts, number, &send)),
            _ => {
                parts.iter().for_each(|part| self.read_out(*part));
                let mut bytes = gather(&send, &parts);
                if let Some(LinkFault::Rest { placed }) = fault {
                    bytes.truncate(placed);
                }
                self.serve(peer, number, &send, &bytes)
            }
        };
        match answered {
            Ok(()) => {
                self.executed(number, &send, "");
                self.steps.fetch_add(1, Ordering::Relaxed);
                self.effects.add();
                if fault.is_some() {
                    self.is_lost(number, index);
                    return lost;
                }
                if !hears {
                    self.is_executed(number, index);
                    return Outcome::NoAnswer;
                }
                Outcome::Done(success(number, &send))
            }
            Err(Refusal::NoReceive) if hears => Outcome::NoReceive,
            Err(Refusal::NoReceive) => Outcome::NoAnswer,
            Err(Refusal::Denied(status, event)) if hears => Outcome::Denied(status, event),
            Err(Refusal::Denied(_, event)) => {
                self.peer_failed(peer, event);
                Outcome::NoAnswer
            }
        }
    }

    pub(crate) fn completes_by_itself(&self, number: u32, send: &Send) -> bool {
        let is_empty_read = send.operation == Operation::Read && send.data.len() == 0;
        is_empty_read && !self.profile_of(number).asks_for_nothing
    }

    /// A request that was executed is sent again: the responder acknowledges it, and reads once
    /// more for it.
    fn repeat(&mut self, number: u32, peer: u32, send: &Send, parts: &[Part]) -> Outcome {
        if !self.hears(number) {
            return Outcome::NoAnswer;
        }
        if send.operation == Operation::Read {
            match self.serve_read(peer, number, send) {
                Ok(bytes) => self.scatter(&bytes, parts, number, send),
                Err(Refusal::NoReceive) => return Outcome::NoReceive,
                Err(Refusal::Denied(status, event)) => return Outcome::Denied(status, event),
            }
        }
        Outcome::Done(success(number, send))
    }

    /// The responder does not allow the first request, and both ends fail.
    fn denied(&mut self, number: u32, status: ibv_wc_status, event: ibv_event_type) {
        if let Some(peer) = self.peer_that_answers(number) {
            self.peer_failed(peer, event);
        }
        self.fail_first(number, status);
    }

    /// The other end of a connection, if it takes requests.
    pub(crate) fn peer_that_answers(&self, number: u32) -> Option<u32> {
        let peer = self.qps[number].peer?;
        let other = self.qps.get(peer)?;
        let takes = matches!(other.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        let (from, to) = (self.qps[number].nic, other.nic);
        let reached = self.reaches(self.nics[from].host, self.nics[to].host);
        (takes && reached && other.peer == Some(number)).then_some(peer)
    }

    /// The first request has failed, and with it the queue pair.
    fn fail_first(&mut self, number: u32, status: ibv_wc_status) {
        let Some(send) = self.qps[number].sends.pop_front() else {
            return;
        };
        // Earlier reads are there for the program that polls the failure.
        self.push_read(number);
        let solicited = self.profile_of(number).errors_are_solicited;
        let wc = failed(number, send.wr_id, status);
        self.complete_send(number, Some(wc), solicited);
        self.fail_qp(number);
    }
}

pub(crate) fn success(number: u32, send: &Send) -> ibv_wc {
    let (opcode, len) = match send.operation {
        Operation::Read => (ibv_wc_opcode::IBV_WC_RDMA_READ, send.data.len()),
        Operation::Write(_) => (ibv_wc_opcode::IBV_WC_RDMA_WRITE, send.data.len()),
        Operation::Send(_) => (ibv_wc_opcode::IBV_WC_SEND, send.data.len()),
        Operation::Flush { len, .. } => (ibv_wc_opcode::IBV_WC_FLUSH, len),
        Operation::AtomicWrite => (ibv_wc_opcode::IBV_WC_ATOMIC_WRITE, send.data.len()),
    };
    ibv_wc {
        wr_id: send.wr_id,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode,
        byte_len: len as u32,
        qp_num: number,
        ..Default::default()
    }
}

/// For how long a requester waits for a receive, by a code of the specification (IBA, table 45).
fn rnr_timer(code: u8) -> Duration {
    /// In units of 10 µs.
    const TIMES: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
        1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    let units = TIMES.get(usize::from(code)).copied().unwrap_or(TIMES[0]);
    Duration::from_micros(10) * units
}
