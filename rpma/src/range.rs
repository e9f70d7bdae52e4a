//! Ranges inside memory.

use std::ops::{Bound, Range, RangeBounds};

use crate::error::{Error, Result};

/// The offset and the length of a range in memory of `size` bytes; `what` names it in the error.
#[inline]
pub(crate) fn resolve(
    start: Bound<u64>,
    end: Bound<u64>,
    size: u64,
    what: &'static str,
) -> Result<(u64, u64)> {
    // Wide enough for every end: an included end is one more than its number.
    let start = match start {
        Bound::Included(start) => u128::from(start),
        Bound::Excluded(start) => u128::from(start) + 1,
        Bound::Unbounded => 0,
    };
    let end = match end {
        Bound::Included(end) => u128::from(end) + 1,
        Bound::Excluded(end) => u128::from(end),
        Bound::Unbounded => size.into(),
    };
    if start > end || end > size.into() {
        return Err(outside(start, end, size, what));
    }
    // Both fit: they are at most `size`.
    Ok((start as u64, (end - start) as u64))
}

/// As [`resolve`], for offsets in memory of this host.
#[inline]
pub(crate) fn resolve_local(
    range: &impl RangeBounds<usize>,
    size: usize,
    what: &'static str,
) -> Result<Range<usize>> {
    let (start, len) = resolve(
        range.start_bound().map(|&start| start as u64),
        range.end_bound().map(|&end| end as u64),
        size as u64,
        what,
    )?;
    // Both fit: they are at most `size`.
    Ok(start as usize..(start + len) as usize)
}

#[cold]
fn outside(start: u128, end: u128, size: u64, what: &'static str) -> Error {
    Error::invalid(format!(
        "the range {start}..{end} is not inside the {what} of {size} bytes"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_range() {
        let resolve = |(start, end)| resolve(start, end, 100, "memory").ok();
        use Bound::{Excluded, Included, Unbounded};
        assert_eq!(resolve((Unbounded, Unbounded)), Some((0, 100)));
        assert_eq!(resolve((Included(10), Excluded(20))), Some((10, 10)));
        assert_eq!(resolve((Included(10), Included(99))), Some((10, 90)));
        assert_eq!(resolve((Excluded(10), Unbounded)), Some((11, 89)));
        assert_eq!(resolve((Included(100), Unbounded)), Some((100, 0)));
        assert_eq!(resolve((Included(101), Unbounded)), None);
        assert_eq!(resolve((Included(20), Excluded(10))), None);
        assert_eq!(resolve((Included(0), Included(100))), None);
        assert_eq!(resolve((Included(0), Included(u64::MAX))), None);
        assert_eq!(resolve((Excluded(u64::MAX), Unbounded)), None);
    }
}
