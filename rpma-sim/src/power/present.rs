//! The pages of a mapping that a program or a device has touched.
//!
//! A program's stores are found without its help: the fabric compares the memory with its state of
//! the last look. Only pages that are present can differ from zeros that were never written, and
//! the kernel lists these (`PAGEMAP_SCAN`, Linux 6.7). So a look costs the pages that were ever
//! touched, and not the size of the memory.
//!
//! A small memory is compared as a whole, which takes less time. Where the kernel cannot list pages,
//! every memory is: before Linux 6.7, without `/proc`, under
//! Miri, and with the variable [`COMPARE`]. The first use tries it on a page of its own. Other ways
//! were refused: with soft-dirty bits a kernel without them finds nothing and reports no error; a
//! handler of SIGSEGV makes system calls into the memory fail; `mincore` takes 11 ms for 1 GiB.

use std::ops::Range;

#[cfg(not(miri))]
use super::map::SMALL;

/// If this variable is set, everything is compared.
#[cfg(not(miri))]
const COMPARE: &str = "RPMA_SIM_COMPARE";

/// The parts of a mapping that may differ from zeros. `start` is the address of its first byte.
pub(super) fn touched(start: usize, len: usize) -> Vec<Range<usize>> {
    #[cfg(not(miri))]
    if len > SMALL {
        if let Some(Ok(found)) = scan::scanner().map(|scanner| scanner.scan(start, len)) {
            return found;
        }
    }
    let _ = start;
    std::iter::once(0..len).collect()
}

#[cfg(not(miri))]
mod scan {
    use std::env;
    use std::ffi::c_void;
    use std::fs::File;
    use std::ops::Range;
    use std::ptr;
    use std::sync::OnceLock;

    use rustix::io::{Errno, Result};
    use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

    use super::super::map::Map;
    use super::super::store::PAGE;
    use super::{COMPARE, SMALL};

    /// Present in memory, or swapped out: `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`.
    const TOUCHED: u64 = 1 << 3 | 1 << 4;
    /// The page of zeros, which a read of an untouched page maps: `PAGE_IS_PFNZERO`.
    const ZEROS: u64 = 1 << 5;
    /// The regions of one call.
    const REGIONS: usize = 64;

    /// `struct page_region`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Region {
        start: u64,
        end: u64,
        categories: u64,
    }

    /// `struct pm_scan_arg`.
    #[repr(C)]
    struct Arguments {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        regions: u64,
        regions_len: u64,
        max_pages: u64,
        category_inverted: u64,
        category_mask: u64,
        category_anyof_mask: u64,
        return_mask: u64,
    }

    /// Lists touched pages of this process.
    pub(super) struct Scanner(File);

    /// The scanner, if the kernel has it and it works.
    pub(super) fn scanner() -> Option<&'static Scanner> {
        static SCANNER: OnceLock<Option<Scanner>> = OnceLock::new();
        let scanner = SCANNER.get_or_init(|| {
            if env::var_os(COMPARE).is_some() {
                return None;
            }
            let scanner = Scanner::open();
            if scanner.is_none() {
                eprintln!(
                    "rpma::sim: this kernel does not list the pages that were touched (PAGEMAP_SCAN, \
                     Linux 6.7): each event compares all of the persistent memory, so keep it small"
                );
            }
            scanner
        });
        scanner.as_ref()
    }

    impl Scanner {
        fn open() -> Option<Self> {
            let scanner = Self(File::open("/proc/self/pagemap").ok()?);
            scanner.works().then_some(scanner)
        }

        /// Tries it on pages of its own, of which the second one is touched.
        fn works(&self) -> bool {
            let Ok(mut map) = Map::zeros(SMALL + PAGE) else {
                return false;
            };
            let start = map.as_ptr().addr();
            let before = self.scan(start, map.len());
            map.write(PAGE, &[1]);
            // A page that was only read is not touched.
            if map.bytes()[2 * PAGE] != 0 {
                return false;
            }
            let after = self.scan(start, map.len());
            let is_second = |found: Vec<Range<usize>>| found.iter().eq([&(PAGE..2 * PAGE)]);
            before == Ok(Vec::new()) && after.is_ok_and(is_second)
        }

        /// The touched parts of a mapping, which begins at this address.
        pub(super) fn scan(&self, start: usize, len: usize) -> Result<Vec<Range<usize>>> {
            let mut found = Vec::new();
            let mut regions = [Region::default(); REGIONS];
            let (mut from, end) = (start as u64, (start + len) as u64);
            while from < end {
                let mut arguments = Arguments {
                    size: size_of::<Arguments>() as u64,
                    flags: 0,
                    start: from,
                    end,
                    walk_end: 0,
                    regions: regions.as_mut_ptr().expose_provenance() as u64,
                    regions_len: REGIONS as u64,
                    max_pages: 0,
                    category_inverted: ZEROS,
                    category_mask: ZEROS,
                    category_anyof_mask: TOUCHED,
                    return_mask: TOUCHED,
                };
                // SAFETY: `Scan` describes `PAGEMAP_SCAN`. The kernel writes at most `REGIONS`
                // regions, which live until the call returns, and changes no memory.
                let count = unsafe { ioctl(&self.0, Scan(&mut arguments)) }?;
                let filled = regions.get(..count).ok_or(Errno::OVERFLOW)?;
                found.extend(filled.iter().map(|region| {
                    let offset = |address: u64| address as usize - start;
                    offset(region.start)..offset(region.end)
                }));
                if arguments.walk_end <= from {
                    return Err(Errno::INVAL);
                }
                from = arguments.walk_end;
            }
            Ok(found)
        }
    }

    /// The call `PAGEMAP_SCAN`, which returns the number of regions.
    struct Scan<'a>(&'a mut Arguments);

    // SAFETY: the code is `_IOWR('f', 16, struct pm_scan_arg)`, and the pointer is to such a
    // structure. The kernel writes to its field `walk_end`, so it is mutable.
    unsafe impl Ioctl for Scan<'_> {
        type Output = usize;

        const IS_MUTATING: bool = true;

        fn opcode(&self) -> Opcode {
            opcode::read_write::<Arguments>(b'f', 16)
        }

        fn as_ptr(&mut self) -> *mut c_void {
            ptr::from_mut(self.0).cast()
        }

        unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Result<usize> {
            usize::try_from(output).map_err(|_| Errno::INVAL)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Promise: each touched page is found, also if there are more regions than a call takes.
        #[test]
        fn each_touched_page_is_found() -> Result<()> {
            let Some(scanner) = Scanner::open() else {
                return Ok(());
            };
            let mut map = Map::zeros(4 * REGIONS * PAGE)?;
            let pages: Vec<usize> = (0..4 * REGIONS).step_by(3).collect();
            for page in &pages {
                map.write(page * PAGE + 7, &[1]);
            }
            let found = scanner.scan(map.as_ptr().addr(), map.len())?;
            let expected = pages.iter().map(|page| page * PAGE..(page + 1) * PAGE);
            assert!(found.into_iter().eq(expected));
            Ok(())
        }
    }
}
