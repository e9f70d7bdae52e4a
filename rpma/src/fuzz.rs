//! Promises about bytes that a stranger sends: each decoder, with the property that holds for any
//! bytes. The targets in `fuzz/` give them bytes that a fuzzer makes, and a test those of the corpus
//! in the repository. So a property is written once, beside code that it may look into.
//!
//! All of them: no panic; decoded bytes encode to the same ones; refused bytes change nothing.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::commit::check_request;
use crate::mr::DESCRIPTOR_SIZE;
use crate::offer::Offer;
use crate::peer_cfg::PeerCfg;
use crate::pmem::PmemMap;
use crate::refusal::Refusal;
use crate::serve::Directory;
use crate::{Identity, MrRemote};

/// A region's descriptor. Its slices are inside of it.
pub fn descriptor(bytes: &[u8]) {
    let Ok(remote) = MrRemote::from_descriptor(bytes) else {
        return;
    };
    assert_eq!(remote.to_descriptor(), bytes[..DESCRIPTOR_SIZE]);
    let size = remote.get_size();
    let all = remote.slice(..).expect("all of it");
    assert_eq!(all.len(), size);
    assert!(remote.slice(size - 1..size).is_ok());
    assert!(size == u64::MAX || remote.slice(..=size).is_err());
}

/// The descriptor of a peer's configuration.
pub fn peer_cfg(bytes: &[u8]) {
    match PeerCfg::from_descriptor(bytes) {
        Ok(cfg) => {
            let again = PeerCfg::from_descriptor(&cfg.get_descriptor()).expect("its own");
            assert_eq!(again, cfg);
        }
        Err(_) => assert!(bytes.is_empty()),
    }
}

/// The private data of a connection.
pub fn offer(bytes: &[u8]) {
    let Ok(offer) = Offer::decode(bytes) else {
        return;
    };
    let encoded = offer.encode(usize::MAX).expect("it has come in one");
    assert_eq!(encoded, bytes[..encoded.len()]);
    assert_eq!(Offer::decode(&encoded).expect("its own"), offer);
}

/// The private data of a rejection. Its words go to terminals.
pub fn refusal(bytes: &[u8]) {
    let Ok(refusal) = Refusal::decode(bytes) else {
        return;
    };
    let is_plain = |char: char| (' '..='~').contains(&char);
    assert!(refusal.words().chars().all(is_plain));
    let encoded = refusal.encode();
    assert_eq!(encoded, bytes[..encoded.len()]);
}

/// A message of a client to a responder.
pub fn request(bytes: &[u8]) {
    check_request(bytes);
}

/// The memory of a server's directory, which has lost lines, or was written by another program. A
/// directory that opens serves each of its keys, also when it is opened again. One that is refused
/// keeps its bytes.
///
/// The bytes are those of the memory if they are as long. Otherwise they are changes to a whole
/// directory: places and bytes. Sums are made right if the first byte is odd, because no fuzzer finds
/// them.
pub fn directory(bytes: &[u8]) {
    let memory = changed(bytes);
    file().write_all_at(&memory, 0).expect("written");
    let Ok(directory) = Directory::open(map()) else {
        assert!(read() == memory, "a refused directory has changed");
        return;
    };
    let found: Vec<_> = directory.identities().collect();
    for identity in &found {
        assert_ne!(identity.key, 0);
        assert_eq!(directory.get(identity.key), Some(*identity));
    }
    let (slots, broken) = (directory.slots(), directory.broken_slots().count());
    assert!(found.len() + broken <= slots as usize);
    drop(directory);
    let mut again = Directory::open(map()).expect("it was opened before");
    assert!(again.identities().eq(found.iter().copied()));
    assert_eq!(again.broken_slots().count(), broken);
    // The epochs of its keys grow, and nothing else changes.
    for identity in &found {
        let epoch = identity.epoch.saturating_add(1);
        let (older, next) = (
            Identity {
                epoch: 0,
                ..*identity
            },
            Identity { epoch, ..*identity },
        );
        assert!(identity.epoch == 0 || again.keep(older).is_err());
        if epoch < u64::MAX {
            again
                .keep(next)
                .expect("a higher epoch of a key that it has");
            assert_eq!(again.get(identity.key), Some(next));
        }
    }
    assert_eq!(again.identities().count(), found.len());
}

/// The bytes of the memory in which a directory is opened: a page.
const PAGE: usize = 4096;
/// The keys of the whole directory that is changed, and its slots.
const KEYS: u64 = 4;
const SLOTS: u32 = 6;

fn file() -> &'static File {
    static FILE: OnceLock<File> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = memfd_create("directory", MemfdFlags::CLOEXEC).expect("a file in RAM");
        let file = File::from(file);
        file.set_len(PAGE as u64).expect("a page");
        file
    })
}

fn map() -> PmemMap {
    let path = format!("/proc/self/fd/{}", file().as_raw_fd());
    PmemMap::open(path, PAGE).expect("mapped")
}

fn read() -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    file().read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

fn whole() -> &'static [u8] {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        file().write_all_at(&[0; PAGE], 0).expect("written");
        let mut directory = Directory::create(map(), SLOTS).expect("made");
        for key in 1..=KEYS {
            for epoch in 1..=key {
                let instance = key;
                directory
                    .keep(Identity {
                        key,
                        epoch,
                        instance,
                    })
                    .expect("room");
            }
        }
        drop(directory);
        read()
    })
}

fn changed(bytes: &[u8]) -> Vec<u8> {
    if bytes.len() >= PAGE {
        return bytes[..PAGE].to_vec();
    }
    let mut memory = whole().to_vec();
    let Some((first, changes)) = bytes.split_first() else {
        return memory;
    };
    // Two bytes of a place, and one to write there.
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        memory[at % Directory::len_for(SLOTS)] = change[2];
    }
    if first % 2 == 1 {
        Directory::make_sums_right(&mut memory);
    }
    memory
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Promise: each file of the corpus holds the property of its target. Each fault that a fuzzer
    /// has found is one of them.
    #[test]
    fn the_corpus() {
        type Property = fn(&[u8]);
        let targets: [(&str, Property); 6] = [
            ("descriptor", descriptor),
            ("peer_cfg", peer_cfg),
            ("offer", offer),
            ("refusal", refusal),
            ("request", request),
            ("directory", directory),
        ];
        for (name, check) in targets {
            let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/");
            let files = fs::read_dir(format!("{corpus}{name}")).expect("a corpus");
            let mut count = 0;
            for file in files {
                let path = file.expect("a file").path();
                println!("{}", path.display());
                check(&fs::read(path).expect("read"));
                count += 1;
            }
            assert!(count > 0, "the corpus of {name} is empty");
        }
    }
}
