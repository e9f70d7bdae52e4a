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

/// The identity of one boot of a host: it answers the question whether one loss of power ends both.
///
/// It comes from the kernel's boot id (`/proc/sys/kernel/random/boot_id`, [proc(5)]), so it changes
/// with each boot. All containers of one kernel have the same one. Virtual machines of one machine
/// have one each, and so has a sandbox with a kernel of its own: give these a [`FailureDomain`].
///
/// [proc(5)]: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(u64);

impl HostId {
    /// Reads the identity of this host. `None` if the kernel does not show it.
    ///
    /// On a simulated fabric, it is that of the thread's host: new after a power cut, and the same
    /// after `kill`. A thread on no host has none.
    #[must_use]
    pub fn read() -> Option<Self> {
        #[cfg(feature = "sim")]
        if let Some(boot) = rpma_sys::boot_here() {
            return boot.map(|boot| Self(hash(b'h', &boot)));
        }
        Self::parse(&fs::read_to_string(BOOT_ID).ok()?)
    }

    /// The identity of a simulated host by its boot, or of this host.
    pub(crate) fn of_boot(simulated: Option<[u8; 24]>) -> Option<Self> {
        match simulated {
            Some(boot) => Some(Self(hash(b'h', &boot))),
            None => Self::read(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        uuid(text).map(|uuid| Self(hash(b'h', &uuid)))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of_number(number: u64) -> Self {
        Self(number)
    }
}

/// The identity of one memory, which stays over a reboot and is no path.
///
/// | memory | identity |
/// |---|---|
/// | with a [`Directory`](crate::serve::Directory) | the random number in its header |
/// | a device-DAX device | the `uuid` of its namespace in sysfs |
/// | a file | the UUID of its file system (`FS_IOC_GETFSUUID`, `/dev/disk/by-uuid`), and its inode; none on btrfs and bcachefs, where two files may have one inode |
/// | any other | the name that the program gives ([`named`](Self::named)), or none |
///
/// A copy of a whole file system or of a virtual machine has the identities of the original. So has
/// a copy of a directory, until [`renew_identity`](crate::serve::Directory::renew_identity).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryId(u64);

impl MemoryId {
    /// Makes the identity from a name that no other memory has, such as a serial number.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name of 0 bytes.
    pub fn named(name: &[u8]) -> Result<Self> {
        match name {
            [] => Err(Error::invalid("the name of a memory has 0 bytes")),
            name => Ok(Self(hash(b'n', name))),
        }
    }

    pub(crate) fn of_directory(identity: NonZeroU64) -> Self {
        Self(hash(b'd', &identity.get().to_le_bytes()))
    }

    /// The identity of bytes that the kernel shows for this memory.
    pub(crate) fn of_kernel(bytes: &[u8]) -> Self {
        Self(hash(b'k', bytes))
    }
}

/// The name of everything that fails together with a host, such as a rack, a power supply, or the
/// machine of virtual machines. The operator gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FailureDomain(u64);

impl FailureDomain {
    /// The most bytes of a name.
    pub const MOST: usize = 32;

    /// Makes the failure domain of this name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a name of 0 or more than [`MOST`](Self::MOST) bytes, with white
    /// space at an end, or with control characters: a name that was read from a file with its end of
    /// line would be another failure domain.
    pub fn new(name: &str) -> Result<Self> {
        if name.trim() != name || name.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "the failure domain {name:?} has white space at an end, or control characters: \
                 remove them"
            )));
        }
        match name.len() {
            1..=Self::MOST => Ok(Self(hash(b'f', name.as_bytes()))),
            len => Err(Error::invalid(format!(
                "the name of a failure domain has {len} bytes: it must have 1 to {}",
                Self::MOST
            ))),
        }
    }
}

/// The identities of a memory, of its host, and of the host's failure domain, as far as they are
/// known: a part of an [`Offer`](crate::Offer).
///
/// [`Replicas::add`](crate::commit::Replicas::add) compares them, so that two copies are on two
/// hosts. An identity that cannot be read is absent, and is shown as unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    memory: Option<MemoryId>,
    host: Option<HostId>,
    domain: Option<FailureDomain>,
}

impl Site {
    pub(crate) fn of_host(host: Option<HostId>) -> Self {
        Self {
            host,
            ..Self::default()
        }
    }

    /// Sets the identity of the memory.
    pub fn set_memory(&mut self, memory: MemoryId) -> &mut Self {
        self.memory = Some(memory);
        self
    }

    /// Sets the identity of the host.
    pub fn set_host(&mut self, host: HostId) -> &mut Self {
        self.host = Some(host);
        self
    }

    /// Sets the failure domain of the host.
    pub fn set_failure_domain(&mut self, domain: FailureDomain) -> &mut Self {
        self.domain = Some(domain);
        self
    }

    /// The identity of the memory, if it is known.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryId> {
        self.memory
    }

    /// The identity of the host, if it is known.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        self.host
    }

    /// The failure domain of the host, if it is known.
    #[must_use]
    pub fn failure_domain(&self) -> Option<FailureDomain> {
        self.domain
    }

    /// The numbers of the offer: memory, host, failure domain.
    pub(crate) fn to_words(self) -> [Option<u64>; 3] {
        let Self {
            memory,
            host,
            domain,
        } = self;
        [
            memory.map(|memory| memory.0),
            host.map(|host| host.0),
            domain.map(|domain| domain.0),
        ]
    }

    pub(crate) fn from_words([memory, host, domain]: [Option<u64>; 3]) -> Self {
        Self {
            memory: memory.map(MemoryId),
            host: host.map(HostId),
            domain: domain.map(FailureDomain),
        }
    }
}

macro_rules! shown {
    ($($kind:ident),*) => {$(
        /// 16 hexadecimal digits.
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    )*};
}

shown!(HostId, MemoryId, FailureDomain);

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
        let site = Site {
            memory: Some(MemoryId::named(b"shelf 3").expect("a name")),
            host: HostId::parse(BOOT),
            domain: Some(FailureDomain::new("rack 7").expect("a name")),
        };
        assert_eq!(
            site.to_string(),
            "memory 26eaef20f25750ca, host 9b3e01e82057109f, failure domain 9310810e4403a604"
        );
        assert_eq!(Site::from_words(site.to_words()), site);
        let directory = MemoryId::of_directory(NonZeroU64::MIN).to_string();
        assert_eq!(directory, "f30eb2461fa7e24e");
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
            assert_eq!(HostId::parse(text), None, "{text}");
        }
        assert!(HostId::parse(BOOT).is_some());
        assert_eq!(HostId::parse(BOOT), HostId::parse(BOOT.trim_end()));
        assert_eq!(HostId::parse(BOOT), HostId::parse(&BOOT.to_uppercase()));
    }

    #[test]
    fn names_have_limits() {
        for name in ["", &"x".repeat(33)] {
            let error = FailureDomain::new(name).expect_err("refused");
            let words = format!("has {} bytes: it must have 1 to 32", name.len());
            assert!(error.to_string().contains(&words), "{error}");
        }
        FailureDomain::new(&"x".repeat(32)).expect("fits");
        for name in ["rack 7\n", " rack 7", "rack\t7"] {
            let error = FailureDomain::new(name).expect_err("refused").to_string();
            assert!(error.contains("white space at an end"), "{error}");
        }
        MemoryId::named(b"").expect_err("refused");
    }
}
