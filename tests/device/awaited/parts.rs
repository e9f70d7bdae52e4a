//! Commits and batches with a first request that fails.

use rpma_async::{Conn, Frozen, Op, Sources};

use crate::awaited::support::with_ends;
use crate::common::prelude::*;

/// Posts an operation of two parts. The first one goes to memory that is gone. When the operation
/// has failed, all its requests must be complete.
fn fails(post: impl Fn(&Conn, [(RemoteSlice, Frozen); 2]) -> Op<Sources<2>>) -> Result {
    with_ends(4, [0, 0], async |memories, (client, server)| {
        let usage = MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY;
        let gone = region(&memories.peer, 64, usage)?;
        let nowhere = remote(&gone).slice(..4)?;
        gone.dereg()?;
        let there = memories.remote.slice(8..12)?;
        let parts = [nowhere, there].map(|to| (to, memories.block(b"data").freeze()));
        let failed = post(&client, parts).await;
        let failed = failed.expect_err("the first write reaches no region");
        let sources = failed.memory.ok_or("no device uses it")?;
        assert_eq!(sources.into_iter().count(), 2);
        let counters = client.counters();
        let flushed = counters.failed(WcStatus::WR_FLUSH_ERR);
        let refused = counters.failed(WcStatus::REM_ACCESS_ERR);
        assert_eq!((refused, refused + flushed), (1, counters.posted));
        drop(client);
        server.closed().await?;
        Ok(())
    })
}

/// The sources of a commit come back when its last request is complete: the device may read those
/// of the requests after a failed one.
#[test]
fn a_commit_that_fails_keeps_its_sources_until_the_last_request() -> Result {
    fails(|client, parts| {
        let committed = client.commit(parts, None, FlushType::Visibility);
        committed.expect("posted")
    })
}

/// So do those of a batch.
#[test]
fn a_batch_that_fails_keeps_its_sources_until_the_last_request() -> Result {
    fails(|client, parts| {
        let mut batch = client.batch::<2>();
        for (to, from) in parts {
            batch.write(to, from).expect("room");
        }
        batch.commit().expect("posted")
    })
}
