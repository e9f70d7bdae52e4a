//! [`Awaited`]: operations of rpma-async, on a runtime of tokio.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::iter::once;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
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
use crate::perf::places::{Group, Places, stride};
use crate::perf::session::{LIMIT, conn_cfg, expect, flush_type, writer};
use crate::settings::{Op, Setting};

/// The clock of tokio counts milliseconds.
const TOKIO: Duration = Duration::from_millis(2);

type Operation = Pin<Box<dyn Future<Output = Result> + Send>>;

/// A connection or a set of replicas. The connections of a thread share its runtime.
pub(in crate::perf) struct Awaited {
    /// The slots in flight from the oldest on. `None` has completed.
    in_flight: VecDeque<(u32, Option<Operation>)>,
    target: Arc<Target>,
    /// Operations that do nothing have none.
    places: Option<Places>,
    /// After the connection, which ends on it.
    runtime: Arc<Runtime>,
}

/// What operations go to.
enum Target {
    Nothing,
    Verbs {
        conn: Conn,
        op: Op,
        flush: FlushType,
        /// A block for each operation in flight.
        pool: Pool,
    },
    Commits {
        writer: Writer,
        pool: Pool,
        pointer: rpma::RemoteSlice,
    },
    Copies {
        set: Replicas,
        copies: usize,
        record: Vec<u8>,
        pointer: u64,
    },
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
    /// Operations that only let the runtime work once.
    pub(in crate::perf) fn nothing() -> Result<Self> {
        Ok(Self {
            in_flight: VecDeque::new(),
            target: Arc::new(Target::Nothing),
            places: None,
            runtime: runtime()?,
        })
    }

    pub(in crate::perf) fn new(
        bench: &mut Bench,
        setting: &Setting,
        lane: u32,
        runtime: &Arc<Runtime>,
    ) -> Result<Self> {
        Ok(Self {
            in_flight: VecDeque::with_capacity(setting.slots() as usize),
            target: Arc::new(Target::new(bench, setting, lane, runtime)?),
            places: Some(bench.places(setting, lane)?),
            runtime: Arc::clone(runtime),
        })
    }

    /// Whether the oldest slot has completed.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result> {
        let Some((_, oldest)) = self.in_flight.front_mut() else {
            return Poll::Pending;
        };
        let looked = oldest
            .as_mut()
            .map(|operation| operation.as_mut().poll(context));
        match looked {
            Some(Poll::Pending) => return Poll::Pending,
            Some(Poll::Ready(result)) => result?,
            None => {}
        }
        *oldest = None;
        Poll::Ready(Ok(()))
    }
}

impl Load for Awaited {
    /// The first poll of an operation posts it.
    fn post(&mut self, slot: u32) -> Result<bool> {
        let (target, places) = (Arc::clone(&self.target), self.places.as_mut());
        let mut operation: Operation = match places.map(Places::take) {
            Some(group) => Box::pin(async move { target.operate(&group, slot).await }),
            None => Box::pin(async {
                yield_now().await;
                Ok(())
            }),
        };
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

impl Target {
    fn new(bench: &mut Bench, setting: &Setting, lane: u32, runtime: &Runtime) -> Result<Self> {
        let reactor = {
            let _entered = runtime.enter();
            Reactor::spawn(&bench.peer)?
        };
        let (size, depth) = (stride(setting.size) as usize, setting.depth as usize);
        Ok(match (setting.op, setting.copies) {
            (Op::Commit, Some(copies)) => Self::Copies {
                set: Replicas::new(&reactor, bench.replicas(setting)?)?,
                copies: copies as usize,
                record: vec![0x5a; setting.size as usize],
                pointer: Bench::pointer_at(lane),
            },
            (Op::Commit, None) => Self::Commits {
                writer: Writer::new(
                    &reactor,
                    writer(&mut bench.servers[0], &bench.peer, setting)?,
                )?,
                // A record is free some time after its commit is durable.
                pool: Pool::new(&bench.peer, size, 2 * depth)?,
                pointer: bench.pointer(lane)?,
            },
            (op, _) => {
                let (addr, data) = expect(&mut bench.servers[0], setting)?;
                let setup = Setup::new(&conn_cfg(setting)?).with_connect_limit(LIMIT);
                let conn = runtime.block_on(reactor.connect(addr, &setup, &data))?;
                conn.apply_remote_peer_cfg(bench.servers[0].offer.platform());
                Self::Verbs {
                    conn,
                    op,
                    flush: flush_type(setting),
                    pool: Pool::new(&bench.peer, size, depth)?,
                }
            }
        })
    }

    /// Posts the operations of a group, and awaits them.
    async fn operate(&self, group: &Group, slot: u32) -> Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Verbs {
                conn,
                op,
                flush,
                pool,
            } => Ok(match (op, group.operations.len()) {
                (Op::WriteFlush, 1) => batch::<2>(conn, (*op, *flush), pool, group).await,
                (_, 1) => one(conn, kind(*op, group.number), pool, group, slot).await,
                (_, ..=15) => batch::<16>(conn, (*op, *flush), pool, group).await,
                _ => batch::<{ MOST + 1 }>(conn, (*op, *flush), pool, group).await,
            }?),
            Self::Commits {
                writer,
                pool,
                pointer,
            } => {
                let record = pool.lease().await.freeze();
                while writer.available() == 0 {
                    writer.room().await?;
                }
                let pointer = Some((*pointer, u64::from(slot).to_le_bytes()));
                let ticket = writer.commit([(group.all, record)], pointer);
                Ok(writer.durable(ticket.map_err(rpma::Error::from)?).await?)
            }
            Self::Copies {
                set,
                copies,
                record,
                pointer,
            } => {
                let pointer = Some((*pointer, u64::from(slot).to_le_bytes()));
                let id = loop {
                    match set.commit(group.at, &[record], pointer, *copies) {
                        Ok(id) => break id,
                        Err(rpma::Error::RingFull) => room(set, record.len()).await?,
                        Err(error) => return Err(error.into()),
                    }
                };
                check(id, set.settle(id, *copies, Duration::MAX).await?, *copies)
            }
        }
    }
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
    match op {
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

    /// Promise: a thread with several connections wakes for each of them. Otherwise this sleeps for
    /// an hour.
    #[test]
    fn a_sleep_ends_with_a_slot_of_any_connection() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut all = [(); 3].map(|()| Awaited::nothing().expect("a runtime"));
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
        let mut load = Awaited::nothing().expect("a runtime");
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
