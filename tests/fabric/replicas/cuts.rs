//! Two of three replicas, under every cut: no acknowledged record is lost, and no pointer shows
//! bytes that are not its record's.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::replicas::prelude::*;

const RECORDS: u64 = 6;

/// Appends records, `pipelined` of them at a time, under every cut of all replicas together.
fn run(profile: &Profile, way: Way, pipelined: u64, seed: u64) -> Result<Visited, Loss> {
    let fabric = Rig::of(profile).seed(seed).fabric();
    // As few records as can be in flight: bytes are used again at once.
    let mut set = Set::on(&fabric, way, pipelined as usize + 1).expect("added");
    let acknowledged = AtomicU64::new(0);
    let pmems: Vec<_> = set.servers.iter().map(|of| of.pmem.clone()).collect();
    let check = |cut: &Cut<'_>| on_two(cut, &pmems, &acknowledged);
    // The third one is late.
    let late = fabric.between(&set.client, &set.servers[2].host);
    late.delay_up_to(Duration::from_millis(2));
    fabric.find_loss(check, || {
        let mut ids = Vec::new();
        for number in 0..RECORDS + pipelined - 1 {
            if number < RECORDS {
                set.log.wait_room(LEN, LIMIT).expect("room");
                ids.push(set.append(number, 2).expect("posted"));
            }
            if let Some(oldest) = (number + 1).checked_sub(pipelined) {
                let outcome = set.log.settle(ids[oldest as usize], 2, LIMIT);
                assert!(outcome.copies() >= 2, "{outcome:?}");
                acknowledged.store(oldest + 1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(fabric.visited())
}

#[test]
fn two_of_three_survive_every_cut() {
    let mut ran = 0;
    for platform in [Platform::AdrDdioOn, Platform::AdrDdioOff, Platform::Eadr] {
        for profile in Profile::EVERY {
            for method in methods(&profile) {
                let way = Way::durable(method, platform);
                if !way.may_be_durable(&profile) {
                    continue;
                }
                for (pipelined, in_flight) in [(1, 1), (3, 2)] {
                    let way = Way { in_flight, ..way };
                    let visited = run(&profile, way, pipelined, 7).unwrap_or_else(|loss| {
                        panic!("{}, {way:?}, {pipelined}: {loss}", profile.name())
                    });
                    assert!(visited.events > 20, "{}", visited.events);
                    ran += 1;
                }
            }
        }
    }
    assert!(ran >= 8, "{ran}");
}
