//! Two of three replicas by the server's method, where no flush makes anything durable: all sides
//! in one thread. The third replica's processor serves rarely.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpma::commit::{Limits, Method, Replicas, Responder, Turn, Writer, WriterCfg};
use rpma::sim::{Visited, now, sleep};

use crate::common::failed::Result;
use crate::common::prelude::*;
use crate::replicas::set::{LEN, LIMIT, SIZE, START, record, whole};

const RECORDS: u64 = 6;

/// A replica's memory, its end of the connection, and its responder.
pub(crate) struct Served {
    pub(crate) pmem: Pmem,
    pub(crate) far: Conn,
    pub(crate) responder: Responder<u8>,
}

impl Served {
    /// A server with the writer of the client. `peer` is the client's.
    pub(crate) fn new(
        host: &Host,
        client: &Host,
        peer: &Peer,
        retries: u8,
    ) -> Result<(Self, Writer)> {
        host.set_platform(Platform::AdrDdioOn);
        let pmem = host.pmem("log", SIZE);
        let addr = host.addr().to_string();
        let mut responder = Responder::new(Limits::new(2, 2, 4096)?);
        let on_server = host.enter();
        let device = Device::from_addr(&addr, Side::Local)?;
        let own = Peer::new(&device)?;
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_PERSISTENT;
        let map = PmemMap::open(pmem.path(), SIZE)?;
        let log = Arc::new(Mr::reg(&own, map, usage)?);
        let ep = Ep::listen(&own, &addr, 0)?;
        drop(on_server);

        let _on_client = client.enter();
        let cfg = WriterCfg::new(Method::Server);
        let mut settings = ConnCfg::new();
        settings.set_retry_count(retries)?;
        let settings = cfg.conn_cfg(&settings)?;
        let req = ConnReq::new(peer, &addr, ep.get_port(), &settings)?;
        let connecting = Writer::connect(req, &cfg, &Offer::default())?;
        let far = {
            let _on_server = host.enter();
            let settings = responder.conn_cfg(&ConnCfg::new())?;
            let req = ep.next_conn_req_timeout(&settings, LIMIT)?;
            responder.add(0, responder.prepare(&req, &log, ..)?);
            let mut offer = Offer::new(&PeerCfg::new());
            offer.add_region(&log).set_limits(responder.limits());
            let offer = offer.encode(Offer::ACCEPT)?;
            req.connect(&offer)?
        };
        let writer = connecting.wait(LIMIT)?;
        let far = far.wait_established(LIMIT)?;
        let served = Self {
            pmem,
            far,
            responder,
        };
        Ok((served, writer))
    }

    /// The replica's program, until its connection is over.
    pub(crate) fn serve(mut self) {
        let mut wcs = [Wc::default(); 8];
        while let Ok(Next::Completions(count)) = self.far.next(&mut wcs, Duration::MAX) {
            for wc in &wcs[..count] {
                self.responder.handle(0, wc);
            }
            while let Turn::Served(_) = self.responder.turn(|_| Some(&self.far)) {}
        }
    }

    fn turn(&mut self) {
        let mut wcs = [Wc::default(); 8];
        let count = self.far.get_cq().get_wc(&mut wcs).expect("polls");
        for wc in &wcs[..count] {
            self.responder.handle(0, wc);
        }
        let turn = self.responder.turn(|_| Some(&self.far));
        assert!(
            !matches!(turn, Turn::Misused(..) | Turn::Failed(..)),
            "the client is honest"
        );
    }
}

fn run(profile: &Profile, pipelined: u64) -> Result<Visited, Loss> {
    let fabric = Rig::of(profile).seed(5).fabric();
    let client = fabric.host("client");
    let hosts = ["a", "b", "c"].map(|name| fabric.host(name));
    let _entered = client.enter();
    let addr = hosts[0].addr().to_string();
    let device = Device::from_addr(&addr, Side::Remote).expect("a device");
    let peer = Peer::new(&device).expect("a peer");
    let records = pipelined as usize + 1;
    let mut log = Replicas::new(&peer, records * LEN, records).expect("a ring");
    let mut servers = hosts.map(|host| {
        let (served, writer) = Served::new(&host, &client, &peer, 7).expect("connected");
        let region = writer.offer().regions()[0];
        log.add(writer, region).expect("added");
        served
    });
    let pmems: Vec<_> = servers.iter().map(|of| of.pmem.clone()).collect();
    let acknowledged = AtomicU64::new(0);
    let check = |cut: &Cut<'_>| {
        let pmems: Vec<_> = pmems.iter().collect();
        for images in cut.joint_images_up_to(&pmems, 20) {
            let told = acknowledged.load(Ordering::Relaxed);
            let copies = images.iter().filter(|of| whole(of.bytes()) >= told).count();
            assert!(copies >= 2, "{told} records are on {copies} of 3 replicas");
        }
    };
    fabric.find_loss(check, || {
        let (mut ids, mut steps, began) = (Vec::new(), 0_u32, now());
        while acknowledged.load(Ordering::Relaxed) < RECORDS {
            let (number, told) = (ids.len() as u64, acknowledged.load(Ordering::Relaxed));
            if number < RECORDS && number < told + pipelined {
                if let Ok(mut made) = log.record(LEN) {
                    made.put(0, &record(number)).expect("inside");
                    let at = START + number * LEN as u64;
                    let tail = Some((0, (number + 1).to_le_bytes()));
                    ids.push(made.commit(at, tail, 2).expect("posted"));
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
    for profile in Profile::ALL {
        for pipelined in [1, 3] {
            let visited = run(&profile, pipelined);
            let visited = visited.unwrap_or_else(|loss| panic!("{}: {loss}", profile.name()));
            assert!(visited.events > 20, "{}", visited.events);
        }
    }
}

/// A host that is gone after it took the request leaves no operation in flight that would fail. The
/// wait ends by a write of its own, long before its limit.
#[test]
fn a_settle_ends_when_the_host_that_took_the_request_is_gone() -> Result {
    for profile in Profile::ALL {
        let fabric = Rig::of(&profile).seed(5).fabric();
        let (client, host) = (fabric.host("client"), fabric.host("a"));
        let _entered = client.enter();
        let device = Device::from_addr(&host.addr().to_string(), Side::Remote);
        let peer = Peer::new(&device?)?;
        let mut log = Replicas::new(&peer, LEN, 1)?;
        let (served, writer) = Served::new(&host, &client, &peer, 2)?;
        let region = writer.offer().regions()[0];
        let replica = log.add(writer, region)?;
        let mut made = log.record(LEN)?;
        made.put(0, &record(0))?;
        let tail = Some((0, 1_u64.to_le_bytes()));
        let id = made.commit(START, tail, 1)?;
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
        assert_eq!((outcome.durable, outcome.unknown), (0, replica.mask()));
        assert!(took < LIMIT, "{}: {took:?}", profile.name());
        drop(served);
    }
    Ok(())
}
