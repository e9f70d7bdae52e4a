//! The log without faults.

use rpma::sim::Fabric;

use crate::common::place::profile;
use crate::world::{READING, World};

#[test]
fn it_appends_and_reads() {
    let fabric = Fabric::new(profile());
    let mut world = World::new(&fabric, READING);
    let log = world.open(1).expect("opens");
    for n in 0..100_u32 {
        let at = log
            .append(format!("record {n}").as_bytes())
            .expect("appended");
        println!("{n} at {at}");
        if n % 10 == 9 {
            log.truncate(at).expect("truncated");
        }
    }
    log.close().expect("closed");
    let log = world.open(2).expect("opens");
    println!("{:?}", log.bounds());
    let mut at = log.bounds().0;
    while let Some((record, next)) = log.read(at).expect("there") {
        println!("{at} {}", String::from_utf8_lossy(&record));
        at = next;
    }
    drop(log);
    world.stop_all();
    for n in 0..3 {
        let found = world.found(n).expect("whole");
        println!("{:?} {} {:?}", found.header, found.head, found.tail);
    }
}

#[test]
fn it_runs_by_a_seed() {
    rpma::sim::repeatable(profile(), |fabric| {
        let mut world = World::new(fabric, READING);
        let log = world.open(1).expect("opens");
        for n in 0..20_u32 {
            let at = log
                .append(format!("record {n}").as_bytes())
                .expect("appended");
            if n % 10 == 9 {
                log.truncate(at).expect("truncated");
            }
        }
        world.hosts[1].kill();
        for n in 0..20_u32 {
            log.append(format!("record {n}").as_bytes())
                .expect("appended");
        }
        log.close().expect("closed");
        world.stop_all();
        println!("{:?}", fabric.why_not_repeatable());
    });
}
