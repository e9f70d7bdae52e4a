//! The facts of a host that a report may have: numbers, and words of closed lists. No name, address,
//! path or serial number is among them, because a text that has another form is left out.

use std::net::SocketAddr;

use serde::{Serialize, Serializer};

use super::drivers;

/// For a field of a report.
pub(super) fn name<S: Serializer>(name: &str, report: S) -> Result<S::Ok, S::Error> {
    report.serialize_str(&device_name(name))
}

pub(super) fn release<S: Serializer>(text: &Option<String>, report: S) -> Result<S::Ok, S::Error> {
    text.as_deref().and_then(version).serialize(report)
}

pub(crate) const LINKS: &str = "InfiniBand|Ethernet|Unspecified";

/// The word of a closed list.
pub(crate) fn known(list: &'static str, word: &str) -> Option<&'static str> {
    list.split('|').find(|known| *known == word)
}

/// The first three numbers of a version. An address has four.
pub(crate) fn version(text: &str) -> Option<String> {
    let numbers = text.split('.').map(|part| {
        let digits = part.split(|char: char| !char.is_ascii_digit());
        digits.take(1).next().unwrap_or_default()
    });
    let numbers: Vec<&str> = numbers.take(3).collect();
    let is_number = |number: &&str| (1..=5).contains(&number.len());
    (numbers.len() > 1 && numbers.iter().all(is_number)).then(|| numbers.join("."))
}

/// `MT_0000000223` is the kind of a board, and `MT4123` that of its chip.
pub(crate) fn board(text: &str) -> Option<String> {
    let digits = text.trim_start_matches(|char: char| char.is_ascii_uppercase());
    let letters = text.len() - digits.len();
    let digits = digits.strip_prefix('_').unwrap_or(digits);
    let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_kind = digits.len() == 10 && digits.starts_with("0000");
    let is_chip = text.starts_with("MT") && (4..=5).contains(&digits.len());
    (is_digits && (2..=3).contains(&letters) && (is_kind || is_chip)).then(|| text.to_owned())
}

/// `100 Gb/sec (4X EDR)`.
pub(crate) fn rate(text: &str) -> Option<String> {
    let (number, _) = text.split_once(" Gb/sec")?;
    let number: f64 = number.parse().ok()?;
    let is_rate = (0.0..1e4).contains(&number);
    is_rate.then(|| format!("{number} Gb/sec"))
}

/// A text without the addresses and the paths that it has.
pub(crate) fn scrubbed(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    let word = |word: &str| {
        let bare =
            word.trim_matches(|char: char| char.is_whitespace() || ",;:.\"'()`".contains(char));
        match is_private(bare) {
            true => word.replace(bare, "(left out)"),
            false => word.to_owned(),
        }
    };
    words.map(word).collect()
}

/// An address of a network, of hardware or of a port, or an absolute path.
fn is_private(word: &str) -> bool {
    let groups = word.split([':', '-']).collect::<Vec<_>>();
    let is_hexadecimal = |group: &&str| {
        (2..=4).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_hardware = groups.len() >= 4 && groups.iter().all(is_hexadecimal);
    let is_address = super::parse_address(word).is_some() || word.parse::<SocketAddr>().is_ok();
    let is_path = word.len() > 1 && word.starts_with('/');
    is_hardware || is_address || is_path
}

/// The names that the kernel and systemd give. A rule of udev can put a GUID into a name, and an
/// operator that of the host.
pub(crate) fn device_name(name: &str) -> String {
    let is_kernels = drivers::beginnings().any(|prefix| is_numbered(name, prefix));
    let is_known = is_kernels || is_of_slot(name);
    if is_known { name } else { "renamed" }.to_owned()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|number| {
        (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// `rocep59s0f1`: the place of the hardware, in numbers with letters. A name with a GUID has an `x`.
fn is_of_slot(name: &str) -> bool {
    let kinds = ["roce", "ib", "iw", "opa"];
    let place = kinds.iter().find_map(|kind| name.strip_prefix(kind));
    let is_place = |place: &str| {
        let is_part = |char: char| char.is_ascii_digit() || "Pposfdv".contains(char);
        place.starts_with(['P', 'p', 'o', 's'])
            && place.ends_with(|char: char| char.is_ascii_digit())
            && place.chars().all(is_part)
    };
    place.is_some_and(|place| place.len() <= 12 && is_place(place))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;

    use super::super::Facts;
    use super::super::files::tests::tree;
    use super::*;

    /// Texts of which none may be in a report.
    pub(crate) const SECRETS: [&str; 9] = [
        "db7.example.org",
        "ann",
        "192.0.2.77",
        "fd77::abcd:1",
        "0c:42:a1:77:77:77",
        "0c42:a103:0077:7777",
        "MT2033X77777",
        "/home/ann/pmem",
        "S77N777777",
    ];

    /// The files that facts are read from. A name in a path is the secret one as well.
    const FILES: [&str; 40] = [
        "proc/sys/kernel/osrelease",
        "proc/sys/kernel/hostname",
        "proc/self/maps",
        "proc/self/limits",
        "proc/1/environ",
        "run/systemd/container",
        "run/host/container-manager",
        "etc/passwd",
        "sys/class/infiniband_verbs/uverbs0/ibdev",
        "sys/class/infiniband/NAME/node_type",
        "sys/class/infiniband/NAME/node_desc",
        "sys/class/infiniband/NAME/node_guid",
        "sys/class/infiniband/NAME/fw_ver",
        "sys/class/infiniband/NAME/board_id",
        "sys/class/infiniband/NAME/hca_type",
        "sys/class/infiniband/NAME/parent",
        "sys/class/infiniband/NAME/device/vendor",
        "sys/class/infiniband/NAME/device/device",
        "sys/class/infiniband/NAME/device/net/NAME",
        "sys/class/infiniband/NAME/ports/1/state",
        "sys/class/infiniband/NAME/ports/1/phys_state",
        "sys/class/infiniband/NAME/ports/1/link_layer",
        "sys/class/infiniband/NAME/ports/1/rate",
        "sys/class/infiniband/NAME/ports/1/gids/0",
        "sys/class/infiniband/NAME/ports/1/gid_attrs/types/0",
        "sys/class/infiniband/NAME/ports/1/gid_attrs/ndevs/0",
        "sys/class/net/NAME/mtu",
        "sys/class/net/NAME/flags",
        "sys/class/net/NAME/operstate",
        "sys/class/net/NAME/address",
        "sys/bus/dax/devices/dax0.0/size",
        "sys/bus/nd/devices/namespace0.0/mode",
        "sys/bus/nd/devices/namespace0.0/size",
        "sys/bus/nd/devices/namespace0.0/holder",
        "sys/bus/nd/devices/namespace0.0/block/NAME",
        "sys/bus/nd/devices/nmem0/security",
        "sys/class/block/NAME/dm/name",
        "proc/self/mounts",
        "sys/bus/nd/devices/region0/available_size",
        "sys/bus/nd/devices/region0/read_only",
    ];

    fn json(facts: &Facts) -> String {
        serde_json::to_string(facts).expect("JSON")
    }

    /// Promise: no text of a host comes into a report, whichever file has it.
    #[test]
    fn names_and_addresses_are_not_published() -> io::Result<()> {
        for secret in SECRETS {
            let name = secret.replace('/', "-");
            let files = FILES.map(|file| (file.replace("NAME", &name), secret));
            let mut files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
            let driver = format!("sys/class/infiniband/{name}/device/driver");
            let target = format!("-> ../drivers/{name}");
            files.push((&driver, &target));
            let facts = Facts::read(tree(&files)?.path());
            assert_eq!(facts.devices.len(), 1);
            let text = json(&facts);
            for secret in [secret, &name] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
        Ok(())
    }

    /// The gids of RoCE have the address of the hardware in them.
    #[test]
    fn gids_are_not_published() -> io::Result<()> {
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let files = [
            (
                format!("{port}/gids/0"),
                "fe80:0000:0000:0000:0e42:a1ff:fe77:7777",
            ),
            (format!("{port}/gid_attrs/types/0"), "RoCE v2"),
        ];
        let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let facts = Facts::read(tree(&files)?.path());
        assert_eq!(facts.devices[0].ports[0].gids.len(), 1);
        let text = json(&facts);
        assert!(text.contains("RoCE v2") && !text.contains("7777"), "{text}");
        Ok(())
    }

    #[test]
    fn a_text_loses_its_addresses_and_paths() {
        for (text, scrubbed_text) in [
            (
                "none of 1: 192.0.2.7:7204: no route",
                "none of 1: (left out): no route",
            ),
            ("by [fd00::2]:7204, then", "by (left out), then"),
            ("fe80::1%eth0 (10.0.0.1)", "(left out) ((left out))"),
            (
                "gid fe80:0000:0000:0000:0e42:a1ff:fe77:7777",
                "gid (left out)",
            ),
            (
                "guid 0c42:a103:0077:7777, mac 0c:42:a1:77:77:77",
                "guid (left out), mac (left out)",
            ),
            ("/dev/dax0.0 and a/b", "(left out) and a/b"),
            (
                "byte 7 of 64 is 0x1f (REM_OP_ERR, 11)",
                "byte 7 of 64 is 0x1f (REM_OP_ERR, 11)",
            ),
        ] {
            assert_eq!(scrubbed(text), scrubbed_text);
        }
    }

    #[test]
    fn names_of_the_kernel_are_published() {
        for name in [
            "mlx5_0",
            "rxe0",
            "bnxt_re12",
            "rocep59s0f1",
            "ibP2p1s0",
            "roceo1",
        ] {
            assert_eq!(device_name(name), name);
        }
        // The form with a GUID, and those of an operator.
        for name in [
            "rocex0c42a1777777",
            "ibx525400c0fe123455",
            "mlx5_bond_db7",
            "db7",
            "rxe",
            "rxe1234",
            "rocep",
        ] {
            assert_eq!(device_name(name), "renamed", "{name}");
        }
    }

    #[test]
    fn versions_are_three_numbers() {
        for (text, published) in [
            ("6.12.118+deb13-amd64", Some("6.12.118")),
            ("6.1-db7", Some("6.1")),
            ("20.31.1014", Some("20.31.1014")),
            ("230.0.157.0", Some("230.0.157")),
            ("db7.1.2", None),
            ("777777777777", None),
            ("", None),
        ] {
            assert_eq!(version(text).as_deref(), published, "{text}");
        }
    }

    #[test]
    fn boards_and_rates_have_their_forms() {
        for (text, is_published) in [
            ("MT_0000000223", true),
            ("DEL0000000004", true),
            ("MT4123", true),
            ("MT2033X77777", false),
            ("MT_7777777777", false),
            ("DB0007", false),
        ] {
            assert_eq!(board(text).is_some(), is_published, "{text}");
        }
        assert_eq!(rate("2.5 Gb/sec (1X SDR)").as_deref(), Some("2.5 Gb/sec"));
        assert_eq!(rate("db7 Gb/sec"), None);
    }
}
