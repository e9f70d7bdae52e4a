//! A remote write into persistent memory, flushed, and the power cut that shows what the flush was
//! for.
//!
//! The programs are librpma's example 05: its server offers memory, its client writes into it over
//! RDMA, flushes, and prints a line only when the flush has completed. At that line the machine
//! dies. What is still there after the next boot was in the memory's media file by then.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::guest::chroot::Headers;
use crate::host::Workspace;
use crate::lab::Lab;
use crate::process::Remote;
use crate::progress::run_step;
use crate::vm::Ssh;

pub(super) const EXAMPLE: &str = "05-flush-to-persistent";
/// What the client writes.
const VALUE: &str = "Hello world!";
const OLD: &str = "Old value:";
const NEW: &str = "New value:";
/// What the client prints first after its flush has completed.
const FLUSHED: &str = "Translation:";
/// What the programs say that means nothing to a visitor.
const NOISE: [&str; 2] = [
    "No <pmem-path> provided. Using DRAM instead.",
    "translating...",
];

/// The guest's address.
const ADDRESS: &str = "10.77.0.1";
/// Its persistent memory.
const DEVDAX: &str = "/dev/dax0.0";
/// For whatever a program does: emulation is slow.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the example's programs run.
#[derive(Debug)]
struct Stage<'a> {
    workspace: &'a Workspace,
    program: String,
    ssh: Ssh,
}

/// The memory of a server.
#[derive(Clone, Copy, Debug)]
enum Memory<'a> {
    Dram,
    Pmem(&'a str),
}

impl Memory<'_> {
    fn port(self) -> &'static str {
        match self {
            Memory::Dram => "7205",
            Memory::Pmem(_) => "7204",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Memory::Dram => "dram",
            Memory::Pmem(_) => "pmem",
        }
    }
}

pub(super) fn show(workspace: &Workspace) -> Result<()> {
    println!("rpma: a remote write, flushed to persistent memory\n");
    println!("1. A machine with RDMA (soft-RoCE) and persistent memory (an emulated NVDIMM)");
    let lab = Lab::open(workspace, "demo", false)?;
    let mut build = lab.cargo(Headers::Native, &format!("build --example {EXAMPLE}"))?;
    run_step(
        "compile the example",
        &mut build,
        &workspace.log_file("demo-build.log")?,
    )?;
    lab.forget_memory()?;
    let vm = lab.boot_own()?;
    let mut stage = Stage {
        workspace,
        program: format!("/src/target/guest/debug/examples/{EXAMPLE}"),
        ssh: vm.ssh().clone(),
    };
    let pmem = Memory::Pmem(DEVDAX);

    println!("\n2. A client writes into the server's ordinary memory (DRAM)");
    stage.volatile_write()?;

    println!("\n3. A client writes into the server's persistent memory, {DEVDAX}");
    let server = stage.server(pmem)?;
    if let Some(value) = old_value(&server) {
        bail!("the memory is new and the server found \"{value}\" in it");
    }
    println!("  server  (there is no old value in it)");
    let mut client = stage.client(pmem)?;
    client.wait_for(FLUSHED, LIMIT)?;
    let completed = Instant::now();
    // Before ssh notices and says so in the server's name.
    let said = (server.said(), client.said());
    vm.cut_power()?;
    let delay = completed.elapsed().as_secs_f64() * 1e3;
    drop((client, server));
    tell(&said.0, &said.1);
    println!(
        "  ** power cut: the machine died {delay:.0} ms after the client had said that its flush \
         had completed **"
    );

    println!("\n4. The machine boots again, with the same NVDIMM and nothing else of before");
    let vm = lab.boot_own()?;
    stage.ssh = vm.ssh().clone();
    let survived = stage.look("persistent memory", pmem)?;
    let volatile = stage.look("DRAM", Memory::Dram)?;
    drop(vm);
    lab.forget_memory()?;

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
    /// Starts one side of the example, with both its streams in one, so that its lines stay in order.
    fn start(&self, role: &'static str, memory: Memory<'_>, more: &[&str]) -> Result<Remote> {
        let shell = [
            "sh",
            "-c",
            "RUST_LOG=info exec \"$@\" 2>&1",
            "sh",
            &self.program,
        ];
        let words = [&shell[..], &[role, ADDRESS, memory.port()], more].concat();
        let command = self.ssh.command(&words, false);
        let log = format!("demo-{role}-{}.log", memory.name());
        Remote::start(role, command, self.workspace.log_file(&log)?)
    }

    /// Starts a server, and waits until it listens: a client that comes too early would be rejected.
    fn server(&self, memory: Memory<'_>) -> Result<Remote> {
        let more: &[&str] = match memory {
            Memory::Dram => &[],
            Memory::Pmem(path) => &[path, "on"],
        };
        let mut server = self.start("server", memory, more)?;
        server.wait_for("waiting for connections on ", LIMIT)?;
        Ok(server)
    }

    fn client(&self, memory: Memory<'_>) -> Result<Remote> {
        self.start("client", memory, &[])
    }

    /// The whole exchange on DRAM; the server has the value in the end.
    fn volatile_write(&self) -> Result<()> {
        let mut server = self.server(Memory::Dram)?;
        let mut client = self.client(Memory::Dram)?;
        client.finish(LIMIT)?;
        server.finish(LIMIT)?;
        tell(&server.said(), &client.said());
        let value = value_of(&server.said(), NEW).context("the server shows no new value")?;
        if value != VALUE {
            bail!("the server has \"{value}\", not \"{VALUE}\"");
        }
        Ok(())
    }

    /// Starts a server only to see what it finds in its memory.
    fn look(&self, name: &str, memory: Memory<'_>) -> Result<Option<String>> {
        let value = old_value(&self.server(memory)?);
        let shown = value
            .as_ref()
            .map_or("(nothing)".to_owned(), |value| format!("{OLD} {value}"));
        println!("  server on {name:<17}  {shown}");
        Ok(value)
    }
}

/// The rest of the line that begins so.
fn value_of(lines: &[String], prefix: &str) -> Option<String> {
    let value = |line: &String| {
        line.strip_prefix(prefix)
            .map(|value| value.trim().to_owned())
    };
    lines.iter().find_map(value)
}

/// What a server said it found in its memory.
fn old_value(server: &Remote) -> Option<String> {
    value_of(&server.said(), OLD)
}

/// Prints what the two programs said, and what it means.
fn tell(server: &[String], client: &[String]) {
    say("client", client);
    say("server", server);
    let persistent = |line: &String| line == "RPMA_FLUSH_TYPE_PERSISTENT is supported";
    let meaning = if client.iter().any(persistent) {
        "The flush was for persistence: the memory's descriptor allows it, and the server has\n     \
         said that what arrives from the network goes straight to persistent memory."
    } else {
        "The flush was for visibility only: the server's memory is not persistent."
    };
    println!("  => {meaning}");
}

/// Prints what a program said. Of its log, the message without time, level and module.
fn say(who: &str, lines: &[String]) {
    for line in lines {
        let text = log_message(line);
        if !text.is_empty() && !NOISE.contains(&text) {
            println!("  {who}  {text}");
        }
    }
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
