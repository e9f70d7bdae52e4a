//! [`Host`]: one side of a check, as its report has it: with facts that may be published, and no
//! others. The other side is made of the same facts again, because its text comes over a network.

use std::fmt;
use std::path::Path;

use rpma::{Durable, Peer};
use serde::{Deserialize, Serialize};

use crate::args::Ddio;
use crate::facts::published::{self, LINKS};
use crate::facts::{Facts, drivers};

/// A host of a check. It has no name and no address: the report may be published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) rpma: String,
    pub(crate) kernel: Option<String>,
    /// The version that is loaded.
    pub(crate) rdma_core: Option<u32>,
    /// The version of its headers.
    pub(crate) built_with: Option<u32>,
    pub(crate) device: String,
    /// The driver of the device.
    pub(crate) description: Option<String>,
    pub(crate) board: Option<String>,
    /// Software devices have none.
    pub(crate) firmware: Option<String>,
    pub(crate) link: Option<String>,
    pub(crate) rate: Option<String>,
    /// The MTU of the network interface, in bytes.
    pub(crate) mtu: Option<u32>,
    pub(crate) native_flush: bool,
    pub(crate) native_atomic_write: bool,
    pub(crate) on_demand_paging: bool,
    /// The memory that the server offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Memory>,
}

/// The memory of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) kind: String,
    /// The persistence domain and its source, in words.
    pub(crate) domain: String,
    /// The operator's word for an adapter.
    pub(crate) ddio: Ddio,
    /// The only declaration that fits this memory.
    #[serde(with = "DurableName")]
    pub(crate) durable: Durable,
    /// Why it is not registered for persistent flushes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_persistent: Option<String>,
}

/// The names of a [`Durable`] in reports and messages.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Durable", rename_all = "kebab-case")]
#[non_exhaustive]
enum DurableName {
    Nothing,
    NativeFlushes,
    DirectWrites,
}

impl Host {
    /// This host, with the device of a peer.
    pub(crate) fn of(peer: &Peer) -> Self {
        // A simulated host has no files.
        let facts = match cfg!(feature = "sim") {
            true => Facts::default(),
            false => Facts::read(Path::new("/")),
        };
        let device = facts.device(peer.get_device_name()).cloned();
        let device = device.unwrap_or_default();
        let port = device.ports.iter().find(|port| port.is_active()).cloned();
        let port = port.unwrap_or_default();
        Self {
            rpma: env!("CARGO_PKG_VERSION").to_owned(),
            rdma_core: facts.rdma_core.loaded,
            built_with: facts.rdma_core.built_with,
            kernel: facts.kernel,
            device: peer.get_device_name().to_owned(),
            description: device.driver.map(Into::into),
            board: device.board,
            firmware: device.firmware,
            mtu: port.interfaces.first().and_then(|interface| interface.mtu),
            link: port.link_layer.map(Into::into),
            rate: port.rate,
            native_flush: peer.is_native_flush_capable(),
            native_atomic_write: peer.is_native_atomic_write_capable(),
            on_demand_paging: peer.is_odp_capable(),
            memory: None,
        }
        .published()
    }

    /// The same host without texts that could have names, addresses or serial numbers.
    pub(crate) fn published(self) -> Self {
        let driver = self.description.as_deref().and_then(drivers::name);
        let link = self.link.as_deref();
        let link = link.and_then(|text| published::known(LINKS, text));
        Self {
            rpma: published::version(&self.rpma).unwrap_or_default(),
            kernel: self.kernel.as_deref().and_then(published::version),
            device: published::device_name(&self.device),
            description: driver.map(Into::into),
            board: self.board.as_deref().and_then(published::board),
            firmware: self.firmware.as_deref().and_then(published::version),
            link: link.map(Into::into),
            rate: self.rate.as_deref().and_then(published::rate),
            memory: self.memory.map(Memory::published),
            ..self
        }
    }

    /// The facts of a host that a report names, in its order, with the known ones.
    pub(crate) fn facts(&self) -> [(&'static str, Option<String>); 14] {
        let native = |native| Some(if native { "native" } else { "fallback" }.to_owned());
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        [
            ("device", Some(self.device.clone())),
            ("description", self.description.clone()),
            ("board", self.board.clone()),
            ("firmware", self.firmware.clone()),
            ("link", self.link.clone()),
            ("link rate", self.rate.clone()),
            ("MTU", number(self.mtu)),
            ("flush", native(self.native_flush)),
            ("atomic write", native(self.native_atomic_write)),
            ("kernel", self.kernel.clone()),
            ("rdma-core", number(self.rdma_core)),
            ("rdma-core headers", number(self.built_with)),
            ("rpma", Some(self.rpma.clone())),
            ("memory", self.memory.as_ref().map(ToString::to_string)),
        ]
    }
}

/// The kinds of memory and the persistence domains, as the library names them.
const KINDS: &str = "device-DAX|file on a DAX file system|ordinary file|ordinary memory";
const DOMAINS: &str = "unknown|memory and processor caches (eADR)|memory and its controller (ADR)|virtio-pmem|volatile";

/// Why memory is not registered for persistent flushes.
pub(crate) const VOLATILE: &str =
    "this memory loses its data with the power. A device-DAX keeps them";
pub(crate) const REFUSED: &str =
    "the server's device does not register its memory for persistent flushes";

impl Memory {
    /// The domain's source is a path, which is left out.
    fn published(self) -> Self {
        let domain = self.domain.split(": ").next().unwrap_or_default();
        let why = self.not_persistent.as_deref();
        let word = |list, word, other| published::known(list, word).unwrap_or(other).to_owned();
        Self {
            kind: word(KINDS, &self.kind, "unknown"),
            domain: word(DOMAINS, domain, "unknown"),
            not_persistent: why.map(|why| word(VOLATILE, why, REFUSED)),
            ..self
        }
    }
}

/// The hosts of a run: a line for each of them, and one with the facts that no host knows.
pub(crate) fn lines(client: &Host, servers: &[&Host]) -> Vec<String> {
    let mut unknown = client.facts().map(|(fact, _)| fact).to_vec();
    let servers = servers.iter().map(|server| ("server", *server));
    let mut lines = Vec::new();
    for (name, host) in [("client", client)].into_iter().chain(servers) {
        let mut known = Vec::new();
        for (fact, value) in host.facts() {
            if let Some(value) = value {
                known.push(format!("{fact} {value}"));
                unknown.retain(|unknown| *unknown != fact);
            }
        }
        lines.push(format!("{name}: {}", known.join(", ")));
    }
    if !unknown.is_empty() {
        lines.push(format!("unknown: {}", unknown.join(", ")));
    }
    lines
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, durable by {}; persistence domain: {}",
            self.kind, self.durable, self.domain
        )?;
        match &self.not_persistent {
            Some(why) => write!(f, "; no persistent flushes: {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose texts are all this one.
    fn with(text: &str) -> Host {
        let some = || Some(text.to_owned());
        Host {
            rpma: text.into(),
            kernel: some(),
            rdma_core: Some(56),
            built_with: Some(56),
            device: text.into(),
            description: some(),
            board: some(),
            firmware: some(),
            link: some(),
            rate: some(),
            mtu: Some(1500),
            native_flush: true,
            native_atomic_write: true,
            on_demand_paging: true,
            memory: Some(Memory {
                kind: text.into(),
                domain: format!("{text}: {text}"),
                ddio: Ddio::On,
                durable: Durable::Nothing,
                not_persistent: some(),
            }),
        }
    }

    /// Promise: a report has no text of the other host that could be a name, an address, a path or a
    /// serial number.
    #[test]
    fn a_host_of_a_report_has_no_names() -> serde_json::Result<()> {
        for secret in published::tests::SECRETS {
            let host = with(secret).published();
            let text = format!(
                "{} {:?}",
                serde_json::to_string(&host)?,
                lines(&host, &[&host])
            );
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        Ok(())
    }

    #[test]
    fn the_facts_of_a_host_stay() {
        let host = Host {
            rpma: "0.1.0".into(),
            kernel: Some("6.12.118".into()),
            device: "mlx5_0".into(),
            description: Some("mlx5_core".into()),
            board: Some("MT_0000000223".into()),
            firmware: Some("20.31.1014".into()),
            link: Some("Ethernet".into()),
            rate: Some("100 Gb/sec".into()),
            memory: Some(Memory {
                kind: "device-DAX".into(),
                domain: "virtio-pmem".into(),
                ddio: Ddio::Off,
                durable: Durable::Nothing,
                not_persistent: Some(VOLATILE.into()),
            }),
            ..with("")
        };
        assert_eq!(host.clone().published(), host);
    }
}
