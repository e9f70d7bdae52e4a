//! soft-iWARP, by the calls of verbs.

use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, slice};

use libc::{sockaddr, sockaddr_in};
use rustix::io::Errno;

use crate::types::{
    ibv_async_event, ibv_context, ibv_cq, ibv_device_attr_ex, ibv_event_type, ibv_mr, ibv_mtu,
    ibv_node_type, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_transport_type, ibv_wc, ibv_wc_status, ibv_wr_opcode,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};
use crate::{Entered, Fabric, Host, Profile, now, verbs, wait_readable};

type Type = rdma_cm_event_type;
type Status = ibv_wc_status;

const FLUSHED: Status = Status::IBV_WC_WR_FLUSH_ERR;
const SUCCESS: Status = Status::IBV_WC_SUCCESS;
const EINVAL: c_int = -22;
const PORT: u16 = 7204;
/// All rights that the device has: local write, remote write, remote read.
const RIGHTS: u32 = 0b111;

/// The calling thread is on the client's host, and waits take no real time.
fn hosts(profiles: [Profile; 2]) -> (Fabric, [Host; 2], Entered) {
    let [client, server] = profiles;
    let fabric = Fabric::new(Profile::SIW_6_12);
    fabric.jump_over_waits();
    let hosts = [
        fabric.host_with("client", client),
        fabric.host_with("server", server),
    ];
    let entered = hosts[0].enter();
    (fabric, hosts, entered)
}

struct Events(*mut rdma_event_channel);

/// An event: its kind, its status, its private data, and for a request its id.
struct Event(Type, c_int, Vec<u8>, *mut rdma_cm_id);

impl Events {
    fn new() -> Self {
        // SAFETY: the call has no preconditions.
        let channel = unsafe { verbs::rdma_create_event_channel() };
        assert!(!channel.is_null());
        Self(channel)
    }

    fn id(&self) -> *mut rdma_cm_id {
        let mut id = ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive, and `id` is a place for the result.
        let ret = unsafe { verbs::rdma_create_id(self.0, &raw mut id, ptr::null_mut(), space) };
        assert_eq!(ret, 0);
        id
    }

    /// The next event, if one comes within the limit.
    fn within(&self, limit: Duration) -> Option<Event> {
        // SAFETY: the channel is alive.
        let fd = unsafe { (*self.0).fd };
        // SAFETY: the channel has it for as long as it is alive.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        if !wait_readable(&[fd], Some(now() + limit)).expect("it waits") {
            return None;
        }
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel is alive, and `event` is a place for the result.
        let ret = unsafe { verbs::rdma_get_cm_event(self.0, &raw mut event) };
        assert_eq!(ret, 0);
        // SAFETY: the call has just returned it.
        let id = unsafe { (*event).id };
        // SAFETY: as above.
        let kind = unsafe { (*event).event };
        // SAFETY: as above.
        let status = unsafe { (*event).status };
        // SAFETY: as above.
        let param = unsafe { (*event).param };
        // SAFETY: this fabric has no other parameters.
        let conn = unsafe { param.conn };
        let mut data = Vec::new();
        if conn.private_data_len > 0 {
            let (at, len) = (conn.private_data.cast(), conn.private_data_len.into());
            // SAFETY: the event has so many bytes of private data.
            data.extend_from_slice(unsafe { slice::from_raw_parts(at, len) });
        }
        // SAFETY: it was not acknowledged yet.
        assert_eq!(unsafe { verbs::rdma_ack_cm_event(event) }, 0);
        Some(Event(kind, status, data, id))
    }

    fn next(&self, kind: Type) -> Event {
        let event = self.within(Duration::from_secs(1)).expect("an event");
        assert_eq!(event.0, kind);
        event
    }

    fn nothing_for(&self, limit: Duration) {
        let event = self.within(limit).map(|event| event.0);
        assert_eq!(event, None);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: it is dropped after the ids that are on it.
        unsafe { verbs::rdma_destroy_event_channel(self.0) };
    }
}

fn address(host: &Host) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: PORT.to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(host.addr()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

struct Listener {
    id: *mut rdma_cm_id,
    events: Events,
}

impl Listener {
    fn new(host: &Host) -> Self {
        let _entered = host.enter();
        let events = Events::new();
        let id = events.id();
        let mut addr = address(host);
        let addr: *mut sockaddr = (&raw mut addr).cast();
        // SAFETY: the id is alive, and the address is whole.
        assert_eq!(unsafe { verbs::rdma_bind_addr(id, addr) }, 0);
        // SAFETY: the id is alive.
        assert_eq!(unsafe { verbs::rdma_listen(id, 8) }, 0);
        Self { id, events }
    }

    /// The next request, with its private data.
    fn request(&self) -> (End, Vec<u8>) {
        let Event(_, _, data, id) = self.events.next(Type::RDMA_CM_EVENT_CONNECT_REQUEST);
        let events = Events::new();
        // SAFETY: both are alive.
        assert_eq!(unsafe { verbs::rdma_migrate_id(id, events.0) }, 0);
        (End::new(events, id), data)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once.
        assert_eq!(unsafe { verbs::rdma_destroy_id(self.id) }, 0);
    }
}

/// An end of a connection, with memory of 8 words.
struct End {
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    /// For requests and for receives.
    cqs: [*mut ibv_cq; 2],
    mr: *mut ibv_mr,
    memory: Box<[AtomicU64; 8]>,
    events: Events,
}

impl End {
    /// Makes all that a bound id needs.
    fn new(events: Events, id: *mut rdma_cm_id) -> Self {
        // SAFETY: the id is alive, and bound to a device.
        let context = unsafe { (*id).verbs };
        // SAFETY: the device is open.
        let pd = unsafe { verbs::ibv_alloc_pd(context) };
        let cqs = [(); 2].map(|()| {
            // SAFETY: the device is open.
            unsafe { verbs::ibv_create_cq(context, 32, ptr::null_mut(), ptr::null_mut(), 0) }
        });
        let memory = Box::new([const { AtomicU64::new(0) }; 8]);
        let mr = register(pd, &memory, RIGHTS);
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: cqs[0],
            recv_cq: cqs[1],
            cap: ibv_qp_cap {
                max_send_wr: 8,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 8,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            pd,
            ..Default::default()
        };
        // SAFETY: all that the attributes name is alive.
        assert_eq!(unsafe { verbs::rdma_create_qp_ex(id, &raw mut attr) }, 0);
        Self {
            id,
            pd,
            cqs,
            mr,
            memory,
            events,
        }
    }

    /// A client that may ask a host for a connection.
    fn client(server: &Host) -> Self {
        let events = Events::new();
        let id = events.id();
        let mut addr = address(server);
        let addr: *mut sockaddr = (&raw mut addr).cast();
        // SAFETY: the id is alive, and the address is whole.
        let ret = unsafe { verbs::rdma_resolve_addr(id, ptr::null_mut(), addr, 1000) };
        assert_eq!(ret, 0);
        events.next(Type::RDMA_CM_EVENT_ADDR_RESOLVED);
        // SAFETY: the id is alive.
        assert_eq!(unsafe { verbs::rdma_resolve_route(id, 1000) }, 0);
        events.next(Type::RDMA_CM_EVENT_ROUTE_RESOLVED);
        Self::new(events, id)
    }

    fn connect(&self, data: &[u8]) -> Result<(), Errno> {
        let mut param = param(data);
        // SAFETY: the id is alive, and the data is as long as the parameters have it.
        result(unsafe { verbs::rdma_connect(self.id, &raw mut param) })
    }

    fn accept(&self, data: &[u8]) -> Result<(), Errno> {
        let mut param = param(data);
        // SAFETY: the id is alive, and the data is as long as the parameters have it.
        result(unsafe { verbs::rdma_accept(self.id, &raw mut param) })
    }

    fn context(&self) -> *mut ibv_context {
        // SAFETY: the id is alive.
        unsafe { (*self.id).verbs }
    }

    fn sge(&self, len: u32) -> ibv_sge {
        ibv_sge {
            addr: self.memory.as_ptr().expose_provenance() as u64,
            length: len,
            lkey: self.key(),
        }
    }

    fn key(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.mr).lkey }
    }

    /// Posts a request of 8 bytes for the second word of a peer's memory.
    fn post(&self, opcode: ibv_wr_opcode, wr_id: u64, peer: &Self, key: u32) -> c_int {
        self.post_as(opcode, wr_id, (peer, key), self.sge(8), 0)
    }

    fn post_as(
        &self,
        opcode: ibv_wr_opcode,
        wr_id: u64,
        (peer, key): (&Self, u32),
        mut sge: ibv_sge,
        flags: u32,
    ) -> c_int {
        let mut wr = ibv_send_wr {
            wr_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0 | flags,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = peer.sge(0).addr + 8;
        wr.wr.rdma.rkey = key;
        let mut bad = ptr::null_mut();
        // SAFETY: the id is alive.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is alive, and the request is whole.
        unsafe { verbs::ibv_post_send(qp, &raw mut wr, &raw mut bad) }
    }

    fn write(&self, wr_id: u64, peer: &Self) {
        let ret = self.post(ibv_wr_opcode::IBV_WR_RDMA_WRITE, wr_id, peer, peer.key());
        assert_eq!(ret, 0);
    }

    fn read(&self, wr_id: u64, peer: &Self) {
        let ret = self.post(ibv_wr_opcode::IBV_WR_RDMA_READ, wr_id, peer, peer.key());
        assert_eq!(ret, 0);
    }

    fn send(&self, wr_id: u64, peer: &Self) {
        assert_eq!(self.post(ibv_wr_opcode::IBV_WR_SEND, wr_id, peer, 0), 0);
    }

    fn receive(&self, wr_id: u64, mut sges: Vec<ibv_sge>) -> c_int {
        let mut wr = ibv_recv_wr {
            wr_id,
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as c_int,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the id is alive.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is alive, and the receive is whole.
        unsafe { verbs::ibv_post_recv(qp, &raw mut wr, &raw mut bad) }
    }

    fn polled_of(&self, which: usize) -> Vec<(u64, Status)> {
        let mut wcs = [ibv_wc::default(); 16];
        // SAFETY: the queue is alive, and there is room for 16 completions.
        let polled = unsafe { verbs::ibv_poll_cq(self.cqs[which], 16, wcs.as_mut_ptr()) };
        let polled = &wcs[..usize::try_from(polled).expect("no error")];
        polled.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn done(&self) -> Vec<(u64, Status)> {
        self.polled_of(0)
    }

    fn received(&self) -> Vec<(u64, Status)> {
        self.polled_of(1)
    }

    fn word(&self, which: usize) -> u64 {
        self.memory[which].load(Ordering::Acquire)
    }

    fn set(&self, which: usize, word: u64) {
        self.memory[which].store(word, Ordering::Release);
    }

    fn query(&self) -> ibv_qp_attr {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: the id is alive.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is alive, and both structs are places for results.
        let ret = unsafe { verbs::ibv_query_qp(qp, &raw mut attr, 0, &raw mut init) };
        assert_eq!(ret, 0);
        attr
    }

    fn state(&self) -> ibv_qp_state {
        self.query().qp_state
    }

    fn fail(&self) {
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_ERR,
            ..Default::default()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
        // SAFETY: the id is alive.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: the queue pair is alive.
        assert_eq!(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask) }, 0);
    }

    fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id is alive.
        result(unsafe { verbs::rdma_disconnect(self.id) })
    }

    fn reject(&self, data: &[u8]) -> Result<(), Errno> {
        let (data, len) = (data.as_ptr().cast(), data.len() as u8);
        // SAFETY: the id is alive, and there are `len` bytes of data.
        result(unsafe { verbs::rdma_reject(self.id, data, len) })
    }

    /// The connection has ended: no other event follows.
    fn has_ended(&self) {
        let Event(_, status, ..) = self.events.next(Type::RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(status, 0);
        assert_eq!(self.state(), ibv_qp_state::IBV_QPS_ERR);
        self.events.nothing_for(Duration::from_secs(60));
    }

    /// The asynchronous event that the device has.
    fn async_event(&self) -> ibv_event_type {
        let mut event = ibv_async_event::default();
        // SAFETY: the device is open.
        let ret = unsafe { verbs::ibv_get_async_event(self.context(), &raw mut event) };
        assert_eq!(ret, 0);
        // SAFETY: it was not acknowledged yet.
        unsafe { verbs::ibv_ack_async_event(&raw mut event) };
        event.event_type
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: the id is alive.
        let qp = unsafe { (*self.id).qp };
        // SAFETY: each object is destroyed once, and after all that were made from it.
        assert_eq!(unsafe { verbs::ibv_destroy_qp(qp) }, 0);
        for cq in self.cqs {
            // SAFETY: as above.
            assert_eq!(unsafe { verbs::ibv_destroy_cq(cq) }, 0);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { verbs::ibv_dereg_mr(self.mr) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { verbs::ibv_dealloc_pd(self.pd) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { verbs::rdma_destroy_id(self.id) }, 0);
    }
}

fn register(pd: *mut ibv_pd, memory: &[AtomicU64; 8], rights: u32) -> *mut ibv_mr {
    let at = memory.as_ptr().cast_mut().cast();
    // SAFETY: the domain is alive, and the memory is not freed before the region.
    let mr = unsafe { verbs::rpma_sys_reg_mr(pd, at, size_of_val(memory), rights) };
    assert!(!mr.is_null());
    mr
}

fn param(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 4,
        initiator_depth: 4,
        // Without an effect.
        rnr_retry_count: 7,
        ..Default::default()
    }
}

fn result(ret: c_int) -> Result<(), Errno> {
    match ret {
        0 => Ok(()),
        _ => {
            // SAFETY: the function has no preconditions.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: it leads to the errno of this thread.
            Err(Errno::from_raw_os_error(unsafe { *errno }))
        }
    }
}

/// So many seconds have passed, and the little that the test itself takes.
fn has_taken(begun: Instant, seconds: u64) {
    let taken = now() - begun;
    let expected = Duration::from_secs(seconds)..Duration::from_secs(seconds + 5);
    assert!(expected.contains(&taken), "{taken:?}");
}

/// A connection of two hosts. Its listener is gone.
fn connected([_, server]: &[Host; 2]) -> [End; 2] {
    let listener = Listener::new(server);
    let client = End::client(server);
    client.connect(&[]).expect("it listens");
    let (accepting, _) = listener.request();
    accepting.accept(&[]).expect("the client waits");
    for end in [&client, &accepting] {
        end.events.next(Type::RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(end.state(), ibv_qp_state::IBV_QPS_RTS);
    }
    [client, accepting]
}

fn siw() -> (Fabric, [Host; 2], Entered) {
    hosts([Profile::SIW_6_12, Profile::SIW_6_12])
}

/// What the program asks a device, a port and a queue pair.
#[test]
fn the_device_is_one_of_iwarp() {
    let (fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    // SAFETY: the device is open.
    let device = unsafe { (*client.context()).device };
    // SAFETY: as above.
    let node = unsafe { (*device).node_type };
    // SAFETY: as above.
    let transport = unsafe { (*device).transport_type };
    assert_eq!(node, ibv_node_type::IBV_NODE_RNIC);
    assert_eq!(transport, ibv_transport_type::IBV_TRANSPORT_IWARP);
    // SAFETY: as above.
    let name = unsafe { verbs::ibv_get_device_name(device) };
    // SAFETY: the device has its name for as long as it is open.
    let name = unsafe { CStr::from_ptr(name) };
    assert_eq!(name, c"siw0");
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the device is open, and `attr` is a place for the result.
    let ret = unsafe { verbs::ibv_query_device_ex(client.context(), ptr::null(), &raw mut attr) };
    assert_eq!(ret, 0);
    assert_eq!(attr.orig_attr.vendor_id, 0x62_6D74);
    assert_eq!(
        (attr.orig_attr.max_qp_wr, attr.orig_attr.max_sge),
        (32_768, 6)
    );
    assert_eq!(attr.orig_attr.max_qp_rd_atom, 128);
    assert_eq!(
        attr.device_cap_flags_ex, 0,
        "neither flush nor atomic write"
    );
    let mut port = ibv_port_attr::default();
    // SAFETY: the device is open, and `port` is a place for the result.
    let ret = unsafe { verbs::rpma_sys_query_port(client.context(), 1, &raw mut port) };
    assert_eq!(ret, 0);
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
    assert_eq!(port.active_mtu, ibv_mtu::IBV_MTU_1024);
    assert_eq!(port.max_msg_sz, u32::MAX);
    let qp = client.query();
    assert_eq!(qp.qp_access_flags, RIGHTS);
    assert_eq!((qp.max_rd_atomic, qp.max_dest_rd_atomic), (4, 4));
    assert_eq!((qp.timeout, qp.retry_cnt, qp.rnr_retry), (0, 0, 0));
    drop((client, server));
    assert!(fabric.objects().is_empty());
}

/// Bytes, messages and answers get to the other end, in order.
#[test]
fn a_connection_moves_data() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    client.set(0, 7);
    client.write(1, &server);
    assert_eq!(client.done(), [(1, SUCCESS)]);
    assert_eq!(server.word(1), 7);
    server.set(1, 8);
    client.read(2, &server);
    assert_eq!(client.done(), [(2, SUCCESS)]);
    assert_eq!(client.word(0), 8);
    assert_eq!(server.receive(3, vec![server.sge(8)]), 0);
    client.send(4, &server);
    assert_eq!(client.done(), [(4, SUCCESS)]);
    assert_eq!(server.received(), [(3, SUCCESS)]);
    assert_eq!(server.word(0), 8);
}

/// A write with a wrong key, and messages without a receive, are completed with success. The peer
/// ends the connection, and a later request is flushed.
#[test]
fn a_refusal_ends_the_connection_and_no_completion_has_it() {
    type Act = fn(&End, &End);
    let acts: [Act; 3] = [
        |client, server| {
            let key = server.key() ^ 1;
            let ret = client.post(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1, server, key);
            assert_eq!(ret, 0);
            assert_eq!(
                server.async_event(),
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
            );
            assert_eq!(server.received(), [(2, FLUSHED)]);
        },
        // It has one receive, and the second message has none.
        |client, server| {
            client.send(0, server);
            assert_eq!(client.done(), [(0, SUCCESS)]);
            assert_eq!(server.received(), [(2, SUCCESS)]);
            client.send(1, server);
        },
        |client, server| {
            let sge = client.sge(16);
            let send = ibv_wr_opcode::IBV_WR_SEND;
            assert_eq!(client.post_as(send, 1, (server, 0), sge, 0), 0);
            assert_eq!(server.received(), [(2, Status::IBV_WC_LOC_LEN_ERR)]);
        },
    ];
    for act in acts {
        let (_fabric, hosts, _entered) = siw();
        let [client, server] = connected(&hosts);
        assert_eq!(server.receive(2, vec![server.sge(8)]), 0);
        assert_eq!(client.receive(3, vec![client.sge(8)]), 0);
        act(&client, &server);
        assert_eq!(client.done(), [(1, SUCCESS)]);
        assert_eq!(client.received(), [(3, FLUSHED)]);
        client.has_ended();
        server.has_ended();
    }
}

/// A read that the peer refuses is flushed.
#[test]
fn a_refused_read_is_flushed() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    let key = server.key() ^ 1;
    let read = ibv_wr_opcode::IBV_WR_RDMA_READ;
    assert_eq!(client.post(read, 1, &server, key), 0);
    assert_eq!(client.done(), [(1, FLUSHED)]);
    client.has_ended();
    server.has_ended();
}

/// A frozen peer takes writes and messages, as their sender sees it, and answers no read. It gets
/// all of it when it goes on.
#[test]
fn a_frozen_peer_answers_no_read() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    assert_eq!(server.receive(9, vec![server.sge(8)]), 0);
    hosts[1].freeze();
    client.set(0, 7);
    client.write(1, &server);
    client.send(2, &server);
    client.read(3, &server);
    client.write(4, &server);
    let fence = ibv_send_flags::IBV_SEND_FENCE.0;
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let to = (&server, server.key());
    assert_eq!(client.post_as(write, 5, to, client.sge(8), fence), 0);
    // The write after the read is not held up, and the one with a fence is.
    assert_eq!(client.done(), [(1, SUCCESS), (2, SUCCESS), (4, SUCCESS)]);
    client.events.nothing_for(Duration::from_secs(600));
    assert_eq!(client.done(), []);
    assert_eq!(server.word(1), 0);
    // The stream has the bytes.
    client.set(0, 8);
    hosts[1].thaw();
    assert_eq!(client.done(), [(3, SUCCESS), (5, SUCCESS)]);
    assert_eq!(server.received(), [(9, SUCCESS)]);
    assert_eq!(server.word(0), 7);
    assert_eq!(client.state(), ibv_qp_state::IBV_QPS_RTS);
}

/// If the peer never answers, TCP gives up after 15 minutes.
#[test]
fn a_dead_peer_is_noticed_when_tcp_gives_up() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    hosts[1].power_cut();
    let begun = now();
    client.events.nothing_for(Duration::from_secs(100_000));
    client.read(1, &server);
    client.write(2, &server);
    assert_eq!(client.done(), [(2, SUCCESS)]);
    let event = client.events.within(Duration::from_secs(1000));
    assert_eq!(event.expect("the end").0, Type::RDMA_CM_EVENT_DISCONNECTED);
    has_taken(begun, 100_924);
    assert_eq!(client.done(), [(1, FLUSHED)]);
    assert_eq!(client.state(), ibv_qp_state::IBV_QPS_ERR);
}

/// A host that was started again does not know the connection.
#[test]
fn a_restarted_peer_resets_the_connection() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    hosts[1].power_cut();
    hosts[1].restart();
    client.write(1, &server);
    assert_eq!(client.done(), [(1, SUCCESS)]);
    client.has_ended();
}

/// A program that is killed ends its connections.
#[test]
fn a_killed_peer_ends_the_connection() {
    let (_fabric, hosts, _entered) = siw();
    let [client, _server] = connected(&hosts);
    hosts[1].kill();
    client.has_ended();
}

/// Requests and receives that were posted before the error state are flushed, and those that are
/// posted in it never complete, until the queues are full.
#[test]
fn posts_in_the_error_state_never_complete() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    hosts[1].freeze();
    client.read(1, &server);
    assert_eq!(client.receive(2, vec![client.sge(8)]), 0);
    client.fail();
    assert_eq!(client.done(), [(1, FLUSHED)]);
    assert_eq!(client.received(), [(2, FLUSHED)]);
    for wr_id in 0..8 {
        client.write(wr_id, &server);
    }
    for wr_id in 0..4 {
        assert_eq!(client.receive(wr_id, vec![client.sge(8)]), 0);
    }
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let enomem = -Errno::NOMEM.raw_os_error();
    assert_eq!(client.post(write, 8, &server, server.key()), enomem);
    assert_eq!(client.receive(4, vec![client.sge(8)]), enomem);
    client.has_ended();
    hosts[1].thaw();
    server.has_ended();
    assert_eq!((client.done(), client.received()), (vec![], vec![]));
}

/// There is no immediate data, and a receive needs a buffer, which may be empty.
#[test]
fn posts_that_the_device_does_not_have_are_refused() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    for opcode in [
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
    ] {
        assert_eq!(client.post(opcode, 1, &server, server.key()), EINVAL);
    }
    assert_eq!(client.receive(2, vec![]), EINVAL);
    assert_eq!(client.receive(3, vec![client.sge(0)]), 0);
    let nothing = ibv_sge {
        lkey: 0,
        ..server.sge(0)
    };
    assert_eq!(
        server.post_as(ibv_wr_opcode::IBV_WR_SEND, 4, (&client, 0), nothing, 0),
        0
    );
    assert_eq!(client.received(), [(3, SUCCESS)]);
    assert_eq!(client.state(), ibv_qp_state::IBV_QPS_RTS);
}

/// The destination of a read needs a remote write right.
#[test]
fn the_destination_of_a_read_is_remotely_writable() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    let local = register(client.pd, &client.memory, 1);
    let sge = ibv_sge {
        // SAFETY: the region is alive.
        lkey: unsafe { (*local).lkey },
        ..client.sge(8)
    };
    let read = ibv_wr_opcode::IBV_WR_RDMA_READ;
    let from = (&server, server.key());
    assert_eq!(client.post_as(read, 1, from, sge, 0), 0);
    assert_eq!(client.done(), [(1, Status::IBV_WC_LOC_PROT_ERR)]);
    assert_eq!(
        client.async_event(),
        ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
    );
    client.has_ended();
    server.has_ended();
    // SAFETY: it is deregistered once.
    assert_eq!(unsafe { verbs::ibv_dereg_mr(local) }, 0);
}

/// A request with a wrong key of this side's own memory fails here.
#[test]
fn a_wrong_local_key_fails_the_request() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    let sge = ibv_sge {
        lkey: client.key() ^ 1,
        ..client.sge(8)
    };
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let to = (&server, server.key());
    assert_eq!(client.post_as(write, 1, to, sge, 0), 0);
    assert_eq!(client.done(), [(1, Status::IBV_WC_LOC_QP_OP_ERR)]);
    assert_eq!(client.async_event(), ibv_event_type::IBV_EVENT_QP_FATAL);
    client.has_ended();
    server.has_ended();
}

/// Private data arrives as it was sent, and a reject has the reason of a reset.
#[test]
fn private_data_is_not_padded() {
    let (_fabric, hosts, _entered) = siw();
    let listener = Listener::new(&hosts[1]);
    let client = End::client(&hosts[1]);
    assert_eq!(client.connect(&[1; 252]), Err(Errno::INVAL));
    client.connect(b"ask").expect("it listens");
    let (server, asked) = listener.request();
    assert_eq!(asked, b"ask");
    server.accept(b"yes").expect("the client waits");
    assert_eq!(
        client.events.next(Type::RDMA_CM_EVENT_ESTABLISHED).2,
        b"yes"
    );

    let other = End::client(&hosts[1]);
    other.connect(&[]).expect("it listens");
    let (server, asked) = listener.request();
    assert_eq!(asked, b"");
    server.reject(b"no").expect("the client waits");
    let Event(_, reason, data, _) = other.events.next(Type::RDMA_CM_EVENT_REJECTED);
    assert_eq!((reason, data), (-104, b"no".to_vec()));
    assert_eq!(server.accept(&[]), Err(Errno::CONNRESET));
}

/// Without a listener the call itself fails, and it may be repeated.
#[test]
fn nobody_listens() {
    let (_fabric, hosts, _entered) = siw();
    let client = End::client(&hosts[1]);
    assert_eq!(client.connect(&[]), Err(Errno::CONNREFUSED));
    client.events.nothing_for(Duration::from_secs(60));
    let _listener = Listener::new(&hosts[1]);
    assert_eq!(client.connect(&[]), Ok(()));
}

/// A host of another protocol is none that listens, and does not answer.
#[test]
fn other_protocols_are_no_listeners() {
    let (_fabric, hosts, entered) = hosts([Profile::SIW_6_12, Profile::RXE_6_12]);
    let listener = Listener::new(&hosts[1]);
    let client = End::client(&hosts[1]);
    assert_eq!(client.connect(&[]), Err(Errno::CONNREFUSED));
    drop((client, listener, entered));
    let _entered = hosts[1].enter();
    let listener = Listener::new(&hosts[0]);
    let client = End::client(&hosts[0]);
    assert_eq!(client.connect(&[]), Ok(()));
    let event = client.events.within(Duration::from_secs(100));
    assert_eq!(event.expect("the end").0, Type::RDMA_CM_EVENT_UNREACHABLE);
    listener.events.nothing_for(Duration::ZERO);
}

/// A host that does not answer blocks the call, until TCP gives up or it answers.
#[test]
fn a_silent_host_blocks_the_connect() {
    let (fabric, hosts, _entered) = siw();
    let listener = Listener::new(&hosts[1]);
    let client = End::client(&hosts[1]);
    let link = fabric.between(&hosts[0], &hosts[1]);
    link.partition();
    let begun = now();
    assert_eq!(client.connect(&[]), Err(Errno::TIMEDOUT));
    has_taken(begun, 131);
    let healing = hosts[0].spawn({
        let link = link.clone();
        move || {
            crate::sleep(Duration::from_secs(28));
            link.heal();
        }
    });
    let begun = now();
    assert_eq!(client.connect(&[]), Ok(()));
    has_taken(begun, 28);
    healing.join().expect("it heals");
    let (_server, _) = listener.request();
}

/// A server that does not decide is given up after 10 seconds, and cannot accept any more.
#[test]
fn a_server_has_10_seconds_to_decide() {
    let (_fabric, hosts, _entered) = siw();
    let listener = Listener::new(&hosts[1]);
    let client = End::client(&hosts[1]);
    let begun = now();
    client.connect(&[]).expect("it listens");
    let (server, _) = listener.request();
    let event = client.events.within(Duration::from_secs(60));
    assert_eq!(event.expect("the end").0, Type::RDMA_CM_EVENT_UNREACHABLE);
    has_taken(begun, 10);
    assert_eq!(server.accept(&[]), Err(Errno::CONNRESET));
}

/// A disconnect ends both ends at once, and requests that were sent before it may arrive.
#[test]
fn a_disconnect_ends_both_ends() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    client.set(0, 7);
    client.write(1, &server);
    assert_eq!(server.receive(2, vec![server.sge(8)]), 0);
    client.disconnect().expect("it is connected");
    client.has_ended();
    server.has_ended();
    assert_eq!(server.received(), [(2, FLUSHED)]);
    assert_eq!(server.word(1), 7);
    server.disconnect().expect("it was connected");
}

/// The end of a queue pair, or of an id, is that of its connection.
#[test]
fn objects_that_are_destroyed_end_the_connection() {
    let (_fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    drop(client);
    server.has_ended();
}

/// Faults of the network: a lost packet costs time alone, and a lost request the connection.
#[test]
fn faults_of_the_network() {
    let (fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    let link = fabric.between(&hosts[0], &hosts[1]);
    client.set(0, 7);
    link.lose_packet(1);
    client.write(1, &server);
    assert_eq!(client.done(), [(1, SUCCESS)]);
    assert_eq!(server.word(1), 0);
    client.events.nothing_for(Duration::from_millis(250));
    assert_eq!(server.word(1), 7);
    link.delay(Duration::from_secs(5));
    client.set(0, 8);
    client.write(2, &server);
    client.read(3, &server);
    assert_eq!(client.done(), [(2, SUCCESS)]);
    client.events.nothing_for(Duration::from_secs(6));
    assert_eq!(client.done(), [(3, SUCCESS)]);
    link.delay(Duration::ZERO);
    link.lose_request(1);
    client.set(0, 9);
    client.write(4, &server);
    assert_eq!(client.done(), [(4, SUCCESS)]);
    assert_eq!(server.word(1), 8);
    client.has_ended();
    server.has_ended();
}

/// While answers do not come back, requests are executed, until TCP gives up.
#[test]
fn a_blocked_way_back_is_noticed_in_the_end() {
    let (fabric, hosts, _entered) = siw();
    let [client, server] = connected(&hosts);
    fabric.between(&hosts[1], &hosts[0]).block();
    client.set(0, 7);
    client.write(1, &server);
    assert_eq!(client.done(), [(1, SUCCESS)]);
    assert_eq!(server.word(1), 7);
    client.read(2, &server);
    let event = client.events.within(Duration::from_secs(1000));
    assert_eq!(event.expect("the end").0, Type::RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(client.done(), [(2, FLUSHED)]);
}
