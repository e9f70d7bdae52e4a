//! Two hosts in the time of a paused clock, both on one thread of tokio.

use std::collections::BTreeMap;
use std::ops::Deref;

use rpma::sim::Failing;
use rpma_async::{Conn, Reactor, Setup};
use tokio::time::Instant;

use crate::awaited::support::{Memories, connect_to};
use crate::common;
use crate::common::prelude::*;

/// Two hosts, each with a reactor.
pub(crate) struct World {
    two: common::World,
    pub(crate) reactors: [Reactor; 2],
}

impl Deref for World {
    type Target = common::World;

    fn deref(&self) -> &common::World {
        &self.two
    }
}

/// Settings that notice a lost peer in 2 s.
pub(crate) fn impatient() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    cfg.set_ack_timeout(Some(15)).expect("5 bits");
    cfg.set_retry_count(2).expect("3 bits");
    // There TCP repeats for a quarter of an hour.
    if is_iwarp() {
        let silence = Duration::from_secs(4);
        cfg.set_keep_alive(Some(silence)).expect("possible");
    }
    cfg
}

/// A time within which a wait ends.
pub(crate) async fn within<T>(limit: Duration, wait: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let result = wait.await;
    let took = began.elapsed();
    assert!(took <= limit, "{took:?} of {limit:?}");
    result
}

/// The peer has not answered an operation, and the time of [`impatient`] is over.
pub(crate) fn is_unanswered(error: &Error) -> bool {
    match error {
        Error::Operation(failure) => failure.status == WcStatus::RETRY_EXC_ERR,
        Error::NotConnected(NotConnected::Silent) => is_iwarp(),
        _ => false,
    }
}

/// Runs a test in virtual time. In the end no object is left on the fabric.
pub(crate) fn virtually<T>(test: impl AsyncFnOnce(&World) -> Result<T>) -> Result<T> {
    let (result, left) = leaving(test);
    assert!(left.is_empty(), "{left:?}");
    result
}

/// Runs a test in virtual time, and returns which objects it has left.
pub(crate) fn leaving<T>(
    test: impl AsyncFnOnce(&World) -> T,
) -> (T, BTreeMap<&'static str, usize>) {
    paused::leaving(&Rig::new(), async |fabric| test(&World::new(fabric)).await)
}

impl World {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        let two = common::World::on(fabric);
        let spawn = |peer| Reactor::spawn(peer).expect("a reactor");
        Self {
            reactors: two.peers.each_ref().map(spawn),
            two,
        }
    }

    /// A call of the first host that fails.
    pub(crate) fn fail(&self, call: &str) -> Failing {
        self.fabric.fail(call).on(&self.hosts[0])
    }

    /// Memory of the second host, and blocks of the first.
    pub(crate) fn memories(&self, blocks: usize) -> Memories {
        let [client, server] = &self.peers;
        Memories::between(client, server, blocks)
    }

    /// A connection of the first host with the second.
    pub(crate) async fn connect(&self, client: &Setup, server: &Setup) -> Result<(Conn, Conn)> {
        self.connect_from(&self.reactors[0], client, server).await
    }

    /// As that, from another reactor.
    pub(crate) async fn connect_from(
        &self,
        reactor: &Reactor,
        client: &Setup,
        server: &Setup,
    ) -> Result<(Conn, Conn)> {
        let to = (&self.reactors[1], self.hosts[1].addr().into());
        connect_to(reactor, to, client, server).await
    }
}
