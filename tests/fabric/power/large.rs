//! Memories of a real size, of which little is touched.

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::world::{SIZE, Way, World, fabric};

/// Of a gibibyte, a few pages are touched.
pub(crate) const LARGE: usize = 1 << 30;

const RECORD: usize = 1024;
const LEN: usize = 100;

/// A record, and a tail that shows it. A wrong program flushes the tail alone. Returns what the
/// sweep has found.
fn appended(profile: &Profile, size: usize, is_wrong: bool) -> Result<String> {
    let fabric = fabric(profile);
    let way = Way {
        platform: Platform::AdrDdioOff,
        by_reading: false,
        promise: None,
    };
    let world = World::sized(&fabric, way, size)?;
    let pmem = world.pmem.clone();
    let found = fabric.find_loss(
        move |cut| {
            for image in cut.images(&pmem) {
                let bytes = image.bytes();
                let shown = bytes[..8] != [0; 8];
                assert!(
                    !shown || bytes[RECORD..RECORD + LEN] == [7; LEN],
                    "no record"
                );
                let map = PmemMap::open(image.path(), pmem.len()).expect("the image");
                let mut mapped = [0; SIZE];
                map.read_at(0, &mut mapped).expect("inside");
                assert_eq!(mapped, bytes[..SIZE]);
            }
        },
        || {
            world.write(RECORD, &[7; LEN]).expect("a write");
            if !is_wrong {
                world.flush(RECORD, LEN).expect("a flush");
            }
            world.atomic_write(0, &[1; 8]).expect("a write");
            world.flush(0, 8).expect("a flush");
            // By the server's program, and not yet durable.
            world.target.write_at(64, &[3; 8]).expect("inside");
        },
    );
    Ok(match found {
        Ok(visited) => format!("{visited:?}"),
        Err(loss) => loss.to_string(),
    })
}

/// Promise: the same losses are found, with the same reports, in small and in large memories.
#[test]
fn a_sweep_of_a_large_memory_has_the_same_results() -> Result<()> {
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
fn a_store_at_the_end_of_a_large_memory_is_found() -> Result<()> {
    let fabric = Rig::strict().fabric();
    let host = fabric.host("host");
    host.set_platform(Platform::AdrDdioOn);
    let (pmem, _entered) = (host.pmem("pool", LARGE), host.enter());
    let map = PmemMap::open(pmem.path(), LARGE)?;
    let places = [0, LARGE / 3 / 8 * 8, LARGE - 8];
    for place in places {
        map.write_at(place, &[9; 8])?;
    }
    map.persist(LARGE - 8..LARGE)?;
    host.power_cut();
    host.restart();
    let _entered = host.enter();
    let map = PmemMap::open(pmem.path(), LARGE)?;
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
fn a_memory_of_16_gib_takes_what_is_touched() -> Result<()> {
    let size = 16 * LARGE;
    let fabric = Rig::of(&Profile::RXE_6_12).fabric();
    let host = fabric.host("host");
    let (pmem, _entered) = (host.pmem("pool", size), host.enter());
    let map = PmemMap::open(pmem.path(), size)?;
    map.write_at(size - 8, &[1; 8])?;
    map.persist(size - 8..size)?;
    let found = fabric.find_loss(
        move |cut| {
            for image in cut.images(&pmem) {
                assert_eq!(image.bytes()[size - 8..], [1; 8]);
            }
        },
        || {
            map.write_at(0, &[2; 8]).expect("inside");
            map.persist(0..8).expect("inside");
        },
    );
    found.map_err(|loss| anyhow::anyhow!("{loss}"))?;
    Ok(())
}
