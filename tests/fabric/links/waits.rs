//! Waits for operations that fail or take longer than their limit.

use rpma::sim::Errno;

use crate::links::prelude::*;

/// An error names the next step: after a time-out, for an operation that was polled already, after
/// a failed post, and when this host's device is gone.
#[test]
fn errors_name_the_next_step() -> Result {
    fn has<T: std::fmt::Debug>(result: rpma::Result<T>, step: &str) {
        let text = result.expect_err("an error").to_string();
        assert!(text.contains(step), "{step}: {text}");
    }
    each_connected(&impatient(), |world, both| {
        world.fabric.jump_over_waits();
        let _entered = world.hosts[0].enter();
        world.link.hold();
        let written = both.write(1)?;
        let wait = || both.wait(written, Duration::from_millis(1));
        has(wait(), "wait for it again or drop the connection");
        world.link.release();
        both.done(written)?;
        has(wait(), "polled already");
        world.link.lose_request(1);
        let lost = both.write(2)?;
        has(both.wait(lost, LIMIT), "connect again");
        has(both.wait(lost, LIMIT), "Conn::failure");

        let (client, _server) = world.connect(&impatient(), &impatient())?.ends();
        let failing = world.fabric.fail("ibv_post_send").next(Errno::IO);
        let write = || knock(&client, 1);
        let step = "This failed post ended the connection: connect again";
        has(write(), step);
        assert!(!failing.is_pending());
        let failure = client.failure().ok_or("a failed post")?.to_string();
        assert!(failure.contains("connect again"), "{failure}");
        has(write(), "Conn::failure");

        let (client, _server) = world.connect(&impatient(), &impatient())?.ends();
        world.hosts[0].kill();
        has(client.next_event(), "device was removed");
        Ok(())
    })
}

/// Promise: after a time-out the operation goes on, and its completion satisfies no other wait,
/// although both have the same `op_context`. Without this, a log with a flush that took longer than
/// its limit acknowledged the next record by it.
#[test]
fn a_late_completion_satisfies_no_later_wait() -> Result {
    each_connected(&patient(), |world, both| {
        world.hosts[1].freeze();
        let first = both.flush(1)?;
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            let late = both.client.wait_for(first, limit, |wc| panic!("{wc:?}"));
            timed_out(late);
        }
        let second = both.flush(1)?;
        world.hosts[1].thaw();
        let mut others = Vec::new();
        let take = |wc: Wc| others.push(wc.posted());
        let wc = both.client.wait_for(second, LIMIT, take);
        assert_eq!(wc?.posted(), Some(second));
        assert_eq!(others, [Some(first)]);
        // The name of an operation with a time-out is good for another wait.
        world.hosts[1].freeze();
        let third = both.flush(1)?;
        timed_out(both.wait(third, Duration::ZERO));
        world.hosts[1].thaw();
        let wc = both.client.wait_for(third, LIMIT, |wc| panic!("{wc:?}"));
        assert_eq!(wc?.posted(), Some(third));
        Ok(())
    })
}

/// Promise: a wait looks once more before it returns `TimedOut`: a queue for solicited events gives
/// no event for a completion that has come meanwhile.
#[test]
fn a_wait_looks_once_more_at_its_limit() -> Result {
    each_connected(&patient(), |world, both| {
        both.client.get_cq().req_notify(Notify::Solicited)?;
        world.link.delay(Duration::from_millis(50));
        // The first one takes the event that the queue was made for.
        for number in 1..=2 {
            let written = both.write(number)?;
            // Less than the second after which each wait looks by itself.
            let wc = both.wait(written, Duration::from_millis(500));
            assert_eq!(wc?.posted(), Some(written));
        }
        Ok(())
    })
}
