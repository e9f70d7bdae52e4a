//! Device tests on a device: its addresses, and the kernel's count of objects.
//!
//! `cargo xtask test` runs these tests in its guest and sets the `RPMA_TEST_…` variables. A device
//! that is not there is a failure, never a skip.

use super::Result;
use super::failed::after_error;
use std::collections::BTreeMap;
use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The IPv4 address of the RDMA device.
pub(crate) fn addr() -> String {
    variable(
        "RPMA_TEST_ADDR",
        "an IPv4 address of this host's RDMA device",
    )
}

/// The IPv6 address of the RDMA device.
pub(crate) fn addr6() -> String {
    variable(
        "RPMA_TEST_ADDR6",
        "an IPv6 address of this host's RDMA device",
    )
}

/// An IPv4 address of another RDMA device of this host.
pub(crate) fn other_addr() -> String {
    variable(
        "RPMA_TEST_OTHER_ADDR",
        "an IPv4 address of a second RDMA device of this host",
    )
}

/// A device-DAX device with contents that the tests may destroy.
pub(crate) fn devdax() -> String {
    variable(
        "RPMA_TEST_DEVDAX",
        "a device-DAX device (/dev/dax…) whose contents may be destroyed",
    )
}

/// A directory on a DAX file system.
pub(crate) fn fsdax() -> String {
    variable("RPMA_TEST_FSDAX", "a directory on a DAX file system")
}

/// A directory on an ordinary ext4 file system.
pub(crate) fn ext4() -> String {
    variable(
        "RPMA_TEST_EXT4",
        "a directory on an ordinary ext4 file system",
    )
}

fn variable(name: &str, what: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("set {name} to {what}, or use `cargo xtask test`"))
}

/// Runs a test without counting objects. (A simulated one makes its fabric here.)
pub(crate) fn on_fabric<T>(test: impl FnOnce() -> T) -> T {
    test()
}

/// Runs the work of a thread of a test. (On a simulated fabric a thread has to choose its host.)
pub(crate) fn here<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    run
}

/// The kernel's number of objects is as expected when this is dropped, also if the test has failed.
///
/// Destroying is partly asynchronous, so the count may take a moment to come down.
#[must_use = "objects are counted when it is dropped"]
pub(crate) struct Counted(BTreeMap<String, u64>);

impl Counted {
    /// So many objects more are left, of each kind.
    pub(crate) fn leaving(left: &[(&str, u64)]) -> Self {
        // Without a device, this panics with the remedy.
        addr();
        let mut expected = objects().expect("a count");
        for (kind, count) in left {
            *expected.entry((*kind).to_owned()).or_default() += count;
        }
        Self(expected)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !thread::panicking() {
            let there = objects().expect("a count");
            if there == self.0 {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "objects leak: {:?} expected, {there:?} there{}",
                self.0,
                after_error()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// How many objects of each kind all processes have on all devices, except for contexts: librdmacm
/// keeps a device open for as long as the process runs.
pub(crate) fn objects() -> Result<BTreeMap<String, u64>> {
    let output = Command::new("rdma").args(["resource", "show"]).output()?;
    assert!(
        output.status.success(),
        "`rdma resource show` works: {output:?}"
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        // 0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        for pair in words.chunks_exact(2) {
            if pair[0] != "ctx" {
                let count: u64 = pair[1].parse()?;
                *counts.entry(pair[0].to_owned()).or_default() += count;
            }
        }
    }
    assert!(counts.contains_key("qp"), "no RDMA device: {text:?}");
    Ok(counts)
}
