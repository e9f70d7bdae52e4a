//! The operations on bare verbs: the cost of a program that only fills in a request and calls
//! `rpma_sys`. One thread makes each object after those that it needs, and does not free them, so
//! that every call is made with live objects.

use std::error::Error;
use std::ffi::CString;
use std::ptr;

use rpma_sys as sys;

use crate::{DEPTH, LEN, ROUNDS, came, counted};

/// A connected queue pair and its completion queue, which live as long as the program.
#[derive(Clone, Copy)]
struct End {
    id: *mut sys::rdma_cm_id,
    qp: *mut sys::ibv_qp,
    cq: *mut sys::ibv_cq,
}

/// Where the operations go, all of them: registered memory of this program.
#[derive(Clone, Copy)]
struct Memory {
    address: u64,
    lkey: u32,
    rkey: u32,
}

type Outcome = Result<(), Box<dyn Error>>;

pub(crate) fn run(addr: &str) -> Outcome {
    // SAFETY: the whole program: plain verbs, on objects that are made in their order and never
    // freed.
    unsafe { measure(addr) }
}

unsafe fn measure(addr: &str) -> Outcome {
    let (client, server, memory) = unsafe { connect(addr) };
    unsafe {
        measured_write(client, memory);
        settled("write", client);
        measured_flush(client, memory);
        settled("flush", client);
        measured_read(client, memory);
        settled("read", client);
        measured_atomic_write(client, memory);
        settled("atomic_write", client);
        measured_recv(server, memory);
        counted("recv", ROUNDS);
        measured_send(client, memory);
        settled("send", client);
        settle(server);
        let mut wcs = [sys::ibv_wc::default(); 16];
        measured_get_wc_0(client, &mut wcs);
        counted("get_wc_0", ROUNDS);
        measured_write(client, memory);
        counted("write", ROUNDS);
        came();
        measured_get_wc_1(client, &mut wcs);
        counted("get_wc_1", ROUNDS);
        measured_write(client, memory);
        counted("write", ROUNDS);
        came();
        measured_get_wc_16(client, &mut wcs);
        counted("get_wc_16", ROUNDS / 16);
    }
    Ok(())
}

/// Each operation has a place of its own.
fn place(memory: Memory, number: u64) -> u64 {
    memory.address + number * LEN as u64
}

unsafe fn post(end: End, opcode: sys::ibv_wr_opcode, memory: Memory, wr_id: u64) {
    let mut sge = sys::ibv_sge {
        addr: place(memory, wr_id),
        length: LEN as u32,
        lkey: memory.lkey,
    };
    let mut wr = sys::ibv_send_wr {
        wr_id,
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode,
        send_flags: sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = place(memory, wr_id);
    wr.wr.rdma.rkey = memory.rkey;
    let mut bad = ptr::null_mut();
    let ret = unsafe { sys::ibv_post_send(end.qp, &raw mut wr, &raw mut bad) };
    assert_eq!(ret, 0, "posted");
}

#[inline(never)]
unsafe fn measured_write(end: End, memory: Memory) {
    for n in 0..ROUNDS {
        unsafe { post(end, sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, memory, n as u64) };
    }
}

#[inline(never)]
unsafe fn measured_read(end: End, memory: Memory) {
    for n in 0..ROUNDS {
        unsafe { post(end, sys::ibv_wr_opcode::IBV_WR_RDMA_READ, memory, n as u64) };
    }
}

#[inline(never)]
unsafe fn measured_send(end: End, memory: Memory) {
    for n in 0..ROUNDS {
        unsafe { post(end, sys::ibv_wr_opcode::IBV_WR_SEND, memory, n as u64) };
    }
}

#[inline(never)]
unsafe fn measured_flush(end: End, memory: Memory) {
    let qp = unsafe { sys::ibv_qp_to_qp_ex(end.qp) };
    for n in 0..ROUNDS {
        unsafe {
            sys::ibv_wr_start(qp);
            (*qp).wr_id = n as u64;
            (*qp).wr_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            let kind = sys::ibv_placement_type::IBV_FLUSH_GLOBAL.0 as u8;
            let level = sys::ibv_selectivity_level::IBV_FLUSH_RANGE.0 as u8;
            let address = place(memory, n as u64);
            sys::ibv_wr_flush(qp, memory.rkey, address, LEN, kind, level);
            assert_eq!(sys::ibv_wr_complete(qp), 0, "posted");
        }
    }
}

#[inline(never)]
unsafe fn measured_atomic_write(end: End, memory: Memory) {
    let qp = unsafe { sys::ibv_qp_to_qp_ex(end.qp) };
    for n in 0..ROUNDS {
        unsafe {
            sys::ibv_wr_start(qp);
            (*qp).wr_id = n as u64;
            (*qp).wr_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            let bytes = n.to_ne_bytes();
            let address = place(memory, n as u64);
            sys::ibv_wr_atomic_write(qp, memory.rkey, address, bytes.as_ptr().cast());
            assert_eq!(sys::ibv_wr_complete(qp), 0, "posted");
        }
    }
}

#[inline(never)]
unsafe fn measured_recv(end: End, memory: Memory) {
    for n in 0..ROUNDS {
        let mut sge = sys::ibv_sge {
            addr: place(memory, n as u64),
            length: LEN as u32,
            lkey: memory.lkey,
        };
        let mut wr = sys::ibv_recv_wr {
            wr_id: n as u64,
            next: ptr::null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        let ret = unsafe { sys::ibv_post_recv(end.qp, &raw mut wr, &raw mut bad) };
        assert_eq!(ret, 0, "posted");
    }
}

#[inline(never)]
unsafe fn measured_get_wc_0(end: End, wcs: &mut [sys::ibv_wc; 16]) {
    for _ in 0..ROUNDS {
        let polled = unsafe { sys::ibv_poll_cq(end.cq, 1, wcs.as_mut_ptr()) };
        assert_eq!(polled, 0, "nothing is there");
    }
}

#[inline(never)]
unsafe fn measured_get_wc_1(end: End, wcs: &mut [sys::ibv_wc; 16]) {
    for _ in 0..ROUNDS {
        let polled = unsafe { sys::ibv_poll_cq(end.cq, 1, wcs.as_mut_ptr()) };
        assert_eq!(polled, 1, "all are there");
    }
}

#[inline(never)]
unsafe fn measured_get_wc_16(end: End, wcs: &mut [sys::ibv_wc; 16]) {
    for _ in 0..ROUNDS / 16 {
        let polled = unsafe { sys::ibv_poll_cq(end.cq, 16, wcs.as_mut_ptr()) };
        assert_eq!(polled, 16, "all are there");
    }
}

/// The count is of this operation, and all of them succeed.
unsafe fn settled(name: &str, end: End) {
    counted(name, ROUNDS);
    unsafe { settle(end) };
}

/// Polls until all operations have succeeded.
unsafe fn settle(end: End) {
    let mut left = ROUNDS;
    while left > 0 {
        let mut wc = sys::ibv_wc::default();
        if unsafe { sys::ibv_poll_cq(end.cq, 1, &raw mut wc) } == 1 {
            assert_eq!(wc.status, sys::ibv_wc_status::IBV_WC_SUCCESS, "it succeeds");
            left -= 1;
        }
    }
}

/// Both ends of a connection, and memory for both.
unsafe fn connect(addr: &str) -> (End, End, Memory) {
    let node = CString::new(addr).expect("an address");
    let port = CString::new("7999").expect("a port");
    unsafe {
        let (listener, listening) = id();
        let info = resolve(&node, &port, true);
        done(sys::rdma_bind_addr(listener, (*info).ai_src_addr));
        done(sys::rdma_listen(listener, 1));
        let (client, connecting) = id();
        let info = resolve(&node, &port, false);
        let to = (*info).ai_dst_addr;
        done(sys::rdma_resolve_addr(client, ptr::null_mut(), to, 2000));
        event(connecting);
        done(sys::rdma_resolve_route(client, 2000));
        event(connecting);
        let pd = sys::ibv_alloc_pd((*client).verbs);
        let memory = register(pd);
        let client = queues(client, pd);
        let mut param = sys::rdma_conn_param {
            initiator_depth: 1,
            responder_resources: 1,
            retry_count: 6,
            rnr_retry_count: 7,
            ..Default::default()
        };
        done(sys::rdma_connect(client.id, &raw mut param));
        let server = queues(event(listening), pd);
        done(sys::rdma_accept(server.id, &raw mut param));
        event(connecting);
        event(listening);
        (client, server, memory)
    }
}

unsafe fn id() -> (*mut sys::rdma_cm_id, *mut sys::rdma_event_channel) {
    let mut id = ptr::null_mut();
    unsafe {
        let channel = sys::rdma_create_event_channel();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        let context = ptr::null_mut();
        done(sys::rdma_create_id(channel, &raw mut id, context, space));
        (id, channel)
    }
}

unsafe fn resolve(node: &CString, port: &CString, passive: bool) -> *mut sys::rdma_addrinfo {
    let mut info = ptr::null_mut();
    let hints = sys::rdma_addrinfo {
        ai_flags: if passive { sys::RAI_PASSIVE as i32 } else { 0 },
        ai_port_space: sys::rdma_port_space::RDMA_PS_TCP.0 as i32,
        ..Default::default()
    };
    unsafe {
        let (node, port) = (node.as_ptr(), port.as_ptr());
        let ret = sys::rdma_getaddrinfo(node, port, &raw const hints, &raw mut info);
        done(ret);
    }
    info
}

/// The id of the next event, which must be a good one.
unsafe fn event(channel: *mut sys::rdma_event_channel) -> *mut sys::rdma_cm_id {
    let mut event = ptr::null_mut();
    unsafe {
        done(sys::rdma_get_cm_event(channel, &raw mut event));
        assert_eq!((*event).status, 0, "{:?}", (*event).event);
        let id = (*event).id;
        done(sys::rdma_ack_cm_event(event));
        id
    }
}

unsafe fn register(pd: *mut sys::ibv_pd) -> Memory {
    let memory = Box::leak(vec![0u8; 4096].into_boxed_slice());
    let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
        | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
        | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
        | sys::ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0;
    let address = memory.as_mut_ptr();
    unsafe {
        let mr = sys::rpma_sys_reg_mr(pd, address.cast(), memory.len(), access);
        assert!(!mr.is_null(), "registered");
        Memory {
            address: address.expose_provenance() as u64,
            lkey: (*mr).lkey,
            rkey: (*mr).rkey,
        }
    }
}

unsafe fn queues(id: *mut sys::rdma_cm_id, pd: *mut sys::ibv_pd) -> End {
    unsafe {
        let entries = 2 * DEPTH as i32;
        let cq = sys::ibv_create_cq((*id).verbs, entries, ptr::null_mut(), ptr::null_mut(), 0);
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap: sys::ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            comp_mask: sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
                | sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
            pd,
            send_ops_flags: u64::from(
                sys::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0
                    | sys::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_WRITE.0,
            ),
            ..Default::default()
        };
        done(sys::rdma_create_qp_ex(id, &raw mut attr));
        End {
            id,
            qp: (*id).qp,
            cq,
        }
    }
}

fn done(ret: i32) {
    assert_eq!(ret, 0, "{}", std::io::Error::last_os_error());
}
