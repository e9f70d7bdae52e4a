//! Room without slow replicas, the end of a set, and the errors of too few copies.

use crate::replicas::holding::{SHORT, each, set};
use crate::replicas::prelude::*;

/// Promise: room is made without slow replicas after the limit, also if they hold different
/// records, and never with fewer than `k` that can take a commit.
#[test]
fn room_is_made_without_slow_replicas() -> Result {
    each(4, Way::visible().sending(4, 7), |mut set| {
        set.log.make_room(LEN, 3, SHORT)?;
        set.servers[1].host.freeze();
        for number in 0..2 {
            assert_eq!(set.commit(number, 2)?.durable, 0b101);
        }
        set.servers[2].host.freeze();
        for number in 2..4 {
            assert_eq!(set.commit(number, 1)?.durable, 0b001);
        }
        let refused = set.log.make_room(LEN, 3, SHORT);
        assert!(matches!(refused, Err(Error::RingFull)), "{refused:?}");
        assert_eq!(set.log.able(), 3, "none is set aside");
        set.log.make_room(LEN, 2, SHORT)?;
        assert!(set.log.has_room(LEN)? && set.log.able() == 2);
        assert_eq!(mask(set.log.replicas()), 0b101);
        let refused = set.log.make_room(4 * LEN, 2, SHORT);
        assert!(matches!(refused, Err(Error::RingFull)), "{refused:?}");
        set.log.make_room(4 * LEN, 1, SHORT)?;
        assert!(set.log.has_room(4 * LEN)? && set.log.able() == 1);
        assert_eq!(set.commit(4, 1)?.durable, 0b001);
        for (len, k) in [(LEN, 0), (5 * LEN, 1)] {
            let refused = set.log.make_room(len, k, SHORT);
            assert!(
                matches!(refused, Err(Error::InvalidArgument(_))),
                "{refused:?}"
            );
        }
        Ok(())
    })
}

/// Promise: a set that is closed has its last commits on each replica that can take them, a late
/// one too. At the limit it ends without them, and returns that.
#[test]
fn a_closed_set_has_all_commits_everywhere() -> Result {
    for is_in_time in [true, false] {
        each(6, Way::visible().sending(1, 7), |mut set| {
            set.commit(0, 3)?;
            let late = set.fabric.between(&set.client, &set.servers[2].host);
            late.delay(Duration::from_millis(50));
            set.servers[1].host.kill();
            for number in 1..5 {
                assert_eq!(set.commit(number, 1)?.durable & 1, 1);
            }
            let last = set.log.last().ok_or("there are commits")?;
            assert!(last.number() == 5 && set.log.is_own(last));
            let conn = &set.servers[2].ends[0];
            let closed = set.log.close(if is_in_time { LIMIT } else { SHORT });
            assert_eq!(conn.wait_ended(LIMIT)?, ConnEvent::Closed);
            set.fabric.settle();
            let shown = [0, 2].map(|n| whole(&set.servers[n].bytes().expect("mapped")));
            if is_in_time {
                closed?;
                assert_eq!(shown, [5, 5]);
            } else {
                assert!(matches!(closed, Err(Error::TimedOut(_))), "{closed:?}");
                assert!(shown[0] == 5 && shown[1] < 5, "{shown:?}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Promise: too few copies are an error with the reasons, and so is a commit for which too few
/// replicas are left.
#[test]
fn too_few_copies_are_an_error() -> Result {
    let mut set = set(&Profile::STRICT, 6, Way::visible().sending(1, 7))?;
    set.servers[1].host.freeze();
    let [first, second] = [0, 1].map(|number| set.append(number, 3).expect("room"));
    let outcome = set.log.settle(first, 3, SHORT);
    outcome.require(2)?;
    let error = outcome.require(3).expect_err("two have it");
    let is_unknown = matches!(
        error,
        Error::TooFewCopies {
            copies: 2,
            k: 3,
            unknown: 1,
            failed: 0
        }
    );
    assert!(is_unknown, "{error}");
    set.log.set_aside(set.ids[1], LIMIT)?;
    let error = set.log.settle(second, 3, LIMIT).require(3);
    let error = error.expect_err("two have it").to_string();
    assert!(
        error.contains("2 of 3") && error.contains("never get it: 1"),
        "{error}"
    );
    set.log.set_aside(set.ids[2], LIMIT)?;
    let error = set.append(2, 2).expect_err("one can").to_string();
    assert!(
        error.contains("only 1 of the set's 1") && error.contains("2 copies"),
        "{error}"
    );
    Ok(())
}
