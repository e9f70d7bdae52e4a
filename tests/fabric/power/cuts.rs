//! The promises of `Cut`, `Image` and `persisted`.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use anyhow::Result;
use rpma::pmem::PmemKind;
use rpma::sim::{self, persisted};

use crate::common::prelude::*;
use crate::power::world::{Way, World, fabric};
use anyhow::Context;

/// The last images of a memory when `run` has ended. There may be so many.
pub(crate) fn images(
    fabric: &Fabric,
    pmem: &Pmem,
    limit: usize,
    run: impl FnOnce(),
) -> Vec<Vec<u8>> {
    let mut last = Vec::new();
    let check = |cut: &Cut<'_>| {
        last = cut
            .images_up_to(pmem, limit)
            .map(|image| image.bytes().to_vec())
            .collect();
    };
    fabric.on_every_event(check, run);
    last
}

fn memory(platform: Platform) -> (Fabric, Pmem, PmemMap, sim::Entered) {
    let fabric = fabric(&Profile::STRICT);
    let host = fabric.host("host");
    host.set_platform(platform);
    let pmem = host.pmem("log", 1);
    let entered = host.enter();
    let map = PmemMap::open(pmem.path(), 4096).expect("memory");
    assert_eq!((map.kind(), map.len()), (PmemKind::DeviceDax, pmem.len()));
    (fabric, pmem, map, entered)
}

/// All stores of a program that it has not persisted are found: by the words that are not torn.
#[test]
fn stores_may_be_torn_by_words() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOff);
    map.write_at(0, &[1; 24])?;
    let found = images(&fabric, &pmem, 1000, || {
        map.persist(24..32).expect("inside")
    });
    // It is the same line, and so was written back.
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][..32], [&[1; 24][..], &[0; 8]].concat());

    map.write_at(64, &[2; 24])?;
    let found = images(&fabric, &pmem, 1000, || ());
    let words: BTreeSet<Vec<u8>> = found.iter().map(|image| image[64..88].to_vec()).collect();
    assert_eq!((found.len(), words.len()), (8, 8));
    assert!(
        words
            .iter()
            .all(|bytes| bytes.chunks(8).all(|word| word == [0; 8] || word == [2; 8]))
    );
    Ok(())
}

/// With eADR the stores of a program are there; on volatile memory none is.
#[test]
fn what_survives_depends_on_the_platform() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::Eadr);
    map.write_at(0, &[1; 200])?;
    let found = images(&fabric, &pmem, 1000, || ());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][..200], [1; 200]);

    let (fabric, pmem, map, _entered) = memory(Platform::Volatile);
    map.write_at(0, &[1; 200])?;
    map.persist(0..200)?;
    let found = images(&fabric, &pmem, 1000, || ());
    assert!(found.iter().all(|image| image[..200] != [1; 200]));
    Ok(())
}

/// A program's own write-back counts when it is reported, and not before.
#[test]
fn a_write_back_of_the_programs_own_is_told() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    map.write_at(128, &[3; 64])?;
    assert!(images(&fabric, &pmem, 10, || ()).len() > 1);
    persisted(map.as_ptr().wrapping_add(128), 64);
    let found = images(&fabric, &pmem, 10, || ());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][128..192], [3; 64]);
    // Any other memory has no owner.
    persisted([0_u8; 8].as_ptr(), 8);
    Ok(())
}

/// If there are too many images the sample has the one without writes, the one with all writes,
/// each line for itself, and others. It is the same each time, and another one with another seed.
#[test]
fn a_sample_is_by_the_seed() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    map.write_at(0, &[9; 64 * 20])?;
    let sample = |fabric: &Fabric| images(fabric, &pmem, 200, || ());
    let (one, again) = (sample(&fabric), sample(&fabric));
    assert_eq!(one.len(), 200);
    assert!(one == again);
    assert_eq!(one[0][..64 * 20], [0; 64 * 20]);
    assert_eq!(one[1][..64 * 20], [9; 64 * 20]);
    for line in 0..20 {
        let bytes = line * 64..(line + 1) * 64;
        let alone = |present: u8, others: u8| {
            one.iter().any(|image| {
                image[bytes.clone()].iter().all(|byte| *byte == present)
                    && image[..64 * 20]
                        .iter()
                        .filter(|byte| **byte == others)
                        .count()
                        >= 64 * 19
            })
        };
        assert!(alone(9, 0) && alone(0, 9), "line {line}");
    }
    fabric.set_seed(2);
    assert!(sample(&fabric) != one);
    Ok(())
}

/// Only two lines of a record of 1.5 KiB may be lost together: a recovery that mends one lost line
/// is found out.
#[test]
fn two_lines_are_lost_together() -> Result<()> {
    const LEN: usize = 1536;
    for seed in 0..10 {
        let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOff);
        fabric.set_seed(seed);
        let check = |cut: &Cut<'_>| {
            for image in cut.images(&pmem) {
                let lines = image.bytes()[..LEN].chunks(64);
                let lost = lines.filter(|line| **line == [0; 64]).count();
                assert_ne!(lost, 2, "two lines are lost");
            }
        };
        let found = fabric.find_loss(check, || -> Result<()> {
            map.write_at(0, &[7; LEN])?;
            Ok(map.persist(..LEN)?)
        });
        let report = found.expect_err("a loss").to_string();
        assert!(
            report.contains("two lines are lost"),
            "seed {seed}: {report}"
        );
    }
    Ok(())
}

/// A program's own recovery runs on an image, and changes only its copy.
#[test]
fn an_image_can_be_mapped() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    map.write_at(0, b"recover me")?;
    map.persist(0..10)?;
    let mut paths = Vec::new();
    fabric.on_every_event(
        |cut| {
            for image in cut.images(&pmem) {
                let map = PmemMap::open(image.path(), 4096).expect("an image");
                let mut bytes = [0; 10];
                map.read_at(0, &mut bytes).expect("inside");
                assert_eq!(&bytes, b"recover me");
                map.write_at(0, b"recovered!").expect("inside");
                map.persist(..).expect("inside");
                assert_eq!(&image.bytes()[..10], b"recover me");
                paths.push(image.path().to_owned());
            }
        },
        || map.persist(..),
    )?;
    assert_eq!(&pmem.bytes()[..10], b"recover me");
    // The path is gone with its image.
    let error = PmemMap::open(paths.last().context("images")?, 0).expect_err("no image");
    assert!(
        error
            .to_string()
            .starts_with("stat failed: /rpma-sim/image/"),
        "{error}"
    );
    Ok(())
}

/// Memory is found by threads of its host, and by others not.
#[test]
fn memory_is_of_its_host() -> Result<()> {
    let fabric = fabric(&Profile::RXE_6_12);
    let (one, other) = (fabric.host("one"), fabric.host("other"));
    let pmem = one.pmem("log", 5000);
    assert_eq!(pmem.len(), 8192);
    let open = || PmemMap::open(pmem.path(), 8192).map(|map| map.len());
    let text = open().expect_err("no host").to_string();
    assert!(
        text.contains("this thread is on no host: see Host::enter"),
        "{text}"
    );
    let text = other.spawn({
        let pmem = pmem.clone();
        move || {
            PmemMap::open(pmem.path(), 1)
                .expect_err("another host")
                .to_string()
        }
    });
    let text = text.join().expect("no panic");
    assert!(
        text.contains("memory of the host one, and this thread is on other"),
        "{text}"
    );
    let _entered = one.enter();
    assert_eq!(open()?, 8192);
    let text = PmemMap::open(pmem.path(), 8193)
        .expect_err("it is smaller")
        .to_string();
    assert!(
        text.contains("8192 bytes that can be mapped, but 8193 are needed"),
        "{text}"
    );
    assert_eq!(PmemMap::open_range(pmem.path(), 4096..)?.len(), 4096);
    Ok(())
}

/// A check that calls the fabric would wait for itself: that is reported, and the run ends.
#[test]
#[should_panic(expected = "cannot call the fabric or rpma")]
fn a_check_cannot_call_the_fabric() {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    fabric.on_every_event(
        |cut| {
            let _ = cut.images(&pmem).count();
            let _ = fabric.objects();
        },
        || map.persist(..).expect("inside"),
    );
}

/// A panic of the program comes through, and the fabric can be watched again.
#[test]
fn a_panic_of_the_program_comes_through() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    let watched = catch_unwind(AssertUnwindSafe(|| {
        fabric.on_every_event(
            |cut| assert!(cut.images(&pmem).count() > 0),
            || panic!("its own"),
        );
    }));
    let panic = watched.expect_err("it panics");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"its own"));
    let before = fabric.visited();
    fabric.on_every_event(|_| (), || map.persist(..))?;
    assert!(fabric.visited().events > before.events);
    Ok(())
}

/// A report has the operation, the bytes, the place, and the calls that would have saved them; and
/// only those that matter.
#[test]
fn a_report_says_what_matters() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let way = Way {
        platform: Platform::AdrDdioOff,
        by_reading: true,
        promise: None,
    };
    let world = World::new(&fabric, way)?;
    let lost = |cut: &Cut<'_>| {
        for image in cut.images(&world.pmem) {
            let image = image.bytes();
            assert!(
                image[512] == 0 || image[1024..1032] == [5; 8],
                "the index leads nowhere"
            );
        }
    };
    let found = fabric.find_loss(lost, || -> Result<()> {
        world.write(256, &[4; 100])?;
        world.write(1024, &[5; 8])?;
        world.write(512, &[1])?;
        world.flush(512, 1)
    });
    let report = found.expect_err("a loss").to_string();
    println!("{report}");
    for part in [
        "the index leads nowhere",
        "The power fails at event ",
        "after a write of 1 byte (op_context 0, tests/fabric/power/world.rs:",
        ") on connection ",
        "Lost: bytes 1024..1032 of log of server, in flight in the device, by a write of 8 bytes (op_context 0, tests/fabric/power/world.rs:",
        "A flush on the same connection, after the write, would have saved them.",
        "In the image: 00 00 00 00 00 00 00 00; otherwise: 05 05 05 05 05 05 05 05",
        "There already: bytes 512..520 of log of server, in flight in the device, by a write of 1 byte",
        "Write them only after a completed flush of all bytes that must be there before them.",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains("256"), "{report}");
    Ok(())
}

/// Bytes that are still in the device are not saved by `PmemMap::persist`, and the report does not
/// recommend it alone.
#[test]
fn a_report_on_bytes_in_the_device() -> Result<()> {
    for (profile, saves) in [
        (Profile::STRICT, "A native flush for persistence"),
        (Profile::ADAPTER, "The server's method"),
    ] {
        let fabric = fabric(&profile);
        let way = Way {
            platform: Platform::AdrDdioOn,
            by_reading: false,
            promise: None,
        };
        let world = World::new(&fabric, way)?;
        let told = AtomicU8::new(0);
        let lost = |cut: &Cut<'_>| {
            for image in cut.images(&world.pmem) {
                assert!(image.bytes()[0] >= told.load(Ordering::Relaxed));
            }
        };
        let found = fabric.find_loss(lost, || -> Result<()> {
            world.write(0, &[1])?;
            world.wait_for_write()?;
            world.target.persist(..8)?;
            told.store(1, Ordering::Relaxed);
            world.wait_for_write()
        });
        let report = found.expect_err("a loss").to_string();
        for part in [
            saves,
            "PmemMap::persist alone does not reach bytes in the device",
        ] {
            assert!(report.contains(part), "{part}: {report}");
        }
    }
    Ok(())
}

/// Data that a queue pair has received is there when it is destroyed, and data that was written to
/// a region when it is deregistered: programs may free the memory then.
#[test]
fn nothing_is_under_way_to_memory_that_may_be_freed() -> Result<()> {
    let way = Way {
        platform: Platform::AdrDdioOff,
        by_reading: false,
        promise: None,
    };
    for destroys in [true, false] {
        let fabric = fabric(&Profile::STRICT);
        let world = World::new(&fabric, way)?;
        world.write(0, &[1; 64])?;
        world.wait_for_write()?;
        let pmem = world.pmem.clone();
        assert!(images(&fabric, &pmem, 10, || ()).len() > 1);
        let World {
            far, target, conn, ..
        } = world;
        match destroys {
            true => drop(far),
            false => drop(target.dereg()?),
        }
        let left = images(&fabric, &pmem, 10, || ());
        assert_eq!(
            (left.len(), &left[0][..64]),
            (1, &[1; 64][..]),
            "{destroys}"
        );
        drop(conn);
    }
    Ok(())
}

/// A native flush covers the bytes of its range, by words, and no other byte of a line.
#[test]
fn a_native_flush_covers_its_range() -> Result<()> {
    let way = Way {
        platform: Platform::AdrDdioOn,
        by_reading: false,
        promise: None,
    };
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way)?;
    world.write(0, &[1; 32])?;
    world.flush(8, 9)?;
    let left = images(&fabric, &world.pmem, 100, || ());
    assert!(left.iter().all(|image| image[8..24] == [1; 16]));
    let first_and_last = |image: &Vec<u8>| [&image[..8], &image[24..32]].concat();
    let left: BTreeSet<Vec<u8>> = left.iter().map(first_and_last).collect();
    for whole in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        let whole: Vec<u8> = whole.iter().flat_map(|word| [*word; 8]).collect();
        assert!(left.contains(&whole), "{whole:?}");
    }
    assert!(left.len() > 4, "and torn ones");
    Ok(())
}

/// In one line a later store is not there without the earlier data: a cache writes all of it back.
#[test]
fn a_line_keeps_the_order_of_stores() -> Result<()> {
    let (fabric, pmem, map, _entered) = memory(Platform::AdrDdioOn);
    map.write_at(0, &[1; 8])?;
    map.persist(64..65)?;
    map.write_at(8, &[2; 8])?;
    let left = images(&fabric, &pmem, 10, || ());
    let words: BTreeSet<[u8; 2]> = left.iter().map(|image| [image[0], image[8]]).collect();
    assert_eq!(words, BTreeSet::from([[0, 0], [1, 0], [1, 2]]));
    Ok(())
}

/// A program that acknowledges too early is found, though the data is durable a moment later:
/// between its poll and its next call, and between a store and its write-back.
#[test]
fn a_promise_before_its_time_is_found() -> Result<()> {
    let fabric = fabric(&Profile::RXE_6_12);
    let way = Way {
        platform: Platform::AdrDdioOn,
        by_reading: false,
        promise: None,
    };
    let world = World::new(&fabric, way)?;
    let told = AtomicU8::new(0);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&world.pmem) {
            assert!(image.bytes()[0] >= told.load(Ordering::Relaxed), "told");
        }
    };
    let remote = fabric.find_loss(check, || -> Result<()> {
        world.write(0, &[1])?;
        world.wait_for_write()?;
        told.store(1, Ordering::Relaxed);
        world.flush(0, 1)
    });
    let report = remote.expect_err("it is told before the flush").to_string();
    assert!(report.contains(", before ibv_"), "{report}");

    told.store(0, Ordering::Relaxed);
    let own = fabric.find_loss(check, || -> Result<()> {
        world.target.write_at(0, &[2])?;
        told.store(2, Ordering::Relaxed);
        Ok(world.target.persist(..1)?)
    });
    let report = own
        .expect_err("it is told before the write-back")
        .to_string();
    assert!(
        report.contains(", before a write-back of caches on server"),
        "{report}"
    );
    Ok(())
}
/// No check is called after on_every_event has ended, in any way.
#[test]
fn a_check_is_not_called_after_its_end() -> Result<()> {
    static CALLED: AtomicU8 = AtomicU8::new(0);
    let fabric = Rig::strict().seed(1).fabric();
    let host = fabric.host("host");
    let _on = host.enter();
    let _other = host.spawn(|| sim::sleep(Duration::from_secs(3600)));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // It could as well have borrowed something of this frame.
        let check = |_: &Cut<'_>| {
            CALLED.fetch_add(1, Ordering::Relaxed);
        };
        fabric.on_every_event(check, || thread::sleep(Duration::from_secs(4)));
    }));
    ended.expect("a thread that was away comes back");
    let before = CALLED.load(Ordering::Relaxed);
    let pmem = host.pmem("log", 1);
    let map = PmemMap::open(pmem.path(), 1)?;
    map.write_at(0, &[1])?;
    map.persist(..)?;
    assert_eq!(
        CALLED.load(Ordering::Relaxed),
        before,
        "the check is dangling"
    );
    Ok(())
}
