//! Operations that are awaited: `rpma-async` on tokio. Each slot of a connection is a task.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpma::FlushType;
use rpma_async::{Conn, Frozen, Pool, Reactor, Replicas, Setup, Writer};
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, yield_now};
use tokio::time::sleep;

use super::checks::POINTER;
use super::job::{Begun, Job, Order, stalled};
use super::load::{MOST, too_few};
use super::meter::Meter;
use super::pace::Pace;
use super::places::{Group, Places, stride};
use super::session::{LIMIT, conn_cfg, flush_type};
use super::{Bench, measure};
use crate::client::{Result, Stop, failed};
use crate::settings::{Op, Setting};
use crate::wire::FIRST;

/// How often a thread looks whether its tasks are at work.
const TICK: Duration = Duration::from_millis(20);
/// The clock of tokio counts milliseconds.
const TOKIO: u64 = 2_000_000;
/// The longest sleep before the flags are looked at.
const LONGEST: Duration = Duration::from_millis(100);

/// The connections of a thread, and the runtime that their drivers need.
pub(super) struct Thread {
    /// Before the runtime: a connection ends on it.
    lanes: Vec<Lane>,
    runtime: Runtime,
}

/// A connection, or a set of replicas.
struct Lane {
    target: Target,
    places: Places,
    pace: Pace,
    slots: u32,
}

/// What operations go to.
enum Target {
    Empty,
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

/// Works until the end, as the loop that polls.
pub(super) fn work(thread: Thread, job: &Arc<Job>, number: usize) -> (Meter, Result) {
    let Thread { lanes, runtime } = thread;
    let shared = Rc::new(Shared {
        job: Arc::clone(job),
        number,
        meter: RefCell::new(Meter::new()),
        completed: Cell::new(0),
        failure: RefCell::new(None),
        tasks: Cell::new(0),
    });
    job.clock.wait_for_begin();
    let result = runtime.block_on(run(lanes, &shared));
    if result.is_err() {
        job.stop();
    }
    let mut meter = shared.meter.replace(Meter::new());
    meter.end();
    (meter, result)
}

/// What the tasks of a thread have in common.
struct Shared {
    job: Arc<Job>,
    /// The number of the thread.
    number: usize,
    meter: RefCell<Meter>,
    completed: Cell<u64>,
    /// The first failure.
    failure: RefCell<Option<Stop>>,
    /// The tasks that are at work.
    tasks: Cell<usize>,
}

/// What the tasks of a connection have in common.
struct ConnTasks {
    target: Target,
    places: RefCell<Places>,
    order: RefCell<Order>,
}

impl ConnTasks {
    /// The next group. `None` for operations that do nothing.
    fn group(&self) -> Option<Arc<Group>> {
        let mut places = self.places.borrow_mut();
        let number = places.take();
        places.group(number).cloned()
    }
}

async fn run(lanes: Vec<Lane>, shared: &Rc<Shared>) -> Result {
    let tasks = LocalSet::new();
    let mut all = Vec::new();
    for lane in lanes {
        let of = Rc::new(ConnTasks {
            target: lane.target,
            places: RefCell::new(lane.places),
            order: RefCell::new(Order::new(&shared.job, lane.pace)),
        });
        for slot in 0..lane.slots {
            shared.tasks.set(shared.tasks.get() + 1);
            tasks.spawn_local(task(Rc::clone(&of), slot, Rc::clone(shared)));
        }
        all.push(of);
    }
    tasks.run_until(watch(&all, shared)).await
}

/// Looks at the tasks until all have ended, or none makes progress.
async fn watch(lanes: &[Rc<ConnTasks>], shared: &Shared) -> Result {
    let (job, mut moved) = (&shared.job, (0, 0));
    loop {
        sleep(TICK).await;
        let now = job.clock.now();
        if let Some(failure) = shared.failure.take() {
            return Err(failure);
        }
        if shared.tasks.get() == 0 {
            let mut meter = shared.meter.borrow_mut();
            for of in lanes {
                let order = of.order.borrow();
                order
                    .not_begun(now)
                    .for_each(|waited| meter.not_begun(waited));
            }
            return Ok(());
        }
        let completed = shared.completed.get();
        job.completed[shared.number].store(completed, Ordering::Relaxed);
        // A slow rate has long times without an operation.
        let waits = lanes.iter().all(|of| of.order.borrow().is_ahead(now));
        if completed != moved.0 || waits {
            moved = (completed, now);
        } else if now - moved.1 > job.stall {
            return failed(stalled(job));
        }
    }
}

/// The operations of a slot, one after the other.
async fn task(of: Rc<ConnTasks>, slot: u32, shared: Rc<Shared>) {
    if let Err(stop) = operations(&of, slot, &shared).await {
        shared.job.stop();
        shared.failure.borrow_mut().get_or_insert(stop);
    }
    shared.tasks.set(shared.tasks.get() - 1);
}

async fn operations(of: &ConnTasks, slot: u32, shared: &Shared) -> Result {
    let job = &shared.job;
    let mut sources = Vec::with_capacity(job.batch as usize);
    while !job.stops() {
        // The borrow ends before the wait.
        let taken = of.order.borrow_mut().take(job.clock.now());
        let Some((begun, due)) = taken else {
            return Ok(());
        };
        wait_until(due, job).await;
        if job.stops() {
            return Ok(());
        }
        let group = of.group();
        of.target
            .operate(group.as_deref(), slot, &mut sources)
            .await?;
        count(of, begun, shared);
    }
    Ok(())
}

fn count(of: &ConnTasks, begun: Begun, shared: &Shared) {
    let now = shared.job.clock.now();
    let mut meter = shared.meter.borrow_mut();
    if now >= shared.job.warm_up {
        meter.begin();
    }
    of.order.borrow().completed(begun, now, |latency, count| {
        meter.completed(latency, count, now);
    });
    shared
        .completed
        .set(shared.completed.get() + shared.job.batch);
}

/// tokio sleeps for milliseconds. The rest of the time the task lets the others run.
async fn wait_until(due: u64, job: &Job) {
    loop {
        let left = due.saturating_sub(job.clock.now());
        match left {
            0 => return,
            left if left > TOKIO => {
                let limit = Duration::from_nanos(left - TOKIO).min(LONGEST);
                sleep(limit).await;
            }
            _ => yield_now().await,
        }
        if job.stops() {
            return;
        }
    }
}

impl Target {
    /// Posts the operations of a group, and awaits them. `sources` are kept from call to call.
    async fn operate(&self, group: Option<&Group>, slot: u32, sources: &mut Vec<Frozen>) -> Result {
        let Some(group) = group else {
            return Ok(());
        };
        match self {
            Self::Empty => Ok(()),
            Self::Verbs {
                conn,
                op,
                flush,
                pool,
            } => match (op, group.operations.len()) {
                (Op::Read, _) => {
                    let lease = pool.lease().await;
                    let op = conn.read(lease, group.all).map_err(rpma::Error::from)?;
                    op.await.map_err(rpma::Error::from)?;
                    Ok(())
                }
                (Op::WriteFlush, 1) => batch::<2>(conn, (*op, *flush), pool, group, sources).await,
                (_, 1) => one(conn, *op, pool, group, slot, sources).await,
                (_, ..=15) => batch::<16>(conn, (*op, *flush), pool, group, sources).await,
                _ => batch::<{ MOST + 1 }>(conn, (*op, *flush), pool, group, sources).await,
            },
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
                let ticket = ticket.map_err(rpma::Error::from)?;
                Ok(writer.durable(ticket).await?)
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
                let outcome = set.settle(id, *copies, Duration::MAX).await?;
                if outcome.copies() >= *copies {
                    Ok(())
                } else {
                    failed(too_few(id, outcome.copies(), *copies))
                }
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
async fn one(
    conn: &Conn,
    op: Op,
    pool: &Pool,
    group: &Group,
    slot: u32,
    sources: &mut Vec<Frozen>,
) -> Result {
    let remote = group.operations[0];
    if op == Op::AtomicWrite {
        let op = conn.atomic_write(remote, u64::from(slot).to_ne_bytes());
        op.map_err(rpma::Error::from)?
            .await
            .map_err(rpma::Error::from)?;
        return Ok(());
    }
    let source = match sources.pop() {
        Some(source) => source,
        None => pool.lease().await.freeze(),
    };
    let op = match op {
        Op::Send => conn.send(source),
        _ => conn.write(remote, source),
    };
    let source = op.map_err(rpma::Error::from)?.await;
    sources.push(source.map_err(rpma::Error::from)?);
    Ok(())
}

/// Several operations with one doorbell.
async fn batch<const N: usize>(
    conn: &Conn,
    (op, flush): (Op, FlushType),
    pool: &Pool,
    group: &Group,
    sources: &mut Vec<Frozen>,
) -> Result {
    while op != Op::AtomicWrite && sources.len() < group.operations.len() {
        sources.push(pool.lease().await.freeze());
    }
    let mut batch = conn.batch::<N>();
    for remote in &group.operations {
        match (op, sources.pop()) {
            (Op::Send, Some(source)) => batch.send(source).map_err(rpma::Error::from)?,
            (_, Some(source)) => batch.write(*remote, source).map_err(rpma::Error::from)?,
            (_, None) => batch.atomic_write(*remote, [0; 8])?,
        }
    }
    if op == Op::WriteFlush {
        batch.flush(group.all, flush)?;
    }
    let op = batch.commit().map_err(rpma::Error::from)?;
    sources.extend(op.await.map_err(rpma::Error::from)?);
    Ok(())
}

/// A thread whose operations do nothing.
pub(super) fn empty(slots: u32, lanes: u32) -> Result<Thread> {
    let lane = || Lane {
        target: Target::Empty,
        places: Places::default(),
        pace: Pace::Closed,
        slots,
    };
    Ok(Thread {
        lanes: (0..lanes).map(|_| lane()).collect(),
        runtime: runtime()?,
    })
}

/// Makes the connections of a thread with these numbers.
pub(super) fn connect(
    bench: &mut Bench,
    setting: &Setting,
    numbers: Range<u32>,
    pace: impl Fn(u32) -> Pace,
) -> Result<Thread> {
    let runtime = runtime()?;
    let mut lanes = Vec::new();
    for number in numbers {
        lanes.push(Lane {
            target: target(bench, setting, number, &runtime)?,
            places: measure::places(bench, setting, number)?,
            pace: pace(number),
            slots: measure::slots(setting),
        });
    }
    Ok(Thread { lanes, runtime })
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(|error| Stop::Failed(format!("tokio cannot start: {error}")))
}

fn target(bench: &mut Bench, setting: &Setting, number: u32, runtime: &Runtime) -> Result<Target> {
    let reactor = || {
        let _entered = runtime.enter();
        Reactor::spawn(&bench.peer)
    };
    let (size, depth) = (stride(setting.size).max(1) as usize, setting.depth as usize);
    let pointer = FIRST + POINTER * u64::from(number);
    match setting.op {
        Op::Empty => Ok(Target::Empty),
        Op::Commit if setting.copies.is_some() => {
            let reactor = reactor()?;
            let set = measure::replicas(bench, setting)?;
            Ok(Target::Copies {
                set: Replicas::new(&reactor, set)?,
                copies: setting.copies.unwrap_or(1) as usize,
                record: vec![0x5a; setting.size as usize],
                pointer,
            })
        }
        Op::Commit => {
            let reactor = reactor()?;
            let writer = bench.servers[0].writer(&bench.peer, setting)?;
            Ok(Target::Commits {
                writer: Writer::new(&reactor, writer)?,
                // A record is free some time after its commit is durable.
                pool: Pool::new(&bench.peer, size, 2 * depth)?,
                pointer: bench.servers[0].memory.slice(pointer..pointer + 8)?,
            })
        }
        op => {
            let reactor = reactor()?;
            let (addr, data) = bench.servers[0].expect(setting)?;
            let setup = Setup::new(&conn_cfg(setting)?).with_connect_limit(LIMIT);
            let conn = runtime.block_on(reactor.connect(addr, &setup, &data))?;
            conn.apply_remote_peer_cfg(bench.servers[0].offer.platform());
            Ok(Target::Verbs {
                conn,
                op,
                flush: flush_type(setting),
                pool: Pool::new(&bench.peer, size, depth)?,
            })
        }
    }
}
