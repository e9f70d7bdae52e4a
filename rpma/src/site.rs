//! [`Site`]: the memory of an [`Offer`](crate::Offer), its host, and the host's failure domain.
//!
//! An address or a length is a locator: one server has several addresses. Two copies in one memory,
//! or on one host, are lost together. So each of the three has an identity of its own, which
//! travels in the offer. All are hashes with a fixed key: a boot id does not leave its host, and
//! builds with other versions of Rust compute the same numbers.

use std::fmt;
use std::fs;
use std::hash::Hasher;
use std::num::NonZeroU64;

use siphasher::sip::SipHasher24;

use crate::error::{Error, Result};

/// The fixed key of all hashes. Another key would be another version of the offer.
const KEY: [u8; 16] = *b"rpma identity 01";
/// The file of the kernel with the identity of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The most bytes of the name of a failure domain.
const MOST: usize = 32;

fn hash(kind: u8, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&KEY);
    hasher.write(&[kind]);
    hasher.write(bytes);
    hasher.finish()
}

/// The bytes of a UUID in its text form: 32 hexadecimal digits, which are not all 0, and 4 hyphens.
/// Two spellings of one UUID give the same bytes.
pub(crate) fn uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.trim_end().split('-').collect();
    let lengths = groups.iter().map(|group| group.len());
    let digits = groups.concat();
    if !lengths.eq([8, 4, 4, 4, 12]) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (number != 0).then(|| number.to_be_bytes())
}

/// The identity of this host. `None` if the kernel does not show it.
pub(crate) fn this_host() -> Option<u64> {
    #[cfg(feature = "sim")]
    if let Some(boot) = rpma_sys::boot_here() {
        return boot.map(|boot| hash(b'h', &boot));
    }
    of_boot_id(&fs::read_to_string(BOOT_ID).ok()?)
}

/// The identity of a simulated host by its boot, or of this host.
pub(crate) fn of_boot(simulated: Option<[u8; 24]>) -> Option<u64> {
    match simulated {
        Some(boot) => Some(hash(b'h', &boot)),
        None => this_host(),
    }
}

fn of_boot_id(text: &str) -> Option<u64> {
    uuid(text).map(|uuid| hash(b'h', &uuid))
}

/// The identity of a memory by the random number in the header of its directory.
pub(crate) fn of_directory(identity: NonZeroU64) -> u64 {
    hash(b'd', &identity.get().to_le_bytes())
}

/// The identity of a memory by bytes that the kernel shows for it.
pub(crate) fn of_kernel(bytes: &[u8]) -> u64 {
    hash(b'k', bytes)
}

pub(crate) fn of_domain(name: &str) -> Result<u64> {
    if name.trim() != name || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "the failure domain {name:?} has white space at an end, or control characters: \
             remove them"
        )));
    }
    match name.len() {
        1..=MOST => Ok(hash(b'f', name.as_bytes())),
        len => Err(Error::invalid(format!(
            "the name of a failure domain has {len} bytes: it must have 1 to {MOST}"
        ))),
    }
}

/// The identities of a memory, of its host, and of the host's failure domain, as far as they are
/// known: a part of an [`Offer`](crate::Offer).
///
/// [`Replicas::add`](crate::commit::Replicas::add) compares them, so that two copies are on two
/// hosts. An identity that cannot be read is absent, and is shown as unknown.
///
/// **Of the memory.** It stays over a reboot, and is no path.
///
/// | memory | identity |
/// |---|---|
/// | with a [`Directory`](crate::serve::Directory) | the random number in its header |
/// | a device-DAX device | the `uuid` of its namespace in sysfs |
/// | a file | the UUID of its file system (`FS_IOC_GETFSUUID`, `/dev/disk/by-uuid`), and its inode; none on btrfs and bcachefs, where two files may have one inode |
/// | any other | the name that the program gives ([`set_memory_name`](Self::set_memory_name)), or none |
///
/// [Two copies must be on two hosts](crate::guide::persistence#two-copies-must-be-on-two-hosts)
/// has the rules for copies, virtual machines and containers.
///
/// **Of the host.** It is that of one boot: it answers the question whether one loss of power ends
/// both. It comes from the kernel's boot id (`/proc/sys/kernel/random/boot_id`, [proc(5)]), so it
/// changes with each boot. On a simulated fabric, the identity is that of the thread's host: new
/// after a power cut, and the same after `kill`. A thread on no host has none.
///
/// **Of the failure domain.** It has the name of everything that fails together with a host, such
/// as a rack, a power supply, or the machine of virtual machines. The operator gives it.
///
/// [proc(5)]: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    pub(crate) memory: Option<u64>,
    pub(crate) host: Option<u64>,
    pub(crate) domain: Option<u64>,
}

impl Site {
    /// Reads the identity of this host. The site has no other identity. [`of`](Self::of) reads that
    /// of the memory as well.
    #[must_use]
    pub fn here() -> Self {
        Self {
            host: this_host(),
            ..Self::default()
        }
    }

    /// Sets the identity of the memory from a name that no other memory has, such as a serial
    /// number.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name of 0 bytes.
    pub fn set_memory_name(&mut self, name: &[u8]) -> Result<&mut Self> {
        if name.is_empty() {
            return Err(Error::invalid("the name of a memory has 0 bytes"));
        }
        self.memory = Some(hash(b'n', name));
        Ok(self)
    }

    /// Sets the failure domain of the host from its name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name of 0 or more than 32 bytes, with white space at an
    /// end, or with control characters: a name that was read from a file with its end of line would
    /// be another failure domain.
    pub fn set_failure_domain(&mut self, name: &str) -> Result<&mut Self> {
        self.domain = Some(of_domain(name)?);
        Ok(self)
    }

    /// The identity of the memory, if it is known.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// The identity of the host, if it is known.
    #[must_use]
    pub fn host(&self) -> Option<u64> {
        self.host
    }

    /// The identity of the host's failure domain, if it is known.
    #[must_use]
    pub fn failure_domain(&self) -> Option<u64> {
        self.domain
    }

    /// The numbers of the offer: memory, host, failure domain.
    pub(crate) fn to_words(self) -> [Option<u64>; 3] {
        [self.memory, self.host, self.domain]
    }

    pub(crate) fn from_words([memory, host, domain]: [Option<u64>; 3]) -> Self {
        Self {
            memory,
            host,
            domain,
        }
    }
}

/// Each identity has 16 hexadecimal digits.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["memory", "host", "failure domain"];
        for (at, (name, word)) in names.into_iter().zip(self.to_words()).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match word {
                Some(word) => write!(f, "{comma}{name} {word:016x}")?,
                None => write!(f, "{comma}{name} unknown")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "12345678-9abc-def0-1234-56789abcdef0\n";

    /// Peers with other builds of this library compare them.
    #[test]
    fn the_numbers_are_these() {
        let mut site = Site::default();
        site.set_memory_name(b"shelf 3").expect("a name");
        site.set_failure_domain("rack 7").expect("a name");
        site.host = of_boot_id(BOOT);
        assert_eq!(
            site.to_string(),
            "memory 26eaef20f25750ca, host 9b3e01e82057109f, failure domain 9310810e4403a604"
        );
        assert_eq!(Site::from_words(site.to_words()), site);
        assert_eq!(of_directory(NonZeroU64::MIN), 0xf30e_b246_1fa7_e24e);
        let absent = Site::default().to_string();
        assert_eq!(
            absent,
            "memory unknown, host unknown, failure domain unknown"
        );
    }

    /// Promise: an identity that cannot be read is absent, never a constant.
    #[test]
    fn an_unreadable_boot_id_is_absent() {
        for text in [
            "",
            "unknown",
            "00000000-0000-0000-0000-000000000000",
            "12345678-9abc-def0-1234-56789abcdef",
            "12345678-9abc-def0-1234-56789abcdeg0",
            "123456789-abc-def0-1234-56789abcdef0",
            "+2345678-9abc-def0-1234-56789abcdef0",
        ] {
            assert_eq!(of_boot_id(text), None, "{text}");
        }
        assert!(of_boot_id(BOOT).is_some());
        assert_eq!(of_boot_id(BOOT), of_boot_id(BOOT.trim_end()));
        assert_eq!(of_boot_id(BOOT), of_boot_id(&BOOT.to_uppercase()));
    }

    #[test]
    fn names_have_limits() {
        let set = |name: &str| Site::default().set_failure_domain(name).map(drop);
        for name in ["", &"x".repeat(33)] {
            let error = set(name).expect_err("refused");
            let words = format!("has {} bytes: it must have 1 to 32", name.len());
            assert!(error.to_string().contains(&words), "{error}");
        }
        set(&"x".repeat(32)).expect("fits");
        for name in ["rack 7\n", " rack 7", "rack\t7"] {
            let error = set(name).expect_err("refused").to_string();
            assert!(error.contains("white space at an end"), "{error}");
        }
        Site::default().set_memory_name(b"").expect_err("refused");
    }
}
