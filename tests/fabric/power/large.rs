//! Memories of a real size, of which little is touched.

use crate::common::prelude::*;
use crate::power::world::{Own, SIZE, Way, World, fabric, under_every_cut};

/// Of a gibibyte, a few pages are touched.
pub(crate) const LARGE: usize = 1 << 30;

const RECORD: usize = 1024;
const LEN: usize = 100;

/// A record, and a tail that shows it. A wrong program flushes the tail alone. Returns what the
/// sweep has found.
fn appended(profile: &Profile, size: usize, is_wrong: bool) -> Result<String> {
    let fabric = fabric(profile);
    let world = World::sized(&fabric, Way::on(Platform::AdrDdioOff), size)?;
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&world.pmem) {
            let bytes = image.bytes();
            let is_shown = bytes[..8] != [0; 8];
            let is_there = bytes[RECORD..].starts_with(&[7; LEN]);
            assert!(!is_shown || is_there, "no record");
            let map = PmemMap::open(image.path(), size).expect("the image");
            let mut mapped = [0; SIZE];
            map.read_at(0, &mut mapped).expect("inside");
            assert_eq!(mapped, bytes[..SIZE]);
        }
    };
    let found = fabric.find_loss(check, || {
        world.write(RECORD, &[7; LEN]).expect("a write");
        if !is_wrong {
            world.flush(RECORD, LEN).expect("a flush");
        }
        world.atomic_write(0, &[1; 8]).expect("a write");
        world.flush(0, 8).expect("a flush");
        // By the server's program, and not yet durable.
        world.target.write_at(64, &[3; 8]).expect("inside");
    });
    let visited = found.map(|visited| format!("{visited:?}"));
    Ok(visited.unwrap_or_else(|loss| loss.to_string()))
}

/// Promise: the same losses are found, with the same reports, in small and in large memories.
#[test]
fn a_sweep_of_a_large_memory_has_the_same_results() -> Result {
    // Both flush natively.
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for is_wrong in [false, true] {
            let small = appended(&profile, SIZE, is_wrong)?;
            let large = appended(&profile, LARGE, is_wrong)?;
            assert_eq!(small, large, "{}", profile.name());
            assert_eq!(small.contains("no record"), is_wrong, "{small}");
        }
    }
    Ok(())
}

/// Promise: a store anywhere in a large memory is found, without the program's help.
#[test]
fn a_store_at_the_end_of_a_large_memory_is_found() -> Result {
    let own = Own::new(Rig::strict().fabric(), Platform::AdrDdioOn, LARGE);
    let places = [0, LARGE / 3 / 8 * 8, LARGE - 8];
    for place in places {
        own.map.write_at(place, &[9; 8])?;
    }
    own.map.persist(LARGE - 8..LARGE)?;
    own.host.power_cut();
    own.host.restart();
    let _entered = own.host.enter();
    let map = PmemMap::open(own.pmem.path(), LARGE)?;
    for place in places {
        let mut word = [0; 8];
        map.read_at(place, &mut word)?;
        let is_durable = place == LARGE - 8;
        let may_be_lost = !is_durable && word == [0; 8];
        assert!(word == [9; 8] || may_be_lost, "{place}: {word:?}");
    }
    Ok(())
}

/// Promise: a memory may be larger than that of the machine.
#[test]
fn a_memory_of_16_gib_takes_what_is_touched() -> Result {
    let size = 16 * LARGE;
    let fabric = Rig::of(&Profile::RXE_6_12).fabric();
    let own = Own::new(fabric, Platform::AdrDdioOn, size);
    own.map.write_at(size - 8, &[1; 8])?;
    own.map.persist(size - 8..size)?;
    let check = |image: &[u8], _| assert_eq!(image[size - 8..], [1; 8]);
    under_every_cut(&own.fabric, &own.pmem, check, |_| {
        own.map.write_at(0, &[2; 8])?;
        Ok(own.map.persist(0..8)?)
    })?
}
