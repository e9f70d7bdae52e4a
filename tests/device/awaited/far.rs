//! Writers to a server on another host, in the time of a paused clock.

use rpma::commit::{Method, Writer, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Conn, Reactor, Setup};

use crate::awaited::served;
use crate::awaited::support::both;
use crate::awaited::world::World;
use crate::common::prelude::*;

/// A writer of the first host, and the server's end of its connection.
pub(crate) struct Far {
    pub(crate) writer: Writer,
    pub(crate) server: Conn,
    pub(crate) target: Mr<Memory>,
}

impl Far {
    /// Its server is the second host.
    pub(crate) async fn new(world: &World) -> Result<Self> {
        Self::on(
            world,
            (&world.hosts[1], &world.reactors[1]),
            &ConnCfg::new(),
        )
        .await
    }

    /// Its server is this host.
    pub(crate) async fn on(
        world: &World,
        (host, reactor): (&Host, &Reactor),
        conn_cfg: &ConnCfg,
    ) -> Result<Self> {
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(reactor.peer(), 2048, usage)?;
        let mut offer = Offer::new(&PeerCfg::new());
        offer.add_region(&target);
        let offer = offer.encode(Offer::ACCEPT)?;
        let listener = reactor.listen((host.addr(), 0).into())?;
        let addr = (host.addr(), listener.port()).into();
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        let mut client = served::client(&world.reactors[0], addr, 1, ToWriter::new(&cfg));
        let accepting = async {
            let incoming = listener.accept().await.expect("a request");
            let accepted = incoming.accept(&Setup::default(), &offer).await;
            accepted.expect("established")
        };
        let (writer, server) = both(client.connect(conn_cfg), accepting).await;
        Ok(Self {
            writer: writer?,
            server,
            target,
        })
    }
}
