//! `rpma perf` between the two hosts, while the server's host stands still for a second: an open
//! loop shows that second in its percentiles, and a closed loop does not.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::check::PROGRAM;
use super::{LIMIT, Test};
use crate::process::Remote;

pub(super) const NAME: &str = "rpma perf while the server is frozen for 1 s";

/// A server for each loop: it has one client at a time.
const ADDRESSES: [&str; 2] = ["10.77.0.2:7208", "10.77.0.2:7209"];
/// Of the open loop. The emulated machines reach several times that.
const RATE: &str = "100";
/// The measurement, without the warm-up. An eighth of it is the second.
const SECONDS: &str = "8";

/// The percentiles of a measurement, in seconds.
#[derive(Debug)]
struct Seconds {
    p90: f64,
    p99: f64,
    most: f64,
}

impl Test<'_> {
    /// Both loops at the same time, and the same second.
    pub(super) fn perf_of_a_frozen_server(&mut self, _: &str) -> Result<String> {
        self.all_up()?;
        let servers = ADDRESSES.map(|address| -> Result<Remote> {
            let mut server = self.start_at(2, PROGRAM, "perf-server", &["serve", address])?;
            server.wait_for("listening on", LIMIT)?;
            Ok(server)
        });
        let [one, two] = servers;
        let (_one, _two) = (one?, two?);
        let mut open = self.measure(ADDRESSES[0], "open", &["--rate", RATE])?;
        let mut closed = self.measure(ADDRESSES[1], "closed", &[])?;
        // In the middle of both.
        sleep(Duration::from_secs(4));
        self.freeze(2, 1)?;
        open.finish(LIMIT)?;
        closed.finish(LIMIT)?;
        let (open, closed) = (self.result("open")?, self.result("closed")?);
        self.signal(2, "INT", "rpma serve")?;
        // A tenth of the operations of the open loop was due in the first 0.8 s of the second.
        ensure!(open.p90 > 0.1 && open.p99 > 0.6, "open: {open:?}");
        ensure!(closed.most > 0.6, "closed: {closed:?}");
        ensure!(closed.p99 < 0.3, "closed: {closed:?}");
        Ok(format!("open: {open}, closed: {closed}"))
    }

    /// Starts a measurement, which sleeps: the loops share the processors.
    fn measure(&mut self, address: &str, name: &'static str, more: &[&str]) -> Result<Remote> {
        let file = file(name);
        let args = [
            "perf",
            address,
            "--completions",
            "wait",
            "--time",
            SECONDS,
            "--out",
            &file,
        ];
        let mut client = self.start_at(1, PROGRAM, name, &[&args, more].concat())?;
        client.wait_for("server: ", LIMIT)?;
        Ok(client)
    }

    fn result(&mut self, name: &'static str) -> Result<Seconds> {
        let mut cat = self.start_at(1, "/bin/cat", "perf-result", &[&file(name)])?;
        cat.finish(LIMIT)?;
        let lines = cat.said().concat();
        let point: serde_json::Value = serde_json::from_str(&lines)?;
        let of = |percentile: &str| {
            let nanos = point["result"]["latency"][percentile].as_f64();
            let nanos = nanos.with_context(|| format!("no {percentile} in {lines}"));
            nanos.map(|nanos| nanos / 1e9)
        };
        Ok(Seconds {
            p90: of("p90")?,
            p99: of("p99")?,
            most: of("most")?,
        })
    }
}

fn file(name: &str) -> String {
    format!("/tmp/perf-{name}.jsonl")
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p90 {:.3} s, p99 {:.3} s, most {:.3} s",
            self.p90, self.p99, self.most
        )
    }
}
