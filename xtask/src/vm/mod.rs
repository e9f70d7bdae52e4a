//! The guest as a running machine: a QEMU process with two NVDIMMs, soft-RoCE and a way in by ssh.
//!
//! The NVDIMMs are files that outlive the machine, so that [`Vm::cut_power`] and a second
//! [`Boot::boot`] show what survives. The root disk is the guest's image; what is written to it is
//! thrown away.
//!
//! Two machines may have a link of their own, as two hosts have: each listens on a socket, and the one
//! that boots later joins the other's. So either may lose its power and boot again.

mod hosts;
mod ssh;
mod up;

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use hosts::Hosts;
pub(crate) use ssh::Ssh;
pub(crate) use up::{attach, attach_to, boot, down, signal, up};

use crate::guest::Guest;
use crate::host::{self, Workspace};
use crate::process::{spawn, spawn_logged, tail, wait};
use crate::progress::Step;

/// The two NVDIMMs: device-DAX, and fsdax with a file system.
const NVDIMMS: [&str; 2] = ["nvdimm0.img", "nvdimm1.img"];
const NVDIMM_SIZE: u64 = 256 << 20;
/// What the machine wrote on its console, in its directory.
pub(crate) const CONSOLE: &str = "console.log";
const QEMU_LOG: &str = "qemu.log";
/// From start to ready. A boot takes 10 s under emulation on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// With hardware virtualisation that works.
const KVM_BOOT_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    Kvm,
    Tcg,
}

/// When a machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// With this program, however that ends.
    Ours,
    /// When it is told to.
    Detached,
}

/// A machine that has booted.
#[derive(Debug)]
pub(crate) struct Vm {
    qemu: Child,
    lifetime: Lifetime,
    port: u16,
    ssh: Ssh,
}

impl Vm {
    /// Deletes the NVDIMMs of an earlier machine.
    pub(crate) fn forget_memory(dir: &Path) -> Result<()> {
        for nvdimm in NVDIMMS {
            match fs::remove_file(dir.join(nvdimm)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn ssh(&self) -> &Ssh {
        &self.ssh
    }

    /// Stops the machine, its clock and all: its peer sees packets that are not answered. Or lets it
    /// go on.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.qemu), signal)?)
    }

    /// What a power cut is to a computer: QEMU ends at this instruction.
    pub(crate) fn cut_power(mut self) -> Result<()> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Ours {
            let _ = self.qemu.kill();
            let _ = self.qemu.wait();
        }
    }
}

/// A machine on the link of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// 1 or 2; its address is 10.77.0.1 or 10.77.0.2.
    pub(crate) number: u8,
    /// Whether the other one is up and listens.
    pub(crate) join: bool,
}

/// How to boot a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) guest: &'a Guest,
    pub(crate) workspace: &'a Workspace,
    /// For its files. NVDIMMs that are already there keep their contents. The directory around it has
    /// the sockets of the link.
    pub(crate) dir: &'a Path,
    pub(crate) lifetime: Lifetime,
    pub(crate) peer: Option<Peer>,
}

impl Boot<'_> {
    /// Boots it, as a step of this name.
    pub(crate) fn boot(&self, name: &str) -> Result<Vm> {
        for nvdimm in NVDIMMS {
            let path = self.dir.join(nvdimm);
            let mut options = File::options();
            let file = options.create(true).truncate(false).write(true).open(&path);
            let grown = file.and_then(|file| file.set_len(NVDIMM_SIZE));
            grown.with_context(|| format!("cannot make the NVDIMM {}", path.display()))?;
        }
        if kvm_looks_usable() {
            let step = Step::start(format!("{name} (KVM)"));
            match self.run(Accel::Kvm, KVM_BOOT_LIMIT) {
                Ok(vm) => {
                    step.done("");
                    return Ok(vm);
                }
                Err(_) => step.gave_up("it does not work here: emulating instead"),
            }
        }
        let step = Step::start(format!("{name} (emulated: no KVM)"));
        let result = self.run(Accel::Tcg, BOOT_LIMIT);
        match &result {
            Ok(_) => step.done(""),
            Err(_) => step.failed(""),
        }
        result
    }

    fn run(&self, accel: Accel, limit: Duration) -> Result<Vm> {
        let console = self.dir.join(CONSOLE);
        fs::write(&console, "")?;
        let port = free_port()?;
        let mut vm = Vm {
            qemu: self.start_qemu(accel, port)?,
            lifetime: self.lifetime,
            port,
            ssh: Ssh::at(self.guest.dir(), port),
        };
        if self.lifetime == Lifetime::Detached {
            up::record(self, &vm, false)?;
        }
        let ready = self.wait_ready(&mut vm, &console, limit);
        ready.and_then(|()| self.wait_ssh(&vm)).map_err(|why| {
            // A detached machine that did not come up is nobody's.
            vm.lifetime = Lifetime::Ours;
            anyhow!(
                "the guest did not come up: {why}\nThe end of its console, {}:\n{}",
                console.display(),
                tail(&console, 20)
            )
        })?;
        Ok(vm)
    }

    fn start_qemu(&self, accel: Accel, port: u16) -> Result<Child> {
        let log = File::create(self.dir.join(QEMU_LOG))?;
        let mut command = match self.lifetime {
            Lifetime::Ours => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
                command
            }
            Lifetime::Detached => {
                let mut command = Command::new("qemu-system-x86_64");
                // Out of reach of the terminal's Ctrl-C.
                command.process_group(0);
                command
            }
        };
        command.args(self.qemu_args(accel, port));
        // The sockets of the link are named from here: the whole path may be longer than a socket's
        // name can be.
        command.current_dir(self.dir);
        // QEMU does not read its input: there it holds the guest's lock for as long as it runs.
        command.stdin(Stdio::from(self.guest.share_lock()?));
        command.stdout(log.try_clone()?).stderr(log);
        spawn(&mut command)
    }

    fn qemu_args(&self, accel: Accel, port: u16) -> Vec<String> {
        let file = |path: PathBuf| path.display().to_string().replace(',', ",,");
        let accel = match accel {
            Accel::Kvm => "-accel kvm -cpu host",
            Accel::Tcg => "-accel tcg,thread=multi -cpu max",
        };
        let fixed = "-name rpma-guest -no-user-config -nodefaults -no-reboot -display none \
                     -machine q35,nvdimm=on -m 2G,slots=2,maxmem=4G";
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let mut args = [words(fixed), words(accel)].concat();
        let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);

        let number = self.peer.map_or(1, |peer| peer.number);
        let share = if self.peer.is_some() { 2 } else { 1 };
        add("-smp", (host::cpus() / share).clamp(1, 2).to_string());
        add("-kernel", self.guest.file("vmlinuz").display().to_string());
        add("-initrd", self.guest.file("initrd").display().to_string());
        add(
            "-append",
            format!("console=ttyS0 loglevel=4 panic=-1 mitigations=off rpma.peer={number}"),
        );
        let image = file(self.guest.file("root.img"));
        add(
            "-drive",
            format!("file={image},if=virtio,format=raw,snapshot=on"),
        );
        for (slot, name) in NVDIMMS.iter().enumerate() {
            let path = file(self.dir.join(name));
            let backend = format!("id=nv{slot},share=on,mem-path={path},size={NVDIMM_SIZE}");
            add("-object", format!("memory-backend-file,{backend}"));
            add("-device", format!("nvdimm,id=nvdimm{slot},memdev=nv{slot}"));
        }
        let source = file(self.workspace.root().to_owned());
        let share = "mount_tag=src,security_model=none,readonly=on,multidevs=remap";
        add("-virtfs", format!("local,path={source},{share}"));
        // init.sh knows the cards by their addresses.
        match self.peer {
            None => add("-netdev", "user,id=roce,restrict=on".to_owned()),
            Some(peer) => {
                add("-netdev", "hubport,id=roce,hubid=0".to_owned());
                let mut link = |id: &str, server: &str, number: u8| {
                    let socket = format!("addr.type=unix,addr.path=../link{number}");
                    add(
                        "-netdev",
                        format!("stream,id={id},server={server},{socket}"),
                    );
                    add(
                        "-netdev",
                        format!("hubport,id=hub-{id},hubid=0,netdev={id}"),
                    );
                };
                link("listen", "on", peer.number);
                if peer.join {
                    link("join", "off", 3 - peer.number);
                }
            }
        }
        add(
            "-device",
            format!("virtio-net-pci,netdev=roce,mac=52:54:00:77:01:0{number},romfile="),
        );
        let forward = format!("hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22");
        add("-netdev", format!("user,id=ssh,restrict=on,{forward}"));
        add(
            "-device",
            "virtio-net-pci,netdev=ssh,mac=52:54:00:77:00:02,romfile=".to_owned(),
        );
        add(
            "-chardev",
            format!("file,id=console,path={}", file(self.dir.join(CONSOLE))),
        );
        add("-serial", "chardev:console".to_owned());
        args
    }

    /// Waits for what init.sh says, or for a sign that it will not say it.
    fn wait_ready(&self, vm: &mut Vm, console: &Path, limit: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            let exited = vm.qemu.try_wait()?;
            let text = String::from_utf8_lossy(&fs::read(console)?).into_owned();
            for line in text.lines() {
                if line.contains("GUEST READY") {
                    return Ok(());
                }
                if let Some((_, why)) = line.split_once("GUEST FAILED: ") {
                    bail!("{}", why.trim());
                }
                if line.contains("Kernel panic") {
                    bail!("{}", line.trim());
                }
            }
            if let Some(status) = exited {
                let log = self.dir.join(QEMU_LOG);
                bail!("QEMU ended ({status}): {}", tail(&log, 5).trim());
            }
            // QEMU stops the machine then, and does not end.
            if fs::read_to_string(self.dir.join(QEMU_LOG))?.contains("KVM internal error") {
                bail!("KVM internal error");
            }
            if started.elapsed() > limit {
                bail!("it was not ready within {} s", limit.as_secs());
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn wait_ssh(&self, vm: &Vm) -> Result<()> {
        let (started, log) = (Instant::now(), self.dir.join("ssh.log"));
        let limit = Duration::from_secs(60);
        loop {
            fs::write(&log, "")?;
            let mut child = spawn_logged(&mut vm.ssh.command(&["true"], false), &log)?;
            if wait(&mut child, limit)?.is_some_and(|status| status.success()) {
                return Ok(());
            }
            if started.elapsed() > limit {
                bail!(
                    "ssh does not reach it on port {}:\n{}",
                    vm.port,
                    tail(&log, 5)
                );
            }
            sleep(Duration::from_millis(500));
        }
    }
}

/// The command that spoils what a machine sends to its peer: "off", or what netem takes.
pub(crate) fn netem(how: &[String]) -> Vec<String> {
    let words = match how {
        [off] if off == "off" => "tc qdisc del dev roce0 root",
        _ => "tc qdisc replace dev roce0 root netem limit 100000",
    };
    let mut words: Vec<_> = words.split(' ').map(str::to_owned).collect();
    if words[2] == "replace" {
        words.extend(how.iter().flat_map(|how| how.split(' ')).map(str::to_owned));
    }
    words
}

/// Whether to try KVM: a processor that can, and a device that opens. It may still not work (a
/// nested machine): a failed boot tells.
fn kvm_looks_usable() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let capable = cpuinfo
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|flags| {
            flags
                .split_whitespace()
                .any(|flag| flag == "vmx" || flag == "svm")
        });
    capable
        && File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
}

/// A port that was free a moment ago. If somebody takes it meanwhile QEMU says so and ends.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on the loopback")?;
    Ok(listener.local_addr()?.port())
}
