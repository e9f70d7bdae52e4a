//! The rules of the possible contents, in the cases that were once wrong: images that were missing,
//! and alarms that were false.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use rpma::sim::seen;

use crate::common::prelude::*;
use crate::power::cuts::images;
use crate::power::world::{LIMIT, SIZE, Way, World, fabric};

fn way(platform: Platform) -> Way {
    Way {
        platform,
        by_reading: false,
        promise: Some(true),
    }
}

/// All images of all events.
fn all_images(
    fabric: &Fabric,
    pmem: &Pmem,
    run: impl FnOnce() -> Result<()>,
) -> Result<BTreeSet<Vec<u8>>> {
    let all = Mutex::new(BTreeSet::new());
    let check = |cut: &Cut<'_>| {
        for image in cut.images(pmem) {
            all.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(image.bytes()[..128].to_vec());
        }
    };
    fabric.on_every_event(check, run)?;
    Ok(all.into_inner().expect("no panic"))
}

fn last_images(fabric: &Fabric, pmem: &Pmem) -> Result<BTreeSet<Vec<u8>>> {
    all_images(fabric, pmem, || Ok(()))
}

/// The most usual fault: acknowledged when the flush is posted, and not when it was polled.
#[test]
fn acknowledged_before_the_poll() -> Result<()> {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
            let fabric = fabric(&profile);
            let world = World::new(&fabric, way(platform))?;
            let acknowledged = AtomicU64::new(0);
            let check = |cut: &Cut<'_>| {
                for image in cut.images(&world.pmem) {
                    let told = acknowledged.load(Ordering::Relaxed) == 1;
                    assert!(!told || image.bytes()[0] == 1, "lost");
                }
            };
            let found = fabric.find_loss(check, || -> Result<()> {
                world.write(0, &[1; 8])?;
                let (to, _) = world.places(0, 8)?;
                let flags = Flags::COMPLETION_ALWAYS;
                let flushed = world.conn.flush(to, FlushType::Persistent, flags, 1)?;
                acknowledged.store(1, Ordering::Relaxed);
                world.wait(flushed)
            });
            // soft-RoCE copies a write at once, into caches that eADR saves.
            let is_safe = !profile.is_adapter() && platform == Platform::Eadr;
            assert_eq!(found.is_ok(), is_safe, "{platform}, {profile:?}");
        }
    }
    Ok(())
}

/// A write with immediate data is torn when the power fails in the middle of it.
#[test]
fn a_write_with_immediate_data_is_torn() -> Result<()> {
    for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
        let fabric = fabric(&Profile::STRICT);
        let world = World::new(&fabric, way(platform))?;
        world.source.write_at(0, &[7; 32])?;
        let all = all_images(&fabric, &world.pmem, || {
            world.far.recv(world.messages.slice(..8)?, 4)?;
            let (to, from) = world.places(0, 32)?;
            let written = world
                .conn
                .write_with_imm(to, from, Flags::COMPLETION_ALWAYS, 5, 3)?;
            world.wait(written)
        })?;
        let torn = all
            .iter()
            .filter(|image| image[..32] != [0; 32] && image[..32] != [7; 32]);
        assert!(torn.count() > 0, "{platform}: {} images", all.len());
    }
    Ok(())
}

/// A message that lands in persistent memory is torn as well.
#[test]
fn a_message_into_persistent_memory_is_torn() -> Result<()> {
    for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
        let fabric = fabric(&Profile::STRICT);
        let world = World::new(&fabric, way(platform))?;
        let ring = {
            let _on = world.server.enter();
            let map = PmemMap::open(world.pmem.path(), SIZE)?;
            Mr::reg(&world.peers.1, map, MrUsage::RECV)?
        };
        world.source.write_at(0, &[7; 32])?;
        let all = all_images(&fabric, &world.pmem, || {
            let (conn, far) = &world.other;
            far.recv(ring.slice(..32)?, 4)?;
            let sent = conn.send(world.source.slice(..32)?, Flags::COMPLETION_ALWAYS, 5)?;
            conn.wait_for(sent, LIMIT, |_| {})?;
            Ok(())
        })?;
        let torn = all
            .iter()
            .filter(|image| image[..32] != [0; 32] && image[..32] != [7; 32]);
        assert!(torn.count() > 0, "{platform}: {} images", all.len());
    }
    Ok(())
}

/// Replication by reading: data that a program has read into its own persistent memory, polled and
/// persisted, is durable.
#[test]
fn read_into_own_memory_and_persisted() -> Result<()> {
    let mut bad = Vec::new();
    for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
        let fabric = fabric(&Profile::STRICT);
        let world = World::new(&fabric, way(platform))?;
        world.client.set_platform(platform);
        let own = world.client.pmem("replica", SIZE);
        let _on = world.client.enter();
        let replica = Mr::reg(
            &world.peers.0,
            PmemMap::open(own.path(), SIZE)?,
            MrUsage::READ_DST,
        )?;
        world.target.write_at(0, &[9; 64])?;
        world.target.persist(..)?;
        let (from, _) = world.places(0, 64)?;
        let read = world
            .conn
            .read(replica.slice(..64)?, from, Flags::COMPLETION_ALWAYS, 8)?;
        world.wait(read)?;
        replica.persist(..)?;
        let images = last_images(&fabric, &own)?;
        if images.iter().any(|image| image[..64] != [9; 64]) {
            bad.push((platform, images.len()));
        }
    }
    assert!(bad.is_empty(), "false alarms: {bad:?}");
    Ok(())
}

/// Two clients, each with 4 bytes of a word: a flush of one does not save the bytes of the other.
#[test]
fn a_flush_saves_nothing_of_another_connection() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.source.write_at(0, &[1; 8])?;
    let (to, from) = world.places(0, 4)?;
    world.wait(world.conn.write(to, from, Flags::COMPLETION_ALWAYS, 1)?)?;
    let (to, from) = world.places(4, 4)?;
    world
        .other
        .0
        .write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
    world.flush_on_other(4, 4)?;
    let images = last_images(&fabric, &world.pmem)?;
    assert!(
        images.iter().any(|image| image[..4] == [0; 4]),
        "the first 4 bytes were flushed by nobody: {:?}",
        images.iter().map(|image| &image[..8]).collect::<Vec<_>>()
    );
    Ok(())
}

/// As long as no byte was made durable no image goes away.
#[test]
fn to_be_visible_makes_nothing_durable() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOn))?;
    world.write(0, &[1; 8])?;
    world.write(8, &[2; 8])?;
    world.wait_for_write()?;
    let before = last_images(&fabric, &world.pmem)?;
    world.flush_as(0, 16, FlushType::Visibility)?;
    let after = last_images(&fabric, &world.pmem)?;
    let first = |set: &BTreeSet<Vec<u8>>| -> BTreeSet<(u8, u8)> {
        set.iter().map(|image| (image[0], image[8])).collect()
    };
    assert_eq!(first(&before), first(&after));
    Ok(())
}

/// If more of a line is undecided than is listed, others come by chance, up to the limit.
#[test]
fn images_of_one_line() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let host = fabric.host("host");
    let pmem = host.pmem("log", 1);
    let _on = host.enter();
    let map = PmemMap::open(pmem.path(), 4096)?;
    map.write_at(0, &[1; 32])?;
    assert_eq!(last_images(&fabric, &pmem)?.len(), 16, "all of four words");
    map.write_at(64, &[1; 40])?;
    map.persist(..64)?;
    let many = images(&fabric, &pmem, 2000, || ());
    assert_eq!(many.len(), 2000);
    let many: BTreeSet<Vec<u8>> = many.into_iter().collect();
    assert_eq!(many.len(), 32, "all of five words, some more than once");
    Ok(())
}

/// Once both ends of a connection are gone no write is on its way: data that the server persists
/// then is durable.
#[test]
fn nothing_is_under_way_when_the_connection_is_gone() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.write(0, &[5; 8])?;
    world.wait_for_write()?;
    let World {
        conn,
        far,
        target,
        pmem,
        ..
    } = world;
    drop(conn);
    drop(far);
    let mut seen = [0; 8];
    target.read_at(0, &mut seen)?;
    assert_eq!(seen, [5; 8]);
    target.persist(..)?;
    let map = target.dereg();
    drop(map);
    let images = last_images(&fabric, &pmem)?;
    assert!(
        images.iter().all(|image| image[..8] == [5; 8]),
        "a false alarm"
    );
    Ok(())
}

/// A server that polls its memory, sees the flag, persists it.
#[test]
fn what_was_seen_and_persisted_is_durable() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOn))?;
    world.atomic_write(0, &[5; 8])?;
    let mut seen = [0; 8];
    let _ = world.wait_for_write();
    world.target.read_at(0, &mut seen)?;
    assert_eq!(seen, [5; 8]);
    world.target.persist(0..8)?;
    let images = last_images(&fabric, &world.pmem)?;
    assert!(
        images.iter().all(|image| image[..8] == [5; 8]),
        "a false alarm"
    );
    Ok(())
}

/// Bytes that a read of another connection has returned have left the device; others have not.
#[test]
fn what_another_connection_has_read_is_visible() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.write(0, &[5; 8])?;
    world.write(64, &[5; 8])?;
    world.wait_for_write()?;
    let other = &world.other.0;
    let from = world.remote.slice(0..8)?;
    let read = other.read(
        world.source.slice(128..136)?,
        from,
        Flags::COMPLETION_ALWAYS,
        1,
    )?;
    other.wait_for(read, LIMIT, |_| {})?;
    let images = last_images(&fabric, &world.pmem)?;
    assert!(
        images.iter().all(|image| image[..8] == [5; 8]),
        "a false alarm"
    );
    let is_lost = |image: &Vec<u8>| image[64..72] == [0; 8];
    assert!(images.iter().any(is_lost), "nothing has read it");
    Ok(())
}

/// As `what_was_seen_and_persisted_is_durable`, by a program that reads through a pointer.
#[test]
fn what_was_seen_through_a_pointer_is_durable() -> Result<()> {
    for tells in [false, true] {
        let fabric = fabric(&Profile::STRICT);
        let world = World::new(&fabric, way(Platform::AdrDdioOn))?;
        world.atomic_write(0, &[5; 8])?;
        world.wait_for_write()?;
        if tells {
            seen(world.target.get_ptr(), 8);
        }
        world.target.persist(0..8)?;
        let images = last_images(&fabric, &world.pmem)?;
        let is_durable = images.iter().all(|image| image[..8] == [5; 8]);
        assert_eq!(
            is_durable, tells,
            "a write in the device is not written back"
        );
    }
    Ok(())
}

/// The completion of the write is taken for that of the flush, which was posted after it and is
/// not done. The poll that returns the one does not let the device execute the other.
#[test]
fn acknowledged_when_the_write_has_completed() -> Result<()> {
    for profile in Profile::ALL {
        for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
            let fabric = fabric(&profile);
            let world = World::new(&fabric, way(platform))?;
            let found = told_before(&world, &fabric, |tell| {
                world.source.write_at(0, &[5; 8])?;
                let (to, from) = world.places(0, 8)?;
                let written = world.conn.write(to, from, Flags::COMPLETION_ALWAYS, 1)?;
                let flushed =
                    world
                        .conn
                        .flush(to, FlushType::Persistent, Flags::COMPLETION_ALWAYS, 2)?;
                world.wait(written)?;
                tell();
                world.wait(flushed)
            });
            // soft-RoCE copies into the caches, which are durable there.
            let is_durable = platform == Platform::Eadr && !profile.is_adapter();
            assert_eq!(found, !is_durable, "{}, {platform}", profile.name());
        }
    }
    Ok(())
}

fn told_before(world: &World, fabric: &Fabric, run: impl FnOnce(&dyn Fn()) -> Result<()>) -> bool {
    let told = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&world.pmem) {
            assert!(
                told.load(Ordering::Relaxed) == 0 || image.bytes()[..8] == [5; 8],
                "lost"
            );
        }
    };
    let tell = || told.store(1, Ordering::Relaxed);
    fabric.find_loss(check, || run(&tell)).is_err()
}

/// Acknowledged when the write has completed; then another program of the host reads it.
#[test]
fn acknowledged_before_it_is_read() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    let found = told_before(&world, &fabric, |tell| {
        world.write(0, &[5; 8])?;
        world.wait_for_write()?;
        tell();
        let mut seen = [0; 8];
        Ok(world.target.read_at(0, &mut seen)?)
    });
    assert!(found, "the loss between the acknowledgement and the read");
    Ok(())
}

/// The same, and then a region is deregistered, of two at the same place.
#[test]
fn acknowledged_before_the_region_goes() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    let second = {
        let _on = world.server.enter();
        let map = PmemMap::open(world.pmem.path(), SIZE)?;
        Mr::reg(&world.peers.1, map, MrUsage::WRITE_DST)?
    };
    let found = told_before(&world, &fabric, |tell| {
        world.write(0, &[5; 8])?;
        // Posted, executed, not polled.
        tell();
        drop(second);
        Ok(())
    });
    assert!(found, "the loss between the acknowledgement and the end");
    Ok(())
}

/// 4 bytes are flushed; 4 bytes beside them, of another write, are not.
#[test]
fn a_flush_of_half_a_word() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.write(0, &[1; 4])?;
    world.write(4, &[2; 4])?;
    world.flush(0, 4)?;
    let images = images(&fabric, &world.pmem, 100, || ());
    assert!(images.iter().all(|image| image[..4] == [1; 4]));
    assert!(
        images.iter().any(|image| image[4..8] == [0; 4]),
        "bytes 4..8 were not flushed"
    );
    Ok(())
}

/// A program persists its stores beside a device's write that is on its way.
#[test]
fn a_persist_beside_a_write_on_its_way() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.write(0, &[1; 4])?;
    world.wait_for_write()?;
    world.target.write_at(4, &[2; 4])?;
    world.target.persist(4..8)?;
    let images = images(&fabric, &world.pmem, 100, || ());
    assert!(images.iter().all(|image| image[4..8] == [2; 4]));
    assert!(
        images.iter().any(|image| image[..4] == [0; 4]),
        "bytes 0..4 are still on their way"
    );
    Ok(())
}

/// A read of no bytes reads no memory, and pushes no write.
#[test]
fn a_read_of_nothing_pushes_nothing() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    world.write(0, &[5; 8])?;
    let own = Mr::reg(&world.peers.0, vec![0; 8], MrUsage::READ_DST)?;
    let from = world.remote.slice(0..0)?;
    let read = world
        .conn
        .read(own.slice(..0)?, from, Flags::COMPLETION_ALWAYS, 8)?;
    world.wait(read)?;
    let images = images(&fabric, &world.pmem, 100, || ());
    assert!(images.iter().any(|image| image[..8] == [0; 8]));
    Ok(())
}

/// The order of two words after a large record.
#[test]
fn behind_a_large_write() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&world.pmem) {
            let bytes = image.bytes();
            assert!(bytes[3072] == 0 || bytes[3008] == 1, "flag without value");
        }
    };
    let found = fabric.find_loss(check, || -> Result<()> {
        world.write(0, &[7; 2944])?;
        world.write(3008, &[1; 8])?;
        world.write(3072, &[1; 8])?;
        world.wait_for_write()
    });
    assert!(found.is_err(), "{:?}", fabric.visited());
    Ok(())
}

/// A quorum that polls one replica and acknowledges: the other's flush was posted only.
#[test]
fn one_of_two_is_polled() -> Result<()> {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        // Its time goes by calls, so that the flush is not executed meanwhile.
        let fabric = Rig::of(&profile).seed(1).fabric();
        let world = World::new(&fabric, way(Platform::AdrDdioOn))?;
        let found = told_before(&world, &fabric, |tell| {
            world.write(0, &[5; 8])?;
            world.post_flush(0, 8, FlushType::Persistent)?;
            let (to, from) = world.places(128, 8)?;
            let other = &world.other.0;
            other.write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
            world.flush_on_other(128, 8)?;
            tell();
            other.write(to, from, Flags::COMPLETION_ON_ERROR, 1)?;
            world.flush_on_other(128, 8)
        });
        assert!(found, "{profile:?}");
    }
    Ok(())
}

/// A read that is not signaled, and a failure after it that is polled.
#[test]
fn a_read_before_a_failure() -> Result<()> {
    let fabric = fabric(&Profile::STRICT);
    let world = World::new(&fabric, way(Platform::AdrDdioOff))?;
    let own = world.client.pmem("replica", SIZE);
    let _on = world.client.enter();
    let map = PmemMap::open(own.path(), SIZE)?;
    let replica = Mr::reg(&world.peers.0, map, MrUsage::READ_DST)?;
    world.target.write_at(0, &[9; 64])?;
    world.target.persist(..)?;
    fabric.between(&world.client, &world.server).lose_request(2);
    let (from, _) = world.places(0, 64)?;
    world
        .conn
        .read(replica.slice(..64)?, from, Flags::COMPLETION_ON_ERROR, 8)?;
    let read = world
        .conn
        .read(replica.slice(64..128)?, from, Flags::COMPLETION_ALWAYS, 9)?;
    world.wait(read).expect_err("it is lost");
    replica.persist(..)?;
    let images = images(&fabric, &own, 100, || ());
    assert!(
        images.iter().all(|image| image[..64] == [9; 64]),
        "a false alarm"
    );
    Ok(())
}
