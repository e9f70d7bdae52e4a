//! `rpma perf` on the simulated fabric, as a user runs it.

use std::fs;

use serde_json::Value;

use crate::common::{Ended, Result, rpma};

/// Runs a measurement of so many operations, without a warm-up. Returns its lines of JSON.
fn measured(args: &str) -> Result<Vec<Value>> {
    let words = format!("perf --format json --warm-up 0 {args}");
    let ended = run(&words)?;
    match ended.status {
        Some(0) => lines(&ended.stdout),
        _ => Err(format!("{words}: {ended:#?}").into()),
    }
}

fn run(args: &str) -> Result<Ended> {
    Ok(rpma(&args.split_whitespace().collect::<Vec<_>>())?)
}

fn lines(text: &str) -> Result<Vec<Value>> {
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<serde_json::Result<_>>()?)
}

/// The one line of standard error.
fn error(ended: &Ended) -> Result<&str> {
    match ended.stderr.lines().collect::<Vec<_>>()[..] {
        [line] => Ok(line),
        _ => Err(format!("not one line: {ended:#?}").into()),
    }
}

const OPERATIONS: [&str; 7] = [
    "write",
    "read",
    "read-write",
    "send",
    "write-flush",
    "atomic-write",
    "commit",
];
const COMPLETIONS: [&str; 2] = ["poll", "wait"];

/// Promise: on iWARP, where a message without a receive ends the connection, messages are refused
/// before the measurement. All other operations are measured.
#[test]
fn messages_are_not_measured_on_iwarp() -> Result {
    for op in OPERATIONS {
        let args = format!("--profile siw-6.12 --op {op} --count 24 --depth 4");
        if op == "send" {
            let ended = run(&format!("perf {args}"))?;
            assert_eq!(ended.status, Some(1), "{ended:#?}");
            let error = error(&ended)?;
            assert!(
                error.contains("on iWARP a message does not wait"),
                "{error}"
            );
        } else {
            assert_eq!(measured(&args)?[0]["result"]["operations"], 24, "{args}");
        }
    }
    Ok(())
}

/// Promise: each operation works with each way to await completions, and each of them is counted
/// once.
#[test]
fn each_operation_is_measured_in_each_way() -> Result {
    for op in OPERATIONS {
        for completions in COMPLETIONS {
            let args = format!("--op {op} --completions {completions} --count 24 --depth 4");
            let points = measured(&args)?;
            let result = &points[0]["result"];
            assert_eq!(result["operations"], 24, "{args}");
            assert!(
                result["latency"]["p50"].as_u64() > Some(0),
                "{args}: {result}"
            );
            assert!(
                result["cpu_ns_per_operation"].as_f64() > Some(0.0),
                "{args}: {result}"
            );
            assert_eq!(points[0]["simulated"], true);
            assert_eq!(points[0].get("ended_early"), None, "{args}");
        }
    }
    Ok(())
}

/// Promise: a batch completes as one, and each of its operations counts.
#[test]
fn batches_are_measured() -> Result {
    for op in ["write", "send", "write-flush", "atomic-write"] {
        for completions in COMPLETIONS {
            for (depth, batch) in [(8, 2), (32, 16), (64, 64)] {
                let args = format!(
                    "--op {op} --completions {completions} --count 128 --depth {depth} --batch {batch}"
                );
                assert_eq!(measured(&args)?[0]["result"]["operations"], 128, "{args}");
            }
        }
    }
    Ok(())
}

#[test]
fn commits_use_each_method() -> Result {
    // By default a flush is durable, if it can be: here a read makes nothing durable.
    for (method, flush) in [
        ("native", "durable"),
        ("reading", "visible"),
        ("server", "durable"),
    ] {
        for completions in COMPLETIONS {
            let args =
                format!("--op commit --method {method} --completions {completions} --count 16");
            let points = measured(&args)?;
            assert_eq!(points[0]["setting"]["method"], method);
            assert_eq!(points[0]["setting"]["flush"], flush, "{args}");
            assert_eq!(points[0]["result"]["operations"], 16, "{args}");
        }
    }
    Ok(())
}

#[test]
fn commits_go_to_several_servers() -> Result {
    for completions in COMPLETIONS {
        let args = format!(
            "--op commit --servers 3 --copies 2 --completions {completions} --count 16 --depth 2"
        );
        let points = measured(&args)?;
        assert_eq!(points[0]["setting"]["copies"], 2);
        assert_eq!(points[0]["servers"].as_array().map(Vec::len), Some(3));
        assert_eq!(points[0]["result"]["operations"], 16, "{args}");
    }
    Ok(())
}

#[test]
fn threads_and_connections_share_the_operations() -> Result {
    for completions in COMPLETIONS {
        let args = format!("--threads 2 --completions {completions} --count 32");
        let points = measured(&args)?;
        assert_eq!(points[0]["setting"]["connections"], 2);
        assert_eq!(points[0]["result"]["operations"], 32, "{args}");
    }
    let points = measured("--threads 2 --connections 6 --count 60")?;
    assert_eq!(points[0]["result"]["operations"], 60);
    Ok(())
}

/// Promise: an open loop begins as many operations as its rate asks for, or counts those that it
/// could not begin.
#[test]
fn an_open_loop_accounts_for_each_operation_that_is_due() -> Result {
    for completions in COMPLETIONS {
        // Far too many for the simulator, and few enough.
        for (rate, due) in [("200k", 200_000), ("50", 50)] {
            let args = format!("--rate {rate} --completions {completions} --time 1");
            let result = measured(&args)?[0]["result"].take();
            let count = |name: &str| result[name].as_u64().unwrap_or_default();
            let all = count("operations") + count("not_begun");
            assert_eq!(all, due, "{args}: {result}");
        }
    }
    Ok(())
}

/// Promise: the latencies of an open loop that cannot keep up grow to the time of the measurement.
#[test]
fn an_open_loop_that_is_too_fast_has_the_waits_in_its_percentiles() -> Result {
    let points = measured("--rate 10m --time 1")?;
    let p50 = points[0]["result"]["latency"]["p50"].as_u64();
    assert!(p50 > Some(200_000_000), "{points:?}");
    Ok(())
}

#[test]
fn a_sweep_is_one_run_with_a_line_for_each_point() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("results.jsonl");
    let args = format!(
        "perf --warm-up 0 --count 4 --sweep size=64..256,op=write/read --out {}",
        path.display()
    );
    let ended = run(&args)?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    assert!(ended.stdout.starts_with("simulated: "), "{ended:#?}");
    let points = lines(&fs::read_to_string(path)?)?;
    let sizes: Vec<_> = points
        .iter()
        .map(|point| point["setting"]["size"].as_u64())
        .collect();
    assert_eq!(sizes, [64, 64, 128, 128, 256, 256].map(Some));
    assert!(
        points
            .iter()
            .all(|point| point["began"] == points[0]["began"])
    );
    Ok(())
}

#[test]
fn csv_has_one_head() -> Result {
    let ended = run("perf --format csv --warm-up 0 --count 4 --sweep depth=1/2")?;
    let rows: Vec<Vec<&str>> = ended
        .stdout
        .lines()
        .map(|line| line.split(',').collect())
        .collect();
    assert_eq!(rows.len(), 3, "{ended:#?}");
    assert_eq!(rows[0][0], "op");
    assert!(
        rows.iter().all(|row| row.len() == rows[0].len()),
        "{rows:?}"
    );
    Ok(())
}

/// Promise: bad input is one line that names the remedy, and nothing is measured.
#[test]
fn settings_that_are_not_possible_are_refused_with_the_remedy() -> Result {
    for (args, words) in [
        ("--depth 100000", ["16384", "smaller --depth"]),
        (
            "--batch 100 --depth 100",
            ["64 operations", "smaller --batch"],
        ),
        (
            "--depth 3 --batch 2",
            ["whole batches", "multiple of --batch"],
        ),
        ("--op commit --batch 2 --depth 2", ["by itself", "--batch"]),
        (
            "--op read-write --batch 2 --depth 2",
            ["have no batches", "--batch"],
        ),
        ("--size 1m", ["offers 262144 bytes", "smaller --size"]),
        (
            "--size 512m --depth 4",
            ["1073741824 bytes", "smaller --size"],
        ),
        (
            "--threads 2 --connections 3",
            ["as many connections", "multiple of --threads"],
        ),
        (
            "--connections 2 --completions wait",
            ["one connection", "--completions poll"],
        ),
        ("--threads 64", ["32 connections", "fewer --connections"]),
        ("--copies 2", ["only a commit", "Leave out --copies"]),
        (
            "--op commit --servers 2 --copies 3",
            ["as many servers", "fewer --copies"],
        ),
        ("--op write --servers 2", ["several servers", "one server"]),
        (
            "--op write-flush --method server",
            ["commits durable", "--op commit"],
        ),
        ("--op send --depth 1000", ["receives", "smaller --depth"]),
        ("--sweep depth=1..64k", ["16384", "smaller --depth"]),
        ("--out /nonexistent/results", ["cannot be written", "--out"]),
    ] {
        let ended = run(&format!("perf --count 1 {args}"))?;
        assert_eq!(ended.status, Some(1), "{args}: {ended:#?}");
        assert_eq!(ended.stdout, "", "{args}");
        let error = error(&ended)?;
        for word in words {
            assert!(error.contains(word), "{args}: {error}");
        }
    }
    Ok(())
}

#[test]
fn wrong_arguments_have_the_status_2() -> Result {
    for args in [
        "--rate 0",
        "--rate -1",
        "--rate nan",
        "--depth 0",
        "--size 0",
        "--size 64kb",
        "--time 0",
        "--time 1e9",
        "--warm-up -1",
        "--count 1 --time 1",
        "--sweep speed=1",
        "--op fly",
        "report",
    ] {
        let ended = run(&format!("perf {args}"))?;
        assert_eq!(ended.status, Some(2), "{args}: {ended:#?}");
    }
    Ok(())
}

/// Promise: in a sweep, a point that is not possible takes no other point with it, and shows in the
/// status.
#[test]
fn a_point_that_is_not_possible_is_named() -> Result {
    let ended = run(
        "perf --profile rxe-6.1 --warm-up 0 --count 4 --op commit --sweep method=native/server",
    )?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    ended.line("not measured")?;
    ended.line("commit (server, durable)")?;
    Ok(())
}

/// Promise: the results of a run are a page, and input that is no result leaves the old page.
#[test]
fn results_become_a_page() -> Result {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (results, page) = (path("results.jsonl"), path("report.html"));
    let ended = run(&format!(
        "perf --warm-up 0 --count 4 --sweep size=64..256 --out {results}"
    ))?;
    ended.line(&format!("`rpma perf report {results} -o report.html`"))?;
    let drawn = run(&format!("perf report {results} -o {page}"))?;
    assert_eq!(drawn.status, Some(0), "{drawn:#?}");
    let html = fs::read_to_string(&page)?;
    assert!(
        html.contains("<svg") && html.contains("Simulated"),
        "{html}"
    );

    fs::write(&results, "{\"format\":")?;
    let refused = run(&format!("perf report {results} -o {page}"))?;
    assert_eq!(refused.status, Some(1));
    assert!(error(&refused)?.contains("line 1 of"), "{refused:#?}");
    assert_eq!(fs::read_to_string(&page)?, html);
    Ok(())
}

/// Promise: a run that cannot begin leaves the results of an earlier one.
#[test]
fn a_run_that_cannot_begin_keeps_the_file_of_results() -> Result {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), "earlier")?;
    let out = file.path().display();
    let ended = run(&format!("perf --count 1 --size 1m --out {out}"))?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    assert_eq!(fs::read_to_string(file.path())?, "earlier");
    Ok(())
}

/// Promise: a limit sets the exit status, for each point. The results are there in any case.
#[test]
fn a_limit_sets_the_status() -> Result {
    for (limits, status) in [
        ("--fail-if p99<1ns --fail-if rate<0.01 --fail-if gbps<0", 0),
        ("--fail-if most>0ns", 1),
        ("--fail-if rate>0.01", 1),
        ("--fail-if p99<1ns --fail-if mean>1ns", 1),
    ] {
        let ended = run(&format!("perf --warm-up 0 --count 4 {limits}"))?;
        assert_eq!(ended.status, Some(status), "{limits}: {ended:#?}");
        assert_eq!(ended.stdout.contains("failed: "), status == 1, "{ended:#?}");
        ended.line("write, 64 B")?;
    }
    let json = run("perf --warm-up 0 --count 4 --format json --fail-if most>0ns")?;
    assert_eq!(json.status, Some(1), "{json:#?}");
    assert_eq!(lines(&json.stdout)?.len(), 1);
    assert!(
        error(&json)?.starts_with("failed: most>0ns (it is "),
        "{json:#?}"
    );
    Ok(())
}

/// Promise: a run without samples fails, and its limits are not met in silence.
#[test]
fn a_run_without_samples_fails_with_a_limit() -> Result {
    for args in [
        // The next operation would be due after the end.
        "--rate 0.001 --time 0.2 --warm-up 0.1",
        "--profile rxe-6.1 --count 4 --op commit --method native",
    ] {
        let ended = run(&format!("perf {args} --fail-if p99>1s"))?;
        assert_eq!(ended.status, Some(1), "{ended:#?}");
        ended.line("not measured")?;
    }
    Ok(())
}

#[test]
fn a_limit_of_an_unknown_quantity_is_a_wrong_argument() -> Result {
    for (limit, words) in [
        ("p98>20us", "no quantity: they are least"),
        ("p99>20", "no unit"),
        ("p99", "> or <"),
    ] {
        let ended = run(&format!("perf --fail-if {limit}"))?;
        assert_eq!(ended.status, Some(2), "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
    Ok(())
}

/// Promise: perftest's unit is beside bytes.
#[test]
fn gigabits_are_beside_bytes() -> Result {
    let ended = run("perf --warm-up 0 --count 4 --size 64k")?;
    let head = ended.line("bytes/s")?;
    assert!(head.contains("bytes/s      Gb/s"), "{head}");
    Ok(())
}

/// Promise: both directions are loaded, half of the operations each.
#[test]
fn a_bidirectional_load_writes_and_reads() -> Result {
    let points = measured("--op read-write --count 64 --depth 8")?;
    assert_eq!(points[0]["result"]["operations"], 64);
    let points = measured("--op read-write --count 64 --depth 8 --sweep completions=poll/wait")?;
    assert_eq!(points.len(), 2);
    Ok(())
}

/// Promise: a ping connects, flushes for a second, and prints the times.
#[test]
fn a_ping_prints_the_time_of_a_flush() -> Result {
    let ended = run("ping")?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    ended.line("connected in ")?;
    let line = ended.line("write-flush (native, durable) of 64 B: ")?;
    for word in [" times in ", "least ", "median ", "p99 ", "most "] {
        assert!(line.contains(word), "{line}");
    }
    let visible = run("ping --profile rxe-6.1")?;
    visible.line("write-flush (reading, visible) of 64 B: ")?;
    let json = run("ping --format json")?;
    let report: Value = serde_json::from_str(&json.stdout)?;
    assert_eq!(report["command"], "ping");
    assert_eq!(report["result"], "good");
    assert!(report["connected_ns"].as_u64() > Some(0));
    assert!(report["measured"]["result"]["operations"].as_u64() > Some(0));
    Ok(())
}
