//! The rules of the possible contents, in the cases that were once wrong: images that were missing,
//! and alarms that were false.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use rpma::sim::seen;

use crate::common::prelude::*;
use crate::power::world::{
    ALWAYS, LIMIT, ON_ERROR, Own, PLATFORMS, Ran, SIZE, Way, World, images, register,
};

/// A world of the strict adapter. Its server promises direct writes, also where it may not.
fn strict(platform: Platform) -> Result<World> {
    promising(&Profile::STRICT, platform)
}

fn promising(profile: &Profile, platform: Platform) -> Result<World> {
    Ok(World::of(profile, Way::on(platform).promising())?)
}

/// The beginnings of the images at the end.
fn last_images(fabric: &Fabric, pmem: &Pmem) -> BTreeSet<Vec<u8>> {
    let all = images(fabric, pmem, 100, || ()).into_iter();
    all.map(|image| image[..128].to_vec()).collect()
}

/// In each image the memory begins with these bytes.
#[track_caller]
fn assert_durable(fabric: &Fabric, pmem: &Pmem, bytes: &[u8]) {
    let images = images(fabric, pmem, 100, || ());
    let is_durable = images.iter().all(|image| image.starts_with(bytes));
    assert!(is_durable, "a false alarm in one of {}", images.len());
}

/// Writes 8 bytes, and acknowledges them too early.
fn told_before(world: &World, run: impl FnOnce(&dyn Fn()) -> anyhow::Result<()>) -> Ran {
    let check = |image: &[u8], told| assert!(told == 0 || image[..8] == [5; 8], "lost");
    world.under_every_cut(check, |tell| run(&|| tell(1)))
}

/// The right program: acknowledged when the flush was polled.
pub(crate) fn tells_after_the_poll(world: &World) -> Ran {
    told_before(world, |tell| {
        world.write(0, &[5; 8])?;
        world.flush(0, 8)?;
        tell();
        world.wait_for_write()
    })
}

pub(crate) fn tells_before_the_poll(world: &World) -> Ran {
    told_before(world, |tell| {
        world.write(0, &[5; 8])?;
        let flushed = world.begin_flush(0, 8)?;
        tell();
        world.wait(flushed)
    })
}

pub(crate) fn tells_when_the_write_has_completed(world: &World) -> Ran {
    told_before(world, |tell| {
        world.source.write_at(0, &[5; 8])?;
        let (to, from) = world.places(0, 8)?;
        let written = world.conn.write(to, from, ALWAYS, 1)?;
        let flushed = world.begin_flush(0, 8)?;
        world.wait(written)?;
        tell();
        world.wait(flushed)
    })
}

pub(crate) fn tells_before_it_is_read(world: &World) -> Ran {
    told_before(world, |tell| {
        world.write(0, &[5; 8])?;
        world.wait_for_write()?;
        tell();
        world.seen::<8>().map(drop)
    })
}

pub(crate) fn tells_before_the_region_goes(world: &World) -> Ran {
    let usage = MrUsage::WRITE_DST;
    let second = register(&world.server, &world.peers.1, &world.pmem, usage).expect("a region");
    told_before(world, |tell| {
        world.write(0, &[5; 8])?;
        // Posted, executed, not polled.
        tell();
        drop(second);
        Ok(())
    })
}

pub(crate) fn polls_one_of_two(world: &World) -> Ran {
    told_before(world, |tell| {
        let write_to_other = || {
            let (to, from) = world.places(128, 8)?;
            world.other.0.write(to, from, ON_ERROR, 1)?;
            world.flush_on_other(128, 8)
        };
        world.write(0, &[5; 8])?;
        world.post_flush(0, 8, FlushType::Persistent)?;
        write_to_other()?;
        tell();
        write_to_other()
    })
}

/// The order of two words after a large record. They are flushed in between, or not.
pub(crate) fn writes_behind_a_large_write(world: &World, flushes: bool) -> Ran {
    let check = |image: &[u8], _| {
        let is_in_order = image[3072] == 0 || image[3008] == 1;
        assert!(is_in_order, "flag without value");
    };
    world.under_every_cut(check, |_| {
        world.write(0, &[7; 2944])?;
        world.write(3008, &[1; 8])?;
        if flushes {
            world.flush(3008, 8)?;
        }
        world.write(3072, &[1; 8])?;
        world.wait_for_write()
    })
}

/// soft-RoCE copies a write at once, into caches that eADR saves.
fn copies_into_durable_caches(profile: &Profile, platform: Platform) -> bool {
    !profile.is_adapter() && platform == Platform::Eadr
}

/// The most usual fault: acknowledged when the flush is posted, and not when it was polled.
#[test]
fn acknowledged_before_the_poll() -> Result {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        for platform in PLATFORMS {
            let world = promising(&profile, platform)?;
            let found = tells_before_the_poll(&world).is_err();
            let is_safe = copies_into_durable_caches(&profile, platform);
            assert_eq!(found, !is_safe, "{platform}, {profile:?}");
        }
    }
    Ok(())
}

/// In some image of some event a part of the first 32 bytes is there.
fn assert_torn(world: &World, run: impl FnOnce() -> anyhow::Result<()>) -> Result {
    world.source.write_at(0, &[7; 32])?;
    let torn = AtomicBool::new(false);
    let check = |image: &[u8], _| {
        let is_torn = image[..32] != [0; 32] && image[..32] != [7; 32];
        torn.fetch_or(is_torn, Ordering::Relaxed);
    };
    world.under_every_cut(check, |_| run())??;
    assert!(torn.into_inner(), "{:?}", world.fabric.visited());
    Ok(())
}

/// A write with immediate data is torn when the power fails in the middle of it.
#[test]
fn a_write_with_immediate_data_is_torn() -> Result {
    for platform in PLATFORMS {
        let world = strict(platform)?;
        assert_torn(&world, || {
            world.far.recv(world.messages.slice(..8)?, 4)?;
            let (to, from) = world.places(0, 32)?;
            world.wait(world.conn.write_with_imm(to, from, ALWAYS, 5, 3)?)
        })?;
    }
    Ok(())
}

/// A message that lands in persistent memory is torn as well.
#[test]
fn a_message_into_persistent_memory_is_torn() -> Result {
    for platform in PLATFORMS {
        let world = strict(platform)?;
        let ring = register(&world.server, &world.peers.1, &world.pmem, MrUsage::RECV)?;
        assert_torn(&world, || {
            let (conn, far) = &world.other;
            far.recv(ring.slice(..32)?, 4)?;
            let sent = conn.send(world.source.slice(..32)?, ALWAYS, 5)?;
            conn.wait_for(sent, LIMIT, |_| {})?;
            Ok(())
        })?;
    }
    Ok(())
}

/// Replication by reading: data that a program has read into its own persistent memory, polled and
/// persisted, is durable.
#[test]
fn read_into_own_memory_and_persisted() -> Result {
    for platform in PLATFORMS {
        let world = strict(platform)?;
        world.client.set_platform(platform);
        let own = world.client.pmem("replica", SIZE);
        let replica = register(&world.client, &world.peers.0, &own, MrUsage::READ_DST)?;
        world.target.write_at(0, &[9; 64])?;
        world.target.persist(..)?;
        let (from, _) = world.places(0, 64)?;
        let read = world.conn.read(replica.slice(..64)?, from, ALWAYS, 8)?;
        world.wait(read)?;
        replica.persist(..)?;
        assert_durable(&world.fabric, &own, &[9; 64]);
    }
    Ok(())
}

/// Two clients, each with 4 bytes of a word: a flush of one does not save the bytes of the other.
#[test]
fn a_flush_saves_nothing_of_another_connection() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.source.write_at(0, &[1; 8])?;
    let (to, from) = world.places(0, 4)?;
    world.wait(world.conn.write(to, from, ALWAYS, 1)?)?;
    let (to, from) = world.places(4, 4)?;
    world.other.0.write(to, from, ON_ERROR, 1)?;
    world.flush_on_other(4, 4)?;
    let images = last_images(&world.fabric, &world.pmem);
    let is_lost = images.iter().any(|image| image[..4] == [0; 4]);
    assert!(is_lost, "the first 4 bytes were flushed by nobody");
    Ok(())
}

/// As long as no byte was made durable no image goes away.
#[test]
fn to_be_visible_makes_nothing_durable() -> Result {
    let world = strict(Platform::AdrDdioOn)?;
    world.write(0, &[1; 8])?;
    world.write(8, &[2; 8])?;
    world.wait_for_write()?;
    let firsts = || -> BTreeSet<_> {
        let images = last_images(&world.fabric, &world.pmem).into_iter();
        images.map(|image| (image[0], image[8])).collect()
    };
    let before = firsts();
    world.flush_as(0, 16, FlushType::Visibility)?;
    assert_eq!(before, firsts());
    Ok(())
}

/// If more of a line is undecided than is listed, others come by chance, up to the limit.
#[test]
fn images_of_one_line() -> Result {
    let own = Own::page(Platform::AdrDdioOn);
    own.map.write_at(0, &[1; 32])?;
    let few = last_images(&own.fabric, &own.pmem);
    assert_eq!(few.len(), 16, "all of four words");
    own.map.write_at(64, &[1; 40])?;
    own.map.persist(..64)?;
    let many = own.images(2000);
    assert_eq!(many.len(), 2000);
    let many: BTreeSet<Vec<u8>> = many.into_iter().collect();
    assert_eq!(many.len(), 32, "all of five words, some more than once");
    Ok(())
}

/// Once both ends of a connection are gone no write is on its way: data that the server persists
/// then is durable.
#[test]
fn nothing_is_under_way_when_the_connection_is_gone() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.write(0, &[5; 8])?;
    world.wait_for_write()?;
    drop((world.conn, world.far));
    let mut seen = [0; 8];
    world.target.read_at(0, &mut seen)?;
    assert_eq!(seen, [5; 8]);
    world.target.persist(..)?;
    drop(world.target.dereg());
    assert_durable(&world.hosts.fabric, &world.hosts.pmem, &[5; 8]);
    Ok(())
}

/// A server that polls its memory, sees the flag, persists it.
#[test]
fn what_was_seen_and_persisted_is_durable() -> Result {
    let world = strict(Platform::AdrDdioOn)?;
    world.atomic_write(0, &[5; 8])?;
    world.wait_for_write()?;
    assert_eq!(world.seen()?, [5; 8]);
    world.target.persist(0..8)?;
    assert_durable(&world.fabric, &world.pmem, &[5; 8]);
    Ok(())
}

/// Bytes that a read of another connection has returned have left the device; others have not.
#[test]
fn what_another_connection_has_read_is_visible() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.write(0, &[5; 8])?;
    world.write(64, &[5; 8])?;
    world.wait_for_write()?;
    let (other, from) = (&world.other.0, world.remote.slice(0..8)?);
    let read = other.read(world.source.slice(128..136)?, from, ALWAYS, 1)?;
    other.wait_for(read, LIMIT, |_| {})?;
    assert_durable(&world.fabric, &world.pmem, &[5; 8]);
    let images = last_images(&world.fabric, &world.pmem);
    let is_lost = images.iter().any(|image| image[64..72] == [0; 8]);
    assert!(is_lost, "nothing has read it");
    Ok(())
}

/// As `what_was_seen_and_persisted_is_durable`, by a program that reads through a pointer.
#[test]
fn what_was_seen_through_a_pointer_is_durable() -> Result {
    for tells in [false, true] {
        let world = strict(Platform::AdrDdioOn)?;
        world.atomic_write(0, &[5; 8])?;
        world.wait_for_write()?;
        if tells {
            seen(world.target.get_ptr(), 8);
        }
        world.target.persist(0..8)?;
        let images = last_images(&world.fabric, &world.pmem);
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
fn acknowledged_when_the_write_has_completed() -> Result {
    for profile in Profile::ALL {
        for platform in PLATFORMS {
            let world = promising(&profile, platform)?;
            let found = tells_when_the_write_has_completed(&world).is_err();
            let is_durable = copies_into_durable_caches(&profile, platform);
            assert_eq!(found, !is_durable, "{}, {platform}", profile.name());
        }
    }
    Ok(())
}

/// Acknowledged when the write has completed; then another program of the host reads it.
#[test]
fn acknowledged_before_it_is_read() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    let found = tells_before_it_is_read(&world).is_err();
    assert!(found, "the loss between the acknowledgement and the read");
    Ok(())
}

/// The same, and then a region is deregistered, of two at the same place.
#[test]
fn acknowledged_before_the_region_goes() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    let found = tells_before_the_region_goes(&world).is_err();
    assert!(found, "the loss between the acknowledgement and the end");
    Ok(())
}

/// 4 bytes are flushed; 4 bytes beside them, of another write, are not.
#[test]
fn a_flush_of_half_a_word() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.write(0, &[1; 4])?;
    world.write(4, &[2; 4])?;
    world.flush(0, 4)?;
    let images = world.images(100);
    assert!(images.iter().all(|image| image[..4] == [1; 4]));
    let is_lost = images.iter().any(|image| image[4..8] == [0; 4]);
    assert!(is_lost, "bytes 4..8 were not flushed");
    Ok(())
}

/// A program persists its stores beside a device's write that is on its way.
#[test]
fn a_persist_beside_a_write_on_its_way() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.write(0, &[1; 4])?;
    world.wait_for_write()?;
    world.target.write_at(4, &[2; 4])?;
    world.target.persist(4..8)?;
    let images = world.images(100);
    assert!(images.iter().all(|image| image[4..8] == [2; 4]));
    let is_lost = images.iter().any(|image| image[..4] == [0; 4]);
    assert!(is_lost, "bytes 0..4 are still on their way");
    Ok(())
}

/// A read of no bytes reads no memory, and pushes no write.
#[test]
fn a_read_of_nothing_pushes_nothing() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    world.write(0, &[5; 8])?;
    let own = Mr::reg(&world.peers.0, vec![0; 8], MrUsage::READ_DST)?;
    let from = world.remote.slice(0..0)?;
    world.wait(world.conn.read(own.slice(..0)?, from, ALWAYS, 8)?)?;
    let images = world.images(100);
    assert!(images.iter().any(|image| image[..8] == [0; 8]));
    Ok(())
}

#[test]
fn behind_a_large_write() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    let found = writes_behind_a_large_write(&world, false);
    assert!(found.is_err(), "{:?}", world.fabric.visited());
    Ok(())
}

/// A quorum that polls one replica and acknowledges: the other's flush was posted only.
#[test]
fn one_of_two_is_polled() -> Result {
    for profile in [Profile::RXE_6_12, Profile::STRICT] {
        // Its time goes by calls, so that the flush is not executed meanwhile.
        let world = promising(&profile, Platform::AdrDdioOn)?;
        let found = polls_one_of_two(&world).is_err();
        assert!(found, "{profile:?}");
    }
    Ok(())
}

/// A read that is not signaled, and a failure after it that is polled.
#[test]
fn a_read_before_a_failure() -> Result {
    let world = strict(Platform::AdrDdioOff)?;
    let own = world.client.pmem("replica", SIZE);
    let replica = register(&world.client, &world.peers.0, &own, MrUsage::READ_DST)?;
    world.target.write_at(0, &[9; 64])?;
    world.target.persist(..)?;
    world.link().lose_request(2);
    let (from, _) = world.places(0, 64)?;
    let conn = &world.conn;
    conn.read(replica.slice(..64)?, from, ON_ERROR, 8)?;
    let read = conn.read(replica.slice(64..128)?, from, ALWAYS, 9)?;
    world.wait(read).expect_err("it is lost");
    replica.persist(..)?;
    assert_durable(&world.fabric, &own, &[9; 64]);
    Ok(())
}
