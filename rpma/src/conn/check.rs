//! The check of each operation, single or in a batch: there is one. The usual operation takes a few
//! comparisons. What is wrong with another one is a [`Fault`], and its text is made in a cold
//! function.
//!
//! These rules keep the one path cheap (the numbers are instructions of a write):
//!
//! * A result is in two registers: its error is a number or a box. An error that is written
//!   through a pointer keeps the whole result in memory (20).
//! * A cold exit never returns into the main path, which would keep its values in pushed registers
//!   over the call (10 to 16). So a fault is a value. And a post that finds the lock held, or no
//!   entries, is done again by another function, which waits.
//! * "Busy" is the absence of a result, and no error.
//! * The closure that posts captures nothing but the queue pair (7).
//! * A request is made where it stays: [`Sink::add`](super::sink::Sink::add) gets its maker.
//! * A local slice has its usage, its peer's number and the upper half of its length in one word
//!   ([`Tag`]). So one comparison makes three checks.
//! * A poster reads the consumer index only when its cached copy shows too little room, because
//!   that index is in another core's cache. It does not ask whether the connection has ended: the
//!   end takes the lock, and leaves no room.
//! * A gather writes its parts while it checks them. Two loops cost 14 more.
//! * The usual commit has a condition of its own ([`super::short`]): 224 in place of 295.

use std::slice;
use std::sync::PoisonError;

use super::Conn;
use super::short::AtomicWrites;
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::flush::FlushType;
use crate::mr::{MrSlice, MrUsage, RemoteSlice, Tag, require};
use crate::peer_cfg::Durable;
use crate::verbs::LocalBuffer;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Too many local parts.
    Parts(usize),
    /// A local part is of another peer, of another usage, or too long for any operation.
    Local(Tag, MrUsage, u64),
    Remote(MrUsage, MrUsage),
    /// Local and remote.
    Lengths(u64, u64),
    TooLong(u64, Flags),
    Fence,
    NoReads,
    InlineRead,
    /// Immediate data on iWARP.
    Immediate,
    EmptyFlush,
    /// The usages of the remote part, and the one of the flush.
    Flush(MrUsage, MrUsage),
    /// Length and address of an atomic write.
    Word(u64, u64),
}

pub(super) type Checked<T = ()> = std::result::Result<T, Fault>;

/// An error in one register: one in memory would make the usual result a place in memory as well.
pub(super) type Boxed<T> = Result<T, Box<Error>>;

#[inline(always)]
fn ensure(condition: bool, fault: Fault) -> Checked {
    if condition { Ok(()) } else { Err(fault) }
}

impl Conn {
    #[inline(always)]
    pub(super) fn check_read(
        &self,
        dst: &MrSlice<'_>,
        src: &RemoteSlice,
        flags: Flags,
    ) -> Checked<u64> {
        self.check_fence(flags)?;
        let tag = self.queues.tags.read_dst;
        let len = self.check_local(slice::from_ref(dst), MrUsage::READ_DST, tag, |_| {})?;
        self.check_remote(src, MrUsage::READ_SRC, len)?;
        ensure(!flags.inline(), Fault::InlineRead)?;
        self.check_len(len, flags)?;
        ensure(self.short.reads(), Fault::NoReads)?;
        Ok(len)
    }

    #[inline(always)]
    pub(super) fn check_write(
        &self,
        dst: &RemoteSlice,
        src: &[MrSlice<'_>],
        flags: Flags,
    ) -> Checked<u64> {
        self.check_write_of(dst, src, flags, |_| {})
    }

    /// As [`check_write`](Self::check_write). `each` gets the buffer of each local part.
    #[inline(always)]
    pub(super) fn check_write_of<'a>(
        &self,
        dst: &RemoteSlice,
        src: &[MrSlice<'a>],
        flags: Flags,
        each: impl FnMut(LocalBuffer<'a>),
    ) -> Checked<u64> {
        self.check_fence(flags)?;
        let tag = self.queues.tags.write_src;
        let len = self.check_local(src, MrUsage::WRITE_SRC, tag, each)?;
        self.check_remote(dst, MrUsage::WRITE_DST, len)?;
        self.check_len(len, flags)?;
        Ok(len)
    }

    #[inline(always)]
    pub(super) fn check_send(&self, src: &[MrSlice<'_>], flags: Flags) -> Checked<u64> {
        self.check_send_of(src, flags, |_| {})
    }

    /// As [`check_send`](Self::check_send). `each` gets the buffer of each local part.
    #[inline(always)]
    pub(super) fn check_send_of<'a>(
        &self,
        src: &[MrSlice<'a>],
        flags: Flags,
        each: impl FnMut(LocalBuffer<'a>),
    ) -> Checked<u64> {
        self.check_fence(flags)?;
        let len = self.check_local(src, MrUsage::SEND, self.queues.tags.send, each)?;
        self.check_len(len, flags)?;
        Ok(len)
    }

    #[inline(always)]
    pub(super) fn check_atomic_write(
        &self,
        dst: &RemoteSlice,
        flags: Flags,
    ) -> Boxed<AtomicWrites> {
        let checked = (|| {
            self.check_fence(flags)?;
            let address = dst.address().address;
            ensure(
                dst.len() == 8 && address % 8 == 0,
                Fault::Word(dst.len(), address),
            )?;
            ensure(
                dst.usage().contains(MrUsage::WRITE_DST),
                Fault::Remote(dst.usage(), MrUsage::WRITE_DST),
            )
        })();
        match (checked, self.short.atomic_writes()) {
            (Err(fault), _) => Err(self.wrong(fault)),
            (Ok(()), AtomicWrites::None) => self.unusual_atomic_write(),
            (Ok(()), kind) => Ok(kind),
        }
    }

    #[inline(always)]
    pub(super) fn check_flush(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
    ) -> Checked {
        self.check_fence(flags)?;
        ensure(!dst.is_empty(), Fault::EmptyFlush)?;
        let usage = flush_type.usage();
        let possible = dst.usage() & self.short.flushes();
        ensure(possible.contains(usage), Fault::Flush(dst.usage(), usage))
    }

    /// The length of all parts together.
    #[inline(always)]
    fn check_local<'a>(
        &self,
        parts: &[MrSlice<'a>],
        usage: MrUsage,
        tag: Tag,
        mut each: impl FnMut(LocalBuffer<'a>),
    ) -> Checked<u64> {
        // Each connection has room for one.
        let limit = self.queues.limits.sge as usize;
        ensure(
            parts.len() <= 1 || parts.len() <= limit,
            Fault::Parts(parts.len()),
        )?;
        let mut sum = 0;
        for part in parts {
            let is_right = part.tag().fits(tag, usage) || part.tag() == MrSlice::EMPTY.tag();
            ensure(is_right, Fault::Local(part.tag(), usage, part.len()))?;
            let buffer = part.buffer();
            sum += u64::from(buffer.len());
            each(buffer);
        }
        Ok(sum)
    }

    #[inline(always)]
    fn check_remote(&self, remote: &RemoteSlice, usage: MrUsage, len: u64) -> Checked {
        ensure(len == remote.len(), Fault::Lengths(len, remote.len()))?;
        let is_right = remote.usage().contains(usage);
        ensure(is_right, Fault::Remote(remote.usage(), usage))
    }

    #[inline(always)]
    fn check_len(&self, len: u64, flags: Flags) -> Checked {
        let limit = if flags.inline() {
            self.queues.limits.inline
        } else {
            self.queues.limits.message
        };
        ensure(len <= limit.into(), Fault::TooLong(len, flags))
    }

    #[inline]
    pub(super) fn check_immediate(&self) -> Result<()> {
        ensure(!self.queues.peer.is_iwarp(), Fault::Immediate).map_err(|fault| *self.wrong(fault))
    }

    #[inline(always)]
    fn check_fence(&self, flags: Flags) -> Checked {
        ensure(!flags.fence() || !self.short.no_fences(), Fault::Fence)
    }

    /// An atomic write that no order keeps behind the flushes before it, or none at all.
    #[cold]
    #[inline(never)]
    fn unusual_atomic_write(&self) -> Boxed<AtomicWrites> {
        let native = self.queues.qp.native_ops().atomic_write;
        self.flush_method
            .fence_of_atomic_write(native, self.short.fence())
            .map_err(Box::new)?;
        if self.short.no_fences() && !self.flush_method.has_plain_atomic_writes(native) {
            let why = "an atomic write stays behind flushes by a fence";
            return Err(Box::new(no_fence(why, "Conn::write")));
        }
        if native && !self.short.reads() {
            return Err(self.in_words(Fault::NoReads).into());
        }
        Ok(if native {
            AtomicWrites::Native
        } else {
            AtomicWrites::Fallback
        })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wrong(&self, fault: Fault) -> Box<Error> {
        Box::new(self.in_words(fault))
    }

    fn in_words(&self, fault: Fault) -> Error {
        let limits = &self.queues.limits;
        match fault {
            Fault::Parts(count) => Error::invalid(format!(
                "{count} local parts, and the connection was made for {}: ask for more with \
                 ConnCfg::set_max_send_sge",
                limits.sge
            )),
            Fault::Local(tag, _, _) if !tag.is_of(self.queues.tags.none) => Error::invalid(
                "the memory region was registered with another Peer than the connection's",
            ),
            Fault::Local(tag, needed, len) => match require(tag.usage(), needed, "local") {
                Err(error) => error,
                Ok(()) => self.in_words(Fault::TooLong(len, Flags::COMPLETION_ON_ERROR)),
            },
            Fault::Remote(usage, needed) => match require(usage, needed, "remote") {
                Err(error) => error,
                Ok(()) => unreachable!("it lacks the usage"),
            },
            Fault::Lengths(local, remote) => Error::invalid(format!(
                "the local part has {local} bytes and the remote part {remote}"
            )),
            Fault::TooLong(len, flags) if flags.inline() => Error::invalid(format!(
                "{len} bytes with Flags::INLINE, and the connection was made for {}: ask for more with \
                 ConnCfg::set_max_inline_data",
                limits.inline
            )),
            Fault::TooLong(len, _) => Error::invalid(format!(
                "{len} bytes are more than one message of this port can carry ({}): split them",
                limits.message
            )),
            Fault::Fence => no_fence("Flags::FENCE needs a fence", "without the flag"),
            // In this order: a connection that opens sets `reads` first, and may have opened after the
            // check.
            Fault::NoReads if self.queues.slots.is_connecting() || self.short.reads() => {
                self.queues.slots.closed()
            }
            Fault::NoReads => Error::not_supported(
                "the connection was made with no reads in flight (initiator depth 0), so that a read \
                 would never complete: the peer must connect or accept with more",
            ),
            Fault::Immediate => Error::not_supported(
                "immediate data on iWARP: soft-iWARP has none, and most adapters have none. Send the 4 bytes as \
                 a message of their own (Conn::send), after the write",
            ),
            Fault::InlineRead => {
                Error::invalid("Flags::INLINE is for writes and sends, not for reads")
            }
            Fault::EmptyFlush => {
                Error::invalid("a flush of 0 bytes: flush the range of the earlier writes")
            }
            Fault::Flush(_, needed) if !self.short.promised().contains(needed) => {
                self.not_durable()
            }
            Fault::Flush(usage, needed) if !usage.contains(needed) => Error::not_supported(
                format!("the remote memory region was registered for {usage}, without {needed}",),
            ),
            Fault::Flush(..) => self.in_words(Fault::NoReads),
            Fault::Word(len, address) => Error::invalid(format!(
                "an atomic write is of 8 bytes at a multiple of 8, not of {len} at {address:#x}",
            )),
        }
    }

    #[cold]
    fn not_durable(&self) -> Error {
        let durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        Error::not_supported(match *durable {
            None => {
                "the peer has not declared which flushes make data durable in its memory: read its Offer with \
                 Conn::offer, apply a PeerCfg of its own with Conn::apply_remote_peer_cfg, or flush with \
                 FlushType::Visibility"
            }
            Some(Durable::NativeFlushes) => {
                "the peer has declared that only native flushes make data durable (Durable::NativeFlushes), and this \
                 connection flushes by reading: use a native flush (Conn::has_native_flush, without \
                 ConnCfg::set_force_fallback), or let the peer's program persist the data (Method::Server)"
            }
            Some(_) => {
                "the peer has declared that no flush makes data durable in its memory (Durable::Nothing), because the \
                 memory is volatile, or the caches of its processors lose their data with the power: flush with \
                 FlushType::Visibility; the peer's program can make data in persistent memory durable (Method::Server)"
            }
        })
    }
}

#[cold]
fn no_fence(why: &str, then: &str) -> Error {
    Error::not_supported(format!(
        "{why}, and soft-RoCE has none that can be used. The peer's device is declared to execute operations out of \
         order (PeerCfg::set_reorders, which its Offer carries): poll the completion of the earlier flush or read, \
         and then post {then}"
    ))
}
