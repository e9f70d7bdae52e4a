//! Bad input: one clear error each, sent to the client, and no change.

use std::sync::Arc;

use rpma::commit::{Limits, Method};
use rpma::pmem::{Ddio, DevicePath, Domain};
use rpma::serve::{Directory, Server, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{
    KeyPart, LEN, Site, directory_of, identity, is_refusal, new_directory, offer, offer_by,
    refusal, usage,
};

/// Promise: private data that is no offer with a key is refused as broken, with words, whatever its
/// bytes are, and the writer of the server is not disturbed.
#[test]
fn broken_private_data() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (_writer, client) = site.client(identity(1, 3, 10))?;
    let good = offer(identity(1, 3, 10)).encode(Offer::CONNECT)?;
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let encoded = |offer: Offer| offer.encode(Offer::CONNECT);
    let broken = RefusalCode::Broken;
    for (data, epoch, words) in [
        (vec![], 0, "the peer sent no Offer"),
        (vec![0xA5; 56], 0, "not an offer"),
        (good[..7].to_vec(), 0, "the key is 0"),
        (with(3, 1), 0, "has the version 1"),
        (with(4, 31), 0, "ends inside its identity"),
        (with(5, 0x13), 0, "bits in the byte of its platform"),
        (encoded(Offer::default())?, 0, "the offer has no key"),
        (encoded(offer(identity(0, 1, 1)))?, 0, "the key is 0"),
        (
            encoded(offer(identity(1, u64::MAX, 10)))?,
            3,
            "the epoch is 2^64-1",
        ),
        (
            encoded(offer(identity(2, u64::MAX, 10)))?,
            0,
            "the epoch is 2^64-1",
        ),
    ] {
        site.refused(&data, broken, epoch, words)?;
    }
    let method = encoded(offer_by(identity(1, 3, 10), Method::Server))?;
    site.refused(
        &method,
        RefusalCode::Refused,
        0,
        "no durable commits by server's method",
    )?;
    assert_eq!(site.server.client(1), Some(client));
    site.nothing()?;
    Ok(())
}

/// Promise: a part that a key must not have is refused before any change: the old writer is
/// connected, its identity is kept, and the new one gets the reason.
#[test]
fn wrong_parts() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(2, 2, 4096)?));
    let mut site = Site::with(3, &cfg)?;
    let (_writer, client) = site.client(identity(1, 3, 10))?;
    let (_other, _) = site.client(identity(2, 1, 20))?;
    let free = 3 * LEN;
    let part = |site: &Site, range| site.region(range, usage());
    let elsewhere = {
        let device = Device::from_addr(&other_addr(), Side::Local)?;
        let peer = Peer::new(&device)?;
        let map = site.all.part(free..free + LEN)?;
        let region = Mr::reg(&peer, map, usage())?;
        (peer, region.into())
    };
    let (other_peer, own) = (site.parts[&2].0.clone(), Arc::clone(&site.parts[&3].1));
    let of_the_other = {
        let map = site.all.part(free..free + LEN)?;
        let region = Mr::reg(&other_peer, map, usage())?;
        (other_peer.clone(), region.into())
    };
    let wrong: Vec<(KeyPart, &[u8], &str)> = vec![
        (
            part(&site, free + 8..free + LEN)?,
            b"",
            "at multiples of 64",
        ),
        (part(&site, free..free + 100)?, b"", "has 100 bytes at"),
        (
            part(&site, 2 * LEN..3 * LEN)?,
            b"",
            "overlaps that of the key 0x2",
        ),
        (
            part(&site, 3 * LEN - 64..3 * LEN + 64)?,
            b"",
            "overlaps that of the key 0x2",
        ),
        (
            site.parts[&2].clone(),
            b"",
            "the key 0x2 has the same Peer as this part",
        ),
        (
            of_the_other,
            b"",
            "the key 0x2 has the same Peer as this part",
        ),
        ((other_peer, own), b"", "is registered with another Peer"),
        (
            part(&site, LEN - 64..LEN)?,
            b"",
            "overlaps the memory of the directory",
        ),
        (part(&site, free..free + LEN)?, &[7; 200], "and 196 fit"),
        (elsewhere, b"", "another RDMA device"),
        (
            site.region(free..free + LEN, MrUsage::WRITE_DST)?,
            b"",
            "MrUsage::WRITE_DST and FLUSH_TYPE_PERSISTENT",
        ),
    ];
    for (part, data, words) in wrong {
        let conn =
            site.ask_with(&offer_by(identity(1, 4, 11), Method::Server).encode(Offer::CONNECT)?)?;
        let asked = site.asked()?;
        let refused = site.admit_with(asked, &part, data).expect_err(words);
        let text = refused.to_string();
        assert!(text.contains(words), "{words}: {text}");
        is_refusal(&refused.refusal, RefusalCode::Refused, 3, "");
        assert_eq!(refusal(&conn)?, refused.refusal);
        assert_eq!(site.server.client(1), Some(client), "{words}");
        assert_eq!(site.server.directory().get(1), Some(identity(1, 3, 10)));
    }
    site.nothing()?;
    // Beyond the end there is no part at all.
    let all = PmemMap::open(devdax(), LEN)?;
    let end = all.len();
    let text = invalid(all.part(end - 64..end + 64));
    assert!(text.contains("is not inside"), "{text}");
    Ok(())
}

/// Promise: two admissions of one part: the second one is refused while the first one has a
/// connection.
#[test]
fn two_admissions_of_one_part() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (conn, client) = site.client(identity(1, 1, 10))?;
    for _ in 0..2 {
        let second = site.ask(identity(2, 1, 20))?;
        let asked = site.asked()?;
        let same = site.region(LEN..2 * LEN, usage())?;
        let is_connected = site.server.client(1) == Some(client);
        match site.admit_with(asked, &same, b"") {
            Err(refused) => {
                assert!(is_connected);
                let text = refused.to_string();
                assert!(text.contains("overlaps that of the key 0x1"), "{text}");
                assert_eq!(refusal(&second)?, refused.refusal);
                assert!(site.server.directory().get(2).is_none());
                site.server.cut_off(client).ok_or("connected")?;
            }
            Ok(_) => {
                assert!(!is_connected, "the memory is nobody's");
                event(&second)?;
            }
        }
    }
    drop(conn);
    Ok(())
}

/// Promise: settings that cannot be had are refused before anything has changed.
#[test]
fn wrong_settings() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    for text in [
        invalid(cfg.set_most_clients(0).map(drop)),
        invalid(cfg.set_most_questions(0).map(drop)),
    ] {
        assert!(text.contains("at least 1"), "{text}");
    }
    let mut conn_cfg = ConnCfg::new();
    conn_cfg.set_sq_size(u32::MAX);
    cfg.set_conn(&conn_cfg);
    let mut site = Site::with(1, &cfg)?;
    let conn = site.ask(identity(1, 1, 10))?;
    let asked = site.asked()?;
    let refused = site.admit(asked).expect_err("no such queue");
    assert!(
        matches!(refused.error, Some(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    assert_eq!(refusal(&conn)?.code(), RefusalCode::Refused);
    assert!(site.server.directory().get(1).is_none());
    Ok(())
}

/// Promise: a keep-alive below four of the kernel's own time-outs is refused before anything has
/// changed, with the numbers. The client gets the reason in whole words, with a code that ends its
/// tries.
#[test]
fn a_keep_alive_below_the_kernels_time_outs() -> Result {
    let _test = device_test();
    let mut conn_cfg = ConnCfg::new();
    let short = Duration::from_millis(200);
    conn_cfg.set_keep_alive(Some(short))?;
    let mut cfg = ServerCfg::new();
    cfg.set_conn(&conn_cfg);
    let all = PmemMap::open(devdax(), 2 * LEN)?;
    let mut directory = new_directory(directory_of(&all)?, 2)?;
    directory.keep(identity(1, 3, 10))?;
    let mut site = Site::over(1, &cfg, all, directory)?;
    let conn = site.ask(identity(1, 4, 11))?;
    let asked = site.asked()?;
    let refused = site.admit(asked).expect_err("too short");
    let text = invalid(Err::<(), _>(refused.error.ok_or("one of this side")?));
    for part in ["200ms", "four", "set_keep_alive", "set_ack_timeout"] {
        assert!(text.contains(part), "{text}");
    }
    let words = "the server's keep-alive is below four acknowledgement time-outs: its program \
                 has to raise it (ServerCfg::set_conn)";
    is_refusal(&refused.refusal, RefusalCode::Refused, 3, words);
    assert!(!refused.refusal.code().is_temporary());
    assert_eq!(refusal(&conn)?, refused.refusal);
    assert_eq!(site.server.directory().get(1), Some(identity(1, 3, 10)));
    assert!(site.server.client(1).is_none());
    site.nothing()?;
    Ok(())
}

/// Promise: a directory in memory that does not hold one, a broken one, or one of another version
/// is one clear error. (Its decoder's tests are beside it.)
#[test]
fn wrong_directories() -> Result {
    let _test = device_test();
    let all = PmemMap::open(devdax(), LEN)?;
    let memory = || directory_of(&all);
    let write = |at: usize, bytes: &[u8]| -> Result {
        let memory = memory()?;
        memory.write_at(at, bytes)?;
        memory.persist(..)?;
        Ok(())
    };
    write(0, &[0; LEN])?;
    let text = invalid(Directory::open(memory()?));
    assert!(text.contains("has no directory"), "{text}");
    let mut directory = Directory::create(memory()?, 2)?;
    directory.keep(identity(1, 2, 3))?;
    write(64, &[0xFF; 128])?;
    let directory = Directory::open(memory()?)?;
    let reason = "both its lines are invalid";
    assert!(directory.broken_slots().eq([(0, reason)]), "{directory:?}");
    write(8, &[1])?;
    let text = invalid(Directory::open(memory()?));
    assert!(text.contains("has the version 1"), "{text}");
    write(8, &[3])?;
    let text = invalid(Directory::open(memory()?));
    assert!(text.contains("has the version 3"), "{text}");
    Ok(())
}

/// Promise: a server on a platform where the processor makes nothing durable does not begin to
/// serve commits, and serves without them. The program's own word counts.
#[test]
fn commits_on_memory_that_keeps_nothing() -> Result {
    let _test = device_test();
    let device = Device::from_addr(&addr(), Side::Local)?;
    let peer = Peer::new(&device)?;
    let server = |domain: Domain, commits: bool, vouches: bool| -> Result<_> {
        let all = PmemMap::open(devdax(), LEN)?;
        let path = DevicePath::of(&peer, Ddio::On);
        let mut platform = PeerCfg::for_platform(domain, path);
        if vouches {
            platform.set_processor_persists(true);
        }
        let limits = Limits::new(1, 1, 64)?;
        let mut cfg = ServerCfg::new();
        cfg.set_platform(&platform);
        cfg.set_commits(commits.then_some(limits));
        let ep = listen(&peer)?;
        let directory = new_directory(directory_of(&all)?, 1)?;
        Ok(Server::new(ep, directory, &cfg).map(drop))
    };
    for domain in [Domain::Volatile, Domain::Virtual, Domain::Unknown] {
        let error = server(domain, true, false)?.expect_err("refused");
        assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
        assert!(
            error.to_string().contains("makes nothing durable"),
            "{error}"
        );
        server(domain, false, false)??;
        server(domain, true, true)??;
    }
    server(Domain::MemoryController, true, false)??;
    Ok(())
}
