//! Posting to queue pairs and shared receive queues: chains of requests, written down.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

use crate::call::Result;
use crate::caller::next_caller;
use crate::fail::Fate;
use crate::handle::of;
use crate::links::Way;
use crate::profile::Profile;
use crate::qp::{Data, Operation, QpState, Recv, Send};
use crate::stream::not_streaming;
use crate::types::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use crate::wait;

/// Writes down the requests of a chain.
///
/// # Safety
///
/// It is a chain of requests. Their lists of buffers have the length given in them, and their
/// inline data may be read.
unsafe fn sends_of(
    mut wr: *mut ibv_send_wr,
    profile: &Profile,
    mut take: impl FnMut(*mut ibv_send_wr, bool, Send) -> Result<()>,
) -> Result<()> {
    while !wr.is_null() {
        // SAFETY: by `# Safety` `wr` is a request of the chain, and every kind of request has these
        // two fields.
        let (flags, next) = (unsafe { (*wr).send_flags }, unsafe { (*wr).next });
        // SAFETY: by `# Safety` `wr` is a request of the chain, and every kind of request has these
        // two fields.
        let (list, count) = (unsafe { (*wr).sg_list }, unsafe { (*wr).num_sge });
        // SAFETY: by `# Safety` `wr` is a request of the chain, and every kind of request has an
        // opcode.
        let opcode = unsafe { (*wr).opcode };
        let imm = || {
            // SAFETY: by `# Safety` `wr` is a request of the chain; the union is copied whole.
            let imm = unsafe { (*wr).__bindgen_anon_1 };
            // SAFETY: it is called for the opcodes that have immediate data.
            Some(unsafe { imm.imm_data })
        };
        let operation = match opcode {
            ibv_wr_opcode::IBV_WR_RDMA_READ => Operation::Read,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Operation::Write(None),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write(imm()),
            ibv_wr_opcode::IBV_WR_SEND => Operation::Send(None),
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Operation::Send(imm()),
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: by `# Safety` the list has `count` entries.
        let sges = unsafe { sges_of(list, count) };
        let data = match flags & ibv_send_flags::IBV_SEND_INLINE.0 {
            0 => Data::At(as_devices_read(profile, sges)),
            _ => {
                let mut bytes = Vec::new();
                for sge in &sges {
                    // SAFETY: by `# Safety` the inline data may be read now.
                    bytes.extend(unsafe { bytes_at(sge.addr, sge.length as usize) });
                }
                Data::Inline(bytes)
            }
        };
        // SAFETY: by `# Safety` `wr` is a request of the chain; the union is copied whole.
        let remote = unsafe { (*wr).wr };
        // SAFETY: every opcode above has these fields, or ignores them.
        let rdma = unsafe { remote.rdma };
        let send = Send {
            // SAFETY: by `# Safety` `wr` is a request of the chain, and every kind of request has a
            // `wr_id`.
            wr_id: unsafe { (*wr).wr_id },
            operation,
            flags,
            address: rdma.remote_addr,
            key: rdma.rkey,
            data,
            done: None,
            way: Way::default(),
            fetched: None,
            caller: next_caller(),
        };
        take(wr, next.is_null(), send)?;
        wr = next;
    }
    Ok(())
}

/// In the requests of some devices (mthca's, mlx4's) a local buffer of 0 bytes has 2³¹. Some
/// providers leave such buffers out, and few guarantee it: a program that posts one to a device it
/// does not know is wrong.
fn as_devices_read(profile: &Profile, mut sges: Vec<ibv_sge>) -> Vec<ibv_sge> {
    for sge in &mut sges {
        if sge.length == 0 && profile.mistakes_empty_buffers {
            sge.length = 1 << 31;
        }
    }
    sges
}

/// # Safety
///
/// The list has so many entries.
unsafe fn sges_of(list: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by `# Safety` there are `count` entries at `list`, and `n` is less.
    (0..count)
        .map(|n| unsafe { list.wrapping_add(n).read() })
        .collect()
}

/// # Safety
///
/// `len` bytes may be read at `address`.
unsafe fn bytes_at(address: u64, len: usize) -> Vec<u8> {
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: by `# Safety` `len` bytes may be read from `from` on, and `n` is less.
    (0..len)
        .map(|n| unsafe { from.wrapping_add(n).read() })
        .collect()
}

thread_local! {
    /// For how long each post of this thread stops.
    static STOP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// From now on, each post to a queue pair by this thread stops twice for `stop`: before its
/// request is in the queue, and after that. This is as if another thread had the processor. The
/// duration is in the fabric's [time](crate::now), and the thread holds no lock of the fabric
/// meanwhile.
pub fn preempt_posts(stop: Duration) {
    STOP.set(stop);
}

pub(crate) fn be_preempted() {
    let stop = STOP.get();
    if !stop.is_zero() {
        wait::sleep(stop);
    }
}

/// `ibv_post_send(3)`.
pub unsafe extern "C" fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of(qp) };
    be_preempted();
    let mut state = not_streaming(&of);
    let fate = state.call("ibv_post_send", of.nic);
    let profile = state.profile(of.nic).clone();
    let refuse = |wr, errno| {
        // SAFETY: by C's rules `bad` leads to a place for the result.
        unsafe { bad.write(wr) };
        profile.result_of_post(Err(errno))
    };
    if let Err(errno) = fate.begin() {
        return refuse(wr, errno);
    }
    let (mut sends, mut refused) = (Vec::new(), None);
    let own = &state.qps[of.number];
    let taken = |at, is_last, send: Send| {
        let checked = own.check(&profile, &send, sends.len());
        let last = fate.last(sends.len()).filter(|_| is_last);
        if let Some(answer) = checked.err().map(Err).or(last) {
            refused = Some((at, answer));
            return Err(Errno::CANCELED);
        }
        sends.push(send);
        Ok(())
    };
    // SAFETY: by C's rules `wr` is a chain of requests, and their lists and inline data may be read
    // now.
    let all = unsafe { sends_of(wr, &profile, taken) };
    let posted = state.post(of.number, sends);
    let is_taken = posted.is_ok() && refused.is_none();
    state.choices.with_script(|script| script.work(is_taken));
    drop(state);
    be_preempted();
    if let Some((at, answer)) = refused {
        // SAFETY: by C's rules `bad` leads to a place for the result.
        unsafe { bad.write(at) };
        return profile.result_of_post(answer.and(posted));
    }
    match all {
        Err(errno) => refuse(wr, errno),
        Ok(()) => profile.result_of_post(posted.and(fate.end())),
    }
}

/// Adds the receives of a chain to a queue.
///
/// # Safety
///
/// It is a chain of receives. Their lists of buffers have the length given in them. There is room
/// for the refused one.
pub(crate) unsafe fn post_receives(
    queue: &mut VecDeque<Recv>,
    profile: &Profile,
    room: usize,
    max_sge: u32,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    fate: Fate,
) -> Result<()> {
    let refuse = |wr, answer: Result<()>| {
        // SAFETY: by C's rules `bad` leads to a place for the result.
        unsafe { bad.write(wr) };
        answer
    };
    if let Err(errno) = fate.begin() {
        return refuse(wr, Err(errno));
    }
    let mut taken = 0;
    while !wr.is_null() {
        // SAFETY: by `# Safety` `wr` is a request of the chain.
        let one = unsafe { *wr };
        // SAFETY: by `# Safety` the list of a request has the length that is given in it.
        let sges = unsafe { sges_of(one.sg_list, one.num_sge) };
        if let Some(answer) = fate.last(taken).filter(|_| one.next.is_null()) {
            return refuse(wr, answer);
        }
        if queue.len() >= room {
            return refuse(wr, Err(Errno::NOMEM));
        }
        if sges.len() > max_sge as usize || sges.is_empty() && !profile.takes_empty_receives {
            return refuse(wr, Err(Errno::INVAL));
        }
        let wr_id = one.wr_id;
        let sges = as_devices_read(profile, sges);
        queue.push_back(Recv { wr_id, sges });
        taken += 1;
        wr = one.next;
    }
    fate.end()
}

/// `ibv_post_recv(3)`.
pub unsafe extern "C" fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of(qp) };
    be_preempted();
    let mut state = of.shared.lock();
    let fate = state.call("ibv_post_recv", of.nic);
    let profile = state.profile(of.nic).clone();
    let own = &mut state.qps[of.number];
    let (room, max_sge) = (own.receives_left(), own.cap.max_recv_sge);
    let mut posted = VecDeque::new();
    // SAFETY: by C's rules `wr` is a chain of receives, and `bad` leads to a place for the refused
    // one.
    let result = unsafe { post_receives(&mut posted, &profile, room, max_sge, wr, bad, fate) };
    match own.state {
        QpState::Error if !profile.flushes_late_posts => own.dead_receives += posted.len(),
        _ => own.receives.append(&mut posted),
    }
    if own.state == QpState::Error {
        state.flush(of.number);
    }
    drop(state);
    be_preempted();
    profile.result_of_post(result)
}
