//! After the set-up, commits and their waits do not allocate in the library, by each method. The
//! simulator's own allocations are not counted.

use crate::looking;
use crate::replicas::cluster::Cluster;
use crate::replicas::prelude::*;

const SHORT: Duration = Duration::from_millis(120);

/// The places in the library that allocate meanwhile.
fn allocations(run: impl FnOnce() -> Result) -> Result<Vec<String>> {
    looking::begin();
    run()?;
    Ok(looking::end())
}

/// Commits, with everything that a program calls between them.
fn commit(of: &mut Cluster, numbers: std::ops::Range<u64>) -> Result {
    for number in numbers {
        of.log.wait_room(LEN, LIMIT)?;
        let id = of.append(number, 2)?;
        of.log.look();
        assert!(of.log.settle(id, 2, LIMIT).copies() >= 2);
        assert!(of.log.outcome(id).copies() >= 2);
        of.log.settle(id, 3, LIMIT);
    }
    Ok(())
}

#[test]
fn commits_on_replicas_allocate_nothing() -> Result {
    for profile in share("profiles", 4, Profile::EVERY) {
        for method in [methods(&profile), vec![Method::Server]].concat() {
            let way = Way {
                method,
                flush_type: match method {
                    Method::Server => FlushType::Persistent,
                    _ => FlushType::Visibility,
                },
                ..Way::visible().sending(2, 7)
            };
            let fabric = Rig::of(&profile).seed(1).fabric();
            let mut of = Cluster::new(&fabric, way, 3)?;
            let found = allocations(|| {
                commit(&mut of, 0..8)?;
                // Sleeps, with probes, at a replica that does not answer.
                of.hosts[1].freeze();
                let id = of.append(8, 2)?;
                of.log.settle(id, 3, SHORT);
                of.hosts[1].thaw();
                of.log.settle(id, 3, LIMIT);
                Ok(())
            })?;
            assert!(found.is_empty(), "{}, {method}: {found:#?}", profile.name());
        }
    }
    // The look finds those of the library: a limit of 0 has an error with a text.
    let found = allocations(|| {
        drop(Limits::new(0, 1, 1));
        Ok(())
    })?;
    assert!(!found.is_empty());
    Ok(())
}
