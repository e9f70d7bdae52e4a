//! The device tests that cannot pass over soft-iWARP, and why. Both the guest's device `siw0` and
//! the simulated one have this list, so that each reason is in one place.

use anyhow::{Result, ensure};

use self::On::{Both, Guest, Simulated};

/// The program of these tests.
pub(super) const PROGRAM: &str = "device";

/// The device on which a test is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Both,
    /// The guest's.
    Guest,
    /// The simulated one. Most of these tests exist only there.
    Simulated,
}

/// A test, where it does not run, and why.
pub(super) type LeftOut = (&'static str, On, &'static str);

const WRITES: &str = "a write that the peer refuses completes with success on iWARP";
const MESSAGES: &str = "no message waits for a receive on iWARP: the connection ends";
const IMMEDIATE: &str = "siw has no immediate data";
const ACCEPTED: &str = "on iWARP the kernel completes the connection, and not the client's program";
const RETRIES: &str = "iWARP has no retries of its own: TCP repeats for a quarter of an hour";
const TIMEOUTS: &str = "iWARP has no acknowledgement time-out";
const HELD: &str = "a device of iWARP holds no operation back; the simulated link does";
const NATIVE: &str = "iWARP has no native flush and no native atomic write";

/// In the order of their names.
pub(super) const LEFT_OUT: &[LeftOut] = &[
    (
        "atomic::the_native_atomic_write_is_there_to_be_tested",
        Both,
        NATIVE,
    ),
    (
        "awaited::allocations::awaited_operations_allocate_nothing",
        Simulated,
        MESSAGES,
    ),
    (
        "awaited::backpressure::a_full_queue_gives_the_memory_back",
        Both,
        MESSAGES,
    ),
    (
        "awaited::backpressure::a_program_posts_as_fast_as_there_is_room",
        Both,
        IMMEDIATE,
    ),
    (
        "awaited::backpressure::waits_for_room_wake_when_there_is_room",
        Both,
        MESSAGES,
    ),
    (
        "awaited::cancelling::a_limit_passes_and_the_memory_comes_back",
        Both,
        MESSAGES,
    ),
    (
        "awaited::cancelling::accepting_is_dropped_after_each_poll",
        Both,
        ACCEPTED,
    ),
    (
        "awaited::cancelling::operations_are_dropped_after_each_poll",
        Both,
        IMMEDIATE,
    ),
    (
        "awaited::cancelling::waits_are_dropped_after_each_poll",
        Both,
        MESSAGES,
    ),
    (
        "awaited::crowd::a_hundred_connections_on_one_thread",
        Guest,
        "the guest's siw makes no more completion queues: EAGAIN",
    ),
    (
        "awaited::crowd::killed::a_killed_program_wakes_all",
        Guest,
        HELD,
    ),
    ("awaited::ends::a_dropped_driver_is_an_error", Guest, HELD),
    ("awaited::ends::abort_ends_at_once", Guest, HELD),
    ("awaited::ends::close_keeps_its_limit", Guest, HELD),
    (
        "awaited::ends::close_waits_for_what_is_in_flight",
        Both,
        MESSAGES,
    ),
    ("awaited::ends::the_peer_ends_and_all_wake", Guest, HELD),
    (
        "awaited::failing::a_driver_whose_calls_fail",
        Simulated,
        MESSAGES,
    ),
    (
        "awaited::failing::a_failed_part_of_a_batch",
        Simulated,
        RETRIES,
    ),
    (
        "awaited::faults::an_own_device_that_stands_still_keeps_the_sources",
        Simulated,
        "siw flushes the queues within the call that ends the connection",
    ),
    (
        "awaited::gone::a_host_that_is_gone_ends_the_wait",
        Simulated,
        RETRIES,
    ),
    (
        "awaited::input::awaited_outside_of_the_drivers_runtime",
        Both,
        MESSAGES,
    ),
    (
        "awaited::instants::each_run_has_the_same_instants",
        Simulated,
        MESSAGES,
    ),
    (
        "awaited::lost::a_peer_that_is_cut_off_wakes_all",
        Simulated,
        RETRIES,
    ),
    (
        "awaited::lost::connecting_has_a_limit",
        Simulated,
        "siw gives a client up that the server has not answered after 10 s",
    ),
    ("awaited::named::errors_have_no_number", Simulated, WRITES),
    (
        "awaited::named::operations_have_their_lines",
        Simulated,
        IMMEDIATE,
    ),
    (
        "awaited::named::operations_of_a_batch_have_their_own_lines",
        Simulated,
        IMMEDIATE,
    ),
    (
        "awaited::no_runtime::operations_move_between_threads",
        Both,
        MESSAGES,
    ),
    (
        "awaited::no_runtime::operations_without_a_runtime",
        Both,
        MESSAGES,
    ),
    (
        "awaited::no_runtime::tasks_on_three_workers",
        Both,
        MESSAGES,
    ),
    (
        "awaited::no_runtime::threads_share_a_connection",
        Both,
        MESSAGES,
    ),
    (
        "awaited::operations::each_kind_of_operation",
        Both,
        IMMEDIATE,
    ),
    (
        "awaited::ordered::messages_stay_in_order",
        Simulated,
        IMMEDIATE,
    ),
    (
        "awaited::parts::a_batch_that_fails_keeps_its_sources_until_the_last_request",
        Both,
        WRITES,
    ),
    (
        "awaited::parts::a_commit_that_fails_keeps_its_sources_until_the_last_request",
        Both,
        WRITES,
    ),
    (
        "awaited::read_faults::a_failed_post_of_a_read_keeps_its_block",
        Simulated,
        "on iWARP this side's own end comes with an event, before the failure is asked for",
    ),
    (
        "awaited::reads::an_end_fails_reads",
        Guest,
        "siw does not report each operation that was in flight, and then its block comes back with the writer",
    ),
    (
        "awaited::reconnect::connections_follow_each_other",
        Both,
        IMMEDIATE,
    ),
    ("batch::a_failure_in_the_middle_of_a_batch", Both, WRITES),
    (
        "batch::every_kind_of_operation_among_others",
        Both,
        IMMEDIATE,
    ),
    (
        "connect::a_request_whose_queues_cannot_be_made_is_refused",
        Both,
        "siw makes queues as large as these",
    ),
    (
        "connect::closing_is_seen_by_both_sides",
        Both,
        "iWARP has no TimewaitExit",
    ),
    ("counters::failures_are_counted_by_status", Both, WRITES),
    ("ending::closing::closing_a_failed_connection", Both, WRITES),
    (
        "ending::closing::closing_after_a_wait_has_taken_the_end",
        Guest,
        "the write is posted before or after this side knows the end, and completes or not",
    ),
    ("ending::closing::closing_keeps_its_limit", Both, MESSAGES),
    (
        "ending::closing::closing_loses_nothing_that_was_posted",
        Both,
        IMMEDIATE,
    ),
    (
        "ending::dying::a_client_cannot_make_a_server_retry_without_end",
        Both,
        RETRIES,
    ),
    (
        "ending::dying::a_thousand_clients_die",
        Guest,
        "siw may report the error of the queue pair before the end of the connection",
    ),
    (
        "ending::dying::a_wait_for_an_operation_leaves_events_to_their_waiters",
        Guest,
        HELD,
    ),
    (
        "ending::dying::a_wait_for_an_operation_sees_the_end",
        Guest,
        HELD,
    ),
    (
        "ending::dying::clients_that_are_killed",
        Guest,
        "a server of siw has 10 s to accept, and the programs start more slowly in the guest",
    ),
    (
        "ending::dying::short_waits_for_an_operation_see_the_end",
        Guest,
        HELD,
    ),
    (
        "ending::limits::a_dead_peer_can_be_known_sooner",
        Both,
        TIMEOUTS,
    ),
    ("ending::limits::every_wait_can_be_limited", Guest, HELD),
    (
        "ending::limits::nobody_takes_the_answer_in_time",
        Both,
        ACCEPTED,
    ),
    (
        "events::solicited::only_solicited_writes_give_events",
        Both,
        IMMEDIATE,
    ),
    (
        "failing::freeing::closing_without_a_marker",
        Both,
        "on iWARP no markers are posted when the queues are flushed",
    ),
    (
        "failing::posting::a_native_operation_that_fails_and_happens_all_the_same",
        Both,
        NATIVE,
    ),
    (
        "input::a_message_that_is_too_long",
        Both,
        "siw has at most 6 parts, not 16",
    ),
    (
        "keep_alive::idle::a_client_may_take_the_answer_late",
        Simulated,
        ACCEPTED,
    ),
    (
        "keep_alive::idle::traffic_is_a_sign",
        Simulated,
        "a completion of an operation is no sign of life on iWARP",
    ),
    (
        "keep_alive::own::a_message_without_a_receive_ends_as_gone",
        Both,
        MESSAGES,
    ),
    (
        "keep_alive::probes::a_probe_that_fails_ends_the_connection",
        Simulated,
        RETRIES,
    ),
    (
        "keep_alive::settings::less_than_four_time_outs_of_the_kernel",
        Both,
        TIMEOUTS,
    ),
    (
        "keep_alive::settings::less_than_four_time_outs_that_were_set",
        Both,
        TIMEOUTS,
    ),
    (
        "messages::arriving::immediate_data_is_the_same_number_on_both_sides",
        Both,
        IMMEDIATE,
    ),
    (
        "messages::arriving::operations_of_no_bytes",
        Both,
        IMMEDIATE,
    ),
    (
        "messages::parts::every_refusal_of_gathered_parts",
        Both,
        "siw has at most 6 parts, not 16",
    ),
    (
        "messages::parts::every_refusal_of_inline_data",
        Both,
        "siw has less room for inline data than the test asks for",
    ),
    (
        "messages::parts::inline_data_may_change_at_once",
        Both,
        IMMEDIATE,
    ),
    (
        "messages::queues::waiting_for_one_operation_that_fails",
        Both,
        WRITES,
    ),
    (
        "messages::receives::a_message_longer_than_its_receive_fails_on_both_sides",
        Both,
        "a message that the peer refuses completes with success on iWARP",
    ),
    (
        "messages::receives::a_message_without_a_receive_may_fail_instead",
        Both,
        MESSAGES,
    ),
    (
        "messages::receives::a_message_without_a_receive_waits_for_one",
        Both,
        MESSAGES,
    ),
    (
        "messages::receives::a_message_without_a_receive_waits_longer_than_for_a_dead_peer",
        Both,
        MESSAGES,
    ),
    (
        "messages::receives::receives_posted_before_the_connection_exists",
        Guest,
        "the accepting side sends first, which ends a connection of siw",
    ),
    (
        "messages::receives::the_receiver_says_how_long_to_wait_for_a_receive",
        Both,
        MESSAGES,
    ),
    (
        "next::failures_come_before_the_end",
        Both,
        "a message that the peer refuses completes with success on iWARP",
    ),
    (
        "serve::again::a_connection_that_cannot_be_cut_off",
        Simulated,
        "on iWARP the connection ends with its id, also if the queue pair stays",
    ),
    (
        "serve::bad_input::a_keep_alive_below_the_kernels_time_outs",
        Both,
        TIMEOUTS,
    ),
    (
        "serve::failing::a_client_that_is_never_established",
        Simulated,
        ACCEPTED,
    ),
    (
        "serve::rules::a_failed_operation_ends_its_client",
        Both,
        MESSAGES,
    ),
    (
        "srq::objects::every_refusal_of_a_shared_receive_queue",
        Both,
        "siw makes queues as large as these",
    ),
    (
        "teardown::a_region_dropped_with_work_posted_ends_the_connection",
        Simulated,
        "the stream of the simulated siw takes the bytes of all writes at once",
    ),
    (
        "transfer::a_failed_connection_loses_no_completion",
        Both,
        "siw reports no operation that is posted after the failure",
    ),
    (
        "transfer::the_native_flush_is_there_to_be_tested",
        Both,
        NATIVE,
    ),
];

/// Those on this device.
pub(super) fn of(on: On) -> impl Iterator<Item = &'static LeftOut> {
    LEFT_OUT.iter().filter(move |left| is_of(left, on))
}

fn is_of((_, of, _): &LeftOut, on: On) -> bool {
    *of == Both || *of == on
}

/// Of these tests of a device those that are not left out there. Each of `all` that is must exist.
pub(super) fn without<'left>(
    tests: impl Iterator<Item = String>,
    all: &[String],
    left_out: impl Iterator<Item = &'left LeftOut>,
) -> Result<Vec<String>> {
    let left: Vec<_> = left_out.map(|(name, ..)| *name).collect();
    for name in &left {
        ensure!(
            all.iter().any(|test| test == name),
            "{name} is left out, and no such test is there"
        );
    }
    Ok(tests.filter(|test| !left.contains(&&**test)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: [LeftOut; 3] = [
        ("connect::a", Both, "why"),
        ("connect::b", Guest, "why"),
        ("ending::c", Simulated, "why"),
    ];

    #[test]
    fn a_test_is_left_out_where_it_cannot_pass() {
        let all = ["connect::a", "connect::b", "ending::c", "ending::d"].map(str::to_owned);
        let run = |on| {
            let left = FEW.iter().filter(|left| is_of(left, on));
            without(all.iter().cloned(), &all, left).unwrap()
        };
        assert_eq!(run(Guest), ["ending::c", "ending::d"]);
        assert_eq!(run(Simulated), ["connect::b", "ending::d"]);
    }

    #[test]
    fn a_test_that_is_left_out_exists() {
        let all = ["connect::a", "connected::b"].map(str::to_owned);
        without(all.iter().cloned(), &all, FEW[..1].iter()).unwrap();
        without(all.iter().cloned(), &all, FEW[1..2].iter()).unwrap_err();
    }

    #[test]
    fn each_test_is_listed_once_and_in_order() {
        let names: Vec<_> = LEFT_OUT.iter().map(|(name, ..)| *name).collect();
        assert!(names.is_sorted_by(|one, next| one < next));
    }
}
