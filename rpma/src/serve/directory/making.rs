//! Making and opening a directory.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use super::header::{BEGUN, COPYING, Header, IDENTITY_AT, MAGIC};
use super::line::{Bytes, Entry, LINE, REMEDY, Slot, array};
use super::repair::Broken;
use super::tail::{Lowest, lowest_records};
use super::{Directory, KeyLines, Places, place, read, tail_of};
use crate::error::{Error, Result};
use crate::pmem::PmemMap;
use crate::verbs::random;

impl Directory {
    /// Opens the directory at the beginning of `memory`. In memory of zeros, this makes an empty
    /// directory for `slots` keys. A server calls this at each start, or
    /// [`Layout::open_directory`].
    ///
    /// It also makes a directory again if a loss of power has interrupted its making. It never
    /// makes a directory over an existing one, so it forgets no epoch.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the directory has another number of slots or a layout, or if
    /// there is no directory and one of the first [`len_for`](Self::len_for) bytes is not zero.
    /// Otherwise as [`open`](Self::open) and [`create`](Self::create). No byte changes then, unless
    /// [`PmemMap::persist`] failed.
    ///
    /// [`Layout::open_directory`]: crate::serve::Layout::open_directory
    pub fn open_or_create(memory: PmemMap, slots: u32) -> Result<Self> {
        Self::open_or_create_for(memory, slots, Places::default())
    }

    /// As [`open_or_create`](Self::open_or_create), with these places of the keys' memory.
    pub(in crate::serve) fn open_or_create_for(
        memory: PmemMap,
        slots: u32,
        places: Places,
    ) -> Result<Self> {
        if is_there(&memory, slots, places)? {
            return Self::open(memory);
        }
        check_zeros(&memory, slots, BEGUN)?;
        Self::create_for(memory, slots, places)
    }

    /// Makes an empty directory, for `slots` keys, at the beginning of `memory`. It overwrites
    /// other bytes there. It draws the identity of the memory at random.
    ///
    /// It refuses memory that has a directory, even a broken one. If a directory loses its epochs,
    /// a writer that was replaced can come back. To erase a directory deliberately, first call
    /// [`store_u64(0, 0)`](PmemMap::store_u64) on the memory.
    ///
    /// A loss of power before the call returns leaves the memory as it was, an empty directory, or
    /// a directory that is being made. [`open_or_create`](Self::open_or_create) makes the last one
    /// again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `slots` is 0, if the memory has fewer than
    /// [`len_for`](Self::len_for) bytes, if it begins at no multiple of 64, or if it has a
    /// directory. [`Error::Provider`] if `getrandom` fails. Otherwise as [`PmemMap::claim`].
    pub fn create(memory: PmemMap, slots: u32) -> Result<Self> {
        Self::create_for(memory, slots, Places::default())
    }

    fn create_for(memory: PmemMap, slots: u32, places: Places) -> Result<Self> {
        check(&memory, slots)?;
        memory.lock()?;
        if read(&memory, 0)?.starts_with(&MAGIC) {
            return Err(Error::invalid(
                "the memory has a directory already, and another one would forget its epochs: use \
                 Directory::open, or forget it first by PmemMap::store_u64(0, 0)",
            ));
        }
        let identity = make(&memory, slots, places, &Self::volatile(slots), BEGUN)?;
        memory.claim(tail_of(slots))?;
        Ok(Self {
            memory: Some(memory),
            slots,
            identity: Some(identity),
            free: (0..slots).rev().collect(),
            keys: BTreeMap::new(),
            broken: Broken::none(),
        })
    }

    /// Opens the directory at the beginning of `memory`, and completes the updates that a loss of
    /// power has interrupted.
    ///
    /// It takes the lock of the memory, and claims it ([`PmemMap::lock`], [`PmemMap::claim`]): one
    /// server for one memory. Both end with the last part of the map. A program that only looks at
    /// the identities also needs the lock.
    ///
    /// It then makes the bytes of the directory durable: an earlier program may have ended between
    /// a store and its write-back. So each identity that it finds is durable.
    ///
    /// A [broken slot](Self#broken-slots) is no error here.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no directory, if it is one of another version, if it
    /// is longer than the memory, or if two slots have one key: the text has the remedy, and no
    /// byte has changed. [`Error::Claimed`] and [`Error::Provider`] (`flock`) as
    /// [`PmemMap::claim`]: another server has the memory. Otherwise as [`PmemMap::persist`].
    pub fn open(memory: PmemMap) -> Result<Self> {
        check(&memory, 1)?;
        memory.lock()?;
        let header = Header::decode(&read(&memory, 0)?)?;
        let slots = header.slots;
        check(&memory, slots)?;
        // A wrong directory is refused before the claim writes its mark. It is read again afterwards,
        // because until then another server could have it.
        memory.check_claim(tail_of(slots))?;
        let mut directory = Self {
            memory: Some(memory),
            slots,
            identity: NonZeroU64::new(header.identity),
            free: Vec::new(),
            keys: BTreeMap::new(),
            broken: Broken::none(),
        };
        directory.read_slots()?;
        if let Some(memory) = &directory.memory {
            memory.claim(tail_of(slots))?;
            memory.persist(..Self::len_for(slots))?;
        }
        let given_up = directory.read_slots()?;
        for (slot, reason) in directory.broken_slots() {
            log::error!(
                "slot {slot} of the directory is broken: {reason}. Keys that are not in the directory are \
                 refused until Directory::give_up_slot"
            );
        }
        if let Some(epoch) = directory.read_lowest()? {
            directory.set_lowest_epoch(epoch)?;
        }
        for slot in given_up {
            directory.clear(slot)?;
            directory.free.push(slot);
        }
        let torn = directory.keys.values().filter(|kept| kept.is_unknown);
        for kept in torn.copied().collect::<Vec<_>>() {
            if let Some(identity) = kept.identity {
                // The other line has it.
                let kept = KeyLines {
                    is_unknown: false,
                    ..kept
                };
                directory.write_identity(kept, identity)?;
            }
        }
        Ok(directory)
    }

    /// Makes a directory without memory, for a server whose memory is volatile as well. After a
    /// restart it is empty.
    #[must_use]
    pub fn volatile(slots: u32) -> Self {
        Self {
            memory: None,
            slots,
            identity: None,
            free: Vec::new(),
            keys: BTreeMap::new(),
            broken: Broken::none(),
        }
    }

    /// Clears the mark of another server: the operator's word that this server has ended. Then
    /// [`open`](Self::open) succeeds. `memory` begins with a directory.
    ///
    /// Call it after [`Error::Claimed`], if the operator has seen the other server end. A server
    /// that is frozen, or whose container is paused, has not ended: its adapter still places its
    /// clients' writes, and two writers of one key would overwrite each other's records.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no directory, or if it is one of another version.
    /// Otherwise as [`PmemMap::forget_claim`].
    pub fn other_is_gone(memory: &PmemMap) -> Result<()> {
        check(memory, 1)?;
        let header = Header::decode(&read(memory, 0)?)?;
        check(memory, header.slots)?;
        memory.forget_claim(tail_of(header.slots))
    }

    /// Gives the memory a new identity, drawn at random, after its bytes were copied to another
    /// memory (`cp`, `dd`). Otherwise both memories have one identity, and a client refuses them as
    /// two copies. Call it for one of the two, in a program that opens the directory for this: the
    /// lock of the memory keeps servers out meanwhile.
    ///
    /// A copy of the memory of a running server has its mark as well ([`Error::Claimed`]): call
    /// [`other_is_gone`](Self::other_is_gone) for the copy first.
    ///
    /// ```no_run
    /// # fn renew(all: &rpma::pmem::PmemMap, layout: &rpma::serve::Layout) -> rpma::Result<()> {
    /// layout.open_directory(all)?.renew_identity()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`] for a directory without memory. [`Error::Provider`] if `getrandom`
    /// fails. Otherwise as [`PmemMap::persist`]: then a restart may find either identity.
    pub fn renew_identity(&mut self) -> Result<()> {
        let Some(memory) = &self.memory else {
            return Err(Error::not_supported(
                "a directory without memory has no identity",
            ));
        };
        let identity = new_identity()?;
        let bytes = u64::from_ne_bytes(identity.get().to_le_bytes());
        memory.store_u64(IDENTITY_AT, bytes)?;
        memory.persist(IDENTITY_AT..IDENTITY_AT + 8)?;
        self.identity = Some(identity);
        Ok(())
    }

    /// Takes the contents of all slots. Returns those that were given up and are to be cleared.
    fn read_slots(&mut self) -> Result<Vec<u32>> {
        self.free.clear();
        self.keys.clear();
        self.broken = Broken::none();
        let mut given_up = Vec::new();
        for slot in (0..self.slots).rev() {
            given_up.extend(self.read_slot(slot)?);
        }
        Ok(given_up)
    }

    /// As [`read_slots`](Self::read_slots), for one slot.
    fn read_slot(&mut self, slot: u32) -> Result<Option<u32>> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let lines = [read(memory, place(slot, 0))?, read(memory, place(slot, 1))?];
        let (entry, line, is_whole) = match Slot::decode(&lines, slot) {
            Slot::Free => {
                self.free.push(slot);
                return Ok(None);
            }
            Slot::GivenUp => return Ok(Some(slot)),
            Slot::Broken(reason) => {
                self.broken.add(slot, reason);
                return Ok(None);
            }
            Slot::Kept {
                entry,
                line,
                is_whole,
            } => (entry, line, is_whole),
        };
        let key = entry.identity.key;
        let kept = KeyLines {
            slot,
            identity: Some(entry.identity),
            number: entry.number,
            next: 1 - line,
            is_unknown: !is_whole,
        };
        match self.keys.insert(key, kept) {
            None => Ok(None),
            Some(other) => Err(Error::invalid(format!(
                "the slots {slot} and {} of the directory both have the key {key:#x}: {REMEDY}",
                other.slot
            ))),
        }
    }

    fn read_lowest(&mut self) -> Result<Option<u64>> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let tail: Bytes = read(memory, tail_of(self.slots))?;
        Ok(self.take_lowest(Lowest::decode(&tail)))
    }
}

/// Whether the memory has a directory for these slots and places. Another one is an error.
pub(super) fn is_there(memory: &PmemMap, slots: u32, places: Places) -> Result<bool> {
    check(memory, slots)?;
    memory.lock()?;
    let bytes = read(memory, 0)?;
    if !bytes.starts_with(&MAGIC) {
        return Ok(false);
    }
    let header = Header::decode(&bytes)?;
    places.check(&header.places)?;
    if header.slots != slots {
        return Err(Error::invalid(format!(
            "the directory has {} slots, and not {slots}: open it with Directory::open. For another \
             number make one in other memory, and keep these identities there",
            header.slots
        )));
    }
    Ok(true)
}

/// Refuses bytes over which no directory is made. `begun` is there after an interruption of the
/// same work.
pub(super) fn check_zeros(memory: &PmemMap, slots: u32, begun: [u8; 8]) -> Result<()> {
    match array(&read(memory, 0)?, 0) {
        found if found == begun => return Ok(()),
        COPYING => {
            return Err(Error::invalid(
                "keys are being copied to this memory, and the copy is not complete: repeat \
                 Layout::copy_to",
            ));
        }
        _ => {}
    }
    for at in (0..Directory::len_for(slots)).step_by(LINE) {
        if read(memory, at)? != [0; LINE] {
            return Err(Error::invalid(format!(
                "the memory has no directory, and is not zero at {at} to {}. If its directory is \
                 damaged: {REMEDY}. If it never had one: write zeros over these bytes first",
                at + LINE - 1
            )));
        }
    }
    Ok(())
}

/// Writes a directory with the keys and the lowest epoch of `contents`. It is there when the call
/// returns, and not at all before: until then the memory begins with `begun`. Returns the identity
/// of the memory, a new one.
pub(super) fn make(
    memory: &PmemMap,
    slots: u32,
    places: Places,
    contents: &Directory,
    begun: [u8; 8],
) -> Result<NonZeroU64> {
    let identity = new_identity()?;
    let rest = LINE..Directory::len_for(slots);
    memory.store_u64(0, u64::from_ne_bytes(begun))?;
    memory.persist(..8)?;
    for at in rest.clone().step_by(LINE) {
        memory.write_at(at, &[0; LINE])?;
    }
    for (slot, identity) in (0..).zip(contents.identities()) {
        for line in 0..2 {
            let number = line as u64 + 1;
            let entry = Entry { number, identity };
            memory.write_at(place(slot, line), &entry.encode(slot))?;
        }
    }
    for (at, record) in lowest_records(contents.lowest_epoch().unwrap_or(0)) {
        if contents.lowest_epoch() != Some(0) {
            memory.write_at(tail_of(slots) + at, &record)?;
        }
    }
    memory.persist(rest)?;
    let header = Header {
        slots,
        places,
        identity: identity.get(),
    };
    memory.write_at(8, &header.encode()[8..])?;
    memory.persist(..LINE)?;
    // The directory is there from here on.
    memory.store_u64(0, u64::from_ne_bytes(MAGIC))?;
    memory.persist(..8)?;
    Ok(identity)
}

fn new_identity() -> Result<NonZeroU64> {
    let number = random()?;
    Ok(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
}

fn check(memory: &PmemMap, slots: u32) -> Result<()> {
    let (len, needed) = (memory.len(), Directory::len_for(slots));
    if slots == 0 {
        return Err(Error::invalid(
            "a directory of 0 slots: it must have at least 1",
        ));
    }
    if len < needed {
        return Err(Error::invalid(format!(
            "a directory of {slots} slots has {needed} bytes, and the memory has {len}"
        )));
    }
    match memory.as_ptr().addr() % LINE {
        0 => Ok(()),
        _ => Err(Error::invalid(
            "the memory of a directory must begin at a multiple of 64, the length of a cache line",
        )),
    }
}
