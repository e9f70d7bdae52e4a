//! Each kind of operation, awaited.

use rpma_async::Setup;

use crate::awaited::support::{CLOSE, Ends, Memories, run};
use crate::common::prelude::*;

/// Each kind of operation has the effect of rpma's, and gives its memory back.
#[test]
fn each_kind_of_operation() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    let Memories { remote, pool, .. } = &memories;
    run(async {
        let setup = Setup::default().with_receives(2, 64);
        let Ends { client, server, .. } = Ends::new(&peer, &setup, &setup).await?;
        let to = remote.slice(8..13)?;
        let written = client.write(to, memories.block(b"hello").freeze())?;
        let flushed = client.flush(to, FlushType::Visibility)?;
        assert_eq!(&*written.await?, b"hello");
        flushed.await?;

        let read = client.read(memories.block(&[0; 5]), to)?;
        assert_eq!(&*read.await?, b"hello");
        let at = remote.slice(64..72)?;
        let set = client.atomic_write(at, *b"a point.")?;
        set.await?;

        let mut inbox = server.inbox()?;
        for round in 0_u32..5 {
            let sent = client.send_with_imm(memories.block(b"word").freeze(), round)?;
            let message = inbox.next().await?.ok_or("a message")?;
            assert_eq!((&*message, message.imm()), (&b"word"[..], Some(round)));
            sent.await?;
        }
        client.close(CLOSE).await?;
        assert!(inbox.next().await?.is_none());
        Ok(())
    })?;
    assert_eq!(pool.available(), 4);
    assert_eq!(&contents(&memories.target)?[8..13], b"hello");
    assert_eq!(&contents(&memories.target)?[64..72], b"a point.");
    Ok(())
}
