//! After the first operations and commits, no awaited one allocates in the library, whether it
//! sleeps or not.

use rpma::FlushType;
use rpma::commit::{Fate, Replicas as Set};
use rpma_async::{Conn, Inbox, Pool, Replicas, Setup, Writer};
use tokio::task::yield_now;

use crate::common::{LIMIT, Result, device_test, peer};
use crate::hosts::{Far, methods};
use crate::looking;
use crate::replicas::{self, RING};
use crate::served::{block, commit};
use crate::support::{CLOSE, Ends, Memories, run};
use crate::world::{impatient, virtually};

/// Each kind of operation once. The last message sleeps until the peer has a receive for it.
async fn each(client: &Conn, inbox: &mut Inbox, memories: &Memories) {
    let to = memories.to();
    let visible = FlushType::Visibility;
    let written = client.write(to, memories.word()).expect("posted");
    let flushed = client.flush(to, visible).expect("posted");
    // Not in the order of their posts.
    flushed.await.expect("succeeds");
    written.await.expect("succeeds");
    let read = client.read(memories.block(&[0; 7]), to).expect("posted");
    assert_eq!(&*read.await.expect("succeeds"), b"a word.");
    let at = memories.remote.slice(64..72).expect("inside");
    let set = client.atomic_write(at, *b"a point.").expect("posted");
    set.await.expect("succeeds");

    let mut batch = client.batch::<2>();
    batch.write(to, memories.word()).expect("room");
    batch.flush(to, visible).expect("room");
    batch.commit().expect("posted").await.expect("succeeds");
    let pointer = Some((at, [1; 8]));
    let commit = client.commit([(to, memories.word())], pointer, visible);
    commit.expect("posted").await.expect("succeeds");

    let first = client.send(memories.word()).expect("posted");
    let second = client.send(memories.word()).expect("posted");
    first.await.expect("succeeds");
    let message = inbox.next().await.expect("no error").expect("a message");
    assert_eq!(&*message, b"a word.");
    let mut receive = Some(message);
    // It is polled after the second message, which has no receive.
    let giving = async {
        yield_now().await;
        receive = None;
    };
    let (sent, ()) = tokio::join!(second, giving);
    sent.expect("succeeds");
    drop(inbox.next().await.expect("no error").expect("a message"));
}

/// A data path that allocates takes unexpected time, and a lock.
#[test]
fn awaited_operations_allocate_nothing() -> Result {
    device_test(|| {
        let peer = peer()?;
        let memories = Memories::new(&peer);
        run(async {
            let setup = Setup::default().with_receives(1, 64);
            let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await;
            let mut inbox = server.inbox().expect("it has receives");
            each(&client, &mut inbox, &memories).await;
            looking::begin();
            for _ in 0..3 {
                each(&client, &mut inbox, &memories).await;
            }
            let found = looking::end();
            assert!(found.is_empty(), "{found:#?}");

            // It finds those of the library: a pool has a count for each block.
            looking::begin();
            let pool = Pool::new(&peer, 64, 1);
            assert!(pool.is_ok() && !looking::end().is_empty());
            client.close(CLOSE).await.expect("closes");
            Ok(())
        })
    })
}

/// Commits, and awaits room and the commits: the first of a round is complete when it is awaited,
/// and the others sleep.
async fn commits(writer: &Writer, pool: &Pool, far: &Far) {
    for number in 0..2 {
        writer.room().await.expect("room");
        let ticket = commit(writer, block(pool, number).await, number).expect("posted");
        writer.durable(ticket).await.expect("durable");

        far.there.hold();
        let first = commit(writer, block(pool, number).await, number).expect("posted");
        let second = commit(writer, block(pool, number).await, number).expect("posted");
        let releasing = async {
            yield_now().await;
            far.there.release();
        };
        let (room, durable, ()) = tokio::join!(writer.room(), writer.durable(second), releasing);
        room.expect("room");
        durable.expect("durable");
        writer.durable(first).await.expect("durable");
        assert_eq!(writer.fate(first).expect("its own"), Fate::Durable);
    }
}

/// Promise: after the first ones no commit of a writer allocates, nor does a wait for it, asleep
/// or not, by any method.
#[test]
fn awaited_commits_allocate_nothing() -> Result {
    for method in methods() {
        virtually(async |world| {
            let mut far = Far::new(world, "log", method)?;
            let writer = far.writer(world, 2).await;
            let pool = Pool::new(&world.peers[0], 100, 4).expect("a pool");
            commits(&writer, &pool, &far).await;
            looking::begin();
            commits(&writer, &pool, &far).await;
            let found = looking::end();
            assert!(found.is_empty(), "{method}: {found:#?}");
            drop(writer);
            far.end().await;
            Ok(())
        })?;
    }
    Ok(())
}

/// Commits on replicas, and awaits two and three copies, asleep and not.
async fn commits_on(set: &Replicas, fars: &[Far]) {
    for number in 0..2 {
        set.room(100, LIMIT).await.expect("room");
        let id = replicas::commit(set, number, 2).expect("posted");
        let outcome = set.settle(id, 3, LIMIT).await.expect("the driver runs");
        assert_eq!(outcome.copies(), 3);

        fars.iter().for_each(|far| far.there.hold());
        let id = replicas::commit(set, number, 2).expect("posted");
        let releasing = async {
            for far in fars {
                yield_now().await;
                far.there.release();
            }
        };
        let (room, outcome, ()) =
            tokio::join!(set.room(RING, LIMIT), set.settle(id, 2, LIMIT), releasing);
        room.expect("room");
        assert!(outcome.expect("the driver runs").copies() >= 2);
        let outcome = set.settle(id, 3, LIMIT).await.expect("the driver runs");
        assert_eq!(outcome, set.outcome(id));
    }
}

/// Promise: so does no commit of a set, nor a wait for it.
#[test]
fn awaited_commits_on_replicas_allocate_nothing() -> Result {
    for method in methods() {
        virtually(async |world| {
            let set = Set::new(&world.peers[0], RING, 8).expect("a set");
            let set = Replicas::new(&world.reactors[0], set).expect("watched");
            let mut fars =
                ["one", "two", "three"].map(|name| Far::new(world, name, method).expect("listens"));
            for far in &mut fars {
                let writer = far.connect(world, 2, &impatient()).await;
                let remote = writer.offer().regions()[0];
                set.add(writer, remote).expect("added");
            }
            commits_on(&set, &fars).await;
            looking::begin();
            commits_on(&set, &fars).await;
            let found = looking::end();
            assert!(found.is_empty(), "{method}: {found:#?}");
            drop(set);
            for far in fars {
                far.end().await;
            }
            Ok(())
        })?;
    }
    Ok(())
}
