//! Two of three replicas by the server's method, where no flush makes anything durable: all sides
//! in one thread. The third replica's processor serves rarely.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::commit::{Responder, Turn, WriterCfg};

use crate::replicas::prelude::*;

const RECORDS: u64 = 6;

/// A replica's memory, its end of the connection, and its responder.
pub(crate) struct Served {
    pub(crate) pmem: Pmem,
    pub(crate) far: Conn,
    pub(crate) responder: Responder<u8>,
}

impl Served {
    /// A server with the writer of the client, whose peer this is.
    pub(crate) fn new(host: &Host, peer: &Peer, retries: u8) -> Result<(Self, Writer)> {
        host.set_platform(Platform::AdrDdioOn);
        let pmem = host.pmem("log", SIZE);
        let addr = host.addr().to_string();
        let mut responder = Responder::new(Limits::new(2, 2, 4096)?);
        let map = {
            let _entered = host.enter();
            PmemMap::open(pmem.path(), SIZE)?
        };
        let own = peer_of(host);
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let log = Arc::new(Mr::reg(&own, map, usage)?);
        let ep = Ep::listen(&own, &addr, 0)?;
        let mut settings = ConnCfg::new();
        settings.set_retry_count(retries)?;
        let connecting = ask(peer, &addr, &ep, &WriterCfg::new(Method::Server), &settings)?;
        let req = request(&ep, &responder.conn_cfg(&ConnCfg::new())?)?;
        responder.add(0, responder.prepare(&req, &log, ..)?);
        let mut offer = Offer::default();
        offer.add_region(&log).set_limits(responder.limits());
        let far = req.connect(&offer.encode(Offer::ACCEPT)?)?;
        let writer = connecting.wait(LIMIT)?;
        let served = Self {
            pmem,
            far: far.wait_established(LIMIT)?,
            responder,
        };
        Ok((served, writer))
    }

    /// The replica's program, until its connection is over.
    pub(crate) fn serve(mut self) {
        let mut wcs = [Wc::default(); 8];
        while let Ok(Next::Completions(count)) = self.far.next(&mut wcs, Duration::MAX) {
            self.handle(&wcs[..count]);
            while let Turn::Served(_) = self.responder.turn(|_| Some(&self.far)) {}
        }
    }

    fn handle(&mut self, wcs: &[Wc]) {
        for wc in wcs {
            self.responder.handle(0, wc);
        }
    }

    pub(crate) fn turn(&mut self) {
        let mut wcs = [Wc::default(); 8];
        let count = self.far.get_cq().get_wc(&mut wcs).expect("polls");
        self.handle(&wcs[..count]);
        let turn = self.responder.turn(|_| Some(&self.far));
        let is_wrong = matches!(turn, Turn::Misused(..) | Turn::Failed(..));
        assert!(!is_wrong, "the client is honest");
    }
}

/// Three replicas, which no program serves yet, and their client, on which the calling thread is.
pub(crate) struct Three {
    pub(crate) log: Replicas,
    pub(crate) ids: Vec<ReplicaId>,
    pub(crate) hosts: [Host; 3],
    pub(crate) servers: Vec<Served>,
    pub(crate) client: Host,
    pub(crate) entered: Entered,
}

impl Three {
    /// With a ring for so many records, and for so many commits.
    pub(crate) fn new(
        fabric: &Fabric,
        retries: u8,
        records: usize,
        commits: usize,
    ) -> Result<Self> {
        let client = fabric.host("client");
        let hosts = ["a", "b", "c"].map(|name| fabric.host(name));
        let entered = client.enter();
        let peer = peer()?;
        let mut log = Replicas::new(&peer, records * LEN, commits)?;
        let (mut ids, mut servers) = (Vec::new(), Vec::new());
        for host in &hosts {
            let (served, writer) = Served::new(host, &peer, retries)?;
            ids.push(add(&mut log, writer)?);
            servers.push(served);
        }
        Ok(Self {
            log,
            ids,
            hosts,
            servers,
            client,
            entered,
        })
    }
}

fn run(profile: &Profile, pipelined: u64) -> Result<Visited, Loss> {
    let fabric = Rig::of(profile).seed(5).fabric();
    let records = pipelined as usize + 1;
    let three = Three::new(&fabric, 7, records, records).expect("added");
    let (mut log, mut servers) = (three.log, three.servers);
    let pmems: Vec<_> = servers.iter().map(|of| of.pmem.clone()).collect();
    let acknowledged = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| on_two(cut, &pmems, &acknowledged);
    fabric.find_loss(check, || {
        let (mut ids, mut steps, began) = (Vec::new(), 0_u32, now());
        while acknowledged.load(Ordering::Relaxed) < RECORDS {
            let (number, told) = (ids.len() as u64, acknowledged.load(Ordering::Relaxed));
            if number < RECORDS && number < told + pipelined {
                match append(&mut log, number, 2) {
                    Ok(id) => ids.push(id),
                    Err(Error::RingFull) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for (n, server) in servers.iter_mut().enumerate() {
                if n < 2 || steps % 8 == 0 {
                    server.turn();
                }
            }
            log.look();
            let safe = ids.iter().filter(|id| log.outcome(**id).copies() >= 2);
            acknowledged.store(safe.count() as u64, Ordering::Relaxed);
            sleep(Duration::from_micros(100));
            steps += 1;
            assert!(now() - began < LIMIT, "it does not get on");
        }
    })?;
    Ok(fabric.visited())
}

#[test]
fn the_servers_method_on_two_of_three_survives_every_cut() {
    for profile in Profile::EVERY {
        for pipelined in [1, 3] {
            let visited = run(&profile, pipelined);
            let visited = visited.unwrap_or_else(|loss| panic!("{}: {loss}", profile.name()));
            assert!(visited.events > 20, "{}", visited.events);
        }
    }
}

/// A host that is gone after it took the request leaves no operation in flight that would fail. The
/// wait ends by a write of its own, long before its limit. (iWARP has no retries: there a keep-alive
/// has to notice it.)
#[test]
fn a_settle_ends_when_the_host_that_took_the_request_is_gone() -> Result {
    for profile in Profile::ALL {
        let (fabric, [client, host]) = Rig::of(&profile).seed(5).hosts(["client", "a"]);
        let _entered = client.enter();
        let peer = peer()?;
        let mut log = Replicas::new(&peer, LEN, 1)?;
        let (_served, writer) = Served::new(&host, &peer, 2)?;
        let replica = add(&mut log, writer)?;
        let id = append(&mut log, 0, 1)?;
        let began = now();
        while log.writer(replica).ok_or("a writer")?.released() == 0 {
            log.look();
            sleep(Duration::from_millis(1));
            assert!(now() - began < LIMIT, "the request is not taken");
        }
        fabric.power_cut(&host);
        let began = now();
        let outcome = log.settle(id, 1, Duration::from_secs(3_600));
        let took = now() - began;
        let outcome = Named::by(&log, outcome);
        assert_eq!((outcome.durable, outcome.unknown), (0, mask([replica])));
        assert!(took < LIMIT, "{}: {took:?}", profile.name());
    }
    Ok(())
}
