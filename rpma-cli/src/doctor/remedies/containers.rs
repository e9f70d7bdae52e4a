//! The devices, the limit and the network of a host for a container, in the options of the program
//! that made the container.

use crate::facts::{Container, Facts, User};

/// The options that give the devices, the limit and the network of a host to a container.
pub(in crate::doctor) fn give(container: Container, facts: &Facts) -> String {
    let device = |path: &String| format!("--device {path}");
    match container {
        Container::Docker | Container::Podman => format!(
            "start the container with {} --ulimit memlock=-1 --network host, beside its other options",
            paths(facts).iter().map(device).collect::<Vec<_>>().join(" ")
        ),
        Container::Kubernetes => "give the pod the host's network (hostNetwork: true), an RDMA device by a device \
                                  plugin, and a node whose container runtime sets no limit of locked memory \
                                  (LimitMEMLOCK=infinity)"
            .into(),
        Container::Lxc => "give the container the devices (lxc.mount.entry = /dev/infiniband dev/infiniband none \
                           bind,create=dir, lxc.cgroup2.devices.allow = c 231:* rwm and for /dev/infiniband/rdma_cm \
                           c 10:* rwm), lxc.prlimit.memlock = unlimited, and lxc.net.0.type = none"
            .into(),
        Container::SystemdNspawn => "start the container with --bind=/dev/infiniband \
                                     --property=DeviceAllow='char-infiniband_verbs rw' \
                                     --property=DeviceAllow='/dev/infiniband/rdma_cm rw' \
                                     --rlimit=RLIMIT_MEMLOCK=infinity, and without --private-network"
            .into(),
        Container::Unknown => format!(
            "let the program that made these namespaces give this one {}, a limit of locked memory (RLIMIT_MEMLOCK) \
             of infinity, and the network of its host",
            paths(facts).join(" and ")
        ),
    }
}

/// The device files of this host, or the usual ones if sysfs shows none.
fn paths(facts: &Facts) -> Vec<String> {
    let of_devices = facts.nodes.iter().filter(|node| node.device.is_some());
    let mut paths: Vec<String> = of_devices.map(|node| node.path.clone()).collect();
    if paths.is_empty() {
        paths.push("/dev/infiniband/uverbs0".into());
    }
    paths.push("/dev/infiniband/rdma_cm".into());
    paths
}

/// For a path of the host that the container does not have.
pub(super) fn give_path(container: Container, path: &str) -> String {
    match container {
        Container::Docker | Container::Podman => {
            format!("give it to the container: --device {path}")
        }
        Container::SystemdNspawn => {
            format!("give it to the container: --bind={path} --property=DeviceAllow='{path} rw'")
        }
        Container::Lxc => format!(
            "give it to the container: lxc.mount.entry = {path} {} none bind,create=file, with its numbers in \
             lxc.cgroup2.devices.allow",
            path.trim_start_matches('/')
        ),
        Container::Kubernetes => format!("give {path} to the pod by a device plugin"),
        Container::Unknown => {
            format!("let the program that made these namespaces give {path} to this one")
        }
    }
}

/// For its limit of locked memory.
pub(super) fn memlock(container: Container) -> &'static str {
    match container {
        Container::Docker | Container::Podman => "start the container with --ulimit memlock=-1",
        Container::Kubernetes => {
            "let the container runtime of the node have no limit (LimitMEMLOCK=infinity in its systemd unit)"
        }
        Container::Lxc => "give the container lxc.prlimit.memlock = unlimited",
        Container::SystemdNspawn => "start the container with --rlimit=RLIMIT_MEMLOCK=infinity",
        Container::Unknown => "let the program that made these namespaces raise RLIMIT_MEMLOCK",
    }
}

/// For a device that the container has, and that is refused by its permissions (`EACCES`). `command`
/// gives the right.
pub(super) fn refused_in_container(container: Container, user: User, command: &str) -> String {
    if user.is_root && !user.is_mapped {
        let option = match container {
            Container::Docker | Container::Podman => " (--security-opt label=disable for SELinux)",
            _ => "",
        };
        return format!(
            "the container has it, and SELinux, AppArmor or a mount with `nodev` refuses it to root: permit it \
             there{option}"
        );
    }
    let place = match user.is_mapped {
        true => "as root, on the host of the container",
        false => "as root, in the container",
    };
    format!("the container has it, and its permissions refuse this user. {place}: {command}")
}

/// For a container in another network than its device.
pub(super) fn give_network(container: Container) -> &'static str {
    match container {
        Container::Docker | Container::Podman => "start the container with --network host",
        Container::Kubernetes => "give the pod the host's network (hostNetwork: true)",
        Container::Lxc => "give the container the network of its host (lxc.net.0.type = none)",
        Container::SystemdNspawn => "start the container without --private-network",
        Container::Unknown => "run rpma in the network namespace of the host",
    }
}
