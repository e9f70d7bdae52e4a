//! The possible contents of a record and its tail, by platform and by the forgotten step of the
//! protocol: which platforms a program has to be tested on to find which fault.

use anyhow::Result;

use crate::common::prelude::*;
use crate::power::world::{Way, World};

/// Four lines, after that of the tail.
const RECORD: [u8; 256] = [7; 256];
const AT: usize = 64;

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    NativeFlush,
    FlushByRead,
    /// The general-purpose server's.
    Server,
}

fn append(world: &World, method: Method, (record, tail): (bool, bool)) -> Result<()> {
    let settle = |offset, len| match method {
        Method::Server => world.ask_to_persist(offset, len),
        _ => world.flush(offset, len),
    };
    world.write(AT, &RECORD)?;
    if record {
        settle(AT, RECORD.len())?;
    }
    world.write(0, &1_u64.to_le_bytes())?;
    if tail {
        settle(0, 8)?;
    }
    Ok(())
}

/// How many of the possible images at the end are corrupt, among so many: the combinations of the
/// possible contents of each line, which come first, a torn line being torn in one way.
fn corrupt(
    platform: Platform,
    method: Method,
    flushed: (bool, bool),
    all: usize,
) -> Result<(usize, usize)> {
    let way = Way::on(platform).by_reading(method == Method::FlushByRead);
    let world = World::of(&Profile::STRICT, way.promising())?;
    append(&world, method, flushed)?;
    world.fabric.settle();
    let images = world.images(if all < 4 { 1000 } else { all });
    let is_corrupt = |image: &&Vec<u8>| {
        // The client relies on a record after it has flushed the tail only.
        let is_there = image[0] == 1;
        let is_lost = flushed.1 && !is_there;
        let is_torn = is_there && !image[AT..].starts_with(&RECORD);
        is_lost || is_torn
    };
    Ok((images.iter().filter(is_corrupt).count(), images.len()))
}

#[test]
fn a_program_has_to_be_tested_on_every_platform() -> Result<()> {
    use Method::{FlushByRead, NativeFlush, Server};
    use Platform::{AdrDdioOff, AdrDdioOn, Eadr};
    let columns = [(true, true), (false, true), (true, false), (false, false)];
    let rows = [
        (
            (NativeFlush, AdrDdioOn),
            [(0, 1), (80, 81), (0, 2), (80, 162)],
        ),
        (
            (FlushByRead, AdrDdioOff),
            [(0, 1), (0, 1), (0, 2), (80, 162)],
        ),
        ((FlushByRead, Eadr), [(0, 1), (0, 1), (0, 2), (80, 162)]),
        (
            (FlushByRead, AdrDdioOn),
            [(161, 162), (161, 162), (80, 162), (80, 162)],
        ),
        ((Server, AdrDdioOn), [(0, 1), (80, 81), (0, 2), (80, 162)]),
    ];
    println!(
        "{:30} {:>10} {:>10} {:>10} {:>10}",
        "corrupt / all images", "flushed", "no data", "no tail", "none"
    );
    for ((method, platform), expected) in rows {
        let name = format!("{method:?}, {platform}");
        let mut line = format!("{name:30}");
        let mut counts = Vec::new();
        for (flushed, (_, all)) in columns.into_iter().zip(expected) {
            let (bad, all) = corrupt(platform, method, flushed, all)?;
            line += &format!(" {:>10}", format!("{bad}/{all}"));
            counts.push((bad, all));
        }
        println!("{line}");
        assert_eq!(counts, expected, "{name}");
    }
    Ok(())
}
