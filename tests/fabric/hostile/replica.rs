//! A set of three replicas, of which one is a hostile program, whose steps are chosen by bytes: a
//! fuzzer's (`fuzz/fuzz_targets/replica.rs`), or those of the corpus.
//!
//! All of it runs on one thread of a fabric with a seed, so that a run is repeated by its bytes.

use std::net::SocketAddr;
use std::time::Duration;

use rpma::commit::{CommitId, Connecting, Limits, Method, ReplicaId, Replicas, Writer, WriterCfg};
use rpma::pmem::PmemMap;
use rpma::serve::{Layout, Server, ServerCfg};
use rpma::sim::{Fabric, Host, Platform, Pmem, Profile, sleep};
use rpma::{
    Conn, ConnCfg, ConnEvent, ConnReq, Durable, Ep, Flags, FlushType, Identity, Mr, MrUsage, Offer,
    Peer, PeerCfg, Wc,
};

use super::bytes::Bytes;

/// The bytes of a record, and how many of them a replica has room for.
const RECORD: usize = 64;
const RECORDS: usize = 4;
const PART: usize = RECORD * RECORDS;
/// The copies that make a commit durable. The hostile one may count as one of them.
const COPIES: usize = 2;
/// Longer than each step takes.
const LIMIT: Duration = Duration::from_secs(60);
const USAGE: MrUsage = MrUsage::WRITE_DST
    .union(MrUsage::READ_SRC)
    .union(MrUsage::FLUSH_TYPE_PERSISTENT);

/// Promise: whatever a hostile replica does, the others get each commit, and have the bytes of those
/// that count as durable on them; no call panics or waits for ever; nothing is left at the end. Returns
/// a summary of the run, the same for the same bytes.
pub(crate) fn run(bytes: &[u8]) -> String {
    let mut bytes = Bytes(bytes);
    let profile = Profile::ALL[usize::from(bytes.next()) % Profile::ALL.len()].clone();
    let fabric = Fabric::seeded(profile, u64::from(bytes.next()));
    let method = [Method::Reading, Method::Server][usize::from(bytes.next()) % 2];
    let mut world = World::new(&fabric, method);
    while let Some(step) = bytes.step() {
        world.step(step, &mut bytes);
    }
    world.commit();
    drop(world);
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    format!("{:?}", fabric.trace())
}

struct World {
    client: Client,
    honest: [Honest; COPIES],
    hostile: Hostile,
}

/// The owner of the set.
struct Client {
    host: Host,
    peer: Peer,
    cfg: WriterCfg,
    set: Replicas,
    /// Asking, or a member.
    asked: Option<Connecting>,
    member: Option<ReplicaId>,
    commits: u64,
}

/// A server that does as it should.
struct Honest {
    host: Host,
    server: Server,
    addr: SocketAddr,
    memory: PmemMap,
    /// Where its client's part begins.
    part: usize,
    id: Option<ReplicaId>,
    _pmem: Pmem,
}

/// A program that answers as it likes.
struct Hostile {
    host: Host,
    ep: Ep,
    addr: SocketAddr,
    memory: Mr<Vec<u8>>,
    conns: Vec<Conn>,
}

impl World {
    fn new(fabric: &Fabric, method: Method) -> Self {
        let honest = ["one", "two"].map(|name| Honest::new(fabric.host(name)));
        let hostile = Hostile::new(fabric.host("hostile"));
        let client = Client::new(fabric.host("client"), honest[0].addr, method);
        let mut world = Self {
            client,
            honest,
            hostile,
        };
        for n in 0..COPIES {
            let addr = world.honest[n].addr;
            while world.honest[n].id.is_none() {
                world.honest[n].id = world.client.connects(addr);
                world.honest[n].turn();
            }
        }
        world
    }

    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) {
        match step % 10 {
            0 | 1 => self.commit(),
            2 => sleep(Duration::from_millis(u64::from(bytes.next()).pow(2))),
            3 => self.client.joins(self.hostile.addr),
            4 => self.client.forgets(),
            step => {
                let _entered = self.hostile.host.enter();
                self.hostile.step(step, bytes);
            }
        }
    }

    /// A commit becomes durable on each of the honest ones. They have its bytes then.
    fn commit(&mut self) {
        let (id, at, record) = self.client.commit();
        let until = self.client.now() + LIMIT;
        loop {
            for honest in &mut self.honest {
                honest.turn();
            }
            let durable = self.client.durable(id);
            let there = |honest: &Honest| honest.id.is_some_and(|id| durable.contains(&id));
            for honest in self.honest.iter().filter(|honest| there(honest)) {
                let mut found = [0; RECORD];
                let at = honest.part + at;
                honest.memory.read_at(at, &mut found).expect("read");
                assert_eq!(found, record, "the bytes of a commit that is durable there");
            }
            if self.honest.iter().all(there) {
                return;
            }
            assert!(
                self.client.now() < until,
                "an honest replica does not get the commit"
            );
            sleep(Duration::from_millis(1));
        }
    }
}

impl Client {
    fn new(host: Host, addr: SocketAddr, method: Method) -> Self {
        let entered = host.enter();
        let peer = Peer::toward(&addr.ip().to_string()).expect("a device");
        let set = Replicas::new(&peer, 16 * RECORD, 8).expect("a set");
        drop(entered);
        Self {
            host,
            peer,
            cfg: WriterCfg::new(method),
            set,
            asked: None,
            member: None,
            commits: 0,
        }
    }

    fn now(&self) -> std::time::Instant {
        rpma::sim::now()
    }

    /// Goes on to connect. Returns the replica once it is a member.
    fn connects(&mut self, addr: SocketAddr) -> Option<ReplicaId> {
        let _entered = self.host.enter();
        let Some(asked) = self.asked.take() else {
            let cfg = self.cfg.conn_cfg(&ConnCfg::new()).expect("settings");
            let req = ConnReq::to_addr(&self.peer, addr, &cfg).ok()?;
            let mut offer = Offer::default();
            offer.set_identity(Identity {
                key: 1,
                epoch: 1,
                instance: 1,
            });
            self.asked = Writer::connect(req, &self.cfg, &offer).ok();
            return None;
        };
        match asked.conn().next_event_timeout(Duration::ZERO) {
            Ok(ConnEvent::Established) => {
                let writer = asked.finish().ok()?;
                let remote = writer.offer().memory(PART as u64).ok()?;
                self.set.add(writer, remote).ok()
            }
            Ok(_) => None,
            Err(_) => {
                self.asked = Some(asked);
                None
            }
        }
    }

    /// The hostile one may become a member.
    fn joins(&mut self, addr: SocketAddr) {
        if self.member.is_none() {
            self.member = self.connects(addr);
        }
    }

    /// The hostile one is a member no more, and may ask again.
    fn forgets(&mut self) {
        let _entered = self.host.enter();
        self.asked = None;
        if let Some(id) = self.member.take() {
            let _ = self.set.set_aside(id, Duration::ZERO);
        }
    }

    /// Commits a record, at its place. Makes room if the hostile one holds all of it.
    fn commit(&mut self) -> (CommitId, usize, [u8; RECORD]) {
        let _entered = self.host.enter();
        self.commits += 1;
        let record = [self.commits as u8; RECORD];
        let at = self.commits as usize % RECORDS * RECORD;
        let made = self.set.make_room(RECORD, COPIES, LIMIT);
        made.expect("the honest ones answer");
        let mut place = self.set.record(RECORD).expect("room");
        place.put(0, &record).expect("inside");
        let id = place.commit(at as u64, None, COPIES);
        (id.expect("two are able"), at, record)
    }

    fn durable(&mut self, id: CommitId) -> Vec<ReplicaId> {
        let _entered = self.host.enter();
        self.set.look();
        let outcome = self.set.outcome(id);
        self.set.durable(outcome).collect()
    }
}

impl Honest {
    fn new(host: Host) -> Self {
        host.set_platform(Platform::Eadr);
        let layout = Layout::new(1, PART).expect("a layout");
        let pmem = host.pmem("memory", layout.len());
        let addr: SocketAddr = (host.addr(), 7204).into();
        let (server, memory) = {
            let _entered = host.enter();
            let memory = PmemMap::open(pmem.path(), layout.len()).expect("mapped");
            let mut cfg = ServerCfg::new();
            cfg.set_commits(Some(Limits::new(8, 4, 1 << 12).expect("limits")));
            let server = Server::listen(addr, &memory, &layout, USAGE, &cfg);
            (server.expect("it listens"), memory)
        };
        Self {
            host,
            server,
            addr,
            memory,
            part: layout.part(1).expect("its part").start,
            id: None,
            _pmem: pmem,
        }
    }

    fn turn(&mut self) {
        let _entered = self.host.enter();
        while let Some(served) = self
            .server
            .next(&mut [Wc::default(); 4], Duration::ZERO)
            .expect("the server goes on")
        {
            self.server.answer(served).expect("the server goes on");
        }
    }
}

impl Hostile {
    fn new(host: Host) -> Self {
        let addr: SocketAddr = (host.addr(), 7204).into();
        let entered = host.enter();
        let peer = Peer::at(&addr.ip().to_string()).expect("a device");
        let ep = Ep::listen_on(&peer, addr).expect("it listens");
        let memory = vec![0; PART];
        let usage = MrUsage::all() - MrUsage::FLUSH_TYPE_PERSISTENT;
        let memory = Mr::reg(&peer, memory, usage).expect("registered");
        drop(entered);
        Self {
            host,
            ep,
            addr,
            memory,
            conns: Vec::new(),
        }
    }

    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) {
        if step == 5 {
            return self.answers(bytes);
        }
        if self.conns.is_empty() {
            return;
        }
        let place = usize::from(bytes.next()) % self.conns.len();
        let conn = &self.conns[place];
        // Errors are those of the hostile program.
        match step {
            6 => {
                let _ = conn.next_event_timeout(Duration::ZERO);
                let _ = conn.get_cq().get_wc(&mut [Wc::default(); 8]);
            }
            7 => {
                let own = self.memory.slice(..).expect("all of it");
                let _ = conn.recv(own, 0);
            }
            8 => {
                let message = bytes.take(PART);
                self.memory.write_at(0, message).expect("inside");
                let message = self.memory.slice(..message.len()).expect("inside");
                let _ = conn.send(message, Flags::COMPLETION_ALWAYS, 0);
            }
            _ => {
                let conn = self.conns.swap_remove(place);
                if bytes.next() % 2 == 0 {
                    let _ = conn.disconnect();
                }
            }
        }
    }

    /// Takes a request, with an offer that is right but for some bytes.
    fn answers(&mut self, bytes: &mut Bytes<'_>) {
        let mut cfg = ConnCfg::new();
        cfg.set_rq_size(8);
        let Ok(req) = self.ep.next_conn_req_timeout(&cfg, Duration::ZERO) else {
            return;
        };
        let kind = bytes.next();
        let mut platform = PeerCfg::new();
        platform.set_durable(Durable::DirectWrites);
        let mut offer = Offer::new(&platform);
        if kind & 1 != 0 {
            offer.set_method(Method::Server, FlushType::Persistent);
            offer.set_limits(Limits::new(4, 4, 1 << 12).expect("limits"));
        }
        let _ = offer.add_region(&self.memory);
        let mut data = offer.encode(Offer::ACCEPT).expect("it fits");
        if kind & 2 != 0 {
            for (at, change) in data.iter_mut().zip(bytes.take(Offer::ACCEPT)) {
                *at ^= change;
            }
        }
        if kind & 4 != 0 {
            let _ = req.reject(&data[..data.len().min(148)]);
            return;
        }
        if let Ok(conn) = req.connect(&data) {
            self.conns.push(conn);
        }
    }
}
