//! The map of docs/building-a-log.md, the page's own code, with a ring that a few records fill.

include!(concat!(env!("OUT_DIR"), "/map-of-the-docs.rs"));

use crate::replicated_log::cuts::locked;
use crate::replicated_log::network::ways;
use crate::replicated_log::prelude::*;

/// The values by their keys.
type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The records, replayed.
fn replayed<'a>(records: impl Iterator<Item = &'a [u8]>) -> Map {
    let parts = records.map(|record| record.split_at(8));
    parts
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

/// The live records of a log.
fn found_in(log: &Log, live: &Live) -> Map {
    let record = |at: &u64| log.read(*at).ok().flatten().expect("a record").bytes;
    let records = Vec::from_iter(live.values().map(record));
    replayed(records.iter().map(|record| &record[..]))
}

/// A record of one of two keys. The second key is seldom set, so its record is copied. Their longest
/// entries and a pad have as much room as the reserve leaves.
fn record(n: u64, stride: u64) -> Vec<u8> {
    let (key, value) = (u64::from(n % 7 == 0), [n as u8; 96]);
    let len = 96 - (n * stride) as usize % 96;
    [&key.to_le_bytes(), &value[..len]].concat()
}

/// Promise: a map goes on for many laps of its ring, while a server is slow, and another one dies and
/// comes back. The reserve is enough for each compaction, and the next writer finds the same map.
#[test]
fn a_map_goes_on_for_many_laps() -> Result {
    for seed in 1..=6 {
        let mut world = World::seeded(seed);
        let client = world.client.clone();
        let _entered = client.enter();
        let log = world.open(1)?;
        let (mut live, mut map) = (open(&log)?, Map::new());
        for n in 0..120 {
            match n {
                30 => world.link(2).delay(Duration::from_millis(5)),
                60 => world.stop(1),
                90 => world.start(1)?,
                _ => {}
            }
            let record = record(n, 20 + seed);
            set(&log, &mut live, &record)?;
            map.extend(replayed([&record[..]].into_iter()));
            assert_eq!(found_in(&log, &live), map, "seed {seed}, {n}");
            let (head, end) = log.bounds();
            assert!(
                end - head <= RING_LEN - RESERVE + 2 * ENTRY,
                "{head} to {end}"
            );
        }
        let (head, _) = log.bounds();
        assert!(head > 5 * RING_LEN, "{head}");
        log.close()?;
        drop(log);
        let log = world.open(2)?;
        assert_eq!(found_in(&log, &open(&log)?), map, "seed {seed}");
    }
    Ok(())
}

/// Promise: whenever the power of all servers fails, any two of them have the acknowledged value of
/// each key, or the one that is being set.
#[test]
fn a_compaction_loses_no_value() -> Result {
    for way in ways() {
        let fabric = Rig::new().seed(1).fabric();
        let mut world = World::new(&fabric, way);
        let client = world.client.clone();
        let _entered = client.enter();
        let log = match world.open(1) {
            Ok(log) => log,
            // Without a native flush nothing is durable on this platform.
            Err(LogError::TooFew(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        // Before the record that is being set, and with it.
        let maps = Mutex::new([Map::new(), Map::new()]);
        let check = |cut: &Cut<'_>| {
            let maps = locked(&maps);
            for images in cut.joint_images_up_to(&Vec::from_iter(&world.pmems), 8) {
                let logs = images.iter().map(|image| found(image.bytes()));
                let logs: Vec<_> = logs.map(|log| log.expect("whole")).collect();
                for pair in [[0, 1], [0, 2], [1, 2]] {
                    let pair = pair.map(|n| &logs[n]);
                    let pair = pair.into_iter().filter(|log| log.header.is_some());
                    let newest = Stored::newest(&Vec::from_iter(pair)).expect("a log");
                    let map = replayed(newest.records().map(|(_, record)| record));
                    assert!(maps.contains(&map), "{map:?}, not one of {maps:?}");
                }
            }
        };
        let ended = fabric.find_loss(check, || {
            let mut live = open(&log)?;
            for n in 0..20 {
                let record = record(n, 29);
                let mut after = locked(&maps)[0].clone();
                after.extend(replayed([&record[..]].into_iter()));
                locked(&maps)[1] = after.clone();
                set(&log, &mut live, &record)?;
                locked(&maps)[0] = after;
            }
            assert!(log.bounds().0 > RING_LEN, "{:?}", log.bounds());
            log.close()
        });
        ended.unwrap_or_else(|loss| panic!("{way:?}: {loss}"))?;
        let visited = fabric.visited();
        assert!(visited.images > 500, "{way:?}: {visited:?}");
        drop(log);
        world.stop_all();
    }
    Ok(())
}
