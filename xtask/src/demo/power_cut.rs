//! A remote write into persistent memory, flushed, and the power cut that shows what the flush was
//! for.
//!
//! The programs are librpma's example 05: its server offers memory, its client writes into it over
//! RDMA, flushes, and prints a line only when the flush has completed. At that line the machine
//! dies. What is still there after the next boot was in the memory's media file by then.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use super::build;
use super::place::{DEVDAX, GUEST_ADDRESS, HostDevice, LIMIT, Place};
use crate::guest::Guest;
use crate::host::Workspace;
use crate::vm::{Lifetime, Remote, Vm};

const EXAMPLE: &str = "05-flush-to-persistent";
/// What the client writes.
const VALUE: &str = "Hello world!";
const OLD: &str = "Old value:";
const NEW: &str = "New value:";
/// What the client prints first after its flush has completed.
const FLUSHED: &str = "Translation:";
const PMEM_PORT: &str = "7204";
const DRAM_PORT: &str = "7205";
/// What the programs say that means nothing to a visitor.
const NOISE: [&str; 2] = [
    "No <pmem-path> provided. Using DRAM instead.",
    "translating...",
];

/// The example's programs, and what its servers offer.
#[derive(Debug)]
struct Stage<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
    address: String,
    place: Place,
}

/// The memory of a server.
#[derive(Clone, Copy, Debug)]
enum Memory<'a> {
    Dram,
    Pmem(&'a str),
}

/// In the guest, with the power cut.
pub(super) fn in_guest(workspace: &Workspace) -> Result<()> {
    let (dir, _lock) = workspace.own_dir("demo")?;
    println!("rpma: a remote write, flushed to persistent memory\n");
    println!("1. A machine with RDMA (soft-RoCE) and persistent memory (an emulated NVDIMM)");
    let guest = Guest::get(workspace)?;
    let programs = build::in_guest(workspace, &guest, &[EXAMPLE])?;
    Vm::forget_memory(&dir)?;
    let vm = Vm::boot(&guest, workspace, &dir, Lifetime::Ours, "boot")?;
    let mut stage = Stage {
        workspace,
        program: programs.join(EXAMPLE),
        address: GUEST_ADDRESS.to_owned(),
        place: Place::Guest(vm.ssh().clone()),
    };
    let pmem = Memory::Pmem(DEVDAX);

    println!("\n2. A client writes into the server's ordinary memory (DRAM)");
    stage.volatile_write()?;

    println!("\n3. A client writes into the server's persistent memory, /dev/dax0.0");
    let mut server = stage.server(pmem)?;
    if let Some(value) = old_value(&server) {
        bail!("the memory is new and the server found \"{value}\" in it");
    }
    let mut client = stage.client(pmem, "client-pmem.log")?;
    client.wait_for(FLUSHED, LIMIT)?;
    let completed = Instant::now();
    // Before ssh notices and says so in the server's name.
    server.catch_up();
    vm.cut_power()?;
    let delay = completed.elapsed().as_secs_f64() * 1e3;
    tell(&server, &client);
    drop((client, server));
    println!(
        "  ** power cut: the machine died {delay:.0} ms after the client had said that its flush \
         had completed **"
    );

    println!("\n4. The machine boots again, with the same NVDIMM and nothing else of before");
    let vm = Vm::boot(&guest, workspace, &dir, Lifetime::Ours, "boot")?;
    stage.place = Place::Guest(vm.ssh().clone());
    let survived = stage.look("persistent memory", pmem)?;
    let volatile = stage.look("DRAM", Memory::Dram)?;
    drop(vm);
    Vm::forget_memory(&dir)?;

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

/// On a host with an RDMA device: everything but the power cut.
pub(super) fn on_host(workspace: &Workspace) -> Result<()> {
    let device = HostDevice::find()?;
    println!("rpma: a remote write, flushed, on this host's RDMA device\n");
    let stage = Stage {
        workspace,
        program: build::on_host(workspace, &[EXAMPLE])?.join(EXAMPLE),
        address: device.address,
        place: Place::Host,
    };
    println!("\nA client writes into the server's ordinary memory (DRAM)");
    stage.volatile_write()?;
    let Some(path) = device.devdax else {
        println!(
            "\nFor persistent memory, name a device-DAX device or a file on it: \
             RPMA_TEST_DEVDAX=/dev/daxX.Y cargo xtask demo --host"
        );
        return Ok(());
    };
    println!("\nA client writes into the server's persistent memory, {path}");
    let pmem = Memory::Pmem(&path);
    let mut server = stage.server(pmem)?;
    let mut client = stage.client(pmem, "client-pmem.log")?;
    client.finish(LIMIT)?;
    server.finish(LIMIT)?;
    tell(&server, &client);
    println!("\nA new server on the same memory");
    let kept = stage.look("persistent memory", pmem)?;
    if kept.as_deref() != Some(VALUE) {
        bail!("the new server found {kept:?}, not \"{VALUE}\"");
    }
    println!("\nThe value is there. Cutting the power of this host is left to you.");
    Ok(())
}

impl Stage<'_> {
    /// The example, with both its streams in one, so that its lines stay in order.
    fn command(&self, args: &[&str]) -> Command {
        let program = self.program.display().to_string();
        let shell = ["sh", "-c", "RUST_LOG=info exec \"$@\" 2>&1", "sh", &program];
        self.place.command(&[&shell, args].concat())
    }

    fn log(&self, name: &str) -> Result<PathBuf> {
        self.workspace.log_file(&format!("demo-{name}"))
    }

    /// Starts a server and waits until it listens.
    fn server(&self, memory: Memory<'_>) -> Result<Remote> {
        let (args, port, log) = match memory {
            Memory::Dram => (
                vec!["server", &self.address, DRAM_PORT],
                DRAM_PORT,
                "server-dram.log",
            ),
            Memory::Pmem(path) => (
                vec!["server", &self.address, PMEM_PORT, path, "on"],
                PMEM_PORT,
                "server-pmem.log",
            ),
        };
        let mut server = Remote::start("server", self.command(&args), &self.log(log)?)?;
        self.place
            .wait_listening(&mut server, &self.address, port)?;
        server.catch_up();
        Ok(server)
    }

    fn client(&self, memory: Memory<'_>, log: &str) -> Result<Remote> {
        let port = match memory {
            Memory::Dram => DRAM_PORT,
            Memory::Pmem(_) => PMEM_PORT,
        };
        let command = self.command(&["client", &self.address, port]);
        Remote::start("client", command, &self.log(log)?)
    }

    /// The whole exchange on DRAM; the server has the value in the end.
    fn volatile_write(&self) -> Result<()> {
        let mut server = self.server(Memory::Dram)?;
        let mut client = self.client(Memory::Dram, "client-dram.log")?;
        client.finish(LIMIT)?;
        let value = server.wait_for(NEW, LIMIT)?;
        server.finish(LIMIT)?;
        tell(&server, &client);
        if value != VALUE {
            bail!("the server has \"{value}\", not \"{VALUE}\"");
        }
        Ok(())
    }

    /// Starts a server only to see what it finds in its memory.
    fn look(&self, name: &str, memory: Memory<'_>) -> Result<Option<String>> {
        let server = self.server(memory)?;
        let value = old_value(&server);
        let shown = value
            .as_ref()
            .map_or("(nothing)".to_owned(), |value| format!("{OLD} {value}"));
        println!("  server on {name:<17}  {shown}");
        Ok(value)
    }
}

/// What a server said it found in its memory.
fn old_value(server: &Remote) -> Option<String> {
    let value = |line: &String| line.strip_prefix(OLD).map(|value| value.trim().to_owned());
    server.seen().iter().find_map(value)
}

/// Prints what the two programs said, and what it means.
fn tell(server: &Remote, client: &Remote) {
    say("server", server.seen());
    say("client", client.seen());
    let persistent = |line: &String| line == "RPMA_FLUSH_TYPE_PERSISTENT is supported";
    let meaning = if client.seen().iter().any(persistent) {
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
