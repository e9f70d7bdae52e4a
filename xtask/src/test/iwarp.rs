//! Device tests over soft-iWARP: the same programs, with the address of the guest's device `siw0`.
//! Every test of the subjects below runs there, or is listed with the reason why it cannot pass.

use std::process::Command;

use anyhow::{Result, ensure};

use super::report::Report;
use super::subjects::{Subject, tests_of};
use super::{Options, check_all, run_on_device};
use crate::guest::chroot::Headers::Native;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::progress::say;

/// The step's name.
const STEP: &str = "soft-iWARP";

const PROGRAM: &str = "device";
const SUBJECTS: [&str; 3] = ["connect", "messages", "transfer"];

/// The tests of these subjects that do not run, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "connect::a_client_that_vanishes_does_not_hurt_the_endpoint",
        "passes in 215 s: siw destroys the queue pair of an unanswered client after 10 s",
    ),
    (
        "connect::a_dropped_request_is_a_reject",
        "the reason of a reject is -104 on iWARP, not 28",
    ),
    (
        "connect::a_name_with_two_addresses_connects",
        "nobody listens: the connect fails by itself, there is no reject with a reason",
    ),
    (
        "connect::a_request_whose_queues_cannot_be_made_is_refused",
        "siw makes queues as large as these",
    ),
    (
        "connect::closing_is_seen_by_both_sides",
        "iWARP has no TimewaitExit",
    ),
    (
        "connect::nobody_listens",
        "the connect fails by itself, there is no reject with a reason",
    ),
    (
        "connect::private_data_travels_both_ways",
        "iWARP does not pad private data",
    ),
    (
        "connect::threads_that_wait_for_requests_take_nothing_else",
        "iWARP does not pad private data, and the test reads a byte of none",
    ),
    (
        "messages::arriving::immediate_data_is_the_same_number_on_both_sides",
        "siw has no immediate data",
    ),
    (
        "messages::arriving::operations_of_no_bytes",
        "siw has no immediate data",
    ),
    (
        "messages::parts::every_refusal_of_gathered_parts",
        "siw has at most 6 parts, not 16",
    ),
    (
        "messages::parts::every_refusal_of_inline_data",
        "siw has less room for inline data than the test asks for",
    ),
    (
        "messages::parts::inline_data_may_change_at_once",
        "siw has no immediate data, and no message waits for a receive",
    ),
    (
        "messages::queues::waiting_for_one_operation_that_fails",
        "a write that the peer refuses completes with success on iWARP",
    ),
    (
        "messages::receives::a_message_longer_than_its_receive_fails_on_both_sides",
        "a message that the peer refuses completes with success on iWARP",
    ),
    (
        "messages::receives::a_message_without_a_receive_may_fail_instead",
        "a message that nobody receives completes with success on iWARP",
    ),
    (
        "messages::receives::a_message_without_a_receive_waits_for_one",
        "no message waits for a receive on iWARP; siw has no immediate data",
    ),
    (
        "messages::receives::a_message_without_a_receive_waits_longer_than_for_a_dead_peer",
        "no message waits for a receive on iWARP",
    ),
    (
        "messages::receives::receives_posted_before_the_connection_exists",
        "the accepting side sends first, which ends a connection of siw",
    ),
    (
        "messages::receives::the_receiver_says_how_long_to_wait_for_a_receive",
        "no message waits for a receive on iWARP",
    ),
    (
        "transfer::a_failed_connection_loses_no_completion",
        "siw reports no operation that is posted after the failure",
    ),
    (
        "transfer::parts_of_a_device_have_keys_of_their_own",
        "siw reports no operation that is posted after the failure",
    ),
    (
        "transfer::the_native_flush_is_there_to_be_tested",
        "iWARP has no native flush",
    ),
];

/// Only these tests.
pub(crate) fn alone(workspace: &Workspace, options: Options) -> Result<bool> {
    let mut lab = Lab::open(workspace, "test", false)?;
    let mut report = Report::new(workspace);
    let build = |words| lab.cargo(Native, words);
    let builds = vec![
        (
            "device: build".to_owned(),
            build("test --no-run --test device")?,
        ),
        (
            "device: build 01".to_owned(),
            build("build --example 01-connection")?,
        ),
    ];
    if check_all(&mut report, builds)? {
        for (test, why) in LEFT_OUT {
            say(&format!("       left out: {test}: {why}"));
        }
        run(&mut report, &mut lab, options)?;
    }
    Ok(report.close())
}

/// Runs them as one step; returns whether there is a device for others.
pub(super) fn run(report: &mut Report<'_>, lab: &mut Lab<'_>, options: Options) -> Result<bool> {
    let mut test = match command(lab, options) {
        Ok(test) => test,
        Err(error) => {
            report.not_run(STEP, &error);
            return Ok(true);
        }
    };
    let there = run_on_device(report, lab, STEP, &mut test);
    say(&format!(
        "       {} tests cannot pass there: xtask/src/test/iwarp.rs has the reasons",
        LEFT_OUT.len()
    ));
    there
}

fn command(lab: &mut Lab<'_>, options: Options) -> Result<Command> {
    let tests = without(&tests_of(lab, Native, PROGRAM, &[])?, LEFT_OUT)?;
    lab.over_iwarp(true);
    let test = lab.cargo_on_device(Native, "test", options.limit());
    lab.over_iwarp(false);
    let mut test = test?;
    test.args(["--test", PROGRAM, "--", "--exact"]).args(tests);
    Ok(test)
}

/// Of a program's tests those of the subjects that are not left out, each of which has to exist.
fn without(all: &[String], left_out: &[(&str, &str)]) -> Result<Vec<String>> {
    let ours = SUBJECTS.iter().flat_map(|name| {
        let subject = Subject {
            program: PROGRAM.to_owned(),
            name: (*name).to_owned(),
        };
        subject.of(all, &[])
    });
    let (left, run): (Vec<_>, Vec<_>) =
        ours.partition(|test| left_out.iter().any(|(name, _)| name == test));
    for (name, _) in left_out {
        ensure!(
            left.iter().any(|test| test == name),
            "{name} is left out, and no such test is there"
        );
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn a_test_that_is_left_out_exists() {
        let all = ["connect::a", "connect::b", "connected::a", "transfer::a::b"].map(str::to_owned);
        let run = without(&all, &[("connect::b", "why")]).unwrap();
        assert_eq!(run, ["connect::a", "transfer::a::b"]);
        for name in ["connect::c", "connected::a"] {
            without(&all, &[(name, "why")]).unwrap_err();
        }
    }
}
