//! The calls of ids.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use libc::sockaddr;
use rustix::io::Errno;

use super::channel::of_channel;
use super::streams::await_stream;
use super::{Depths, Id, addr};
use crate::call::{Result, minus_one};
use crate::here::HostOfIds;
use crate::state::{Shared, State};
use crate::types::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, ibv_qp_init_attr_ex, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};

/// `struct rdma_cm_id`, and the id's number.
#[repr(C)]
struct Object {
    public: rdma_cm_id,
    shared: Arc<Shared>,
    number: u32,
}

/// An id that a caller has a pointer to.
pub(super) struct IdOfCaller {
    pub(super) shared: Arc<Shared>,
    pub(super) number: u32,
}

/// # Safety
///
/// The id is one of this crate, and alive.
pub(super) unsafe fn of_id(id: *mut rdma_cm_id) -> IdOfCaller {
    let object = id.cast::<Object>();
    // SAFETY: by `# Safety` it is an `Object` of `give`, and not destroyed yet.
    let shared = Arc::clone(unsafe { &(*object).shared });
    // SAFETY: by `# Safety` it is an `Object` of `give`, and not destroyed yet.
    let number = unsafe { (*object).number };
    IdOfCaller { shared, number }
}

impl State {
    /// Makes the program's struct of an id.
    pub(super) fn give(
        &mut self,
        shared: &Arc<Shared>,
        number: u32,
        channel: *mut rdma_event_channel,
    ) -> *mut rdma_cm_id {
        let object = Box::new(Object {
            public: rdma_cm_id {
                channel,
                ps: rdma_port_space::RDMA_PS_TCP,
                ..Default::default()
            },
            shared: Arc::clone(shared),
            number,
        });
        let user = NonNull::from(Box::leak(object)).cast();
        self.ids[number].user = Some(user);
        self.show(number);
        user.as_ptr()
    }

    /// Writes down for the program which device an id is bound to, and the addresses.
    pub(super) fn show(&mut self, number: u32) {
        let id = &self.ids[number];
        let Some(user) = id.user.map(NonNull::as_ptr) else {
            return;
        };
        if let Some(nic) = id.nic {
            // SAFETY: `rdma_destroy_id` takes the id from the table before it frees the struct. No
            // other thread writes to it: connection-manager calls of one id are not made at the
            // same time.
            unsafe { (*user).verbs = self.nics[nic].context.as_ptr() };
            // SAFETY: `id.user` is of an id in the table, and no other thread writes to it, as for
            // `verbs`.
            unsafe { (*user).port_num = 1 };
        }
        // SAFETY: `rdma_destroy_id` takes the id from the table before it frees the struct. This
        // makes no reference.
        let addrs = unsafe { &raw mut (*user).route.addr };
        if let Some(src) = id.src {
            // SAFETY: `addrs` is a field of the struct, which `rdma_destroy_id` frees after it has
            // left the table.
            let to = unsafe { &raw mut (*addrs).__bindgen_anon_1 };
            // SAFETY: `to` is a union that has room for either family.
            unsafe { addr::write(src, to.cast()) };
        }
        if let Some(dst) = id.dst {
            // SAFETY: `addrs` is a field of the struct, which `rdma_destroy_id` frees after it has
            // left the table.
            let to = unsafe { &raw mut (*addrs).__bindgen_anon_2 };
            // SAFETY: `to` is a union that has room for either family.
            unsafe { addr::write(dst, to.cast()) };
        }
    }

    /// Runs a call of an id that may be made to fail.
    pub(super) fn call_id(
        &mut self,
        number: u32,
        call: &'static str,
        run: impl FnOnce(&mut Self) -> Result<()>,
    ) -> c_int {
        minus_one((|| {
            // The kernel forgets an id with its channel.
            let host = self.ids.get(number).ok_or(Errno::NOENT)?.host;
            let fate = self.failures.call(call, host).begin()?;
            run(self)?;
            fate.end()
        })())
    }
}

/// `rdma_create_id(3)`. An id that rpma makes for a device is on the host of that device. Any other
/// id is on the host of the calling thread.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    _space: rdma_port_space,
) -> c_int {
    // SAFETY: by C's rules `channel` is of `rdma_create_event_channel`, and not destroyed yet.
    let own = unsafe { of_channel(channel) };
    minus_one((|| {
        let of = HostOfIds::find()?;
        let shared = &of.shared;
        let mut state = shared.lock();
        let host = of.alive(&state)?;
        state.failures.call("rdma_create_id", host).object()?;
        own.belongs_to(shared, host)?;
        let number = state.ids.add(|_| Id::new(host, own));
        let user = state.give(shared, number, channel);
        // SAFETY: `give` has just made it, and no other thread has it.
        unsafe { (*user).context = context };
        // SAFETY: by C's rules `id` leads to a place for the result.
        unsafe { id.write(user) };
        Ok(())
    })())
}

/// `rdma_destroy_id(3)`: it waits until each event that was read is acknowledged.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    let mut state = of.shared.lock();
    let Some(host) = state.ids.get(of.number).map(|own| own.host) else {
        drop(state);
        // SAFETY: `give` made it of a box, and by C's rules the caller uses it no more.
        drop(unsafe { Box::from_raw(id.cast::<Object>()) });
        return minus_one(Err(Errno::NOENT));
    };
    let fate = match state.failures.call("rdma_destroy_id", host).begin() {
        Ok(fate) => fate,
        Err(errno) => return minus_one(Err(errno)),
    };
    let mut state = of
        .shared
        .wait_until(state, |state| state.ids[of.number].unacknowledged == 0);
    state.forget(of.number);
    drop(state);
    // SAFETY: `give` made it of a box, and by C's rules the caller uses it no more.
    drop(unsafe { Box::from_raw(id.cast::<Object>()) });
    minus_one(fate.end())
}

/// `rdma_bind_addr(3)`.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. `addr` leads to a socket address of its family's size.
    let (of, addr) = (unsafe { of_id(id) }, unsafe { addr::read(addr) });
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_bind_addr", |state| {
        state.bind(of.number, addr?)
    })
}

/// `rdma_listen(3)`.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_listen", |state| state.listen(of.number))
}

/// `rdma_resolve_addr(3)`, without a source.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    _src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. `dst` leads to a socket address of its family's size.
    let (of, dst) = (unsafe { of_id(id) }, unsafe { addr::read(dst) });
    let limit = Duration::from_millis(timeout_ms.max(0) as u64);
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_resolve_addr", |state| {
        state.resolve_addr(of.number, dst?, limit)
    })
}

/// `rdma_resolve_route(3)`.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_resolve_route", |state| {
        state.resolve_route(of.number)
    })
}

/// `rdma_create_qp_ex(3)`. For [`Fabric::fail`](crate::Fabric::fail) its name is `rdma_create_qp`.
pub unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    // SAFETY: by C's rules `attr` leads to attributes that no other thread uses during the call.
    let attr = unsafe { &mut *attr };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_create_qp", |state| {
        let own = &state.ids[of.number];
        let (Some(nic), None) = (own.nic, own.qp) else {
            return Err(Errno::INVAL);
        };
        if !state.is_wanted(of.number) {
            return Err(Errno::INVAL);
        }
        // SAFETY: by C's rules the objects that the attributes name are not destroyed yet.
        let qp = unsafe { state.create_qp(nic, attr) }?;
        state.ids[of.number].qp = Some(qp);
        // SAFETY: `id` is in the table, so it is not destroyed yet, and by C's rules no other call
        // of it runs.
        unsafe { (*id).qp = state.qps[qp].object.as_ptr().cast() };
        Ok(())
    })
}

/// # Safety
///
/// The length of the parameters' private data is the one given with them.
unsafe fn private_data<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: by `# Safety` there are `len` bytes at `data`.
        len => unsafe { std::slice::from_raw_parts(data.cast(), len.into()) },
    }
}

/// The number of the queue pair that a message names: that of the id's queue pair, or if librdmacm
/// sees none, the one in the parameters.
///
/// # Safety
///
/// The id is alive, and so is its queue pair if it points to one.
unsafe fn qp_num(id: *mut rdma_cm_id, param: &rdma_conn_param) -> u32 {
    // SAFETY: by `# Safety` the id is alive.
    let qp = unsafe { (*id).qp };
    match qp.is_null() {
        true => param.qp_num,
        // SAFETY: by `# Safety` the queue pair is alive if the id points to one, as it does here.
        false => unsafe { (*qp).qp_num },
    }
}

/// `rdma_connect(3)`.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. `param` leads to parameters that no other thread writes to.
    let (of, param) = (unsafe { of_id(id) }, unsafe { &*param });
    // SAFETY: by C's rules the private data is as long as the parameters have it.
    let data = unsafe { private_data(param.private_data, param.private_data_len) };
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. Nor is its queue pair, if it points to one.
    let qp_num = unsafe { qp_num(id, param) };
    let state = of.shared.lock();
    let mut state = await_stream(&of.shared, state, of.number);
    state.call_id(of.number, "rdma_connect", |state| {
        state.connect(of.number, Depths::of(param), qp_num, data)
    })
}

/// `rdma_accept(3)`.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. `param` leads to parameters that no other thread writes to.
    let (of, param) = (unsafe { of_id(id) }, unsafe { &*param });
    // SAFETY: by C's rules the private data is as long as the parameters have it.
    let data = unsafe { private_data(param.private_data, param.private_data_len) };
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. Nor is its queue pair, if it points to one.
    let qp_num = unsafe { qp_num(id, param) };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_accept", |state| {
        state.accept(of.number, Depths::of(param), qp_num, data)
    })
}

/// `rdma_reject(3)`.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet. `data` leads to `len` bytes.
    let (of, data) = (unsafe { of_id(id) }, unsafe { private_data(data, len) });
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_reject", |state| {
        state.reject(of.number, data)
    })
}

/// `rdma_disconnect(3)`.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_disconnect", |state| {
        state.disconnect(of.number)
    })
}

/// `rdma_set_option(3)`, of the acknowledgement timeout.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not destroyed
    // yet.
    let of = unsafe { of_id(id) };
    let known = level == RDMA_OPTION_ID.0 as c_int && name == RDMA_OPTION_ID_ACK_TIMEOUT.0 as c_int;
    let mut state = of.shared.lock();
    state.call_id(of.number, "rdma_set_option", |state| {
        if !known {
            return Err(Errno::NOSYS);
        }
        if len != size_of::<u8>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: by C's rules `value` leads to `len` bytes, which is one here.
        let exponent = unsafe { value.cast::<u8>().read() };
        state.ids[of.number].ack_timeout = Some(exponent);
        Ok(())
    })
}

/// `rdma_get_local_addr(3)`.
pub unsafe extern "C" fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    match id.is_null() {
        true => ptr::null_mut(),
        // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not
        // destroyed yet.
        false => unsafe { &raw mut (*id).route.addr.__bindgen_anon_1 }.cast(),
    }
}

/// `rdma_get_peer_addr(3)`.
pub unsafe extern "C" fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    match id.is_null() {
        true => ptr::null_mut(),
        // SAFETY: by C's rules `id` is of `rdma_create_id` or of a request's event, and not
        // destroyed yet.
        false => unsafe { &raw mut (*id).route.addr.__bindgen_anon_2 }.cast(),
    }
}
