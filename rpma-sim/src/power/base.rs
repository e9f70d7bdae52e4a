//! [`Base`]: mappings of images that cost the pages in which an image differs from an earlier one.
//!
//! A file in memory has the bytes of one image, and never changes. The mapping of another image is
//! a private one of this file, in which the other pages are written. A shared file of the memory
//! itself would not do: a later store shows through private mappings.

#[cfg(not(miri))]
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(not(miri))]
use super::map::{File, Map, SMALL};
use super::memory::{Memory, Owner};
#[cfg(not(miri))]
use super::store::PAGE;
use super::store::Store;

/// Above so many pages that differ, a new file is made.
#[cfg(not(miri))]
const FEW: usize = 16;

/// The file of a memory's images. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Base(#[cfg(not(miri))] Arc<Mutex<Option<Arc<Frozen>>>>);

/// A file that never changes, and its bytes.
#[cfg(not(miri))]
#[derive(Debug)]
struct Frozen {
    file: File,
    store: Store,
}

impl Base {
    /// Maps an image.
    pub(crate) fn map(&self, store: &Store) -> Memory {
        #[cfg(not(miri))]
        if store.len() > SMALL {
            if let Some(map) = self.map_over_file(store) {
                return Memory::of(map, Owner::Image);
            }
        }
        Memory::new(store, Owner::Image)
    }

    /// `None` if there can be no file.
    #[cfg(not(miri))]
    fn map_over_file(&self, store: &Store) -> Option<Map> {
        let frozen = self.frozen(store)?;
        let mut map = Map::of_file(&frozen.file).ok()?;
        for number in store.differing(&frozen.store) {
            map.write(number * PAGE, store.page(number));
        }
        Some(map)
    }

    /// The file, or a new one if the image differs from it in many pages.
    #[cfg(not(miri))]
    fn frozen(&self, store: &Store) -> Option<Arc<Frozen>> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frozen) = &*place {
            let differing = store.differing(&frozen.store).len();
            if differing <= FEW.max(store.count() / 8) {
                return Some(Arc::clone(frozen));
            }
        }
        let frozen = Arc::new(Frozen {
            file: File::new(store).ok()?,
            store: store.clone(),
        });
        *place = Some(Arc::clone(&frozen));
        Some(frozen)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINE;
    use super::*;
    use crate::memory::{Part, copy};

    const LEN: usize = 64 * 4096;

    /// Promise: the mapping of an image has the image's bytes, whatever is written to others.
    #[test]
    fn mappings_of_images_are_apart() {
        let base = Base::default();
        let mut store = Store::zeros(LEN);
        for line in (0..LEN / LINE).step_by(100) {
            store.put(line, u64::MAX, &[1; LINE]);
        }
        let first = base.map(&store);
        let mut other = store.clone();
        other.put(7, u64::MAX, &[2; LINE]);
        other.put(100, u64::MAX, &[0; LINE]);
        let second = base.map(&other);
        assert_eq!(first.bytes(), store.to_vec());
        assert_eq!(second.bytes(), other.to_vec());
        // A program mends what it has mapped.
        let part = Part {
            address: first.as_ptr(),
            len: 8,
        };
        copy(&[9; 8], part);
        assert_eq!(base.map(&store).bytes(), store.to_vec());
        assert_eq!(second.bytes(), other.to_vec());
    }

    /// Promise: an image that has little in common with the file is right as well.
    #[test]
    fn an_image_that_differs_in_all_pages_is_mapped() {
        let base = Base::default();
        let map = |byte: u8| {
            let store = Store::new(&vec![byte; LEN]);
            assert_eq!(base.map(&store).bytes(), vec![byte; LEN]);
        };
        for byte in [1, 2, 0, 3] {
            map(byte);
        }
    }
}
