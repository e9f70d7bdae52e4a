//! Calls that fail.

use rpma::sim::Errno;

use crate::common::prelude::*;
use crate::keep_alive::world::{D, SIDES, Way, lost, patient_ends, silent};

/// Promise: each call that the keep-alive makes may fail, and the end still comes, once, within D
/// and the second in which operations in flight may complete.
#[test]
fn each_failing_call_ends_it_once() -> Result {
    for way in Way::ALL {
        for how in [How::Refused, How::Done] {
            for here in SIDES {
                // A probe cannot be posted.
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                let failing = world.fabric.fail("ibv_post_send").on(&world.hosts[here]);
                let failing = failing.how(how).next(Errno::IO);
                let (took, saw) = ends[here].wait_for_the_end()?;
                assert!(!failing.is_pending() && took < D, "{took:?}");
                let event = ConnEvent::Lost { status: -5 };
                assert_eq!((saw.completions, saw.event), (vec![], Some((event, 0))));
                let (call, errno) = ("ibv_post_send", 5);
                let failure = ends[here].conn()?.failure();
                assert_eq!(failure, Some(Failure::Post { call, errno }));
                ends[here].says_no_more()?;

                // The device has no room for it: it is not posted, and the rule goes on.
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                let failing = world.fabric.fail("ibv_post_send").on(&world.hosts[here]);
                let _failing = failing.next(Errno::NOMEM);
                let (took, saw) = ends[here].wait_for_the_end()?;
                assert!(took <= D, "{took:?}");
                assert_eq!(saw.event, Some((lost(), 0)));

                // The queue pair does not take the error state, so an operation in flight may
                // never complete: the end does not wait for it for ever.
                let (world, mut ends, _entered) = patient_ends(way, here)?;
                world.hosts[1 - here].freeze();
                ends[here].ask(ALWAYS, 7)?;
                let failing = world.fabric.fail("ibv_modify_qp").on(&world.hosts[here]);
                let failing = failing.how(how).next(Errno::IO);
                let (took, saw) = ends[here].wait_for_the_end()?;
                assert!(!failing.is_pending());
                assert!(took <= D + Duration::from_secs(1), "{took:?}");
                let completions: &[_] = match how {
                    How::Done => &[(7, false)],
                    _ => &[],
                };
                assert_eq!(saw.completions, completions);
                assert_eq!(saw.event, Some((lost(), completions.len())));
                assert_eq!(ends[here].conn()?.failure(), silent());
            }
        }
    }
    Ok(())
}
