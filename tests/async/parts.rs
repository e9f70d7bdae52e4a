//! A commit whose first request fails.

use rpma::{FlushType, MrUsage, WcStatus};
use rpma_async::Setup;

use crate::common::{device_test, peer, region, remote};
use crate::support::{Ends, Memories, run};

/// The sources of a commit come back when its last request is complete: the device may read those of
/// the requests after a failed one.
#[test]
fn a_commit_that_fails_keeps_its_sources_until_the_last_request() {
    device_test(|| {
        let peer = peer();
        let memories = Memories::new(&peer);
        let gone = region(
            &peer,
            64,
            MrUsage::WRITE_DST | MrUsage::FLUSH_TYPE_VISIBILITY,
        );
        let nowhere = remote(&gone).slice(..4).expect("inside");
        gone.dereg().expect("deregistered");
        run(async {
            let setup = Setup::default();
            let Ends { client, server, .. } = Ends::new(&peer, &setup, &setup).await;
            let there = memories.remote.slice(8..12).expect("inside");
            let parts = [nowhere, there].map(|to| (to, memories.block(b"data").freeze()));
            let committed = client.commit(parts, None, FlushType::Visibility);
            let committed = committed.expect("posted");
            let failed = committed
                .await
                .expect_err("the first write reaches no region");
            assert_eq!(
                failed.memory.map(|sources| sources.into_iter().count()),
                Some(2)
            );
            let counters = client.counters();
            let flushed = counters.failed(WcStatus::WR_FLUSH_ERR);
            let refused = counters.failed(WcStatus::REM_ACCESS_ERR);
            assert_eq!((refused, refused + flushed), (1, counters.posted));
            drop(client);
            server.closed().await.expect("the client is gone");
        });
        assert_eq!(memories.pool.available(), 4);
    });
}
