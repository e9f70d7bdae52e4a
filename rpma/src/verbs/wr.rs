//! The parts of work requests (`struct ibv_send_wr`, `struct ibv_recv_wr`), and the failures of
//! posting.

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

/// The operation of a work request of the send queue, with its immediate data, in the encoding of
/// verbs: making a request needs no conversion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opcode {
    code: sys::ibv_wr_opcode,
    /// In network byte order.
    imm: u32,
}

impl Opcode {
    pub(crate) const READ: Self = Self::plain(sys::ibv_wr_opcode::IBV_WR_RDMA_READ);
    pub(crate) const WRITE: Self = Self::plain(sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE);
    pub(crate) const SEND: Self = Self::plain(sys::ibv_wr_opcode::IBV_WR_SEND);

    #[cfg(native_atomic_write)]
    const ATOMIC_WRITE: Self = Self::plain(sys::ibv_wr_opcode::IBV_WR_ATOMIC_WRITE);

    /// Its guarantee takes the place of the immediate data: a chain's request has none for it.
    #[cfg(native_flush)]
    #[inline(always)]
    const fn flush(persistent: bool) -> Self {
        Self {
            code: sys::ibv_wr_opcode::IBV_WR_FLUSH,
            imm: persistent as u32,
        }
    }

    const fn plain(code: sys::ibv_wr_opcode) -> Self {
        Self { code, imm: 0 }
    }

    /// With immediate data, in host byte order.
    #[inline(always)]
    pub(crate) const fn write_with_imm(imm: u32) -> Self {
        Self {
            code: sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            imm: imm.to_be(),
        }
    }

    /// With immediate data, in host byte order.
    #[inline(always)]
    pub(crate) const fn send_with_imm(imm: u32) -> Self {
        Self {
            code: sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            imm: imm.to_be(),
        }
    }
}

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

/// The guarantee of a native flush (`enum ibv_placement_type`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement(
    #[cfg_attr(
        not(native_flush),
        expect(dead_code, reason = "nothing flushes natively")
    )]
    pub(super) u8,
);

impl Placement {
    #[inline(always)]
    pub(crate) const fn new(persistent: bool) -> Self {
        #[cfg(native_flush)]
        let kind = if persistent {
            sys::ibv_placement_type::IBV_FLUSH_PERSISTENT.0 as u8
        } else {
            sys::ibv_placement_type::IBV_FLUSH_GLOBAL.0 as u8
        };
        #[cfg(not(native_flush))]
        let kind = persistent as u8;
        Self(kind)
    }
}

/// A request of the send queue (`struct ibv_send_wr`). Fields that are read only for other
/// operations and other kinds of queue pairs are not written. Its end consists of such fields, and
/// has room for data that belongs to the request.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: MaybeUninit<u64>,
    pub(super) next: MaybeUninit<*mut sys::ibv_send_wr>,
    pub(super) sg_list: MaybeUninit<*mut sys::ibv_sge>,
    pub(super) num_sge: c_int,
    pub(super) opcode: sys::ibv_wr_opcode,
    pub(super) send_flags: u32,
    /// In network byte order.
    pub(super) imm_data: u32,
    /// Written for a send as well, and so is the key: rxe's and siw's providers copy them for every
    /// operation.
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    rest: MaybeUninit<[u8; size_of::<sys::ibv_send_wr>() - BEGINNING - END]>,
    /// Where `sg_list` points to if there is one buffer.
    pub(super) sge: MaybeUninit<sys::ibv_sge>,
    /// The program's value, until the request has its number.
    pub(super) op_context: MaybeUninit<u64>,
}

/// How long the beginning is, and the end.
const BEGINNING: usize =
    offset_of!(sys::ibv_send_wr, wr) + offset_of!(Rdma, rkey) + size_of::<u32>();
const END: usize = size_of::<sys::ibv_sge>() + size_of::<u64>();

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
    // After it are only the arguments of binding memory windows and of segmentation.
    assert!(offset_of!(SendWr, sge) >= offset_of!(Theirs, __bindgen_anon_2));
};

impl SendWr {
    /// A request with up to one local buffer, without its number, its successor, and the place of
    /// its buffer.
    #[inline(always)]
    pub(super) fn new(
        opcode: Opcode,
        remote: RemoteAddress,
        num_sge: usize,
        flags: SendFlags,
    ) -> Self {
        Self {
            wr_id: MaybeUninit::uninit(),
            next: MaybeUninit::uninit(),
            sg_list: MaybeUninit::uninit(),
            num_sge: num_sge as c_int,
            opcode: opcode.code,
            send_flags: flags.bits(),
            imm_data: opcode.imm,
            remote_addr: remote.address,
            rkey: remote.rkey,
            rest: MaybeUninit::uninit(),
            sge: MaybeUninit::uninit(),
            op_context: MaybeUninit::uninit(),
        }
    }

    /// Whether only a stream has it.
    pub(super) fn is_native(&self) -> bool {
        #[cfg(native_flush)]
        if self.opcode == sys::ibv_wr_opcode::IBV_WR_FLUSH {
            return true;
        }
        #[cfg(native_atomic_write)]
        if self.opcode == sys::ibv_wr_opcode::IBV_WR_ATOMIC_WRITE {
            return true;
        }
        false
    }
}

/// A request of the send queue with one local buffer, of 1 to 2³² − 1 bytes, or without one.
/// Without the flag `INLINE` it is read when the request is executed.
///
/// Its maker fills in everything but the number and the place of the buffer, so that posting
/// exists once, with three arguments.
#[repr(transparent)]
pub(crate) struct Request<'mr> {
    pub(super) wr: SendWr,
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
        let count = usize::from(local.len() > 0);
        Self::with(SendWr::new(opcode, remote, count, flags), local.to_sge())
    }

    /// A native flush of up to [`MAX_FLUSH`](super::MAX_FLUSH) bytes, for a stream.
    #[cfg(native_flush)]
    #[inline(always)]
    pub(crate) fn flush(
        remote: RemoteAddress,
        len: u64,
        persistent: bool,
        flags: SendFlags,
    ) -> Self {
        // At most MAX_FLUSH.
        let length = len as u32;
        let range = sys::ibv_sge {
            length,
            ..Default::default()
        };
        Self::with(
            SendWr::new(Opcode::flush(persistent), remote, 1, flags),
            range,
        )
    }

    /// A native atomic write, for a stream.
    #[cfg(native_atomic_write)]
    #[inline(always)]
    pub(crate) fn atomic_write(
        remote: RemoteAddress,
        bytes: &'mr [u8; 8],
        flags: SendFlags,
    ) -> Self {
        Self::with(
            SendWr::new(Opcode::ATOMIC_WRITE, remote, 1, flags),
            bytes_sge(bytes),
        )
    }

    /// A write of 8 bytes, which travel inside the request.
    #[inline(always)]
    pub(crate) fn inline(remote: RemoteAddress, bytes: &'mr [u8; 8], flags: SendFlags) -> Self {
        let flags = flags | SendFlags::INLINE;
        Self::with(
            SendWr::new(Opcode::WRITE, remote, 1, flags),
            bytes_sge(bytes),
        )
    }

    #[inline(always)]
    pub(crate) fn read(remote: RemoteAddress, target: ReadTarget, flags: SendFlags) -> Self {
        debug_assert!(!flags.contains(SendFlags::INLINE));
        Self::with(
            SendWr::new(Opcode::READ, remote, 1, flags),
            target.0.to_sge(),
        )
    }

    #[inline(always)]
    pub(crate) fn without_data(opcode: Opcode, remote: RemoteAddress, flags: SendFlags) -> Self {
        let wr = SendWr::new(opcode, remote, 0, flags);
        Self::with(wr, sys::ibv_sge::default())
    }

    #[inline(always)]
    fn with(mut wr: SendWr, sge: sys::ibv_sge) -> Self {
        wr.sge.write(sge);
        Self {
            wr,
            local: PhantomData,
        }
    }

    #[inline(always)]
    pub(crate) fn completes(&self) -> bool {
        self.signaled() != 0
    }

    /// Not 0 if it gives a completion when it succeeds.
    #[inline(always)]
    pub(super) fn signaled(&self) -> u32 {
        self.wr.send_flags & SendFlags::SIGNALED.bits()
    }
}

/// A request of the send queue with any number of local buffers, up to [`MAX_SGE`], as it lies in a
/// batch: its places are behind it, if it has several.
///
/// It is filled in where it lies: moving it would copy all of its places.
#[repr(C)]
pub(crate) struct Gather<'mr> {
    pub(super) wr: SendWr,
    /// As many are written as the request has buffers.
    places: [MaybeUninit<sys::ibv_sge>; MAX_SGE],
    local: PhantomData<&'mr ()>,
}

impl<'mr> Gather<'mr> {
    #[inline(always)]
    pub(crate) fn new(opcode: Opcode, remote: RemoteAddress, flags: SendFlags) -> Self {
        Self {
            wr: SendWr::new(opcode, remote, 0, flags),
            places: [const { MaybeUninit::uninit() }; MAX_SGE],
            local: PhantomData,
        }
    }

    /// Puts another local buffer into it, unless that has 0 bytes. At most [`MAX_SGE`] have a
    /// place.
    #[inline(always)]
    pub(crate) fn push(&mut self, buffer: LocalBuffer<'mr>) {
        let place = self.places.get_mut(self.wr.num_sge as usize);
        if let Some(place) = place.filter(|_| buffer.len() > 0) {
            place.write(buffer.to_sge());
            self.wr.num_sge += 1;
        }
    }

    /// The place of a single buffer is in the request.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        self.wr.sge = self.places[0];
    }
}

/// 8 bytes as a local buffer, for the provider to read when it takes the request.
#[inline(always)]
pub(super) fn bytes_sge(bytes: &[u8; 8]) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: 8,
        lkey: 0,
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PostError {
    /// The queue has no room. The queue is unchanged.
    Full,
    /// The provider has refused the request for another reason. The queue is unchanged.
    Refused(CallFailed),
    /// It failed, and may be in the queue nevertheless.
    Failed(CallFailed),
}

impl PostError {
    /// The same, for a request after others that were posted by the same call.
    #[cold]
    pub(super) fn in_the_middle(self, call: Call) -> Self {
        let call = match self {
            Self::Full => CallFailed {
                call,
                errno: Errno::NOMEM.raw_os_error() as u16,
                in_the_middle: true,
            },
            Self::Refused(call) | Self::Failed(call) => CallFailed {
                in_the_middle: true,
                ..call
            },
        };
        Self::Failed(call)
    }
}

/// A call that failed. Small, as the data path carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallFailed {
    call: Call,
    errno: u16,
    /// Set for a request after others that were posted together.
    pub(crate) in_the_middle: bool,
}

impl CallFailed {
    /// The function's C name.
    pub(crate) fn name(self) -> &'static str {
        match self.call {
            Call::PostSend => "ibv_post_send",
            Call::PostRecv => "ibv_post_recv",
            Call::PostSrqRecv => "ibv_post_srq_recv",
            Call::WrStart => "ibv_wr_start",
            Call::WrComplete => "ibv_wr_complete",
        }
    }

    pub(crate) fn errno(self) -> i32 {
        self.errno.into()
    }

    /// As a number of 24 bits.
    pub(crate) fn to_bits(self) -> u32 {
        u32::from(self.errno) << 8 | u32::from(self.in_the_middle) << 7 | self.call as u32
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        let call = Call::ALL
            .into_iter()
            .find(|call| *call as u32 == bits & 0x7f);
        Self {
            call: call.unwrap_or(Call::PostSend),
            errno: (bits >> 8) as u16,
            in_the_middle: bits & 1 << 7 != 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn for_test(errno: Errno) -> Self {
        Self {
            call: Call::PostSend,
            errno: errno.raw_os_error() as u16,
            in_the_middle: false,
        }
    }

    #[cfg(test)]
    pub(crate) fn each_for_test(errno: Errno) -> impl Iterator<Item = Self> {
        let failed = Self::for_test(errno);
        let calls = Call::ALL.into_iter();
        calls.flat_map(move |call| {
            [false, true].map(|in_the_middle| Self {
                call,
                in_the_middle,
                ..failed
            })
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    fn from(failed: CallFailed) -> Self {
        let error = Self::provider(failed.name(), io::Error::from_raw_os_error(failed.errno()));
        if failed.in_the_middle {
            error.with_hint(&[
                "The call took some of the requests that were posted together. A later request was \
                 refused, or its call failed. The requests that were taken may be executed",
                "",
            ])
        } else {
            error
        }
    }
}

/// Checks the return value of a call that posts. The queue is unchanged only if the call also
/// reports which request it refused: the kernel may fail after the request was queued.
#[inline(always)]
pub(super) fn check_posted(call: Call, ret: c_int, none_refused: bool) -> Result<(), PostError> {
    match ret {
        0 => Ok(()),
        _ => Err(not_posted(call, ret, none_refused)),
    }
}

#[cold]
#[inline(never)]
pub(super) fn not_posted(call: Call, ret: c_int, none_refused: bool) -> PostError {
    let errno = ret.abs();
    // They are small numbers.
    let failed = CallFailed {
        call,
        errno: u16::try_from(errno).unwrap_or(u16::MAX),
        in_the_middle: false,
    };
    if none_refused {
        PostError::Failed(failed)
    } else if errno == Errno::NOMEM.raw_os_error() {
        PostError::Full
    } else {
        PostError::Refused(failed)
    }
}

/// The failure of a call that posts a chain, if it has not taken all of it. If the provider has
/// refused a request, it returns that request; those before it are in the queue. (siw then returns
/// the result of its doorbell for those: 0.)
///
/// `bad` is by reference: a caller then looks at it in memory, and loads it only for this.
#[cold]
#[inline(never)]
pub(super) fn chain_not_posted<Wr>(
    call: Call,
    ret: c_int,
    first: *mut Wr,
    bad: &*mut Wr,
) -> PostError {
    let bad = *bad;
    let nothing = ret != 0 && bad == first;
    let errno = if ret == 0 {
        Errno::IO.raw_os_error()
    } else {
        ret
    };
    let error = not_posted(call, errno, !nothing);
    if bad.is_null() || nothing {
        error
    } else {
        error.in_the_middle(call)
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

/// How many receives one call posts at most.
const CHAIN: usize = 16;

#[repr(C)]
struct Receive {
    wr: sys::ibv_recv_wr,
    sge: sys::ibv_sge,
}

/// Posts `receives` in chains; `of` gives the buffer and the `op_context` of each. As few calls of
/// `post` as that takes. `number` gets the `op_context` of each, in order, and returns the `wr_id`.
/// `SOME`: each has some bytes.
///
/// `post` gets a chain, and a place for the request that was refused. The first request of the
/// chain has a successor only if there is one. The chain lives during the call, and only `post`
/// writes to it then.
#[inline(always)]
pub(super) fn post_receives<'mr, const SOME: bool, T>(
    call: Call,
    (receives, of): (&[T], impl Fn(&T) -> (LocalBuffer<'mr>, u64)),
    mut number: impl FnMut(u64) -> u64,
    mut post: impl FnMut(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    let mut chain = [const { MaybeUninit::<Receive>::uninit() }; CHAIN];
    // All pointers are made of this one, by which the chain is written and read.
    let first: *mut Receive = chain.as_mut_ptr().cast();
    let mut posted = false;
    for receives in receives.chunks(CHAIN) {
        let mut last = first;
        let mut next = first;
        for (buffer, op_context) in receives.iter().map(&of) {
            last = next;
            next = last.wrapping_add(1);
            let sge = buffer.to_sge();
            let wr = sys::ibv_recv_wr {
                wr_id: number(op_context),
                next: next.cast(),
                sg_list: last.wrapping_byte_add(offset_of!(Receive, sge)).cast(),
                num_sge: i32::from(SOME || sge.length > 0),
            };
            // SAFETY: `last` is one of `CHAIN` places: a chunk has at most as many receives.
            unsafe { last.write(Receive { wr, sge }) };
        }
        // SAFETY: the loop has written it: no chunk is empty.
        unsafe { (*last).wr.next = ptr::null_mut() };
        let (chain, mut bad) = (first.cast::<sys::ibv_recv_wr>(), ptr::null_mut());
        let ret = post(chain, &raw mut bad);
        if ret != 0 || !bad.is_null() {
            let error = chain_not_posted(call, ret, chain, &bad);
            return Err(if posted {
                error.in_the_middle(call)
            } else {
                error
            });
        }
        posted = true;
    }
    Ok(())
}

/// The work request of a receive into one buffer, or without a buffer if it has no bytes. `SOME`:
/// it has some.
#[inline(always)]
pub(super) fn recv_wr<const SOME: bool>(sge: &mut sys::ibv_sge, wr_id: u64) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        num_sge: i32::from(SOME || sge.length > 0),
        sg_list: sge,
    }
}
