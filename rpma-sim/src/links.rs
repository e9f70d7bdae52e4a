//! The network between hosts: what it loses, delays and keeps back, and hosts whose device does nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::cm::Message;
use crate::fabric::{Fabric, Host};
use crate::qp::{Operation, Qp, QpState, Waiting};
use crate::state::{Shared, State};
use crate::strays::Strays;
use crate::timer::Timer;

/// What happens to a request on its way, which then ends as `IBV_WC_RETRY_EXC_ERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not arrive.
    Request,
    /// It is executed, and the requester never hears of it.
    Acknowledgement,
    /// As that, and so is every later request of its queue pair, until the retries are exhausted.
    AllAcknowledgements,
    /// One packet of it is lost, and it is sent again.
    Packet,
    /// Its acknowledgement is lost once, and it is sent again.
    Answer,
    /// Of a plain write: only so many bytes of it arrive.
    Rest { placed: usize },
    /// Of a message: it takes a receive, and is never complete.
    Receive,
}

/// What the network has to do with one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Way {
    /// It is still on its way: the number of the delay that ends that.
    travels: Option<u64>,
    is_counted: bool,
    fault: Option<Fault>,
    /// It was executed, and its acknowledgement was lost.
    is_executed: bool,
    /// It was sent, and is sent again.
    is_resent: bool,
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

    /// It is on its way from now on, unless it is already.
    pub(crate) fn set_out(&mut self, delay: u64) {
        self.travels.get_or_insert(delay);
    }

    pub(crate) fn is(&self, delay: Option<u64>) -> bool {
        self.travels == delay
    }
}

/// The state of the network.
#[derive(Debug, Default)]
pub(crate) struct Links {
    frozen: BTreeSet<usize>,
    /// From where to where nothing arrives.
    parted: BTreeSet<(usize, usize)>,
    delays: BTreeMap<(usize, usize), Delay>,
    /// One request in so many loses a packet.
    loses: BTreeMap<(usize, usize), u32>,
    /// Where requests stay on their way until they are released.
    held: BTreeSet<(usize, usize)>,
    next_delay: u64,
    requests: u32,
    armed: Vec<Armed>,
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

/// A fault that is to happen, once.
#[derive(Debug)]
struct Armed {
    /// From anywhere and to anywhere, if there is none.
    from: Option<usize>,
    to: Option<usize>,
    fault: Fault,
    /// How many requests are left before the one that it is about.
    before: u32,
}

impl Links {
    /// The number of one more delay.
    pub(crate) fn new_delay(&mut self) -> u64 {
        self.next_delay += 1;
        self.next_delay
    }

    /// A message of the connection manager waits until the hosts reach each other.
    pub(crate) fn keep(&mut self, from: usize, to: usize, message: Message) {
        self.kept.push((from, to, message));
    }

    /// How many requests there were.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    pub(crate) fn arm(&mut self, from: Option<usize>, to: Option<usize>, nth: u32, fault: Fault) {
        assert!(nth > 0, "the first one is number 1");
        let before = nth - 1;
        self.armed.push(Armed {
            from,
            to,
            fault,
            before,
        });
    }

    /// Counts something that arrives, for all armed faults that it is about; the first one that is due happens.
    fn count(&mut self, from: usize, to: usize, is_about: impl Fn(Fault) -> bool) -> Option<Fault> {
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
    /// Whether what one host sends arrives at the other one.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        let links = &self.links;
        !self.is_dead(from)
            && !self.is_dead(to)
            && !links.frozen.contains(&from)
            && !links.frozen.contains(&to)
            && !links.parted.contains(&(from, to))
    }

    /// Whether the network takes what one host has sent to another one, which may have lost its power since.
    pub(crate) fn has_way(&self, from: usize, to: usize) -> bool {
        let links = &self.links;
        !self.is_dead(to) && !links.frozen.contains(&to) && !links.parted.contains(&(from, to))
    }

    /// Whether a queue pair is of a device that does nothing.
    pub(crate) fn is_frozen(&self, qp: u32) -> bool {
        self.links.frozen.contains(&self.host_of(&self.qps[qp]))
    }

    /// A host has lost its power: nothing of it is frozen any more.
    pub(crate) fn thaw_dead(&mut self, host: usize) {
        self.links.frozen.remove(&host);
    }

    fn host_of(&self, qp: &Qp) -> usize {
        self.nics[qp.nic].host
    }

    /// From where to where a queue pair's requests go.
    fn way_of(&self, qp: &Qp) -> Option<(usize, usize)> {
        let peer = self.qps.get(qp.peer?)?;
        Some((self.host_of(qp), self.host_of(peer)))
    }

    /// The queue pairs for which that holds.
    fn qps_where(&self, holds: impl Fn(&Qp) -> bool) -> Vec<u32> {
        let those = self.qps.iter().filter(|(_, qp)| holds(qp));
        those.map(|(number, _)| number).collect()
    }

    /// The requests of a send queue from one on were posted: where the network is slow they are on their way now.
    pub(crate) fn set_out(&mut self, number: u32, first: usize) {
        let way = self.way_of(&self.qps[number]);
        let Some(way) = way else {
            return;
        };
        let delay = self.links.delays.get(&way).copied();
        let is_held = self.links.held.contains(&way);
        if delay.is_none() && !is_held {
            return;
        }
        let delay_number = self.links.new_delay();
        for send in self.qps[number].sends.iter_mut().skip(first) {
            send.way.travels = Some(delay_number);
        }
        let arrival = Timer::Arrival {
            qp: number,
            delay: delay_number,
        };
        let delay = match delay.filter(|_| !is_held) {
            Some(Delay::Always(delay)) => delay,
            Some(Delay::UpTo(most)) => most * self.chance(1001) / 1000,
            None => return,
        };
        self.clock.after(delay, arrival);
    }

    /// Requests have arrived: those of this delay, or all.
    pub(crate) fn arrived(&mut self, number: u32, delay: Option<u64>) {
        self.strays_arrive(number, delay);
        let Some(qp) = self.qps.get_mut(number) else {
            return;
        };
        for send in &mut qp.sends {
            if delay.is_none() || send.way.travels == delay {
                send.way.travels = None;
            }
        }
        if qp.state == QpState::ReadyToSend {
            self.posted(number);
        }
    }

    /// What happens to a request that reaches its peer now. Retries of it are not counted again.
    pub(crate) fn fault(&mut self, number: u32, index: usize) -> Option<Fault> {
        let (from, to) = self.way_of(&self.qps[number])?;
        let send = &mut self.qps[number].sends[index];
        let is_plain_write = send.operation == Operation::Write(None);
        if !send.way.is_counted {
            send.way.is_counted = true;
            self.links.requests += 1;
            send.way.fault = self.links.count(from, to, |fault| match fault {
                Fault::Request
                | Fault::Acknowledgement
                | Fault::AllAcknowledgements
                | Fault::Packet
                | Fault::Answer => true,
                Fault::Rest { .. } => is_plain_write,
                Fault::Receive => false,
            });
            let one_in = self.links.loses.get(&(from, to)).copied();
            let is_lost = one_in.is_some_and(|one_in| self.chance(one_in) == 0);
            let way = &mut self.qps[number].sends[index].way;
            if is_lost && way.fault.is_none() {
                way.fault = Some(Fault::Packet);
            }
        }
        self.qps[number].sends[index].way.fault
    }

    /// A request has had its fault. If it is tried once more it must not be executed again.
    pub(crate) fn is_lost(&mut self, number: u32, index: usize) {
        self.qps[number].sends[index].way.fault = Some(Fault::Request);
    }

    /// Whether what the peer answers to a queue pair arrives.
    pub(crate) fn hears(&self, number: u32) -> bool {
        let qp = &self.qps[number];
        let way = self.way_of(qp);
        !qp.is_deaf && way.is_none_or(|(here, there)| self.reaches(there, here))
    }

    /// All requests of a queue are sent again: a device goes back to the first that was not acknowledged.
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

    /// A fault of a request is over.
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
        let lost = |fault| fault == Fault::Receive;
        self.links.count(host, host, lost).is_some()
    }

    /// Whether a message that takes a receive of a queue pair may be one that is never complete.
    pub(crate) fn may_lose_receive(&self, peer: u32) -> bool {
        let host = self.host_of(&self.qps[peer]);
        let mut armed = self.links.armed.iter();
        armed.any(|armed| armed.fault == Fault::Receive && armed.to == Some(host))
    }

    /// Some hosts reach each other again, of which one may have been frozen.
    fn go_on(&mut self, thawed: Option<usize>) {
        for (from, to, message) in std::mem::take(&mut self.links.kept) {
            match self.reaches(from, to) {
                true => self.deliver(message),
                false => self.links.keep(from, to, message),
            }
        }
        self.resolve_again();
        let of_thawed = |qp: &Qp| thawed == Some(self.host_of(qp));
        let unanswered = |qp: &Qp| matches!(qp.waiting, Some(Waiting::Answer { .. }));
        for number in self.qps_where(|qp| of_thawed(qp) || unanswered(qp)) {
            let qp = &mut self.qps[number];
            match qp.state {
                QpState::Init | QpState::ReadyToReceive => {}
                QpState::Error => self.flush(number),
                QpState::ReadyToSend => {
                    qp.is_kept_back = false;
                    qp.waiting = qp.waiting.filter(|waiting| *waiting != Waiting::Network);
                    self.run(number);
                }
            }
        }
    }
}

/// The way from one host to another, and what happens on it: see [`Fabric::between`].
///
/// A reliable connection repeats packets that get lost, so that a program sees nothing of one, or of some. What it sees
/// is a request all of whose repetitions were lost, and that is what can be lost here. It ends as `RETRY_EXC_ERR`
/// (`IBV_WC_RETRY_EXC_ERR`), with which its queue pair fails; the responder's queue pair does not know of it, and fails
/// when it sends something itself (IBA 9.9.2, 11.6.2). A device takes the acknowledgement timeout for that, as many
/// times as there are retries and once more, and soft-RoCE has no end with a retry count of 7 (`rxe_comp.c`); here it
/// ends at once, on each profile.
///
/// Requests are those of queue pairs, as devices know them: `rpma`'s flush is a read where the device has no flush of
/// its own, and `Conn::close` writes 0 bytes. They are counted from the call on, in the order in which the peer gets
/// them, each once: a message that finds no receive and is repeated is one. Each call is about one request, and several
/// may be armed at once; of two that are due at the same request the one that was armed later happens to the next.
///
/// Both hosts may be the same.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
    from: usize,
    to: usize,
}

impl Fabric {
    /// The network from `client` to `server`, where something can go wrong. Which of them has connected does not
    /// matter: it is about the requests that queue pairs of `client` send to queue pairs of `server`.
    ///
    /// # Panics
    ///
    /// If one of them is a host of another fabric.
    #[must_use]
    pub fn between(&self, client: &Host, server: &Host) -> Link {
        for host in [client, server] {
            let is_own = Arc::ptr_eq(self.shared(), host.shared());
            assert!(is_own, "a host of another fabric");
        }
        Link {
            shared: Arc::clone(self.shared()),
            from: client.index(),
            to: server.index(),
        }
    }
}

impl Link {
    /// The `nth` request from now on, 1 being the next, does not arrive: it is not executed, and ends as
    /// `RETRY_EXC_ERR`.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_request(&self, nth: u32) {
        self.arm(nth, Fault::Request);
    }

    /// The `nth` request from now on, 1 being the next, is executed, and yet ends as `RETRY_EXC_ERR`: its
    /// acknowledgement does not arrive. The requester cannot tell this from [`lose_request`](Self::lose_request). Of a
    /// read nothing is placed, as the bytes come with the answer.
    ///
    /// One that the responder refuses ends as refused.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_acknowledgement(&self, nth: u32) {
        self.arm(nth, Fault::Acknowledgement);
    }

    /// The `nth` request from now on, 1 being the next, is executed, and so are all later requests of its queue pair.
    /// None of their acknowledgements arrives. The device sends the `nth` request again until its retries are
    /// exhausted, and until then the requests that the program posts are executed as well. Then the `nth` request ends
    /// as `RETRY_EXC_ERR`, and the others as flushed.
    ///
    /// So the first operation that failed need not be the first that was not executed.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_acknowledgements(&self, nth: u32) {
        self.arm(nth, Fault::AllAcknowledgements);
    }

    /// One packet of the `nth` request from now on, 1 being the next, is lost. The device sends the request again after
    /// its acknowledgement timeout, and with it all later requests, so that nothing but time is lost.
    ///
    /// On soft-RoCE of Linux 6.12 a native flush or atomic write that is sent again fails with `REM_ACCESS_ERR`.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_packet(&self, nth: u32) {
        self.arm(nth, Fault::Packet);
    }

    /// The acknowledgement of the `nth` request from now on, 1 being the next, is lost once: the request is executed, and
    /// completes after the device has sent it again.
    ///
    /// On soft-RoCE of Linux 6.12 a native flush or atomic write ends as `RETRY_EXC_ERR` instead, when its retries are
    /// exhausted.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_answer(&self, nth: u32) {
        self.arm(nth, Fault::Answer);
    }

    /// Of the `nth` plain RDMA write from now on, 1 being the next, only the first `bytes` bytes are placed, and it
    /// ends as `RETRY_EXC_ERR`. Writes with immediate data, atomic writes and all other requests are not counted;
    /// `Conn::atomic_write` is a plain write where the device has no atomic one.
    ///
    /// A device sends a write in packets and places each one as it comes, so multiples of the path's MTU are what
    /// happens: 1024 bytes on soft-RoCE over Ethernet, up to 4096. Any other number is taken as well. Of a write that
    /// is not longer than `bytes` all is placed.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn place_only(&self, nth: u32, bytes: usize) {
        self.arm(nth, Fault::Rest { placed: bytes });
    }

    /// From now on each request is executed so much later than it is posted. Requests stay in order, and many are on
    /// their way at the same time. Acknowledgements and the connection manager's messages take no time.
    ///
    /// A delay is no silence: devices do not begin to count their retries for it, however long it is.
    ///
    /// If the requester's queue pair fails, is disconnected or destroyed meanwhile, the seed chooses a prefix of the
    /// requests that are on their way. They are executed in their time, if the responder's queue pair still takes
    /// requests then. Nothing answers them.
    ///
    /// Those that are on their way keep their delay; with [`Duration::ZERO`] they arrive at once, and so do all later
    /// ones.
    pub fn delay(&self, duration: Duration) {
        let mut state = self.shared.lock();
        let way = (self.from, self.to);
        if !duration.is_zero() {
            state.links.delays.insert(way, Delay::Always(duration));
            return;
        }
        state.links.delays.remove(&way);
        for number in state.qps_where(|qp| state.way_of(qp) == Some(way)) {
            state.arrived(number, None);
        }
    }

    /// As [`delay`](Self::delay), with another delay for each post, up to this one, by the seed. Requests of a connection
    /// stay in order.
    pub fn delay_up_to(&self, most: Duration) {
        let way = (self.from, self.to);
        let delays = &mut self.shared.lock().links.delays;
        delays.insert(way, Delay::UpTo(most));
    }

    /// From now on one request in so many, by the seed, loses a packet, as of [`lose_packet`](Self::lose_packet). 0 ends
    /// that.
    pub fn lose_packets(&self, one_in: u32) {
        let way = (self.from, self.to);
        let loses = &mut self.shared.lock().links.loses;
        match one_in {
            0 => drop(loses.remove(&way)),
            _ => drop(loses.insert(way, one_in)),
        }
    }

    /// From now on requests stay on their way until [`release`](Self::release): no device takes them for lost.
    /// Acknowledgements and the connection manager's messages are not held.
    ///
    /// If their requester goes meanwhile, a prefix of them stays on its way, as of [`delay`](Self::delay).
    pub fn hold(&self) {
        let way = (self.from, self.to);
        self.shared.lock().links.held.insert(way);
    }

    /// Ends a [`hold`](Self::hold): all requests that are on their way arrive at once, in their order, delayed ones as
    /// well.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        let way = (self.from, self.to);
        state.links.held.remove(&way);
        for number in state.strays_on(way) {
            state.strays_arrive(number, None);
        }
        for number in state.qps_where(|qp| state.way_of(qp) == Some(way)) {
            state.arrived(number, None);
        }
    }

    /// From now on nothing arrives, in either direction, until [`heal`](Self::heal).
    ///
    /// A request is repeated until its retries are exhausted, and ends as `RETRY_EXC_ERR` then. On soft-RoCE a retry
    /// count of 7 has no end.
    ///
    /// The connection manager repeats messages as well, as the kernel's does (`drivers/infiniband/core/cm.c` and
    /// `cma.c`):
    ///
    /// * A request for a connection, a reply and a disconnect are repeated 15 times, each 4.3 s
    ///   (`CMA_CM_RESPONSE_TIMEOUT`, `CMA_MAX_CM_RETRIES`), until 69 s have passed. A connect, or an accept, ends with
    ///   `RDMA_CM_EVENT_UNREACHABLE` then, and a disconnect with `RDMA_CM_EVENT_DISCONNECTED`, both with the status
    ///   `-ETIMEDOUT`. (A request or a reply that has arrived, but that the other program does not answer, has 17
    ///   minutes, with a partition or without: the other kernel asks for more time, `CMA_CM_MRA_SETTING`.)
    /// * A reject is sent once. If it is lost the client asks again, and the listener gets one more request.
    /// * What an id says when it is destroyed is sent once as well. So a connection that one end drops while the other
    ///   is not reached stays open at the other end, until that sends something which nobody answers.
    /// * An address is resolved when its host is reached, if that is in time. (No host remembers where another one is,
    ///   as a kernel does for a while.)
    pub fn partition(&self) {
        let parted = &mut self.shared.lock().links.parted;
        parted.extend([(self.from, self.to), (self.to, self.from)]);
    }

    /// From now on nothing arrives in this direction, until [`heal`](Self::heal). The other direction is open.
    ///
    /// Requests of the other direction arrive and are executed, and their acknowledgements are lost: as of
    /// [`lose_acknowledgements`](Self::lose_acknowledgements), for each connection. Requests of this direction, and
    /// messages of the connection manager, are those of a [`partition`](Self::partition).
    pub fn block(&self) {
        let way = (self.from, self.to);
        self.shared.lock().links.parted.insert(way);
    }

    /// Ends a [`partition`](Self::partition) or a [`block`](Self::block), in both directions: what it kept back arrives
    /// at once. (A device waits until it is time for the next repetition.)
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        let parted = &mut state.links.parted;
        let there = parted.remove(&(self.from, self.to));
        let back = parted.remove(&(self.to, self.from));
        if there || back {
            state.go_on(None);
        }
    }

    /// Takes back the lost requests and acknowledgements and the partial writes on this way that have not happened yet;
    /// how many there were.
    pub fn disarm(&self) -> usize {
        let mut state = self.shared.lock();
        let armed = &mut state.links.armed;
        let before = armed.len();
        armed.retain(|armed| armed.from != Some(self.from) || armed.to != Some(self.to));
        before - armed.len()
    }

    fn arm(&self, nth: u32, fault: Fault) {
        let mut state = self.shared.lock();
        state.links.arm(Some(self.from), Some(self.to), nth, fault);
    }
}

impl Host {
    /// From now on its devices do nothing, until [`thaw`](Self::thaw): they send, serve and complete nothing, and their
    /// retries do not count down. For its peers it is a host that does not answer; what they see of it is that of a
    /// [`partition`](Link::partition).
    ///
    /// Its threads go on: what is posted stays in the queues, and requests that a disconnect or a failure flushes are
    /// completed only after `thaw`. The connection manager goes on too, with its time limits, but sends and gets
    /// nothing.
    pub fn freeze(&self) {
        self.shared().lock().links.frozen.insert(self.index());
    }

    /// Ends a [`freeze`](Self::freeze): the devices do at once what they have to do.
    pub fn thaw(&self) {
        let mut state = self.shared().lock();
        if state.links.frozen.remove(&self.index()) {
            state.go_on(Some(self.index()));
        }
    }

    /// The `nth` message that takes a receive on this host from now on, 1 being the next, is never complete, as that of
    /// a client that dies in the middle of it: neither is the receive. Nothing of the message is placed. Messages are
    /// sends and writes with immediate data, of queue pairs of any host.
    ///
    /// At the requester it ends as `RETRY_EXC_ERR`, at once as of [`Link::lose_request`]. A receive of a shared receive
    /// queue is taken from all connections (`get_srq_wqe` in soft-RoCE's `rxe_resp.c`). When the
    /// queue pair fails, a [strict](crate::Profile::STRICT) adapter and soft-RoCE of Linux 6.1
    /// return it as flushed; soft-RoCE of Linux 6.12 never does. A receive of a queue pair's own
    /// queue is flushed with the others when the queue pair fails.
    ///
    /// # Panics
    ///
    /// If `nth` is 0.
    pub fn lose_receive(&self, nth: u32) {
        let mut state = self.shared().lock();
        state
            .links
            .arm(None, Some(self.index()), nth, Fault::Receive);
    }
}
