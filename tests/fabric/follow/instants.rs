//! Retries, time-outs and delays at the instants of a paused clock.

use std::net::SocketAddr;
use std::time::Instant as RealInstant;

use rpma::reconnect::{Reconnect, ToConn};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::common::failed::Failed;
use crate::follow::prelude::*;

const LEN: usize = 64;
const MS: Duration = Duration::from_millis(1);

/// The instants of a run, with the milliseconds since its begin.
type Instants = Vec<(&'static str, u128)>;

fn cfg() -> ConnCfg {
    let mut cfg = ConnCfg::new();
    // 2.15 s, as often as it is sent: 15.03 s.
    cfg.set_ack_timeout(Some(19)).expect("an exponent");
    cfg.set_retry_count(6).expect("a count");
    cfg
}

/// How long something takes in virtual time.
async fn taking<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let result = what.await;
    (result, began.elapsed())
}

/// All that this program is about, one after the other.
async fn program(world: &World) -> Result<Instants> {
    let began = Instant::now();
    let mut instants = Instants::new();
    let mut note = |what| instants.push((what, began.elapsed().as_millis()));
    let memories = world.memories(LEN)?;
    let Pair { client, server } = connect(world, &cfg(), &cfg()).await?;
    note("connected");
    assert!(write_all(&client, &memories).await.result().is_ok());
    note("written");

    // A limit of the program is longer than the delay, and another one is shorter.
    world.link.delay(5 * MS);
    let (wc, took) = taking(timeout(DAY, write_all(&client, &memories))).await;
    assert!(wc?.result().is_ok());
    assert!((5 * MS..8 * MS).contains(&took), "{took:?}");
    note("delayed");
    world.link.delay(300 * MS);
    let (late, took) = taking(timeout(10 * MS, write_all(&client, &memories))).await;
    assert!(late.is_err() && took == 10 * MS, "{took:?}");
    note("timed out");
    assert!(completion(&client).await.result().is_ok());
    note("late");
    world.link.delay(Duration::ZERO);

    // A message waits for a receive.
    let taken = region(&world.peers[1], LEN, MrUsage::RECV)?;
    let message = region(&world.peers[0], LEN, MrUsage::SEND)?;
    let ((), took) = taking(not_ready(&client, &server, &message, &taken)).await;
    assert!((40 * MS..50 * MS).contains(&took), "{took:?}");
    note("received");

    // A peer that does not answer is given up.
    world.link.partition();
    let (wc, took) = taking(write_all(&client, &memories)).await;
    let failure = wc.result().expect_err("it is given up");
    assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR);
    let retries = Duration::from_nanos(7 * (4_096 << 19));
    assert!((retries..retries + 20 * MS).contains(&took), "{took:?}");
    note("given up");
    world.link.heal();
    drop((client, server));
    instants.extend(ends(world, began).await?);
    Ok(instants)
}

/// Sends a message to a peer that posts its receive 40 ms later.
async fn not_ready(client: &Conn, server: &Conn, message: &Mr<Memory>, taken: &Mr<Memory>) {
    let message = message.slice(..).expect("all of it");
    client.send(message, ALWAYS, 0).expect("posted");
    assert!(timeout(40 * MS, completion(client)).await.is_err());
    let taken = taken.slice(..).expect("all of it");
    server.recv(taken, 1).expect("posted");
    assert!(completion(server).await.result().is_ok());
    assert!(completion(client).await.result().is_ok());
}

/// The end of a connection, and of a request without an answer.
async fn ends(world: &World, began: Instant) -> Result<Instants> {
    let mut instants = Instants::new();
    let mut note = |what| instants.push((what, began.elapsed().as_millis()));

    // Receives that never come.
    let mut impatient = cfg();
    impatient.set_rnr_retry_count(3)?;
    // 491.52 ms.
    impatient.set_min_rnr_timer(Some(31))?;
    let Pair { client, server } = connect(world, &cfg(), &impatient).await?;
    let message = region(&world.peers[0], LEN, MrUsage::SEND)?;
    client.send(message.slice(..)?, ALWAYS, 0)?;
    let (wc, took) = taking(completion(&client)).await;
    let failure = wc.result().expect_err("it is given up");
    assert_eq!(failure.status, WcStatus::RNR_RETRY_EXC_ERR);
    let tries = Duration::from_micros(3 * 491_520);
    assert!((tries..tries + 20 * MS).contains(&took), "{took:?}");
    note("not ready");
    drop((client, server));

    // The keep-alive of an idle connection, which is earlier than its retries.
    let limit = Duration::from_secs(12);
    let mut watched = cfg();
    watched.set_keep_alive(Some(limit))?;
    let Pair { client, server } = connect(world, &watched, &cfg()).await?;
    world.hosts[1].freeze();
    let ((), took) = taking(async {
        loop {
            match next(&client, &mut [Wc::default()]).await.expect("an end") {
                Next::Completions(_) => {}
                Next::Event(event) => break assert!(matches!(event, ConnEvent::Lost { .. })),
            }
        }
    })
    .await;
    let ends = limit * 12 / 16..=limit * 15 / 16;
    assert!(ends.contains(&took), "{took:?}");
    note("lost");
    world.hosts[1].thaw();
    drop((client, server));

    // A limit of the connection manager.
    let mut quick = cfg();
    quick.set_timeout(700 * MS);
    let resolving = ConnReq::resolve(&world.peers[0], nobody(world), &quick)?;
    let (error, took) = taking(resolved(resolving)).await;
    assert!(error.is_err() && took == 700 * MS, "{took:?}");
    note("unresolved");

    // A client comes back to a server that is not there yet, after waits that are random.
    let at = (world.hosts[1].addr(), 7204).into();
    let server = world.peers[1].clone();
    let serving = tokio::spawn(async move {
        sleep(Duration::from_secs(20)).await;
        let ep = Ep::listen_on(&server, at)?;
        accept(&ep, &cfg()).await
    });
    let conn = comes_back(&world.peers[0], at).await?;
    note("came back");
    drop((conn, serving.await.expect("no panic")?));
    Ok(instants)
}

async fn comes_back(peer: &Peer, at: SocketAddr) -> Result<Conn> {
    let offer = Offer::new(&PeerCfg::new());
    let mut client = Reconnect::to_addrs(peer, &[at], offer, ToConn)?;
    client.begin(&cfg())?;
    loop {
        if let Some(conn) = client.advance()? {
            assert!(client.tries() > 3, "{}", client.tries());
            return Ok(conn);
        }
        let due = client.deadline().ok_or("it goes on")?;
        let _ = timeout_at(due.into(), readable(&client)).await;
    }
}

/// Promise: a program on a paused clock does the same at the same instants in each run, and its
/// waits take no real time.
#[test]
fn the_instants_are_the_same_in_each_run() -> Result {
    let began = RealInstant::now();
    let first = virtually(program)?;
    for _ in 1..20 {
        assert_eq!(virtually(program)?, first);
    }
    let real = began.elapsed();
    println!("20 runs took {real:?}: {first:?}");
    let (_, virtual_ms) = first.last().ok_or("instants")?;
    // Each of the runs takes more than that.
    assert!(real.as_millis() < *virtual_ms, "{real:?} of real time");
    Ok(())
}

/// Promise: a timer that is put off later and is due earlier is not late. The retries of one
/// connection are the first timer when the delay of another one is put off.
#[test]
fn an_earlier_timer_is_not_late() -> Result {
    virtually(async |world| {
        let far = World::named(&world.fabric, ["third", "other"]);
        let (memories, far_memories) = (world.memories(LEN)?, far.memories(LEN)?);
        let (client, _server) = connect(world, &cfg(), &cfg()).await?.ends();
        let (far_client, _far_server) = connect(&far, &cfg(), &cfg()).await?.ends();
        far.link.partition();
        far_memories.write(&far_client, 0)?;
        // The future sleeps until the first retry, 2.15 s later.
        sleep(100 * MS).await;
        world.link.delay(30 * MS);
        let (wc, took) = taking(write_all(&client, &memories)).await;
        assert!(wc.result().is_ok());
        assert!((30 * MS..33 * MS).contains(&took), "{took:?}");
        assert!(completion(&far_client).await.result().is_err());
        Ok(())
    })
}

/// Promise: an end that a peer causes comes to the other task.
#[test]
fn an_end_is_told() -> Result {
    virtually(async |world| {
        let Pair { client, server } = connect(world, &cfg(), &cfg()).await?;
        let ending = tokio::spawn(async move {
            sleep(5 * MS).await;
            server.disconnect()?;
            assert_eq!(event(&server).await, ConnEvent::Closed);
            Ok::<_, Failed>(())
        });
        let (told, took) = taking(event(&client)).await;
        assert_eq!((told, took), (ConnEvent::Closed, 5 * MS));
        client.disconnect()?;
        ending.await.expect("no panic")
    })
}
