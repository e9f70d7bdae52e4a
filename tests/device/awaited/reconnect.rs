//! Reconnects that are awaited.

use rpma_async::{Reactor, Setup, ToConn};

use crate::awaited::served::{self, polls};
use crate::awaited::support::{
    CLOSE, Memories, accept_next, joined, listen, run, says, with_reactor,
};
use crate::common::failed::Failed;
use crate::common::prelude::*;

/// Promise: connections of a reactor follow each other, each with receives, until one is refused.
#[test]
fn connections_follow_each_other() -> Result {
    with_reactor(async |reactor| {
        let memories = Memories::new(reactor.peer());
        let (listener, addr) = listen(reactor)?;
        let server = tokio::spawn(async move {
            let offer = Offer::new(&PeerCfg::new()).encode(Offer::ACCEPT)?;
            for round in 0..3_u32 {
                // The first try of each round is rejected, without a reason.
                drop(listener.accept().await?);
                let incoming = listener.accept().await?;
                let conn = incoming.accept(&Setup::default(), &offer).await?;
                let sent = conn.send_with_imm(memories.block(b"word").freeze(), round);
                // The client may end the connection before its acknowledgement is here.
                let _ = sent?.await;
                conn.closed().await?;
            }
            Ok::<_, Failed>(())
        });
        let to_conn = ToConn::new(reactor).with_receives(2, 64);
        let mut client = served::client(reactor, addr, 1, to_conn);
        for round in 0..3 {
            let conn = client.connect(&ConnCfg::new()).await?;
            let mut inbox = conn.inbox()?;
            let message = inbox.next().await?.ok_or("a message")?;
            assert_eq!((&*message, message.imm()), (&b"word"[..], Some(round)));
            drop((message, inbox));
            conn.close(CLOSE).await?;
        }
        assert_eq!((client.tries(), client.connected()), (6, 3));
        joined(server).await?;
        Ok(())
    })
}

/// Promise: a reconnect that is dropped after its nth poll leaves no object, and can begin again.
#[test]
fn a_dropped_reconnect_leaves_nothing() -> Result {
    with_reactor(async |reactor| {
        let (listener, addr) = listen(reactor)?;
        let offer = Offer::new(&PeerCfg::new()).encode(Offer::ACCEPT)?;
        let accepting = tokio::spawn(async move {
            loop {
                // A client that has given up may have gone meanwhile.
                if let Ok(conn) = accept_next(&listener, &Setup::default(), &offer).await {
                    let _ = conn.closed().await;
                }
            }
        });
        let to_conn = ToConn::new(reactor).with_receives(2, 64);
        let mut client = served::client(reactor, addr, 1, to_conn);
        for n in 0..12 {
            drop(polls(client.connect(&ConnCfg::new()), n).await);
        }
        let conn = client.connect(&ConnCfg::new()).await?;
        conn.close(CLOSE).await?;
        accepting.abort();
        let _ = accepting.await;
        Ok(())
    })
}

/// Promise: settings that no reactor's connection can have, and a missing driver, end the
/// reconnect.
#[test]
fn a_reconnect_that_cannot_be_is_an_error() -> Result {
    let _test = device_test();
    let peer = peer()?;
    run(async {
        let (reactor, driver) = Reactor::new(&peer)?;
        let (_listener, addr) = listen(&reactor)?;
        let to_conn = ToConn::new(&reactor).with_receives(0, 64);
        let mut client = served::client(&reactor, addr, 1, to_conn);
        let connected = client.connect(&ConnCfg::new()).await;
        let gave_up = connected.expect_err("no receives");
        assert!(!matches!(gave_up, Error::GaveUp(_)), "{gave_up}");
        assert!(gave_up.refusal().is_none(), "{gave_up}");
        says(Err::<(), _>(gave_up), &[]);

        let mut client = served::client(&reactor, addr, 1, ToConn::new(&reactor));
        drop(driver);
        let connected = client.connect(&ConnCfg::new()).await;
        let gave_up = connected.expect_err("no driver").to_string();
        assert!(gave_up.contains("was dropped"), "{gave_up}");
        Ok(())
    })
}
