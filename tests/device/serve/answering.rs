//! Answers that wait for room in a send queue, and answers that fail: the side that failed is
//! named.

use rpma::commit::{Fate, Limits, Method, Ticket, Writer, WriterCfg};
use rpma::serve::{Gone, Reason, Served, ServerCfg};
use rpma::sim::Errno;

use crate::common::prelude::*;
use crate::serve::support::{LEN, Site, identity, offer};

const SECOND: Duration = Duration::from_secs(1);

/// A server of two keys that answers commits, each client on a host of its own, in a seeded run.
struct Answering {
    fabric: Fabric,
    near: Host,
    site: Site,
    writers: Vec<(Host, Writer, Mr<Memory>)>,
}

/// The server's limit for answers here.
const ANSWER: Duration = Duration::from_secs(2);

impl Answering {
    fn new() -> Result<Self> {
        let (fabric, [near]) = Rig::new().seed(1).hosts(["server"]);
        let (pmem, _entered) = (near.pmem("memory", 3 * LEN), near.enter());
        let mut cfg = ServerCfg::new();
        cfg.set_commits(Some(Limits::new(4, 4, 4096)?));
        cfg.set_answer_limit(ANSWER);
        let mut answering = Self {
            site: Site::on(&pmem, 2, &cfg)?,
            fabric,
            near: near.clone(),
            writers: Vec::new(),
        };
        answering.connect(1)?;
        answering.connect(2)?;
        Ok(answering)
    }

    fn connect(&mut self, key: u64) -> Result {
        let host = self.fabric.host(&format!("client {key}"));
        let (connecting, source) = {
            let _entered = host.enter();
            let addr = self.near.addr().to_string();
            let peer = Peer::toward(&addr)?;
            let source = region(&peer, 8, MrUsage::WRITE_SRC)?;
            source.write_at(0, &[7; 8])?;
            let cfg = WriterCfg::new(Method::Server);
            let conn_cfg = cfg.conn_cfg(&ConnCfg::new())?;
            let req = ConnReq::new(&peer, &addr, self.site.server.get_port(), &conn_cfg)?;
            let asks = offer(identity(key, 1, key));
            (Writer::connect(req, &cfg, &asks)?, source)
        };
        let asked = self.site.asked()?;
        let client = self.site.admit(asked)?;
        self.writers.push((host, connecting.wait(SECOND)?, source));
        self.site.arrives(client)
    }

    fn link_to(&self, writer: usize) -> Link {
        self.fabric.between(&self.near, &self.writers[writer].0)
    }

    /// The connection with the client of a writer takes no more operations. None of them completes
    /// before the release.
    fn fill(&self, writer: usize) -> Result {
        self.link_to(writer).hold();
        let server = &self.site.server;
        let client = server.client(writer as u64 + 1).ok_or("connected")?;
        let conn = server.conn(client).ok_or("connected")?;
        let full = loop {
            if let Err(full) = ask_nothing(conn, ALWAYS, 7) {
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
            match self.site.server.next(&mut [Wc::default(); 4], limit)? {
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
    let (one, other) = (answering.commit(0)?, answering.commit(1)?);
    assert!(answering.work(20)?.is_none());
    assert_eq!(answering.fate(1, other)?, Fate::Durable);
    assert_eq!(answering.fate(0, one)?, Fate::Pending);
    let limit = answering.site.server.deadline();
    assert!(limit.is_some(), "that of the answer");
    answering.link_to(0).release();
    assert!(answering.work(40)?.is_none());
    assert_eq!(answering.fate(0, one)?, Fate::Durable);
    assert_eq!(answering.site.server.deadline(), None);
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
    let Reason::Failed(Error::QueueFull { queue, .. }) = gone.reason else {
        panic!("{gone}");
    };
    assert_eq!(queue, Queue::Send);
    Ok(())
}

/// Promise: a call of the server that fails is no misuse by the client. `ENOMEM` of a post is a
/// full queue, for a moment.
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
        panic!("{gone}");
    };
    assert_eq!(call, "ibv_post_send");
    Ok(())
}
