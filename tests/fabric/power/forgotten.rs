//! A flush for visibility in the place of one for persistence: the platforms that show this fault,
//! as in docs/testing-your-program.md.

use crate::common::prelude::*;
use crate::power::protocols::{check_log, place, record};
use crate::power::world::{Ran, Way, World, fabric};

/// Appends a record and its tail, each with a flush of this kind that is awaited.
pub(crate) fn append_on(fabric: &Fabric, platform: Platform, kind: FlushType) -> Ran {
    let world = World::new(fabric, Way::on(platform)).expect("a connection");
    world.under_every_cut(check_log, |tell| {
        world.write(place(0), record(0))?;
        world.flush_as(place(0), record(0).len(), kind)?;
        world.write(0, &1_u64.to_le_bytes())?;
        world.flush_as(0, 8, kind)?;
        tell(1);
        Ok(())
    })
}

fn append(profile: &Profile, platform: Platform, kind: FlushType) -> Result<bool> {
    let fabric = fabric(profile);
    let found = append_on(&fabric, platform, kind);
    assert!(fabric.visited().images > 0);
    Ok(match found {
        // Where no flush makes data durable, rpma refuses that for persistence.
        Ok(appended) => {
            assert!(appended.is_ok() || kind == FlushType::Persistent);
            false
        }
        Err(_) => true,
    })
}

/// On each device a platform of `Platform::ALL` shows it: with DDIO on, each of them does.
#[test]
fn the_platforms_that_show_a_forgotten_persistent() -> Result {
    for profile in Profile::EVERY {
        for platform in Platform::ALL.into_iter().filter(|it| it.is_persistent()) {
            let shows = match platform {
                Platform::AdrDdioOn => true,
                // soft-RoCE and soft-iWARP copy through the caches.
                Platform::AdrDdioOff => !profile.is_adapter(),
                _ => false,
            };
            let name = profile.name();
            let found = append(&profile, platform, FlushType::Visibility)?;
            assert_eq!(found, shows, "{name}, {platform}");
            let found = append(&profile, platform, FlushType::Persistent)?;
            assert!(!found, "{name}, {platform}: the right one");
        }
    }
    Ok(())
}
