//! A program on two hosts and one thread, at the instants of a paused clock.

use std::time::{Duration, Instant as RealInstant};

use rpma::{ConnCfg, Error, FlushType, WcStatus};
use rpma_async::Setup;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{CLOSE, begun, both};
use crate::world::{World, virtually};

const MS: Duration = Duration::from_millis(1);

/// The instants of a run, in milliseconds since its begin.
type Instants = Vec<(&'static str, u128)>;

fn setup() -> Setup {
    let mut cfg = ConnCfg::new();
    // 2.15 s, as often as it is sent: 15.03 s.
    cfg.set_ack_timeout(Some(19)).expect("5 bits");
    cfg.set_retry_count(6).expect("3 bits");
    Setup::new(&cfg).with_receives(2, 64)
}

/// Messages, delays, limits that pass, a server that is slow, and a peer that is lost.
async fn program(world: &World) -> Instants {
    let began = Instant::now();
    let mut instants = Instants::new();
    let mut note = |what| instants.push((what, began.elapsed().as_millis()));
    let memories = world.memories(4);
    let (client, server) = world.connect(&setup(), &setup()).await;
    note("connected");

    world.link.delay(5 * MS);
    let word = client
        .write(memories.to(), memories.word())
        .expect("posted");
    let flush = client
        .flush(memories.to(), FlushType::Visibility)
        .expect("posted");
    word.await.expect("succeeds");
    flush.await.expect("succeeds");
    note("written");

    // An operation goes on after its limit has passed.
    world.link.delay(300 * MS);
    let late = client
        .write(memories.to(), memories.word())
        .expect("posted");
    assert!(timeout(10 * MS, late).await.is_err());
    note("its limit has passed");
    assert_eq!(memories.pool.available(), 3);
    client.idle().await.expect("no error");
    assert_eq!(memories.pool.available(), 4);
    note("it has gone on");
    world.link.delay(MS);

    // A server that answers each message 40 ms later.
    let serving = async {
        let mut inbox = server.inbox().expect("it has receives");
        for _ in 0..3 {
            let message = inbox.next().await.expect("no error").expect("a message");
            assert_eq!(&*message, b"a word.");
            sleep(40 * MS).await;
        }
        inbox
    };
    let sending = async {
        for _ in 0..3 {
            let sent = client.send(memories.word()).expect("room");
            sent.await.expect("there is a receive");
        }
        note("the server has three messages");
    };
    let (inbox, ()) = both(serving, sending).await;
    drop(inbox);
    note("the server is done");

    // Messages for which there is no receive for a while.
    let ops = crate::support::fill(&client, &memories, 3);
    let mut inbox = server.inbox().expect("it has receives");
    let taking = async {
        sleep(100 * MS).await;
        for _ in 0..3 {
            drop(inbox.next().await.expect("no error"));
        }
    };
    let landing = async {
        for op in ops {
            op.await.expect("it lands");
        }
    };
    both(taking, landing).await;
    note("a receive was late");

    // `close` keeps its limit while the peer is away. Operations that are in flight then are
    // flushed.
    let (other, _end) = world.connect(&setup(), &setup()).await;
    note("connected once more");
    world.link.hold();
    let held = other.write(memories.to(), memories.word()).expect("posted");
    let closed = other.close(3 * 1000 * MS).await;
    assert!(matches!(closed, Err(Error::TimedOut(_))), "{closed:?}");
    note("the limit of a close has passed");
    held.await.expect_err("it was flushed");
    world.link.release();

    // A peer that is cut off for a while, and then for ever.
    world.link.partition();
    let mut word = client
        .write(memories.to(), memories.word())
        .expect("posted");
    assert!(begun(&mut word).await.is_none());
    sleep(4 * 1000 * MS).await;
    world.link.heal();
    word.await.expect("it was repeated");
    note("repeated");
    world.link.partition();
    let closed = tokio::spawn(client.closed());
    let lost = client
        .write(memories.to(), memories.word())
        .expect("posted");
    let failed = lost.await.expect_err("nobody answers");
    let Error::Operation(failure) = failed.error else {
        panic!("{failed:?}");
    };
    assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR);
    closed.await.expect("no panic").expect_err("the same");
    note("given up");
    // The reactor has disconnected, and the connection manager repeats that.
    sleep(1000 * MS).await;
    world.link.heal();
    server.closed().await.expect("the end");
    note("the server knows");
    let closed = client.close(CLOSE).await;
    closed.expect_err("an operation is lost");
    note("closed");
    instants
}

/// Promise: a program of both sides runs at the same instants in each run, and the waits of its
/// clock take no time.
#[test]
fn each_run_has_the_same_instants() {
    let began = RealInstant::now();
    let first = virtually(program);
    println!("{first:#?}");
    for _ in 1..20 {
        assert_eq!(virtually(program), first);
    }
    println!("20 runs took {:?}", began.elapsed());
    let (_, last) = first.last().expect("there are some");
    assert!(
        began.elapsed() < Duration::from_millis(*last as u64),
        "no run waits"
    );
}
