//! Commits by the device's flush: of one part and its pointer by a writer, and of a record and its
//! pointer on the replicas of a set. Those of rpma-async stand beside the same calls of rpma, and so
//! do those of a writer and a set that threads share, here with one thread.
//!
//! The commits that sleep have a fabric of their own, whose network takes a while.

use rpma::commit::{Method, Replicas as Set, SharedReplicas, SharedWriter, WriterCfg};
use rpma::{Result, commit};
use rpma_async::{Pool, Reactor, Replicas, Writer};

use crate::awaited::{alone, block, row};
use crate::common::peer_of;
use crate::common::prelude::*;
use crate::{LEN, ROUNDS};

/// It does not pass.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// The pointer of a commit. The records are before it.
const POINTER: u64 = (ROUNDS * LEN) as u64;
/// The bytes of a group of records.
const GROUP: usize = 16 * LEN;
/// The time of a request on the network.
pub(crate) const DELAY: Duration = Duration::from_millis(1);

/// The servers' ends, and their memory.
pub(crate) type Ends = Vec<(Conn, Mr<Vec<u8>>)>;

/// A connected writer, and its memory.
fn connect(peer: &Peer, addr: &str, ends: &mut Ends) -> Result<(commit::Writer, MrRemote)> {
    connect_to(peer, (peer, addr), ends)
}

fn connect_to(
    peer: &Peer,
    far: (&Peer, &str),
    ends: &mut Ends,
) -> Result<(commit::Writer, MrRemote)> {
    connect_by(Method::Native, peer, far, ends)
}

/// A writer with this method.
pub(crate) fn connect_by(
    method: Method,
    peer: &Peer,
    (far, addr): (&Peer, &str),
    ends: &mut Ends,
) -> Result<(commit::Writer, MrRemote)> {
    let usage = MrUsage::all().difference(MrUsage::FLUSH_TYPE_PERSISTENT);
    let target = Mr::reg(far, vec![0; POINTER as usize + 8], usage)?;
    let mut cfg = WriterCfg::new(method);
    cfg.set_flush_type(FlushType::Visibility)?;
    let ep = Ep::listen(far, addr, 0)?;
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

/// A set of so many replicas.
fn set(peer: &Peer, addr: &str, replicas: usize, ends: &mut Ends) -> Result<Set> {
    let mut set = Set::new(peer, 4 * GROUP, 4)?;
    for _ in 0..replicas {
        let (writer, remote) = connect(peer, addr, ends)?;
        set.add(writer, remote)?;
    }
    Ok(set)
}

/// Those of rpma.
pub(crate) fn by_hand(peer: &Peer, addr: &str) -> Result<()> {
    let mut ends = Vec::new();
    let (mut writer, far) = connect(peer, addr, &mut ends)?;
    let mut sets = [1, 3, 5].map(|replicas| set(peer, addr, replicas, &mut ends));
    let source = Mr::reg(peer, vec![1; LEN], MrUsage::WRITE_SRC)?;
    let to = places(far)?;
    for warm in [true, false] {
        measured_writer_by_hand(&mut writer, &to, &source)?;
        row("by_hand_writer_commit", warm);
        measured_four_by_hand(&mut writer, &to, &source)?;
        row("by_hand_writer_commit_of_4", warm);
        let rows = [
            ("by_hand_set_of_1_commit", 1),
            ("by_hand_set_commit", 2),
            ("by_hand_set_of_5_commit", 3),
        ];
        for (set, (name, k)) in sets.iter_mut().zip(rows) {
            let set = set.as_mut().expect("made");
            measured_set_by_hand(set, k)?;
            row(name, warm);
        }
        let set = sets[1].as_mut().expect("made");
        measured_group_by_hand(set)?;
        row("by_hand_set_record_of_16", warm);
    }
    let writer = SharedWriter::new(writer);
    let [_, set, _] = sets;
    let set = SharedReplicas::new(set?);
    for warm in [true, false] {
        measured_shared_writer(&writer, &to, &source)?;
        row("shared_writer_commit", warm);
        measured_shared_set(&set)?;
        row("shared_set_commit", warm);
    }
    Ok(())
}

/// Those that sleep, and those of a set with a replica that does not answer.
pub(crate) fn slept() -> Result<()> {
    // In virtual time: the speed of the machine makes no difference.
    let fabric = Rig::of(&Profile::RXE_6_12).seed(1).fabric();
    let near = fabric.host("near");
    let _entered = near.enter();
    let peer = peer_of(&near);
    let (mut ends, mut ends_of_late) = (Vec::new(), Vec::new());
    let mut set = Set::new(&peer, 4 * GROUP, 4)?;
    let mut late = Set::new(&peer, 2 * ROUNDS * LEN, 2 * ROUNDS)?;
    let fars = ["1", "2", "3"].map(|name| fabric.host(name));
    for far in &fars {
        let addr = far.addr().to_string();
        let at = peer_of(far);
        let (writer, remote) = connect_to(&peer, (&at, &addr), &mut ends)?;
        set.add(writer, remote)?;
        let (writer, remote) = connect_to(&peer, (&at, &addr), &mut ends_of_late)?;
        late.add(writer, remote)?;
    }
    let addr = fars[0].addr().to_string();
    let (mut writer, far) = connect_to(&peer, (&peer_of(&fars[0]), &addr), &mut ends)?;
    let source = Mr::reg(&peer, vec![1; LEN], MrUsage::WRITE_SRC)?;
    let to = places(far)?;
    fars[2].freeze();
    for warm in [true, false] {
        measured_set_by_hand(&mut late, 2)?;
        row("by_hand_set_commit_on_2_of_3", warm);
    }
    fars[2].thaw();
    fars.iter()
        .for_each(|far| fabric.between(&near, far).delay(DELAY));
    for warm in [true, false] {
        measured_writer_by_hand(&mut writer, &to, &source)?;
        row("by_hand_writer_commit_slept", warm);
        measured_set_by_hand(&mut set, 2)?;
        row("by_hand_set_commit_slept", warm);
    }
    let (writer, set) = (SharedWriter::new(writer), SharedReplicas::new(set));
    for warm in [true, false] {
        measured_shared_writer(&writer, &to, &source)?;
        row("shared_writer_commit_slept", warm);
        measured_shared_set(&set)?;
        row("shared_set_commit_slept", warm);
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
fn measured_shared_writer(
    writer: &SharedWriter,
    to: &[(RemoteSlice, RemoteSlice)],
    source: &Mr<Vec<u8>>,
) -> Result<()> {
    let from = source.slice(..)?;
    for (n, &(to, pointer)) in to.iter().enumerate() {
        let ticket = writer.commit(&[(to, from)], Some((pointer, n.to_ne_bytes())))?;
        writer.wait(ticket, LIMIT)?;
    }
    Ok(())
}

#[inline(never)]
fn measured_shared_set(set: &SharedReplicas) -> Result<()> {
    for n in 0..ROUNDS {
        let pointer = Some((POINTER, n.to_ne_bytes()));
        let id = set.commit(&[1; LEN], (n * LEN) as u64, pointer, 2);
        let id = id.expect("as many are able");
        assert!(set.settle(id, 2, LIMIT).copies() >= 2);
    }
    Ok(())
}

/// Four commits, and one wait.
#[inline(never)]
fn measured_four_by_hand(
    writer: &mut commit::Writer,
    to: &[(RemoteSlice, RemoteSlice)],
    source: &Mr<Vec<u8>>,
) -> Result<()> {
    let from = source.slice(..)?;
    for four in to.chunks(4) {
        let mut last = None;
        for (n, &(to, pointer)) in four.iter().enumerate() {
            let pointer = Some((pointer, n.to_ne_bytes()));
            last = Some(writer.commit(&[(to, from)], pointer)?);
        }
        writer.wait(last.expect("four"), LIMIT, drop)?;
    }
    Ok(())
}

/// 16 records in one commit.
#[inline(never)]
fn measured_group_by_hand(set: &mut Set) -> Result<()> {
    for n in 0..ROUNDS / 16 {
        let mut record = set.record(GROUP).expect("room");
        for of_group in 0..16 {
            record.put(of_group * LEN, &[1; LEN])?;
        }
        let pointer = Some((POINTER, n.to_ne_bytes()));
        let id = record.commit((n * GROUP) as u64, pointer, 2);
        let id = id.expect("three are able");
        assert!(set.settle(id, 2, LIMIT).copies() >= 2);
    }
    Ok(())
}

#[inline(never)]
fn measured_set_by_hand(set: &mut Set, k: usize) -> Result<()> {
    for n in 0..ROUNDS {
        let mut record = set.record(LEN).expect("room");
        record.put(0, &[1; LEN])?;
        let pointer = Some((POINTER, n.to_ne_bytes()));
        let id = record.commit((n * LEN) as u64, pointer, k);
        let id = id.expect("as many are able");
        assert!(set.settle(id, k, LIMIT).copies() >= k);
    }
    Ok(())
}

/// Those of rpma-async.
pub(crate) async fn awaited(reactor: &Reactor, addr: &str) -> Result<()> {
    let peer = reactor.peer();
    let mut ends = Vec::new();
    let (writer, far) = connect(peer, addr, &mut ends)?;
    let writer = Writer::new(reactor, writer)?;
    let set = Replicas::new(reactor, set(peer, addr, 3, &mut ends)?)?;
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
