//! Files of the libraries under loom, which runs a model in every order of its threads, up to a
//! number of preemptions.
//!
//! The files are independent of verbs. Here they get loom's atomics and locks (`primitives`), and
//! the models play the device. A lost wake-up is a deadlock, which loom reports. Loom supports the
//! orders that acquire and release allow; to it `SeqCst` of an access is `AcqRel`.
//!
//! * `queues`: the slots of rpma's queues.
//! * `sharing`: the lookout of rpma's shared writers.
//! * `operations`: the operations of rpma-async, and the tasks that wait.

#![cfg(test)]

mod operations;
mod primitives;
mod queues;
mod sharing;
mod sync;

/// The clock has no part in a model.
use crate::sync as clock;
/// Where lookout.rs finds its deadline.
use crate::sync as verbs;

#[path = "../../../rpma/src/slots/contexts.rs"]
mod contexts;
#[allow(dead_code, reason = "a part of it is tested")]
#[path = "../../../rpma/src/lock.rs"]
mod lock;
#[allow(dead_code, reason = "as above")]
#[path = "../../../rpma/src/commit/lookout.rs"]
mod lookout;
#[allow(dead_code, reason = "as above")]
#[path = "../../../rpma/src/slots/pool.rs"]
mod pool;
#[allow(dead_code, reason = "as above")]
#[path = "../../../rpma/src/slots/ring.rs"]
mod ring;

#[path = "../../../rpma-async/src/arming.rs"]
mod arming;
#[path = "../../../rpma-async/src/end.rs"]
mod end;
#[allow(dead_code, reason = "as above")]
#[path = "../../../rpma-async/src/ops.rs"]
mod ops;
#[allow(dead_code, reason = "as above")]
#[path = "../../../rpma-async/src/tasks.rs"]
mod tasks;
#[path = "../../../rpma-async/src/waiters.rs"]
mod waiters;

/// Runs `test` in every order of its threads with up to so many preemptions: of threads between two
/// accesses of shared memory.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}
