//! The example `sim-replicas`: the meaning of its lines.

use crate::replicas::prelude::*;
use crate::replicas::sim_replicas::{Found, cut_each};

/// Two replicas have each acknowledged record. One loss of power loses none; two lose the last one
/// if they are the two.
#[test]
fn the_example_loses_records_with_two_losses_of_power_only() -> Result {
    for profile in Profile::EVERY {
        for (losses, lossy) in [(1, 0), (2, 12)] {
            let found = cut_each(&profile, losses)?;
            assert_eq!(found, Found { runs: 36, lossy }, "{profile:?}, {losses}");
        }
    }
    Ok(())
}
