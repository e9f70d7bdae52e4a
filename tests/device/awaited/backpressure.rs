//! A send queue that is full, and waits for room.

use rpma_async::{Conn, Frozen, Op, Refused, Setup};
use tokio::task::JoinHandle;

use crate::awaited::support::{
    CLOSE, Memories, both, fill, joined, receives, take, turns, with_setups,
};
use crate::common::prelude::*;

const DEPTH: u32 = 6;

/// Two ends: a client with a short send queue, and a server with so many receives.
fn on_a_short_queue(
    count: u32,
    test: impl AsyncFnOnce(&Memories, (Conn, Conn)) -> Result,
) -> Result {
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(DEPTH);
    with_setups(4, &Setup::new(&cfg), &receives(count), test)
}

/// A client with a send queue full of messages. The peer has one receive for them, which is taken.
async fn full(client: &Conn, memories: &Memories) -> Result<Vec<Op<Frozen>>> {
    client.send(memories.word())?.await?;
    fill(client, memories, DEPTH)
}

/// The memory of an operation for which the queue has no room.
#[track_caller]
pub(crate) fn no_room<T, B>(posted: Result<T, Refused<B>>) -> B {
    let refused = posted.err().expect("full");
    let is_full = matches!(refused.error, Error::QueueFull { .. });
    assert!(is_full, "{refused}");
    refused.memory.expect("it comes back")
}

/// Promise: a full queue refuses an operation of each kind, and gives its memory back. The
/// operation is not posted.
#[test]
fn a_full_queue_gives_the_memory_back() -> Result {
    on_a_short_queue(1, async |memories, (client, server)| {
        let ops = full(&client, memories).await?.into_iter().map(tokio::spawn);
        let ops: Vec<_> = ops.collect();
        let mut inbox = server.inbox()?;
        let free = memories.pool.available();

        let to = memories.to();
        assert_eq!(&*no_room(client.write(to, memories.word())), b"a word.");
        assert_eq!(*no_room(client.read(memories.block(&[1; 7]), to)), [1; 7]);
        no_room(client.send(memories.word()));
        let mut batch = client.batch::<2>();
        batch.write(to, memories.word())?;
        assert_eq!(no_room(batch.commit()).into_iter().count(), 1);
        no_room(client.commit([(to, memories.word())], None, FlushType::Visibility));
        assert_eq!(memories.pool.available(), free);

        take(&mut inbox, 1 + DEPTH).await?;
        client.idle().await?;
        for op in ops {
            joined(op).await?;
        }
        // There is as much room as at the beginning.
        client.ready(DEPTH).await?;
        assert_eq!(fill(&client, memories, DEPTH)?.len(), DEPTH as usize);
        take(&mut inbox, DEPTH).await?;
        Ok(())
    })
}

/// Promise: `ready(n)` waits until `n` slots are free, and each of several waiters is woken when
/// there are as many as it wants. `idle` waits for all, those of dropped operations included.
#[test]
fn waits_for_room_wake_when_there_is_room() -> Result {
    on_a_short_queue(1, async |memories, (client, server)| {
        for keeps in [true, false] {
            let mut ops = full(&client, memories).await?;
            if !keeps {
                ops.clear();
            }
            let ready = [1, 1, 3, DEPTH].map(|n| tokio::spawn(client.ready(n)));
            let idle = tokio::spawn(client.idle());
            turns(4).await;
            assert!(!ready.iter().any(JoinHandle::is_finished) && !idle.is_finished());
            let mut inbox = server.inbox()?;
            // One is taken, so one of the six has room, and completes.
            take(&mut inbox, 1).await?;
            let [one, other, three, all] = ready;
            joined(one).await?;
            joined(other).await?;
            // At most two have landed.
            assert!(!three.is_finished() && !all.is_finished() && !idle.is_finished());
            take(&mut inbox, DEPTH).await?;
            for wait in [three, all, idle] {
                joined(wait).await?;
            }
            for op in ops {
                op.await?;
            }
        }
        Ok(())
    })
}

/// Promise: a program that posts as fast as there is room loses no operation, in order, however
/// many operations there are.
#[test]
fn a_program_posts_as_fast_as_there_is_room() -> Result {
    const MESSAGES: u32 = 500;
    on_a_short_queue(4, async |memories, (client, server)| {
        let sending = async {
            for number in 0..MESSAGES {
                let mut word = memories.pool.lease().await;
                word.truncate(7);
                let word = word.freeze();
                client.ready(1).await.expect("no error");
                client.send_with_imm(word, number).expect("room").detach();
            }
            client.clone().close(CLOSE).await
        };
        let mut inbox = server.inbox()?;
        let taking = async {
            for number in 0..MESSAGES {
                let message = inbox.next().await.expect("no error").expect("a message");
                assert_eq!(message.imm(), Some(number));
            }
            assert!(inbox.next().await.expect("no error").is_none());
        };
        let (closed, ()) = both(sending, taking).await;
        closed?;
        Ok(())
    })
}
