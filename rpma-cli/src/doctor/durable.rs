//! What durable means in the memory that was given: the table of docs/persistence.md, for both
//! answers to the question about DDIO.

use rpma::pmem::{Ddio, DevicePath, Domain};
use rpma::{Durable, PeerCfg};

use super::Exam;
use super::opened::Opened;
use crate::report::Finding;

const CHECK: &str = "durable";

pub(super) fn check(exam: &mut Exam<'_>) -> Vec<Finding> {
    let Some(domain) = exam.domain else {
        return Vec::new();
    };
    let devices = exam.devices.iter().filter(|device| !device.refuses);
    let mut answers = devices.flat_map(|device| answers(device, domain));
    exam.is_visible_only = answers.all(|cfg| cfg.get_durable() == Durable::Nothing);
    let devices = exam.devices.iter();
    devices
        .flat_map(|device| on_device(device, domain))
        .collect()
}

/// For both settings of DDIO: on and off.
fn answers(device: &Opened, domain: Domain) -> [PeerCfg; 2] {
    [Ddio::On, Ddio::Off]
        .map(|ddio| PeerCfg::for_platform(domain, DevicePath::of(&device.peer, ddio)))
}

/// One finding if DDIO makes no difference, else two.
fn on_device(device: &Opened, domain: Domain) -> Vec<Finding> {
    let name = device.name();
    if device.refuses {
        let found = format!("on {name}: not looked at, because it cannot register the memory");
        return vec![Finding::unseen(CHECK, found)];
    }
    let [on, off] = answers(device, domain);
    if on == off {
        vec![finding(name, "", &on)]
    } else {
        vec![
            finding(name, " with DDIO on (the usual setting)", &on),
            finding(name, " with DDIO off (the operator's word)", &off),
        ]
    }
}

fn finding(name: &str, setting: &str, cfg: &PeerCfg) -> Finding {
    let durable = cfg.get_durable();
    // The term of `rpma serve` and `rpma check`.
    let found = format!(
        "on {name}{setting}: durable by {durable}{}",
        meaning(durable, cfg.get_processor_persists())
    );
    match durable {
        Durable::Nothing => Finding::note(CHECK, found),
        _ => Finding::good(CHECK, found),
    }
}

/// The methods are those of `commit::Method`.
fn meaning(durable: Durable, processor_persists: bool) -> &'static str {
    match (durable, processor_persists) {
        (Durable::DirectWrites, _) => {
            ", with every flush. Commit by the method `reading` or `native`"
        }
        (Durable::NativeFlushes, _) => {
            ", and by no other flush. Commit by the method `native` or `server`"
        }
        (_, true) => {
            ", and the processor of this host makes data durable. Commit by the method `server`"
        }
        (_, false) => ": a flush makes data visible, and data are lost with the power",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    /// Each row of the table in docs/persistence.md has its method.
    #[test]
    fn the_methods_of_the_table() {
        for (domain, path, method) in [
            (
                Domain::CpuCaches,
                DevicePath::ThroughCaches,
                "`reading` or `native`",
            ),
            (
                Domain::MemoryController,
                DevicePath::PastCaches,
                "`reading` or `native`",
            ),
            (
                Domain::MemoryController,
                DevicePath::ThroughCaches,
                "`server`",
            ),
            (
                Domain::MemoryController,
                DevicePath::ThroughCachesFlushing,
                "`native` or `server`",
            ),
            (
                Domain::Virtual,
                DevicePath::PastCaches,
                "lost with the power",
            ),
            (
                Domain::Unknown,
                DevicePath::ThroughCaches,
                "lost with the power",
            ),
        ] {
            let finding = finding("mlx5_0", "", &PeerCfg::for_platform(domain, path));
            assert!(
                finding.found.contains(method),
                "{domain} {path:?}: {}",
                finding.found
            );
            let flushes = !["`server`", "lost with the power"].contains(&method);
            assert_eq!(
                finding.verdict == Verdict::Good,
                flushes,
                "{domain} {path:?}"
            );
        }
    }
}
