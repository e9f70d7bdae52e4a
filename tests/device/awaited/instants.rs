//! A program on two hosts and one thread, at the instants of a paused clock.

use std::time::Instant as RealInstant;

use rpma_async::{Conn, Frozen, Inbox, Op, Setup};
use tokio::time::{Instant, sleep, timeout};

use crate::awaited::support::{CLOSE, Memories, begun, both, fill, joined, take};
use crate::awaited::world::{World, is_unanswered, virtually};
use crate::common::prelude::*;

const MS: Duration = Duration::from_millis(1);

/// The instants of a run, in milliseconds since its begin.
type Instants = Vec<(&'static str, u128)>;

fn setup() -> Result<Setup> {
    let mut cfg = ConnCfg::new();
    // 2.15 s, as often as it is sent: 15.03 s.
    cfg.set_ack_timeout(Some(19))?;
    cfg.set_retry_count(6)?;
    Ok(Setup::new(&cfg).with_receives(2, 64))
}

/// A run of the program.
struct Run<'a> {
    world: &'a World,
    memories: Memories,
    began: Instant,
    instants: Instants,
}

impl Run<'_> {
    fn note(&mut self, what: &'static str) {
        let since = self.began.elapsed().as_millis();
        self.instants.push((what, since));
    }

    fn write(&self, client: &Conn) -> Result<Op<Frozen>> {
        Ok(client.write(self.memories.to(), self.memories.word())?)
    }

    async fn writes_and_flushes(&mut self, client: &Conn) -> Result {
        self.world.link.delay(5 * MS);
        let word = self.write(client)?;
        let flush = client.flush(self.memories.to(), FlushType::Visibility)?;
        word.await?;
        flush.await?;
        self.note("written");
        Ok(())
    }

    /// An operation goes on after its limit has passed.
    async fn passes_a_limit(&mut self, client: &Conn) -> Result {
        self.world.link.delay(300 * MS);
        let late = self.write(client)?;
        assert!(timeout(10 * MS, late).await.is_err());
        self.note("its limit has passed");
        assert_eq!(self.memories.pool.available(), 3);
        client.idle().await?;
        assert_eq!(self.memories.pool.available(), 4);
        self.note("it has gone on");
        self.world.link.delay(MS);
        Ok(())
    }

    /// A server answers each message 40 ms later.
    async fn sends_to_a_slow_server(&mut self, client: &Conn, server: &Conn) {
        let serving = async {
            let mut inbox = server.inbox().expect("it has receives");
            for _ in 0..3 {
                take(&mut inbox, 1).await.expect("a message");
                sleep(40 * MS).await;
            }
            inbox
        };
        let sending = async {
            for _ in 0..3 {
                let sent = client.send(self.memories.word()).expect("room");
                sent.await.expect("there is a receive");
            }
            self.note("the server has three messages");
        };
        let (inbox, ()) = both(serving, sending).await;
        drop(inbox);
        self.note("the server is done");
    }

    /// Messages for which there is no receive for a while. Returns the server's inbox.
    async fn waits_for_receives(&mut self, client: &Conn, server: &Conn) -> Result<Inbox> {
        let ops = fill(client, &self.memories, 3)?;
        let mut inbox = server.inbox()?;
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
        self.note("a receive was late");
        Ok(inbox)
    }

    /// `close` keeps its limit while the peer is away. Operations that are in flight then are
    /// flushed. Returns the other end, which is still open.
    async fn closes_while_the_peer_is_away(&mut self) -> Result<Conn> {
        let (other, end) = self.world.connect(&setup()?, &setup()?).await?;
        self.note("connected once more");
        self.world.link.hold();
        let held = self.write(&other)?;
        let closed = other.close(3 * 1000 * MS).await;
        assert!(matches!(closed, Err(Error::TimedOut(_))), "{closed:?}");
        self.note("the limit of a close has passed");
        held.await.expect_err("it was flushed");
        self.world.link.release();
        Ok(end)
    }

    /// A peer that is cut off for a while, and then for ever.
    async fn loses_its_peer(&mut self, client: Conn, server: Conn) -> Result {
        self.world.link.partition();
        let mut word = self.write(&client)?;
        assert!(begun(&mut word).await.is_none());
        sleep(4 * 1000 * MS).await;
        self.world.link.heal();
        word.await?;
        self.note("repeated");
        self.world.link.partition();
        let closed = tokio::spawn(client.closed());
        let failed = self.write(&client)?.await.expect_err("nobody answers");
        assert!(is_unanswered(&failed.error), "{failed:?}");
        joined(closed).await.expect_err("the same");
        self.note("given up");
        // The reactor has disconnected, and the connection manager repeats that.
        sleep(1000 * MS).await;
        self.world.link.heal();
        server.closed().await?;
        self.note("the server knows");
        let closed = client.close(CLOSE).await;
        closed.expect_err("an operation is lost");
        self.note("closed");
        Ok(())
    }
}

/// Messages, delays, limits that pass, a server that is slow, and a peer that is lost.
async fn program(world: &World) -> Result<Instants> {
    let mut run = Run {
        world,
        memories: world.memories(4),
        began: Instant::now(),
        instants: Instants::new(),
    };
    let (client, server) = world.connect(&setup()?, &setup()?).await?;
    run.note("connected");
    run.writes_and_flushes(&client).await?;
    run.passes_a_limit(&client).await?;
    run.sends_to_a_slow_server(&client, &server).await;
    let _inbox = run.waits_for_receives(&client, &server).await?;
    let _end = run.closes_while_the_peer_is_away().await?;
    run.loses_its_peer(client, server).await?;
    Ok(run.instants)
}

/// Promise: a program of both sides runs at the same instants in each run, and the waits of its
/// clock take no time.
#[test]
fn each_run_has_the_same_instants() -> Result {
    let began = RealInstant::now();
    let first = virtually(program)?;
    println!("{first:#?}");
    for _ in 1..20 {
        assert_eq!(virtually(program)?, first);
    }
    let took = began.elapsed();
    println!("20 runs took {took:?}");
    let (_, last) = first.last().ok_or("there are some")?;
    assert!(took.as_millis() < *last, "no run waits");
    Ok(())
}
