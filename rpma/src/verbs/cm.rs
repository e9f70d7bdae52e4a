//! The connection manager: event channels and ids (`struct rdma_event_channel`,
//! `struct rdma_cm_id`); its events are in [`super::cm_event`].
//!
//! The connection-manager calls of one id are not thread-safe among themselves: the active side's
//! next event moves the queue pair, and destroying an id frees the memory that an event points to.
//! Every id here has an event channel of its own, so the channel's lock is the id's lock. (A
//! listening id's requests are moved to new channels before the program sees them.) It is never
//! held while blocking.

use std::ffi::c_int;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rpma_sys as sys;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use socket2::SockAddr;

use super::accept::ack_timeout;
use super::asking::Asking;
use super::cm_event::{CmEvent, CmEventKind, RawEvent};
use super::deadline::Deadline;
use super::device_events::DeviceEvents;
use super::home::for_device;
use super::nonblocking::{let_block, set_nonblocking};
use super::waiting::{Beside, Turns, readable_now, take_event};
use super::{Context, check_minus_one, check_non_null, log_leak};
use crate::bell::Bell;
use crate::error::{Error, Result};
use crate::hints::Hint;

fn no_rdma() -> Hint {
    #[cfg(not(feature = "sim"))]
    return &[
        "",
        "Is there an RDMA device, is the module rdma_ucm loaded (`rdma link`, `modprobe rdma_ucm`), and may this user \
         open the files in /dev/infiniband? docs/getting-started.md has the commands for a software device \
         (soft-RoCE)",
    ];
    #[cfg(feature = "sim")]
    sys::why_no_device()
}

pub(crate) struct EventChannel {
    raw: NonNull<sys::rdma_event_channel>,
    turns: Turns,
}

// SAFETY: no field belongs to a thread. `raw` leads to a struct with one descriptor, which never
// changes, and `turns` is a mutex.
unsafe impl Send for EventChannel {}
// SAFETY: `&self` reads the descriptor, which never changes, and takes events with `turns` held.
// The calls that put an id on the channel get it before it is shared.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(crate) fn new() -> Result<Arc<Self>> {
        // SAFETY: no preconditions.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let raw =
            check_non_null("rdma_create_event_channel", raw).map_err(|error| match error {
                Error::Provider { hint: None, .. } => error.with_hint(no_rdma()),
                error => error,
            })?;
        Ok(Arc::new(Self {
            raw,
            turns: Turns::default(),
        }))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: only `drop` destroys the channel, so `raw` leads to it as long as `self` is
        // borrowed.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: `rdma_destroy_event_channel` closes the descriptor, and only `drop` calls that,
        // after the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("fd", &self.as_fd().as_raw_fd())
            .finish()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id on this channel holds an `Arc` of it, so none is left in use (one that
        // could not be destroyed is forgotten), and no thread reads from it.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// A connection-manager id, without a queue pair. Dropping it destroys it; a connection request
/// that it stands for is rejected by that (consumer-defined reject, without private data).
pub(crate) struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<EventChannel>,
    released: bool,
    /// Set if the id asks for a connection of iWARP.
    asking: Option<Arc<Asking>>,
}

// SAFETY: librdmacm keeps no state of an id in a thread. Calls that change the id hold the lock of
// `channel`, or take `&mut self`.
unsafe impl Send for CmId {}
// SAFETY: calls of `&self` that change the id hold the lock of `channel`. The fields that `&self`
// reads without the lock (`verbs`, `port_num`, `route.addr`) are written when the id is bound,
// listens or is resolved. Until then it has one owner: `bind_addr`, `listen` and `resolve_addr`
// take `&mut self`, and `Resolving::advance` takes the `Resolving`.
unsafe impl Sync for CmId {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    Addr,
    Route,
}

impl Resolution {
    /// The time by which the kernel, which keeps this limit, must have reported the end.
    pub(crate) fn deadline(limit: Duration) -> Deadline {
        /// For its event to arrive.
        const GRACE: Duration = Duration::from_secs(2);
        Deadline::after(limit.saturating_add(GRACE))
    }

    pub(crate) fn timed_out(self) -> Error {
        Error::provider(self.call(), Errno::TIMEDOUT)
    }

    fn call(self) -> &'static str {
        match self {
            Self::Addr => "rdma_resolve_addr",
            Self::Route => "rdma_resolve_route",
        }
    }
}

/// A client's connection request, on an event channel of its own.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) id: CmId,
    pub(crate) private_data: Box<[u8]>,
    /// Reads that the client wants to have in flight.
    pub(crate) initiator_depth: u8,
    /// Reads that the client is ready to serve at a time.
    pub(crate) responder_resources: u8,
}

impl IncomingRequest {
    /// The request of an event, with its new id moved to a channel of its own; any other event
    /// unchanged. Runs under the lock of the listener's channel, so that no other thread can take a
    /// later event of the new id. A request that cannot be moved is rejected with this private
    /// data.
    fn of(event: RawEvent, reject: &[u8]) -> Result<Result<Self, CmEvent>> {
        let raw = event.id();
        let event = event.acknowledge();
        if event.kind != CmEventKind::ConnectRequest {
            return Ok(Err(event));
        }
        let raw = check_non_null("rdma_get_cm_event", raw)?;
        let migrated = EventChannel::new().and_then(|channel| {
            // SAFETY: `raw` came with the event, no other code has it, and it is not destroyed
            // before this function does so. `channel` is new and owned here. All events of the id
            // are acknowledged, so that the call does not wait.
            let ret = unsafe { sys::rdma_migrate_id(raw.as_ptr(), channel.raw.as_ptr()) };
            check_minus_one("rdma_migrate_id", ret).map(|()| channel)
        });
        match migrated {
            Ok(channel) => Ok(Ok(Self {
                id: CmId {
                    raw,
                    channel,
                    released: false,
                    asking: None,
                },
                private_data: event.private_data,
                initiator_depth: event.initiator_depth,
                responder_resources: event.responder_resources,
            })),
            Err(error) => {
                let len = u8::try_from(reject.len()).unwrap_or(u8::MAX);
                // SAFETY: `raw` came with the event, no other code has it, and it is destroyed only
                // below. The call copies `len` bytes, at most those of `reject`.
                let ret = unsafe { sys::rdma_reject(raw.as_ptr(), reject.as_ptr().cast(), len) };
                if let Err(gone) = check_minus_one("rdma_reject", ret) {
                    log::info!("a client gave up before it was rejected: {gone}");
                }
                // SAFETY: `raw` came with the event, no other code has it, and this function does
                // not use it again.
                let ret = unsafe { sys::rdma_destroy_id(raw.as_ptr()) };
                log_leak(check_minus_one("rdma_destroy_id", ret));
                Err(error)
            }
        }
    }
}

impl CmId {
    /// An id for reliable connections that is not bound yet, and that will be bound to this device.
    pub(crate) fn of(device: &Context) -> Result<Self> {
        // SAFETY: `device` is borrowed, and its id keeps the context open.
        unsafe { for_device(device.as_ptr(), Self::new) }
    }

    /// As [`of`](Self::of), for an id that asks for a connection.
    pub(crate) fn to_connect(device: &Context) -> Result<Self> {
        let mut id = Self::of(device)?;
        if device.is_iwarp() {
            id.asking = Some(Asking::new(id.channel.as_fd(), device.abandoned())?);
        }
        Ok(id)
    }

    /// An id for reliable connections that is not bound yet.
    pub(crate) fn new() -> Result<Self> {
        let channel = EventChannel::new()?;
        let mut raw = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: `channel` is owned here until the call has returned; `raw` takes the new id.
        let ret = unsafe {
            sys::rdma_create_id(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), space)
        };
        check_minus_one("rdma_create_id", ret).map_err(|error| error.with_hint(no_rdma()))?;
        let raw = check_non_null("rdma_create_id", raw)?;
        Ok(Self {
            raw,
            channel,
            released: false,
            asking: None,
        })
    }

    /// Binds to a local address, and thereby to its device, if it is a device's address.
    pub(crate) fn bind_addr(&mut self, addr: SocketAddr) -> Result<()> {
        let addr = SockAddr::from(addr);
        // SAFETY: only `release` destroys the id, as the last use of `self`. The address is a full
        // sockaddr, which the call only reads.
        let ret = unsafe { sys::rdma_bind_addr(self.as_ptr(), addr.as_ptr().cast_mut().cast()) };
        check_minus_one("rdma_bind_addr", ret)
    }

    pub(crate) fn listen(&mut self) -> Result<()> {
        // SAFETY: only `release` destroys the id, as the last use of `self`. A backlog of 0 is the
        // kernel's maximum.
        let ret = unsafe { sys::rdma_listen(self.as_ptr(), 0) };
        check_minus_one("rdma_listen", ret)
    }

    /// Begins to find the device and the source address through which `addr` is reached, within
    /// `limit`. [`resolved`](Self::resolved) returns how it ended.
    pub(crate) fn resolve_addr(&mut self, addr: SocketAddr, limit: Duration) -> Result<()> {
        let addr = SockAddr::from(addr);
        let (dst, ms) = (addr.as_ptr().cast_mut().cast(), milliseconds(limit));
        // SAFETY: only `release` destroys the id, as the last use of `self`. NULL lets the kernel
        // choose the source; the call only reads `dst`, a full sockaddr.
        let ret = unsafe { sys::rdma_resolve_addr(self.as_ptr(), ptr::null_mut(), dst, ms) };
        check_minus_one(Resolution::Addr.call(), ret)
    }

    /// As [`resolve_addr`](Self::resolve_addr), and waits until it has ended.
    pub(crate) fn resolve_addr_now(&mut self, addr: SocketAddr, limit: Duration) -> Result<()> {
        self.resolve_addr(addr, limit)?;
        if self.resolved(Resolution::Addr, Resolution::deadline(limit))? {
            Ok(())
        } else {
            Err(Resolution::Addr.timed_out())
        }
    }

    /// Begins to find the way there.
    pub(crate) fn resolve_route(&mut self, limit: Duration) -> Result<()> {
        // SAFETY: only `release` destroys the id, as the last use of `self`.
        let ret = unsafe { sys::rdma_resolve_route(self.as_ptr(), milliseconds(limit)) };
        check_minus_one(Resolution::Route.call(), ret)
    }

    /// Whether a resolution has ended; `false` if it has not when `deadline` passes. The kernel
    /// keeps the limit that it was given, and reports its end by an event.
    pub(crate) fn resolved(&self, what: Resolution, deadline: Deadline) -> Result<bool> {
        let wanted = match what {
            Resolution::Addr => CmEventKind::AddrResolved,
            Resolution::Route => CmEventKind::RouteResolved,
        };
        loop {
            return match self.next_event(None, deadline)? {
                Some(event) if event.kind == wanted => Ok(true),
                Some(CmEvent {
                    kind: notice @ CmEventKind::Other(_),
                    ..
                }) => {
                    log::info!("while an address is resolved: {notice:?}");
                    continue;
                }
                Some(event) if event.kind == CmEventKind::DeviceRemoval => {
                    Err(Error::provider(what.call(), Errno::NODEV))
                }
                Some(event) if event.status < 0 => Err(Error::provider(
                    what.call(),
                    std::io::Error::from_raw_os_error(-event.status),
                )),
                Some(event) => Err(Error::provider(
                    what.call(),
                    std::io::Error::other(format!(
                        "event {:?} with status {}",
                        event.kind, event.status
                    )),
                )),
                None => Ok(false),
            };
        }
    }

    /// The context of the device that the id is bound to.
    pub(super) fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: only `release` destroys the id, as the last use of `self`. librdmacm sets the
        // field when the id is bound.
        NonNull::new(unsafe { (*self.as_ptr()).verbs })
    }

    /// The events of that device.
    pub(super) fn device(&self) -> Option<DeviceEvents<'_>> {
        // SAFETY: the device is open as long as an id is bound to it. This id is, until `release`
        // destroys it, and the result borrows `self`.
        self.verbs().map(|verbs| unsafe { DeviceEvents::of(verbs) })
    }

    /// The port of the device that the id is bound to.
    pub(crate) fn device_port(&self) -> u8 {
        // SAFETY: only `release` destroys the id, as the last use of `self`. librdmacm sets the
        // field together with `verbs`.
        unsafe { (*self.as_ptr()).port_num }
    }

    /// The local address, with the port that the kernel chose if port 0 was bound.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: only `release` destroys the id, as the last use of `self`. The function returns a
        // pointer to a field of it.
        let addr = unsafe { sys::rdma_get_local_addr(self.as_ptr()) };
        // SAFETY: the field is in the id, which `self` keeps. It is a union with a
        // `sockaddr_storage`, so that it is as large as its family needs.
        unsafe { socket_addr(addr) }
    }

    /// The address of the other side, of an id that is resolved or that stands for a request.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: only `release` destroys the id, as the last use of `self`. The function returns a
        // pointer to a field of it.
        let addr = unsafe { sys::rdma_get_peer_addr(self.as_ptr()) };
        // SAFETY: the field is in the id, which `self` keeps. It is a union with a
        // `sockaddr_storage`, so that it is as large as its family needs.
        unsafe { socket_addr(addr) }
    }

    /// The time after which an unacknowledged message is sent again is 4.096 µs · 2^`exponent`.
    pub(crate) fn set_ack_timeout(&mut self, exponent: u8) -> Result<()> {
        let mut value = exponent;
        let (level, name) = (sys::RDMA_OPTION_ID.0, sys::RDMA_OPTION_ID_ACK_TIMEOUT.0);
        // SAFETY: only `release` destroys the id, as the last use of `self`. The option takes one
        // byte, which the call only reads.
        let ret = unsafe {
            sys::rdma_set_option(
                self.as_ptr(),
                level as c_int,
                name as c_int,
                (&raw mut value).cast(),
                size_of::<u8>(),
            )
        };
        check_minus_one("rdma_set_option", ret)
    }

    /// The acknowledgement time-out with which the id's request would be accepted, as an exponent,
    /// if [`set_ack_timeout`](Self::set_ack_timeout) sets no other. `None`: the transport has no
    /// time-out. It fails with `EINVAL` if the client is gone.
    pub(crate) fn ack_timeout(&self) -> Result<Option<u8>> {
        // SAFETY: `serialised` passes the id of `self`, which only `release` destroys, and holds
        // its lock.
        self.serialised(|id| unsafe { ack_timeout(id) })
    }

    /// The next event of this id; `None` if `deadline` passes or the bell rings first, or at once
    /// if the user made the descriptor non-blocking.
    pub(crate) fn next_event(
        &self,
        bell: Option<&Bell>,
        deadline: Deadline,
    ) -> Result<Option<CmEvent>> {
        let device = self.device();
        let device = device.as_ref();
        let beside = Beside { device, bell };
        take_event(self.as_fd(), beside, &self.channel.turns, deadline, |_| {
            if let Some(failure) = self.asking().and_then(|asking| asking.failure()) {
                return failure.map(Some);
            }
            let event = self.get_event(device)?.map(RawEvent::acknowledge);
            if let (Some(asking), Some(event)) = (self.asking(), &event) {
                asking.saw(event.kind);
            }
            Ok(event)
        })
    }

    /// The next connection request of a listening id, or another event that arrived instead: one
    /// of a client that is gone. A request for which this process has no descriptor left is
    /// rejected with `reject`: up to 148 bytes, which the caller has checked.
    pub(crate) fn next_request(
        &self,
        deadline: Deadline,
        reject: &[u8],
    ) -> Result<Option<Result<IncomingRequest, CmEvent>>> {
        let device = self.device();
        let device = device.as_ref();
        let beside = Beside { device, bell: None };
        take_event(
            self.as_fd(),
            beside,
            &self.channel.turns,
            deadline,
            |_| match self.get_event(device)? {
                None => Ok(None),
                Some(event) => {
                    let of = || IncomingRequest::of(event, reject).map(Some);
                    match self.verbs() {
                        // SAFETY: the device is open as long as an id is bound to it. This id is,
                        // until `release` destroys it, and `self` is borrowed.
                        Some(device) => unsafe { for_device(device.as_ptr(), of) },
                        None => of(),
                    }
                }
            },
        )
    }

    /// It fails if the client is gone. The caller has checked that the private data fits.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let data = private_data.as_ptr().cast();
        self.serialised(|id| {
            // SAFETY: `serialised` passes the id of `self`, which only `release` destroys. The call
            // copies `len` bytes, at most those of `private_data`.
            let ret = unsafe { sys::rdma_reject(id, data, len) };
            check_minus_one("rdma_reject", ret)
        })
    }

    /// Reads one event, under the channel's lock.
    fn get_event(&self, device: Option<&DeviceEvents<'_>>) -> Result<Option<RawEvent>> {
        let fd = self.channel.as_fd();
        if !readable_now(fd, device)? {
            return Ok(None);
        }
        // librdmacm reads again by itself when it swallows an event (one that follows a failed
        // connect, for instance), which would block for ever on a blocking descriptor.
        let _nonblocking = NonBlocking::set(fd)?;
        let mut event = ptr::null_mut();
        // SAFETY: `self.channel` keeps the channel. `take_event` holds its lock, without which
        // `release` destroys no id that this event is for.
        let ret = unsafe { sys::rdma_get_cm_event(self.channel.raw.as_ptr(), &raw mut event) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        match check_minus_one("rdma_get_cm_event", ret) {
            Ok(()) => {
                let event = check_non_null("rdma_get_cm_event", event)?;
                Ok(Some(RawEvent { event, errno }))
            }
            Err(error) if error.is_errno(Errno::AGAIN) || error.is_errno(Errno::NODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn set_nonblocking(&self, on: bool) -> Result<()> {
        let _guard = self.channel.turns.hold();
        let_block(self.as_fd(), !on)
    }

    /// Runs connection-manager calls on the id, one thread at a time.
    pub(super) fn serialised<R>(&self, calls: impl FnOnce(*mut sys::rdma_cm_id) -> R) -> R {
        let _guard = self.channel.turns.hold();
        calls(self.as_ptr())
    }

    pub(super) fn as_ptr(&self) -> *mut sys::rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(super) fn asking(&self) -> Option<&Arc<Asking>> {
        self.asking.as_ref()
    }

    /// The id, for another owner. This value does not destroy it any more.
    pub(super) fn take(&mut self) -> Self {
        Self {
            raw: self.raw,
            channel: Arc::clone(&self.channel),
            released: std::mem::replace(&mut self.released, true),
            asking: self.asking.take(),
        }
    }

    /// Destroys the id, once. A failure leaves it allocated.
    pub(crate) fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        self.serialised(|id| {
            // SAFETY: `released` was false, so that the id is alive, and it is not used after this.
            // Every event was acknowledged under the same lock, so that the call does not wait.
            let ret = unsafe { sys::rdma_destroy_id(id) };
            check_minus_one("rdma_destroy_id", ret)
        })
    }
}

impl AsFd for CmId {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let asking = self.asking.as_deref().map(Asking::as_fd);
        asking.unwrap_or_else(|| self.channel.as_fd())
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("fd", &self.as_fd().as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        log_leak(self.release());
    }
}

/// Makes a descriptor non-blocking for a moment, if it is not already.
struct NonBlocking<'fd> {
    fd: BorrowedFd<'fd>,
    before: OFlags,
}

impl<'fd> NonBlocking<'fd> {
    fn set(fd: BorrowedFd<'fd>) -> Result<Self> {
        let before = set_nonblocking(fd)?;
        Ok(Self { fd, before })
    }
}

impl Drop for NonBlocking<'_> {
    fn drop(&mut self) {
        if !self.before.contains(OFlags::NONBLOCK) {
            if let Err(errno) = fcntl_setfl(self.fd, self.before) {
                log::error!("fcntl(F_SETFL) failed: {errno}; the event channel stays non-blocking");
            }
        }
    }
}

/// # Safety
///
/// `addr` is NULL or points to a socket address of the size of its family.
unsafe fn socket_addr(addr: *const libc::sockaddr) -> Option<SocketAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: `addr` is not NULL, so by `# Safety` it leads to a socket address.
    let family = c_int::from(unsafe { (*addr).sa_family });
    match family {
        libc::AF_INET => {
            // SAFETY: the family is AF_INET, so by `# Safety` there is a whole sockaddr_in.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Some(SocketAddr::new(
                std::net::IpAddr::V4(ip),
                u16::from_be(v4.sin_port),
            ))
        }
        libc::AF_INET6 => {
            // SAFETY: the family is AF_INET6, so by `# Safety` there is a whole sockaddr_in6.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            let v6 = std::net::SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id);
            Some(SocketAddr::V6(v6))
        }
        _ => None,
    }
}

/// A limit as the connection manager takes it: at least one millisecond, at most `i32::MAX`.
fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis().max(1)).unwrap_or(c_int::MAX)
}
