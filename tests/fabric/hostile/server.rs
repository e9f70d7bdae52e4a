//! A server, an honest client, and hostile ones, whose steps are chosen by bytes: a fuzzer's
//! (`fuzz/fuzz_targets/server.rs`), or those of the corpus.
//!
//! All of it runs on one thread of a fabric with a seed, so that a run is repeated by its bytes. The
//! hostile clients have the descriptors of all memory, as if they had seen the messages of others.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::commit::{Connecting, Fate, Limits, Method, Ticket, Writer, WriterCfg};
use rpma::pmem::PmemMap;
use rpma::serve::{Layout, Served, Server, ServerCfg};
use rpma::sim::{Fabric, Host, Platform, Pmem, Profile, sleep};
use rpma::{ConnCfg, ConnEvent, ConnReq, Identity, Mr, MrUsage, Offer, Peer, Wc};

use super::bytes::Bytes;
use super::stranger::Hostile;

/// The key of the honest client, and its epoch. The program admits nobody else by this key.
const HONEST: u64 = 1;
const EPOCH: u64 = 100;
/// The keys of the server, and the bytes of each.
const KEYS: u32 = 3;
const PART: usize = 256;
/// Longer than each step takes.
const LIMIT: Duration = Duration::from_secs(60);
const USAGE: MrUsage = MrUsage::WRITE_DST
    .union(MrUsage::READ_SRC)
    .union(MrUsage::FLUSH_TYPE_PERSISTENT);

/// Promise: whatever hostile clients do, the memory of others stays as it was, the honest client's
/// commits become durable and stay, the server answers, and nothing is left at the end. Returns a
/// summary of the run, the same for the same bytes.
pub(crate) fn run(bytes: &[u8]) -> String {
    let mut bytes = Bytes(bytes);
    let profile = Profile::ALL[usize::from(bytes.next()) % Profile::ALL.len()].clone();
    let fabric = Fabric::seeded(profile, u64::from(bytes.next()));
    let mut site = Site::new(&fabric, bytes.next());
    while let Some(step) = bytes.step() {
        site.step(step, &mut bytes);
        site.turn();
    }
    site.end();
    drop(site);
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    format!("{:?}", fabric.trace())
}

pub(super) struct Site {
    host: Host,
    server: Option<Server>,
    addr: SocketAddr,
    /// The server's memory, as the server sees it.
    memory: PmemMap,
    layout: Layout,
    honest: Honest,
    hostile: Hostile,
    _pmem: Pmem,
}

struct Honest {
    host: Host,
    cfg: WriterCfg,
    peer: Peer,
    source: Mr<Vec<u8>>,
    asked: Option<Connecting>,
    writer: Option<Writer>,
    pending: Option<Ticket>,
    /// The bytes of its part.
    durable: Vec<u8>,
}

impl Site {
    pub(super) fn new(fabric: &Fabric, method: u8) -> Self {
        let host = fabric.host("server");
        host.set_platform(Platform::Eadr);
        let layout = Layout::new(KEYS, PART).expect("a layout");
        let pmem = host.pmem("memory", layout.len());
        let addr: SocketAddr = (host.addr(), 7204).into();
        let (server, memory) = {
            let _entered = host.enter();
            let memory = PmemMap::open(pmem.path(), layout.len()).expect("mapped");
            let mut cfg = ServerCfg::new();
            cfg.set_commits(Some(Limits::new(4, 4, 1 << 12).expect("limits")));
            let server = Server::listen(addr, &memory, &layout, USAGE, &cfg);
            (server.expect("it listens"), memory)
        };
        let regions = (1..=KEYS).filter_map(|key| server.region(key.into()));
        let seen = regions
            .map(|region| region.get_descriptor().to_vec())
            .collect();
        let method = [Method::Reading, Method::Server][usize::from(method) % 2];
        Self {
            addr,
            memory,
            layout,
            honest: Honest::new(fabric.host("honest"), addr, method),
            hostile: Hostile::new(fabric.host("hostile"), addr, seen),
            server: Some(server),
            host,
            _pmem: pmem,
        }
    }

    /// The server does what there is to do.
    pub(super) fn turn(&mut self) {
        let _entered = self.host.enter();
        let server = self.server.as_mut().expect("it serves");
        for _ in 0..64 {
            let served = server.next(&mut [Wc::default(); 4], Duration::ZERO);
            let Some(served) = served.expect("the server goes on") else {
                return;
            };
            if let Served::Asks(asked) = &served {
                // The operator knows the address of the honest one.
                let from = asked.peer_addr().map(|addr| addr.ip());
                if asked.identity().key == HONEST && from != Some(self.honest.host.addr().into()) {
                    continue;
                }
            }
            server.answer(served).expect("the server goes on");
        }
        panic!("the server is never idle");
    }

    /// The hostile clients' host loses its power, so that the server learns nothing of their ends. The
    /// next ones come from this host.
    pub(super) fn vanish(&mut self, host: Host) {
        self.hostile.host.power_cut();
        let seen = std::mem::take(&mut self.hostile.seen);
        self.hostile = Hostile::new(host, self.addr, seen);
    }

    /// A hostile client asks for a connection.
    pub(super) fn asks(&mut self, bytes: &[u8]) {
        let _entered = self.hostile.host.enter();
        self.hostile.connects(self.addr, &mut Bytes(bytes));
    }

    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) {
        match step % 12 {
            0 | 1 => self.commit(),
            2 => sleep(Duration::from_millis(u64::from(bytes.next()).pow(2))),
            3 => {
                self.honest.leave();
                self.turn();
            }
            _ => {
                let _entered = self.hostile.host.enter();
                self.hostile.step(step % 12, self.addr, bytes);
            }
        }
        self.check();
    }

    /// The honest client makes one more commit durable, and connects for it if it has to.
    pub(super) fn commit(&mut self) {
        for _ in 0..1_000 {
            if self.honest.goes_on(self.addr) {
                return;
            }
            self.turn();
            sleep(Duration::from_millis(1));
        }
        panic!("the honest client's commit is not durable");
    }

    /// The honest client's part has its durable bytes, or those that came after them.
    pub(super) fn check(&self) {
        let at = self.layout.part(HONEST).expect("its part");
        let mut part = vec![0; at.len()];
        self.memory.read_at(at.start, &mut part).expect("read");
        let (written, rest) = part.split_at(PART);
        assert_eq!(
            written, self.honest.durable,
            "the memory of the honest client"
        );
        assert!(
            rest.iter().all(|byte| *byte == 0),
            "the rest of that memory"
        );
        let server = self.server.as_ref().expect("it serves");
        if let Some(kept) = server.directory().get(HONEST) {
            assert_eq!((kept.epoch, kept.instance), (EPOCH, HONEST));
        }
    }

    pub(super) fn end(&mut self) {
        self.commit();
        self.check();
        self.hostile.conns.clear();
        self.honest.leave();
        sleep(LIMIT);
        self.turn();
        let _entered = self.host.enter();
        let server = self.server.take().expect("it serves");
        assert_eq!(server.clients().count(), 0, "clients are left");
        drop(server);
    }
}

impl Honest {
    fn new(host: Host, addr: SocketAddr, method: Method) -> Self {
        let entered = host.enter();
        let peer = Peer::toward(&addr.ip().to_string()).expect("a device");
        let source = Mr::reg(&peer, vec![0; PART], MrUsage::WRITE_SRC).expect("registered");
        drop(entered);
        Self {
            host,
            cfg: WriterCfg::new(method),
            peer,
            source,
            asked: None,
            writer: None,
            pending: None,
            durable: vec![0; PART],
        }
    }

    /// Goes on with its next commit. Returns whether it is durable.
    fn goes_on(&mut self, addr: SocketAddr) -> bool {
        let _entered = self.host.enter();
        let Some(writer) = &mut self.writer else {
            self.connects(addr);
            return false;
        };
        writer.poll(drop).expect("the honest client's queue");
        match self.pending {
            None => {
                let next = self.durable[0].wrapping_add(1);
                self.source.write_at(0, &[next; PART]).expect("written");
                let remote = writer.offer().memory(PART as u64).expect("its part");
                let to = remote.slice(..PART as u64).expect("inside");
                let from = self.source.slice(..).expect("all of it");
                let posted = writer.commit(&[(to, from)], None);
                self.pending = Some(posted.expect("the honest client's commit"));
                false
            }
            Some(ticket) => match writer.fate(ticket).expect("its own") {
                Fate::Pending => false,
                Fate::Durable => {
                    let next = self.durable[0].wrapping_add(1);
                    self.durable.fill(next);
                    self.pending = None;
                    true
                }
                other => panic!(
                    "the honest client's commit is {other:?}: {:?}",
                    writer.conn()
                ),
            },
        }
    }

    fn connects(&mut self, addr: SocketAddr) {
        let Some(asked) = self.asked.take() else {
            let cfg = self.cfg.conn_cfg(&ConnCfg::new()).expect("settings");
            let req = ConnReq::to_addr(&self.peer, addr, &cfg).expect("it resolves");
            let mut offer = Offer::default();
            offer.set_identity(Identity {
                key: HONEST,
                epoch: EPOCH,
                instance: HONEST,
            });
            let asked = Writer::connect(req, &self.cfg, &offer);
            self.asked = Some(asked.expect("it asks"));
            return;
        };
        match asked.conn().next_event_timeout(Duration::ZERO) {
            Ok(ConnEvent::Established) => self.writer = Some(asked.finish().expect("a writer")),
            // It asks again.
            Ok(ConnEvent::Rejected { .. }) => {}
            Ok(other) => panic!("the honest client's connection: {other}"),
            Err(_) => self.asked = Some(asked),
        }
    }

    fn leave(&mut self) {
        let _entered = self.host.enter();
        (self.writer, self.asked, self.pending) = (None, None, None);
    }
}
