//! Broken slots, and the lowest epoch of keys that the directory does not have.

use std::collections::BTreeMap;

use super::line::{GIVEN_UP, GIVEN_UP_AT, LINE};
use super::tail::{Lowest, lowest_records};
use super::{Denied, Directory, place, tail_of};
use crate::error::{Error, Result};

/// The slots whose keys are lost, and the lowest epoch of new keys.
#[derive(Debug, Default)]
pub(super) struct Broken {
    /// Each broken slot, with the reason.
    slots: BTreeMap<u32, &'static str>,
    /// `None`: the memory has lost it.
    lowest: Option<u64>,
}

impl Broken {
    /// No slot is broken, and none was given up.
    pub(super) fn none() -> Self {
        Self::with_lowest(Some(0))
    }

    pub(super) fn with_lowest(lowest: Option<u64>) -> Self {
        Self {
            slots: BTreeMap::new(),
            lowest,
        }
    }

    pub(super) fn add(&mut self, slot: u32, reason: &'static str) {
        self.slots.insert(slot, reason);
    }

    pub(super) fn slots(&self) -> &BTreeMap<u32, &'static str> {
        &self.slots
    }

    /// Whether a key that the directory does not have may be kept with this epoch.
    pub(super) fn judge_new(&self, epoch: u64) -> Result<(), Denied> {
        if let Some((&slot, _)) = self.slots.first_key_value() {
            return Err(Denied::MayBeLost { slot: Some(slot) });
        }
        match self.lowest {
            None => Err(Denied::MayBeLost { slot: None }),
            Some(lowest) if epoch < lowest => Err(Denied::BelowLowest { lowest }),
            Some(_) => Ok(()),
        }
    }
}

impl Directory {
    /// Returns the broken slots, with the reason of each. While there is one, the directory refuses
    /// every key that it does not have.
    pub fn broken_slots(&self) -> impl Iterator<Item = (u32, &'static str)> + '_ {
        let slots = self.broken.slots.iter();
        slots.map(|(slot, reason)| (*slot, *reason))
    }

    /// Returns the lowest epoch that a key needs if the directory does not have this key. It is 0
    /// if no slot was ever given up. `None`: the memory has lost the number, and the directory
    /// refuses such keys ([`set_lowest_epoch`](Self::set_lowest_epoch)).
    #[must_use]
    pub fn lowest_epoch(&self) -> Option<u64> {
        self.broken.lowest
    }

    /// Gives up a broken slot: the operator's word that no writer with an epoch below
    /// `lowest_epoch` may still write to the key that the slot kept. When the call returns, it is
    /// durable. The slot is free then, and other slots are as broken as before.
    ///
    /// Choose an epoch above every epoch that the lost key may have had. From then on it is the
    /// [lowest epoch](Self::lowest_epoch) of each key that the directory does not have, because
    /// the lost key cannot be distinguished from a new one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the slot is not broken, or as
    /// [`set_lowest_epoch`](Self::set_lowest_epoch). Otherwise as
    /// [`PmemMap::persist`](crate::pmem::PmemMap::persist): the slot is still broken, and the call
    /// may be repeated.
    pub fn give_up_slot(&mut self, slot: u32, lowest_epoch: u64) -> Result<()> {
        if !self.broken.slots.contains_key(&slot) {
            let broken: Vec<_> = self.broken.slots.keys().collect();
            return Err(Error::invalid(format!(
                "the slot {slot} of the directory is not broken; the broken slots are {broken:?}"
            )));
        }
        self.set_lowest_epoch(lowest_epoch)?;
        let at = place(slot, 0) + GIVEN_UP_AT;
        self.write_word(at, GIVEN_UP)?;
        self.clear(slot)?;
        self.broken.slots.remove(&slot);
        self.free.push(slot);
        Ok(())
    }

    /// Sets the lowest epoch of keys that the directory does not have. When the call returns, it is
    /// durable. [`give_up_slot`](Self::give_up_slot) calls this. Call it by itself if the memory
    /// has lost the number ([`lowest_epoch`](Self::lowest_epoch)).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for `u64::MAX`, which no key may have, and for a number below the
    /// present one. Otherwise as [`PmemMap::persist`](crate::pmem::PmemMap::persist): then a
    /// restart may find either number, and the call may be repeated.
    pub fn set_lowest_epoch(&mut self, epoch: u64) -> Result<()> {
        if epoch == u64::MAX {
            return Err(Error::invalid(
                "the lowest epoch is 2^64-1, which no key may have",
            ));
        }
        match self.broken.lowest {
            Some(lowest) if epoch < lowest => {
                return Err(Error::invalid(format!(
                    "the lowest epoch {epoch} is below the present one, {lowest}: it never \
                     decreases"
                )));
            }
            _ => {}
        }
        for (at, record) in lowest_records(epoch) {
            let at = tail_of(self.slots) + at;
            self.write_or_doubt(at, &record)?;
        }
        self.broken.lowest = Some(epoch);
        Ok(())
    }

    /// Zeroes a slot that was given up. The word that shows this is last, because without it the
    /// rest of a line could be valid again.
    pub(super) fn clear(&mut self, slot: u32) -> Result<()> {
        let (first, second) = (place(slot, 0), place(slot, 1));
        let shown = first + GIVEN_UP_AT;
        for range in [second..second + LINE, first..shown, shown + 8..second] {
            self.write_or_doubt(range.start, &[0; LINE][..range.len()])?;
        }
        self.write_word(shown, [0; 8])
    }

    fn write_word(&mut self, at: usize, word: [u8; 8]) -> Result<()> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let stored = memory.store_u64(at, u64::from_ne_bytes(word));
        let stored = stored.and_then(|()| memory.persist(at..at + 8));
        if stored.is_err() {
            self.doubt_page_of(at..at + 8);
        }
        stored
    }

    fn write_or_doubt(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let written = self.write(at, bytes);
        if written.is_err() {
            self.doubt_page_of(at..at + bytes.len());
        }
        written
    }

    /// Takes the lowest epoch from the tail. Returns it if one of its records is to be written
    /// again.
    pub(super) fn take_lowest(&mut self, found: Lowest) -> Option<u64> {
        match found {
            Lowest::Lost => {
                self.broken.lowest = None;
                None
            }
            Lowest::Epoch { epoch, is_whole } => {
                self.broken.lowest = Some(epoch);
                (!is_whole && epoch != 0).then_some(epoch)
            }
        }
    }
}
