//! `Conn::commit` under every cut: the data that its completion acknowledges is there, and no
//! pointer without its data. On every device and platform where a flush may promise it, native and
//! by reading; of one part, of two, of two apart, and of two with a flush each; one at a time, and
//! two in flight.

use std::ops::Range;

use anyhow::Result;
use rpma::sim::Visited;

use crate::common::prelude::*;
use crate::power::protocols::{LEN, assert_log, record};
use crate::power::world::{Ran, SIZE, Way, World, fabric, on_each_platform, ways, word};

const RECORDS: u64 = 12;
/// How much of a record its first part has.
const HEAD: usize = 40;
/// Where the records begin, and where the second parts do that are apart.
const START: usize = 64;
const FAR: usize = SIZE / 2;

/// The parts of a record, chosen by its number, with their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    One,
    /// One after the other.
    Two,
    /// With other memory between them, which other records have.
    Apart,
    /// With more than 4 KiB between them: each has a native flush of its own.
    Distant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) parts: Parts,
    /// How many commits are in flight.
    pub(crate) in_flight: usize,
}

impl Log {
    /// Where the second parts begin that are far away.
    fn far(self) -> usize {
        match self.parts {
            Parts::Distant => 2 * SIZE,
            _ => FAR,
        }
    }

    /// Where the bytes of a record go: their offsets, and the ranges of the record.
    fn places(self, number: u64) -> Vec<(usize, Range<usize>)> {
        let number = number as usize;
        let at = START + number * LEN;
        match self.parts {
            Parts::One => vec![(at, 0..LEN)],
            Parts::Two => vec![(at, 0..HEAD), (at + HEAD, HEAD..LEN)],
            Parts::Apart | Parts::Distant => vec![
                (START + number * HEAD, 0..HEAD),
                (self.far() + number * (LEN - HEAD), HEAD..LEN),
            ],
        }
    }

    fn append(self, world: &World, number: u64) -> Result<Posted> {
        let bytes = record(number);
        let mut parts = Vec::new();
        for (at, range) in self.places(number) {
            let bytes = &bytes[range];
            world.source.write_at(at, bytes)?;
            parts.push(world.places(at, bytes.len())?);
        }
        // The flush of all covers them in any order.
        if number % 2 == 1 {
            parts.reverse();
        }
        let tail = (world.remote.slice(..8)?, (number + 1).to_le_bytes());
        let kind = FlushType::Persistent;
        Ok(world.conn.commit(&parts, Some(tail), kind, number)?)
    }

    fn check(self, image: &[u8], acknowledged: u64) {
        let tail = word(image);
        assert!(tail <= RECORDS, "a tail of {tail}");
        assert_log(tail, acknowledged, |number| {
            let mut parts = self.places(number).into_iter();
            parts.all(|(at, range)| image[at..].starts_with(&record(number)[range]))
        });
    }

    /// Appends all records under every cut.
    fn run(self, profile: &Profile, way: Way, seed: u64) -> Result<Visited, Loss> {
        let fabric = fabric(profile);
        fabric.set_seed(seed);
        self.run_on(&fabric, way, RECORDS)?.expect("nothing fails");
        Ok(fabric.visited())
    }

    pub(crate) fn run_on(self, fabric: &Fabric, way: Way, records: u64) -> Ran {
        let world = World::sized(fabric, way, self.far() + FAR).expect("a connection");
        let check = |image: &[u8], acknowledged| self.check(image, acknowledged);
        world.under_every_cut(check, |tell| {
            let mut posted = Vec::new();
            let wait = |posted: &[Posted], number: usize| {
                world.wait(posted[number])?;
                tell(number as u64 + 1);
                Ok(())
            };
            for number in 0..records as usize {
                posted.push(self.append(&world, number as u64)?);
                if let Some(oldest) = (number + 1).checked_sub(self.in_flight) {
                    wait(&posted, oldest)?;
                }
            }
            let rest = posted.len() + 1 - self.in_flight..posted.len();
            rest.into_iter()
                .try_for_each(|number| wait(&posted, number))
        })
    }
}

#[test]
fn a_commit_survives_every_cut() {
    let seeds = share("seeds", 3, 0..3);
    on_each_platform(|platform| {
        let mut events = 0;
        let ways = ways().into_iter();
        for (profile, way) in ways.filter(|(_, way)| way.platform == platform) {
            for parts in [Parts::One, Parts::Two, Parts::Apart, Parts::Distant] {
                for in_flight in [1, 2] {
                    for seed in &seeds {
                        let log = Log { parts, in_flight };
                        let ran = log.run(&profile, way, *seed);
                        let ran = ran.unwrap_or_else(|loss| {
                            panic!("{}, {way:?}, {log:?}: {loss}", profile.name())
                        });
                        events += ran.events;
                    }
                }
            }
        }
        assert!(events > 1_000, "{platform}: {events}");
    });
}

/// If the server promises more than its platform does, the cut that loses an acknowledged commit is
/// found.
#[test]
fn a_commit_on_a_wrong_promise_is_found() {
    let way = Way::on(Platform::AdrDdioOn).by_reading(true).promising();
    for profile in Profile::EVERY {
        let log = Log {
            parts: Parts::Two,
            in_flight: 1,
        };
        let loss = log.run(&profile, way, 1).expect_err("it is not durable");
        assert_says(&loss, &["commits.rs"]);
    }
}
