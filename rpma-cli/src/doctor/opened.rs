//! Devices that the library has opened, and their abilities.

use std::fmt;

use rpma::{Device, Peer};

use super::remedies;
use crate::facts::Facts;
use crate::report::Finding;

/// An open device.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) peer: Peer,
    /// The addresses that lead to it.
    pub(super) addresses: Vec<String>,
    /// It cannot register the memory that was given.
    pub(super) refuses: bool,
}

impl Opened {
    pub(super) fn new(device: &Device, address: &str) -> rpma::Result<Self> {
        Ok(Self {
            peer: Peer::new(device)?,
            addresses: vec![address.into()],
            refuses: false,
        })
    }

    pub(super) fn name(&self) -> &str {
        self.peer.get_device_name()
    }
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.addresses.join(", "))
    }
}

pub(super) fn native_operations(devices: &[Opened], facts: &Facts) -> Vec<Finding> {
    const CHECK: &str = "native operations";
    let finding = |device: &Opened| {
        let (flush, write) = (
            device.peer.is_native_flush_capable(),
            device.peer.is_native_atomic_write_capable(),
        );
        let name = device.name();
        if flush && write {
            return Finding::good(
                CHECK,
                format!("{name} has native flush and native atomic write"),
            );
        }
        let (flush, write) = (has(flush), has(write));
        let found = format!(
            "{name}: native flush {flush}, native atomic write {write}; rpma uses a read and a plain write in the \
             place of a missing one"
        );
        match facts.rdma_core.built_with {
            Some(old) if old < 45 => {
                Finding::note(CHECK, found).with_remedy(remedies::OLD_RDMA_CORE)
            }
            _ => Finding::note(CHECK, found),
        }
    };
    devices.iter().map(finding).collect()
}

fn has(it: bool) -> &'static str {
    if it { "yes" } else { "no" }
}

pub(super) fn on_demand_paging(devices: &[Opened]) -> Vec<Finding> {
    const CHECK: &str = "on-demand paging";
    let finding = |device: &Opened| {
        let name = device.name();
        if device.peer.is_odp_capable() {
            Finding::good(
                CHECK,
                format!("{name} has it: files on a DAX file system can be registered"),
            )
        } else {
            Finding::note(
                CHECK,
                format!(
                    "{name} has none: no file on a DAX file system can be registered, and a device-DAX can"
                ),
            )
        }
    };
    devices.iter().map(finding).collect()
}

/// The devices whose messages travel over iWARP.
pub(super) fn iwarp(devices: &[Opened]) -> Vec<Finding> {
    let devices = devices.iter().filter(|device| device.peer.is_iwarp());
    let finding = |device: &Opened| {
        let found = format!(
            "{}: a write or a message completes without an answer of the peer, so a refused one is reported late; no \
             immediate data, no native flush, no retries for a message without a receive (docs/failures.md#iwarp); \
             a peer can write to the destinations of reads (docs/security.md)",
            device.name()
        );
        Finding::note("iWARP", found)
    };
    devices.map(finding).collect()
}
