//! Ranges inside memory.

use std::ops::{Bound, Range, RangeBounds};

use crate::error::{Error, Result};

/// The first offset of a range in memory of `size` bytes and the one after its last, which are not
/// checked; [`BEYOND`] if they have more than 64 bits.
#[inline(always)]
pub(crate) fn ends(start: Bound<u64>, end: Bound<u64>, size: u64) -> (u64, u64) {
    let start = match start {
        Bound::Included(start) => Some(start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match end {
        Bound::Included(end) => end.checked_add(1),
        Bound::Excluded(end) => Some(end),
        Bound::Unbounded => Some(size),
    };
    match (start, end) {
        (Some(start), Some(end)) => (start, end),
        _ => BEYOND,
    }
}

/// No range: its end is before its beginning.
const BEYOND: (u64, u64) = (u64::MAX, 0);

/// As [`ends`], for offsets in memory of this host.
#[inline(always)]
pub(crate) fn local_ends(range: &impl RangeBounds<usize>, size: usize) -> (usize, usize) {
    let start = range.start_bound().map(|&start| start as u64);
    let end = range.end_bound().map(|&end| end as u64);
    let (start, end) = ends(start, end, size as u64);
    match (start.try_into(), end.try_into()) {
        (Ok(start), Ok(end)) => (start, end),
        _ => (usize::MAX, 0),
    }
}

/// The range, if it is inside memory of `size` bytes; `what` names that in the error.
pub(crate) fn resolve_local(
    range: &impl RangeBounds<usize>,
    size: usize,
    what: &'static str,
) -> Result<Range<usize>> {
    let (start, end) = local_ends(range, size);
    if start <= end && end <= size {
        Ok(start..end)
    } else {
        Err(outside(start as u64, end as u64, size as u64, what))
    }
}

#[cold]
#[inline(never)]
pub(crate) fn outside(start: u64, end: u64, size: u64, what: &'static str) -> Error {
    Error::invalid(match (start, end) {
        (start, 0) if start >= usize::MAX as u64 => format!(
            "the range is not inside the {what} of {size} bytes: it goes beyond the address space"
        ),
        _ => format!("the range {start}..{end} is not inside the {what} of {size} bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_range() {
        let resolve = |ends: (Bound<usize>, Bound<usize>)| {
            let range = resolve_local(&ends, 100, "memory").ok()?;
            Some((range.start, range.end))
        };
        use Bound::{Excluded, Included, Unbounded};
        assert_eq!(resolve((Unbounded, Unbounded)), Some((0, 100)));
        assert_eq!(resolve((Included(10), Excluded(20))), Some((10, 20)));
        assert_eq!(resolve((Included(10), Included(99))), Some((10, 100)));
        assert_eq!(resolve((Excluded(10), Unbounded)), Some((11, 100)));
        assert_eq!(resolve((Included(100), Unbounded)), Some((100, 100)));
        assert_eq!(resolve((Included(101), Unbounded)), None);
        assert_eq!(resolve((Included(20), Excluded(10))), None);
        assert_eq!(resolve((Included(0), Included(100))), None);
        assert_eq!(resolve((Included(0), Included(usize::MAX))), None);
        assert_eq!(resolve((Excluded(usize::MAX), Unbounded)), None);
    }
}
