//! The log without faults.

use rpma::sim::repeatable;

use crate::replicated_log::prelude::*;
use crate::replicated_log::scenes::records;

/// Promise: the next writer finds the records that were appended and not truncated, in their
/// order, also after many laps of the ring. Each run with a seed is the same.
#[test]
fn the_next_writer_finds_the_records() {
    repeatable(profile(), |fabric| {
        let world = World::new(fabric, READING);
        let log = world.open(1).expect("made");
        let mut expected = Vec::new();
        for n in 0..40_u8 {
            let record = vec![n; 1 + 5 * usize::from(n)];
            let at = log.append(&record).expect("appended");
            expected.push(record);
            if n % 3 == 2 {
                log.truncate(at).expect("truncated");
                expected.drain(..expected.len() - 1);
            }
        }
        log.close().expect("closed");
        let log = world.open(2).expect("opens");
        assert_eq!(records(&log), expected);
        drop((log, world));
        assert_eq!(fabric.why_not_repeatable(), None);
    });
}
