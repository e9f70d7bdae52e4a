//! The answers to the checks of operations that depend on settings, ready in a word each
//! ([`Short`]); and the conditions of the usual commit.
//!
//! A commit that is rejected here becomes a batch, whose operations are checked one by one. So a
//! condition of a commit may reject a valid one, and must never accept an invalid one.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use super::Conn;
use crate::flags::Flags;
use crate::flush::{FlushMethod, FlushType};
use crate::mr::{MrSlice, MrUsage, RemoteSlice};
use crate::verbs::{MAX_FLUSH, NativeOps, ReadTarget, SendFlags};

/// The flags that a flush and an atomic write can have.
const UNSOLICITED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

/// The answers for the operations of a connection. Each word is made of all settings, under their
/// lock.
#[derive(Debug)]
pub(super) struct Short {
    /// The flags that requests can have on this device.
    possible: SendFlags,
    /// The flags that order a fallback atomic write after the flushes before it.
    pub(super) after_flushes: SendFlags,
    /// Whether an operation that needs a fence is refused: soft-RoCE has none that can be used,
    /// because it would wait for ever after a lost packet, and the peer's device reorders.
    no_fences: AtomicBool,
    /// Whether the peer serves reads at all.
    reads: AtomicBool,
    /// The flushes with a promise that this platform and the peer's can keep, as usages of a
    /// region.
    promised: AtomicU8,
    /// The promised flushes that the device serves.
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
    native: NativeOps,
    /// Unknown before the connection is open: then it takes no operation.
    reads: Option<bool>,
    /// Those with a promise that can be kept.
    flushes: MrUsage,
    no_fences: bool,
}

/// The atomic writes that need no further look.
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
    /// The answers for a connection that is not open yet.
    pub(super) fn new(method: FlushMethod, native: NativeOps, on_soft_roce: bool) -> Self {
        let possible = if on_soft_roce {
            SendFlags::all().difference(SendFlags::FENCE)
        } else {
            SendFlags::all()
        };
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

    pub(super) fn open(&self, reads: bool) {
        self.set(|settings| settings.reads = Some(reads));
    }

    /// These flushes keep their promise. `reorders`: the peer's device does, from now on.
    pub(super) fn set_flushes(&self, flushes: MrUsage, reorders: bool) {
        self.set(|settings| {
            settings.flushes = flushes;
            settings.no_fences |= reorders && self.fence().is_empty();
        });
    }

    /// The flag of a fence; none on soft-RoCE.
    pub(super) fn fence(&self) -> SendFlags {
        self.possible & SendFlags::FENCE
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
        let flushes = if has_reads || native.flush {
            flushes
        } else {
            MrUsage::empty()
        };
        let atomic_writes = match (native.flush, native.atomic_write) {
            // The device counts them among the reads in flight.
            (true, true) if has_reads => AtomicWrites::Native,
            (false, false) if reads.is_some() && !no_fences => AtomicWrites::Fallback,
            _ => AtomicWrites::None,
        };
        let commits = match atomic_writes {
            AtomicWrites::None => MrUsage::empty(),
            AtomicWrites::Native | AtomicWrites::Fallback if !no_fences => flushes,
            _ => MrUsage::empty(),
        };
        self.commits.store(commits.bits(), Ordering::Relaxed);
        self.no_fences.store(no_fences, Ordering::Relaxed);
        self.reads.store(has_reads, Ordering::Relaxed);
        self.flushes.store(flushes.bits(), Ordering::Relaxed);
        self.atomic_writes
            .store(atomic_writes as u8, Ordering::Relaxed);
    }

    pub(super) fn promised(&self) -> MrUsage {
        MrUsage::from_bits_retain(self.promised.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn reads(&self) -> bool {
        self.reads.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn flushes(&self) -> MrUsage {
        MrUsage::from_bits_retain(self.flushes.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn no_fences(&self) -> bool {
        self.no_fences.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn atomic_writes(&self) -> AtomicWrites {
        match self.atomic_writes.load(Ordering::Relaxed) {
            native if native == AtomicWrites::Native as u8 => AtomicWrites::Native,
            fallback if fallback == AtomicWrites::Fallback as u8 => AtomicWrites::Fallback,
            _ => AtomicWrites::None,
        }
    }

    #[inline(always)]
    pub(super) fn flags(&self, flags: Flags) -> SendFlags {
        if flags.fence() {
            flags.to_verbs(self.possible)
        } else {
            flags.to_verbs(SendFlags::all())
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

/// The conditions of a usual commit, for its parts.
impl Conn {
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

    /// Whether a commit of a part of so many bytes is possible, in a region with the rights.
    #[inline]
    pub(crate) fn commits_in_regions(&self, len: u64, flush_type: FlushType) -> bool {
        let possible = MrUsage::from_bits_retain(self.short.commits.load(Ordering::Relaxed));
        len <= self.longest_message()
            && len.wrapping_sub(1) < MAX_FLUSH
            && possible.contains(flush_type.usage())
    }

    /// Whether a commit's pointer is 8 bytes in one atomic write.
    #[inline(always)]
    pub(super) fn points_at(&self, dst: &RemoteSlice) -> bool {
        by_itself(dst.len() == 8) && by_itself(dst.address().address % 8 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every device and every setting: a flush by reading needs reads. A usual commit needs both
    /// operations of one kind, and a fence or the order of the peer's device.
    #[test]
    fn the_words_have_what_no_setting_lacks() {
        let bools = [false, true];
        for (flush, atomic_write) in bools.iter().flat_map(|a| bools.map(|b| (*a, b))) {
            for (reads, reorders) in bools.iter().flat_map(|a| bools.map(|b| (*a, b))) {
                let native = NativeOps {
                    flush,
                    atomic_write,
                };
                let method = if flush {
                    FlushMethod::Native
                } else {
                    FlushMethod::Read(ReadTarget::EMPTY)
                };
                // An adapter has fences.
                let adapter = Short::new(method, native, false);
                adapter.set_flushes(MrUsage::FLUSH_TYPE_VISIBILITY, reorders);
                assert!(!adapter.no_fences());
                let short = Short::new(method, native, true);
                short.set_flushes(MrUsage::FLUSH_TYPE_VISIBILITY, reorders);
                assert_eq!(short.no_fences(), reorders);
                let is_open = |of: &AtomicU8| of.load(Ordering::Relaxed) != 0;
                // The device's own flush needs no reads, and the queue is closed until then.
                assert_eq!(
                    is_open(&short.flushes),
                    flush,
                    "before the connection is open"
                );
                short.open(reads);
                assert_eq!(is_open(&short.flushes), reads || flush, "{native:?}");
                let commits = reads && !reorders && flush == atomic_write;
                assert_eq!(is_open(&short.commits), commits, "{native:?}");
            }
        }
    }
}
