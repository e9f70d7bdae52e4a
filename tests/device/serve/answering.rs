//! Answers that wait for room in a send queue, and answers that fail: the side that failed is named.

use std::sync::Arc;

use rpma::commit::{Fate, Limits, Method, Ticket, Writer, WriterCfg};
use rpma::serve::{Directory, Gone, Part, Reason, Served, Server, ServerCfg};
use rpma::sim::Errno;

use crate::common::prelude::*;
use crate::serve::failing::next;
use crate::serve::support::{LEN, identity, offer, usage};

const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
const SECOND: Duration = Duration::from_secs(1);

/// A server of two keys that answers commits, each client on a host of its own, in a seeded run.
struct Answering {
    fabric: Fabric,
    near: Host,
    server: Server,
    parts: Vec<(Peer, Arc<Mr<PmemMap>>)>,
    writers: Vec<(Host, Writer, Mr<Vec<u8>>)>,
}

/// The server's limit for answers here.
const ANSWER: Duration = Duration::from_secs(2);

impl Answering {
    fn new() -> Result<Self> {
        let fabric = Rig::new().seed(1).fabric();
        let near = fabric.host("server");
        let (pmem, addr) = (near.pmem("memory", 3 * LEN), near.addr().to_string());
        let _entered = near.enter();
        let all = PmemMap::open(pmem.path(), 3 * LEN)?;
        let device = Device::from_addr(&addr, Side::Local)?;
        let ep = Ep::listen(&Peer::new(&device)?, &addr, 0)?;
        let mut cfg = ServerCfg::new();
        cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
        cfg.set_answer_limit(ANSWER);
        let server = Server::new(ep, Directory::create(all.part(..LEN)?, 2)?, &cfg)?;
        let mut answering = Self {
            fabric,
            near: near.clone(),
            server,
            parts: Vec::new(),
            writers: Vec::new(),
        };
        for key in 1..=2 {
            let peer = Peer::new(&device)?;
            let part = all.part(key * LEN..(key + 1) * LEN)?;
            let region = Arc::new(Mr::reg(&peer, part, usage())?);
            answering.parts.push((peer, region));
            answering.connect(key as u64, &addr)?;
        }
        Ok(answering)
    }

    fn connect(&mut self, key: u64, addr: &str) -> Result {
        let host = self.fabric.host(&format!("client {key}"));
        let (connecting, source) = {
            let _entered = host.enter();
            let peer = Peer::new(&Device::from_addr(addr, Side::Remote)?)?;
            let source = Mr::reg(&peer, vec![7; 8], MrUsage::WRITE_SRC)?;
            let cfg = WriterCfg::new(Method::Server);
            let conn_cfg = cfg.conn_cfg(&ConnCfg::new())?;
            let req = ConnReq::new(&peer, addr, self.server.get_port(), &conn_cfg)?;
            (
                Writer::connect(req, &cfg, &offer(identity(key, 1, key)))?,
                source,
            )
        };
        let Served::Asks(asked) = next(&mut self.server)? else {
            panic!("a client asks");
        };
        let (peer, region) = &self.parts[key as usize - 1];
        let data = &[];
        self.server.admit(asked, &Part { peer, region, data })?;
        self.writers.push((host, connecting.wait(SECOND)?, source));
        let arrived = next(&mut self.server)?;
        assert!(matches!(arrived, Served::Arrived(_)), "{arrived:?}");
        Ok(())
    }

    fn link_to(&self, writer: usize) -> Link {
        self.fabric.between(&self.near, &self.writers[writer].0)
    }

    /// The connection with the client of a writer takes no more operations. None of them completes
    /// before the release.
    fn fill(&self, writer: usize) -> Result {
        self.link_to(writer).hold();
        let client = self.server.client(writer as u64 + 1).ok_or("connected")?;
        let conn = self.server.conn(client).ok_or("connected")?;
        let full = loop {
            if let Err(full) = conn.write(RemoteSlice::EMPTY, MrSlice::EMPTY, ALWAYS, 7) {
                break full;
            }
        };
        assert!(matches!(full, Error::QueueFull { .. }), "{full}");
        Ok(())
    }

    fn commit(&mut self, writer: usize) -> Result<Ticket> {
        let (host, writer, source) = &mut self.writers[writer];
        let _entered = host.enter();
        let to = writer.offer().regions()[0];
        let part = (to.slice(64..72)?, source.slice(..)?);
        Ok(writer.commit(&[part], Some((to.slice(..8)?, [7; 8])))?)
    }

    /// Lets the server work. Returns the end of a client, if there is one.
    fn work(&mut self, turns: u32) -> Result<Option<Gone>> {
        for _ in 0..turns {
            let limit = Duration::from_millis(10);
            match self.server.next(&mut [Wc::default(); 4], limit)? {
                Some(Served::Gone(gone)) => return Ok(Some(*gone)),
                Some(Served::Completions(..)) | None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        Ok(None)
    }

    fn fate(&mut self, writer: usize, ticket: Ticket) -> Result<Fate> {
        let writer = &mut self.writers[writer].1;
        writer.look(drop)?;
        Ok(writer.fate(ticket)?)
    }
}

/// Promise: while the program's own operations fill the send queue of one client, its answers wait,
/// and other clients are served. When there is room the answers are sent.
#[test]
fn an_answer_waits_for_room() -> Result {
    let mut answering = Answering::new()?;
    answering.fill(0)?;
    let tickets = [0, 1].map(|writer| answering.commit(writer));
    let [one, other] = tickets;
    let (one, other) = (one?, other?);
    assert!(answering.work(20)?.is_none());
    assert_eq!(answering.fate(1, other)?, Fate::Durable);
    assert_eq!(answering.fate(0, one)?, Fate::Pending);
    assert!(
        answering.server.deadline().is_some(),
        "the limit of the answer"
    );
    answering.link_to(0).release();
    assert!(answering.work(40)?.is_none());
    assert_eq!(answering.fate(0, one)?, Fate::Durable);
    assert_eq!(answering.server.deadline(), None);
    Ok(())
}

/// Promise: after the answer limit the client is ended, for a failure of this side that names the
/// queue.
#[test]
fn an_answer_without_room_is_an_own_failure() -> Result {
    let mut answering = Answering::new()?;
    answering.fill(0)?;
    answering.commit(0)?;
    let begin = answering.fabric.now();
    let gone = answering.work(1000)?.ok_or("the client is ended")?;
    let took = answering.fabric.now() - begin;
    assert!(took >= ANSWER && took < 2 * ANSWER, "{took:?}");
    assert_eq!(gone.identity.key, 1);
    let Reason::Failed(Error::QueueFull {
        queue: Queue::Send, ..
    }) = gone.reason
    else {
        panic!("{}", gone.reason);
    };
    Ok(())
}

/// Promise: a call of the server that fails is no misuse by the client. `ENOMEM` of a post is a full
/// queue, for a moment.
#[test]
fn a_failed_answer_is_an_own_failure() -> Result {
    let mut answering = Answering::new()?;
    let fail = |answering: &Answering, errno| {
        let failing = answering.fabric.fail("ibv_post_send").on(&answering.near);
        drop(failing.next(errno));
    };
    let ticket = answering.commit(0)?;
    fail(&answering, Errno::NOMEM);
    assert!(answering.work(20)?.is_none());
    assert_eq!(answering.fate(0, ticket)?, Fate::Durable);
    answering.commit(0)?;
    fail(&answering, Errno::IO);
    let gone = answering.work(20)?.ok_or("the client is ended")?;
    let Reason::Failed(Error::Provider { call, .. }) = gone.reason else {
        panic!("{}", gone.reason);
    };
    assert_eq!(call, "ibv_post_send");
    Ok(())
}
