//! A remote write into persistent memory, flushed, and the power cut that shows the purpose of the
//! flush.
//!
//! The programs are librpma's example 05: its server offers memory, its client writes into it over
//! RDMA, flushes, and prints a line only when the flush has completed. At that line the machine
//! dies. Data that is still there after the next boot was in the memory's media file by then.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::Remote;
use crate::progress::run_step;
use crate::vm::Ssh;

pub(super) const EXAMPLE: &str = "05-flush-to-persistent";
/// The text that the client writes.
const VALUE: &str = "Hello world!";
const OLD: &str = "Old value:";
const NEW: &str = "New value:";
/// The first output of the client after its flush has completed.
const FLUSHED: &str = "Translation:";
/// Output of the programs without meaning for a visitor.
const NOISE: [&str; 2] = [
    "No <pmem-path> provided. Using DRAM instead.",
    "translating...",
];

/// The guest's address.
const ADDRESS: &str = "10.77.0.1";
/// The limit for any step of a program: emulation is slow.
const LIMIT: Duration = Duration::from_secs(60);

/// The memory of a server.
struct Memory {
    name: &'static str,
    port: &'static str,
    /// The server's arguments for it.
    args: &'static [&'static str],
}

const DRAM: Memory = Memory {
    name: "DRAM",
    port: "7205",
    args: &[],
};
const DEVDAX: &str = "/dev/dax0.0";
const PMEM: Memory = Memory {
    name: "persistent memory",
    port: "7204",
    args: &[DEVDAX, "on"],
};

/// Where the example's programs run.
struct Stage<'a> {
    workspace: &'a Workspace,
    ssh: Ssh,
}

pub(super) fn show(workspace: &Workspace) -> Result<()> {
    println!("rpma: a remote write, flushed to persistent memory\n");
    println!("1. A machine with RDMA (soft-RoCE) and persistent memory (an emulated NVDIMM)");
    let lab = Lab::open(workspace, "demo", false)?;
    let mut build = lab.cargo(Headers::Native, &format!("build --example {EXAMPLE}"))?;
    let log = workspace.log_file("demo-build.log")?;
    run_step("compile the example", &mut build, &log)?;
    let inside = lab.inside()?;
    inside.machines.forget_memory(1)?;
    let ssh = inside.boot(1, false)?;
    let mut stage = Stage { workspace, ssh };

    println!("\n2. A client writes into the server's ordinary memory (DRAM)");
    stage.volatile_write()?;

    println!("\n3. A client writes into the server's persistent memory, {DEVDAX}");
    let server = stage.server(&PMEM)?;
    if let Some(value) = value_of(&server, OLD) {
        bail!("the memory is new and the server found \"{value}\" in it");
    }
    println!("  server  (there is no old value in it)");
    let mut client = stage.start("client", &PMEM, &[])?;
    client.wait_for(FLUSHED, LIMIT)?;
    let completed = Instant::now();
    // Before ssh notices and reports it in the server's name.
    let said = (server.said(), client.said());
    inside.machines.cut(1)?;
    let delay = completed.elapsed().as_secs_f64() * 1e3;
    drop((client, server));
    tell(&said.0, &said.1);
    println!(
        "  ** power cut: the machine died {delay:.0} ms after the client had said that its flush \
         had completed **"
    );

    println!("\n4. The machine boots again, with the same NVDIMM and nothing else of before");
    stage.ssh = inside.boot(1, false)?;
    let survived = stage.look(&PMEM)?;
    let volatile = stage.look(&DRAM)?;
    inside.machines.cut(1)?;
    inside.machines.forget_memory(1)?;

    if survived.as_deref() != Some(VALUE) {
        bail!("the value did not survive: the server found {survived:?}, not \"{VALUE}\"");
    }
    if volatile.is_some() {
        bail!("a value survived in DRAM, so this shows nothing: {volatile:?}");
    }
    println!(
        "\nThe value that was flushed is there; the one in DRAM is gone.\n  \
         This proves the path: once the flush has completed, the bytes need nothing that a power\n  \
         cut takes away: no buffer of the network, no queue, no page cache, no running program.\n  \
         It cannot prove the last step: an emulated processor has no cache that could lose a line,\n  \
         so a missing cache write-back would not show here."
    );
    Ok(())
}

impl Stage<'_> {
    /// Starts one side of the example, with both its streams in one, so that its lines stay in
    /// order.
    fn start(&self, role: &'static str, memory: &Memory, more: &[&str]) -> Result<Remote> {
        let program = format!("/src/target/guest/debug/examples/{EXAMPLE}");
        let shell = ["sh", "-c", "RUST_LOG=info exec \"$@\" 2>&1", "sh", &program];
        let words = [&shell[..], &[role, ADDRESS, memory.port], more].concat();
        let command = self.ssh.command(&words, false);
        let log = format!("demo-{role}-{}.log", memory.port);
        Remote::start(role, command, self.workspace.log_file(&log)?)
    }

    /// Starts a server, and waits until it listens: a client that comes too early would be
    /// rejected.
    fn server(&self, memory: &Memory) -> Result<Remote> {
        let mut server = self.start("server", memory, memory.args)?;
        server.wait_for("waiting for connections on ", LIMIT)?;
        Ok(server)
    }

    /// The whole exchange on DRAM; the server has the value in the end.
    fn volatile_write(&self) -> Result<()> {
        let mut server = self.server(&DRAM)?;
        let mut client = self.start("client", &DRAM, &[])?;
        client.finish(LIMIT)?;
        server.finish(LIMIT)?;
        tell(&server.said(), &client.said());
        let value = value_of(&server, NEW).context("the server shows no new value")?;
        ensure!(
            value == VALUE,
            "the server has \"{value}\", not \"{VALUE}\""
        );
        Ok(())
    }

    /// Starts a server only to see the contents of its memory.
    fn look(&self, memory: &Memory) -> Result<Option<String>> {
        let value = value_of(&self.server(memory)?, OLD);
        let shown = match &value {
            Some(value) => format!("{OLD} {value}"),
            None => "(nothing)".to_owned(),
        };
        println!("  server on {:<17}  {shown}", memory.name);
        Ok(value)
    }
}

/// The rest of the line that begins so.
fn value_of(program: &Remote, prefix: &str) -> Option<String> {
    let said = program.said();
    let value = said.iter().find_map(|line| line.strip_prefix(prefix));
    value.map(|value| value.trim().to_owned())
}

/// Prints the output of the two programs, and its meaning.
fn tell(server: &[String], client: &[String]) {
    for (who, lines) in [("client", client), ("server", server)] {
        for text in lines.iter().map(|line| log_message(line)) {
            if !text.is_empty() && !NOISE.contains(&text) {
                println!("  {who}  {text}");
            }
        }
    }
    let persistent = |line: &String| line == "RPMA_FLUSH_TYPE_PERSISTENT is supported";
    let meaning = if client.iter().any(persistent) {
        "The flush was for persistence: the memory's descriptor allows it, and the server has\n     \
         said that what arrives from the network goes straight to persistent memory."
    } else {
        "The flush was for visibility only: the server's memory is not persistent."
    };
    println!("  => {meaning}");
}

/// The message of a line that env_logger wrote: "[2026-01-01T00:00:00Z INFO  rpma::mr] message".
fn log_message(line: &str) -> &str {
    match line.split_once("] ") {
        Some((head, message)) if head.starts_with('[') => message,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::log_message;

    #[test]
    fn log_lines_lose_their_head_and_others_stay() {
        assert_eq!(
            log_message("[2026-01-01T00:00:00Z INFO  rpma::mr] a [b] c"),
            "a [b] c"
        );
        assert_eq!(log_message("plain [x] y"), "plain [x] y");
    }
}
