//! `rpma check` between the two hosts, with the native operations and with the fallbacks; and the
//! faults that it has to find.

use anyhow::{Context, Result, ensure};

use super::{LIMIT, PMEM, Scenario, Test};
use crate::process::Remote;

pub(super) const PROGRAM: &str = "/src/target/guest/debug/rpma";
const ADDRESS: &str = "10.77.0.2:7207";
/// The same host's soft-iWARP (init.sh).
const IWARP: &str = "10.79.0.2:7207";
/// Of another program's ctrl-c.
const CTRL_C: &str = "INT";

/// The faults of `rpma serve --fault`, the cases that find them, and what they print.
const FAULTS: [(&str, &str, &str); 5] = [
    ("wrong-byte", "transfer-write", "byte 96 of 192 is"),
    ("refuses", "transfer-read", "remote access error"),
    ("lies", "declaration", "the server declares"),
    ("lies", "commit-server", "it is acknowledged, and"),
    ("dies", "transfer-write", "the session with"),
];

/// The cases that soft-iWARP does not have.
const NOT_ON_IWARP: [&str; 11] = [
    "message-immediate",
    "message-write-immediate",
    "flush-native-visible",
    "flush-native-durable",
    "atomic-native",
    "order-immediate",
    "order-atomic-native",
    "batch-native",
    "commit-native-visible",
    "commit-native-durable",
    "connection-silent",
];

pub(super) fn scenarios<'a>() -> [(&'static str, Scenario<'a>, &'static str); 4] {
    [
        ("rpma check, native", Test::checks, "native"),
        ("rpma check, fallback", Test::checks, "fallback"),
        ("rpma check, soft-iWARP", Test::checks_iwarp, ""),
        ("rpma check finds faults", Test::check_finds_faults, ""),
    ]
}

impl Test<'_> {
    /// All cases pass, except for those that are not possible on soft-RoCE.
    fn checks(&mut self, method: &str) -> Result<String> {
        let fallback: &[&str] = match method {
            "fallback" => &["--fallback"],
            _ => &[],
        };
        let said = self.check_all(ADDRESS, fallback)?;
        let last = said.last().context("it printed nothing")?;
        // In the fallback the native cases are not possible.
        let possible = method == "native";
        ensure!(
            last.contains(", 0 failed, 0 not possible") == possible,
            "{last}"
        );
        Ok(last.clone())
    }

    /// All cases pass, except for those that soft-iWARP does not have. Each of these has a reason.
    fn checks_iwarp(&mut self, _: &str) -> Result<String> {
        let said = self.check_all(IWARP, &[])?;
        let last = said.last().context("it printed nothing")?;
        ensure!(last.contains(", 0 failed, "), "{last}");
        let lines = said.iter();
        let left: Vec<_> = lines
            .filter_map(|line| line.strip_prefix("not possible here  ")?.split_once(": "))
            .collect();
        let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
        ensure!(names == NOT_ON_IWARP, "not possible: {left:?}");
        ensure!(
            left.iter().all(|(_, reason)| !reason.is_empty()),
            "{left:?}"
        );
        Ok(last.clone())
    }

    /// Runs all cases against a server on host 2. Returns the lines of the report.
    fn check_all(&mut self, address: &str, more: &[&str]) -> Result<Vec<String>> {
        let server = self.check_server(address, &[])?;
        let args = [&["check", address], more].concat();
        let mut client = self.start_at(1, PROGRAM, "check", &args)?;
        client.finish(4 * LIMIT)?;
        self.end_server(server)?;
        Ok(client.said())
    }

    /// Each fault of a server is named by a case.
    fn check_finds_faults(&mut self, _: &str) -> Result<String> {
        for (fault, case, words) in FAULTS {
            // On the guests' persistent memory the declaration would be true.
            let server = match case {
                "declaration" => self.check_server_with(ADDRESS, &["--fault", fault])?,
                _ => self.check_server(ADDRESS, &["--fault", fault])?,
            };
            let args = ["check", ADDRESS, "--only", case];
            let mut client = self.start_at(1, PROGRAM, "check", &args)?;
            let found = client.finish(LIMIT);
            ensure!(found.is_err(), "{case} passes with the fault {fault}");
            let said = client.said();
            let is_named = said.iter().any(|line| line.contains(words));
            ensure!(is_named, "{fault}, {case}: {said:?}");
            drop(server);
            self.kill(2, "rpma serve").or_else(|error| match fault {
                // It has ended.
                "dies" => Ok(()),
                _ => Err(error),
            })?;
        }
        Ok(format!("{} of {} faults", FAULTS.len(), FAULTS.len()))
    }

    /// Starts a server on host 2, with the persistent memory of the log there, which it overwrites.
    fn check_server(&mut self, address: &str, more: &[&str]) -> Result<Remote> {
        let memory = ["--memory", PMEM, "--overwrite"];
        self.check_server_with(address, &[&memory, more].concat())
    }

    /// Starts a server on host 2, with volatile memory unless the arguments name other memory.
    fn check_server_with(&mut self, address: &str, more: &[&str]) -> Result<Remote> {
        self.all_up()?;
        self.server = None;
        // The log's server, or that of a check that has failed. Neither may run.
        let _ = self.kill(2, "(hosts|rpma) serve");
        let args = [&["serve", address], more].concat();
        let mut server = self.start_at(2, PROGRAM, "check-server", &args)?;
        server.wait_for("listening on", LIMIT)?;
        Ok(server)
    }

    /// Ends it as ctrl-c does.
    fn end_server(&mut self, mut server: Remote) -> Result<()> {
        self.signal(2, CTRL_C, "rpma serve")?;
        server.finish(LIMIT)
    }
}
