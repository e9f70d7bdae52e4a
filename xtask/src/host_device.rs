//! The host's own RDMA device, for `--host`: found in sysfs, or named by the `RPMA_TEST_*`
//! variables that the device tests read.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::output;

const SYSFS: &str = "/sys/class/infiniband";

/// An address of the device, unless the caller has named one. The device tests inherit the caller's
/// settings.
pub(crate) fn test_env() -> Result<Vec<(&'static str, String)>> {
    let mut env = Vec::new();
    if std::env::var_os("RPMA_TEST_ADDR").is_some() {
        return Ok(env);
    }
    let (device, netdev) = active_device()?;
    let Some(address) = address_of(&netdev, "inet")? else {
        bail!(
            "the RDMA device {device} is active but its network interface {netdev} has no IPv4 \
             address: give it one, or set RPMA_TEST_ADDR to an address of the device"
        );
    };
    env.push(("RPMA_TEST_ADDR", address));
    if std::env::var_os("RPMA_TEST_ADDR6").is_none() {
        let address = address_of(&netdev, "inet6")?;
        env.extend(address.map(|address| ("RPMA_TEST_ADDR6", address)));
    }
    Ok(env)
}

/// The first device with an active port and a network interface.
fn active_device() -> Result<(String, String)> {
    let entries = fs::read_dir(SYSFS).into_iter().flatten().flatten();
    let mut devices: Vec<_> = entries.map(|device| device.path()).collect();
    devices.sort();
    for device in &devices {
        let read = |file| fs::read_to_string(device.join("ports/1").join(file)).unwrap_or_default();
        let netdev = read("gid_attrs/ndevs/0").trim().to_owned();
        if read("state").contains("ACTIVE") && !netdev.is_empty() {
            let name = device.strip_prefix(SYSFS)?.display().to_string();
            return Ok((name, netdev));
        }
    }
    if devices.is_empty() {
        bail!(
            "this host has no RDMA device. Load the driver of its adapter, or make a software \
             device on a network interface (modprobe -a rdma_rxe rdma_ucm; rdma link add rxe0 type rxe netdev \
             INTERFACE); or leave out --host to run in the guest, which brings one"
        );
    }
    bail!(
        "this host has no RDMA device with an active port (`rdma link` shows them): bring up its \
         network interface, or leave out --host to run in the guest"
    );
}

/// The first address of an interface that is not link-local.
fn address_of(netdev: &str, family: &str) -> Result<Option<String>> {
    let shown = output(Command::new("ip").args(["-o", "addr", "show", "dev", netdev]));
    let shown = shown.context("`ip` (package iproute2) tells no address; or set RPMA_TEST_ADDR")?;
    Ok(first_address(&shown, family))
}

/// From the output of `ip -o addr`: "2: eth0    inet 10.0.2.15/24 brd 10.0.2.255 scope global
/// eth0".
fn first_address(shown: &str, family: &str) -> Option<String> {
    shown.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word| words.iter().skip_while(|known| **known != word).nth(1);
        let address = after(family)?.split('/').next()?;
        (after("scope") != Some(&"link")).then(|| address.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::first_address;

    #[test]
    fn the_first_address_that_others_can_reach() {
        let shown = "2: eth0    inet 10.0.2.15/24 brd 10.0.2.255 scope global eth0\\ valid_lft\n\
                     2: eth0    inet6 fe80::1/64 scope link \\       valid_lft forever\n\
                     2: eth0    inet6 fd77::1/64 scope global nodad \\  valid_lft forever\n";
        assert_eq!(first_address(shown, "inet").as_deref(), Some("10.0.2.15"));
        assert_eq!(first_address(shown, "inet6").as_deref(), Some("fd77::1"));
        assert_eq!(first_address("", "inet"), None);
    }
}
