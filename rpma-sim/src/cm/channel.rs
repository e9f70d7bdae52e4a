//! Event channels, and the events of ids.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;

use super::calls::of_id;
use crate::call::{Result, minus_one, null};
use crate::explore::Meeting;
use crate::here::HostOfIds;
use crate::pipe::{Pipe, wait_readable};
use crate::power::NO_POWER;
use crate::state::{Shared, State};
use crate::types::{
    rdma_cm_event, rdma_cm_event__bindgen_ty_1, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel,
};

/// Something that happened to an id.
#[derive(Debug)]
pub(super) enum Kind {
    AddrResolved,
    /// The field is a negative errno.
    AddrError(c_int),
    RouteResolved,
    /// A client asks a listener for a connection: the new id, and private data.
    Request {
        request: u32,
        data: Vec<u8>,
    },
    /// A request is accepted, with private data.
    Response(Vec<u8>),
    /// The fields are the reason, and private data.
    Rejected(c_int, Vec<u8>),
    Established,
    Unreachable,
    /// The field is a negative errno, or 0 if the other end has started or answered it.
    Disconnected(c_int),
    TimewaitExit,
    /// An event by its number, with its status, that no call has caused.
    ByItself(u32, c_int),
}

impl Kind {
    /// Its name for a report.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::AddrResolved | Self::RouteResolved => "a resolved address",
            Self::AddrError(_) => "an address that is not found",
            Self::Request { .. } => "a connection request",
            Self::Response(_) => "an accepted connection request",
            Self::Rejected(..) => "a rejected connection request",
            Self::Established => "an established connection",
            Self::Unreachable => "a connection request without an answer",
            Self::Disconnected(_) => "the end of a connection",
            Self::TimewaitExit => "the end of a connection's TIMEWAIT",
            Self::ByItself(..) => "an event of the connection manager",
        }
    }
}

/// An event channel. Its lock is taken under that of the fabric, or alone.
#[derive(Debug)]
pub(crate) struct Channel {
    events: Mutex<VecDeque<(u32, Kind)>>,
    pipe: Pipe,
    /// The fabric and the host of its ids, from the first one on.
    owner: OnceLock<(Arc<Shared>, usize)>,
    /// Its host has lost its power.
    is_dead: AtomicBool,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, Kind)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id of this fabric and this host is on the channel from now on.
    pub(super) fn belongs_to(&self, shared: &Arc<Shared>, host: usize) -> Result<()> {
        let owner = self.owner.get_or_init(|| (Arc::clone(shared), host));
        if Arc::ptr_eq(&owner.0, shared) && owner.1 == host {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// Ends the waits for events: its host has lost its power.
    pub(super) fn die(&self) {
        if !self.is_dead.swap(true, Ordering::Relaxed) {
            self.pipe.add();
        }
    }

    pub(super) fn push(&self, id: u32, kind: Kind) {
        let mut events = self.lock();
        events.push_back((id, kind));
        self.pipe.add();
    }

    fn pop(&self) -> Option<(u32, Kind)> {
        let mut events = self.lock();
        let event = events.pop_front();
        if event.is_some() {
            self.pipe.take();
        }
        event
    }

    fn remove(&self, id: u32) -> Vec<Kind> {
        let mut events = self.lock();
        let mut removed = Vec::new();
        for (of, kind) in std::mem::take(&mut *events) {
            if of == id {
                self.pipe.take();
                removed.push(kind);
            } else {
                events.push_back((of, kind))
            }
        }
        removed
    }

    /// As [`remove`](Self::remove). Returns the requests among them, which the program will never
    /// see.
    pub(super) fn discard(&self, id: u32) -> Vec<u32> {
        let requests = self.remove(id).into_iter().filter_map(|kind| match kind {
            Kind::Request { request, .. } => Some(request),
            _ => None,
        });
        requests.collect()
    }

    pub(super) fn requests(&self, listener: u32) -> usize {
        self.lock().iter().filter(|(of, _)| *of == listener).count()
    }
}

/// `struct rdma_event_channel`, and the channel's number.
#[repr(C)]
struct Object {
    public: rdma_event_channel,
    channel: Arc<Channel>,
}

/// # Safety
///
/// The channel is one of this crate, and alive.
pub(super) unsafe fn of_channel(channel: *mut rdma_event_channel) -> Arc<Channel> {
    // SAFETY: by `# Safety` it is an `Object` of `rdma_create_event_channel`, and not destroyed
    // yet.
    Arc::clone(unsafe { &(*channel.cast::<Object>()).channel })
}

/// `struct rdma_cm_event`, and the data that belongs to it.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    data: Vec<u8>,
    shared: Arc<Shared>,
    id: u32,
}

/// `rdma_create_event_channel(3)`.
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    null((|| {
        // It belongs to no host yet.
        if let Ok(of) = HostOfIds::find() {
            let mut state = of.shared.lock();
            if let Ok(host) = of.alive(&state) {
                let call = "rdma_create_event_channel";
                state.failures.call(call, host).object()?;
            }
        }
        let pipe = Pipe::new()?;
        let public = rdma_event_channel { fd: pipe.fd() };
        let channel = Arc::new(Channel {
            events: Mutex::default(),
            pipe,
            owner: OnceLock::new(),
            is_dead: AtomicBool::new(false),
        });
        Ok(Box::into_raw(Box::new(Object { public, channel })).cast())
    })())
}

/// `rdma_destroy_event_channel(3)`. The kernel destroys the ids that are on it, and librdmacm does
/// not notice.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: `rdma_create_event_channel` made it of a box, and by C's rules the caller uses it no
    // more.
    let object = unsafe { Box::from_raw(channel.cast::<Object>()) };
    if let Some((shared, _)) = object.channel.owner.get() {
        shared.lock().forget_all_on(&object.channel);
    }
}

/// `rdma_migrate_id(3)`: unread events move as well.
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: by C's rules both are objects of this crate, and neither is destroyed yet.
    let (of, to) = (unsafe { of_id(id) }, unsafe { of_channel(channel) });
    let mut state = of.shared.lock();
    minus_one((|| {
        let host = state.ids.get(of.number).ok_or(Errno::NOENT)?.host;
        let fate = state.failures.call("rdma_migrate_id", host).begin()?;
        to.belongs_to(&of.shared, host)?;
        let own = &mut state.ids[of.number];
        for kind in own.channel.remove(of.number) {
            to.push(of.number, kind);
        }
        own.channel = to;
        // SAFETY: `id` is in the table, so it is not destroyed yet, and by C's rules no other call
        // of it runs.
        unsafe { (*id).channel = channel };
        fate.end()
    })())
}

/// `rdma_get_cm_event(3)`.
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: by C's rules `channel` is of `rdma_create_event_channel`, and not destroyed yet.
    let own = unsafe { of_channel(channel) };
    if let Some((shared, host)) = own.owner.get() {
        let fate = shared.lock().failures.call("rdma_get_cm_event", *host);
        if let Err(errno) = fate.object() {
            return minus_one(Err(errno));
        }
    }
    loop {
        if own.is_dead.load(Ordering::Relaxed) {
            return minus_one(Err(NO_POWER));
        }
        while let Some((id, kind)) = own.pop() {
            let (shared, _) = own.owner.get().expect("it has ids");
            let mut state = shared.lock();
            // It may have gone since.
            if state.ids.get(id).is_none() {
                if let Kind::Request { request, .. } = kind {
                    state.forget(request);
                }
                continue;
            }
            if let Kind::Request { request, .. } = &kind {
                state.ids[*request].channel = Arc::clone(&own);
            }
            let host = state.ids[id].host;
            state
                .choices
                .with_script(|script| script.meet(Meeting::Host(host), id));
            let read = state.read(shared, channel, id, kind);
            // SAFETY: by C's rules `event` leads to a place for the result.
            unsafe { event.write(Box::into_raw(read).cast()) };
            return 0;
        }
        let waited = wait_readable(own.pipe.reader());
        if waited.is_err() {
            return minus_one(waited);
        }
    }
}

impl State {
    /// The program reads an event, which is when some of it happens.
    fn read(
        &mut self,
        shared: &Arc<Shared>,
        channel: *mut rdma_event_channel,
        id: u32,
        kind: Kind,
    ) -> Box<Event> {
        type Type = rdma_cm_event_type;
        let mut about = id;
        let mut depths = super::Depths::default();
        let (event, status, data) = match kind {
            Kind::AddrResolved => {
                self.show(id);
                (Type::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Vec::new())
            }
            Kind::AddrError(status) => (Type::RDMA_CM_EVENT_ADDR_ERROR, status, Vec::new()),
            Kind::RouteResolved => (Type::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Vec::new()),
            Kind::Request { request, data } => {
                self.give(shared, request, channel);
                about = request;
                depths = self.ids[request].theirs;
                (Type::RDMA_CM_EVENT_CONNECT_REQUEST, 0, data)
            }
            Kind::Response(data) => {
                if self.answered(id) {
                    depths = self.ids[id].theirs;
                    (Type::RDMA_CM_EVENT_ESTABLISHED, 0, data)
                } else {
                    let status = -Errno::INVAL.raw_os_error();
                    (Type::RDMA_CM_EVENT_CONNECT_ERROR, status, Vec::new())
                }
            }
            Kind::Rejected(reason, data) => {
                if let Some(qp) = self.shown_qp(id) {
                    self.fail_qp(qp);
                }
                (Type::RDMA_CM_EVENT_REJECTED, reason, data)
            }
            Kind::Established => (Type::RDMA_CM_EVENT_ESTABLISHED, 0, Vec::new()),
            Kind::Unreachable => {
                let status = -Errno::TIMEDOUT.raw_os_error();
                (Type::RDMA_CM_EVENT_UNREACHABLE, status, Vec::new())
            }
            Kind::Disconnected(status) => (Type::RDMA_CM_EVENT_DISCONNECTED, status, Vec::new()),
            Kind::TimewaitExit => (Type::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Vec::new()),
            Kind::ByItself(event, status) => (rdma_cm_event_type(event), status, Vec::new()),
        };
        self.ids[id].unacknowledged += 1;
        let user = |number: u32| match self.ids[number].user {
            Some(user) => user.as_ptr(),
            None => ptr::null_mut(),
        };
        let listen_id = if about == id {
            ptr::null_mut()
        } else {
            user(id)
        };
        let mut read = Box::new(Event {
            public: rdma_cm_event {
                id: user(about),
                listen_id,
                event,
                status,
                ..Default::default()
            },
            data,
            shared: Arc::clone(shared),
            id,
        });
        let conn = rdma_conn_param {
            private_data: if read.data.is_empty() {
                ptr::null()
            } else {
                read.data.as_ptr().cast()
            },
            private_data_len: read.data.len() as u8,
            responder_resources: depths.responder_resources,
            initiator_depth: depths.initiator_depth,
            retry_count: depths.retry_count,
            rnr_retry_count: depths.rnr_retry_count,
            ..Default::default()
        };
        read.public.param = rdma_cm_event__bindgen_ty_1 { conn };
        read
    }
}

/// `rdma_ack_cm_event(3)`.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: `rdma_get_cm_event` made it of a box, and by C's rules the caller uses it no more.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    let mut state = event.shared.lock();
    let mut fate = Ok(());
    if let Some(id) = state.ids.get_mut(event.id) {
        id.unacknowledged = id.unacknowledged.saturating_sub(1);
        let host = id.host;
        // The objects that it would free are still freed: the caller cannot ask twice.
        fate = state.failures.call("rdma_ack_cm_event", host).object();
    }
    drop(state);
    event.shared.changed.notify_all();
    minus_one(fate)
}
