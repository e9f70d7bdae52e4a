//! Devices: their addresses, their life, and their abilities. Their events:
//! [`crate::async_events`].

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use crate::async_events::Event;
use crate::call::{Result, errno_of};
use crate::cq::{ibv_poll_cq, ibv_req_notify_cq};
use crate::handle::{Context, of_context};
use crate::pipe::Pipe;
use crate::post::{ibv_post_recv, ibv_post_send};
use crate::srq::ibv_post_srq_recv;
use crate::state::{Shared, State};
use crate::types::{
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr_ex, ibv_mtu, ibv_node_type,
    ibv_port_attr, ibv_port_state, ibv_transport_type,
};

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `_FLUSH_PERSISTENT` and `_ATOMIC_WRITE` of the kernel's
/// `rdma/ib_user_verbs.h`.
const NATIVE_CAPS: u64 = 0b111 << 38;

/// How many reads a queue pair may have in flight, and serves, on soft-RoCE (`rxe_param.h`) and on
/// soft-iWARP (`siw.h`).
pub(crate) const MAX_RD_ATOM: u8 = 128;

/// A device, which is open from the beginning: librdmacm opens each one once.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) host: usize,
    addrs: [IpAddr; 2],
    device: NonNull<ibv_device>,
    pub(crate) context: NonNull<ibv_context>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) pipe: Arc<Pipe>,
    name: String,
    life: Life,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Alive,
    /// Its host has lost its power.
    Dead,
    /// And was started again, with another one in its place.
    Replaced,
}

impl Nic {
    pub(crate) fn has(&self, addr: IpAddr) -> bool {
        self.life == Life::Alive && self.had(addr)
    }

    /// As that, even after its host has lost its power.
    pub(crate) fn had(&self, addr: IpAddr) -> bool {
        self.addrs.contains(&addr)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.life != Life::Alive
    }

    pub(crate) fn die(&mut self) {
        if self.life == Life::Alive {
            self.life = Life::Dead;
        }
    }

    /// Its address of the same family.
    pub(crate) fn addr_like(&self, other: IpAddr) -> IpAddr {
        self.addrs[usize::from(other.is_ipv6())]
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: `push` made it of a box. Each id keeps the fabric, and by C's rules the last id
        // of a device is destroyed after all objects that use the context.
        drop(unsafe { Box::from_raw(self.context.as_ptr().cast::<Context>()) });
        // SAFETY: `push` made it of a box, and the context that refers to it is gone.
        drop(unsafe { Box::from_raw(self.device.as_ptr()) });
    }
}

/// Adds a device to a host; its name and its addresses.
pub(crate) fn add(shared: &Arc<Shared>, host: usize) -> Result<(String, Ipv4Addr, Ipv6Addr)> {
    let pipe = Pipe::new()?;
    let mut state = shared.lock();
    let nic = state.nics.len();
    let own = |nic: &&Nic| nic.host == host && nic.life != Life::Replaced;
    let number = state.nics.iter().filter(own).count();
    let name = format!("{}{number}", state.profiles[host].device);
    // The last byte of an address stays below 200.
    let (net, last) = ((nic / 199) as u8, (nic % 199 + 1) as u8);
    let addr = Ipv4Addr::new(10, 77, net, last);
    let addr6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, net.into(), last.into());
    let addrs = [addr.into(), addr6.into()];
    push(shared, &mut state, pipe, host, name.clone(), addrs);
    Ok((name, addr, addr6))
}

/// The devices of a host that has lost its power come back, under their names and addresses.
pub(crate) fn revive(shared: &Arc<Shared>, host: usize) -> Result<()> {
    let mut state = shared.lock();
    for dead in 0..state.nics.len() {
        if state.nics[dead].host == host && state.nics[dead].life == Life::Dead {
            let pipe = Pipe::new()?;
            let nic = &mut state.nics[dead];
            nic.life = Life::Replaced;
            let (name, addrs) = (nic.name.clone(), nic.addrs);
            push(shared, &mut state, pipe, host, name, addrs);
        }
    }
    Ok(())
}

fn push(
    shared: &Arc<Shared>,
    state: &mut State,
    pipe: Pipe,
    host: usize,
    name: String,
    addrs: [IpAddr; 2],
) {
    let nic = state.nics.len();
    let (node_type, transport_type) = match state.profiles[host].tcp {
        None => (
            ibv_node_type::IBV_NODE_CA,
            ibv_transport_type::IBV_TRANSPORT_IB,
        ),
        Some(_) => (
            ibv_node_type::IBV_NODE_RNIC,
            ibv_transport_type::IBV_TRANSPORT_IWARP,
        ),
    };
    let mut device = Box::new(ibv_device {
        node_type,
        transport_type,
        ..Default::default()
    });
    for (to, byte) in device.name.iter_mut().zip(name.bytes()) {
        *to = byte as c_char;
    }
    let device = NonNull::from(Box::leak(device));
    let context = Box::new(Context {
        ibv: ibv_context {
            device: device.as_ptr(),
            ops: ibv_context_ops {
                poll_cq: Some(ibv_poll_cq),
                req_notify_cq: Some(ibv_req_notify_cq),
                post_send: Some(ibv_post_send),
                post_recv: Some(ibv_post_recv),
                post_srq_recv: Some(ibv_post_srq_recv),
                ..Default::default()
            },
            cmd_fd: -1,
            async_fd: pipe.fd(),
            num_comp_vectors: 1,
            ..Default::default()
        },
        shared: Arc::downgrade(shared),
        nic,
    });
    state.nics.push(Nic {
        host,
        addrs,
        device,
        context: NonNull::from(Box::leak(context)).cast(),
        events: VecDeque::new(),
        pipe: Arc::new(pipe),
        name,
        life: Life::Alive,
    });
}

/// Whether an address is in the network of all devices.
pub(crate) fn is_in_network(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.octets()[..2] == [10, 77],
        IpAddr::V6(v6) => v6.segments()[..4] == [0xfd77, 0, 0, 0],
    }
}

/// `ibv_get_device_name(3)`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: by C's rules `device` is that of an open context; this makes no reference.
    (unsafe { &raw const (*device).name }).cast()
}

/// `ibv_query_device_ex(3)`, with the fields that rpma reads.
pub unsafe extern "C" fn ibv_query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, nic) = unsafe { of_context(context) };
    let mut state = shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_query_device_ex", nic).begin()?;
        let mut found = ibv_device_attr_ex::default();
        let plain = &mut found.orig_attr;
        let (profile, limits) = (state.profile(nic), &state.profile(nic).limits);
        plain.vendor_id = profile.vendor_id;
        plain.max_mr_size = u64::MAX;
        plain.max_qp_wr = limits.qp_wr as c_int;
        plain.max_sge = limits.sge as c_int;
        plain.max_cqe = limits.cqe as c_int;
        plain.max_qp_rd_atom = MAX_RD_ATOM.into();
        plain.max_qp_init_rd_atom = MAX_RD_ATOM.into();
        plain.max_srq_wr = limits.srq_wr as c_int;
        plain.max_srq_sge = limits.srq_sge as c_int;
        plain.phys_port_cnt = 1;
        if profile.native {
            found.device_cap_flags_ex = NATIVE_CAPS;
        }
        // SAFETY: by C's rules `attr` leads to a place for the result.
        unsafe { attr.write(found) };
        fate.end()
    })())
}

/// `ibv_query_port(3)`.
pub unsafe extern "C" fn rpma_sys_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: by C's rules `context` is that of an id which is bound to its device and not
    // destroyed yet.
    let (shared, nic) = unsafe { of_context(context) };
    let mut state = shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_query_port", nic).begin()?;
        if port != 1 {
            return Err(Errno::INVAL);
        }
        let found = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ACTIVE,
            max_mtu: ibv_mtu::IBV_MTU_4096,
            active_mtu: ibv_mtu::IBV_MTU_1024,
            max_msg_sz: state.profile(nic).max_msg_sz,
            ..Default::default()
        };
        // SAFETY: by C's rules `attr` leads to a place for the result.
        unsafe { attr.write(found) };
        fate.end()
    })())
}
