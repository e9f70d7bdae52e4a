//! The host that owns the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpma::commit::{Limits, Method, Responder, Turn};
use rpma::pmem::Ddio;
use rpma::wait::Member;
use rpma::{Durable, Request};

use crate::log::SIZE;
use crate::prelude::*;

/// Serves until it is killed, by all methods, and waits for the end of each client, however long
/// that takes.
pub(crate) fn serve(addr: &str, port: &str, path: &str) -> Result<()> {
    let peer = Peer::at(addr)?;
    let map = PmemMap::open(path, SIZE)?;
    let domain = map.persistence_domain()?;
    println!("persistence domain: {domain}");
    let cfg = PeerCfg::detect(&map, &peer, Ddio::On)?;
    // A power cut of guest 2 loses no line of a cache, and its firmware reports that.
    if cfg.get_durable() != Durable::DirectWrites {
        return Err(format!("this guest must report eADR: {domain}").into());
    }
    let usage = MrUsage::READ_SRC
        | MrUsage::WRITE_DST
        | MrUsage::FLUSH_TYPE_VISIBILITY
        | MrUsage::FLUSH_TYPE_PERSISTENT;
    let log = Arc::new(Mr::reg(&peer, map, usage)?);
    let limits = Limits::new(16, 2, 1 << 20)?;
    let mut offer = Offer::new(&cfg);
    offer.add_region(&log).set_limits(limits);
    let mut wait = Wait::new()?;
    wait.add_ep(Ep::listen(&peer, addr, port.parse()?)?)?;
    println!("listening");
    let mut server = Server {
        peer,
        log,
        offer,
        responder: Responder::new(limits),
        wait,
        numbers: BTreeMap::new(),
        count: 0,
        writer: None,
    };
    let mut wcs = [Wc::default(); 16];
    loop {
        if let Some(happened) = server.wait.next(&mut wcs, Duration::MAX)? {
            server.take(happened, &wcs);
        }
    }
}

struct Server {
    peer: Peer,
    log: Arc<Mr<PmemMap>>,
    offer: Offer,
    responder: Responder<Member>,
    wait: Wait,
    /// Clients are numbered as they come.
    numbers: BTreeMap<Member, u64>,
    count: u64,
    /// The client that may commit. Each writer takes the place of the one before it.
    writer: Option<Member>,
}

impl Server {
    fn take(&mut self, happened: Happened, wcs: &[Wc]) {
        match happened {
            Happened::Request(_, request) => {
                self.count += 1;
                match self.accept(request) {
                    Ok(()) => println!("client {}", self.count),
                    Err(error) => println!("client {}: {error}", self.count),
                }
            }
            Happened::Completions(client, count) => {
                for wc in &wcs[..count] {
                    self.responder.handle(client, wc);
                }
                self.serve();
            }
            Happened::Event(_, ConnEvent::Established) => {}
            Happened::Event(client, event) => self.end(client, &event.to_string()),
            Happened::Failed(client, error) => self.end(client, &error.to_string()),
            other => println!("other: {other:?}"),
        }
    }

    fn accept(&mut self, request: Request) -> Result<()> {
        let place = self.wait.place();
        let cfg = place.cfg(&self.peer, &self.responder.conn_cfg(&ConnCfg::new())?)?;
        let req = request.into_req(&self.peer, &cfg)?;
        let client = match self.offer.judge(req.get_private_data()) {
            Ok(client) => client,
            Err(refusal) => {
                req.reject(&refusal.encode())?;
                return Err(refusal.words().into());
            }
        };
        // Its requests that are not served must not be served after the new writer has read the
        // tail.
        if let Some(writer) = self.writer.take_if(|_| client.method().is_some()) {
            self.cut_off(writer);
            self.end(writer, "another client writes");
        }
        let slots = match client.method() {
            Some((Method::Server, FlushType::Persistent)) => {
                Some(self.responder.prepare(&req, &self.log, ..)?)
            }
            _ => None,
        };
        let conn = req.connect(&self.offer.encode(Offer::ACCEPT)?)?;
        let member = self.wait.add(place, conn)?;
        self.numbers.insert(member, self.count);
        if let Some(slots) = slots {
            self.responder.add(member, slots);
        }
        if client.method().is_some() {
            self.writer = Some(member);
        }
        Ok(())
    }

    fn serve(&mut self) {
        loop {
            match self.responder.turn(|client| self.wait.conn(client)) {
                Turn::Idle => break,
                Turn::Misused(client, error) | Turn::Failed(client, error) => {
                    self.end(client, &error.to_string());
                }
                _ => {}
            }
        }
    }

    /// Ends the writes that the last writer may still send.
    fn cut_off(&mut self, writer: Member) {
        if let Some(conn) = self.wait.remove(writer) {
            // Only the end of this program would deregister the log then.
            conn.cut_off().expect("the last writer is cut off");
        }
    }

    fn end(&mut self, client: Member, reason: &str) {
        self.responder.remove(client);
        drop(self.wait.remove(client));
        self.writer.take_if(|writer| *writer == client);
        let number = self.numbers.remove(&client).unwrap_or_default();
        println!("client {number}: {reason}");
    }
}
