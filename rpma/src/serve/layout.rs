//! [`Layout`]: the places of the directory and of each key's memory in one memory.
//!
//! It is arithmetic. It owns nothing and changes nothing, so a program that only reads the memory,
//! for example after the server has ended, uses it as well.

use std::ops::Range;

use super::Directory;
use super::directory::Places;
use crate::error::{Error, Result};
use crate::pmem::PmemMap;

/// The directory and each part begin and end at multiples of it.
const PAGE: usize = 4096;

/// Divides one memory: a [`Directory`] for `keys` keys, then a part for each of the keys 1 to
/// `keys`, in this order.
///
/// The directory and each part begin at a multiple of 4096 bytes, so that each part can be
/// registered. Making one part durable touches no cache line of another part. The length of a part
/// is `bytes`, rounded up to a multiple of 4096.
///
/// The same arguments always give the same layout. Other arguments move the parts, so the header of
/// the directory names the layout, and [`open_directory`](Self::open_directory) refuses another
/// one. [`copy_to`](Self::copy_to) gives the keys more memory.
///
/// ```
/// use rpma::serve::Layout;
///
/// let layout = Layout::new(2, 5000)?;
/// assert_eq!(layout.directory(), 0..4096);
/// assert_eq!(layout.part(1), Some(4096..12288));
/// assert_eq!(layout.part(2), Some(12288..20480));
/// assert_eq!(layout.part(3), None);
/// assert_eq!(layout.len(), 20480);
/// # Ok::<(), rpma::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    keys: u32,
    /// The bytes of the directory, and of each part.
    directory: usize,
    part: usize,
}

impl Layout {
    /// Makes the layout for the keys 1 to `keys`, with `bytes` bytes for each.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no keys, for no bytes, or if all of it has more than
    /// `isize::MAX` bytes, which no memory has.
    pub fn new(keys: u32, bytes: usize) -> Result<Self> {
        if keys == 0 || bytes == 0 {
            return Err(Error::invalid(format!(
                "a layout of {keys} keys with {bytes} bytes each: both must be at least 1"
            )));
        }
        Self::checked(keys, bytes).ok_or_else(|| {
            Error::invalid(format!(
                "a layout of {keys} keys with {bytes} bytes each: no memory is that long"
            ))
        })
    }

    fn checked(keys: u32, bytes: usize) -> Option<Self> {
        let directory = Directory::len_for(keys).checked_next_multiple_of(PAGE)?;
        let part = bytes.checked_next_multiple_of(PAGE)?;
        let parts = part.checked_mul(usize::try_from(keys).ok()?)?;
        let len = directory.checked_add(parts)?;
        isize::try_from(len).ok()?;
        Some(Self {
            keys,
            directory,
            part,
        })
    }

    /// Returns the number of keys. They are 1 to this number.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Returns the length of all of it in bytes: a multiple of 4096.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.directory + self.part * self.keys as usize
    }

    /// Returns the byte range of the directory.
    #[must_use]
    pub fn directory(&self) -> Range<usize> {
        0..self.directory
    }

    /// Returns the byte range of a key's part. `None` if the layout has no such key.
    #[must_use]
    pub fn part(&self, key: u64) -> Option<Range<usize>> {
        let before = key.checked_sub(1)?;
        if before >= u64::from(self.keys) {
            return None;
        }
        let start = self.directory + self.part * usize::try_from(before).ok()?;
        Some(start..start + self.part)
    }

    /// Opens the directory, or makes an empty one in memory of zeros, as
    /// [`Directory::open_or_create`]. The directory's header has the layout.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `all` is shorter than the layout, or if the directory has
    /// another layout, or none: the text has both numbers of each difference. Otherwise as
    /// [`Directory::open_or_create`]. No byte changes then, unless [`PmemMap::persist`] failed.
    pub fn open_directory(&self, all: &PmemMap) -> Result<Directory> {
        self.check(all)?;
        Directory::open_or_create_for(all.part(self.directory())?, self.keys, self.places())
    }

    /// Copies the keys to `target`, a second memory with the layout `to`: their bytes, their
    /// identities, and the [lowest epoch](Directory::lowest_epoch). A key gets more memory in this
    /// way. The server of `source` must have ended, because the call takes the locks of both
    /// memories.
    ///
    /// The directory of the target appears as a whole, after everything else is durable there. So
    /// an interrupted copy may be repeated, and servers refuse its target until then. A complete
    /// copy is refused, because a server may have used it. `source` does not change. The target
    /// has an identity of its own. After the bytes of a key, its longer part keeps the bytes that
    /// were there.
    ///
    /// ```no_run
    /// use rpma::pmem::PmemMap;
    /// use rpma::serve::Layout;
    ///
    /// let (old, new) = (Layout::new(16, 1 << 20)?, Layout::new(16, 1 << 30)?);
    /// let (source, target) = (PmemMap::open("/dev/dax0.0", 0)?, PmemMap::open("/dev/dax1.0", 0)?);
    /// old.copy_to(&source, &new, &target)?;
    /// # Ok::<(), rpma::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a memory is shorter than its layout; if `source` has no
    /// directory of this layout, or one with a [broken slot](Directory#broken-slots) or a lost
    /// lowest epoch, since the target would forget that; if a key has no part in `to`, or a shorter
    /// one; if `target` has a directory, or other bytes in its place; or if both memories overlap.
    /// [`Error::Claimed`], or [`Error::Provider`] with `EWOULDBLOCK` of `flock`, if a server has one
    /// of them. No byte has changed then. Otherwise as [`PmemMap::persist`].
    pub fn copy_to(&self, source: &PmemMap, to: &Self, target: &PmemMap) -> Result<()> {
        self.check(source)?;
        to.check(target)?;
        if overlap(source, target) {
            return Err(Error::invalid(
                "the source and the target of the copy overlap",
            ));
        }
        Directory::copy((source, self), (target, to))
    }

    /// The part of a key, and its longer or equally long part in another layout.
    pub(super) fn both_parts(&self, to: &Self, key: u64) -> Result<(Range<usize>, Range<usize>)> {
        match (self.part(key), to.part(key)) {
            (Some(old), Some(new)) if new.len() >= old.len() => Ok((old, new)),
            (Some(old), Some(new)) => Err(Error::invalid(format!(
                "the key {key} has {} bytes, and {} in the layout of the copy",
                old.len(),
                new.len()
            ))),
            _ => Err(Error::invalid(format!(
                "the key {key:#x} has no part: the layouts have {} and {} keys",
                self.keys, to.keys
            ))),
        }
    }

    /// The places of the keys' memory, as the header of the directory has them.
    pub(super) fn places(&self) -> Places {
        Places {
            first: self.directory as u64,
            len: self.part as u64,
            count: self.keys.into(),
        }
    }

    pub(super) fn check(&self, all: &PmemMap) -> Result<()> {
        let (has, needed) = (all.len(), self.len());
        if has < needed {
            return Err(Error::invalid(format!(
                "the layout of {} keys has {needed} bytes, and the memory has {has}",
                self.keys
            )));
        }
        Ok(())
    }
}

fn overlap(one: &PmemMap, other: &PmemMap) -> bool {
    let range = |map: &PmemMap| {
        let start = map.as_ptr().addr();
        start..start.saturating_add(map.len())
    };
    let (one, other) = (range(one), range(other));
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the directory and the parts of all keys are one after the other without overlap,
    /// begin and end at pages, and have the bytes that were asked for.
    #[test]
    fn parts_do_not_overlap() {
        for keys in [1, 2, 31, 32, 1000] {
            for bytes in [1, 64, 4095, 4096, 4097, 1 << 20] {
                let layout = Layout::new(keys, bytes).expect("fits");
                assert_eq!(layout.keys(), keys);
                assert!(layout.directory().len() >= Directory::len_for(keys));
                let mut end = 0;
                let parts = (1..=u64::from(keys)).map(|key| layout.part(key).expect("a key"));
                for range in std::iter::once(layout.directory()).chain(parts.clone()) {
                    assert_eq!(range.start, end);
                    assert_eq!((range.start % PAGE, range.end % PAGE), (0, 0));
                    end = range.end;
                }
                assert_eq!(layout.len(), end);
                for range in parts {
                    assert!(range.len() >= bytes && range.len() < bytes + PAGE);
                }
            }
        }
    }

    /// Promise: a key outside of the layout has no part.
    #[test]
    fn other_keys_have_no_part() {
        let layout = Layout::new(3, 100).expect("fits");
        for key in [0, 4, 1 << 32, (1 << 32) + 1, u64::MAX] {
            assert_eq!(layout.part(key), None, "{key}");
        }
    }

    /// Promise: a layout that no memory can have is an error with both numbers, and no overflow.
    #[test]
    fn wrong_arguments() {
        for (keys, bytes, words) in [
            (0, 1, "must be at least 1"),
            (1, 0, "must be at least 1"),
            (1, usize::MAX, "no memory is that long"),
            (1, usize::MAX - PAGE, "no memory is that long"),
            (1, isize::MAX as usize - PAGE, "no memory is that long"),
            (u32::MAX, 1 << 40, "no memory is that long"),
        ] {
            let error = Layout::new(keys, bytes).expect_err("refused");
            assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
            let text = error.to_string();
            let numbers = format!("of {keys} keys with {bytes} bytes");
            assert!(text.contains(&numbers) && text.ends_with(words), "{text}");
        }
    }
}
