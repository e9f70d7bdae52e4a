//! Requests that a device keeps back: for how long, which writes overtake them, and their execution
//! when the program polls.
//!
//! The devices that do so are those that [reorder](crate::Profile::STRICT), and all devices while
//! a test watches for losses of power, so that the power can fail between a post and its
//! execution.

use std::cell::Cell;
use std::time::Duration;

use crate::choices::Kind;
use crate::qp::{Operation, Qp, QpState};
use crate::requester::Outcome;
use crate::state::State;
use crate::types::ibv_send_flags;

/// How long a request is kept back, if no program polls.
const KEPT_BACK: Duration = Duration::from_micros(200);

impl State {
    /// Whether requests of a queue pair wait, at times, until the program polls.
    pub(crate) fn keeps_back(&self, number: u32) -> bool {
        self.power.keeps_back || self.reorders(number) || self.profile_of(number).reorders
    }

    /// Whether the device that executes a queue pair's requests may change their order.
    pub(crate) fn reorders(&self, number: u32) -> bool {
        let peer = self.qps[number]
            .peer
            .filter(|peer| self.qps.get(*peer).is_some());
        self.profile_of(peer.unwrap_or(number)).reorders
    }

    pub(crate) fn kept_back(&self) -> Duration {
        match self.power.keeps_back {
            // So that the time does not decide which bytes the power takes.
            true => 25 * KEPT_BACK,
            false => KEPT_BACK,
        }
    }

    /// A program polls a queue. Requests that were kept back for queue pairs that complete there
    /// are executed, one after the other, until there is a completion. Later requests stay, so that
    /// the power can fail in between.
    pub(crate) fn run_deferred(&mut self, cq: u32) {
        for number in self.deferred(|qp| qp.send_cq == cq) {
            loop {
                if !self.cqs[cq].is_empty() {
                    return;
                }
                if self.leaves_poll(number) {
                    break;
                }
                let before = self.unfinished(number);
                let is_next = Cell::new(true);
                self.run_until(number, |_| !is_next.replace(false));
                let qp = &self.qps[number];
                let can_go_on = qp.state == QpState::ReadyToSend && qp.waiting.is_none();
                let left = self.unfinished(number);
                if !can_go_on || left == 0 || left == before {
                    break;
                }
            }
            self.time_of_next(number);
        }
    }

    /// Whether a queue pair does no more at polls, and waits for the time for which its requests are
    /// kept back. With a seed it never does.
    fn leaves_poll(&mut self, number: u32) -> bool {
        let qp = &self.qps[number];
        if qp.kept_since.is_none() {
            return false;
        }
        let Some(first) = qp.sends.iter().find(|send| send.done.is_none()) else {
            return false;
        };
        let leaves = qp.ignores_polls || self.choose_for(Kind::Poll, 2, number, first) == 1;
        self.qps[number].ignores_polls = leaves;
        leaves
    }

    pub(crate) fn run_all_deferred(&mut self) {
        for number in self.deferred(|_| true) {
            self.run(number);
            self.time_of_next(number);
        }
    }

    /// The next posts have a time of their own.
    fn time_of_next(&mut self, number: u32) {
        if self.unfinished(number) == 0 {
            self.qps[number].kept_since = None;
        }
    }

    /// The queue pairs of these for which something was kept back.
    fn deferred(&self, is_meant: impl Fn(&Qp) -> bool) -> Vec<u32> {
        // Each poll comes here. With thousands of queue pairs a look at each of them is long.
        if !self.power.keeps_back && !self.profiles.iter().any(|profile| profile.reorders) {
            return Vec::new();
        }
        let deferred = |(number, qp): (u32, &Qp)| {
            let is = is_meant(qp)
                && qp.state == QpState::ReadyToSend
                && qp.waiting.is_none()
                && self.unfinished(number) > 0
                && self.keeps_back(number);
            is.then_some(number)
        };
        self.qps.iter().filter_map(deferred).collect()
    }

    /// Executes some of the writes and messages after a request that is kept back, if they have no
    /// order.
    pub(crate) fn overtake(&mut self, number: u32) {
        // Whether an earlier request is one that a fence waits for.
        let mut fenced = false;
        for index in 0..self.qps[number].sends.len() {
            let send = &self.qps[number].sends[index];
            if send.done.is_some() {
                continue;
            }
            if send.fetched.is_some() {
                return;
            }
            if send.operation.is_slow() {
                fenced |= !matches!(send.operation, Operation::Flush { .. });
                continue;
            }
            // A message without a receive would wait, and hold up the requests before it.
            let has_room = !send.operation.is_message()
                || self
                    .peer_that_answers(number)
                    .is_some_and(|peer| self.has_receive(peer) && !self.may_lose_receive(peer));
            let may = has_room
                && !send.way.travels()
                && !(fenced && send.is(ibv_send_flags::IBV_SEND_FENCE));
            if !may
                || self.choose_for(Kind::Overtake, 2, number, &self.qps[number].sends[index]) == 0
            {
                // Writes and sends stay in order.
                return;
            }
            match self.execute(number, index) {
                Outcome::Done(wc) => self.qps[number].sends[index].done = Some(wc),
                // It fails in its turn.
                _ => return,
            }
        }
    }
}
