//! Operations that take more slots than there are.

use crate::awaited::support::{CLOSE, gives_back, in_time, with_ends};
use crate::common::prelude::*;

/// A descriptor of a peer may name memory without end. Operations on it are refused, and the
/// counts of slots are as before.
#[test]
fn a_flush_without_end() -> Result {
    let mut descriptor = [0; 21];
    descriptor[8..16].fill(0xFF);
    descriptor[20] = 0xFF;
    let endless = MrRemote::from_descriptor(&descriptor)?;
    with_ends(4, [0, 0], async |memories, (client, _server)| {
        let all = endless.slice(..)?;
        let parts = [(); 2].map(|()| (all, memories.block(b"data").freeze()));
        let refused = client.commit(parts, None, FlushType::Visibility);
        drop(gives_back(refused, &[]));
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
        Ok(())
    })
}
