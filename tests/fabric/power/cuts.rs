//! The promises of `Cut`, `Image` and `persisted`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use rpma::sim::{self, persisted};

use crate::common::prelude::*;
use crate::power::world::{Own, Ran, Way, World, images, under_every_cut};

/// All stores of a program that it has not persisted are found: by the words that are not torn.
#[test]
fn stores_may_be_torn_by_words() -> Result {
    let own = Own::page(Platform::AdrDdioOff);
    own.map.write_at(0, &[1; 24])?;
    let persist = || own.map.persist(24..32).expect("inside");
    let found = images(&own.fabric, &own.pmem, 1000, persist);
    // It is the same line, and so was written back.
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][..32], [&[1; 24][..], &[0; 8]].concat());

    own.map.write_at(64, &[2; 24])?;
    let found = own.images(1000);
    let words: BTreeSet<_> = found.iter().map(|image| &image[64..88]).collect();
    assert_eq!((found.len(), words.len()), (8, 8));
    let is_whole = |word: &[u8]| word == [0; 8] || word == [2; 8];
    assert!(words.iter().all(|bytes| bytes.chunks(8).all(is_whole)));
    Ok(())
}

/// With eADR the stores of a program are there; on volatile memory none is.
#[test]
fn what_survives_depends_on_the_platform() -> Result {
    let own = Own::page(Platform::Eadr);
    own.map.write_at(0, &[1; 200])?;
    let found = own.images(1000);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][..200], [1; 200]);

    let own = Own::page(Platform::Volatile);
    own.map.write_at(0, &[1; 200])?;
    own.map.persist(0..200)?;
    let found = own.images(1000);
    assert!(found.iter().all(|image| image[..200] != [1; 200]));
    Ok(())
}

/// A program's own write-back counts when it is reported, and not before.
#[test]
fn a_write_back_of_the_programs_own_is_told() -> Result {
    let own = Own::page(Platform::AdrDdioOn);
    own.map.write_at(128, &[3; 64])?;
    assert!(own.images(10).len() > 1);
    persisted(own.map.as_ptr().wrapping_add(128), 64);
    let found = own.images(10);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0][128..192], [3; 64]);
    // Any other memory has no owner.
    persisted([0_u8; 8].as_ptr(), 8);
    Ok(())
}

/// If there are too many images the sample has the one without writes, the one with all writes,
/// each line for itself, and others. It is the same each time, and another one with another seed.
#[test]
fn a_sample_is_by_the_seed() -> Result {
    const LEN: usize = 64 * 20;
    let own = Own::page(Platform::AdrDdioOn);
    own.map.write_at(0, &[9; LEN])?;
    let (one, again) = (own.images(200), own.images(200));
    assert_eq!(one.len(), 200);
    assert!(one == again);
    assert_eq!(one[0][..LEN], [0; LEN]);
    assert_eq!(one[1][..LEN], [9; LEN]);
    for line in 0..20 {
        let alone = |present: u8, other: u8| {
            one.iter().any(|image| {
                let others = image[..LEN].iter().filter(|byte| **byte == other);
                image[line * 64..(line + 1) * 64] == [present; 64] && others.count() >= LEN - 64
            })
        };
        assert!(alone(9, 0) && alone(0, 9), "line {line}");
    }
    own.fabric.set_seed(2);
    assert!(own.images(200) != one);
    Ok(())
}

/// Only two lines of a record of 1.5 KiB may be lost together: a recovery that mends one lost line
/// is found out.
#[test]
fn two_lines_are_lost_together() {
    const LEN: usize = 1536;
    for seed in 0..10 {
        let own = Own::page(Platform::AdrDdioOff);
        own.fabric.set_seed(seed);
        let check = |image: &[u8], _| {
            let lines = image[..LEN].chunks(64);
            let lost = lines.filter(|line| **line == [0; 64]).count();
            assert_ne!(lost, 2, "two lines are lost");
        };
        let found = under_every_cut(&own.fabric, &own.pmem, check, |_| -> Result {
            own.map.write_at(0, &[7; LEN])?;
            Ok(own.map.persist(..LEN)?)
        });
        let loss = found.expect_err("a loss");
        assert_says(&loss, &["two lines are lost"]);
    }
}

/// A program's own recovery runs on an image, and changes only its copy.
#[test]
fn an_image_can_be_mapped() -> Result {
    let own = Own::page(Platform::AdrDdioOn);
    own.map.write_at(0, b"recover me")?;
    own.map.persist(0..10)?;
    let mut paths = Vec::new();
    let recover = |cut: &Cut<'_>| {
        for image in cut.images(&own.pmem) {
            let map = PmemMap::open(image.path(), 4096).expect("an image");
            let mut bytes = [0; 10];
            map.read_at(0, &mut bytes).expect("inside");
            assert_eq!(&bytes, b"recover me");
            map.write_at(0, b"recovered!").expect("inside");
            map.persist(..).expect("inside");
            assert_eq!(&image.bytes()[..10], b"recover me");
            paths.push(image.path().to_owned());
        }
    };
    own.fabric.on_every_event(recover, || own.map.persist(..))?;
    assert_eq!(&own.pmem.bytes()[..10], b"recover me");
    // The path is gone with its image.
    let error = PmemMap::open(paths.last().ok_or("images")?, 0).expect_err("no image");
    let text = error.to_string();
    assert!(text.starts_with("stat failed: /rpma-sim/image/"), "{text}");
    Ok(())
}

/// Memory is found by threads of its host, and by others not.
#[test]
fn memory_is_of_its_host() -> Result {
    let rig = Rig::of(&Profile::RXE_6_12).seed(1);
    let (_fabric, [one, other]) = rig.hosts(["one", "other"]);
    let pmem = one.pmem("log", 5000);
    assert_eq!(pmem.len(), 8192);
    let open = |len| PmemMap::open(pmem.path(), len).map(|map| map.len());
    let refused = |len, text| assert_says(&open(len).expect_err("no memory"), &[text]);
    refused(8192, "this thread is on no host: see Host::enter");
    let on_other = other.enter();
    refused(1, "memory of the host one, and this thread is on other");
    drop(on_other);
    let _entered = one.enter();
    assert_eq!(open(8192)?, 8192);
    refused(8193, "8192 bytes that can be mapped, but 8193 are needed");
    assert_eq!(PmemMap::open_range(pmem.path(), 4096..)?.len(), 4096);
    Ok(())
}

/// A check that calls the fabric would wait for itself: that is reported, and the run ends.
#[test]
#[should_panic(expected = "cannot call the fabric or rpma")]
fn a_check_cannot_call_the_fabric() {
    let own = Own::page(Platform::AdrDdioOn);
    let check = |cut: &Cut<'_>| {
        let _ = cut.images(&own.pmem).count();
        let _ = own.fabric.objects();
    };
    let persist = || own.map.persist(..).expect("inside");
    own.fabric.on_every_event(check, persist);
}

/// A panic of the program comes through, and the fabric can be watched again.
#[test]
fn a_panic_of_the_program_comes_through() -> Result {
    let own = Own::page(Platform::AdrDdioOn);
    let check = |cut: &Cut<'_>| assert!(cut.images(&own.pmem).count() > 0);
    let text = panic_of(|| own.fabric.on_every_event(check, || panic!("its own")));
    assert_eq!(text, "its own");
    let before = own.fabric.visited();
    own.fabric.on_every_event(|_| (), || own.map.persist(..))?;
    assert!(own.fabric.visited().events > before.events);
    Ok(())
}

/// Writes data, and an index that leads there. The data is flushed before, or not.
pub(crate) fn writes_an_index(world: &World, flushes: bool) -> Ran {
    let check = |image: &[u8], _| {
        let is_there = image[1024..1032] == [5; 8];
        assert!(image[512] == 0 || is_there, "the index leads nowhere");
    };
    world.under_every_cut(check, |_| {
        world.write(256, &[4; 100])?;
        world.write(1024, &[5; 8])?;
        if flushes {
            world.flush(1024, 8)?;
        }
        world.write(512, &[1])?;
        world.flush(512, 1)
    })
}

/// A report has the operation, the bytes, the place, and the calls that would have saved them; and
/// only those that matter.
#[test]
fn a_report_says_what_matters() -> Result {
    let way = Way::on(Platform::AdrDdioOff).by_reading(true);
    let world = World::of(&Profile::STRICT, way)?;
    let report = writes_an_index(&world, false)
        .expect_err("a loss")
        .to_string();
    println!("{report}");
    let parts = [
        "the index leads nowhere",
        "The power fails at event ",
        "after a write of 1 byte (op_context 0, tests/fabric/power/world.rs:",
        ") on connection ",
        "Lost: bytes 1024..1032 of log of server, in flight in the device, by a write of 8 bytes (op_context 0, tests/fabric/power/world.rs:",
        "A flush on the same connection, after the write, would have saved them.",
        "In the image: 00 00 00 00 00 00 00 00; otherwise: 05 05 05 05 05 05 05 05",
        "There already: bytes 512..520 of log of server, in flight in the device, by a write of 1 byte",
        "Write them only after a completed flush of all bytes that must be there before them.",
    ];
    assert_says(&report, &parts);
    assert!(!report.contains("256"), "{report}");
    Ok(())
}

/// The first byte is at least what the program has told.
fn assert_told(image: &[u8], told: u64) {
    assert!(u64::from(image[0]) >= told, "told");
}

/// The server's program persists a write that may still be in its device, or has been seen.
pub(crate) fn persists(world: &World, sees: bool) -> Ran {
    world.under_every_cut(assert_told, |tell| {
        world.write(0, &[1])?;
        world.wait_for_write()?;
        if sees {
            anyhow::ensure!(world.seen()? == [1]);
        }
        world.target.persist(..8)?;
        tell(1);
        world.wait_for_write()
    })
}

/// Bytes that are still in the device are not saved by `PmemMap::persist`, and the report does not
/// recommend it alone.
#[test]
fn a_report_on_bytes_in_the_device() -> Result {
    for (profile, saves) in [
        (Profile::STRICT, "A native flush for persistence"),
        (Profile::ADAPTER, "The server's method"),
    ] {
        let world = World::of(&profile, Way::on(Platform::AdrDdioOn))?;
        let found = persists(&world, false);
        let alone = "PmemMap::persist alone does not reach bytes in the device";
        assert_says(&found.expect_err("a loss"), &[saves, alone]);
    }
    Ok(())
}

/// Data that a queue pair has received is there when it is destroyed, and data that was written to
/// a region when it is deregistered: programs may free the memory then.
#[test]
fn nothing_is_under_way_to_memory_that_may_be_freed() -> Result {
    for destroys in [true, false] {
        let world = World::of(&Profile::STRICT, Way::on(Platform::AdrDdioOff))?;
        world.write(0, &[1; 64])?;
        world.wait_for_write()?;
        assert!(world.images(10).len() > 1);
        if destroys {
            drop(world.far)
        } else {
            drop(world.target.dereg()?)
        }
        let left = world.hosts.images(10);
        assert_eq!(left.len(), 1, "{destroys}");
        assert_eq!(left[0][..64], [1; 64], "{destroys}");
    }
    Ok(())
}

/// A native flush covers the bytes of its range, by words, and no other byte of a line.
#[test]
fn a_native_flush_covers_its_range() -> Result {
    let world = World::of(&Profile::STRICT, Way::on(Platform::AdrDdioOn))?;
    world.write(0, &[1; 32])?;
    world.flush(8, 9)?;
    let left = world.images(100);
    assert!(left.iter().all(|image| image[8..24] == [1; 16]));
    let first_and_last = |image: &Vec<u8>| [&image[..8], &image[24..32]].concat();
    let left: BTreeSet<Vec<u8>> = left.iter().map(first_and_last).collect();
    for [first, last] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        let whole = [[first; 8], [last; 8]].concat();
        assert!(left.contains(&whole), "{whole:?}");
    }
    assert!(left.len() > 4, "and torn ones");
    Ok(())
}

/// In one line a later store is not there without the earlier data: a cache writes all of it back.
#[test]
fn a_line_keeps_the_order_of_stores() -> Result {
    let own = Own::page(Platform::AdrDdioOn);
    own.map.write_at(0, &[1; 8])?;
    own.map.persist(64..65)?;
    own.map.write_at(8, &[2; 8])?;
    let left = own.images(10);
    let words: BTreeSet<[u8; 2]> = left.iter().map(|image| [image[0], image[8]]).collect();
    assert_eq!(words, BTreeSet::from([[0, 0], [1, 0], [1, 2]]));
    Ok(())
}

/// A program that acknowledges too early is found, though the data is durable a moment later:
/// between its poll and its next call, and between a store and its write-back.
#[test]
fn a_promise_before_its_time_is_found() -> Result {
    let world = World::of(&Profile::RXE_6_12, Way::on(Platform::AdrDdioOn))?;
    let remote = world.under_every_cut(assert_told, |tell| {
        world.write(0, &[1])?;
        world.wait_for_write()?;
        tell(1);
        world.flush(0, 1)
    });
    let loss = remote.expect_err("it is told before the flush");
    assert_says(&loss, &[", before ibv_"]);

    let own = world.under_every_cut(assert_told, |tell| {
        world.target.write_at(0, &[2])?;
        tell(2);
        world.target.persist(..1)
    });
    let loss = own.expect_err("it is told before the write-back");
    assert_says(&loss, &[", before a write-back of caches on server"]);
    Ok(())
}

/// No check is called after on_every_event has ended, in any way.
#[test]
fn a_check_is_not_called_after_its_end() -> Result {
    static CALLED: AtomicU8 = AtomicU8::new(0);
    let own = Own::page(Platform::AdrDdioOn);
    let _other = own.host.spawn(|| sim::sleep(Duration::from_secs(3600)));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // It could as well have borrowed something of this frame.
        let check = |_: &Cut<'_>| {
            CALLED.fetch_add(1, Ordering::Relaxed);
        };
        own.fabric
            .on_every_event(check, || thread::sleep(Duration::from_secs(4)));
    }));
    ended.expect("a thread that was away comes back");
    let before = CALLED.load(Ordering::Relaxed);
    own.map.write_at(0, &[1])?;
    own.map.persist(..)?;
    let after = CALLED.load(Ordering::Relaxed);
    assert_eq!(after, before, "the check is dangling");
    Ok(())
}
