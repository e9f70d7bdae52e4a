//! [`Directory`]: the identity that a server keeps for each key.
//!
//! It owns its memory, which no client can write: see [`Directory`]'s own documentation. Dropping
//! it unmaps the memory and changes no identity in it.

// `making.rs` makes and opens a directory. `copying.rs` copies it to other memory.
// `repair.rs` ends broken slots. `header.rs`, `line.rs` and `tail.rs` have the bytes.

mod copying;
#[cfg(test)]
mod failed;
mod header;
mod line;
mod making;
mod repair;
#[cfg(any(test, fuzzing))]
mod sums;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;

use rustix::param::page_size;

pub(super) use self::header::Places;
use self::line::{Entry, LINE, SLOT};
use self::repair::Broken;
use crate::error::{Error, Result};
use crate::offer::Identity;
use crate::pmem::PmemMap;
use crate::site::{self, Site};

/// The epoch and instance of each key, durable before a server accepts a client.
///
/// Never register the memory of a directory for clients: a client could write its own epoch there.
/// Map this memory apart from the clients' memory ([`PmemMap::open_range`]), or take a part of the
/// same map ([`PmemMap::part`]). [`Server`](super::Server) refuses a client's part that overlaps
/// the directory in the same map.
///
/// One directory has one server at a time. Opening or making it takes the lock of the memory, and
/// marks the memory as that of this program: [`open`](Self::open).
///
/// # Losses of power
///
/// After a loss of power, an update is there as a whole, or not at all. Each key has two lines of
/// 64 bytes, and an update writes the older one. The newer valid line counts. A new key is written
/// to both lines. So if the memory loses one line, the key still has the other one. If the memory
/// loses the newer line after an update, the key has its earlier epoch again.
///
/// # Failed writes
///
/// If a write-back fails, the bytes of that page are unknown: the memory may have the earlier line
/// or the new one. Linux marks such a page as clean, so the next `msync` succeeds without a write.
/// The next [`keep`](Self::keep) of a key with a line in such a page writes both its lines again,
/// even for the identity that the key already has.
///
/// # Broken slots
///
/// A slot is broken if the memory has lost both its lines. The directory then refuses every key
/// that it does not have, because that key [may be the lost
/// one](crate::guide::persistence#a-directory-that-has-lost-a-slot).
/// [`broken_slots`](Self::broken_slots) lists these slots, and
/// [`give_up_slot`](Self::give_up_slot) ends this state.
///
/// # Encoding
///
/// Little endian. The sums are FNV-1a with 64 bits.
///
/// | bytes | the header |
/// |---|---|
/// | 8 | `rpmadir` and a zero, written last; `rpmanew` and a zero while the directory is made; `rpmacpy` and a zero while keys are copied |
/// | 4 | the version, 2 |
/// | 4 | the number of slots |
/// | 8 | the sum of the 16 bytes before it, with 1 as the version |
/// | 24 | the layout: the offset of the first key's part, the length of each part, and their number, u64 each; zeros without a layout |
/// | 8 | the identity of the memory, a random number; it is in no sum, and one store changes it |
/// | 8 | the sum of the first 48 bytes |
///
/// | bytes | each of the two lines of a slot |
/// |---|---|
/// | 8 | the number of the update, from 1 on; 0 in a line that was never written |
/// | 24 | key, epoch, instance |
/// | 8 | the sum of these and of the slot's index (u32) |
/// | 8 | zeros; `given up` in the first line while the slot is given up |
/// | 16 | zeros |
///
/// | bytes | the line after the slots |
/// |---|---|
/// | 32 | the mark of the server that has the memory ([`PmemMap::claim`]) |
/// | 16 each | two records of the lowest epoch of new keys: the epoch, and the sum of `lowest` and the epoch |
///
/// A directory of another version is refused, with both numbers.
#[derive(Debug)]
pub struct Directory {
    memory: Option<PmemMap>,
    slots: u32,
    identity: Option<NonZeroU64>,
    /// Free slots; the last one is used next. Only with memory.
    free: Vec<u32>,
    keys: BTreeMap<u64, KeyLines>,
    broken: Broken,
}

/// A slot that has a key.
#[derive(Clone, Copy, Debug)]
struct KeyLines {
    slot: u32,
    /// `None`: the key is new, and a write of its first line failed.
    identity: Option<Identity>,
    /// The highest number of an update that was written, or may be there.
    number: u64,
    /// The line that the next update writes: the older one, or that of a failed update.
    next: usize,
    /// Whether both lines are to be written: the slot is new, or a write-back of its page failed.
    is_unknown: bool,
}

/// The reason why a directory does not keep an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The kept epoch is higher.
    OldEpoch { kept: u64 },
    /// The kept epoch is the same, and belongs to another instance.
    Taken { kept: u64 },
    /// The directory has no room for another key.
    Full { slots: u32 },
    /// A new key may be that of this broken slot. `None`: the memory has lost the lowest epoch.
    MayBeLost { slot: Option<u32> },
    /// The epoch of a new key is below the lowest one, after a slot was given up.
    BelowLowest { lowest: u64 },
}

impl Directory {
    /// Returns the number of bytes that a directory with `slots` slots needs.
    #[must_use]
    pub fn len_for(slots: u32) -> usize {
        (2 * LINE).saturating_add((slots as usize).saturating_mul(SLOT))
    }

    /// Returns the number of keys for which the directory has room.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns whether the directory has no room for another key.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.keys.len() + self.broken.slots().len() >= self.slots as usize
    }

    /// Returns the identity that is kept for a key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Identity> {
        self.keys.get(&key)?.identity
    }

    /// Returns all identities, in the order of their keys.
    /// [`Layout::copy_to`](super::Layout::copy_to) copies them to another memory.
    pub fn identities(&self) -> impl Iterator<Item = Identity> + '_ {
        self.keys.values().filter_map(|kept| kept.identity)
    }

    /// Keeps an identity. The identity is durable when this call returns. The epoch of a key never
    /// decreases, and an epoch never changes its instance.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the key is 0, if the epoch is `u64::MAX` or lower than the
    /// kept one, or if the kept epoch belongs to another instance. The same for a new key if the
    /// directory is full, if a slot is [broken](Self#broken-slots), or if the epoch is below
    /// [`lowest_epoch`](Self::lowest_epoch).
    /// Otherwise as [`PmemMap::persist`]: then a restart may find either identity, and the call may
    /// be repeated, with this identity or with another one.
    pub fn keep(&mut self, identity: Identity) -> Result<()> {
        identity.check()?;
        let denied = |denied: Denied| Error::invalid(denied.for_identity(&identity));
        let now = self.judge(&identity).map_err(denied)?;
        let kept = match self.keys.get(&identity.key) {
            Some(kept) if now == Some(identity) && !kept.is_unknown => return Ok(()),
            Some(kept) => *kept,
            None => KeyLines::new(self.free_slot()?),
        };
        self.write_identity(kept, identity)
    }

    /// Whether this identity may be kept now. Returns the one that is kept for its key.
    pub(super) fn judge(&self, identity: &Identity) -> Result<Option<Identity>, Denied> {
        let Some(slot) = self.keys.get(&identity.key) else {
            self.broken.judge_new(identity.epoch)?;
            return if self.is_full() {
                Err(Denied::Full { slots: self.slots })
            } else {
                Ok(None)
            };
        };
        match slot.identity {
            None => self.broken.judge_new(identity.epoch)?,
            Some(kept) if identity.epoch < kept.epoch => {
                return Err(Denied::OldEpoch { kept: kept.epoch });
            }
            Some(kept) if identity.epoch == kept.epoch && identity.instance != kept.instance => {
                return Err(Denied::Taken { kept: kept.epoch });
            }
            Some(_) => {}
        }
        Ok(slot.identity)
    }

    /// Takes a free slot. Without memory all keys have the same one.
    fn free_slot(&mut self) -> Result<u32> {
        match &self.memory {
            None => Ok(0),
            Some(_) => self.free.pop().ok_or_else(|| {
                Error::invalid("the directory counts a free slot, and has none in its list")
            }),
        }
    }

    /// Writes the next line of a slot, or both lines if they are unknown.
    ///
    /// The line of a failed update comes first: until it is durable, the other line has the
    /// identity from before that update, which is never the higher one of two that contradict each
    /// other.
    fn write_identity(&mut self, mut kept: KeyLines, identity: Identity) -> Result<()> {
        let lines = if kept.is_unknown { 2 } else { 1 };
        for _ in 0..lines {
            // 2^64 updates do not happen.
            kept.number = kept.number.wrapping_add(1);
            let number = kept.number;
            let at = place(kept.slot, kept.next);
            let line = Entry { number, identity }.encode(kept.slot);
            if let Err(error) = self.write(at, &line) {
                kept.is_unknown = true;
                self.keys.insert(identity.key, kept);
                self.doubt_page_of(at..at + LINE);
                return Err(error);
            }
            kept.identity = Some(identity);
            kept.next = 1 - kept.next;
        }
        kept.is_unknown = false;
        self.keys.insert(identity.key, kept);
        Ok(())
    }

    /// Writes bytes at this offset, and makes them durable.
    fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        memory.write_at(at, bytes)?;
        memory.persist(at..at + bytes.len())
    }

    /// The write-back of these bytes failed: all slots of the page are unknown.
    fn doubt_page_of(&mut self, range: Range<usize>) {
        let Some(memory) = &self.memory else {
            return;
        };
        let (base, page) = (memory.as_ptr().addr(), page_size());
        let start = (base + range.start) / page * page;
        let end = (base + range.end).next_multiple_of(page);
        for kept in self.keys.values_mut() {
            let slot = base + place(kept.slot, 0);
            kept.is_unknown |= slot < end && start < slot + SLOT;
        }
    }

    /// Returns the identities of its memory and of this host. The identity of the memory is the
    /// random number of the header. A directory without memory has only that of the host.
    #[must_use]
    pub fn site(&self) -> Site {
        Site {
            memory: self.identity.map(site::of_directory),
            host: match &self.memory {
                Some(memory) => memory.host(),
                None => site::this_host(),
            },
            ..Site::default()
        }
    }

    pub(super) fn addresses(&self) -> Option<Range<usize>> {
        let memory = self.memory.as_ref()?;
        let start = memory.as_ptr().addr();
        Some(start..start.saturating_add(memory.len()))
    }
}

impl KeyLines {
    /// A slot without a key, whose first line is written first.
    fn new(slot: u32) -> Self {
        Self {
            slot,
            identity: None,
            number: 0,
            next: 0,
            is_unknown: true,
        }
    }
}

impl Denied {
    fn for_identity(&self, identity: &Identity) -> String {
        let Identity { key, epoch, .. } = identity;
        match self {
            Self::OldEpoch { kept } | Self::Taken { kept } => format!(
                "the epoch {epoch} of the key {key:#x} is not above {kept}, which the directory \
                 keeps for another instance"
            ),
            Self::Full { slots } => format!(
                "the directory is full: it has {slots} slots. Make a larger one in other memory, \
                 and keep these identities there"
            ),
            Self::MayBeLost { .. } | Self::BelowLowest { .. } => {
                format!("the key {key:#x} is not in the directory, and {self}")
            }
        }
    }
}

/// The words about a new key, for the client as well.
impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldEpoch { kept } => {
                write!(f, "a writer with the epoch {kept} has taken over")
            }
            Self::Taken { kept } => write!(f, "the epoch {kept} belongs to another writer"),
            Self::Full { .. } => f.write_str("the server has no room for another key"),
            Self::MayBeLost { slot: Some(slot) } => write!(
                f,
                "may be that of the broken slot {slot}: Directory::give_up_slot ends this"
            ),
            Self::MayBeLost { slot: None } => f.write_str(
                "cannot be judged, because the lowest epoch of new keys is lost: \
                 Directory::set_lowest_epoch ends this",
            ),
            Self::BelowLowest { lowest } => write!(
                f,
                "has an epoch below {lowest}, the lowest one for keys that the directory does not have"
            ),
        }
    }
}

fn place(slot: u32, line: usize) -> usize {
    LINE + slot as usize * SLOT + line * LINE
}

/// The offset of the line after the slots.
fn tail_of(slots: u32) -> usize {
    place(slots, 0)
}

fn read(memory: &PmemMap, at: usize) -> Result<line::Bytes> {
    let mut bytes = [0; LINE];
    memory.read_at(at, &mut bytes)?;
    Ok(bytes)
}
