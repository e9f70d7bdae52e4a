//! Two hosts: tests that a guest on its own cannot run. Packets are lost, machines stand still and
//! lose their power, programs are killed, while a program (tests/hosts) appends to a log in the
//! other host's persistent memory.
//!
//! Host 1 writes, host 2 owns the memory. In every case no wait is without an end, every record
//! that was acknowledged is there and whole, and the tail shows no record that is not.

mod check;
mod cut_off;
mod keep_alive;
mod perf;
mod replicated_log;

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use self::replicated_log::Replicas;
use super::Options;
use super::report::Report;
use crate::host::Workspace;
use crate::lab::{Inside, Lab};
use crate::process::{Remote, output, spawn_logged, wait};
use crate::vm::NUMBERS;

const PROGRAM: &str = "/src/target/guest/debug/hosts";
const SERVER: [&str; 2] = ["10.77.0.2", "7204"];
const PROBER: [&str; 2] = ["10.77.0.2", "7205"];
const PMEM: &str = "/dev/dax0.0";
/// The limit for a program to start or to end; its work in between has limits of its own.
const LIMIT: Duration = Duration::from_secs(60);
/// The device's own flush and atomic write, and the fallbacks.
const ONE_SIDED: [&str; 2] = ["native", "fallback"];
/// And the processor of the memory's host.
const METHODS: [&str; 3] = ["native", "fallback", "server"];

/// The events while the program commits by one method.
type Scenario<'a> = fn(&mut Test<'a>, &str) -> Result<String>;

/// Runs the scenarios with one of `names` in theirs, each as one test; all if `names` is empty.
pub(super) fn run(
    report: &mut Report<'_>,
    workspace: &Workspace,
    lab: &Lab<'_>,
    names: &[String],
    options: Options,
) {
    let hosts = match lab.boot_two() {
        Ok(hosts) => hosts,
        Err(error) => return report.not_run("two hosts", &error),
    };
    let mut test = Test {
        workspace,
        hosts,
        long: options.long,
        server: None,
        replicas: Replicas::default(),
        step: 0,
    };
    let mut scenarios: Vec<(&str, Scenario<'_>, &[&str])> = vec![
        ("frozen for 1 s", Test::freezes, &ONE_SIDED),
        ("1 % of packets lost", Test::loss, &METHODS),
        ("killed programs", Test::kills, &METHODS),
        ("a second client", Test::second_client, &ONE_SIDED),
        ("power cuts", Test::power_cuts, &METHODS),
    ];
    if options.long {
        scenarios.push(("frozen for 30 s", Test::long_freezes, &METHODS));
        scenarios.push(("the writer's power cut", Test::writer_cut, &METHODS));
    }
    let mut all = Vec::new();
    for method in METHODS {
        let of_method = scenarios.iter().filter(|(.., of)| of.contains(&method));
        for (what, scenario, _) in of_method {
            all.push((format!("{what}, {method}"), *scenario, method));
        }
    }
    all.extend(cut_off::scenarios().map(|(what, scenario)| (what.to_owned(), scenario, "")));
    let (gone, endless, found_out) = (
        "a peer that is gone is noticed as the settings say",
        "a client that asks for endless retries and is gone is noticed",
        "a tail before its records is found out",
    );
    all.push((gone.to_owned(), Test::notices, ""));
    all.push((endless.to_owned(), Test::notices_endless, ""));
    all.push((found_out.to_owned(), Test::tail_first, ""));
    all.extend(replicated_log::scenarios(options.long));
    // They overwrite the log.
    let checks = check::scenarios().into_iter();
    all.extend(checks.map(|(what, scenario, method)| (what.to_owned(), scenario, method)));
    all.push((perf::NAME.to_owned(), Test::perf_of_a_frozen_server, ""));
    let over_iwarp = keep_alive::NAME_OVER_IWARP.to_owned();
    all.push((over_iwarp, Test::keep_alive_over_iwarp, ""));
    // Last: they leave a host without power.
    all.push((keep_alive::NAME.to_owned(), Test::keep_alive, ""));
    for (what, scenario, method) in all {
        if names.is_empty() || names.iter().any(|part| what.contains(part)) {
            let name = format!("two hosts: {what}");
            report.scenario(&name, || scenario(&mut test, method));
        }
    }
}

struct Test<'a> {
    workspace: &'a Workspace,
    hosts: &'a Inside<'a>,
    long: bool,
    server: Option<Remote>,
    replicas: Replicas,
    step: usize,
}

impl Test<'_> {
    /// One second of either host after the other. The fallback survives that.
    fn freezes(&mut self, method: &str) -> Result<String> {
        let times = if self.long { 10 } else { 2 };
        let client = self.append(4 * times + 2, "4", method)?;
        for number in [2, 1].into_iter().cycle().take(times) {
            sleep(Duration::from_secs(2));
            self.freeze(number, 1)?;
        }
        let (failures, counts) = self.counts(client)?;
        ensure!(method == "native" || failures == 0, "{counts}");
        Ok(counts)
    }

    /// Longer than the settings allow: the connection fails in time, and the next one goes on.
    fn long_freezes(&mut self, method: &str) -> Result<String> {
        let client = self.append(60, "4", method)?;
        self.freeze(2, 30)?;
        let (failures, counts) = self.counts(client)?;
        ensure!(failures > 0, "it was not noticed: {counts}");
        // A writer that stands still itself has no answer to wait for.
        let client = self.append(60, "4", method)?;
        self.freeze(1, 30)?;
        Ok(self.counts(client)?.1)
    }

    /// Each side loses one packet of a hundred. All survive that but soft-RoCE's native operations.
    fn loss(&mut self, method: &str) -> Result<String> {
        self.serve()?;
        for number in NUMBERS {
            self.hosts.machines.net(number, "loss 1%")?;
        }
        let client = self.append(if self.long { 60 } else { 6 }, "4", method);
        let counts = client.and_then(|client| self.counts(client));
        for number in NUMBERS {
            self.hosts.machines.net(number, "off")?;
        }
        let (failures, counts) = counts?;
        ensure!(method == "native" || failures == 0, "{counts}");
        Ok(counts)
    }

    /// Programs that are killed without a chance to disconnect.
    fn kills(&mut self, method: &str) -> Result<String> {
        let client = self.append(60, "1", method)?;
        self.kill(1, "hosts append")?;
        self.check(last_acknowledged(&client)?)?;

        let mut client = self.append(8, "16", method)?;
        self.kill(2, "hosts serve")?;
        let noticed = time_to_fail(&mut client)?;
        self.server = None;
        self.serve()?;
        let (failures, counts) = self.counts(client)?;
        ensure!(failures > 0, "{counts}");
        Ok(format!("{counts}, noticed in {noticed:.1} s"))
    }

    /// Another client reads the log meanwhile; one is killed, and the next one is served. Neither
    /// the writer nor the server notices.
    fn second_client(&mut self, method: &str) -> Result<String> {
        let writer = self.append(10, "4", method)?;
        let watch = ["watch", SERVER[0], SERVER[1]];
        let mut killed = self.start(1, "watcher", &[&watch[..], &["60"]].concat())?;
        killed.wait_for("watching", LIMIT)?;
        self.kill(1, "hosts watch")?;
        let mut watcher = self.start(1, "watcher", &[&watch[..], &["3"]].concat())?;
        watcher.finish(LIMIT)?;
        let looks = watcher.said().pop().unwrap_or_default();
        let (failures, counts) = self.counts(writer)?;
        ensure!(method == "native" || failures == 0, "{counts}");
        Ok(format!("{counts}; {looks}"))
    }

    /// The host that owns the memory loses its power, at any moment.
    fn power_cuts(&mut self, method: &str) -> Result<String> {
        let times = match (method, self.long) {
            ("native", true) => 25,
            (_, true) => 10,
            (_, false) => 1,
        };
        let (mut slowest, mut total) = (0f64, 0);
        for time in 0..times {
            let group = ["1", "4", "16"][time % 3];
            let mut client = self.append(90, group, method)?;
            sleep(Duration::from_millis(1000 + 137 * time as u64 % 1000));
            self.hosts.machines.cut(2)?;
            slowest = slowest.max(time_to_fail(&mut client)?);
            let acknowledged = last_acknowledged(&client)?;
            self.kill(1, "hosts append")?;
            self.boot(2)?;
            total = self.check(acknowledged)?;
        }
        Ok(format!(
            "{times} cuts, {total} records, noticed in at most {slowest:.1} s"
        ))
    }

    /// The host of the client loses its power. The server gets no event, and serves the next
    /// writer, which takes the place of the one that is gone.
    fn writer_cut(&mut self, method: &str) -> Result<String> {
        let writer = self.append(60, "4", method)?;
        sleep(Duration::from_secs(1));
        self.hosts.machines.cut(1)?;
        let acknowledged = last_acknowledged(&writer)?;
        drop(writer);
        sleep(Duration::from_secs(10));
        let told = self.server.as_ref().map(Remote::said).unwrap_or_default();
        let last = told.last().context("the server said nothing")?;
        ensure!(!last.contains(':'), "an event came: {last}");
        self.check(acknowledged)?;
        self.boot(1)?;
        let writer = self.append(5, "4", method)?;
        Ok(self.counts(writer)?.1)
    }

    /// The host that owns the memory answers no more: with the default settings that is noticed
    /// after 7 times 0.54 s, with tight ones after 3 times 0.07 s. Then it is back.
    fn notices(&mut self, _: &str) -> Result<String> {
        let default = self.notice("fallback", 15)?;
        let tight = self.notice("tight", 8)?;
        let noticed = format!("after {default:.1} s, with tight settings after {tight:.1} s");
        ensure!(tight < default / 2.0, "{noticed}");
        Ok(noticed)
    }

    /// A client asks for retries without end, and its host answers no more. The server notices that
    /// after 3 times 0.07 s, by its own settings.
    fn notices_endless(&mut self, _: &str) -> Result<String> {
        // That both hosts are there.
        self.serve()?;
        let mut server = self.start(2, "prober", &["probe", PROBER[0], PROBER[1]])?;
        server.wait_for("listening", LIMIT)?;
        let mut client = self.start(1, "endless", &["endless", PROBER[0], PROBER[1], "5"])?;
        server.wait_for("probing", LIMIT)?;
        self.hosts.machines.signal(1, Signal::STOP)?;
        // The server ends during the freeze: its own host does not stand still.
        let noticed = server.finish(LIMIT);
        self.hosts.machines.signal(1, Signal::CONT)?;
        noticed?;
        client.finish(LIMIT)?;
        let said = server.said();
        let last = said.last().context("it said nothing")?;
        ensure!(last.starts_with("failed "), "{last}");
        Ok(last.clone())
    }

    fn notice(&mut self, method: &str, seconds: usize) -> Result<f64> {
        let mut client = self.append(seconds, "4", method)?;
        self.hosts.machines.signal(2, Signal::STOP)?;
        // The client's line arrives during the freeze: its own host does not stand still.
        let noticed = time_to_fail(&mut client);
        self.hosts.machines.signal(2, Signal::CONT)?;
        let noticed = noticed?;
        let (failures, counts) = self.counts(client)?;
        ensure!(failures > 0, "{method}: {counts}");
        Ok(noticed)
    }

    /// These tests find the faults that they look for.
    fn tail_first(&mut self, _: &str) -> Result<String> {
        self.serve()?;
        let mut client = self.start(1, "client", &["tail-first", SERVER[0], SERVER[1]])?;
        client.wait_for("the tail is ", LIMIT)?;
        self.hosts.machines.cut(2)?;
        self.boot(2)?;
        match self.check(0) {
            Ok(_) => bail!("the damage was not found"),
            Err(error) if error.to_string().contains("is damaged") => Ok("it is".to_owned()),
            Err(error) => Err(error),
        }
    }

    fn boot(&mut self, number: u8) -> Result<()> {
        if number == 2 {
            self.server = None;
        }
        self.replicas.forget(number);
        self.hosts.boot(number, true)?;
        self.hosts.machines.wait_link()
    }

    fn freeze(&self, number: u8, seconds: u64) -> Result<()> {
        self.hosts.machines.signal(number, Signal::STOP)?;
        sleep(Duration::from_secs(seconds));
        // The answer takes a second itself.
        let answered = match seconds {
            0..=1 => Ok(()),
            _ => self.answers(3 - number),
        };
        self.hosts.machines.signal(number, Signal::CONT)?;
        answered
    }

    /// Fails if a host stands still because its neighbour is frozen. A frozen QEMU does not read
    /// the link's socket, and the other QEMU can block in a send when that socket is full. The
    /// block lasts until the thaw, so one answer at the end of a freeze covers the whole freeze.
    /// ssh needs the loop of QEMU that blocks.
    fn answers(&self, number: u8) -> Result<()> {
        let ssh = self.hosts.machines.ssh(number)?;
        let log = self.workspace.log_file("hosts-neighbour.log")?;
        let mut asked = spawn_logged(&mut ssh.command(&["true"], false), &log)?;
        let answer = wait(&mut asked, LIMIT)?;
        ensure!(
            answer.is_some_and(|status| status.success()),
            "host {number} does not answer while host {} is frozen",
            3 - number
        );
        Ok(())
    }

    fn kill(&self, number: u8, program: &str) -> Result<()> {
        self.signal(number, "KILL", program)
    }

    /// Sends a signal to a program in a host.
    fn signal(&self, number: u8, signal: &str, program: &str) -> Result<()> {
        let ssh = self.hosts.machines.ssh(number)?;
        let signal = format!("-{signal}");
        output(&mut ssh.command(&["pkill", &signal, "-f", program], false)).map(drop)
    }

    /// Starts the hosts that an earlier test has left cut or frozen.
    fn all_up(&mut self) -> Result<()> {
        for number in NUMBERS {
            if self.hosts.machines.is_up(number) {
                self.hosts.machines.signal(number, Signal::CONT)?;
            } else {
                self.boot(number)?;
            }
        }
        Ok(())
    }

    /// Starts the server, if it does not run; and before that the hosts.
    fn serve(&mut self) -> Result<()> {
        self.all_up()?;
        if self.server.is_none() {
            let mut server = self.start(2, "server", &["serve", SERVER[0], SERVER[1], PMEM])?;
            server.wait_for("listening", LIMIT)?;
            self.server = Some(server);
        }
        Ok(())
    }

    /// Starts a client that appends, and waits for its first records.
    fn append(&mut self, seconds: usize, group: &str, method: &str) -> Result<Remote> {
        self.serve()?;
        let seconds = seconds.to_string();
        let args = ["append", SERVER[0], SERVER[1], &seconds, group, method];
        let mut client = self.start(1, "client", &args)?;
        client.wait_for("acknowledged ", LIMIT)?;
        Ok(client)
    }

    fn start(&mut self, number: u8, role: &'static str, args: &[&str]) -> Result<Remote> {
        self.start_at(number, PROGRAM, role, args)
    }

    /// Starts another program than [`PROGRAM`].
    fn start_at(
        &mut self,
        number: u8,
        program: &str,
        role: &'static str,
        args: &[&str],
    ) -> Result<Remote> {
        self.step += 1;
        let log = format!("hosts-{:02}-{role}.log", self.step);
        let ssh = self.hosts.machines.ssh(number)?;
        let command = ssh.command(&[&[program], args].concat(), false);
        Remote::start(role, command, self.workspace.log_file(&log)?)
    }

    /// Waits for the end of a client, which must be a good one, and looks at the log. Returns how
    /// often its connection failed, and all that it has counted.
    fn counts(&mut self, mut client: Remote) -> Result<(u64, String)> {
        client.finish(4 * LIMIT)?;
        let said = client.said();
        let last = said.last().context("it said nothing")?;
        let count = |name| {
            let found = last.split(", ").find_map(|count| count.strip_prefix(name));
            found.with_context(|| format!("no {name} in \"{last}\""))
        };
        let acknowledged = count("acknowledged ")?.parse()?;
        let failures = count("failures ")?.parse()?;
        let longest = count("longest ")?;
        self.check(acknowledged)?;
        let all = format!("{acknowledged} records, {failures} failures, longest {longest}");
        Ok((failures, all))
    }

    /// Looks at the log on host 2: whole, with at least the records that were acknowledged.
    /// Returns how many there are.
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

/// For how many seconds from now the client does not notice that its connection is gone.
fn time_to_fail(client: &mut Remote) -> Result<f64> {
    let started = Instant::now();
    client.wait_for("failed ", LIMIT)?;
    Ok(started.elapsed().as_secs_f64())
}

/// The number of records that were acknowledged to a client.
fn last_acknowledged(client: &Remote) -> Result<u64> {
    let said = client.said();
    let mut lines = said.iter().rev();
    let last = lines.find_map(|line| line.strip_prefix("acknowledged "));
    Ok(last.context("nothing was acknowledged")?.parse()?)
}
