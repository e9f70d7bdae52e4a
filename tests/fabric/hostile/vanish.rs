//! Clients that connect and vanish, thousands of them.

use super::server::Site;
use crate::common::prelude::*;

/// How many vanish together.
const TOGETHER: usize = 50;

/// Clients ask with the keys 0 to 7, of which some are the server's. They vanish before the server has
/// seen them, before they are established, or after.
fn run(times: usize) -> Result {
    let fabric = Rig::new().seed(1).fabric();
    let mut site = Site::new(&fabric, 1);
    let mut most = 0;
    for round in 0..times / TOGETHER {
        for n in 0..TOGETHER {
            let (key, epoch) = ((n % 8) as u8, round as u8);
            site.asks(&[0, key, epoch, n as u8]);
            for _ in 0..n % 3 {
                site.turn();
            }
        }
        site.vanish(fabric.host(&format!("hostile-{round}")));
        site.commit();
        site.check();
        most = most.max(fabric.objects()["qp"]);
    }
    // Both ends of the honest client, and one of each other key.
    assert!(most <= 4, "{most} queue pairs");
    site.end();
    drop(site);
    let left = fabric.objects();
    assert!(left.is_empty(), "objects are left: {left:?}");
    Ok(())
}

/// Promise: clients that vanish leave no objects, and an honest client's commits
/// become durable beside them.
#[test]
fn a_thousand_clients() -> Result {
    run(1_000)
}

#[test]
#[ignore = "long: 10 s"]
fn ten_thousand_clients() -> Result {
    run(10_000)
}
