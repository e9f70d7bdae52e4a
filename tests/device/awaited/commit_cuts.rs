//! Awaited commits under every cut of power, by each method: of a writer, and on replicas.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::commit::Method;
use rpma_async::Pool;

use crate::awaited::hosts::{Far, end_all, fars, methods};
use crate::awaited::replicas::{self, RING, add, new_set};
use crate::awaited::served::{TAIL, append};
use crate::awaited::world::{World, impatient};
use crate::common::prelude::*;
use crate::serve::support::LEN;

/// The commits of a run. Each one writes over the record of the one before.
const COMMITS: u64 = 3;

/// The last commit that each server has acknowledged.
type Acknowledged = [AtomicU64; 3];

/// Whether a log has the acknowledged records, and no pointer without its record.
fn is_good(image: &[u8], acknowledged: u64) -> bool {
    let log = &image[LEN..];
    let tail = log[TAIL as usize..][..8].try_into().expect("8 bytes");
    let tail = u64::from_ne_bytes(tail);
    let mut record = log[64..164].iter();
    (acknowledged..=COMMITS).contains(&tail)
        && record.all(|byte| (tail..=COMMITS).contains(&u64::from(*byte)))
}

/// Runs a program with its servers, and looks at each of their memories at every event.
fn cut_everywhere(
    servers: usize,
    method: Method,
    program: impl AsyncFn(&World, &mut [Far], &Acknowledged),
) -> Result {
    let (runtime, fabric) = paused::both(&Rig::new());
    let (pmems, acknowledged) = (OnceLock::<Vec<Pmem>>::new(), Acknowledged::default());
    let look = |cut: &Cut<'_>| {
        for (pmem, acknowledged) in pmems.get().into_iter().flatten().zip(&acknowledged) {
            let acknowledged = acknowledged.load(Ordering::Relaxed);
            for image in cut.images(pmem) {
                let is_good = is_good(image.bytes(), acknowledged);
                assert!(is_good, "{acknowledged}: {image:?}");
            }
        }
    };
    let run = async {
        let ticking = paused::tick(&fabric);
        let world = World::new(&fabric);
        let mut fars = fars(&world, servers, method);
        let all = fars.iter().map(|far| far.pmem.clone()).collect();
        pmems.set(all).expect("once");
        program(&world, &mut fars, &acknowledged).await;
        end_all(fars).await;
        drop(world);
        ticking.abort();
    };
    fabric.on_every_event(look, || runtime.block_on(run));
    println!("{method}, {servers} servers: {:?}", fabric.visited());
    for acknowledged in &acknowledged[..servers] {
        assert_eq!(acknowledged.load(Ordering::Relaxed), COMMITS);
    }
    assert!(fabric.visited().images > 100);
    Ok(())
}

/// Promise: a commit is durable once its wait has returned, under every cut of power.
#[test]
fn a_writer_s_commits_survive_every_cut() -> Result {
    for method in methods() {
        cut_everywhere(1, method, async |world, fars, acknowledged| {
            let writer = fars[0].writer(world, 2).await.expect("watched");
            let pool = Pool::new(&world.peers[0], 100, 2).expect("a pool");
            for number in 1..=COMMITS {
                append(&writer, &pool, number).await.expect("durable");
                acknowledged[0].store(number, Ordering::Relaxed);
            }
        })?;
    }
    Ok(())
}

/// Promise: a commit is durable on each replica of an outcome, under every cut of its power. One
/// that stands still meanwhile delays no other.
#[test]
fn commits_on_replicas_survive_every_cut() -> Result {
    for method in methods() {
        cut_everywhere(3, method, async |world, fars, acknowledged| {
            let set = new_set(&world.reactors[0], RING).expect("watched");
            let mut ids = Vec::new();
            for far in fars.iter_mut() {
                let writer = far.connect(world, 2, &impatient()).await;
                ids.push(add(&set, writer.expect("connected")).expect("added"));
            }
            for number in 1..=COMMITS {
                if number == 2 {
                    fars[2].host.freeze();
                }
                let id = replicas::commit(&set, number, 2).expect("posted");
                for copies in [2, 3] {
                    let settled = set.settle(id, copies, LIMIT).await;
                    let outcome = settled.expect("the driver runs");
                    assert!(outcome.copies() >= copies);
                    for (id, acknowledged) in ids.iter().zip(acknowledged) {
                        if set.durable(outcome).contains(id) {
                            acknowledged.store(number, Ordering::Relaxed);
                        }
                    }
                    if number == 2 && copies == 2 {
                        fars[2].host.thaw();
                    }
                }
            }
        })?;
    }
    Ok(())
}
