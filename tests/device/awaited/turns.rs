//! Tasks of one thread. One of them is never idle.

use std::cell::Cell;
use std::future::Future;

use rpma_async::Setup;
use tokio::task::yield_now;

use crate::awaited::support::{Ends, Memories, both, run};
use crate::common::prelude::*;

/// Results after which a task that kept its thread to itself is found out.
const MANY: u32 = 100_000;

/// Runs a busy loop until another task had 20 turns.
async fn beside<F: Future>(mut one: impl FnMut() -> F) {
    let is_done = Cell::new(false);
    let other = async {
        for _ in 0..20 {
            yield_now().await;
        }
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
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    run(async {
        let setup = Setup::default().with_receives(2, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &Setup::default(), &setup).await?;
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
        let inbox = std::cell::RefCell::new(server.inbox()?);
        #[expect(clippy::await_holding_refcell_ref, reason = "one task at a time")]
        beside(async || {
            client.send(memories.word()).expect("room").detach();
            let mut inbox = inbox.borrow_mut();
            inbox.next().await.expect("no error").expect("a message");
            client.ready(4).await.expect("room");
        })
        .await;
        client.idle().await?;
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}
