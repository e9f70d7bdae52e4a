//! A log without a tail: each record is one write and one flush, and recovery takes records until
//! one is not valid. The necessary meaning of "valid".

use crate::common::prelude::*;
use crate::power::world::{PLATFORMS, Ran, Way, World, fabric, word};

const LEN: usize = 200;
const COUNT: usize = 8;

/// A record: its number, a checksum, and bytes.
fn record(number: usize) -> [u8; LEN] {
    let mut record: [u8; LEN] = std::array::from_fn(|at| (number * 37 + at * 11 + 1) as u8);
    record[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
    let sum = checksum(&record);
    record[8..16].copy_from_slice(&sum.to_le_bytes());
    record
}

/// FNV-1a of all but the place of the sum itself.
fn checksum(record: &[u8]) -> u64 {
    let bytes = record[..8].iter().chain(&record[16..]);
    bytes.fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// How many records there are.
fn recover(log: &[u8], is_valid: fn(&[u8]) -> bool) -> usize {
    let records = log.chunks_exact(LEN).enumerate();
    let valid = records.take_while(|(number, record)| {
        record[..8] == (*number as u64 + 1).to_le_bytes() && is_valid(record)
    });
    valid.count()
}

pub(crate) fn has_sum(record: &[u8]) -> bool {
    record[8..16] == checksum(record).to_le_bytes()
}

fn run(profile: &Profile, platform: Platform, is_valid: fn(&[u8]) -> bool) -> Result<u64, Loss> {
    let fabric = fabric(profile);
    run_on(&fabric, platform, is_valid, COUNT)?.expect("nothing fails");
    Ok(fabric.visited().images)
}

pub(crate) fn run_on(
    fabric: &Fabric,
    platform: Platform,
    is_valid: fn(&[u8]) -> bool,
    count: usize,
) -> Ran {
    let world = World::new(fabric, Way::on(platform)).expect("a connection");
    let check = |image: &[u8], told| {
        let found = recover(image, is_valid);
        assert!(found as u64 >= told, "an acknowledged record is lost");
        for (number, bytes) in image.chunks_exact(LEN).take(found).enumerate() {
            assert!(*bytes == record(number), "record {number} is torn");
        }
    };
    world.under_every_cut(check, |tell| {
        for number in 0..count {
            world.write(number * LEN, &record(number))?;
            world.flush(number * LEN, LEN)?;
            tell(number as u64 + 1);
        }
        Ok(())
    })
}

/// With a checksum of all its bytes a record needs no tail.
#[test]
fn records_with_a_checksum_survive() {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for platform in PLATFORMS {
            let images = run(&profile, platform, has_sum).unwrap_or_else(|loss| panic!("{loss}"));
            assert!(images > 500, "{images}");
        }
    }
}

/// A recovery that takes the number for the whole accepts a torn record, on every device and
/// platform.
#[test]
fn records_without_a_checksum_are_torn() {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for platform in PLATFORMS {
            let loss = run(&profile, platform, |_| true).expect_err("torn records");
            let report = loss.to_string();
            assert!(report.starts_with("record 0 is torn"), "{report}");
            assert_says(&report, &["a write of 200 bytes"]);
        }
    }
}

/// How a program writes the number of the record that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    /// As the first 8 bytes of a header of 16.
    InAHeader,
    /// By a plain write of 8 bytes, at a multiple of 8.
    Alone,
    /// By `Conn::atomic_write`.
    Atomic,
}

fn count(profile: &Profile, how: Number) -> Result<(), Loss> {
    count_on(&fabric(profile), how)?.expect("nothing fails");
    Ok(())
}

/// Counts up from 0x00FF to 0x0100. A part of these bytes is another number.
pub(crate) fn count_on(fabric: &Fabric, how: Number) -> Ran {
    let way = Way::on(Platform::Eadr).by_reading(true);
    let world = World::new(fabric, way).expect("a connection");
    let check = |image: &[u8], _| {
        let number = word(image);
        assert!([0, 0xFF, 0x100].contains(&number), "{number:#x}");
    };
    world.under_every_cut(check, |_| {
        for number in [0xFF_u64, 0x100] {
            let bytes = number.to_le_bytes();
            match how {
                Number::InAHeader => world.write(0, &[bytes, [7; 8]].concat()),
                Number::Alone => world.write(0, &bytes),
                Number::Atomic => world.atomic_write(0, &bytes),
            }?;
            world.flush(0, 8)?;
        }
        Ok(())
    })
}

/// A number in a longer write may be torn at any byte, on every device.
#[test]
fn a_number_in_a_header_is_torn() {
    for profile in Profile::EVERY {
        let loss = count(&profile, Number::InAHeader).expect_err("a torn number");
        let report = loss.to_string();
        assert!(report.starts_with("0x1ff"), "{report}");
        assert_says(&report, &["The word at byte 0 is torn."]);
    }
}

/// An aligned write of 8 bytes is not torn, nor is an atomic write.
#[test]
fn a_number_by_itself_is_whole() {
    for profile in Profile::EVERY {
        for how in [Number::Alone, Number::Atomic] {
            count(&profile, how).unwrap_or_else(|loss| panic!("{how:?}: {loss}"));
        }
    }
}
