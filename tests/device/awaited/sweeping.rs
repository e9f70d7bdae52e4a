//! Every call fails once. A program with both sides of a connection (each kind of operation,
//! asleep, awaited and dropped, messages, waits, both ends) is run again and again in virtual time.
//! Each call that it makes fails in one of the runs: it has no effect, or its full effect, and
//! returns an error.
//!
//! Promises: the program gets an error that names the call, or the log has it if no caller can get
//! it; no thread panics; no wait is longer than the program's own limits; the only leaks are
//! objects that could not be destroyed, and those that they keep.

use log::LevelFilter;
use rpma::sim::Errno;
use rpma_async::{Conn, Lease, Pool, Reactor};
use tokio::time::timeout;

use crate::awaited::support::{begun, both, receives, turns, with_bytes};
use crate::awaited::world::{World, leaving};
use crate::common::failing_calls::{Calls, Fails, Run, every_call};
use crate::common::prelude::*;

/// No step of the program takes longer, in virtual time.
const LIMIT: Duration = Duration::from_secs(600);
const CLOSE: Duration = Duration::from_secs(200);

/// A step of the program, which must not take longer than the limit.
async fn step<T>(step: impl Future<Output = T>) -> T {
    timeout(LIMIT, step).await.expect("it ends")
}

fn word(lease: Lease) -> Lease {
    with_bytes(lease, b"a word.")
}

/// The program. Its two hosts and the server's memory are there before.
async fn program(world: &World, to: &MrRemote) -> rpma::Result<()> {
    let [near, far] = &world.peers;
    let reactors = [Reactor::spawn(near)?, Reactor::spawn(far)?];
    let setup = receives(2);
    let ip = world.hosts[1].addr();
    let listener = reactors[1].listen((ip, 0).into())?;
    let addr = (ip, listener.port()).into();
    let pool = Pool::new(near, 64, 3)?;
    let accepting = async {
        let incoming = match listener.accept().await {
            // The request may still be there.
            Err(error) => {
                log::info!("{error}");
                listener.accept().await?
            }
            incoming => incoming?,
        };
        incoming.accept(&setup, b"").await
    };
    let connecting = reactors[0].connect(addr, &setup, b"");
    // If the client fails the server waits in vain.
    let (client, server) = both(step(connecting), timeout(LIMIT, accepting)).await;
    if let (Err(_), Ok(Err(other))) = (&client, &server) {
        log::info!("the server: {other}");
    }
    let client = client?;
    let server = server.expect("the server knows of the client")?;
    let done = step(operations(world, &client, &server, &pool, to)).await;
    let closed = step(both(client.close(CLOSE), server.close(CLOSE))).await;
    drop((listener, reactors));
    // The first error explains those that follow.
    done.and(closed.0).and(closed.1)
}

async fn operations(
    world: &World,
    client: &Conn,
    server: &Conn,
    pool: &Pool,
    to: &MrRemote,
) -> rpma::Result<()> {
    let at = to.slice(..8)?;
    let to = to.slice(8..15)?;
    // Complete at once.
    let block = word(pool.lease().await).freeze();
    let block = client.write(to, block)?.await?;
    client.flush(to, FlushType::Visibility)?.await?;
    client.atomic_write(at, [7; 8])?.await?;
    let mut batch = client.batch::<2>();
    batch.write(to, block.clone())?;
    batch.flush(to, FlushType::Visibility)?;
    drop(batch.commit()?.await?);
    let pointer = Some((at, [9; 8]));
    let commit = client.commit([(to, block)], pointer, FlushType::Visibility)?;
    drop(commit.await?);
    // Asleep, dropped, and waited for.
    world.link.hold();
    let block = word(pool.lease().await);
    let mut asleep = client.read(block, to)?;
    if let Some(read) = begun(&mut asleep).await {
        world.link.release();
        drop(read?);
    }
    let dropped = word(pool.lease().await).freeze();
    client.write(to, dropped)?.detach();
    let mut idle = client.idle();
    if let Some(idle) = begun(&mut idle).await {
        world.link.release();
        idle?;
    }
    world.link.release();
    drop(asleep.await?);
    idle.await?;
    client.ready(10).await?;
    // Messages, in both directions.
    let mut inbox = server.inbox()?;
    let mut answers = client.inbox()?;
    let sent = client.send(word(pool.lease().await).freeze())?;
    let over = || Error::TimedOut("the connection is over");
    let message = inbox.next().await?.ok_or_else(over)?;
    assert_eq!(&*message, b"a word.");
    sent.await?;
    drop(message);
    let answer = Pool::new(&world.peers[1], 64, 1)?;
    let answering = server.send(word(answer.lease().await).freeze())?;
    let (answered, next) = both(answering, answers.next()).await;
    answered?;
    drop(next?.ok_or_else(over)?);
    Ok(())
}

/// The calls since then.
pub(crate) fn calls_since(world: &World, before: &Calls) -> Calls {
    let mut calls = world.fabric.calls();
    for (call, count) in &mut calls {
        *count -= before.get(call).unwrap_or(&0);
    }
    calls
}

/// A run, and the calls of the program.
fn run(fails: Option<Fails>) -> (Run, Calls) {
    lines::keep(LevelFilter::Debug);
    let ((result, calls, failing), left) = leaving(async |world| {
        let memories = world.memories(1);
        let failing =
            fails.map(|(call, nth, how)| world.fabric.fail(call).how(how).nth(nth, Errno::IO));
        let before = world.fabric.calls();
        let result = program(world, &memories.remote).await;
        // The tasks that were woken just now.
        turns(8).await;
        let calls = calls_since(world, &before);
        (result, calls, failing.map(|failing| failing.disarm()))
    });
    assert_ne!(failing, Some(true), "{fails:?} is not made");
    let run = Run {
        error: result.err().map(|error| error.to_string()),
        left,
        log: lines::take(),
    };
    (run, calls)
}

fn every_call_of(how: How) {
    let (clean, calls) = run(None);
    assert_eq!(clean.error, None, "nothing fails by itself");
    assert!(clean.left.is_empty(), "{:?}", clean.left);
    let again = |fails| Some(run(Some(fails)).0);
    let swept = every_call(&calls, how, "mr", |_| true, again);
    println!("{how:?}: {swept}");
}

#[test]
fn every_call_fails() {
    every_call_of(How::Refused);
}

#[test]
fn every_call_fails_that_happens_all_the_same() {
    every_call_of(How::Done);
}
