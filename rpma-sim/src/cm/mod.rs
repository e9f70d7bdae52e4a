//! The connection manager: ids, their stages, and the messages between them.
//!
//! A message arrives when it is sent, if the hosts reach each other (`messages.rs`). An event on
//! the id's channel reports its effect on the id. Some of the effect comes only when the program
//! reads the event, as in librdmacm: a client's queue pair is connected then, and its last message
//! is sent.

mod addr;
mod attributes;
mod by_itself;
mod calls;
mod channel;
mod messages;
mod streams;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

pub use self::attributes::rdma_init_qp_attr;
pub(crate) use self::by_itself::{BY_ITSELF, NOTICES};
pub use self::calls::{
    rdma_accept, rdma_bind_addr, rdma_connect, rdma_create_id, rdma_create_qp_ex, rdma_destroy_id,
    rdma_disconnect, rdma_get_local_addr, rdma_get_peer_addr, rdma_listen, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
use self::channel::{Channel, Kind};
pub use self::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
    rdma_migrate_id,
};
pub(crate) use self::messages::Message;
use crate::call::Result;
use crate::device::{MAX_RD_ATOM, is_in_network};
use crate::profile::PrivateData;
use crate::state::State;
use crate::timer::Timer;
use crate::types::{rdma_cm_id, rdma_conn_param};

/// Why a request is rejected (`enum ib_cm_rej_reason`).
const NO_LISTENER: i32 = 8;
const STALE: i32 = 10;

/// How many requests wait for a listener; the kernel's maximum.
const BACKLOG: usize = 1024;

#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) host: usize,
    /// The program's struct of it. A request has no struct before the program reads its event.
    user: Option<NonNull<rdma_cm_id>>,
    channel: Arc<Channel>,
    /// Events that were read and not acknowledged.
    unacknowledged: u32,
    stage: Stage,
    nic: Option<usize>,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    qp: Option<u32>,
    /// The number of the queue pair that its request or its reply names.
    own_qp: u32,
    /// And that of the other end's.
    their_qp: u32,
    is_client: bool,
    /// The id at the other end.
    peer: Option<u32>,
    /// The depths that this end has asked for, or has accepted.
    own: Depths,
    /// The depths in the request or the reply of the other end.
    theirs: Depths,
    /// The private data of its request, which may have to be repeated.
    request: Vec<u8>,
    ack_timeout: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Idle,
    Bound,
    Listening,
    ResolvingAddr,
    AddrResolved,
    RouteResolved,
    Asked,
    /// It stands for a request.
    Requested,
    Accepted,
    /// It has been accepted, and the program has not read that yet.
    Answered,
    Established,
    /// It has said that it ends.
    Ending,
    /// The other end has said so.
    Ended,
    /// No event comes any more, except that it is forgotten.
    Over,
}

impl Stage {
    fn is_asked(self) -> bool {
        self > Self::RouteResolved
    }

    fn awaits_answer(self) -> bool {
        matches!(self, Self::Asked | Self::Accepted | Self::Ending)
    }
}

/// The parameters about reads and retries that both ends exchange.
#[derive(Clone, Copy, Debug, Default)]
struct Depths {
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
}

impl Depths {
    fn of(param: &rdma_conn_param) -> Self {
        Self {
            // A larger number, as `RDMA_MAX_RESP_RES`, is the device's limit.
            responder_resources: param.responder_resources.min(MAX_RD_ATOM),
            initiator_depth: param.initiator_depth.min(MAX_RD_ATOM),
            // They have 3 bits.
            retry_count: param.retry_count & 7,
            rnr_retry_count: param.rnr_retry_count & 7,
        }
    }
}

impl Id {
    fn new(host: usize, channel: Arc<Channel>) -> Self {
        Self {
            host,
            user: None,
            channel,
            unacknowledged: 0,
            stage: Stage::Idle,
            nic: None,
            src: None,
            dst: None,
            qp: None,
            own_qp: 0,
            their_qp: 0,
            is_client: false,
            peer: None,
            own: Depths::default(),
            theirs: Depths::default(),
            request: Vec::new(),
            ack_timeout: None,
        }
    }
}

impl State {
    fn private_data(&self, number: u32) -> &PrivateData {
        &self.profiles[self.ids[number].host].private_data
    }

    fn notify(&mut self, number: u32, kind: Kind) {
        let host = self.ids[number].host;
        self.choices.with_script(|script| script.tell(host));
        self.effects
            .happens(|| format!("{} for {}", kind.name(), self.hosts[host]));
        self.ids[number].channel.push(number, kind);
    }

    fn bind(&mut self, number: u32, addr: SocketAddr) -> Result<()> {
        if self.ids[number].stage != Stage::Idle {
            return Err(Errno::INVAL);
        }
        let host = self.ids[number].host;
        // The loopback interface is no device's.
        let nic = if addr.ip().is_unspecified() || addr.ip().is_loopback() {
            None
        } else {
            let nic = self.nic_of(addr.ip()).ok_or(Errno::NODEV)?;
            if self.nics[nic].host != host {
                return Err(Errno::NODEV);
            }
            Some(nic)
        };
        let port = match addr.port() {
            0 => self.free_port(host),
            port => self.check_port(host, addr).map(|()| port)?,
        };
        let id = &mut self.ids[number];
        id.stage = Stage::Bound;
        id.src = Some(SocketAddr::new(addr.ip(), port));
        id.nic = nic;
        self.show(number);
        Ok(())
    }

    /// Whether a port of a host can be bound at an address: not if it is taken there, or at all
    /// addresses.
    fn check_port(&self, host: usize, addr: SocketAddr) -> Result<()> {
        for (_, id) in self.ids.iter() {
            // A request's address is that of its listener.
            let own = matches!(id.stage, Stage::Bound | Stage::Listening) && id.host == host;
            let Some(src) = id.src.filter(|src| own && src.port() == addr.port()) else {
                continue;
            };
            if src.ip() == addr.ip() {
                return Err(Errno::ADDRINUSE);
            }
            if src.ip().is_unspecified() || addr.ip().is_unspecified() {
                return Err(Errno::ADDRNOTAVAIL);
            }
        }
        Ok(())
    }

    fn free_port(&self, host: usize) -> u16 {
        let own = self.ids.iter().filter(|(_, id)| id.host == host);
        let used: BTreeSet<_> = own.filter_map(|(_, id)| Some(id.src?.port())).collect();
        let mut ports = 32_768..=u16::MAX;
        ports
            .find(|port| !used.contains(port))
            .expect("a host has enough ports")
    }

    fn listen(&mut self, number: u32) -> Result<()> {
        if self.ids[number].stage != Stage::Bound {
            return Err(Errno::INVAL);
        }
        self.ids[number].stage = Stage::Listening;
        Ok(())
    }

    fn resolve_addr(&mut self, number: u32, dst: SocketAddr, limit: Duration) -> Result<()> {
        if !matches!(self.ids[number].stage, Stage::Idle | Stage::Bound) {
            return Err(Errno::INVAL);
        }
        let host = self.ids[number].host;
        let mut nics = self.nics.iter();
        let own = nics.position(|nic| nic.host == host && !nic.is_dead());
        let own = own.ok_or(Errno::NODEV)?;
        let to = self.nic_of(dst.ip());
        if to.is_none() && !dst.ip().is_loopback() && !is_in_network(dst.ip()) {
            return Err(Errno::NETUNREACH);
        }
        // Its own address leads through the device that has it.
        let nic = to.filter(|to| self.nics[*to].host == host).unwrap_or(own);
        let free = SocketAddr::new(self.nics[nic].addr_like(dst.ip()), self.free_port(host));
        let id = &mut self.ids[number];
        let nic = id.nic.unwrap_or(nic);
        id.dst = Some(dst);
        // Its binding stays.
        id.src = id.src.filter(|_| id.nic.is_some()).or(Some(free));
        id.stage = Stage::ResolvingAddr;
        let reached = to.is_some_and(|to| self.reaches(host, self.nics[to].host));
        if !reached && !dst.ip().is_loopback() {
            self.clock.after(limit, Timer::Unresolved { id: number });
            return Ok(());
        }
        self.resolved(number, nic);
        Ok(())
    }

    fn resolved(&mut self, number: u32, nic: usize) {
        let id = &mut self.ids[number];
        id.nic = Some(nic);
        id.stage = Stage::AddrResolved;
        self.notify(number, Kind::AddrResolved);
    }

    /// Some hosts reach each other again: addresses of them are resolved.
    pub(crate) fn resolve_again(&mut self) {
        let answered = |(number, id): (u32, &Id)| {
            let to = self.nic_of(id.dst.filter(|_| id.stage == Stage::ResolvingAddr)?.ip())?;
            let nic = id.nic.or_else(|| self.nic_of(id.src?.ip()))?;
            let reached = self.reaches(id.host, self.nics[to].host);
            reached.then_some((number, nic))
        };
        for (number, nic) in self.ids.iter().filter_map(answered).collect::<Vec<_>>() {
            self.resolved(number, nic);
        }
    }

    /// No host has answered for an address.
    pub(crate) fn unresolved(&mut self, number: u32) {
        if let Some(id) = self.ids.get_mut(number) {
            if id.stage == Stage::ResolvingAddr {
                id.stage = Stage::Idle;
                self.notify(number, Kind::AddrError(-Errno::TIMEDOUT.raw_os_error()));
            }
        }
    }

    fn resolve_route(&mut self, number: u32) -> Result<()> {
        let id = &mut self.ids[number];
        if id.stage != Stage::AddrResolved {
            return Err(Errno::INVAL);
        }
        if id.dst.is_some_and(|dst| dst.ip().is_loopback()) {
            return Err(Errno::NODEV);
        }
        id.stage = Stage::RouteResolved;
        self.notify(number, Kind::RouteResolved);
        Ok(())
    }

    fn listener(&self, dst: SocketAddr) -> Option<u32> {
        let nic = self.nic_of(dst.ip())?;
        let host = self.nics[nic].host;
        let at = |id: &Id| {
            let src = id.src?;
            let own = src.ip() == dst.ip()
                || src.ip().is_unspecified() && (src.is_ipv6() || dst.is_ipv4());
            (id.stage == Stage::Listening && id.host == host && own && src.port() == dst.port())
                .then_some(())
        };
        self.ids
            .iter()
            .find_map(|(number, id)| at(id).map(|()| number))
    }

    fn connect(&mut self, number: u32, depths: Depths, qp_num: u32, data: &[u8]) -> Result<()> {
        self.check_stream(number)?;
        let room = self.private_data(number).request;
        let request = self.private_data(number).arrives(data, room);
        let id = &mut self.ids[number];
        if id.stage != Stage::RouteResolved || data.len() > room {
            return Err(Errno::INVAL);
        }
        id.own = depths;
        id.own_qp = qp_num;
        id.is_client = true;
        id.request = request;
        self.enter(number, Stage::Asked);
        self.send(number, Message::Request { client: number });
        Ok(())
    }

    fn accept(&mut self, number: u32, depths: Depths, qp_num: u32, data: &[u8]) -> Result<()> {
        let id = &self.ids[number];
        let (Stage::Requested, Some(_)) = (id.stage, id.peer) else {
            return Err(self.client_is_gone(number));
        };
        if self.is_stream(number) {
            return self.accept_stream(number, depths, qp_num, data);
        }
        self.join(number, Some(depths))?;
        let room = self.private_data(number).reply;
        if data.len() > room {
            // The kernel rejects the request as well.
            self.reject(number, &[])?;
            if let Some(qp) = self.shown_qp(number) {
                self.fail_qp(qp);
            }
            return Err(Errno::INVAL);
        }
        let id = &mut self.ids[number];
        id.own = depths;
        id.own_qp = qp_num;
        self.enter(number, Stage::Accepted);
        let reply = Message::Reply {
            server: number,
            data: self.private_data(number).arrives(data, room),
        };
        self.send(number, reply);
        Ok(())
    }

    /// An id's queue pair, if librdmacm sees it: the program may have taken it out of the id.
    fn shown_qp(&self, number: u32) -> Option<u32> {
        let id = &self.ids[number];
        // SAFETY: `rdma_destroy_id` takes the id from the table before it frees the struct. Only
        // calls of the id come here, and by C's rules no other thread writes to it meanwhile.
        let shown = unsafe { (*id.user?.as_ptr()).qp };
        id.qp.filter(|_| !shown.is_null())
    }

    pub(crate) fn has_no_qp(&mut self, qp: u32) {
        for id in self.ids.values_mut().filter(|id| id.qp == Some(qp)) {
            id.qp = None;
        }
    }

    /// A client has read that it was accepted: its queue pair is connected, and it notifies the
    /// server.
    fn answered(&mut self, number: u32) -> bool {
        if self.is_stream(number) {
            return true;
        }
        let id = &self.ids[number];
        let (Stage::Answered, Some(server)) = (id.stage, id.peer) else {
            return false;
        };
        if self.join(number, None).is_err() {
            if let Some(qp) = self.shown_qp(number) {
                self.fail_qp(qp);
            }
            return false;
        }
        self.enter(number, Stage::Established);
        self.send(number, Message::Ready { server });
        true
    }

    /// Whether the other end still asks for the connection, or it was not asked for yet.
    fn is_wanted(&self, number: u32) -> bool {
        self.ids[number].stage != Stage::Over
    }

    fn reject(&mut self, number: u32, data: &[u8]) -> Result<()> {
        let id = &self.ids[number];
        let room = self.private_data(number).reject;
        let (Stage::Requested, true) = (id.stage, data.len() <= room) else {
            return Err(self.client_is_gone(number));
        };
        let Some(client) = id.peer else {
            return Err(self.client_is_gone(number));
        };
        self.refuse(number, client, data);
        self.enter(number, Stage::Over);
        self.ids[number].peer = None;
        Ok(())
    }

    fn disconnect(&mut self, number: u32) -> Result<()> {
        let is_asked = self.ids[number].stage.is_asked();
        if let Some(qp) = self.shown_qp(number) {
            self.leave_requests(qp);
            self.fail_qp(qp);
        }
        if !is_asked {
            return Err(Errno::INVAL);
        }
        self.end(number);
        Ok(())
    }

    /// An established connection ends, or its end is answered.
    fn end(&mut self, number: u32) {
        let id = &self.ids[number];
        let (stage, Some(to)) = (id.stage, id.peer) else {
            return;
        };
        match stage {
            Stage::Established if self.is_stream(number) => self.fail_qp(id.own_qp),
            Stage::Established => {
                self.enter(number, Stage::Ending);
                self.send(number, Message::Disconnect { from: number, to });
            }
            Stage::Ended => {
                self.over(number);
                self.send(number, Message::Disconnected { to });
            }
            _ => {}
        }
    }

    /// A connection has ended at both ends. It is remembered for a while.
    fn over(&mut self, number: u32) {
        self.enter(number, Stage::Over);
        self.ids[number].peer = None;
        if let Some(timewait) = self.profiles[self.ids[number].host].timewait {
            self.clock.after(timewait, Timer::Timewait { id: number });
        }
    }

    pub(crate) fn timewait_is_over(&mut self, number: u32) {
        if self.ids.get(number).is_some() {
            self.notify(number, Kind::TimewaitExit);
        }
    }

    /// Forgets an id, and notifies the other end.
    fn forget(&mut self, number: u32) {
        for request in self.ids[number].channel.discard(number) {
            self.forget(request);
        }
        self.take_leave(number);
        self.enter(number, Stage::Over);
        // The end of its stream.
        self.ids[number].channel.discard(number);
        self.ids.remove(number);
    }

    /// The programs on a host are killed: the kernel destroys their ids.
    pub(crate) fn take_leave_of_all(&mut self, host: usize) {
        let on_it = |(number, id): (u32, &Id)| (id.host == host).then_some(number);
        for number in self.ids.iter().filter_map(on_it).collect::<Vec<_>>() {
            self.take_leave(number);
        }
        self.silence(host);
    }

    /// An id that is destroyed notifies its peer.
    fn take_leave(&mut self, number: u32) {
        let id = &self.ids[number];
        let (stage, peer) = (id.stage, id.peer);
        if let Some(peer) = peer {
            match stage {
                Stage::Asked if self.is_stream(number) => {
                    self.send(number, Message::Closed { to: peer });
                }
                // The server's next call fails.
                Stage::Asked
                    if self.reaches_other(number) && self.has_stage(peer, &[Stage::Requested]) =>
                {
                    self.enter(peer, Stage::Over);
                    self.ids[peer].peer = None;
                }
                Stage::Requested | Stage::Accepted | Stage::Answered => {
                    self.refuse(number, peer, &[]);
                }
                Stage::Established | Stage::Ended => self.end(number),
                _ => {}
            }
        }
    }

    /// Silences the ids of a host: they get no more events, and their peers are not notified.
    pub(crate) fn silence(&mut self, host: usize) {
        for id in self.ids.values_mut().filter(|id| id.host == host) {
            id.stage = Stage::Over;
            id.peer = None;
            id.src = None;
            id.channel.die();
        }
    }

    /// Forgets the ids with events that come here.
    fn forget_all_on(&mut self, channel: &Arc<Channel>) {
        let on_it = |(number, id): (u32, &Id)| Arc::ptr_eq(&id.channel, channel).then_some(number);
        for number in self.ids.iter().filter_map(on_it).collect::<Vec<_>>() {
            if self.ids.get(number).is_some() {
                self.forget(number);
            }
        }
    }
}
