//! The network between hosts: the messages that it loses, delays and keeps back, and hosts with a
//! device that stands still. Tests arm all of it by [`Link`] and [`Host`](crate::Host).

mod link;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub use self::link::Link;
use crate::choices::{INTERRUPTED, Kind};
use crate::cm::Message;
use crate::qp::{Operation, Qp, QpState, Send, Waiting};
use crate::state::State;
use crate::strays::Strays;
use crate::timer::Timer;

/// Later than most limits of a program.
pub(crate) const BEYOND_LIMITS: Duration = Duration::from_secs(60);

/// The fault of a request on its way, named after the method that arms it, which has its rules
/// (`Link`, `Host::lose_receive`). `Rest` is that of `Link::place_only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFault {
    Request,
    Acknowledgement,
    AllAcknowledgements,
    Packet,
    Answer,
    Rest { placed: usize },
    Receive,
}

/// The network's task with one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// It is still on its way: the number of the delay that ends that.
    travels: Option<u64>,
    is_counted: bool,
    fault: Option<LinkFault>,
    /// It was executed, and its acknowledgement was lost.
    is_executed: bool,
    /// It was sent, and is sent again.
    is_resent: bool,
    /// Its TCP stream has it.
    is_handed_over: bool,
}

impl Way {
    pub(crate) fn travels(&self) -> bool {
        self.travels.is_some()
    }

    pub(crate) fn is_executed(&self) -> bool {
        self.is_executed
    }

    pub(crate) fn is_resent(&self) -> bool {
        self.is_resent
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    pub(crate) fn hand_over(&mut self) {
        self.is_handed_over = true;
    }

    /// All of it, for a comparison with another run.
    pub(crate) fn state(&self) -> [bool; 5] {
        [
            self.travels.is_some(),
            self.fault.is_some(),
            self.is_executed,
            self.is_resent,
            self.is_handed_over,
        ]
    }

    pub(crate) fn has_no_fault(&mut self) {
        self.fault = None;
    }

    pub(crate) fn set_out(&mut self, delay: u64) {
        self.travels.get_or_insert(delay);
    }

    pub(crate) fn is(&self, delay: Option<u64>) -> bool {
        self.travels == delay
    }
}

#[derive(Debug, Default)]
pub(crate) struct Links {
    frozen: BTreeSet<usize>,
    /// The pairs of hosts without a way from the first to the second.
    parted: BTreeSet<(usize, usize)>,
    delays: BTreeMap<(usize, usize), Delay>,
    /// Where no delay is set, some requests are late.
    are_apart: bool,
    /// An exploration interrupts the network of this host until a time.
    interrupted: Option<(usize, Instant)>,
    /// One request in so many loses a packet.
    loses: BTreeMap<(usize, usize), u32>,
    /// Where requests stay on their way until they are released.
    held: BTreeSet<(usize, usize)>,
    next_delay: u64,
    requests: u32,
    armed: Vec<Armed>,
    /// The host of each queue pair that was connected, and its peer's, for reports: requests may
    /// outlive both.
    ends: BTreeMap<u32, (usize, usize)>,
    pub(crate) strays: Strays,
    /// Messages of the connection manager, with the hosts that do not reach each other.
    kept: Vec<(usize, usize, Message)>,
}

/// How much later than it is posted a request is executed.
#[derive(Clone, Copy, Debug)]
enum Delay {
    Always(Duration),
    UpTo(Duration),
}

#[derive(Debug)]
struct Armed {
    /// From anywhere and to anywhere, if it is `None`.
    from: Option<usize>,
    to: Option<usize>,
    fault: LinkFault,
    /// How many requests are left before the one that it is about.
    before: u32,
}

impl Links {
    pub(crate) fn new_delay(&mut self) -> u64 {
        self.next_delay += 1;
        self.next_delay
    }

    /// A message of the connection manager waits until the hosts reach each other.
    pub(crate) fn keep(&mut self, from: usize, to: usize, message: Message) {
        self.kept.push((from, to, message));
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    pub(crate) fn arm(
        &mut self,
        from: Option<usize>,
        to: Option<usize>,
        nth: u32,
        fault: LinkFault,
    ) {
        assert!(nth > 0, "the first one is number 1");
        let before = nth - 1;
        self.armed.push(Armed {
            from,
            to,
            fault,
            before,
        });
    }

    /// Counts something that arrives, for all armed faults that it is about; the first one that is
    /// due happens.
    fn count(
        &mut self,
        from: usize,
        to: usize,
        is_about: impl Fn(LinkFault) -> bool,
    ) -> Option<LinkFault> {
        let mut due = None;
        self.armed.retain_mut(|armed| {
            let is_other = |only: Option<usize>, host| only.is_some_and(|only| only != host);
            let other_way = is_other(armed.to, to) || is_other(armed.from, from);
            if other_way || !is_about(armed.fault) {
                return true;
            }
            if armed.before > 0 || due.is_some() {
                armed.before = armed.before.saturating_sub(1);
                return true;
            }
            due = Some(armed.fault);
            false
        });
        due
    }
}

impl State {
    /// Whether messages of one host arrive at the other one.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        let links = &self.links;
        !self.is_dead(from)
            && !self.is_dead(to)
            && !links.frozen.contains(&from)
            && !links.frozen.contains(&to)
            && !links.parted.contains(&(from, to))
    }

    /// Whether the network takes the messages of one host to another one, which may have lost its
    /// power since.
    pub(crate) fn has_way(&self, from: usize, to: usize) -> bool {
        let links = &self.links;
        !self.is_dead(to) && !links.frozen.contains(&to) && !links.parted.contains(&(from, to))
    }

    pub(crate) fn is_frozen(&self, qp: u32) -> bool {
        self.links.frozen.contains(&self.host_of(&self.qps[qp]))
    }

    pub(crate) fn freeze(&mut self, host: usize) {
        self.links.frozen.insert(host);
    }

    pub(crate) fn is_host_frozen(&self, host: usize) -> bool {
        self.links.frozen.contains(&host)
    }

    /// A host has lost its power: it is frozen no more.
    pub(crate) fn thaw_dead(&mut self, host: usize) {
        self.links.frozen.remove(&host);
    }

    fn host_of(&self, qp: &Qp) -> usize {
        self.nics[qp.nic].host
    }

    fn way_of(&self, qp: &Qp) -> Option<(usize, usize)> {
        let peer = self.qps.get(qp.peer?)?;
        Some((self.host_of(qp), self.host_of(peer)))
    }

    pub(crate) fn note_ends(&mut self, number: u32, peer: u32) {
        if let Some(peer) = self.qps.get(peer) {
            let ends = (self.host_of(&self.qps[number]), self.host_of(peer));
            self.links.ends.insert(number, ends);
        }
    }

    /// The host to which the requests of a queue pair go, or went.
    pub(crate) fn target_of(&self, number: u32) -> Option<usize> {
        self.links.ends.get(&number).map(|(_, to)| *to)
    }

    fn qps_where(&self, holds: impl Fn(&Qp) -> bool) -> Vec<u32> {
        let those = self.qps.iter().filter(|(_, qp)| holds(qp));
        those.map(|(number, _)| number).collect()
    }

    /// The requests of a send queue from one on were posted: where the network is slow they are on
    /// their way now.
    pub(crate) fn set_out(&mut self, number: u32, first: usize) {
        let way = self.way_of(&self.qps[number]);
        let Some(way) = way else {
            return;
        };
        let is_held = self.links.held.contains(&way);
        let set = self.links.delays.get(&way).copied();
        let delay = match set.filter(|_| !is_held) {
            Some(Delay::Always(delay)) => Some(delay),
            Some(Delay::UpTo(most)) => Some(most * self.thousandths(number, first) / 1000),
            None if is_held => None,
            None => match self.lateness(number, first) {
                Some(late) => Some(late),
                None => return,
            },
        };
        let delay_number = self.links.new_delay();
        for send in self.qps[number].sends.iter_mut().skip(first) {
            send.way.travels = Some(delay_number);
        }
        let arrival = Timer::Arrival {
            qp: number,
            delay: delay_number,
        };
        if let Some(delay) = delay {
            self.clock.after(delay, arrival);
        }
    }

    /// How long the requests from one on take, of the longest delay of their link.
    fn thousandths(&self, number: u32, first: usize) -> u32 {
        self.choose_for(Kind::Delay, 1001, number, &self.qps[number].sends[first])
    }

    /// How late the requests from one on arrive, where no test has set a delay: not at all, or so
    /// that others pass them.
    fn lateness(&mut self, number: u32, first: usize) -> Option<Duration> {
        let send = self.qps[number].sends.get(first)?;
        if !self.links.are_apart && !self.choices.explores() {
            return None;
        }
        let host = self.host_of(&self.qps[number]);
        let now = self.clock.now();
        if let Some((_, until)) = self
            .links
            .interrupted
            .filter(|it| it.0 == host && it.1 > now)
        {
            return Some(until - now);
        }
        match self.choose_for(Kind::Arrival, 4, number, send) {
            0 => None,
            1 => Some(self.late()),
            2 => Some(BEYOND_LIMITS),
            INTERRUPTED => {
                self.links.interrupted = Some((host, now + BEYOND_LIMITS));
                Some(BEYOND_LIMITS)
            }
            _ => {
                // Requests of a connection stay in order.
                let sends = &mut self.qps[number].sends;
                sends.iter_mut().for_each(|send| send.way.travels = None);
                None
            }
        }
    }

    /// Later than all that devices do by themselves.
    pub(crate) fn late(&self) -> Duration {
        2 * self.kept_back()
    }

    /// Requests have arrived: those of this delay, or all.
    pub(crate) fn arrived(&mut self, number: u32, delay: Option<u64>) {
        self.strays_arrive(number, delay);
        let Some(qp) = self.qps.get_mut(number) else {
            return;
        };
        let unsent = qp.tcp.iter_mut().flat_map(|tcp| &mut tcp.unsent);
        for send in qp.sends.iter_mut().chain(unsent.map(|(send, _)| send)) {
            if delay.is_none() || send.way.travels == delay {
                send.way.travels = None;
            }
        }
        if qp.state == QpState::ReadyToSend {
            self.posted(number);
        }
    }

    /// Returns the fault of a request that reaches its peer now. Retries of it are not counted
    /// again.
    pub(crate) fn fault(&mut self, number: u32, index: usize) -> Option<LinkFault> {
        let mut send = self.qps[number].sends[index].clone();
        let fault = self.fault_of(number, &mut send);
        self.qps[number].sends[index].way = send.way;
        fault
    }

    /// As that, of a request that need not be in the send queue.
    pub(crate) fn fault_of(&mut self, number: u32, send: &mut Send) -> Option<LinkFault> {
        let (from, to) = self.way_of(&self.qps[number])?;
        let is_plain_write = send.operation == Operation::Write(None);
        if !send.way.is_counted {
            send.way.is_counted = true;
            self.links.requests += 1;
            send.way.fault = self.links.count(from, to, |fault| match fault {
                LinkFault::Request
                | LinkFault::Acknowledgement
                | LinkFault::AllAcknowledgements
                | LinkFault::Packet
                | LinkFault::Answer => true,
                LinkFault::Rest { .. } => is_plain_write,
                LinkFault::Receive => false,
            });
            let one_in = self.links.loses.get(&(from, to)).copied();
            let is_lost =
                one_in.is_some_and(|one_in| self.choose_for(Kind::Loss, one_in, number, send) == 0);
            if is_lost && send.way.fault.is_none() {
                send.way.fault = Some(LinkFault::Packet);
            }
            if let Some(fault) = send.way.fault {
                self.note_fault(number, send, fault);
            }
        }
        send.way.fault
    }

    /// A request has had its fault. If it is tried once more it must not be executed again.
    pub(crate) fn is_lost(&mut self, number: u32, index: usize) {
        self.qps[number].sends[index].way.fault = Some(LinkFault::Request);
    }

    /// Whether the peer's answers to a queue pair arrive.
    pub(crate) fn hears(&self, number: u32) -> bool {
        let qp = &self.qps[number];
        let way = self.way_of(qp);
        !qp.is_deaf && way.is_none_or(|(here, there)| self.reaches(there, here))
    }

    /// All requests of a queue are sent again: a device goes back to the first that was not
    /// acknowledged.
    pub(crate) fn resend(&mut self, number: u32) {
        let way = self.way_of(&self.qps[number]);
        if way.is_some_and(|(_, to)| self.links.frozen.contains(&to)) {
            // The first ones are not lost: the host takes them when it goes on.
            return;
        }
        for send in &mut self.qps[number].sends {
            send.way.is_resent = true;
        }
    }

    pub(crate) fn fault_is_over(&mut self, number: u32, index: usize) {
        self.qps[number].sends[index].way.fault = None;
    }

    /// A request was executed, and its acknowledgement is lost.
    pub(crate) fn is_executed(&mut self, number: u32, index: usize) {
        self.qps[number].sends[index].way.is_executed = true;
    }

    /// Whether a message that takes a receive of a queue pair now is never complete.
    pub(crate) fn loses_receive(&mut self, peer: u32) -> bool {
        let host = self.host_of(&self.qps[peer]);
        let lost = |fault| fault == LinkFault::Receive;
        self.links.count(host, host, lost).is_some()
    }

    pub(crate) fn may_lose_receive(&self, peer: u32) -> bool {
        let host = self.host_of(&self.qps[peer]);
        let mut armed = self.links.armed.iter();
        armed.any(|armed| armed.fault == LinkFault::Receive && armed.to == Some(host))
    }

    /// Some hosts reach each other again. One of them may have been frozen.
    fn go_on(&mut self, thawed: Option<usize>) {
        for (from, to, message) in std::mem::take(&mut self.links.kept) {
            if self.reaches(from, to) {
                self.deliver(message)
            } else {
                self.links.keep(from, to, message)
            }
        }
        self.resolve_again();
        if let Some(host) = thawed {
            self.land_on(host);
        }
        let of_thawed = |qp: &Qp| thawed == Some(self.host_of(qp));
        let unanswered = |qp: &Qp| matches!(qp.waiting, Some(Waiting::Answer { .. }));
        for number in self.qps_where(|qp| of_thawed(qp) || unanswered(qp)) {
            let qp = &mut self.qps[number];
            match qp.state {
                QpState::Init | QpState::ReadyToReceive => {}
                QpState::Error => self.flush(number),
                QpState::ReadyToSend => {
                    qp.kept_since = None;
                    qp.waiting = qp.waiting.filter(|waiting| *waiting != Waiting::Network);
                    self.run(number);
                }
            }
        }
    }
}
