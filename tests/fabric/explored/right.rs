//! A right program raises no alarm, and the exploration reports how far it came.

use rpma::sim::Explore;

use crate::common::prelude::*;
use crate::common::share;
use crate::explored::programs::tells;

/// Promise: a log of two records on two replicas survives every cut in all orders with up to two
/// deviations.
#[test]
fn a_log_on_two_replicas() {
    for profile in share("profiles with two deviations", 4, Profile::ALL) {
        let explore = Explore::new(&profile).limit(Duration::from_secs(600));
        let explored = explore.run(|fabric| tells(fabric, false));
        println!("{}: {explored}", profile.name());
        assert_eq!(
            (explored.diverged, explored.stopped),
            (0, None),
            "{explored}"
        );
        assert_eq!(explored.levels.len(), 3, "{explored}");
        assert!(
            explored
                .levels
                .iter()
                .all(|level| level.runs == level.orders),
            "{explored}"
        );
        assert!(
            explored.sequences() > 200 && explored.images() > 1000,
            "{explored}"
        );
    }
}
