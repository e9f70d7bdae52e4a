//! The container of this process, and the program that made it.

use serde::Serialize;

use super::Files;

/// A program that makes containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Container {
    Docker,
    Podman,
    Kubernetes,
    Lxc,
    SystemdNspawn,
    /// The process is in namespaces of its own.
    Unknown,
}

/// The names of these programs: first the usual one, and then others that `container=` of the first
/// process has, and the files that systemd makes of it.
const NAMES: [(Container, &[&str]); 5] = [
    (Container::Docker, &["docker"]),
    (Container::Podman, &["podman", "oci"]),
    (Container::Kubernetes, &["kubernetes", "kube"]),
    (Container::Lxc, &["lxc", "lxc-libvirt"]),
    (Container::SystemdNspawn, &["systemd-nspawn"]),
];

impl Container {
    pub(crate) fn name(self) -> &'static str {
        let names = NAMES.iter().find(|(program, _)| *program == self);
        names.map_or("of an unknown program", |(_, names)| names[0])
    }

    fn from_name(name: &str) -> Self {
        let known = NAMES.iter().find(|(_, names)| names.contains(&name));
        known.map_or(Self::Unknown, |(program, _)| *program)
    }
}

/// Files that these programs make.
const MARKS: [(&str, Container); 4] = [
    (
        "run/secrets/kubernetes.io/serviceaccount",
        Container::Kubernetes,
    ),
    (
        "var/run/secrets/kubernetes.io/serviceaccount",
        Container::Kubernetes,
    ),
    ("run/.containerenv", Container::Podman),
    (".dockerenv", Container::Docker),
];
/// The namespaces of the host have these numbers (`PROC_PID_INIT_INO` and the others).
const FIRST_NAMESPACES: [(&str, &str); 5] = [
    ("pid", "pid:[4026531836]"),
    ("cgroup", "cgroup:[4026531835]"),
    ("uts", "uts:[4026531838]"),
    ("ipc", "ipc:[4026531839]"),
    ("user", "user:[4026531837]"),
];

/// The container of this process. A mark of its program counts only if a namespace can be another
/// one than the host's: a disk that was made from an image has the mark as well.
pub(super) fn container(files: &Files) -> Option<Container> {
    let is_first = |(kind, first): (&str, &str)| {
        let own = files.link(format!("proc/self/ns/{kind}"))?;
        Some(own == first)
    };
    let are_first = FIRST_NAMESPACES.map(is_first);
    if are_first == [Some(true); 5] {
        return None;
    }
    let is_apart = are_first[..2].contains(&Some(false));
    marked(files).or(is_apart.then_some(Container::Unknown))
}

/// The program whose mark is there.
fn marked(files: &Files) -> Option<Container> {
    let mut marks = MARKS.iter().filter(|(path, _)| files.exists(path));
    if let Some((_, program)) = marks.next() {
        return Some(*program);
    }
    let words = ["run/systemd/container", "run/host/container-manager"];
    let word = words.iter().find_map(|path| files.word(path));
    let word = word.or_else(|| first_process(files))?;
    Some(Container::from_name(&word))
}

/// The variable `container` of the first process, if this user may read it.
fn first_process(files: &Files) -> Option<String> {
    let variables = files.word("proc/1/environ")?;
    let mut names = variables
        .split('\0')
        .filter_map(|it| it.strip_prefix("container="));
    names.find(|name| !name.is_empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    /// Promise: the usual programs leave these marks, and a word in a line is none.
    #[test]
    fn containers_are_seen_by_their_properties() -> io::Result<()> {
        use Container::{Docker, Kubernetes, Lxc, Podman, SystemdNspawn, Unknown};
        for (file, text, kind) in [
            ("run/.containerenv", "", Some(Podman)),
            (".dockerenv", "", Some(Docker)),
            ("run/systemd/container", "lxc\n", Some(Lxc)),
            (
                "run/host/container-manager",
                "systemd-nspawn\n",
                Some(SystemdNspawn),
            ),
            ("proc/1/environ", "A=1\0container=lxc\0", Some(Lxc)),
            ("proc/1/environ", "A=1\0xcontainer=lxc\0", None),
            (
                "run/secrets/kubernetes.io/serviceaccount/",
                "",
                Some(Kubernetes),
            ),
            (
                "var/run/secrets/kubernetes.io/serviceaccount/",
                "",
                Some(Kubernetes),
            ),
            ("proc/self/ns/pid", "-> pid:[4026531836]", None),
            ("proc/self/ns/pid", "-> pid:[4026532198]", Some(Unknown)),
            (
                "proc/self/ns/cgroup",
                "-> cgroup:[4026532198]",
                Some(Unknown),
            ),
            // A login on a host, whose user has built something.
            (
                "proc/self/cgroup",
                "0::/user.slice/docker-build/lxc.scope\n",
                None,
            ),
            (
                "proc/self/cgroup",
                "4:rdma:/kubepods/burstable/pod1\n",
                None,
            ),
        ] {
            let tree = tree(&[(file, text)])?;
            assert_eq!(container(&Files::new(tree.path())), kind, "{file} {text}");
        }
        Ok(())
    }

    /// Promise: a disk that was made from an image of docker is no container.
    #[test]
    fn a_mark_in_the_namespaces_of_the_host_is_none() -> io::Result<()> {
        let files = |other: Option<&str>| {
            let links = FIRST_NAMESPACES.map(|(kind, first)| {
                let target = match other == Some(kind) {
                    true => format!("-> {kind}:[4026532198]"),
                    false => format!("-> {first}"),
                };
                (format!("proc/self/ns/{kind}"), target)
            });
            let mut files: Vec<_> = links
                .iter()
                .map(|(path, text)| (&**path, &**text))
                .collect();
            files.push((".dockerenv", ""));
            let tree = tree(&files)?;
            Ok::<_, io::Error>(container(&Files::new(tree.path())))
        };
        assert_eq!(files(None)?, None);
        for (kind, _) in FIRST_NAMESPACES {
            assert_eq!(files(Some(kind))?, Some(Container::Docker), "{kind}");
        }
        Ok(())
    }
}
