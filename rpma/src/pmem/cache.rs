//! Cache-line write-back: how a store reaches persistent memory without a system call.
//!
//! A store to persistent memory first sits in a processor cache, which loses it with the power.
//! Each architecture has an instruction that writes the line of an address back to memory, and one
//! that waits until the written lines have been accepted there.

#![expect(unsafe_code, reason = "writes cache lines back by inline assembly")]

#[cfg_attr(target_arch = "x86_64", path = "cache/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "cache/aarch64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    path = "cache/other.rs"
)]
mod arch;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use self::arch::Instruction;

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLines {
    /// The length of a line in bytes, a power of two.
    size: usize,
    instruction: Instruction,
}

impl CacheLines {
    /// Asks the processor, once. `None` if user space cannot write lines back on it.
    pub(super) fn detect() -> Option<Self> {
        static DETECTED: LazyLock<Option<CacheLines>> = LazyLock::new(|| {
            let lines = arch::detect().map(|(instruction, size)| CacheLines { size, instruction });
            lines.filter(|lines| lines.size.is_power_of_two())
        });
        static TOLD: AtomicBool = AtomicBool::new(false);
        let detected = *DETECTED;
        // After that: the program's logger may come here.
        if !TOLD.load(Ordering::Relaxed) && !TOLD.swap(true, Ordering::Relaxed) {
            log::debug!("cache-line write-back: {detected:?}");
        }
        detected
    }

    /// Writes each line that `len` bytes at `start` touch back to memory, and waits for it. If
    /// `len` is 0 it is only the wait for earlier ones.
    ///
    /// # Safety
    ///
    /// The bytes are mapped during the call.
    pub(super) unsafe fn write_back(self, start: *const u8, len: usize) {
        let last = start.addr() + len;
        let mut line = start.map_addr(|address| address & !(self.size - 1));
        while len != 0 && line.addr() < last {
            // SAFETY: the line holds at least one of the bytes, so it lies in a page that is
            // mapped.
            unsafe { self.instruction.write_back(line) };
            line = line.wrapping_add(self.size);
        }
        arch::wait();
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    fn every_way() -> impl Iterator<Item = CacheLines> {
        let size = CacheLines::detect().map_or(64, |lines| lines.size);
        arch::supported().map(move |instruction| CacheLines { size, instruction })
    }

    #[test]
    fn lines_have_a_plausible_length() {
        if let Some(lines) = CacheLines::detect() {
            assert!((16..=2048).contains(&lines.size), "{lines:?}");
        }
    }

    #[test]
    fn memory_is_unchanged_by_every_instruction_that_this_processor_has() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i as u8).collect();
        let copy = bytes.clone();
        for lines in every_way() {
            for (start, len) in [
                (0, 10_000),
                (1, 1),
                (63, 2),
                (64, 64),
                (9_999, 1),
                (10_000, 0),
            ] {
                let start = bytes.as_ptr().wrapping_add(start);
                // SAFETY: `start + len` is at most the length of `bytes`.
                unsafe { lines.write_back(start, len) };
            }
            assert!(bytes == copy, "{lines:?}");
        }
    }
}
