//! `rpma doctor` on a simulated host, and what all commands share.

use std::fs::{self, OpenOptions};

use serde_json::Value;

use crate::common::{Ended, Result, command, rpma};

const PROFILES: [&str; 5] = ["rxe-6.12", "rxe-6.1", "strict", "adapter", "siw-6.12"];
const DAX: &str = "/dev/dax0.0";

/// The simulated build names itself once, and a simulated host is a good one: that is its only
/// verdict, beside the limits of its profile.
#[test]
fn a_simulated_host_is_good_on_each_profile() -> Result {
    for profile in PROFILES {
        let ended = rpma(&["doctor", "--profile", profile])?;
        assert_eq!(ended.status, Some(0), "{ended:#?}");
        assert!(ended.stdout.starts_with("simulated: "), "{ended:#?}");
        let good: Vec<_> = ended
            .stdout
            .lines()
            .filter(|line| line.starts_with("good"))
            .collect();
        assert_eq!(good, [ended.line("good    remote flush: can work on")?]);
        ended.line("note    on-demand paging: ")?;
        assert_eq!(ended.stderr, "");
    }
    Ok(())
}

/// Promise: the limits of iWARP, and its own port.
#[test]
fn a_device_of_iwarp_has_its_limits_and_its_port() -> Result {
    let ended = rpma(&["doctor", "--profile", "siw-6.12"])?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    ended.line("note    iWARP: siw0: a write or a message completes without an answer")?;
    ended.line("the TCP port of `rpma serve`")?;
    for other in ["4791", "gid"] {
        assert!(!ended.stdout.contains(other), "{ended:#?}");
    }
    let ended = rpma(&["doctor"])?;
    ended.line("UDP port 4791")?;
    for other in ["iWARP", "TCP"] {
        assert!(!ended.stdout.contains(other), "{ended:#?}");
    }
    Ok(())
}

/// The table of docs/persistence.md, for ADR memory.
#[test]
fn the_method_depends_on_the_device_and_on_ddio() -> Result {
    for (profile, lines) in [
        (
            "rxe-6.12",
            &["good    durable: on rxe0: durable by native flushes"][..],
        ),
        (
            "rxe-6.1",
            &["note    durable: on rxe0: durable by no flush"],
        ),
        (
            "siw-6.12",
            &["note    durable: on siw0: durable by no flush"],
        ),
        (
            "strict",
            &[
                "on strict0 with DDIO on (the usual setting): durable by native flushes",
                "on strict0 with DDIO off (the operator's word): durable by direct writes",
            ],
        ),
        (
            "adapter",
            &[
                "on strict0 with DDIO on (the usual setting): durable by no flush",
                "on strict0 with DDIO off (the operator's word): durable by direct writes",
            ],
        ),
    ] {
        let ended = rpma(&["doctor", "--profile", profile, "--memory", DAX])?;
        assert_eq!(ended.status, Some(0), "{ended:#?}");
        ended.line("is a device-DAX")?;
        ended.line("can register the memory for writing and for persistent flushes")?;
        for line in lines {
            ended.line(line)?;
        }
        let is_visible_only = ended
            .stdout
            .contains("It makes data visible, and not durable");
        let expected = ["rxe-6.1", "siw-6.12"].contains(&profile);
        assert_eq!(is_visible_only, expected, "{ended:#?}");
    }
    Ok(())
}

/// Promise: the JSON has the verdict of each finding, and no address: it may be published.
#[test]
fn the_json_has_the_same_verdicts_without_addresses() -> Result {
    let text = rpma(&["doctor", "--memory", DAX])?;
    let json = rpma(&["doctor", "--memory", DAX, "--format", "json"])?;
    assert_eq!(json.status, Some(0));
    let report: Value = serde_json::from_str(&json.stdout)?;
    assert_eq!(report["version"], 1);
    assert_eq!(report["simulated"], true);
    assert_eq!(report["command"], "doctor");
    assert_eq!(report["result"], "good");
    assert_eq!(report["interrupted"], false);
    assert_eq!(report["host"]["devices"][0]["name"], "rxe0");
    let findings = report["findings"].as_array().ok_or("an array")?;
    assert!(findings.len() > 5, "{findings:?}");
    for finding in findings {
        let check = finding["check"].as_str().ok_or("a text")?;
        let verdict = finding["verdict"].as_str().ok_or("a text")?;
        text.line(&format!("{verdict:<6}  {check}: "))?;
    }
    for address in addresses(&text)? {
        assert!(!json.stdout.contains(&address), "{}", json.stdout);
    }
    Ok(())
}

/// The addresses that open the device.
fn addresses(ended: &Ended) -> Result<Vec<String>> {
    let line = ended.line(": can work on rxe0 (")?;
    let (_, addresses) = line.split_once(" (").ok_or("addresses")?;
    let (addresses, _) = addresses.split_once(')').ok_or("addresses")?;
    Ok(addresses.split(", ").map(Into::into).collect())
}

/// Promise: memory of a host whose device was not opened has no limit that is a note.
#[test]
fn memory_without_a_device_is_not_judged() -> Result {
    let ended = rpma(&["doctor", "198.51.100.7", "--memory", DAX])?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    let line = ended.line("persistence domain: ")?;
    assert!(line.starts_with("unseen  "), "{line}");
    assert!(line.ends_with("; no device to judge it with"), "{line}");
    Ok(())
}

/// The faults of the first hour that need no device: each is named with its remedy.
#[test]
fn a_wrong_target_is_named_with_its_remedy() -> Result {
    for (target, text) in [
        ("127.0.0.1", "127.0.0.1 is the loopback address"),
        ("::1", "::1 is the loopback address"),
        ("localhost", "localhost is the loopback address"),
        ("0.0.0.0", "0.0.0.0 is a wildcard"),
        ("::", ":: is a wildcard"),
        (
            "198.51.100.7",
            "198.51.100.7 is not an address of this host",
        ),
    ] {
        let ended = rpma(&["doctor", target])?;
        assert_eq!(ended.status, Some(1), "{ended:#?}");
        let remedy = ended.remedy(text)?;
        assert!(
            remedy.starts_with("use an address of an RDMA device: "),
            "{remedy}"
        );
    }
    let ended = rpma(&["doctor", "no-such-device.invalid"])?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    let remedy = ended.remedy("is no address, no host and no RDMA device")?;
    assert!(remedy.starts_with("name a device (rxe0)"), "{remedy}");
    Ok(())
}

#[test]
fn a_device_is_named_or_addressed() -> Result {
    let addresses = addresses(&rpma(&["doctor"])?)?;
    for target in addresses.iter().map(String::as_str).chain(["rxe0"]) {
        let ended = rpma(&["doctor", target])?;
        assert_eq!(ended.status, Some(0), "{ended:#?}");
    }
    // As `rpma serve` and `rpma check` take them.
    for address in addresses {
        for target in [format!("[{address}]"), format!("[{address}]:7204")] {
            let ended = rpma(&["doctor", &target])?;
            assert_eq!(ended.status, Some(0), "{ended:#?}");
        }
    }
    Ok(())
}

#[test]
fn wrong_memory_is_named_with_its_remedy() -> Result {
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("empty"), [])?;
    // The simulated host has this one.
    let remedy = format!("rpma doctor --memory {DAX}");
    for (path, text) in [
        (at("."), "is a directory"),
        (at("missing"), "does not exist"),
        (at("empty"), "is empty"),
        (
            "/dev/null".into(),
            "is a character device, but not a device-DAX one",
        ),
    ] {
        let ended = rpma(&["doctor", "--memory", &path])?;
        assert_eq!(ended.status, Some(1), "{ended:#?}");
        assert!(ended.line(text)?.contains("BAD"), "{ended:#?}");
        assert_eq!(ended.remedy(text)?, remedy, "{ended:#?}");
    }
    Ok(())
}

/// The simulated device registers an ordinary file. Its data are not durable, and doctor does not
/// write to it.
#[test]
fn an_ordinary_file_is_a_note() -> Result {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("ordinary");
    fs::write(&path, [7; 5000])?;
    let path = path.display().to_string();
    let ended = rpma(&["doctor", "--memory", &path])?;
    assert_eq!(ended.status, Some(0), "{ended:#?}");
    assert!(
        ended.line("is an ordinary file")?.contains("note"),
        "{ended:#?}"
    );
    let line = ended.line("can register the file for writing")?;
    assert!(
        line.contains("note") && line.contains("lost with the power"),
        "{line}"
    );
    assert_eq!(fs::read(path)?, [7; 5000]);
    Ok(())
}

/// The remedy keeps the target, and leads to a good result.
#[test]
fn memory_that_was_not_given_has_its_command() -> Result {
    let ended = rpma(&["doctor", "rxe0"])?;
    let remedy = ended.remedy("memory: no --memory is given")?;
    assert_eq!(remedy, format!("rpma doctor rxe0 --memory {DAX}"));
    let limited = "Durable data needs persistent memory: name it with --memory";
    ended.line(limited)?;
    let args: Vec<&str> = remedy.split(' ').skip(1).collect();
    let ended = rpma(&args)?;
    assert_eq!(ended.status, Some(0));
    assert!(!ended.stdout.contains(limited), "{ended:#?}");
    Ok(())
}

#[test]
fn wrong_arguments_end_with_status_2() -> Result {
    for args in [
        &[][..],
        &["operate"],
        &["doctor", "--profile", "rxe"],
        &["doctor", "a", "b"],
        &["serve"],
        &["serve", "192.0.2.1:0"],
        &["check", "[::1"],
        &["completions", "no-shell"],
    ] {
        let ended = rpma(args)?;
        assert_eq!(ended.status, Some(2), "{args:?} {ended:#?}");
        assert_ne!(ended.stderr, "", "{args:?}");
    }
    Ok(())
}

#[test]
fn an_error_is_one_line() -> Result {
    let ended = rpma(&["serve", "192.0.2.1"])?;
    assert_eq!(ended.status, Some(1), "{ended:#?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    assert!(ended.stderr.starts_with("error: "), "{ended:#?}");
    Ok(())
}

/// A full disk is an error and no panic.
#[test]
fn output_that_cannot_be_written_is_an_error() -> Result {
    for args in [
        &["doctor"][..],
        &["doctor", "--format", "json"],
        &["completions", "bash"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full")?;
        let output = command(args).stdout(full).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?} {stderr}");
        assert!(
            stderr.contains("the output cannot be written"),
            "{args:?} {stderr}"
        );
    }
    Ok(())
}

/// The help and the completions are from one definition.
#[test]
fn the_completions_have_all_commands_and_options() -> Result {
    let help = rpma(&["--help"])?;
    let bash = rpma(&["completions", "bash"])?;
    for ended in [&help, &bash] {
        assert_eq!(ended.status, Some(0), "{ended:#?}");
        for command in ["doctor", "serve", "check", "completions"] {
            assert!(ended.stdout.contains(command), "{command} {}", ended.stdout);
        }
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = rpma(&["completions", shell])?;
        assert!(
            ended.stdout.contains("fallback"),
            "{shell}: {}",
            ended.stdout
        );
    }
    // It is for tests.
    let help = rpma(&["serve", "--help"])?;
    assert!(!help.stdout.contains("--fault"), "{}", help.stdout);
    Ok(())
}
