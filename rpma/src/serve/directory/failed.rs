//! Tests of write-backs that fail, with a model of the page cache of Linux: after a failed
//! write-back the page is clean, and the next one succeeds without a write, unless a store comes
//! between. The kernel may drop a clean page, and read it from the disk again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::rc::Rc;

use super::*;
use crate::pmem::failing;

const SLOTS: u32 = 3;
const LEN: usize = 4096;

/// A generator of numbers, so that each run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// A file whose write-backs fail, and the bytes that are on its disk.
struct Disk {
    file: tempfile::NamedTempFile,
    bytes: Rc<RefCell<Vec<u8>>>,
    /// The number of write-backs until one fails. Negative: none fails.
    fails_in: Rc<Cell<i64>>,
    _hooked: failing::Hooked,
}

impl Disk {
    fn new(seed: u64) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), [0; LEN]).expect("written");
        let bytes = Rc::new(RefCell::new(vec![0; LEN]));
        let fails_in = Rc::new(Cell::new(-1));
        let (path, disk, left) = (
            file.path().to_owned(),
            Rc::clone(&bytes),
            Rc::clone(&fails_in),
        );
        let clean = RefCell::new(vec![0; LEN]);
        let (mut random, mut reaches) = (Random(seed), true);
        let hooked = failing::hook(move |_| {
            let cache = fs::read(&path).expect("read");
            left.set(left.get() - 1);
            let has_failed = left.get() == -1;
            // A page that no store has changed is not written.
            if *clean.borrow() != cache {
                let mut disk = disk.borrow_mut();
                for (at, byte) in cache.iter().enumerate() {
                    // A write that fails may have reached some sectors.
                    if at % 512 == 0 {
                        reaches = !has_failed || random.below(2) == 0;
                    }
                    if reaches {
                        disk[at] = *byte;
                    }
                }
                clean.replace(cache);
            }
            if has_failed {
                Err(io::Error::from_raw_os_error(libc::EIO))
            } else {
                Ok(())
            }
        });
        Self {
            file,
            bytes,
            fails_in,
            _hooked: hooked,
        }
    }

    fn map(&self) -> PmemMap {
        PmemMap::open(self.file.path(), LEN).expect("mapped")
    }

    /// The identities that a restart after a loss of power finds.
    fn after_a_cut(&self) -> BTreeMap<u64, Identity> {
        let other = tempfile::NamedTempFile::new().expect("a file");
        fs::write(other.path(), &*self.bytes.borrow()).expect("written");
        let fails_in = self.fails_in.replace(i64::MIN / 2);
        let map = PmemMap::open(other.path(), LEN).expect("mapped");
        // The loss of power has ended the server, and a copy of the file is another inode.
        Directory::other_is_gone(&map).expect("forgotten");
        let opened = Directory::open(map).expect("a directory");
        assert_eq!(opened.broken_slots().count(), 0);
        self.fails_in.set(fails_in);
        opened.identities().map(|kept| (kept.key, kept)).collect()
    }

    /// The kernel drops the page.
    fn forget(&self) {
        fs::write(self.file.path(), &*self.bytes.borrow()).expect("written");
    }
}

fn identity(key: u64, epoch: u64, instance: u64) -> Identity {
    Identity {
        key,
        epoch,
        instance,
    }
}

/// Promise: a new key whose first write failed does not make the directory unreadable, whichever
/// key comes next.
#[test]
fn a_failed_new_key_leaves_the_directory_readable() {
    for write in 0..2 {
        let disk = Disk::new(1);
        let mut directory = Directory::create(disk.map(), SLOTS).expect("made");
        disk.fails_in.set(write);
        directory.keep(identity(7, 1, 1)).expect_err("it fails");
        assert_eq!(
            directory.get(7).is_some(),
            write == 1,
            "one line is durable"
        );
        directory.keep(identity(8, 1, 1)).expect("kept");
        let found = disk.after_a_cut();
        assert_eq!(found.get(&8), Some(&identity(8, 1, 1)));
        directory.keep(identity(7, 1, 1)).expect("repeated");
        assert_eq!(disk.after_a_cut().len(), 2);
        directory.keep(identity(9, 1, 1)).expect("the last slot");
        assert!(directory.is_full());
    }
}

/// Promise: after a failed take-over, the old writer is durable before it is admitted again.
#[test]
fn a_failed_take_over_fences_no_one_by_surprise() {
    for other_key in [false, true] {
        let disk = Disk::new(1);
        let mut directory = Directory::create(disk.map(), SLOTS).expect("made");
        directory.keep(identity(7, 5, 1)).expect("kept");
        disk.fails_in.set(0);
        directory.keep(identity(7, 6, 2)).expect_err("it fails");
        if other_key {
            // It writes the page, and with it the line of the failed take-over.
            directory.keep(identity(8, 1, 1)).expect("kept");
            assert_eq!(disk.after_a_cut()[&7].epoch, 6, "a restart finds either");
        }
        assert_eq!(directory.get(7), Some(identity(7, 5, 1)));
        directory.keep(identity(7, 5, 1)).expect("the old writer");
        assert_eq!(disk.after_a_cut()[&7], identity(7, 5, 1));
        directory.keep(identity(7, 6, 2)).expect("the new writer");
        assert_eq!(disk.after_a_cut()[&7], identity(7, 6, 2));
    }
}

/// Promise: after a failed write-back each slot of the page is written again, once, both lines.
#[test]
fn all_slots_of_the_page_are_written_again() {
    let disk = Disk::new(1);
    let mut directory = Directory::create(disk.map(), SLOTS).expect("made");
    let writes = |directory: &mut Directory, identity| {
        disk.fails_in.set(-1);
        directory.keep(identity).expect("kept");
        -1 - disk.fails_in.get()
    };
    let (one, other) = (identity(7, 1, 1), identity(8, 1, 1));
    for (next, count) in [(one, 2), (one, 0), (other, 2), (identity(8, 2, 1), 1)] {
        assert_eq!(writes(&mut directory, next), count);
    }
    disk.fails_in.set(0);
    directory.keep(identity(8, 3, 1)).expect_err("it fails");
    for (next, count) in [(one, 2), (one, 0), (identity(8, 3, 1), 2), (one, 0)] {
        assert_eq!(writes(&mut directory, next), count);
    }
}

/// Promise: an identity that a new start finds is durable, although the program before it ended
/// between a store and its write-back.
#[test]
fn a_start_makes_the_identities_durable_that_it_finds() {
    let disk = Disk::new(1);
    let mut directory = Directory::create(disk.map(), SLOTS).expect("made");
    directory.keep(identity(7, 5, 1)).expect("kept");
    let before = disk.bytes.borrow().clone();
    directory.keep(identity(7, 6, 2)).expect("kept");
    drop(directory);
    // The store of epoch 6 is in the cache only.
    disk.bytes.replace(before);
    assert_eq!(disk.after_a_cut()[&7].epoch, 5);
    fs::write(disk.file.path(), {
        let mut bytes = fs::read(disk.file.path()).expect("read");
        bytes[LEN - 1] ^= 1;
        bytes
    })
    .expect("the page is dirty");
    let mut directory = Directory::open(disk.map()).expect("opened");
    directory.keep(identity(7, 6, 2)).expect("the same");
    assert_eq!(disk.after_a_cut()[&7].epoch, 6);
}

/// Promise: the directory is readable after a loss of power, and has each identity that was kept,
/// or a later one with a failed update. This holds for failures of any write-backs, for any order of
/// updates, and if clean pages are dropped at any time.
#[test]
fn every_order_of_failures_keeps_the_promise() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let disk = Disk::new(seed);
        let mut directory = Directory::create(disk.map(), SLOTS).expect("made");
        // The identity that was kept last, and those of failed updates since.
        let mut kept: BTreeMap<u64, Identity> = BTreeMap::new();
        let mut failed: BTreeMap<u64, Vec<Identity>> = BTreeMap::new();
        for step in 1..40 {
            let key = 1 + random.below(SLOTS.into());
            let now = directory.get(key);
            let next = match now {
                Some(now) if random.below(2) == 0 => now,
                Some(now) => identity(key, now.epoch + random.below(3), step),
                None => identity(key, random.below(3), step),
            };
            disk.fails_in.set(match random.below(2) {
                0 => -1,
                _ => random.below(3) as i64,
            });
            match directory.keep(next) {
                Ok(()) => {
                    kept.insert(key, next);
                    failed.remove(&key);
                }
                Err(Error::Provider { .. }) => failed.entry(key).or_default().push(next),
                // An instance of the same epoch.
                Err(Error::InvalidArgument(_)) => {}
                Err(error) => panic!("{error}"),
            }
            disk.fails_in.set(-1);
            let found = disk.after_a_cut();
            for (key, kept) in &kept {
                let of_failed = failed.get(key).into_iter().flatten();
                let mut allowed = of_failed.chain([kept]);
                let found = found.get(key);
                assert!(
                    allowed.any(|allowed| Some(allowed) == found),
                    "seed {seed}, step {step}: {kept:?}, {failed:?}: {found:?}"
                );
            }
            if random.below(4) == 0 {
                disk.forget();
            }
        }
    }
}
