//! Time limits, and peers that are gone.

use std::{iter, thread};

use crate::common::prelude::*;
use crate::ending::support::{SOON, asked, unanswered};

/// `wait_established` gives the connection back when it is there.
#[test]
fn waiting_to_be_accepted() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, _ep, req) = asked(&peer)?;
    let server = req.connect(b"welcome")?;
    let client = client.wait_established(LIMIT)?;
    let server = server.wait_established(LIMIT)?;
    assert!(client.get_private_data().starts_with(b"welcome"));
    assert_ne!(client.get_event_fd(), server.get_event_fd());
    assert_ne!(client.get_event_fd(), client.get_cq().get_fd());
    for conn in [&client, &server] {
        write_nothing(conn, 1)?;
        done(conn, 1)?;
    }
    Ok(())
}

/// A reject ends the wait with the event; so does a port without a listener.
#[test]
fn waiting_to_be_accepted_and_rejected() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, ep, req) = asked(&peer)?;
    req.reject(b"not you")?;
    let error = client.wait_established(LIMIT).expect_err("rejected");
    let reason = format!("reason {}", ConnEvent::BY_PROGRAM);
    assert_says(&error, &["not established", &reason]);
    let Error::NotEstablished(event) = &error else {
        panic!("{error:?}")
    };
    let ConnEvent::Rejected { private_data, .. } = &**event else {
        panic!("{event:?}")
    };
    assert!(private_data.starts_with(b"not you"));
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);

    let port = ep.get_port();
    ep.shutdown()?;
    let req = ConnReq::new(&peer, &addr(), port, &ConnCfg::new())?;
    let client = req.connect(&[])?;
    let error = client.wait_established(LIMIT).expect_err("nobody listens");
    assert_says(&error, &["nobody listens"]);
    Ok(())
}

/// The wait ends at its limit, which the kernel does not know.
fn unanswered_until_the_limit(conn: Conn) -> Error {
    let start = Instant::now();
    let error = conn.wait_established(SOON).expect_err("nobody answers");
    let took = start.elapsed();
    assert!(took >= SOON && took < LIMIT / 2, "{took:?}");
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    error
}

/// A listener that never accepts: the kernel would wait for more than a minute, this ends at the
/// limit. The connection is gone then: accepting it afterwards cannot bring it back.
#[test]
fn nobody_accepts_in_time() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, ep) = unanswered(&peer)?;
    let error = unanswered_until_the_limit(client);
    assert_says(&error, &["did not answer"]);
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    // Skipped, or taken and failing; never established.
    let req = ep.next_conn_req_timeout(&ConnCfg::new(), SOON);
    if let Ok(server) = req.and_then(|req| Ok(req.connect(&[])?)) {
        match server.wait_established(LIMIT) {
            Err(Error::NotEstablished(_)) => {}
            // The client's kernel learns of the end with the answer.
            Ok(server) if is_iwarp() => assert_eq!(event(&server)?, ConnEvent::Closed),
            gone => panic!("{gone:?}"),
        }
    }
    Ok(())
}

/// The same for the side that accepts: a client that does not take the answer does not complete
/// the handshake. Afterwards it is too late for that: it learns of the end, at once or after its
/// own answer.
#[test]
fn nobody_takes_the_answer_in_time() -> Result {
    let (_test, peer) = peer_test()?;
    let (client, ep) = unanswered(&peer)?;
    let server = accept(&ep, &ConnCfg::new())?;
    unanswered_until_the_limit(server);
    // The answer is here, and taken. The reject that came with the server's end is here as
    // well, or on its way.
    match client.wait_established(LIMIT) {
        Err(error) => assert!(matches!(error, Error::NotEstablished(_)), "{error:?}"),
        Ok(client) => {
            let end = event(&client)?;
            let ended = matches!(end, ConnEvent::Rejected { .. } | ConnEvent::Closed);
            assert!(ended, "{end}");
        }
    }
    Ok(())
}

/// A wait of at most some time, and how it ended.
type Wait<'a> = &'a dyn Fn(Duration) -> Option<Error>;

/// Every wait has a limit, and reports that no event came.
#[test]
fn every_wait_can_be_limited() -> Result {
    let (_test, peer) = peer_test()?;
    let ep = listen(&peer)?;
    let mut cfg = ConnCfg::new();
    cfg.set_compl_channel(ComplChannel::Shared).set_rcq_size(1);
    let pair = Pair::with(&peer, &ConnCfg::new(), &cfg)?;
    let unheard = post_unanswered(&pair.client, 1)?;
    let waits: [(&str, Wait<'_>); 5] = [
        ("Ep::next_conn_req_timeout", &|limit| {
            ep.next_conn_req_timeout(&ConnCfg::new(), limit).err()
        }),
        ("Conn::next_event_timeout", &|limit| {
            pair.client.next_event_timeout(limit).err()
        }),
        ("Cq::wait_timeout", &|limit| {
            pair.client.get_cq().wait_timeout(limit).err()
        }),
        ("Conn::wait_timeout", &|limit| {
            pair.server.wait_timeout(limit).err()
        }),
        ("Conn::wait_for", &|limit| {
            pair.client.wait_for(unheard, limit, |_| {}).err()
        }),
    ];
    for (name, wait) in waits {
        for limit in [Duration::ZERO, Duration::from_millis(70)] {
            let took = || {
                let start = Instant::now();
                let error = wait(limit);
                let error = error.expect("nothing comes");
                let is_over = matches!(
                    error,
                    Error::NoEvent | Error::NoCompletion | Error::TimedOut(_)
                );
                assert!(is_over, "{name}: {error:?}");
                let took = start.elapsed();
                assert!(took >= limit, "{name}: {took:?}");
                took
            };
            // Something else may hold this program up, but not each time.
            let kept = iter::repeat_with(took)
                .take(5)
                .any(|took| took < limit + Duration::from_millis(500));
            assert!(kept, "{name}: much longer than {limit:?}, each time");
        }
    }
    Ok(())
}

/// A dead peer is known after the acknowledge timeout, as many times as there are retries and once
/// more: so fewer retries make it known sooner, and a shorter timeout sooner still.
///
/// The three wait at once, and the kernel's reports show the order in which they end. If a setting
/// were not heeded, the connection that began earlier would end earlier.
#[test]
fn a_dead_peer_can_be_known_sooner() -> Result {
    let (_test, peer) = peer_test()?;
    // 7 × 1.1 s, 2 × 1.1 s and 2 × 17 ms by the book.
    let cfgs = [(None, 18), (Some(1), 18), (Some(1), 12)];
    let end_order = |pause: Duration| {
        let channel = CompletionChannel::new(&peer).expect("a channel");
        let mut clients = Vec::new();
        for (key, (retries, timeout)) in (0..).zip(cfgs) {
            let mut cfg = ConnCfg::new();
            if let Some(retries) = retries {
                cfg.set_retry_count(retries).expect("possible");
            }
            cfg.set_ack_timeout(Some(timeout)).expect("possible");
            let channel = channel.clone();
            cfg.set_compl_channel(ComplChannel::Of { channel, key });
            let pair = Pair::with(&peer, &cfg, &ConnCfg::new()).expect("established");
            drop(pair.server);
            clients.push(pair.client);
        }
        let mut began = Duration::ZERO;
        for client in &clients {
            let start = Instant::now();
            write_nothing(client, 1).expect("not known yet");
            thread::sleep(pause);
            began = began.max(start.elapsed());
        }
        let ended = [(); 3].map(|()| {
            let key = channel.wait_timeout(LIMIT).expect("ends in time").0;
            let failure = completion(&clients[key as usize])
                .expect("polling works")
                .result()
                .expect_err("nobody answers");
            assert_eq!(failure.status, WcStatus::RETRY_EXC_ERR, "{failure}");
            key
        });
        (began, ended)
    };
    // If this program was held up between two of them, the order has no meaning.
    let ended = iter::repeat_with(|| end_order(Duration::from_millis(300)))
        .take(10)
        .find_map(|(began, ended)| (began < Duration::from_millis(1800)).then_some(ended));
    assert_eq!(ended, Some([2, 1, 0]));
    Ok(())
}
