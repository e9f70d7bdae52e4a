//! Hosts with persistent memory in each state.

use super::*;

pub(super) const NOT_GIVEN: &str =
    "note    memory: no --memory is given, and ordinary memory loses its data with the power";
const MEMORY: &[&str] = &["--memory", "/dev/dax0.0"];

/// The same memory with the driver that gives it to the kernel.
const SYSTEM_RAM: Tree<'_> = &[
    ("dev/dax0.0", ""),
    ("sys/bus/dax/devices/dax0.0/size", "270532608"),
    ("sys/bus/dax/drivers/device_dax/", ""),
    ("sys/bus/dax/drivers/kmem/dax0.0/", ""),
];
/// The seed of a region.
const SEED: Tree<'_> = &[
    ("sys/bus/dax/devices/dax0.0/size", "0"),
    ("sys/bus/dax/drivers/device_dax/", ""),
];
const SPACE: Tree<'_> = &[
    ("sys/bus/nd/devices/region3/available_size", "270532608"),
    ("sys/bus/nd/drivers/nd_region/region3/", ""),
];

#[test]
fn system_ram_is_no_memory_for_programs() {
    let reconfigure = "as root, if the kernel can do without this part of its memory: daxctl reconfigure-device --force \
                       --mode=devdax dax0.0";
    let found = "BAD     memory: /dev/dax0.0 is ordinary memory of the kernel (mode system-ram, driver kmem), and no \
                 program can map it";
    of_memory(MEMORY, &[SYSTEM_RAM], found, reconfigure);
    of_memory(&[], &[SYSTEM_RAM], NOT_GIVEN, reconfigure);
    // Another device needs no change.
    let other: Tree<'_> = &[
        ("dev/dax1.0", ""),
        ("sys/bus/dax/devices/dax1.0/size", "270532608"),
        ("sys/bus/dax/drivers/device_dax/dax1.0/", ""),
    ];
    of_memory(
        MEMORY,
        &[SYSTEM_RAM, other],
        found,
        "rpma doctor --memory /dev/dax1.0",
    );
}

/// Memory of high bandwidth, which loses its data with the power.
#[test]
fn volatile_memory_is_not_recommended() {
    let volatile: Tree<'_> = &[
        ("dev/dax0.0", ""),
        ("sys/devices/platform/hmem.0/dax0.0/size", "270532608"),
        (
            "sys/bus/dax/devices/dax0.0",
            "-> ../../../devices/platform/hmem.0/dax0.0",
        ),
    ];
    let none = "this host has no persistent memory: use a host that has some. docs/getting-started.md has a guest \
                machine for tests";
    for driver in [
        "sys/bus/dax/drivers/device_dax/dax0.0/",
        "sys/bus/dax/drivers/kmem/dax0.0/",
    ] {
        of_memory(&[], &[volatile, &[(driver, "")]], NOT_GIVEN, none);
    }
}

#[test]
fn the_seed_of_a_region_is_no_memory() {
    let none = "this host has no persistent memory: use a host that has some. docs/getting-started.md has a guest \
                machine for tests";
    of_memory(&[], &[SEED], NOT_GIVEN, none);
    let found = "BAD     memory: /dev/dax0.0 is the empty seed of a region, and has no memory";
    of_memory(MEMORY, &[SEED], found, none);
    let create =
        "as root: ndctl create-namespace --mode=devdax --region=region3. It makes a device-DAX";
    of_memory(MEMORY, &[SEED, SPACE], found, create);
}

/// Promise: the remedy is never the command that has failed.
#[test]
fn memory_that_fails_is_not_its_own_remedy() {
    let found = "BAD     memory: /dev/dax0.0 does not exist";
    let log = "look for the cause in the kernel's log, as root: dmesg";
    of_memory(MEMORY, &[DEVDAX], found, log);
    let gone: Tree<'_> = &[("dev/dax0.0", ""), ("sys/bus/dax/devices/dax1.0/size", "0")];
    let found = "BAD     memory: /dev/dax0.0 is a file without a device";
    of_memory(
        MEMORY,
        &[gone, SPACE],
        found,
        "as root: ndctl create-namespace --mode=devdax --region=region3. It makes a device-DAX",
    );
}

#[test]
fn drivers_that_are_missing_have_their_commands() {
    let size: Tree<'_> = &[("sys/bus/dax/devices/dax0.0/size", "270532608")];
    of_memory(
        &[],
        &[size],
        NOT_GIVEN,
        "as root: modprobe device_dax. It makes /dev/dax0.0 usable",
    );
    let loaded: Tree<'_> = &[("sys/bus/dax/drivers/device_dax/", "")];
    of_memory(
        &[],
        &[size, loaded],
        NOT_GIVEN,
        "as root: daxctl enable-device dax0.0",
    );
    let found = "BAD     memory: /dev/dax0.0 is disabled: no driver has it";
    of_memory(
        MEMORY,
        &[size, loaded],
        found,
        "as root: daxctl enable-device dax0.0",
    );
    let no_file: Tree<'_> = &[("sys/bus/dax/drivers/device_dax/dax0.0/", "")];
    let udev = "the kernel has /dev/dax0.0, and /dev has not: look for udev or for a /dev of your own (PrivateDevices= of a \
         systemd unit)";
    of_memory(&[], &[size, no_file], NOT_GIVEN, udev);
    let container: Tree<'_> = &[(".dockerenv", "")];
    let give = "give it to the container: --device /dev/dax0.0";
    of_memory(&[], &[size, no_file, container], NOT_GIVEN, give);
}

/// The modes and states that `ndctl list` shows.
#[test]
fn namespaces_have_the_remedies_of_their_modes() {
    let convert = |mode: &str| {
        format!(
            "make a device-DAX out of namespace3.0 ({mode}, 270532608 bytes). THIS DESTROYS its data. As root: ndctl \
             create-namespace --force --reconfig=namespace3.0 --mode=devdax"
        )
    };
    let namespace = |mode: &'static str| {
        [
            ("sys/bus/nd/devices/namespace3.0/mode", mode),
            ("sys/bus/nd/devices/namespace3.0/size", "270532608"),
            ("sys/bus/nd/devices/namespace3.0/holder", "holder3.0"),
            ("sys/bus/nd/devices/region3/available_size", "0"),
            ("sys/bus/nd/drivers/nd_region/region3/", ""),
        ]
    };
    for (mode, name) in [("memory", "fsdax"), ("safe", "sector"), ("raw", "raw")] {
        let bound = [("sys/bus/nd/drivers/nd_pmem/holder3.0/", "")];
        of_memory(&[], &[&namespace(mode), &bound], NOT_GIVEN, &convert(name));
        let disabled = format!(
            "namespace3.0 ({name}, 270532608 bytes) is disabled. As root: ndctl enable-namespace namespace3.0, which keeps \
             its data. Then run `rpma doctor` again"
        );
        of_memory(&[], &[&namespace(mode)], NOT_GIVEN, &disabled);
        let read_only = [("sys/bus/nd/devices/region3/read_only", "1")];
        let other = "region3 is read-only, and no program can write to it: mend a module with a fault that a line above \
                     names, use another host, or make it writable in the settings of its platform";
        of_memory(&[], &[&namespace(mode), &read_only], NOT_GIVEN, other);
    }
    // A namespace in use comes last.
    let mounted: Tree<'_> = &[
        ("sys/bus/nd/devices/holder3.0/block/pmem3/", ""),
        ("proc/self/mounts", "/dev/pmem3 /srv/log btrfs rw 0 0\n"),
    ];
    let other: Tree<'_> = &[
        ("sys/bus/nd/drivers/nd_pmem/holder3.0/", ""),
        ("sys/bus/nd/drivers/nd_pmem/namespace4.0/", ""),
        ("sys/bus/nd/devices/namespace4.0/mode", "memory"),
        ("sys/bus/nd/devices/namespace4.0/size", "270532608"),
    ];
    let other_remedy = convert("fsdax").replace("namespace3.0", "namespace4.0");
    of_memory(
        &[],
        &[&namespace("memory"), mounted, other],
        NOT_GIVEN,
        &other_remedy,
    );
    // Its driver is not there.
    let enable = "namespace3.0 (devdax, 270532608 bytes) is disabled. As root: ndctl enable-namespace namespace3.0, which \
                  keeps its data. Then run `rpma doctor` again";
    of_memory(&[], &[&namespace("dax")], NOT_GIVEN, enable);
    // After `ndctl disable-namespace` (Linux 6.12), with and without a label that has a class.
    let class: Tree<'_> = &[("sys/bus/nd/devices/namespace3.0/holder_class", "dax\n")];
    of_memory(&[], &[&namespace("raw"), class], NOT_GIVEN, enable);
    let disabled = [
        ("sys/bus/nd/devices/region3/available_size", "270532608"),
        ("sys/bus/nd/drivers/nd_region/other/", ""),
    ];
    of_memory(
        &[],
        &[&disabled],
        NOT_GIVEN,
        "as root: ndctl enable-region region3",
    );
}

/// A namespace of the mode fsdax with this block device, and more files.
fn fsdax(more: Tree<'_>) -> Vec<(&str, &str)> {
    let namespace = [
        ("sys/bus/nd/devices/namespace3.0/mode", "memory"),
        ("sys/bus/nd/devices/namespace3.0/size", "270532608"),
        ("sys/bus/nd/devices/namespace3.0/holder", "pfn3.0"),
        ("sys/bus/nd/devices/pfn3.0/block/pmem3/", ""),
        ("sys/bus/nd/devices/region3/available_size", "0"),
        ("sys/bus/nd/drivers/nd_region/region3/", ""),
        ("sys/bus/nd/drivers/nd_pmem/pfn3.0/", ""),
    ];
    [&namespace, more].concat()
}

const IN_USE: &str = "all persistent memory is in use. A device-DAX out of namespace3.0 (fsdax, 270532608 bytes) needs the \
                      end of each use, and loses its data: ";

/// Promise: no remedy takes memory that is in use, or fails with EBUSY. It names the use.
#[test]
fn memory_in_use_has_its_uses_named() {
    for (files, uses) in [
        (
            &[(
                "proc/self/mounts",
                "/dev/pmem3 /srv/log btrfs rw 0 0\n/dev/pmem3 /second btrfs rw 0 0\n",
            )][..],
            "/dev/pmem3 is mounted on /srv/log; /dev/pmem3 is mounted on /second",
        ),
        (
            &[
                ("sys/class/block/pmem3/pmem3p1/partition", "1"),
                (
                    "proc/self/mounts",
                    "/dev/pmem3p1 /srv/my\\040log btrfs rw 0 0\n",
                ),
            ],
            "/dev/pmem3p1 is mounted on /srv/my log",
        ),
        (
            &[
                ("sys/class/block/pmem3/holders/dm-0/", ""),
                ("sys/class/block/dm-0/dm/name", "vg0-log"),
            ],
            "the device vg0-log is made of it",
        ),
        (
            &[("proc/swaps", "Filename Type\n/dev/pmem3 partition\n")],
            "/dev/pmem3 is swap",
        ),
    ] {
        of_memory(&[], &[&fsdax(files)], NOT_GIVEN, &format!("{IN_USE}{uses}"));
    }
}

/// Promise: a remedy that keeps the data comes first, and one that destroys them is marked.
#[test]
fn files_come_before_the_loss_of_data() {
    let or = |first: &str, second: &str| {
        format!("{first}. If the RDMA device has no on-demand paging: {second}")
    };
    let dax: Tree<'_> = &[(
        "proc/self/mounts",
        "/dev/pmem3 /srv/my\\040log xfs rw,dax=always 0 0\n",
    )];
    let remedy = or(
        "name a file on /srv/my log: rpma doctor --memory '/srv/my log/FILE'",
        &format!("{IN_USE}/dev/pmem3 is mounted on /srv/my log"),
    );
    of_memory(&[], &[&fsdax(dax)], NOT_GIVEN, &remedy);
    let twice: Tree<'_> = &[(
        "proc/self/mounts",
        "/dev/pmem3 /srv/log ext4 rw 0 0\n/dev/pmem3 /second ext4 rw 0 0\n",
    )];
    let remedy = or(
        "/srv/log is mounted without DAX. As root, when no program uses it: umount /srv/log; umount /second; mount -o dax \
         /dev/pmem3 /srv/log. Its files stay. Then name one of them with --memory, and add dax to the options in /etc/fstab",
        &format!("{IN_USE}/dev/pmem3 is mounted on /srv/log; /dev/pmem3 is mounted on /second"),
    );
    of_memory(&[], &[&fsdax(twice)], NOT_GIVEN, &remedy);
    let remedy = or(
        "as root: blkid /dev/pmem3. If it shows neither ext4 nor xfs: mkfs.xfs /dev/pmem3, which DESTROYS other data there. \
         Then mount -o dax /dev/pmem3 /mnt, and rpma doctor --memory /mnt/FILE, where FILE has a size (fallocate)",
        "make a device-DAX out of namespace3.0 (fsdax, 270532608 bytes). THIS DESTROYS its data. As root: ndctl \
         create-namespace --force --reconfig=namespace3.0 --mode=devdax",
    );
    of_memory(&[], &[&fsdax(&[])], NOT_GIVEN, &remedy);
}

/// A directory is on a file system with DAX, or not.
#[test]
fn a_directory_leads_to_a_file() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().display().to_string();
    let found = format!("BAD     memory: {path} is a directory");
    let args = ["--memory", &path];
    let mounted = |options: &str| format!("/dev/pmem3 {path} ext4 {options} 0 0\n");
    let (dax, plain) = (mounted("rw,dax=always"), mounted("rw"));
    let remedy = format!(
        "name a file in it, which has a size: fallocate -l SIZE {path}/FILE; rpma doctor --memory {path}/FILE"
    );
    of_memory(
        &args,
        &[&fsdax(&[("proc/self/mounts", &dax)])],
        &found,
        &remedy,
    );
    let lines = diagnose(&args, &[&fsdax(&[("proc/self/mounts", &plain)])])?;
    assert!(!lines.concat().contains("fallocate"), "{lines:#?}");
    Ok(())
}

/// Modules that are locked, or whose memory is in no region.
#[test]
fn modules_without_memory_have_their_commands() {
    let locked: Tree<'_> = &[
        ("sys/bus/nd/devices/nmem0/security", "locked"),
        ("sys/bus/nd/devices/region0/available_size", "0"),
        ("sys/bus/nd/drivers/nd_region/other/", ""),
    ];
    let unlock = "a passphrase locks nmem0. As root, with the key of each: ndctl load-keys; ndctl enable-dimm nmem0; \
                  ndctl enable-region all";
    of_memory(&[], &[locked], NOT_GIVEN, unlock);
    let second: Tree<'_> = &[
        ("sys/bus/nd/devices/nmem1/security", "locked"),
        ("sys/bus/nd/devices/nmem2/security", "unlocked"),
    ];
    let unlock = "a passphrase locks nmem0, nmem1. As root, with the key of each: ndctl load-keys; ndctl \
                  enable-dimm nmem0 nmem1; ndctl enable-region all";
    of_memory(&[], &[locked, second], NOT_GIVEN, unlock);
    let apart: Tree<'_> = &[
        ("sys/bus/nd/devices/nmem0/security", "disabled"),
        ("sys/bus/nd/devices/nmem1/", ""),
    ];
    let platform = "no region has the memory of nmem0, nmem1. For Optane, `ipmctl show -memoryresources` shows its use, as \
                    root. If the modules had data, look at their slots and the platform's log first. Otherwise make a \
                    region in the settings of the platform, which DESTROYS the data on all modules, and takes their memory \
                    from the system. For Optane, as root: ipmctl create -goal PersistentMemoryType=AppDirect, and start \
                    the host again";
    of_memory(&[], &[apart], NOT_GIVEN, platform);
}

#[test]
fn a_kernel_without_device_dax_has_its_package() {
    let size: Tree<'_> = &[
        ("sys/bus/dax/devices/dax0.0/size", "270532608"),
        ("proc/sys/kernel/osrelease", "6.12.1"),
        (
            "lib/modules/6.12.1/modules.dep",
            "kernel/drivers/dax/kmem.ko:\n",
        ),
    ];
    let lines = diagnose(&[], &[size]).expect("a tree");
    let line = lines
        .iter()
        .find(|line| line.contains("has no device_dax: install the kernel package"));
    assert!(line.is_some(), "{lines:#?}");
}
