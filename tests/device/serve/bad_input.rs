//! Bad input: one clear error each, sent to the client, and no change.

use std::sync::Arc;

use rpma::commit::{Limits, Method};
use rpma::pmem::Ddio;
use rpma::serve::{Directory, Server, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{
    KeyPart, LEN, Site, data, directory_of, identity, is_refusal, new_directory, offer_by, refusal,
    usage,
};

/// Promise: private data that is no offer with a key is refused as broken, with words, whatever its
/// bytes are, and the writer of the server is not disturbed.
#[test]
fn broken_private_data() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (_writer, client) = site.client(identity(1, 3, 10))?;
    let good = data(identity(1, 3, 10))?;
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let encoded = |offer: Offer| offer.encode(Offer::CONNECT);
    // Otherwise zeros follow.
    let cut = if is_iwarp() {
        "8 bytes at least, and these are 7"
    } else {
        "the key is 0"
    };
    for (data, epoch, words) in [
        (vec![], 0, "the peer sent no Offer"),
        (vec![0xA5; 56], 0, "not an offer"),
        (good[..7].to_vec(), 0, cut),
        (with(3, 1), 0, "has the version 1"),
        (with(4, 31), 0, "ends inside its identity"),
        (with(5, 0x13), 0, "bits in the byte of its platform"),
        (encoded(Offer::default())?, 0, "the offer has no key"),
        (data(identity(0, 1, 1))?, 0, "the key is 0"),
        (data(identity(1, u64::MAX, 10))?, 3, "the epoch is 2^64-1"),
        (data(identity(2, u64::MAX, 10))?, 0, "the epoch is 2^64-1"),
    ] {
        site.is_refused(&site.ask_with(&data)?, RefusalCode::Broken, epoch, words)?;
    }
    let method = encoded(offer_by(identity(1, 3, 10), Method::Server))?;
    let words = "no durable commits by server's method";
    site.is_refused(&site.ask_with(&method)?, RefusalCode::Refused, 0, words)?;
    assert_eq!(site.server.client(1), Some(client));
    site.nothing()
}

/// Promise: a part that a key must not have is refused before any change: the old writer is
/// connected, its identity is kept, and the new one gets the reason.
#[test]
fn wrong_parts() -> Result {
    let _test = device_test();
    let limits = Limits::new(2, 2, 4096)?;
    let mut site = Site::with(3, ServerCfg::new().set_commits(Some(limits)))?;
    let (_writer, client) = site.client(identity(1, 3, 10))?;
    let (_other, _) = site.client(identity(2, 1, 20))?;
    let free = 3 * LEN;
    let part = |range| site.region(range, usage());
    let free_part_of = |peer: &Peer| -> Result<KeyPart> {
        let map = site.all.part(free..free + LEN)?;
        Ok((peer.clone(), Mr::reg(peer, map, usage())?.into()))
    };
    let elsewhere = Peer::at(&other_addr())?;
    let (other_peer, own) = (site.parts[&2].0.clone(), Arc::clone(&site.parts[&3].1));
    let overlaps = "overlaps that of the key 0x2";
    let of_directory = "overlaps the memory of the directory";
    let usages = "MrUsage::WRITE_DST and FLUSH_TYPE_PERSISTENT";
    let same_peer = "the key 0x2 has the same Peer as this part";
    let too_little = site.region(free..free + LEN, MrUsage::WRITE_DST)?;
    let wrong: Vec<(KeyPart, &[u8], &str)> = vec![
        (part(free + 8..free + LEN)?, b"", "at multiples of 64"),
        (part(free..free + 100)?, b"", "has 100 bytes at"),
        (part(2 * LEN..3 * LEN)?, b"", overlaps),
        (part(3 * LEN - 64..3 * LEN + 64)?, b"", overlaps),
        (site.parts[&2].clone(), b"", same_peer),
        (free_part_of(&other_peer)?, b"", same_peer),
        ((other_peer, own), b"", "is registered with another Peer"),
        (part(LEN - 64..LEN)?, b"", of_directory),
        (part(free..free + LEN)?, &[7; 200], "and 196 fit"),
        (free_part_of(&elsewhere)?, b"", "another RDMA device"),
        (too_little, b"", usages),
    ];
    let asks = offer_by(identity(1, 4, 11), Method::Server).encode(Offer::CONNECT)?;
    for (part, data, words) in wrong {
        let conn = site.ask_with(&asks)?;
        let asked = site.asked()?;
        let refused = site.admit_with(asked, &part, data).expect_err(words);
        assert_says(&refused, &[words]);
        is_refusal(&refused.refusal, RefusalCode::Refused, 3, "");
        assert_eq!(refusal(&conn)?, refused.refusal);
        assert_eq!(site.server.client(1), Some(client), "{words}");
        assert_eq!(site.server.directory().get(1), Some(identity(1, 3, 10)));
    }
    site.nothing()?;
    // Beyond the end there is no part at all.
    let all = PmemMap::open(devdax(), LEN)?;
    let end = all.len();
    says(invalid(all.part(end - 64..end + 64)), "is not inside");
    Ok(())
}

/// Promise: two admissions of one part: the second one is refused while the first one has a
/// connection.
#[test]
fn two_admissions_of_one_part() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let (_conn, client) = site.client(identity(1, 1, 10))?;
    for _ in 0..2 {
        let (second, asked) = site.question(identity(2, 1, 20))?;
        let same = site.region(LEN..2 * LEN, usage())?;
        let is_connected = site.server.client(1) == Some(client);
        match site.admit_with(asked, &same, b"") {
            Err(refused) => {
                assert!(is_connected);
                assert_says(&refused, &["overlaps that of the key 0x1"]);
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
    Ok(())
}

/// Promise: settings that cannot be had are refused before anything has changed.
#[test]
fn wrong_settings() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    says(invalid(cfg.set_most_clients(0).map(drop)), "at least 1");
    says(invalid(cfg.set_most_questions(0).map(drop)), "at least 1");
    let mut misses = ConnCfg::new();
    misses.set_rcq_size(8).set_rcq_notify(Notify::Solicited);
    let all = PmemMap::open(devdax(), LEN)?;
    let (ep, directory) = (listen(&peer()?)?, new_directory(directory_of(&all)?, 1)?);
    let refused = Server::new(ep, directory, ServerCfg::new().set_conn(&misses)).map(drop);
    assert_invalid(refused, &["set_rcq_notify"]);
    drop(all);
    cfg.set_conn(ConnCfg::new().set_sq_size(u32::MAX));
    let mut site = Site::with(1, &cfg)?;
    let (conn, asked) = site.question(identity(1, 1, 10))?;
    let refused = site.admit(asked).expect_err("no such queue");
    invalid(Err::<(), _>(refused.error.ok_or("one of this side")?));
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
    let short = Duration::from_millis(200);
    let mut cfg = ServerCfg::new();
    cfg.set_conn(ConnCfg::new().set_keep_alive(Some(short))?);
    let all = PmemMap::open(devdax(), 2 * LEN)?;
    let mut directory = new_directory(directory_of(&all)?, 2)?;
    directory.keep(identity(1, 3, 10))?;
    let mut site = Site::over(1, &cfg, all, directory)?;
    let asks = site.question(identity(1, 4, 11))?;
    let words = "the server's keep-alive is below four acknowledgement time-outs: its program \
                 has to raise it (ServerCfg::set_conn)";
    let refused = site.not_admitted(asks, RefusalCode::Refused, 3, words)?;
    assert!(!refused.refusal.code().is_temporary());
    let text = invalid(Err::<(), _>(refused.error.ok_or("one of this side")?));
    for part in ["200ms", "four", "set_keep_alive", "set_ack_timeout"] {
        assert_says(&text, &[part]);
    }
    assert_eq!(site.server.directory().get(1), Some(identity(1, 3, 10)));
    assert!(site.server.client(1).is_none());
    site.nothing()
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
    says(invalid(Directory::open(memory()?)), "has no directory");
    let mut directory = Directory::create(memory()?, 2)?;
    directory.keep(identity(1, 2, 3))?;
    write(64, &[0xFF; 128])?;
    let directory = Directory::open(memory()?)?;
    let reason = "both its lines are invalid";
    assert!(directory.broken_slots().eq([(0, reason)]), "{directory:?}");
    write(8, &[1])?;
    says(invalid(Directory::open(memory()?)), "has the version 1");
    write(8, &[3])?;
    says(invalid(Directory::open(memory()?)), "has the version 3");
    Ok(())
}

/// Promise: a server on a platform where the processor makes nothing durable does not begin to
/// serve commits, and serves without them. The program's own word counts.
#[test]
fn commits_on_memory_that_keeps_nothing() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let server = |mut platform: PeerCfg, commits: bool, vouches: bool| -> Result<_> {
        let all = PmemMap::open(devdax(), LEN)?;
        if vouches {
            platform.set_processor_persists(true);
        }
        let mut cfg = ServerCfg::new();
        cfg.set_platform(&platform);
        cfg.set_commits(commits.then_some(Limits::new(1, 1, 64)?));
        let ep = listen(&peer)?;
        Ok(Server::new(ep, new_directory(directory_of(&all)?, 1)?, &cfg).map(drop))
    };
    let detect = |map: &PmemMap| PeerCfg::detect(map, &peer, Ddio::On);
    let file = tempfile::NamedTempFile::new_in(ext4())?;
    file.as_file().set_len(LEN as u64)?;
    let volatile = detect(&PmemMap::open(file.path(), LEN)?)?;
    // The unit tests of `serve::cfg` have all domains.
    let declared = *PeerCfg::new().set_processor_persists(false);
    for platform in [volatile, declared] {
        let error = server(platform, true, false)?.expect_err("refused");
        assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
        assert_says(&error, &["makes nothing durable"]);
        server(platform, false, false)??;
        server(platform, true, true)??;
    }
    server(detect(&PmemMap::open(devdax(), LEN)?)?, true, false)??;
    Ok(())
}
