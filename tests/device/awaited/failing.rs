//! Calls that fail: the memory that an operation gives back, and when.

use rpma::sim::Errno;
use rpma_async::{Conn, Reactor, Refused, Setup};
use tokio::time::timeout;

use crate::awaited::held::{hold, release};
use crate::awaited::support::{
    CLOSE, Memories, all_slots_are_free, ask, begun, connect, fill, joined, receives, run, take,
    turns,
};
use crate::awaited::world::{World, is_unanswered, virtually};
use crate::common::prelude::*;

/// The error names the call and its errno.
#[track_caller]
pub(crate) fn names(error: &Error, call: &str, errno: Errno) {
    match error {
        Error::Provider {
            call: of, cause, ..
        } if *of == call => {
            assert_eq!(cause.raw_os_error(), Some(errno.raw_os_error()), "{error}");
        }
        other => panic!("{call} has failed: {other:?}"),
    }
}

/// The result is that error.
#[track_caller]
pub(crate) fn fails<T>(result: rpma::Result<T>, call: &str, errno: Errno) {
    names(&result.err().expect("the call has failed"), call, errno);
}

/// The calls of a look at the queues and the events.
pub(crate) const LOOKS: [&str; 4] = [
    "ibv_get_cq_event",
    "ibv_poll_cq",
    "ibv_req_notify_cq",
    "rdma_get_cm_event",
];

/// The error names this call. A poll has no errno.
#[track_caller]
pub(crate) fn names_call(error: &Error, call: &str) {
    match call {
        "ibv_poll_cq" => assert!(error.to_string().contains(call), "{error}"),
        _ => names(error, call, Errno::IO),
    }
}

/// The calls that post, and the ways in which they fail.
pub(crate) fn failed_posts() -> impl Iterator<Item = (&'static str, How)> {
    let posts = [How::Refused, How::Done, How::LastRefused].map(|how| ("ibv_post_send", how));
    let native = [How::Refused, How::Done].map(|how| ("ibv_wr_complete", how));
    posts.into_iter().chain(native)
}

/// Posts an operation, and returns the error if that fails.
type Post = fn(&Conn, &Memories) -> Option<Error>;

const POSTS: [(&str, Post); 4] = [
    ("write", |conn, memories| {
        without_memory(conn.write(memories.to(), memories.word()))
    }),
    ("read", |conn, memories| {
        without_memory(conn.read(memories.block(&[0; 7]), memories.to()))
    }),
    ("batch", |conn, memories| {
        let word = memories.word();
        let mut batch = conn.batch::<3>();
        batch.write(memories.to(), word.clone()).expect("room");
        batch.send(word.clone()).expect("room");
        batch.write(memories.to(), word).expect("room");
        without_memory(batch.commit())
    }),
    ("commit", |conn, memories| {
        let parts = [(memories.to(), memories.word())];
        let pointer = memories.remote.slice(64..72).expect("inside");
        without_memory(conn.commit(parts, Some((pointer, [1; 8])), FlushType::Visibility))
    }),
];

/// The error of a post that has failed. Its memory does not come back.
#[track_caller]
fn without_memory<T, B>(posted: Result<T, Refused<B>>) -> Option<Error> {
    let refused = posted.err()?;
    assert!(refused.memory.is_none(), "the device may have it");
    Some(refused.error)
}

/// A post fails with `EIO` in this call, in this way, unless it makes another call.
async fn failed_post(
    world: &World,
    memories: &Memories,
    (client, server): (Conn, Conn),
    (post, call, how): (Post, &str, How),
) -> Result {
    let failing = world.fail(call).how(how).next(Errno::IO);
    let closed = tokio::spawn(client.closed());
    let mut inbox = client.inbox()?;
    let inbox = tokio::spawn(async move { inbox.next().await.map(|next| next.is_some()) });
    turns(1).await;
    let Some(error) = post(&client, memories) else {
        // It was posted by another call.
        assert!(failing.disarm());
        client.close(CLOSE).await?;
        drop(joined(closed).await);
        drop(joined(inbox).await);
        return Ok(());
    };
    names(&error, call, Errno::IO);
    fails(joined(closed).await, call, Errno::IO);
    joined(inbox).await.expect_err("the post's failure");
    takes_no_operation(&client, memories, call).await?;
    assert!(server.closed().await.is_ok());
    if how == How::Refused {
        // Nobody knows that the device has not got it.
        assert_eq!(memories.pool.available(), 3);
    }
    fails(client.close(CLOSE).await, call, Errno::IO);
    Ok(())
}

/// A connection that a failed post has ended posts no operation, and names the call.
async fn takes_no_operation(client: &Conn, memories: &Memories, call: &str) -> Result {
    client.idle().await?;
    fails(client.ready(1).await, call, Errno::IO);
    let refused = client.write(memories.to(), memories.word());
    let refused = refused.expect_err("it is over");
    assert!(refused.memory.is_some(), "nothing was posted: {refused:?}");
    Ok(())
}

/// Promise: a post that fails, in any way, ends the connection. The memory of the operation stays
/// away until no device can use it, and everything that sleeps wakes. No batch is an exception,
/// whichever of its requests is refused.
#[test]
fn a_failed_post_keeps_its_memory() -> Result {
    for (name, post) in POSTS {
        for (call, how) in failed_posts() {
            println!("{name}, {call}, {how:?}");
            virtually(async |world| {
                let memories = world.memories(4);
                let ends = world.connect(&receives(2), &receives(2)).await?;
                failed_post(world, &memories, ends, (post, call, how)).await?;
                // No device can use it any more.
                assert_eq!(memories.pool.available(), 4);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Promise: a part of a batch that fails is the failure of the batch. The sources come back with
/// the last completion: not before, and not never.
#[test]
fn a_failed_part_of_a_batch() -> Result {
    for (part, is_dropped) in [(1, false), (2, false), (3, false), (1, true), (3, true)] {
        virtually(async |world| {
            let memories = world.memories(3);
            let (client, server) = world.connect(&Setup::default(), &receives(2)).await?;
            world.link.hold();
            let mut batch = client.batch::<3>();
            for _ in 0..3 {
                batch.write(memories.to(), memories.word())?;
            }
            let mut op = batch.commit()?;
            assert!(begun(&mut op).await.is_none());
            world.link.lose_request(part);
            let op = (!is_dropped).then_some(op);
            world.link.release();
            if let Some(op) = op {
                let failed = op.await.expect_err("a part was lost");
                assert!(is_unanswered(&failed.error), "{failed:?}");
                let sources = failed.memory.ok_or("no device uses it")?;
                assert_eq!(sources.into_iter().count(), 3);
            }
            client.idle().await?;
            assert_eq!(memories.pool.available(), 3);
            assert!(server.closed().await.is_ok());
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: a queue pair that cannot be destroyed keeps the memory of its operations for ever, as
/// the device may still use it. No task gets a block of it again.
#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_its_memory() -> Result {
    on_fabric(|| {
        let peer = peer()?;
        let memories = Memories::with_blocks(&peer, 3);
        run(async {
            let reactor = Reactor::spawn(&peer)?;
            let (client, server) = connect(&reactor, &Setup::default(), &Setup::default()).await;
            hold();
            let to = memories.to();
            // On iWARP a write needs its memory no more when the stream has the bytes.
            if is_iwarp() {
                ask(&client, &memories)?.detach();
            } else {
                client.write(to, memories.word())?.detach();
            }
            client.read(memories.block(&[0; 7]), to)?.detach();
            let failing = with_fabric(|fabric, _| fabric.fail("ibv_destroy_qp").next(Errno::BUSY));
            drop(client);
            assert!(!failing.is_pending());
            drop(server);
            release();
            assert_eq!(memories.pool.available(), 1);
            let _first = memories.pool.lease().await;
            let second = timeout(Duration::from_millis(5), memories.pool.lease()).await;
            assert!(second.is_err(), "a device uses it");
            Ok(())
        })
    })
}

/// Promise: a call that cannot arm a queue reports it, and no wait hangs: an operation goes on, its
/// memory comes back, and the next one may sleep.
#[test]
fn a_queue_that_cannot_be_armed() -> Result {
    virtually(async |world| {
        let memories = world.memories(1);
        let (client, server) = world.connect(&receives(2), &receives(2)).await?;
        let call = "ibv_req_notify_cq";
        let arm = || world.fail(call).next(Errno::NOSPC);
        let mut inbox = client.inbox()?;
        for round in 0..3 {
            world.link.hold();
            let op = ask(&client, &memories)?;
            let failing = arm();
            let error = match round {
                0 => {
                    let failed = op.await.expect_err("it cannot sleep");
                    assert!(failed.memory.is_none(), "it goes on: {failed:?}");
                    failed.error
                }
                1 => {
                    let error = client.idle().await.expect_err("it cannot sleep");
                    op.detach();
                    error
                }
                _ => {
                    op.detach();
                    assert!(!failing.is_pending(), "a drop tells nobody");
                    let _again = arm();
                    // The drop of the operation before has not armed it.
                    client.ready(10).await.expect_err("it cannot sleep")
                }
            };
            names(&error, call, Errno::NOSPC);
            world.link.release();
            drop(memories.pool.lease().await);
            client.idle().await?;
        }
        let failing = arm();
        fails(inbox.next().await, call, Errno::NOSPC);
        assert!(!failing.is_pending());
        server.send(Memories::new(&world.peers[1]).word())?.detach();
        take(&mut inbox, 1).await?;
        all_slots_are_free(&client, &memories).await?;
        client.close(CLOSE).await?;
        Ok(())
    })
}

/// Promise: a queue that cannot be polled, an event that cannot be taken, and a queue that the
/// driver cannot arm again, are errors of everything that sleeps, which name the call. The memory
/// comes back with the end of the connection.
#[test]
fn a_driver_whose_calls_fail() -> Result {
    for call in LOOKS {
        virtually(async |world| {
            let memories = world.memories(4);
            let (client, server) = world.connect(&receives(2), &receives(2)).await?;
            // One message more than there are receives: the last one sleeps.
            let ops = fill(&client, &memories, 3)?.into_iter().map(tokio::spawn);
            let ops: Vec<_> = ops.collect();
            let idle = tokio::spawn(client.idle());
            let closed = tokio::spawn(client.closed());
            let mut inbox = client.inbox()?;
            let inbox = tokio::spawn(async move { inbox.next().await.map(|next| next.is_some()) });
            turns(4).await;
            let failing = world.fail(call).next(Errno::IO);
            let mut taking = server.inbox()?;
            match call {
                "rdma_get_cm_event" => server.abort(),
                // One more is taken, so that the last one completes.
                _ => take(&mut taking, 1).await?,
            }
            let told = joined(closed).await.expect_err("the failure");
            assert!(!failing.is_pending(), "{call}");
            println!("{call}: {told}");
            names_call(&told, call);
            for op in ops {
                // It has succeeded, or returns the failure.
                drop(joined(op).await);
            }
            drop(joined(idle).await);
            joined(inbox).await.expect_err("the failure");
            drop((client, server, taking));
            assert_eq!(memories.pool.available(), 4);
            Ok(())
        })?;
    }
    Ok(())
}
