//! `docs/porting-from-librpma.md` is complete: a row for each function of the installed
//! `librpma.h`, and for each of the C library's weaknesses, whose tests are here and exist. That the
//! Rust items exist is rustdoc's to check: the page is part of the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::failed::Result;

const HEADER: &str = "/usr/include/librpma.h";
const WEAKNESSES: usize = 42;

/// The tests of each weakness, in their order: the module, and a function or a program that must not
/// compile. The module is a file or a folder in `tests/` or `rpma/src/`. Some have none: the compiler
/// or the page is their only proof.
const TESTS: [&[&str]; WEAKNESSES] = [
    // W-1
    &[
        "connect::a_dropped_request_is_a_reject",
        "connect::a_client_that_vanishes_does_not_hurt_the_endpoint",
    ],
    // W-2
    &["event_loop::nothing_pending_is_no_event_at_once_on_a_non_blocking_descriptor"],
    // W-3
    &[
        "interop::a_c_client_whose_queues_cannot_be_made_is_rejected",
        "connect::a_request_whose_queues_cannot_be_made_is_refused",
    ],
    // W-4
    &[
        "connect::closing_is_seen_by_both_sides",
        "interop::a_c_server_closes",
    ],
    // W-5
    &[
        "cm_event::events_that_no_connection_has_stay_numbers",
        "event::the_texts_tell_the_cause",
    ],
    // W-6
    &[
        "events::each_event_is_acknowledged_once",
        "events::queues_are_dropped_while_others_wait_on_their_channel",
    ],
    // W-7
    &[],
    // W-8
    &[
        "input::ranges_outside_a_region",
        "input::a_message_that_is_too_long",
        "remote::no_bytes_panic_and_no_slice_leaves_the_region",
    ],
    // W-9
    &[
        "transfer::write_flush_and_read_back_on_dram",
        "interop::rust_writes_atomically",
    ],
    // W-10
    &[
        "transfer::one_region_serves_both_kinds_of_flush",
        "usage::a_flush_right_keeps_the_right_to_read",
        "interop::a_fallback_flush_of_c_memory_needs_the_right_to_read",
    ],
    // W-11
    &["transfer::the_last_byte_of_a_region_can_be_flushed"],
    // W-12
    &["compile_fail::Flags"],
    // W-13
    &["compile_fail::Flags"],
    // W-14
    &[],
    // W-15
    &["remote::the_log_shows_what_a_descriptor_means"],
    // W-16
    &["teardown::objects_may_be_dropped_in_each_order"],
    // W-17
    &[],
    // W-18
    &["connect::threads_that_wait_for_requests_take_nothing_else"],
    // W-19
    &["input::addresses", "address::wildcards_are_refused"],
    // W-20
    &["input::devices_are_not_mixed"],
    // W-21
    &[
        "transfer::a_thousand_writes_without_a_poll",
        "transfer::writes_without_completions_fill_the_queue_as_well",
    ],
    // W-22
    &[
        "messages::receives_posted_before_the_connection_exists",
        "messages::a_message_without_a_receive_may_fail_instead",
        "messages::the_receiver_says_how_long_to_wait_for_a_receive",
        "conn_cfg::defaults_are_librpmas_but_for_the_endless_retry",
    ],
    // W-23
    &[
        "events::arm_poll_wait_never_misses_a_completion",
        "events::an_event_may_come_without_a_completion",
    ],
    // W-24
    &[
        "compile_fail::OpcodeOfFailure",
        "wc::a_failed_completion_shows_only_what_is_valid",
    ],
    // W-25
    &[
        "teardown::memory_is_not_touched_after_deregistration",
        "teardown::a_forgotten_region_is_harmless",
        "compile_fail::SliceOutlivesRegion",
        "compile_fail::BorrowedMemory",
    ],
    // W-26
    &[
        "teardown::objects_may_be_dropped_in_each_order",
        "compile_fail::QueueOutlivesConnection",
    ],
    // W-27
    &["compile_fail::UseAfterDereg"],
    // W-28
    &["transfer::a_region_without_the_usage_is_refused_before_anything_is_sent"],
    // W-29
    &["connect::dropping_a_connection_tells_the_peer_and_does_not_wait_for_it"],
    // W-30
    &[
        "ending::closing_loses_nothing_that_was_posted",
        "interop::closing_towards_a_c_server_loses_nothing",
    ],
    // W-31
    &[
        "connect::private_data_travels_both_ways",
        "connect::private_data_that_is_too_long_is_refused_and_the_request_lives_on",
        "interop::private_data_of_a_c_server",
    ],
    // W-32
    &[
        "events::waiting_where_no_events_arrive_is_refused",
        "events::a_shared_channel_tells_the_queue",
    ],
    // W-33
    &[
        "srq::row_7_a_shared_receive_queue_with_its_own_queue",
        "compile_fail::ReceiveQueueThatMayBeMissing",
    ],
    // W-34
    &["srq::a_queue_lives_as_long_as_its_users"],
    // W-35
    &[
        "compile_fail::RequestUsedTwice",
        "connect::private_data_that_is_too_long_is_refused_and_the_request_lives_on",
    ],
    // W-36
    &["error::a_provider_error_names_the_call_the_errno_and_the_hint"],
    // W-37
    &[
        "ending::a_reject_tells_why",
        "connect::nobody_listens",
        "connect::a_dropped_request_is_a_reject",
        "event::the_texts_tell_the_cause",
    ],
    // W-38
    &[
        "ending::every_wait_can_be_limited",
        "ending::nobody_accepts_in_time",
        "events::a_limit_is_kept_by_each_of_many_waiters",
    ],
    // W-39
    &[
        "atomic::every_refusal_of_an_atomic_write",
        "atomic::a_pointer_is_never_seen_before_its_data",
        "interop::rust_writes_atomically",
    ],
    // W-40
    &[],
    // W-41
    &["events::a_signal_does_not_end_a_wait"],
    // W-42
    &["messages::messages_keep_their_order"],
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the table under `heading`, each as its cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = read(&root().join("docs/porting-from-librpma.md"));
    let heading = format!("## {heading}");
    let rows: Vec<_> = page
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect())
        // The names of the columns, and the line below them.
        .skip(2)
        .collect();
    assert!(!rows.is_empty(), "no table under {heading:?}");
    rows
}

/// The names in backticks in a cell.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The duplicates.
fn duplicates<T: Ord + Copy>(all: &[T]) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let all = all.iter().copied();
    all.filter(|&one| !seen.insert(one)).collect()
}

/// The functions that a header declares: `rpma_` names before a parenthesis, outside of comments.
fn declared(header: &str) -> BTreeSet<&str> {
    let mut code = header;
    let mut functions = BTreeSet::new();
    while !code.is_empty() {
        let (before, rest) = code.split_once("/*").unwrap_or((code, ""));
        for (at, _) in before.match_indices('(') {
            let is_between = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let word = before[..at].rsplit(is_between).next();
            functions.extend(word.filter(|word| word.starts_with("rpma_")));
        }
        code = rest.split_once("*/").map_or("", |(_comment, after)| after);
    }
    functions
}

#[test]
fn each_function_of_the_installed_header_has_a_row() -> Result {
    let header = read(Path::new(HEADER));
    let mut declared = declared(&header);
    // A typedef of a function looks like one.
    declared.remove("rpma_log_function");
    let rows = table("Functions");
    let name = |row| names(row).next().ok_or("a function in the first cell");
    let listed = rows.iter().map(|row| name(&row[0]));
    let listed = listed.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(duplicates(&listed), [""; 0], "listed twice");
    let listed: BTreeSet<_> = listed.into_iter().collect();
    let missing: Vec<_> = declared.difference(&listed).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    let unknown: Vec<_> = listed.difference(&declared).collect();
    assert!(unknown.is_empty(), "not in {HEADER}: {unknown:?}");
    assert_eq!(declared.len(), 84, "librpma 1.3.0 has 84");
    Ok(())
}

#[test]
fn each_row_names_a_rust_item_as_a_link() {
    for row in table("Functions") {
        assert_eq!(row.len(), 3, "{row:?}");
        let is_link = row[1].starts_with("[`") && row[1].ends_with("`]");
        assert!(is_link, "rustdoc checks links only: {row:?}");
    }
}

/// The library's documentation promises that a search for a C name finds the Rust one.
#[test]
fn each_function_is_found_by_its_c_name() -> Result {
    let all = sources()?.into_values().flatten();
    let library = root().join("rpma/src");
    let text: Vec<_> = all.filter(|path| path.starts_with(&library)).collect();
    let text: String = text.iter().map(|path| read(path)).collect();
    for row in table("Functions") {
        let name = names(&row[0])
            .next()
            .ok_or("a function in the first cell")?;
        let alias = format!("#[doc(alias = \"{name}\")]");
        assert!(text.contains(&alias), "nothing has {alias}");
    }
    Ok(())
}

/// Where the tests named `module::…` may be.
fn sources() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut dirs = vec![root().join("tests"), root().join("rpma/src")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                // A module is a file or a directory of that name.
                for named in [path.file_stem(), dir.file_name()].into_iter().flatten() {
                    let module = named.to_str().expect("a name").to_owned();
                    found.entry(module).or_default().push(path.clone());
                }
            }
        }
    }
    Ok(found)
}

/// Whether `source` has a test of that name: a function, or a program that must not compile.
fn has_test(source: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let program = format!("struct {name};");
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let above = || lines[..at].iter().rev().take_while(|line| !line.is_empty());
        if line.starts_with(&function) {
            above().any(|line| *line == "#[test]")
        } else {
            *line == program && above().any(|line| line.starts_with("/// ```compile_fail"))
        }
    })
}

#[test]
fn each_weakness_has_a_row_whose_tests_exist() -> Result {
    let rows = table("Weaknesses");
    let numbers: Vec<String> = rows.iter().map(|row| row[0].clone()).collect();
    let expected = (1..=WEAKNESSES).map(|number| format!("W-{number}"));
    let expected: Vec<String> = expected.collect();
    assert_eq!(numbers, expected, "each once, in their order");

    let sources = sources()?;
    for (row, tests) in rows.iter().zip(TESTS) {
        assert_eq!(row.len(), 3, "{row:?}");
        assert!(!row[2].is_empty(), "no answer: {row:?}");
        for name in tests {
            let (module, test) = name.split_once("::").ok_or("module::test")?;
            let mut files = sources.get(module).into_iter().flatten();
            let exists = files.any(|path| has_test(&read(path), test));
            assert!(exists, "{}: there is no test {name}", row[0]);
        }
    }
    Ok(())
}
