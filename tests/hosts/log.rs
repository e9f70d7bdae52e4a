//! The layout of the log: the tail, which is the number of records, in the first 8 bytes; the
//! records from the second page on.

use crate::prelude::*;

pub(crate) const TAIL: usize = 8;
pub(crate) const FIRST: usize = 4096;
pub(crate) const RECORD: usize = 64;
/// The log's end, in any memory.
pub(crate) const SIZE: usize = 128 << 20;

/// Where a record is.
pub(crate) fn offset(number: u64) -> usize {
    FIRST + number as usize * RECORD
}

/// The record of this number: itself, 48 bytes made of it, and a checksum.
pub(crate) fn record(number: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    let mut word = number;
    for part in bytes[..RECORD - 8].chunks_exact_mut(8) {
        part.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ number;
    }
    let sum = checksum(&bytes[..RECORD - 8]);
    bytes[RECORD - 8..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, step)
}

/// Prints the tail, and fails if a record before it is damaged.
pub(crate) fn verify(path: &str) -> Result<()> {
    let map = PmemMap::open(path, SIZE)?;
    let mut tail = [0; TAIL];
    map.read_at(0, &mut tail)?;
    let tail = u64::from_le_bytes(tail);
    println!("tail {tail}");
    for number in 0..tail {
        let mut found = [0; RECORD];
        map.read_at(offset(number), &mut found)?;
        is_whole(&found, number, tail)?;
    }
    println!("whole");
    Ok(())
}

/// Fails if this is not the record of that number, of so many.
pub(crate) fn is_whole(found: &[u8; RECORD], number: u64, tail: u64) -> Result<()> {
    match *found == record(number) {
        true => Ok(()),
        false => Err(format!("record {number} of {tail} is damaged: {found:02x?}").into()),
    }
}
