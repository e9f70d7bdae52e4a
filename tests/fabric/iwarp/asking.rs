//! Asking for a connection: the kernel's call waits for the peer, and nobody else does.

use std::os::fd::AsFd;

use rpma::sim::{Errno, now};

use super::{SECOND, connected, world};
use crate::common::prelude::*;

/// Requests whose server's host does not answer from now on.
fn unanswered<const N: usize>(both: &World) -> Result<(Ep, [ConnReq; N])> {
    let server = both.listen()?;
    let reqs = [(); N].map(|()| both.resolve(&server, &ConnCfg::new()).expect("a request"));
    both.link.partition();
    Ok((server, reqs))
}

/// Promise: to ask for a connection does not wait, and a limit holds, although the kernel's call
/// waits for two minutes. After that, nothing is left of the connection.
#[test]
fn a_host_that_does_not_answer_keeps_nobody() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let (_server, [first, second]) = unanswered(&both)?;
    let began = now();
    let conn = first.connect(&[])?;
    let busy = conn.disconnect().expect_err("the kernel still asks");
    assert_says(&busy, &["rdma_disconnect", "drop it"]);
    assert_timed_out(conn.wait_established(SECOND));
    second.connect(&[])?.cut_off()?;
    assert!(now() < began + 2 * SECOND, "{:?}", now() - began);
    assert_eq!(both.hosts[0].objects()["qp"], 2);
    rpma::sim::sleep(140 * SECOND);
    assert_eq!(both.hosts[0].objects().get("qp"), None);
    Ok(())
}

/// Promise: the kernel's answers to the call that asks are events, as they are for an adapter, and
/// each comes once, in each kind of wait.
#[test]
fn a_call_that_fails_is_an_event() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let refused = |reason| match reason {
        Ok(Next::Event(event @ ConnEvent::Rejected { .. })) => event,
        other => panic!("{other:?}"),
    };
    for way in 0..3 {
        let server = both.listen()?;
        let req = both.resolve(&server, &ConnCfg::new())?;
        drop(server);
        let conn = req.connect(&[])?;
        let event = match way {
            0 => conn.next_event_timeout(LIMIT)?,
            1 => refused(conn.next(&mut [Wc::default()], LIMIT)),
            _ => {
                let fd = conn.get_next_fd()?;
                assert!(rpma::sim::wait_readable(&[fd], Some(now() + SECOND))?);
                refused(conn.next(&mut [Wc::default()], Duration::ZERO))
            }
        };
        let reason = ConnEvent::NO_LISTENER;
        let private_data = Box::default();
        assert_eq!(
            event,
            ConnEvent::Rejected {
                reason,
                private_data
            }
        );
        assert!(matches!(
            conn.next_event_timeout(SECOND),
            Err(Error::NoEvent)
        ));
        let fd = [conn.as_fd()];
        assert!(!rpma::sim::wait_readable(&fd, Some(now()))?, "it was taken");
        assert_eq!(conn.ended(), Some(&event));
    }
    let (_server, [req]) = unanswered(&both)?;
    let event = req.connect(&[])?.next_event_timeout(140 * SECOND)?;
    assert_eq!(event, ConnEvent::Unreachable { status: -110 });
    Ok(())
}

/// Promise: a call that fails for another reason is an error that names it, once; the connection is
/// over for that reason.
#[test]
fn a_call_that_fails_is_an_error() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let server = both.listen()?;
    let failing = both.fabric.fail("rdma_connect").next(Errno::NOMEM);
    let conn = both.ask(&server, &ConnCfg::new())?;
    let error = conn.next_event_timeout(LIMIT).expect_err("the call failed");
    assert!(!failing.is_pending());
    let is_it = |error: &Error| assert_says(error, &["rdma_connect", "Cannot allocate memory"]);
    is_it(&error);
    is_it(&conn.reason().ok_or("it is over")?);
    assert!(matches!(
        conn.next_event_timeout(SECOND),
        Err(Error::NoEvent)
    ));
    Ok(())
}

/// Promise: a program that gives up again and again is refused when 64 of its calls wait, with the
/// reason. It may ask again when they have ended.
#[test]
fn connections_that_were_given_up_have_a_bound() -> Result {
    let both = world();
    let _here = both.hosts[0].enter();
    let (_server, reqs) = unanswered::<65>(&both)?;
    let mut reqs = reqs.into_iter();
    for req in reqs.by_ref().take(64) {
        drop(req.connect(&[])?);
    }
    let last = reqs.next().ok_or("one more")?;
    let refused = last.connect(&[]).expect_err("64 wait").error;
    assert_says(&refused, &["rdma_connect", "64 connections", "later"]);
    assert_eq!(both.hosts[0].objects()["qp"], 64);
    rpma::sim::sleep(140 * SECOND);
    both.link.heal();
    connected(&both)?;
    Ok(())
}
