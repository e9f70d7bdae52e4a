//! The lower floor: the only code that calls libibverbs and librdmacm.
//!
//! One small type owns each verbs or rdmacm object and keeps its parent alive by an [`Arc`], so
//! that no order of drops on the upper floor can destroy a parent first:
//!
//! ```text
//! CmId ── Arc ─▶ EventChannel
//! Context ─────▶ CmId                            (the id keeps librdmacm's device open)
//! Pd ── Arc ──▶ Context
//! MemoryRegion ── Arc ─▶ Pd
//! CompChannel ── Arc ─▶ Context
//! CompletionQueue ── Arc ─▶ CompChannel
//! SharedReceiveQueue ── Arc ─▶ Pd
//! QueuePair ── Arc ─▶ CompletionQueue (send, receive), SharedReceiveQueue, Pd;  owns its CmId
//! ```
//!
//! A destroy that fails is logged, and its object stays allocated: leaking is harmless, a device
//! that writes into freed memory is not. No `Drop` here panics.
//!
//! C reports errors in four ways; each is converted in one place, below.
//!
//! [`Arc`]: std::sync::Arc

#![expect(unsafe_code, reason = "this is the floor that calls C")]

mod accept;
mod asking;
mod batch;
mod caller;
mod cm;
mod cm_event;
mod commit;
mod context;
mod copy;
mod cq;
mod deadline;
mod device_events;
mod home;
mod iwarp;
mod memory;
mod mr;
mod nonblocking;
mod post;
mod qp;
mod random;
mod srq;
#[cfg(any(native_flush, native_atomic_write))]
mod stream;
mod waiting;
mod wc;
mod wr;

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

pub(crate) use self::asking::RDMA_CONNECT;
pub(crate) use self::batch::{
    ANY_FORM, ATOMIC, CHAIN, FLUSH, Forms, GATHER, NoRoom, Requests, Written,
};
pub(crate) use self::caller::{Place, Posting};
pub(crate) use self::cm::{CmId, IncomingRequest, Resolution};
pub(crate) use self::cm_event::{CmEvent, CmEventKind};
pub(crate) use self::commit::{Commit, CommitPart, CommitPointer, MAX_COMMIT_PARTS};
pub(crate) use self::context::{Context, DeviceAttributes, Pd};
pub(crate) use self::copy::{copy_from_shared, copy_to_shared, load_u64, store_u64, stored};
pub(crate) use self::cq::{CompChannel, CompletionQueue, CqTag};
pub use self::cq::{CqKind, Notify};
pub(crate) use self::deadline::Deadline;
pub use self::device_events::DeviceEventKind;
pub(crate) use self::device_events::{DeviceWatch, OnError};
pub use self::memory::{AlignedBuf, RawMemory, RegisterableMemory};
pub(crate) use self::mr::{AccessFlags, LocalBuffer, ReadTarget, Registered};
pub(crate) use self::qp::{BeforeDestroy, ConnParam, Freed, Hooks, NativeOps, QpAttr, QueuePair};
pub(crate) use self::random::random;
pub(crate) use self::srq::SharedReceiveQueue;
pub(crate) use self::stream::MAX_FLUSH;
pub use self::wc::{Wc, WcSuccess};
pub(crate) use self::wr::{
    CallFailed, Gather, MAX_SGE, Opcode, Placement, PostError, RemoteAddress, Request, SendFlags,
};
use crate::error::{Error, Result};

/// For verbs that return 0 or a positive errno.
#[inline]
fn check_errno(call: &'static str, ret: c_int) -> Result<()> {
    match ret {
        0 => Ok(()),
        errno => Err(Error::provider(
            call,
            io::Error::from_raw_os_error(errno.abs()),
        )),
    }
}

/// For functions that return 0, or −1 with the reason in errno (librdmacm).
fn check_minus_one(call: &'static str, ret: c_int) -> Result<()> {
    match ret {
        0 => Ok(()),
        _ => Err(Error::provider(call, io::Error::last_os_error())),
    }
}

/// For functions that return an object, or NULL with the reason in errno.
fn check_non_null<T>(call: &'static str, ptr: *mut T) -> Result<NonNull<T>> {
    NonNull::new(ptr).ok_or_else(|| Error::provider(call, io::Error::last_os_error()))
}

/// For `ibv_poll_cq`, which returns a count, or a negative number without an errno.
pub(crate) fn check_poll(ret: c_int) -> Result<usize> {
    usize::try_from(ret).map_err(|_| {
        Error::provider(
            "ibv_poll_cq",
            io::Error::other("the provider gave no reason"),
        )
    })
}

/// The end of a `Drop`: a failed destroy leaves the object allocated, and is logged.
fn log_leak(result: Result<()>) {
    if let Err(error) = result {
        log::error!("{error}; the object is leaked");
    }
}
