//! Maps of ordinary files, and files that cannot be mapped.

use std::fs;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use tempfile::TempDir;

use super::*;

fn file(contents: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pmem");
    fs::write(&path, contents).unwrap();
    (dir, path)
}

/// A file of one page that exists only in memory.
fn memory(flags: MemfdFlags) -> (OwnedFd, PathBuf) {
    let file = memfd_create("pmem", flags).unwrap();
    ftruncate(&file, 4096).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, path)
}

/// The message of the error that opening `path` gives, which names the path.
fn refusal(path: &Path, min_len: usize) -> String {
    let text = PmemMap::open(path, min_len).unwrap_err().to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    text
}

#[test]
fn a_file_is_mapped_whole() {
    let (_dir, path) = file(&[7; 5000]);
    let map = PmemMap::open(&path, 1).unwrap();
    assert_eq!((map.len(), map.is_empty()), (5000, false));
    let mut bytes = [0; 5000];
    map.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 5000]);
}

#[test]
fn memory_of_the_kernel_is_an_ordinary_file() {
    // Unlike the directory of temporary files, it is never on a DAX file system.
    let (_memory, path) = memory(MemfdFlags::empty());
    let map = PmemMap::open(&path, 4096).unwrap();
    assert_eq!((map.kind(), map.is_pmem()), (PmemKind::File, false));
    assert_eq!(map.kind().to_string(), "ordinary file");
    let text = format!("{map:?}");
    assert!(
        text.contains(path.to_str().unwrap()) && text.contains("kind: File"),
        "{text}"
    );
}

#[test]
fn opening_changes_nothing() {
    let (_dir, path) = file(b"contents");
    let before = fs::metadata(&path).unwrap();
    drop(PmemMap::open(&path, 0).unwrap());
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), before.len());
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"contents");
}

#[test]
fn what_is_persisted_is_in_the_file() {
    let (_dir, path) = file(&[0; 5 * 4096 + 100]);
    let map = PmemMap::open(&path, 0).unwrap();
    let mut expected = vec![0; map.len()];
    // Inside a page, across one border, across several, up to the end.
    for (start, len) in [(10, 20), (4090, 12), (8000, 10_000), (5 * 4096 + 90, 10)] {
        let bytes: Vec<u8> = (0..len).map(|i| (start + i) as u8 | 1).collect();
        expected[start..start + len].copy_from_slice(&bytes);
        map.write_at(start, &bytes).unwrap();
        map.persist(start..start + len).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "{start} {len}");
    }
    map.persist(..).unwrap();
    drop(map);
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn every_form_of_range_is_understood() {
    let (_dir, path) = file(&[0; 100]);
    let map = PmemMap::open(&path, 0).unwrap();
    map.persist(..).unwrap();
    map.persist(0..100).unwrap();
    map.persist(..=99).unwrap();
    map.persist((Bound::Excluded(0), Bound::Unbounded)).unwrap();
    map.persist(100..).unwrap();
    map.persist(50..50).unwrap();
}

#[test]
fn a_range_that_leaves_the_map_is_refused() {
    let (_dir, path) = file(&[0; 100]);
    let map = PmemMap::open(&path, 0).unwrap();
    let refusal = |range: (Bound<usize>, Bound<usize>)| map.persist(range).unwrap_err().to_string();

    let text = refusal((Bound::Included(90), Bound::Excluded(101)));
    assert_eq!(
        text,
        "the range 90..101 is not inside the persistent memory of 100 bytes"
    );
    let text = refusal((Bound::Excluded(usize::MAX), Bound::Included(usize::MAX)));
    assert!(text.contains("beyond the address space"), "{text}");
    assert!(refusal((Bound::Included(101), Bound::Unbounded)).contains(" 101..100 "));
    assert!(refusal((Bound::Included(2), Bound::Excluded(1))).contains(" 2..1 "));
    assert!(refusal((Bound::Unbounded, Bound::Included(100))).contains(" 0..101 "));
}

#[test]
fn an_access_that_leaves_the_map_is_refused_and_changes_nothing() {
    let (_dir, path) = file(&[1; 100]);
    let map = PmemMap::open(&path, 0).unwrap();
    let text = map.write_at(95, &[2; 6]).unwrap_err().to_string();
    assert_eq!(
        text,
        "6 bytes at offset 95 reach past the end of the persistent memory, which has 100 bytes"
    );
    assert!(map.write_at(usize::MAX, &[2]).is_err());
    assert!(map.read_at(101, &mut []).is_err());
    map.read_at(100, &mut []).unwrap();
    let mut bytes = [0; 6];
    assert!(map.read_at(95, &mut bytes).is_err());
    assert_eq!(bytes, [0; 6]);
    assert_eq!(fs::read(&path).unwrap(), [1; 100]);
}

#[test]
fn a_part_outlives_its_map() {
    let (_dir, path) = file(&[1; 3 * 4096]);
    let map = PmemMap::open(&path, 0).unwrap();
    let part = map.part(..).unwrap();
    map.write_at(4095, &[2; 2]).unwrap();
    drop(map);
    part.persist(4095..4097).unwrap();
    part.persist(..).unwrap();
    assert!(part.persist(..=3 * 4096).is_err());
    let contents = fs::read(&path).unwrap();
    assert_eq!(&contents[4094..4098], [1, 2, 2, 1]);
}

#[test]
fn threads_share_a_map() {
    let (_dir, path) = file(&[0; 4 * 1000]);
    let map = PmemMap::open(&path, 0).unwrap();
    thread::scope(|scope| {
        for i in 0..4_u8 {
            let map = &map;
            scope.spawn(move || map.write_at(usize::from(i) * 1000, &[i; 1000]).unwrap());
        }
    });
    let contents = fs::read(&path).unwrap();
    assert!(
        contents
            .iter()
            .enumerate()
            .all(|(i, &byte)| usize::from(byte) == i / 1000)
    );
}

#[test]
fn a_missing_path_is_refused_and_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none");
    let text = refusal(&path, 1);
    assert!(
        text.contains("No such file") && text.contains("fallocate"),
        "{text}"
    );
    assert!(!path.exists());
    let error = PmemMap::open(&path, 1).unwrap_err();
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
}

#[test]
fn what_is_not_persistent_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path(), 1).contains("is a directory"));
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(refusal(&socket, 1).contains("a pipe or a socket"));
    assert!(refusal(Path::new("/dev/null"), 1).contains("but not a device-DAX one"));
}

#[test]
fn a_file_that_may_not_be_mapped_for_writing_is_refused() {
    // Its seal refuses even root.
    let (sealed, path) = memory(MemfdFlags::ALLOW_SEALING);
    fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let text = refusal(&path, 1);
    assert!(text.starts_with("mmap failed"), "{text}");
    assert!(text.contains("needs both rights"), "{text}");
}

#[test]
fn a_file_that_is_too_small_is_refused_with_both_sizes() {
    let (_dir, path) = file(&[0; 100]);
    let text = refusal(&path, 4096);
    assert!(
        text.contains("has 100 bytes") && text.contains("4096 are needed"),
        "{text}"
    );
    fs::write(&path, b"").unwrap();
    assert!(refusal(&path, 0).contains("is empty"));
}

#[test]
fn a_range_of_a_file_is_mapped_alone() {
    let page = rustix::param::page_size();
    let bytes: Vec<u8> = (0..5 * page).map(|n| (n / page) as u8).collect();
    let (_dir, path) = file(&bytes);
    let map = PmemMap::open_range(&path, page as u64..3 * page as u64 + 10).unwrap();
    assert_eq!(map.len(), 2 * page + 10);
    let mut read = vec![0; map.len()];
    map.read_at(0, &mut read).unwrap();
    assert!(read == bytes[page..3 * page + 10]);
    map.write_at(page, b"new").unwrap();
    map.persist(page..page + 3).unwrap();
    assert_eq!(fs::read(&path).unwrap()[2 * page..2 * page + 3], *b"new");
    assert_eq!(PmemMap::open_range(&path, ..).unwrap().len(), 5 * page);

    let refused = |start: usize, end: usize| {
        let range = start as u64..end as u64;
        let text = PmemMap::open_range(&path, range).unwrap_err().to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        text
    };
    assert!(refused(0, 5 * page + 1).contains("is not inside"));
    assert!(refused(page, page).contains("0 bytes"));
    assert!(refused(1, page).contains(&format!("its alignment is {page}")));
    assert!(PmemMap::open_range(&path, u64::MAX..).is_err());
}

/// Each part has its own offsets and ends, and keeps the memory mapped.
#[test]
fn parts_of_a_map() {
    let (_dir, path) = file(&[0; 10_000]);
    let map = PmemMap::open(&path, 0).unwrap();
    let (first, second) = (map.part(..5000).unwrap(), map.part(5000..).unwrap());
    let within = second.part(100..=109).unwrap();
    drop(map);
    assert_eq!((first.len(), second.len(), within.len()), (5000, 5000, 10));
    assert_eq!(second.as_ptr().addr() - first.as_ptr().addr(), 5000);
    within.write_at(2, b"here").unwrap();
    within.persist(2..6).unwrap();
    assert_eq!(fs::read(&path).unwrap()[5102..5106], *b"here");
    let mut bytes = [0; 4];
    second.read_at(102, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");

    let text = within.write_at(7, b"here").unwrap_err().to_string();
    assert!(
        text.contains("4 bytes at offset 7 reach past the end") && text.contains("has 10 bytes")
    );
    let text = within.persist(5..11).unwrap_err().to_string();
    assert!(
        text.contains("5..11 is not inside the persistent memory of 10 bytes"),
        "{text}"
    );
    let text = second.part(4000..5001).unwrap_err().to_string();
    assert!(text.contains("of 5000 bytes"), "{text}");
    assert!(
        second
            .part(3..3)
            .unwrap_err()
            .to_string()
            .contains("0 bytes")
    );
}

/// 8 bytes at once: a thread loads the values that another one stores, and an address that is not
/// aligned is refused.
#[test]
fn words_are_loaded_and_stored_at_once() {
    let (_dir, path) = file(&[7; 5000]);
    let map = PmemMap::open(&path, 1).unwrap();
    assert_eq!(map.load_u64(4984).unwrap(), u64::from_ne_bytes([7; 8]));
    map.store_u64(8, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(map.load_u64(8).unwrap(), 0x0102_0304_0506_0708);
    let mut bytes = [0; 24];
    map.read_at(0, &mut bytes).unwrap();
    let word = 0x0102_0304_0506_0708u64.to_ne_bytes();
    assert_eq!(bytes, [[7; 8], word, [7; 8]].concat()[..]);
    // A part has offsets of its own, and the address counts.
    let part = map.part(4..100).unwrap();
    assert_eq!(part.load_u64(4).unwrap(), map.load_u64(8).unwrap());
    for refused in [
        part.load_u64(0).map(drop),
        part.store_u64(8, 1),
        map.store_u64(3, 1),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("multiple of 8"), "{text}");
    }
    for beyond in [4993, 4996, 5000, usize::MAX - 3] {
        let text = map.store_u64(beyond, 1).unwrap_err().to_string();
        assert!(text.contains("reach past the end"), "{text}");
    }
}
