//! The calls of extended queue pairs (`struct ibv_qp_ex`): `ibv_wr_start`, a call for each
//! request, `ibv_wr_complete`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, MutexGuard};

use rustix::io::Errno;

use crate::caller::next_caller;
use crate::handle::{Called, of};
use crate::links::Way;
use crate::post::be_preempted;
use crate::qp::{Data, Operation, Send};
use crate::state::{Shared, State};
use crate::types::{ibv_placement_type, ibv_qp, ibv_qp_create_send_ops_flags, ibv_qp_ex, ibv_sge};

#[derive(Debug, Default)]
pub(crate) struct Stream {
    sends: Vec<Send>,
    error: Option<Errno>,
}

/// The calls of an extended queue pair, of the operations that it was made for.
pub(crate) fn set_calls(qp: &mut ibv_qp_ex, ops: u64) {
    type Ops = ibv_qp_create_send_ops_flags;
    let has = |op: Ops| ops & u64::from(op.0) != 0;
    if ops == 0 {
        return;
    }
    qp.wr_start = Some(ibv_wr_start);
    qp.wr_complete = Some(ibv_wr_complete);
    qp.wr_abort = Some(ibv_wr_abort);
    qp.wr_set_sge = Some(ibv_wr_set_sge);
    qp.wr_set_inline_data = Some(ibv_wr_set_inline_data);
    if has(Ops::IBV_QP_EX_WITH_RDMA_READ) {
        qp.wr_rdma_read = Some(ibv_wr_rdma_read);
    }
    if has(Ops::IBV_QP_EX_WITH_RDMA_WRITE) {
        qp.wr_rdma_write = Some(ibv_wr_rdma_write);
    }
    if has(Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) {
        qp.wr_rdma_write_imm = Some(ibv_wr_rdma_write_imm);
    }
    if has(Ops::IBV_QP_EX_WITH_SEND) {
        qp.wr_send = Some(ibv_wr_send);
    }
    if has(Ops::IBV_QP_EX_WITH_SEND_WITH_IMM) {
        qp.wr_send_imm = Some(ibv_wr_send_imm);
    }
    if has(Ops::IBV_QP_EX_WITH_FLUSH) {
        qp.wr_flush = Some(ibv_wr_flush);
    }
    if has(Ops::IBV_QP_EX_WITH_ATOMIC_WRITE) {
        qp.wr_atomic_write = Some(ibv_wr_atomic_write);
    }
}

/// `ibv_qp_to_qp_ex(3)`.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended = qp.cast::<ibv_qp_ex>();
    // SAFETY: every queue pair of this crate is the beginning of an extended one, and by C's rules
    // `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    match unsafe { (*extended).wr_start } {
        Some(_) => extended,
        None => ptr::null_mut(),
    }
}

/// The state of a queue pair that no thread builds a stream for: providers hold the send queue's
/// lock meanwhile.
pub(crate) fn not_streaming(of: &Called) -> MutexGuard<'_, State> {
    let state = of.shared.lock();
    of.shared
        .wait_until(state, |state| state.qps[of.number].stream.is_none())
}

/// # Safety
///
/// The queue pair is alive.
unsafe fn of_stream(qp: *mut ibv_qp_ex) -> Called {
    // SAFETY: by `# Safety` the queue pair is alive, and it begins the extended one.
    unsafe { of(qp.cast::<ibv_qp>()) }
}

/// `ibv_wr_start(3)`.
unsafe extern "C" fn ibv_wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of_stream(qp) };
    let mut state = not_streaming(&of);
    state.qps[of.number].stream = Some(Stream::default());
}

fn end_stream(shared: &Arc<Shared>, state: &mut State, number: u32) -> Stream {
    let stream = state.qps[number].stream.take();
    shared.changed.notify_all();
    stream.expect("ibv_wr_start comes first")
}

/// `ibv_wr_complete(3)`.
unsafe extern "C" fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of_stream(qp) };
    be_preempted();
    let mut state = of.shared.lock();
    let stream = end_stream(&of.shared, &mut state, of.number);
    let profile = state.profile(of.nic).clone();
    let posted = (|| {
        let fate = state.call("ibv_wr_complete", of.nic).begin()?;
        if let Some(errno) = stream.error {
            return Err(errno);
        }
        state.post(of.number, stream.sends)?;
        fate.end()
    })();
    state
        .choices
        .with_script(|script| script.work(posted.is_ok()));
    drop(state);
    be_preempted();
    profile.result_of_post(posted)
}

/// `ibv_wr_abort(3)`.
unsafe extern "C" fn ibv_wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of_stream(qp) };
    let mut state = of.shared.lock();
    end_stream(&of.shared, &mut state, of.number);
}

/// Adds a request to a stream, without its data.
///
/// # Safety
///
/// The queue pair is alive.
unsafe fn add(qp: *mut ibv_qp_ex, operation: Operation, key: u32, address: u64, data: Data) {
    // SAFETY: by `# Safety` the queue pair is alive.
    let of = unsafe { of_stream(qp) };
    // SAFETY: by `# Safety` the queue pair is alive. By C's rules one thread at a time writes both
    // fields, before it adds a request.
    let (wr_id, flags) = (unsafe { (*qp).wr_id }, unsafe { (*qp).wr_flags });
    let mut state = of.shared.lock();
    let send = Send {
        wr_id,
        operation,
        flags,
        address,
        key,
        data,
        done: None,
        way: Way::default(),
        fetched: None,
        caller: next_caller(),
    };
    let own = &state.qps[of.number];
    let accepted = own.stream.as_ref().map_or(0, |stream| stream.sends.len());
    let checked = own.check(state.profile(of.nic), &send, accepted);
    let own = &mut state.qps[of.number];
    let stream = own.stream.as_mut().expect("ibv_wr_start comes first");
    match checked {
        Ok(()) => stream.sends.push(send),
        Err(errno) => stream.error = stream.error.or(Some(errno)),
    }
}

/// Gives the last request of a stream its data.
///
/// # Safety
///
/// The queue pair is alive.
unsafe fn set_data(qp: *mut ibv_qp_ex, data: Data) {
    // SAFETY: by `# Safety` the queue pair is alive.
    let of = unsafe { of_stream(qp) };
    let mut state = of.shared.lock();
    let own = &mut state.qps[of.number];
    let inline = own.cap.max_inline_data;
    let stream = own.stream.as_mut().expect("ibv_wr_start comes first");
    if matches!(&data, Data::Inline(bytes) if bytes.len() > inline as usize) {
        stream.error = stream.error.or(Some(Errno::INVAL));
    } else if let Some(last) = stream.sends.last_mut() {
        last.data = data;
    }
}

const NO_DATA: Data = Data::At(Vec::new());

/// `ibv_wr_rdma_read(3)`.
unsafe extern "C" fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::Read, rkey, address, NO_DATA) };
}

/// `ibv_wr_rdma_write(3)`.
unsafe extern "C" fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::Write(None), rkey, address, NO_DATA) };
}

/// `ibv_wr_rdma_write_imm(3)`.
unsafe extern "C" fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::Write(Some(imm)), rkey, address, NO_DATA) };
}

/// `ibv_wr_send(3)`.
unsafe extern "C" fn ibv_wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::Send(None), 0, 0, NO_DATA) };
}

/// `ibv_wr_send_imm(3)`.
unsafe extern "C" fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::Send(Some(imm)), 0, 0, NO_DATA) };
}

/// `ibv_wr_flush(3)`. The level is a range always.
unsafe extern "C" fn ibv_wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    len: usize,
    kind: u8,
    _level: u8,
) {
    let flush = Operation::Flush {
        persistent: u32::from(kind) & ibv_placement_type::IBV_FLUSH_PERSISTENT.0 != 0,
        len: len as u64,
    };
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, flush, rkey, address, NO_DATA) };
}

/// `ibv_wr_atomic_write(3)`: it copies its 8 bytes now.
unsafe extern "C" fn ibv_wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    bytes: *const c_void,
) {
    // SAFETY: by C's rules 8 bytes may be read there.
    let bytes = unsafe { bytes.cast::<[u8; 8]>().read_unaligned() };
    let data = Data::Inline(bytes.to_vec());
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { add(qp, Operation::AtomicWrite, rkey, address, data) };
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { set_data(qp, Data::At(vec![sge])) };
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let from = addr.cast::<u8>().cast_const();
    // SAFETY: by C's rules `length` bytes may be read there, and `n` is less.
    let bytes = (0..length)
        .map(|n| unsafe { from.wrapping_add(n).read() })
        .collect();
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    unsafe { set_data(qp, Data::Inline(bytes)) };
}
