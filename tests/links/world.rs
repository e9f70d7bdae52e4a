//! Two hosts and a connection, for all of these tests.

use std::thread;
use std::time::Duration;

use rpma::sim::{Fabric, Host, Link, Profile};
use rpma::{
    Conn, ConnCfg, ConnReq, Ep, Error, Flags, Mr, MrUsage, Peer, Posted, RemoteSlice, Wc, WcStatus,
};

use crate::common::{LIMIT, Memory, contents, next_completion, pattern, peer, region, remote};

pub(crate) const ALWAYS: Flags = Flags::COMPLETION_ALWAYS;
/// More than the MTU.
pub(crate) const LEN: usize = 4096;

/// Two hosts.
pub(crate) struct World {
    pub(crate) hosts: [Host; 2],
    /// From the first one to the second.
    pub(crate) link: Link,
    pub(crate) client: Peer,
    pub(crate) server: Peer,
    /// It goes last.
    pub(crate) fabric: Emptied,
}

/// A fabric without any object left in the end.
pub(crate) struct Emptied(pub(crate) Fabric);

/// A connection, and memory at both ends.
pub(crate) struct Both {
    pub(crate) client: Conn,
    pub(crate) server: Conn,
    pub(crate) source: Mr<Memory>,
    pub(crate) target: Mr<Memory>,
    pub(crate) fabric: Fabric,
}

impl World {
    pub(crate) fn new(profile: &Profile) -> Self {
        Self::on(Fabric::new(profile.clone()))
    }

    pub(crate) fn on(fabric: Fabric) -> Self {
        let hosts = ["client", "server"].map(|name| fabric.host(name));
        let link = fabric.between(&hosts[0], &hosts[1]);
        let [client, server] = hosts.each_ref().map(|host| {
            let _entered = host.enter();
            peer()
        });
        Self {
            hosts,
            link,
            client,
            server,
            fabric: Emptied(fabric),
        }
    }

    pub(crate) fn listen(&self) -> Ep {
        let _entered = self.hosts[1].enter();
        Ep::listen(&self.server, &self.hosts[1].addr().to_string(), 0).expect("listens")
    }

    pub(crate) fn resolve(&self, ep: &Ep, cfg: &ConnCfg) -> rpma::Result<ConnReq> {
        let _entered = self.hosts[0].enter();
        let addr = self.hosts[1].addr().to_string();
        ConnReq::new(&self.client, &addr, ep.get_port(), cfg)
    }

    pub(crate) fn ask(&self, ep: &Ep) -> Conn {
        let req = self.resolve(ep, &patient()).expect("resolves");
        req.connect(&[]).expect("asks")
    }

    pub(crate) fn connect(&self, client: &ConnCfg, server: &ConnCfg) -> (Conn, Conn) {
        let ep = self.listen();
        let req = self.resolve(&ep, client).expect("resolves");
        let asking = req.connect(&[]).expect("asks");
        let req = ep.next_conn_req_timeout(server, LIMIT);
        let server = req.expect("a request").connect(&[]).expect("accepts");
        let client = asking.wait_established(LIMIT).expect("accepted");
        (client, server.wait_established(LIMIT).expect("established"))
    }

    /// A connection with bytes in the source that the target does not have.
    pub(crate) fn both(&self, cfg: &ConnCfg) -> Both {
        let (client, server) = self.connect(cfg, cfg);
        let source = MrUsage::WRITE_SRC | MrUsage::READ_DST | MrUsage::SEND;
        let source = region(&self.client, LEN, source);
        source.write_at(0, &pattern(LEN, 1)).expect("inside");
        let target = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(&self.server, LEN, target);
        Both {
            client,
            server,
            source,
            target,
            fabric: self.fabric.0.clone(),
        }
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        let objects = self.0.objects();
        assert!(thread::panicking() || objects.is_empty(), "{objects:?}");
    }
}

impl Both {
    pub(crate) fn write(&self, op_context: u64) -> Posted {
        let (from, to) = (self.source.slice(..).expect("all"), self.target());
        let posted = self.client.write(to, from, ALWAYS, op_context);
        posted.expect("posted")
    }

    pub(crate) fn target(&self) -> RemoteSlice {
        remote(&self.target).slice(..).expect("all")
    }

    /// The bytes of the target, once all that was executed is visible.
    pub(crate) fn written(&self) -> Vec<u8> {
        self.fabric.settle();
        contents(&self.target)
    }
}

pub(crate) fn each(test: impl Fn(&World)) {
    for profile in Profile::ALL {
        test(&World::new(&profile));
    }
}

/// Settings with which a requester waits for hours.
pub(crate) fn patient() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(7).expect("possible");
    cfg.set_ack_timeout(Some(31)).expect("possible");
    cfg
}

/// Settings with which it fails at once.
pub(crate) fn impatient() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_retry_count(1).expect("possible");
    cfg.set_ack_timeout(Some(1)).expect("possible");
    cfg
}

/// The next completion.
pub(crate) fn completion(conn: &Conn) -> Wc {
    next_completion(conn.get_cq())
}

/// A completion with the status of a peer that did not answer.
pub(crate) fn unanswered(wc: &Wc, op_context: u64) {
    let failure = wc.result().expect_err("nobody has answered");
    assert_eq!(
        (failure.status, failure.wr_id),
        (WcStatus::RETRY_EXC_ERR, op_context),
        "{failure}"
    );
}

/// There is no event.
pub(crate) fn nothing(conn: &Conn) {
    let event = conn.next_event_timeout(Duration::ZERO);
    assert!(matches!(event, Err(Error::NoEvent)), "{event:?}");
}
