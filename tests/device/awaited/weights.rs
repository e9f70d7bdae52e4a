//! Operations that take more slots than there are.

use rpma_async::Setup;

use crate::awaited::support::{CLOSE, Ends, Memories, in_time, run};
use crate::common::prelude::*;

/// A descriptor of a peer may name memory without end. Operations on it are refused, and the
/// counts of slots are as before.
#[test]
fn a_flush_without_end() -> Result {
    let _test = device_test();
    let peer = peer()?;
    let memories = Memories::new(&peer);
    let mut descriptor = [0; 21];
    descriptor[8..16].fill(0xFF);
    descriptor[20] = 0xFF;
    let endless = MrRemote::from_descriptor(&descriptor)?;
    run(async {
        let setup = Setup::default();
        let Ends { client, server, .. } = Ends::new(&peer, &setup, &setup).await?;
        let all = endless.slice(..)?;
        let parts = [(); 2].map(|()| (all, memories.block(b"data").freeze()));
        let refused = client.commit(parts, None, FlushType::Visibility);
        let refused = refused.expect_err("the lengths differ");
        assert!(refused.memory.is_some(), "{refused}");
        drop(refused);
        if client.has_native_flush() {
            let refused = client.flush(all, FlushType::Visibility);
            refused.expect_err("it takes 2^33 requests");
            let mut batch = client.batch::<2>();
            batch.flush(all, FlushType::Visibility)?;
            batch.flush(all, FlushType::Visibility)?;
            batch.commit().expect_err("the same");
        }
        in_time(client.ready(1)).await?;
        let to = memories.remote.slice(..4)?;
        let written = client.write(to, memories.block(b"data").freeze());
        written?.await?;
        in_time(client.idle()).await?;
        client.close(CLOSE).await?;
        drop(server);
        Ok(())
    })?;
    assert_eq!(memories.pool.available(), 4);
    Ok(())
}
