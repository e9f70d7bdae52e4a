//! How safe code reads and writes registered memory.
//!
//! A device or a remote host can change that memory at any moment, so no Rust reference may point
//! into it and no ordinary access of the language may touch it: the optimiser would be free to read
//! a byte twice, or to write one back. Here the accesses are inline assembly, which the compiler
//! cannot look into: each byte asked for is read or written by the hardware, in no promised order
//! and possibly torn, and no other byte is written. Other architectures, and Miri, use relaxed
//! atomics on single bytes; so does a build with `--cfg rpma_portable_copies`, for
//! ThreadSanitizer, which does not see assembly either.
//!
//! Each block of assembly also keeps the compiler from moving other accesses to memory across it
//! (no block has `nomem` or `readonly`).

#[cfg(all(target_arch = "x86_64", not(any(miri, rpma_portable_copies))))]
use self::x86_64 as arch;

#[cfg(all(target_arch = "aarch64", not(any(miri, rpma_portable_copies))))]
use self::aarch64 as arch;

#[cfg(any(
    miri,
    rpma_portable_copies,
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
use self::portable as arch;

/// Fills `dst` with the bytes at `src`.
///
/// # Safety
///
/// `src` to `src + dst.len()` is mapped and readable, lies inside one allocation, stays so during
/// the call, and does not overlap `dst`.
pub(crate) unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
    // SAFETY: the caller vouches for `src`; `dst` is a unique reference to `dst.len()` bytes.
    unsafe { arch::copy_from_shared(src, dst) }
    seen(src, dst.len());
}

/// The program has read these bytes: on a simulated fabric, data on its way to them counts as
/// arrived.
#[inline(always)]
fn seen(src: *const u8, len: usize) {
    #[cfg(feature = "sim")]
    rpma_sys::seen(src, len);
    #[cfg(not(feature = "sim"))]
    let _ = (src, len);
}

/// Writes `src` to the bytes at `dst`.
///
/// # Safety
///
/// `dst` to `dst + src.len()` is mapped, readable and writable, lies inside one allocation, stays
/// so during the call, does not overlap `src`, and no Rust reference points to any of it.
pub(crate) unsafe fn copy_to_shared(src: &[u8], dst: *mut u8) {
    // SAFETY: the caller vouches for `dst`; `src` is a reference to `src.len()` bytes.
    unsafe { arch::copy_to_shared(src, dst) }
    stored(dst, src.len());
}

/// The program has stored these bytes: on a simulated host with eADR the power can fail here.
#[inline(always)]
pub(crate) fn stored(dst: *const u8, len: usize) {
    #[cfg(feature = "sim")]
    rpma_sys::stored(dst, len);
    #[cfg(not(feature = "sim"))]
    let _ = (dst, len);
}

/// Reads 8 bytes at once, with acquire ordering: a later read (by this thread) is not older than
/// the value that it returned.
///
/// Acquire, because such a value is typically a flag or a tail that a remote host wrote after the
/// data that it announces. On x86_64 that has no cost. On aarch64 the barrier is for the outer
/// shareable domain, so that it also holds for the writes of a device.
///
/// # Safety
///
/// `src` is a multiple of 8, and the 8 bytes there are mapped and readable during the call.
pub(crate) unsafe fn load_u64(src: *const u64) -> u64 {
    debug_assert!(src.is_aligned());
    // SAFETY: the caller vouches for `src`.
    let value = unsafe { arch::load_u64(src) };
    seen(src.cast(), size_of::<u64>());
    value
}

/// Writes 8 bytes at once, with release ordering: a reader of the value also sees the earlier
/// writes of this thread. The reasons are those of [`load_u64`].
///
/// # Safety
///
/// `dst` is a multiple of 8, the 8 bytes there are mapped and writable during the call, and no Rust
/// reference points to any of them.
pub(crate) unsafe fn store_u64(dst: *mut u64, value: u64) {
    debug_assert!(dst.is_aligned());
    // SAFETY: the caller vouches for `dst`.
    unsafe { arch::store_u64(dst, value) }
    stored(dst.cast(), size_of::<u64>());
}

/// `rep movsb`, and the plain 8-byte moves that are atomic, acquire and release on this
/// architecture when the address is aligned.
#[cfg(all(target_arch = "x86_64", not(any(miri, rpma_portable_copies))))]
mod x86_64 {
    use std::arch::asm;

    pub(super) unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
        // SAFETY: the caller vouches for `src`; `dst` is `dst.len()` bytes that may be written.
        unsafe { copy(src, dst.as_mut_ptr(), dst.len()) }
    }

    pub(super) unsafe fn copy_to_shared(src: &[u8], dst: *mut u8) {
        // SAFETY: the caller vouches for `dst`; `src` is `src.len()` bytes that may be read.
        unsafe { copy(src.as_ptr(), dst, src.len()) }
    }

    /// # Safety
    ///
    /// `len` bytes may be read at `src` and written at `dst`, and the two do not overlap.
    unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the instruction reads `len` bytes upwards from `src` and writes them upwards from
        // `dst`, which the caller vouches for: the direction flag is clear on entry to a block of
        // assembly. It uses no stack, leaves the flags alone, and the three registers that it
        // changes are declared.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") src => _,
                inout("rdi") dst => _,
                options(nostack, preserves_flags),
            );
        }
    }

    pub(super) unsafe fn load_u64(src: *const u64) -> u64 {
        let value;
        // SAFETY: one read of the 8 bytes at `src`, which the caller vouches for.
        unsafe {
            asm!(
                "mov {value}, qword ptr [{src}]",
                src = in(reg) src,
                value = lateout(reg) value,
                options(nostack, preserves_flags),
            );
        }
        value
    }

    pub(super) unsafe fn store_u64(dst: *mut u64, value: u64) {
        // SAFETY: one write of the 8 bytes at `dst`, which the caller vouches for.
        unsafe {
            asm!(
                "mov qword ptr [{dst}], {value}",
                dst = in(reg) dst,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// A loop over words and then over bytes, and 8-byte accesses with a barrier.
#[cfg(all(target_arch = "aarch64", not(any(miri, rpma_portable_copies))))]
mod aarch64 {
    use std::arch::asm;

    pub(super) unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
        // SAFETY: the caller vouches for `src`; `dst` is `dst.len()` bytes that may be written.
        unsafe { copy(src, dst.as_mut_ptr(), dst.len()) }
    }

    pub(super) unsafe fn copy_to_shared(src: &[u8], dst: *mut u8) {
        // SAFETY: the caller vouches for `dst`; `src` is `src.len()` bytes that may be read.
        unsafe { copy(src.as_ptr(), dst, src.len()) }
    }

    /// # Safety
    ///
    /// `len` bytes may be read at `src` and written at `dst`, and the two do not overlap.
    unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first loop runs while at least 8 of the `len` bytes are left, the second
        // while at least one is, and each turn reads and writes as many bytes as it counts, upwards
        // from `src` and `dst`, which the caller vouches for. Words need no alignment: Linux lets
        // user space access normal memory at any address. No stack is used, the registers that
        // change are declared, and so are the flags (by not saying `preserves_flags`).
        unsafe {
            asm!(
                "cmp {len}, #8",
                "b.lo 3f",
                "2:",
                "ldr {word}, [{src}], #8",
                "str {word}, [{dst}], #8",
                "sub {len}, {len}, #8",
                "cmp {len}, #8",
                "b.hs 2b",
                "3:",
                "cbz {len}, 5f",
                "4:",
                "ldrb {word:w}, [{src}], #1",
                "strb {word:w}, [{dst}], #1",
                "subs {len}, {len}, #1",
                "b.ne 4b",
                "5:",
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                len = inout(reg) len => _,
                word = out(reg) _,
                options(nostack),
            );
        }
    }

    pub(super) unsafe fn load_u64(src: *const u64) -> u64 {
        let value;
        // SAFETY: one read of the 8 bytes at `src`, which the caller vouches for, and a barrier.
        unsafe {
            asm!(
                "ldr {value}, [{src}]",
                "dmb oshld",
                src = in(reg) src,
                value = lateout(reg) value,
                options(nostack, preserves_flags),
            );
        }
        value
    }

    pub(super) unsafe fn store_u64(dst: *mut u64, value: u64) {
        // SAFETY: a barrier, and one write of the 8 bytes at `dst`, which the caller vouches for.
        unsafe {
            asm!(
                "dmb osh",
                "str {value}, [{dst}]",
                dst = in(reg) dst,
                value = in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Relaxed atomics on single bytes, and an atomic on 8.
#[cfg(any(
    test,
    miri,
    rpma_portable_copies,
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    pub(super) unsafe fn copy_from_shared(src: *const u8, dst: &mut [u8]) {
        for (i, byte) in dst.iter_mut().enumerate() {
            // SAFETY: `i < dst.len()`, and the caller vouches for as many bytes at `src`; a byte is
            // always aligned. It is only loaded from, which also holds for memory that is
            // read-only.
            let shared = unsafe { AtomicU8::from_ptr(src.cast_mut().wrapping_add(i)) };
            *byte = shared.load(Ordering::Relaxed);
        }
    }

    pub(super) unsafe fn copy_to_shared(src: &[u8], dst: *mut u8) {
        for (i, &byte) in src.iter().enumerate() {
            // SAFETY: `i < src.len()`, and the caller vouches for as many bytes at `dst`; a byte is
            // always aligned, and only atomics and hardware access these.
            let shared = unsafe { AtomicU8::from_ptr(dst.wrapping_add(i)) };
            shared.store(byte, Ordering::Relaxed);
        }
    }

    pub(super) unsafe fn load_u64(src: *const u64) -> u64 {
        // SAFETY: the caller vouches for the 8 bytes at `src` and for their alignment.
        let shared = unsafe { AtomicU64::from_ptr(src.cast_mut()) };
        shared.load(Ordering::Acquire)
    }

    pub(super) unsafe fn store_u64(dst: *mut u64, value: u64) {
        // SAFETY: the caller vouches for the 8 bytes at `dst` and for their alignment.
        let shared = unsafe { AtomicU64::from_ptr(dst) };
        shared.store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type CopyFrom = unsafe fn(*const u8, &mut [u8]);
    type CopyTo = unsafe fn(&[u8], *mut u8);
    type Load = unsafe fn(*const u64) -> u64;
    type Store = unsafe fn(*mut u64, u64);

    const GUARD: u8 = 0xA5;
    const MAX: usize = 257;
    /// Fewer where each byte takes microseconds.
    const OFFSETS: usize = if cfg!(miri) { 2 } else { 9 };
    /// Room for every offset and length, and guards after it.
    const ROOM: usize = MAX + 2 * OFFSETS;

    /// Bytes that differ from their neighbours and from the guard.
    fn pattern() -> Vec<u8> {
        (0..ROOM).map(|i| (i % 131) as u8).collect()
    }

    fn lengths() -> impl Iterator<Item = usize> {
        (0..=MAX).step_by(if cfg!(miri) { 64 } else { 1 })
    }

    /// The expected contents of `room` when `written` stands at `offset` and no other byte changed.
    fn expected(offset: usize, written: &[u8]) -> Vec<u8> {
        let mut room = vec![GUARD; ROOM];
        room[offset..offset + written.len()].copy_from_slice(written);
        room
    }

    fn check_copy_from(copy: CopyFrom) {
        let source = pattern();
        for len in lengths() {
            for (from, to) in (0..OFFSETS).flat_map(|a| (0..OFFSETS).map(move |b| (a, b))) {
                let mut room = vec![GUARD; ROOM];
                // SAFETY: `from + len <= ROOM` bytes of `source` can be read, and `room` is other
                // memory.
                unsafe { copy(source.as_ptr().wrapping_add(from), &mut room[to..to + len]) };
                assert_eq!(
                    room,
                    expected(to, &source[from..from + len]),
                    "{len} {from} {to}"
                );
            }
        }
    }

    fn check_copy_to(copy: CopyTo) {
        let source = pattern();
        for len in lengths() {
            for (from, to) in (0..OFFSETS).flat_map(|a| (0..OFFSETS).map(move |b| (a, b))) {
                let mut room = vec![GUARD; ROOM];
                let dst = room.as_mut_ptr().wrapping_add(to);
                // SAFETY: `to + len <= ROOM` bytes of `room` can be written, and `source` is other
                // memory.
                unsafe { copy(&source[from..from + len], dst) };
                assert_eq!(
                    room,
                    expected(to, &source[from..from + len]),
                    "{len} {from} {to}"
                );
            }
        }
    }

    fn check_u64(load: Load, store: Store) {
        let mut words = [u64::MAX; 3];
        let middle = words.as_mut_ptr().wrapping_add(1);
        // SAFETY: the second of three words, aligned as a `u64` is.
        unsafe { store(middle, 0x0123_4567_89AB_CDEF) };
        // SAFETY: the second of three words, aligned as a `u64` is.
        assert_eq!(unsafe { load(middle) }, 0x0123_4567_89AB_CDEF);
        assert_eq!(words, [u64::MAX, 0x0123_4567_89AB_CDEF, u64::MAX]);
    }

    #[test]
    fn reads_of_every_length_and_offset_write_only_what_was_asked() {
        check_copy_from(copy_from_shared);
    }

    #[test]
    fn writes_of_every_length_and_offset_write_only_what_was_asked() {
        check_copy_to(copy_to_shared);
    }

    #[test]
    fn words_are_read_and_written_whole() {
        check_u64(load_u64, store_u64);
    }

    #[test]
    fn the_portable_version_does_the_same() {
        check_copy_from(portable::copy_from_shared);
        check_copy_to(portable::copy_to_shared);
        check_u64(portable::load_u64, portable::store_u64);
    }

    #[test]
    fn large_copies_are_complete() {
        let len = if cfg!(miri) { 1_003 } else { 100_003 };
        let source: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let mut shared = vec![0; source.len()];
        // SAFETY: `shared` has room for `source`.
        unsafe { copy_to_shared(&source, shared.as_mut_ptr()) };
        assert!(shared == source);
        let mut back = vec![0; source.len()];
        // SAFETY: `shared` has as many bytes as `back`.
        unsafe { copy_from_shared(shared.as_ptr(), &mut back) };
        assert!(back == source);
    }

    #[test]
    fn nothing_is_accessed_when_there_is_nothing_to_copy() {
        // SAFETY: no byte is read, so the null pointer is as good as any.
        unsafe { copy_from_shared(std::ptr::null(), &mut []) };
        // SAFETY: no byte is written, so the null pointer is as good as any.
        unsafe { copy_to_shared(&[], std::ptr::null_mut()) };
    }
}
