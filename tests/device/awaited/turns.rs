//! Tasks of one thread. One of them is never idle.

use std::cell::Cell;

use crate::awaited::support::{both, turns, with_ends};
use crate::common::prelude::*;

/// Results after which a task that kept its thread to itself is found out.
const MANY: u32 = 100_000;

/// Runs a busy loop until another task had 20 turns.
async fn beside(mut one: impl AsyncFnMut()) {
    let is_done = Cell::new(false);
    let other = async {
        turns(20).await;
        is_done.set(true);
    };
    let busy = async {
        for round in 0_u32.. {
            one().await;
            if is_done.get() {
                break;
            }
            assert!(round < MANY, "the other task has no turn");
        }
    };
    // The busy one first.
    both(busy, other).await;
}

/// Promise: a task that is never idle, because each of its operations is complete at once, lets
/// others have their turn, with each kind of operation.
#[test]
fn a_busy_task_lets_others_run() -> Result {
    with_ends(4, [0, 2], async |memories, (client, server)| {
        beside(async || {
            let flush = client.flush(memories.to(), FlushType::Visibility);
            flush.expect("posted").await.expect("succeeds");
        })
        .await;
        beside(async || {
            let lease = memories.pool.lease().await;
            let write = client.write(memories.to(), lease.freeze().slice(..7).expect("inside"));
            write.expect("room").detach();
            client.ready(1).await.expect("room");
        })
        .await;
        beside(async || {
            let flush = client.flush(memories.to(), FlushType::Visibility);
            flush.expect("posted").detach();
            client.idle().await.expect("no error");
        })
        .await;
        // A peer that floods this side with messages.
        let mut inbox = server.inbox()?;
        beside(async || {
            client.send(memories.word()).expect("room").detach();
            inbox.next().await.expect("no error").expect("a message");
            client.ready(4).await.expect("room");
        })
        .await;
        client.idle().await?;
        Ok(())
    })
}
