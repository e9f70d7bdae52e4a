//! What work requests are made of (`struct ibv_send_wr`, `struct ibv_recv_wr`), and how posting fails.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::{io, ptr};

use rpma_sys as sys;
use rustix::io::Errno;

use super::{LocalBuffer, ReadTarget};
use crate::error::Error;

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
    #[inline(always)]
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

/// A request of the send queue: the beginning of `struct ibv_send_wr`, and what is read for other
/// operations and other kinds of queue pairs only, which is left as it is.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: MaybeUninit<u64>,
    pub(super) next: *mut sys::ibv_send_wr,
    pub(super) sg_list: MaybeUninit<*mut sys::ibv_sge>,
    pub(super) num_sge: c_int,
    pub(super) opcode: sys::ibv_wr_opcode,
    pub(super) send_flags: u32,
    /// In network byte order.
    imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    rest: MaybeUninit<[u8; size_of::<sys::ibv_send_wr>() - BEGINNING]>,
}

/// How long the beginning is.
const BEGINNING: usize =
    offset_of!(sys::ibv_send_wr, wr) + offset_of!(Rdma, rkey) + size_of::<u32>();

type Rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1;

// It is the same struct.
const _: () = {
    type Theirs = sys::ibv_send_wr;
    assert!(size_of::<SendWr>() == size_of::<Theirs>());
    assert!(align_of::<SendWr>() == align_of::<Theirs>());
    assert!(offset_of!(SendWr, wr_id) == offset_of!(Theirs, wr_id));
    assert!(offset_of!(SendWr, next) == offset_of!(Theirs, next));
    assert!(offset_of!(SendWr, sg_list) == offset_of!(Theirs, sg_list));
    assert!(offset_of!(SendWr, num_sge) == offset_of!(Theirs, num_sge));
    assert!(offset_of!(SendWr, opcode) == offset_of!(Theirs, opcode));
    assert!(offset_of!(SendWr, send_flags) == offset_of!(Theirs, send_flags));
    assert!(offset_of!(SendWr, imm_data) == offset_of!(Theirs, __bindgen_anon_1));
    let wr = offset_of!(Theirs, wr);
    assert!(offset_of!(SendWr, remote_addr) == wr + offset_of!(Rdma, remote_addr));
    assert!(offset_of!(SendWr, rkey) == wr + offset_of!(Rdma, rkey));
};

impl SendWr {
    /// A request alone, without its number, and without the place of its `num_sge` local buffers.
    #[inline(always)]
    pub(super) fn new(
        opcode: Opcode,
        remote: RemoteAddress,
        num_sge: usize,
        flags: SendFlags,
    ) -> Self {
        let (opcode, imm) = opcode.to_raw();
        Self {
            wr_id: MaybeUninit::uninit(),
            next: ptr::null_mut(),
            sg_list: MaybeUninit::uninit(),
            num_sge: num_sge as c_int,
            opcode,
            send_flags: flags.bits(),
            imm_data: imm.to_be(),
            remote_addr: remote.address,
            rkey: remote.rkey,
            rest: MaybeUninit::uninit(),
        }
    }

    #[inline(always)]
    pub(super) fn as_ptr(&mut self) -> *mut sys::ibv_send_wr {
        ptr::from_mut(self).cast()
    }
}

/// A request of the send queue with one local buffer, of 1 to 2³² − 1 bytes. Without the flag `INLINE` it
/// is read when the request is executed.
///
/// Its maker fills in everything but the number and the place of the buffer, so that posting exists once, with
/// three arguments.
pub(crate) struct Request<'mr> {
    pub(super) wr: SendWr,
    pub(super) sge: sys::ibv_sge,
    /// Where the provider says which request it has refused.
    pub(super) bad: *mut sys::ibv_send_wr,
    local: PhantomData<&'mr ()>,
}

impl<'mr> Request<'mr> {
    #[inline(always)]
    pub(crate) fn new(
        opcode: Opcode,
        remote: RemoteAddress,
        local: LocalBuffer<'mr>,
        flags: SendFlags,
    ) -> Self {
        Self {
            wr: SendWr::new(opcode, remote, 1, flags),
            sge: local.to_sge(),
            bad: ptr::null_mut(),
            local: PhantomData,
        }
    }

    /// A write of 8 bytes, which travel inside the request.
    #[inline(always)]
    pub(crate) fn inline(remote: RemoteAddress, bytes: &'mr [u8; 8], flags: SendFlags) -> Self {
        let flags = flags | SendFlags::INLINE;
        Self {
            wr: SendWr::new(Opcode::Write, remote, 1, flags),
            sge: sys::ibv_sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: 8,
                lkey: 0,
            },
            bad: ptr::null_mut(),
            local: PhantomData,
        }
    }

    /// A read into `target`.
    #[inline(always)]
    pub(crate) fn read(remote: RemoteAddress, target: ReadTarget, flags: SendFlags) -> Self {
        let flags = flags.difference(SendFlags::INLINE);
        Self {
            wr: SendWr::new(Opcode::Read, remote, 1, flags),
            sge: target.0.to_sge(),
            bad: ptr::null_mut(),
            local: PhantomData,
        }
    }

    /// Not 0 if it gives a completion when it succeeds.
    #[inline(always)]
    pub(crate) fn signaled(&self) -> u32 {
        self.wr.send_flags & SendFlags::SIGNALED.bits()
    }
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PostError {
    /// The queue has no room. Nothing has happened.
    Full,
    /// The provider has refused the request for another reason. Nothing has happened.
    Refused(CallFailed),
    /// It failed, and may be in the queue nevertheless.
    Failed(CallFailed),
}

/// A call that failed. Small, as the data path carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFailed {
    call: Call,
    errno: u16,
}

impl CallFailed {
    /// As a number of 24 bits.
    pub(crate) fn to_bits(self) -> u32 {
        u32::from(self.errno) << 8 | self.call as u32
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        let call = Call::ALL
            .into_iter()
            .find(|call| *call as u32 == bits & 0xff);
        Self {
            call: call.unwrap_or(Call::PostSend),
            errno: (bits >> 8) as u16,
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(errno: Errno) -> Self {
        Self {
            call: Call::PostSend,
            errno: errno.raw_os_error() as u16,
        }
    }

    /// Each call that may fail.
    #[cfg(test)]
    pub(crate) fn each_for_test(errno: Errno) -> impl Iterator<Item = Self> {
        let failed = Self::for_test(errno);
        Call::ALL
            .into_iter()
            .map(move |call| Self { call, ..failed })
    }
}

/// A call that posts.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Call {
    PostSend,
    PostRecv,
    PostSrqRecv,
    WrStart,
    WrComplete,
}

impl Call {
    const ALL: [Self; 5] = [
        Self::PostSend,
        Self::PostRecv,
        Self::PostSrqRecv,
        Self::WrStart,
        Self::WrComplete,
    ];
}

impl From<CallFailed> for Error {
    fn from(CallFailed { call, errno }: CallFailed) -> Self {
        let call = match call {
            Call::PostSend => "ibv_post_send",
            Call::PostRecv => "ibv_post_recv",
            Call::PostSrqRecv => "ibv_post_srq_recv",
            Call::WrStart => "ibv_wr_start",
            Call::WrComplete => "ibv_wr_complete",
        };
        Self::provider(call, io::Error::from_raw_os_error(errno.into()))
    }
}

/// What a call that posts has returned. Nothing has happened only if the call also says which request it
/// refused: the kernel may fail after the request was queued.
#[inline(always)]
pub(super) fn check_posted(call: Call, ret: c_int, none_refused: bool) -> Result<(), PostError> {
    match ret {
        0 => Ok(()),
        _ => Err(not_posted(call, ret, none_refused)),
    }
}

/// As [`not_posted`], of a request alone.
#[cold]
#[inline(never)]
pub(super) fn request_not_posted(request: &Request<'_>, ret: c_int) -> PostError {
    not_posted(Call::PostSend, ret, request.bad.is_null())
}

#[cold]
#[inline(never)]
pub(super) fn not_posted(call: Call, ret: c_int, none_refused: bool) -> PostError {
    let errno = ret.abs();
    // They are small numbers.
    let failed = CallFailed {
        call,
        errno: u16::try_from(errno).unwrap_or(u16::MAX),
    };
    if none_refused {
        PostError::Failed(failed)
    } else if errno == Errno::NOMEM.raw_os_error() {
        PostError::Full
    } else {
        PostError::Refused(failed)
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
#[inline(always)]
pub(super) fn recv_wr(sge: &mut sys::ibv_sge, wr_id: u64) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        num_sge: i32::from(sge.length > 0),
        sg_list: sge,
    }
}
