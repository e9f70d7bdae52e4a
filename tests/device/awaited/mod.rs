//! The awaited operations of rpma-async: on a device, and on the simulated fabric.
//!
//! # The invariants and their tests
//!
//! Each invariant of docs/async.md was broken on purpose, and these tests failed. Names without a
//! place are in this folder.
//!
//! * (1) Only the first failed operation fails: `the_order_of_completions_is_their_outcome` (unit
//!   test), `a_failure_beside_other_threads` (loom).
//! * (2) The driver does not poll after it has armed, does not arm again, or clears its mark by a
//!   store: `two_owners`, `abandoned_operations_give_their_memory_back` (loom).
//! * (2) The queue is armed without a sleeper: `the_driver_rests_while_nobody_sleeps`. The driver
//!   arms it for an operation that is complete: `a_queue_that_cannot_be_armed`.
//! * (3) A panic of a waker reaches another task: `a_waker_that_panics_is_alone` (unit test).
//! * (4) An operation waits for its first request: `a_part_of_a_commit_fails` (loom).
//! * (5) Room is not handed on: `waits_for_room_wake_when_there_is_room`, and for a commit of a
//!   writer `a_place_is_handed_on`. A wait for room arms no queue: `a_wait_for_room_polls_and_arms`
//!   (loom).
//! * (6) A failed post gives its memory back: `a_failed_post_keeps_its_memory`.
//! * (7) The memory returns although the queue pair is still there:
//!   `a_queue_pair_that_cannot_be_destroyed_keeps_its_memory`.
//! * (8) A failure does not disconnect: `a_peer_that_is_cut_off_wakes_all`,
//!   `a_broken_queue_pair_wakes_all`, `a_silent_peer_wakes_all`.
//! * (8) An end does not disconnect: `the_peer_ends_and_all_wake`, `a_killed_peer_wakes_all`.
//! * (8) The end wakes only operations: `the_peer_ends_and_all_wake`, `a_silent_peer_wakes_all`.
//! * (9) Results are not counted: `a_busy_task_lets_others_run`. The pause of a `Writer` between
//!   two probes is counted from the first probe's beginning instead of its end:
//!   `a_slow_probe_of_a_writer_lets_others_run`, `a_slow_probe_of_a_set_lets_others_run`.
//! * (10) A dropped operation is no sleeper, or its queue is not armed:
//!   `nothing_waits_for_the_next_look_of_the_driver`, `abandoned_operations_give_their_memory_back`
//!   (loom).
//! * (10) The memory of a dropped operation returns at once:
//!   `an_abandoned_operation_keeps_its_memory` (unit test),
//!   `a_limit_passes_and_the_memory_comes_back`.
//! * (12) A task does not read the mark after it has left its waker, or the driver wakes no task:
//!   `a_dropped_driver_is_an_error`, `a_driver_that_never_runs`.
//! * (13) A wait that was woken and dropped passes nothing on: `waits_for_a_block_are_dropped`,
//!   `a_wait_that_was_woken_is_dropped` (loom).
//! * (14) A block is lent twice, or a reader becomes a writer beside other readers:
//!   `no_block_is_lent_twice`, `only_the_last_reader_may_write_again` (unit tests, also under
//!   Miri).
//! * (15) Messages are returned in the order in which threads note them: `messages_stay_in_order`.
//! * (15) An inbox ends as soon as the end is known, although messages are noted:
//!   `messages_before_the_end_are_returned`.
//! * (16) The work looks for its end before it leaves its waker: `the_end_of_a_task` (loom).
//! * (16) The drop of a task does not wait: `a_thread_ends_with_its_task`. It takes a panic over,
//!   or waits for its own thread: `work_that_ends_itself`.
//! * (17) No timer is set: `commits_that_a_server_answers_have_their_lines`. An end that no event
//!   tells wakes no task: `a_keep_alive_wakes_a_commit`.
//!
//! No test produces the race of the last entry of (15). In that race the end is known, and another
//! thread has polled a message but has not noted it yet. The test finds only an inbox that ends
//! before messages that were noted.

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
