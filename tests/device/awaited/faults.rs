//! Faults of a server while commits of its writer are in flight, by each method.

use rpma::commit::{Fate, Method, Ticket};
use rpma_async::{Pool, Writer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::awaited::hosts::{Far, Outage, methods, spoil, with_each};
use crate::awaited::served::{append, block, commit, post};
use crate::awaited::support::{all_blocks, in_time, is_over, joined, spawn_with, turns};
use crate::awaited::world::{World, is_unanswered, virtually, within};
use crate::common::prelude::*;

/// The retries of `impatient` are over, and so is the time in which an acknowledgement may come.
const NOTICED: Duration = Duration::from_secs(5);

/// Tasks that wait for a writer: for two commits, for room, and for the end.
pub(crate) struct Waits {
    pub(crate) durable: [JoinHandle<rpma::Result<()>>; 2],
    pub(crate) room: JoinHandle<rpma::Result<()>>,
    pub(crate) closed: JoinHandle<rpma::Result<ConnEvent>>,
}

impl Waits {
    pub(crate) async fn begin(writer: &Writer, tickets: [Ticket; 2]) -> Self {
        let waits = Self {
            durable: tickets.map(|ticket| {
                spawn_with(writer, |writer| async move { writer.durable(ticket).await })
            }),
            room: spawn_with(writer, |writer| async move { writer.room().await }),
            closed: spawn_with(writer, |writer| async move { writer.closed().await }),
        };
        turns(3).await;
        assert!(!waits.any(), "nothing has happened yet");
        waits
    }

    /// Whether one has ended.
    fn any(&self) -> bool {
        self.durable.iter().any(JoinHandle::is_finished)
            || self.room.is_finished()
            || self.closed.is_finished()
    }
}

/// A server with a commit that is durable, and two commits that are on their way.
pub(crate) struct UnderWay {
    pub(crate) far: Far,
    pub(crate) writer: Writer,
    pub(crate) pool: Pool,
    pub(crate) tickets: [Ticket; 2],
}

impl UnderWay {
    pub(crate) async fn new(world: &World, method: Method) -> Result<Self> {
        let mut far = Far::new(world, "log", method)?;
        let writer = far.writer(world, 2).await?;
        let pool = Pool::new(&world.peers[0], 100, 2)?;
        append(&writer, &pool, 1).await?;
        far.there.hold();
        let [second, third] = [block(&pool, 2).await, block(&pool, 3).await];
        let tickets = [commit(&writer, second, 2)?, commit(&writer, third, 3)?];
        Ok(Self {
            far,
            writer,
            pool,
            tickets,
        })
    }
}

/// The number of the two sources that come back while the server does not answer. On iWARP a message
/// completes, so that its source is free, before the server has it.
fn sent(method: Method) -> usize {
    if is_iwarp() && method == Method::Server {
        2
    } else {
        0
    }
}

/// Whether the reason is that of this fault.
#[track_caller]
fn is_of(error: &Error, outage: Outage) {
    let is_right = match error {
        Error::Ended(event) => outage.is_told() && **event == ConnEvent::Closed,
        // Requests that are still on their way get no answer, in any state of the client.
        error => is_unanswered(error),
    };
    assert!(is_right, "{outage:?}: {error:?}");
}

/// Promise: each fault of a server ends all waits of its writer, with the reason, when the retries
/// are over. The fate of a commit is durable or unknown then, and a durable one is in the memory
/// after a power cut. Sources come back while the writer lives, and no sooner than its device has
/// released them: the server never gets another task's later writes there.
#[test]
fn a_fault_ends_all_waits_with_its_reason() -> Result {
    with_each(async |world, method, outage| {
        let of = UnderWay::new(world, method).await?;
        let (mut far, writer, tickets) = (of.far, of.writer, of.tickets);
        let waits = Waits::begin(&writer, tickets).await;
        let spoiling = spoil(&of.pool);
        sleep(Duration::from_millis(200)).await;
        assert!(!waits.any());
        assert_eq!(of.pool.available(), sent(method));
        outage.begin(world, &mut far).await?;
        // A message about the end is there before the requests.
        sleep(Duration::from_millis(10)).await;
        far.there.release();
        let began = Instant::now();
        let mut durable = 1;
        for (ticket, waiting) in tickets.into_iter().zip(waits.durable) {
            let fate = match joined(waiting).await {
                Ok(()) => {
                    durable = ticket.number();
                    Fate::Durable
                }
                Err(error) => {
                    is_of(&error, outage);
                    Fate::Unknown
                }
            };
            assert_eq!(writer.fate(ticket)?, fate);
        }
        is_of(&joined(waits.room).await.expect_err("no room"), outage);
        match joined(waits.closed).await {
            // There the keep-alive ends it, and not the retries.
            Ok(ConnEvent::Lost { .. }) if is_iwarp() => {}
            Ok(event) => assert_eq!(event, ConnEvent::Closed),
            Err(error) => is_of(&error, outage),
        }
        joined(spoiling).await;
        assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
        is_over(post(&writer, &of.pool, 4).await);
        // Messages that are left arrive.
        outage.end(&far);
        sleep(Duration::from_secs(10)).await;
        far.keeps(durable..=3).await;
        drop(writer);
        far.end().await;
        Ok(())
    })
}

/// Promise: a fault that passes before the retries are over ends no connection. The commits are
/// durable, their sources come back, and the writer goes on.
#[test]
fn a_fault_that_passes_loses_nothing() -> Result {
    with_each(async |world, method, outage| {
        if !outage.passes(method) {
            return Ok(());
        }
        let mut far = Far::new(world, "log", method)?;
        let writer = far.connect(world, 2, &ConnCfg::new()).await?;
        let writer = Writer::new(&world.reactors[0], writer)?;
        let pool = Pool::new(&world.peers[0], 100, 2)?;
        outage.begin(world, &mut far).await?;
        let first = post(&writer, &pool, 1).await?;
        let second = post(&writer, &pool, 2).await?;
        let waits = Waits::begin(&writer, [first, second]).await;
        let spoiling = spoil(&pool);
        sleep(Duration::from_millis(500)).await;
        assert!(!waits.any());
        assert_eq!(pool.available(), sent(method));
        outage.end(&far);
        for waiting in waits.durable {
            joined(waiting).await?;
        }
        joined(waits.room).await?;
        joined(spoiling).await;
        assert!(!waits.closed.is_finished());
        append(&writer, &pool, 3).await?;
        far.keeps(3..=3).await;
        waits.closed.abort();
        drop(writer);
        far.end().await;
        Ok(())
    })
}

/// Promise: with the server's method, a wait for an answer ends even if the server's device took
/// the request, and its host is gone before the answer, so that no operation is in flight that
/// would fail.
#[test]
fn a_host_that_took_the_request_and_is_gone() -> Result {
    with_each(async |world, method, outage| {
        // A server that is stopped admits no client.
        if method != Method::Server || outage == Outage::CutOff {
            return Ok(());
        }
        let mut far = Far::new(world, "log", method)?;
        let writer = far.writer(world, 2).await?;
        let pool = Pool::new(&world.peers[0], 100, 1)?;
        far.stop().await;
        let ticket = post(&writer, &pool, 1).await?;
        drop(pool.lease().await);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(writer.fate(ticket)?, Fate::Pending);
        outage.begin(world, &mut far).await?;
        let waited = within(NOTICED, writer.durable(ticket)).await;
        is_of(&waited.expect_err("no answer comes"), outage);
        assert_eq!(writer.fate(ticket)?, Fate::Unknown);
        outage.end(&far);
        drop(writer);
        far.end().await;
        Ok(())
    })
}

/// Promise: `close` keeps its limit to the millisecond, whether or not the server answers. A wait
/// that is dropped at its own limit does not undo the commit: another one gets the outcome.
#[test]
fn limits_are_kept() -> Result {
    with_each(async |world, method, outage| {
        let of = UnderWay::new(world, method).await?;
        let mut far = of.far;
        let limit = Duration::from_millis(120);
        outage.begin(world, &mut far).await?;
        sleep(Duration::from_millis(10)).await;
        far.there.release();
        let began = Instant::now();
        match timeout(limit, of.writer.durable(of.tickets[1])).await {
            Err(_) => assert_eq!(began.elapsed(), limit),
            Ok(waited) => is_of(&waited.expect_err("an outage"), outage),
        }
        let began = Instant::now();
        let closed = within(limit, of.writer.clone().close(limit)).await;
        match closed.expect_err("commits are in flight") {
            Error::TimedOut(_) => assert_eq!(began.elapsed(), limit),
            error => is_of(&error, outage),
        }
        let waited = within(NOTICED, of.writer.durable(of.tickets[1])).await;
        waited.expect_err("the connection is over");
        assert_ne!(of.writer.fate(of.tickets[1])?, Fate::Pending);
        outage.end(&far);
        drop(of.writer);
        assert_eq!(of.pool.available(), 2);
        far.end().await;
        Ok(())
    })
}

/// Promise: while its own device stands still, a writer that has ended keeps the sources: the
/// device has not released them. They come back when it goes on, or with the writer.
#[test]
fn an_own_device_that_stands_still_keeps_the_sources() -> Result {
    for (method, is_dropped) in methods().flat_map(|of| [(of, false), (of, true)]) {
        virtually(async |world| {
            let of = UnderWay::new(world, method).await?;
            world.hosts[0].freeze();
            of.far.there.release();
            of.writer.abort();
            sleep(Duration::from_secs(100)).await;
            assert_eq!(of.pool.available(), 0, "the device may read them");
            let writer = (!is_dropped).then_some(of.writer);
            if !is_dropped {
                world.hosts[0].thaw();
                drop(in_time(all_blocks(&of.pool)).await);
            }
            drop(writer);
            assert_eq!(of.pool.available(), 2, "the queue pair is destroyed");
            if is_dropped {
                world.hosts[0].thaw();
            }
            of.far.end().await;
            Ok(())
        })?;
    }
    Ok(())
}
