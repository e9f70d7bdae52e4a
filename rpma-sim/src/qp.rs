//! Queue pairs: made, changed, posted to, and destroyed. What they do with requests: see [`crate::engine`].

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::call::{Result, errno_of};
use crate::device::{Element, MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::fail::Fate;
use crate::handle::{Of, of};
use crate::state::{Shared, State};
use crate::types::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_create_send_ops_flags, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type,
    ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wr_opcode,
};

/// A queue pair for a reliable connection.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) object: NonNull<ibv_qp_ex>,
    pub(crate) nic: usize,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) state: QpState,
    cap: ibv_qp_cap,
    /// What the peer may do.
    pub(crate) rights: u32,
    pub(crate) peer: Option<u32>,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// For how long a peer waits that met no receive here: a code.
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) receives: VecDeque<Recv>,
    /// Requests that are done, of a device that frees their slots when a completion of them is polled, by the
    /// next completion.
    pub(crate) unpolled: u32,
    /// Slots that are not free yet, of such requests.
    pub(crate) kept_slots: u32,
    /// What waits for its time.
    pub(crate) waiting: Option<Waiting>,
    /// How often something was tried, so that a timer knows whether it is meant.
    pub(crate) attempt: u64,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    stream: Option<Stream>,
    pub(crate) unacknowledged: u32,
}

/// `enum ibv_qp_state`, as far as connections have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QpState {
    Init,
    ReadyToSend,
    Error,
}

/// Why the first request is not executed yet, and how often it will be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The peer has no receive.
    Receive { left: u8 },
    /// The peer does not answer.
    Answer { left: u8 },
    /// The network is busy with what was sent before.
    Network,
}

/// A request of a send queue.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) operation: Operation,
    pub(crate) flags: u32,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) data: Data,
    /// It was executed before one that was posted earlier.
    pub(crate) done: Option<ibv_wc>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    /// With immediate data, in network byte order.
    Write(Option<u32>),
    Send(Option<u32>),
    Flush {
        persistent: bool,
        len: u64,
    },
    AtomicWrite,
}

impl Operation {
    /// Whether a write may be executed before it that was posted behind it.
    pub(crate) fn is_slow(self) -> bool {
        !matches!(self, Self::Write(_) | Self::Send(_))
    }
}

/// The bytes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Inline(Vec<u8>),
    At(Vec<ibv_sge>),
}

impl Data {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::At(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }
}

impl Send {
    pub(crate) fn is(&self, flag: ibv_send_flags) -> bool {
        self.flags & flag.0 != 0
    }
}

/// A receive.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<ibv_sge>,
}

#[derive(Debug, Default)]
struct Stream {
    sends: Vec<Send>,
    error: Option<Errno>,
}

impl Qp {
    fn slots_left(&self) -> usize {
        let used = self.sends.len() + self.kept_slots as usize;
        (self.cap.max_send_wr as usize).saturating_sub(used)
    }

    /// Slots whose completion was polled.
    pub(crate) fn free_slots(&mut self, slots: u32) {
        self.kept_slots = self.kept_slots.saturating_sub(slots);
    }

    /// What the post of one more request says, with so many already accepted.
    fn check(&self, send: &Send, accepted: usize) -> Result<()> {
        if accepted >= self.slots_left() {
            return Err(Errno::NOMEM);
        }
        let fits = match &send.data {
            Data::Inline(bytes) => bytes.len() <= self.cap.max_inline_data as usize,
            Data::At(sges) => sges.len() <= self.cap.max_send_sge as usize,
        };
        match fits {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }
}

impl State {
    /// A queue pair for an id of the connection manager (`rdma_create_qp_ex(3)`).
    ///
    /// # Safety
    ///
    /// The attributes name objects that are alive.
    pub(crate) unsafe fn create_qp(
        &mut self,
        nic: usize,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<u32> {
        // SAFETY: the caller promises it, here and below.
        let (pd, send_cq) = (unsafe { of(attr.pd) }, unsafe { of(attr.send_cq) });
        // SAFETY: as above.
        let recv_cq = unsafe { of(attr.recv_cq) };
        // SAFETY: as above.
        let srq = (!attr.srq.is_null()).then(|| unsafe { of(attr.srq) }.number);
        let ops = match attr.comp_mask & ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0 {
            0 => 0,
            _ => attr.send_ops_flags,
        };
        let cap = &mut attr.cap;
        if pd.nic != nic
            || attr.qp_type != ibv_qp_type::IBV_QPT_RC
            || cap.max_send_wr > MAX_QP_WR
            || cap.max_recv_wr > MAX_QP_WR
            || cap.max_send_sge.max(cap.max_recv_sge) > MAX_SGE
            || cap.max_inline_data > MAX_INLINE
        {
            return Err(Errno::INVAL);
        }
        cap.max_send_wr = self.profile.room(cap.max_send_wr);
        cap.max_recv_wr = self.profile.room(cap.max_recv_wr);
        cap.max_inline_data = cap.max_inline_data.max(16 * cap.max_send_sge);
        let cap = *cap;
        // SAFETY: the caller promises it.
        let context = unsafe { (*attr.pd).context };
        let number = self.qps.add(|handle| {
            let mut object = Box::new(ibv_qp_ex::default());
            let base = &mut object.qp_base;
            base.context = context;
            base.pd = attr.pd;
            base.send_cq = attr.send_cq;
            base.recv_cq = attr.recv_cq;
            base.srq = attr.srq;
            base.handle = handle;
            base.qp_num = handle;
            base.state = ibv_qp_state::IBV_QPS_INIT;
            base.qp_type = ibv_qp_type::IBV_QPT_RC;
            set_calls(&mut object, ops);
            Qp {
                object: NonNull::from(Box::leak(object)),
                nic,
                pd: pd.number,
                send_cq: send_cq.number,
                recv_cq: recv_cq.number,
                srq,
                state: QpState::Init,
                cap,
                rights: 0,
                peer: None,
                ack_timeout: 0,
                retry_count: 0,
                rnr_retry_count: 0,
                min_rnr_timer: 0,
                max_rd_atomic: 0,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                unpolled: 0,
                kept_slots: 0,
                waiting: None,
                attempt: 0,
                stream: None,
                unacknowledged: 0,
            }
        });
        Ok(number)
    }

    /// Puts requests into a send queue, and begins to execute them.
    fn post(&mut self, number: u32, sends: impl IntoIterator<Item = Send>) -> Result<()> {
        let qp = &mut self.qps[number];
        qp.sends.extend(sends);
        // They are in the queue then, as rxe's provider leaves them (`rxe_post_send`).
        if qp.state < QpState::ReadyToSend {
            return Err(Errno::INVAL);
        }
        self.posted(number);
        Ok(())
    }
}

/// The calls of an extended queue pair, of the operations that it was made for.
fn set_calls(qp: &mut ibv_qp_ex, ops: u64) {
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
    // SAFETY: every queue pair of this crate is the beginning of an extended one, and the caller's is alive.
    match unsafe { (*extended).wr_start } {
        Some(_) => extended,
        None => ptr::null_mut(),
    }
}

/// `ibv_modify_qp(3)`, as far as rpma uses it: to the error state, and the time that a peer waits for a receive.
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of(qp) };
    // SAFETY: the caller has made it.
    let attr = unsafe { &*attr };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_modify_qp", of.nic).begin()?;
        let is_live = state.qps[of.number].state != QpState::Error;
        match ibv_qp_attr_mask(mask as u32) {
            ibv_qp_attr_mask::IBV_QP_STATE if attr.qp_state == ibv_qp_state::IBV_QPS_ERR => {
                state.fail_qp(of.number);
            }
            ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER if attr.min_rnr_timer < 32 && is_live => {
                state.qps[of.number].min_rnr_timer = attr.min_rnr_timer;
            }
            _ => return Err(Errno::INVAL),
        }
        fate.end()
    })())
}

/// `ibv_query_qp(3)`.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of(qp) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_query_qp", of.nic).begin()?;
        let own = &state.qps[of.number];
        let qp_state = match own.state {
            QpState::Init => ibv_qp_state::IBV_QPS_INIT,
            QpState::ReadyToSend => ibv_qp_state::IBV_QPS_RTS,
            QpState::Error => ibv_qp_state::IBV_QPS_ERR,
        };
        let found = ibv_qp_attr {
            qp_state,
            cur_qp_state: qp_state,
            dest_qp_num: own.peer.unwrap_or(0),
            qp_access_flags: own.rights,
            cap: own.cap,
            max_rd_atomic: own.max_rd_atomic,
            min_rnr_timer: own.min_rnr_timer,
            timeout: own.ack_timeout,
            retry_cnt: own.retry_count,
            rnr_retry: own.rnr_retry_count,
            port_num: 1,
            ..Default::default()
        };
        // SAFETY: the caller has room for both.
        unsafe { attr.write(found) };
        let found = ibv_qp_init_attr {
            cap: own.cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: as above.
        unsafe { init.write(found) };
        // SAFETY: the queue pair is alive, and nobody changes its state at the same time.
        unsafe { (*qp).state = qp_state };
        fate.end()
    })())
}

/// `ibv_destroy_qp(3)`.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of(qp) };
    let mut state = of.shared.lock();
    let fate = match state.call("ibv_destroy_qp", of.nic).begin() {
        Ok(fate) => fate,
        Err(errno) => return errno_of(Err(errno)),
    };
    state.untell(of.nic, Element::Qp(of.number));
    let mut state = of
        .shared
        .wait_until(state, |state| state.qps[of.number].unacknowledged == 0);
    let gone = state.qps.remove(of.number).expect("it is alive");
    if state.profile.purges_completions {
        state.purge(gone.send_cq, of.number);
        state.purge(gone.recv_cq, of.number);
    }
    // SAFETY: it came from a box in `create_qp`, and the caller uses it no more.
    drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
    errno_of(fate.end())
}

/// Writes down the requests of a chain.
///
/// # Safety
///
/// It is a chain of requests, whose lists of buffers are as long as they say, and whose inline data may be read.
unsafe fn sends_of(
    mut wr: *mut ibv_send_wr,
    mut take: impl FnMut(*mut ibv_send_wr, bool, Send) -> Result<()>,
) -> Result<()> {
    while !wr.is_null() {
        // SAFETY: the caller promises a chain. Only those fields are read that a request of its kind has.
        let (flags, next) = (unsafe { (*wr).send_flags }, unsafe { (*wr).next });
        // SAFETY: as above.
        let (list, count) = (unsafe { (*wr).sg_list }, unsafe { (*wr).num_sge });
        // SAFETY: as above.
        let opcode = unsafe { (*wr).opcode };
        let imm = || {
            // SAFETY: as above.
            let imm = unsafe { (*wr).__bindgen_anon_1 };
            // SAFETY: a request with immediate data has some.
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
        // SAFETY: the caller promises such a list.
        let sges = unsafe { sges_of(list, count) };
        let data = match flags & ibv_send_flags::IBV_SEND_INLINE.0 {
            0 => Data::At(sges),
            _ => {
                let mut bytes = Vec::new();
                for sge in &sges {
                    // SAFETY: the caller promises that it may be read now.
                    bytes.extend(unsafe { bytes_at(sge.addr, sge.length as usize) });
                }
                Data::Inline(bytes)
            }
        };
        // SAFETY: every opcode above has it, or ignores it.
        let remote = unsafe { (*wr).wr };
        // SAFETY: as above.
        let rdma = unsafe { remote.rdma };
        let send = Send {
            // SAFETY: as above.
            wr_id: unsafe { (*wr).wr_id },
            operation,
            flags,
            address: rdma.remote_addr,
            key: rdma.rkey,
            data,
            done: None,
        };
        take(wr, next.is_null(), send)?;
        wr = next;
    }
    Ok(())
}

/// # Safety
///
/// The list has so many entries.
unsafe fn sges_of(list: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller promises it.
    (0..count)
        .map(|n| unsafe { list.wrapping_add(n).read() })
        .collect()
}

/// # Safety
///
/// So many bytes may be read there.
unsafe fn bytes_at(address: u64, len: usize) -> Vec<u8> {
    let from = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller promises it.
    (0..len)
        .map(|n| unsafe { from.wrapping_add(n).read() })
        .collect()
}

thread_local! {
    /// For how long each post of this thread stops.
    static STOP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// From now on each post to a queue pair by this thread stops for so long, before its request is in the queue and
/// after that, as if another thread had the processor. It holds no lock of the fabric then.
pub fn preempt_posts(stop: Duration) {
    STOP.set(stop);
}

/// See [`preempt_posts`].
fn be_preempted() {
    let stop = STOP.get();
    if !stop.is_zero() {
        thread::sleep(stop);
    }
}

/// `ibv_post_send(3)`.
pub unsafe extern "C" fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of(qp) };
    be_preempted();
    let mut state = not_streaming(&of);
    let fate = state.call("ibv_post_send", of.nic);
    let refuse = |wr, errno| {
        // SAFETY: the caller has room for it.
        unsafe { bad.write(wr) };
        errno_of(Err(errno))
    };
    if let Err(errno) = fate.begin() {
        return refuse(wr, errno);
    }
    let (mut sends, mut refused) = (Vec::new(), None);
    let own = &state.qps[of.number];
    let taken = |at, is_last, send: Send| {
        let checked = own.check(&send, sends.len());
        let last = fate.last().filter(|_| is_last);
        if let Some(answer) = checked.err().map(Err).or(last) {
            refused = Some((at, answer));
            return Err(Errno::CANCELED);
        }
        sends.push(send);
        Ok(())
    };
    // SAFETY: the caller promises a chain of requests.
    let all = unsafe { sends_of(wr, taken) };
    let posted = state.post(of.number, sends);
    drop(state);
    be_preempted();
    if let Some((at, answer)) = refused {
        // SAFETY: the caller has room for it.
        unsafe { bad.write(at) };
        return errno_of(answer.and(posted));
    }
    match all {
        Err(errno) => refuse(wr, errno),
        Ok(()) => errno_of(posted.and(fate.end())),
    }
}

/// Adds the receives of a chain to a queue.
///
/// # Safety
///
/// It is a chain of receives, whose lists of buffers are as long as they say; there is room for the refused one.
pub(crate) unsafe fn post_receives(
    queue: &mut VecDeque<Recv>,
    room: usize,
    max_sge: u32,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    fate: Fate,
) -> Result<()> {
    let refuse = |wr, answer: Result<()>| {
        // SAFETY: the caller has room for it.
        unsafe { bad.write(wr) };
        answer
    };
    if let Err(errno) = fate.begin() {
        return refuse(wr, Err(errno));
    }
    while !wr.is_null() {
        // SAFETY: the caller promises a chain.
        let one = unsafe { *wr };
        // SAFETY: and such a list.
        let sges = unsafe { sges_of(one.sg_list, one.num_sge) };
        if let Some(answer) = fate.last().filter(|_| one.next.is_null()) {
            return refuse(wr, answer);
        }
        if queue.len() >= room {
            return refuse(wr, Err(Errno::NOMEM));
        }
        if sges.len() > max_sge as usize {
            return refuse(wr, Err(Errno::INVAL));
        }
        let wr_id = one.wr_id;
        queue.push_back(Recv { wr_id, sges });
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
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of(qp) };
    be_preempted();
    let mut state = of.shared.lock();
    let fate = state.call("ibv_post_recv", of.nic);
    let own = &mut state.qps[of.number];
    let (room, max_sge) = (own.cap.max_recv_wr as usize, own.cap.max_recv_sge);
    // SAFETY: the caller promises a chain of receives.
    let posted = unsafe { post_receives(&mut own.receives, room, max_sge, wr, bad, fate) };
    if own.state == QpState::Error {
        state.flush(of.number);
    }
    drop(state);
    be_preempted();
    errno_of(posted)
}

/// The state of a queue pair that no thread builds a stream for: providers hold the send queue's lock meanwhile.
fn not_streaming(of: &Of) -> std::sync::MutexGuard<'_, State> {
    let state = of.shared.lock();
    of.shared
        .wait_until(state, |state| state.qps[of.number].stream.is_none())
}

/// # Safety
///
/// The queue pair is alive.
unsafe fn of_stream(qp: *mut ibv_qp_ex) -> Of {
    // SAFETY: the caller promises it.
    unsafe { of(qp.cast::<ibv_qp>()) }
}

/// `ibv_wr_start(3)`.
unsafe extern "C" fn ibv_wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of_stream(qp) };
    let mut state = not_streaming(&of);
    state.qps[of.number].stream = Some(Stream::default());
}

/// Ends a stream.
fn end_stream(shared: &Arc<Shared>, state: &mut State, number: u32) -> Stream {
    let stream = state.qps[number].stream.take();
    shared.changed.notify_all();
    stream.expect("ibv_wr_start comes first")
}

/// `ibv_wr_complete(3)`.
unsafe extern "C" fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller promises a queue pair that is alive.
    let of = unsafe { of_stream(qp) };
    let mut state = of.shared.lock();
    let stream = end_stream(&of.shared, &mut state, of.number);
    errno_of((|| {
        let fate = state.call("ibv_wr_complete", of.nic).begin()?;
        if let Some(errno) = stream.error {
            return Err(errno);
        }
        state.post(of.number, stream.sends)?;
        fate.end()
    })())
}

/// `ibv_wr_abort(3)`.
unsafe extern "C" fn ibv_wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller promises a queue pair that is alive.
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
    // SAFETY: the caller promises it.
    let of = unsafe { of_stream(qp) };
    // SAFETY: as above; the caller has set both fields.
    let (wr_id, flags) = (unsafe { (*qp).wr_id }, unsafe { (*qp).wr_flags });
    let mut state = of.shared.lock();
    let own = &mut state.qps[of.number];
    let send = Send {
        wr_id,
        operation,
        flags,
        address,
        key,
        data,
        done: None,
    };
    let accepted = own.stream.as_ref().map_or(0, |stream| stream.sends.len());
    let checked = own.check(&send, accepted);
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
    // SAFETY: the caller promises it.
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
    // SAFETY: the caller promises a queue pair that is alive; so in all that follow.
    unsafe { add(qp, Operation::Read, rkey, address, NO_DATA) };
}

/// `ibv_wr_rdma_write(3)`.
unsafe extern "C" fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { add(qp, Operation::Write(None), rkey, address, NO_DATA) };
}

/// `ibv_wr_rdma_write_imm(3)`.
unsafe extern "C" fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { add(qp, Operation::Write(Some(imm)), rkey, address, NO_DATA) };
}

/// `ibv_wr_send(3)`.
unsafe extern "C" fn ibv_wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { add(qp, Operation::Send(None), 0, 0, NO_DATA) };
}

/// `ibv_wr_send_imm(3)`.
unsafe extern "C" fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as in `ibv_wr_rdma_read`.
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
        persistent: u32::from(kind) & crate::types::ibv_placement_type::IBV_FLUSH_PERSISTENT.0 != 0,
        len: len as u64,
    };
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { add(qp, flush, rkey, address, NO_DATA) };
}

/// `ibv_wr_atomic_write(3)`: it copies its 8 bytes now.
unsafe extern "C" fn ibv_wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    bytes: *const c_void,
) {
    // SAFETY: the caller promises 8 bytes.
    let bytes = unsafe { bytes.cast::<[u8; 8]>().read_unaligned() };
    let data = Data::Inline(bytes.to_vec());
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { add(qp, Operation::AtomicWrite, rkey, address, data) };
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { set_data(qp, Data::At(vec![sge])) };
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let from = addr.cast::<u8>().cast_const();
    // SAFETY: the caller promises that so many bytes may be read there.
    let bytes = (0..length)
        .map(|n| unsafe { from.wrapping_add(n).read() })
        .collect();
    // SAFETY: as in `ibv_wr_rdma_read`.
    unsafe { set_data(qp, Data::Inline(bytes)) };
}
