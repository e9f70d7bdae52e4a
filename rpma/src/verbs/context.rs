//! The device context and its protection domain (`struct ibv_context`, `struct ibv_pd`).

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rpma_sys as sys;

use super::asking::Abandoned;
use super::device_events::DeviceEvents;
use super::{CmId, check_errno, check_non_null, log_leak};
use crate::error::{Error, Result};

/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `_FLUSH_PERSISTENT` and `_ATOMIC_WRITE` of the kernel's
/// `rdma/ib_user_verbs.h`, which rdma-core 44 does not have. They are bits of
/// `device_cap_flags_ex`.
const CAP_FLUSH_GLOBAL: u64 = 1 << 38;
const CAP_FLUSH_PERSISTENT: u64 = 1 << 39;
const CAP_ATOMIC_WRITE: u64 = 1 << 40;

/// The vendor id of soft-RoCE (`rxe_param.h`, `RXE_VENDOR_ID`). Kernels before 5.0 leave it 0, as
/// the drivers of some adapters do: those have fences, and so has soft-RoCE there.
///
/// Since Linux 5.19 its fence waits until all credits for reads and atomics are back
/// (`rxe_wqe_is_fenced` in `rxe_req.c`), and a request that is sent again keeps the credit that it
/// had: so after one lost packet a fenced request may wait for ever, without a completion. It
/// needs no fence: its responder executes requests one by one, in order (`rxe_resp.c`).
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// The vendor id of soft-iWARP (`siw.h`, `SIW_VENDOR_ID`).
const SOFT_IWARP: u32 = 0x62_6D74;

/// An open RDMA device.
///
/// librdmacm opens each device once and owns the context; an id that is bound to the device keeps
/// it from going away.
pub(crate) struct Context {
    raw: NonNull<sys::ibv_context>,
    _id: CmId,
    abandoned: Abandoned,
}

// SAFETY: libibverbs keeps no state of a context in a thread, and `_id` is `Send`.
unsafe impl Send for Context {}
// SAFETY: libibverbs lets several threads use a context at the same time. This crate only reads its
// fields (`device`, `ops`, `async_fd`), which never change.
unsafe impl Sync for Context {}

/// The abilities of a device, as far as this crate needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAttributes {
    pub(crate) max_qp_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr_size: u64,
    /// Reads and atomic operations that one queue pair can have in flight, as initiator and as
    /// target.
    pub(crate) max_rd_atom: u8,
    pub(crate) native_flush: bool,
    pub(crate) native_atomic_write: bool,
    /// On-demand paging for RC reads and writes.
    pub(crate) odp: bool,
    /// Whether this is soft-RoCE. Its fence is not to be used: see [`SOFT_ROCE`].
    pub(crate) soft_roce: bool,
    /// Whether the kernel copies the data of its operations with a processor.
    pub(crate) copies: bool,
}

impl Context {
    /// The context of the device that `id` is bound to, or the id back if it is not bound.
    pub(crate) fn of(id: CmId) -> Result<Arc<Self>, CmId> {
        match id.verbs() {
            Some(raw) => Ok(Arc::new(Self {
                raw,
                _id: id,
                abandoned: Abandoned::default(),
            })),
            None => Err(id),
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// The threads of this device that work for no owner any more.
    pub(super) fn abandoned(&self) -> &Abandoned {
        &self.abandoned
    }

    pub(super) fn device_events(&self) -> DeviceEvents<'_> {
        // SAFETY: `_id` keeps the device open until it is dropped with `self`, which the result
        // borrows.
        unsafe { DeviceEvents::of(self.raw) }
    }

    /// Whether `other` is the same device: librdmacm opens each one once.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.raw == other.raw
    }

    /// The device's name, as `ibv_devices` prints it.
    pub(crate) fn name(&self) -> &str {
        // SAFETY: `_id` keeps the context open until it is dropped with `self`. `device` is set
        // when it is opened.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: `device` is that of the context, and lives as long. `_id` keeps it open.
        let name = unsafe { sys::ibv_get_device_name(device) };
        if name.is_null() {
            return "";
        }
        // SAFETY: the name is a NUL-terminated array inside the device, which lives as long as the
        // context. `_id` keeps that open, and the result borrows `self`.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_str().unwrap_or("")
    }

    /// Whether this device's messages travel over iWARP. Its reads need remote-write rights at
    /// their destination.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: `_id` keeps the context open until it is dropped with `self`. `device` is set
        // when it is opened.
        let device = unsafe { (*self.raw.as_ptr()).device };
        // SAFETY: `device` is that of the context, and lives as long. `_id` keeps it open.
        let transport = unsafe { (*device).transport_type };
        transport == sys::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    pub(crate) fn query_device(&self) -> Result<DeviceAttributes> {
        let mut attr = MaybeUninit::<sys::ibv_device_attr_ex>::zeroed();
        // SAFETY: `_id` keeps the context open until it is dropped with `self`. NULL asks for no
        // optional input, and `attr` has the size that the header's inline function passes on.
        let ret =
            unsafe { sys::ibv_query_device_ex(self.as_ptr(), ptr::null(), attr.as_mut_ptr()) };
        check_errno("ibv_query_device_ex", ret)?;
        // SAFETY: integers and newtypes of integers only, zeroed before the call: any bits are
        // valid.
        let attr = unsafe { attr.assume_init() };
        let caps = attr.device_cap_flags_ex;
        let odp = &attr.odp_caps;
        let odp_general = u64::from(sys::ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        let odp_rc = sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE.0
            | sys::ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ.0;
        let rd_atom = attr
            .orig_attr
            .max_qp_rd_atom
            .min(attr.orig_attr.max_qp_init_rd_atom);
        Ok(DeviceAttributes {
            max_qp_wr: u32::try_from(attr.orig_attr.max_qp_wr).unwrap_or(0),
            max_sge: u32::try_from(attr.orig_attr.max_sge).unwrap_or(0),
            max_srq_wr: u32::try_from(attr.orig_attr.max_srq_wr).unwrap_or(0),
            max_cqe: u32::try_from(attr.orig_attr.max_cqe).unwrap_or(0),
            max_mr_size: attr.orig_attr.max_mr_size,
            max_rd_atom: u8::try_from(rd_atom.clamp(1, 0xFE)).unwrap_or(1),
            native_flush: cfg!(native_flush)
                && caps & CAP_FLUSH_GLOBAL != 0
                && caps & CAP_FLUSH_PERSISTENT != 0,
            native_atomic_write: cfg!(native_atomic_write) && caps & CAP_ATOMIC_WRITE != 0,
            soft_roce: attr.orig_attr.vendor_id == SOFT_ROCE,
            copies: matches!(attr.orig_attr.vendor_id, SOFT_ROCE | SOFT_IWARP),
            odp: odp.general_caps & odp_general != 0
                && odp.per_transport_caps.rc_odp_caps & odp_rc == odp_rc,
        })
    }

    /// The longest message that `port` takes, in bytes.
    pub(crate) fn max_message_size(&self, port: u8) -> Result<u32> {
        let mut attr = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: `_id` keeps the context open until it is dropped with `self`. The wrapped macro
        // passes the size of this very struct.
        let ret = unsafe { sys::rpma_sys_query_port(self.as_ptr(), port, attr.as_mut_ptr()) };
        check_errno("ibv_query_port", ret)?;
        // SAFETY: integers and newtypes of integers only, zeroed before the call: any bits are
        // valid.
        let attr = unsafe { attr.assume_init() };
        Ok(attr.max_msg_sz)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Pd {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: no thread owns a domain: libibverbs and the providers lock where they change it.
unsafe impl Send for Pd {}
// SAFETY: nothing in this crate writes to the fields of `raw`, and the locks of libibverbs and the
// providers let several threads register memory and make queues in it.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: `context` is borrowed, and its id keeps it open.
        let pd = unsafe { sys::ibv_alloc_pd(context.as_ptr()) };
        let raw = check_non_null("ibv_alloc_pd", pd)?;
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// An error unless `id` is bound to this domain's device: librdmacm refuses a queue pair across
    /// devices with a bare EINVAL.
    pub(crate) fn check_device(&self, id: &CmId) -> Result<()> {
        let name = self.context.name();
        Err(Error::invalid(match id.verbs() {
            Some(own) if own == self.context.raw => return Ok(()),
            Some(_) => format!(
                "the address belongs to another RDMA device than the Peer's ({name}): listen and \
                 connect with an address of the Peer's device, or make the Peer from a \
                 Device::from_addr of this address"
            ),
            None => format!(
                "the address belongs to no RDMA device: listen and connect with an address of the \
                 Peer's device ({name})"
            ),
        }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: every object made from this domain holds an `Arc` of it (`Registered`,
        // `SharedReceiveQueue`, `QueuePair`), so none is left in use.
        let ret = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        log_leak(check_errno("ibv_dealloc_pd", ret));
    }
}
