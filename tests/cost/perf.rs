//! `rpma perf` in a guest whose clock counts instructions: beside `ib_write_bw`, and with the
//! settings that docs/performance.md compares.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::Value;

use crate::common::program::free_port;
use crate::{LARGE, Outcome, common, ib_write_bw, in_turn};

/// Settings, and the table that has them. Each table compares its rows.
const TABLES: [&str; 9] = [
    "operations in flight: --op write --sweep depth=1/4/16/64",
    "operations for each doorbell: --op write --depth 64 --sweep batch=1/4/16/64",
    "completions: --op write-flush --sweep completions=poll/wait",
    "completions, 16 in flight: --op write-flush --depth 16 --sweep completions=poll/wait",
    "sizes: --op write --depth 16 --sweep size=64..64k",
    "operations: --depth 1 --sweep op=write/read/send/atomic-write",
    "flushes: --op write-flush --flush visible --sweep method=native/reading",
    "commits: --op commit --sweep method=native/server,depth=1/16",
    "connections: --op write --depth 4 --sweep connections=1/8/32",
];

/// Prints all tables.
pub(crate) fn run() -> Outcome {
    let server = Server::start()?;
    println!("| | beside | rpma perf | beside, again | rpma perf : beside |");
    println!("|---|---|---|---|---|");
    let what = "write of 64 KiB, 16 at a time, beside `ib_write_bw`";
    let beside = || ib_write_bw(&common::addr());
    in_turn(what, beside, || large(&server))?;
    for table in TABLES {
        let (what, args) = table.split_once(": ").ok_or("its settings")?;
        println!("\n{what}: `rpma perf {args}`\n");
        println!("| | operations/s | bytes/s | p50 µs | p99 µs | CPU µs |");
        println!("|---|---|---|---|---|---|");
        for point in server.perf(args)? {
            row(&point);
        }
    }
    Ok(())
}

/// Nanoseconds of one large write.
fn large(server: &Server) -> Outcome<Vec<u64>> {
    let args = format!("--depth 16 --size {} --count {}", LARGE.1, LARGE.0);
    let points = server.perf(&args)?;
    let rate = |point: &Value| number(&point["result"]["operations_per_second"]);
    let rate = points.first().map(rate);
    let rate = rate.filter(|rate| *rate > 0.0).ok_or("no result")?;
    Ok(vec![(1e9 / rate) as u64])
}

fn row(point: &Value) {
    let (setting, result) = (&point["setting"], &point["result"]);
    let names = ["op", "method", "completions"];
    let words = names.iter().filter_map(|name| setting[name].as_str());
    let numbers = ["size", "depth", "batch", "connections"];
    let numbers = numbers.map(|name| format!("{name} {}", setting[name]));
    let all: Vec<String> = words.map(str::to_owned).chain(numbers).collect();
    let micros = |value: &Value| number(value) / 1e3;
    println!(
        "| {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} |",
        all.join(", "),
        number(&result["operations_per_second"]),
        number(&result["bytes_per_second"]),
        micros(&result["latency"]["p50"]),
        micros(&result["latency"]["p99"]),
        micros(&result["cpu_ns_per_operation"]),
    );
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// `rpma serve`, until this is dropped.
struct Server {
    rpma: PathBuf,
    addr: String,
    running: Child,
}

impl Server {
    fn start() -> Outcome<Self> {
        let program = env::current_exe()?;
        let dir = program.ancestors().nth(2).ok_or("no build directory")?;
        let rpma = dir.join("rpma");
        let addr = format!("{}:{}", common::addr(), free_port(&common::addr()));
        let log = tempfile::NamedTempFile::new()?;
        let running = Command::new(&rpma)
            .args(["serve", &addr, "--memory", &common::devdax(), "--overwrite"])
            .stdout(Stdio::from(log.reopen()?))
            .spawn()?;
        while !fs::read_to_string(log.path())?.contains("listening on") {
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Self {
            rpma,
            addr,
            running,
        })
    }

    /// The points of a measurement.
    fn perf(&self, args: &str) -> Outcome<Vec<Value>> {
        let mut perf = Command::new(&self.rpma);
        perf.args(["perf", &self.addr, "--format", "json"]);
        perf.args(["--warm-up", "0.2"]);
        if !args.contains("--count") {
            perf.args(["--time", "0.5"]);
        }
        perf.args(args.split_whitespace());
        let output = perf.stderr(Stdio::inherit()).output()?;
        let lines = String::from_utf8(output.stdout)?;
        let points = lines.lines().map(serde_json::from_str);
        Ok(points.collect::<Result<_, _>>()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}
