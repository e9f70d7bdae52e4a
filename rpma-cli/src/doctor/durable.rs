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
    let devices = exam.devices.iter();
    devices
        .flat_map(|device| on_device(device, domain))
        .collect()
}

/// One finding if DDIO makes no difference, else two.
fn on_device(device: &Opened, domain: Domain) -> Vec<Finding> {
    let answer = |ddio| PeerCfg::for_platform(domain, DevicePath::of(&device.peer, ddio));
    let (on, off) = (answer(Ddio::On), answer(Ddio::Off));
    let name = device.name();
    match on == off {
        true => vec![finding(name, "", &on)],
        false => vec![
            finding(name, " with DDIO on (the usual setting)", &on),
            finding(name, " with DDIO off (the operator's word)", &off),
        ],
    }
}

fn finding(name: &str, setting: &str, cfg: &PeerCfg) -> Finding {
    let persists = cfg.get_processor_persists();
    let found = format!(
        "on {name}{setting}: {}",
        meaning(cfg.get_durable(), persists)
    );
    match persists || cfg.get_durable() != Durable::Nothing {
        true => Finding::good(CHECK, found),
        false => Finding::note(CHECK, found),
    }
}

/// The methods are those of `commit::Method`.
fn meaning(durable: Durable, processor_persists: bool) -> &'static str {
    match (durable, processor_persists) {
        (Durable::DirectWrites, _) => {
            "every flush makes data durable. Commit by the method `reading` or `native`"
        }
        (Durable::NativeFlushes, _) => {
            "only a native flush makes data durable. Commit by the method `native` or `server`"
        }
        (_, true) => {
            "no flush makes data durable, and the processor of this host does. Commit by the method `server`"
        }
        (_, false) => {
            "nothing makes data durable here: a flush makes it visible, and it is lost with the power"
        }
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
            let is_lost = method == "lost with the power";
            assert_eq!(
                finding.verdict == Verdict::Note,
                is_lost,
                "{domain} {path:?}"
            );
        }
    }
}
