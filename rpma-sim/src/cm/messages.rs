//! The messages between ids: how they arrive, and the end of an id with an unanswered message.
//!
//! The kernel repeats a request, a reply and a disconnect until they are answered, and an answer
//! to them for each repetition (`drivers/infiniband/core/cm.c`). So these wait for hosts that do
//! not reach each other. All others are sent once.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::channel::Kind;
use super::{BACKLOG, Id, NO_LISTENER, Stage};
use crate::state::State;
use crate::timer::Timer;

/// For how long the kernel repeats an unanswered message: 4.096 µs · 2²⁰, 16 times
/// (`CMA_CM_RESPONSE_TIMEOUT`, `CMA_MAX_CM_RETRIES` in `drivers/infiniband/core/cma.c`).
const UNANSWERED: Duration = Duration::from_nanos((4_096 << 20) * 16);

/// And for how long one that has arrived, but that the other program does not answer. Its kernel
/// asks for more time when the message is repeated, 4.096 µs · 2²⁴ each of the 15 times that are
/// left (`CMA_CM_MRA_SETTING`).
const NOT_DECIDED: Duration = Duration::from_nanos((4_096 << 20) + (4_096 << 24) * 15);

/// A message that is repeated until it is answered, or an answer to one.
#[derive(Debug)]
pub(crate) enum Message {
    Request {
        client: u32,
    },
    /// A request is accepted, with private data.
    Reply {
        server: u32,
        data: Vec<u8>,
    },
    /// The answer to a reply.
    Ready {
        server: u32,
    },
    Disconnect {
        from: u32,
        to: u32,
    },
    /// The answer to a disconnect.
    Disconnected {
        to: u32,
    },
    /// The end of a TCP stream.
    Closed {
        to: u32,
    },
    /// A client that a reject has not reached repeats its request. It waits for the way of the
    /// reject: repetitions before would be rejected as well.
    Unheard {
        client: u32,
    },
    /// A reject through a TCP stream, with private data.
    Refused {
        client: u32,
        data: Vec<u8>,
    },
}

impl State {
    pub(super) fn enter(&mut self, number: u32, stage: Stage) {
        let before = std::mem::replace(&mut self.ids[number].stage, stage);
        if before.awaits_answer() {
            let stage = before;
            self.clock.cancel(Timer::Unanswered { id: number, stage });
        }
        if stage.awaits_answer() {
            let tcp = self.tcp_of_id(number);
            self.limit(number, tcp.map_or(UNANSWERED, |tcp| tcp.decides));
        }
    }

    /// The answer that an id waits for comes within this time.
    fn limit(&mut self, number: u32, limit: Duration) {
        let stage = self.ids[number].stage;
        let timer = Timer::Unanswered { id: number, stage };
        self.clock.cancel(timer);
        self.clock.after(limit, timer);
    }

    pub(crate) fn unanswered(&mut self, number: u32, stage: Stage) {
        if self.ids.get(number).is_none_or(|id| id.stage != stage) {
            return;
        }
        if stage == Stage::Ending {
            let status = -Errno::TIMEDOUT.raw_os_error();
            self.notify(number, Kind::Disconnected(status));
            return self.over(number);
        }
        self.enter(number, Stage::Over);
        let peer = self.ids[number].peer.take();
        self.notify(number, Kind::Unreachable);
        match peer {
            Some(to) if self.is_stream(number) => self.send(number, Message::Closed { to }),
            Some(peer) => self.ask_again(peer),
            None => {}
        }
    }

    pub(super) fn ends(&self, number: u32) -> (usize, usize) {
        let id = &self.ids[number];
        let to = id.dst.and_then(|dst| self.host_of_addr(dst.ip()));
        (id.host, to.expect("a connection leads to a device"))
    }

    pub(super) fn reaches_other(&self, number: u32) -> bool {
        let (from, to) = self.ends(number);
        self.reaches(from, to)
    }

    pub(super) fn send(&mut self, number: u32, message: Message) {
        self.send_between(self.ends(number), message);
    }

    pub(crate) fn send_between(&mut self, (from, to): (usize, usize), message: Message) {
        if self.reaches(from, to) {
            self.deliver(message)
        } else {
            self.links.keep(from, to, message)
        }
    }

    pub(crate) fn deliver(&mut self, message: Message) {
        match message {
            Message::Request { client } => self.requested(client),
            Message::Reply { server, data } => self.replied(server, data),
            Message::Ready { server } => {
                if self.has_stage(server, &[Stage::Accepted]) {
                    self.enter(server, Stage::Established);
                    self.notify(server, Kind::Established);
                }
            }
            Message::Disconnect { from, to } => {
                // An id that is gone sends no repetitions (`cm_destroy_id`).
                if !self.has_stage(from, &[Stage::Ending]) {
                    return;
                }
                // Both may send it at the same time.
                if self.has_stage(to, &[Stage::Established, Stage::Accepted, Stage::Ending]) {
                    self.enter(to, Stage::Ended);
                    return self.notify(to, Kind::Disconnected(0));
                }
                // It is answered for an id without a connection (`cm_issue_drep`).
                if !self.has_stage(to, &[Stage::Ended]) {
                    self.deliver(Message::Disconnected { to: from });
                }
            }
            Message::Disconnected { to } => {
                if self.has_stage(to, &[Stage::Ending]) {
                    self.notify(to, Kind::Disconnected(0));
                    self.over(to);
                }
            }
            Message::Closed { to } => self.closed(to),
            Message::Unheard { client } => self.ask_again(client),
            Message::Refused { client, data } => {
                if self.has_stage(client, &[Stage::Asked]) {
                    self.rejected(client, self.profiles[self.ids[client].host].rejected, &data);
                }
            }
        }
    }

    pub(super) fn has_stage(&self, number: u32, stages: &[Stage]) -> bool {
        let id = self.ids.get(number);
        id.is_some_and(|id| stages.contains(&id.stage))
    }

    fn requested(&mut self, client: u32) {
        if !self.has_stage(client, &[Stage::Asked]) {
            return;
        }
        let id = &self.ids[client];
        let (src, dst, depths) = (id.src, id.dst.expect("it is resolved"), id.own);
        let their_qp = id.own_qp;
        let Some(listener) = self.listener(dst) else {
            return self.rejected(client, NO_LISTENER, &[]);
        };
        let host = self.ids[listener].host;
        let is_stream = self.is_stream(client);
        if self.profiles[host].tcp.is_some() != is_stream {
            // It speaks another protocol, and does not answer.
            return;
        }
        let channel = Arc::clone(&self.ids[listener].channel);
        if channel.requests(listener) >= BACKLOG {
            // It is dropped. The kernel asks again, here its time runs out.
            return;
        }
        let request = self.ids.add(|_| Id {
            stage: Stage::Requested,
            nic: None,
            src: Some(dst),
            dst: src,
            peer: Some(client),
            theirs: depths,
            their_qp,
            ..Id::new(host, channel)
        });
        self.ids[request].nic = self.nic_of(dst.ip());
        self.ids[client].peer = Some(request);
        if !is_stream {
            self.limit(client, NOT_DECIDED);
        }
        let data = self.ids[client].request.clone();
        self.notify(listener, Kind::Request { request, data });
    }

    fn replied(&mut self, server: u32, data: Vec<u8>) {
        if !self.has_stage(server, &[Stage::Accepted, Stage::Established]) {
            return;
        }
        let Some(client) = self.ids[server].peer else {
            return;
        };
        if !self.has_stage(client, &[Stage::Asked]) {
            return;
        }
        self.ids[client].theirs = self.ids[server].own;
        self.ids[client].their_qp = self.ids[server].own_qp;
        if self.is_stream(client) {
            return self.stream_is_accepted(client, data);
        }
        self.enter(client, Stage::Answered);
        self.limit(server, NOT_DECIDED);
        self.notify(client, Kind::Response(data));
    }

    /// An id does not want a connection. That is said once: a client that is not reached asks
    /// again then.
    pub(super) fn refuse(&mut self, number: u32, peer: u32, data: &[u8]) {
        if self.is_stream(number) {
            let data = data.to_vec();
            return self.send(number, Message::Refused { client: peer, data });
        }
        let waits = [Stage::Asked, Stage::Answered, Stage::Accepted];
        if self.reaches_other(number) {
            if self.has_stage(peer, &waits) {
                self.rejected(peer, self.profiles[self.ids[peer].host].rejected, data);
            }
        } else {
            self.send(number, Message::Unheard { client: peer });
        }
    }

    /// The other end has forgotten a client's request, which is new to it when it is repeated.
    fn ask_again(&mut self, client: u32) {
        if self.has_stage(client, &[Stage::Asked]) {
            self.ids[client].peer = None;
            self.send(client, Message::Request { client });
        }
    }

    /// An id learns that the other end does not want it.
    pub(super) fn rejected(&mut self, number: u32, reason: i32, data: &[u8]) {
        self.enter(number, Stage::Over);
        self.ids[number].peer = None;
        let private_data = self.private_data(number);
        let data = private_data.arrives(data, private_data.reject);
        self.notify(number, Kind::Rejected(reason, data));
    }
}
