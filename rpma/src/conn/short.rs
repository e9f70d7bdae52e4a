//! The conditions of the fast paths: each is true of the usual case of an operation only.
//!
//! An operation that is rejected here takes the slow path ([`super::checks`]), which checks every
//! case and names the error. So a condition may reject a valid operation, and must never accept an
//! invalid one. Its inputs are kept ready in [`Short`], a word each.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use super::Conn;
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice, Tag};
use crate::verbs::{Gather, NativeOps, ReadTarget, SendFlags};

/// The flags that a flush and an atomic write can have.
const UNSOLICITED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

/// The most bytes that one native flush takes.
const MAX_FLUSH: u64 = 1 << 31;

/// The inputs of the fast paths of a connection. Each word is made of all settings, under their
/// lock.
#[derive(Debug)]
pub(super) struct Short {
    /// The flags that requests can have on this device.
    possible: SendFlags,
    /// The flags that order a fallback atomic write after the flushes before it.
    pub(super) after_flushes: SendFlags,
    /// Whether fences are missing.
    no_fences: AtomicBool,
    /// Whether the peer serves reads at all.
    reads: AtomicBool,
    /// The flushes with a promise that this platform and the peer's can keep, as usages of a
    /// region.
    promised: AtomicU8,
    /// Those of them that take the fast path.
    flushes: AtomicU8,
    /// The same for commits. It is empty unless flush and atomic write are both the device's own,
    /// or both fallbacks.
    commits: AtomicU8,
    /// One of [`AtomicWrites`].
    atomic_writes: AtomicU8,
    /// Where fallback flushes read to.
    pub(super) flush_target: ReadTarget,
    settings: Mutex<Settings>,
}

#[derive(Debug)]
struct Settings {
    /// Whether flushes are the device's own, and atomic writes.
    native: NativeOps,
    /// Unknown before the connection is open: then it takes no operation.
    reads: Option<bool>,
    /// Those with a promise that can be kept.
    flushes: MrUsage,
    no_fences: bool,
}

/// The atomic writes that take the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum AtomicWrites {
    None,
    /// The device's own, which stays after the flushes before it without a fence.
    Native,
    /// A write with its bytes in the request.
    Fallback,
}

impl Short {
    /// That of a connection which is not open yet. `possible`: the flags that requests can have.
    pub(super) fn new(method: FlushMethod, native: NativeOps, possible: SendFlags) -> Self {
        let fence = possible & SendFlags::FENCE;
        let after_flushes = method.fence_of_atomic_write(native.atomic_write, fence);
        Self {
            possible,
            after_flushes: after_flushes.unwrap_or(SendFlags::empty()),
            no_fences: AtomicBool::new(false),
            reads: AtomicBool::new(false),
            promised: AtomicU8::new(0),
            flushes: AtomicU8::new(0),
            commits: AtomicU8::new(0),
            atomic_writes: AtomicU8::new(AtomicWrites::None as u8),
            flush_target: match method {
                FlushMethod::Native => ReadTarget::EMPTY,
                FlushMethod::Read(target) => target,
            },
            settings: Mutex::new(Settings {
                native,
                reads: None,
                flushes: MrUsage::empty(),
                no_fences: false,
            }),
        }
    }

    /// The connection is open, and the peer serves reads or not.
    pub(super) fn open(&self, reads: bool) {
        self.set(|settings| settings.reads = Some(reads));
    }

    /// These flushes keep their promise. `no_fences`: each operation that needs a fence takes the
    /// slow path, and each flush, which is noted there.
    pub(super) fn set_flushes(&self, flushes: MrUsage, no_fences: bool) {
        self.set(|settings| {
            settings.flushes = flushes;
            settings.no_fences |= no_fences;
        });
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        // A panic cannot leave it half written.
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut settings);
        let Settings {
            native,
            reads,
            flushes,
            no_fences,
        } = *settings;
        self.promised.store(flushes.bits(), Ordering::Relaxed);
        let has_reads = reads == Some(true);
        let flushes = match has_reads && !no_fences {
            true => flushes,
            false => MrUsage::empty(),
        };
        let atomic_writes = match (native.flush, native.atomic_write) {
            // The device counts them among the reads in flight.
            (true, true) if has_reads => AtomicWrites::Native,
            (false, false) if reads.is_some() && !no_fences => AtomicWrites::Fallback,
            _ => AtomicWrites::None,
        };
        let commits = match atomic_writes {
            AtomicWrites::None => MrUsage::empty(),
            AtomicWrites::Native | AtomicWrites::Fallback => flushes,
        };
        self.commits.store(commits.bits(), Ordering::Relaxed);
        self.no_fences.store(no_fences, Ordering::Relaxed);
        self.reads.store(has_reads, Ordering::Relaxed);
        self.flushes.store(flushes.bits(), Ordering::Relaxed);
        self.atomic_writes
            .store(atomic_writes as u8, Ordering::Relaxed);
    }

    /// The flushes with a promise that can be kept.
    pub(super) fn promised(&self) -> MrUsage {
        MrUsage::from_bits_retain(self.promised.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn reads(&self) -> bool {
        self.reads.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn atomic_writes(&self) -> AtomicWrites {
        match self.atomic_writes.load(Ordering::Relaxed) {
            native if native == AtomicWrites::Native as u8 => AtomicWrites::Native,
            fallback if fallback == AtomicWrites::Fallback as u8 => AtomicWrites::Fallback,
            _ => AtomicWrites::None,
        }
    }

    /// Without a fence there is no check: most flags are constants where an operation is inlined.
    #[inline(always)]
    fn takes(&self, flags: Flags) -> bool {
        !flags.fence() || !self.no_fences.load(Ordering::Relaxed)
    }

    /// The flags of a request.
    #[inline(always)]
    pub(super) fn flags(&self, flags: Flags) -> SendFlags {
        match flags.fence() {
            true => flags.to_verbs(self.possible),
            false => flags.to_verbs(SendFlags::all()),
        }
    }

    /// As [`flags`](Self::flags), of a flush or an atomic write.
    #[inline(always)]
    pub(super) fn unsolicited(&self, flags: Flags) -> SendFlags {
        self.flags(flags) & UNSOLICITED
    }
}

/// A condition that is true nearly always: it is a branch that is not taken.
#[inline(always)]
pub(super) fn usually(condition: bool) -> bool {
    if !condition {
        rarely();
    }
    condition
}

#[cold]
#[inline]
fn rarely() {}

/// As [`usually`], and a branch of its own: otherwise the compiler calculates several conditions
/// and branches once, which takes more instructions. The fence is no instruction; today's compilers
/// merge no branches across it.
#[inline(always)]
pub(super) fn by_itself(condition: bool) -> bool {
    if !condition {
        compiler_fence(Ordering::SeqCst);
    }
    condition
}

/// Whether an operation is of the usual kind and right: one local part, and no fence that is
/// missing. `NOTHING`: also one of 0 bytes.
impl Conn {
    #[inline(always)]
    pub(super) fn reads_simply<const NOTHING: bool>(
        &self,
        dst: &MrSlice<'_>,
        src: &RemoteSlice,
        flags: Flags,
    ) -> bool {
        usually(self.short.takes(flags))
            && usually(!flags.inline())
            && usually(self.short.reads())
            && usually(src.usage().contains(MrUsage::READ_SRC))
            && self.takes::<NOTHING>(
                dst,
                MrUsage::READ_DST,
                self.queues.tags.read_dst,
                self.queues.limits.message,
            )
            && usually(u64::from(dst.buffer().len()) == src.len())
    }

    #[inline(always)]
    pub(super) fn writes_simply<const NOTHING: bool>(
        &self,
        dst: &RemoteSlice,
        src: &MrSlice<'_>,
        flags: Flags,
    ) -> bool {
        usually(self.short.takes(flags))
            && usually(dst.usage().contains(MrUsage::WRITE_DST))
            && self.takes::<NOTHING>(
                src,
                MrUsage::WRITE_SRC,
                self.queues.tags.write_src,
                self.limit(flags),
            )
            && usually(u64::from(src.buffer().len()) == dst.len())
    }

    #[inline(always)]
    pub(super) fn sends_simply<const NOTHING: bool>(
        &self,
        src: &MrSlice<'_>,
        flags: Flags,
    ) -> bool {
        usually(self.short.takes(flags))
            && self.takes::<true>(src, MrUsage::SEND, self.queues.tags.send, self.limit(flags))
            && (NOTHING || usually(src.buffer().len() > 0))
    }

    /// Which atomic write it is; `None` if it takes the slow path.
    #[inline(always)]
    pub(super) fn writes_atomically_simply(&self, dst: &RemoteSlice, flags: Flags) -> AtomicWrites {
        let is_simple = usually(self.short.takes(flags))
            && usually(dst.len() == 8)
            && usually(dst.address().address % 8 == 0)
            && usually(dst.usage().contains(MrUsage::WRITE_DST));
        match is_simple {
            true => self.short.atomic_writes(),
            false => AtomicWrites::None,
        }
    }

    /// Whether a part of a commit is right, except for its length.
    #[inline(always)]
    pub(super) fn takes_part(&self, dst: &RemoteSlice, src: &MrSlice<'_>) -> bool {
        usually(dst.usage().contains(MrUsage::WRITE_DST))
            && usually(self.takes_source(src))
            && usually(src.is_as_long_as(dst))
    }

    /// Whether this may be the source of a part of a commit, except for its length.
    #[inline(always)]
    pub(super) fn takes_source(&self, src: &MrSlice<'_>) -> bool {
        src.tag()
            .fits(self.queues.tags.write_src, MrUsage::WRITE_SRC)
    }

    /// The longest write.
    #[inline(always)]
    pub(super) fn longest_message(&self) -> u64 {
        self.queues.limits.message.into()
    }

    /// Whether one flush of a commit covers this, and its pointer may be in the same region, which
    /// the caller looks at. A hull of all 2⁶⁴ bytes has the length 0.
    #[inline(always)]
    pub(super) fn commits_at(&self, hull: &RemoteSlice, flush_type: FlushType) -> bool {
        let possible = MrUsage::from_bits_retain(self.short.commits.load(Ordering::Relaxed));
        usually(hull.len().wrapping_sub(1) < MAX_FLUSH)
            && usually((hull.usage() & possible).contains(flush_type.usage()))
    }

    /// Whether a commit's pointer is 8 bytes in one atomic write.
    #[inline(always)]
    pub(super) fn points_at(&self, dst: &RemoteSlice) -> bool {
        by_itself(dst.len() == 8) && by_itself(dst.address().address % 8 == 0)
    }

    #[inline(always)]
    pub(super) fn flushes_simply(
        &self,
        dst: &RemoteSlice,
        flush_type: FlushType,
        flags: Flags,
    ) -> bool {
        let possible = MrUsage::from_bits_retain(self.short.flushes.load(Ordering::Relaxed));
        usually(self.short.takes(flags))
            && usually(dst.len().wrapping_sub(1) < MAX_FLUSH)
            && usually((dst.usage() & possible).contains(flush_type.usage()))
    }

    /// As [`writes_simply`](Self::writes_simply), of several local parts, which are gathered
    /// meanwhile.
    #[inline(always)]
    pub(super) fn gathers_a_write<'mr>(
        &self,
        (gather, src): (&mut Gather<'mr>, &[MrSlice<'mr>]),
        dst: &RemoteSlice,
        flags: Flags,
    ) -> bool {
        let len = self.gather(
            (gather, src),
            MrUsage::WRITE_SRC,
            self.queues.tags.write_src,
        );
        self.short.takes(flags)
            && len == dst.len()
            && len <= self.limit(flags).into()
            && dst.usage().contains(MrUsage::WRITE_DST)
    }

    /// As [`sends_simply`](Self::sends_simply), of several local parts, which are gathered
    /// meanwhile. Returns their length together.
    #[inline(always)]
    pub(super) fn gathers_a_send<'mr>(
        &self,
        (gather, src): (&mut Gather<'mr>, &[MrSlice<'mr>]),
        flags: Flags,
    ) -> Option<u64> {
        let len = self.gather((gather, src), MrUsage::SEND, self.queues.tags.send);
        let is_usual =
            by_itself(self.short.takes(flags)) && by_itself(len <= self.limit(flags).into());
        is_usual.then_some(len)
    }

    /// The length of local parts together; [`u64::MAX`] if one needs a closer look, or if they are
    /// too many.
    #[inline(always)]
    fn gather<'mr>(
        &self,
        (gather, parts): (&mut Gather<'mr>, &[MrSlice<'mr>]),
        usage: MrUsage,
        tag: Tag,
    ) -> u64 {
        if !by_itself(parts.len() <= self.queues.limits.sge as usize) {
            return u64::MAX;
        }
        let usual = |part: &MrSlice<'mr>| {
            let buffer = part.buffer();
            let is_usual = by_itself(part.tag().fits(tag, usage)) && by_itself(buffer.len() > 0);
            is_usual.then_some(buffer)
        };
        gather.fill(parts, usual).unwrap_or(u64::MAX)
    }

    /// Whether this is a part that an operation may have without a closer look: of this
    /// connection's peer, for this usage, with 1 to `limit` bytes. With `NOTHING` also without
    /// bytes, or no memory at all.
    #[inline(always)]
    fn takes<const NOTHING: bool>(
        &self,
        local: &MrSlice<'_>,
        usage: MrUsage,
        tag: Tag,
        limit: u32,
    ) -> bool {
        let len = local.buffer().len();
        match usually(local.tag().fits(tag, usage)) {
            true if NOTHING => usually(len <= limit),
            true => by_itself(len.wrapping_sub(1) < limit),
            false => NOTHING && local.tag() == MrSlice::EMPTY.tag(),
        }
    }

    /// The longest operation with these flags.
    #[inline(always)]
    fn limit(&self, flags: Flags) -> u32 {
        match flags.inline() {
            true => self.queues.limits.inline,
            false => self.queues.limits.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every device and every setting: an operation takes the fast path only where the device has
    /// it, the peer serves reads, and no fence is missing.
    #[test]
    fn the_short_ways_are_open_where_nothing_is_missing() {
        let bools = [false, true];
        for (flush, atomic_write) in bools.iter().flat_map(|a| bools.map(|b| (*a, b))) {
            for (reads, no_fences) in bools.iter().flat_map(|a| bools.map(|b| (*a, b))) {
                let native = NativeOps {
                    flush,
                    atomic_write,
                };
                let method = match flush {
                    true => FlushMethod::Native,
                    false => FlushMethod::Read(ReadTarget::EMPTY),
                };
                let short = Short::new(method, native, SendFlags::all());
                short.set_flushes(MrUsage::FLUSH_TYPE_VISIBILITY, no_fences);
                let is_open = |of: &AtomicU8| of.load(Ordering::Relaxed) != 0;
                assert!(!is_open(&short.flushes), "before the connection is open");
                short.open(reads);
                let flushes = reads && !no_fences;
                assert_eq!(is_open(&short.flushes), flushes, "{native:?}");
                let commits = flushes && flush == atomic_write;
                assert_eq!(is_open(&short.commits), commits, "{native:?}");
            }
        }
    }
}
