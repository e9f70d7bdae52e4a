//! The example `replicated-log` between two hosts: one replica on host 1, two on host 2, and a
//! writer on either. A spare replica on host 1 takes the place of one on host 2. A writer gets lines, and prints the position of each acknowledged one.
//!
//! In the end of each scenario the next writer finds each acknowledged record at its position, and
//! no record twice. A record without an acknowledgement may be there or not.

mod cuts;
mod replaced;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::{LIMIT, Scenario, Test};
use crate::process::{Remote, poll};
use crate::vm::NUMBERS;

const PROGRAM: &str = "/src/target/guest/debug/examples/replicated-log";
/// The lines of both its streams stay in their order.
const SHELL: [&str; 4] = ["sh", "-c", "RUST_LOG=rpma_log=info exec \"$@\" 2>&1", "sh"];
/// The same for a replica. It sets up its NVDIMM first, if it is not: `$0` has the number.
const SERVE: &str = "space=namespace$0.0; dir=/sys/bus/nd/devices/$space; \
    until [ -e $dir ]; do sleep 0.1; done; \
    [ \"$(cat $dir/mode)\" = dax ] || ndctl create-namespace -f -e $space -m devdax --map=mem; \
    until [ -e /dev/dax$0.0 ]; do sleep 0.1; done; \
    RUST_LOG=rpma_log=info exec \"$@\" 2>&1";
/// The host of each replica, its address, and the number of its NVDIMM.
const REPLICAS: [(u8, &str, &str); 3] = [
    (1, "10.77.0.1:7210", "2"),
    (2, "10.77.0.2:7211", "2"),
    (2, "10.77.0.2:7212", "3"),
];
/// The same of a replica that takes the place of another one.
const SPARE: (u8, &str, &str) = (1, "10.77.0.1:7213", "3");
/// Each replica has memory for so many logs. A scenario makes a new one.
const LOGS: &str = "64";
/// For acknowledgements after a boot, on a host that does other things as well.
const PATIENCE: Duration = Duration::from_secs(300);
/// The limit of a writer's calls that must not fail, and that of calls that do. An append waits a
/// quarter of it for a host that boots: [`PATIENCE`].
const LONG: &str = "1200";
const SHORT: &str = "10";
/// The methods that survive lost packets on soft-RoCE.
const METHODS: [&str; 2] = [READING, SERVER];
const READING: &str = "reading";
const SERVER: &str = "server";

pub(super) fn scenarios<'a>(long: bool) -> Vec<(String, Scenario<'a>, &'static str)> {
    // The last column: whether both methods have it.
    let of_methods: [(&str, Scenario<'_>, bool); 4] = [
        ("frozen hosts", Test::frozen_replicas, long),
        ("1 % of packets lost", Test::lossy_link, true),
        ("killed programs", Test::killed_replicas, long),
        ("a power cut", cuts::one, true),
    ];
    let mut all = Vec::new();
    for method in METHODS {
        for (what, scenario, _) in of_methods
            .iter()
            .filter(|(.., both)| *both || method == SERVER)
        {
            // By the server's method it boots guest 1 again: a long scenario, for its minute.
            if (*what, method, long) == ("a power cut", SERVER, false) {
                continue;
            }
            let name = format!("replicated log: {what}, {method}");
            all.push((name, *scenario, method));
        }
    }
    let mut others: Vec<(&str, Scenario<'_>)> = vec![
        ("a frozen writer, and another one", Test::frozen_writer),
        ("one copy is found out", Test::one_copy),
        ("a replaced server", replaced::once),
    ];
    if long {
        others.push(("50 power cuts", cuts::fifty));
        others.push(("20 replaced servers", replaced::twenty));
    }
    let others = others.into_iter();
    all.extend(
        others.map(|(what, scenario)| (format!("replicated log: {what}"), scenario, SERVER)),
    );
    all
}

/// The programs of the replicas. They stay, from one scenario to the next.
#[derive(Default)]
pub(super) struct Replicas {
    running: [Option<Remote>; 3],
    spare: Option<Remote>,
    /// Logs that were made.
    logs: u64,
}

impl Replicas {
    /// A host has lost its power.
    pub(super) fn forget(&mut self, host: u8) {
        for (running, (of, ..)) in self.running.iter_mut().zip(REPLICAS) {
            running.take_if(|_| of == host);
        }
        self.spare.take_if(|_| SPARE.0 == host);
    }
}

fn memory(nvdimm: &str) -> String {
    format!("/dev/dax{nvdimm}.0")
}

/// A log, and the numbers of its acknowledged records by their positions.
struct Log {
    key: String,
    method: String,
    /// The epoch of the last process that opened it.
    epoch: u64,
    /// The number of the next record: no two of them are equal.
    next: u64,
    acknowledged: BTreeMap<u64, u64>,
}

/// A writer that runs.
struct Writer {
    program: Remote,
    /// The numbers of its records.
    fed: Vec<u64>,
}

/// The bytes of a record: of one to four cache lines with its entry.
fn record(number: u64) -> String {
    format!("record {number} {}", ".".repeat(number as usize % 5 * 40))
}

impl Log {
    /// Gives a writer so many records: see [`Remote::feed`].
    fn feed(&mut self, writer: &mut Writer, count: u64) -> Result<()> {
        let numbers = self.next..self.next + count;
        self.next += count;
        let lines: String = numbers
            .clone()
            .map(|number| record(number) + "\n")
            .collect();
        writer.fed.extend(numbers);
        writer.program.feed(&lines)
    }

    /// The same, and waits until all are acknowledged.
    fn append(&mut self, writer: &mut Writer, count: u64) -> Result<()> {
        self.feed(writer, count)?;
        writer.wait(writer.fed.len())
    }

    /// Adds the records that a writer has acknowledged.
    fn note(&mut self, writer: &Writer) {
        self.acknowledged.extend(
            writer
                .positions()
                .into_iter()
                .zip(writer.fed.iter().copied()),
        );
    }

    /// Ends a writer. Fails if a call of it has failed.
    fn close(&mut self, mut writer: Writer) -> Result<()> {
        writer.program.end_input();
        writer.program.finish(PATIENCE)?;
        writer.wait(writer.fed.len())?;
        self.note(&writer);
        Ok(())
    }

    /// Looks at the records that a program has printed.
    fn check(&self, said: &[String]) -> Result<()> {
        let mut found = BTreeMap::new();
        let mut last = None;
        for (at, text) in said.iter().filter_map(|line| record_of(line)) {
            let number = text
                .split(' ')
                .nth(1)
                .and_then(|number| number.parse().ok());
            let number =
                number.with_context(|| format!("a record that was not appended: {text}"))?;
            ensure!(text == record(number), "record {number} is damaged: {text}");
            ensure!(
                Some(number) > last,
                "record {number} is twice or too late: {last:?}"
            );
            last = Some(number);
            found.insert(at, number);
        }
        let all = self.acknowledged.iter();
        let lost: Vec<_> = all
            .filter(|(at, number)| found.get(at) != Some(number))
            .collect();
        let count = (lost.len(), self.acknowledged.len());
        ensure!(
            lost.is_empty(),
            "{} of {} records are lost: {lost:?}",
            count.0,
            count.1
        );
        Ok(())
    }
}

/// The position and the bytes of a record, if the line has one.
fn record_of(line: &str) -> Option<(u64, &str)> {
    let (at, record) = line.split_once(' ')?;
    Some((at.parse().ok()?, record))
}

impl Writer {
    /// The positions of its acknowledged records.
    fn positions(&self) -> Vec<u64> {
        let said = self.program.said();
        said.iter().filter_map(|line| line.parse().ok()).collect()
    }

    /// Waits until so many records are acknowledged.
    fn wait(&mut self, count: usize) -> Result<()> {
        let is_there = |said: &[String]| {
            said.iter()
                .filter(|line| line.parse::<u64>().is_ok())
                .count()
                >= count
        };
        let what = format!("the position of record {count}");
        self.program.wait_until(&what, PATIENCE, is_there)
    }

    /// Waits until the connections to both replicas on host 2 have ended since `before`.
    fn wait_for_ends(&mut self, before: [usize; 2]) -> Result<()> {
        let have_ended = |said: &[String]| {
            let now = ends(said);
            now[0] > before[0] && now[1] > before[1]
        };
        self.program
            .wait_until("that two connections have ended", LIMIT, have_ended)
    }
}

/// How often a writer's connections to the replicas on host 2 have ended, or could not be made.
fn ends(said: &[String]) -> [usize; 2] {
    ["server 1: ", "server 2: "].map(|end| said.iter().filter(|line| line.contains(end)).count())
}

impl Test<'_> {
    /// A host stands still for a second: no call fails. One with two replicas stands still for
    /// longer than the keep-alive: calls wait, and go on when it does.
    fn frozen_replicas(&mut self, method: &str) -> Result<String> {
        let mut log = self.new_log(method)?;
        let mut writer = self.writer(&mut log, 1, LONG)?;
        log.append(&mut writer, 20)?;
        for host in [2, 1] {
            log.feed(&mut writer, 50)?;
            self.freeze(host, 1)?;
            log.append(&mut writer, 20)?;
        }
        self.silent_replicas(&mut log, &mut writer)?;
        log.close(writer)?;
        self.check_log(&mut log, 2)?;
        Ok(format!("{} records", log.acknowledged.len()))
    }

    /// No operation is in flight: only the keep-alive ends the connections.
    fn silent_replicas(&mut self, log: &mut Log, writer: &mut Writer) -> Result<()> {
        let before = ends(&writer.program.said());
        self.hosts.machines.signal(2, Signal::STOP)?;
        let ended = writer.wait_for_ends(before);
        let fed = ended.and_then(|()| log.feed(writer, 50));
        let answered = fed.and_then(|()| self.answers(1));
        self.hosts.machines.signal(2, Signal::CONT)?;
        answered?;
        log.append(writer, 20)
    }

    /// Each side loses one packet of a hundred: no call fails.
    fn lossy_link(&mut self, method: &str) -> Result<String> {
        let mut log = self.new_log(method)?;
        for number in NUMBERS {
            self.hosts.machines.net(number, "loss 1%")?;
        }
        let appended = self.append_some(&mut log, if self.long { 20 } else { 1 });
        for number in NUMBERS {
            self.hosts.machines.net(number, "off")?;
        }
        appended?;
        self.check_log(&mut log, 2)?;
        Ok(format!("{} records", log.acknowledged.len()))
    }

    /// Appends on each host after the other, so many times.
    fn append_some(&mut self, log: &mut Log, times: usize) -> Result<()> {
        for host in NUMBERS.into_iter().cycle().take(times) {
            let mut writer = self.writer(log, host, LONG)?;
            log.append(&mut writer, 200)?;
            log.close(writer)?;
        }
        Ok(())
    }

    /// The writer is killed, and the next one takes over. A replica on each host is killed, and
    /// started again. With `--long` each replica is.
    fn killed_replicas(&mut self, method: &str) -> Result<String> {
        let mut log = self.new_log(method)?;
        let mut writer = self.writer(&mut log, 1, LONG)?;
        log.feed(&mut writer, 400)?;
        writer.wait(50)?;
        self.kill(1, "replicated-log append")?;
        log.note(&writer);
        drop(writer);
        self.check_log(&mut log, 2)?;
        let mut writer = self.writer(&mut log, 2, LONG)?;
        let count = if self.long { REPLICAS.len() } else { 2 };
        for (n, (host, addr, _)) in REPLICAS.into_iter().enumerate().take(count) {
            log.append(&mut writer, 20)?;
            self.kill(host, &format!("replicated-log serve {addr}"))?;
            self.replicas.running[n] = None;
            log.append(&mut writer, 50)?;
            self.start_replicas()?;
            log.note(&writer);
            self.wait_for_replica(&log, n)?;
        }
        log.close(writer)?;
        self.check_log(&mut log, 1)?;
        Ok(format!("{} records", log.acknowledged.len()))
    }

    /// A writer stands still, and another one takes over. The first one goes on, and gets an error.
    fn frozen_writer(&mut self, method: &str) -> Result<String> {
        let mut log = self.new_log(method)?;
        let mut first = self.writer(&mut log, 1, LONG)?;
        log.append(&mut first, 20)?;
        log.feed(&mut first, 200)?;
        self.hosts.machines.signal(1, Signal::STOP)?;
        let second = self.takes_over(&mut log);
        let answered = self.answers(2);
        self.hosts.machines.signal(1, Signal::CONT)?;
        answered?;
        let mut second = second?;
        first
            .program
            .wait_for("another writer has the epoch", PATIENCE)?;
        let of_first = first.positions().len();
        log.note(&first);
        log.append(&mut second, 20)?;
        log.close(second)?;
        self.check_log(&mut log, 1)?;
        Ok(format!("{of_first} of {} records", log.acknowledged.len()))
    }

    /// The writer on host 2 needs the two replicas there.
    fn takes_over(&mut self, log: &mut Log) -> Result<Writer> {
        let mut writer = self.writer(log, 2, LONG)?;
        log.append(&mut writer, 50)?;
        Ok(writer)
    }

    /// These tests can fail: a writer that is content with one copy loses records, and that is
    /// found.
    fn one_copy(&mut self, method: &str) -> Result<String> {
        let mut log = self.new_log(method)?;
        let mut writer = self.writer_with(&mut log, 1, LONG, &["--break", "one-copy"])?;
        log.feed(&mut writer, 400)?;
        writer.wait(50)?;
        let before = ends(&writer.program.said());
        self.hosts.machines.net(1, "loss 100%")?;
        // Until then its own replica alone makes acknowledgements.
        let fed = log.feed(&mut writer, 20);
        let ended = fed.and_then(|()| writer.wait_for_ends(before));
        log.note(&writer);
        let killed = self.kill(1, "replicated-log");
        self.hosts.machines.net(1, "off")?;
        ended.and(killed)?;
        self.replicas.running[0] = None;
        match self.check_log(&mut log, 2) {
            Ok(()) => bail!("the loss was not found"),
            Err(error) if error.to_string().contains("are lost") => Ok("it is".to_owned()),
            Err(error) => Err(error),
        }
    }

    /// Makes a log. All replicas are up then.
    fn new_log(&mut self, method: &str) -> Result<Log> {
        self.start_replicas()?;
        self.replicas.logs += 1;
        Ok(Log {
            key: self.replicas.logs.to_string(),
            method: method.to_owned(),
            epoch: 0,
            next: 0,
            acknowledged: BTreeMap::new(),
        })
    }

    /// Starts the replicas that do not run, and before that the hosts.
    fn start_replicas(&mut self) -> Result<()> {
        self.all_up()?;
        let missing = |n: &usize| self.replicas.running[*n].is_none();
        let missing: Vec<_> = (0..REPLICAS.len()).filter(missing).collect();
        let started = missing.iter().map(|n| self.start_replica(REPLICAS[*n]));
        let started: Result<Vec<_>> = started.collect();
        for (n, mut replica) in missing.into_iter().zip(started?) {
            replica.wait_for("serving on", LIMIT)?;
            self.replicas.running[n] = Some(replica);
        }
        Ok(())
    }

    fn start_replica(&mut self, (host, addr, nvdimm): (u8, &str, &'static str)) -> Result<Remote> {
        let shell = ["sh", "-c", SERVE, nvdimm];
        let serve = [PROGRAM, "serve", addr, &memory(nvdimm), "--keys", LOGS];
        self.run(host, "replica", &[&shell[..], &serve].concat())
    }

    fn writer(&mut self, log: &mut Log, host: u8, limit: &str) -> Result<Writer> {
        self.writer_with(log, host, limit, &[])
    }

    /// Starts a writer on a host. The first one makes the log.
    fn writer_with(
        &mut self,
        log: &mut Log,
        host: u8,
        limit: &str,
        more: &[&str],
    ) -> Result<Writer> {
        let create = if log.epoch == 0 {
            &["--create"][..]
        } else {
            &["--take-over"]
        };
        // Two of the three replicas are on one host.
        let more = [&["--one-host", "--limit", limit], create, more].concat();
        let program = self.run_on_log(log, host, "append", &more)?;
        let fed = Vec::new();
        Ok(Writer { program, fed })
    }

    /// Opens the log as the next writer does, and looks for each acknowledged record.
    fn check_log(&mut self, log: &mut Log, host: u8) -> Result<()> {
        self.check_and(log, host, &[])
    }

    fn check_and(&mut self, log: &mut Log, host: u8, more: &[&str]) -> Result<()> {
        let more = [&["--one-host", "--limit", LONG, "--take-over"], more].concat();
        let mut reader = self.run_on_log(log, host, "read", &more)?;
        reader.finish(PATIENCE)?;
        log.check(&reader.said())
    }

    /// Waits until a replica has each acknowledged record in its own memory.
    fn wait_for_replica(&mut self, log: &Log, n: usize) -> Result<()> {
        let (host, addr, nvdimm) = REPLICAS[n];
        let memory = memory(nvdimm);
        let verify = ["verify", addr, &memory, "--keys", LOGS, "--key", &log.key];
        let verify = [&SHELL[..], &[PROGRAM], &verify].concat();
        let mut missing = None;
        let has_all = poll(PATIENCE, || {
            let mut verify = self.run(host, "verify", &verify)?;
            // While the replica gets its records, it may look damaged from there.
            let finished = verify.finish(LIMIT);
            missing = finished.and_then(|()| log.check(&verify.said())).err();
            Ok(missing.is_none().then_some(()))
        })?;
        has_all.with_context(|| format!("replica {n}: {missing:?}"))
    }

    /// Starts the next process that opens a log.
    fn run_on_log(
        &mut self,
        log: &mut Log,
        host: u8,
        command: &'static str,
        more: &[&str],
    ) -> Result<Remote> {
        log.epoch += 1;
        let epoch = log.epoch.to_string();
        let options = [
            "--key",
            &log.key,
            "--epoch",
            &epoch,
            "--method",
            &log.method,
        ];
        let replicas = REPLICAS.map(|(_, addr, _)| addr);
        let start = [&SHELL[..], &[PROGRAM, command]].concat();
        self.run(
            host,
            command,
            &[&start, &options[..], more, &replicas].concat(),
        )
    }

    /// Starts a command with the example on a host.
    fn run(&mut self, host: u8, role: &'static str, args: &[&str]) -> Result<Remote> {
        self.step += 1;
        let log = format!("hosts-{:02}-{role}.log", self.step);
        let ssh = self.hosts.machines.ssh(host)?;
        let command = ssh.command(args, false);
        Remote::start_fed(role, command, self.workspace.log_file(&log)?)
    }
}
