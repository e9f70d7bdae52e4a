//! `rpma check` on a simulated fabric, as a user runs it. The unit tests have the rest.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Result, rpma};

const PROFILES: [&str; 5] = ["rxe-6.12", "rxe-6.1", "strict", "adapter", "siw-6.12"];
const SHORT: [&str; 3] = ["--only", "transfer-zero", "batch"];

#[test]
fn a_check_passes_on_each_profile() -> Result {
    for profile in PROFILES {
        let ended = rpma(&[&["check", "--profile", profile], &SHORT[..]].concat())?;
        assert_eq!(ended.status, Some(0), "{ended:#?}");
        assert!(ended.stdout.starts_with("simulated: "), "{ended:#?}");
        ended.line("passed  transfer-zero: ")?;
        ended.line(" 0 failed, ")?;
        assert_eq!(ended.stderr, "");
    }
    Ok(())
}

#[test]
fn the_json_and_the_file_have_the_same_cases() -> Result {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("report.json");
    let path = file.to_str().ok_or("text")?;
    let ended = rpma(&[&["check", "--format", "json", "--out", path], &SHORT[..]].concat())?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    assert_eq!(fs::read_to_string(&file)?, ended.stdout);
    let report: Value = serde_json::from_str(&ended.stdout)?;
    assert_eq!(report["version"], 1);
    assert_eq!(report["simulated"], true);
    assert_eq!(report["command"], "check");
    assert_eq!(report["result"], "good");
    let cases = report["cases"].as_array().ok_or("an array")?;
    let names: Vec<_> = cases
        .iter()
        .filter_map(|case| case["case"].as_str())
        .collect();
    assert_eq!(names, ["transfer-zero", "batch-native", "batch-reading"]);
    Ok(())
}

#[test]
fn a_fault_is_a_bad_result() -> Result {
    let args = ["check", "--fault", "wrong-byte", "--only", "transfer-write"];
    let ended = rpma(&args)?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    ended.line("FAILED  transfer-write: ")?;
    ended.line("0 passed, 1 failed")?;
    Ok(())
}

#[test]
fn each_case_is_listed_with_words() -> Result {
    let ended = rpma(&["check", "--list"])?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    // A head is before them on the simulated fabric.
    for of in lines.rchunks(2).take(10) {
        let is_right = of.len() == 2 && !of[0].starts_with(' ') && of[1].starts_with("    ");
        assert!(is_right, "{ended:#?}");
    }
    ended.line("    private-data-accept, private-data-reject")?;
    let some = rpma(&["check", "--list", "--only", "flush", "commit"])?;
    assert!(some.stdout.lines().count() < ended.stdout.lines().count());
    Ok(())
}

#[test]
fn a_case_that_is_not_there_is_a_wrong_argument() -> Result {
    let ended = rpma(&["check", "--only", "flash"])?;
    assert_eq!(ended.status, Some(2), "{ended:#?}");
    assert!(ended.stderr.contains("rpma check --list"), "{ended:#?}");
    Ok(())
}

/// Promise: ctrl-c ends with the report so far.
#[test]
fn ctrl_c_ends_with_the_report_so_far() -> Result {
    // An idle connection for 5 s. Without `timeout`, which passes a signal on twice.
    let mut check = Command::new(env!("CARGO_BIN_EXE_rpma"))
        .args(["check", "--only", "declaration", "connection-idle"])
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = check.stdout.take().ok_or("a pipe")?;
    let mut text = String::new();
    for line in BufReader::new(stdout).lines() {
        text = format!("{text}{}\n", line?);
        if text.ends_with(" ms)\n") && text.contains("passed  declaration: ") {
            kill_process(Pid::from_child(&check), Signal::INT)?;
        }
    }
    assert_eq!(check.wait()?.code(), Some(1), "{text}");
    assert!(text.contains("interrupted in "), "{text}");
    Ok(())
}
