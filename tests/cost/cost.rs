//! The costs of each operation: the instructions of this library, of librpma, and of bare verbs,
//! counted by callgrind. `cargo xtask bench cost` runs it in the guest.
//!
//! `check` and `record` need no device: they run on the simulated fabric. Its calls are not
//! counted.
//!
//! * `cost`: the table.
//! * `cost connections`: a write and a poll with 1 to 1,000 connections, and the memory that each
//!   takes.
//! * `cost time`: how long writes and their flush take, beside librpma, and large writes, beside `ib_write_bw`.
//! * `cost perf`: what `rpma perf` measures, beside `ib_write_bw` and by itself.
//! * `cost awaited`: operations of rpma-async, beside the same ones by hand. An error if one costs more
//!   than `awaited.rs` allows. `check` has it as well.
//! * `cost logs`: appends to a log, by one and by many, and their commits. `check` has it as well.
//! * `cost check COMPILER`: an error if this library costs more than in counts.txt, if that is of
//!   the same compiler.
//! * `cost serving`: a commit by the server's method, for the server, beside 10 clients and beside 300.
//!   An error if the two differ by more than 10 %. `check` has it as well.
//! * `cost record COMPILER`: prints a new counts.txt.

#[cfg(feature = "sim")]
mod awaited;
#[cfg(all(native_flush, not(feature = "sim")))]
#[expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "what the library is compared with: verbs and nothing else. One argument holds for all of it: \
              one thread makes each object after those that it needs, and frees none"
)]
mod bare;
mod callgrind;
#[cfg(feature = "sim")]
mod commits;
#[path = "../common/mod.rs"]
mod common;
mod count;
#[cfg(feature = "sim")]
mod logs;
#[cfg(not(feature = "sim"))]
mod perf;
mod rpma;
mod serving;
mod unusual;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use common::program::free_port;
use count::{Costs, Outcome, cost_of, count, counted, no_more, said};
use rustix::process::{Resource, Rlimit, setrlimit};

/// How often each operation is done. A multiple of 16.
const ROUNDS: usize = 64;
/// The slots of each queue.
const DEPTH: u32 = 100;
/// How many writes are timed, after so many that are not. Multiples of 16.
const TIMED: u64 = 3200;
const WARM: u64 = 320;
/// How many large writes, and their bytes.
const LARGE: (u64, usize) = (300, 65_536);
/// How often each program is timed.
const TURNS: usize = 5;
/// Bytes of one operation.
const LEN: usize = 64;

/// Each operation, as it is called where it is counted, and in words.
const OPERATIONS: [&str; 46] = [
    "write: write",
    "write_slices: write, both slices made for each",
    "write_inline: write, inline",
    "flush: flush, native",
    "flush_fallback: flush, fallback",
    "read: read",
    "send: send",
    "recv: receive",
    "atomic_write: atomic write, native",
    "get_wc_0: `get_wc`, nothing there",
    "get_wc_1: `get_wc`, 1",
    "get_wc_16: `get_wc`, 16",
    "wait_for: `Conn::wait_for`, ready",
    "next: `Conn::next`, ready",
    "batch: in a batch of 16 writes and a native flush",
    "batch_fallback: in a batch of 16 writes and a fallback flush",
    "batch_write: write, in a batch of 16",
    "batch_flush: flush, native, in a batch of 16",
    "batch_flush_fallback: flush, fallback, in a batch of 16",
    "batch_read: read, in a batch of 16",
    "batch_send: send, in a batch of 16",
    "batch_atomic_write: atomic write, native, in a batch of 16",
    "recv_many: receive, one of 16 at once",
    "write_tuple: write, both slices made for each, in a tuple of results",
    "write_gather: write of two local buffers",
    "write_empty: write of 0 bytes",
    "write_fence: write with `Flags::FENCE`",
    "flush_short: flush of 4 bytes, native",
    "flush_short_fallback: flush of 4 bytes, fallback",
    "atomic_write_fallback: atomic write, fallback",
    "batch_atomic_write_fallback: atomic write, fallback, in a batch of 16",
    "batch_1: batch of one write",
    "batch_2: batch of two writes",
    "commit_1: `Conn::commit` of one part, native",
    "commit_5: `Conn::commit` of five parts, native",
    "commit_9: `Conn::commit` of nine parts, native",
    "commit_1_fallback: `Conn::commit` of one part, fallback",
    "commit_5_fallback: `Conn::commit` of five parts, fallback",
    "commit_9_fallback: `Conn::commit` of nine parts, fallback",
    "get_wc_mixed: `get_wc`, 16: sends and receives in turn",
    "srq_recv: `Srq::recv`",
    "srq_recv_many: `Srq::recv_many`, one of 16",
    "srq_get_wc_1: `get_wc` of a shared queue, 1",
    "srq_get_wc_16: `get_wc` of a shared queue, 16",
    "conn_srq_get_wc_1: `get_wc` of a connection with a shared queue, 1",
    "conn_srq_get_wc_16: `get_wc` of a connection with a shared queue, 16",
];

/// The additional cost that an operation may have: parts of a thousand, and instructions.
const TOLERANCE: (u64, u64) = (30, 2);

/// The calls of the simulated fabric, which is in the program itself, and tokio. `wait` stands for
/// the system call `poll`, and the locks for those of std.
const BELOW: [&str; 16] = [
    "rpma_sim::post::ibv_post_",
    "rpma_sim::srq::ibv_post_",
    "rpma_sim::cq::ibv_poll_cq",
    "rpma_sim::cq::ibv_get_cq_event",
    "rpma_sim::cq::ibv_req_notify_cq",
    "rpma_sim::cq::ibv_ack_cq_events",
    "rpma_sim::stream::ibv_wr_",
    "rpma_sim::power::memory::Memory::persisted",
    "rpma_sim::power::memory::<impl",
    "rpma_sim::power::stores::stored",
    "rpma_sim::wait::now",
    "rpma_sim::wait::wait",
    "rpma_sim::sync::",
    "<rpma_sim::sync::",
    "tokio::",
    "<tokio::",
];

/// The ways to append to a log, each with arguments of valgrind, and with the calls that are not
/// counted. Where tokio polls the appenders, its instructions are counted, and where they are
/// threads, all threads but the first one.
const LOGS: [(&str, &[&str], &[&str]); 4] = [
    ("awaited", &[], &BELOW),
    ("blocking", &[], &BELOW),
    ("awaited of 16", &[], &["rpma_sim::", "<rpma_sim::", TICK]),
    ("blocking of 16", &[THREADS], &["rpma_sim::", "<rpma_sim::"]),
];
const THREADS: &str = "--toggle-collect=*::thread_start";
/// The task that does the work of the fabric.
const TICK: &str = "rpma_sim::tick::<impl rpma_sim::fabric::Fabric>::tick::{{closure}}";

fn main() -> Outcome {
    let args: Vec<_> = env::args().filter(|arg| arg != "--bench").collect();
    let words: Vec<_> = args.iter().map(String::as_str).collect();
    match words[..] {
        [_, "measured", "rpma"] => here(|| rpma::run(&common::addr())),
        #[cfg(feature = "sim")]
        [_, "measured", "awaited"] => {
            let mut outcome = Ok(());
            common::on_fabric(|| outcome = awaited::run(&common::addr()));
            outcome
        }
        #[cfg(feature = "sim")]
        [_, "measured", "log", how] => match how {
            "awaited" => logs::awaited(),
            "awaited of 16" => logs::awaited_by_many(),
            "blocking" => logs::blocking(),
            "blocking of 16" => logs::blocking_by_many(),
            _ => Err(how.into()),
        },
        [_, "measured", "serving", clients] => {
            let clients = clients.parse()?;
            here(|| serving::run(&common::addr(), clients))
        }
        [_, "measured", "connections", addr, count] => Ok(rpma::run_many(addr, count.parse()?)?),
        [program, "connections"] => connections(program),
        [_, "timed", addr, depth] => Ok(rpma::run_timed(addr, depth.parse()?)?),
        [_, "large", addr] => Ok(rpma::run_large(addr, LARGE.1, LARGE.0)?),
        [program, "time"] => time(program),
        #[cfg(not(feature = "sim"))]
        [_, "perf"] => perf::run(),
        #[cfg(all(native_flush, not(feature = "sim")))]
        [_, "measured", "bare", addr] => bare::run(addr),
        [program, "serving"] => serving(program),
        [program, "rows"] => {
            for (name, (own, _)) in of_rpma(program)? {
                println!("{name} {own}");
            }
            Ok(())
        }
        #[cfg(feature = "sim")]
        [program, "logs"] => {
            let (costs, commits) = of_logs(program)?;
            for (name, (own, _)) in costs {
                println!("{name} {own}");
            }
            print!("{commits}");
            Ok(())
        }
        #[cfg(feature = "sim")]
        [program, "awaited"] => compare(&of_awaited(program)?),
        [program, "check", compiler] => {
            serving(program)?;
            let costs = of_all(program)?;
            #[cfg(feature = "sim")]
            compare(&costs)?;
            check(&costs, compiler)
        }
        [program, "record", compiler] => {
            println!("{compiler}");
            for (name, (own, _)) in of_all(program)? {
                println!("{name} {own}");
            }
            Ok(())
        }
        [program] => table(program),
        _ => {
            let words = "connections | serving | time | perf | check COMPILER | record COMPILER";
            Err(format!("cost [{words}]").into())
        }
    }
}

/// Runs code that needs a device: on a simulated fabric, if that is in its place.
fn here(run: impl FnOnce() -> ::rpma::Result<()>) -> Outcome {
    #[cfg(feature = "sim")]
    {
        let mut outcome = Ok(());
        common::on_fabric(|| outcome = run());
        Ok(outcome?)
    }
    #[cfg(not(feature = "sim"))]
    Ok(run()?)
}

/// Waits until the posted operations have completed.
fn came() {
    thread::sleep(Duration::from_millis(500));
}

fn of_rpma(program: &str) -> Outcome<Costs> {
    count_instructions(&[program, "measured", "rpma"])
}

/// On the simulated fabric alone.
fn of_awaited(program: &str) -> Outcome<Costs> {
    if cfg!(not(feature = "sim")) {
        return Ok(Costs::new());
    }
    let mut costs = count_instructions(&[program, "measured", "awaited"])?;
    costs.extend(of_logs(program)?.0);
    costs.remove("ignored");
    Ok(costs)
}

/// Of a log, and by how many commits its records were made durable.
fn of_logs(program: &str) -> Outcome<(Costs, String)> {
    let (mut costs, mut commits) = (Costs::new(), String::new());
    for (how, args, layers) in LOGS {
        let of = count(&[program, "measured", "log", how], args, layers)?;
        costs.extend(of.0);
        commits += &of.1;
    }
    Ok((costs, commits))
}

fn count_instructions(command: &[&str]) -> Outcome<Costs> {
    Ok(count(command, &[], &BELOW)?.0)
}

fn of_all(program: &str) -> Outcome<Costs> {
    let mut costs = of_rpma(program)?;
    costs.extend(of_awaited(program)?);
    Ok(costs)
}

fn table(program: &str) -> Outcome {
    let addr = common::addr();
    let dir = tempfile::tempdir()?;
    let librpma = compile(&dir.path().join("librpma"))?;
    let mut of_librpma = Costs::new();
    for method in ["native", "fallback"] {
        let port = free_port(&addr).to_string();
        of_librpma.extend(count_instructions(&[&librpma, &addr, &port, method])?);
    }
    #[cfg(all(native_flush, not(feature = "sim")))]
    let bare = count_instructions(&[program, "measured", "bare", &addr])?;
    #[cfg(any(not(native_flush), feature = "sim"))]
    let bare = Costs::new();
    let rpma = of_rpma(program)?;

    println!("| | librpma | bare verbs | rpma | the provider and libc |");
    println!("|---|---|---|---|---|");
    for operation in OPERATIONS {
        let (name, words) = operation.split_once(": ").ok_or("a name and words")?;
        let Some((own, below)) = rpma.get(name) else {
            continue;
        };
        let of = |costs: &Costs| match costs.get(name) {
            Some((own, _)) => own.to_string(),
            None => "–".to_owned(),
        };
        let [librpma, bare] = [&of_librpma, &bare].map(of);
        println!("| {words} | {librpma} | {bare} | **{own}** | {below} |");
    }
    Ok(())
}

fn connections(program: &str) -> Outcome {
    // Each pair has four descriptors. The hard limit is for those that are started here.
    let [current, maximum] = [Some(10_000); 2];
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    println!("| connections | write | `get_wc`, 1 | memory of one end, KiB |");
    println!("|---|---|---|---|");
    for count in ["1", "10", "100", "1000"] {
        let command = [program, "measured", "connections", &common::addr(), count];
        let costs = count_instructions(&command)?;
        let of = |name: &str| costs.get(name).map_or(0, |(own, _)| *own);
        // Without valgrind: that has its own share in the memory.
        let output = Command::new(program).args(&command[1..]).output()?;
        let said = String::from_utf8(output.stdout)?;
        let bytes = said.trim().strip_prefix("memory ");
        let bytes = bytes.ok_or("how much memory")?;
        let kib = bytes.parse::<u64>()? / 1024;
        println!("| {count} | {} | {} | {kib} |", of("write"), of("get_wc_1"));
    }
    Ok(())
}

/// Times the same in turn: another program, this library, and the other once more, which shows how
/// much a run differs from the next by itself.
fn time(program: &str) -> Outcome {
    let addr = common::addr();
    let dir = tempfile::tempdir()?;
    let librpma = compile(&dir.path().join("librpma"))?;
    println!("microseconds of one write: the least, the median and the most of {TURNS} runs each");
    println!("| | beside | rpma | beside, again | rpma : beside |");
    println!("|---|---|---|---|---|");
    let one = "write of 64 bytes and its native flush";
    let of_16 = "one of 16 writes of 64 bytes and their native flush (rpma: a batch)";
    for (depth, what) in [("1", one), ("16", of_16)] {
        let beside = || {
            let port = free_port(&addr).to_string();
            said(&[&librpma, &addr, &port, &format!("timed-{depth}")])
        };
        let ours = || said(&[program, "timed", &addr, depth]);
        in_turn(&format!("{what}, beside librpma"), beside, ours)?;
    }
    let what = "write of 64 KiB, 16 at a time, beside `ib_write_bw`";
    let ours = || said(&[program, "large", &addr]);
    in_turn(what, || ib_write_bw(&addr), ours)
}

fn in_turn(
    what: &str,
    mut beside: impl FnMut() -> Outcome<Vec<u64>>,
    mut ours: impl FnMut() -> Outcome<Vec<u64>>,
) -> Outcome {
    let mut turns = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        turns[0].push(beside()?);
        turns[1].push(ours()?);
        turns[2].push(beside()?);
    }
    let parts = ["", ", of this time, in calls that post"].into_iter();
    for (n, of_it) in parts.enumerate().take(turns[0][0].len()) {
        let (mut medians, mut columns) = (Vec::new(), Vec::new());
        for turns in &turns {
            let mut times: Vec<_> = turns.iter().map(|times| times[n]).collect();
            times.sort_unstable();
            let [least, median, most] = [0, TURNS / 2, TURNS - 1].map(|n| times[n] / 1000);
            columns.push(format!("{least}, {median}, {most}"));
            medians.push(times[TURNS / 2]);
        }
        let ratio = medians[1] * 200 / (medians[0] + medians[2]).max(1);
        println!("| {what}{of_it} | {} | {ratio} % |", columns.join(" | "));
    }
    Ok(())
}

/// Nanoseconds of one write, by perftest.
fn ib_write_bw(addr: &str) -> Outcome<Vec<u64>> {
    let (count, len) = (LARGE.0.to_string(), LARGE.1.to_string());
    let port = free_port(addr).to_string();
    let program = || {
        let mut program = Command::new("ib_write_bw");
        program.args(["-R", "-F", "-t", "16", "-n", &count]);
        program.args(["-s", &len, "-p", &port]);
        program
    };
    let mut server = program().stdout(Stdio::null()).spawn()?;
    // It prints no line when it listens.
    thread::sleep(Duration::from_secs(1));
    let client = program().arg(addr).output();
    server.kill()?;
    server.wait()?;
    let said = String::from_utf8(client?.stdout)?;
    let mut rows = said.lines().map(str::split_whitespace);
    let row = rows.find(|row| row.clone().next() == Some(len.as_str()));
    // Bytes, iterations, MiB/s at the most and on the average.
    let average = row.and_then(|mut row| row.nth(3)?.parse::<f64>().ok());
    let average = average.ok_or_else(|| format!("ib_write_bw: {said}"))?;
    let nanos = LARGE.1 as f64 / (average * 1_048_576.0) * 1e9;
    Ok(vec![nanos as u64])
}

/// Compiles the program that uses librpma, and returns its path.
fn compile(program: &Path) -> Outcome<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cost/librpma.c");
    let status = Command::new("cc")
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2"])
        .args(["-Wall", "-Wextra", "-Werror", source, "-o"])
        .arg(program)
        .args(["-lrpma", "-libverbs"])
        .status()?;
    match status.success() {
        true => Ok(program.display().to_string()),
        false => Err(format!("cc: {status}").into()),
    }
}

/// A server's costs of a commit do not depend on how many other clients it has.
fn serving(program: &str) -> Outcome {
    let mut own = Vec::new();
    for clients in ["10", "300"] {
        let costs = count_instructions(&[program, "measured", "serving", clients])?;
        let name = format!("serve_{clients}");
        let (cost, _) = cost_of(&costs, &name)?;
        println!("{name}: {cost}");
        own.push(cost);
    }
    let mut more = Vec::new();
    if own[1].abs_diff(own[0]) * 10 > own[0] {
        let text = "instructions a commit costs its server beside 10 clients and beside 300";
        more.push(format!("{own:?} {text}"));
    }
    no_more(&more)
}

/// Compares awaited operations with those by hand.
#[cfg(feature = "sim")]
fn compare(costs: &Costs) -> Outcome {
    let mut more = Vec::new();
    for (name, beside, most) in awaited::LIMITS {
        let (own, below) = cost_of(costs, name)?;
        let (by_hand, _) = cost_of(costs, beside)?;
        let extra = own.saturating_sub(by_hand);
        let text = format!("{name}: {own}, {beside}: {by_hand}, {extra} more");
        println!("{text} (at most {most}); {below} below");
        if own > by_hand + most {
            more.push(text);
        }
    }
    no_more(&more)
}

/// Compares with the recorded costs.
fn check(costs: &Costs, compiler: &str) -> Outcome {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cost/counts.txt");
    let recorded = fs::read_to_string(path)?;
    let mut lines = recorded.lines();
    let of = lines.next().unwrap_or_default();
    if of != compiler {
        println!("not compared: the counts are of {of}, and this is {compiler}");
        return Ok(());
    }
    let (mut more, mut unrecorded) = (Vec::new(), costs.clone());
    for line in lines {
        let parts = line.split_once(' ');
        let (name, before) = parts.ok_or("counts.txt: a name and a number")?;
        let before: u64 = before.parse()?;
        let (now, _) = cost_of(costs, name)?;
        unrecorded.remove(name);
        println!("{name}: {now}, before {before}");
        let (parts, instructions) = TOLERANCE;
        if now > before + instructions && now * 1000 > before * (1000 + parts) {
            more.push(format!("{name} costs {now} instructions, before {before}"));
        }
    }
    let to_record =
        |name: &String| format!("{name} is not recorded: cargo xtask bench cost --record");
    more.extend(unrecorded.keys().map(to_record));
    no_more(&more)
}
