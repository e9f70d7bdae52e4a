//! A send queue that is full, and waits for room.

use rpma_async::{Conn, Failed, Frozen, Inbox, Setup};
use tokio::task::{JoinHandle, yield_now};

use crate::awaited::support::{Ends, Memories, both, fill, in_time, run};
use crate::common::prelude::*;

const DEPTH: u32 = 6;

fn setup() -> Setup {
    let mut cfg = ConnCfg::new();
    cfg.set_sq_size(DEPTH);
    Setup::new(&cfg)
}

/// Takes so many messages.
async fn take(inbox: &mut Inbox, count: u32) -> Result {
    for _ in 0..count {
        let message = inbox.next().await?.ok_or("a message")?;
        assert_eq!(&*message, b"a word.");
    }
    Ok(())
}

/// A client with a send queue full of messages. The peer has one receive for them, which is taken.
async fn full(
    ends: &Ends,
    memories: &Memories,
) -> Result<Vec<JoinHandle<Result<Frozen, Failed<Frozen>>>>> {
    let first = ends.client.send(memories.word())?;
    first.await?;
    let ops = fill(&ends.client, memories, DEPTH)?;
    Ok(ops.into_iter().map(tokio::spawn).collect())
}

/// Promise: a full queue refuses an operation of each kind, and gives its memory back. The
/// operation is not posted.
#[test]
fn a_full_queue_gives_the_memory_back() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let ends = Ends::new(&peer, &setup(), &Setup::default().with_receives(1, 64)).await?;
        let ops = full(&ends, &memories).await?;
        let (client, mut inbox) = (&ends.client, ends.server.inbox()?);
        let free = memories.pool.available();
        let is_full = |error: &Error| matches!(error, Error::QueueFull { .. });

        let refused = client
            .write(memories.to(), memories.word())
            .expect_err("full");
        assert!(is_full(&refused.error), "{refused}");
        assert_eq!(refused.memory.as_deref(), Some(&b"a word."[..]));
        drop(refused);
        let lease = memories.block(&[1; 7]);
        let refused = client.read(lease, memories.to()).expect_err("full");
        assert!(is_full(&refused.error), "{refused}");
        assert_eq!(refused.memory.as_deref(), Some(&[1; 7][..]));
        drop(refused);
        let refused = client.send(memories.word()).expect_err("full");
        assert!(
            is_full(&refused.error) && refused.memory.is_some(),
            "{refused}"
        );
        drop(refused);
        let mut batch = client.batch::<2>();
        batch.write(memories.to(), memories.word())?;
        let refused = batch.commit().expect_err("full");
        assert!(is_full(&refused.error), "{refused}");
        let sources = refused.memory.ok_or("they come back")?;
        assert_eq!(sources.into_iter().count(), 1);
        let parts = [(memories.to(), memories.word())];
        let refused = client.commit(parts, None, FlushType::Visibility);
        let refused = refused.expect_err("full");
        assert!(
            is_full(&refused.error) && refused.memory.is_some(),
            "{refused}"
        );
        drop(refused);
        assert_eq!(memories.pool.available(), free);

        take(&mut inbox, 1 + DEPTH).await?;
        client.idle().await?;
        for op in ops {
            in_time(op).await.expect("no panic")?;
        }
        // There is as much room as at the beginning.
        client.ready(DEPTH).await?;
        assert_eq!(fill(client, &memories, DEPTH)?.len(), DEPTH as usize);
        take(&mut inbox, DEPTH).await?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: `ready(n)` waits until `n` slots are free, and each of several waiters is woken when
/// there are as many as it wants. `idle` waits for all, those of dropped operations included.
#[test]
fn waits_for_room_wake_when_there_is_room() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let ends = Ends::new(&peer, &setup(), &Setup::default().with_receives(1, 64)).await?;
        for keeps in [true, false] {
            let first = ends.client.send(memories.word())?;
            first.await?;
            let mut ops = fill(&ends.client, &memories, DEPTH)?;
            if !keeps {
                ops.clear();
            }
            let ready = [1, 1, 3, DEPTH].map(|n| tokio::spawn(ends.client.ready(n)));
            let idle = tokio::spawn(ends.client.idle());
            for _ in 0..4 {
                yield_now().await;
            }
            assert!(!ready.iter().any(JoinHandle::is_finished) && !idle.is_finished());
            let mut inbox = ends.server.inbox()?;
            // One is taken, so one of the six has room, and completes.
            take(&mut inbox, 1).await?;
            let [one, other, three, all] = ready;
            in_time(one).await.expect("no panic")?;
            in_time(other).await.expect("no panic")?;
            // At most two have landed.
            assert!(!three.is_finished() && !all.is_finished() && !idle.is_finished());
            take(&mut inbox, DEPTH).await?;
            for wait in [three, all, idle] {
                in_time(wait).await.expect("no panic")?;
            }
            for op in ops {
                op.await?;
            }
        }
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}

/// Promise: a program that posts as fast as there is room loses no operation, in order, however
/// many operations there are.
#[test]
fn a_program_posts_as_fast_as_there_is_room() -> Result {
    const MESSAGES: u32 = 500;
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let setup_of_server = Setup::default().with_receives(4, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &setup(), &setup_of_server).await?;
        let sending = async |client: &Conn| {
            for number in 0..MESSAGES {
                let mut word = memories.pool.lease().await;
                word.truncate(7);
                let word = word.freeze();
                client.ready(1).await.expect("no error");
                client.send_with_imm(word, number).expect("room").detach();
            }
            client.clone().close(crate::awaited::support::CLOSE).await
        };
        let mut inbox = server.inbox()?;
        let taking = async {
            for number in 0..MESSAGES {
                let message = inbox.next().await.expect("no error").expect("a message");
                assert_eq!(message.imm(), Some(number));
            }
            assert!(inbox.next().await.expect("no error").is_none());
        };
        let (closed, ()) = both(sending(&client), taking).await;
        closed?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}
