//! Calls that fail while a writer's commits are in flight.

use rpma::commit::Method;
use rpma::sim::Errno;
use rpma::{ConnEvent, Error};

use crate::failing::names;
use crate::faults::{UnderWay, Waits};
use crate::hosts::{Fault, methods, spoil};
use crate::served::{block, commit};
use crate::support::in_time;
use crate::world::virtually;

/// The error names the call. A poll has no errno.
#[track_caller]
fn names_call(error: &Error, call: &str) {
    match call {
        "ibv_poll_cq" => assert!(error.to_string().contains(call), "{error}"),
        _ => names(error, call, Errno::IO),
    }
}

/// Promise: a call that fails in a look, of the driver or of a task, ends the connection, as a
/// completion or an event may be lost. It is the reason of all waits, also of later ones, and the
/// sources come back while the writer lives.
#[test]
fn a_look_that_fails_is_the_reason() {
    let calls = [
        "ibv_get_cq_event",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "rdma_get_cm_event",
    ];
    for (method, call) in methods().flat_map(|method| calls.map(|call| (method, call))) {
        println!("{method}, {call}");
        virtually(async |world| {
            let of = UnderWay::new(world, method).await;
            let mut far = of.far;
            let waits = Waits::begin(&of.writer, of.tickets).await;
            let failing = world.fabric.fail(call).on(&world.hosts[0]);
            let failing = failing.next(Errno::IO);
            match call {
                "rdma_get_cm_event" => Fault::Killed.begin(world, &mut far).await,
                _ => far.there.release(),
            }
            let room = in_time(waits.room).await.expect("no panic");
            // Two commits may have become durable before.
            if let Err(error) = room {
                names_call(&error, call);
            }
            for waiting in waits.durable {
                if let Err(error) = in_time(waiting).await.expect("no panic") {
                    names_call(&error, call);
                }
            }
            match in_time(waits.closed).await.expect("no panic") {
                Ok(event) => assert_eq!(event, ConnEvent::Closed),
                Err(error) => names_call(&error, call),
            }
            assert!(!failing.is_pending());
            far.there.release();
            in_time(spoil(&of.pool))
                .await
                .expect("the sources come back");
            let later = in_time(of.writer.room()).await;
            names_call(&later.expect_err("it is over"), call);
            let refused = commit(&of.writer, block(&of.pool, 4).await, 4);
            assert!(
                matches!(refused, Err(Error::NotConnected(_))),
                "{refused:?}"
            );
            far.keeps(1..=3).await;
            drop(of.writer);
            far.end().await;
        });
    }
}

/// Promise: an answer whose receive cannot be posted again counts, and the connection ends with
/// this reason: a later answer would wait for a receive that never comes.
#[test]
fn an_answer_whose_receive_is_refused_ends_the_connection() {
    virtually(async |world| {
        let of = UnderWay::new(world, Method::Server).await;
        let mut far = of.far;
        let call = "ibv_post_recv";
        let failing = world.fabric.fail(call).on(&world.hosts[0]);
        let failing = failing.next(Errno::INVAL);
        far.there.release();
        let [second, _] = of.tickets;
        in_time(of.writer.durable(second)).await.expect("answered");
        assert!(!failing.is_pending());
        let over = in_time(of.writer.room()).await.expect_err("it is over");
        names(&over, call, Errno::INVAL);
        far.keeps(2..=3).await;
        drop(of.writer);
        far.end().await;
    });
}
