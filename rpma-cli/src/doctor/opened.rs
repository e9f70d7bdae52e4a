//! Devices that the library has opened, and their abilities.

use rpma::{Device, Peer};

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

/// An ability of devices: the check, whether a device has it, and the words for both answers.
type Ability = (&'static str, fn(&Peer) -> bool, &'static str, &'static str);

const ABILITIES: [Ability; 2] = [
    (
        "native operations",
        |peer| peer.is_native_flush_capable() && peer.is_native_atomic_write_capable(),
        "has native flush and native atomic write",
        "lacks native flush or native atomic write; rpma uses a read and a plain write in the place of a missing one",
    ),
    (
        "on-demand paging",
        Peer::is_odp_capable,
        "has it: files on a DAX file system can be registered",
        "has none: no file on a DAX file system can be registered, and a device-DAX can",
    ),
];

pub(super) fn abilities(devices: &[Opened]) -> Vec<Finding> {
    let finding = |(check, has, yes, no): Ability| {
        devices.iter().map(move |device| match has(&device.peer) {
            true => Finding::good(check, format!("{} {yes}", device.name())),
            false => Finding::note(check, format!("{} {no}", device.name())),
        })
    };
    ABILITIES.into_iter().flat_map(finding).collect()
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
