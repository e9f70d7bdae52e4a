//! From the pointers that callers have to the objects of a fabric.
//!
//! Each C struct that a call returns is at the beginning of an allocation of its own, or is all of
//! it. Its number (`handle`) leads to the fabric's state of it. The structs are never borrowed:
//! callers write to some of their fields, so that single fields are read and written here.

use std::sync::{Arc, Weak};

use crate::state::Shared;
use crate::types::{ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_srq};

/// An open device: `struct ibv_context`, and the fields after it.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) ibv: ibv_context,
    pub(crate) shared: Weak<Shared>,
    pub(crate) nic: usize,
}

/// `struct ibv_comp_channel`, and its number.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) ibv: ibv_comp_channel,
    pub(crate) number: u32,
}

/// The fabric of an open device, and its number there.
///
/// # Safety
///
/// The context is one of this crate, and open.
pub(crate) unsafe fn of_context(context: *mut ibv_context) -> (Arc<Shared>, usize) {
    let context = context.cast::<Context>();
    // SAFETY: it is of this crate, and so the beginning of a `Context`, which is alive.
    let shared = unsafe { &(*context).shared }.upgrade();
    // SAFETY: it is the same `Context`, which is alive.
    let nic = unsafe { (*context).nic };
    (
        shared.expect("an id keeps the fabric of an open device"),
        nic,
    )
}

/// Something that belongs to a device and has a number.
pub(crate) trait Object {
    /// Its device and its number.
    ///
    /// # Safety
    ///
    /// The object is one of this crate, and alive.
    unsafe fn find(this: *mut Self) -> (*mut ibv_context, u32);
}

macro_rules! objects {
    ($($object:ident)*) => {$(
        impl Object for $object {
            unsafe fn find(this: *mut Self) -> (*mut ibv_context, u32) {
                // SAFETY: the caller promises that it is alive.
                let context = unsafe { (*this).context };
                // SAFETY: it is the same object, which is alive.
                (context, unsafe { (*this).handle })
            }
        }
    )*};
}

objects!(ibv_cq ibv_mr ibv_pd ibv_qp ibv_srq);

impl Object for ibv_comp_channel {
    unsafe fn find(this: *mut Self) -> (*mut ibv_context, u32) {
        // SAFETY: the caller promises that it is alive.
        let context = unsafe { (*this).context };
        // SAFETY: it is of this crate, and so the beginning of a `CompChannel`.
        (context, unsafe { (*this.cast::<CompChannel>()).number })
    }
}

/// An object that a caller has a pointer to.
#[derive(Debug)]
pub(crate) struct Of {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nic: usize,
    pub(crate) number: u32,
}

/// # Safety
///
/// The object is one of this crate, and alive.
pub(crate) unsafe fn of<T: Object>(object: *mut T) -> Of {
    // SAFETY: the caller promises it.
    let (context, number) = unsafe { T::find(object) };
    // SAFETY: the device of something that is alive is open.
    let (shared, nic) = unsafe { of_context(context) };
    Of {
        shared,
        nic,
        number,
    }
}
