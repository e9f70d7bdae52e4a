//! Every call fails once. A program with both sides of everything (each kind of operation, batches, shared receive
//! queues and channels, requests that are rejected, graceful and abrupt ends) is run again and again on a simulated
//! fabric, and each call that it makes fails in one of the runs: it does nothing, or everything, and returns an error.
//!
//! Promises: the caller gets an error that names the call, or the log has it where nobody can be told (in a drop);
//! nothing panics; nothing waits past its limit; nothing leaks but what could not be destroyed, and what that keeps.

mod scenario;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Once;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use rpma::sim::{Errno, Fabric, How, Profile};

use scenario::{PHASES, Sides};

/// The longest that a run may take. Its own limits are a second; `Conn::close` gives the device 5.
const LIMIT: Duration = Duration::from_secs(20);

/// What a call that destroys leaves behind when it fails: its object, and what that keeps.
const LEAVES: [(&str, &[&str]); 7] = [
    ("ibv_dealloc_pd", &["pd"]),
    ("ibv_dereg_mr", &["mr", "pd"]),
    ("ibv_destroy_comp_channel", &["comp_channel"]),
    ("ibv_destroy_cq", &["cq", "comp_channel"]),
    ("ibv_destroy_qp", &["qp", "cq", "comp_channel", "srq", "pd"]),
    ("ibv_destroy_srq", &["srq", "pd"]),
    ("rdma_destroy_id", &["cm_id"]),
];

/// Calls that fail in one way only. Those that return an object or an event do nothing then, and `rdma_ack_cm_event`
/// does everything.
const ONE_WAY: [&str; 11] = [
    "ibv_alloc_pd",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_srq",
    "ibv_get_cq_event",
    "ibv_reg_mr",
    "rdma_ack_cm_event",
    "rdma_create_event_channel",
    "rdma_create_id",
    "rdma_create_qp",
    "rdma_get_cm_event",
];

thread_local! {
    /// What this thread has logged.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{}: {}", record.level(), record.args());
        LINES.with_borrow_mut(|lines| lines.push(line));
    }

    fn flush(&self) {}
}

/// Which number of a call fails, and how.
type Fails = Option<(&'static str, u32, How)>;

/// What a run made of it.
struct Run {
    result: anyhow::Result<()>,
    /// How often each call was made up to the end of each phase.
    calls: Vec<BTreeMap<&'static str, u64>>,
    left: BTreeMap<&'static str, usize>,
    log: Vec<String>,
}

/// Runs the program in a thread of its own: the call after which it waits for ever has a name then.
fn run(profile: &Profile, fails: Fails) -> Run {
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

fn run_here(profile: &Profile, fails: Fails) -> Run {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Lines).expect("the only one");
        log::set_max_level(LevelFilter::Warn);
    });
    let fabric = Fabric::new(profile.clone());
    let sides = Sides {
        client: fabric.host("client"),
        server: fabric.host("server"),
    };
    let failing = fails.map(|(call, nth, how)| fabric.fail(call).how(how).nth(nth, Errno::IO));
    let mut calls = Vec::new();
    let result = sides.run(|| calls.push(fabric.calls()));
    calls.push(fabric.calls());
    if let Some(failing) = failing {
        assert!(!failing.disarm(), "{fails:?} is not made");
    }
    Run {
        result,
        calls,
        left: fabric.objects(),
        log: LINES.take(),
    }
}

fn every_call_of(profile: &Profile, how: How) {
    let clean = run(profile, None);
    clean.result.expect("nothing fails by itself");
    assert_eq!(clean.log, Vec::<String>::new());
    assert!(clean.left.is_empty(), "{:?}", clean.left);
    assert_eq!(clean.calls.len(), PHASES.len());

    let mut all = clean.calls.last().expect("phases").clone();
    if how == How::Done {
        all.retain(|call, _| !ONE_WAY.contains(call));
    }
    let (mut told, mut logged, mut silent) = (0, 0, Vec::new());
    let mut by_phase = [0; PHASES.len()];
    for (&call, &count) in &all {
        for nth in 1..=count as u32 {
            let made = |calls: &BTreeMap<_, u64>| calls.get(call).is_some_and(|n| *n >= nth.into());
            let phase = clean.calls.iter().position(made).expect("it is made");
            by_phase[phase] += 1;
            let what = format!("{call}, number {nth}, while {}", PHASES[phase]);
            let run = run(profile, Some((call, nth, how)));
            let names = |text: &str| text.contains(&format!("{call} failed"));
            let error = run.result.err().map(|error| format!("{error:#}"));
            match &error {
                Some(error) if names(error) => told += 1,
                _ if run.log.iter().any(|line| names(line)) => logged += 1,
                _ => silent.push(format!("{what}: {error:?}, {:?}", run.log)),
            }
            let leaves = LEAVES.iter().find(|(destroys, _)| *destroys == call);
            // What was destroyed all the same leaves nothing.
            let leaves = leaves.filter(|_| how == How::Refused);
            let leaves = leaves.map_or(&[][..], |(_, kinds)| kinds);
            let left: BTreeSet<_> = run.left.keys().copied().collect();
            let allowed = BTreeSet::from_iter(leaves.iter().copied());
            assert!(left.is_subset(&allowed), "{what}: {:?} are left", run.left);
        }
    }
    assert!(silent.is_empty(), "nobody is told: {silent:#?}");
    println!(
        "{}, {how:?}: {} calls of {} verbs: {told} told, {logged} logged; in each phase: {:?}",
        profile.name(),
        told + logged,
        all.len(),
        PHASES.into_iter().zip(by_phase).collect::<Vec<_>>()
    );
}

#[test]
fn every_call_of_soft_roce() {
    every_call_of(&Profile::RXE_6_12, How::Refused);
}

#[test]
fn every_call_of_an_older_soft_roce() {
    every_call_of(&Profile::RXE_6_1, How::Refused);
}

#[test]
fn every_call_of_a_strict_adapter() {
    every_call_of(&Profile::STRICT, How::Refused);
}

/// Calls that fail and have done what they were to do.
#[test]
fn every_call_that_happens_all_the_same() {
    for profile in [Profile::RXE_6_12, Profile::RXE_6_1, Profile::STRICT] {
        every_call_of(&profile, How::Done);
    }
}
