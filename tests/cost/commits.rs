//! Awaited commits by the device's flush, each beside the same calls of rpma: of one part and its
//! pointer by a writer, and of a record and its pointer on two of three replicas.

use rpma::commit::{Method, Replicas as Set, WriterCfg};
use rpma::{Result, commit};
use rpma_async::{Pool, Reactor, Replicas, Writer};

use crate::awaited::{alone, block, row};
use crate::common::prelude::*;
use crate::{LEN, ROUNDS};

/// It does not pass.
const LIMIT: Duration = Duration::from_secs(10);
/// The pointer of a commit. The records are before it.
const POINTER: u64 = (ROUNDS * LEN) as u64;

/// The servers' ends, and their memory.
type Ends = Vec<(Conn, Mr<Vec<u8>>)>;

/// A connected writer, and its memory.
fn connect(peer: &Peer, addr: &str, ends: &mut Ends) -> Result<(commit::Writer, MrRemote)> {
    let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
    let target = Mr::reg(peer, vec![0; POINTER as usize + 8], usage)?;
    let mut cfg = WriterCfg::new(Method::Native);
    cfg.set_flush_type(FlushType::Visibility)?;
    let ep = Ep::listen(peer, addr, 0)?;
    let settings = cfg.conn_cfg(&ConnCfg::new())?;
    let req = ConnReq::new(peer, addr, ep.get_port(), &settings)?;
    let platform = PeerCfg::new();
    let connecting = commit::Writer::connect(req, &cfg, &Offer::new(&platform))?;
    let offer = Offer::new(&platform)
        .add_region(&target)
        .encode(Offer::ACCEPT)?;
    let far = ep.next_conn_req_timeout(&ConnCfg::new(), LIMIT)?;
    let far = far.connect(&offer)?;
    let writer = connecting.wait(LIMIT)?;
    ends.push((far.wait_established(LIMIT)?, target));
    let remote = writer.offer().regions()[0];
    Ok((writer, remote))
}

/// A set of three replicas.
fn set(peer: &Peer, addr: &str, ends: &mut Ends) -> Result<Set> {
    let mut set = Set::new(peer, 4 * LEN, 4)?;
    for _ in 0..3 {
        let (writer, remote) = connect(peer, addr, ends)?;
        set.add(writer, remote)?;
    }
    Ok(set)
}

/// Those of rpma.
pub(crate) fn by_hand(peer: &Peer, addr: &str) -> Result<()> {
    let mut ends = Vec::new();
    let (mut writer, far) = connect(peer, addr, &mut ends)?;
    let mut set = set(peer, addr, &mut ends)?;
    let source = Mr::reg(peer, vec![1; LEN], MrUsage::WRITE_SRC)?;
    let to = places(far)?;
    for warm in [true, false] {
        measured_writer_by_hand(&mut writer, &to, &source)?;
        row("by_hand_writer_commit", warm);
        measured_set_by_hand(&mut set)?;
        row("by_hand_set_commit", warm);
    }
    Ok(())
}

/// Where each round writes, and its pointer.
fn places(far: MrRemote) -> Result<Vec<(RemoteSlice, RemoteSlice)>> {
    let pointer = far.slice(POINTER..POINTER + 8)?;
    let place = |n| {
        let (start, end) = (n * LEN, (n + 1) * LEN);
        Ok((far.slice(start as u64..end as u64)?, pointer))
    };
    (0..ROUNDS).map(place).collect()
}

#[inline(never)]
fn measured_writer_by_hand(
    writer: &mut commit::Writer,
    to: &[(RemoteSlice, RemoteSlice)],
    source: &Mr<Vec<u8>>,
) -> Result<()> {
    let from = source.slice(..)?;
    for (n, &(to, pointer)) in to.iter().enumerate() {
        let ticket = writer.commit(&[(to, from)], Some((pointer, n.to_ne_bytes())))?;
        writer.wait(ticket, LIMIT, drop)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_set_by_hand(set: &mut Set) -> Result<()> {
    for n in 0..ROUNDS {
        let mut record = set.record(LEN).expect("room");
        record.put(0, &[1; LEN])?;
        let pointer = Some((POINTER, n.to_ne_bytes()));
        let id = record.commit((n * LEN) as u64, pointer, 2);
        let id = id.expect("three are able");
        assert!(set.settle(id, 2, LIMIT).copies() >= 2);
    }
    Ok(())
}

/// Those of rpma-async.
pub(crate) async fn awaited(reactor: &Reactor, addr: &str) -> Result<()> {
    let peer = reactor.peer();
    let mut ends = Vec::new();
    let (writer, far) = connect(peer, addr, &mut ends)?;
    let writer = Writer::new(reactor, writer)?;
    let set = Replicas::new(reactor, set(peer, addr, &mut ends)?)?;
    let pool = Pool::new(peer, LEN, 4)?;
    let to = places(far)?;
    for warm in [true, false] {
        alone(measured_writer(&writer, &pool, &to)).await?;
        row("awaited_writer_commit", warm);
        alone(measured_set(&set)).await?;
        row("awaited_set_commit", warm);
    }
    Ok(())
}

async fn measured_writer(
    writer: &Writer,
    pool: &Pool,
    to: &[(RemoteSlice, RemoteSlice)],
) -> Result<()> {
    for (n, &(to, pointer)) in to.iter().enumerate() {
        let pointer = Some((pointer, n.to_ne_bytes()));
        let ticket = writer.commit([(to, block(pool))], pointer)?;
        writer.durable(ticket).await?;
    }
    Ok(())
}

async fn measured_set(set: &Replicas) -> Result<()> {
    for n in 0..ROUNDS {
        let pointer = Some((POINTER, n.to_ne_bytes()));
        let id = set.commit((n * LEN) as u64, &[&[1; LEN]], pointer, 2);
        let id = id.expect("room, and three are able");
        let outcome = set.settle(id, 2, LIMIT).await?;
        assert!(outcome.copies() >= 2);
    }
    Ok(())
}
