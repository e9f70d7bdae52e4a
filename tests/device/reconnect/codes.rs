//! The client's action after each answer of a server.

use std::cell::Cell;

use rpma::Refusal;
use rpma::commit::{Method, WriterCfg};
use rpma::reconnect::{Reconnect, ToConn, ToWriter};

use crate::common::prelude::*;
use crate::reconnect::support::{Server, assert_another_would_fail, connect, identified, quick};

fn identity(req: &ConnReq) -> Identity {
    let offer = Offer::decode(req.get_private_data()).expect("an offer");
    offer.identity().expect("an identity")
}

/// Promise: after a refusal that stays, one try is all. The reason has the code and the epoch that
/// the server keeps. The next request has the same identity: a reconnect raises no epoch.
#[test]
fn a_refusal_that_stays_ends_it() -> Result {
    use RefusalCode::{Broken, OldEpoch, Refused, Taken};
    let _test = device_test();
    let server = Server::new()?;
    let mut client = server.client()?;
    let own = client.offer().identity().ok_or("set")?;
    for (tries, code) in (1..).zip([Broken, OldEpoch, Taken, Refused]) {
        let refusal = Refusal::new(code, "not you").set_epoch(41).encode();
        let gave_up = connect(&mut client, || {
            if let Some(req) = server.request() {
                assert_eq!(identity(&req), own);
                req.reject(&refusal).expect("rejects");
            }
        });
        let gave_up = gave_up.expect_err("it is refused");
        let Some(why) = gave_up.refusal() else {
            panic!("{gave_up:?}");
        };
        assert_eq!((why.code(), why.epoch()), (code, 41));
        assert_says(&gave_up, &["not you"]);
        assert_eq!(client.tries(), tries);
        assert!(client.deadline().is_none(), "nothing is under way");
    }
    assert_eq!(client.connected(), 0);
    Ok(())
}

/// Promise: a program that takes over sends a higher epoch, and the client uses it from then on.
#[test]
fn a_program_takes_over_with_a_higher_epoch() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let mut client = server.client()?;
    let (own, kept) = (client.offer().identity().ok_or("set")?, 41);
    let mut refusal = Refusal::new(RefusalCode::Taken, "another instance writes");
    let refusal = refusal.set_epoch(kept).encode();
    let mut current = None;
    let mut serve = || {
        let Some(req) = server.request() else {
            return;
        };
        if identity(&req).epoch <= kept {
            return req.reject(&refusal).expect("rejects");
        }
        assert_eq!(identity(&req), Identity { epoch: 42, ..own });
        current = Some(req.connect(&server.offer()).expect("accepts"));
    };
    let gave_up = connect(&mut client, &mut serve).expect_err("it is taken");
    let epoch = gave_up.other_epoch().ok_or("another writer")?;
    let mut offer = client.offer().clone();
    offer.set_identity(Identity {
        epoch: epoch + 1,
        ..own
    });
    client.set_offer(offer)?;
    connect(&mut client, &mut serve)?;
    Ok(())
}

/// Promise: a refusal for the moment, a reject without a reason, and a reject with other bytes are
/// tried again.
#[test]
fn a_reject_that_may_pass_is_tried_again() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let encoded = |code| Refusal::new(code, "later").encode();
    let mut broken = encoded(RefusalCode::Taken);
    // Its version.
    broken[3] = 9;
    let answers = [
        Vec::new(),
        encoded(RefusalCode::Full),
        b"not a refusal".to_vec(),
        encoded(RefusalCode::NotCutOff),
        broken,
        vec![0xff; 148],
    ];
    let mut client = server.client()?;
    let (asked, mut current) = (Cell::new(0), None);
    let conn = connect(&mut client, || {
        let Some(req) = server.request() else {
            return;
        };
        match answers.get(asked.replace(asked.get() + 1)) {
            Some(answer) if answer.is_empty() => drop(req),
            Some(answer) => req.reject(answer).expect("rejects"),
            None => current = Some(req.connect(&server.offer()).expect("accepts")),
        }
    });
    conn?;
    assert_eq!((client.tries(), client.connected()), (7, 1));
    Ok(())
}

/// Promise: a full server is not asked once more at its next address, before a wait.
#[test]
fn a_full_server_ends_the_round() -> Result {
    let _test = device_test();
    let (server, other) = (Server::new()?, Server::new()?);
    let addrs = [server.at_addr()?, other.at_addr()?];
    let mut client = Reconnect::to_addrs(&server.peer, &addrs, identified(1), ToConn)?;
    client.set_cfg(&quick()?);
    let full = Refusal::new(RefusalCode::Full, "later").encode();
    let (mut asked, mut current) = (0, None);
    let conn = connect(&mut client, || {
        assert!(other.request().is_none(), "it is the same server");
        let Some(req) = server.request() else {
            return;
        };
        asked += 1;
        match asked {
            3 => current = Some(req.connect(&server.offer()).expect("accepts")),
            _ => req.reject(&full).expect("rejects"),
        }
    });
    conn?;
    assert_eq!(client.tries(), 3);
    Ok(())
}

/// Promise: a server that accepts and does not serve the writer ends it at once, and the connection
/// with it.
#[test]
fn a_server_that_cannot_serve_ends_it() -> Result {
    let _test = device_test();
    let server = Server::new()?;
    let nothing_durable = Offer::new(&PeerCfg::new()).encode(Offer::ACCEPT)?;
    for (answer, text) in [
        (vec![], "the peer sent no Offer"),
        (nothing_durable, "does not serve"),
    ] {
        let to_writer = ToWriter::new(&WriterCfg::new(Method::Reading));
        let mut client = server.client_with(identified(1), to_writer)?;
        let mut current = None;
        let gave_up = connect(&mut client, || server.accept_with(&answer, &mut current));
        let gave_up = gave_up.expect_err("it cannot serve");
        assert_another_would_fail(&gave_up);
        assert_says(&gave_up, &[text]);
        assert_eq!(client.tries(), 1);
    }
    Ok(())
}
