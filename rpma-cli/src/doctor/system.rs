//! Checks of the kernel's side: its release, modules, device files; containers; rdma-core.

use super::remedies;
use crate::facts::{Access, Facts, ModuleState, Node, RdmaCore, release_number};
use crate::report::Finding;

/// The oldest Linux that the library is for.
const OLDEST_LINUX: (u32, u32) = (6, 1);
/// The first rdma-core with the native flush.
const NATIVE_FLUSH: u32 = 45;

pub(super) fn kernel(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "kernel";
    let release = facts.kernel.as_deref().unwrap_or("of an unknown release");
    let found = format!("Linux {release}");
    vec![match release_number(release) {
        Some(number) if number < OLDEST_LINUX => {
            Finding::note(CHECK, found).with_remedy(remedies::OLD_KERNEL)
        }
        Some(_) => Finding::good(CHECK, found),
        None => Finding::unseen(CHECK, found),
    }]
}

pub(super) fn container(facts: &Facts) -> Vec<Finding> {
    let Some(container) = facts.container else {
        return Vec::new();
    };
    let found = format!(
        "this is a container ({}): it needs the devices, the limit and the network of its host",
        container.name()
    );
    vec![Finding::note("container", found).with_remedy(remedies::give(container, facts))]
}

pub(super) fn modules(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "kernel modules";
    if facts.modules.is_empty() {
        return Vec::new();
    }
    let in_state = |state| -> Vec<&str> {
        let modules = facts.modules.iter().filter(|module| module.state == state);
        modules.map(|module| module.name).collect()
    };
    let (absent, missing) = (
        in_state(ModuleState::Absent),
        in_state(ModuleState::Missing),
    );
    vec![if !absent.is_empty() {
        let found = format!("this kernel has no {}", absent.join(", "));
        Finding::bad(CHECK, found, remedies::other_kernel(facts))
    } else if !missing.is_empty() {
        let found = format!("not loaded: {}", missing.join(", "));
        Finding::bad(CHECK, found, remedies::load(&missing, facts))
    } else {
        let loaded = in_state(ModuleState::Loaded);
        Finding::good(CHECK, format!("loaded: {}", loaded.join(", ")))
    }]
}

/// The file for all devices, and those of each device or only of the wanted one.
pub(super) fn nodes(facts: &Facts, wanted: Option<&str>) -> Vec<Finding> {
    let of_device = facts.nodes.iter().filter(|node| {
        let device = node.device.as_deref();
        device.is_some() && (wanted.is_none() || device == wanted)
    });
    let for_all = facts.nodes.iter().filter(|node| node.device.is_none());
    let mut findings: Vec<_> = for_all.map(|it| node(it, facts)).collect();
    findings.extend(Finding::of_devices(
        of_device.map(|it| node(it, facts)).collect(),
    ));
    findings
}

fn node(node: &Node, facts: &Facts) -> Finding {
    const CHECK: &str = "device file";
    let path = &node.path;
    let name = match &node.device {
        Some(device) => format!("{path} ({device})"),
        None => path.clone(),
    };
    let found = match &node.access {
        Access::Usable => return Finding::good(CHECK, format!("{name} can be read and written")),
        Access::Missing => format!("{name} does not exist"),
        Access::Refused { reason, .. } => format!("{name}: {reason}"),
    };
    Finding::bad(CHECK, found, remedies::node(node, facts))
}

pub(super) fn rdma_core(facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "rdma-core";
    let RdmaCore { loaded, built_with } = facts.rdma_core;
    let version = |version: Option<u32>| version.map_or("unknown".into(), |v| v.to_string());
    let found = format!(
        "version {} is loaded, this program was built with version {}",
        version(loaded),
        version(built_with)
    );
    vec![match built_with {
        Some(old) if old < NATIVE_FLUSH => {
            let found = format!("{found}, which has no native flush: rpma flushes by reading");
            Finding::note(CHECK, found).with_remedy(remedies::OLD_RDMA_CORE)
        }
        _ => Finding::good(CHECK, found),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Module;
    use crate::report::Verdict;

    fn bad(findings: &[Finding]) -> Vec<&Finding> {
        let findings = findings.iter();
        findings
            .filter(|finding| finding.verdict == Verdict::Bad)
            .collect()
    }

    #[test]
    fn a_missing_module_has_its_command() {
        let module = |name, state| Module { name, state };
        let mut facts = Facts {
            modules: vec![
                module("ib_core", ModuleState::Loaded),
                module("ib_uverbs", ModuleState::Loaded),
                module("rdma_cm", ModuleState::Loaded),
                module("rdma_ucm", ModuleState::Missing),
            ],
            ..Facts::default()
        };
        let findings = modules(&facts);
        let [finding] = bad(&findings)[..] else {
            panic!("{findings:?}");
        };
        assert_eq!(
            finding.remedy.as_deref(),
            Some(
                "as root: modprobe -a rdma_ucm. If it fails, look for the cause in the kernel's log, as root: dmesg"
            )
        );

        facts.modules[0].state = ModuleState::Absent;
        let findings = modules(&facts);
        assert_eq!(bad(&findings)[0].found, "this kernel has no ib_core");

        facts.modules[0].state = ModuleState::Loaded;
        facts.modules[3].state = ModuleState::Loaded;
        let found = &modules(&facts)[0].found;
        assert_eq!(found, "loaded: ib_core, ib_uverbs, rdma_cm, rdma_ucm");
    }

    fn refused() -> Access {
        Access::Refused {
            reason: "denied".into(),
            by_rule: false,
        }
    }

    #[test]
    fn a_refused_device_file_is_bad_unless_another_device_can_be_used() {
        let node = |path: &str, device: Option<&str>, access| Node {
            path: path.into(),
            device: device.map(Into::into),
            access,
        };
        let mut facts = Facts {
            nodes: vec![
                node("/dev/infiniband/rdma_cm", None, Access::Usable),
                node("/dev/infiniband/uverbs0", Some("mlx5_0"), refused()),
            ],
            ..Facts::default()
        };
        let findings = nodes(&facts, None);
        assert_eq!(bad(&findings).len(), 1);
        let remedy = findings[1].remedy.as_deref().unwrap_or_default();
        assert!(
            remedy.contains("chmod 666 /dev/infiniband/uverbs0"),
            "{remedy}"
        );

        facts.nodes.push(node(
            "/dev/infiniband/uverbs1",
            Some("mlx5_1"),
            Access::Usable,
        ));
        assert!(bad(&nodes(&facts, None)).is_empty());
        // The file of another device than the wanted one does not matter.
        assert_eq!(bad(&nodes(&facts, Some("mlx5_0"))).len(), 1);
        assert_eq!(nodes(&facts, Some("mlx5_1")).len(), 2);
        facts.nodes[0].access = Access::Missing;
        assert_eq!(
            bad(&nodes(&facts, None)).len(),
            1,
            "the connection manager is for all"
        );
    }

    #[test]
    fn an_old_kernel_is_a_note() {
        for (release, verdict) in [
            ("5.15.0-91", Verdict::Note),
            ("6.1.0", Verdict::Good),
            ("7.0", Verdict::Good),
        ] {
            let facts = Facts {
                kernel: Some(release.into()),
                ..Facts::default()
            };
            assert_eq!(kernel(&facts)[0].verdict, verdict, "{release}");
        }
    }

    #[test]
    fn headers_before_45_have_no_native_flush() {
        for (built_with, verdict) in [
            (Some(44), Verdict::Note),
            (Some(45), Verdict::Good),
            (None, Verdict::Good),
        ] {
            let facts = Facts {
                rdma_core: RdmaCore {
                    loaded: Some(56),
                    built_with,
                },
                ..Facts::default()
            };
            assert_eq!(rdma_core(&facts)[0].verdict, verdict, "{built_with:?}");
        }
    }
}
