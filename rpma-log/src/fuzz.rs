//! A promise about the memory of a server, whose bytes may be any: a record that is read from it has
//! the checksum and the position that docs/log-format.md describes. The target in `fuzz/` gives it
//! bytes that a fuzzer makes, and a test those of the corpus in the repository.

use crate::LogError;
use crate::format::{HEAD, Header, LINE, List, Member, RING, Stored, TAIL, Tail};
use crate::list::LISTS;
use crate::ring::{Ring, place};

/// The bytes of the ring, of which a server's memory has a few more.
const LEN: u64 = 1024;
const MEMORY: usize = (RING + LEN) as usize;

/// Reads a server's memory. The first byte is the number of records of a log, the second one has
/// whether the sums are made right after the changes, because no fuzzer finds them. Then come the
/// changes: two bytes of a place, and one to write there.
pub fn recovery(bytes: &[u8]) {
    let Some((&[records, right], changes)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let mut memory = whole(records % 32);
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        memory[at % MEMORY] = change[2];
    }
    if right % 2 == 1 {
        make_sums_right(&mut memory);
    }
    let stored = match Stored::decode(&memory, LEN) {
        Ok(stored) => stored,
        Err(LogError::Foreign(why)) => return assert!(!why.is_empty()),
        Err(other) => panic!("{other:?}"),
    };
    let Some(header) = stored.header else {
        return assert_eq!(stored.records().count(), 0);
    };
    assert_eq!(header.encode(), memory[..Header::LEN]);
    let list = stored.list.clone().expect("a header has a list");
    memory[LISTS[0] as usize..RING as usize].fill(0);
    put(&mut memory, LISTS[1], &list.encode());
    assert_eq!(List::find(&memory), Some((list, 1)));
    let mut from = stored.head;
    for (at, record) in stored.records() {
        assert!((from..stored.tail.end).contains(&at), "{at} after {from}");
        let entry = &memory[(RING + at % LEN) as usize..];
        assert_eq!(entry[4..8], (record.len() as u32).to_le_bytes());
        assert_eq!(entry[8..16], at.to_le_bytes());
        assert_eq!(entry[24..][..record.len()], *record);
        let sum = crc32c::crc32c(&entry[4..24 + record.len()]);
        assert_eq!(entry[..4], sum.to_le_bytes());
        from = at + LINE;
    }
    // A writer of another epoch would take exactly these.
    let mut again = stored.clone();
    again.tail.epoch = (stored.tail.epoch + 1) & Tail::MOST_EPOCH;
    let newest = Stored::newest(&[&stored, &again]).expect("one of them");
    assert!(newest.records().eq(stored.records()));
}

/// The memory of a log, whose records wrapped around.
fn whole(records: u8) -> Vec<u8> {
    let mut memory = vec![0; MEMORY];
    let header = Header {
        key: 1,
        log: 2,
        server: 3,
        ring: LEN,
        servers: 3,
        copies: 2,
    };
    put(&mut memory, 0, &header.encode());
    let member = |server: u16| Member {
        addr: ([10, 0, 0, 1], server).into(),
        server: server.into(),
    };
    let mut list = List::first(1, (3..6).map(member).collect());
    put(&mut memory, LISTS[0], &list.encode());
    (list.number, list.change) = (list.number + 1, Some((2, member(6))));
    put(&mut memory, LISTS[1], &list.encode());
    let mut ring = Ring::new(LEN);
    let mut ends = vec![0];
    let mut end = 0;
    for n in 0..records {
        let record = vec![n; 1 + usize::from(n) * 7 % 150];
        let (at, next) = place(LEN, end, record.len());
        if at > end {
            ring.encode(end, 1, None);
        }
        ring.encode(at, 1, Some(&record));
        end = next;
        ends.push(end);
    }
    let head = ends.into_iter().find(|head| end - head <= LEN);
    let tail = Tail { epoch: 1, end };
    put(&mut memory, TAIL, &tail.word().to_le_bytes());
    put(&mut memory, HEAD, &head.unwrap_or(end).to_le_bytes());
    put(&mut memory, RING, ring.piece(0, LEN));
    memory
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    memory[at as usize..][..bytes.len()].copy_from_slice(bytes);
}

/// Of the header, of the lists, and of each place at which an entry may begin.
fn make_sums_right(memory: &mut [u8]) {
    let sum = crc32c::crc32c(&memory[..48]);
    put(memory, 48, &sum.to_le_bytes());
    for at in LISTS {
        let list = &memory[at as usize..];
        let count = |at: usize| usize::from(u16::from_le_bytes([list[at], list[at + 1]]));
        let servers = count(4) + usize::from(count(6) != usize::from(u16::MAX));
        if let Some(bytes) = list[..LISTS[1] as usize - LISTS[0] as usize].get(4..16 + 32 * servers)
        {
            let sum = crc32c::crc32c(bytes);
            put(memory, at, &sum.to_le_bytes());
        }
    }
    for entry in (RING as usize..MEMORY).step_by(LINE as usize) {
        let entry = &mut memory[entry..];
        let len = u32::from_le_bytes(entry[4..8].try_into().expect("4 bytes"));
        let whole = if len == u32::MAX { 0 } else { len as usize };
        if whole > 0 || len == u32::MAX {
            if let Some(bytes) = entry.get(4..24 + whole) {
                let sum = crc32c::crc32c(bytes);
                entry[..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    /// Promise: each file of the corpus holds the property. Each fault that a fuzzer has found is one
    /// of them.
    #[test]
    fn the_corpus() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/recovery");
        let files: Vec<_> = fs::read_dir(corpus).expect("a corpus").collect();
        assert!(!files.is_empty(), "the corpus is empty");
        for file in files {
            let path = file.expect("a file").path();
            println!("{}", path.display());
            super::recovery(&fs::read(path).expect("read"));
        }
    }
}
