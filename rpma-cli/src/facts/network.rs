//! The addresses of this host's network interfaces, from procfs: librdmacm finds a device by one
//! of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Files;

/// More than a usual host has. Each one is tried.
const MOST: usize = 256;

/// The addresses of this host as text, with their scope if they have one. The loopback addresses
/// are left out.
pub(crate) fn local_addresses(files: &Files) -> Vec<String> {
    let mut addresses = Vec::new();
    for address in v4(files).into_iter().chain(v6(files)) {
        if !addresses.contains(&address) && addresses.len() < MOST {
            addresses.push(address);
        }
    }
    addresses
}

/// A local address in `fib_trie` is a leaf, `|-- 10.77.0.1`, with a line `/32 host LOCAL` below.
fn v4(files: &Files) -> Vec<String> {
    let Ok(lines) = files.lines("proc/net/fib_trie") else {
        return Vec::new();
    };
    let (mut leaf, mut found) = (None, Vec::new());
    for line in lines {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf.filter(|address| !address.is_loopback()));
        }
        if found.len() > 2 * MOST {
            break;
        }
    }
    found.iter().map(Ipv4Addr::to_string).collect()
}

/// A line of `if_inet6`: the address, the index, the prefix, the scope, the flags, and the name of
/// the interface.
fn v6(files: &Files) -> Vec<String> {
    let Ok(lines) = files.lines("proc/net/if_inet6") else {
        return Vec::new();
    };
    let address = |line: String| {
        let mut fields = line.split_whitespace();
        let (digits, interface) = (fields.next()?, fields.nth(4)?);
        let address = Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).ok()?);
        match (address.is_loopback(), address.is_unicast_link_local()) {
            (true, _) => None,
            (false, true) => Some(format!("{address}%{interface}")),
            (false, false) => Some(address.to_string()),
        }
    };
    lines.filter_map(address).take(MOST).collect()
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

    #[test]
    fn missing_tables_have_no_addresses() -> io::Result<()> {
        assert!(local_addresses(&Files::new(tree(&[])?.path())).is_empty());
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
