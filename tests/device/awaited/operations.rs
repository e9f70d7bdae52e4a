//! Each kind of operation, awaited.

use crate::awaited::support::{CLOSE, with_ends};
use crate::common::prelude::*;

/// Each kind of operation has the effect of rpma's, and gives its memory back.
#[test]
fn each_kind_of_operation() -> Result {
    with_ends(4, [2, 2], async |memories, (client, server)| {
        let to = memories.remote.slice(8..13)?;
        let written = client.write(to, memories.block(b"hello").freeze())?;
        let flushed = client.flush(to, FlushType::Visibility)?;
        assert_eq!(&*written.await?, b"hello");
        flushed.await?;

        let read = client.read(memories.block(&[0; 5]), to)?;
        assert_eq!(&*read.await?, b"hello");
        let at = memories.remote.slice(64..72)?;
        client.atomic_write(at, *b"a point.")?.await?;

        let mut inbox = server.inbox()?;
        for round in 0_u32..5 {
            let sent = client.send_with_imm(memories.block(b"word").freeze(), round)?;
            let message = inbox.next().await?.ok_or("a message")?;
            assert_eq!((&*message, message.imm()), (&b"word"[..], Some(round)));
            sent.await?;
        }
        client.close(CLOSE).await?;
        assert!(inbox.next().await?.is_none());
        let contents = contents(&memories.target)?;
        assert_eq!(&contents[8..13], b"hello");
        assert_eq!(&contents[64..72], b"a point.");
        Ok(())
    })
}
