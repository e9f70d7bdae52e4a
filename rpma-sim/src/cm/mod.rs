//! The connection manager: ids, what they go through, and the messages between them.
//!
//! A message arrives when it is sent. What it does to an id is told by an event on the id's channel; some of it
//! happens only when the program reads the event, as in librdmacm: a client's queue pair is connected then, and its
//! last message is sent.

mod addr;
mod calls;
mod channel;

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

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
use crate::call::Result;
use crate::device::is_in_network;
use crate::memory::access;
use crate::qp::QpState;
use crate::state::State;
use crate::timer::Timer;
use crate::types::{rdma_cm_id, rdma_conn_param};

/// How much private data each message has room for, which is how much arrives, padded with zeros
/// (`include/rdma/ib_cm.h`; of a request, less the header of RDMA IP).
const REQUEST_DATA: usize = 56;
const REPLY_DATA: usize = 196;
const REJECT_DATA: usize = 148;

/// Why a request is rejected (`enum ib_cm_rej_reason`).
const NO_LISTENER: i32 = 8;
const CONSUMER: i32 = 28;

/// How many requests wait for a listener; the kernel's maximum.
const BACKLOG: usize = 1024;

/// An id.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) host: usize,
    /// What the program has of it. A request has nothing before the program reads its event.
    user: Option<NonNull<rdma_cm_id>>,
    channel: Arc<Channel>,
    /// Events that were read and not acknowledged.
    unacknowledged: u32,
    stage: Stage,
    nic: Option<usize>,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    qp: Option<u32>,
    /// The id at the other end.
    peer: Option<u32>,
    /// What this end has asked for, or has accepted.
    own: Depths,
    /// What the request or the reply of the other end says.
    theirs: Depths,
    ack_timeout: Option<u8>,
}

/// What an id has gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Idle,
    Bound,
    Listening,
    ResolvingAddr,
    AddrResolved,
    RouteResolved,
    /// It has asked for a connection.
    Asked,
    /// It stands for a request.
    Requested,
    /// It has accepted the request.
    Accepted,
    /// It has been accepted, and the program does not know yet.
    Answered,
    Established,
    /// It has said that it ends.
    Ending,
    /// The other end has said so.
    Ended,
    /// Nothing happens any more, but for the event that it is forgotten.
    Over,
}

impl Stage {
    /// Whether a connection was asked for.
    fn is_asked(self) -> bool {
        self > Self::RouteResolved
    }
}

/// What both ends tell each other about reads and about retries.
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
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
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
            peer: None,
            own: Depths::default(),
            theirs: Depths::default(),
            ack_timeout: None,
        }
    }
}

/// Private data as it arrives.
fn padded(data: &[u8], len: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(len, 0);
    padded
}

impl State {
    /// Tells the program of something that happened to an id.
    fn notify(&mut self, number: u32, kind: Kind) {
        self.ids[number].channel.push(number, kind);
    }

    fn bind(&mut self, number: u32, addr: SocketAddr) -> Result<()> {
        if self.ids[number].stage != Stage::Idle {
            return Err(Errno::INVAL);
        }
        let host = self.ids[number].host;
        // The loopback interface is no device's.
        let nic = match addr.ip().is_unspecified() || addr.ip().is_loopback() {
            true => None,
            false => {
                let nic = self.nic_of(addr.ip()).ok_or(Errno::NODEV)?;
                if self.nics[nic].host != host {
                    return Err(Errno::NODEV);
                }
                Some(nic)
            }
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

    /// Whether a port of a host can be bound at an address: not if it is taken there, or at all addresses.
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
        let used = |port: &u16| {
            self.ids
                .iter()
                .any(|(_, id)| id.host == host && id.src.is_some_and(|src| src.port() == *port))
        };
        let mut ports = 32_768..=u16::MAX;
        ports
            .find(|port| !used(port))
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
        // What it is bound to stays.
        id.src = id.src.filter(|_| id.nic.is_some()).or(Some(free));
        id.stage = Stage::ResolvingAddr;
        if to.is_none() && !dst.ip().is_loopback() {
            self.clock.after(limit, Timer::Unresolved { id: number });
            return Ok(());
        }
        id.nic = Some(nic);
        id.stage = Stage::AddrResolved;
        self.notify(number, Kind::AddrResolved);
        Ok(())
    }

    /// Nobody has answered for an address.
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

    /// Who listens at an address.
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

    fn connect(&mut self, number: u32, depths: Depths, data: &[u8]) -> Result<()> {
        let id = &mut self.ids[number];
        if id.stage != Stage::RouteResolved || data.len() > REQUEST_DATA {
            return Err(Errno::INVAL);
        }
        id.stage = Stage::Asked;
        id.own = depths;
        let (src, dst) = (id.src, id.dst.expect("it is resolved"));
        let Some(listener) = self.listener(dst) else {
            let id = &mut self.ids[number];
            id.stage = Stage::Over;
            self.notify(
                number,
                Kind::Rejected(NO_LISTENER, padded(&[], REJECT_DATA)),
            );
            return Ok(());
        };
        let channel = Arc::clone(&self.ids[listener].channel);
        if channel.requests(listener) >= BACKLOG {
            // It is dropped. The kernel asks again, for longer than anybody waits.
            return Ok(());
        }
        let host = self.ids[listener].host;
        let request = self.ids.add(|_| Id {
            stage: Stage::Requested,
            nic: None,
            src: Some(dst),
            dst: src,
            peer: Some(number),
            theirs: depths,
            ..Id::new(host, channel)
        });
        self.ids[request].nic = self.nic_of(dst.ip());
        self.ids[number].peer = Some(request);
        let request = Kind::Request {
            request,
            data: padded(data, REQUEST_DATA),
        };
        self.notify(listener, request);
        Ok(())
    }

    fn accept(&mut self, number: u32, depths: Depths, data: &[u8]) -> Result<()> {
        let id = &self.ids[number];
        let (Stage::Requested, Some(client), Some(qp)) = (id.stage, id.peer, id.qp) else {
            return Err(Errno::INVAL);
        };
        if data.len() > REPLY_DATA {
            // The kernel rejects the request as well.
            self.reject(number, &[])?;
            self.fail_qp(qp);
            return Err(Errno::INVAL);
        }
        let id = &mut self.ids[number];
        id.own = depths;
        id.stage = Stage::Accepted;
        self.ids[client].theirs = depths;
        self.ids[client].stage = Stage::Answered;
        self.join(number);
        self.notify(client, Kind::Response(padded(data, REPLY_DATA)));
        Ok(())
    }

    /// Connects an id's queue pair to that at the other end.
    fn join(&mut self, number: u32) {
        let id = &self.ids[number];
        let peer = id.peer.map(|peer| &self.ids[peer]);
        let (Some(qp), Some(peer)) = (id.qp, peer) else {
            return;
        };
        let (own, theirs, is_client) = (id.own, id.theirs, id.stage == Stage::Answered);
        let ack_timeout = id.ack_timeout.unwrap_or(self.profile.ack_timeout);
        let peer_qp = peer.qp;
        // Each end can have as many reads in flight as the other one serves (`cm_rep_handler`).
        let (max_reads, serves) = match is_client {
            true => (theirs.responder_resources, theirs.initiator_depth),
            false => (own.initiator_depth, own.responder_resources),
        };
        let native = self.profile.native;
        let qp = &mut self.qps[qp];
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::ReadyToSend;
        qp.peer = peer_qp;
        qp.ack_timeout = ack_timeout;
        // The client's count of retries is for both; each tells the other how often to try without a receive.
        qp.retry_count = if is_client { own } else { theirs }.retry_count;
        qp.rnr_retry_count = theirs.rnr_retry_count;
        qp.max_rd_atomic = max_reads;
        qp.rights = access::REMOTE_WRITE;
        if serves > 0 {
            qp.rights |= access::REMOTE_READ | access::REMOTE_ATOMIC;
            if native {
                qp.rights |= access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
            }
        }
    }

    /// A queue pair is destroyed.
    pub(crate) fn has_no_qp(&mut self, qp: u32) {
        for id in self.ids.values_mut().filter(|id| id.qp == Some(qp)) {
            id.qp = None;
        }
    }

    /// A client has read that it was accepted: its queue pair is connected, and it tells the server.
    fn answered(&mut self, number: u32) -> bool {
        let id = &self.ids[number];
        let (Stage::Answered, Some(server)) = (id.stage, id.peer) else {
            return false;
        };
        self.join(number);
        self.ids[number].stage = Stage::Established;
        if self.ids[server].stage == Stage::Accepted {
            self.ids[server].stage = Stage::Established;
            self.notify(server, Kind::Established);
        }
        true
    }

    /// Whether somebody at the other end still asks for the connection, or it was not asked for yet.
    fn is_wanted(&self, number: u32) -> bool {
        self.ids[number].stage != Stage::Over
    }

    fn reject(&mut self, number: u32, data: &[u8]) -> Result<()> {
        let id = &mut self.ids[number];
        let (Stage::Requested, true) = (id.stage, data.len() <= REJECT_DATA) else {
            return Err(Errno::INVAL);
        };
        let Some(client) = id.peer else {
            return Err(Errno::INVAL);
        };
        id.stage = Stage::Over;
        id.peer = None;
        self.rejected(client, data);
        Ok(())
    }

    /// An id learns that the other end does not want it.
    fn rejected(&mut self, number: u32, data: &[u8]) {
        let id = &mut self.ids[number];
        id.stage = Stage::Over;
        id.peer = None;
        self.notify(number, Kind::Rejected(CONSUMER, padded(data, REJECT_DATA)));
    }

    fn disconnect(&mut self, number: u32) -> Result<()> {
        let id = &self.ids[number];
        let is_asked = id.stage.is_asked();
        if let Some(qp) = id.qp {
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
        let peer = id.peer;
        match id.stage {
            Stage::Established => {
                self.ids[number].stage = Stage::Ending;
                if let Some(peer) = peer {
                    let other = &mut self.ids[peer];
                    if matches!(other.stage, Stage::Established | Stage::Accepted) {
                        other.stage = Stage::Ended;
                        self.notify(peer, Kind::Disconnected);
                    }
                }
            }
            Stage::Ended => {
                self.over(number);
                if let Some(peer) = peer {
                    if self.ids[peer].stage == Stage::Ending {
                        self.notify(peer, Kind::Disconnected);
                        self.over(peer);
                    }
                }
            }
            _ => {}
        }
    }

    /// A connection has ended at both ends. It is remembered for a while.
    fn over(&mut self, number: u32) {
        self.ids[number].stage = Stage::Over;
        self.ids[number].peer = None;
        let timewait = self.profile.timewait;
        self.clock.after(timewait, Timer::Timewait { id: number });
    }

    pub(crate) fn timewait_is_over(&mut self, number: u32) {
        if self.ids.get(number).is_some() {
            self.notify(number, Kind::TimewaitExit);
        }
    }

    /// Forgets an id, and tells the other end.
    fn forget(&mut self, number: u32) {
        for request in self.ids[number].channel.discard(number) {
            self.forget(request);
        }
        let id = &self.ids[number];
        let (stage, peer) = (id.stage, id.peer);
        if let Some(peer) = peer {
            match stage {
                // The server's next call fails.
                Stage::Asked => {
                    self.ids[peer].stage = Stage::Over;
                    self.ids[peer].peer = None;
                }
                Stage::Requested | Stage::Accepted | Stage::Answered => self.rejected(peer, &[]),
                Stage::Established | Stage::Ended => self.end(number),
                _ => {}
            }
            if let Some(other) = self.ids.get_mut(peer) {
                if other.peer == Some(number) {
                    other.peer = None;
                    // Nobody is left to answer.
                    if other.stage == Stage::Ending {
                        self.notify(peer, Kind::Disconnected);
                        self.over(peer);
                    }
                }
            }
        }
        self.ids.remove(number);
    }

    /// A host has lost its power: nothing happens to its ids any more, and nobody is told.
    pub(crate) fn silence(&mut self, host: usize) {
        for id in self.ids.values_mut().filter(|id| id.host == host) {
            id.stage = Stage::Over;
            id.peer = None;
            id.src = None;
            id.channel.die();
        }
        let silent = |(number, id): (u32, &Id)| (id.host == host).then_some(number);
        let silent: Vec<u32> = self.ids.iter().filter_map(silent).collect();
        for id in self.ids.values_mut() {
            id.peer = id.peer.filter(|peer| !silent.contains(peer));
        }
    }

    /// Forgets the ids whose events come here.
    fn forget_all_on(&mut self, channel: &Arc<Channel>) {
        let on_it = |(number, id): (u32, &Id)| Arc::ptr_eq(&id.channel, channel).then_some(number);
        for number in self.ids.iter().filter_map(on_it).collect::<Vec<_>>() {
            if self.ids.get(number).is_some() {
                self.forget(number);
            }
        }
    }
}
