//! The awaited operations of rpma-async: on a device, and on the simulated fabric.

// The guest has no lines by which one allocation can be distinguished from another.
#[cfg(feature = "sim")]
mod allocations;
mod backpressure;
mod bytes;
mod cancelling;
mod commit;
#[cfg(feature = "sim")]
mod commit_cuts;
#[cfg(feature = "sim")]
mod counting;
mod crowd;
mod ends;
#[cfg(feature = "sim")]
mod failing;
#[cfg(feature = "sim")]
mod failing_commits;
mod failover;
#[cfg(feature = "sim")]
mod faults;
mod gone;
mod held;
#[cfg(feature = "sim")]
mod hosts;
mod input;
#[cfg(feature = "sim")]
mod instants;
mod limits;
#[cfg(feature = "sim")]
mod log;
#[cfg(feature = "sim")]
mod lost;
mod made;
mod monitor;
#[cfg(feature = "sim")]
mod named;
mod no_runtime;
#[cfg(feature = "sim")]
mod notices;
mod operations;
#[cfg(feature = "sim")]
mod ordered;
mod parts;
#[cfg(feature = "sim")]
mod polled;
#[cfg(feature = "sim")]
mod probes;
#[cfg(feature = "sim")]
mod read_faults;
mod reads;
mod reconnect;
mod replicas;
#[cfg(feature = "sim")]
mod replicas_faults;
mod served;
mod serving;
#[allow(dead_code, reason = "these tests use a part of it")]
mod sleepers;
mod support;
#[cfg(feature = "sim")]
mod sweeping;
#[cfg(feature = "sim")]
mod sweeping_commits;
mod tasks;
mod turns;
mod weights;
#[cfg(feature = "sim")]
mod world;
