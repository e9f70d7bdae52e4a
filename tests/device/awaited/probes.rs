//! Probes of a silent server, on one thread with other tasks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::ToWriter;
use rpma_async::{Pool, Reactor, Replicas};

use crate::awaited::replicas::{add, has_copies, set_of};
use crate::awaited::served::{self, Serving};
use crate::awaited::support::{joined, run};
use crate::common::place::with_fabric;
use crate::common::prelude::*;

/// Longer than the time between two probes.
const SLOW: Duration = Duration::from_millis(60);
/// Probes that are too many: tokio looks at its timers after 61 turns of tasks at the latest.
const MANY: u32 = 30;

/// While two tasks wait for the answer of a server that is silent, each event takes longer than the
/// time between two probes. Returns the events until a third task has slept three times.
fn events_beside(silent: impl AsyncFn(&Reactor, Serving, &AtomicBool) -> Serving) -> Result<u32> {
    let fabric = with_fabric(|fabric, _| fabric.clone());
    let (is_slow, events) = (AtomicBool::new(false), AtomicU32::new(0));
    let check = |_: &Cut<'_>| {
        if is_slow.load(Ordering::Relaxed) {
            events.fetch_add(1, Ordering::Relaxed);
            thread::sleep(SLOW);
        }
    };
    fabric.on_every_event(check, || -> Result {
        run(async {
            let reactor = Reactor::spawn(&peer()?)?;
            let serving = Serving::new(&reactor, 2)?;
            silent(&reactor, serving, &is_slow).await.stop().await;
            Ok(())
        })
    })?;
    eprintln!("{events:?}");
    Ok(events.into_inner())
}

/// A set of two keys of one server, with room for one commit each.
pub(crate) async fn set_of_two(reactor: &Reactor, serving: &Serving) -> Result<Replicas> {
    let (set, _) = set_of(reactor, serving, 1..1).await?;
    let mut cfg = WriterCfg::new(Method::Server);
    cfg.set_in_flight(1)?;
    for key in [1, 2] {
        let mut client = served::client(reactor, serving.addr, key, ToWriter::new(&cfg));
        add(&set, client.connect(&ConnCfg::new()).await?)?;
    }
    Ok(set)
}

/// Sleeps three times while every event is slow.
async fn sleep_beside(is_slow: &AtomicBool) {
    is_slow.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        tokio::time::sleep(2 * SLOW).await;
    }
    is_slow.store(false, Ordering::Relaxed);
}

/// Promise: a task that waits for the answer of a server lets other tasks run, even if each of its
/// probes takes longer than the time between two of them.
#[test]
fn a_slow_probe_of_a_writer_lets_others_run() -> Result {
    let _test = device_test();
    let events = events_beside(async |reactor, serving, is_slow| {
        let writer = served::awaited(reactor, serving.addr, 1).await;
        let stopped = serving.stop().await;
        let pool = Pool::new(reactor.peer(), 128, 1).expect("registers");
        let ticket = served::post(&writer, &pool, 1).await.expect("posted");
        let waiting = tokio::spawn(async move {
            writer.durable(ticket).await.expect("durable");
            writer
        });
        sleep_beside(is_slow).await;
        let serving = stopped.start();
        let writer = joined(waiting).await;
        writer.close(LIMIT).await.expect("closes");
        serving
    })?;
    assert!(events < MANY, "{events} events");
    Ok(())
}

/// Promise: the same for a set of replicas, and even if each look takes longer than that time.
#[test]
fn a_slow_probe_of_a_set_lets_others_run() -> Result {
    let _test = device_test();
    let events = events_beside(async |reactor, serving, is_slow| {
        let set = set_of_two(reactor, &serving).await.expect("added");
        let stopped = serving.stop().await;
        let id = set.commit(64, &[b"one"], None, 2).expect("posted");
        let waiting = tokio::spawn(async move {
            has_copies(&set, id, 2).await.expect("the driver runs");
        });
        sleep_beside(is_slow).await;
        let serving = stopped.start();
        joined(waiting).await;
        serving
    })?;
    assert!(events < MANY, "{events} events");
    Ok(())
}

/// Promise: the simulated fabric keeps no request back for ever, even if checks take nearly all of
/// the time: a set probes meanwhile, and each probe is an event with a check.
#[test]
fn slow_checks_keep_no_answer_back_for_ever() -> Result {
    let _test = device_test();
    let events = events_beside(async |reactor, serving, is_slow| {
        let set = set_of_two(reactor, &serving).await.expect("added");
        is_slow.store(true, Ordering::Relaxed);
        set.commit(64, &[b"one"], None, 2).expect("posted");
        let id = set.commit(72, &[b"another"], None, 2).expect("posted");
        has_copies(&set, id, 2).await.expect("the driver runs");
        is_slow.store(false, Ordering::Relaxed);
        serving
    })?;
    assert!(events > 0);
    Ok(())
}
