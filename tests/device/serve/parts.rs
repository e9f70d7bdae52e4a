//! A server with memory that is divided by a layout, and that answers with its parts.

use std::collections::BTreeMap;

use rpma::commit::{Limits, Method};
use rpma::serve::{Gone, Layout, Reason, Refused, Served, Server, ServerCfg};

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, identity, is_refusal, offer_by, refusal, usage};

/// A server with equal parts.
pub(crate) struct Parted {
    pub(crate) site: Site,
    layout: Layout,
}

impl Parted {
    pub(crate) fn new(keys: u32) -> Result<Self> {
        Self::with(keys, &mut ServerCfg::new(), usage())
    }

    fn with(keys: u32, cfg: &mut ServerCfg, usage: MrUsage) -> Result<Self> {
        let layout = Layout::new(keys, LEN)?;
        let all = PmemMap::open(devdax(), layout.len())?;
        all.write_at(0, &vec![0; layout.directory().len()])?;
        let device = Device::from_addr(&addr(), Side::Local)?;
        // Any host's platform will do.
        cfg.set_platform(&PeerCfg::new());
        let at = (addr().parse::<std::net::IpAddr>()?, 0).into();
        let site = Site {
            server: Server::listen(at, &all, &layout, usage, cfg)?,
            far: Peer::new(&device)?,
            device,
            all,
            parts: BTreeMap::new(),
        };
        Ok(Self { site, layout })
    }

    /// Answers the next event.
    pub(crate) fn answer(&mut self) -> rpma::Result<Option<Served>> {
        let served = self.site.next().expect("waits");
        self.site.server.answer(served)
    }

    /// A client of this identity that is admitted and established.
    pub(crate) fn client(&mut self, identity: Identity) -> Result<Conn> {
        let conn = self.site.ask(identity)?;
        let answered = self.answer()?;
        assert!(answered.is_none(), "{answered:?}");
        assert_eq!(event(&conn)?, ConnEvent::Established);
        loop {
            match self.answer()? {
                Some(Served::Arrived(client)) => {
                    assert_eq!(self.site.server.identity(client), Some(identity));
                    return Ok(conn);
                }
                Some(Served::Gone(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers the next event, the end of a client, which is returned.
    pub(crate) fn gone(&mut self) -> Result<Gone> {
        match self.answer()? {
            Some(Served::Gone(gone)) => Ok(*gone),
            other => panic!("{other:?}"),
        }
    }

    /// Answers the next event, with a refusal that is returned.
    pub(crate) fn refuses(&mut self) -> Result<Refused> {
        match self.answer()? {
            Some(Served::Refused(refused)) => Ok(*refused),
            other => panic!("{other:?}"),
        }
    }

    /// A client of this identity that is refused, and gets the same refusal.
    pub(crate) fn refused(&mut self, asks: Identity) -> Result<Refused> {
        let conn = self.site.ask(asks)?;
        self.is_refused(&conn, asks)
    }

    fn is_refused(&mut self, conn: &Conn, asks: Identity) -> Result<Refused> {
        let refused = self.refuses()?;
        assert_eq!(refusal(conn)?, refused.refusal);
        assert_eq!(refused.identity, Some(asks));
        assert!(refused.peer_addr.is_some());
        Ok(refused)
    }

    /// The bytes of a key's part, by the layout.
    pub(crate) fn bytes(&self, key: u64) -> Vec<u8> {
        let place = self.layout.part(key).expect("a key");
        let mut bytes = vec![0; place.len()];
        self.site
            .all
            .read_at(place.start, &mut bytes)
            .expect("inside");
        bytes
    }

    /// A client writes these bytes to all of its memory, and they are in the key's part.
    pub(crate) fn writes(&self, conn: &Conn, key: u64, bytes: &[u8]) -> Result {
        write(&self.site, conn, conn, bytes)?;
        assert!(self.bytes(key) == bytes);
        assert!(contents(self.site.server.region(key).ok_or("a part")?)? == bytes);
        Ok(())
    }
}

/// A client writes to all of the memory that this connection was given.
pub(crate) fn write(site: &Site, conn: &Conn, given: &Conn, bytes: &[u8]) -> rpma::Result<()> {
    let far = offered(given)?;
    let source = region(&site.far, LEN, MrUsage::WRITE_SRC).expect("registers");
    source.write_at(0, bytes)?;
    let posted = conn.write(far.slice(..)?, source.slice(..)?, ALWAYS, 1)?;
    conn.wait_for(posted, LIMIT, |_| {})?;
    // A write may be visible later than its completion, and not later than a read after it.
    let here = region(&site.far, 8, MrUsage::READ_DST).expect("registers");
    let posted = conn.read(here.slice(..)?, far.slice(LEN as u64 - 8..)?, ALWAYS, 2)?;
    conn.wait_for(posted, LIMIT, |_| {})?;
    Ok(())
}

/// Promise: a client of a key is admitted, gets the program's bytes, and writes to the part of its
/// key in the layout, and to no other byte; its end is returned.
#[test]
fn a_client_writes_to_the_part_of_its_key() -> Result {
    let _test = device_test();
    let mut parted = Parted::with(3, ServerCfg::new().set_data(b"log v1"), usage())?;
    let before = [1, 3].map(|key| parted.bytes(key));
    let conn = parted.client(identity(2, 1, 10))?;
    assert_eq!(conn.offer()?.data(), b"log v1");
    parted.writes(&conn, 2, &pattern(LEN, 7))?;
    assert!([1, 3].map(|key| parted.bytes(key)) == before);
    drop(conn);
    let gone = parted.gone()?;
    assert_eq!(gone.identity, identity(2, 1, 10));
    assert!(matches!(gone.reason, Reason::Ended(ConnEvent::Closed)));
    let text = gone.to_string();
    assert!(
        text.starts_with("the client of the key 0x2 is gone: "),
        "{text}"
    );
    parted.client(identity(2, 1, 10))?;
    Ok(())
}

/// Promise: a client with a key that has no part is refused with words, and counted; the refusal is
/// returned to the program.
#[test]
fn a_key_without_a_part() -> Result {
    let _test = device_test();
    let mut parted = Parted::new(2)?;
    for key in [3, u64::MAX] {
        let refused = parted.refused(identity(key, 1, 10))?;
        let words = "no memory for this key: the keys are 1 to 2";
        is_refusal(&refused.refusal, RefusalCode::Refused, 0, words);
        assert!(refused.error.is_none(), "{refused:?}");
        assert_says(&refused, &[words]);
        assert!(parted.site.server.region(key).is_none());
    }
    assert_eq!(parted.site.server.counters().refused, 2);
    parted.client(identity(2, 1, 20))?;
    Ok(())
}

/// Promise: a server without parts leaves requests to the program.
#[test]
fn a_server_without_parts() -> Result {
    let _test = device_test();
    let mut site = Site::new(1)?;
    let conn = site.ask(identity(1, 1, 10))?;
    let served = site.next()?;
    let Some(Served::Asks(asked)) = site.server.answer(served)? else {
        panic!("no client asks");
    };
    let client = site.establish(&conn, asked)?;
    let region = site.server.region(1).ok_or("of the admission")?;
    assert!(std::sync::Arc::ptr_eq(region, &site.parts[&1].1));
    drop(conn);
    let served = site.next()?;
    let Some(Served::Gone(gone)) = site.server.answer(served)? else {
        panic!("the client is gone");
    };
    assert_eq!(gone.client, client);
    Ok(())
}

/// Promise: an admission that fails is returned with its error, and the old writer goes on.
#[test]
fn an_admission_that_fails_is_returned() -> Result {
    let _test = device_test();
    let mut parted = Parted::with(1, ServerCfg::new().set_data(&[0; 300]), usage())?;
    let refused = parted.refused(identity(1, 2, 11))?;
    assert_eq!(refused.refusal.code(), RefusalCode::Refused);
    let error = refused.error.ok_or("an error of this side")?;
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert_eq!(parted.site.server.counters().refused, 1);
    drop(parted);

    // Memory that lacks a right for the server's method.
    let mut cfg = ServerCfg::new();
    cfg.set_commits(Some(Limits::new(2, 2, 4096)?));
    let rights = MrUsage::WRITE_DST | MrUsage::READ_SRC;
    let mut parted = Parted::with(1, &mut cfg, rights)?;
    let old = parted.client(identity(1, 1, 10))?;
    let asks = offer_by(identity(1, 2, 11), Method::Server);
    let conn = parted.site.ask_with(&asks.encode(Offer::CONNECT)?)?;
    let refused = parted.is_refused(&conn, identity(1, 2, 11))?;
    assert_eq!(refused.refusal.code(), RefusalCode::Refused);
    let error = refused.error.ok_or("an error of this side")?;
    assert!(matches!(error, Error::NotSupported(_)), "{error:?}");
    assert_eq!(parted.site.server.counters().refused, 1);
    parted.writes(&old, 1, &pattern(LEN, 1))?;
    // The server's own refusals are returned as they are.
    let refused = parted.refused(identity(1, 1, 11))?;
    assert_eq!(refused.refusal.code(), RefusalCode::Taken);
    assert!(refused.error.is_none(), "{refused:?}");
    Ok(())
}

/// Promise: memory that is too short, or that begins inside of a cache line, is refused before
/// anything is registered or written.
#[test]
fn wrong_memory() -> Result {
    let _test = device_test();
    let layout = Layout::new(2, LEN)?;
    let words = format!("has {} bytes, and the memory has {}", 3 * LEN, 2 * LEN);
    let long = PmemMap::open(devdax(), 4 * LEN)?;
    let short = long.part(..2 * LEN)?;
    let at = (addr().parse::<std::net::IpAddr>()?, 0).into();
    let listen = |all: &PmemMap| Server::listen(at, all, &layout, usage(), &ServerCfg::new());
    for refused in [
        listen(&short).expect_err("too short"),
        layout.open_directory(&short).expect_err("too short"),
    ] {
        assert!(refused.to_string().ends_with(&words), "{refused}");
    }
    let inside = long.part(32..)?;
    let words = "must begin at a multiple of 64";
    assert_says(&listen(&inside).expect_err("not aligned"), &[words]);
    Ok(())
}
