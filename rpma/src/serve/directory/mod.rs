//! [`Directory`]: the identity that a server keeps for each key.
//!
//! It owns its memory, which no client can write: see [`Directory`]'s own documentation. Dropping
//! it unmaps the memory and changes nothing in it.

mod line;

use std::collections::BTreeMap;
use std::ops::Range;

use self::line::{BEGUN, Entry, LINE, MAGIC, REMEDY, SLOT, Slot};
use crate::error::{Error, Result};
use crate::offer::Identity;
use crate::pmem::PmemMap;

/// The epoch and instance of each key, durable before a server accepts a client.
///
/// Never register the memory of a directory for clients: a client could write its own epoch there.
/// Map this memory apart from the clients' memory ([`PmemMap::open_range`]), or take a part of the
/// same map ([`PmemMap::part`]). [`Server`](super::Server) refuses a client's part that overlaps
/// the directory in the same map.
///
/// Use one directory with one server at a time. Nothing prevents two programs from writing to one
/// directory.
///
/// # Losses of power
///
/// After a loss of power, an update is there as a whole, or not at all. Each key has two lines of
/// 64 bytes, and an update writes the older one. The newer valid line counts. A new key is written
/// to both lines. So if the memory loses one line, the key still has the other one. If the memory
/// loses the newer line after an update, the key has its earlier epoch again.
///
/// A directory that is being made is marked before any other byte changes. So
/// [`open_or_create`](Self::open_or_create) recognises it after a loss of power, and makes it
/// again.
///
/// # Encoding
///
/// Little endian. The sums are FNV-1a with 64 bits.
///
/// | bytes | the header |
/// |---|---|
/// | 8 | `rpmadir` and a zero, written last; `rpmanew` and a zero while the directory is made |
/// | 4 | the version, 1 |
/// | 4 | the number of slots |
/// | 8 | the sum of these |
/// | 40 | zeros |
///
/// | bytes | each of the two lines of a slot |
/// |---|---|
/// | 8 | the number of the update, from 1 on; 0 in a line that was never written |
/// | 24 | key, epoch, instance |
/// | 8 | the sum of these and of the slot's index (u32) |
/// | 24 | zeros |
#[derive(Debug)]
pub struct Directory {
    memory: Option<PmemMap>,
    slots: u32,
    /// Free slots; the last one is used next. Only with memory.
    free: Vec<u32>,
    keys: BTreeMap<u64, Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    slot: u32,
    entry: Entry,
    /// The line that has the entry.
    line: usize,
}

impl Directory {
    /// Returns the number of bytes that a directory with `slots` slots needs.
    #[must_use]
    pub fn len_for(slots: u32) -> usize {
        LINE.saturating_add((slots as usize).saturating_mul(SLOT))
    }

    /// Opens the directory at the beginning of `memory`. In memory of zeros, this makes an empty
    /// directory for `slots` keys. A server calls this at each start.
    ///
    /// It also makes a directory again if a loss of power has interrupted its making. It never
    /// makes a directory over an existing one, so it forgets no epoch.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the directory has another number of slots, or if there is no
    /// directory and one of the first [`len_for`](Self::len_for) bytes is not zero. Otherwise as
    /// [`open`](Self::open) and [`create`](Self::create). No byte changes then, unless
    /// [`PmemMap::persist`] failed.
    pub fn open_or_create(memory: PmemMap, slots: u32) -> Result<Self> {
        check(&memory, slots)?;
        let header = read(&memory, 0)?;
        if header.starts_with(&MAGIC) {
            let has = line::slots(&header)?;
            if has != slots {
                return Err(Error::invalid(format!(
                    "the directory has {has} slots, and not {slots}: open it with Directory::open. \
                     For another number make one in other memory, and keep these identities there"
                )));
            }
            return Self::open(memory);
        }
        if !header.starts_with(&BEGUN) {
            for at in (0..Self::len_for(slots)).step_by(LINE) {
                if read(&memory, at)? != [0; LINE] {
                    return Err(Error::invalid(format!(
                        "the memory has no directory, and is not zero at {at} to {}: \
                         Directory::create makes a directory over these bytes",
                        at + LINE - 1
                    )));
                }
            }
        }
        Self::create(memory, slots)
    }

    /// Makes an empty directory, for `slots` keys, at the beginning of `memory`. It overwrites
    /// other bytes there.
    ///
    /// It refuses memory that has a directory, even a broken one. If a directory loses its epochs,
    /// a writer that was replaced can come back. To erase a directory deliberately, first call
    /// [`store_u64(0, 0)`](PmemMap::store_u64) on the memory.
    ///
    /// A loss of power before the call returns leaves the memory as it was, an empty directory, or
    /// one that is being made. [`open_or_create`](Self::open_or_create) makes the last one again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `slots` is 0, if the memory has fewer than
    /// [`len_for`](Self::len_for) bytes, if it begins at no multiple of 64, or if it has a
    /// directory. Otherwise as [`PmemMap::persist`].
    pub fn create(memory: PmemMap, slots: u32) -> Result<Self> {
        check(&memory, slots)?;
        if read(&memory, 0)?.starts_with(&MAGIC) {
            return Err(Error::invalid(
                "the memory has a directory already, and another one would forget its epochs: use \
                 Directory::open, or forget it first by PmemMap::store_u64(0, 0)",
            ));
        }
        let rest = LINE..Self::len_for(slots);
        memory.store_u64(0, u64::from_ne_bytes(BEGUN))?;
        memory.persist(..8)?;
        for at in rest.clone().step_by(LINE) {
            memory.write_at(at, &[0; LINE])?;
        }
        memory.persist(rest)?;
        let header = line::header(slots);
        memory.write_at(8, &header[8..])?;
        memory.persist(..LINE)?;
        // The directory is there from here on.
        memory.store_u64(0, u64::from_ne_bytes(MAGIC))?;
        memory.persist(..8)?;
        Ok(Self {
            memory: Some(memory),
            slots,
            free: (0..slots).rev().collect(),
            keys: BTreeMap::new(),
        })
    }

    /// Opens the directory at the beginning of `memory`, and completes the updates that a loss of
    /// power has interrupted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no directory, if it is one of another version, if it
    /// is longer than the memory, if a slot has two invalid lines, or if two slots have one key:
    /// the text has the remedy, and no byte has changed. Otherwise as [`PmemMap::persist`].
    pub fn open(memory: PmemMap) -> Result<Self> {
        check(&memory, 1)?;
        let slots = line::slots(&read(&memory, 0)?)?;
        check(&memory, slots)?;
        let mut directory = Self {
            memory: Some(memory),
            slots,
            free: Vec::new(),
            keys: BTreeMap::new(),
        };
        let mut torn = Vec::new();
        for slot in (0..slots).rev() {
            torn.extend(directory.read_slot(slot)?);
        }
        for kept in torn {
            let identity = kept.entry.identity;
            let kept = directory.updated(kept, identity)?;
            directory.keys.insert(identity.key, kept);
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
            free: Vec::new(),
            keys: BTreeMap::new(),
        }
    }

    /// Takes what a slot keeps. It returns it if one of the two lines is to be written again.
    fn read_slot(&mut self, slot: u32) -> Result<Option<Kept>> {
        let Some(memory) = &self.memory else {
            return Ok(None);
        };
        let lines = [read(memory, place(slot, 0))?, read(memory, place(slot, 1))?];
        let (kept, is_whole) = match Slot::decode(&lines, slot)? {
            Slot::Free => {
                self.free.push(slot);
                return Ok(None);
            }
            Slot::Kept {
                entry,
                line,
                is_whole,
            } => (Kept { slot, entry, line }, is_whole),
        };
        let key = kept.entry.identity.key;
        match self.keys.insert(key, kept) {
            None => Ok((!is_whole).then_some(kept)),
            Some(other) => Err(Error::invalid(format!(
                "the slots {slot} and {} of the directory both have the key {key:#x}: {REMEDY}",
                other.slot
            ))),
        }
    }

    /// Returns the number of keys for which the directory has room.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns whether the directory has no room for another key.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.keys.len() >= self.slots as usize
    }

    /// Returns the identity that is kept for a key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Identity> {
        self.keys.get(&key).map(|kept| kept.entry.identity)
    }

    /// Returns all identities, in the order of their keys. With them and [`keep`](Self::keep) a
    /// program fills a larger directory.
    pub fn identities(&self) -> impl Iterator<Item = Identity> + '_ {
        self.keys.values().map(|kept| kept.entry.identity)
    }

    /// Keeps an identity. The identity is durable when this call returns. The epoch of a key never
    /// decreases, and an epoch never changes its instance.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the key is 0, if the epoch is `u64::MAX` or lower than the
    /// kept one, if the kept epoch belongs to another instance, or if the directory is full.
    /// Otherwise as [`PmemMap::persist`]: then a restart may find either identity.
    pub fn keep(&mut self, identity: Identity) -> Result<()> {
        identity.check()?;
        let Identity { key, epoch, .. } = identity;
        let kept = match self.keys.get(&key).copied() {
            Some(kept) => {
                let now = kept.entry.identity;
                if now == identity {
                    return Ok(());
                }
                if epoch <= now.epoch {
                    return Err(Error::invalid(format!(
                        "the epoch {epoch} of the key {key:#x} is not above {}, which the directory \
                         keeps for another instance",
                        now.epoch
                    )));
                }
                self.updated(kept, identity)?
            }
            None => self.added(identity)?,
        };
        self.keys.insert(key, kept);
        Ok(())
    }

    fn updated(&self, kept: Kept, identity: Identity) -> Result<Kept> {
        let (entry, line) = self.update(kept.slot, kept.line, kept.entry, identity)?;
        Ok(Kept {
            slot: kept.slot,
            entry,
            line,
        })
    }

    fn added(&mut self, identity: Identity) -> Result<Kept> {
        if self.is_full() {
            return Err(Error::invalid(format!(
                "the directory is full: it has {} slots. Make a larger one in other memory, and \
                 keep these identities there",
                self.slots
            )));
        }
        let slot = self.free.last().copied().unwrap_or(0);
        let first = Entry {
            number: 1,
            identity,
        };
        self.write(slot, 0, &first)?;
        let (entry, line) = self.update(slot, 0, first, identity)?;
        self.free.pop();
        Ok(Kept { slot, entry, line })
    }

    /// Writes the other line of a slot, whose newer one this is. It returns the entry and its line.
    fn update(
        &self,
        slot: u32,
        line: usize,
        newer: Entry,
        identity: Identity,
    ) -> Result<(Entry, usize)> {
        // 2^64 updates do not happen.
        let number = newer.number.wrapping_add(1);
        let (entry, older) = (Entry { number, identity }, 1 - line);
        self.write(slot, older, &entry)?;
        Ok((entry, older))
    }

    /// Writes a line, and makes it durable.
    fn write(&self, slot: u32, line: usize, entry: &Entry) -> Result<()> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let at = place(slot, line);
        memory.write_at(at, &entry.encode(slot))?;
        memory.persist(at..at + LINE)
    }

    /// The addresses of its memory.
    pub(super) fn addresses(&self) -> Option<Range<usize>> {
        let memory = self.memory.as_ref()?;
        let start = memory.as_ptr().addr();
        Some(start..start.saturating_add(memory.len()))
    }
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

/// Where a line of a slot is.
fn place(slot: u32, line: usize) -> usize {
    LINE + slot as usize * SLOT + line * LINE
}

fn read(memory: &PmemMap, at: usize) -> Result<line::Bytes> {
    let mut bytes = [0; LINE];
    memory.read_at(at, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn identity(key: u64, epoch: u64, instance: u64) -> Identity {
        Identity {
            key,
            epoch,
            instance,
        }
    }

    fn invalid<T>(result: Result<T>) -> String {
        match result {
            Err(Error::InvalidArgument(text)) => text.into(),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it is refused"),
        }
    }

    /// A file with a page, and the directory in it can be opened again.
    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), [0; 4096]).expect("written");
        file
    }

    fn map(file: &tempfile::NamedTempFile) -> PmemMap {
        PmemMap::open(file.path(), 4096).expect("mapped")
    }

    /// Promise: (epoch, instance) of a key never goes back, also after the directory was opened
    /// again.
    #[test]
    fn an_identity_never_goes_back() {
        let file = file();
        let mut directory = Directory::create(map(&file), 2).expect("made");
        for _ in 0..2 {
            for (new, reason) in [
                (identity(0, 1, 1), "the key is 0"),
                (identity(7, u64::MAX, 1), "no writer could take over"),
            ] {
                let text = invalid(directory.keep(new));
                assert!(text.contains(reason), "{text}");
            }
            directory.keep(identity(7, 1, 1)).expect("new, or the same");
            directory.keep(identity(7, 1, 1)).expect("the same");
            for old in [identity(7, 1, 2), identity(7, 0, 1), identity(7, 0, 2)] {
                let text = invalid(directory.keep(old));
                assert!(text.contains("is not above 1"), "{text}");
            }
            directory = Directory::open(map(&file)).expect("opened");
        }
        directory.keep(identity(7, 5, 2)).expect("it takes over");
        directory.keep(identity(8, 0, 0)).expect("another key");
        let text = invalid(directory.keep(identity(9, 0, 0)));
        assert!(text.contains("is full: it has 2 slots"), "{text}");
        drop(directory);
        let directory = Directory::open(map(&file)).expect("opened");
        let kept: Vec<_> = directory.identities().collect();
        assert_eq!(kept, [identity(7, 5, 2), identity(8, 0, 0)]);
        assert!(directory.is_full() && directory.get(9).is_none());
    }

    /// Promise: a directory that cannot be trusted is an error, and a new key is in both lines.
    #[test]
    fn a_broken_directory_is_refused_with_the_reason() {
        let file = file();
        let text = invalid(Directory::open(map(&file)));
        assert!(text.contains("has no directory"), "{text}");
        let mut directory = Directory::create(map(&file), 3).expect("made");
        directory.keep(identity(7, 1, 1)).expect("kept");
        drop(directory);
        let good = fs::read(file.path()).expect("its bytes");
        let opened = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            fs::write(file.path(), &bytes).expect("written");
            Directory::open(map(&file))
        };
        let (first, second) = (place(0, 0), place(0, 1));
        for lost in [first, second] {
            let directory = opened(&|bytes| bytes[lost..lost + LINE].fill(0xFF));
            assert_eq!(
                directory.expect("one is left").get(7),
                Some(identity(7, 1, 1))
            );
            // The other one is written again.
            let again = fs::read(file.path()).expect("its bytes");
            let lines = [first, second].map(|at| {
                let line: line::Bytes = again[at..at + LINE].try_into().expect("64 bytes");
                line
            });
            let slot = Slot::decode(&lines, 0).expect("a slot");
            assert!(matches!(slot, Slot::Kept { is_whole: true, .. }));
        }
        let text = invalid(opened(&|bytes| {
            bytes[first + 3] ^= 1;
            bytes[second + 3] ^= 1;
        }));
        assert!(text.contains("slot 0 of the directory is broken"), "{text}");
        let text = invalid(opened(&|bytes| {
            let line = Entry {
                number: 1,
                identity: identity(7, 1, 1),
            };
            let at = place(2, 0);
            bytes[at..at + LINE].copy_from_slice(&line.encode(2));
        }));
        assert!(text.contains("both have the key 0x7"), "{text}");
        let text = invalid(opened(&|bytes| bytes[8] = 2));
        assert!(text.contains("has the version 2"), "{text}");
        let text = invalid(opened(&|bytes| {
            bytes[..LINE].copy_from_slice(&line::header(32));
        }));
        assert!(
            text.contains("has 4160 bytes, and the memory has 4096"),
            "{text}"
        );

        let part = map(&file).part(8..4096).expect("a part");
        let text = invalid(Directory::create(part, 1));
        assert!(text.contains("a multiple of 64"), "{text}");
        let text = invalid(Directory::create(map(&file), 0));
        assert!(text.contains("0 slots"), "{text}");
        let text = invalid(Directory::create(map(&file), 32));
        assert!(text.contains("has 4160 bytes"), "{text}");
    }

    /// Promise: a directory is opened where there is one, and made in memory of zeros and where the
    /// making was interrupted. Anything else is an error, and no byte changes.
    #[test]
    fn a_directory_is_opened_or_made() {
        let file = file();
        let contents = || fs::read(file.path()).expect("its bytes");
        let over = |bytes: &[u8]| {
            fs::write(file.path(), bytes).expect("written");
            Directory::open_or_create(map(&file), 3)
        };
        let mut directory = over(&[0; 4096]).expect("made");
        for key in [7, 8] {
            directory.keep(identity(key, 1, 1)).expect("kept");
        }
        drop(directory);
        let good = contents();
        let directory = over(&good).expect("opened");
        assert_eq!((directory.slots(), directory.keys.len()), (3, 2));
        assert!(contents() == good, "opening changes nothing");

        let end = Directory::len_for(3);
        let with = |bytes: &[u8], at: usize, new: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[at..at + new.len()].copy_from_slice(new);
            bytes
        };
        let begun = over(&with(&[0xFF; 4096], 0, &BEGUN)).expect("made again");
        assert!(begun.keys.is_empty() && contents()[end..] == [0xFF; 4096][end..]);
        over(&with(&[0; 4096], end, &[1])).expect("bytes behind it do not matter");

        // The key 8 has one line left, and would be written again.
        let torn = with(&good, place(1, 0), &[0; LINE]);
        for (bytes, reason) in [
            (with(&[0; 4096], 0, &[1]), "not zero at 0 to 63"),
            (with(&[0; 4096], 63, &[1]), "not zero at 0 to 63"),
            (with(&[0; 4096], end - 1, &[1]), "not zero at 384 to 447"),
            (with(&good, 0, &[0; LINE]), "not zero at 64 to 127"),
            (with(&good, 0, &[0; 8]), "Directory::create makes"),
            (with(&good, 8, &[2]), "has the version 2"),
            (with(&good, 0, &line::header(4)), "has 4 slots, and not 3"),
            (with(&good, 20, &[1]), "header of the directory is broken"),
            (with(&torn, 64, &[1; 2 * LINE]), "slot 0 of the directory"),
        ] {
            let text = invalid(over(&bytes));
            assert!(text.contains(reason), "{text}");
            assert!(contents() == bytes, "{reason}: no byte changes");
        }
    }

    /// Promise: no epoch is forgotten by the way. A directory, also a broken one, is made anew only
    /// after the program has forgotten it.
    #[test]
    fn a_directory_is_not_made_over_another_one() {
        let file = file();
        let mut directory = Directory::create(map(&file), 2).expect("made");
        directory.keep(identity(7, 1, 1)).expect("kept");
        drop(directory);
        for (at, byte) in [(100, 0), (8, 2), (20, 1)] {
            let mut bytes = fs::read(file.path()).expect("its bytes");
            bytes[at] = byte;
            fs::write(file.path(), &bytes).expect("written");
            let text = invalid(Directory::create(map(&file), 2));
            assert!(text.contains("forget it first by"), "{text}");
            assert!(fs::read(file.path()).expect("its bytes") == bytes);
        }
        let memory = map(&file);
        memory.store_u64(0, 0).expect("forgotten");
        let directory = Directory::create(memory, 2).expect("made");
        assert!(directory.get(7).is_none());
        drop(directory);
        let directory = Directory::open(map(&file)).expect("opened");
        assert!(directory.get(7).is_none());
    }

    /// Without memory the rules are the same.
    #[test]
    fn a_volatile_directory_has_the_same_rules() {
        let mut directory = Directory::volatile(1);
        directory.keep(identity(7, 1, 1)).expect("kept");
        invalid(directory.keep(identity(7, 1, 2)));
        invalid(directory.keep(identity(8, 1, 2)));
        directory.keep(identity(7, 2, 2)).expect("it takes over");
        assert_eq!(directory.get(7), Some(identity(7, 2, 2)));
        assert!(directory.addresses().is_none());
    }
}
