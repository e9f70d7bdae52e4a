//! Failures in a wait for events, and in polling.

use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::common::prelude::*;
use crate::failing::support::{Failing, How, with_failures};

type Wait<'a> = Box<dyn Fn(Duration) -> Result<(), Error> + Sync + 'a>;

/// A client with each kind of channel, its server, and the program's channel if it is on that.
fn each() -> Result<Vec<(Pair, Option<CompletionChannel>)>> {
    let peer = peer()?;
    let own = CompletionChannel::new(&peer)?;
    let channel = own.clone();
    let of = ComplChannel::Of { channel, key: 9 };
    let pair = |kind| {
        let cfg = ConnCfg::new().set_compl_channel(kind).clone();
        Pair::with(&peer, &cfg, &ConnCfg::new())
    };
    Ok(vec![
        (pair(ComplChannel::PerCq)?, None),
        (pair(ComplChannel::Shared)?, None),
        (pair(of)?, Some(own)),
    ])
}

/// The way to wait for completions of the connection.
fn wait<'a>(conn: &'a Conn, own: &'a Option<CompletionChannel>) -> Wait<'a> {
    match own {
        Some(channel) => Box::new(|limit| channel.wait_timeout(limit).map(drop)),
        None if conn.get_compl_fd().is_ok() => Box::new(|limit| conn.wait_timeout(limit).map(drop)),
        None => Box::new(|limit| conn.get_cq().wait_timeout(limit)),
    }
}

/// Promise: a wait reports that its event cannot be taken, in each way to wait, and loses no event:
/// it is there for the next one.
#[test]
fn an_event_that_cannot_be_taken_is_there_for_the_next_wait() -> Result {
    with_failures(|| {
        for (pair, own) in each()? {
            let wait = wait(&pair.client, &own);
            for round in 0..3 {
                write_nothing(&pair.client, round)?;
                Failing::next("ibv_get_cq_event", Errno::IO)?.told(wait(LIMIT));
                wait(LIMIT)?;
                done(&pair.client, round)?;
            }
        }
        Ok(())
    })
}

/// Promise: one of several waits gets a failure, and the others wait on. So one event is enough for
/// two: it is still there for the other one.
#[test]
fn a_failure_ends_one_wait_of_two() -> Result {
    with_failures(|| {
        for (pair, own) in each()? {
            let wait = wait(&pair.client, &own);
            let failing = Failing::next("ibv_get_cq_event", Errno::IO)?;
            let results = thread::scope(|scope| -> Result<_> {
                let waiters = [(); 2].map(|()| scope.spawn(|| wait(LIMIT)));
                write_nothing(&pair.client, 1)?;
                Ok(waiters.map(|waiter| waiter.join().expect("no panic")))
            })?;
            done(&pair.client, 1)?;
            match results {
                [Ok(()), failed @ Err(_)] | [failed @ Err(_), Ok(())] => failing.told(failed),
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    })
}

/// Promise: a wait reports that the queue could not be armed after it. Its event is still
/// acknowledged, or destroying the queue would wait for that for ever; and the queue can be armed
/// again, as the error advises.
#[test]
fn a_queue_that_cannot_be_armed_after_an_event() -> Result {
    with_failures(|| {
        for (pair, own) in each()? {
            let wait = wait(&pair.client, &own);
            for round in 0..3 {
                write_nothing(&pair.client, round)?;
                let text = Failing::next("ibv_req_notify_cq", Errno::NOMEM)?.text(wait(LIMIT));
                assert!(text.contains("Cq::req_notify"), "{text}");
                done(&pair.client, round)?;
                let cq = pair.client.get_cq();
                Failing::next("ibv_req_notify_cq", Errno::NOMEM)?.told(cq.req_notify(Notify::Any));
                cq.req_notify(Notify::Any)?;
                write_nothing(&pair.client, round)?;
                wait(LIMIT)?;
                done(&pair.client, round)?;
            }
            write_nothing(&pair.client, 7)?;
            Failing::next("ibv_req_notify_cq", Errno::NOMEM)?.told(wait(LIMIT));
            drop(wait);
            pair.client.delete()?;
        }
        Ok(())
    })
}

/// Promise: polling that fails reports it, in each call that polls, and loses no completion.
#[test]
fn a_queue_that_cannot_be_polled() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let cq = pair.client.get_cq();
        write_nothing(&pair.client, 1)?;
        cq.wait_timeout(LIMIT)?;
        for _ in 0..3 {
            let mut wcs = [Wc::default(); 4];
            Failing::next("ibv_poll_cq", Errno::IO)?.told(cq.get_wc(&mut wcs));
        }
        done(&pair.client, 1)?;

        let written = write_nothing(&pair.client, 2)?;
        let wait = || pair.client.wait_for(written, LIMIT, |wc| panic!("{wc:?}"));
        Failing::next("ibv_poll_cq", Errno::IO)?.told(wait());
        opcode_of(&wait()?, 2)?;
        Ok(())
    })
}

/// Promise: a wait reports that it cannot take an event of a connection, and loses no event: it is
/// there for the next one. Both sides need it for the handshake, and to learn of the end.
#[test]
fn an_event_of_a_connection_that_cannot_be_taken() -> Result {
    with_failures(|| {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        let client = ask(&peer, &ep, &cfg)?;
        Failing::next("rdma_get_cm_event", Errno::IO)?.told(ep.next_conn_req_timeout(&cfg, LIMIT));
        let server = accept(&ep, &cfg)?;
        for conn in [&client, &server] {
            Failing::next("rdma_get_cm_event", Errno::IO)?.told(conn.next_event_timeout(LIMIT));
            assert_eq!(event(conn)?, ConnEvent::Established);
        }
        write_nothing(&client, 1)?;
        done(&client, 1)?;
        client.disconnect()?;
        Failing::next("rdma_get_cm_event", Errno::IO)?.told(server.next_event());
        assert_eq!(event(&server)?, ConnEvent::Closed);
        Ok(())
    })
}

/// Promise: `Conn::wait_established` that fails destroys the connection, and `ConnReq::new` leaves
/// no object either.
#[test]
fn a_connection_whose_events_cannot_be_taken_is_not_made() -> Result {
    with_failures(|| {
        let (peer, cfg) = (peer()?, ConnCfg::new());
        let ep = listen(&peer)?;
        // The first is that of the address, the second that of the route.
        for nth in [1, 2] {
            let failing = Failing::nth(nth, "rdma_get_cm_event", Errno::IO, How::Refused)?;
            failing.told(ConnReq::new(&peer, &addr(), ep.get_port(), &cfg));
        }
        let client = ask(&peer, &ep, &cfg)?;
        let server = accept(&ep, &cfg)?;
        Failing::next("rdma_get_cm_event", Errno::IO)?.told(client.wait_established(LIMIT));
        let mut end = event(&server)?;
        if is_iwarp() {
            // The client's kernel has taken the answer.
            assert_eq!(end, ConnEvent::Established);
            end = event(&server)?;
        }
        assert_ne!(end, ConnEvent::Established);
        Ok(())
    })
}

/// Promise: `Conn::next` loses no completion that it has polled because the other queue cannot be
/// polled.
#[test]
fn next_returns_what_one_queue_has_if_the_other_fails() -> Result {
    with_failures(|| {
        let pair = Pair::with(&peer()?, &ConnCfg::new(), ConnCfg::new().set_rcq_size(10))?;
        let server = &pair.server;
        // Which queue is looked at first is not said: each has its turn.
        for round in 0..4 {
            server.recv(MrSlice::EMPTY, 100 + round)?;
            write_nothing(server, round)?;
            write_nothing(&pair.client, 1)?;
            pair.client.send(MrSlice::EMPTY, ALWAYS, 2)?;
            completions(&pair.client, 2)?;
            // Both are there: their events have come.
            server.get_cq().wait_timeout(LIMIT)?;
            let rcq = server.get_rcq().ok_or("its own")?;
            rcq.wait_timeout(LIMIT)?;
            let failing = Failing::nth(2, "ibv_poll_cq", Errno::IO, How::Refused)?;
            let mut came = Vec::new();
            for _ in 0..2 {
                let mut wcs = [Wc::default(); 4];
                let next = server.next(&mut wcs, LIMIT)?;
                assert_eq!(next, Next::Completions(1));
                came.push(wcs[0].wr_id());
            }
            failing.happened();
            came.sort_unstable();
            assert_eq!(came, [round, 100 + round]);
        }
        Ok(())
    })
}

/// Promise: a channel that fails (that of a device which is gone does so each time) does not hide
/// the connection's end from `Conn::next`.
#[test]
fn next_tells_the_end_though_the_channel_fails() -> Result {
    with_failures(|| {
        let pair = Pair::new(&peer()?)?;
        let conn = &pair.client;
        // Its event stays when it has been polled.
        write_nothing(conn, 1)?;
        completion(conn)?;
        pair.server.disconnect()?;
        let deadline = Instant::now() + LIMIT;
        let readable = || -> Result<_> {
            let mut fds = [PollFd::new(conn, PollFlags::IN)];
            Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
        };
        while !readable()? {
            assert!(Instant::now() < deadline, "the end in time");
            thread::sleep(Duration::from_millis(1));
        }
        let failing = Failing::next("ibv_get_cq_event", Errno::IO)?;
        let next = conn.next(&mut [Wc::default()], LIMIT);
        assert_eq!(next?, Next::Event(ConnEvent::Closed));
        failing.happened();
        Failing::next("ibv_get_cq_event", Errno::IO)?.told(conn.next(&mut [Wc::default()], LIMIT));
        Ok(())
    })
}
