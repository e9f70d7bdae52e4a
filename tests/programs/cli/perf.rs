//! `rpma serve` and `rpma perf` on one host. `cargo xtask test hosts` has two.

use std::thread::sleep;

use crate::cli::check::serve;
use crate::cli::prelude::*;

const COMPLETIONS: [&str; 2] = ["poll", "wait"];

/// A measurement of `count` operations, without a warm-up.
fn perf(servers: &[&str], more: &str, count: u64) -> Ended {
    let count = count.to_string();
    let more: Vec<&str> = more.split_whitespace().collect();
    let own = ["--warm-up", "0", "--format", "json", "--count", &count];
    rpma(&[&["perf"], servers, &own, &more].concat())
}

/// It has measured all points, each with `count` operations.
fn is_measured(ended: &Ended, points: usize, count: u64) {
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    assert_eq!(ended.stdout.len(), points, "{ended:#?}");
    let operations = format!("\"operations\":{count},");
    for line in &ended.stdout {
        assert!(line.contains(&operations), "{line}");
        assert!(!line.contains("ended_early"), "{line}");
    }
}

/// Promise: each operation works on a device, with each way to await completions.
#[test]
fn each_operation_is_measured_in_each_way() {
    let (_running, server) = serve(&["--memory", &devdax(), "--overwrite"]);
    let sweep = "--sweep op=write/read/read-write/send/write-flush/atomic-write/commit,completions=poll/wait,depth=1/8";
    is_measured(&perf(&[&server], sweep, 32), 28, 32);
    let batches = "--sweep op=write/send/write-flush/atomic-write,completions=poll/wait --depth 32 --batch 16";
    is_measured(&perf(&[&server], batches, 64), 8, 64);
}

#[test]
fn commits_use_each_method() {
    let (_running, server) = serve(&["--memory", &devdax(), "--overwrite"]);
    let sweep = "--op commit --sweep method=native/reading/server,completions=poll/wait --depth 4";
    is_measured(&perf(&[&server], sweep, 32), 6, 32);
}

/// Three servers are three programs: each has a region of its own.
#[test]
fn commits_go_to_several_servers() {
    let servers = [serve(&[]), serve(&[]), serve(&[])];
    let addresses = servers.each_ref().map(|(_, address)| address.as_str());
    let sweep = "--op commit --copies 2 --depth 4 --sweep completions=poll/wait";
    let ended = perf(&addresses, sweep, 32);
    is_measured(&ended, 2, 32);
    found(&ended, "\"flush\":\"visible\"");
}

#[test]
fn threads_and_connections_share_the_operations() {
    let (_running, server) = serve(&[]);
    for completions in COMPLETIONS {
        let args = format!("--threads 2 --completions {completions} --op write-flush");
        is_measured(&perf(&[&server], &args, 64), 1, 64);
    }
    is_measured(&perf(&[&server], "--connections 8", 64), 1, 64);
}

/// Promise: a server that is killed ends the measurement, with one line.
#[test]
fn a_server_that_is_killed_ends_the_measurement() {
    for completions in COMPLETIONS {
        let (running, server) = serve(&[]);
        let program = executable();
        let args = ["--completions", completions, "--time", "3600"];
        let words = [&[&*program, "perf", &server], &args[..]].concat();
        let mut client = Program::start(&words, LIMIT);
        client.wait_for("server: ");
        sleep(Duration::from_millis(500));
        running.kill();
        let ended = client.finish();
        assert_eq!(ended.status, Some(1), "{ended:#?}");
        let reasons = ["ended early", "not measured"];
        let is_named = |line: &String| reasons.iter().any(|reason| line.contains(reason));
        let named = ended.stdout.iter().filter(|line| is_named(line)).count();
        assert_eq!(named + ended.stderr.len(), 1, "{ended:#?}");
    }
}

#[test]
fn wrong_servers_and_sizes_are_one_line() {
    let (_running, server) = serve(&[]);
    let free = format!("{}:{}", addr(), free_port(&addr()));
    for (server, more, words) in [
        (&free, "", "`rpma serve`"),
        (&server, "--size 2m", "rpma serve --size"),
    ] {
        let ended = perf(&[server], more, 1);
        assert_eq!(ended.status, Some(1), "{more}: {ended:#?}");
        assert_eq!(ended.stderr.len(), 1, "{more}: {ended:#?}");
        assert!(ended.says(words), "{more}: {ended:#?}");
    }
}

#[test]
fn a_server_offers_more_memory() {
    let (_running, server) = serve(&["--size", "64m"]);
    is_measured(&perf(&[&server], "--size 8m --depth 2", 4), 1, 4);
}
