//! `rpma doctor`: can a remote flush work on this host?
//!
//! It is a list of steps. A step looks at one thing, with the files of sysfs and procfs or with the
//! library, and returns its findings. Later steps use the devices that an earlier step has opened.

pub(crate) mod addresses;
mod devices;
mod durable;
mod memory;
mod opened;
mod registering;
mod remedies;
mod system;
#[cfg(test)]
mod trees;

use std::path::Path;

use rpma::Device;
use rpma::pmem::PmemMap;
use serde_json::json;

use self::opened::Opened;
use self::remedies::Wanted;
use crate::args::{Doctor, Endpoint, Format};
use crate::facts::Facts;
use crate::interrupt::Interrupt;
use crate::problem::Problem;
use crate::report::{Finding, Outcome, Output, ResultFile, Verdict};

/// What is known before the library is called.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) facts: Facts,
    /// Opens the device of an address.
    pub(crate) open: fn(&str) -> rpma::Result<Device>,
    /// Its kernel and its devices are as they have to be: only their limits are findings.
    pub(crate) is_simulated: bool,
}

/// Looks at this host, and prints each finding.
#[cfg(not(feature = "sim"))]
pub(crate) fn run(
    args: &Doctor,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<Outcome, Problem> {
    let host = Host {
        facts: Facts::read(Path::new("/")),
        open: addresses::device,
        is_simulated: false,
    };
    examine(args, &host, interrupt, out)
}

/// Looks at a host, which is this one or a simulated one. The calling thread is on it.
pub(crate) fn examine(
    args: &Doctor,
    host: &Host,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<Outcome, Problem> {
    let mut exam = Exam {
        args,
        target: args.target.as_deref().map(|target| named(host, target)),
        host,
        interrupt,
        findings: Vec::new(),
        devices: Vec::new(),
        memory: None,
    };
    let file = ResultFile::of(&args.form)?;
    let is_text = args.form.format == Format::Text;
    for (number, step) in STEPS.iter().enumerate() {
        if interrupt.is_set() {
            break;
        }
        let mut findings = step(&mut exam);
        if host.is_simulated && number < OF_HOST {
            findings.retain(|finding| matches!(finding.verdict, Verdict::Bad | Verdict::Note));
        }
        for finding in findings.iter().filter(|_| is_text) {
            out.finding(finding)?;
        }
        exam.findings.extend(findings);
    }
    let outcome = exam.outcome();
    if interrupt.is_set() && is_text {
        out.line("interrupted: the other checks were not done")?;
    }
    // It can be published: the words of the findings have names and addresses, and are left out.
    let report = json!({
        "command": "doctor",
        "result": outcome,
        "interrupted": interrupt.is_set(),
        "host": host.facts,
        "findings": exam.findings,
    });
    out.report(&args.form, file, report, &exam.findings)?;
    Ok(outcome)
}

/// A target without the port and the brackets that `rpma serve` and `rpma check` take.
fn named(host: &Host, target: &str) -> String {
    match (host.facts.device(target), target.parse::<Endpoint>()) {
        (None, Ok(endpoint)) => endpoint.host,
        _ => target.into(),
    }
}

type Step = fn(&mut Exam<'_>) -> Vec<Finding>;

/// The first of these are about the host, and the others about the memory.
const OF_HOST: usize = 10;
const STEPS: [Step; 14] = [
    |exam| system::kernel(&exam.host.facts),
    |exam| system::container(&exam.host.facts),
    |exam| system::modules(&exam.host.facts),
    |exam| system::nodes(&exam.host.facts, exam.wanted_device()),
    |exam| devices::list(&exam.host.facts, exam.wanted_device()),
    |exam| system::rdma_core(&exam.host.facts),
    addresses::open,
    registering::locked_memory,
    |exam| opened::abilities(&exam.devices),
    |exam| opened::iwarp(&exam.devices),
    |exam| memory::modules(exam),
    memory::open,
    |exam| durable::check(exam),
    |exam| vec![exam.summary()],
];

/// The state of an examination.
struct Exam<'a> {
    args: &'a Doctor,
    /// An address, a host name or a device.
    target: Option<String>,
    host: &'a Host,
    interrupt: &'a Interrupt,
    findings: Vec<Finding>,
    /// The devices that the library has opened, of those that were asked for.
    devices: Vec<Opened>,
    /// The mapped memory.
    memory: Option<PmemMap>,
}

impl Exam<'_> {
    /// The target, if it is the name of a device.
    fn wanted_device(&self) -> Option<&str> {
        let target = self.target.as_deref()?;
        let device = self.host.facts.device(target)?;
        Some(&device.name)
    }

    /// What a remedy about memory depends on.
    fn wanted_memory(&self) -> Wanted<'_> {
        // A target that was refused would be refused again.
        let doctor = match &self.target {
            Some(target) if !self.devices.is_empty() => format!("rpma doctor {target} --memory"),
            _ => "rpma doctor --memory".into(),
        };
        Wanted {
            doctor,
            failed: self.args.memory.as_deref().and_then(Path::to_str),
            takes_files: match &self.devices[..] {
                [] => None,
                some => Some(some.iter().any(|device| device.peer.is_odp_capable())),
            },
        }
    }

    /// The remedy for memory that is not persistent or not there.
    fn other_memory(&self) -> String {
        remedies::other_memory(&self.host.facts, &self.wanted_memory())
    }

    fn outcome(&self) -> Outcome {
        let is_bad = |finding: &Finding| finding.verdict == Verdict::Bad;
        let is_bad = self.findings.iter().any(is_bad);
        Outcome::of(!is_bad && !self.devices.is_empty() && !self.interrupt.is_set())
    }

    fn summary(&self) -> Finding {
        const CHECK: &str = "remote flush";
        if self.outcome() == Outcome::Bad {
            return Finding::bad(CHECK, "cannot work", remedies::MEND);
        }
        let serving = self.devices.iter().filter(|device| !device.refuses);
        let place =
            |device: &Opened| format!("{} ({})", device.name(), device.addresses.join(", "));
        let places: Vec<_> = serving.map(place).collect();
        let meaning = match &self.args.memory {
            None => ". Durable data needs persistent memory: name it with --memory",
            Some(_) if self.findings.iter().any(durable::is_durable) => "",
            Some(_) => ". It makes data visible, and not durable",
        };
        let found = format!("can work on {}{meaning}", places.join(", "));
        Finding::good(CHECK, found).with_remedy(remedies::try_between_hosts(&self.devices))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex, PoisonError};

    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::facts::{Module, ModuleState};
    use crate::report::HEAD;

    /// Output that a test reads.
    #[derive(Clone, Default)]
    pub(crate) struct Text(Arc<Mutex<Vec<u8>>>);

    impl Text {
        pub(crate) fn read(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&bytes).into()
        }
    }

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            text.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Examines a host without RDMA.
    fn examine_nothing(args: &[&str], interrupt: &Interrupt) -> (Outcome, String) {
        let args = [&["rpma", "doctor"], args].concat();
        let Command::Doctor(args) = Cli::parse_from(args).command else {
            panic!("another command");
        };
        let module = Module {
            name: "rdma_ucm",
            state: ModuleState::Missing,
        };
        let host = Host {
            facts: Facts {
                kernel: Some("6.12.1".into()),
                modules: vec![module],
                addresses: vec!["192.0.2.1".into()],
                ..Facts::default()
            },
            open: addresses::device,
            is_simulated: false,
        };
        let text = Text::default();
        let outcome = examine(&args, &host, interrupt, &mut Output::to(text.clone()));
        (outcome.expect("it is printed"), text.read())
    }

    #[test]
    fn a_host_without_rdma_is_bad_and_each_bad_finding_has_a_remedy() {
        let (outcome, text) = examine_nothing(&[], &Interrupt::default());
        assert_eq!(outcome, Outcome::Bad);
        let lines: Vec<&str> = text.lines().skip(HEAD.lines().count()).collect();
        let bad = |line: &&[&str]| line[0].starts_with("BAD");
        assert!(
            lines
                .windows(2)
                .filter(bad)
                .all(|pair| pair[1].contains("-> ")),
            "{text}"
        );
        for text in [
            "not loaded: rdma_ucm",
            "this host has none",
            "remote flush: cannot work",
        ] {
            assert!(
                lines.iter().any(|line| line.contains(text)),
                "{text}: {lines:#?}"
            );
        }
        assert!(text.contains("no device was opened"), "{text}");
    }

    #[test]
    fn the_target_of_the_other_commands_is_one_of_doctor() {
        for target in ["192.0.2.1:7204", "[192.0.2.1]"] {
            let (_, text) = examine_nothing(&[target], &Interrupt::default());
            assert!(!text.contains("192.0.2.1"), "{text}");
        }
        let (_, text) = examine_nothing(&["[::1]:7204"], &Interrupt::default());
        assert!(text.contains("address: ::1 is the loopback"), "{text}");
    }

    /// Without a call of the library.
    #[test]
    fn a_wrong_target_is_named_on_a_host_without_rdma() {
        for (target, named) in [
            ("127.0.0.1", "is the loopback address"),
            ("::", "is a wildcard"),
            ("192.0.2.9", "is not an address of this host"),
        ] {
            let (_, text) = examine_nothing(&[target], &Interrupt::default());
            assert!(text.contains(named), "{text}");
        }
        let (_, text) = examine_nothing(&["192.0.2.1"], &Interrupt::default());
        assert!(!text.contains("192.0.2.1"), "{text}");
    }

    #[test]
    fn an_interrupt_ends_with_the_report_so_far() -> serde_json::Result<()> {
        let interrupt = Interrupt::default();
        interrupt.set();
        let (outcome, text) = examine_nothing(&[], &interrupt);
        assert_eq!(outcome, Outcome::Bad);
        assert!(text.contains("interrupted"), "{text}");
        let (_, text) = examine_nothing(&["--format", "json"], &interrupt);
        let report: Value = serde_json::from_str(&text)?;
        assert_eq!(report["interrupted"], true);
        assert_eq!(report["result"], "bad");
        assert_eq!(report["host"]["kernel"], "6.12.1");
        Ok(())
    }
}
