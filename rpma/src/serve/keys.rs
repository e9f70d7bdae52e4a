//! The memory and the connection of each key.
//!
//! An admission compares its part with those of all other keys. Two indices answer that, whatever
//! the number of keys: each key has a Peer of its own, and the parts that a client may write are
//! disjoint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::Client;
use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::peer::{Peer, PeerKey};
use crate::pmem::PmemMap;

/// Parts begin and end at multiples of a cache line: making the bytes of one client durable touches
/// no bytes of another one.
pub(super) const ALIGN: usize = 64;

/// The memory of a client, of one admission.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) peer: &'a Peer,
    pub(super) region: &'a Arc<Mr<PmemMap>>,
    pub(super) data: &'a [u8],
}

/// The domain of trust of a key, its registered memory, and its connection.
#[derive(Debug)]
pub(super) struct Key {
    peer: Peer,
    /// `None` if it was deregistered without success: the device may still use the memory.
    region: Option<Arc<Mr<PmemMap>>>,
    addresses: Range<usize>,
    pub(super) state: KeyState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    /// Its connection, and the time by which that is established, if it is not.
    Connected(Client, Option<Instant>),
    /// It has no queue pair.
    Idle,
    /// Its queue pair may still write to the region.
    NotCutOff,
}

#[derive(Debug, Default)]
pub(super) struct Keys {
    by_key: BTreeMap<u64, Key>,
    by_client: BTreeMap<Client, u64>,
    by_peer: BTreeMap<PeerKey, u64>,
    /// The parts that are not idle, by their first address: the end of each, and its key.
    in_use: BTreeMap<usize, (usize, u64)>,
}

impl Keys {
    pub(super) fn get(&self, key: u64) -> Option<&Key> {
        self.by_key.get(&key)
    }

    pub(super) fn key_of(&self, client: Client) -> Option<u64> {
        self.by_client.get(&client).copied()
    }

    pub(super) fn client(&self, key: u64) -> Option<Client> {
        match self.get(key)?.state {
            KeyState::Connected(client, _) => Some(client),
            _ => None,
        }
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = Client> + '_ {
        self.by_client.keys().copied()
    }

    pub(super) fn connected(&self) -> usize {
        self.by_client.len()
    }

    pub(super) fn is_cut_off(&self, key: u64) -> bool {
        self.get(key)
            .is_none_or(|key| key.state != KeyState::NotCutOff)
    }

    /// Refuses a part that this key must not have. `directory` is that of its addresses.
    pub(super) fn check(
        &self,
        key: u64,
        part: &Part<'_>,
        directory: Option<Range<usize>>,
    ) -> Result<()> {
        if !part.region.is_of(part.peer) {
            return Err(Error::invalid(
                "the region of the part is registered with another Peer than the part's",
            ));
        }
        let own = addresses(part.region);
        if own.start % ALIGN != 0 || own.len() % ALIGN != 0 {
            return Err(Error::invalid(format!(
                "the part has {} bytes at {:#x}: it must begin and end at multiples of {ALIGN}, \
                 the length of a cache line",
                own.len(),
                own.start
            )));
        }
        let overlaps = |other: &Range<usize>| own.start < other.end && other.start < own.end;
        if directory.as_ref().is_some_and(overlaps) {
            return Err(Error::invalid(
                "the part overlaps the memory of the directory, which no client may write",
            ));
        }
        if let Some(other) = self.by_peer.get(&part.peer.key()).filter(|of| **of != key) {
            return Err(Error::invalid(format!(
                "the key {other:#x} has the same Peer as this part, so its client could write to \
                 this part: make a Peer for each key (Server::release ends a key's use of its Peer)"
            )));
        }
        let before_end = self.in_use.range(..own.end).rev();
        let overlapping = before_end.take_while(|(_, (end, _))| own.start < *end);
        if let Some(other) = overlapping.map(|(_, (_, of))| of).find(|of| **of != key) {
            return Err(Error::invalid(format!(
                "the part overlaps that of the key {other:#x}, which has a connection"
            )));
        }
        Ok(())
    }

    fn insert(&mut self, key: u64, entry: Key) {
        self.remove(key);
        self.by_peer.insert(entry.peer.key(), key);
        if entry.state != KeyState::Idle {
            let Range { start, end } = entry.addresses;
            self.in_use.insert(start, (end, key));
        }
        self.by_key.insert(key, entry);
    }

    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.by_key.remove(&key) {
            self.by_peer.remove(&entry.peer.key());
            if entry.state != KeyState::Idle {
                self.in_use.remove(&entry.addresses.start);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        key: u64,
        part: &Part<'_>,
        (client, by): (Client, Option<Instant>),
    ) {
        let entry = Key {
            peer: part.peer.clone(),
            region: Some(Arc::clone(part.region)),
            addresses: addresses(part.region),
            state: KeyState::Connected(client, by),
        };
        self.insert(key, entry);
        self.by_client.insert(client, key);
    }

    /// Its connection is established. Returns the time by which it had to be.
    pub(super) fn established(&mut self, client: Client) -> Option<Instant> {
        let key = self.key_of(client)?;
        match &mut self.by_key.get_mut(&key)?.state {
            KeyState::Connected(_, by) => by.take(),
            _ => None,
        }
    }

    /// The client is gone, and its queue pair destroyed or not. Returns the time by which it had to
    /// be established.
    pub(super) fn disconnect(&mut self, client: Client, is_cut_off: bool) -> Option<Instant> {
        let key = self.by_client.remove(&client)?;
        let entry = self.by_key.get_mut(&key)?;
        let next = if is_cut_off {
            self.in_use.remove(&entry.addresses.start);
            KeyState::Idle
        } else {
            KeyState::NotCutOff
        };
        match std::mem::replace(&mut entry.state, next) {
            KeyState::Connected(_, by) => by,
            _ => None,
        }
    }

    /// A queue pair of this part may be alive, and no client has it.
    pub(super) fn lost(&mut self, key: u64, part: &Part<'_>) {
        let entry = Key {
            peer: part.peer.clone(),
            region: Some(Arc::clone(part.region)),
            addresses: addresses(part.region),
            state: KeyState::NotCutOff,
        };
        self.insert(key, entry);
    }

    pub(super) fn region(&self, key: u64) -> Option<&Arc<Mr<PmemMap>>> {
        self.get(key)?.region.as_ref()
    }

    pub(super) fn release(&mut self, key: u64) -> Result<PmemMap> {
        let Some(entry) = self.by_key.get_mut(&key) else {
            return Err(Error::invalid(format!(
                "the server has no part of the key {key:#x}"
            )));
        };
        if let KeyState::Connected(..) = entry.state {
            return Err(Error::invalid(format!(
                "the key {key:#x} has a connection: cut it off first (Server::cut_off)"
            )));
        }
        let Some(region) = entry.region.take() else {
            return Err(Error::invalid(format!(
                "the region of the key {key:#x} could not be deregistered: end the program"
            )));
        };
        match Arc::try_unwrap(region) {
            Ok(region) => {
                let memory = region.dereg()?;
                self.remove(key);
                Ok(memory)
            }
            Err(region) => {
                entry.region = Some(region);
                Err(Error::invalid(format!(
                    "the region of the key {key:#x} has another owner: drop its other Arcs. A \
                     server of Server::listen keeps its parts, and Server::answer registers them \
                     again"
                )))
            }
        }
    }
}

fn addresses(region: &Mr<PmemMap>) -> Range<usize> {
    let start = region.get_ptr().addr();
    start..start.saturating_add(region.get_size())
}
