//! Many clients on one thread, which connect, die and come back.

use std::fs;

use rpma::serve::{Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{Site, identity, more_descriptors};

/// The descriptors and the memory of this process, in use.
fn in_use() -> Result<(usize, usize)> {
    let fds = fs::read_dir("/proc/self/fd")?.count();
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).ok_or("resident pages")?;
    Ok((fds, pages.parse()?))
}

/// A client dies in one of several ways, and comes back; or another writer takes over.
fn again(site: &mut Site, conns: &mut [Option<Conn>], key: u64, round: u64) -> Result {
    let conn = conns[key as usize - 1].take();
    match (key + round) % 3 {
        // It ends before it comes back, and the server has noticed.
        0 => {
            drop(conn);
            assert_eq!(site.gone()?.identity.key, key);
        }
        // It ends, and the server finds the request and the end in any order.
        1 => drop(conn),
        // It is alive when it comes back.
        _ => {}
    }
    let epoch = round / 2;
    let back = site.ask(identity(key, epoch, 10 + epoch))?;
    loop {
        match site.next()? {
            Served::Asks(asked) => {
                site.establish(&back, asked)?;
                break;
            }
            Served::Gone(gone) => assert_eq!(gone.identity.key, key),
            other => panic!("{other:?}"),
        }
    }
    conns[key as usize - 1] = Some(back);
    Ok(())
}

fn run(clients: u64, rounds: u64, is_alone: bool) -> Result {
    let mut cfg = ServerCfg::new();
    cfg.set_most_clients(clients as usize)?;
    let mut site = Site::with_slots(clients, &cfg, clients as u32)?;
    let mut conns: Vec<_> = (0..clients).map(|_| None).collect();
    for round in 0..2 {
        for key in 1..=clients {
            again(&mut site, &mut conns, key, 3 * round + 2 - key % 3)?;
        }
    }
    let before = in_use()?;
    for round in 6..6 + rounds {
        leaving(&[], || {
            for key in 1..=clients {
                again(&mut site, &mut conns, key, round)?;
            }
            Ok(())
        })?;
    }
    let after = in_use()?;
    if is_alone {
        assert_eq!(after.0, before.0, "descriptors");
        // 1 MiB of pages.
        assert!(after.1 <= before.1 + 256, "{before:?} {after:?} pages");
    }
    assert_eq!(site.server.clients().count(), clients as usize);
    site.nothing()
}

/// Promise: 50 clients on one thread, which connect, die and come back, leave no kernel objects,
/// descriptors or memory.
#[test]
fn fifty_clients_come_and_go() -> Result {
    // On a fabric other tests run in the same process.
    let _test = device_test();
    run(50, 3, cfg!(not(feature = "sim")))
}

/// As before, with 1,000 clients.
#[test]
#[ignore = "long: 2 minutes"]
fn a_thousand_clients_come_and_go() -> Result {
    more_descriptors()?;
    let _test = device_test();
    run(1_000, 3, cfg!(not(feature = "sim")))
}
