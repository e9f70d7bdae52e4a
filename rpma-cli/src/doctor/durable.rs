//! What durable means in the memory that was given: the table of docs/persistence.md, for both
//! answers to the question about DDIO.

use rpma::pmem::{Ddio, PmemMap};
use rpma::{Durable, PeerCfg};

use super::Exam;
use super::opened::Opened;
use crate::report::{Finding, Verdict};

const CHECK: &str = "durable";

pub(super) fn check(exam: &Exam<'_>) -> Vec<Finding> {
    let devices = exam.memory.iter().flat_map(|map| {
        let devices = exam.devices.iter();
        devices.flat_map(|device| on_device(device, map))
    });
    devices.collect()
}

/// Whether a flush makes data durable by this finding.
pub(super) fn is_durable(finding: &Finding) -> bool {
    finding.check == CHECK && finding.verdict == Verdict::Good
}

/// Without a report of the kernel, nothing is durable.
pub(super) fn detected(device: &Opened, map: &PmemMap, ddio: Ddio) -> PeerCfg {
    PeerCfg::detect(map, &device.peer, ddio)
        .unwrap_or_else(|_| *PeerCfg::new().set_processor_persists(false))
}

/// One finding if DDIO makes no difference, else two.
fn on_device(device: &Opened, map: &PmemMap) -> Vec<Finding> {
    let name = device.name();
    if device.refuses {
        let found = format!("on {name}: not looked at, because it cannot register the memory");
        return vec![Finding::unseen(CHECK, found)];
    }
    let [on, off] = [Ddio::On, Ddio::Off].map(|ddio| detected(device, map, ddio));
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

    /// Each declaration of the table in docs/persistence.md has its method.
    #[test]
    fn the_methods_of_the_table() {
        for (durable, persists, method) in [
            (Durable::DirectWrites, true, "`reading` or `native`"),
            (Durable::Nothing, true, "`server`"),
            (Durable::NativeFlushes, true, "`native` or `server`"),
            (Durable::Nothing, false, "lost with the power"),
        ] {
            let mut cfg = PeerCfg::new();
            cfg.set_durable(durable).set_processor_persists(persists);
            let finding = finding("mlx5_0", "", &cfg);
            assert!(
                finding.found.contains(method),
                "{durable} {persists}: {}",
                finding.found
            );
            let flushes = !["`server`", "lost with the power"].contains(&method);
            assert_eq!(
                finding.verdict == Verdict::Good,
                flushes,
                "{durable} {persists}"
            );
        }
    }
}
