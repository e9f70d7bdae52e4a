//! [`Awaited`]: operations of rpma-async, on a runtime of tokio.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::iter::once;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rpma::FlushType;
use rpma_async::{Conn, Pool, Reactor, Replicas, Setup, Writer};
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::replicas::check;
use super::verbs::kind;
use super::{Load, MOST};
use crate::client::{Result, Stop};
use crate::perf::Bench;
use crate::perf::places::{Group, stride};
use crate::perf::session::{LIMIT, conn_cfg, expect, flush_type, writer};
use crate::settings::{Op, Setting};

/// The clock of tokio counts milliseconds.
const TOKIO: Duration = Duration::from_millis(2);

type Operation = Pin<Box<dyn Future<Output = Result> + Send>>;

/// Begins the operations of a slot.
type Operate = Box<dyn FnMut(u32) -> Operation + Send>;

/// A connection or a set of replicas. The connections of a thread share its runtime.
pub(in crate::perf) struct Awaited {
    /// The slots in flight from the oldest on. `None` has completed.
    in_flight: VecDeque<(u32, Option<Operation>)>,
    operate: Operate,
    /// After the connection, which ends on it.
    runtime: Arc<Runtime>,
}

/// A runtime for the connections of a thread.
pub(in crate::perf) fn runtime() -> Result<Arc<Runtime>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map(Arc::new)
        .map_err(|error| Stop::Failed(format!("tokio cannot start: {error}")))
}

impl Awaited {
    pub(in crate::perf) fn new(
        bench: &mut Bench,
        setting: &Setting,
        lane: u32,
        runtime: &Arc<Runtime>,
    ) -> Result<Self> {
        let reactor = {
            let _entered = runtime.enter();
            Reactor::spawn(&bench.peer)?
        };
        let operate = match (setting.op, setting.copies) {
            (Op::Commit, Some(copies)) => {
                to_copies(bench, setting, lane, &reactor, copies as usize)?
            }
            (Op::Commit, None) => commits(bench, setting, lane, &reactor)?,
            _ => verbs(bench, setting, lane, (&reactor, runtime))?,
        };
        Ok(Self {
            in_flight: VecDeque::with_capacity(setting.slots() as usize),
            operate,
            runtime: Arc::clone(runtime),
        })
    }

    /// Whether the oldest slot has completed.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result> {
        let Some((_, oldest)) = self.in_flight.front_mut() else {
            return Poll::Pending;
        };
        if let Some(operation) = oldest {
            ready!(operation.as_mut().poll(context))?;
        }
        *oldest = None;
        Poll::Ready(Ok(()))
    }
}

impl Load for Awaited {
    /// The first poll of an operation posts it.
    fn post(&mut self, slot: u32) -> Result<bool> {
        let mut operation = (self.operate)(slot);
        let _entered = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        let pending = match operation.as_mut().poll(&mut context) {
            Poll::Ready(result) => result.map(|()| None)?,
            Poll::Pending => Some(operation),
        };
        self.in_flight.push_back((slot, pending));
        Ok(true)
    }

    fn poll(&mut self, done: &mut impl FnMut(u32)) -> Result {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(result) = self.look(&mut context) {
            result?;
            self.in_flight
                .pop_front()
                .into_iter()
                .for_each(|(slot, _)| done(slot));
        }
        Ok(())
    }

    fn sleep<'a>(
        &'a mut self,
        others: impl Iterator<Item = &'a mut Self>,
        limit: Duration,
    ) -> Result {
        let runtime = Arc::clone(&self.runtime);
        let mut all: Vec<&mut Self> = once(self).chain(others).collect();
        let completed = poll_fn(|context| {
            let mut looked = all.iter_mut().map(|load| load.look(context));
            looked.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        runtime.block_on(async {
            if limit < TOKIO {
                yield_now().await;
                return Ok(());
            }
            let slept = timeout(limit - TOKIO, completed).await;
            slept.unwrap_or(Ok(()))
        })
    }
}

/// Operations of one kind on a connection, with a block for each operation in flight.
fn verbs(
    bench: &mut Bench,
    setting: &Setting,
    lane: u32,
    (reactor, runtime): (&Reactor, &Runtime),
) -> Result<Operate> {
    let (addr, data) = expect(&mut bench.servers[0], setting)?;
    let setup = Setup::new(&conn_cfg(setting)?).with_connect_limit(LIMIT);
    let conn = runtime.block_on(reactor.connect(addr, &setup, &data))?;
    conn.apply_remote_peer_cfg(bench.servers[0].offer.platform());
    let pool = pool(bench, setting, setting.depth)?;
    let mut places = bench.places(setting, lane)?;
    let (op, kind_of_flush) = (setting.op, flush_type(setting));
    Ok(Box::new(move |slot| {
        let (conn, pool, group) = (conn.clone(), pool.clone(), places.take());
        Box::pin(async move {
            let (kind, count) = ((op, kind_of_flush), group.operations.len());
            Ok(match (op, count) {
                (Op::WriteFlush, 1) => batch::<2>(&conn, kind, &pool, &group).await,
                (_, 1) => one(&conn, op, &pool, &group, slot).await,
                (_, ..=15) => batch::<16>(&conn, kind, &pool, &group).await,
                _ => batch::<{ MOST + 1 }>(&conn, kind, &pool, &group).await,
            }?)
        })
    }))
}

/// Commits of a writer.
fn commits(bench: &mut Bench, setting: &Setting, lane: u32, reactor: &Reactor) -> Result<Operate> {
    let writer = writer(&mut bench.servers[0], &bench.peer, setting)?;
    let writer = Writer::new(reactor, writer)?;
    // A record is free some time after its commit is durable.
    let pool = pool(bench, setting, 2 * setting.depth)?;
    let (mut places, pointer) = (bench.places(setting, lane)?, bench.pointer(lane)?);
    Ok(Box::new(move |slot| {
        let (writer, pool, group) = (writer.clone(), pool.clone(), places.take());
        Box::pin(async move {
            let record = pool.lease().await.freeze();
            while writer.available() == 0 {
                writer.room().await?;
            }
            let pointer = Some((pointer, u64::from(slot).to_le_bytes()));
            let ticket = writer.commit([(group.all, record)], pointer);
            Ok(writer.durable(ticket.map_err(rpma::Error::from)?).await?)
        })
    }))
}

/// Commits to several servers.
fn to_copies(
    bench: &mut Bench,
    setting: &Setting,
    lane: u32,
    reactor: &Reactor,
    copies: usize,
) -> Result<Operate> {
    let set = Replicas::new(reactor, bench.replicas(setting)?)?;
    let record: Arc<[u8]> = vec![0x5a; setting.size as usize].into();
    let (mut places, pointer) = (bench.places(setting, lane)?, Bench::pointer_at(lane));
    Ok(Box::new(move |slot| {
        let (set, record, at) = (set.clone(), Arc::clone(&record), places.take().at);
        Box::pin(async move {
            let pointer = Some((pointer, u64::from(slot).to_le_bytes()));
            let id = loop {
                match set.commit(at, &[&record[..]], pointer, copies) {
                    Ok(id) => break id,
                    Err(rpma::Error::RingFull) => room(&set, record.len()).await?,
                    Err(error) => return Err(error.into()),
                }
            };
            check(id, set.settle(id, copies, Duration::MAX).await?, copies)
        })
    }))
}

/// Local memory for so many operations.
fn pool(bench: &Bench, setting: &Setting, count: u32) -> Result<Pool> {
    Ok(Pool::new(
        &bench.peer,
        stride(setting.size) as usize,
        count as usize,
    )?)
}

async fn room(set: &Replicas, len: usize) -> Result {
    match set.room(len, Duration::MAX).await {
        Ok(()) | Err(rpma::Error::RingFull) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// One operation without a batch.
async fn one(conn: &Conn, op: Op, pool: &Pool, group: &Group, slot: u32) -> rpma::Result<()> {
    let remote = group.operations[0];
    match kind(op, group.number) {
        Op::AtomicWrite => {
            conn.atomic_write(remote, u64::from(slot).to_ne_bytes())?
                .await?
        }
        Op::Read => drop(conn.read(pool.lease().await, remote)?.await?),
        Op::Send => drop(conn.send(pool.lease().await.freeze())?.await?),
        _ => drop(conn.write(remote, pool.lease().await.freeze())?.await?),
    }
    Ok(())
}

/// Several operations with one doorbell.
async fn batch<const N: usize>(
    conn: &Conn,
    (op, flush): (Op, FlushType),
    pool: &Pool,
    group: &Group,
) -> rpma::Result<()> {
    let mut sources = Vec::with_capacity(group.operations.len());
    while op != Op::AtomicWrite && sources.len() < group.operations.len() {
        sources.push(pool.lease().await.freeze());
    }
    let mut batch = conn.batch::<N>();
    for remote in &group.operations {
        match (op, sources.pop()) {
            (Op::Send, Some(source)) => batch.send(source)?,
            (_, Some(source)) => batch.write(*remote, source)?,
            (_, None) => batch.atomic_write(*remote, [0; 8])?,
        }
    }
    if op == Op::WriteFlush {
        batch.flush(group.all, flush)?;
    }
    batch.commit()?.await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations that only let the runtime work once.
    fn empty() -> Awaited {
        Awaited {
            in_flight: VecDeque::new(),
            operate: Box::new(|_| {
                Box::pin(async {
                    yield_now().await;
                    Ok(())
                })
            }),
            runtime: runtime().expect("a runtime"),
        }
    }

    /// Promise: a thread with several connections wakes for each of them. Otherwise this sleeps for
    /// an hour.
    #[test]
    fn a_sleep_ends_with_a_slot_of_any_connection() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut all = [(); 3].map(|()| empty());
        let [first, second, third] = &mut all;
        assert!(third.post(7).is_ok_and(|posted| posted));
        let slept = first.sleep([second, &mut *third].into_iter(), HOUR);
        assert!(slept.is_ok(), "{slept:?}");
        let mut done = Vec::new();
        assert!(third.poll(&mut |slot| done.push(slot)).is_ok());
        assert_eq!(done, [7]);
    }

    /// Promise: slots complete in the order of their posts, each once.
    #[test]
    fn each_slot_completes_once() {
        let mut load = empty();
        for slot in [2, 0, 1] {
            assert!(load.post(slot).is_ok());
        }
        let mut done = Vec::new();
        for _ in 0..2 {
            assert!(load.poll(&mut |slot| done.push(slot)).is_ok());
        }
        assert_eq!(done, [2, 0, 1]);
    }
}
