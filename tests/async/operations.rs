//! Each kind of operation, awaited.

use rpma::FlushType;
use rpma_async::Setup;

use crate::common::{Result, contents, device_test, peer};
use crate::support::{CLOSE, Ends, Memories, run};

/// Each kind of operation has the effect of rpma's, and gives its memory back.
#[test]
fn each_kind_of_operation() -> Result {
    device_test(|| {
        let peer = peer()?;
        let memories = Memories::new(&peer);
        let Memories { remote, pool, .. } = &memories;
        run(async {
            let setup = Setup::default().with_receives(2, 64);
            let Ends { client, server, .. } = Ends::new(&peer, &setup, &setup).await;
            let to = remote.slice(8..13).expect("inside");
            let written = client
                .write(to, memories.block(b"hello").freeze())
                .expect("posted");
            let flushed = client.flush(to, FlushType::Visibility).expect("posted");
            assert_eq!(&*written.await.expect("succeeds"), b"hello");
            flushed.await.expect("succeeds");

            let read = client.read(memories.block(&[0; 5]), to).expect("posted");
            assert_eq!(&*read.await.expect("succeeds"), b"hello");
            let at = remote.slice(64..72).expect("inside");
            let set = client.atomic_write(at, *b"a point.").expect("posted");
            set.await.expect("succeeds");

            let mut inbox = server.inbox().expect("it has receives");
            for round in 0_u32..5 {
                let sent = client.send_with_imm(memories.block(b"word").freeze(), round);
                let sent = sent.expect("posted");
                let message = inbox.next().await.expect("no error").expect("a message");
                assert_eq!((&*message, message.imm()), (&b"word"[..], Some(round)));
                sent.await.expect("succeeds");
            }
            client.close(CLOSE).await.expect("closes");
            assert!(inbox.next().await.expect("no error").is_none());
            Ok(())
        })?;
        assert_eq!(pool.available(), 4);
        assert_eq!(&contents(&memories.target)?[8..13], b"hello");
        assert_eq!(&contents(&memories.target)?[64..72], b"a point.");
        Ok(())
    })
}
