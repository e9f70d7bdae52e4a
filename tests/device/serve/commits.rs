//! The server's method beside the keys: the server answers by itself.

#[cfg(feature = "sim")]
use std::collections::BTreeMap;
use std::sync::Arc;

use rpma::commit::{Connecting, Fate, Limits, Method, Ticket, Writer, WriterCfg};
use rpma::serve::{Reason, Served, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, identity, offer};

const TAIL: usize = 1024;

fn cfg() -> Result<ServerCfg> {
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
    Ok(cfg)
}

impl Site {
    /// A writer by the server's method asks.
    fn writer_asks(&self, identity: Identity) -> Result<Connecting> {
        let cfg = WriterCfg::new(Method::Server);
        let settings = cfg.conn_cfg(&ConnCfg::new())?;
        let req = ConnReq::new(&self.far, &addr(), self.server.get_port(), &settings)?;
        Ok(Writer::connect(req, &cfg, &offer(identity))?)
    }

    fn writer(&mut self, identity: Identity) -> Result<Writer> {
        let connecting = self.writer_asks(identity)?;
        let asked = self.asked()?;
        self.admit(asked)?;
        Ok(connecting.wait(LIMIT)?)
    }

    /// Turns of the server, which returns only the arrival and end of clients.
    fn turns(&mut self) {
        while let Some(served) = self.turn() {
            let is_expected = matches!(served, Served::Arrived(_) | Served::Gone(_));
            assert!(is_expected, "{served:?}");
        }
    }

    /// The server makes a commit durable.
    fn serves(&mut self, writer: &mut Writer, ticket: Ticket) {
        until("it happens in time", || {
            self.turns();
            writer.look(|wc| panic!("{wc:?}")).expect("connected");
            writer.fate(ticket).expect("its own") == Fate::Durable
        });
    }

    /// A turn of the server, which may return `None`.
    fn turn(&mut self) -> Option<Served> {
        let served = self.server.next(&mut [Wc::default(); 4], Duration::ZERO);
        served.expect("looks")
    }
}

fn commit(writer: &mut Writer, source: &Mr<Memory>, number: u64) -> Result<Ticket> {
    let far = writer.offer().regions()[0];
    let part = (far.slice(64..64 + 100)?, source.slice(..100)?);
    let tail = far.slice(TAIL as u64..TAIL as u64 + 8)?;
    Ok(writer.commit(&[part], Some((tail, number.to_ne_bytes())))?)
}

/// Promise: the server makes commits durable and answers, without any work of its program; and a
/// client that misuses the method is gone, alone.
#[test]
fn commits_are_served() -> Result {
    let _test = device_test();
    let mut site = Site::with(2, &cfg()?)?;
    let source = region(&site.far, LEN, MrUsage::WRITE_SRC | MrUsage::SEND)?;
    source.write_at(0, &pattern(100, 3))?;
    let mut writer = site.writer(identity(1, 1, 10))?;
    let mut wrong = site.writer(identity(2, 1, 20))?;
    for number in 1..=20 {
        let ticket = commit(&mut writer, &source, number)?;
        site.serves(&mut writer, ticket);
        assert_eq!(site.parts[&1].1.load_u64(TAIL)?, number);
    }
    let flags = Flags::COMPLETION_ON_ERROR;
    wrong.conn().send(source.slice(..5)?, flags, 0)?;
    let gone = site.gone()?;
    assert!(matches!(gone.reason, Reason::Misused(_)), "{gone}");
    assert_eq!(gone.identity.key, 2);
    // The receives that were flushed are the server's own.
    assert!(gone.completions.is_empty(), "{:?}", gone.completions);
    let ticket = commit(&mut writer, &source, 21)?;
    until("it happens in time", || {
        let _ = wrong.look(|_| {});
        site.turns();
        writer.look(|_| {}).expect("connected");
        writer.fate(ticket).expect("its own") == Fate::Durable
    });
    Ok(())
}

/// Promise: a request that was not served when its client is cut off is discarded: its pointer is
/// not stored, and its commit is not durable.
#[test]
fn requests_of_a_client_that_is_cut_off_are_discarded() -> Result {
    let _test = device_test();
    let mut site = Site::with(1, &cfg()?)?;
    let source = region(&site.far, LEN, MrUsage::WRITE_SRC)?;
    let mut old = site.writer(identity(1, 1, 10))?;
    let part = Arc::clone(&site.parts[&1].1);
    part.store_u64(TAIL, 0)?;
    site.turns();
    let connecting = site.writer_asks(identity(1, 2, 20))?;
    let asked = site.asked()?;
    // The request arrives, and the server does not look.
    let ticket = commit(&mut old, &source, 1)?;
    until("it happens in time", || {
        old.look(|_| {}).expect("connected");
        old.released() > 0
    });
    site.admit(asked)?;
    let mut new = connecting.wait(LIMIT)?;
    site.turns();
    assert_eq!(part.load_u64(TAIL)?, 0, "it is discarded");
    until("it happens in time", || {
        let _ = old.look(|_| {});
        old.is_over()
    });
    assert_ne!(old.fate(ticket)?, Fate::Durable);
    let ticket = commit(&mut new, &source, 7)?;
    site.serves(&mut new, ticket);
    assert_eq!(part.load_u64(TAIL)?, 7);
    Ok(())
}

/// The calls of verbs that the server makes for 50 commits of one client, beside this many.
#[cfg(feature = "sim")]
fn calls_beside(clients: u64) -> Result<BTreeMap<&'static str, u64>> {
    let mut calls = BTreeMap::new();
    leaving(&[], || {
        let mut cfg = cfg()?;
        cfg.set_most_clients(clients as usize)?;
        let mut site = Site::with_slots(clients, &cfg, clients as u32)?;
        let source = region(&site.far, LEN, MrUsage::WRITE_SRC)?;
        let mut writers: Vec<_> = (1..=clients)
            .map(|key| site.writer(identity(key, 1, key)))
            .collect::<Result<_, _>>()?;
        while site.turn().is_some() {}
        let made = || with_fabric(|fabric, _| fabric.calls());
        let writer = &mut writers[clients as usize / 2];
        for number in 1..=50 {
            let ticket = commit(writer, &source, number)?;
            until("it happens in time", || {
                let before = made();
                assert!(site.turn().is_none());
                for (call, count) in made() {
                    *calls.entry(call).or_default() += count - before.get(call).unwrap_or(&0);
                }
                writer.look(|_| {}).expect("connected");
                writer.fate(ticket).expect("its own") == Fate::Durable
            });
        }
        calls.retain(|_, count| *count > 0);
        Ok(())
    })?;
    Ok(calls)
}

/// Promise: an honest client's commit costs its server the same calls beside 10 clients and beside
/// 100. (tests/cost counts the instructions.)
#[cfg(feature = "sim")]
#[test]
fn a_commit_costs_the_same_beside_many_clients() -> Result {
    crate::serve::support::more_descriptors()?;
    let few = calls_beside(10)?;
    let many = calls_beside(100)?;
    println!("{few:?} {many:?}");
    assert!(few["ibv_poll_cq"] >= 50);
    for (call, count) in &few {
        let beside = many.get(call).copied().unwrap_or(0);
        assert!(
            beside.abs_diff(*count) * 10 <= *count,
            "{call}: {count}, and {beside} beside 100"
        );
    }
    assert_eq!(few.len(), many.len(), "{few:?} {many:?}");
    Ok(())
}
