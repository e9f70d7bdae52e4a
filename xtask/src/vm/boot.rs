//! Booting a machine: QEMU's command line, and the wait until the guest can be reached.

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{ALL, CONSOLE, CONSOLE_BEFORE, Link, Machines, Running, Ssh, in_option, nvdimms};
use crate::guest::Guest;
use crate::host;
use crate::process::{output, poll, spawn, spawn_logged, tail, text, wait};
use crate::progress::Step;

const NVDIMM_SIZE: u64 = 256 << 20;
/// From start to ready. A boot takes 10 s under emulation on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// With hardware virtualisation that works.
const KVM_BOOT_LIMIT: Duration = Duration::from_secs(60);
const KVM: &str = "-accel kvm\n-cpu host";
// Without cmpxchg16b: QEMU 7.2 takes its flags from registers that hold something else. A kernel
// that is interrupted there (it allocates with this instruction) returns with those flags, and dies
// of a double fault.
const TCG: &str = "-accel tcg,thread=multi\n-cpu max,-cx16";
const COUNTED: &str = "-accel tcg,thread=single\n-icount shift=0,sleep=off\n-cpu max,-cx16";

/// The multicast group of the link of three machines, in this host's loopback.
const GROUP: &str = "239.77.0.1";

/// One boot of a machine.
struct Boot<'a> {
    machines: &'a Machines<'a>,
    guest: &'a Guest,
    /// From 1 on; its address is 10.77.0.1, 10.77.0.2 or 10.77.0.3.
    number: u8,
    link: Link,
    dir: PathBuf,
}

impl Machines<'_> {
    /// Boots a machine, as one of so many. NVDIMMs that are already there keep their contents.
    pub(crate) fn boot(&self, guest: &Guest, number: u8, peers: u8) -> Result<Ssh> {
        let link = self.link(peers)?;
        let dir = self.dir(number);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for nvdimm in nvdimms(link.is_there()) {
            let path = dir.join(nvdimm);
            let mut options = File::options();
            let file = options.create(true).truncate(false).write(true).open(&path);
            let grown = file.and_then(|file| file.set_len(NVDIMM_SIZE));
            grown.with_context(|| format!("cannot make the NVDIMM {}", path.display()))?;
        }
        let boot = Boot {
            machines: self,
            guest,
            number,
            link,
            dir,
        };
        let (mut accel, mut how) = (COUNTED, "emulated: instructions are its clock".to_owned());
        if !self.counted {
            let without = match kvm_looks_usable() {
                Ok(()) => {
                    let step = Step::start(format!("boot guest {number} (KVM)"));
                    let result = boot.run(KVM, KVM_BOOT_LIMIT);
                    if result.is_ok() {
                        step.done("");
                        return result;
                    }
                    step.gave_up("it does not work here: emulating instead");
                    "no KVM: a guest did not boot with it".to_owned()
                }
                Err(why) => why,
            };
            (accel, how) = (TCG, format!("emulated: {without}"));
        }
        let step = Step::start(format!("boot guest {number} ({how})"));
        let result = boot.run(accel, BOOT_LIMIT);
        match &result {
            Ok(_) => step.done(""),
            Err(_) => step.failed(""),
        }
        result
    }
}

impl Boot<'_> {
    fn run(&self, accel: &str, limit: Duration) -> Result<Ssh> {
        let console = self.dir.join(CONSOLE);
        // A machine that dies is booted again, and its earlier output has the cause.
        if console.exists() {
            fs::rename(&console, self.dir.join(CONSOLE_BEFORE))?;
        }
        fs::write(&console, "")?;
        let ssh = Ssh::new(self.guest, free_port()?);
        let mut qemu = self.start_qemu(accel, ssh.port)?;
        let mut running = Running {
            pid: i32::try_from(qemu.id())?,
            ssh: ssh.clone(),
            ready: false,
            link: self.link,
        };
        let recorded = self.machines.record(self.number, &running);
        let up = recorded
            .and_then(|()| self.wait_ready(&mut qemu, limit))
            .and_then(|()| self.wait_ssh(&ssh))
            .and_then(|()| self.start_processors(&ssh));
        if let Err(why) = up {
            qemu.kill()?;
            qemu.wait()?;
            bail!(
                "the guest did not come up: {why:#}\nThe end of its console, {}:\n{}",
                console.display(),
                tail(&console, 20)
            );
        }
        running.ready = true;
        self.machines.record(self.number, &running)?;
        Ok(ssh)
    }

    fn start_qemu(&self, accel: &str, port: u16) -> Result<Child> {
        let log = File::create(self.qemu_log())?;
        let detached = self.machines.detached;
        let when_we_end = if detached { "clear" } else { "KILL" };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", when_we_end, "--", "qemu-system-x86_64"]);
        for line in self.qemu_options(accel, port).lines() {
            command.args(line.trim().splitn(2, ' '));
        }
        // Out of reach of the terminal's Ctrl-C.
        command.process_group(0);
        // The sockets of the link are named from here: the whole path may be longer than a socket's
        // name can be.
        command.current_dir(&self.dir);
        // QEMU does not read its input: there it holds the guest's lock for as long as it runs.
        command.stdin(Stdio::from(self.guest.lock.try_clone()?));
        command.stdout(log.try_clone()?).stderr(log);
        spawn(&mut command)
    }

    /// QEMU's options, one in a line.
    fn qemu_options(&self, accel: &str, port: u16) -> String {
        let number = self.number;
        let cpus = self.cpus();
        let kernel = self.guest.file("vmlinuz").display().to_string();
        let initrd = self.guest.file("initrd").display().to_string();
        let image = in_option(&self.guest.file("root.img"));
        let source = in_option(self.machines.workspace.root());
        let console = in_option(&self.dir.join(CONSOLE));
        // The firmware of a single guest reports ADR, and that of two linked ones eADR.
        let is_linked = self.link.is_there();
        let persistence = if is_linked { "cpu" } else { "mem-ctrl" };
        let peers = self.link.peers();
        // A kernel that changes its code has to do that where no other processor runs it: QEMU's
        // emulation does not always see the change in time, and the guest dies of an int3. So it
        // boots with one processor (`start_processors`), and never takes its clock for unstable.
        // On a busy host its timer may not tick in the short time that it checks that: it does not.
        let mut options = format!(
            "-name rpma-guest
             -no-user-config
             -nodefaults
             -no-reboot
             -display none
             -machine q35,nvdimm=on,nvdimm-persistence={persistence}
             -m 2G,slots=4,maxmem=4G
             {accel}
             -smp {cpus}
             -kernel {kernel}
             -initrd {initrd}
             -append console=ttyS0 loglevel=4 panic=-1 mitigations=off tsc=reliable maxcpus=1 noreplace-smp no_timer_check rpma.peer={number} rpma.peers={peers}
             -drive file={image},if=virtio,format=raw,snapshot=on
             -virtfs local,path={source},mount_tag=src,security_model=none,readonly=on,multidevs=remap
             -device virtio-net-pci,netdev=roce,mac=52:54:00:77:01:0{number},romfile=
             -netdev user,id=ssh,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22
             -device virtio-net-pci,netdev=ssh,mac=52:54:00:77:00:02,romfile=
             -chardev file,id=console,path={console}
             -serial chardev:console"
        );
        for (slot, name) in nvdimms(is_linked).iter().enumerate() {
            let path = in_option(&self.dir.join(name));
            options += &format!(
                "
                -object memory-backend-file,id=nv{slot},share=on,mem-path={path},size={NVDIMM_SIZE}
                -device nvdimm,id=nvdimm{slot},memdev=nv{slot}"
            );
        }
        // init.sh identifies the cards by their addresses.
        match self.link {
            Link::None => options + "\n-netdev user,id=roce,restrict=on",
            Link::Pair => options + &self.pair(),
            // Each takes the packets of all, and a frozen one holds no other one up.
            Link::Group(port) => {
                format!(
                    "{options}\n-netdev socket,id=roce,mcast={GROUP}:{port},localaddr=127.0.0.1"
                )
            }
        }
    }

    /// The options of the link between two.
    fn pair(&self) -> String {
        let number = self.number;
        let mut options = "\n-netdev hubport,id=roce,hubid=0".to_owned();
        let other = 3 - number;
        let mut links = vec![("on", number)];
        if self.machines.is_up(other) {
            links.push(("off", other));
        }
        for (server, number) in links {
            options += &format!(
                "
                -netdev stream,id=link{number},server={server},addr.type=unix,addr.path=../link{number}
                -netdev hubport,id=hub{number},hubid=0,netdev=link{number}"
            );
        }
        options
    }

    /// How many processors the machine has.
    fn cpus(&self) -> usize {
        let most = if self.machines.counted { 1 } else { 2 };
        (host::cpus() / usize::from(self.link.peers())).clamp(1, most)
    }

    fn qemu_log(&self) -> PathBuf {
        self.dir.join("qemu.log")
    }

    /// Waits for the message of init.sh, or for a sign that it will not come.
    fn wait_ready(&self, qemu: &mut Child, limit: Duration) -> Result<()> {
        let ready = poll(limit, || {
            let exited = qemu.try_wait()?;
            for line in text(&self.dir.join(CONSOLE)).lines() {
                if line.contains("GUEST READY") {
                    return Ok(Some(()));
                }
                if line.contains("GUEST FAILED") || line.contains("Kernel panic") {
                    bail!("{}", line.trim());
                }
            }
            if let Some(status) = exited {
                bail!(
                    "QEMU ended ({status}): {}",
                    tail(&self.qemu_log(), 5).trim()
                );
            }
            // QEMU stops the machine then, and does not end.
            if text(&self.qemu_log()).contains("KVM internal error") {
                bail!("KVM internal error");
            }
            Ok(None)
        })?;
        ready.with_context(|| format!("it was not ready within {} s", limit.as_secs()))
    }

    fn wait_ssh(&self, ssh: &Ssh) -> Result<()> {
        let (limit, log) = (Duration::from_secs(60), self.dir.join("ssh.log"));
        // Where no socket can be made, only a command without a shared connection works.
        let plain = || ssh.command(&["true"], false);
        let mut ways = [ssh.share(), plain()].into_iter();
        let reached = poll(limit, || {
            fs::write(&log, "")?;
            let mut login = ways.next().unwrap_or_else(plain);
            let mut child = spawn_logged(&mut login, &log)?;
            if wait(&mut child, limit)?.is_some_and(|status| status.success()) {
                return Ok(Some(()));
            }
            sleep(Duration::from_millis(500));
            Ok(None)
        })?;
        reached.with_context(|| {
            let end = tail(&log, 5);
            format!("ssh does not reach it on port {}:\n{end}", ssh.port)
        })
    }

    /// Starts the processors that the kernel has not booted with.
    fn start_processors(&self, ssh: &Ssh) -> Result<()> {
        for number in 1..self.cpus() {
            let start = format!("echo 1 >/sys/devices/system/cpu/cpu{number}/online");
            output(&mut ssh.command(&["sh", "-c", &start], false))?;
        }
        Ok(())
    }
}

/// Whether to try KVM: a processor that can, and a device that opens. It may still not work (a
/// nested machine): then the boot fails.
fn kvm_looks_usable() -> Result<(), String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let device = File::options().read(true).write(true).open("/dev/kvm");
    why_no_kvm(&cpuinfo, device.map(drop)).map_or(Ok(()), Err)
}

/// Without the device there is no more to be explained.
fn why_no_kvm(cpuinfo: &str, device: io::Result<()>) -> Option<String> {
    let mut words = cpuinfo.split_whitespace();
    match device {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("no KVM".to_owned()),
        Err(error) => Some(format!("no KVM: /dev/kvm does not open: {error}")),
        Ok(()) if words.any(|word| word == "vmx" || word == "svm") => None,
        Ok(()) => Some("no KVM: the processor has neither vmx nor svm in /proc/cpuinfo".to_owned()),
    }
}

impl Machines<'_> {
    /// The link of a machine that is one of so many.
    fn link(&self, peers: u8) -> Result<Link> {
        let group = |number| self.running(number)?.link.group();
        Ok(match peers {
            1 => Link::None,
            2 => Link::Pair,
            _ => Link::Group(
                ALL.into_iter()
                    .find_map(group)
                    .map_or_else(free_group, Ok)?,
            ),
        })
    }
}

/// A port for a group, which was free a moment ago.
fn free_group() -> Result<u16> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).context("no free port on the loopback")?;
    Ok(socket.local_addr()?.port())
}

/// A port that was free a moment ago. If another program takes it meanwhile QEMU reports that and
/// ends.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on the loopback")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that has the device gets the reason for the emulation.
    #[test]
    fn an_emulated_guest_has_a_reason() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind));
        let why = |cpuinfo, device| why_no_kvm(cpuinfo, device).unwrap_or_default();
        assert_eq!(why_no_kvm("flags : fpu vmx sse", Ok(())), None);
        assert_eq!(
            why("flags : fpu", failed(io::ErrorKind::NotFound)),
            "no KVM"
        );
        assert!(why("flags : fpu", Ok(())).contains("neither vmx nor svm"));
        let denied = why("flags : svm", failed(io::ErrorKind::PermissionDenied));
        assert!(denied.contains("permission denied"), "{denied}");
    }
}
