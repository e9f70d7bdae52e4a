//! Copying a directory, and the memory of its keys, to a memory with another layout.

use super::Directory;
use super::header::{COPYING, MAGIC};
use super::making::{check_zeros, is_there, make};
use crate::error::{Error, Result};
use crate::pmem::PmemMap;
use crate::serve::Layout;

/// The bytes that are copied at a time.
const STEP: usize = 1 << 20;

impl Directory {
    /// As [`Layout::copy_to`], which has checked the lengths.
    ///
    /// The target is marked first, and its directory is made last. Until then it is refused by
    /// servers, and a copy that was interrupted can be repeated.
    pub(in crate::serve) fn copy(
        (source, from): (&PmemMap, &Layout),
        (target, to): (&PmemMap, &Layout),
    ) -> Result<()> {
        let memory = source.part(from.directory())?;
        if !is_there(&memory, from.keys(), from.places())? {
            return Err(Error::invalid("the source of the copy has no directory"));
        }
        let kept = Self::open(memory)?;
        kept.check_whole()?;
        let parts = kept.identities().map(|of| from.both_parts(to, of.key));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let directory = target.part(to.directory())?;
        directory.lock()?;
        let mut magic = [0; MAGIC.len()];
        directory.read_at(0, &mut magic)?;
        if magic == MAGIC {
            return Err(Error::invalid(
                "the target of the copy has a directory already: the copy is complete, or the \
                 memory has other keys",
            ));
        }
        check_zeros(&directory, to.keys(), COPYING)?;
        directory.store_u64(0, u64::from_ne_bytes(COPYING))?;
        directory.persist(..COPYING.len())?;
        let mut bytes = vec![0; STEP];
        for (old, new) in parts {
            for at in (0..old.len()).step_by(STEP) {
                let bytes = &mut bytes[..STEP.min(old.len() - at)];
                source.read_at(old.start + at, bytes)?;
                target.write_at(new.start + at, bytes)?;
            }
            target.persist(new.start..new.start + old.len())?;
        }
        make(&directory, to.keys(), to.places(), &kept, COPYING).map(drop)
    }

    /// Refuses a directory that has lost a key or the lowest epoch: a copy would forget that.
    fn check_whole(&self) -> Result<()> {
        let broken: Vec<_> = self.broken_slots().map(|(slot, _)| slot).collect();
        match (&broken[..], self.lowest_epoch()) {
            ([], Some(_)) => Ok(()),
            ([], None) => Err(Error::invalid(
                "the source of the copy has lost the lowest epoch of new keys: call \
                 Directory::set_lowest_epoch for it first",
            )),
            (broken, _) => Err(Error::invalid(format!(
                "the slots {broken:?} of the source of the copy are broken: call \
                 Directory::give_up_slot for each of them first"
            ))),
        }
    }
}
