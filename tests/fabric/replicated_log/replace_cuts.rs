//! The power fails while a server of the log is replaced: of all servers at each event, and of the new
//! server. `replace.rs` has the hosts.

use rpma_log::format::{List, Member};

use crate::replicated_log::cuts::{Told, locked};
use crate::replicated_log::faults::find;
use crate::replicated_log::prelude::*;
use crate::replicated_log::replace::{
    ABC, ABD, HOSTS, addrs, follow, idle, log_with_one, open, replace, until, until_listed,
};
use crate::replicated_log::scenes::records;

/// The records with which a writer would open the log from these servers, as docs/log-format.md has
/// it. `None`: they are too few.
fn opens(found: &[&Stored]) -> Option<Vec<Vec<u8>>> {
    let logs: Vec<_> = found.iter().filter(|of| of.header.is_some()).collect();
    let lists = logs.iter().filter_map(|of| of.list.as_ref());
    let list: &List = lists.max_by_key(|list| list.number)?;
    let is_of = |of: &Stored, members: &[Member]| {
        let header = of.header.expect("a log");
        members.iter().any(|member| member.server == header.server)
    };
    let (before, after) = (list.members.clone(), list.last());
    for members in [&before, &after] {
        let count = logs.iter().filter(|of| is_of(of, members)).count();
        if count < 2 {
            return None;
        }
    }
    let is_read = |of: &&&&Stored| is_of(of, &before) || is_of(of, &after);
    let read: Vec<_> = logs.iter().filter(is_read).map(|of| **of).collect();
    let newest = Stored::newest(&read)?;
    Some(
        newest
            .records()
            .map(|(_, record)| record.to_vec())
            .collect(),
    )
}

/// The memories of the servers after a cut, and what was acknowledged before it.
type Left = (Vec<Vec<u8>>, Told);

/// Whatever servers are left after a cut: if they open the log, it has each acknowledged record.
/// Some of the memories are kept.
fn check_cut(cut: &Cut<'_>, world: &World, told: &Told, left: &Mutex<Vec<Left>>) {
    let pmems = Vec::from_iter(&world.pmems[..4]);
    for (n, images) in cut.joint_images_up_to(&pmems, 20).enumerate() {
        if n == 3 {
            let memories = images
                .iter()
                .map(|image| image.bytes()[..place().end].to_vec());
            locked(left).push((memories.collect(), told.clone()));
        }
        let logs = images.iter().map(|image| found(image.bytes()));
        let logs: Result<Vec<_>, _> = logs.collect();
        let logs = logs.unwrap_or_else(|error| panic!("{error}"));
        for up in 0_usize..16 {
            let up = logs.iter().enumerate().filter(|(n, _)| up >> n & 1 == 1);
            let up: Vec<_> = up.map(|(_, found)| found).collect();
            let Some(records) = opens(&up) else { continue };
            for record in told.records.range(told.head..).map(|(_, record)| record) {
                assert!(records.contains(record), "{record:?} is lost: {records:?}");
            }
        }
    }
}

/// The next writer opens a log of these memories, and finishes the change.
fn recover((memories, told): &Left) {
    let (mut world, _entered) = idle(1, Fault::Nothing);
    for (n, memory) in memories.iter().enumerate() {
        // The directory names a host of the other fabric.
        let mut memory = memory.clone();
        memory[..place().start].fill(0);
        world.refill(n, "left", &memory);
    }
    world.only(&[0, 1, 2, 3]);
    let log = follow(&world, 9).expect("opens");
    told.check_read(&log, told.head);
    log.append(b"after").expect("appended");
    let shown: Vec<_> = log.state().servers.iter().map(|of| of.addr).collect();
    let found = [ABC, ABD]
        .into_iter()
        .find(|of| shown == addrs(&world, *of));
    let servers = found.unwrap_or_else(|| panic!("{shown:?}"));
    until_listed(&world, &servers);
    world.until_they_have(&servers, log.bounds().1);
}

/// Promise: whenever the power of all servers fails while one is replaced, each set of servers that
/// opens the log has each acknowledged record. The next writer finishes the change or undoes it.
#[test]
fn the_power_fails_at_each_event() -> Result {
    let run = |seed: u64, fault: Fault, way: Way| -> Result<(), String> {
        let fabric = Rig::new().seed(seed).fabric();
        let mut world = World::of(&fabric, way, fault, (HOSTS, 2));
        let _entered = world.client.enter();
        let log = log_with_one(&mut world);
        let (told, left) = (Mutex::new(Told::default()), Mutex::new(Vec::new()));
        let check = |cut: &Cut<'_>| check_cut(cut, &world, &locked(&told), &left);
        let append = |byte: u8| {
            let record = vec![byte; 40];
            let at = log.append(&record)?;
            locked(&told).acknowledged(at, record);
            Ok::<_, LogError>(())
        };
        let ended = fabric.find_loss(check, || {
            append(1)?;
            thread::scope(|scope| {
                let appends = scope.spawn(|| (2..5).try_for_each(append));
                let replaced = replace(&world, &log, 2, 3);
                appends.join().expect("no panic").and(replaced)
            })?;
            append(5)
        });
        let ended = ended.map_err(|loss| loss.to_string())?;
        let visited = fabric.visited();
        println!("{way:?}: {visited:?}");
        assert!(visited.images > 100, "{visited:?}");
        let left = locked(&left);
        left.iter().step_by(1 + left.len() / 60).for_each(recover);
        ended.map_err(|error| error.to_string())
    };
    let caches = Way {
        method: Method::Server,
        platform: Platform::AdrDdioOn,
    };
    for (seed, way) in [(1, READING), (2, caches)] {
        run(seed, Fault::Nothing, way)?;
    }
    find(Fault::ListInPlace, 1..=10, |seed| {
        run(seed, Fault::ListInPlace, caches)
    })
}

/// Does something after so many milliseconds, on a host of its own.
fn cut_later<'scope>(
    fabric: &Fabric,
    scope: &'scope thread::Scope<'scope, '_>,
    millis: u64,
    cut: impl FnOnce() + Send + 'scope,
) {
    let killer = fabric.host(&format!("killer {}", fabric.steps()));
    let _entered = killer.enter();
    scope.spawn(move || {
        sleep(Duration::from_millis(millis));
        cut();
    });
}

/// Promise: if the new server dies during the change, the log goes on, whether it counts or not. Then
/// another server is taken, or the place of the dead one is. All records are there.
#[test]
fn the_new_server_dies_during_the_change() -> Result {
    for millis in share("deaths of the new one", 2, (0..30).map(|n| 10 * n)) {
        let (mut world, entered) = idle(1 + millis, Fault::Nothing);
        let log = log_with_one(&mut world);
        world.link(3).delay(Duration::from_millis(20));
        let replaced = thread::scope(|scope| {
            let new = world.hosts[3].clone();
            cut_later(&world.fabric, scope, millis, move || new.power_cut());
            let appends = scope.spawn(|| {
                (0..6_u8).try_for_each(|n| {
                    sleep(Duration::from_millis(40));
                    log.append(&[n; 10]).map(drop)
                })
            });
            let replaced = replace(&world, &log, 2, 3);
            appends.join().expect("no panic").expect("appended");
            replaced
        });
        let is_in = log.state().servers[2].addr == world.addr(3);
        assert!(is_in || replaced.is_err(), "{millis}");
        let old = if is_in { 3 } else { 2 };
        let again = || replace(&world, &log, old, 4).is_ok();
        until(again);
        world.until_they_have(&[0, 1, 4], log.bounds().1);
        let all = records(&log);
        assert_eq!(all.len(), 7, "{millis}");
        drop((log, entered));
        let _entered = world.client.enter();
        world.only(&[1, 4]);
        let log = open(&world, [0, 1, 4], 2).expect("opens");
        assert_eq!(records(&log), all);
        drop(log);
        world.stop_all();
    }
    Ok(())
}
