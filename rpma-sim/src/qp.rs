//! Queue pairs: made and destroyed. How they are changed: see [`crate::modify`]; posting to them:
//! [`crate::post`] and [`crate::stream`]; the execution: [`crate::requester`] and
//! [`crate::responder`].

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::time::Instant;

use rustix::io::Errno;

use crate::async_events::Element;
use crate::call::{Result, errno_of};
use crate::caller::Caller;
use crate::handle::of;
use crate::links::Way;
use crate::memory::access;
use crate::power::Flow;
use crate::profile::Profile;
use crate::state::State;
use crate::stream::{Stream, set_calls};
use crate::tcp::Connection;
use crate::types::{
    ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_sge, ibv_wc,
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
    pub(crate) cap: ibv_qp_cap,
    /// The rights of the peer.
    pub(crate) rights: u32,
    pub(crate) peer: Option<u32>,
    pub(crate) ack_timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// For how long a peer waits that met no receive here: a code.
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) receives: VecDeque<Recv>,
    /// Requests and receives that never complete.
    pub(crate) dead_sends: usize,
    pub(crate) dead_receives: usize,
    /// For a shared queue: the receive that an incomplete message has taken.
    pub(crate) begun: Option<Recv>,
    pub(crate) last_receive: LastReceive,
    /// Requests that are done, of a device that frees their slots when a completion of them is
    /// polled, by the next completion.
    pub(crate) unpolled: u32,
    /// Slots that are not free yet, of such requests.
    pub(crate) kept_slots: u32,
    /// The request that waits for its time.
    pub(crate) waiting: Option<Waiting>,
    /// How often a request was tried, so that a timer can check whether it is meant.
    pub(crate) attempt: u64,
    /// A timer will execute the requests that are kept back: since this program time.
    pub(crate) kept_since: Option<Instant>,
    /// These are executed by that timer, and not at polls.
    pub(crate) ignores_polls: bool,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) stream: Option<Stream>,
    pub(crate) unacknowledged: u32,
    /// It gets no acknowledgement any more.
    pub(crate) is_deaf: bool,
    /// Its connection, if that is a TCP stream.
    pub(crate) tcp: Option<Connection>,
}

/// `enum ibv_qp_state`, as far as connections have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QpState {
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

/// Whether a queue pair takes more receives of a shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastReceive {
    /// It may.
    Open,
    /// It has failed, and will give back the receive that it has taken.
    Due,
    /// It has given back all that it gives back.
    Over,
}

/// Why the first request is not executed yet, and how often it will be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The peer has no receive.
    Receive { left: u8 },
    /// The peer does not answer.
    Answer { left: u8 },
    /// The network is busy with earlier data.
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
    pub(crate) way: Way,
    /// The device has read so much of its data, and will read the rest when it executes it.
    pub(crate) fetched: Option<Vec<u8>>,
    pub(crate) caller: Option<Caller>,
}

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
    /// Whether a write that was posted after it may be executed before it.
    pub(crate) fn is_slow(self) -> bool {
        !matches!(self, Self::Write(_) | Self::Send(_))
    }

    fn has_immediate_data(self) -> bool {
        matches!(self, Self::Write(Some(_)) | Self::Send(Some(_)))
    }

    /// Whether it takes a receive.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::Write(Some(_)) | Self::Send(_))
    }
}

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

#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<ibv_sge>,
}

impl Qp {
    fn slots_left(&self) -> usize {
        let used = self.sends.len() + self.dead_sends + self.kept_slots as usize;
        (self.cap.max_send_wr as usize).saturating_sub(used)
    }

    pub(crate) fn receives_left(&self) -> usize {
        let used = self.receives.len() + self.dead_receives;
        (self.cap.max_recv_wr as usize).saturating_sub(used)
    }

    pub(crate) fn free_slots(&mut self, slots: u32) {
        self.kept_slots = self.kept_slots.saturating_sub(slots);
    }

    /// The result of a post of one more request, with so many already accepted.
    pub(crate) fn check(&self, profile: &Profile, send: &Send, accepted: usize) -> Result<()> {
        if send.operation.has_immediate_data() && !profile.has_immediate_data {
            return Err(Errno::INVAL);
        }
        if accepted >= self.slots_left() {
            return Err(Errno::NOMEM);
        }
        let fits = match &send.data {
            Data::Inline(bytes) => bytes.len() <= self.cap.max_inline_data as usize,
            Data::At(sges) => sges.len() <= self.cap.max_send_sge as usize,
        };
        if fits { Ok(()) } else { Err(Errno::INVAL) }
    }
}

impl State {
    pub(crate) fn is_connected(&self, number: u32) -> bool {
        let qp = self.qps.get(number);
        qp.is_some_and(|qp| qp.state == QpState::ReadyToSend)
    }

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
        // SAFETY: by `# Safety` the domain and the queue that the attributes name are alive.
        let (pd, send_cq) = (unsafe { of(attr.pd) }, unsafe { of(attr.send_cq) });
        // SAFETY: by `# Safety` the queue that the attributes name is alive.
        let recv_cq = unsafe { of(attr.recv_cq) };
        // SAFETY: it is not NULL, so by `# Safety` it is alive.
        let srq = (!attr.srq.is_null()).then(|| unsafe { of(attr.srq) }.number);
        let ops = match attr.comp_mask & ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0 {
            0 => 0,
            _ => attr.send_ops_flags,
        };
        let (profile, cap) = (self.profile(nic), &mut attr.cap);
        let limits = &profile.limits;
        if pd.nic != nic
            || attr.qp_type != ibv_qp_type::IBV_QPT_RC
            || cap.max_send_wr > limits.qp_wr
            || cap.max_recv_wr > limits.qp_wr
            || cap.max_send_sge.max(cap.max_recv_sge) > limits.sge
            || cap.max_inline_data > limits.inline
        {
            return Err(Errno::INVAL);
        }
        cap.max_send_wr = profile.room(cap.max_send_wr);
        cap.max_recv_wr = profile.room(cap.max_recv_wr);
        let room = (16 * cap.max_send_sge).min(limits.inline);
        cap.max_inline_data = cap.max_inline_data.max(room);
        let cap = *cap;
        // SAFETY: by `# Safety` the domain that the attributes name is alive.
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
                max_dest_rd_atomic: 0,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                dead_sends: 0,
                dead_receives: 0,
                begun: None,
                last_receive: LastReceive::Open,
                unpolled: 0,
                kept_slots: 0,
                waiting: None,
                attempt: 0,
                stream: None,
                kept_since: None,
                ignores_polls: false,
                unacknowledged: 0,
                is_deaf: false,
                tcp: None,
            }
        });
        Ok(number)
    }

    /// Puts requests into a send queue, and begins to execute them.
    pub(crate) fn post(
        &mut self,
        number: u32,
        sends: impl IntoIterator<Item = Send>,
    ) -> Result<()> {
        let profile = self.profile_of(number);
        let (is_tcp, flushes) = (profile.tcp.is_some(), profile.flushes_late_posts);
        let qp = &mut self.qps[number];
        if qp.state == QpState::Error && !flushes {
            qp.dead_sends += sends.into_iter().count();
            return Ok(());
        }
        if qp.state < QpState::ReadyToSend && is_tcp {
            return Err(Errno::NOTCONN);
        }
        let first = qp.sends.len();
        qp.sends.extend(sends);
        // They are in the queue then, as rxe's provider leaves them (`rxe_post_send`).
        if qp.state < QpState::ReadyToSend {
            return Err(Errno::INVAL);
        }
        self.effects
            .posts(self.qps[number].sends.iter().skip(first));
        self.set_out(number, first);
        self.begin_to_fetch(number, first);
        self.posted(number);
        Ok(())
    }
}

/// `ibv_query_qp(3)`.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of(qp) };
    let mut state = of.shared.lock();
    errno_of((|| {
        let fate = state.call("ibv_query_qp", of.nic).begin()?;
        let own = &state.qps[of.number];
        let qp_state = own.state.ibv();
        let found = match state.is_tcp(of.number) {
            false => ibv_qp_attr {
                qp_state,
                cur_qp_state: qp_state,
                dest_qp_num: own.peer.unwrap_or(0),
                qp_access_flags: own.rights,
                cap: own.cap,
                max_rd_atomic: own.max_rd_atomic,
                max_dest_rd_atomic: own.max_dest_rd_atomic,
                min_rnr_timer: own.min_rnr_timer,
                timeout: own.ack_timeout,
                retry_cnt: own.retry_count,
                rnr_retry: own.rnr_retry_count,
                port_num: 1,
                ..Default::default()
            },
            // All that `siw_query_qp` sets, with the two depths exchanged as there.
            true => ibv_qp_attr {
                qp_state,
                qp_access_flags: access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ,
                cap: own.cap,
                path_mtu: ibv_mtu::IBV_MTU_1024,
                max_rd_atomic: own.max_dest_rd_atomic,
                max_dest_rd_atomic: own.max_rd_atomic,
                ..Default::default()
            },
        };
        // SAFETY: by C's rules `attr` leads to a place for the result.
        unsafe { attr.write(found) };
        let found = ibv_qp_init_attr {
            cap: own.cap,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: by C's rules `init` leads to a place for the result.
        unsafe { init.write(found) };
        // SAFETY: `qp` is in the table, so it is not destroyed yet. By C's rules no other thread
        // changes its state at the same time.
        unsafe { (*qp).state = qp_state };
        fate.end()
    })())
}

/// `ibv_destroy_qp(3)`.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: by C's rules `qp` is of `rdma_create_qp_ex`, and not destroyed yet.
    let of = unsafe { of(qp) };
    let mut state = of.shared.lock();
    let fate = match state.call("ibv_destroy_qp", of.nic).begin() {
        Ok(fate) => fate,
        Err(errno) => return errno_of(Err(errno)),
    };
    state.leave_requests(of.number);
    // From here on it gets no more requests.
    let own = &mut state.qps[of.number];
    own.state = QpState::Error;
    let peer = own.peer.take();
    // Nothing is on its way to this host's memory any more, neither from its peer nor from its own
    // reads.
    let host = state.nics[of.nic].host;
    let writes = peer.map(Flow::Writes);
    for flow in writes.into_iter().chain([Flow::Reads(of.number)]) {
        state.push(flow, host, None);
    }
    state.untell(of.nic, Element::Qp(of.number));
    let mut state = of
        .shared
        .wait_until(state, |state| state.qps[of.number].unacknowledged == 0);
    state.untell(of.nic, Element::Qp(of.number));
    state.has_no_qp(of.number);
    let gone = state.qps.remove(of.number).expect("it is alive");
    if state.profile(of.nic).purges_completions {
        state.purge(gone.send_cq, of.number);
        state.purge(gone.recv_cq, of.number);
    }
    let ended = fate.end();
    // As in libibverbs, the caller's object outlives a call that fails.
    if ended.is_ok() {
        // SAFETY: `create_qp` made it of a box, and by C's rules the caller uses it no more.
        drop(unsafe { Box::from_raw(gone.object.as_ptr()) });
    }
    errno_of(ended)
}
