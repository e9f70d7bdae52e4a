//! `clwb`, else `clflushopt`, else `clflush`; then `sfence`.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    /// Writes the line back and may keep it in the cache.
    Clwb,
    /// Writes it back and drops it.
    ClflushOpt,
    /// The same, one line after the other. Every x86_64 has it.
    Clflush,
}

/// The best instruction of this processor, and the length of its cache lines.
pub(super) fn detect() -> Option<(Instruction, usize)> {
    supported()
        .next()
        .map(|instruction| (instruction, line_size()))
}

/// The instructions that this processor has, best first.
pub(super) fn supported() -> impl Iterator<Item = Instruction> {
    let features = extended_features();
    let has = |bit: u32| features & (1 << bit) != 0;
    [
        has(24).then_some(Instruction::Clwb),
        has(23).then_some(Instruction::ClflushOpt),
        Some(Instruction::Clflush),
    ]
    .into_iter()
    .flatten()
}

impl Instruction {
    /// Starts to write the line of `address` back.
    ///
    /// # Safety
    ///
    /// `address` is mapped, and this processor has the instruction.
    pub(super) unsafe fn write_back(self, address: *const u8) {
        match self {
            // SAFETY: the caller vouches for the address and the instruction, which reads the line
            // and changes neither memory nor registers nor flags.
            Self::Clwb => unsafe {
                asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags));
            },
            // SAFETY: the caller vouches for both, and the instruction changes no more than `clwb`.
            Self::ClflushOpt => unsafe {
                asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
            },
            // SAFETY: the caller vouches for both, and the instruction changes no more than `clwb`.
            Self::Clflush => unsafe {
                asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags));
            },
        }
    }
}

/// Orders later stores after the earlier write-backs.
pub(super) fn wait() {
    // SAFETY: a fence writes no memory or register.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// EBX of leaf 7, or 0 on a processor that has no leaf 7.
#[allow(
    unused_unsafe,
    reason = "cpuid became a safe function after the oldest supported Rust"
)]
fn extended_features() -> u32 {
    // SAFETY: every x86_64 has cpuid, and its leaf 0.
    let last_leaf = unsafe { __cpuid(0) }.eax;
    if last_leaf < 7 {
        return 0;
    }
    // SAFETY: every x86_64 has cpuid, and the processor has leaf 7: see `last_leaf`.
    unsafe { __cpuid_count(7, 0) }.ebx
}

/// The unit of all three instructions, which leaf 1 gives in words of 8 bytes.
#[allow(
    unused_unsafe,
    reason = "cpuid became a safe function after the oldest supported Rust"
)]
fn line_size() -> usize {
    // SAFETY: every x86_64 has cpuid, and its leaf 1.
    let words = unsafe { __cpuid(1) }.ebx >> 8 & 0xFF;
    words as usize * 8
}
