//! A log with two replicas in persistent memory, on simulated hosts: no RDMA, no persistent memory
//! and no root are needed. While a client appends, the power is cut at every event; every image
//! that may be left of a replica is recovered, and nothing that was acknowledged may be missing.
//!
//! ```text
//! sim-log [--break flush | tail | platform | a fault of rpma-log]
//! ```
//!
//! `log.rs` is the program, here is its test. `replicated.rs` shows a fault of the larger example.

pub(crate) mod log;
mod replicated;

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail, ensure};
use rpma::Peer;
use rpma::sim::{Cut, Fabric, Loss, Platform, Profile, Visited};

pub(crate) use self::log::Fault;
use self::log::{LOG, RECORD, Replica, Server, recover};

/// How many records are appended.
const COUNT: usize = 8;

fn record(number: usize) -> [u8; RECORD] {
    std::array::from_fn(|at| (number * 31 + at * 7 + 1) as u8)
}

/// What was found with a kind of device and a platform.
pub(crate) enum Found {
    Survived(Visited),
    Lost(Loss),
    /// The log does not start: nobody promises that a flush makes data durable.
    Refused,
}

/// Runs the log, and cuts the power of each replica at every event.
pub(crate) fn cut_at_every_event(
    profile: &Profile,
    platform: Platform,
    fault: Fault,
) -> Result<Found> {
    cut_on(&Fabric::new(profile.clone()), platform, fault, COUNT)
}

/// The same on hosts of this fabric, with so many records.
pub(crate) fn cut_on(
    fabric: &Fabric,
    platform: Platform,
    fault: Fault,
    count: usize,
) -> Result<Found> {
    let client = fabric.host("client");
    let hosts = ["replica-1", "replica-2"].map(|name| fabric.host(name));
    let addrs = hosts.each_ref().map(|host| host.addr().to_string());
    let logs = hosts.each_ref().map(|host| {
        host.set_platform(platform);
        host.pmem("log", LOG)
    });
    let mut serving = Vec::new();
    for ((host, addr), log) in hosts.iter().zip(&addrs).zip(&logs) {
        let _entered = host.enter();
        let server = Server::listen(addr)?;
        let keeps = host.may_promise_direct_write(server.flushes_natively());
        let (log, keeps) = (log.path().to_owned(), keeps || fault == Fault::Platform);
        serving.push(host.spawn(move || server.serve(&log, keeps)));
    }

    let acknowledged = AtomicUsize::new(0);
    let append_all = || -> Result<()> {
        let _entered = client.enter();
        let peer = Peer::toward(&addrs[0])?;
        let one = Replica::connect(&peer, &addrs[0])?;
        let other = Replica::connect(&peer, &addrs[1])?;
        for number in 0..count {
            one.append(number, &record(number), fault)?;
            other.append(number, &record(number), fault)?;
            acknowledged.store(number + 1, Ordering::Relaxed);
        }
        Ok(())
    };
    let check = |cut: &Cut<'_>| {
        for image in logs.iter().flat_map(|log| cut.images(log)) {
            // What is no log has no records.
            let records = recover(image.path()).unwrap_or_default();
            let promised = acknowledged.load(Ordering::Relaxed);
            let count = records.len();
            assert!(
                count >= promised,
                "{promised} records are acknowledged, {count} are there"
            );
            for (number, found) in records.iter().enumerate() {
                assert!(
                    *found == record(number),
                    "record {number} is not what was appended"
                );
            }
        }
    };
    let found = match fabric.find_loss(check, append_all) {
        Err(loss) => Found::Lost(loss),
        Ok(Ok(())) => Found::Survived(fabric.visited()),
        Ok(Err(_)) if acknowledged.into_inner() == 0 => Found::Refused,
        Ok(Err(error)) => return Err(error),
    };
    for serving in serving {
        let served = serving.join().expect("no panic");
        // Where the log does not start, a device may have refused its memory.
        ensure!(
            served.is_ok() || matches!(found, Found::Refused),
            "{served:?}"
        );
    }
    Ok(found)
}

fn main() -> Result<ExitCode> {
    // `cargo sim-log -- --break flush` passes the `--`, as the alias has one already.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (fault, text) = match args[..] {
        [] => (Fault::Nothing, "Each image that may be left is recovered."),
        ["--break", "flush"] => (
            Fault::Flush,
            "Broken: no record is flushed before the tail shows it.",
        ),
        ["--break", "tail"] => (
            Fault::Tail,
            "Broken: the tail is a plain write behind an unpolled flush, which it may pass.",
        ),
        ["--break", "platform"] => (
            Fault::Platform,
            "Broken: the replicas promise that what devices write is durable, on every platform.",
        ),
        ["--break", name] => return replicated::show(name),
        _ => bail!("usage: sim-log [--break FAULT]"),
    };
    println!(
        "A client appends {COUNT} records to two replicas, whose power is cut at every event."
    );
    println!("{text}\n");
    let mut first = None;
    for profile in Profile::ALL {
        for platform in Platform::ALL {
            print!("{:24} {:16}  ", profile.name(), platform);
            io::stdout().flush()?;
            match cut_at_every_event(&profile, platform, fault)? {
                Found::Survived(Visited { events, images, .. }) => {
                    println!("{events} cuts, {images} images: all that was acknowledged is there");
                }
                Found::Refused => {
                    println!("does not start: flushed data would not be safe on this platform")
                }
                Found::Lost(loss) => {
                    println!(
                        "LOST: {}",
                        loss.to_string().lines().next().unwrap_or_default()
                    );
                    first.get_or_insert(loss);
                }
            }
        }
    }
    match first {
        None if fault == Fault::Nothing => {
            println!(
                "\nTo see what is found in a wrong program: --break flush, --break tail, --break platform."
            );
            Ok(ExitCode::SUCCESS)
        }
        None => bail!("the fault was not found"),
        Some(loss) => {
            println!("\nThe first of these losses:\n\n{loss}");
            Ok(ExitCode::FAILURE)
        }
    }
}
