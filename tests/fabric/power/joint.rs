//! Replicas that lose their power together: images of several memories at once.

use std::sync::atomic::{AtomicU64, Ordering};

use rpma::sim::Image;

use crate::common::prelude::*;
use crate::power::world::{Hosts, Ran, SIZE, Way, World, fabric};

const LEN: usize = 256;

/// When a record counts as safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Safe {
    /// Two of three replicas have flushed it.
    TwoFlushed,
    /// One has, and the write to another one has completed.
    OneFlushed,
}

fn replicas(fabric: &Fabric) -> Result<Vec<World>> {
    let way = Way::on(Platform::AdrDdioOff).by_reading(true);
    let client = fabric.host("client");
    let servers = ["a", "b", "c"].into_iter().map(|name| fabric.host(name));
    let connect = |server| Ok(Hosts::new(fabric, [client.clone(), server], way, SIZE).connect()?);
    servers.map(connect).collect()
}

fn bytes(number: u64) -> [u8; LEN] {
    [number as u8 + 1; LEN]
}

fn run(profile: &Profile, safe: Safe) -> Result<u64, Loss> {
    let fabric = fabric(profile);
    run_on(&fabric, safe, 4)?.expect("nothing fails");
    Ok(fabric.visited().images)
}

/// Appends records to three replicas. Two have to have each promised one.
pub(crate) fn run_on(fabric: &Fabric, safe: Safe, records: u64) -> Ran {
    let all = replicas(fabric).expect("connections");
    let told = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        let pmems: Vec<_> = all.iter().map(|replica| &replica.pmem).collect();
        for images in cut.joint_images(&pmems) {
            for number in 0..told.load(Ordering::Relaxed) {
                let at = number as usize * LEN;
                let has = |image: &&Image| image.bytes()[at..at + LEN] == bytes(number);
                let count = images.iter().filter(has).count();
                assert!(count >= 2, "record {number} is on {count} of 3 replicas");
            }
        }
    };
    fabric.find_loss(check, || {
        for number in 0..records {
            let at = number as usize * LEN;
            for replica in &all {
                replica.write(at, &bytes(number))?;
            }
            all[number as usize % 3].flush(at, LEN)?;
            let other = &all[(number as usize + 1) % 3];
            match safe {
                Safe::TwoFlushed => other.flush(at, LEN),
                Safe::OneFlushed => other.wait_for_write(),
            }?;
            told.store(number + 1, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// A record on two of three replicas survives a loss of power of all of them.
#[test]
fn a_quorum_of_flushed_replicas_survives() {
    for profile in Profile::ALL.into_iter().filter(Profile::is_adapter) {
        let images = run(&profile, Safe::TwoFlushed).unwrap_or_else(|loss| panic!("{loss}"));
        assert!(images > 500, "{images}");
    }
}

/// A replica that has completed a write and has not flushed it does not count. The sample finds it
/// among 100 images of all three, and the report names the memories.
#[test]
fn a_quorum_with_a_replica_that_has_not_flushed_is_found() {
    for profile in Profile::ALL.into_iter().filter(Profile::is_adapter) {
        let began = Instant::now();
        let loss = run(&profile, Safe::OneFlushed).expect_err("one replica has flushed");
        let report = loss.to_string();
        let begin = "record 0 is on 1 of 3 replicas";
        assert!(report.starts_with(begin), "{report}");
        assert_says(&report, &["log of b"]);
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}

/// Memories are named once, and belong to the fabric.
#[test]
fn a_memory_is_named_once() -> Result {
    let fabric = fabric(&Profile::STRICT);
    let all = replicas(&fabric)?;
    let (a, b) = (&all[0].pmem, &all[1].pmem);
    let check = |cut: &Cut<'_>| {
        let world = cut.joint_images_up_to(&[a, b], 1).next();
        assert_eq!(world.map(|images| images.len()), Some(2));
        let _ = cut.joint_images(&[a, b, a]);
    };
    let loss = fabric.find_loss(check, || ()).expect_err("a memory twice");
    assert!(loss.to_string().starts_with("a memory twice"), "{loss}");
    Ok(())
}
