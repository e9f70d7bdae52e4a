//! Containers, and the reports of all hosts.

use super::*;

/// Promise: each program that makes containers gets options of its own, with the files of this host.
#[test]
fn containers_have_the_options_of_their_programs() {
    let host: Tree<'_> = &[("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_3")];
    let docker = "start the container with --device /dev/infiniband/uverbs3 --device /dev/infiniband/rdma_cm --ulimit \
                  memlock=-1 --network host";
    for (file, text, kind, remedy) in [
        (".dockerenv", "", "docker", docker),
        ("run/.containerenv", "", "podman", docker),
        (
            "run/secrets/kubernetes.io/serviceaccount/",
            "",
            "kubernetes",
            "give the pod the host's network (hostNetwork",
        ),
        (
            "run/systemd/container",
            "lxc",
            "lxc",
            "give the container the devices (lxc.mount.entry = /dev/infiniband",
        ),
        (
            "run/host/container-manager",
            "systemd-nspawn",
            "systemd-nspawn",
            "start the container with --bind=/dev/infin",
        ),
        (
            "proc/self/ns/pid",
            "-> pid:[4026532198]",
            "of an unknown program",
            "let the program that made these namespaces give this one /dev/infiniband/uverbs3 and /dev/infiniband/rdma",
        ),
    ] {
        let lines = diagnose(&[], &[host, &[(file, text)]]).expect("a tree");
        let found = format!(
            "note    container: this is a container ({kind}): it needs the devices, the limit and the network of its host"
        );
        let at = lines.iter().position(|line| *line == found);
        let next = &lines[at.unwrap_or_else(|| panic!("{found} in {lines:#?}")) + 1];
        assert!(
            next.trim_start().starts_with(&format!("-> {remedy}")),
            "{lines:#?}"
        );
    }
}

/// Promise: the report of a host has none of its names, whatever the user has given.
#[test]
fn the_json_has_no_name_of_the_host() -> io::Result<()> {
    let files = device(
        "db7-rxe",
        &[("node_type", "1: CA"), ("node_desc", "db7 rxe0")],
        &[
            ("state", "4: ACTIVE"),
            ("gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe77:7777"),
            ("gid_attrs/ndevs/0", "db7eth"),
        ],
    );
    for args in [
        &[][..],
        &["192.0.2.77"],
        &["db7-rxe"],
        &["db7.invalid"],
        &["--memory", "/home/db7/pmem"],
    ] {
        let lines = with_devices(
            &[args, &["--format", "json"]].concat(),
            std::slice::from_ref(&files),
            ETHERNET,
        );
        let text = lines.concat();
        for secret in ["db7", "7777", "192.0.2.77", "enp5s0", "/"] {
            assert!(
                !text.replace("IB/RoCE", "").contains(secret),
                "{secret} in {text}"
            );
        }
    }
    Ok(())
}
