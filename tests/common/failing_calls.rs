//! The shared part of sweeps: each call that a program makes fails in one run of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rpma::sim::How;

/// The objects that a failed destroying call leaves: its own, and those that it keeps.
const LEAVES: [(&str, &[&str]); 7] = [
    ("ibv_dealloc_pd", &["pd"]),
    ("ibv_dereg_mr", &["mr", "pd"]),
    ("ibv_destroy_comp_channel", &["comp_channel"]),
    ("ibv_destroy_cq", &["cq", "comp_channel"]),
    ("ibv_destroy_qp", &["qp", "cq", "comp_channel", "pd"]),
    ("ibv_destroy_srq", &["srq", "pd"]),
    ("rdma_destroy_id", &["cm_id"]),
];

/// Calls that fail in one way only. Those that return an object or an event have no effect then,
/// and `rdma_ack_cm_event` has its full effect.
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

/// How often each call was made.
pub(crate) type Calls = BTreeMap<&'static str, u64>;

/// A call that fails: its name, its number, and how.
pub(crate) type Fails = (&'static str, u32, How);

/// The result of a run with a failure.
pub(crate) struct Run {
    pub(crate) error: Option<String>,
    pub(crate) left: BTreeMap<&'static str, usize>,
    pub(crate) log: Vec<String>,
}

/// The result of all runs: how often the error of the program named the call, and how often the
/// log.
pub(crate) struct Swept {
    told: u32,
    logged: u32,
    verbs: usize,
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            told,
            logged,
            verbs,
        } = self;
        let calls = told + logged;
        write!(
            f,
            "{calls} calls of {verbs} verbs: {told} told, {logged} logged"
        )
    }
}

/// Lets each of these calls fail, each in a run of its own: those with a number that `includes` has.
/// `run` returns `None` if the program makes no call of this number. A queue pair that is not
/// destroyed keeps objects of `keeps` as well.
///
/// Each failure must be named by the error of the program, or by the log. The only objects left are
/// those that could not be destroyed, and those that they keep.
pub(crate) fn every_call(
    calls: &Calls,
    how: How,
    keeps: &str,
    includes: impl Fn(usize) -> bool,
    mut run: impl FnMut(Fails) -> Option<Run>,
) -> Swept {
    let calls = calls.iter();
    let calls: Vec<_> = calls
        .filter(|(call, _)| how == How::Refused || !ONE_WAY.contains(call))
        .collect();
    let (mut told, mut logged, mut silent) = (0, 0, Vec::new());
    let mut number = 0;
    for &(&call, &count) in &calls {
        for nth in 1..=count as u32 {
            number += 1;
            if !includes(number) {
                continue;
            }
            let what = format!("{call}, number {nth}, {how:?}");
            let Some(run) = run((call, nth, how)) else {
                break;
            };
            let names = |text: &str| text.contains(&format!("{call} failed"));
            match &run.error {
                Some(error) if names(error) => told += 1,
                _ if run.log.iter().any(|line| names(line)) => logged += 1,
                error => silent.push(format!("{what}: {error:?}, {:?}", run.log)),
            }
            // Objects that were still destroyed are not left.
            let leaves = LEAVES.iter().filter(|_| how == How::Refused);
            let leaves = leaves.filter(|(destroys, _)| *destroys == call);
            let mut allowed: BTreeSet<_> = leaves.flat_map(|(_, kinds)| *kinds).copied().collect();
            if allowed.contains("qp") {
                allowed.insert(keeps);
            }
            let left: BTreeSet<_> = run.left.keys().copied().collect();
            assert!(
                left.is_subset(&allowed),
                "{what}: {:?} are left: {:?}",
                run.left,
                run.log
            );
        }
    }
    assert!(silent.is_empty(), "nobody is told: {silent:#?}");
    Swept {
        told,
        logged,
        verbs: calls.len(),
    }
}

/// The kinds of objects that this call leaves if it fails.
pub(crate) fn leaves(call: &str) -> BTreeSet<&'static str> {
    let leaves = LEAVES.iter().filter(|(destroys, _)| *destroys == call);
    leaves.flat_map(|(_, kinds)| *kinds).copied().collect()
}
