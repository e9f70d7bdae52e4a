//! The abilities and the limits of a hostile peer: each claim of docs/security.md.
//!
//! The attacker forges descriptors and has all rights in its own eyes. The victim has a second
//! region and another connection, which must not notice.

use std::sync::Arc;

use rpma::serve::{Directory, Served, Server, ServerCfg};

use crate::common::prelude::*;

const SIZE: usize = 4096;
/// A server with two regions and an honest client.
struct Victim {
    peer: Peer,
    target: Mr<Vec<u8>>,
    other: Mr<Vec<u8>>,
    honest: Pair,
}

impl Victim {
    fn new(usage: MrUsage) -> Result<Self> {
        let peer = peer()?;
        let region = |seed, usage| Mr::reg(&peer, pattern(SIZE, seed), usage);
        Ok(Self {
            target: region(1, usage)?,
            other: region(2, MrUsage::WRITE_DST | MrUsage::READ_SRC)?,
            honest: Pair::new(&peer)?,
            peer,
        })
    }

    /// Attacks with each operation, each over a connection of its own (the first refusal ends it),
    /// and checks that the bytes are unchanged.
    fn withstands(&self, what: &str, place: RemoteSlice, attacks: &[Attack]) -> Result {
        for &attack in attacks {
            for fallback in [false, true] {
                let attacker = peer()?;
                let status = run(attack, &attacker, &self.peer, place, fallback)?;
                assert_eq!(status, refused(), "{what}: {attack:?}");
            }
        }
        self.goes_on(what)?;
        Ok(())
    }

    fn goes_on(&self, what: &str) -> Result {
        assert!(
            contents(&self.target)? == pattern(SIZE, 1),
            "{what}: the region has changed"
        );
        let source = Mr::reg(&self.peer, pattern(SIZE, 2), MrUsage::WRITE_SRC)?;
        let (to, from) = (remote(&self.other).slice(..)?, source.slice(..)?);
        let client = &self.honest.client;
        client.write(to, from, ALWAYS, 1)?;
        completion(client)?.result().expect(what);
        assert!(
            contents(&self.other)? == pattern(SIZE, 2),
            "{what}: another region has changed"
        );
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    Write,
    Read,
    AtomicWrite,
    Flush,
}

use Attack::{AtomicWrite, Flush, Read, Write};

const ALL: &[Attack] = &[Write, Read, AtomicWrite, Flush];

/// Makes the attack, and returns how the operation ended; the read bytes must not be the victim's.
fn run(
    attack: Attack,
    attacker: &Peer,
    victim: &Peer,
    place: RemoteSlice,
    fallback: bool,
) -> Result<WcStatus> {
    let cfg = ConnCfg::new().set_force_fallback(fallback).clone();
    let pair = Pair::of_peers((attacker, &cfg), (victim, &ConnCfg::new()))?;
    let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST;
    let bytes = Mr::reg(attacker, vec![0xEE; SIZE], usage)?;
    let local = bytes.slice(..place.len() as usize)?;
    post(&pair.client, attack, place, local)?;
    let status = outcome(&pair.client, 1)?;
    if status != WcStatus::SUCCESS {
        assert!(contents(&bytes)? == [0xEE; SIZE], "nothing was read");
    }
    Ok(status)
}

fn post(
    conn: &Conn,
    attack: Attack,
    place: RemoteSlice,
    local: MrSlice<'_>,
) -> rpma::Result<Posted> {
    match attack {
        Write => conn.write(place, local, ALWAYS, 1),
        Read => conn.read(local, place, ALWAYS, 1),
        AtomicWrite => conn.atomic_write(place, &[0xEE; 8], ALWAYS, 1),
        Flush => conn.flush(place, FlushType::Visibility, ALWAYS, 1),
    }
}

/// So many bytes, so far from the beginning of a region, with its key (except for the bits of
/// `guess`) and every right.
fn forge<M: RegisterableMemory>(mr: &Mr<M>, shift: i64, guess: u32, len: u64) -> RemoteSlice {
    let region = forged(mr, |bytes| {
        let address = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        bytes[..8].copy_from_slice(&address.wrapping_add_signed(shift).to_le_bytes());
        bytes[16..20].copy_from_slice(&(key_of(mr) ^ guess).to_le_bytes());
        bytes[20] = MrUsage::all().bits();
    });
    region.slice(..len).expect("inside")
}

/// The first 8 bytes of a region, with every right.
fn beginning<M: RegisterableMemory>(mr: &Mr<M>) -> RemoteSlice {
    forge(mr, 0, 0, 8)
}

fn key_of<M: RegisterableMemory>(mr: &Mr<M>) -> u32 {
    let descriptor = mr.get_descriptor();
    u32::from_le_bytes(descriptor[16..20].try_into().expect("4 bytes"))
}

/// All usages of memory that is volatile.
const EVERYTHING: MrUsage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);

#[test]
fn nothing_outside_a_region() -> Result {
    let _test = device_test();
    let victim = Victim::new(EVERYTHING)?;
    let (size, here) = (SIZE as i64, victim.target.get_ptr().addr() as i64);
    let there = victim.other.get_ptr().addr() as i64;
    for (what, shift) in [
        ("8 bytes before it", -8),
        ("8 bytes behind it", size),
        ("another region by its key", there - here),
    ] {
        victim.withstands(what, forge(&victim.target, shift, 0, 8), ALL)?;
    }
    // An atomic write has 8 bytes at a multiple of 8, and a fallback flush reads the first 8:
    // neither can cross the end.
    let place = forge(&victim.target, size - 8, 0, 16);
    victim.withstands("across its end", place, &[Write, Read])?;
    Ok(())
}

/// All usages that give a peer no right. On iWARP a destination of reads does, as documented.
fn local_usages() -> MrUsage {
    let mut usages = MrUsage::SEND | MrUsage::RECV | MrUsage::WRITE_SRC;
    usages.set(MrUsage::READ_DST, !is_iwarp());
    usages
}

#[test]
fn nothing_without_the_right() -> Result {
    let _test = device_test();
    for (usage, attacks) in [
        (MrUsage::READ_SRC, &[Write, AtomicWrite][..]),
        (MrUsage::WRITE_DST, &[Read, Flush]),
        (MrUsage::FLUSH_TYPE_VISIBILITY, &[Write, AtomicWrite]),
        (local_usages(), ALL),
    ] {
        let victim = Victim::new(usage)?;
        victim.withstands(&usage.to_string(), beginning(&victim.target), attacks)?;
    }
    Ok(())
}

#[test]
fn nothing_after_the_registration_has_ended() -> Result {
    let _test = device_test();
    let mut victim = Victim::new(EVERYTHING)?;
    let place = beginning(&victim.target);
    // The memory stays where it is, and gets another key.
    let memory = victim.target.dereg()?;
    victim.target = Mr::reg(&victim.peer, memory, MrUsage::WRITE_DST)?;
    victim.withstands("a stale key", place, ALL)?;
    Ok(())
}

#[test]
fn nothing_with_the_key_of_another_peer_of_the_same_host() -> Result {
    let _test = device_test();
    let victim = Victim::new(EVERYTHING)?;
    // The host has a second domain of trust, and the attacker a connection to that.
    let elsewhere = Victim::new(MrUsage::WRITE_DST)?;
    let place = beginning(&victim.target);
    elsewhere.withstands("a key of another Peer", place, ALL)?;
    victim.goes_on("another Peer is attacked")?;
    Ok(())
}

#[test]
fn a_wrong_guess_of_a_key_changes_nothing() -> Result {
    let _test = device_test();
    let victim = Victim::new(EVERYTHING)?;
    for guess in 1..16 {
        let key = key_of(&victim.target) ^ guess;
        if key != key_of(&victim.other) {
            let place = forge(&victim.target, 0, guess, 8);
            victim.withstands(&format!("{key:#x}"), place, &[Write])?;
        }
    }
    Ok(())
}

/// The attacks that RDMA does not prevent, as listed on the page: a descriptor is good for every
/// connection of its `Peer`, and the right to flush is one to read.
#[test]
fn a_descriptor_is_a_key_for_everybody_who_has_it() -> Result {
    let _test = device_test();
    let victim = Victim::new(MrUsage::WRITE_DST)?;
    let place = remote(&victim.target).slice(..8)?;
    // A client to which it was never sent.
    let status = run(Write, &peer()?, &victim.peer, place, false)?;
    assert_eq!(status, WcStatus::SUCCESS);
    assert_eq!(contents(&victim.target)?[..8], [0xEE; 8]);

    let victim = Victim::new(MrUsage::FLUSH_TYPE_VISIBILITY)?;
    let place = beginning(&victim.target);
    // A region that may only be flushed.
    let status = run(Read, &peer()?, &victim.peer, place, false)?;
    assert_eq!(status, WcStatus::SUCCESS);
    Ok(())
}

/// A server that keeps a `Peer` for each key: a client with the descriptor of another client's
/// memory reaches no byte with it, in both directions.
#[test]
fn clients_of_a_server_cannot_use_each_others_keys() -> Result {
    let _test = device_test();
    let all = PmemMap::open(devdax(), 3 * SIZE)?;
    let directory = all.part(..SIZE)?;
    // An earlier test may have left one.
    directory.store_u64(0, 0)?;
    let directory = Directory::create(directory, 2)?;
    let device = Device::from_addr(&addr(), Side::Local)?;
    let own = Peer::new(&device)?;
    let mut server = Server::new(listen(&own)?, directory, &ServerCfg::new())?;
    let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
    let parts = [1, 2].map(|key| {
        let peer = Peer::new(&device).expect("a peer");
        let map = all.part(key * SIZE..(key + 1) * SIZE).expect("inside");
        map.write_at(0, &pattern(SIZE, key as u64)).expect("inside");
        let region = Mr::reg(&peer, map, usage).expect("registers");
        (peer, Arc::new(region))
    });
    // Each refusal of the device ends a connection: each attack has one of its own.
    let mut epoch = 0;
    for &attack in ALL {
        for [key, other] in [[1, 2], [2, 1]] {
            epoch += 1;
            let attacker = peer()?;
            let req = ConnReq::new(&attacker, &addr(), server.get_port(), &ConnCfg::new());
            let mut offer = Offer::default();
            offer.set_identity(Identity {
                key: key as u64,
                epoch,
                instance: 1,
            });
            let offer = offer.encode(Offer::CONNECT)?;
            let conn = req?.connect(&offer)?;
            let (peer, region) = &parts[key - 1];
            loop {
                let served = server.next(&mut [Wc::default()], LIMIT);
                if let Some(Served::Asks(asked)) = served? {
                    server.admit(asked, peer, region, &[])?;
                    break;
                }
            }
            let conn = conn.wait_established(LIMIT)?;
            let offer = conn.offer()?;
            assert_eq!(offer.regions()[0], remote(region), "its own memory");
            let usage = MrUsage::WRITE_SRC | MrUsage::READ_DST;
            let bytes = Mr::reg(&attacker, vec![0xEE; SIZE], usage)?;
            let foreign = beginning(&parts[other - 1].1);
            post(&conn, attack, foreign, bytes.slice(..8)?)?;
            assert_eq!(outcome(&conn, 1)?, refused(), "{attack:?}");
            assert!(contents(&bytes)? == [0xEE; SIZE], "nothing was read");
            for (n, (_, region)) in parts.iter().enumerate() {
                let is_own = contents(region)? == pattern(SIZE, n as u64 + 1);
                assert!(is_own, "{attack:?}");
            }
        }
    }
    Ok(())
}
