//! What all commands share: the forms of their output, and the words of wrong arguments.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::common::{Ended, Result, command, rpma};

/// A short run of each command that has a result.
const RUNS: [&str; 4] = [
    "doctor",
    "ping",
    "check --only transfer-zero batch",
    "perf --warm-up 0 --count 4 --sweep depth=1/2",
];

fn run(args: &str) -> Result<Ended> {
    Ok(rpma(&args.split_whitespace().collect::<Vec<_>>())?)
}

/// Promise: one option chooses the form of each command, and --out writes JSON beside any of them.
#[test]
fn each_command_has_the_same_forms() -> Result {
    let dir = tempfile::tempdir()?;
    for args in RUNS {
        for format in ["text", "json", "csv"] {
            let file = dir.path().join("out.json");
            let ended = run(&format!(
                "{args} --format {format} --out {}",
                file.display()
            ))?;
            assert_eq!(ended.status, Some(0), "{args} {format}: {ended:#?}");
            let written = fs::read_to_string(&file)?;
            let values = serde_json::Deserializer::from_str(&written).into_iter::<Value>();
            let values: Vec<Value> = values.collect::<serde_json::Result<_>>()?;
            assert!(
                values.iter().all(|value| value["version"] == 1),
                "{written}"
            );
            match format {
                "json" if args.starts_with("check") => assert_eq!(ended.stdout, written),
                "json" => assert!(
                    serde_json::Deserializer::from_str(&ended.stdout)
                        .into_iter::<Value>()
                        .all(|value| value.is_ok())
                ),
                "csv" => {
                    let mut rows = csv::Reader::from_reader(ended.stdout.as_bytes());
                    let width = rows.headers()?.len();
                    let rows: Vec<_> = rows.records().collect::<csv::Result<_>>()?;
                    assert!(!rows.is_empty() && rows.iter().all(|row| row.len() == width));
                }
                _ => assert!(ended.stdout.starts_with("simulated: "), "{ended:#?}"),
            }
        }
    }
    Ok(())
}

/// Promise: each field of the JSON is in the table of rpma-cli/README.md.
#[test]
fn each_field_of_the_json_is_documented() -> Result {
    let readme = include_str!("../../README.md");
    let (_, table) = readme
        .split_once("## Output and exit status")
        .ok_or("the section")?;
    let (table, _) = table.split_once("\n## ").ok_or("its end")?;
    for args in RUNS {
        let ended = run(&format!("{args} --format json"))?;
        for value in serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Value>() {
            let mut names = Vec::new();
            fields(&value?, &mut names);
            assert!(names.len() > 5, "{names:?}");
            for name in names {
                assert!(table.contains(&format!("`{name}`")), "{args}: {name}");
            }
        }
    }
    Ok(())
}

/// The names of all fields. Those of doctor's facts are the kernel's.
fn fields(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::Object(all) => {
            for (name, value) in all {
                names.push(name.clone());
                if name != "host" {
                    fields(value, names);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

/// Promise: the head names what no host knows, once. The other lines have what is known.
#[test]
fn the_simulation_and_unknown_facts_are_named_once() -> Result {
    for args in RUNS {
        let ended = run(args)?;
        assert_eq!(ended.stdout.matches("simulated: ").count(), 1, "{ended:#?}");
        assert!(ended.stdout.matches("unknown").count() <= 1, "{ended:#?}");
    }
    let ended = run(RUNS[2])?;
    let line = ended.line("unknown: ")?;
    assert!(
        line.contains("firmware") && line.contains("kernel"),
        "{line}"
    );
    Ok(())
}

/// Promise: a reader that goes, such as `head -1`, is a quiet end with the status of SIGPIPE.
#[test]
fn a_closed_pipe_is_a_quiet_end() -> Result {
    for args in RUNS.into_iter().chain(["completions bash", "check --list"]) {
        let (output, reader) = UnixStream::pair()?;
        drop(reader);
        let args: Vec<&str> = args.split_whitespace().collect();
        let ended = command(&args).stdout(OwnedFd::from(output)).output()?;
        assert_eq!(ended.status.code(), Some(141), "{args:?}: {ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{args:?}");
    }
    Ok(())
}

/// Promise: a wrong argument is named with its fault, and with what there is.
#[test]
fn wrong_arguments_are_named_with_what_there_is() -> Result {
    for (args, words) in [
        ("chekc", &["check"][..]),
        ("perf --dept 4", &["--depth"]),
        ("perf --op wirte", &["'wirte'", "write"]),
        ("perf --time -1", &["'-1'", "too short", "seconds"]),
        ("perf --time 5s", &["'5s'", "no number", "seconds"]),
        ("perf --warm-up -1", &["'-1'", "too short", "seconds"]),
        ("perf --size 1t", &["'1t'", "k, m or g", "GiB"]),
        ("perf --size -1", &["'-1'", "no number"]),
        ("perf --depth -1", &["'-1'"]),
        ("perf --rate -1", &["'-1'", "operations a second"]),
        ("doctor --format xml", &["text", "json", "csv"]),
        ("check --list --format json", &["cannot be used with"]),
    ] {
        let ended = run(args)?;
        assert_eq!(ended.status, Some(2), "{args}: {ended:#?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{args}: {}", ended.stderr);
        }
    }
    Ok(())
}
