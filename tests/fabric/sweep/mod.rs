//! Every call fails once. A program with both sides of everything (each kind of operation,
//! batches, shared receive queues and channels, requests that are rejected, graceful and abrupt
//! ends) is run again and again on a simulated fabric. Each call that it makes fails in one of the
//! runs: it has no effect, or its full effect, and returns an error.
//!
//! Promises: the caller gets an error that names the call, or the log has it if no caller can get
//! it (in a drop); no thread panics; no wait is longer than its limit; the only leaks are objects
//! that could not be destroyed, and those that they keep.

mod scenario;

use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use anyhow::{Context, Result};
use log::LevelFilter;
use rpma::sim::Errno;
use scenario::{PHASES, Sides};

use crate::common::failing_calls::{Calls, Fails, Run};
use crate::common::prelude::*;

/// The longest that a run may take. Its own limits are a second; `Conn::close` gives the device 5.
const LIMIT: Duration = Duration::from_secs(20);

/// The result of a run with a failure, and how often each call was made up to the end of each
/// phase.
type Ran = (Run, Vec<Calls>);

/// Runs the program in a thread of its own: the call after which it waits for ever has a name then.
fn run(profile: &Profile, fails: Option<Fails>) -> Ran {
    let (profile, (done, has_ended)) = (profile.clone(), mpsc::channel());
    let running = thread::spawn(move || done.send(run_here(&profile, fails)));
    match has_ended.recv_timeout(LIMIT) {
        Ok(run) => run,
        Err(RecvTimeoutError::Timeout) => panic!("{fails:?}: it runs for longer than {LIMIT:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            resume_unwind(running.join().expect_err("it has sent nothing"))
        }
    }
}

fn run_here(profile: &Profile, fails: Option<Fails>) -> Ran {
    lines::keep(LevelFilter::Warn);
    // With a seed, so that each run makes the same calls: with a clock that only jumps, the number of
    // polls depends on the thread of the clock.
    let (fabric, [client, server]) = Rig::of(profile).seed(1).hosts(["client", "server"]);
    let sides = Sides { client, server };
    let failing = fails.map(|(call, nth, how)| fabric.fail(call).how(how).nth(nth, Errno::IO));
    let mut calls = Vec::new();
    let result = sides.run(|| calls.push(fabric.calls()));
    calls.push(fabric.calls());
    if let Some(failing) = failing {
        assert!(!failing.disarm(), "{fails:?} is not made");
    }
    let run = Run {
        error: result.err().map(|error| format!("{error:#}")),
        left: fabric.objects(),
        log: lines::take(),
    };
    (run, calls)
}

fn every_call_of(profile: &Profile, how: How) -> Result<()> {
    let (clean, calls) = run(profile, None);
    assert_eq!(clean.error, None, "nothing fails by itself");
    assert_eq!(clean.log, Vec::<String>::new());
    assert!(clean.left.is_empty(), "{:?}", clean.left);
    assert_eq!(calls.len(), PHASES.len());

    let mut by_phase = [0; PHASES.len()];
    let all = calls.last().context("phases")?;
    let swept = failing_calls::every_call(
        all,
        how,
        "srq",
        |_| true,
        |fails| {
            let (call, nth, _) = fails;
            let made = |calls: &Calls| calls.get(call).is_some_and(|n| *n >= nth.into());
            by_phase[calls.iter().position(made).expect("it is made")] += 1;
            Some(run(profile, Some(fails)).0)
        },
    );
    let (name, phases) = (profile.name(), PHASES.into_iter().zip(by_phase));
    let phases: Vec<_> = phases.collect();
    println!("{name}, {how:?}: {swept}; in each phase: {phases:?}");
    Ok(())
}

#[test]
fn every_call_of_soft_roce() -> Result<()> {
    every_call_of(&Profile::RXE_6_12, How::Refused)
}

#[test]
fn every_call_of_an_older_soft_roce() -> Result<()> {
    every_call_of(&Profile::RXE_6_1, How::Refused)
}

#[test]
fn every_call_of_a_strict_adapter() -> Result<()> {
    every_call_of(&Profile::STRICT, How::Refused)
}

/// Calls that fail and have still had their effect.
#[test]
fn every_call_that_happens_all_the_same() -> Result<()> {
    for profile in [Profile::RXE_6_12, Profile::RXE_6_1, Profile::STRICT] {
        every_call_of(&profile, How::Done)?;
    }
    Ok(())
}
