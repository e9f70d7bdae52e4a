//! Reports name the program's operations by their lines.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use rpma::Flags;
use rpma::sim::{Cut, Fabric, Platform, Profile};

use crate::pair::{Pair, Way, fabric};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;

fn way(by_reading: bool) -> Way {
    Way {
        platform: Platform::AdrDdioOn,
        by_reading,
        promise: Some(true),
    }
}

/// The report of a program that promises its first byte when `run` has called it.
fn report(fabric: &Fabric, pair: &Pair, run: impl FnOnce(&dyn Fn()) -> Result<()>) -> String {
    let told = AtomicBool::new(false);
    let check = |cut: &Cut<'_>| {
        for image in cut.images(&pair.pmem) {
            let is_there = image.bytes()[0] == 1;
            assert!(is_there || !told.load(Ordering::Relaxed), "lost");
        }
    };
    let found = fabric.find_loss(check, || run(&|| told.store(true, Ordering::Relaxed)));
    let found = found.map(|ran| ran.expect("it runs"));
    found.expect_err("a loss").to_string()
}

/// A line of this file, as a report has it.
fn here(op_context: u64, line: u32) -> String {
    format!("(op_context {op_context}, {}:{line})", file!())
}

/// An operation is named by the program's line that posts it, and by the program's number: on each device, with each
/// method that writes.
#[test]
fn an_operation_has_its_line() -> Result<()> {
    for profile in Profile::ALL {
        for method in 0..4 {
            let fabric = fabric(&profile);
            let pair = Pair::new(&fabric, way(false))?;
            pair.source.write_at(0, &[1; 8])?;
            let (to, from) = pair.places(0, 8)?;
            let (conn, mut line) = (&pair.conn, 0);
            let report = report(&fabric, &pair, |tell| {
                let posted = match method {
                    0 => {
                        line = line!() + 1;
                        conn.write(to, from, ALWAYS, 70)
                    }
                    1 => {
                        line = line!() + 1;
                        conn.write_gather(to, &[from], ALWAYS, 70)
                    }
                    2 => {
                        line = line!() + 1;
                        conn.atomic_write(to, &[1; 8], ALWAYS, 70)
                    }
                    _ => {
                        pair.far.recv(pair.messages.slice(8..)?, 5)?;
                        line = line!() + 1;
                        conn.write_with_imm(to, from, ALWAYS, 7, 70)
                    }
                }?;
                tell();
                pair.wait(posted)
            });
            let name = format!("{} on connection", here(70, line));
            let lost = report.lines().find(|line| line.starts_with("Lost: "));
            assert!(
                lost.is_some_and(|lost| lost.contains(&name)),
                "{name}: {report}"
            );
        }
    }
    Ok(())
}
