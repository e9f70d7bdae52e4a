//! Two hosts: what no guest that talks to itself can show. Packets are lost, machines stand still and
//! lose their power, programs are killed, while a program (tests/hosts) appends to a log in the other
//! host's persistent memory.
//!
//! Host 1 writes, host 2 owns the memory. Whatever happens: no wait is without an end, every record that
//! was acknowledged is there and whole, and the tail shows no record that is not.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Options;
use super::report::Report;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::{Remote, output};
use crate::vm::Hosts;

const PROGRAM: &str = "/src/target/guest/debug/hosts";
const SERVER: [&str; 2] = ["10.77.0.2", "7204"];
const PMEM: &str = "/dev/dax0.0";
/// For a program to start or to end; what it does in between has limits of its own.
const LIMIT: Duration = Duration::from_secs(60);
/// The device's own flush and atomic write, and the fallbacks.
const METHODS: [&str; 2] = ["native", "fallback"];

/// Runs all, each as one test.
pub(super) fn run(
    report: &mut Report<'_>,
    workspace: &Workspace,
    lab: &mut Lab<'_>,
    options: Options,
) -> Result<()> {
    let hosts = match lab.boot_two() {
        Ok(hosts) => hosts,
        Err(error) => {
            report.not_run("two hosts", &format!("{error:#}"));
            return Ok(());
        }
    };
    let mut test = Test {
        workspace,
        hosts,
        server: None,
        step: 0,
    };
    for method in METHODS {
        report.scenario(&format!("two hosts: frozen for 1 s, {method}"), || {
            test.freezes(method, if options.long { 10 } else { 2 })
        });
        report.scenario(&format!("two hosts: 1 % of packets lost, {method}"), || {
            test.loss(method, if options.long { 60 } else { 10 })
        });
        report.scenario(&format!("two hosts: killed programs, {method}"), || {
            test.kills(method)
        });
        report.scenario(&format!("two hosts: power cuts, {method}"), || {
            test.power_cuts(method, if options.long { 25 } else { 1 })
        });
        if options.long {
            report.scenario(&format!("two hosts: frozen for 30 s, {method}"), || {
                test.long_freezes(method)
            });
        }
    }
    report.scenario(
        "two hosts: a peer that is gone is noticed as the settings say",
        || test.notices(),
    );
    report.scenario("two hosts: a tail before its records is found out", || {
        test.tail_first()
    });
    Ok(())
}

struct Test<'a> {
    workspace: &'a Workspace,
    hosts: Hosts<'a>,
    server: Option<Remote>,
    step: usize,
}

/// What the program has counted.
#[derive(Debug)]
struct Counts {
    acknowledged: u64,
    failures: u64,
    longest: String,
}

impl Test<'_> {
    /// One second of either host after the other. The fallback survives that.
    fn freezes(&mut self, method: &str, times: u64) -> Result<String> {
        self.serve()?;
        let mut client = self.append(4 * times + 4, "4", method)?;
        client.wait_for("acknowledged ", LIMIT)?;
        for time in 0..times {
            sleep(Duration::from_secs(2));
            let number = if time % 2 == 0 { 2 } else { 1 };
            self.hosts.freeze(number)?;
            sleep(Duration::from_secs(1));
            self.hosts.thaw(number)?;
        }
        let counts = self.counts(client)?;
        ensure!(method == "native" || counts.failures == 0, "{counts:?}");
        self.note(&counts)
    }

    /// Longer than the settings allow: the connection fails in time, and the next one goes on.
    fn long_freezes(&mut self, method: &str) -> Result<String> {
        self.serve()?;
        for number in [2, 1] {
            let mut client = self.append(60, "4", method)?;
            client.wait_for("acknowledged ", LIMIT)?;
            self.hosts.freeze(number)?;
            sleep(Duration::from_secs(30));
            self.hosts.thaw(number)?;
            let counts = self.counts(client)?;
            // A writer that stands still itself has nothing to wait for.
            ensure!(
                number == 1 || counts.failures > 0,
                "it was not noticed: {counts:?}"
            );
            if number == 1 {
                return self.note(&counts);
            }
        }
        bail!("two hosts")
    }

    /// Each side loses one packet of a hundred. The fallback survives that.
    fn loss(&mut self, method: &str, seconds: u64) -> Result<String> {
        self.serve()?;
        for number in [1, 2] {
            self.hosts.net(number, "loss 1%")?;
        }
        let client = self.append(seconds, "4", method)?;
        let counts = self.counts(client);
        for number in [1, 2] {
            self.hosts.net(number, "off")?;
        }
        let counts = counts?;
        ensure!(method == "native" || counts.failures == 0, "{counts:?}");
        self.note(&counts)
    }

    /// Programs that get no chance to say goodbye.
    fn kills(&mut self, method: &str) -> Result<String> {
        self.serve()?;
        let mut client = self.append(60, "1", method)?;
        client.wait_for("acknowledged ", LIMIT)?;
        output(
            &mut self
                .hosts
                .command(1, &["pkill", "-KILL", "-f", "hosts append"])?,
        )?;
        let acknowledged = last_acknowledged(&client)?;
        drop(client);
        self.check(acknowledged)?;

        let mut client = self.append(12, "16", method)?;
        client.wait_for("acknowledged ", LIMIT)?;
        let killed = Instant::now();
        output(
            &mut self
                .hosts
                .command(2, &["pkill", "-KILL", "-f", "hosts serve"])?,
        )?;
        client.wait_for("failed ", LIMIT)?;
        let noticed = killed.elapsed().as_secs_f64();
        self.server = None;
        self.serve()?;
        let counts = self.counts(client)?;
        ensure!(counts.failures > 0, "{counts:?}");
        Ok(format!(
            "{}, noticed in {noticed:.1} s",
            self.note(&counts)?
        ))
    }

    /// The host that owns the memory loses its power, at any moment.
    fn power_cuts(&mut self, method: &str, times: u64) -> Result<String> {
        let (mut slowest, mut total) = (0f64, 0);
        for time in 0..times {
            self.serve()?;
            let group = ["1", "4", "16"][time as usize % 3];
            let mut client = self.append(90, group, method)?;
            client.wait_for("acknowledged ", LIMIT)?;
            sleep(Duration::from_millis(1000 + 137 * time % 1000));
            self.hosts.cut(2)?;
            let cut = Instant::now();
            client.wait_for("failed ", LIMIT)?;
            slowest = slowest.max(cut.elapsed().as_secs_f64());
            let acknowledged = last_acknowledged(&client)?;
            output(
                &mut self
                    .hosts
                    .command(1, &["pkill", "-KILL", "-f", "hosts append"])?,
            )?;
            self.server = None;
            self.hosts.boot_again(2)?;
            total = self.check(acknowledged)?;
        }
        Ok(format!(
            "{times} cuts, {total} records, noticed in at most {slowest:.1} s"
        ))
    }

    /// The host that owns the memory answers no more: with the default settings that is noticed after 7
    /// times 0.54 s, with tight ones after 3 times 0.07 s. Then it is back.
    fn notices(&mut self) -> Result<String> {
        self.serve()?;
        let mut noticed = [0.0, 0.0];
        for ((method, seconds), noticed) in
            [("fallback", 15), ("tight", 8)].iter().zip(&mut noticed)
        {
            let mut client = self.append(*seconds, "4", method)?;
            client.wait_for("acknowledged ", LIMIT)?;
            let frozen = Instant::now();
            self.hosts.freeze(2)?;
            let failed = client.wait_for("failed ", LIMIT);
            *noticed = frozen.elapsed().as_secs_f64();
            self.hosts.thaw(2)?;
            failed?;
            let counts = self.counts(client)?;
            ensure!(counts.failures > 0, "{method}: {counts:?}");
        }
        let [default, tight] = noticed;
        ensure!(
            tight < default / 2.0,
            "after {default} s, with tight settings after {tight} s"
        );
        Ok(format!(
            "after {default:.1} s, with tight settings after {tight:.1} s"
        ))
    }

    /// These tests find what they look for.
    fn tail_first(&mut self) -> Result<String> {
        self.serve()?;
        let mut client = self.start(
            1,
            "client",
            &["tail-first", SERVER[0], SERVER[1], "60", "4", "native"],
        )?;
        client.wait_for("the tail is ", LIMIT)?;
        self.hosts.cut(2)?;
        self.server = None;
        self.hosts.boot_again(2)?;
        match self.check(0) {
            Ok(_) => bail!("the damage was not found"),
            Err(error) if error.to_string().contains("is damaged") => Ok("it is".to_owned()),
            Err(error) => Err(error),
        }
    }

    /// Starts the server, if it does not run; and before that what a failed test has left cut or frozen.
    fn serve(&mut self) -> Result<()> {
        for number in Hosts::NUMBERS {
            if self.hosts.is_up(number) {
                self.hosts.thaw(number)?;
            } else {
                self.server = None;
                self.hosts.boot_again(number)?;
            }
        }
        if self.server.is_none() {
            let mut server = self.start(2, "server", &["serve", SERVER[0], SERVER[1], PMEM])?;
            server.wait_for("listening", LIMIT)?;
            self.server = Some(server);
        }
        Ok(())
    }

    fn append(&mut self, seconds: u64, group: &str, method: &str) -> Result<Remote> {
        let seconds = seconds.to_string();
        self.start(
            1,
            "client",
            &["append", SERVER[0], SERVER[1], &seconds, group, method],
        )
    }

    fn start(&mut self, number: u8, role: &'static str, args: &[&str]) -> Result<Remote> {
        self.step += 1;
        let log = self
            .workspace
            .log_file(&format!("hosts-{:02}-{role}.log", self.step))?;
        let command = self.hosts.command(number, &[&[PROGRAM], args].concat())?;
        Remote::start(role, command, log)
    }

    /// Waits for the end of a client, which must be a good one, and looks at the log.
    fn counts(&mut self, mut client: Remote) -> Result<Counts> {
        client.finish(4 * LIMIT)?;
        let said = client.said();
        let last = said.last().context("it said nothing")?;
        let number = |word: &str| -> Result<u64> {
            let rest = last
                .split(word)
                .nth(1)
                .with_context(|| format!("\"{last}\""))?;
            Ok(rest
                .trim()
                .split([',', ' '])
                .next()
                .unwrap_or_default()
                .parse()?)
        };
        let counts = Counts {
            acknowledged: number("acknowledged ")?,
            failures: number("failures ")?,
            longest: last
                .rsplit("longest ")
                .next()
                .unwrap_or_default()
                .to_owned(),
        };
        self.check(counts.acknowledged)?;
        Ok(counts)
    }

    fn note(&self, counts: &Counts) -> Result<String> {
        let Counts {
            acknowledged,
            failures,
            longest,
        } = counts;
        Ok(format!(
            "{acknowledged} records, {failures} failures, longest {longest}"
        ))
    }

    /// Looks at the log on host 2: whole, with at least the records that were acknowledged. Returns how
    /// many there are.
    fn check(&mut self, acknowledged: u64) -> Result<u64> {
        let mut verify = self.start(2, "verify", &["verify", PMEM])?;
        verify.finish(LIMIT)?;
        let said = verify.said();
        let tail = said.iter().find_map(|line| line.strip_prefix("tail "));
        let tail: u64 = tail.context("no tail")?.parse()?;
        ensure!(
            tail >= acknowledged,
            "{acknowledged} records were acknowledged, and the log has {tail}"
        );
        Ok(tail)
    }
}

/// The number of records that a client was told are safe.
fn last_acknowledged(client: &Remote) -> Result<u64> {
    let said = client.said();
    let last = said
        .iter()
        .rev()
        .find_map(|line| line.strip_prefix("acknowledged "));
    Ok(last.context("nothing was acknowledged")?.parse()?)
}
