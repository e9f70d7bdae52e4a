//! [`List`]: the servers of a log, as each of them has it.
//!
//! A server has two places for the list, and each write goes to the one that does not have the
//! present list. So a write that is torn leaves the list before it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::format::word;

/// The offsets of the two places for the list.
pub(crate) const LISTS: [u64; 2] = [256, 256 + LEN as u64];
/// The bytes of a place: 64 servers, and the one of a change.
pub(crate) const LEN: usize = HEAD + (64 + 1) * MEMBER + 16;
/// The bytes before the servers, and the bytes of a server.
const HEAD: usize = 16;
const MEMBER: usize = 32;
/// No place changes.
const STABLE: u16 = u16::MAX;

/// A server in the list of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The address at which it was reached last.
    pub addr: SocketAddr,
    /// The identity of its copy: [`Header::server`](crate::format::Header::server). 0: no server
    /// was reached there yet.
    pub server: u64,
}

/// The list of a log's servers, or a change of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The epoch of the writer that wrote it, in 24 bits, and a count of that writer, in 40 bits. No
    /// two lists of a log have the same number.
    pub number: u64,
    /// The servers. In a change, those before it.
    pub members: Vec<Member>,
    /// In a change, the place in `members` and the server after it.
    pub change: Option<(usize, Member)>,
}

impl List {
    /// The first list of a writer with this epoch.
    pub(crate) fn first(epoch: u64, members: Vec<Member>) -> Self {
        Self {
            number: epoch << 40,
            members,
            change: None,
        }
    }

    /// The epoch of the writer that wrote it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.number >> 40
    }

    /// The servers after the change, if there is one.
    #[must_use]
    pub fn last(&self) -> Vec<Member> {
        let mut members = self.members.clone();
        if let Some((place, member)) = self.change {
            members[place] = member;
        }
        members
    }

    /// Whether a copy with this identity is that of a server of the list, before or after the
    /// change.
    pub(crate) fn has(&self, server: u64) -> bool {
        let change = self.change.iter().map(|(_, member)| member);
        let mut all = self.members.iter().chain(change);
        all.any(|member| member.server == server)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (place, change) = self.change.unzip();
        let place = place.map_or(STABLE, |place| place as u16);
        let mut bytes = vec![0; 4];
        bytes.extend((self.members.len() as u16).to_le_bytes());
        bytes.extend(place.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        for member in change.iter().chain(&self.members) {
            bytes.extend(encode_member(member));
        }
        let sum = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The list in one place, if it is whole.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (count, place) = (usize::from(half(4)), half(6));
        let members = count + usize::from(place != STABLE);
        let len = HEAD + members * MEMBER;
        let is_whole = (1..=64).contains(&count)
            && (place == STABLE || usize::from(place) < count)
            && word(bytes, 0) as u32 == crc32c::crc32c(&bytes[4..len]);
        if !is_whole {
            return None;
        }
        let members = bytes[HEAD..len].chunks_exact(MEMBER);
        let mut members: Vec<_> = members.map(decode_member).collect();
        let change = (place != STABLE).then(|| (usize::from(place), members.remove(0)));
        Some(Self {
            number: word(bytes, 8),
            members,
            change,
        })
    }

    /// The list in the memory of a server, and its place.
    pub(crate) fn find(memory: &[u8]) -> Option<(Self, usize)> {
        let at = |place: usize| &memory[LISTS[place] as usize..][..LEN];
        let found = [0, 1].map(|place| Self::decode(at(place)).map(|list| (list, place)));
        let found = found.into_iter().flatten();
        found.max_by_key(|(list, _)| list.number)
    }
}

/// The same address, also as one of IPv6.
pub(crate) fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip().to_canonical(), one.port()) == (other.ip().to_canonical(), other.port())
}

fn encode_member(member: &Member) -> [u8; MEMBER] {
    let mut bytes = [0; MEMBER];
    let (ip, scope) = match member.addr {
        SocketAddr::V4(addr) => (addr.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(addr) => (*addr.ip(), addr.scope_id()),
    };
    bytes[..8].copy_from_slice(&member.server.to_le_bytes());
    bytes[8..24].copy_from_slice(&ip.octets());
    bytes[24..26].copy_from_slice(&member.addr.port().to_le_bytes());
    bytes[28..].copy_from_slice(&scope.to_le_bytes());
    bytes
}

fn decode_member(bytes: &[u8]) -> Member {
    let ip: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
    let port = u16::from_le_bytes([bytes[24], bytes[25]]);
    let scope = u32::from_le_bytes(bytes[28..32].try_into().expect("4 bytes"));
    let addr = match Ipv6Addr::from(ip).to_canonical() {
        IpAddr::V4(ip) => (ip, port).into(),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    };
    Member {
        addr,
        server: word(bytes, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(number: u64, change: bool) -> List {
        let member = |n: u16| Member {
            addr: match n % 2 {
                0 => ([10, 0, 0, n as u8], n).into(),
                _ => SocketAddrV6::new(Ipv6Addr::from(u128::from(n) << 96), n, 0, 7).into(),
            },
            server: u64::from(n) << 50,
        };
        List {
            number,
            members: (0..64).map(member).collect(),
            change: change.then(|| (63, member(64))),
        }
    }

    fn memory(lists: [&List; 2]) -> Vec<u8> {
        let mut memory = vec![0; LISTS[1] as usize + LEN];
        for (at, list) in LISTS.into_iter().zip(lists) {
            let bytes = list.encode();
            memory[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        memory
    }

    /// Promise: the newer of two lists is found; if it is torn at any byte, the older one.
    #[test]
    fn a_torn_list_is_the_one_before() {
        for change in [true, false] {
            let lists = [list(7, change), list(8, !change)];
            let memory = memory([&lists[0], &lists[1]]);
            assert_eq!(List::find(&memory), Some((lists[1].clone(), 1)));
            for at in (0..lists[1].encode().len()).step_by(3) {
                let mut torn = memory.clone();
                torn[LISTS[1] as usize + at] ^= 0x10;
                assert_eq!(List::find(&torn), Some((lists[0].clone(), 0)), "{at}");
            }
        }
        assert_eq!(List::find(&vec![0; LISTS[1] as usize + LEN]), None);
    }
}
