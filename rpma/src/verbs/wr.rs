//! What work requests are made of (`struct ibv_send_wr`, `struct ibv_recv_wr`), and how posting fails.

use std::ffi::c_int;
use std::ptr;

use rpma_sys as sys;
use rustix::io::Errno;

use super::check_errno;
use crate::error::{Error, Result};

/// How many local buffers a work request can have: more would not fit the stack frame of a post.
pub(crate) const MAX_SGE: usize = 16;

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opcode {
    Read,
    Write,
    /// With immediate data, in host byte order.
    WriteWithImm(u32),
    Send,
    /// With immediate data, in host byte order.
    SendWithImm(u32),
}

impl Opcode {
    #[inline]
    pub(super) fn to_raw(self) -> (sys::ibv_wr_opcode, u32) {
        match self {
            Self::Read => (sys::ibv_wr_opcode::IBV_WR_RDMA_READ, 0),
            Self::Write => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
            Self::WriteWithImm(imm) => (sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm),
            Self::Send => (sys::ibv_wr_opcode::IBV_WR_SEND, 0),
            Self::SendWithImm(imm) => (sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, imm),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddress {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

impl RemoteAddress {
    /// No memory at all: for messages, and for operations of 0 bytes.
    pub(crate) const NONE: Self = Self {
        address: 0,
        rkey: 0,
    };
}

/// Why a work request was not posted.
#[derive(Debug)]
pub(crate) enum PostError {
    /// The queue has no room. Nothing has happened.
    Full,
    /// The provider has refused the request for another reason. Nothing has happened.
    Refused(Error),
    /// It failed, and may be in the queue nevertheless.
    Failed(Error),
}

/// What a call that posts has returned. Nothing has happened only if the call also says which request it
/// refused: the kernel may fail after the request was queued.
#[inline]
pub(super) fn check_posted(
    call: &'static str,
    ret: c_int,
    none_refused: bool,
) -> Result<(), PostError> {
    match check_errno(call, ret) {
        Ok(()) => Ok(()),
        Err(error) if none_refused => Err(PostError::Failed(error)),
        Err(error) if error.is_errno(Errno::NOMEM) => Err(PostError::Full),
        Err(error) => Err(PostError::Refused(error)),
    }
}

bitflags::bitflags! {
    /// `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = sys::ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        const SOLICITED = sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
        const INLINE = sys::ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// The work request of a receive into one buffer, or into none if it has no bytes.
#[inline]
pub(super) fn recv_wr(sge: &mut sys::ibv_sge, wr_id: u64) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        num_sge: i32::from(sge.length > 0),
        sg_list: sge,
    }
}
