//! The example `sim-log`: the meaning of its lines.

use crate::common::prelude::*;
use crate::power::sim_log::{Fault, Found, cut_at_every_event};

/// Whether a native flush, or the platform, makes flushed data durable.
fn keeps(profile: &Profile, platform: Platform) -> bool {
    match platform {
        Platform::Volatile => false,
        Platform::Eadr => true,
        Platform::AdrDdioOff => profile.is_adapter() || profile.flushes_natively(),
        _ => profile.flushes_natively(),
    }
}

/// The log survives everywhere where it starts, and starts where flushed data is safe.
#[test]
fn the_example_survives() -> Result {
    for profile in Profile::EVERY {
        for platform in Platform::ALL {
            let found = cut_at_every_event(&profile, platform, Fault::Nothing)?;
            let is_right = if keeps(&profile, platform) {
                matches!(found, Found::Survived(_))
            } else {
                matches!(found, Found::Refused)
            };
            assert!(is_right, "{profile:?}, {platform}");
        }
    }
    Ok(())
}

/// Each `--break` is found, and where it is: a test on one device and one platform would miss it.
#[test]
fn the_faults_of_the_example_are_found() -> Result {
    for (fault, profile, platform) in [
        (Fault::Flush, Profile::STRICT, Platform::Eadr),
        (Fault::Flush, Profile::RXE_6_12, Platform::AdrDdioOn),
        (Fault::Tail, Profile::STRICT, Platform::AdrDdioOff),
        (Fault::Tail, Profile::STRICT, Platform::Eadr),
        (Fault::Platform, Profile::RXE_6_1, Platform::AdrDdioOff),
        (Fault::Platform, Profile::RXE_6_1, Platform::Volatile),
    ] {
        let found = cut_at_every_event(&profile, platform, fault)?;
        let Found::Lost(loss) = found else {
            panic!("{profile:?}, {platform}, {fault:?}: nothing is found");
        };
        println!("{loss}");
    }
    let found = cut_at_every_event(&Profile::RXE_6_12, Platform::AdrDdioOn, Fault::Tail)?;
    let survives = matches!(found, Found::Survived(_));
    assert!(survives, "soft-RoCE executes in order");
    Ok(())
}
