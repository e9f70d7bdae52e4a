//! This host's network interfaces and their addresses, from sysfs and procfs: librdmacm finds a
//! device by an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Files, Kernel, ModuleState, drivers};

/// More than a usual host has. Each one is tried.
const MOST: usize = 256;

/// An address, and its interface if one is known.
type Address = (IpAddr, Option<String>);

/// The addresses of this host as text, with their scope if they have one.
pub(super) fn local_addresses(files: &Files) -> Vec<String> {
    let mut texts = Vec::new();
    for address in addresses(files) {
        let text = match address {
            (IpAddr::V6(ip), Some(interface)) if ip.is_unicast_link_local() => {
                format!("{ip}%{interface}")
            }
            (ip, _) => ip.to_string(),
        };
        if !texts.contains(&text) && texts.len() < MOST {
            texts.push(text);
        }
    }
    texts
}

/// The addresses of this host, without loopback. `fib_trie` has no interfaces, and the routes of the
/// addresses' networks have them.
pub(super) fn addresses(files: &Files) -> Vec<Address> {
    let lines = |table| files.lines(table).into_iter().flatten();
    let routes: Vec<_> = lines("proc/net/route")
        .filter_map(|line| route(&line))
        .collect();
    let mut found: Vec<Address> = Vec::new();
    for own in v4(lines("proc/net/fib_trie")) {
        found.push((own.into(), None));
        for (interface, network, mask) in &routes {
            if own.to_bits() & mask == *network {
                found.push((own.into(), Some(interface.clone())));
            }
        }
    }
    found.extend(lines("proc/net/if_inet6").filter_map(|line| v6(&line)));
    found.retain(|(ip, _)| !ip.is_loopback());
    found
}

/// A local address in `fib_trie` is a leaf, `|-- 10.77.0.1`, with a line `/32 host LOCAL` below.
fn v4(lines: impl Iterator<Item = String>) -> Vec<Ipv4Addr> {
    let (mut leaf, mut found) = (None, Vec::new());
    for line in lines {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" && found.len() < 2 * MOST {
            found.extend(leaf);
        }
    }
    found
}

/// A line of `if_inet6`: the address, the index, the prefix, the scope, the flags, and the name of
/// the interface.
fn v6(line: &str) -> Option<Address> {
    let mut fields = line.split_whitespace();
    let (digits, interface) = (fields.next()?, fields.nth(4)?);
    let bits = u128::from_str_radix(digits, 16).ok()?;
    Some((Ipv6Addr::from_bits(bits).into(), Some(interface.into())))
}

/// The Ethernet interfaces that are up: first those with an address, and adapters before virtual
/// interfaces.
pub(super) fn ethernet(files: &Files) -> Vec<String> {
    let addresses = addresses(files);
    let mut names = files.names(NET);
    names.retain(|name| {
        let word = |file| files.word(format!("{NET}/{name}/{file}"));
        // The state also needs a cable.
        let has_state = matches!(word("operstate").as_deref(), Some("up" | "unknown"));
        let is_ethernet = word("type").as_deref() == Some(ARPHRD_ETHER);
        is_ethernet && has_state && is_set_up(files, name) == Some(true)
    });
    names.sort_by_key(|name| {
        let is_virtual = !files.exists(format!("{NET}/{name}/device"));
        let has_address = addresses
            .iter()
            .any(|(ip, of)| ip.is_ipv4() && of.as_ref() == Some(name));
        (!has_address, is_virtual)
    });
    names
}

const NET: &str = "sys/class/net";
const ARPHRD_ETHER: &str = "1";

/// An adapter of Ethernet that could have a device.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) interface: String,
    /// Its module for RDMA.
    pub(crate) module: &'static str,
    pub(crate) is_loaded: bool,
}

pub(super) fn adapter(files: &Files, kernel: &Kernel) -> Option<Adapter> {
    files.names(NET).into_iter().find_map(|interface| {
        let driver = files.driver(format!("{NET}/{interface}/device"))?;
        let module = drivers::module(&driver)?;
        Some(Adapter {
            interface,
            module,
            is_loaded: kernel.state(files, module) == ModuleState::Loaded,
        })
    })
}

/// A network adapter that the kernel has given away, to a guest or a program: its place on the bus,
/// and the driver that has it.
pub(super) fn given_away(files: &Files) -> Option<(String, String)> {
    const PCI: &str = "sys/bus/pci/devices";
    files.names(PCI).into_iter().find_map(|place| {
        let class = files.word(format!("{PCI}/{place}/class"))?;
        // Ethernet, and InfiniBand.
        let is_network = class.starts_with("0x0200") || class.starts_with("0x0207");
        let driver = files
            .driver(format!("{PCI}/{place}"))
            .filter(|_| is_network)?;
        let others = ["vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub"];
        others.contains(&&*driver).then_some((place, driver))
    })
}

/// The lowest flag is `IFF_UP`, which the operator sets.
pub(super) fn is_set_up(files: &Files, name: &str) -> Option<bool> {
    let flags = files.word(format!("{NET}/{name}/flags"))?;
    let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
    Some(flags & 1 == 1)
}

/// A line of `route`: the interface, the network and, as its eighth field, the mask.
fn route(line: &str) -> Option<(String, u32, u32)> {
    let mut fields = line.split_whitespace();
    let (interface, network) = (fields.next()?, fields.next()?);
    let mask = route_number(fields.nth(5)?).filter(|mask| *mask != 0)?;
    Some((interface.to_owned(), route_number(network)?, mask))
}

/// The bytes of an address in the order of the network, as one number of this machine.
fn route_number(digits: &str) -> Option<u32> {
    let number = u32::from_str_radix(digits, 16).ok()?;
    Some(u32::from_be_bytes(number.to_ne_bytes()))
}

/// An address that may have a scope.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((address, _)) => address.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::files::tests::tree;
    use super::*;

    const FIB_TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
        |-- 192.0.2.2
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
Local:
  +-- 0.0.0.0/0 3 0 5
     |-- 192.0.2.2
        /32 host LOCAL
";

    const IF_INET6: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
spoilt
";

    #[test]
    fn addresses_are_read_from_both_tables() -> io::Result<()> {
        let tree = tree(&[
            ("proc/net/fib_trie", FIB_TRIE),
            ("proc/net/if_inet6", IF_INET6),
        ])?;
        let found = local_addresses(&Files::new(tree.path()));
        assert_eq!(found, ["192.0.2.2", "fe80::fc:ff:fe00:1%eth0", "fd00::2"]);
        Ok(())
    }

    /// No address leads to soft-RoCE on an interface without one.
    #[cfg(target_endian = "little")]
    #[test]
    fn an_interface_that_is_up_and_has_an_address_comes_first() -> io::Result<()> {
        const ROUTE: &str = "\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU
roce0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0
br0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0
roce0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0
spoilt
";
        let mut paths = vec![
            ("proc/net/fib_trie".to_owned(), FIB_TRIE),
            ("proc/net/route".to_owned(), ROUTE),
        ];
        for (name, kind, flags, state) in [
            ("lo", "772", "0x9", "unknown"),
            ("ib0", "32", "0x1003", "up"),
            ("br0", "1", "0x1003", "up"),
            ("a0", "1", "0x1003", "up"),
            ("down0", "1", "0x1002", "down"),
            ("nocable0", "1", "0x1003", "down"),
            ("roce0", "1", "0x1003", "up"),
        ] {
            let at = |file| format!("sys/class/net/{name}/{file}");
            paths.extend([
                (at("type"), kind),
                (at("flags"), flags),
                (at("operstate"), state),
            ]);
        }
        for adapter in ["a0", "roce0"] {
            paths.push((format!("sys/class/net/{adapter}/device/"), ""));
        }
        let paths: Vec<_> = paths.iter().map(|(path, text)| (&**path, *text)).collect();
        let found = ethernet(&Files::new(tree(&paths)?.path()));
        assert_eq!(found, ["roce0", "br0", "a0"]);
        Ok(())
    }

    #[test]
    fn missing_tables_have_no_addresses() -> io::Result<()> {
        assert!(local_addresses(&Files::new(tree(&[])?.path())).is_empty());
        assert!(ethernet(&Files::new(tree(&[])?.path())).is_empty());
        Ok(())
    }

    #[test]
    fn an_address_can_have_a_scope() {
        assert_eq!(
            parse("fe80::1%eth0"),
            Some(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)))
        );
        assert_eq!(parse("127.0.0.1"), Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        assert_eq!(parse("localhost"), None);
    }
}
