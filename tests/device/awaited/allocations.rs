//! After the first operations and commits, no awaited one allocates in the library, whether it
//! sleeps or not.

use rpma::commit::Fate;
use rpma_async::{Conn, Inbox, Pool, Replicas, Writer};
use tokio::task::yield_now;

use crate::awaited::hosts::{Far, end_all, methods};
use crate::awaited::replicas::{self, RING, has_copies};
use crate::awaited::replicas_faults::Three;
use crate::awaited::served::post;
use crate::awaited::support::{CLOSE, Memories, with_ends};
use crate::awaited::world::{impatient, virtually};
use crate::common::prelude::*;
use crate::looking;

/// Each kind of operation once. The last message sleeps until the peer has a receive for it.
async fn each(client: &Conn, inbox: &mut Inbox, memories: &Memories) -> Result {
    let to = memories.to();
    let visible = FlushType::Visibility;
    let written = client.write(to, memories.word())?;
    let flushed = client.flush(to, visible)?;
    // Not in the order of their posts.
    flushed.await?;
    written.await?;
    let read = client.read(memories.block(&[0; 7]), to)?;
    assert_eq!(&*read.await?, b"a word.");
    let at = memories.remote.slice(64..72)?;
    let set = client.atomic_write(at, *b"a point.")?;
    set.await?;

    let mut batch = client.batch::<2>();
    batch.write(to, memories.word())?;
    batch.flush(to, visible)?;
    batch.commit()?.await?;
    let pointer = Some((at, [1; 8]));
    let commit = client.commit([(to, memories.word())], pointer, visible);
    commit?.await?;

    let first = client.send(memories.word())?;
    let second = client.send(memories.word())?;
    first.await?;
    let message = inbox.next().await?.ok_or("a message")?;
    assert_eq!(&*message, b"a word.");
    let mut receive = Some(message);
    // It is polled after the second message, which has no receive.
    let giving = async {
        yield_now().await;
        receive = None;
    };
    let (sent, ()) = tokio::join!(second, giving);
    sent?;
    drop(inbox.next().await?.ok_or("a message")?);
    Ok(())
}

/// Runs a part, and then so many times more, in which the library allocates nothing.
pub(crate) async fn allocates_nothing(times: u32, mut part: impl AsyncFnMut() -> Result) -> Result {
    part().await?;
    looking::begin();
    for _ in 0..times {
        part().await?;
    }
    let found = looking::end();
    assert!(found.is_empty(), "{found:#?}");
    Ok(())
}

/// A data path that allocates takes unexpected time, and a lock.
#[test]
fn awaited_operations_allocate_nothing() -> Result {
    with_ends(4, [0, 1], async |memories, (client, server)| {
        let mut inbox = server.inbox()?;
        allocates_nothing(3, async || each(&client, &mut inbox, memories).await).await?;

        // It finds those of the library: a pool has a count for each block.
        looking::begin();
        let pool = Pool::new(&memories.peer, 64, 1);
        assert!(pool.is_ok() && !looking::end().is_empty());
        client.close(CLOSE).await?;
        Ok(())
    })
}

/// Commits, and awaits room and the commits: the first of a round is complete when it is awaited,
/// and the others sleep.
async fn commits(writer: &Writer, pool: &Pool, far: &Far) -> Result {
    for number in 0..2 {
        writer.room().await?;
        let ticket = post(writer, pool, number).await?;
        writer.durable(ticket).await?;

        far.there.hold();
        let first = post(writer, pool, number).await?;
        let second = post(writer, pool, number).await?;
        let releasing = async {
            yield_now().await;
            far.there.release();
        };
        let (room, durable, ()) = tokio::join!(writer.room(), writer.durable(second), releasing);
        room?;
        durable?;
        writer.durable(first).await?;
        assert_eq!(writer.fate(first)?, Fate::Durable);
    }
    Ok(())
}

/// Promise: after the first ones no commit of a writer allocates, nor does a wait for it, asleep
/// or not, by any method.
#[test]
fn awaited_commits_allocate_nothing() -> Result {
    for method in methods() {
        virtually(async |world| {
            let mut far = Far::new(world, "log", method)?;
            let writer = far.writer(world, 2).await?;
            let pool = Pool::new(&world.peers[0], 100, 4)?;
            allocates_nothing(1, async || commits(&writer, &pool, &far).await).await?;
            drop(writer);
            far.end().await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Commits on replicas, and awaits two and three copies, asleep and not.
async fn commits_on(set: &Replicas, fars: &[Far]) -> Result {
    for number in 0..2 {
        set.room(100, LIMIT).await?;
        has_copies(set, replicas::commit(set, number, 2)?, 3).await?;

        fars.iter().for_each(|far| far.there.hold());
        let id = replicas::commit(set, number, 2)?;
        let releasing = async {
            for far in fars {
                yield_now().await;
                far.there.release();
            }
        };
        let (room, outcome, ()) =
            tokio::join!(set.room(RING, LIMIT), set.settle(id, 2, LIMIT), releasing);
        room?;
        assert!(outcome?.copies() >= 2);
        let outcome = set.settle(id, 3, LIMIT).await?;
        assert_eq!(outcome, set.outcome(id));
    }
    Ok(())
}

/// Promise: so does no commit of a set, nor a wait for it.
#[test]
fn awaited_commits_on_replicas_allocate_nothing() -> Result {
    for method in methods() {
        virtually(async |world| {
            let Three { set, fars, .. } = Three::new(world, method, &impatient()).await?;
            allocates_nothing(1, async || commits_on(&set, &fars).await).await?;
            drop(set);
            end_all(fars).await;
            Ok(())
        })?;
    }
    Ok(())
}
