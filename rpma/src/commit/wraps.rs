//! The numbers of requests by the server's method, which have 32 bits, begin again at 0.

use std::sync::Arc;
use std::time::Duration;

use rpma_sys::sim::{Fabric, Host, Platform, Pmem, Profile};

use super::{Limits, Method, Responder, Turn, Writer, WriterCfg};
use crate::error::Result;
use crate::pmem::PmemMap;
use crate::{Conn, ConnCfg, ConnReq, Ep, Mr, MrUsage, Offer, Peer, PeerCfg, Wc};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 64;
const USAGE: MrUsage = MrUsage::WRITE_DST.union(MrUsage::FLUSH_TYPE_PERSISTENT);

/// A writer, and the server of its memory, on one thread.
struct Pair {
    writer: Writer,
    source: Mr<Vec<u8>>,
    far: Conn,
    responder: Responder<u8>,
    memory: Arc<Mr<PmemMap>>,
}

impl Pair {
    fn new(client: &Host, server: &Host, pmem: &Pmem) -> Result<Self> {
        let addr = server.addr().to_string();
        let mut responder = Responder::new(Limits::new(4, 2, 4096)?);
        let (memory, ep) = {
            let _entered = server.enter();
            let peer = Peer::at(&addr)?;
            let memory = Mr::reg(&peer, PmemMap::open(pmem.path(), LEN)?, USAGE)?;
            (Arc::new(memory), Ep::listen(&peer, &addr, 0)?)
        };
        let _entered = client.enter();
        let peer = Peer::toward(&addr)?;
        let source = Mr::reg(&peer, vec![0; LEN], MrUsage::WRITE_SRC)?;
        let cfg = WriterCfg::new(Method::Server);
        let req = ConnReq::new(&peer, &addr, ep.get_port(), &cfg.conn_cfg(&ConnCfg::new())?)?;
        let connecting = Writer::connect(req, &cfg, &Offer::default())?;
        let req = ep.next_conn_req_timeout(&responder.conn_cfg(&ConnCfg::new())?, LIMIT)?;
        responder.add(0, responder.prepare(&req, &memory, ..)?);
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&memory).set_limits(responder.limits());
        let far = req.connect(&offer.encode(Offer::ACCEPT)?)?;
        Ok(Self {
            writer: connecting.wait(LIMIT)?,
            source,
            far: far.wait_established(LIMIT)?,
            responder,
            memory,
        })
    }

    /// Both sides look once.
    fn turn(&mut self) -> Result<()> {
        let mut wcs = [Wc::default(); 8];
        let count = self.far.get_cq().get_wc(&mut wcs)?;
        for wc in &wcs[..count] {
            self.responder.handle(0, wc);
        }
        match self.responder.turn(|_| Some(&self.far)) {
            Turn::Misused(_, error) | Turn::Failed(_, error) => Err(error),
            Turn::Idle | Turn::Served(_) => self.writer.look(drop),
        }
    }
}

/// Promise: a writer that makes more than 2^32 commits goes on, and each is acknowledged by the answer
/// to its own request.
#[test]
fn requests_count_from_0_again() {
    let fabric = Fabric::seeded(Profile::STRICT, 1);
    let [client, server] = ["client", "server"].map(|name| fabric.host(name));
    server.set_platform(Platform::Eadr);
    let pmem = server.pmem("memory", LEN);
    let mut pair = Pair::new(&client, &server, &pmem).expect("a pair");
    let before = (1 << 32) - 64;
    pair.writer.start_after(before);
    pair.responder.start_after(0, before as u32);
    let remote = pair.writer.offer().memory(LEN as u64).expect("its region");
    let to = remote.slice(..LEN as u64).expect("inside");
    for n in 1..=128_u8 {
        pair.source.write_at(0, &[n; LEN]).expect("inside");
        let from = pair.source.slice(..).expect("all of it");
        let ticket = pair.writer.commit(&[(to, from)], None).expect("room");
        assert_eq!(ticket.number(), before + u64::from(n));
        while pair.writer.settled(ticket).is_none() {
            pair.turn().expect("both go on");
        }
        assert_eq!(pair.writer.durable(), ticket.number());
        let mut found = [0; LEN];
        pair.memory.read_at(0, &mut found).expect("read");
        assert_eq!(found, [n; LEN]);
    }
}
