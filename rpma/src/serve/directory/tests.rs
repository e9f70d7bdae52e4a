//! Tests of a directory in a file.

use std::fs;

use super::header::{BEGUN, COPYING, Header};
use super::line::Slot;
use super::*;
use crate::serve::Layout;

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

fn header(slots: u32, places: Places) -> line::Bytes {
    let header = Header {
        slots,
        places,
        identity: 1,
    };
    header.encode()
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
        drop(directory);
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
        let slot = Slot::decode(&lines, 0);
        assert!(matches!(slot, Slot::Kept { is_whole: true, .. }));
    }
    let text = invalid(opened(&|bytes| {
        let line = Entry {
            number: 1,
            identity: identity(7, 1, 1),
        };
        let at = place(2, 0);
        bytes[at..at + LINE].copy_from_slice(&line.encode(2));
    }));
    assert!(text.contains("both have the key 0x7"), "{text}");
    let text = invalid(opened(&|bytes| bytes[8] = 3));
    assert!(text.contains("has the version 3"), "{text}");
    let text = invalid(opened(&|bytes| {
        bytes[..LINE].copy_from_slice(&header(32, Places::default()));
    }));
    assert!(
        text.contains("has 4224 bytes, and the memory has 4096"),
        "{text}"
    );

    let part = map(&file).part(8..4096).expect("a part");
    let text = invalid(Directory::create(part, 1));
    assert!(text.contains("a multiple of 64"), "{text}");
    let text = invalid(Directory::create(map(&file), 0));
    assert!(text.contains("0 slots"), "{text}");
    let text = invalid(Directory::create(map(&file), 32));
    assert!(text.contains("has 4224 bytes"), "{text}");
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
    drop(directory);
    assert!(contents() == good, "opening changes nothing that stays");

    let end = Directory::len_for(3);
    let with = |bytes: &[u8], at: usize, new: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let begun = over(&with(&[0xFF; 4096], 0, &BEGUN)).expect("made again");
    assert!(begun.keys.is_empty() && contents()[end..] == [0xFF; 4096][end..]);
    drop(begun);
    over(&with(&[0; 4096], end, &[1])).expect("bytes behind it do not matter");

    // The key 8 has one line left, and would be written again.
    let torn = with(&good, place(1, 0), &[0; LINE]);
    let places = Layout::new(3, 4096).expect("fits").places();
    for (bytes, reason) in [
        (with(&[0; 4096], 0, &[1]), "not zero at 0 to 63"),
        (with(&[0; 4096], 63, &[1]), "not zero at 0 to 63"),
        (with(&[0; 4096], end - 1, &[1]), "not zero at 448 to 511"),
        (with(&good, 0, &[0; LINE]), "not zero at 64 to 127"),
        (
            with(&good, 0, &[0; 8]),
            "If its directory is damaged: restore it",
        ),
        (with(&good, 0, &COPYING), "repeat Layout::copy_to"),
        (with(&good, 8, &[3]), "has the version 3"),
        (
            with(&good, 8, &[1]),
            "has the version 1, and this library knows 2",
        ),
        (
            with(&good, 0, &header(4, Places::default())),
            "has 4 slots, and not 3",
        ),
        (with(&good, 20, &[1]), "header of the directory is broken"),
        (
            with(&torn, 0, &header(3, places)),
            "open it with Layout::open_directory",
        ),
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
    for (at, byte) in [(100, 0), (8, 3), (20, 1)] {
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

/// Promise: a directory is opened with the layout that made it, and no other. Each field is
/// compared by itself, the error has both numbers, and no byte changes.
#[test]
fn a_directory_names_its_layout() {
    let layout = |keys, bytes| Layout::new(keys, bytes).expect("fits");
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), vec![0; 64 * 4096]).expect("written");
    let map = || PmemMap::open(file.path(), 0).expect("mapped");
    let own = layout(4, 8192);
    let mut directory = own.open_directory(&map()).expect("made");
    directory.keep(identity(2, 1, 1)).expect("kept");
    drop(directory);
    let contents = || fs::read(file.path()).expect("its bytes");
    let before = contents();
    for (other, words) in [
        (
            layout(4, 4096),
            "a length of the parts in bytes of 8192, and not 4096",
        ),
        (layout(5, 8192), "has a number of parts of 4, and not 5"),
        (
            layout(5, 4096),
            "of 8192, and not 4096; it has a number of parts of 4, and not 5",
        ),
    ] {
        let text = invalid(other.open_directory(&map()));
        assert!(text.contains(words), "{text}");
        assert!(contents() == before, "no byte changes");
    }
    let text = invalid(Directory::open_or_create(map(), 4));
    assert!(text.contains("Layout::open_directory"), "{text}");
    assert!(contents() == before, "no byte changes");
    let directory = own.open_directory(&map()).expect("opened");
    assert_eq!(directory.get(2), Some(identity(2, 1, 1)));
    drop(directory);

    // One without a layout.
    let bare = self::file();
    drop(Directory::create(self::map(&bare), 1).expect("made"));
    let one = layout(1, 4096);
    fs::write(
        bare.path(),
        [fs::read(bare.path()).expect("read"), vec![0; 4096]].concat(),
    )
    .expect("written");
    let text = invalid(one.open_directory(&self::map(&bare)));
    assert!(
        text.contains("begins its parts at the byte 0, and not 4096"),
        "{text}"
    );
    assert!(text.contains("made without a layout"), "{text}");
}

/// Promise: a copy forgets no epoch. A source that has lost some, a target that has a directory,
/// and a layout without room for a key are refused, and the target does not change.
#[test]
fn a_copy_has_everything_or_is_refused() {
    let layout = |keys, bytes| Layout::new(keys, bytes).expect("fits");
    let (old, new) = (layout(4, 4096), layout(4, 8192));
    let files = [(); 2].map(|()| {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), vec![0; new.len()]).expect("written");
        file
    });
    let map = |at: usize| PmemMap::open(files[at].path(), 0).expect("mapped");
    let target = || fs::read(files[1].path()).expect("its bytes");
    let (zeros, copy) = (target(), |to: &Layout| old.copy_to(&map(0), to, &map(1)));
    let refused = |to: &Layout, words: &str| {
        let before = target();
        let text = invalid(copy(to));
        assert!(text.contains(words), "{text}");
        assert!(target() == before, "no byte changes: {words}");
    };
    refused(&new, "the source of the copy has no directory");
    let mut directory = old.open_directory(&map(0)).expect("made");
    directory.keep(identity(2, 6, 1)).expect("kept");
    directory.keep(identity(4, 9, 2)).expect("kept");
    directory.set_lowest_epoch(1000).expect("set");
    drop(directory);
    let part = |key| old.part(key).expect("a key").start;
    map(0).write_at(part(4), b"record").expect("inside");
    refused(
        &layout(3, 8192),
        "the key 0x4 has no part: the layouts have 4 and 3 keys",
    );
    let whole = fs::read(files[0].path()).expect("its bytes");
    map(0).write_at(place(1, 0), &[0xEE; 128]).expect("inside");
    refused(&new, "the slots [1] of the source of the copy are broken");
    fs::write(files[0].path(), &whole).expect("written");
    map(0)
        .write_at(tail_of(4) + 32, &[0xEE; 32])
        .expect("inside");
    refused(&new, "has lost the lowest epoch");
    fs::write(files[0].path(), &whole).expect("written");
    assert!(target() == zeros);

    map(1).write_at(0, &COPYING).expect("an interrupted copy");
    copy(&new).expect("copied");
    let directory = new.open_directory(&map(1)).expect("there");
    assert_eq!(
        directory.identities().collect::<Vec<_>>(),
        [identity(2, 6, 1), identity(4, 9, 2)]
    );
    assert_eq!(directory.lowest_epoch(), Some(1000));
    drop(directory);
    let mut bytes = [0; 6];
    let at = new.part(4).expect("a key").start;
    map(1).read_at(at, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"record");
    refused(&new, "has a directory already");
    let all = map(0);
    let text = invalid(old.copy_to(&all, &new, &all));
    assert!(text.contains("overlap"), "{text}");
}

/// Promise: each memory has an identity of its own, which stays until it is renewed.
#[test]
fn each_memory_has_an_identity() {
    let (one, other) = (file(), file());
    let create = |file| {
        let directory = Directory::create(map(file), 1).expect("made");
        directory.identity.expect("an identity")
    };
    let first = create(&one);
    assert_ne!(first, create(&other));
    let mut directory = Directory::open(map(&one)).expect("opened");
    assert_eq!(directory.identity, Some(first));
    directory.renew_identity().expect("renewed");
    let second = directory.identity;
    assert_ne!(second, Some(first));
    drop(directory);
    let directory = Directory::open(map(&one)).expect("opened");
    assert_eq!(directory.identity, second);
    assert!(Directory::volatile(1).renew_identity().is_err());
}

/// Promise: while a slot is broken, the keys that are there are served, and no other key. After
/// the operator's word, a lost key needs the lowest epoch, also after a restart.
#[test]
fn a_broken_slot_stops_only_keys_that_are_not_there() {
    let file = file();
    let mut directory = Directory::create(map(&file), 4).expect("made");
    for key in [7, 8, 9] {
        directory.keep(identity(key, 5, 1)).expect("kept");
    }
    let slot = directory.keys[&8].slot;
    drop(directory);
    let good = fs::read(file.path()).expect("its bytes");
    let (first, second) = (place(slot, 0), place(slot, 1));
    let contradiction = Entry {
        number: 3,
        identity: identity(6, 1, 1),
    };
    for case in 0..2 {
        let mut bytes = good.clone();
        match case {
            0 => bytes[first..second + LINE].fill(0xFF),
            _ => bytes[first..second].copy_from_slice(&contradiction.encode(slot)),
        }
        fs::write(file.path(), &bytes).expect("written");
        let mut directory = Directory::open(map(&file)).expect("opened");
        let now = fs::read(file.path()).expect("read");
        assert!(now[..tail_of(4)] == bytes[..tail_of(4)], "no line changes");
        let broken: Vec<_> = directory.broken_slots().map(|(slot, _)| slot).collect();
        assert_eq!(broken, [slot]);
        directory.keep(identity(7, 6, 2)).expect("it is there");
        for lost in [8, 10] {
            let text = invalid(directory.keep(identity(lost, 100, 1)));
            let words = format!("that of the broken slot {slot}: Directory::give_up_slot");
            assert!(text.contains(&words), "{text}");
        }
        let text = invalid(directory.give_up_slot(slot + 1, 9));
        assert!(
            text.contains("is not broken; the broken slots are"),
            "{text}"
        );
        let text = invalid(directory.give_up_slot(slot, u64::MAX));
        assert!(text.contains("which no key may have"), "{text}");
        directory.give_up_slot(slot, 9).expect("given up");
        for again in [false, true] {
            if again {
                drop(directory);
                directory = Directory::open(map(&file)).expect("opened");
            }
            assert_eq!(directory.broken_slots().count(), 0);
            assert_eq!(directory.lowest_epoch(), Some(9));
            assert_eq!(directory.free.len(), 2);
            let text = invalid(directory.keep(identity(8, 5, 1)));
            assert!(text.contains("below 9, the lowest one"), "{text}");
            let text = invalid(directory.set_lowest_epoch(8));
            assert!(text.contains("never decreases"), "{text}");
        }
        directory.keep(identity(8, 9, 3)).expect("high enough");
        directory.keep(identity(10, 10, 3)).expect("high enough");
        assert!(directory.is_full());
    }
}

/// Promise: if the memory has lost the lowest epoch, no new key is kept until it is set again.
#[test]
fn a_lost_lowest_epoch_stops_new_keys() {
    let file = file();
    drop(Directory::create(map(&file), 2).expect("made"));
    let mut bytes = fs::read(file.path()).expect("its bytes");
    bytes[tail_of(2) + 32..tail_of(2) + 64].fill(1);
    fs::write(file.path(), &bytes).expect("written");
    let mut directory = Directory::open(map(&file)).expect("opened");
    assert_eq!(directory.lowest_epoch(), None);
    let text = invalid(directory.keep(identity(7, 1, 1)));
    assert!(text.contains("Directory::set_lowest_epoch"), "{text}");
    directory.set_lowest_epoch(3).expect("set");
    invalid(directory.keep(identity(7, 2, 1)));
    directory.keep(identity(7, 3, 1)).expect("high enough");
}
