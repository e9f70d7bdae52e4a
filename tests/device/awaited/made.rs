//! Writers that commit by reads, and the servers' ends of their connections.

use std::net::IpAddr;

use rpma::commit::{self, Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Conn, Frozen, Lease, Pool, Reactor, Reading, Refused, Setup, Writer};

use crate::awaited::served;
use crate::awaited::support::{accept_next, all_blocks, both, in_time};
use crate::common::prelude::*;

pub(crate) const BLOCKS: usize = 16;
/// The slots that the settings of [`Made::new`] ask for beside those of commits.
pub(crate) const READS: u32 = 4;

/// A writer of rpma, and the server's end of its connection.
pub(crate) struct Linked {
    pub(crate) writer: commit::Writer,
    pub(crate) server: Conn,
    pub(crate) target: Mr<Memory>,
}

impl Linked {
    /// A writer of a reactor with another one, which listens at this address of its host. So many
    /// commits are in flight, which are visible.
    pub(crate) async fn new(
        from: &Reactor,
        (to, ip): (&Reactor, IpAddr),
        in_flight: u16,
        conn: &ConnCfg,
    ) -> Result<Self> {
        let usage = MrUsage::WRITE_DST | MrUsage::READ_SRC | MrUsage::FLUSH_TYPE_VISIBILITY;
        let target = region(to.peer(), 2048, usage)?;
        let mut offer = Offer::new(&PeerCfg::new());
        let offer = offer.add_region(&target).encode(Offer::ACCEPT)?;
        let listener = to.listen((ip, 0).into())?;
        let mut cfg = WriterCfg::new(Method::Reading);
        cfg.set_flush_type(FlushType::Visibility)?;
        cfg.set_in_flight(in_flight)?;
        let at = (ip, listener.port()).into();
        let mut client = served::client(from, at, 1, ToWriter::new(&cfg));
        let setup = Setup::default();
        let accepting = accept_next(&listener, &setup, &offer);
        let (writer, server) = both(client.connect(conn), accepting).await;
        Ok(Self {
            writer: writer?,
            server: server?,
            target,
        })
    }
}

/// A writer that is awaited, with blocks, and the server's end of its connection.
pub(crate) struct Made {
    pub(crate) writer: Writer,
    pub(crate) server: Conn,
    pub(crate) target: Mr<Memory>,
    pub(crate) pool: Pool,
}

impl Made {
    /// A writer of a reactor with itself, with so many commits in flight.
    pub(crate) async fn new(reactor: &Reactor, in_flight: u16) -> Result<Self> {
        let mut conn = ConnCfg::new();
        conn.set_sq_size(READS);
        let to = (reactor, addr().parse()?);
        let linked = Linked::new(reactor, to, in_flight, &conn).await?;
        assert_eq!(linked.writer.slots_beside(), READS);
        Self::of(reactor, linked, BLOCKS)
    }

    pub(crate) fn of(reactor: &Reactor, linked: Linked, blocks: usize) -> Result<Self> {
        Ok(Self {
            writer: Writer::new(reactor, linked.writer)?,
            server: linked.server,
            target: linked.target,
            pool: Pool::new(reactor.peer(), 100, blocks)?,
        })
    }

    /// A read of the record of the tests.
    pub(crate) fn read(&self) -> Result<Reading, Refused<Lease>> {
        read(&self.writer, self.lease())
    }

    /// A block with bytes that no record has.
    pub(crate) fn lease(&self) -> Lease {
        filled(&self.pool, 0xEE)
    }

    /// Waits until all blocks are back, although no task waits for the writer.
    pub(crate) async fn all_blocks(&self) {
        in_time(all_blocks(&self.pool)).await;
    }
}

/// A block full of a byte, without a wait for one.
pub(crate) fn filled(pool: &Pool, byte: u8) -> Lease {
    let mut block = pool.try_lease().expect("a block is free");
    block.fill(byte);
    block
}

/// A block with a record, without a wait for one.
pub(crate) fn word(pool: &Pool, number: u8) -> Frozen {
    filled(pool, number).freeze()
}

/// Reads the 100 bytes of [`commit`](served::commit).
pub(crate) fn read(writer: &Writer, dst: Lease) -> Result<Reading, Refused<Lease>> {
    let from = writer.offer().regions()[0].slice(64..164);
    writer.read(dst, from.expect("inside"))
}
