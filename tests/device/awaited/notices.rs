//! Notices of the connection manager, which end nothing.

use rpma_async::Setup;

use crate::awaited::support::{CLOSE, begun, both, receives};
use crate::awaited::world::{World, virtually};
use crate::common::prelude::*;

/// `RDMA_CM_EVENT_ADDR_CHANGE`, and a number of a later kernel.
const NOTICES: [u32; 2] = [14, 4711];

/// Connects, uses the connection, and closes it.
async fn program(world: &World) -> Result {
    let memories = world.memories(4);
    let setup = receives(1);
    let (client, server) = world.connect(&Setup::default(), &setup).await?;
    let mut inbox = server.inbox()?;
    client.write(memories.to(), memories.word())?.await?;
    client.flush(memories.to(), FlushType::Visibility)?.await?;
    client.send(memories.word())?.await?;
    inbox.next().await?.ok_or("a message")?;
    let mut ended = Box::pin(server.closed());
    assert!(begun(&mut ended).await.is_none(), "a notice is no end");
    let (closed, ended) = both(client.close(CLOSE), ended).await;
    closed?;
    assert_eq!(ended?, ConnEvent::Closed);
    Ok(())
}

/// Promise: a notice at any step, on either host, ends no connect, no connection and no operation.
#[test]
fn a_notice_ends_nothing() -> Result {
    let steps = virtually(async |world| {
        program(world).await?;
        Ok(world.fabric.steps())
    })?;
    let mut arrived = 0;
    for step in 1..=steps {
        for (event, which) in NOTICES
            .into_iter()
            .flat_map(|event| [(event, 0), (event, 1)])
        {
            arrived += virtually(async |world| {
                let (sent, came) = std::sync::mpsc::channel();
                let host = world.hosts[which].clone();
                let send = move || sent.send(host.cm_event(event)).expect("it is counted");
                let notice = world.fabric.at_step(step, send);
                let ended = program(world).await;
                ended.unwrap_or_else(|error| panic!("the event {event} at step {step}: {error:?}"));
                drop(notice);
                Ok(came.try_iter().sum::<usize>())
            })?;
        }
    }
    assert!(arrived > 100, "{arrived}");
    Ok(())
}
