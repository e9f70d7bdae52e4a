//! `rpma doctor`: a good host, and the faults of the first hour.

use std::fs;

use crate::cli::prelude::*;

/// All that this host has is found, and a remote flush can work.
#[test]
fn a_good_host() {
    let ended = rpma(&["doctor", "--memory", &devdax()]).success("doctor");
    for text in [
        "kernel modules: loaded: ib_core, ib_uverbs, rdma_cm, rdma_ucm",
        "/dev/infiniband/rdma_cm can be read and written",
        "port 1 is ACTIVE, Ethernet",
        "is a device-DAX",
        "can register the memory for writing and for persistent flushes",
        "64 MiB were registered",
        "good    remote flush: can work on",
    ] {
        found(&ended, text);
    }
    let (line, _) = found(&ended, "remote flush: can work on");
    assert!(line.contains(&addr()), "{line}");
    assert!(ended.stderr.is_empty(), "{ended:#?}");
}

/// The version of the library that is loaded is known, and that of the headers.
#[test]
fn rdma_cores_versions() {
    let ended = rpma(&["doctor"]).success("doctor");
    let (line, _) = found(&ended, "rdma-core: version");
    assert!(!line.contains("unknown"), "{line}");
    let old = line.contains("built with version 44");
    assert_eq!(old, !cfg!(native_flush), "{line}");
}

/// One device, by its address or by its name.
#[test]
fn one_device() {
    let ended = rpma(&["doctor", &other_addr()]).success("an address");
    let (line, _) = found(&ended, "remote flush: can work on");
    let name = line.split_whitespace().nth(6).expect("a name").to_owned();
    let ended = rpma(&["doctor", &name]).success("a device");
    let (line, _) = found(&ended, "remote flush: can work on");
    let is_other = line.contains(&other_addr()) && !line.contains(&addr());
    assert!(is_other, "{line}");
}

/// The forms of `rpma serve` and `rpma check`, and the names that `ip addr` shows.
#[test]
fn other_names_of_one_device() {
    let ended = rpma(&["doctor", &format!("{}:7204", addr())]).success("an address with a port");
    let (line, _) = found(&ended, "remote flush: can work on");
    let name = line.split_whitespace().nth(6).expect("a name").to_owned();
    let (line, _) = found(&ended, &format!("RDMA device: {name} "));
    let (_, rest) = line.split_once("Ethernet, ").expect("its interface");
    let interface = rest.split(' ').next().expect("a name");
    let text = format!("{interface} is the network interface of {name}");
    let ended = rpma(&["doctor", interface]);
    finds(&ended, &text, &format!("rpma doctor {name}"));
}

#[test]
fn the_report_is_json() {
    let ended = rpma(&["doctor", "--format", "json", &addr()]).success("doctor");
    let text = ended.stdout.join("\n");
    for part in [
        "\"version\": 1",
        "\"simulated\": false",
        "\"result\": \"good\"",
        "\"RoCE v2\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn an_address_without_a_device() {
    let remedy = "use an address of an RDMA device: ";
    for (target, text) in [
        ("127.0.0.1", "is the loopback address"),
        ("0.0.0.0", "is a wildcard"),
        ("203.0.113.77", "is not an address of this host"),
    ] {
        finds(&rpma(&["doctor", target]), text, remedy);
    }
}

#[test]
fn an_ordinary_file() {
    let path = format!("{}/doctor", ext4());
    fs::write(&path, [7; 8192]).expect("a file");
    let ended = rpma(&["doctor", "--memory", &path]);
    found(&ended, "note    memory: ");
    finds(&ended, "cannot register the file for writing", &devdax());
    let reason = "Since Linux 6.5 the kernel does not pin a mapping of an ordinary file";
    found(&ended, reason);
    assert_eq!(fs::read(&path).expect("the file"), [7; 8192]);
    fs::remove_file(&path).expect("removes");
}

/// The kernel registers a file of tmpfs, as `rpma serve --memory` does. The file stays as it is.
#[test]
fn a_file_in_memory() {
    let path = "/tmp/rpma-doctor";
    fs::write(path, [7; 8192]).expect("a file");
    let ended = rpma(&["doctor", "--memory", path]).success("doctor");
    let (line, _) = found(&ended, "can register the file for writing");
    let is_noted = line.starts_with("note") && line.contains("lost with the power");
    assert!(is_noted, "{line}");
    assert_eq!(fs::read(path).expect("the file"), [7; 8192]);
    fs::remove_file(path).expect("removes");
}

#[test]
fn a_directory() {
    let ended = rpma(&["doctor", "--memory", &ext4()]);
    finds(&ended, "is a directory", &devdax());
}

/// A device without on-demand paging cannot register a file on a DAX file system.
#[test]
fn a_file_on_a_dax_file_system() {
    let path = format!("{}/doctor", fsdax());
    fs::write(&path, [7; 8192]).expect("a file");
    let ended = rpma(&["doctor", "--memory", &path]);
    found(&ended, "is a file on a DAX file system (8192 bytes)");
    let (paging, _) = found(&ended, "on-demand paging: ");
    if paging.contains("has none") {
        finds(&ended, "cannot register the memory for writing", &devdax());
    } else {
        assert_eq!(ended.status, Some(0), "{ended:#?}");
    }
    fs::remove_file(&path).expect("removes");
}

/// The limit of locked memory counts for an ordinary user.
#[test]
fn a_low_limit_of_locked_memory() {
    let ended = shell("ulimit -l 64; $user $rpma doctor");
    finds(&ended, "the limit is 64 KiB", "memlock unlimited");
    // The kernel has another error for it.
    let ended = shell("ulimit -l 0; $user $rpma doctor");
    finds(&ended, "the limit is 0 KiB", "memlock unlimited");
    let ended = shell("ulimit -l 8192; $user $rpma doctor").success("8 MiB");
    let (line, remedy) = found(&ended, "the limit is 8192 KiB");
    assert!(line.starts_with("note"), "{line}");
    assert!(remedy.contains("memlock unlimited"), "{remedy}");
}

/// Doctor registers a part of the memory, and a program registers all of it.
#[test]
fn memory_above_the_limit_of_locked_memory() {
    let dax = devdax();
    let lines = |limit: &str| {
        format!(
            "mount -t tmpfs none /mnt
            cp -a {dax} /mnt/dax
            chmod 666 /mnt/dax
            ulimit -l {limit}
            $user $rpma doctor --memory /mnt/dax"
        )
    };
    let limit = "this process may lock only 100000 KiB";
    finds(&shell(&lines("100000")), limit, "memlock unlimited");
    let ended = shell(&lines("unlimited")).success("no limit");
    found(&ended, "good    registration");
}

/// An ordinary user needs no root, and no right that the user has not.
#[test]
fn an_ordinary_user() {
    let ended = shell("ulimit -l unlimited; $user $rpma doctor").success("doctor");
    found(&ended, "64 MiB were registered");
}

#[test]
fn memory_of_another_user() {
    let dax = devdax();
    let ended = shell(&format!(
        "chmod 600 {dax}; $user $rpma doctor --memory {dax}"
    ));
    let command = |user: &str| format!("as root: chown {user} {dax}");
    let (_, remedy) = found(&ended, "Permission denied");
    let user = if remedy.contains("nobody") {
        "nobody"
    } else {
        "65534"
    };
    finds(&ended, "Permission denied", &command(user));
}

/// The device files are hidden, as in a container that was not given them.
#[test]
fn no_device_files() {
    let ended = shell("mount -t tmpfs none /dev/infiniband; $rpma doctor");
    let missing = "/dev/infiniband/rdma_cm does not exist";
    finds(&ended, missing, "the modules are loaded: look for udev");
    found(&ended, "no device was opened");
}

#[test]
fn device_files_of_another_user() {
    let ended = shell(
        "mount -t tmpfs -o mode=755 none /mnt
        cp -a /dev/infiniband/. /mnt
        chmod 600 /mnt/*
        mount --bind /mnt /dev/infiniband
        $user $rpma doctor",
    );
    let denied = "/dev/infiniband/rdma_cm: Permission denied";
    finds(&ended, denied, "chmod 666 /dev/infiniband/rdma_cm");
    finds(&ended, "(rxe0): Permission denied", "chmod 666");
}

/// The traces of the modules are hidden: unloading them would end the device.
#[test]
fn a_module_that_is_not_loaded() {
    let ended = shell(
        "mount -t tmpfs none /sys/module
        mount -t tmpfs none /sys/class/misc
        $rpma doctor",
    );
    let remedy = "modprobe -a rdma_cm rdma_ucm";
    finds(&ended, "not loaded: rdma_cm, rdma_ucm", remedy);
}

/// The devices are hidden: soft-RoCE is the remedy.
#[test]
fn no_rdma_device() {
    let ended = shell(
        "for class in infiniband infiniband_verbs; do mount -t tmpfs none /sys/class/$class; done
        $rpma doctor",
    );
    let text = "RDMA device: this host has none";
    let command = "rdma link add rxe0 type rxe netdev ";
    finds(&ended, text, command);
    let (_, remedy) = found(&ended, text);
    let (_, rest) = remedy.split_once(command).expect("the command");
    let interface = rest.split([' ', '.']).next().expect("an interface");
    let known = std::path::Path::new("/sys/class/net").join(interface);
    assert!(known.exists(), "{remedy}");
}

/// The remedy is a command that works on this host, and loses no data.
#[test]
fn a_device_dax_that_does_not_exist() {
    let ended = rpma(&["doctor", "--memory", "/dev/dax77.0"]);
    let remedy = "rpma doctor --memory /dev/dax";
    finds(&ended, "/dev/dax77.0 does not exist", remedy);
    let (_, remedy) = found(&ended, "does not exist");
    let is_safe = remedy.contains(&devdax()) && !remedy.contains("--force");
    assert!(is_safe, "{remedy}");
}
