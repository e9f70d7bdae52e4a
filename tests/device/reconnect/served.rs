//! Clients of a `serve::Server`, which keeps an epoch and an instance for each key.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::{GaveUp, Reconnect, ReconnectCfg, ToWriter, Why};
use rpma::serve::{Directory, Part, Served, Server, ServerCfg};

use crate::common::prelude::*;
use crate::reconnect::support::{connect, quick};

/// The memory of a key.
const LEN: usize = 4096;
const KEYS: u64 = 2;

struct Site {
    server: Server,
    parts: BTreeMap<u64, (Peer, Arc<Mr<PmemMap>>)>,
    /// That of the clients.
    far: Peer,
}

impl Site {
    fn new(cfg: &ServerCfg) -> Result<Self> {
        let all = PmemMap::open(devdax(), LEN * (KEYS as usize + 1))?;
        // An earlier test may have left a directory.
        all.store_u64(0, 0)?;
        let directory = Directory::create(all.part(..LEN)?, KEYS as u32);
        let device = Device::from_addr(&addr(), Side::Local)?;
        let ep = Ep::listen(&Peer::new(&device)?, &addr(), 0);
        let part = |key: u64| {
            let peer = Peer::new(&device).expect("a domain");
            let at = LEN * key as usize;
            let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
            let region = Mr::reg(&peer, all.part(at..at + LEN).expect("inside"), usage);
            (key, (peer, Arc::new(region.expect("registers"))))
        };
        let directory = directory?;
        Ok(Self {
            parts: (1..=KEYS).map(part).collect(),
            server: Server::new(ep?, directory, cfg)?,
            far: peer()?,
        })
    }

    fn client(&self, identity: Identity) -> Result<Reconnect<ToWriter>> {
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        let mut offer = Offer::new(&PeerCfg::new());
        offer.set_identity(identity);
        let port = self.server.get_port();
        let mut client = Reconnect::new(&self.far, &addr(), port, offer, ToWriter::new(&cfg))?;
        client.set_cfg(&quick()?);
        Ok(client)
    }

    /// Takes the events, and admits each client.
    fn serve(&mut self) {
        let mut wcs = [Wc::default(); 4];
        while let Some(served) = self.server.next(&mut wcs, Duration::ZERO).expect("waits") {
            if let Served::Asks(asked) = served {
                let (peer, region) = &self.parts[&asked.identity().key];
                let data = &[];
                let part = Part { peer, region, data };
                self.server.admit(asked, &part).expect("admitted");
            }
        }
    }
}

/// The server's reason, and the epoch that it keeps.
fn refused(gave_up: GaveUp) -> (RefusalCode, u64) {
    match gave_up.why {
        Why::Refused(refusal) => (refusal.code(), refusal.epoch()),
        why => panic!("{why:?}: {}", gave_up.error),
    }
}

/// Promise: a writer comes back again and again, also while its old connections look alive. Another
/// instance gets in with a higher epoch only, and the first writer learns of that.
#[test]
fn a_writer_comes_back_until_another_takes_over() -> Result {
    let _test = device_test();
    let mut site = Site::new(&ServerCfg::new())?;
    let mut first = site.client(Identity::new(1, 1)?)?;
    let mut old = Vec::new();
    for _ in 0..10 {
        let writer = connect(&mut first, || site.serve());
        old.push(writer?);
    }
    assert_eq!(first.counts().connected, 10);
    let writer = old.pop().ok_or("the last one")?;
    for old in &old {
        assert_eq!(event(old.conn())?, ConnEvent::Closed, "it was cut off");
    }
    writer
        .conn()
        .next_event_timeout(Duration::ZERO)
        .expect_err("it lives");
    old.push(writer);

    let other = Identity::new(1, 1)?;
    let mut second = site.client(other)?;
    let gave_up = connect(&mut second, || site.serve()).map(drop);
    let (code, epoch) = refused(gave_up.expect_err("it is taken"));
    assert_eq!((code, epoch), (RefusalCode::Taken, 1));
    let mut offer = second.offer().clone();
    offer.set_identity(Identity {
        epoch: epoch + 1,
        ..other
    });
    second.set_offer(offer)?;
    let writer = connect(&mut second, || site.serve())?;

    let gave_up = connect(&mut first, || site.serve()).map(drop);
    let refused = refused(gave_up.expect_err("its epoch is old"));
    assert_eq!(refused, (RefusalCode::OldEpoch, 2));
    drop((writer, old));
    site.serve();
    Ok(())
}

/// Promise: a client that finds the server full gets in when another one has left.
#[test]
fn a_full_server_is_tried_again() -> Result {
    let _test = device_test();
    let mut cfg = ServerCfg::new();
    cfg.set_most_clients(1)?;
    let mut site = Site::new(&cfg)?;
    let mut clients = [1, 2].map(|key| {
        let mut client = site
            .client(Identity::new(key, 1).expect("an identity"))
            .expect("a client");
        let ms = Duration::from_millis;
        client.set_cfg(
            ReconnectCfg::new()
                .set_waits(ms(1), ms(20))
                .expect("possible"),
        );
        client
    });
    let mut first = Some(connect(&mut clients[0], || site.serve())?);
    let mut looks = 0;
    let second = connect(&mut clients[1], || {
        site.serve();
        looks += 1;
        if looks == 200 {
            first = None;
        }
    });
    drop(second?);
    let counts = clients[1].counts();
    assert!(counts.tries > 1, "{counts:?}");
    assert_eq!(counts.connected, 1);
    site.serve();
    Ok(())
}
