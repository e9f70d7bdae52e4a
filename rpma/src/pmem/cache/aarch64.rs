//! `dc cvap` (clean to the point of persistence), where the processor has one; then `dsb`.

use std::arch::asm;

use rustix::param::linux_hwcap;

/// `HWCAP_DCPOP`: the processor has `dc cvap`, and Linux lets user space use it.
const HWCAP_DCPOP: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(super) enum Instruction {
    DcCvap,
}

/// The instruction, if this processor has it, and the length of its cache lines.
pub(super) fn detect() -> Option<(Instruction, usize)> {
    supported()
        .next()
        .map(|instruction| (instruction, line_size()))
}

/// The instructions that this processor has.
pub(super) fn supported() -> impl Iterator<Item = Instruction> {
    let (hwcap, _) = linux_hwcap();
    (hwcap & HWCAP_DCPOP != 0)
        .then_some(Instruction::DcCvap)
        .into_iter()
}

impl Instruction {
    /// Starts to write the line of `address` back.
    ///
    /// # Safety
    ///
    /// `address` is mapped, and this processor has the instruction.
    pub(super) unsafe fn write_back(self, address: *const u8) {
        match self {
            // SAFETY: the caller vouches for the address and the instruction, which changes neither
            // memory nor registers nor flags. It is `dc cvap`, written so that assemblers for
            // processors without it take it.
            Self::DcCvap => unsafe {
                asm!("sys #3, c7, c12, #1, {}", in(reg) address, options(nostack, preserves_flags));
            },
        }
    }
}

/// Waits for the write-backs before, in all of the system.
pub(super) fn wait() {
    // SAFETY: a barrier writes no memory or register.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// The shortest line of all data caches, which CTR_EL0 gives in bits 16 to 19 as the binary
/// logarithm of a number of 4-byte words.
fn line_size() -> usize {
    let ctr: usize;
    // SAFETY: reads a register that Linux lets user space read, or emulates.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nostack, preserves_flags)) };
    4 << (ctr >> 16 & 0xF)
}
