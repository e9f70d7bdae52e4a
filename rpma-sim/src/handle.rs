//! From the pointers that callers have to the objects of a fabric.
//!
//! Each C struct that a call returns is at the beginning of an allocation of its own, or is all of
//! it. Its number (`handle`) leads to the fabric's state of it. The structs are never borrowed:
//! callers write to some of their fields, so that single fields are read and written here.
//!
//! In `SAFETY` comments, *C's rules* are the preconditions in the manual pages of verbs and
//! librdmacm. A caller passes only objects that these calls have returned, and passes none that it
//! has destroyed. It destroys an object only after all that were made from it. A pointer to a
//! struct leads to a whole one, and a pointer to a result leads to a place for it. Calls that
//! change an id, and those that change the state of a queue pair, are not made at the same time.

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
    // SAFETY: by `# Safety` it is of this crate and open, and so the beginning of a `Context`.
    let shared = unsafe { &(*context).shared }.upgrade();
    // SAFETY: by `# Safety` it is of this crate and open, and so the beginning of a `Context`.
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
                // SAFETY: by `# Safety` of `find` the object is alive.
                let context = unsafe { (*this).context };
                // SAFETY: by `# Safety` of `find` the object is alive.
                (context, unsafe { (*this).handle })
            }
        }
    )*};
}

objects!(ibv_cq ibv_mr ibv_pd ibv_qp ibv_srq);

impl Object for ibv_comp_channel {
    unsafe fn find(this: *mut Self) -> (*mut ibv_context, u32) {
        // SAFETY: by `# Safety` of `find` the channel is alive.
        let context = unsafe { (*this).context };
        // SAFETY: by `# Safety` of `find` it is of this crate and alive, and so the beginning of a
        // `CompChannel`.
        (context, unsafe { (*this.cast::<CompChannel>()).number })
    }
}

/// An object that a caller has a pointer to.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nic: usize,
    pub(crate) number: u32,
}

/// # Safety
///
/// The object is one of this crate, and alive.
pub(crate) unsafe fn of<T: Object>(object: *mut T) -> Called {
    // SAFETY: by `# Safety` the object is of this crate and alive.
    let (context, number) = unsafe { T::find(object) };
    // SAFETY: by `# Safety` the object is alive, and C's rules let no program destroy the last id
    // of its device before it.
    let (shared, nic) = unsafe { of_context(context) };
    Called {
        shared,
        nic,
        number,
    }
}
